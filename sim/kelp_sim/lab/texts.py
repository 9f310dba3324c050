# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The texts that a policy is tuned and judged on with the real model (docs/lab.md), made from what
every checkout has: the standard library and the packages of its lock.

``python -m kelp_sim.lab.texts DIR [NAME…]`` writes them, one file each. Which are tuned on and
which are held back is fixed here; nothing may be chosen by looking at a text that is held back.
Those that are ``unseen`` were added when the policy had been judged on the other held-back ones.
"""

from __future__ import annotations

import argparse
import random
import re
import sysconfig
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

from kelp_spec.files import write_whole

__all__ = ["TEXTS", "Text", "main"]


@dataclass(frozen=True)
class Text:
    """``make`` returns at least 4096 tokens of SmolLM2's; TextError where its source is absent or
    has no such text."""

    kind: str
    held_back: bool
    make: Callable[[], str]
    unseen: bool = False


class TextError(ValueError):
    """A text's source is not on this machine; one line says which."""


def _of_library(name: str) -> Callable[[], str]:
    return lambda: _read(Path(sysconfig.get_paths()["stdlib"]) / name)


def _of_package(package: str, name: str) -> Callable[[], str]:
    def make() -> str:
        found = find_spec(package)
        if found is None or found.origin is None:
            raise TextError(f"the package {package!r} is not installed")
        return _read(Path(found.origin).parent / name)

    return make


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TextError(f"{path} cannot be read: {error}") from None


def _topics() -> dict[str, str]:
    from pydoc_data.topics import topics

    return topics


def _reference() -> str:
    return "\n\n".join(_topics()[name] for name in ("compound", "execmodel", "objects"))


def _messages(language: str) -> Iterator[tuple[str, str]]:
    """Sphinx's own messages and their translations, those of at least 30 letters."""
    catalogue = _of_package("sphinx", f"locale/{language}/LC_MESSAGES/sphinx.po")()
    for entry in catalogue.split("\n\n"):
        found = re.search(r'^msgid (.*?)^msgstr (".*)', entry, re.DOTALL | re.MULTILINE)
        if found:
            said = [
                "".join(re.findall(r'^"(.*)"$', part, re.MULTILINE)).replace('\\"', '"')
                for part in ("\n".join(found[1].split("\n")), found[2])
            ]
            if min(map(len, said)) >= 30:
                yield said[0], said[1]


def _chat(turns: Iterator[tuple[str, str]]) -> str:
    return "".join(
        f"<|im_start|>user\n{asked}<|im_end|>\n<|im_start|>assistant\n{said}<|im_end|>\n"
        for asked, said in turns
    )


def _translations() -> str:
    return _chat((f"Put this into French: {m}", said) for m, said in _messages("fr"))


def _questions() -> str:
    """The reference's short topics, asked for one by one."""
    short = sorted((name, said) for name, said in _topics().items() if 300 < len(said) < 1500)
    return _chat((f"What does Python's reference say of {name}?", said) for name, said in short)


def _foreign(language: str) -> Callable[[], str]:
    return lambda: "\n".join(said for _, said in _messages(language))


def _licence() -> str:
    """NumPy's licence, with those of what it carries."""
    try:
        files = distribution("numpy").files or []
    except PackageNotFoundError:
        raise TextError("the package 'numpy' is not installed") from None
    found = [Path(str(file.locate())) for file in files if file.name == "LICENSE.txt"]
    if not found:
        raise TextError("the package 'numpy' comes without a LICENSE.txt")
    return _read(max(found, key=lambda path: path.stat().st_size))


def _news() -> str:
    """IDLE's list of changes, whose name differs between versions of Python."""
    try:
        return _of_library("idlelib/News3.txt")()
    except TextError:
        return _of_library("idlelib/NEWS.txt")()


def _recall() -> str:
    """A dialogue that says where things are and asks for them again, some at once, some long
    after."""
    draw = random.Random(21)
    colours = "red blue green black white yellow brown silver".split()
    things = "key cup book lamp coat ball rope drum map clock spoon bell".split()
    rooms = "kitchen cellar garden attic hall study barn tower workshop library".split()
    places: dict[str, str] = {}

    def turns() -> Iterator[tuple[str, str]]:
        for _ in range(400):
            thing = f"{draw.choice(colours)} {draw.choice(things)}"
            if places and draw.random() < 0.5:
                thing = draw.choice(list(places))
                yield f"Where is the {thing}?", f"The {thing} is in the {places[thing]}."
            else:
                places[thing] = draw.choice(rooms)
                yield f"I have put the {thing} in the {places[thing]}.", "I will remember it."

    return _chat(turns())


def _characters() -> str:
    """A table with commas: what Unicode says of each letter and sign."""
    rows = (
        f"{code:04X},{unicodedata.name(chr(code), '')},{unicodedata.category(chr(code))},"
        + f"{unicodedata.bidirectional(chr(code))},{unicodedata.decomposition(chr(code))}"
        for code in range(0x20, 0x400)
    )
    return "code,name,category,direction,decomposition\n" + "\n".join(rows)


TEXTS = {
    "argparse": Text("code", False, _of_library("argparse.py")),
    "reference": Text("prose", False, _reference),
    "translations": Text("dialogue, English and French", False, _translations),
    "stocks": Text("table", False, _of_package("matplotlib", "mpl-data/sample_data/Stocks.csv")),
    "subprocess": Text("code", True, _of_library("subprocess.py")),
    "questions": Text("dialogue", True, _questions),
    "spanish": Text("another language", True, _foreign("es")),
    "metrics": Text("table", True, _of_package("matplotlib", "mpl-data/fonts/afm/ptmr8a.afm")),
    "help": Text("prose with markup", True, _of_library("idlelib/help.html")),
    "licence": Text("legal prose", True, _licence, unseen=True),
    "header": Text(
        "code, C", True, _of_package("numpy", "_core/include/numpy/ndarraytypes.h"), unseen=True
    ),
    "search": Text(
        "code, JavaScript",
        True,
        _of_package("sphinx", "themes/basic/static/searchtools.js"),
        unseen=True,
    ),
    "japanese": Text("another script", True, _foreign("ja"), unseen=True),
    "news": Text("list of changes", True, _news, unseen=True),
    "recall": Text("dialogue that asks back", True, _recall, unseen=True),
    "characters": Text("table with commas", True, _characters, unseen=True),
}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m kelp_sim.lab.texts", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(TEXTS))
    chosen = parser.parse_args(arguments)
    unknown = [name for name in chosen.names if name not in TEXTS]
    if unknown:
        parser.error(f"text {unknown[0]!r} is not one of {', '.join(TEXTS)}")
    for name in chosen.names or TEXTS:
        try:
            text = TEXTS[name].make()
            chosen.folder.mkdir(parents=True, exist_ok=True)
            write_whole(chosen.folder / f"{name}.txt", text)
        except TextError as error:
            parser.error(f"{name}: {error}")
        except OSError as error:
            parser.error(f"{error.filename}: {error.strerror}")
        use = "held back" if TEXTS[name].held_back else "for tuning"
        print(f"{name}: {len(text):,} characters, {TEXTS[name].kind}, {use}")


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What every subcommand shares: the consoles, the error that becomes one line, the bar that shows
how far it is, and the JSON files."""

import contextlib
import importlib
import json
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from kelp_spec.files import write_whole

__all__ = [
    "SCHEMA_VERSION",
    "UserError",
    "anyway",
    "complain",
    "console",
    "drawable",
    "progress_bar",
    "show",
    "writable",
    "write_json",
]

# Of every JSON object this command writes; raised when a field changes its meaning or goes away.
SCHEMA_VERSION = 1

# A name or a path is shown as it is, whatever is in brackets there; style is of rich's Text.
_PLAIN = {"highlight": False, "markup": False, "emoji": False}

# Tables and results go to stdout; progress and complaints go to stderr, so that a pipe sees results
# alone.
console = Console(**_PLAIN)

# No table of ours needs as many columns; and what is longer than this may be folded.
_WIDEST, _WORD = 1000, 14


def show(table: RenderableType) -> None:
    """Print a table of which nothing is cut: where the terminal, or the 80 columns of a pipe, are
    too narrow for its figures, its lines are longer than that."""
    Console(**_PLAIN, width=_needed(table)).print(table)


def _needed(table: RenderableType) -> int:
    """The narrowest width, from the console's on, at which every character of the table is there
    and every word in one piece, paths and the like apart. It may be three too wide."""

    def said(width: int) -> tuple[Counter, Counter]:
        lines = Console(**_PLAIN, width=width).render_lines(table, pad=False)
        rows = ("".join(segment.text for segment in line) for line in lines)
        words = re.sub(r"[\u2500-\u257f]", " ", "\n".join(rows)).split()
        return Counter("".join(words)), Counter(word for word in words if len(word) <= _WORD)

    characters, words = said(max(_WIDEST, console.width))
    width = console.width
    while width < _WIDEST:
        these, whole = said(width)
        if these == characters and words <= whole:
            break
        width += 4
    return width


class UserError(Exception):
    """Something the user can put right: shown as one line without a traceback; ``exit_code`` is the
    process's."""

    def __init__(self, message: str, *, exit_code: int = 1):
        super().__init__(message)
        self.exit_code = exit_code


def complain(message: str) -> None:
    """One line on stderr, with what a tool said below it, if anything."""
    first, _, rest = message.partition("\n")
    stderr = Console(stderr=True, highlight=False, soft_wrap=True)
    stderr.print(Text.assemble(("kelp: ", "bold red"), first))
    if rest:
        stderr.print(Text(rest, style="dim"))


@contextlib.contextmanager
def progress_bar() -> Iterator[Progress]:
    """On stderr, so that a pipe sees results alone."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=False) as bar:
        yield bar


@contextlib.contextmanager
def anyway(tell: Callable[[], None]) -> Iterator[None]:
    """The block writes into files what long work came to; ``tell`` shows it behind them, and also
    where one could not be written, such as on a full disk: so it is not lost with the file. The
    OSError goes on. Files come first, since whoever reads stdout may be gone."""
    try:
        yield
    except OSError:
        tell()
        raise
    tell()


def drawable(*pictures: Path | None) -> None:
    """Refuse, before long work, pictures where nothing draws them; None is passed over. They are
    drawn with matplotlib's own settings, whatever the user's matplotlibrc and MPLBACKEND say.
    Raises ModuleNotFoundError, which :mod:`kelp_cli.main` makes the line that says what to
    install."""
    if any(path is not None for path in pictures):
        os.environ["MPLBACKEND"] = "agg"  # read, and refused if unknown, when it is imported
        importlib.import_module("matplotlib").rcdefaults()


def writable(
    *files: Path | None,
    json: Path | None = None,
    folder: Path | None = None,
    inputs: Iterable[Path | str | None] = (),
) -> None:
    """Refuse, before long work, what could not be written at its end, what would replace one of
    ``inputs``, and two results of one name; makes the directories. Passed over are None, and what
    is there and is neither file nor directory, such as a pipe; and ``-`` for ``json``, which may go
    to stdout. Raises :class:`UserError`."""
    named = [path for path in (*files, json) if path is not None]
    if json is not None and str(json) == "-":
        named.remove(json)
    for path in named:
        if str(path) == "-":
            raise UserError("- is no file's name here; only --json goes to stdout")
        if path.is_dir():
            raise UserError(f"{path} is a directory; the name of a file is expected")
    if folder is not None and str(folder) == "-":
        raise UserError("- is no directory's name here; only --json goes to stdout")
    if folder is not None and folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; the name of a directory is expected")
    kept = [path for path in named if path.is_file() or not path.exists()]
    read = {Path(path).resolve() for path in inputs if path is not None}
    for path, count in Counter(path.resolve() for path in kept).items():
        if path in read:
            raise UserError(f"{path} is read by this command, and would be replaced; name another")
        if count > 1:
            raise UserError(f"{path} is named for two results; name another for one of them")
    for path in [*(path.resolve().parent for path in kept), *([folder] if folder else [])]:
        try:
            path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=path):
                pass
        except OSError as error:
            raise UserError(f"{path} cannot be written to: {error.strerror}") from None


def write_json(path: Path | str, kind: str, payload: dict) -> None:
    """Write ``payload`` with its ``schema`` (``kelp.<kind>``) and ``schema_version`` as UTF-8;
    ``-`` is stdout. Makes the directory."""
    text = json.dumps(
        {"schema": f"kelp.{kind}", "schema_version": SCHEMA_VERSION, **payload},
        indent=2,
        ensure_ascii=False,
        allow_nan=False,
    )
    if str(path) == "-":
        if sys.stdout is None:
            raise UserError("stdout is closed; --json - writes to it")
        sys.stdout.write(text + "\n")
        return
    path = Path(path)
    write_whole(path, text + "\n")

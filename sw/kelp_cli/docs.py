# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""``kelp docs``: the generated parts of docs/."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from kelp_spec.config import named
from kelp_spec.files import read_text, write_whole

from .bench import GROUPS, figures_markdown
from .nightly import runs_markdown
from .output import UserError, console
from .picture import picture

__all__ = ["DOCUMENTED", "generated", "register"]

DOCUMENTED = "trace"  #: the configuration whose widths and offsets the tables show


_RUNS = "<!-- runs: written by `kelp docs` from data/bench/nightly.json -->\n"
#: Where the rows of the bench are, and what writes each.
_BESIDE = {
    "nightly.json": "kelp nightly",
    "mutate.json": "make mutate",
    "coverage.json": "make coverage",
}
_MUTANTS = "<!-- mutants: written by `kelp docs` from data/bench/mutate.json -->\n"
_COVERAGE = "<!-- coverage: written by `kelp docs` from data/bench/coverage.json -->\n"
_EXAMPLE = "<!-- example: written by `kelp docs` from the golden model -->\n"
#: Pages of which parts are written.
_PARTS = ("verification.md", "select.md")


def generated(bench: Path, directory: Path) -> dict[str, str]:
    """File name in `directory`, docs/, → its text; `bench` has the rows of the last bench, and
    `nightly.json`, `mutate.json` and `coverage.json` beside it those of the last runs, which are
    parts of a page."""
    from kelp_hw.export.ports import ports_markdown
    from kelp_spec.cxlio.config import named_cxlio
    from kelp_spec.cxlio.render import cxl_registers_markdown
    from kelp_spec.render import c_header, registers_markdown
    from kelp_verif.coverage.record import markdown as coverage_markdown
    from kelp_verif.mutation.hunt import markdown

    from .select.example import example_markdown

    config = named(DOCUMENTED)
    verification, choice = (directory / name for name in _PARTS)
    page = read_text(verification)
    for mark, name, render in (
        (_RUNS, "nightly.json", runs_markdown),
        (_COVERAGE, "coverage.json", coverage_markdown),
        (_MUTANTS, "mutate.json", lambda record: markdown(record["blocks"])),
    ):
        rows = _rendered(bench.with_name(name), _BESIDE[name], render)
        page = _between(page, mark, rows, verification)
    return {
        "registers.md": registers_markdown(config),
        "cxl_registers.md": cxl_registers_markdown(named_cxlio("joined")),
        "architecture.svg": picture(),
        "ports.md": ports_markdown(config),
        "kelp_regs.h": c_header(config),
        "figures.md": _rendered(
            bench, f"kelp bench -o {bench}", lambda rows: figures_markdown(rows, GROUPS)
        ),
        verification.name: page,
        choice.name: _between(read_text(choice), _EXAMPLE, example_markdown(), choice),
    }


def _between(page: str, mark: str, text: str, path: Path) -> str:
    """The page with `text` between its two lines `mark`; a UserError where it has no two."""
    parts = page.split(mark)
    if len(parts) != 3:
        raise UserError(f"{path} has no two lines {mark.rstrip()}; see git diff")
    return mark.join((parts[0], f"\n{text}\n", parts[2]))


def _rendered(path: Path, maker: str, render: Callable) -> str:
    """What `render` makes of the rows in a file; a UserError where it holds none of `maker`'s."""
    try:
        rows = json.loads(read_text(path))
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}") from None
    try:
        return render(rows)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{path} holds other rows than `{maker}` writes ({type(error).__name__}: {error}); "
            + "make it anew"
        ) from None


def register(app: typer.Typer) -> None:
    @app.command()
    def docs(
        directory: Annotated[Path, typer.Option("-o", help="Where docs/ is.")] = Path("docs"),
        bench: Annotated[Path, typer.Option(help="Rows of kelp bench.")] = Path(
            "data/bench/bench.json"
        ),
    ) -> None:
        """Write the register table, the port table, the C header, the page of figures, the picture
        of the architecture, the last runs in verification.md and the example in select.md from
        their sources."""
        if bench.exists() and not bench.is_file():
            raise UserError(f"{bench} is no file; --bench wants one that kelp bench has written")
        if not bench.exists():
            raise UserError(f"{bench}: no such file; kelp bench -o {bench} makes it")
        for needed in (*map(bench.with_name, _BESIDE), *(directory / name for name in _PARTS)):
            if not needed.is_file():
                raise UserError(f"{needed}: no such file; call it in a checkout")
        for name, text in generated(bench, directory).items():
            write_whole(directory / name, text)
            console.print(f"{directory / name}: {text.count(chr(10))} lines")

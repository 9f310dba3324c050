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

    config = named(DOCUMENTED)
    verification = directory / "verification.md"
    page = read_text(verification)
    for mark, name, render in (
        (_RUNS, "nightly.json", runs_markdown),
        (_COVERAGE, "coverage.json", coverage_markdown),
        (_MUTANTS, "mutate.json", lambda record: markdown(record["blocks"])),
    ):
        rows = _rendered(bench.with_name(name), _BESIDE[name], render)
        parts = page.split(mark)
        if len(parts) != 3:
            raise UserError(f"{verification} has no two lines {mark.rstrip()}; see git diff")
        page = mark.join((parts[0], f"\n{rows}\n", parts[2]))
    return {
        "registers.md": registers_markdown(config),
        "cxl_registers.md": cxl_registers_markdown(named_cxlio("joined")),
        "architecture.svg": picture(),
        "ports.md": ports_markdown(config),
        "kelp_regs.h": c_header(config),
        "figures.md": _rendered(
            bench, f"kelp bench -o {bench}", lambda rows: figures_markdown(rows, GROUPS)
        ),
        "verification.md": page,
    }


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
        of the architecture and the last runs in verification.md from their sources."""
        if bench.exists() and not bench.is_file():
            raise UserError(f"{bench} is no file; --bench wants one that kelp bench has written")
        if not bench.exists():
            raise UserError(f"{bench}: no such file; kelp bench -o {bench} makes it")
        for needed in (*map(bench.with_name, _BESIDE), directory / "verification.md"):
            if not needed.is_file():
                raise UserError(f"{needed}: no such file; call it in a checkout")
        for name, text in generated(bench, directory).items():
            write_whole(directory / name, text)
            console.print(f"{directory / name}: {text.count(chr(10))} lines")

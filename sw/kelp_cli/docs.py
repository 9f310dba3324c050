# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""``kelp docs``: the generated parts of docs/."""

import json
from pathlib import Path
from typing import Annotated

import typer

from kelp_spec.config import named
from kelp_spec.files import write_whole

from .bench import GROUPS, figures_markdown
from .output import UserError, console

__all__ = ["DOCUMENTED", "generated", "register"]

DOCUMENTED = "trace"  #: the configuration whose widths and offsets the tables show


def generated(bench: Path) -> dict[str, str]:
    """File name in docs/ → its text; `bench` has the rows of the last bench."""
    from kelp_hw.export.ports import ports_markdown
    from kelp_spec.render import c_header, registers_markdown

    config = named(DOCUMENTED)
    return {
        "registers.md": registers_markdown(config),
        "ports.md": ports_markdown(config),
        "kelp_regs.h": c_header(config),
        "figures.md": figures_markdown(json.loads(bench.read_text(encoding="utf-8")), GROUPS),
    }


def register(app: typer.Typer) -> None:
    @app.command()
    def docs(
        directory: Annotated[Path, typer.Option("-o", help="Where docs/ is.")] = Path("docs"),
        bench: Annotated[Path, typer.Option(help="Rows of kelp bench.")] = Path(
            "data/bench/bench.json"
        ),
    ) -> None:
        """Write the register table, the port table, the C header and the page of figures from
        their sources."""
        if not bench.is_file():
            raise UserError(f"{bench}: no such file; kelp bench -o {bench} makes it")
        for name, text in generated(bench).items():
            write_whole(directory / name, text)
            console.print(f"{directory / name}: {text.count(chr(10))} lines")

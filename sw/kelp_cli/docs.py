# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""``kelp docs``: the generated parts of docs/."""

from pathlib import Path
from typing import Annotated

import typer

from kelp_spec.config import named

from .output import console

__all__ = ["DOCUMENTED", "generated", "register"]

DOCUMENTED = "trace"  #: the configuration whose widths and offsets the tables show


def generated() -> dict[str, str]:
    """File name in docs/ → its text."""
    from kelp_hw.export.ports import ports_markdown
    from kelp_spec.render import c_header, registers_markdown

    config = named(DOCUMENTED)
    return {
        "registers.md": registers_markdown(config),
        "ports.md": ports_markdown(config),
        "kelp_regs.h": c_header(config),
    }


def register(app: typer.Typer) -> None:
    @app.command()
    def docs(
        directory: Annotated[Path, typer.Option("-o", help="Where docs/ is.")] = Path("docs"),
    ) -> None:
        """Write the register table, the port table and the C header from their sources."""
        for name, text in generated().items():
            (directory / name).write_text(text, encoding="utf-8")
            console.print(f"{directory / name}: {text.count(chr(10))} lines")

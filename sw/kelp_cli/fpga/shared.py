# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What the commands of ``kelp fpga`` share: options, where a build lies, and how a command ends."""

from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.table import Table

from ..output import UserError, anyway, write_json
from ..output import show as show_table

__all__ = [
    "MOST_MHZ",
    "Baud",
    "BoardName",
    "Built",
    "Clock",
    "Divisor",
    "Json",
    "PlacerSeed",
    "TestLines",
    "directory_of",
    "finish",
    "known_board",
    "show",
]

MOST_MHZ = 1000

BoardName = Annotated[
    str, typer.Option(help="Which board: ulx3s_85f, ecpix5_85f, butterstick or versa_ecp5_5g.")
]
Baud = Annotated[
    int, typer.Option(help="The cable's rate: a whole part of the clock, or within 3 % of one.")
]
Clock = Annotated[
    float,
    typer.Option(help="The board's clock: decides the SDRAM's timing.", min=1, max=MOST_MHZ),
]
Divisor = Annotated[
    int, typer.Option(help="Clock cycles per bit of the UART.", min=4, max=65535)  # as the UART's
]
#: Of nextpnr, an int.
PlacerSeed = Annotated[int, typer.Option("--seed", help="The placer's.", min=0, max=2**31 - 1)]
TestLines = Annotated[int, typer.Option(help="Lines that the memory test goes over.", min=1)]
Built = Annotated[
    str | None,
    typer.Option(
        "--config",
        help="Which configuration, where another than the board's own was built.",
        show_default=False,
    ),
]
Json = Annotated[
    Path | None, typer.Option("--json", help="Also write the figures to this file (- is stdout).")
]


def known_board(board: str) -> None:
    """Raises :class:`UserError` where bitstreams are built for no such board."""
    from kelp_fpga.flow.build import TARGETS

    if board not in TARGETS:
        raise UserError(f"board {board!r} is unknown; known: {', '.join(TARGETS)}")


def directory_of(board: str, seed: int, config: str | None = None) -> Path:
    """Of a build. Configurations other than the board's own lie beside it, and count in no report
    of the board."""
    from kelp_fpga.flow.build import TARGETS
    from kelp_hw.export.tools import build_root

    own = board not in TARGETS or config in (None, TARGETS[board].config)
    return build_root() / "fpga" / board / f"{'' if own else f'{config}-'}seed{seed}"


def finish(result: dict, path: Path | None, kind: str, *, shown: dict | None = None) -> NoReturn:
    """The end of a command: its figures to a file when one is named, and as a table; exit 1 unless
    they say that it passed."""
    with anyway(lambda: None if str(path) == "-" else show(shown or result)):
        if path is not None:
            write_json(path, kind, result)
    raise typer.Exit(0 if result["passed"] else 1)


def show(result: dict) -> None:
    """A command's figures as a table."""
    table = Table(show_header=False)
    for name, value in result.items():
        table.add_row(
            name,
            ", ".join(f"{k} {v}" for k, v in value.items())
            if isinstance(value, dict)
            else str(value),
        )
    show_table(table)

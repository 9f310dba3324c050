# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What the builds of a board came to, as tables (used by ``kelp fpga report``)."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from ..output import UserError, console, show

__all__ = ["show_seeds"]


def show_seeds(board: str, directory: Path) -> None:
    """The seeds in a board's `directory` that count, those that do not, and the parts of the
    slowest."""
    from kelp_fpga.flow.reports import read_report, summary

    slowest = summary(directory)
    if slowest is None:
        raise UserError(f"nothing was built for {board}: kelp fpga build --board {board}")
    names = ("seed", "config", "fmax_mhz", "clock_mhz", "target_mhz", "luts", "ffs", "ebr", "dsp")
    table = Table(*names)
    for path in sorted(directory.glob("seed*/report.json")):
        figures = read_report(path)
        if figures and figures["seed"] not in slowest["stale"]:
            table.add_row(*(str(figures.get(name, "")) for name in names))
    show(table)
    console.print(f"fmax_mhz over {len(slowest['seeds'])} seeds: {slowest['fmax_mhz']}")
    if stale := slowest["stale"]:
        console.print(
            "left out, of another netlist, for another clock or of another version of kelp than "
            + "the newest: seed "
            + f"{', '.join(map(str, stale))}",
            soft_wrap=True,
        )
    names = ("ns", "fmax_mhz", "luts", "ffs", "ebr", "dsp", "to")
    parts = Table(
        "part",
        *names[:-1],
        "slowest path's end",
        title=f"slowest paths of seed {slowest['seed']} and what was taken, by part",
    )
    for part, figures in slowest.get("blocks", {}).items():
        parts.add_row(
            part, *("" if (figure := figures.get(name)) is None else str(figure) for name in names)
        )
    show(parts)

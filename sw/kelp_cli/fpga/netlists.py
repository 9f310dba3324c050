# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""``kelp fpga estimate`` and ``paths``: where a synthesised or a placed design is slow."""

import re
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from ..output import UserError, console, show
from .shared import BoardName, Built, directory_of, known_board

__all__ = ["estimate", "paths"]

#: What a file that is none, or no netlist, shows itself as.
_NONE = (OSError, ValueError, KeyError, TypeError, AttributeError)


def estimate(
    board: BoardName = "ulx3s_85f",
    config: Built = None,
    seed: Annotated[int, typer.Option(help="Which build.")] = 1,
    netlist: Annotated[
        Path | None,
        typer.Option(help="Another netlist that synth_ecp5 wrote as JSON.", show_default=False),
    ] = None,
    top: Annotated[str, typer.Option(help="Its top module.")] = "top",
    only: Annotated[str, typer.Option(help="Ends to show: a regular expression.")] = "",
    paths: Annotated[
        int, typer.Option(help="Groups of ends to show; the slowest path net by net.", min=0)
    ] = 20,
) -> None:
    """Estimate a synthesised design's slow paths, before anything is placed, and list its block
    RAMs."""
    from kelp_fpga.flow.estimate import Netlist

    known_board(board)
    try:
        re.compile(only)
    except re.error as error:
        raise UserError(f"--only {only!r} is no regular expression: {error}") from None
    path = netlist or directory_of(board, seed, config) / "top.json"
    try:
        design = Netlist(path, top)
        slow = design.slowest(only)
    except _NONE as error:
        raise UserError(
            f"{path}: no netlist ({error}); kelp fpga build --board "
            + f"{board}{_asked(config)} makes one first"
        ) from None
    table = Table("ns", "MHz", "ends", "pin", "group")
    for end in slow[:paths]:
        table.add_row(f"{end.ns:.2f}", f"{1000 / end.ns:.1f}", str(end.ends), end.pin, end.end)
    show(table)
    for arrival, loads, name in slow[0].nets if slow else ():
        console.print(f"{arrival:8.2f} ns, {loads:4} loads  {name}")
    memories = design.memories()
    held = ", ".join(f"{count} {name}" for name, count in memories.most_common())
    console.print(f"block RAMs: {sum(memories.values())}: {held}")


def paths(
    board: BoardName = "ulx3s_85f",
    config: Built = None,
    seed: Annotated[int, typer.Option(help="Which build.")] = 1,
    above: Annotated[
        float,
        typer.Option(help="ns, setup not counted: ends that arrive later.", min=0, max=1000),
    ] = 11.5,
    wires: Annotated[
        bool,
        typer.Option(
            "--wires",
            help="Show the latest path of each group net by net, with where its drivers are.",
        ),
    ] = False,
) -> None:
    """List a build's late paths as its placement has them, refined where the board's is, before it
    is routed: where registers are wanted."""
    from ecp5_refinement.late_paths import late_paths
    from kelp_fpga.flow.build import TARGETS

    known_board(board)
    refined = TARGETS[board].refined
    path = directory_of(board, seed, config) / ("refined.json" if refined else "moved.json")
    try:
        groups = late_paths(path, above=above)
    except _NONE as error:
        raise UserError(
            f"{path}: no placed netlist ({error}); kelp fpga build --board "
            + f"{board}{_asked(config)} --seed {seed} makes it"
        ) from None
    table = Table(
        "ns",
        "ends",
        "nets",
        "from",
        "to",
        title=f"{sum(group.ends for group in groups)} ends beyond {above} ns",
    )
    for group in groups:
        table.add_row(
            f"{group.ns:.2f}", str(group.ends), str(len(group.wires)), group.begin, group.end
        )
    show(table)
    for group in groups if wires else ():
        console.print(f"{group.begin} → {group.end}", soft_wrap=True)
        for wire in group.wires:
            place = f"({wire.x}, {wire.y})"
            console.print(
                f"{wire.ns:8.2f} ns from {place:10} {wire.loads:4} loads  {wire.driver}",
                soft_wrap=True,
            )


def _asked(config: str | None) -> str:
    return f" --config {config}" if config else ""

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Each block of the endpoint placed and routed alone (used by ``kelp fpga blocks``)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from rich.table import Table

from kelp_spec.files import write_whole

from ..output import UserError, console, show

__all__ = ["REFERENCE", "blocks", "show_blocks"]


#: The board for whose device `kelp_fpga.flow.pnr` places; its speed and its clock.
REFERENCE = "ulx3s_85f"


def blocks(config: str, only: list[str], seed: int, path: Path) -> Iterator[tuple[str, dict]]:
    """Name and figures of each block, as they are there; those before it stand in `path` by then,
    so what is broken off goes on with the next block.

    A block has more ports than the package has pins; `kelp_fpga.flow.pnr` puts it between registers
    of a shell, which are not counted. Mapped, placed, refined and routed as a board's top is;
    figures have the names of the board's `report.json`, and there is no bitstream.
    """
    from kelp_fpga.configs import board_config
    from kelp_fpga.flow.blocks import BLOCKS, block
    from kelp_fpga.flow.build import LAYOUT, SYNTHESIS, TARGETS
    from kelp_fpga.flow.pnr import Flow, place_and_route
    from kelp_fpga.flow.reports import COUNTED, critical_path
    from kelp_hw.export.tools import ToolError

    wanted = only or list(BLOCKS)
    if unknown := [name for name in wanted if name not in BLOCKS]:
        raise UserError(f"--only {unknown[0]} is unknown; known: {', '.join(BLOCKS)}")
    target = TARGETS[REFERENCE]
    _recorded(path)  # refuses another file before what may be hours
    for n, name in enumerate(wanted, 1):
        with console.status(
            f"placing and routing {name} ({n} of {len(wanted)}), configuration {config}, "
            + f"seed {seed}"
        ):
            try:
                result = place_and_route(
                    block(name, board_config(config)),
                    name=f"{name}-{config}",
                    speed=target.speed,
                    goal_mhz=target.target_mhz,
                    seed=seed,
                    flow=Flow(script=SYNTHESIS, layout=LAYOUT, refined=True),
                )
            except (ToolError, ValueError) as error:
                raise UserError(str(error)) from None
        timing = json.loads((result.directory / "report.json").read_text(encoding="utf-8"))
        slowest = max(
            (p["path"] for p in timing["critical_paths"] if p["from"] == p["to"]),
            key=lambda steps: sum(step["delay"] for step in steps),
        )
        figures = {
            "board": REFERENCE,
            "config": config,
            "seed": seed,
            "target_mhz": target.target_mhz,
            "fmax_mhz": round(result.fmax, 2),
            "luts": result.comb,
            "ffs": result.ff,
            "ebr": result.ebr,
            "dsp": result.dsp,
        }
        figures |= {
            f"{ours}_total": timing["utilization"][theirs]["available"]
            for theirs, ours in COUNTED.items()
        }
        figures |= {"critical_path": critical_path(slowest), "bitstream": None}
        write_whole(path, json.dumps(_recorded(path) | {name: figures}, indent=2) + "\n")
        yield name, figures


def _recorded(path: Path) -> dict:
    """What earlier runs have left there; UserError where it is another file."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise UserError(f"{path} is no record of kelp fpga blocks; remove it")
    return found


def show_blocks(config: str, only: list[str], seed: int, path: Path) -> bool:
    """`blocks` with each one's figures as they are there, then a table; whether one was too
    slow."""
    names, slow = ("fmax_mhz", "luts", "ffs", "ebr", "dsp"), False
    table = Table("block", *names, "critical path")
    for name, figures in blocks(config, only, seed, path):
        console.print(
            f"{name}: {figures['fmax_mhz']} MHz of {figures['target_mhz']:g}, "
            + f"{figures['luts']} LUTs",
            highlight=False,
        )
        latest = figures["critical_path"]
        table.add_row(
            name,
            *(str(figures[each]) for each in names),
            f"{latest['ns']} ns: {latest['from']} … {latest['to']}",
        )
        slow |= figures["fmax_mhz"] < figures["target_mhz"]
    show(table)
    return slow

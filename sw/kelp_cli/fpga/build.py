# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""``kelp fpga build``, ``report``, ``blocks`` and ``dummy``: bitstreams, and what they are made
of."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ..output import UserError, anyway, console, writable, write_json
from .blocks import REFERENCE, show_blocks
from .reports import show_seeds
from .shared import MOST_MHZ, Baud, BoardName, Json, PlacerSeed, directory_of, known_board, show

__all__ = ["blocks", "build", "dummy", "report"]


def build(
    board: BoardName = "ulx3s_85f",
    config: Annotated[
        str | None,
        typer.Option(help="What to build; by default what the board holds.", show_default=False),
    ] = None,
    mhz: Annotated[
        float | None,
        typer.Option(
            help="The board's clock, which the bitstream has to meet; by default one that "
            + "the board is known to meet.",
            show_default=False,
            min=1,
            max=MOST_MHZ,
        ),
    ] = None,
    baud: Baud = 3_000_000,
    seed: PlacerSeed = 1,
    size: Annotated[
        bool,
        typer.Option(
            "--size", help="Only synthesise and pack: what of the device is taken, in minutes."
        ),
    ] = False,
    json: Json = None,
) -> None:
    """Synthesise, place and route a board's top into build/fpga/BOARD and report; exit 1 when
    its clock is not met or it takes more logic than it may (`luts_most`). An 85F takes 45
    minutes."""
    from kelp_fpga.configs import board_config
    from kelp_fpga.flow import build as flow
    from kelp_fpga.flow.reports import summary
    from kelp_golden.codec import round_trip

    known_board(board)
    writable(json=json)
    target, directory = flow.TARGETS[board], directory_of(board, seed, config)
    top = partial(target.top, round_trip=round_trip)
    try:
        chosen, hz = (
            board_config(config or target.config),
            round((target.clock_of(config or target.config) if mhz is None else mhz) * 1e6),
        )
        what = (
            f"{'sizing' if size else 'building'} {board}, configuration {chosen.name}, "
            + f"seed {seed}"
        )
        with console.status(what) as status:
            if size:
                figures = flow.size(
                    board,
                    chosen,
                    top=top,
                    directory=directory.with_name(f"size-{chosen.name}"),
                    hz=hz,
                    baud=baud,
                )
            else:
                figures = flow.build(
                    board,
                    chosen,
                    top=top,
                    directory=directory,
                    hz=hz,
                    baud=baud,
                    seed=seed,
                    begins=lambda step: status.update(f"{what}: {step}"),
                )
                summary(directory.parent)
    except (flow.BuildError, ValueError) as error:
        raise UserError(str(error)) from None
    _tell(figures, json, "fpga-build")
    raise typer.Exit(0 if figures["passed"] else 1)


def _tell(figures: dict, json: Path | None, kind: str) -> None:
    shown = {name: figure for name, figure in figures.items() if name != "blocks"}
    with anyway(lambda: None if str(json) == "-" else show(shown)):
        if json is not None:
            write_json(json, kind, figures)


def report(board: BoardName = "ulx3s_85f") -> None:
    """The figures of every seed built as the newest was, and the slowest of them, which counts;
    also in build/fpga/BOARD/report.json."""
    known_board(board)
    show_seeds(board, directory_of(board, 1).parent)


def blocks(
    config: Annotated[
        str, typer.Option(help="What to build: ulx3s, board_small or unit.")
    ] = "ulx3s",
    only: Annotated[
        list[str] | None,
        typer.Option(help="Block to place and route; all of them by default.", show_default=False),
    ] = None,
    seed: PlacerSeed = 1,
) -> None:
    """Place and route each block of the endpoint alone, on the reference board's device, and
    add it to build/fpga/ulx3s_85f/blocks.json. Takes long; what was done before is not done
    again."""
    path = directory_of(REFERENCE, seed).parent / "blocks.json"
    raise typer.Exit(1 if show_blocks(config, only or [], seed, path) else 0)


def dummy(
    luts: Annotated[
        float,
        typer.Option(
            help="Functions of four inputs, as a share of comb sites; 2 to 4 % less are taken.",
            min=0,
            max=100,
        ),
    ] = 75,
    ebr: Annotated[float, typer.Option(help="Share of its block RAMs.", min=0, max=100)] = 80,
    far: Annotated[
        float,
        typer.Option(
            help="Share of tables with a wire to far away: what makes routing hard.",
            min=0,
            max=100,
        ),
    ] = 10,
    mhz: Annotated[float, typer.Option(help="The clock.", min=1, max=MOST_MHZ)] = 80.0,
    seed: PlacerSeed = 1,
    size: Annotated[bool, typer.Option("--size", help="Only synthesise and pack.")] = False,
    json: Json = None,
) -> None:
    """Build a dummy of a size given in per cent of the reference board's device, into
    build/fpga/ulx3s_85f: whether the tools can route a top that large. Takes as long as a top.
    Exit 1 when it does not meet its clock."""
    from kelp_fpga.configs import FIRST_LIGHT, board_config
    from kelp_fpga.flow import build as flow
    from kelp_fpga.flow.dummy import dummy

    writable(json=json)
    # of which nothing is in it: what is built goes by its name
    config = board_config(FIRST_LIGHT).with_(name="dummy")
    directory, what = (
        directory_of(REFERENCE, seed).parent / f"dummy-{luts:g}-{ebr:g}-{far:g}-seed{seed}",
        f"dummy of {luts:g} and {ebr:g} %",
    )
    asked = {
        "hz": round(mhz * 1e6),
        "top": dummy(luts=luts / 100, ebr=ebr / 100, far=far / 100),
    }
    try:
        with console.status(what) as status:
            figures = (
                flow.size(REFERENCE, config, directory=directory, **asked)
                if size
                else flow.build(
                    REFERENCE,
                    config,
                    directory=directory,
                    seed=seed,
                    **asked,
                    begins=lambda step: status.update(f"{what}: {step}"),
                )
            )
    except (flow.BuildError, ValueError) as error:
        raise UserError(str(error)) from None
    _tell(figures, json, "fpga-dummy")
    raise typer.Exit(0 if size or figures["fmax_mhz"] >= figures["clock_mhz"] else 1)

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""``kelp fpga``: build, report, and talk to boards, on a cable or simulated."""

import typer

from . import board, build, hand_over, netlists, simulation

__all__ = ["register"]

_WITH_A_BOARD = (
    board.selftest,
    board.replay,
    simulation.sim,
    simulation.proof,
    simulation.netlist,
)
_FOR_A_BOARD = (
    build.build,
    build.report,
    netlists.estimate,
    netlists.paths,
    build.blocks,
    build.dummy,
    hand_over.program,
    hand_over.vivado,
    hand_over.axi,
)


def register(app: typer.Typer) -> None:
    fpga = typer.Typer(
        help="Bring up a board: self-test, replay, simulation.", no_args_is_help=True
    )
    app.add_typer(fpga, name="fpga")
    for command in (*_WITH_A_BOARD, *_FOR_A_BOARD):
        fpga.command()(command)

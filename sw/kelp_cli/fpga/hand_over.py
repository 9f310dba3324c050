# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""``kelp fpga program``, ``vivado`` and ``axi``: a bitstream to its board, a project or Verilog to
another tool."""

from pathlib import Path
from typing import Annotated

import typer

from kelp_spec.files import write_whole

from ..config import CONFIGURATION
from ..output import UserError, console, writable
from ..verilog import module_text
from .shared import MOST_MHZ, Baud, BoardName, Built, directory_of, known_board

__all__ = ["axi", "program", "vivado"]


def program(
    board: BoardName = "ulx3s_85f",
    config: Built = None,
    seed: Annotated[int, typer.Option(help="Which build.")] = 1,
) -> None:
    """Load the bitstream into the board, until power goes."""
    from kelp_fpga.configs import board_config
    from kelp_fpga.flow import build as flow

    known_board(board)
    chosen = board_config(config or flow.TARGETS[board].config)
    bitstream = directory_of(board, seed, config) / "top.bit"
    try:
        if bitstream.is_file():
            flow.check_built(bitstream.parent, chosen)
        flow.program(board, bitstream)
    except flow.BuildError as error:
        raise UserError(str(error)) from None
    console.print(
        f"{board} loaded with {bitstream}; it stays until power goes",
        soft_wrap=True,
    )


def vivado(
    board: Annotated[str, typer.Option(help="Which board: arty_a7_100t or vcu118.")],
    config: Annotated[
        str | None,
        typer.Option(
            help="What to build; by default what the board is meant to hold.",
            show_default=False,
        ),
    ] = None,
    mhz: Annotated[float, typer.Option(help="The board's clock.", min=1, max=MOST_MHZ)] = 80.0,
    baud: Baud = 3_000_000,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="Directory; build/vivado/BOARD by default.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write a Vivado project for a board: Verilog, constraints, and a script that builds the
    bitstream."""
    from kelp_fpga.boards.xilinx_boards import XILINX_BOARDS, project
    from kelp_fpga.configs import board_config
    from kelp_golden.codec import round_trip
    from kelp_hw.export.tools import build_root

    if board not in XILINX_BOARDS:
        raise UserError(f"board {board!r} is unknown; known: {', '.join(XILINX_BOARDS)}")
    directory = output or build_root() / "vivado" / board
    writable(folder=directory)
    try:
        with console.status(f"generating {board}"):
            files = project(
                board,
                board_config(config or XILINX_BOARDS[board][1]),
                round_trip,
                directory=directory,
                hz=round(mhz * 1e6),
                baud=baud,
            )
    except ValueError as error:
        raise UserError(str(error)) from None
    for file in files:
        console.print(f"{file}  {file.stat().st_size / 1024:,.0f} KiB")
    console.print(f"next, where Vivado is: cd {directory} && vivado -mode batch -source top.tcl")


def axi(
    config: Annotated[str, typer.Option(help=CONFIGURATION)] = "trace",
    output: Annotated[Path, typer.Option("-o", "--output", help="Directory to write into.")] = Path(
        "build/axi"
    ),
) -> None:
    """Write the Verilog of the endpoint with AXI4 on both sides, for a vendor's CXL IP, and a
    table of its ports."""
    from kelp_fpga.axi.axi_endpoint import AxiEndpoint
    from kelp_fpga.axi.axi_ports import axi_ports_markdown
    from kelp_hw.export.verilog import macro_sources
    from kelp_spec.config_text import configuration

    chosen = configuration(config)
    writable(folder=output)
    top = AxiEndpoint(config=chosen)
    with console.status(f"generating {config}"):
        text = module_text(top, "kelp_axi_endpoint")
    write_whole(output / "kelp_axi_endpoint.v", text)
    for source in macro_sources(text):
        write_whole(output / source.name, source.read_text(encoding="utf-8"))
    write_whole(output / "ports.md", axi_ports_markdown(top))
    console.print(f"written: {output}/kelp_axi_endpoint.v, {output}/ports.md")

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""``kelp fpga sim``, ``proof`` and ``netlist``: the same board in simulation."""

import contextlib
import json
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ..output import UserError, console, writable
from . import replay as fpga_replay
from .board import Cable, Portion, connected, planned
from .selftest import selftest as run_selftest
from .shared import Clock, Divisor, TestLines, finish

__all__ = ["netlist", "proof", "sim"]


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """The top that is simulated, and its surroundings: cycles per bit of the UART, the clock that
    decides the SDRAM's timing, and the seed of what power-up leaves to chance."""

    config: str
    divisor: int
    mhz: float
    seed: int


def sim(
    config: Annotated[
        str, typer.Option(help="What to build: board_small, ulx3s or unit.")
    ] = "board_small",
    divisor: Divisor = 4,
    mhz: Clock = 80.0,
    seed: Annotated[int, typer.Option(help="Of what power-up leaves to chance.")] = 1,
) -> None:
    """Simulate the board and keep its UART open as a pseudo-terminal until interrupted; it
    prints the port to give to the other commands."""
    simulated = Simulated(config=config, divisor=divisor, mhz=mhz, seed=seed)
    with _simulation(simulated) as board:
        console.print(f"port: {board.port}")
        while board.error is None:
            time.sleep(0.5)
    raise UserError(f"the simulation stopped: {board.error}")


def proof(
    trace: Annotated[Path, typer.Argument(help="A recording with keys and values.")] = Path(
        "data/traces/attn_0.npz"
    ),
    config: Annotated[
        str,
        typer.Option(
            help="What to build: ulx3s, whose top is the routed one, board_small or unit."
        ),
    ] = "ulx3s",
    lines: Annotated[
        int, typer.Option(help="Replay whole steps that ask for so many lines.", min=1)
    ] = 1024,
    prefill_pages: Annotated[int, typer.Option(help="Pages of the prefill to keep.", min=0)] = 2,
    residency: Annotated[
        float, typer.Option(help="Frames, as a share of the pages at the end.")
    ] = 0.5,
    test_lines: TestLines = 256,
    lockstep: Annotated[
        bool, typer.Option("--lockstep/--free-running", help="As of kelp fpga replay.")
    ] = False,
    divisor: Divisor = 4,
    mhz: Clock = 80.0,
    seed: Annotated[int, typer.Option(help="Of what power-up leaves to chance.")] = 1,
    json: Annotated[
        Path | None,
        typer.Option(
            "--json",
            help="Where the result goes; build/fpga/sim.json by default.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """The board without a board: the simulated top, pins and all, through self-test and replay
    over its UART (make fpga-sim).

    Exit 1 unless all of it passes and it is 1 024 lines, 16 misses and 8 write-backs at least,
    as many pages from and to the board's cold tier too."""
    from kelp_fpga.boards.board import SDRAM_LINES
    from kelp_fpga.configs import board_config

    simulated = Simulated(config=config, divisor=divisor, mhz=mhz, seed=seed)
    portion = Portion(
        trace=trace,
        lines=lines,
        prefill_pages=prefill_pages,
        residency=residency,
        lockstep=lockstep,
    )
    path = json or _result("sim")
    writable(json=path, inputs=[trace])
    _room(test_lines, SDRAM_LINES)
    planned(board_config(config), portion)  # before the minutes that come, if it cannot be
    beside = _result("sim") if str(path) == "-" else path
    result = _prove(simulated, portion, test_lines, beside.parent)
    passed = {name: result[name]["passed"] for name in ("selftest", "replay")}
    finish(result, path, "fpga-sim", shown=result | passed)


def _prove(simulated: Simulated, portion: Portion, test_lines: int, directory: Path) -> dict:
    """Figures of the self-test and the replay, whose own results go into `directory`, and whether
    they are enough to count."""
    from kelp_fpga.configs import board_config

    with _simulation(simulated) as board:
        test = _called("selftest", board.port, directory, "--lines", test_lines)
        played = _called(
            "replay",
            board.port,
            directory,
            portion.trace,
            *("--lines", portion.lines),
            *("--prefill-pages", portion.prefill_pages),
            *("--residency", portion.residency),
            "--lockstep" if portion.lockstep else "--free-running",
        )
    enough = fpga_replay.enough(played)
    passed = test["passed"] and played["passed"] and enough
    return {
        "config": simulated.config,
        "digest": board_config(simulated.config).digest,
        "commit": _commit(),
        "passed": passed and not board.violations and not board.framing_errors,
        "enough": enough,
        "mhz": simulated.mhz,
        "divisor": simulated.divisor,
        "seed": simulated.seed,
        "selftest": test,
        "replay": played,
        "sdram_violations": board.violations,
        "framing_errors": board.framing_errors,
        "cycles": board.cycles,
        "cycles_per_second": round(board.cycles / board.seconds),
    }


def netlist(
    config: Annotated[
        str, typer.Option(help="What to build: unit, board_small or ulx3s_block.")
    ] = "unit",
    block_lines: Annotated[int, typer.Option(help="Lines of memory, in block RAM.", min=1)] = 512,
    test_lines: TestLines = 64,
    divisor: Divisor = 4,
    seed: Annotated[int, typer.Option(help="Of what power-up leaves to chance.")] = 1,
    json: Annotated[
        Path | None,
        typer.Option(
            "--json",
            help="Where the result goes; build/fpga/netlist.json by default.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """The self-test after synthesis: the board's top as ECP5 cells, in simulation, by its UART
    (make fpga-netlist). Long; what is built is kept."""
    from kelp_fpga.boards.board import Board
    from kelp_fpga.configs import board_config
    from kelp_golden.codec import round_trip
    from kelp_hw.export.tools import ToolError
    from kelp_verif.fpga.netlist import CELLS, netlist
    from kelp_verif.fpga.sim_board import SimBoard
    from kelp_verif.fpga.sim_top import BoardWithChip

    path = json or _result("netlist")
    writable(json=path)
    try:
        top = Board(
            config=board_config(config),
            round_trip=round_trip,
            hz=80_000_000,
            divisor=divisor,
            block_lines=block_lines,
        )
        _room(test_lines, block_lines)
        with console.status(f"synthesising {config}"):
            verilog, cells = netlist(BoardWithChip(top), name=f"board-{config}")
        counted = ", ".join(f"{count} {kind}" for kind, count in sorted(cells.items()))
        console.print(f"{config} is {counted}")
        with console.status("building the netlist's simulation"):
            simulated = SimBoard(
                top,
                seed=seed,
                verilog=verilog,
                sources=[CELLS],
                name=f"netlist-{config}",
                verilator_args=[f"-I{CELLS.parent}"],
                # a third of the time to build, for a quarter of the speed
                opt="-O0",
            )
    except (ToolError, ValueError) as error:
        raise UserError(str(error)) from None
    with (
        simulated as board,
        connected(Cable(port=board.port, baud=3_000_000, timeout=20.0, patience=600.0)) as host,
        console.status("running its self-test, some 200 000 cycles"),
    ):
        test = run_selftest(host, 0, test_lines)
    result = {
        "config": config,
        "passed": test["passed"],
        "selftest": test,
        "cells": cells,
        "cycles": board.cycles,
        "cycles_per_second": round(board.cycles / board.seconds),
    }
    finish(
        result,
        path,
        "fpga-netlist",
        shown=test | {"cells": counted, "cycles": board.cycles},
    )


def _room(test_lines: int, lines: int) -> None:
    """Refuse a memory test of more lines than a board has, before the minutes that it takes to ask
    it."""
    if test_lines > lines:
        raise UserError(f"--test-lines {test_lines} is refused; the board has {lines} lines")


@contextlib.contextmanager
def _simulation(simulated: Simulated):
    from kelp_fpga.boards.board import Board
    from kelp_fpga.configs import board_config
    from kelp_golden.codec import round_trip
    from kelp_verif.fpga.sim_board import SimBoard

    try:
        board = Board(
            config=board_config(simulated.config),
            round_trip=round_trip,
            hz=round(simulated.mhz * 1e6),
            divisor=simulated.divisor,
        )
    except ValueError as error:
        raise UserError(str(error)) from None
    with console.status(
        f"building the simulated board ({simulated.config}); the first time this takes minutes"
    ):
        running = SimBoard(board, seed=simulated.seed)
    with running:
        yield running


def _result(name: str) -> Path:
    """Where a simulation's figures go when nothing else is asked for."""
    from kelp_hw.export.tools import build_root

    return build_root() / "fpga" / f"{name}.json"


def _called(command: str, port: str, directory: Path, *arguments) -> dict:
    """Figures of `kelp fpga selftest` or `replay` on a simulated board's port, as a process of its
    own, as a person would call it; it shows what it says."""
    path = directory / f"sim-{command}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    kelp = [sys.executable, "-c", "from kelp_cli import start; start()"]
    options = ["--port", port, "--timeout", "5", "--patience", "600", "--json", str(path)]
    done = subprocess.run([*kelp, "fpga", command, *map(str, arguments), *options], check=False)
    if not path.is_file():
        raise UserError(
            f"kelp fpga {command} on the simulated board left no result (exit code "
            + f"{done.returncode}); what it said is above"
        )
    return json.loads(path.read_text(encoding="utf-8"))


def _commit() -> str | None:
    """Of the sources, with -dirty where they differ from it; None outside a git checkout."""
    root = Path(__file__).resolve().parents[3]
    git = shutil.which("git")
    if git is None or not (root / ".git").exists():
        return None
    command = [git, "-C", str(root), "describe", "--always", "--dirty", "--exclude", "*"]
    return (
        subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or None
    )

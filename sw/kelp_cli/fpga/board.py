# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The commands of ``kelp fpga`` that speak to a board on a cable, or to the same board in
simulation."""

import contextlib
import json
import shutil
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.table import Table

from ..output import UserError, console, write_json
from ..replay import FORMATS, parse_formats, progress_bar
from . import replay as fpga_replay
from .selftest import selftest as run_selftest

__all__ = ["add_commands", "show"]

_Port = Annotated[
    str, typer.Option(help="The board's serial port, such as /dev/ttyUSB0.", show_default=False)
]
_Baud = Annotated[int, typer.Option(help="Bits per second, as the bitstream was built for.")]
_Timeout = Annotated[
    float,
    typer.Option(help="Seconds of silence before something counts as lost; more for a simulation."),
]
_Patience = Annotated[float, typer.Option(help="Seconds of silence before the board is given up.")]
_Json = Annotated[
    Path | None, typer.Option("--json", help="Also write the figures to this file (- is stdout).")
]


def add_commands(fpga: typer.Typer) -> None:
    """Of a board, to the group of `kelp fpga`."""

    @fpga.command()
    def selftest(
        port: _Port,
        baud: _Baud = 3_000_000,
        timeout: _Timeout = 0.25,
        patience: _Patience = 10.0,
        first: Annotated[int, typer.Option(help="First line (64 bytes) of memory to test.")] = 0,
        lines: Annotated[
            int | None,
            typer.Option(help="Lines to test; all of the memory by default.", show_default=False),
        ] = None,
        json: _Json = None,
    ) -> None:
        """Run the board's self-test (memory, endpoint, codecs, ECC) and show its result; exit 1
        when anything fails. The endpoint is reset by it."""
        with _board(port, baud, timeout, patience) as host:
            result = run_selftest(host, first, lines)
        _finish(result, json, "fpga-selftest")

    @fpga.command()
    def replay(
        trace: Annotated[
            Path,
            typer.Argument(
                help="A recording with keys and values, such as data/traces/attn_0.npz.",
                show_default=False,
            ),
        ],
        port: _Port,
        baud: _Baud = 3_000_000,
        timeout: _Timeout = 0.25,
        patience: _Patience = 10.0,
        lines: Annotated[
            int, typer.Option(help="Replay whole steps that ask for so many lines.")
        ] = 1024,
        prefill_pages: Annotated[
            int,
            typer.Option(
                help="Pages of the prefill to keep, the newest: boards have short queues."
            ),
        ] = 2,
        residency: Annotated[
            float, typer.Option(help="Frames, as a share of the pages at the end.")
        ] = 0.5,
        formats: Annotated[
            list[str] | None, typer.Option(help="Stored formats, as of kelp replay.")
        ] = None,
        lockstep: Annotated[
            bool,
            typer.Option(
                "--lockstep/--free-running",
                help="One request at a time; the counters must be equal too.",
            ),
        ] = False,
        json: _Json = None,
    ) -> None:
        """Replay a recording on the board and compare every line that it answers with the golden
        model; exit 1 on a mismatch."""
        with _board(port, baud, timeout, patience) as host:
            result = _replay(
                host, trace, lines, prefill_pages, residency, formats or FORMATS, lockstep
            )
        _finish(result, json, "fpga-replay")

    @fpga.command()
    def sim(
        config: Annotated[
            str, typer.Option(help="What to build: board_small, ulx3s or unit.")
        ] = "board_small",
        divisor: Annotated[int, typer.Option(help="Clock cycles per bit of the UART.")] = 4,
        mhz: Annotated[
            float, typer.Option(help="The board's clock: decides the SDRAM's timing.")
        ] = 80.0,
        seed: Annotated[int, typer.Option(help="Of what power-up leaves to chance.")] = 1,
    ) -> None:
        """Simulate the board and keep its UART open as a pseudo-terminal until interrupted; it
        prints the port to give to the other commands."""
        with _simulation(config, divisor, mhz, seed) as board:
            console.print(f"port: {board.port}")
            while board.error is None:
                time.sleep(0.5)
        raise UserError(f"the simulation stopped: {board.error}")

    @fpga.command()
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
            int, typer.Option(help="Replay whole steps that ask for so many lines.")
        ] = 1024,
        prefill_pages: Annotated[int, typer.Option(help="Pages of the prefill to keep.")] = 2,
        residency: Annotated[
            float, typer.Option(help="Frames, as a share of the pages at the end.")
        ] = 0.5,
        test_lines: Annotated[
            int, typer.Option(help="Lines that the memory test goes over.")
        ] = 256,
        lockstep: Annotated[
            bool, typer.Option("--lockstep/--free-running", help="As of kelp fpga replay.")
        ] = False,
        divisor: Annotated[int, typer.Option(help="Clock cycles per bit of the UART.")] = 4,
        mhz: Annotated[
            float, typer.Option(help="The board's clock: decides the SDRAM's timing.")
        ] = 80.0,
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
        from kelp_fpga.configs import board_config

        path = json or _result("sim")
        with _simulation(config, divisor, mhz, seed) as board:
            test = _called("selftest", board.port, path.parent, "--lines", test_lines)
            played = _called(
                "replay",
                board.port,
                path.parent,
                trace,
                "--lines",
                lines,
                "--prefill-pages",
                prefill_pages,
                "--residency",
                residency,
                "--lockstep" if lockstep else "--free-running",
            )
        enough = fpga_replay.enough(played)
        passed = (
            test["passed"]
            and played["passed"]
            and enough
            and not board.violations
            and not board.framing_errors
        )
        result = {
            "config": config,
            "digest": board_config(config).digest,
            "commit": _commit(),
            "passed": passed,
            "enough": enough,
            "mhz": mhz,
            "divisor": divisor,
            "seed": seed,
            "selftest": test,
            "replay": played,
            "sdram_violations": board.violations,
            "framing_errors": board.framing_errors,
            "cycles": board.cycles,
            "cycles_per_second": round(board.cycles / board.seconds),
        }
        _finish(
            result,
            path,
            "fpga-sim",
            shown=result | {"selftest": test["passed"], "replay": played["passed"]},
        )

    @fpga.command()
    def netlist(
        config: Annotated[
            str, typer.Option(help="What to build: unit, board_small or ulx3s_block.")
        ] = "unit",
        block_lines: Annotated[int, typer.Option(help="Lines of memory, in block RAM.")] = 512,
        test_lines: Annotated[int, typer.Option(help="Lines that the memory test goes over.")] = 64,
        divisor: Annotated[int, typer.Option(help="Clock cycles per bit of the UART.")] = 4,
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
        from kelp_rtl.build.tools import ToolError
        from kelp_verif.fpga.netlist import CELLS, netlist
        from kelp_verif.fpga.sim_board import SimBoard
        from kelp_verif.fpga.sim_top import BoardWithChip

        try:
            top = Board(
                config=board_config(config), hz=80_000_000, divisor=divisor, block_lines=block_lines
            )
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
            _board(board.port, 3_000_000, 20.0, 600.0) as host,
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
        _finish(
            result,
            json or _result("netlist"),
            "fpga-netlist",
            shown=test | {"cells": counted, "cycles": board.cycles},
        )


@contextlib.contextmanager
def _simulation(config, divisor, mhz, seed):
    from kelp_fpga.boards.board import Board
    from kelp_fpga.configs import board_config
    from kelp_verif.fpga.sim_board import SimBoard

    try:
        board = Board(config=board_config(config), hz=round(mhz * 1e6), divisor=divisor)
    except ValueError as error:
        raise UserError(str(error)) from None
    with console.status(
        f"building the simulated board ({config}); the first time this takes minutes"
    ):
        simulated = SimBoard(board, seed=seed)
    with simulated:
        yield simulated


@contextlib.contextmanager
def _board(port, baud, timeout, patience):
    from kelp_fpga.link.host import BoardError, Host
    from kelp_fpga.link.host_link import LinkError
    from kelp_fpga.link.serial_port import PortError, SerialPort

    host = None
    try:
        host = Host(SerialPort(port, baud), timeout=timeout, patience=patience)
        yield host
    except (BoardError, LinkError, PortError) as error:
        raise UserError(str(error)) from None
    except ValueError as error:
        if host is None:
            raise UserError(str(error)) from None
        raise
    finally:
        if host is not None:
            host.close()


def _replay(host, trace, lines, prefill_pages, residency, formats, lockstep) -> dict:
    from kelp_fpga.configs import FIRST_LIGHT
    from kelp_sim.replay.plan import plan
    from kelp_sim.trace import trace as traces

    if host.config.name == FIRST_LIGHT:
        raise UserError(
            "this bitstream is for first light and has no endpoint: kelp fpga build --board … "
            + "makes one that has"
        )
    try:
        recording = fpga_replay.crop(traces.read(trace), prefill_pages)
        chosen = plan(
            recording,
            host.config,
            formats=parse_formats(formats),
            residency=residency,
            accesses=max(lines // recording.half_lines, 1),
        )
    except ValueError as error:
        raise UserError(str(error)) from None
    with progress_bar() as bar:
        task = bar.add_task("board: lines", total=None)
        done = fpga_replay.replay(
            host,
            chosen,
            lines=lines,
            lockstep=lockstep,
            progress=lambda n, total: bar.update(task, completed=n, total=total),
        )
    result = asdict(done) | {
        "passed": done.passed,
        "config": host.config.name,
        "lockstep": lockstep,
        "frames_bad": host.link.bad,
        "frames_resent": host.link.resent,
        "polls": host.link.polls,
    }
    result["counters"] = {name: value for name, value in done.counters.items() if value}
    for name in ("misses", "write_backs"):
        result["counters"].setdefault(name, 0)
    return result


def _result(name: str) -> Path:
    """Where a simulation's figures go when nothing else is asked for."""
    from kelp_rtl.build.tools import build_root

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


def _finish(result: dict, path: Path | None, kind: str, *, shown: dict | None = None) -> NoReturn:
    """The end of a command: its figures to a file when one is named, and as a table; exit 1 unless
    they say that it passed."""
    if path is not None:
        write_json(path, kind, result)
    show(shown or result)
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
    console.print(table)

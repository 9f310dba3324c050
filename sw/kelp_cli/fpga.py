# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""``kelp fpga``: a board on a cable, or the same board in simulation."""

import contextlib
import json as json_module
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from .fpga_blocks import blocks as place_blocks
from .fpga_selftest import selftest as run_selftest
from .output import UserError, console, write_json
from .replay import FORMATS, parse_formats, progress_bar

__all__ = ["register"]

_Port = Annotated[str, typer.Option(help="The board's serial port, such as /dev/ttyUSB0.", show_default=False)]
_Baud = Annotated[int, typer.Option(help="Bits per second, as the bitstream was built for.")]
_Timeout = Annotated[float, typer.Option(help="Seconds of silence before something counts as lost; more for a simulation.")]
_Patience = Annotated[float, typer.Option(help="Seconds of silence before the board is given up.")]
_Board = Annotated[str, typer.Option(help="Which board: ulx3s_85f, ecpix5_85f, butterstick or versa_ecp5_5g.")]
_Built = Annotated[str | None, typer.Option("--config", help="Which configuration, where another than the board's own was built.", show_default=False)]
_Json = Annotated[Path | None, typer.Option("--json", help="Also write the figures to this file (- is stdout).")]


def register(app: typer.Typer) -> None:
    fpga = typer.Typer(help="Bring up a board: self-test, replay, simulation.", no_args_is_help=True)
    app.add_typer(fpga, name="fpga")

    @fpga.command()
    def selftest(
        port: _Port,
        baud: _Baud = 3_000_000,
        timeout: _Timeout = 0.25,
        patience: _Patience = 10.0,
        first: Annotated[int, typer.Option(help="First line (64 bytes) of memory to test.")] = 0,
        lines: Annotated[int | None, typer.Option(help="Lines to test; all of the memory by default.", show_default=False)] = None,
        json: _Json = None,
    ) -> None:
        """Run the board's self-test (memory, endpoint, codecs, ECC) and show its result; exit 1 when anything fails. The endpoint is reset by it."""
        with _board(port, baud, timeout, patience) as host:
            result = run_selftest(host, first, lines)
        if json is not None:
            write_json(json, "fpga-selftest", result)
        _show(result)
        raise typer.Exit(0 if result["passed"] else 1)

    @fpga.command()
    def replay(
        trace: Annotated[Path, typer.Argument(help="A recording with keys and values, such as data/traces/attn_0.npz.", show_default=False)],
        port: _Port,
        baud: _Baud = 3_000_000,
        timeout: _Timeout = 0.25,
        patience: _Patience = 10.0,
        lines: Annotated[int, typer.Option(help="Replay whole steps that ask for so many lines.")] = 1024,
        prefill_pages: Annotated[int, typer.Option(help="Pages of the prefill to keep, the newest: boards have short queues.")] = 2,
        residency: Annotated[float, typer.Option(help="Frames, as a share of the pages at the end.")] = 0.5,
        formats: Annotated[list[str] | None, typer.Option(help="Stored formats, as of kelp replay.")] = None,
        lockstep: Annotated[bool, typer.Option("--lockstep/--free-running", help="One request at a time; the counters must be equal too.")] = False,
        json: _Json = None,
    ) -> None:
        """Replay a recording on the board and compare every line that it answers with the golden model; exit 1 on a mismatch."""
        with _board(port, baud, timeout, patience) as host:
            result = _replay(host, trace, lines, prefill_pages, residency, formats or FORMATS, lockstep)
        if json is not None:
            write_json(json, "fpga-replay", result)
        _show(result)
        raise typer.Exit(0 if result["passed"] else 1)

    @fpga.command()
    def sim(
        config: Annotated[str, typer.Option(help="What to build: board_small, ulx3s or unit.")] = "board_small",
        divisor: Annotated[int, typer.Option(help="Clock cycles per bit of the UART.")] = 4,
        mhz: Annotated[float, typer.Option(help="The board's clock: decides the SDRAM's timing.")] = 80.0,
        seed: Annotated[int, typer.Option(help="Of what power-up leaves to chance.")] = 1,
    ) -> None:
        """Simulate the board and keep its UART open as a pseudo-terminal until interrupted; it prints the port to give to the other commands."""
        with _simulation(config, divisor, mhz, seed) as board:
            console.print(f"port: {board.port}")
            while board.error is None:
                time.sleep(0.5)
        raise UserError(f"the simulation stopped: {board.error}")

    @fpga.command()
    def proof(
        trace: Annotated[Path, typer.Argument(help="A recording with keys and values.")] = Path("data/traces/attn_0.npz"),
        config: Annotated[str, typer.Option(help="What to build.")] = "board_small",
        lines: Annotated[int, typer.Option(help="Replay whole steps that ask for so many lines.")] = 1024,
        prefill_pages: Annotated[int, typer.Option(help="Pages of the prefill to keep.")] = 2,
        residency: Annotated[float, typer.Option(help="Frames, as a share of the pages at the end.")] = 0.5,
        test_lines: Annotated[int, typer.Option(help="Lines that the memory test goes over.")] = 256,
        lockstep: Annotated[bool, typer.Option("--lockstep/--free-running", help="As of kelp fpga replay.")] = False,
        divisor: Annotated[int, typer.Option(help="Clock cycles per bit of the UART.")] = 4,
        mhz: Annotated[float, typer.Option(help="The board's clock: decides the SDRAM's timing.")] = 80.0,
        seed: Annotated[int, typer.Option(help="Of what power-up leaves to chance.")] = 1,
        json: Annotated[Path, typer.Option("--json", help="Where the result goes.")] = Path("build/fpga/sim.json"),
    ) -> None:
        """The board without a board: the simulated top, pins and all, through self-test and replay over its UART (make fpga-sim)."""
        with _simulation(config, divisor, mhz, seed) as board:
            with _board(board.port, 3_000_000, 5.0, 600.0) as host:
                test = run_selftest(host, 0, test_lines)
                played = _replay(host, trace, lines, prefill_pages, residency, FORMATS, lockstep)
        counters = played["counters"]
        enough = counters["misses"] >= 16 and counters["write_backs"] >= 8 and played["lines"] >= min(lines, 1024)
        passed = test["passed"] and played["passed"] and enough and not board.violations and not board.framing_errors
        result = {"config": config, "passed": passed, "enough": enough, "mhz": mhz, "divisor": divisor, "seed": seed, "selftest": test, "replay": played,
                  "sdram_violations": board.violations, "framing_errors": board.framing_errors, "cycles": board.cycles,
                  "cycles_per_second": round(board.cycles / board.seconds)}
        write_json(json, "fpga-sim", result)
        _show(result | {"selftest": test["passed"], "replay": played["passed"]})
        raise typer.Exit(0 if passed else 1)

    @fpga.command()
    def netlist(
        config: Annotated[str, typer.Option(help="What to build: unit, board_small or ulx3s_block.")] = "unit",
        block_lines: Annotated[int, typer.Option(help="Lines of memory, in block RAM.")] = 512,
        test_lines: Annotated[int, typer.Option(help="Lines that the memory test goes over.")] = 64,
        divisor: Annotated[int, typer.Option(help="Clock cycles per bit of the UART.")] = 4,
        seed: Annotated[int, typer.Option(help="Of what power-up leaves to chance.")] = 1,
        json: Annotated[Path, typer.Option("--json", help="Where the result goes.")] = Path("build/fpga/netlist.json"),
    ) -> None:
        """The self-test after synthesis: the board's top as ECP5 cells, in simulation, by its UART (make fpga-netlist). Long; what is built is kept."""
        from kelp_fpga.board import Board
        from kelp_fpga.configs import board_config
        from kelp_verif.fpga.netlist import CELLS, netlist
        from kelp_verif.fpga.sim_board import SimBoard
        from kelp_verif.fpga.sim_top import BoardWithChip
        from kelp_verif.tools import ToolError

        try:
            top = Board(config=board_config(config), hz=80_000_000, divisor=divisor, block_lines=block_lines)
            with console.status(f"synthesising {config}"):
                verilog, cells = netlist(BoardWithChip(top), name=f"board-{config}")
            console.print(f"{config} is " + ", ".join(f"{count} {kind}" for kind, count in sorted(cells.items())))
            with console.status("building the netlist's simulation"):
                simulated = SimBoard(top, seed=seed, verilog=verilog, sources=[CELLS], name=f"netlist-{config}", verilator_args=[f"-I{CELLS.parent}"],
                                     opt="-O0")     # a third of the time to build, for a quarter of the speed
        except (ToolError, ValueError) as error:
            raise UserError(str(error)) from None
        with simulated as board, _board(board.port, 3_000_000, 20.0, 600.0) as host, console.status("running its self-test, some 200 000 cycles"):
            test = run_selftest(host, 0, test_lines)
        result = {"config": config, "passed": test["passed"], "selftest": test, "cells": cells, "cycles": board.cycles,
                  "cycles_per_second": round(board.cycles / board.seconds)}
        write_json(json, "fpga-netlist", result)
        _show(test | {"cells": ", ".join(f"{count} {kind}" for kind, count in sorted(cells.items())), "cycles": board.cycles})
        raise typer.Exit(0 if test["passed"] else 1)

    @fpga.command()
    def build(
        board: _Board = "ulx3s_85f",
        config: Annotated[str | None, typer.Option(help="What to build; by default what the board holds.", show_default=False)] = None,
        mhz: Annotated[float | None, typer.Option(help="The board's clock, which the bitstream has to meet; by default one that the board is known to meet.",
                                                  show_default=False)] = None,
        baud: Annotated[int, typer.Option(help="The cable's rate: a whole part of the clock, or within 3 % of one.")] = 3_000_000,
        seed: Annotated[int, typer.Option(help="The placer's.")] = 1,
        size: Annotated[bool, typer.Option("--size", help="Only synthesise and pack: what of the device is taken, in minutes.")] = False,
        json: _Json = None,
    ) -> None:
        """Synthesise, place and route a board's top into build/fpga/BOARD and report; exit 1 when its clock is not met. An 85F takes 45 minutes."""
        from kelp_fpga import build as flow
        from kelp_fpga.configs import board_config

        if board not in flow.TARGETS:
            raise UserError(f"board {board!r} is unknown; known: {', '.join(flow.TARGETS)}")
        target, directory = flow.TARGETS[board], _directory(board, seed, config)
        try:
            chosen, hz = board_config(config or target.config), round((target.clock_mhz if mhz is None else mhz) * 1e6)
            what = f"{'sizing' if size else 'building'} {board}, configuration {chosen.name}, seed {seed}"
            with console.status(what) as status:
                if size:
                    figures = flow.size(board, chosen, directory=directory.with_name(f"size-{chosen.name}"), hz=hz, baud=baud)
                else:
                    figures = flow.build(board, chosen, directory=directory, hz=hz, baud=baud, seed=seed,
                                         begins=lambda step: status.update(f"{what}: {step}"))
                    flow.summary(directory.parent)
        except (flow.BuildError, ValueError) as error:
            raise UserError(str(error)) from None
        if json is not None:
            write_json(json, "fpga-build", figures)
        _show({name: figure for name, figure in figures.items() if name != "blocks"})
        raise typer.Exit(0 if size or figures["fmax_mhz"] >= figures["clock_mhz"] else 1)

    @fpga.command()
    def report(board: _Board = "ulx3s_85f") -> None:
        """The figures of every seed built so far, and the slowest of them, which counts; also in build/fpga/BOARD/report.json."""
        from kelp_fpga import build as flow

        directory = _directory(board, 1).parent
        slowest = flow.summary(directory)
        if slowest is None:
            raise UserError(f"nothing was built for {board}: kelp fpga build --board {board}")
        names = ("seed", "config", "fmax_mhz", "clock_mhz", "target_mhz", "luts", "ffs", "ebr", "dsp")
        table = Table(*names)
        for path in sorted(directory.glob("seed*/report.json")):
            figures = json_module.loads(path.read_text(encoding="utf-8"))
            table.add_row(*(str(figures.get(name, "")) for name in names))
        console.print(table)
        console.print(f"fmax_mhz over {len(slowest['seeds'])} seeds: {slowest['fmax_mhz']}")
        blocks = Table("part", "ns", "fmax_mhz", "slowest path's end", title=f"slowest paths of seed {slowest['seed']}, by part")
        for name, figures in slowest.get("blocks", {}).items():
            blocks.add_row(name, str(figures["ns"]), str(figures["fmax_mhz"]), figures["to"])
        console.print(blocks)

    @fpga.command()
    def estimate(
        board: _Board = "ulx3s_85f",
        config: _Built = None,
        seed: Annotated[int, typer.Option(help="Which build.")] = 1,
        netlist: Annotated[Path | None, typer.Option(help="Another netlist that synth_ecp5 wrote as JSON.", show_default=False)] = None,
        top: Annotated[str, typer.Option(help="Its top module.")] = "top",
        only: Annotated[str, typer.Option(help="Ends to show: a regular expression.")] = "",
        paths: Annotated[int, typer.Option(help="Groups of ends to show; the slowest path net by net.")] = 20,
    ) -> None:
        """Estimate a synthesised design's slow paths, before anything is placed, and list its block RAMs."""
        from kelp_fpga.estimate import Netlist

        path = netlist or _directory(board, seed, config) / "top.json"
        try:
            design = Netlist(path, top)
            slow = design.slowest(only)
        except (OSError, ValueError, KeyError) as error:
            raise UserError(f"{path}: no netlist ({error}); kelp fpga build --board {board}{_asked(config)} makes one first") from None
        table = Table("ns", "MHz", "ends", "pin", "group")
        for end in slow[:paths]:
            table.add_row(f"{end.ns:.2f}", f"{1000 / end.ns:.1f}", str(end.ends), end.pin, end.end)
        console.print(table)
        for arrival, loads, name in slow[0].nets if slow else ():
            console.print(f"{arrival:8.2f} ns, {loads:4} loads  {name}", markup=False, highlight=False)
        memories = design.memories()
        held = ", ".join(f"{count} {name}" for name, count in memories.most_common())
        console.print(f"block RAMs: {sum(memories.values())}: {held}", markup=False, highlight=False)

    @fpga.command()
    def paths(
        board: _Board = "ulx3s_85f",
        config: _Built = None,
        seed: Annotated[int, typer.Option(help="Which build.")] = 1,
        above: Annotated[float, typer.Option(help="ns, setup not counted: ends that arrive later.")] = 11.5,
        wires: Annotated[bool, typer.Option("--wires", help="Show the latest path of each group net by net, with where its drivers are.")] = False,
    ) -> None:
        """List a build's late paths as its refined placement has them, before it is routed: where registers are wanted."""
        from kelp_fpga.late_paths import late_paths

        path = _directory(board, seed, config) / "refined.json"
        try:
            groups = late_paths(path, above=above)
        except (OSError, ValueError, KeyError) as error:
            raise UserError(f"{path}: no refined netlist ({error}); kelp fpga build --board {board}{_asked(config)} --seed {seed} makes it") from None
        table = Table("ns", "ends", "nets", "from", "to", title=f"{sum(group.ends for group in groups)} ends beyond {above} ns")
        for group in groups:
            table.add_row(f"{group.ns:.2f}", str(group.ends), str(len(group.wires)), group.begin, group.end)
        console.print(table)
        for group in groups if wires else ():
            console.print(f"{group.begin} → {group.end}", markup=False, highlight=False, soft_wrap=True)
            for wire in group.wires:
                place = f"({wire.x}, {wire.y})"
                console.print(f"{wire.ns:8.2f} ns from {place:10} {wire.loads:4} loads  {wire.driver}", markup=False, highlight=False, soft_wrap=True)

    @fpga.command()
    def blocks(
        board: _Board = "ulx3s_85f",
        config: Annotated[str, typer.Option(help="What to build: ulx3s, board_small or unit.")] = "ulx3s",
        only: Annotated[list[str] | None, typer.Option(help="Block to place and route; all of them by default.", show_default=False)] = None,
        seed: Annotated[int, typer.Option(help="The placer's.")] = 1,
    ) -> None:
        """Place and route each block of the endpoint alone, and add it to build/fpga/BOARD/blocks.json. Takes long; what was done before is not done again."""
        names, slow = ("fmax_mhz", "luts", "ffs", "ebr", "dsp", "critical_path"), False
        table = Table("block", *names)
        for name, figures in place_blocks(board, config, only or [], seed, _directory(board, seed).parent / "blocks.json"):
            console.print(f"{name}: {figures['fmax_mhz']} MHz of {figures['target_mhz']:g}, {figures['luts']} LUTs", highlight=False)
            table.add_row(name, *(str(figures[each]) for each in names))
            slow |= figures["fmax_mhz"] < figures["target_mhz"]
        console.print(table)
        raise typer.Exit(1 if slow else 0)

    @fpga.command()
    def program(
        board: _Board = "ulx3s_85f",
        config: _Built = None,
        seed: Annotated[int, typer.Option(help="Which build.")] = 1,
    ) -> None:
        """Load the bitstream into the board, until power goes."""
        from kelp_fpga import build as flow

        try:
            flow.program(board, _directory(board, seed, config) / "top.bit")
        except flow.BuildError as error:
            raise UserError(str(error)) from None

    @fpga.command()
    def vivado(
        board: Annotated[str, typer.Option(help="Which board: arty_a7_100t or vcu118.")],
        config: Annotated[str | None, typer.Option(help="What to build; by default what the board is meant to hold.", show_default=False)] = None,
        mhz: Annotated[float, typer.Option(help="The board's clock.")] = 80.0,
        output: Annotated[Path | None, typer.Option("-o", "--output", help="Directory; build/vivado/BOARD by default.", show_default=False)] = None,
    ) -> None:
        """Write a Vivado project for a board: Verilog, constraints, and a script that builds the bitstream."""
        from kelp_fpga.configs import board_config
        from kelp_fpga.xilinx_boards import XILINX_BOARDS, project
        from kelp_verif.tools import build_root

        if board not in XILINX_BOARDS:
            raise UserError(f"board {board!r} is unknown; known: {', '.join(XILINX_BOARDS)}")
        directory = output or build_root() / "vivado" / board
        if directory.exists() and not directory.is_dir():
            raise UserError(f"{directory} is a file; -o wants a directory")
        try:
            with console.status(f"generating {board}"):
                files = project(board, board_config(config or XILINX_BOARDS[board][1]), directory=directory, hz=round(mhz * 1e6))
        except ValueError as error:
            raise UserError(str(error)) from None
        for file in files:
            console.print(f"{file}  {file.stat().st_size / 1024:,.0f} KiB")
        console.print(f"next, where Vivado is: cd {directory} && vivado -mode batch -source top.tcl")

    @fpga.command()
    def axi(
        config: Annotated[str, typer.Option(help="Named configuration (kelp config lists them).")] = "trace",
        output: Annotated[Path, typer.Option("-o", "--output", help="Directory to write into.")] = Path("build/axi"),
    ) -> None:
        """Write the Verilog of the endpoint with AXI4 on both sides, for a vendor's CXL IP, and a table of its ports."""
        from kelp_fpga.axi_endpoint import AxiEndpoint
        from kelp_fpga.axi_ports import axi_ports_markdown
        from kelp_spec.config import named
        from kelp_verif.runner import macro_sources, to_verilog

        top = AxiEndpoint(config=named(config))
        output.mkdir(parents=True, exist_ok=True)
        with console.status(f"generating {config}"):
            text = to_verilog(top, name="kelp_axi_endpoint")
        (output / "kelp_axi_endpoint.v").write_text(text, encoding="utf-8")
        for source in macro_sources(text):
            (output / source.name).write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
        (output / "ports.md").write_text(axi_ports_markdown(top), encoding="utf-8")
        console.print(f"written: {output}/kelp_axi_endpoint.v, {output}/ports.md")


def _asked(config: str | None) -> str:
    return f" --config {config}" if config else ""


def _directory(board: str, seed: int, config: str | None = None) -> Path:
    """Of a build. Configurations other than the board's own lie beside it, and count in no report of the board."""
    from kelp_fpga.build import TARGETS
    from kelp_verif.tools import build_root

    own = board not in TARGETS or config in (None, TARGETS[board].config)
    return build_root() / "fpga" / board / f"{'' if own else f'{config}-'}seed{seed}"


@contextlib.contextmanager
def _simulation(config, divisor, mhz, seed):
    from kelp_fpga.board import Board
    from kelp_fpga.configs import board_config
    from kelp_verif.fpga.sim_board import SimBoard

    try:
        board = Board(config=board_config(config), hz=round(mhz * 1e6), divisor=divisor)
    except ValueError as error:
        raise UserError(str(error)) from None
    with console.status(f"building the simulated board ({config}); the first time this takes minutes"):
        simulated = SimBoard(board, seed=seed)
    with simulated:
        yield simulated


@contextlib.contextmanager
def _board(port, baud, timeout, patience):
    from kelp_fpga.host import BoardError, Host
    from kelp_fpga.host_link import LinkError
    from kelp_fpga.serial_port import PortError, SerialPort

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
    from kelp_sim import trace as traces
    from kelp_sim.replay import plan

    from . import fpga_replay

    if host.config.name == FIRST_LIGHT:
        raise UserError("this bitstream is for first light and has no endpoint: kelp fpga build --board … makes one that has")
    try:
        recording = fpga_replay.crop(traces.read(trace), prefill_pages)
        chosen = plan(recording, host.config, formats=parse_formats(formats), residency=residency, accesses=max(lines // 16, 1))
    except ValueError as error:
        raise UserError(str(error)) from None
    with progress_bar() as bar:
        task = bar.add_task("board: lines", total=None)
        done = fpga_replay.replay(host, chosen, lines=lines, lockstep=lockstep, progress=lambda n, total: bar.update(task, completed=n, total=total))
    result = asdict(done) | {"passed": done.passed, "config": host.config.name, "lockstep": lockstep,
                             "frames_bad": host.link.bad, "frames_resent": host.link.resent, "polls": host.link.polls}
    result["counters"] = {name: value for name, value in done.counters.items() if value}
    for name in ("misses", "write_backs"):
        result["counters"].setdefault(name, 0)
    return result


def _show(result: dict) -> None:
    table = Table(show_header=False)
    for name, value in result.items():
        table.add_row(name, ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else str(value))
    console.print(table)

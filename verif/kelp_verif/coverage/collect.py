# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""``make coverage``: run the benches with Verilator's coverage, and say what they reach.

``python -m kelp_verif.coverage.collect [--only ROOM]… [-o FILE]`` writes ``build/coverage.json``;
it exits 1 where a test fails, a block is below its bar or a cover point is not reached. What FILE
says of blocks and points that the run does not look at stays in it. With ``--points`` models are
those of other runs, and cover points alone are looked at.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from datetime import date
from pathlib import Path

from kelp_hw.export import tools
from kelp_spec.files import write_whole

from ..mutation.benches import BENCHES
from .record import EMPTY, merged
from .report import block_rows, point_rows

__all__ = ["main"]

#: What leaves figures for cover points, beside the blocks' own tests on Verilator.
_MORE = {
    "endpoint": ("tests/hw/test_endpoint.py",),
    "select": ("tests/hw/test_choice.py", "tests/hw/test_choice_audit.py"),
    "storm": ("tests/hw/test_storms.py",),
    "coherence": (
        "tests/hw/coherence/test_front.py",
        "tests/verif/coherence/test_endpoint_bench.py",
    ),
}


def _tests(only: list[str]) -> list[str]:
    """Test files of the benches that leave something."""
    rooms = {bench.name: bench.tests for bench in BENCHES if bench.level == "netlist"} | _MORE
    if unknown := [name for name in only if name not in rooms]:
        raise SystemExit(f"{unknown[0]!r} is no room with benches; legal: {', '.join(rooms)}")
    return [test for name in only or rooms for test in rooms[name]]


def _kept(path: Path) -> dict:
    """What earlier runs have left there; SystemExit where it is another file."""
    if not path.is_file():
        return EMPTY
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        merged(record, [], [], {})
    except (AttributeError, KeyError, TypeError, ValueError):
        raise SystemExit(f"{path} is no record of make coverage; remove it or use -o") from None
    return record


def main() -> int:
    parser = argparse.ArgumentParser(prog="make coverage")
    parser.add_argument("--only", action="append", default=[], help="a room")
    parser.add_argument("-o", "--output", type=Path, default=Path("build/coverage.json"))
    parser.add_argument("-n", "--workers", default="2")
    parser.add_argument("--points", action="store_true", help="cover points alone")
    given = parser.parse_args()
    tests = _tests(given.only)
    _kept(given.output)  # refuses another file before what are hours
    folder = tools.build_root() / "coverage"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "pytest", "-q", "-n", given.workers, "--dist", "loadfile"]
    command += ["-m", "not slow and not prove"]  # the night's cases too
    command += ["--timeout", "0"]  # coverage slows what the limits are for
    command += ["-k", "not planted"]  # a bench that must fail leaves nothing
    env = os.environ | {"KELP_COVERAGE": str(folder)}
    if given.points:
        env |= {"KELP_COVER_POINTS_ALONE": "1"}
    code = subprocess.run(
        [*command, "--no-loadscope-reorder", *tests], env=env, check=False
    ).returncode
    blocks, points = block_rows(folder), point_rows(folder)
    asked = [point for point in points if not given.only or point["met"] is not None]
    _show(blocks, asked)
    if code:
        print(f"a test fails: nothing of this is kept in {given.output}")
        return 1
    state = {"date": date.today().isoformat(), "commit": tools.commit()}
    found = merged(_kept(given.output), blocks, points, state)
    given.output.parent.mkdir(parents=True, exist_ok=True)
    write_whole(given.output, json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    good = all(row["met"] for row in blocks) and all(point["reached"] for point in asked)
    return 0 if good else 1


def _show(blocks: list[dict], points: list[dict]) -> None:
    print(f"\n{'block':24} {'lines':>14} {'control signals':>18} {'waived':>7}  bars met")
    for row in blocks:
        line, toggle = row["line"], row["toggle"]
        shares = (f"{kind['share']:7.1%} of {kind['points']:5}" for kind in (line, toggle))
        waived = line["waived"] + toggle["waived"]
        told = "yes" if row["met"] else "NO"
        print(f"{row['block']:24} {'  '.join(shares)} {waived:9}  {told}")
    met = sum(point["reached"] for point in points)
    print(f"{met} of {len(points)} cover points reached")
    for point in points:
        if not point["reached"]:
            why = "its bench did not run" if point["met"] is None else "not reached"
            print(f"  {point['clause']}: {point['point']} ({point['bench']}): {why}")


if __name__ == "__main__":
    sys.exit(main())

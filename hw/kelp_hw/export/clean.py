# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Tidies the Verilog that Yosys writes, where a linter would stop: unfinished cases and logical
operators on vectors; where a reader of plain Verilog would: asserts; and where synthesis would lose
something: tables of constants."""

from __future__ import annotations

import re

__all__ = [
    "constant_tables",
    "default_cases",
    "distinct_instances",
    "drop_true_asserts",
    "initial_constants",
    "drop_empty_wires",
    "guarded_asserts",
    "reduce_not",
]


def default_cases(verilog: str) -> str:
    """An empty default for every case that has none: all signals were assigned before it."""
    out: list[str] = []
    open_cases: list[bool] = []
    for line in verilog.split("\n"):
        text = line.strip()
        if text.startswith("casez "):
            open_cases.append(False)
        elif text.startswith("default:") and open_cases:
            open_cases[-1] = True
        elif text == "endcase" and not open_cases.pop():
            out.append(line.replace("endcase", "  default: ;"))
        out.append(line)
    return "\n".join(out)


# Row by row, as the backend writes what a memory begins with; its name may end in a space.
_BEGUN = re.compile(
    r"(?m)^  reg (\[\d+:0\] |)(\S+) +\[(\d+):0\];\n"
    + r"  initial begin\n((?:    \2 ?\[\d+\] = [^;\n]+;\n)+)  end\n"
)


def constant_tables(verilog: str) -> str:
    """Every memory that nothing writes as a function of its address: synthesis for an ASIC leaves
    ``initial`` out, and with it all that such a table holds."""
    modules = re.split(r"(?m)^(?=module )", verilog)
    for n, module in enumerate(modules):
        for found in _BEGUN.finditer(module):
            modules[n] = _as_function(modules[n], found)
    return "".join(modules)


def _as_function(module: str, begun: re.Match) -> str:
    """`module` with the memory of `begun` as a function, unless something writes it."""
    shape, name, last, body = begun.groups()
    used = re.escape(name) + r" ?\[((?:[^\[\]]|\[[^\[\]]*\])*)\]"
    if re.search(rf"(?m)^ +{used}(?:\[\d+(?::\d+)?\])? <= ", module):
        return module
    called = name + " " * name.startswith("\\")
    address, bits = f"\\{name.removeprefix(chr(92))}$row ", max(1, int(last).bit_length())
    width = 1 + int(shape[1:].partition(":")[0] or 0)
    lines = [
        f"  function {shape}{called};",
        f"    input [{bits - 1}:0] {address};",
        f"    case ({address})",
        *(
            f"      {bits}'d{row}: {called} = {value};"
            for row, value in re.findall(r"\[(\d+)\] = ([^;]+);", body)
        ),
        f"      default: {called} = {width}'d0;",
        "    endcase",
        "  endfunction",
        "endmodule",
    ]
    module = re.sub(used, lambda use: f"{called}({use[1]})", module.replace(begun[0], ""))
    return module.replace("endmodule", "\n".join(lines), 1)


def drop_empty_wires(verilog: str) -> str:
    """Without the wires of no bits (``wire [-1:0] x;``) that signals leave whose range has one
    value in this configuration; nothing refers to them."""
    return re.sub(r"(?m)^  (?:wire|reg) \[-1:0\] .*;\n", "", verilog)


def reduce_not(verilog: str) -> str:
    """``! x`` of a vector, written as the reduction that it is."""
    return re.sub(r"(?<= = )! ", "~| ", verilog)


def initial_constants(verilog: str) -> str:
    """``always @* x = constant;`` as ``initial``: the block reads nothing, so it would never
    run."""
    constant = r"(?:\d+'[hbd][0-9a-fA-Fx_]+|\{[ ,0-9'hbdxa-fA-F]*\})"
    return re.sub(
        r"(?m)^  always @\*\n(    [^;\n]* = " + constant + r";)$", r"  initial\n\1", verilog
    )


def drop_true_asserts(verilog: str) -> str:
    """Without the asserts that always hold in this configuration."""
    return re.sub(
        r"(?m)^  always @\*\n    if \(1'h1\) begin\n      assert \(1'h1\);\n    end\n", "", verilog
    )


# To the last line that is indented by more than the block, and the `end` of one with `begin`.
_ALWAYS = re.compile(r"(?m)^  always @.*\n(?:    .*\n)+(?:  end\n)?")


def guarded_asserts(verilog: str) -> str:
    """Every block that asserts, read only where ``KELP_ASSERTS`` is defined. `assert` is no word of
    Verilog-2005, and what is combinational in it is true of settled signals alone: not before the
    first reset, nor amid an event-driven simulator's steps."""

    def guarded(block: re.Match) -> str:
        if not re.search(r"(?m)^ +assert \(", block[0]):
            return block[0]
        return f"`ifdef KELP_ASSERTS\n{block[0]}`endif\n"

    return _ALWAYS.sub(guarded, verilog)


def distinct_instances(verilog: str, top: str) -> str:
    """Instances called ``u_<name>``, so that no signal further down hides one."""
    return re.sub(r"(?m)^(  \\" + re.escape(top) + r"\.\S+  )(\w+)( \($)", r"\1u_\2\3", verilog)

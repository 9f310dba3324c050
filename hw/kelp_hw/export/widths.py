# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Makes every width in RTLIL explicit, so that the Verilog written from it has no implicit
extension or truncation for a linter to report.

Amaranth's operators take operands of different widths; Verilog extends them silently, and `-Wall`
says so. The meaning does not change: operands are extended as their signedness says, or cut where
the result is narrower anyway.
"""

from __future__ import annotations

import re

__all__ = ["explicit_widths", "parts"]

_SAME_AS_RESULT = {"$add", "$sub", "$and", "$or", "$xor", "$xnor", "$mul"}
_UNARY = {"$not", "$neg", "$pos"}
_COMPARE = {"$eq", "$ne", "$lt", "$le", "$gt", "$ge"}
_LEFT = {"$shl", "$sshl"}
_RIGHT = {"$shr", "$sshr", "$shift", "$shiftx"}
_TOKEN = re.compile(r"\{|\}|\d+'[01xz]*|[\\$]\S+(?: \[\d+(?::\d+)?\])?")


class _Module:
    """Wires of the module at hand, and names for new ones."""

    def __init__(self):
        self.widths: dict[str, int] = {}
        self.fresh = 0


def explicit_widths(rtlil: str) -> str:
    """The same design with explicit widths."""
    out: list[str] = []
    module = _Module()
    lines = iter(rtlil.split("\n"))
    for line in lines:
        text = line.strip()
        if text.startswith("module "):
            module = _Module()
        elif text.startswith("wire "):
            words = text.split()
            module.widths[words[-1]] = (
                int(words[words.index("width") + 1]) if "width" in words else 1
            )
        elif text.startswith("cell $"):
            cell = [line]
            for inner in lines:
                cell.append(inner)
                if inner.strip() == "end":
                    break
            out += _cell(cell, module)
            continue
        out.append(line)
    return "\n".join(out)


def _cell(lines: list[str], module: _Module) -> list[str]:
    kind = lines[0].split()[1]
    if kind not in _SAME_AS_RESULT | _UNARY | _COMPARE | _LEFT | _RIGHT:
        return lines
    parameters = dict(
        re.match(r"\s*parameter \\(\S+) (\S+)", x).groups()
        for x in lines
        if x.strip().startswith("parameter")
    )
    ports = dict(
        re.match(r"\s*connect \\(\S+) (.*)", x).groups()
        for x in lines
        if x.strip().startswith("connect")
    )
    a_width, y_width = int(parameters["A_WIDTH"]), int(parameters["Y_WIDTH"])
    b_width = int(parameters.get("B_WIDTH", 0))
    signed = {p: parameters.get(p + "_SIGNED") == "1" for p in "AB"}
    before: list[str] = []
    after: list[str] = []
    # An operand that is extended as a signed number is so only where both are.
    both = signed["A"] and (signed["B"] or kind in _UNARY | _LEFT | _RIGHT)
    if kind in _COMPARE:
        width = max(a_width, b_width)
        ports["A"], ports["B"] = (
            _fit(ports[p], w, width, both, module) for p, w in (("A", a_width), ("B", b_width))
        )
        a_width = b_width = width
    elif kind in _SAME_AS_RESULT:
        ports["A"], ports["B"] = (
            _fit(ports[p], w, y_width, both, module) for p, w in (("A", a_width), ("B", b_width))
        )
        a_width = b_width = y_width
    elif kind in _UNARY | _LEFT or a_width <= y_width:
        ports["A"] = _fit(ports["A"], a_width, y_width, both, module)
        a_width = y_width
    else:
        # A right shift needs the bits that its result drops, but no zeros above them, which Yosys
        # would strip again.
        pieces = parts(ports["A"], module.widths)
        while (
            not signed["A"]
            and len(pieces) > 1
            and pieces[0][1] is None
            and not int(pieces[0][0], 2)
            and a_width - pieces[0][2] >= y_width
        ):
            a_width -= pieces.pop(0)[2]
        ports["A"] = _join(pieces, module)
        module.fresh += 1
        name = f"\\explicit${module.fresh}"
        module.widths[name] = a_width
        before += ["  attribute \\keep 1", f"  wire width {a_width} {name}"]
        after.append(f"  connect {ports['Y']} {name} [{y_width - 1}:0]")
        ports["Y"], y_width = name, a_width
    parameters["A_WIDTH"], parameters["Y_WIDTH"] = str(a_width), str(y_width)
    if "B_WIDTH" in parameters:
        parameters["B_WIDTH"] = str(b_width)
    body = [f"    parameter \\{k} {v}" for k, v in parameters.items()] + [
        f"    connect \\{k} {v}" for k, v in ports.items()
    ]
    return [*before, lines[0], *body, "  end", *after]


def _fit(value: str, width: int, wanted: int, signed: bool, module: _Module) -> str:
    """`value` extended or cut to `wanted` bits."""
    if width == wanted:
        return value
    pieces = parts(value, module.widths) or [("0", None, 1)]
    width = sum(bits for _, _, bits in pieces)
    if wanted > width:
        name, low, bits = pieces[0]
        fill = "0" if not signed else name[0] if low is None else f"{name} [{low + bits - 1}]"
        pad = (
            [(fill * (wanted - width), None, wanted - width)]
            if len(fill) == 1
            else [(name, low + bits - 1, 1)] * (wanted - width)
        )
        return _join(pad + pieces, module)
    kept: list = []
    for name, low, bits in reversed(pieces):
        if wanted == 0:
            break
        take = min(bits, wanted)
        kept.insert(0, (name[len(name) - take :], None, take) if low is None else (name, low, take))
        wanted -= take
    return _join(kept, module)


def parts(value: str, widths: dict[str, int]) -> list[tuple[str, int | None, int]]:
    """Pieces of a value in RTLIL, highest first: (bits, None, width) of a constant, (wire, lowest
    bit, width) of a wire. `widths`: of each wire of the module."""
    found = []
    for token in _TOKEN.findall(value):
        if token in "{}":
            continue
        if token[0].isdigit():
            width, bits = token.split("'")
            found.append((bits, None, int(width)))
        else:
            name, _, index = token.partition(" ")
            if not index:
                found.append((name, 0, widths[name]))
            else:
                high, _, low = index[1:-1].partition(":")
                found.append((name, int(low or high), int(high) - int(low or high) + 1))
    return [p for p in found if p[2]]


def _join(pieces, module: _Module) -> str:
    text = [
        f"{bits}'{name}"
        if low is None
        else f"{name} [{low + bits - 1}:{low}]"
        if bits > 1
        else f"{name} [{low}]"
        for name, low, bits in pieces
    ]
    return text[0] if len(text) == 1 else "{ " + " ".join(text) + " }"

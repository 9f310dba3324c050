# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Copies of what drives many cells, made in a synthesised netlist before it is placed: the placer pulls a driver and hundreds of cells together with a
hundredth of the force with which it pulls a pair, and the router then leads one tree through all of them."""

from __future__ import annotations

import json
import math
import re
import sys
from collections import Counter, defaultdict
from pathlib import Path

from .estimate import CLOCKS, MEMORIES, net_names

__all__ = ["replicate", "replicate_file"]

#: What registers and distributed memories that share a tile must have in common: splitting it finely would leave tiles half empty.
_SHARED = ("CE", "LSR", "WRE")
_SHARE = 8
#: What is copied, and its output. Wide tables are several cells, carry chains belong together, a memory is too dear.
_COPIED = {"LUT4": "Z", "TRELLIS_FF": "Q"}
_ENDS = ("TRELLIS_FF", *MEMORIES)


def replicate(module: dict, loads: int) -> Counter:
    """Split every net with more than `loads` loads that a table or a register drives: neighbours share a copy of the driver, neighbours being what ends in
    registers of one part with about the same bit number, as the placer has no other reason to keep the bits of a word together. In place.

    Every copy has the parameters and the inputs of the first, so that the design does the same in the same cycle.

    Parameters
    ----------
    module : dict
        The flattened top of a netlist that Yosys wrote as JSON.
    loads : int
        At least 2; the most that a net drives afterwards, clocks not counted. An enable, a reset or a write enable counts as an eighth: tiles share those.

    Returns
    -------
    Counter
        Copies by the type of cell.
    """
    if not isinstance(loads, int) or loads < 2:
        raise ValueError(f"loads = {loads!r} is refused; legal: 2 and more")
    cells = module["cells"]
    driver, fed, fixed = {}, defaultdict(list), {bit for port in module["ports"].values() for bit in port["bits"]}
    for name, cell in cells.items():
        for pin, bits in cell["connections"].items():
            for n, bit in enumerate(bits):
                if cell["port_directions"].get(pin) == "output":
                    driver[bit] = name, pin
                elif pin in CLOCKS:
                    fixed.add(bit)
                else:
                    fed[bit].append((name, pin, n))
    places = _places(module, driver)
    made, free = Counter(), 1 + max(bit for bits in (*fed, *driver) for bit in (bits,) if isinstance(bit, int))

    def weight(bit):
        return sum(1 if pin not in _SHARED else 1 / _SHARE for _, pin, _ in fed[bit])

    def wide(bit):
        return (isinstance(bit, int) and bit not in fixed and bit in driver and weight(bit) > loads
                and _COPIED.get(cells[driver[bit][0]]["type"]) == driver[bit][1])

    todo = sorted((bit for bit in fed if wide(bit)), key=lambda bit: -weight(bit))
    while todo:
        bit = todo.pop(0)
        if not wide(bit):
            continue
        name, pin = driver[bit]
        first = cells[name]
        ends = sorted(fed[bit], key=lambda end: (places.get(end[0], ("", 0)), end))
        count = math.ceil(weight(bit) / loads)
        shares = [ends[len(ends) * k // count:len(ends) * (k + 1) // count] for k in range(count)]
        fed[bit] = shares[0]
        for k, share in enumerate(shares[1:], 1):
            called = f"{name}$copy{k}"
            copy = {**first, "connections": {p: list(bits) for p, bits in first["connections"].items()}}
            cells[called], copy["connections"][pin], driver[free], fed[free] = copy, [free], (called, pin), share
            for end, port, n in share:
                cells[end]["connections"][port][n] = free
            for p, bits in copy["connections"].items():
                for n, source in enumerate(bits):
                    if p != pin and p not in CLOCKS:
                        fed[source].append((called, p, n))
                        if wide(source):
                            todo.append(source)
            places[called] = places.get(share[0][0], ("", 0))
            made[first["type"]] += 1
            free += 1
    return made


def _places(module: dict, driver: dict) -> dict[str, tuple[str, int]]:
    """Of each cell: the part and the bit number of the register or memory that it is, or that hears it first."""
    names, cells = net_names(module), module["cells"]
    places, level = {}, []
    for name, cell in cells.items():
        if cell["type"] in _ENDS:
            called = names.get(cell["connections"]["Q"][0], name) if cell["type"] == "TRELLIS_FF" else name
            found = re.search(r"\[(\d+)\]$", called) or (re.search(r"\.(\d+)$", called) if cell["type"] in MEMORIES else None)
            scale = 4 if cell["type"] == "TRELLIS_DPR16X4" else 1
            places[name] = called.rpartition(".")[0], scale * int(found[1]) if found else 0
            level.append(name)
    while level:
        before = []
        for name in level:
            for pin, bits in cells[name]["connections"].items():
                for bit in bits:
                    source = driver.get(bit, (None,))[0]
                    if source is not None and source not in places and cells[name]["port_directions"].get(pin) == "input":
                        places[source] = places[name]
                        before.append(source)
        level = before
    return places


def replicate_file(netlist: Path, output: Path, *, top: str, loads: int) -> Counter:
    """:func:`replicate` from file to file; an unknown `top` is a ValueError."""
    design = json.loads(netlist.read_text(encoding="utf-8"))
    if top not in design["modules"]:
        raise ValueError(f"top = {top!r} is refused; legal: {', '.join(sorted(design['modules'])[:8])}")
    made = replicate(design["modules"][top], loads)
    output.write_text(json.dumps(design), encoding="utf-8")
    return made


if __name__ == "__main__":
    made = replicate_file(Path(sys.argv[1]), Path(sys.argv[2]), top=sys.argv[3], loads=int(sys.argv[4]))
    print(", ".join(f"{count} {kind}" for kind, count in sorted(made.items())) or "nothing", "copied")

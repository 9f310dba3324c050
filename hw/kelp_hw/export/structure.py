# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What timing and test of a design hang on, of its RTLIL: clocks, kinds of state, and ways from an
input to an output that meet no register."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from .netlist import Bit, Cell, Instance, Module, instances

__all__ = ["Structure", "structure_of"]

#: Each bit of the result is of the bits at the same place.
_BITWISE = {"$and", "$mux", "$not", "$or", "$xor"}
#: Each bit of the result may be of any bit.
_WHOLE = {
    "$add",
    "$eq",
    "$ge",
    "$gt",
    "$le",
    "$lt",
    "$mul",
    "$ne",
    "$neg",
    "$reduce_and",
    "$reduce_bool",
    "$reduce_or",
    "$reduce_xor",
    "$shift",
    "$shl",
    "$shr",
    "$sshr",
    "$sub",
}
#: Not in hardware.
_SAID = {"$check", "$meminit_v2", "$print"}
_RESULTS = {"DATA", "Q", "Y"}

# A bit of the design: which instance, and of its module which wire and bit.
_Node = tuple[int, str, int]


@dataclass(frozen=True)
class Structure:
    """A design's state and ways through it.

    `flip_flops`: how many, without memories. `clocks`: the inputs that clock them, the memories and
    the macros, with the edge: ``posedge clk``; a clock that is no input counts as ``a signal``.
    `latches`: processes that leave a bit as it was, by their wires. `paths`: of each output that an
    input reaches without a register, the inputs. `registered`: outputs that are registers or
    constants, with no logic behind them.
    """

    flip_flops: int
    clocks: tuple[str, ...]
    latches: tuple[str, ...]
    paths: dict[str, tuple[str, ...]]
    registered: tuple[str, ...]


def structure_of(modules: dict[str, Module], top: str) -> Structure:
    """The structure of the design below `top`. ValueError names a cell that is none of a design
    with synchronous state alone: a latch, a flip-flop with an asynchronous reset, a tri-state
    buffer."""
    design = _Design(instances(modules, top), modules)
    ports = modules["\\" + top]
    paths, registered = {}, []
    for name in ports.outputs:
        reached, logic = set(), False
        for bit in range(ports.widths[name]):
            inputs, here = design.origin((0, name, bit))
            reached |= {port for n, port in enumerate(ports.inputs) if inputs >> n & 1}
            logic |= here
        if reached:
            paths[name[1:]] = tuple(sorted(port[1:] for port in reached))
        elif not logic:
            registered.append(name[1:])
    return Structure(
        design.flip_flops, design.clocks(), _latches(design.places), paths, tuple(registered)
    )


def _latches(places: list[Instance]) -> tuple[str, ...]:
    """Bits that some case of a process assigns and that had no value before."""
    found = []
    for place in places:
        begun: set[Bit] = set()
        for left, _, controls in place.module.assigns:
            if not controls:
                begun.update(place.module.bits(left))
            elif not begun.issuperset(place.module.bits(left)):
                found.append(".".join((*place.path, left)))
    return tuple(found)


class _Design:
    """What drives each bit, found as it is asked for."""

    def __init__(self, places: list[Instance], modules: dict[str, Module]):
        self.places = places
        self._modules = modules
        at = {place.path: n for n, place in enumerate(places)}
        self._below = [
            {
                cell.name: at[*place.path, cell.name.removeprefix("\\")]
                for cell in place.module.cells
                if cell.kind in modules
            }
            for place in places
        ]
        self._above: list[tuple[int, Cell]] = [(0, Cell("", ""))] * len(places)
        for n, place in enumerate(places):
            for cell in place.module.cells:
                if cell.kind in modules:
                    self._above[self._below[n][cell.name]] = (n, cell)
        self._drivers = [self._drivers_of(n) for n in range(len(places))]
        self._inputs = {name: n for n, name in enumerate(places[0].module.inputs)}
        self._known: dict[_Node, tuple[int, bool]] = {}

    @property
    def flip_flops(self) -> int:
        return sum(
            cell.number("WIDTH")
            for place in self.places
            for cell in place.module.cells
            if cell.kind == "$dff"
        )

    def clocks(self) -> tuple[str, ...]:
        found = Counter()
        for n, place in enumerate(self.places):
            for cell in place.module.cells:
                if "CLK" in cell.ports and cell.parameters.get("CLK_ENABLE") != "0":
                    edge = "posedge" if cell.number("CLK_POLARITY") else "negedge"
                    found[edge, n, cell.ports["CLK"]] += 1
                elif cell.kind.startswith("\\") and "clk" in cell.ports:
                    if cell.kind not in self._modules:
                        found["posedge", n, cell.ports["clk"]] += 1
        return tuple(sorted({f"{edge} {self._clock(n, value)}" for edge, n, value in found}))

    def _clock(self, n: int, value: str) -> str:
        (bit,) = self.places[n].module.bits(value)
        inputs, logic = self.origin((n, *bit)) if bit else (0, True)
        names = [name[1:] for name, at in self._inputs.items() if inputs >> at & 1]
        return "a signal" if logic or len(names) != 1 else names[0]

    def _drivers_of(self, n: int) -> dict[str, list[tuple]]:
        """Wire → what drives bits of it: (cell, its port, bits that it drives) or (assignment,
        None, bits)."""
        module = self.places[n].module
        found: dict[str, list[tuple]] = {}

        def add(what, port, value):
            bits = module.bits(value)
            for wire in dict.fromkeys(bit[0] for bit in bits if bit):
                found.setdefault(wire, []).append((what, port, {b: k for k, b in enumerate(bits)}))

        for assign in module.assigns:
            add(assign, None, assign[0])
        for cell in module.cells:
            if cell.kind in self._modules:
                for port in self._modules[cell.kind].outputs:
                    if port[1:] in cell.ports:
                        add(cell, port, cell.ports[port[1:]])
            elif cell.kind.startswith("\\kelp_sram"):
                add(cell, "read_data", cell.ports["read_data"])
            elif cell.kind in _BITWISE | _WHOLE | {"$dff", "$memrd_v2"}:
                for port in _RESULTS & cell.ports.keys():
                    add(cell, port, cell.ports[port])
            elif cell.kind not in _SAID | {"$memwr_v2"}:
                raise ValueError(
                    f"cell {cell.kind} of {'.'.join(self.places[n].path) or 'the top'} is refused; "
                    + "legal: logic, flip-flops without asynchronous reset, memories, kelp_sram*"
                )
        return found

    def origin(self, node: _Node) -> tuple[int, bool]:
        """(a bit for each of the top's inputs that reaches `node` without a register, whether logic
        is on a way to it, from an input or from a register)."""
        known, stack = self._known, [node]
        while stack:
            here = stack[-1]
            if here in known:
                stack.pop()
                continue
            if here[0] == 0 and here[1] in self._inputs:
                known[here] = 1 << self._inputs[here[1]], False
                continue
            before, logic = self._before(here)
            if missing := [each for each in before if each not in known]:
                stack += missing
                continue
            inputs = 0
            for each in before:
                inputs |= known[each][0]
                logic |= known[each][1]
            known[here] = inputs, logic
        return known[node]

    def _before(self, node: _Node) -> tuple[list[_Node], bool]:
        """What a bit is made of in the same cycle, and whether by logic."""
        n, wire, bit = node
        module = self.places[n].module
        found: list[Bit] = []
        logic = False
        for what, port, bits in self._drivers[n].get(wire, ()):
            k = bits.get((wire, bit))
            if k is None:
                continue
            if port is None:
                _, right, controls = what
                found.append(module.bits(right)[k])
                for control in controls:
                    found += module.bits(control)
                    logic = True
            elif what.kind in self._modules:
                return [(self._below[n][what.name], port, k)], False
            elif what.kind == "$memrd_v2" and not what.number("CLK_ENABLE"):
                found += module.bits(what.ports["ADDR"])
                logic = True
            elif what.kind in _BITWISE | _WHOLE:
                found += _inputs(module, what, k)
                logic = True
        if not found and wire in module.inputs:
            above, cell = self._above[n]
            outer = self.places[above].module.bits(cell.ports[wire[1:]])[bit]
            return [(above, *outer)] if outer else [], False
        return [(n, *each) for each in found if each], logic


def _inputs(module: Module, cell: Cell, k: int) -> list[Bit]:
    """The bits that bit `k` of a cell's result may be of."""
    found: list[Bit] = []
    for port, value in cell.ports.items():
        bits = module.bits(value)
        if port not in _RESULTS:
            alone = cell.kind in _BITWISE and port != "S"
            found += bits[min(k, len(bits) - 1) :][:1] if alone else bits
    return found

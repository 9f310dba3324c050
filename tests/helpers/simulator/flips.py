# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""A block whose memories a bench of Amaranth's simulator reaches, to flip bits in them."""

from amaranth.hdl import Elaboratable, Fragment
from amaranth.hdl._ast import Property, Switch
from amaranth.hdl._mem import MemoryInstance
from simulation import simulate

__all__ = ["NO_FAULT", "Opened", "fields", "flip", "opened", "simulate_memory"]

#: What a block reports while every code word is right.
NO_FAULT = {"corrected": 0, "poisoned": 0, "fatal": 0}


def without_asserts(statements):
    """A simulator that settles step by step meets combinational asserts before their inputs are
    what they will be."""
    for statement in statements:
        if isinstance(statement, Switch):
            cases = [
                (patterns, [*without_asserts(body)], at) for patterns, body, at in statement.cases
            ]
            yield Switch(statement.test, cases, src_loc=statement.src_loc)
        elif not isinstance(statement, Property):
            yield statement


def opened(dut):
    """(what a Simulator takes for `dut`, its memories by path). A row is `memory[index]`."""
    memories = {}

    def walk(fragment, path):
        if "comb" in fragment.statements:
            fragment.statements["comb"] = [*without_asserts(fragment.statements["comb"])]
        if isinstance(fragment, MemoryInstance):
            memories[".".join(path)] = fragment._data
        for subfragment, name, *_ in fragment.subfragments:
            walk(subfragment, (*path, str(name)))

    top = Fragment.get(dut, None)
    walk(top, ())
    return top, memories


class Opened(Elaboratable):
    """A block, and its `memories` by path."""

    def __init__(self, dut):
        self._dut = dut
        self._top, self.memories = opened(dut)

    def __getattr__(self, name):
        return getattr(self._dut, name)

    def elaborate(self, platform):
        return self._top


def simulate_memory(dut, bench):
    """Runs `bench(ctx, memory)` with the only memory of `dut`."""
    top, memories = opened(dut)
    (memory,) = memories.values()

    async def run(ctx):
        await bench(ctx, memory)

    simulate(top, run)


def fields(ctx, view):
    """The fields of a struct as they are now, by name."""
    return {name: ctx.get(view[name]) for name in view.shape().members}


def flip(ctx, memory, row, *bits):
    """Flips `bits` of the row of a memory."""
    ctx.set(memory[row], ctx.get(memory[row]) ^ sum(1 << bit for bit in bits))

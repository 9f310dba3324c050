# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Blocks that have ports and nothing else, so that a bench sees the wires between them alone."""

from amaranth.hdl import Const, Module, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In

__all__ = ["hollow", "port_of", "wires"]


def hollow(made, name, signature_of):
    """A class in a block's place: its object has the ports that ``signature_of(**options)`` says
    and is `made[name]`."""

    class Hollow(wiring.Component):
        def __init__(self, **options):
            super().__init__(signature_of(**options))
            made[name] = self

        def elaborate(self, platform):
            return Module()

    return Hollow


def port_of(made, whole, path):
    """The port `block.port.field` of one of the blocks in `made`, or `port.field` of the whole."""
    name, *rest = path.split(".")
    at = made[name] if name in made else getattr(whole, name)
    for step in rest:
        at = at[int(step)] if step.isdecimal() else getattr(at, step)
    return at


def wires(first, second, *, outside=False):
    """(given, seen) of each signal of two ports that are joined, whichever of them gives it; with
    `outside` the first one is the whole's own port. Constants are left out."""
    if not hasattr(first, "signature"):
        return [(Value.cast(first), Value.cast(second))]
    ends = dict((path, value) for path, _, value in second.signature.flatten(second))
    ways = []
    for path, member, value in first.signature.flatten(first):
        here, there = Value.cast(value), Value.cast(ends[path])
        if not isinstance(here, Const) and not isinstance(there, Const):
            given = (member.flow == In) == outside
            ways.append((here, there) if given else (there, here))
    return ways

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""A block whose memories a bench of Amaranth's simulator reaches, to flip bits in them."""

from amaranth.hdl import Fragment
from amaranth.hdl._mem import MemoryInstance

__all__ = ["opened"]


def opened(dut):
    """(what a Simulator takes for `dut`, its memories by path). A row is `memory[index]`."""
    memories = {}

    def walk(fragment, path):
        if isinstance(fragment, MemoryInstance):
            memories[".".join(path)] = fragment._data
        for subfragment, name, *_ in fragment.subfragments:
            walk(subfragment, (*path, str(name)))

    top = Fragment.get(dut, None)
    walk(top, ())
    return top, memories

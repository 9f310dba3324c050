# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The list of memories says what the blocks were made with."""

import pytest

from kelp_hw.export.memories import (
    Memory,
    Read,
    Shape,
    memories_of,
    shapes_of,
    verilog_instances,
)
from kelp_hw.export.netlist import read_rtlil
from kelp_hw.export.rtlil import to_rtlil
from kelp_hw.lib.constant_memory import ConstantMemory
from kelp_hw.lib.request_fifo import RequestFifo
from kelp_hw.lib.sram import Sram
from kelp_hw.lib.wide_memory import WideMemory

NEW, OLD, UNDEFINED = (Read(True, how) for how in ("new", "old", "undefined"))


@pytest.mark.parametrize(
    ("component", "path", "shape"),
    [
        (Sram(depth=8, shape=5), "memory", Shape(None, 8, 5, (NEW,), 1, 5)),
        (Sram(depth=8, shape=5, transparent=False), "memory", Shape(None, 8, 5, (OLD,), 1, 5)),
        (Sram(depth=4097, shape=5), "macro", Shape("kelp_sram", 4097, 5, (NEW,), 1, 5)),
        (
            Sram(depth=129, shape=5, transparent=False),
            "macro",
            Shape("kelp_sram_collision_x", 129, 5, (UNDEFINED,), 1, 5),
        ),
        (
            WideMemory(depth=32, shape=32, granularity=8),
            "rows",
            Shape(None, 32, 32, (NEW,), 1, 8),
        ),
        (
            ConstantMemory(content=[1, 2, 3], protect=False),
            "memory",
            Shape(None, 3, 32, (OLD,), 0, 0),
        ),
    ],
)
def test_a_memory_is_what_its_block_says(component, path, shape):
    (memory,) = memories_of(read_rtlil(to_rtlil(component, name="top")), "top")
    assert (".".join(memory.path), memory.shape) == (path, shape)


def test_slices_are_macros_of_one_shape():
    sram = Sram(depth=256, shape=20, macro=True, slice_bits=10)
    memories = memories_of(read_rtlil(to_rtlil(sram, name="top")), "top")
    assert [".".join(each.path) for each in memories] == ["macro_0", "macro_10"]
    assert shapes_of(memories) == [(Shape("kelp_sram", 256, 10, (NEW,), 1, 10), 2)]


def test_a_read_in_the_same_cycle_is_told():
    fifo = RequestFifo(shape=7, depth=4)
    (memory,) = memories_of(read_rtlil(to_rtlil(fifo, name="top")), "top")
    assert memory.shape.reads == (Read(False, "old"),)


def test_blocks_have_their_names_in_the_verilog():
    """`table` is a word of Verilog's, and so are a few blocks' names."""
    verilog = "  \\top.a  u_a (\n  \\top.a.table  \\table  (\n  \\top.a.b$1  \\b$1  (\n"
    shape = Shape(None, 8, 5, (NEW,), 1, 5)
    paths = ("a", "table", "rows"), ("a", "b$1", "rows$2"), ("rows",)
    assert verilog_instances([Memory(path, shape) for path in paths], "top", verilog) == [
        "u_a.\\table .rows",
        "u_a.\\b$1 .\\rows$2 ",
        "rows",
    ]


def test_an_unknown_module_is_refused():
    text = "module \\top\n  cell \\pad \\p\n    connect \\i 1'0\n  end\nend\n"
    with pytest.raises(ValueError, match="instance of pad is refused"):
        memories_of(read_rtlil(text), "top")

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""RTLIL as data."""

import pytest

from kelp_hw.export.netlist import instances, read_rtlil
from kelp_hw.export.rtlil import to_rtlil
from kelp_hw.lib.split_sram import SplitSram

TWO = r"""
module \top
  wire width 2 input 1 \a
  wire width 3 output 2 \y
  cell \below \first
    connect \i \a [1:0]
    connect \o \y [2:1]
  end
  process $1
    assign \y [0] 1'0
    switch { \a [0] \a [1] }
      case 2'01
        assign \y [0] 1'1
    end
  end
end
module \below
  wire width 2 input 1 \i
  wire width 2 output 2 \o
  memory width 4 size 8 \rows
  connect \o { \i [0] 1'1 }
end
"""


def test_modules_are_read():
    modules = read_rtlil(TWO)
    top, below = modules["\\top"], modules["\\below"]
    assert (top.inputs, top.outputs, top.widths["\\y"]) == (["\\a"], ["\\y"], 3)
    assert top.assigns == [
        ("\\y [0]", "1'0", ()),
        ("\\y [0]", "1'1", ("{ \\a [0] \\a [1] }",)),
    ]
    assert top.cells[0].ports == {"i": "\\a [1:0]", "o": "\\y [2:1]"}
    assert below.memories == {"\\rows": (8, 4)}
    assert below.bits(below.assigns[0][1]) == [None, ("\\i", 0)]
    assert [place.path for place in instances(modules, "top")] == [(), ("first",)]


def test_what_amaranth_emits_is_read():
    modules = read_rtlil(to_rtlil(SplitSram(depth=4097, shape=10), name="top"))
    macros = [cell for m in modules.values() for cell in m.cells if cell.kind == "\\kelp_sram"]
    assert sorted((m.number("DEPTH"), m.number("WIDTH")) for m in macros) == [
        (1, 1),
        (1, 9),
        *[(2048, 1)] * 2,
        *[(2048, 9)] * 2,
    ]


def test_another_statement_is_refused():
    with pytest.raises(ValueError, match="sync posedge.* is refused"):
        read_rtlil("module \\top\n  process $1\n    sync posedge \\clk\n  end\nend\n")

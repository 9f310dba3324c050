# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Ways through a design, its clocks and its state: what is planted is found, and no more."""

import pytest
from amaranth.hdl import Array, Cat, Module, Signal
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out

from kelp_hw.export.netlist import read_rtlil
from kelp_hw.export.rtlil import to_rtlil
from kelp_hw.export.structure import structure_of
from kelp_hw.lib.sram import Sram


class Inner(wiring.Component):
    """`x` follows `a` below bit 2, and a register above it; `chosen` is of `a`'s highest bit."""

    a: In(4)
    x: Out(4)
    chosen: Out(1)

    def elaborate(self, platform):
        m = Module()
        kept = Signal(4)
        m.d.sync += kept.eq(self.a)
        m.d.comb += self.x.eq(Cat(self.a[:2], kept[2:]) ^ 5)
        with m.If(self.a[3]):
            m.d.comb += self.chosen.eq(1)
        return m


class Outer(wiring.Component):
    """Each output is one kind of way."""

    a: In(4)
    address: In(2)
    low: Out(2)
    high: Out(2)
    chosen: Out(1)
    registered: Out(4)
    read: Out(4)
    looked: Out(4)
    picked: Out(4)

    def elaborate(self, platform):
        m = Module()
        m.submodules.inner = inner = Inner()
        m.submodules.clocked = clocked = Sram(depth=4, shape=4, macro=True)
        m.submodules.rows = rows = memory.Memory(shape=4, depth=4, init=())
        write, look = rows.write_port(), rows.read_port(domain="comb")
        m.d.sync += self.registered.eq(self.a)
        m.d.comb += [
            inner.a.eq(self.a),
            self.low.eq(inner.x[:2]),
            self.high.eq(inner.x[2:]),
            self.chosen.eq(inner.chosen),
            clocked.read_address.eq(self.address),
            clocked.read_en.eq(1),
            self.read.eq(clocked.read_data),
            look.addr.eq(self.address),
            write.data.eq(self.a),
            write.en.eq(1),
            self.looked.eq(look.data),
            self.picked.eq(Array([self.registered, ~self.registered])[self.address[0]]),
        ]
        return m


def structure(text, top="top"):
    return structure_of(read_rtlil(text), top)


def test_each_way_is_found():
    found = structure(to_rtlil(Outer(), name="top"))
    assert found.paths == {
        "low": ("a",),
        "chosen": ("a",),
        "looked": ("address",),
        "picked": ("address",),
    }
    assert found.registered == ("registered", "read")
    assert found.flip_flops == 8 and found.clocks == ("posedge clk",) and not found.latches


def test_a_latch_is_found():
    text = """
module \\top
  wire width 1 input 1 \\a
  wire width 1 output 2 \\y
  process $1
    switch \\a [0]
      case 1'1
        assign \\y [0] 1'1
    end
  end
end
"""
    assert structure(text).latches == ("\\y [0]",)
    begun = text.replace("    switch", "    assign \\y [0] 1'0\n    switch")
    assert structure(begun).latches == ()


@pytest.mark.parametrize("kind", ["$adff", "$dlatch", "$tribuf", "$dffsr"])
def test_other_state_is_refused(kind):
    text = f"module \\top\n  wire width 1 output 1 \\q\n  cell {kind} $1\n    connect \\Q \\q\n"
    with pytest.raises(ValueError, match=rf"cell \{kind} of the top is refused"):
        structure(text + "  end\nend\n")


def test_a_second_clock_is_told():
    text = to_rtlil(Inner(), name="top")
    assert structure(text.replace("\\CLK_POLARITY 1", "\\CLK_POLARITY 0")).clocks == (
        "negedge clk",
    )
    assert structure(text.replace("connect \\CLK \\clk [0]", "connect \\CLK \\a [0]")).clocks == (
        "posedge a",
    )

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""kelp_fpga.flow.cells: what one block takes, counted."""

from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from kelp_fpga.flow.cells import CELLS, cells_of, told


class Products(wiring.Component):
    """A register of 36 bits behind one 18 × 18 product."""

    a: In(18)
    b: In(18)
    o: Out(36)

    def elaborate(self, platform):
        m = Module()
        m.d.sync += self.o.eq(self.a * self.b)
        return m


def test_cells_are_counted_by_kind():
    found = cells_of(Products(), "products")
    assert set(found) == set(CELLS)
    assert (found["ffs"], found["multipliers"], found["ebr"]) == (36, 1, 0)
    assert "36 ffs" in told(found) and "ebr" not in told(found)

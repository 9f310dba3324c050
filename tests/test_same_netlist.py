# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""scripts/same_netlist: names, grouping of ports and order do not count; a gate does."""

from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader

import pytest
from amaranth.hdl import Module, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out
from paths import ROOT

_loader = SourceFileLoader("same_netlist", str(ROOT / "scripts" / "same_netlist"))
same_netlist = module_from_spec(spec_from_loader(_loader.name, _loader))
_loader.exec_module(same_netlist)


class Adder(wiring.Component):
    """`total` follows the sum of two values by a cycle. `grouped`: inside, they are the fields of
    one signal. `odd`: one more is added."""

    def __init__(self, *, grouped=False, odd=False):
        self.grouped, self.odd = grouped, odd
        super().__init__({"a": In(4), "b": In(4), "total": Out(5)})

    def elaborate(self, platform):
        m = Module()
        if self.grouped:
            both = Signal(data.StructLayout({"second": 4, "first": 4}))
            m.d.comb += [both.first.eq(self.a), both.second.eq(self.b)]
            left, right = both.first, both.second
        else:
            left, right = Signal(4, name="one"), Signal(4, name="two")
            m.d.comb += [left.eq(self.a), right.eq(self.b)]
        m.d.sync += self.total.eq(left + right + self.odd)
        return m


def colours(**options):
    return same_netlist.colours(Adder(**options))


def test_names_and_grouping_do_not_count():
    assert same_netlist._verdict(colours(), colours(grouped=True))[1]


def test_another_gate_is_seen():
    text, same = same_netlist._verdict(colours(), colours(odd=True))
    assert not same and text == "DIFFERENT, at outputs total"


def test_a_reference_is_asked_for():
    with pytest.raises(SystemExit, match="usage"):
        same_netlist.main([])

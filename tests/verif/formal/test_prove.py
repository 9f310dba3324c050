# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The proof runner itself: it proves what holds, refutes what does not, reaches covers, and refuses
to prove nothing."""

import pytest
from amaranth.asserts import AnyConst
from amaranth.hdl import Assert, Assume, Cover, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from kelp_hw.lib.sram import Sram
from kelp_verif.formal.prove import prove

pytestmark = [pytest.mark.prove, pytest.mark.quick]


class Saturating(wiring.Component):
    """Counts enabled cycles up to ``limit`` and stays there; ``planted`` lets it run past it."""

    def __init__(self, *, limit=10, planted=False, asserts=True):
        self.limit = limit
        self.planted = planted
        self.asserts = asserts
        super().__init__({"enable": In(1), "count": Out(4)})

    def elaborate(self, platform):
        m = Module()
        with m.If(self.enable & (self.count != self.limit + self.planted)):
            m.d.sync += self.count.eq(self.count + 1)
        if self.asserts:
            m.d.comb += Assert(self.count <= self.limit)
            m.d.comb += Cover(self.count == self.limit)
        return m


class TwoInOrder(wiring.Component):
    """Two different chosen values written into a FIFO one after the other leave it in that
    order."""

    w_en: In(1)
    w_data: In(3)
    r_en: In(1)

    def elaborate(self, platform):
        m = Module()
        m.submodules.fifo = fifo = SyncFIFOBuffered(width=3, depth=2)
        first, second = AnyConst(3), AnyConst(3)
        m.d.comb += [
            fifo.w_en.eq(self.w_en),
            fifo.w_data.eq(self.w_data),
            fifo.r_en.eq(self.r_en),
            Assume(first != second),
        ]
        wrote = self.progress(m, first, second, fifo.w_en & fifo.w_rdy, fifo.w_data)
        read = self.progress(m, first, second, fifo.r_en & fifo.r_rdy, fifo.r_data)
        with m.If(wrote == 0):
            m.d.comb += Assume(~(fifo.w_en & fifo.w_rdy & (fifo.w_data == second)))
        with m.If((read == 0) & fifo.r_en & fifo.r_rdy):
            m.d.comb += Assert(fifo.r_data != second)
        m.d.comb += Cover(read == 2)
        return m

    @staticmethod
    def progress(m, first, second, strobe, data):
        seen = Signal(2)
        with m.If(strobe & (seen == 0) & (data == first)):
            m.d.sync += seen.eq(1)
        with m.If(strobe & (seen == 1) & (data == second)):
            m.d.sync += seen.eq(2)
        return seen


def test_induction_proves():
    result = prove(Saturating(), depth=2)
    assert result.passed, result


def test_planted_bug_is_refuted_with_a_trace():
    result = prove(Saturating(planted=True), depth=12, mode="bmc")
    assert result.status == "FAIL"
    assert result.trace.is_file()
    assert "test_prove.py" in result.reasons[0]


def test_bug_beyond_the_depth_is_not_seen():
    assert prove(Saturating(planted=True), depth=8, mode="bmc").passed


def test_cover_is_reached_or_reported():
    assert prove(Saturating(), depth=12, mode="cover").passed
    assert prove(Saturating(), depth=5, mode="cover").status == "FAIL"


def test_contract_with_chosen_constants():
    assert prove(TwoInOrder(), depth=8, mode="bmc").passed
    assert prove(TwoInOrder(), depth=8, mode="cover").passed


class ReadsBack(wiring.Component):
    """What was last written to a chosen address of an SRAM macro is what a read of it returns;
    ``planted`` forgets one bit."""

    write_en: In(1)
    address: In(2)
    data: In(4)

    def __init__(self, *, planted=False):
        self.planted = planted
        super().__init__()

    def elaborate(self, platform):
        m = Module()
        m.submodules.sram = sram = Sram(depth=4, shape=4, macro=True)
        chosen = AnyConst(2)
        written, expected, asked = Signal(), Signal(4), Signal()
        m.d.comb += [
            sram.write_en.eq(self.write_en),
            sram.write_address.eq(self.address),
            sram.write_data.eq(self.data & (7 if self.planted else 15)),
            sram.read_en.eq(1),
            sram.read_address.eq(chosen),
        ]
        with m.If(self.write_en & (self.address == chosen)):
            m.d.sync += [written.eq(1), expected.eq(self.data)]
        m.d.sync += asked.eq(1)
        with m.If(asked & written):
            m.d.comb += Assert(sram.read_data == expected)
        m.d.comb += Cover(asked & written & (expected == 9))
        return m


def test_macro_model_is_part_of_a_proof():
    assert prove(ReadsBack(), depth=6, mode="bmc").passed
    assert prove(ReadsBack(planted=True), depth=6, mode="bmc").status == "FAIL"
    assert prove(ReadsBack(), depth=6, mode="cover").passed


def test_free_reset():
    assert prove(Saturating(), depth=2, free_reset=True).passed


@pytest.mark.parametrize("mode", ["prove", "bmc", "cover"])
def test_nothing_to_prove_is_refused(mode):
    with pytest.raises(ValueError, match="found none"):
        prove(Saturating(asserts=False), depth=2, mode=mode)


def test_bad_arguments_name_themselves():
    with pytest.raises(ValueError, match="mode 'live'"):
        prove(Saturating(), depth=2, mode="live")
    with pytest.raises(ValueError, match="depth 0"):
        prove(Saturating(), depth=0)
    with pytest.raises(ValueError, match="skip 2"):
        prove(Saturating(), depth=2, mode="bmc", skip=2)

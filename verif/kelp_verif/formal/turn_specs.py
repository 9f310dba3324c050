# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Contracts of the blocks where two take turns on one port, for the solver, by induction."""

from amaranth.asserts import AnySeq
from amaranth.hdl import Assert, Assume, Cat, Cover, Module, Mux, Signal, Value
from amaranth.lib import wiring

from kelp_hw.datapath.write_out import WriteOut
from kelp_hw.host.egress import Egress
from kelp_hw.layouts import MESSAGES
from kelp_hw.lib.axi import BURST_INCR, SIZE_LINE, AxiSignature
from kelp_spec.messages import S2MDRS, S2MNDR
from kelp_spec.metadata import Answer

from .fifo_specs import SMALL
from .inside import Follow, open_up, sound, word_at

__all__ = ["EgressContract", "WriteOutContract"]


class EgressContract(wiring.Component):
    """Every answer leaves once, whole, on the right channel, in the order of its source. Whoever
    waits for a channel that is free waits `BOUND` cycle at most, and each KV answer is timed
    once."""

    BOUND = 1

    def __init__(self, block=Egress):
        self.block = block(config=SMALL)
        super().__init__({})

    def elaborate(self, platform):
        m = Module()
        m.submodules.egress = e = self.block
        for s in (e.i, e.i_window):
            value = Value.cast(s.p)
            m.d.comb += [s.valid.eq(AnySeq(1)), value.eq(AnySeq(len(value)))]
            m.d.comb += s.p.data.eq(AnySeq(8))  # a wider line tells no more
        drs, ndr = e.s2m_drs, e.s2m_ndr
        m.d.comb += [
            drs.ready.eq(AnySeq(1)),
            ndr.ready.eq(AnySeq(1)),
            e.now.eq(AnySeq(len(e.now))),
            e.fatal.eq(AnySeq(1)),
            Assume(~e.i.valid | (e.i.p.answer != Answer.NONE)),
            Assume((e.i.p.answer == Answer.DATA) | (e.i.p.data == 0)),
        ]
        answered, side = e.i.valid & e.i.ready, e.i_window.valid & e.i_window.ready
        completion, write = e.i.p.answer == Answer.CMP, e.i_window.p.write

        # What the channels owe.
        for channel, message, mine, sides in (
            (drs, "S2MDRS", answered & ~completion, side & ~write),
            (ndr, "S2MNDR", answered & completion, side & write),
        ):
            due = Signal(MESSAGES[message])
            m.d.comb += [
                Assert(~(mine & sides)),
                due.meta_field.eq(3),
                due.tag.eq(Mux(sides, e.i_window.p.tag, e.i.p.origin.tag)),
                due.ld_id.eq(Mux(sides, e.i_window.p.ld_id, e.i.p.origin.ld_id)),
            ]
            if message == "S2MDRS":
                answer, fatal = e.i.p.answer, mine & e.fatal
                m.d.comb += [
                    due.opcode.eq(
                        Mux(
                            mine & (answer == Answer.NXM) & ~fatal,
                            S2MDRS.MEM_DATA_NXM,
                            S2MDRS.MEM_DATA,
                        )
                    ),
                    due.poison.eq(fatal | (mine & (e.i.p.poison | (answer == Answer.POISON)))),
                    due.data.eq(Mux(sides, e.i_window.p.data, Mux(fatal, 0, e.i.p.data))),
                    Cover(fatal),
                ]
            else:
                m.d.comb += due.opcode.eq(S2MNDR.CMP)
            f = Follow(
                m,
                arrives=mine | sides,
                word_in=due,
                leaves=channel.valid & channel.ready,
                word_out=channel.p,
                most=2,
                name=message,
            )
            m.d.comb += [
                Assert(f.owed == channel.valid),
                Assert(~f.on | (f.ahead == 0)),
                Assert(~f.on | (channel.p.as_value() == f.word)),
            ]
            m.d.comb += Cover(f.leaving & mine & e.i_window.valid)

        # Turns.
        drs_free, ndr_free = ~drs.valid | drs.ready, ~ndr.valid | ndr.ready
        waits, side_waits = Signal(2), Signal(2)
        m.d.sync += [
            waits.eq(Mux(answered | ~e.i.valid, 0, waits + Mux(completion, ndr_free, drs_free))),
            side_waits.eq(
                Mux(side | ~e.i_window.valid, 0, side_waits + Mux(write, ndr_free, drs_free))
            ),
        ]
        rivals = e.i.valid & e.i_window.valid & (completion == write)
        m.d.comb += [
            Assert(waits <= self.BOUND),
            Assert(side_waits <= self.BOUND),
            Assert(~(rivals & (waits != 0) & (side_waits != 0))),
            Assert(~(rivals & (waits != 0) & e.side_turn)),
            Assert((side_waits == 0) | e.side_turn),
            Assert(~e.side_turn | e.i_window.valid),
            Assert(e.o_latency.valid == answered),
            Assert(~answered | (e.o_latency.p.missed == e.i.p.origin.missed)),
            Cover(waits == 1),
            Cover(side_waits == 1),
        ]
        return m


class WriteOutContract(wiring.Component):
    """Each line that is taken goes out once on AW and once on W, both in the order of taking, with
    the slot, address and strobes it was taken with; neither queue overflows; where there is room,
    lines and scales wait one turn at most. Of the data, the low byte is looked at."""

    def __init__(self, block=WriteOut):
        self.axi = AxiSignature(address_bits=10, id_bits=4)
        self.block = block(axi=self.axi, line_bits=4, line_slots=8, scale_slots=4)
        super().__init__({})

    def elaborate(self, platform):
        m = Module()
        m.submodules.out = out = self.block
        addresses, data = open_up(out).addresses, open_up(out).data
        for back in (out.lines, out.scales):
            for signal in (back.due.as_value(), back.strobes):
                m.d.comb += signal.eq(AnySeq(len(signal)))
            m.d.comb += back.take.eq(back.due.valid & back.turn & AnySeq(1))
            m.d.comb += back.data.eq(AnySeq(8))
        m.d.comb += [
            out.aw.ready.eq(AnySeq(1)),
            out.w.ready.eq(AnySeq(1)),
        ]

        taken, of_scales, came = out.lines.take | out.scales.take, Signal(), Signal()
        m.d.sync += came.eq(taken)
        with m.If(taken):
            m.d.sync += of_scales.eq(out.scales.take)
        address, line = Signal(out.aw.p.shape()), Signal(out.w.p.shape())
        m.d.comb += [
            Assert(~(out.lines.take & out.scales.take)),
            address.id.eq(Mux(out.scales.take, 8 | out.scales.due.slot, out.lines.due.slot)),
            address.size.eq(SIZE_LINE),
            address.burst.eq(BURST_INCR),
            address.addr.eq(
                Mux(out.scales.take, out.scales.due.address, out.lines.due.address) << 6
            ),
            line.data.eq(Mux(of_scales, out.scales.data, out.lines.data)),
            line.last.eq(1),
            line.strb.eq(
                Mux(
                    of_scales,
                    out.scales.strobes,
                    Cat(quarter.replicate(16) for quarter in out.lines.strobes),
                )
            ),
        ]
        n = out.QUEUED
        # An address may wait in the register between buffer and queue; data come a cycle later and
        # have nowhere else to be.
        a = Follow(
            m,
            arrives=taken,
            word_in=address,
            leaves=out.aw.valid & out.aw.ready,
            word_out=out.aw.p,
            most=n + 1,
            name="aw",
        )
        w = Follow(
            m,
            arrives=came,
            word_in=line,
            leaves=out.w.valid & out.w.ready,
            word_out=out.w.p,
            most=n + 1,
            name="w",
        )
        w.is_in(m, data)
        sound(m, addresses)
        m.d.comb += [
            Assert(a.owed == addresses.level + came),
            Assert(addresses.level + came <= n),
            Assert(data.level + came <= n),
            Assert(
                ~a.on
                | (
                    a.word
                    == Mux(
                        a.ahead == addresses.level,
                        out.address.as_value(),
                        word_at(m, addresses, a.ahead),
                    )
                )
            ),
            Assert(out.read == came),
            Assert(~came | (out.of_scales == of_scales)),
            Assert(out.address.len == 0),
        ]
        waits = self._turns(m, (addresses.level < n - 1) & (data.level < n - 1))
        m.d.comb += [
            Cover(a.leaving & (a.word[:4] == 9) & (w.owed == n)),
            Cover(w.leaving & (waits == 1)),
        ]
        return m

    def _turns(self, m, room):
        """While there is `room`, a buffer with a line has the turn or waits one turn for it;
        returns the turns that a line of `lines` has waited."""
        out = self.block
        waits, scales_wait = Signal(2), Signal(2)
        m.d.sync += [
            waits.eq(Mux(out.lines.take | ~out.lines.due.valid, 0, waits + out.scales.take)),
            scales_wait.eq(
                Mux(out.scales.take | ~out.scales.due.valid, 0, scales_wait + out.lines.take)
            ),
        ]
        # It was its turn while both had a line, and it was not taken.
        kept, scales_kept = Signal(), Signal()
        both = out.lines.due.valid & out.scales.due.valid
        m.d.sync += [
            kept.eq(both & out.lines.turn & ~out.lines.take),
            scales_kept.eq(both & out.scales.turn & ~out.scales.take),
        ]
        m.d.comb += [
            # A buffer that has a line gets its turn, and keeps it until the line is taken.
            Assert((out.lines.turn | out.scales.turn) == room),
            Assert(~(room & out.lines.due.valid & ~out.scales.due.valid) | out.lines.turn),
            Assert(~(room & out.scales.due.valid & ~out.lines.due.valid) | out.scales.turn),
            Assert(~kept | ~(room & out.lines.due.valid) | out.lines.turn),
            Assert(~scales_kept | ~(room & out.scales.due.valid) | out.scales.turn),
            Assert(waits <= 1),
            Assert(scales_wait <= 1),
            Assert((waits == 0) | ~out.scales_next),
            Assert((scales_wait == 0) | out.scales_next),
        ]
        return waits

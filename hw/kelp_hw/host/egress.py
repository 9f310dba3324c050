# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""S2M responses: joins the data path's answers with those of hints and registers (spec §3). One
answer of the data path a cycle, sent after 1 cycle; one of the others in 2 cycles, sent after 2
cycles."""

from __future__ import annotations

from amaranth.hdl import Assert, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config
from kelp_spec.messages import S2MDRS, S2MNDR, DevLoad
from kelp_spec.metadata import Answer

from ..layouts import MESSAGES, TIME_BITS, Layouts

__all__ = ["Egress"]

_META_NO_OP = 3  # MetaField: no metadata is kept


class Egress(wiring.Component):
    """Sends every answer on its channel: data, zeros, poison and NXM as S2M DRS, completions as S2M
    NDR.

    From the cycle of `fatal` on, each answer of `i` with data leaves as poison without content
    (docs/protection.md).

    The data path's answers keep their order; those of hints and registers take turns with them.

    Latency: outputs are registered, `LATENCY` cycle after `i`; an answer of `i_window` takes
    `WINDOW_LATENCY` when it is alone. One answer of `i` in each cycle (`INTERVAL`), one of
    `i_window` in `WINDOW_INTERVAL` cycles; both in one cycle when one is DRS and the other NDR.
    Errors: an answer NONE, or data with an answer other than DATA, is an assertion.

    Parameters
    ----------
    config : Config

    Members
    -------
    i : stream of `Layouts.answer`
        The data path's answers.
    i_window : stream of `Layouts.window_answer`
        Answers of hints and registers.
    now : in
        Time in cycles.
    fatal : in
        No data may be answered.
    s2m_drs, s2m_ndr : streams of messages
    o_latency : always-ready stream of latency
        An answer of `i` when it is taken: cycles of `now` since its request was accepted.
    idle : out
        No message waits for its channel.
    """

    LATENCY = 1
    INTERVAL = 1
    WINDOW_LATENCY = 2
    WINDOW_INTERVAL = 2

    def __init__(self, *, config: Config):
        layouts = Layouts(config)
        super().__init__(
            {
                "i": In(stream.Signature(layouts.answer)),
                "i_window": In(stream.Signature(layouts.window_answer)),
                "now": In(TIME_BITS),
                "fatal": In(1),
                "s2m_drs": Out(stream.Signature(MESSAGES["S2MDRS"])),
                "s2m_ndr": Out(stream.Signature(MESSAGES["S2MNDR"])),
                "o_latency": Out(stream.Signature(layouts.latency, always_ready=True)),
                "idle": Out(1),
            }
        )
        # State that proofs look at (kelp_verif.formal.turn_specs).
        self.side_turn = Signal()
        self.drs_empty, self.ndr_empty = Signal(init=1), Signal(init=1)

    def elaborate(self, platform):
        m = Module()
        drs, ndr = self.s2m_drs, self.s2m_ndr
        # Critical path: `drs_free` and `ndr_free`. A register of their own says that a channel is
        # empty, since placement may draw `valid` to the block that takes the message.
        drs_empty, ndr_empty = self.drs_empty, self.ndr_empty
        drs_free = drs_empty | drs.ready
        ndr_free = ndr_empty | ndr.ready

        completion = self.i.p.answer == Answer.CMP
        # `i_window` has a channel every second time when both want it, and waits a cycle for it
        # when it is alone. Critical path: `side_turn`, registered, since it selects hundreds of
        # bits. It is set only while `i_window.valid`, which need not be asked again.
        side_turn = self.side_turn
        want_drs, want_ndr = self.i.valid & ~completion, self.i.valid & completion
        pick_side_drs = Signal()
        pick_side_ndr = Signal()
        m.d.comb += [
            pick_side_drs.eq(side_turn & ~self.i_window.p.write),
            pick_side_ndr.eq(side_turn & self.i_window.p.write),
            self.i.ready.eq(Mux(completion, ndr_free & ~pick_side_ndr, drs_free & ~pick_side_drs)),
            self.i_window.ready.eq(
                Mux(self.i_window.p.write, ndr_free & pick_side_ndr, drs_free & pick_side_drs)
            ),
        ]
        # The turn passes to `i` once `i_window` was taken, not when a channel stands still: else a
        # slow link would have answers of `i_window` alone.
        with m.If(self.i_window.valid & Mux(self.i_window.p.write, ndr_free, drs_free)):
            m.d.sync += side_turn.eq(~self.i_window.ready)

        # Without `valid` a payload may be anything: `drs_free` and `ndr_free` alone enable the
        # registers of their channels.
        a = self.i.p
        with m.If(drs_free):
            m.d.sync += [
                drs.valid.eq(want_drs | pick_side_drs),
                drs_empty.eq(~(want_drs | pick_side_drs)),
                drs.p.opcode.eq(
                    Mux(
                        ~pick_side_drs & (a.answer == Answer.NXM) & ~self.fatal,
                        S2MDRS.MEM_DATA_NXM,
                        S2MDRS.MEM_DATA,
                    )
                ),
                drs.p.meta_field.eq(_META_NO_OP),
                drs.p.meta_value.eq(0),
                drs.p.dev_load.eq(DevLoad.LIGHT),
                drs.p.tag.eq(Mux(pick_side_drs, self.i_window.p.tag, a.origin.tag)),
                drs.p.ld_id.eq(Mux(pick_side_drs, self.i_window.p.ld_id, a.origin.ld_id)),
                drs.p.poison.eq(
                    ~pick_side_drs & (a.poison | (a.answer == Answer.POISON) | self.fatal)
                ),
                drs.p.data.eq(Mux(pick_side_drs, self.i_window.p.data, Mux(self.fatal, 0, a.data))),
            ]
        with m.If(ndr_free):
            m.d.sync += [
                ndr.valid.eq(want_ndr | pick_side_ndr),
                ndr_empty.eq(~(want_ndr | pick_side_ndr)),
                ndr.p.opcode.eq(S2MNDR.CMP),
                ndr.p.meta_field.eq(_META_NO_OP),
                ndr.p.meta_value.eq(0),
                ndr.p.dev_load.eq(DevLoad.LIGHT),
                ndr.p.tag.eq(Mux(pick_side_ndr, self.i_window.p.tag, a.origin.tag)),
                ndr.p.ld_id.eq(Mux(pick_side_ndr, self.i_window.p.ld_id, a.origin.ld_id)),
            ]

        answered = self.i.valid & self.i.ready
        m.d.comb += [
            self.o_latency.valid.eq(answered),
            self.o_latency.p.missed.eq(self.i.p.origin.missed),
            self.o_latency.p.cycles.eq(self.now - self.i.p.origin.start),
            # What waits at `i` or `i_window` keeps its source from being idle.
            self.idle.eq(drs_empty & ndr_empty),
            Assert(drs_empty != drs.valid),
            Assert(ndr_empty != ndr.valid),
            Assert(~self.i.valid | (self.i.p.answer != Answer.NONE)),
            Assert(~self.i.valid | (self.i.p.answer == Answer.DATA) | ~self.i.p.data.any()),
        ]
        return m

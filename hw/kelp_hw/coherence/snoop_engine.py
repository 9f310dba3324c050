# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Calls sectors back: BISnp for every line that is held, until each is answered
(docs/coherence.md). One BISnp a cycle, the first one after 2 cycles."""

from __future__ import annotations

from types import SimpleNamespace

from amaranth.hdl import Assert, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.coherence import Coherence, DirectoryOp
from kelp_spec.config import Config
from kelp_spec.messages import M2SBIRsp, S2MBISnp

from ..layouts import MESSAGES, TIME_BITS
from .layouts import CoherenceLayouts, first_from, lowest

__all__ = ["SnoopEngine"]

#: What a cycle changes of a recall's lines: their BISnp was sent, their BIRsp has come, which keeps
#: the line, or comes no more; they have left at `o_lost`.
_CHANGES = ("sent", "heard", "kept", "silent", "out")


class SnoopEngine(wiring.Component):
    """Up to `sizes.recalls` recalls at once. A recall sends a BISnpInv for each line that is held,
    and ends when each has its BIRsp. Of its sector no grant is under way: the directory sees to it.

    A BI-Tag is generation | recall | line; a recall's generation is the next one each time, so that
    an answer which comes too late is known as such.

    Latency: `LATENCY` cycles from `i` to the first BISnp, or after the lines of others. One BISnp
    in each cycle (`INTERVAL`). A BIRsp is taken in every cycle.

    Errors: a BIRsp that is owed by nobody, of a wrong tag or of a Blk form is dropped and pulsed
    (`unasked`). A line that the host keeps (BIRspS, BIRspE), or of which nothing is heard in
    `timeout` cycles after its recall's last BISnp was taken, leaves at `o_lost`, once; its recall
    ends thereafter.

    Parameters
    ----------
    config : Config
    sizes : Coherence

    Members
    -------
    i : in, always-ready stream of recall
        Only while `free`.
    free : out
        A recall may begin: not taken in the cycle before either.
    s2m_bisnp : out, stream of messages
    m2s_birsp : in, always-ready stream of messages
    o_finish : out, stream of op
        A recall that has ended, for the directory.
    o_lost : out, stream of lost
    now, timeout, bi_id : in
        Time; cycles, 0 for ever; the device's BI-ID.
    unasked : out
        Pulse.
    idle : out
        No recall is under way.
    """

    LATENCY = 2
    INTERVAL = 1

    def __init__(self, *, config: Config, sizes: Coherence):
        self.config, self.sizes = config, sizes
        self.layouts = layouts = CoherenceLayouts(config, sizes)
        super().__init__(
            {
                "i": In(stream.Signature(layouts.recall, always_ready=True)),
                "free": Out(1),
                "s2m_bisnp": Out(stream.Signature(MESSAGES["S2MBISnp"])),
                "m2s_birsp": In(stream.Signature(MESSAGES["M2SBIRsp"], always_ready=True)),
                "o_finish": Out(stream.Signature(layouts.op)),
                "o_lost": Out(stream.Signature(layouts.lost)),
                "now": In(TIME_BITS),
                "timeout": In(32),
                "bi_id": In(12),
                "unasked": Out(1),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        sizes, layouts = self.sizes, self.layouts
        self._job = data.StructLayout(
            {
                "valid": 1,
                "recall": layouts.recall,
                "send": sizes.sector,  # lines whose BISnp is to be sent
                "wait": sizes.sector,  # whose BIRsp is to come
                "lost": sizes.sector,
                "refused": sizes.sector,
                "generation": sizes.generation_bits,
                "since": TIME_BITS,
            }
        )
        jobs = [Signal(self._job, name=f"job_{n}") for n in range(sizes.recalls)]
        changes = [
            SimpleNamespace(**{name: Signal(sizes.sector, name=f"{name}_{n}") for name in _CHANGES})
            for n in range(sizes.recalls)
        ]
        self._begin(m, jobs)
        self._time_out(m, jobs, changes)
        self._send(m, jobs, changes)
        self._hear(m, jobs, changes)
        self._lose(m, jobs, changes)
        self._end(m, jobs)
        for each, change in zip(jobs, changes, strict=True):
            with m.If(each.valid):
                m.d.sync += [
                    each.send.eq(each.send & ~change.sent),
                    each.wait.eq((each.wait | change.sent) & ~change.heard & ~change.silent),
                    each.lost.eq((each.lost | change.kept | change.silent) & ~change.out),
                    each.refused.eq((each.refused | change.kept) & ~change.out),
                ]
        return m

    def _of(self, m, jobs, number, name):
        """The recall of that number, of a few."""
        chosen = Value.cast(jobs[0])
        for n, each in enumerate(jobs[1:], 1):
            chosen = Mux(number == n, Value.cast(each), chosen)
        view = Signal(self._job, name=name)
        m.d.comb += view.eq(chosen)
        return view

    def _one_hot(self, number):
        return (Const(1, self.sizes.sector) << number)[: self.sizes.sector]

    def _begin(self, m, jobs):
        taken = Cat(each.valid for each in jobs)
        begins = lowest(m, ~taken, "begins")
        m.d.comb += [self.idle.eq(~taken.any()), self.free.eq(~taken.all())]
        m.d.comb += [Assert(~self.i.valid | self.free)]
        for n, each in enumerate(jobs):
            with m.If(self.i.valid & (begins == n)):
                m.d.sync += [
                    each.valid.eq(1),
                    each.recall.eq(self.i.p),
                    each.send.eq(self.i.p.lines),
                ]

    def _time_out(self, m, jobs, changes):
        """One recall after another: is it too late?"""
        number = Signal(range(len(jobs)))
        m.d.sync += number.eq(number + 1)
        looked = self._of(m, jobs, number, "looked")
        late = Signal()
        m.d.comb += late.eq(
            looked.valid
            & looked.wait.any()
            & ~looked.send.any()
            & (self.timeout != 0)
            & ((self.now - looked.since)[:TIME_BITS] > self.timeout)
        )
        for n, (each, change) in enumerate(zip(jobs, changes, strict=True)):
            with m.If((number == n) & late):
                m.d.comb += change.silent.eq(each.wait & ~change.heard)

    def _send(self, m, jobs, changes):
        """BISnp: the lines of one recall, then those of the next."""
        bits, bisnp = self.sizes.sector_bits, self.s2m_bisnp
        sends = Cat(each.valid & each.send.any() for each in jobs)
        turn, sent_by = Signal(range(len(jobs))), Signal(range(len(jobs)))
        sender = first_from(m, sends, turn, "sender")
        sending = self._of(m, jobs, sender, "sending")
        line, loads = lowest(m, sending.send, "line"), Signal()
        m.d.comb += loads.eq(sends.any() & (~bisnp.valid | bisnp.ready))
        with m.If(~bisnp.valid | bisnp.ready):
            m.d.sync += bisnp.valid.eq(sends.any())
        with m.If(loads):
            m.d.sync += [
                turn.eq(sender),
                sent_by.eq(sender),
                bisnp.p.opcode.eq(S2MBISnp.INV),
                bisnp.p.bi_id.eq(self.bi_id),
                bisnp.p.bi_tag.eq(Cat(line[:bits], sender, sending.generation)),
                bisnp.p.address.eq(Cat(line[:bits], sending.recall.sector)),
            ]
        for n, (each, change) in enumerate(zip(jobs, changes, strict=True)):
            with m.If(loads & (sender == n)):
                m.d.comb += change.sent.eq(self._one_hot(line))
            # Time runs from when the channel has taken the recall's last BISnp.
            with m.If((loads & (sender == n)) | (bisnp.valid & (sent_by == n))):
                m.d.sync += each.since.eq(self.now)

    def _hear(self, m, jobs, changes):
        """BIRsp."""
        rsp, of = self.m2s_birsp.p, Signal(range(len(jobs)))
        line, generation = Signal(self.sizes.sector_bits), Signal(self.sizes.generation_bits)
        m.d.comb += Cat(line, of, generation).eq(rsp.bi_tag)
        answered = self._of(m, jobs, of, "answered")
        sound = Signal()
        m.d.comb += [
            sound.eq(
                answered.valid
                & (answered.generation == generation)
                & (answered.wait & self._one_hot(line)).any()
                & (rsp.bi_id == self.bi_id)
                & (rsp.opcode <= M2SBIRsp.E)
            ),
            self.unasked.eq(self.m2s_birsp.valid & ~sound),
        ]
        for n, change in enumerate(changes):
            with m.If(self.m2s_birsp.valid & sound & (of == n)):
                m.d.comb += change.heard.eq(self._one_hot(line))
                with m.If(rsp.opcode != M2SBIRsp.I):
                    m.d.comb += change.kept.eq(self._one_hot(line))

    def _lose(self, m, jobs, changes):
        """Lines that do not come back, one after another."""
        lost, drops = self.o_lost, Signal()
        losing = Cat(each.valid & each.lost.any() for each in jobs)
        loser = lowest(m, losing, "loser")
        loses = self._of(m, jobs, loser, "loses")
        line = lowest(m, loses.lost, "lost_line")
        m.d.comb += drops.eq(losing.any() & ~lost.valid)
        with m.If(lost.ready):
            m.d.sync += lost.valid.eq(0)
        with m.If(drops):
            m.d.sync += [
                lost.valid.eq(1),
                lost.p.sector.eq(loses.recall.sector),
                lost.p.line.eq(line),
                lost.p.refused.eq((loses.refused & self._one_hot(line)).any()),
            ]
        for n, change in enumerate(changes):
            with m.If(drops & (loser == n)):
                m.d.comb += change.out.eq(self._one_hot(line))

    def _end(self, m, jobs):
        """Where nothing is owed any more, and the last lost line was taken."""
        finish, ended = self.o_finish, Signal(range(len(jobs)))
        ends = Cat(
            each.valid & ~(each.send | each.wait | each.lost).any() & ~self.o_lost.valid
            for each in jobs
        )
        ender = lowest(m, ends, "ender")
        ending = self._of(m, jobs, ender, "ending")
        with m.If(finish.ready):
            m.d.sync += finish.valid.eq(0)
        with m.If(ends.any() & ~finish.valid):
            m.d.sync += [
                finish.valid.eq(1),
                ended.eq(ender),
                finish.p.kind.eq(DirectoryOp.FINISH),
                finish.p.sector.eq(ending.recall.sector),
                finish.p.way.eq(ending.recall.place[: self.sizes.way_bits]),
            ]
        for n, each in enumerate(jobs):
            with m.If(finish.valid & finish.ready & (ended == n)):
                m.d.sync += [each.valid.eq(0), each.generation.eq(each.generation + 1)]

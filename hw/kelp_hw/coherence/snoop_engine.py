# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Calls sectors back: BISnp for every line that is held, or for two or four of them at once, until
each is answered (docs/coherence.md). One BISnp a cycle, the first one after 2 cycles."""

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


def _whole(bits, count: int, line):
    """Of the parts of so many bits the one that this line is in: whether it has all of them."""
    parts = Cat(bits[low : low + count].all() for low in range(0, len(bits) - count + 1, count))
    return (parts >> line[count.bit_length() - 1 :])[0] if len(parts) else Const(0)


def _parts(lines, count: int):
    """A bit for each part of so many lines that begins with one of these."""
    return Cat(lines[low] for low in range(0, len(lines) - count + 1, count))


class SnoopEngine(wiring.Component):
    """Up to `sizes.recalls` recalls at once. A recall sends a BISnpInv for each line that is held,
    and ends when each has its BIRsp. Of its sector no grant is under way: the directory sees to it.
    With `blocks` four lines that share 256 bytes, or two that share 128, have one BISnpInvBlk where
    all of them are held; one BIRsp of a Blk form answers what is owed of them, any other one the
    line that its LowAddr says.

    A BI-Tag is generation | recall | line, the first one of a block; a recall's generation is the
    next one each time, so that an answer which comes too late is known as such.

    Latency: `LATENCY` cycles from `i` to the first BISnp, or after the lines of others. One BISnp
    in each cycle (`INTERVAL`). A BIRsp is taken in every cycle.

    Errors: a BIRsp that is owed by nobody, of a wrong tag, or of a Blk form to a BISnp of one line
    is dropped and pulsed (`unasked`). A line that the host keeps (BIRspS, BIRspE), or of which
    nothing is heard in `timeout` cycles after its recall's last BISnp was taken, leaves at
    `o_lost`, once; its recall ends thereafter.

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
    now, timeout, bi_id, blocks : in
        Time; cycles, 0 for ever; the device's BI-ID; whether the host takes Blk forms.
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
                "blocks": In(1),
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
                "pairs": sizes.sector // 2,  # that one BISnp calls back
                "fours": sizes.sector // 4,
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

    def _block(self, line, pair, four):
        """The lines that one BISnp calls back, of which this is one."""
        lines = Mux(pair, Const(0b11) << Cat(Const(0, 1), line[1:]), self._one_hot(line))
        lines = Mux(four, Const(0b1111) << Cat(Const(0, 2), line[2:]), lines)
        return lines[: self.sizes.sector]

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
                    each.pairs.eq(0),
                    each.fours.eq(0),
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
        line, loads = lowest(m, sending.send, "line")[:bits], Signal()
        pair, four, lines = Signal(), Signal(), Signal(self.sizes.sector)
        full = Cat(line, sending.recall.sector)
        m.d.comb += [
            pair.eq(self.blocks & _whole(sending.send, 2, line)),
            four.eq(self.blocks & _whole(sending.send, 4, line)),
            lines.eq(self._block(line, pair, four)),
        ]
        m.d.comb += loads.eq(sends.any() & (~bisnp.valid | bisnp.ready))
        with m.If(~bisnp.valid | bisnp.ready):
            m.d.sync += bisnp.valid.eq(sends.any())
        with m.If(loads):
            m.d.sync += [
                turn.eq(sender),
                sent_by.eq(sender),
                bisnp.p.opcode.eq(Mux(pair, S2MBISnp.INV_BLK, S2MBISnp.INV)),
                bisnp.p.bi_id.eq(self.bi_id),
                bisnp.p.bi_tag.eq(Cat(line, sender, sending.generation)),
                # Of a block the lowest two bits say which part of the 256 bytes it is.
                bisnp.p.address.eq(
                    Mux(four, full | 0b11, Mux(pair, Cat(~full[1], full[1:]), full))
                ),
            ]
        for n, (each, change) in enumerate(zip(jobs, changes, strict=True)):
            with m.If(loads & (sender == n)):
                m.d.comb += change.sent.eq(lines)
                with m.If(pair):
                    m.d.sync += each.pairs.eq(each.pairs | _parts(lines, 2))
                with m.If(four):
                    m.d.sync += each.fours.eq(each.fours | _parts(lines, 4))
            # Time runs from when the channel has taken the recall's last BISnp.
            with m.If((loads & (sender == n)) | (bisnp.valid & (sent_by == n))):
                m.d.sync += each.since.eq(self.now)

    def _hear(self, m, jobs, changes):
        """BIRsp."""
        rsp, of = self.m2s_birsp.p, Signal(range(len(jobs)))
        line, generation = Signal(self.sizes.sector_bits), Signal(self.sizes.generation_bits)
        m.d.comb += Cat(line, of, generation).eq(rsp.bi_tag)
        answered = self._of(m, jobs, of, "answered")
        full = Cat(line, answered.recall.sector)
        pair, four, for_all, first, sound = (Signal() for _ in range(5))
        said, lines = (Signal(self.sizes.sector) for _ in range(2))
        m.d.comb += [
            pair.eq((answered.pairs >> line[1:])[0]),
            four.eq((answered.fours >> line[2:])[0] if len(answered.fours) else 0),
            first.eq(~(pair & line[0]) & ~(four & full[1])),
            for_all.eq(rsp.opcode[2]),
            said.eq(self._block(line, pair, four)),
            lines.eq(answered.wait & said),
        ]
        with m.If(pair & ~for_all):
            # The line of those 256 bytes that LowAddr says, if it is of the block.
            low = Cat(rsp.low_address, full[2:])
            m.d.comb += lines.eq(
                answered.wait
                & said
                & Mux(
                    low[self.sizes.sector_bits :] == answered.recall.sector,
                    self._one_hot(low[: self.sizes.sector_bits]),
                    0,
                )
            )
        m.d.comb += [
            sound.eq(
                answered.valid
                & (answered.generation == generation)
                & first
                & lines.any()
                & (rsp.bi_id == self.bi_id)
                & (rsp.opcode[:2] <= M2SBIRsp.E)
                & ~rsp.opcode[3]
                & (pair | ~for_all)
            ),
            self.unasked.eq(self.m2s_birsp.valid & ~sound),
        ]
        for n, change in enumerate(changes):
            with m.If(self.m2s_birsp.valid & sound & (of == n)):
                m.d.comb += change.heard.eq(lines)
                with m.If(rsp.opcode[:2] != M2SBIRsp.I):
                    m.d.comb += change.kept.eq(lines)

    def _lose(self, m, jobs, changes):
        """Lines that do not come back, one after another, of recalls in turn."""
        lost, drops = self.o_lost, Signal()
        losing = Cat(each.valid & each.lost.any() for each in jobs)
        turn = Signal(range(len(jobs)))
        loser = first_from(m, losing, turn, "loser")
        loses = self._of(m, jobs, loser, "loses")
        line = lowest(m, loses.lost, "lost_line")
        m.d.comb += drops.eq(losing.any() & ~lost.valid)
        with m.If(lost.ready):
            m.d.sync += lost.valid.eq(0)
        with m.If(drops):
            m.d.sync += [
                turn.eq(loser + 1),
                lost.valid.eq(1),
                lost.p.sector.eq(loses.recall.sector),
                lost.p.line.eq(line),
                lost.p.refused.eq((loses.refused & self._one_hot(line)).any()),
            ]
        for n, change in enumerate(changes):
            with m.If(drops & (loser == n)):
                m.d.comb += change.out.eq(self._one_hot(line))

    def _end(self, m, jobs):
        """Where nothing is owed any more, and the last lost line was taken. In turn: else a host
        that answers at once would have the same few recalls begin and end without pause."""
        finish, ended = self.o_finish, Signal(range(len(jobs)))
        ends = Cat(
            each.valid & ~(each.send | each.wait | each.lost).any() & ~self.o_lost.valid
            for each in jobs
        )
        ender = first_from(m, ends, ended + 1, "ender")
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

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Eviction engine: queue state, sweep, evictor, evictions under way, orphans and closer, on one
stream of ops (docs/design.md §6). One op a cycle, 1 cycle after its source offers it."""

from __future__ import annotations

from types import SimpleNamespace

from amaranth.hdl import Assert, Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from kelp_spec.coherence import sizes_of
from kelp_spec.config import Config
from kelp_spec.metadata import Op, Outcome

from ..layouts import PageValues, ResidentLines
from ..lib.broadcast import broadcast
from ..lib.protected import BlockFault, gather_blocks
from ..lib.skid import Skid
from ..tracker.signatures import FrameReports, PoolCounts
from .closer import Closer
from .evictor import Evictor
from .kelp_state import KelpState
from .orphans import Orphans
from .page_recall import PageRecall
from .queue_state import QueueState
from .signatures import EvictionLayouts, Turn
from .slots import EvictionSlots
from .sweep import Sweep

__all__ = ["Eviction"]


class Eviction(wiring.Component):
    """Keeps free frames above the low-water mark, closes sessions, recovers frames of lost words.

    Its ops leave in this order of priority: RELEASE, FREE, CLAIM, SCAN, PEEK and RECOVER, SCRUB and
    CLOSED. Interval: `INTERVAL`, one per cycle. Latency: `LATENCY` cycle after their source offered
    them, the closer's two.

    Parameters
    ----------
    config : Config

    Members
    -------
    i_result : in, always-ready stream of result
    queue_ready : out
        Credit for ops that may change which pages are resident.
    config_write : in, always-ready stream of config_write
    sessions : in, array of session
        As M3 has them in the cycle in which `i_result` shows an op: after that op.
    i_scan : in, always-ready stream of scanned (EMA engine)
    i_frame : in, FrameReports (frame table)
    i_flushed : in, stream (data path)
    pools : in, PoolCounts
    low_water : in
        Frames of each pool that are kept free.
    o_write_back : out, stream; i_written_back : in, stream (cold scheduler)
    o_op : out, stream of op
    turn : in, Turn
        What lock-step holds back.
    resident : in, ResidentLines
        As in `QueueState`.
    swept : out
        Pulse per sweep.
    o_event : out, always-ready stream
    fault : out, BlockFault
        Of the memories of `EvictionSlots`.
    ready : out
        The reset scrub is over.
    o_ask : out, stream of sectors; i_answer : in, always-ready stream
        With `Config.coherence`: as in `PageRecall`.
    values : out, PageValues
        With `Config.select_tables`: what sweeps ask of tables.
    idle : out; quiet : out
        Nothing is under way; nothing is, except what waits for the flash (for some cycles, so that
        it may be trusted at once).
    """

    LATENCY = 1
    INTERVAL = 1

    def __init__(self, *, config: Config):
        self.config = config
        layouts = EvictionLayouts(config)
        super().__init__(
            {
                "i_result": In(stream.Signature(layouts.result, always_ready=True)),
                "queue_ready": Out(1),
                "config_write": In(stream.Signature(layouts.config_write, always_ready=True)),
                "sessions": In(data.ArrayLayout(layouts.session, config.sessions)),
                "i_scan": In(stream.Signature(layouts.scanned, always_ready=True)),
                "i_frame": In(FrameReports(config)),
                "i_flushed": In(stream.Signature(layouts.flush)),
                "pools": In(PoolCounts(config)),
                "low_water": In(16),
                "o_write_back": Out(stream.Signature(layouts.write_back)),
                "i_written_back": In(stream.Signature(layouts.written_back)),
                "o_op": Out(stream.Signature(layouts.op)),
                "turn": In(Turn()),
                "resident": In(ResidentLines(config)),
                "swept": Out(1),
                "o_event": Out(stream.Signature(layouts.event, always_ready=True)),
                "fault": Out(BlockFault),
                "ready": Out(1),
                "idle": Out(1),
                "quiet": Out(1),
            }
            | self._coherent_ports(config)
            | ({"values": Out(PageValues(config))} if config.select_tables else {})
        )

    @staticmethod
    def _coherent_ports(config: Config) -> dict:
        if not config.coherence:
            return {}
        return {
            "o_ask": Out(stream.Signature(sizes_of(config).sector_address_bits(config))),
            "i_answer": In(stream.Signature(1, always_ready=True)),
        }

    def elaborate(self, platform):
        m = Module()
        c = self.config
        m.submodules.queues = queues = QueueState(config=c)
        m.submodules.sweep = sweep = Sweep(config=c)
        m.submodules.evictor = evictor = Evictor(config=c)
        m.submodules.slots = slots = EvictionSlots(config=c)
        m.submodules.orphans = orphans = Orphans(config=c)
        m.submodules.closer = closer = Closer(config=c)
        m.submodules.kelp = kelp = KelpState(config=c)

        listeners = queues, sweep, evictor, slots, orphans, closer, kelp
        broadcast(m, self.i_result, *(block.i_result for block in listeners))
        m.d.comb += [
            # outside
            self.queue_ready.eq(queues.ready),
            self.ready.eq(queues.initialised),
            queues.resident_squeue.eq(self.resident.squeue),
            self.resident.lines.eq(queues.resident_lines),
            self.resident.known.eq(queues.resident_known),
            evictor.sessions.eq(self.sessions),
            closer.sessions.eq(self.sessions),
            self.swept.eq(sweep.swept),
            self.turn.evicting.eq(~slots.idle),
            self.turn.learning.eq(~kelp.idle),
        ]
        connect(m, flipped(self.pools), evictor.pools)
        connect(m, queues.view, evictor.queues)
        connect(m, evictor.sweep, sweep.control)
        connect(m, sweep.list, evictor.list)
        connect(m, sweep.read, queues.read)
        if c.select_tables:
            connect(m, sweep.values, flipped(self.values))
        connect(m, kelp.state, evictor.policy)
        connect(m, slots.under_way, evictor.slots)
        if self.config.protect:
            gather_blocks(m, self.fault, slots.fault, queues.fault)
        else:
            m.d.comb += self.fault.eq(slots.fault)
        connect(m, evictor.check, slots.check_victim)
        connect(m, orphans.check, slots.check_orphan)
        connect(m, flipped(self.config_write), queues.config_write)
        connect(m, flipped(self.i_scan), sweep.i_scan)
        connect(m, flipped(self.i_frame.claim), slots.i_claim)
        connect(m, flipped(self.i_frame.error), slots.i_error)
        connect(m, flipped(self.i_frame.owner), orphans.i_owner)
        # `s`: signals that the methods below share, under the names that they have there.
        s = SimpleNamespace()
        s.queues, s.sweep, s.evictor, s.slots, s.orphans = queues, sweep, evictor, slots, orphans
        s.closer, s.kelp = closer, kelp
        s.recall = None
        if c.coherence:
            s.recall = self._recall(m, s)
        self._ops(m, s)
        self._events(m, s)
        return m

    def _recall(self, m: Module, s: SimpleNamespace) -> PageRecall:
        """A page that was claimed, or is to be scrubbed, is called back from the host."""
        r = self.i_result.p
        m.submodules.recall = recall = PageRecall(config=self.config)
        connect(m, recall.o_ask, flipped(self.o_ask))
        connect(m, flipped(self.i_answer), recall.i_answer)
        m.d.comb += [
            recall.i_claim.valid.eq(
                self.i_result.valid & (r.op.kind == Op.CLAIM) & (r.outcome == Outcome.DONE)
            ),
            recall.i_claim.p.slot.eq(r.op.slot),
            recall.i_claim.p.page.squeue.eq(r.op.squeue),
            recall.i_claim.p.page.page.eq(r.op.page),
            recall.i_scrub.p.squeue.eq(s.closer.o_op.p.squeue),
            recall.i_scrub.p.page.eq(s.closer.o_op.p.page),
        ]
        return recall

    def _ops(self, m: Module, s: SimpleNamespace) -> None:
        """Ops on their way to M0, flushes, owners and orphans."""
        c = self.config
        evictor, closer, queues, slots, orphans = s.evictor, s.closer, s.queues, s.slots, s.orphans
        sweep = s.sweep
        # Critical path: a skid buffer here, so that the closer's walk does not depend on `ready`.
        layout = evictor.o_op.payload.shape()
        kept = data.StructLayout(
            {name: layout[name].shape for name in ("kind", "session", "squeue", "page")}
        )
        m.submodules.closing = closing = Skid(kept)
        scrub = stream.Signature(layout).create()
        comes, takes = closer.o_op.valid, closing.i.ready
        if s.recall is not None:
            # A SCRUB waits until the host holds nothing of its page.
            is_scrub, waits = closer.o_op.p.kind == Op.SCRUB, Signal()
            comes, takes = comes & ~waits, takes & ~waits
            m.d.comb += [
                s.recall.i_scrub.valid.eq(closer.o_op.valid & is_scrub & closing.i.ready),
                waits.eq(is_scrub & ~s.recall.i_scrub.ready),
            ]
        m.d.comb += [
            *(closing.i.p[name].eq(closer.o_op.p[name]) for name in kept.members),
            closing.i.valid.eq(comes),
            closer.o_op.ready.eq(takes),
            scrub.valid.eq(closing.o.valid),
            closing.o.ready.eq(scrub.ready),
            *(scrub.p[name].eq(closing.o.p[name]) for name in kept.members),
            scrub.p.slot.eq(queues.layouts.scrub_token),
            slots.check_scrub.page.squeue.eq(closing.o.p.squeue),
            slots.check_scrub.page.page.eq(closing.o.p.page),
        ]
        # critical path: registered here
        m.d.sync += [evictor.hold.eq(self.turn.hold), evictor.low_water.eq(self.low_water)]
        connect(m, slots.o_write_back, flipped(self.o_write_back))
        connect(m, flipped(self.i_written_back), slots.i_written_back)

        # The token says whether a flush is an eviction's. Critical path: flush and owner are
        # registered here; `ready` is low in the cycle after, since a flush takes some cycles.
        comes_own, own, other, flushed, held = (
            Signal(),
            Signal(),
            Signal(),
            Signal.like(self.i_flushed.payload),
            Signal(),
        )
        goes_on = slots.i_flushed
        if s.recall is not None:
            # An eviction goes on when the host holds nothing of its page.
            goes_on, flush = s.recall.i_flushed, s.recall.o_flushed
            m.d.comb += [
                slots.i_flushed.p.eq(flush.p.slot),
                slots.i_flushed.valid.eq(flush.valid),
                slots.i_held.eq(flush.p.held),
            ]
        m.d.comb += [
            comes_own.eq(self.i_flushed.payload.token < c.write_backs),
            self.i_flushed.ready.eq(~held),
            goes_on.p.eq(flushed.token),
            goes_on.valid.eq(own),
            orphans.i_flushed.payload.eq(flushed),
            orphans.i_flushed.valid.eq(other),
            Assert(held == (own | other)),
        ]
        with m.If(~held):
            m.d.sync += [
                flushed.eq(self.i_flushed.payload),
                held.eq(self.i_flushed.valid),
                own.eq(self.i_flushed.valid & comes_own),
                other.eq(self.i_flushed.valid & ~comes_own),
            ]
        with m.Elif(own | orphans.i_flushed.ready):
            m.d.sync += [held.eq(0), own.eq(0), other.eq(0)]

        # An op that is offered stays, though one of higher priority may follow: hence the register.
        sources = (slots.o_op, orphans.o_free, evictor.o_op, sweep.o_op, orphans.o_op, scrub)
        # A page whose eviction was cancelled may still be on its way to flash: its frame goes to
        # no other page before that is over.
        wants = [
            source.valid & ~slots.check_scrub.working if source is scrub else source.valid
            for source in sources
        ]
        take = Signal()
        m.d.comb += take.eq(~self.o_op.valid | self.o_op.ready)
        with m.If(take):
            m.d.sync += self.o_op.valid.eq(Cat(wants).any())
            chosen = sources[-1].payload.as_value()  # without a source it may be anything
            for k, (source, want) in reversed(list(enumerate(zip(sources, wants, strict=True)))):
                m.d.comb += source.ready.eq(want & ~Cat(wants[:k]).any())
                if k < len(sources) - 1:
                    chosen = Mux(want, source.payload.as_value(), chosen)
            m.d.sync += self.o_op.payload.eq(chosen)

    def _events(self, m: Module, s: SimpleNamespace) -> None:
        """Events, one at a time."""
        evictor, orphans, queues, sweep, slots = s.evictor, s.orphans, s.queues, s.sweep, s.slots
        closer, kelp = s.closer, s.kelp
        m.d.comb += [
            self.o_event.valid.eq(evictor.o_event.valid | orphans.o_event.valid),
            self.o_event.p.eq(orphans.o_event.p),
        ]
        with m.If(evictor.o_event.valid):
            m.d.comb += self.o_event.p.eq(evictor.o_event.p)
        with m.Else():
            m.d.comb += orphans.event_taken.eq(1)

        calm, still = Signal(), Signal(8)
        idle = (
            queues.idle
            & ~sweep.control.busy
            & ~evictor.busy
            & slots.quiet
            & orphans.idle
            & closer.idle
            & kelp.idle
            & ~self.o_op.valid
            & ~self.i_result.valid
            & ~self.i_flushed.valid
        )
        if s.recall is not None:
            idle = idle & s.recall.idle
        m.d.comb += [
            calm.eq(idle),
            self.quiet.eq(calm & still.all()),
            self.idle.eq(self.quiet & slots.idle),
        ]
        m.d.sync += still.eq(Cat(calm, still))

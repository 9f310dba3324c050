# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The prefetcher: five sources, one FIFO, PREFETCH ops (spec §7, docs/design.md §8). One candidate
and one op a cycle; an access becomes its first op after 12 cycles, a page of MemSpecRd or of a hint
after 5 cycles."""

from __future__ import annotations

from types import SimpleNamespace

from amaranth.hdl import Assert, Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config
from kelp_spec.messages import LD_ID_BITS
from kelp_spec.metadata import Op, Outcome, PrefetchSource

from ..layouts import DroppedPages, DropReason, Layouts, code_shape
from .fifo import DISTANCE_BITS, PrefetchFifo, candidate_layout
from .sources import AccessSource, PreviousSource
from .throttle import SOURCES, Throttle

__all__ = ["HINT_PATIENCE", "Prefetcher"]

HINT_PATIENCE = 255  #: cycles that a hinted page waits for room in the FIFO
#: PREFETCH ops between `o_op` and M3, at most: what the counter holds. No distance of the pipeline;
#: more than `pipeline.RESERVE`, so that it holds none back.
_FLYING_MAX = 31


class Prefetcher(wiring.Component):
    """Collects candidates, judges them, keeps the nearest; offers them as PREFETCH ops (spec §7).

    Latency: `LATENCY` cycles from an access's result to its first op, `ASKED_LATENCY` from a page
    of MemSpecRd or of a hint. Interval: `INTERVAL`, one candidate and one op per cycle; nothing
    depends on the number of queues.

    Sources, by priority: MemSpecRd and hint lists (in turn), accesses (window, layer ahead), the
    previous step. One candidate a cycle is judged: it must lie in an open session, of MemSpecRd in
    one of its own LD-ID's (OUTSIDE), be of an enabled source (DISABLED), and within the source's
    credit (THROTTLED); what passes goes into the prefetch FIFO. That takes one candidate a cycle,
    always. While it has no room, accesses and the previous step wait, and a hinted page waits
    `HINT_PATIENCE` cycles at most. Only MemSpecRd and hints that have waited so long displace what
    is in it. The previous step's walk begins when nothing else is under way.

    M3 decides whether a page is resident or being fetched already: its result says MISSED (taken)
    or DROPPED (REFUSED here). Each candidate is counted as issued or as dropped, once. Candidates
    of a session that closes are cancelled; M3 refuses the one on `o_op`.

    In lock-step (one access, hint line, MemSpecRd or step advance at a time, all drained before the
    next) the ops come in the order of `kelp_golden.prefetch`.

    Parameters
    ----------
    config : Config
    accesses : int
        Accesses that can wait (AccessSource).
    previous : int
        Accesses remembered for the next step (PreviousSource).

    Members
    -------
    i_result : in, always-ready stream of result
        Results of M3, in order.
    i_usage : in, always-ready stream of usage
        What became of a prefetched page, from the frame stage.
    i_late : in, always-ready stream of source code
        Source of a prefetch that a demand met while the page was being fetched.
    i_hint, i_spec : in, streams of page and of spec_read
    sessions : in
        Session registers as M3 has them.
    enable : in
        Bit of source code − 1: the source is switched on, from the next cycle on.
    lockstep : in
        A hinted page waits for room without end: what is asked for depends on no time.
    window_squeue : out
        Address of the queue configuration's read port.
    window : in
        Window of `window_squeue`, one cycle later.
    o_op : out, stream of op
        PREFETCH ops.
    pulses : out
        Counts (`Layouts.prefetch_pulses`), up to two cycles behind; they follow `idle` by as much.
    access_lost, previous_lost : out
        Pulses: an access that found its source's memory full.
    credit : out
        Each source's credit in effect.
    dropped : out, DroppedPages
        With `Config.select_estimates`: in the cycle after it was judged, two after it was crowded
        out.
    idle : out
        No candidate is in the block, and no op is on its way to M3.
    """

    ASKED_LATENCY = 2 + PrefetchFifo.LATENCY  # `picked`, `judged`
    LATENCY = 1 + AccessSource.LATENCY + ASKED_LATENCY  # `i_result` registered
    INTERVAL = 1

    def __init__(self, *, config: Config, accesses: int = 16, previous: int = 256):
        self.access_source = AccessSource(config=config, accesses=accesses)
        self.previous_source = PreviousSource(config=config, entries=previous)
        self.config = config
        self.layouts = layouts = Layouts(config)
        self.throttle = Throttle()
        super().__init__(
            {
                "i_result": In(stream.Signature(layouts.result, always_ready=True)),
                "i_usage": In(stream.Signature(layouts.usage, always_ready=True)),
                "i_late": In(stream.Signature(code_shape(PrefetchSource), always_ready=True)),
                "i_hint": In(stream.Signature(layouts.page)),
                "i_spec": In(stream.Signature(layouts.spec_read)),
                "sessions": In(data.ArrayLayout(layouts.session, config.sessions)),
                "enable": In(SOURCES - 1),
                "lockstep": In(1),
                "window_squeue": Out(config.squeue_bits),
                "window": In(DISTANCE_BITS),
                "o_op": Out(stream.Signature(layouts.op)),
                "pulses": Out(layouts.prefetch_pulses),
                "access_lost": Out(1),
                "previous_lost": Out(1),
                "credit": Out(self.throttle.credit.shape()),
                "idle": Out(1),
            }
            | ({"dropped": Out(DroppedPages(config))} if config.select_estimates else {})
        )

    def elaborate(self, platform):
        m = Module()
        c = self.config
        m.submodules.access_source = from_access = self.access_source
        m.submodules.previous_source = from_previous = self.previous_source
        m.submodules.throttle = throttle = self.throttle
        m.submodules.fifo = fifo = PrefetchFifo(config=c)

        live = Signal(c.sessions)
        for k in range(c.sessions):
            m.d.comb += live[k].eq(self.sessions[k].open & ~self.sessions[k].closing)

        switched = Signal(1 << 3)  # by source code
        m.d.sync += switched.eq(self.enable << 1)

        def enabled(source):
            return switched.bit_select(source, 1)

        # `s`: signals that the methods below share, under the names that they have there.
        s = SimpleNamespace()
        s.from_access, s.from_previous, s.throttle = from_access, from_previous, throttle
        s.fifo, s.live, s.enabled = fifo, live, enabled
        self._results(m, s)
        self._pick(m, s)
        self._judge(m, s)
        self._ops(m, s)
        self._feedback(m, s)
        return m

    def _results(self, m: Module, s: SimpleNamespace) -> None:
        """Results of M3, registered."""
        from_access, enabled, from_previous = s.from_access, s.enabled, s.from_previous
        live = s.live
        r, op = self.i_result.p, self.i_result.p.op
        demand = (op.kind == Op.READ) | (op.kind == Op.WRITE)
        served = Signal()
        with m.Switch(r.outcome):
            with m.Case(Outcome.HIT, Outcome.MISSED, Outcome.PARKED, Outcome.ALLOCATED):
                m.d.comb += served.eq(1)
        accessed, stepped, taken, refused = Signal(), Signal(), Signal(), Signal()
        source, page = Signal(code_shape(PrefetchSource)), Signal.like(from_access.i.p)
        m.d.sync += [
            accessed.eq(self.i_result.valid & demand & r.first & served),
            stepped.eq(self.i_result.valid & (op.kind == Op.STEP)),
            taken.eq(
                self.i_result.valid & (op.kind == Op.PREFETCH) & (r.outcome == Outcome.MISSED)
            ),
            refused.eq(
                self.i_result.valid & (op.kind == Op.PREFETCH) & (r.outcome != Outcome.MISSED)
            ),
            source.eq(op.source),
            page.session.eq(op.session),
            page.squeue.eq(op.squeue),
            page.page.eq(op.page),
        ]
        window_on, layer_on = enabled(PrefetchSource.WINDOW), enabled(PrefetchSource.LAYER_AHEAD)
        m.d.comb += [
            from_access.sessions.eq(self.sessions),
            from_access.i.p.eq(page),
            from_access.i.valid.eq(accessed & (window_on | layer_on)),
            from_access.window_on.eq(window_on),
            from_access.layer_on.eq(layer_on),
            self.window_squeue.eq(from_access.window_squeue),
            from_access.window.eq(self.window),
            self.access_lost.eq(from_access.lost),
            from_previous.i.p.eq(page),
            from_previous.i.valid.eq(accessed & enabled(PrefetchSource.PREVIOUS)),
            from_previous.step.p.eq(page.session),
            from_previous.step.valid.eq(stepped),
            from_previous.live.eq(live),
            self.previous_lost.eq(from_previous.lost),
        ]
        s.accessed, s.stepped, s.taken, s.refused = accessed, stepped, taken, refused
        s.source = source

    def _pick(self, m: Module, s: SimpleNamespace) -> None:
        """One candidate a cycle."""
        c = self.config
        fifo, from_access, from_previous = s.fifo, s.from_access, s.from_previous
        picked, picked_valid = Signal(candidate_layout(c)), Signal()
        judged, judged_valid = Signal(candidate_layout(c)), Signal()
        room = Signal()
        patience = Signal(range(HINT_PATIENCE + 1))
        spec_turn = Signal()
        hint_wants = Signal()
        asker = Signal(LD_ID_BITS)  # LD-ID of the MemSpecRd that `picked` may be of
        # Registered, and as if a candidate were picked in this cycle: a slot may stay free, but the
        # FIFO never lacks one.
        m.d.sync += room.eq(fifo.count + judged_valid + picked_valid + 1 < fifo.slots)
        m.d.comb += [
            hint_wants.eq(self.i_hint.valid & (room | (patience == HINT_PATIENCE))),
            self.i_spec.ready.eq(~hint_wants | spec_turn),
            self.i_hint.ready.eq(hint_wants & ~(self.i_spec.valid & spec_turn)),
            from_access.o.ready.eq(room & ~self.i_spec.valid & ~hint_wants),
            from_previous.o.ready.eq(from_access.o.ready & ~from_access.o.valid),
        ]
        m.d.sync += patience.eq(
            Mux(
                self.i_hint.valid & ~self.i_hint.ready & ~self.lockstep,
                Mux(patience == HINT_PATIENCE, patience, patience + 1),
                0,
            )
        )
        with m.If(self.i_spec.valid & hint_wants):
            m.d.sync += spec_turn.eq(~spec_turn)

        asked = Signal(self.layouts.page)  # by MemSpecRd or hint: the session is not named
        asked_session = Signal(c.session_bits)
        m.d.comb += asked.eq(
            Mux(self.i_spec.valid & self.i_spec.ready, self.i_spec.p.page, self.i_hint.p)
        )
        for k in range(1, c.sessions):
            with m.If(asked.squeue >= k * c.queues):
                m.d.comb += asked_session.eq(k)
        m.d.sync += [picked_valid.eq(0), asker.eq(self.i_spec.p.ld_id)]
        with m.If(
            (self.i_spec.valid & self.i_spec.ready) | (self.i_hint.valid & self.i_hint.ready)
        ):
            m.d.sync += [
                picked_valid.eq(1),
                picked.session.eq(asked_session),
                picked.squeue.eq(asked.squeue),
                picked.page.eq(asked.page),
                picked.distance.eq(0),
                picked.source.eq(
                    Mux(
                        self.i_spec.valid & self.i_spec.ready,
                        PrefetchSource.SPEC_READ,
                        PrefetchSource.HINT,
                    )
                ),
            ]
        with m.Elif(from_access.o.valid & from_access.o.ready):
            m.d.sync += [picked_valid.eq(1), picked.eq(from_access.o.p)]
        with m.Elif(from_previous.o.valid & from_previous.o.ready):
            m.d.sync += [picked_valid.eq(1), picked.eq(from_previous.o.p)]
        s.picked, s.picked_valid, s.judged, s.asker = picked, picked_valid, judged, asker
        s.judged_valid = judged_valid

    def _judge(self, m: Module, s: SimpleNamespace) -> None:
        """Judge it: where it lies, and a cycle later its source."""
        c = self.config
        picked, judged, judged_valid = s.picked, s.judged, s.judged_valid
        picked_valid, live, throttle, enabled = s.picked_valid, s.live, s.throttle, s.enabled
        fifo, asker = s.fifo, s.asker
        session = Signal(self.layouts.session)
        inside = Signal()
        reason = Signal(DropReason)
        m.d.comb += session.eq(self.sessions[picked.session])
        # A session that closes from here on is seen in the FIFO, which cancels the candidate.
        m.d.sync += [
            judged.eq(picked),
            judged_valid.eq(picked_valid),
            inside.eq(
                live.bit_select(picked.session, 1)
                & (picked.page < session.used_pages)
                & (picked.squeue < picked.session * c.queues + session.used_queues)
                & ((picked.source != PrefetchSource.SPEC_READ) | (asker == session.ld_id))
            ),
        ]
        m.d.comb += [
            throttle.offer.p.eq(judged.source),
            throttle.offer.valid.eq(judged_valid & inside & enabled(judged.source)),
        ]
        with m.If(~inside):
            m.d.comb += reason.eq(DropReason.OUTSIDE)
        with m.Elif(~enabled(judged.source)):
            m.d.comb += reason.eq(DropReason.DISABLED)
        with m.Else():
            m.d.comb += reason.eq(DropReason.THROTTLED)
        passes = Signal()
        m.d.comb += passes.eq(throttle.offer.valid & throttle.allow)
        m.d.comb += [fifo.i.p.eq(judged), fifo.i.valid.eq(passes), fifo.cancel.eq(~live)]
        s.reason, s.passes = reason, passes

    def _ops(self, m: Module, s: SimpleNamespace) -> None:
        """PREFETCH ops."""
        fifo, taken, refused = s.fifo, s.taken, s.refused
        flying = Signal(range(_FLYING_MAX + 1))
        leaves = self.o_op.valid & self.o_op.ready
        m.d.comb += [
            self.o_op.valid.eq(fifo.o.valid & (flying != _FLYING_MAX)),
            fifo.o.ready.eq(self.o_op.ready & (flying != _FLYING_MAX)),
            self.o_op.p.kind.eq(Op.PREFETCH),
            self.o_op.p.session.eq(fifo.o.p.session),
            self.o_op.p.squeue.eq(fifo.o.p.squeue),
            self.o_op.p.page.eq(fifo.o.p.page),
            self.o_op.p.source.eq(fifo.o.p.source),
        ]
        m.d.sync += flying.eq(flying + leaves - (taken | refused))
        s.flying = flying

    def _feedback(self, m: Module, s: SimpleNamespace) -> None:
        """Feedback and counts."""
        c = self.config
        from_access, picked_valid, judged_valid = s.from_access, s.picked_valid, s.judged_valid
        fifo, flying, accessed, taken, refused = s.fifo, s.flying, s.accessed, s.taken, s.refused
        from_previous, throttle, source, judged = s.from_previous, s.throttle, s.source, s.judged
        passes, reason, stepped = s.passes, s.reason, s.stepped
        quiet, idle, begun, settle = Signal(), Signal(), Signal(), Signal()
        m.d.comb += [
            quiet.eq(
                from_access.idle
                & ~picked_valid
                & ~judged_valid
                & (fifo.count == 0)
                & ~fifo.o.valid
                & (flying == 0)
                & ~self.i_hint.valid
                & ~self.i_spec.valid
                & ~accessed
                & ~taken
                & ~refused
            ),
            from_previous.quiet.eq(quiet),
            idle.eq(quiet & from_previous.idle),
            self.idle.eq(idle & ~self.i_result.valid),
            throttle.issued.p.eq(source),
            throttle.issued.valid.eq(taken),
            throttle.useful.p.eq(self.i_usage.p.source),
            throttle.useful.valid.eq(self.i_usage.valid & self.i_usage.p.useful),
            throttle.settle.eq(settle),
            self.credit.eq(throttle.credit),
        ]
        # `settle` follows a start by two cycles: the first candidate after the start is judged
        # three cycles after it, and the last one before the start two.
        m.d.sync += [begun.eq(from_access.start | from_previous.start), settle.eq(idle | begun)]

        def pulse(target, code, valid):
            m.d.sync += target.eq(Cat(valid & (code == k) for k in range(1, SOURCES)))

        usage = self.i_usage.p
        pulses = self.pulses
        pulse(pulses.issued, source, taken)
        pulse(pulses.useful, usage.source, self.i_usage.valid & usage.useful)
        pulse(pulses.useless, usage.source, self.i_usage.valid & usage.useless)
        pulse(pulses.late, self.i_late.p, self.i_late.valid)
        for why in (DropReason.OUTSIDE, DropReason.DISABLED, DropReason.THROTTLED):
            pulse(pulses.dropped[why], judged.source, judged_valid & ~passes & (reason == why))
        # Critical path: the FIFO's compares to `fifo.o_drop`: registered here.
        drop, drop_valid = Signal.like(fifo.o_drop.p), Signal()
        cancel, cancel_valid = Signal(code_shape(PrefetchSource)), Signal()
        m.d.sync += [
            drop.eq(fifo.o_drop.p),
            drop_valid.eq(fifo.o_drop.valid),
            cancel.eq(fifo.o_cancel.p),
            cancel_valid.eq(fifo.o_cancel.valid),
        ]
        for why in (DropReason.DUPLICATE, DropReason.FULL):
            pulse(pulses.dropped[why], drop.source, drop_valid & (drop.reason == why))
        if c.select_estimates:
            judge, crowd = self.dropped.judged, self.dropped.crowded
            m.d.sync += [
                judge.valid.eq(judged_valid & ~passes & (judged.source == PrefetchSource.HINT)),
                judge.p.eq(judged.squeue),
            ]
            m.d.comb += [
                crowd.valid.eq(drop_valid & (drop.reason == DropReason.FULL)),
                crowd.p.eq(drop.squeue),
            ]
        # A dead candidate is pushed out only while none leaves the FIFO, so never in a cycle with
        # `fifo.o_cancel`.
        pushed_out = drop_valid & (drop.reason == DropReason.CANCELLED)
        pulse(
            pulses.dropped[DropReason.CANCELLED],
            Mux(pushed_out, drop.source, cancel),
            pushed_out | cancel_valid,
        )
        pulse(pulses.dropped[DropReason.REFUSED], source, refused)

        m.d.comb += [
            Assert(~(pushed_out & cancel_valid)),
            Assert(~(taken | refused) | flying.any()),
            Assert((accessed + stepped + taken + refused) <= 1),
            Assert(~self.o_op.valid | (self.o_op.p.squeue < c.squeues)),
        ]

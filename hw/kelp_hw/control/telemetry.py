# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Turns what M3 and the frame stage decided into counter pulses and events (spec §9). One result,
one hot request and one usage report a cycle; pulses and events follow after 2 cycles, those of a
report after 1 cycle."""

from __future__ import annotations

from types import SimpleNamespace

from amaranth.hdl import Assert, Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config
from kelp_spec.metadata import Event, MissKind, Op, Outcome, PageState, PrefetchSource
from kelp_spec.registers import COUNTERS

from ..layouts import Layouts, code_shape
from ..lib.sram import Sram
from .signatures import Counted, queue_event_layout

__all__ = ["EVICTED_SOON", "Telemetry"]

EVICTED_SOON = 16  #: steps within which a miss counts against the eviction before it


class Telemetry(wiring.Component):
    """Turns what M3, the frame stage and the prefetcher decided into counter pulses and events
    (spec §9).

    Latency: `LATENCY` cycles from a result, a hot request or a drop of the prefetcher to its
    pulses and events; `REPORT_LATENCY` cycle from a usage report and from the other pulses.
    Interval: `INTERVAL`, one result, one hot request and one usage report per cycle.

    A page word that becomes COLD keeps the low bits of the session's step in `place`: a miss that
    finds them less than 16 steps old counts as evicted too soon. A demand that first meets a
    prefetch while it is fetching counts as late, once, whether it is an access or not.

    Of several causes of one result one is its event, in the order of `_events`. No loss is hidden
    by that: UNCORRECTED comes first, since the page that it names is lost whole, with the line that
    came poisoned and what flash has failed to give or take; what a refusal hides was dropped or
    moved nothing; a correction is counted beside whatever is told.

    Parameters
    ----------
    config : Config

    Members
    -------
    i_result : in, always-ready stream of result
    i_hot : in, always-ready stream of hot
        Requests that the hot lane served.
    i_usage : in, always-ready stream of usage
        What became of a prefetched page.
    i_prefetch : in
        The prefetcher's counts (`Layouts.prefetch_pulses`).
    spec_dropped : in
        Pulse: `Ingress` had no room for a MemSpecRd. Its count follows a cycle later than others.
    swept, hint_line, hint_update : in
        Pulses: a sweep began, a hint line was taken, a MASS op was taken.
    score_corrected, score_uncorrected : in
        Pulses: errors in a word of the score memory.
    memory_corrected, memory_uncorrected : in
        Pulses: errors in words of the other memories (`FaultMonitor`).
    o_counted : out, Counted
        What counts one more.
    o_late : out, always-ready stream of source code
        Source of a prefetch that a demand met while the page was being fetched.
    o_event : out, always-ready stream of event
    idle : out
        No report and no pulse is in the block.
    """

    LATENCY = 2
    REPORT_LATENCY = 1
    INTERVAL = 1

    def __init__(self, *, config: Config):
        self.config = config
        layouts = self.layouts = Layouts(config)
        self.queue_event = queue_event_layout(config)
        super().__init__(
            {
                "i_result": In(stream.Signature(layouts.result, always_ready=True)),
                "i_hot": In(stream.Signature(layouts.hot, always_ready=True)),
                "i_usage": In(stream.Signature(layouts.usage, always_ready=True)),
                "i_prefetch": In(layouts.prefetch_pulses),
                "spec_dropped": In(1),
                "swept": In(1),
                "hint_line": In(1),
                "hint_update": In(1),
                "score_corrected": In(1),
                "score_uncorrected": In(1),
                "memory_corrected": In(1),
                "memory_uncorrected": In(1),
                "o_counted": Out(Counted(config)),
                "o_late": Out(stream.Signature(code_shape(PrefetchSource), always_ready=True)),
                "o_event": Out(stream.Signature(layouts.event, always_ready=True)),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        r, valid = Signal(self.layouts.result), Signal()
        m.d.sync += [r.eq(self.i_result.p), valid.eq(self.i_result.valid)]
        op, outcome = r.op, r.outcome
        # `s`: signals that the methods below share, under the names that they have there.
        s = SimpleNamespace()
        s.r, s.valid, s.op, s.outcome = r, valid, op, outcome
        self._prefetches(m, s)
        self._counts(m, s)
        self._events(m, s)
        return m

    def _prefetches(self, m: Module, s: SimpleNamespace) -> None:
        """Which prefetch a miss entry belongs to, until its first demand."""
        c = self.config
        r, op, valid, outcome = s.r, s.op, s.valid, s.outcome
        # Which prefetch a miss entry belongs to, until its first demand.
        m.submodules.sources = sources = Sram(depth=c.misses, shape=3)
        unmet = Signal(c.misses)
        m.d.comb += [
            sources.read_en.eq(1),
            sources.read_address.eq(self.i_result.p.miss),
            sources.write_address.eq(r.miss),
            sources.write_data.eq(op.source),
            sources.write_en.eq(valid & (op.kind == Op.PREFETCH) & (outcome == Outcome.MISSED)),
        ]

        demand = Signal()
        served, access, allocated, missed, hit, late = (Signal() for _ in range(6))
        nowhere = (r.old.state == PageState.ABSENT) | (r.old.state == PageState.LOST)
        m.d.comb += [
            demand.eq(valid & ((op.kind == Op.READ) | (op.kind == Op.WRITE))),
            served.eq(demand & (outcome != Outcome.REFUSED) & ~op.no_memory),
            access.eq(served & r.first),
            allocated.eq(access & nowhere),
            hit.eq(access & (outcome == Outcome.HIT)),
            missed.eq(access & ~nowhere & (outcome != Outcome.HIT)),
            # Access or not: a page may have been here before in the step.
            late.eq(served & (outcome == Outcome.PARKED) & unmet.bit_select(r.miss, 1)),
        ]
        with m.If(late):
            m.d.sync += unmet.bit_select(r.miss, 1).eq(0)
        with m.If(valid & (outcome == Outcome.MISSED)):
            m.d.sync += unmet.bit_select(r.miss, 1).eq(op.kind == Op.PREFETCH)
        since = Signal(min(c.place_bits, len(r.word.last_step)))
        m.d.comb += since.eq(r.word.last_step - r.old.place)
        too_soon = missed & (r.old.state == PageState.COLD) & (since < EVICTED_SOON)
        released = valid & (op.kind == Op.RELEASE)
        evicted = released & (outcome == Outcome.DONE) & ~op.failed
        written = released & op.written & ~op.failed
        issued = valid & (op.kind == Op.PREFETCH) & (outcome == Outcome.MISSED)
        fetched = valid & (op.kind == Op.FILL) & (op.miss_kind != MissKind.ALLOCATE) & ~op.failed
        s.sources, s.demand, s.served, s.access = sources, demand, served, access
        s.allocated, s.missed, s.hit, s.late, s.too_soon = allocated, missed, hit, late, too_soon
        s.released, s.evicted, s.written, s.issued = released, evicted, written, issued
        s.fetched = fetched

    def _counts(self, m: Module, s: SimpleNamespace) -> None:
        """What each counter counts."""
        sources, valid, r, access, served, op = s.sources, s.valid, s.r, s.access, s.served, s.op
        hit, missed, allocated, evicted = s.hit, s.missed, s.allocated, s.evicted
        written, fetched, too_soon, demand = s.written, s.fetched, s.too_soon, s.demand
        outcome, issued, released, late = s.outcome, s.issued, s.released, s.late
        pulses = self.o_counted.pulses

        # Several sources may correct a word in one cycle; all but one wait for the next. While one
        # does, another's pulse is out, which `idle` sees.
        def merged(*sources):
            left = Signal(4)
            total = sum(sources, start=left)
            m.d.sync += left.eq(total - (total != 0))
            return total != 0

        corrected = merged(valid & r.corrected, self.score_corrected, self.memory_corrected)
        uncorrected = merged(valid & r.uncorrected, self.score_uncorrected, self.memory_uncorrected)

        names = {name: i for i, (name, _) in enumerate(COUNTERS)}
        hot_valid, hot_write = Signal(), Signal()
        m.d.sync += [hot_valid.eq(self.i_hot.valid), hot_write.eq(self.i_hot.p.write)]
        simple = {
            "accesses": access,
            "reads": (served & ~op.write) | (hot_valid & ~hot_write),
            "writes": (served & op.write) | (hot_valid & hot_write),
            "hits": hit,
            "misses": missed,
            "allocations": allocated,
            "evictions": evicted,
            "write_backs": written,
            "fetches": fetched,
            "evicted_missed": too_soon,
            "corrected": corrected,
            "uncorrected": uncorrected,
            "refused": demand & (outcome == Outcome.REFUSED),
            "hint_lines": self.hint_line,
            "hint_updates": self.hint_update,
            "sweeps": self.swept,
        }
        for name, pulse in simple.items():
            m.d.sync += pulses[names[name]].eq(pulse)
        at_ingress = Signal(name="spec_dropped_before")
        m.d.sync += at_ingress.eq(self.spec_dropped)
        drops = [at_ingress]
        # All slots may be cancelled while others are dropped in each cycle.
        owed = range(2 * max(32, self.config.prefetch_slots))
        for source in PrefetchSource:
            if source:
                bit, label = source - 1, source.name.lower()
                p = self.i_prefetch
                for what in ("issued", "useful", "late", "useless"):
                    m.d.sync += pulses[names[f"prefetch_{what}_{label}"]].eq(p[what][bit])
                # A cycle may drop one candidate for each reason, and they are counted together; a
                # source's are one pulse, the rest of them follow.
                reasons = p.dropped.shape().length
                dropped, backlog = (
                    Signal(range(reasons + 2), name=f"more_dropped_{label}"),
                    Signal(owed, name=f"dropped_{label}"),
                )
                total = backlog + dropped
                m.d.sync += [
                    dropped.eq(
                        sum(
                            (p.dropped[why][bit] for why in range(1, reasons)),
                            start=p.dropped[0][bit]
                            + (at_ingress if source == PrefetchSource.SPEC_READ else 0),
                        )
                    ),
                    pulses[names[f"prefetch_dropped_{label}"]].eq(total != 0),
                    backlog.eq(total - (total != 0)),
                    Assert(total <= 1 << len(backlog), "more drops than can be counted"),
                ]
                drops.append(dropped)

        bump = {
            "hits": hit,
            "misses": missed,
            "evictions": evicted,
            "prefetch_useful": 0,
            "allocations": allocated,
            "write_backs": written,
            "prefetch_issued": issued,
            "evicted_missed": too_soon,
        }
        wanted = list(bump)[: len(self.o_counted.queue.p.bump)]
        m.d.sync += [
            self.o_counted.queue.p.squeue.eq(op.squeue),
            self.o_counted.queue.valid.eq(access | released | issued),
            *(self.o_counted.queue.p.bump[i].eq(bump[name]) for i, name in enumerate(wanted)),
            self.o_counted.useful.p.eq(self.i_usage.p.squeue),
            self.o_counted.useful.valid.eq(self.i_usage.valid & self.i_usage.p.useful),
            self.o_late.p.eq(sources.read_data),
            self.o_late.valid.eq(late),
        ]
        s.hot_valid, s.drops = hot_valid, drops

    def _events(self, m: Module, s: SimpleNamespace) -> None:
        """Events, one at a time: the first of several causes (see the class)."""
        r, outcome, op, demand, valid = s.r, s.outcome, s.op, s.demand, s.valid
        hot_valid, drops = s.hot_valid, s.drops
        code = Signal.like(self.o_event.p.code)
        with m.If(r.uncorrected):
            m.d.comb += code.eq(Event.UNCORRECTED)
        with m.Elif(outcome == Outcome.REFUSED):
            # What is refused after a fatal error is no event: that error was one.
            m.d.comb += code.eq(Mux(op.refused == Event.FATAL, Event.NONE, op.refused))
        with m.Elif((op.kind == Op.FILL) & op.failed):
            m.d.comb += code.eq(Event.FETCH_FAILED)
        with m.Elif((op.kind == Op.RELEASE) & op.failed):
            failed = Event.WRITE_BACK_FAILED
            if self.config.coherence:
                # One that the host's lines have ended was not written, and is no event.
                failed = Mux(op.written, failed, Event.NONE)
            m.d.comb += code.eq(failed)
        with m.Elif((op.kind == Op.GRANT) & op.failed):
            m.d.comb += code.eq(Event.STARVED)
        with m.Elif(demand & op.poison):
            m.d.comb += code.eq(Event.POISON_RECEIVED)
        with m.Elif(r.corrected):
            m.d.comb += code.eq(Event.CORRECTED)
        m.d.sync += [
            self.o_event.valid.eq(valid & (code != Event.NONE)),
            self.o_event.p.code.eq(code),
            self.o_event.p.ld_id.eq(Mux(demand, op.origin.ld_id, 0)),
            self.o_event.p.squeue.eq(op.squeue),
            self.o_event.p.page.eq(op.page),
            self.o_event.p.argument.eq(Mux(demand, op.origin.tag, op.frame)),
        ]
        m.d.comb += self.idle.eq(
            ~valid
            & ~self.i_result.valid
            & ~hot_valid
            & ~self.i_hot.valid
            & ~Cat(drops).any()
            & ~self.o_counted.pulses.any()
            & ~self.o_counted.queue.valid
            & ~self.o_counted.useful.valid
            & ~self.i_usage.valid
            & ~self.o_event.valid
        )

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Per-queue state that eviction decides on: listed pages, resident count, excess over the budget,
newest page, requester; a walk of a tree per event (docs/design.md §6). A look-up is answered after
5 cycles; an event takes `INTERVAL` cycles at most, on no request's path."""

from __future__ import annotations

from amaranth.hdl import Array, Assert, Const, Module, Mux, Signal
from amaranth.lib import data, fifo, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from kelp_spec.config import POOLS, Config
from kelp_spec.metadata import Op, PageState

from ..control.queue_config import QueueConfig
from ..lib.sram import Sram
from ..pipeline import RESERVE
from .excess_tree import ExcessTree
from .residency_map import ResidencyMap
from .signatures import (
    EvictionLayouts,
    MapRead,
    QueueView,
    event_depth,
    unforeseen_events,
)

__all__ = ["QueueState"]


class QueueState(wiring.Component):
    """Follows the results of M3. A page is *listed* while its word is RESIDENT; the residency map
    says which are, and what changes there is counted.

    Nothing here is on a request's path: results that matter become events in a FIFO. Latency:
    `LATENCY` cycles from a lookup that is taken to its answer. Interval: `INTERVAL` cycles from one
    event to the next, at most. `ready` says that RESERVE more may come, beside those that
    evictions cause by themselves. `view.entered` and `view.done` count events, so that the evictor
    can wait until all that had come is absorbed.

    The excess of a queue whose eviction was cancelled (or failed) counts as 0 until another page of
    it comes or goes, so that the evictor does not ask for pages that are in use again and again.

    A configuration write changes the budget at once; the excess of all queues is then worked out
    anew in the background (`view.refreshing`).

    A queue whose policy is `kelp` has no budget: its excess is what it offered last, and 0 when an
    eviction was cancelled or nothing is left.

    Parameters
    ----------
    config : Config

    Members
    -------
    i_result : in, always-ready stream of result
    ready : out
        Credit for M0.
    config_write : in, always-ready stream of config_write
    view : out, QueueView
        An offer is `done` after a walk of the tree. Not a lookup and an offer at a time.
    read : in, MapRead
        The residency map's.
    resident_squeue : in; resident_lines : out
        For the registers: DRAM lines of the queue's listed pages; follows within a few hundred
        cycles, 0 until then: never what another queue has.
    initialised : out
        The reset scrub is over; results before it are not allowed.
    idle : out
        All events are absorbed, and nothing is asked.
    """

    LATENCY = 5  # to LOOKED: IDLE, READ, WAS, COUNT, LOOKED

    @property
    def INTERVAL(self):
        # IDLE, READ, WAS, COUNT, MULTIPLY, SUBTRACT, START, and WALK until the tree is not busy
        return 7 + 1 + 3 * self.config.squeue_bits + 1

    def __init__(self, *, config: Config):
        self.config = config
        layouts = self.layouts = EvictionLayouts(config)
        super().__init__(
            {
                "i_result": In(stream.Signature(layouts.result, always_ready=True)),
                "ready": Out(1),
                "config_write": In(stream.Signature(layouts.config_write, always_ready=True)),
                "view": Out(QueueView(config)),
                "read": In(MapRead(config)),
                "resident_squeue": In(config.squeue_bits),
                "resident_lines": Out(32),
                "initialised": Out(1),
                "idle": Out(1),
            }
        )

    def _shown(self, m):
        """The lines for the registers, the queue that they are of, and whether that is the one
        that is asked for: another's are nobody's business."""
        lines, squeue, known = Signal(32), Signal(self.config.squeue_bits), Signal()
        m.d.comb += [
            known.eq(squeue == self.resident_squeue),
            self.resident_lines.eq(Mux(known, lines, 0)),
        ]
        return lines, squeue, known

    def elaborate(self, platform):
        m = Module()
        c, view = self.config, self.view
        event = data.StructLayout(
            {"squeue": c.squeue_bits, "page": c.page_bits, "listed": 1, "newest": 1, "cancelled": 1}
        )

        # --- what of a result matters ---
        r = self.i_result.p

        def nowhere(state):
            return (
                (state == PageState.ABSENT) | (state == PageState.COLD) | (state == PageState.LOST)
            )

        came, was_listed, is_listed, demand = Signal(event), Signal(), Signal(), Signal()
        came_valid, came_next = Signal(), Signal()
        needs_frame, allocates = Signal(), Signal()
        m.d.comb += [
            demand.eq((r.op.kind == Op.READ) | (r.op.kind == Op.WRITE)),
            was_listed.eq(r.old.state == PageState.RESIDENT),
            is_listed.eq(r.word.state == PageState.RESIDENT),
            needs_frame.eq(r.changed & demand & nowhere(r.old.state) & ~nowhere(r.word.state)),
            allocates.eq(needs_frame & (r.op.kind == Op.WRITE) & (r.old.state != PageState.COLD)),
            came_next.eq(
                self.i_result.valid
                & ((r.changed & (was_listed != is_listed)) | r.uncorrected | allocates)
            ),
        ]
        m.d.sync += [
            came.squeue.eq(r.op.squeue),
            came.page.eq(r.op.page),
            came.listed.eq(is_listed),
            came.newest.eq(allocates),
            came_valid.eq(came_next),
            came.cancelled.eq((r.old.state == PageState.WRITING_BACK) & ~r.uncorrected),
        ]
        requester = Array([Signal(c.squeue_bits, name=f"requester{p}") for p in range(len(POOLS))])
        m.d.comb += [view.requester[p].eq(requester[p]) for p in range(len(POOLS))]
        with m.If(self.i_result.valid & needs_frame):
            m.d.sync += requester[r.pool].eq(r.op.squeue)

        m.submodules.events = events = fifo.SyncFIFO(width=event.size, depth=event_depth(c))
        m.d.comb += [events.w_en.eq(came_valid), events.w_data.eq(came)]
        m.d.sync += Assert(~came_valid | events.w_rdy, "a queue event came without credit")
        m.d.sync += self.ready.eq(events.level < event_depth(c) - RESERVE - unforeseen_events(c))
        with m.If(came_valid):
            m.d.sync += view.entered.eq(view.entered + 1)

        # --- memories ---
        record = data.StructLayout(
            {"count": c.page_bits + 1, "newest": self.layouts.newest, "in_use": 1}
        )
        m.submodules.records = records = Sram(depth=c.squeues, shape=record)
        m.submodules.settings = settings = QueueConfig(
            config=c, fields=("pool", "budget", "policy", "tau_m", "tau_sh")
        )
        m.submodules.tree = tree = ExcessTree(config=c)
        m.submodules.map = listed = ResidencyMap(config=c)
        squeue, page = Signal(c.squeue_bits), Signal(c.page_bits)
        value, newest, cancelled = Signal(), Signal(), Signal()
        m.d.comb += [
            view.roots.eq(tree.roots),
            settings.read_squeue.eq(squeue),
            records.read_address.eq(squeue),
            records.write_address.eq(squeue),
            listed.squeue.eq(squeue),
            listed.page.eq(page),
            listed.value.eq(value),
        ]
        connect(m, flipped(self.read), listed.read)
        connect(m, flipped(self.config_write), settings.write)

        # --- one task at a time: an event, a look, a queue to refresh, the registers' read-out ---
        is_event, is_look, is_refresh, is_offer, changed = (
            Signal(),
            Signal(),
            Signal(),
            Signal(),
            Signal(),
        )
        taken = Signal(event)
        m.d.comb += taken.eq(events.r_data)
        shown, shown_squeue, known = self._shown(m)
        refresh_next, refresh_left = Signal(range(c.squeues)), Signal(range(c.squeues + 1))
        readout_wait = Signal(6)
        answer, answered = Signal(self.layouts.look), Signal()
        lookup, offer = view.lookup, view.offer
        m.d.comb += [
            lookup.answer.p.eq(answer),
            lookup.answer.valid.eq(answered),
            view.refreshing.eq((refresh_left != 0) | is_refresh),
        ]
        m.d.sync += [answered.eq(0), offer.done.eq(0)]
        m.d.sync += readout_wait.eq(readout_wait - (readout_wait != 0))

        found, after = Signal(record), Signal(record)
        clears, counted = Signal(), Signal()
        lines, budget = Signal(range(max(c.frame_lines) + 1)), Signal(c.dram_line_bits)
        count, in_use = Signal(c.page_bits + 1), Signal()
        resident = Signal(c.dram_line_bits + 1)
        # As the memory has them; critical path: `kelp` is registered.
        pool, policy, kelp = Signal.like(tree.pool), Signal.like(settings.o.policy), Signal()
        m.d.comb += [
            changed.eq(listed.was != value),
            after.eq(found),
            tree.pool.eq(pool),
            tree.squeue.eq(squeue),
        ]
        frame_lines = Array([Const(n) for n in c.frame_lines])
        started = Signal()  # before the first clock edge inputs mean nothing
        m.d.sync += started.eq(1)

        with m.FSM(init="CLEAR"):
            with m.State("CLEAR"):
                m.d.comb += clears.eq(1)
                m.d.sync += [squeue.eq(squeue + 1), Assert(~started | ~self.i_result.valid)]
                with m.If(squeue == c.squeues - 1):
                    m.next = "CLEARED"
            with m.State("CLEARED"):
                with m.If(~tree.busy & listed.ready):
                    m.d.sync += self.initialised.eq(1)
                    m.next = "IDLE"
            with m.State("IDLE"):
                m.d.sync += [
                    page.eq(taken.page),
                    value.eq(taken.listed),
                    newest.eq(taken.newest),
                    cancelled.eq(taken.cancelled),
                    is_event.eq(0),
                    is_look.eq(0),
                    is_refresh.eq(0),
                    is_offer.eq(0),
                ]
                with m.If(events.r_rdy):
                    m.d.comb += events.r_en.eq(1)
                    m.d.sync += [squeue.eq(taken.squeue), is_event.eq(1)]
                    m.next = "READ"
                with m.Elif(lookup.request.valid):
                    m.d.comb += lookup.request.ready.eq(1)
                    m.d.sync += [squeue.eq(lookup.request.p), is_look.eq(1)]
                    m.next = "READ"
                with m.Elif(offer.request.valid):
                    m.d.comb += offer.request.ready.eq(1)
                    m.d.sync += [
                        squeue.eq(offer.request.p.squeue),
                        tree.excess.eq(offer.request.p.excess),
                        is_offer.eq(1),
                    ]
                    m.next = "READ"
                with m.Elif(refresh_left != 0):
                    m.d.sync += [
                        squeue.eq(refresh_next),
                        is_refresh.eq(1),
                        refresh_left.eq(refresh_left - 1),
                        refresh_next.eq(Mux(refresh_next == c.squeues - 1, 0, refresh_next + 1)),
                    ]
                    m.next = "READ"
                with m.Elif((readout_wait == 0) | ~known):
                    m.d.sync += [squeue.eq(self.resident_squeue), readout_wait.eq(~0)]
                    m.next = "READ"
            with m.State("READ"):
                m.d.comb += [
                    records.read_en.eq(1),
                    settings.read_en.eq(1),
                    listed.update.eq(is_event),
                ]
                m.next = "WAS"
            with m.State("WAS"):
                # What comes out of memories: counting waits a cycle for it.
                m.d.sync += [
                    found.eq(records.read_data),
                    pool.eq(settings.o.pool),
                    policy.eq(settings.o.policy),
                ]
                m.next = "COUNT"
            with m.State("COUNT"):
                m.d.sync += [
                    lines.eq(frame_lines[pool]),
                    budget.eq(settings.o.budget),
                    count.eq(after.count),
                    in_use.eq(after.in_use),
                    kelp.eq(policy),
                ]
                m.next = "MULTIPLY"
                with m.If(is_event):
                    m.d.comb += counted.eq(1)
                    m.d.sync += [
                        Assert(
                            ~changed | value | (found.count != 0),
                            "a queue lists fewer pages than none",
                        ),
                        Assert(
                            ~changed | ~value | (found.count != c.pages),
                            "a queue lists more pages than it has",
                        ),
                    ]
                    with m.If(changed):
                        m.d.comb += [
                            after.count.eq(Mux(value, found.count + 1, found.count - 1)),
                            after.in_use.eq(cancelled & value),
                        ]
                    with m.Else():
                        m.d.sync += view.done.eq(view.done + 1)
                        m.next = "IDLE"
                with m.Elif(is_look):
                    m.next = "LOOKED"
                with m.Elif(is_offer):
                    m.next = "START"
            with m.State("LOOKED"):
                m.d.sync += [
                    answered.eq(1),
                    answer.listed.eq(count != 0),
                    answer.newest.eq(found.newest),
                    answer.pool.eq(pool),
                    answer.policy.eq(kelp),
                    *(answer[name].eq(settings.o[name]) for name in ("tau_m", "tau_sh")),
                ]
                m.next = "IDLE"
            with m.State("MULTIPLY"):
                m.d.sync += resident.eq(count * lines)
                m.next = "SUBTRACT"
                with m.If(is_event & kelp & ~in_use & (count != 0)):
                    m.d.sync += view.done.eq(view.done + 1)
                    m.next = "IDLE"
                with m.Elif(is_refresh & ((count == 0) | kelp)):
                    m.next = "IDLE"
            with m.State("SUBTRACT"):
                m.d.sync += tree.excess.eq(
                    Mux((resident > budget) & ~in_use & ~kelp, resident - budget, 0)
                )
                m.d.sync += Assert(resident < 1 << c.dram_line_bits)
                m.next = "START"
                with m.If(~is_event & ~is_refresh):
                    m.next = "IDLE"
                with m.If((~is_event & ~is_refresh) | (squeue == shown_squeue)):
                    m.d.sync += [shown.eq(resident), shown_squeue.eq(squeue)]
            with m.State("START"):
                m.d.comb += tree.start.eq(1)
                m.next = "WALK"
            with m.State("WALK"):
                with m.If(~tree.busy):
                    m.d.sync += [view.done.eq(view.done + is_event), offer.done.eq(is_offer)]
                    m.next = "IDLE"

        # Written in the cycle after COUNT, from registers; nothing takes their place before the end
        # of it.
        write, kept = Signal(), Signal(record)
        m.d.sync += write.eq(counted)
        m.d.comb += [
            kept.count.eq(count),
            kept.in_use.eq(in_use),
            kept.newest.page.eq(Mux(newest, page, found.newest.page)),
            kept.newest.valid.eq(newest | found.newest.valid),
            records.write_en.eq(clears | write),
            records.write_data.eq(Mux(clears, 0, kept)),
        ]
        with m.If(self.config_write.valid):
            m.d.sync += refresh_left.eq(c.squeues)
        m.d.comb += self.idle.eq(
            ~came_valid
            & ~came_next
            & (view.entered == view.done)
            & ~view.refreshing
            & ~lookup.request.valid
            & ~offer.request.valid
            & ~is_look
            & ~is_offer
        )
        return m

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Per-queue state that eviction decides on: listed pages, resident count, excess over the budget,
newest page, requester; a walk of a tree per event (docs/design.md §6). A look-up is answered after
5 cycles; an event takes `INTERVAL` cycles at most, on no request's path."""

from __future__ import annotations

from amaranth.hdl import Array, Assert, Cat, Const, Module, Mux, Signal
from amaranth.lib import data, fifo, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from kelp_spec.config import POOLS, Config
from kelp_spec.metadata import Op, PageState
from kelp_spec.policy import Policy

from ..control.queue_config import QueueConfig
from ..layouts import POOL_BITS, code_shape
from ..lib.protected import BlockFault, Fault, gather, used
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


class _Task:
    """One task at a time: an event, a look-up, an offer, a queue to refresh, or none of these: the
    registers' read-out."""

    def __init__(self, config: Config, record: data.StructLayout):
        self.is_event = Signal()
        self.is_look = Signal()
        self.is_refresh = Signal()
        self.is_offer = Signal()
        self.squeue = Signal(config.squeue_bits)
        # Of an event:
        self.page = Signal(config.page_bits)
        self.value = Signal()  #: the page is listed now
        self.newest = Signal()
        self.cancelled = Signal()
        self.changed = Signal()  #: it was listed and is not, or the other way round
        # As the memories have the queue; critical path: `kelp`, from `policy`, is registered.
        self.found = Signal(record)
        self.pool = Signal(POOL_BITS)
        self.policy = Signal(code_shape(Policy))
        self.kelp = Signal()
        self.tables = Signal()
        self.lines = Signal(range(max(config.frame_lines) + 1))  #: of a frame
        self.budget = Signal(config.dram_line_bits)
        # Counted: `after` is the queue's record from now on.
        self.after = Signal(record)
        self.counted = Signal()
        self.count = Signal(config.page_bits + 1)
        self.in_use = Signal()
        self.resident = Signal(config.dram_line_bits + 1)
        # Of the queues to refresh:
        self.refresh_next = Signal(range(config.squeues))
        self.refresh_left = Signal(range(config.squeues + 1))


class _Readout:
    """The resident lines that the registers read, and of which queue they are."""

    def __init__(self, config: Config):
        self.lines = Signal(32)
        self.squeue = Signal(config.squeue_bits)
        self.known = Signal()  #: it is the one that is asked for
        self.wait = Signal(6)


class QueueState(wiring.Component):
    """Follows the results of M3. A page is *listed* while its word is RESIDENT; the residency map
    says which are, and what changes there is counted.

    Nothing here is on a request's path: results that matter become events in a FIFO. Latency:
    `LATENCY` cycles from a lookup that is taken to its answer. Interval: `INTERVAL` cycles from one
    event to the next, at most. `ready` says that RESERVE more may come, beside those that
    evictions cause by themselves. `view.entered` and `view.done` count events, so that the evictor
    can wait until all that had come is absorbed.

    A queue whose eviction was cancelled (or failed) has nothing to give until another page of it
    comes or goes, so that the evictor does not ask for pages that are in use again and again.

    A configuration write changes the budget at once; the excess of all queues is then worked out
    anew in the background, one queue after another (`view.refreshing`, `view.refreshed`). A write
    amid that makes it go on for as long again.

    A queue whose policy is `kelp` has no budget: its excess is what it offered last. When an
    eviction was cancelled or nothing is left, it has nothing to give. An offer of a queue that
    lists no page by then is 0: its next session may be of another pool, and what stood in this
    pool's tree would stand there until it has pages of this pool again. An offer of a queue that
    has the other policy by then is none: its excess is worked out anew.

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
    resident_squeue : in; resident_lines, resident_known : out
        For the registers: DRAM lines of the queue's listed pages; known within a few hundred
        cycles, 0 until then: never what another queue has.
    initialised : out
        The reset scrub is over; results before it are not allowed.
    idle : out
        All events are absorbed, and nothing is asked.
    fault : out, BlockFault
        With `config.protect`: of a queue's settings. None can be rebuilt.
    """

    LATENCY = 5  # to LOOKED: IDLE, READ, WAS, COUNT, LOOKED
    CLEARS = (
        "map.words",
        "records",
        "tree.nodes",
    )  #: memories in it that are written whole before it is ready

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
                "resident_known": Out(1),
                "initialised": Out(1),
                "idle": Out(1),
                **({"fault": Out(BlockFault)} if config.protect else {}),
            }
        )

    def elaborate(self, platform):
        m = Module()
        c, view = self.config, self.view
        event = data.StructLayout(
            {"squeue": c.squeue_bits, "page": c.page_bits, "pool": POOL_BITS}
            | {"listed": 1, "newest": 1, "cancelled": 1}
        )
        record = data.StructLayout(
            {"count": c.page_bits + 1, "newest": self.layouts.newest, "in_use": 1}
        )
        came_valid, came_next = self._events(m, event)
        task = self._memories(m, record)
        shown = self._readout(m)
        answer, answered = Signal(self.layouts.look), Signal()
        taken, clears = Signal(event), Signal()
        m.d.comb += [
            taken.eq(m.submodules.events.r_data),
            view.lookup.answer.p.eq(answer),
            view.lookup.answer.valid.eq(answered),
            view.refreshing.eq((task.refresh_left != 0) | task.is_refresh),
            task.changed.eq(m.submodules.map.was != task.value),
            task.after.eq(task.found),
        ]
        m.d.sync += [answered.eq(0), view.offer.done.eq(0)]
        with m.FSM(init="CLEAR") as fsm:
            self._clear(m, task, clears)
            self._begin(m, task, taken, shown)
            self._count(m, task)
            with m.State("LOOKED"):
                if c.select_tables:
                    m.d.sync += answer.tables.eq(task.kelp & task.tables)
                m.d.sync += [
                    answered.eq(1),
                    answer.listed.eq(task.count != 0),
                    answer.newest.eq(task.found.newest),
                    answer.pool.eq(task.pool),
                    answer.policy.eq(task.kelp),
                    *(
                        answer[name].eq(m.submodules.settings.o[name])
                        for name in ("tau_m", "tau_sh")
                    ),
                ]
                m.next = "IDLE"
            self._excess(m, task, shown)
        self._keep(m, task, clears)
        if c.protect:
            # A queue without pages has nothing to count, nor to give, and may have no
            # configuration: the evictor looks at all queues. What the registers show is read again
            # every few cycles: of that a flipped bit is corrected, and not told of each time.
            lists = m.submodules.records.read_data.count != 0
            counts = lists | task.is_event | (task.is_offer & (m.submodules.tree.excess != 0))
            shows = ~(task.is_event | task.is_look | task.is_offer | task.is_refresh)
            row = m.submodules.settings.fault
            fault = Fault(Cat(row.corrected & ~shows, row.uncorrected))
            gather(m, self.fault, used(fault, fsm.ongoing("WAS") & counts))
        m.d.comb += self.idle.eq(
            ~came_valid
            & ~came_next
            & (view.entered == view.done)
            & ~view.refreshing
            & ~view.lookup.request.valid
            & ~view.offer.request.valid
            & ~task.is_look
            & ~task.is_offer
        )
        return m

    def _events(self, m: Module, event: data.StructLayout):
        """What of a result matters, as events in a FIFO. Returns whether one is on its way
        there, and whether one will be in the next cycle."""
        c, view, r = self.config, self.view, self.i_result.p

        def nowhere(state):
            return (
                (state == PageState.ABSENT) | (state == PageState.COLD) | (state == PageState.LOST)
            )

        came = Signal(event)
        came_valid = Signal()
        came_next = Signal()
        was_listed = Signal()
        is_listed = Signal()
        demand = Signal()
        needs_frame = Signal()
        allocates = Signal()
        # With HDM-DB a READ for ownership allocates, too.
        asks = demand if c.coherence else r.op.kind == Op.WRITE
        m.d.comb += [
            demand.eq((r.op.kind == Op.READ) | (r.op.kind == Op.WRITE)),
            was_listed.eq(r.old.state == PageState.RESIDENT),
            is_listed.eq(r.word.state == PageState.RESIDENT),
            needs_frame.eq(r.changed & demand & nowhere(r.old.state) & ~nowhere(r.word.state)),
            allocates.eq(needs_frame & asks & (r.old.state != PageState.COLD)),
            came_next.eq(
                self.i_result.valid
                & ((r.changed & (was_listed != is_listed)) | r.uncorrected | allocates)
            ),
        ]
        m.d.sync += [
            came.squeue.eq(r.op.squeue),
            came.page.eq(r.op.page),
            came.pool.eq(r.pool),
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
        return came_valid, came_next

    def _memories(self, m: Module, record: data.StructLayout) -> _Task:
        """Records, settings, excess tree and residency map, at the queue of the task."""
        c = self.config
        m.submodules.records = records = Sram(depth=c.squeues, shape=record)
        m.submodules.settings = settings = QueueConfig(
            config=c,
            fields=("pool", "budget", "policy", "tau_m", "tau_sh")
            + (("tables",) if c.select_tables else ()),
            protect=c.protect,
        )
        m.submodules.tree = tree = ExcessTree(config=c)
        m.submodules.map = listed = ResidencyMap(config=c)
        task = _Task(c, record)
        m.d.comb += [
            self.view.roots.eq(tree.roots),
            tree.pool.eq(task.pool),
            tree.squeue.eq(task.squeue),
            settings.read_squeue.eq(task.squeue),
            records.read_address.eq(task.squeue),
            records.write_address.eq(task.squeue),
            listed.squeue.eq(task.squeue),
            listed.page.eq(task.page),
            listed.value.eq(task.value),
        ]
        connect(m, flipped(self.read), listed.read)
        connect(m, flipped(self.config_write), settings.write)
        return task

    def _readout(self, m: Module) -> _Readout:
        shown = _Readout(self.config)
        m.d.comb += [
            shown.known.eq(shown.squeue == self.resident_squeue),
            self.resident_lines.eq(Mux(shown.known, shown.lines, 0)),
            self.resident_known.eq(shown.known),
        ]
        m.d.sync += shown.wait.eq(shown.wait - (shown.wait != 0))
        return shown

    def _clear(self, m: Module, task: _Task, clears: Signal) -> None:
        """States of the reset scrub."""
        started = Signal()  # before the first clock edge inputs mean nothing
        m.d.sync += started.eq(1)
        with m.State("CLEAR"):
            m.d.comb += clears.eq(1)
            m.d.sync += [task.squeue.eq(task.squeue + 1), Assert(~started | ~self.i_result.valid)]
            with m.If(task.squeue == self.config.squeues - 1):
                m.next = "CLEARED"
        with m.State("CLEARED"):
            with m.If(~m.submodules.tree.busy & m.submodules.map.ready):
                m.d.sync += self.initialised.eq(1)
                m.next = "IDLE"

    def _begin(self, m: Module, task: _Task, taken, shown: _Readout) -> None:
        """States until the memories' rows of the next task are there."""
        c, events, tree = self.config, m.submodules.events, m.submodules.tree
        records, settings = m.submodules.records, m.submodules.settings
        lookup, offer = self.view.lookup, self.view.offer
        offered = offer.request.p.excess
        with m.State("IDLE"):
            m.d.sync += [
                task.page.eq(taken.page),
                task.pool.eq(taken.pool),
                task.value.eq(taken.listed),
                task.newest.eq(taken.newest),
                task.cancelled.eq(taken.cancelled),
                task.is_event.eq(0),
                task.is_look.eq(0),
                task.is_refresh.eq(0),
                task.is_offer.eq(0),
            ]
            with m.If(events.r_rdy):
                m.d.comb += events.r_en.eq(1)
                m.d.sync += [task.squeue.eq(taken.squeue), task.is_event.eq(1)]
                m.next = "READ"
            with m.Elif(lookup.request.valid):
                m.d.comb += lookup.request.ready.eq(1)
                m.d.sync += [task.squeue.eq(lookup.request.p), task.is_look.eq(1)]
                m.next = "READ"
            with m.Elif(offer.request.valid):
                m.d.comb += offer.request.ready.eq(1)
                m.d.sync += [
                    task.squeue.eq(offer.request.p.squeue),
                    tree.excess.eq(Mux(offered != 0, offered + self.layouts.at_budget, 0)),
                    task.is_offer.eq(1),
                ]
                m.next = "READ"
            with m.Elif(task.refresh_left != 0):
                is_last = task.refresh_next == c.squeues - 1
                m.d.comb += self.view.refreshed.eq(1)
                m.d.sync += [
                    task.squeue.eq(task.refresh_next),
                    task.is_refresh.eq(1),
                    task.refresh_left.eq(task.refresh_left - 1),
                    task.refresh_next.eq(Mux(is_last, 0, task.refresh_next + 1)),
                ]
                m.next = "READ"
            with m.Elif((shown.wait == 0) | ~shown.known):
                m.d.sync += [task.squeue.eq(self.resident_squeue), shown.wait.eq(~0)]
                m.next = "READ"
        with m.State("READ"):
            m.d.comb += [
                records.read_en.eq(1),
                settings.read_en.eq(1),
                m.submodules.map.update.eq(task.is_event),
            ]
            m.next = "WAS"
        with m.State("WAS"):
            # What comes out of memories: counting waits a cycle for it. An event's pool is what M3
            # had: an OPEN may have given the queue another one before its last pages of the session
            # before are absorbed here, and their excess stands in the old pool's tree.
            m.d.sync += [
                task.found.eq(records.read_data),
                task.policy.eq(settings.o.policy),
            ]
            with m.If(~task.is_event):
                m.d.sync += task.pool.eq(settings.o.pool)
            if self.config.select_tables:
                m.d.sync += task.tables.eq(settings.o.tables)
            m.next = "COUNT"

    def _count(self, m: Module, task: _Task) -> None:
        """State in which an event changes its queue's record."""
        c, found, after, view = self.config, task.found, task.after, self.view
        with m.State("COUNT"):
            m.d.sync += [
                task.lines.eq(Array([Const(n) for n in c.frame_lines])[task.pool]),
                task.budget.eq(m.submodules.settings.o.budget),
                task.count.eq(after.count),
                task.in_use.eq(after.in_use),
                task.kelp.eq(task.policy),
            ]
            m.next = "MULTIPLY"
            with m.If(task.is_event):
                m.d.comb += task.counted.eq(1)
                m.d.sync += [
                    Assert(
                        ~task.changed | task.value | (found.count != 0),
                        "a queue lists fewer pages than none",
                    ),
                    Assert(
                        ~task.changed | ~task.value | (found.count != c.pages),
                        "a queue lists more pages than it has",
                    ),
                ]
                with m.If(task.changed):
                    m.d.comb += [
                        after.count.eq(Mux(task.value, found.count + 1, found.count - 1)),
                        after.in_use.eq(task.cancelled & task.value),
                    ]
                with m.Else():
                    m.d.sync += view.done.eq(view.done + 1)
                    m.next = "IDLE"
            with m.Elif(task.is_look):
                m.next = "LOOKED"
            # An offer may come behind its queue's last page: then there is nothing to give.
            with m.Elif(task.is_offer & task.policy & (found.count != 0)):
                m.next = "START"

    def _excess(self, m: Module, task: _Task, shown: _Readout) -> None:
        """States that work the excess out and bring it into the tree."""
        c, view, tree, resident = self.config, self.view, m.submodules.tree, task.resident
        with m.State("MULTIPLY"):
            m.d.sync += resident.eq(task.count * task.lines)
            m.next = "SUBTRACT"
            with m.If(task.is_event & task.kelp & ~task.in_use & (task.count != 0)):
                m.d.sync += view.done.eq(view.done + 1)
                m.next = "IDLE"
            with m.Elif(task.is_refresh & ((task.count == 0) | task.kelp)):
                m.next = "IDLE"
        with m.State("SUBTRACT"):
            gives = (task.count != 0) & ~task.in_use & ~task.kelp
            excess = self.layouts.at_budget + resident - task.budget
            m.d.sync += tree.excess.eq(Mux(gives, excess, 0))
            m.d.sync += Assert(resident < 1 << c.dram_line_bits)
            m.next = "START"
            asked = ~(task.is_event | task.is_refresh | task.is_offer)  # for the registers
            with m.If(asked):
                m.next = "IDLE"
            # What is known stays known: the queue that is asked for may have changed meanwhile.
            with m.If(task.squeue == Mux(asked, self.resident_squeue, shown.squeue)):
                m.d.sync += [shown.lines.eq(resident), shown.squeue.eq(task.squeue)]
        with m.State("START"):
            m.d.comb += tree.start.eq(1)
            m.next = "WALK"
        with m.State("WALK"):
            with m.If(~tree.busy):
                m.d.sync += [
                    view.done.eq(view.done + task.is_event),
                    view.offer.done.eq(task.is_offer),
                ]
                m.next = "IDLE"

    def _keep(self, m: Module, task: _Task, clears: Signal) -> None:
        """The record is written in the cycle after COUNT, from registers; nothing takes their place
        before the end of it. And a configuration write begins a refresh."""
        record, records = task.found.shape(), m.submodules.records
        write, kept = Signal(), Signal(record)
        m.d.sync += write.eq(task.counted)
        m.d.comb += [
            kept.count.eq(task.count),
            kept.in_use.eq(task.in_use),
            kept.newest.page.eq(Mux(task.newest, task.page, task.found.newest.page)),
            kept.newest.valid.eq(task.newest | task.found.newest.valid),
            records.write_en.eq(clears | write),
            records.write_data.eq(Mux(clears, 0, kept)),
        ]
        with m.If(self.config_write.valid):
            m.d.sync += task.refresh_left.eq(self.config.squeues)

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Cold-tier commands: order, retries, timeouts and aborts (spec §8, docs/design.md §5). One command
in 4 cycles; a fetch becomes one after 8 cycles when nothing else is due."""

from __future__ import annotations

from enum import IntEnum

from amaranth.hdl import Array, Assert, Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config
from kelp_spec.metadata import ColdOp, ColdStatus

from ..layouts import TIME_BITS, Layouts, code_shape
from ..lib.protected import BlockFault, ProtectedFifo, ProtectedMemory, gather, used
from ..tracker.page_address import frame_base, pool_of_frame, times

__all__ = ["ColdScheduler", "TRY_BITS"]

TRY_BITS = 4  #: width of the retry count


class _Phase(IntEnum):
    """Of a command that has been sent at least once."""

    QUEUED = 0  #: waits to be sent again
    FLIGHT = 1
    ABORT_QUEUED = 2  #: timed out; its ABORT waits to be sent
    ABORTING = 3


class _Act(IntEnum):
    """What the engine does to one entry."""

    SCAN = 0
    COMPLETE = 1
    SEND = 2
    ABORT = 3


class ColdScheduler(wiring.Component):
    """Turns fetches and write-backs into commands and answers each exactly once (spec §8).

    Latency: `LATENCY` cycles from `i_fetch` to `o_command` when nothing else is due, and up to
    `TURN` − 1 more for the entry that the engine looks at just then. A command each `INTERVAL`
    cycles.

    Order: ABORT, demand, prefetch, write-back. A fetch that is raised before its command has left
    joins the demand. Every miss entry and `write_backs` write-backs, each under a token of its own,
    may be in flight at once. A completion with FAILED, or a timeout, is tried again `retries` times
    before the fetch or write-back has failed.

    The port's contract: the tier accepts every command in bounded time (it has room for `misses` +
    `write_backs` commands and as many ABORTs) and completes it at most once. A command that has no
    completion `timeout` cycles after it was sent is aborted. From the completion (ABORTED) of an
    ABORT on, or `timeout` cycles after its acceptance at the latest, the tier moves no data for
    that id, and neither a retry nor the frame's next use begins before. Completions that nobody
    waits for are ignored; each try of an entry flips the id's attempt bit, so that a late one is
    not taken for its successor's.

    One engine looks at one entry every four cycles: completions and commands in turn, and whenever
    neither is due, the next entry's deadline. So a completion is taken within a few cycles, and a
    timeout is noticed at most 4 · (`misses` + `write_backs`) cycles late when nothing else happens,
    at no cost per entry.

    Errors: two write-backs under one token, a fetch under a miss id in use (asserted). What the
    tier reports is no error of this block: it is told by `failed` of the answers.

    Parameters
    ----------
    config : Config

    Members
    -------
    i_fetch : in, always-ready stream of fetch
        Each miss id at most once until its `o_fetched`.
    i_raise : in, always-ready stream of miss id
        Never in one cycle with an `i_fetch`. Ids that need no raising are ignored.
    o_fetched : out, stream of fetched
    i_write_back : in, stream of write_back
    o_written_back : out, stream of written_back
    o_command : out, stream of cold_command
        To the tier.
    i_completion : in, stream of cold_completion
        From the tier.
    now, timeout : in
        The time base; cycles after which a command is aborted.
    retries : in
        Tries after the first.
    o_retry, o_timeout : out
        Pulses, for counters.
    idle : out
        No fetch or write-back is here.
    quiet : out
        Nothing here will change but by a completion or by time.
    fault : out, BlockFault
        Of every memory here. None can be rebuilt: an entry says where its page lies and whether the
        tier may still move its data.
    """

    LATENCY = 8
    TURN = 4  #: cycles for which the engine looks at one entry
    INTERVAL = TURN

    def __init__(self, *, config: Config):
        c = self.config = config
        layouts = self.layouts = Layouts(config)
        self.entries = c.misses + c.write_backs
        super().__init__(
            {
                "i_fetch": In(stream.Signature(layouts.fetch, always_ready=True)),
                "i_raise": In(stream.Signature(c.miss_bits, always_ready=True)),
                "o_fetched": Out(stream.Signature(layouts.fetched)),
                "i_write_back": In(stream.Signature(layouts.write_back)),
                "o_written_back": Out(stream.Signature(layouts.written_back)),
                "o_command": Out(stream.Signature(layouts.cold_command)),
                "i_completion": In(stream.Signature(layouts.cold_completion)),
                "now": In(TIME_BITS),
                "timeout": In(TIME_BITS),
                "retries": In(TRY_BITS),
                "o_retry": Out(1),
                "o_timeout": Out(1),
                "idle": Out(1),
                "quiet": Out(1),
                "fault": Out(BlockFault),
            }
        )

    def _memory(self, m: Module, name: str, depth: int, shape) -> ProtectedMemory:
        m.submodules[name] = memory = ProtectedMemory(
            depth=depth, shape=shape, protect=self.config.protect
        )
        return memory

    def _line(self, m: Module, name: str, shape, places: int) -> ProtectedFifo:
        m.submodules[name] = line = ProtectedFifo(
            shape=shape, depth=places + 1, protect=self.config.protect
        )
        return line

    def _next(self, m: Module, chosen, line: ProtectedFifo) -> None:
        """The oldest entry of `line` leaves it as `chosen`."""
        m.d.comb += [chosen.eq(line.r_data.as_value()), line.r_en.eq(1)]

    def elaborate(self, platform):
        m = Module()
        c, entries = self.config, self.entries
        index_shape = range(entries)
        S = data.StructLayout
        where_layout = S({"squeue": c.squeue_bits, "page": c.page_bits, "frame": c.frame_bits})
        state_layout = S(
            {"phase": code_shape(_Phase), "attempt": 1, "tries": TRY_BITS, "sent": TIME_BITS}
        )
        turn_layout = S({"index": index_shape, "again": 1})

        where, states, line_masks = (
            self._memory(m, "where", entries, where_layout),
            self._memory(m, "states", entries, state_layout),
            self._memory(m, "line_masks", c.write_backs, self.layouts.line_mask),
        )
        # Lines of entries that wait to be sent, each entry at most once in each; one place more,
        # see FreeList.
        demand, writes, aborts = (
            self._line(m, name, turn_layout, places)
            for name, places in (
                ("demand", c.misses),
                ("writes", c.write_backs),
                ("aborts", entries),
            )
        )
        # Prefetches wait as one bit each, because a raised one leaves from the middle.
        prefetches = Signal(c.misses)
        active = Signal(entries)  # sent at least once and not answered: the row of `states` counts

        reading, looking, acting, act, index, again = (
            Signal(),
            Signal(),
            Signal(),
            Signal(code_shape(_Act)),
            Signal(index_shape),
            Signal(),
        )
        # - requests -------------------------------------------------------------------------------
        raised = Signal()
        busy_writes = Signal(c.write_backs)
        push_again = Signal()  # the engine puts an entry back into line
        new_demand, new_index = Signal(), Signal(c.miss_bits)
        new_write = self.i_write_back.valid & self.i_write_back.ready
        wb = self.i_write_back.payload
        m.d.comb += [
            # Critical path: whether the engine puts its entry back into line.
            self.i_write_back.ready.eq(~self.i_fetch.valid & ~acting),
            where.write_en.eq(self.i_fetch.valid | new_write),
            where.write_address.eq(
                Mux(self.i_fetch.valid, self.i_fetch.p.miss, c.misses + wb.token)
            ),
            *(
                where.write_data[name].eq(Mux(self.i_fetch.valid, self.i_fetch.p[name], wb[name]))
                for name in ("squeue", "page", "frame")
            ),
            line_masks.write_en.eq(new_write),
            line_masks.write_address.eq(wb.token),
            line_masks.write_data.eq(wb.line_mask),
        ]
        with m.If(new_write):
            m.d.sync += busy_writes.bit_select(wb.token, 1).eq(1)
        with m.If(self.i_fetch.valid & ~self.i_fetch.p.demand):
            m.d.sync += prefetches.bit_select(self.i_fetch.p.miss, 1).eq(1)
        with m.If(raised):
            m.d.sync += prefetches.bit_select(self.i_raise.p, 1).eq(0)

        # - engine: choose an entry, then act on it ------------------------------------------------
        scan, pointer = Signal(index_shape), Signal(range(c.misses))
        pre_valid = Signal()
        prefer_send = Signal()
        choice, chosen, chosen_again = Signal(code_shape(_Act)), Signal(index_shape), Signal()
        can_send, can_answer, go, blocked = Signal(), Signal(), Signal(), Signal()
        # The next prefetch, found ahead of time: the one at the pointer.
        found, any_prefetch, raised_here, can_leave = Signal(), Signal(), Signal(), Signal()
        m.d.comb += [
            raised_here.eq(self.i_raise.valid & (self.i_raise.p == pointer)),
            # No prefetch leaves in the cycle of a raise, so that whether one is raised does not
            # wait for what the engine chooses.
            raised.eq(self.i_raise.valid & prefetches.bit_select(self.i_raise.p, 1)),
            can_leave.eq(found & ~self.i_raise.valid),
            can_send.eq(
                (aborts.r_rdy | demand.r_rdy | can_leave | (writes.r_rdy & ~any_prefetch))
                & ~blocked
            ),
            can_answer.eq(~self.o_fetched.valid & ~self.o_written_back.valid),
        ]
        # Whether a command waits for the tier is known a cycle later: the one that the engine may
        # be giving counts as given.
        m.d.sync += [
            any_prefetch.eq(prefetches.any()),
            blocked.eq(
                (pre_valid | (acting & ((act == _Act.SEND) | (act == _Act.ABORT))))
                & self.o_command.valid
            ),
        ]
        with m.If(found):
            with m.If(raised_here):
                m.d.sync += found.eq(0)
        with m.Elif(prefetches.bit_select(pointer, 1) & ~raised_here):
            m.d.sync += found.eq(1)
        with m.Else():
            m.d.sync += pointer.eq(Mux(pointer == c.misses - 1, 0, pointer + 1))

        id_ = self.i_completion.payload.id
        with m.If(~reading & ~looking & ~acting):
            with m.If(can_answer & self.i_completion.valid & ~(prefer_send & can_send)):
                m.d.comb += [
                    go.eq(1),
                    choice.eq(_Act.COMPLETE),
                    chosen.eq(Mux(id_.index < entries, id_.index, 0)),
                ]
            with m.Elif(can_send):
                m.d.comb += [go.eq(1), choice.eq(Mux(aborts.r_rdy, _Act.ABORT, _Act.SEND))]
                with m.If(aborts.r_rdy):
                    self._next(m, Cat(chosen, chosen_again), aborts)
                with m.Elif(demand.r_rdy):
                    self._next(m, Cat(chosen, chosen_again), demand)
                with m.Elif(can_leave):
                    m.d.comb += chosen.eq(pointer)
                    m.d.sync += [prefetches.bit_select(pointer, 1).eq(0), found.eq(0)]
                with m.Else():
                    self._next(m, Cat(chosen, chosen_again), writes)
            with m.Elif(can_answer):
                m.d.comb += [go.eq(1), choice.eq(_Act.SCAN), chosen.eq(scan)]
                m.d.sync += scan.eq(Mux(scan == entries - 1, 0, scan + 1))
            # Critical path: whether one was chosen. These are taken in any case.
            m.d.sync += [act.eq(choice), index.eq(chosen), again.eq(chosen_again)]
        with m.If(go):
            m.d.sync += prefer_send.eq(choice == _Act.COMPLETE)
        write_index = Signal(c.write_back_bits)
        m.d.comb += [
            states.read_en.eq(reading),
            states.read_address.eq(index),
            where.read_en.eq(reading),
            where.read_address.eq(index),
            write_index.eq(index - c.misses),
            line_masks.read_en.eq(acting & (act == _Act.SEND)),
            line_masks.read_address.eq(write_index),
        ]

        state, after = states.read_data, Signal(state_layout)
        is_write, live = Signal(), Signal()
        tried, finish, store = Signal(), Signal(), Signal()
        # What was found out about the entry while its row was looked at; `acts`: with it the engine
        # acts, in one cycle.
        acts, more, succeeded, rejected, expired, lapsed, abort_expired = (
            Signal(),
            Signal(),
            Signal(),
            Signal(),
            Signal(),
            Signal(),
            Signal(),
        )
        here = Signal(entries)  # the entry, one-hot
        # Of the completion, which stands until it is taken.
        completion = self.i_completion.payload
        known, attempt, is_ok, is_aborted, mine = Signal(), Signal(), Signal(), Signal(), Signal()
        m.d.sync += [
            live.eq(active.bit_select(index, 1)),
            known.eq(completion.id.index < entries),
            attempt.eq(completion.id.attempt),
            here.eq(1 << index),
            is_ok.eq(completion.status == ColdStatus.OK),
            is_aborted.eq(completion.status == ColdStatus.ABORTED),
        ]
        age, abort_age, abort_stalled = Signal(TIME_BITS), Signal(TIME_BITS), Signal(TIME_BITS)
        m.d.comb += [
            is_write.eq(index >= c.misses),
            age.eq(self.now - state.sent),
            abort_age.eq(self.now - abort_stalled),
            after.eq(state),
        ]
        # The row's next read is two cycles later at the earliest.
        m.d.sync += [
            states.write_address.eq(index),
            states.write_data.eq(after),
            states.write_en.eq(store),
            reading.eq(go),
        ]
        with m.If(reading):
            m.d.sync += looking.eq(1)
        # The entry's row is out: two long comparisons, and what they and the completion mean to it.
        flight, aborting, completes = (
            state.phase == _Phase.FLIGHT,
            state.phase == _Phase.ABORTING,
            act == _Act.COMPLETE,
        )
        m.d.comb += mine.eq(live & known & (attempt == state.attempt))
        with m.If(looking):
            m.d.sync += [
                looking.eq(0),
                acting.eq(1),
                more.eq(state.tries < self.retries),
                expired.eq((act == _Act.SCAN) & live & flight & (age >= self.timeout)),
                lapsed.eq((act == _Act.SCAN) & live & aborting & (age >= self.timeout)),
                abort_expired.eq(abort_age >= self.timeout),
                succeeded.eq(completes & mine & flight & is_ok),
                rejected.eq(completes & mine & Mux(is_aborted, aborting, flight & ~is_ok)),
            ]
        m.d.comb += acts.eq(acting & ~(new_demand & (rejected | lapsed)))
        with m.If(acts):
            m.d.sync += acting.eq(0)
            m.d.comb += [
                tried.eq(rejected | (lapsed & abort_expired)),
                self.i_completion.ready.eq(completes),
            ]
            with m.If(expired):
                m.d.comb += [
                    after.phase.eq(_Phase.ABORT_QUEUED),
                    store.eq(1),
                    aborts.w_en.eq(1),
                    self.o_timeout.eq(1),
                ]
            with m.If(act == _Act.SEND):
                m.d.comb += [
                    store.eq(1),
                    after.phase.eq(_Phase.FLIGHT),
                    after.attempt.eq(~state.attempt),
                    after.tries.eq(Mux(again, state.tries, 0)),
                    after.sent.eq(self.now),
                ]
            with m.If(act == _Act.ABORT):
                m.d.comb += [store.eq(1), after.phase.eq(_Phase.ABORTING), after.sent.eq(self.now)]
            with m.If(tried & more):
                m.d.comb += [
                    push_again.eq(1),
                    store.eq(1),
                    after.phase.eq(_Phase.QUEUED),
                    after.tries.eq(state.tries + 1),
                ]
            m.d.comb += finish.eq(succeeded | (tried & ~more))
        # A new demand goes into line first: it cannot wait. The engine does, when it may put its
        # entry back.
        m.d.sync += [
            new_demand.eq((self.i_fetch.valid & self.i_fetch.p.demand) | raised),
            new_index.eq(Mux(self.i_raise.valid, self.i_raise.p, self.i_fetch.p.miss)),
        ]
        m.d.comb += [
            self.o_retry.eq(push_again),
            demand.w_en.eq(new_demand | (push_again & ~is_write)),
            demand.w_data.index.eq(Mux(new_demand, new_index, index)),
            demand.w_data.again.eq(~new_demand),
            writes.w_en.eq(new_write | (push_again & is_write)),
            writes.w_data.index.eq(Mux(push_again, index, c.misses + wb.token)),
            writes.w_data.again.eq(push_again),
            aborts.w_data.index.eq(index),
        ]

        # - answers --------------------------------------------------------------------------------
        with m.If(self.o_fetched.ready):
            m.d.sync += self.o_fetched.valid.eq(0)
        with m.If(self.o_written_back.ready):
            m.d.sync += self.o_written_back.valid.eq(0)
        sends = acts & (act == _Act.SEND)
        m.d.sync += active.eq(
            (active | (here & sends.replicate(entries))) & ~(here & finish.replicate(entries))
        )
        with m.If(finish):
            with m.If(is_write):
                m.d.sync += [
                    self.o_written_back.valid.eq(1),
                    busy_writes.bit_select(write_index, 1).eq(0),
                ]
            with m.Else():
                m.d.sync += self.o_fetched.valid.eq(1)
        # Critical path: whether there is an answer. What it would be is registered before.
        with m.If(~self.o_written_back.valid):
            m.d.sync += [
                self.o_written_back.payload.token.eq(write_index),
                self.o_written_back.payload.failed.eq(~succeeded),
            ]
        with m.If(~self.o_fetched.valid):
            m.d.sync += [
                self.o_fetched.payload.miss.eq(index),
                self.o_fetched.payload.failed.eq(~succeeded),
                self.o_fetched.payload.line_mask.eq(completion.line_mask),
            ]

        # - commands: a stage between the reads and the two constant multiplications ---------------
        pre, command = (
            Signal(
                S({"op": code_shape(ColdOp), "id": self.layouts.cold_id, "where": where_layout})
            ),
            self.o_command.payload,
        )
        with m.If(acts & ((act == _Act.SEND) | (act == _Act.ABORT))):
            m.d.sync += [
                pre_valid.eq(1),
                Assert(
                    ~pre_valid | ~self.o_command.valid | self.o_command.ready,
                    "a command took another's place",
                ),
            ]
        with m.If(acting & ((act == _Act.SEND) | (act == _Act.ABORT))):
            m.d.sync += [
                pre.op.eq(
                    Mux(act == _Act.ABORT, ColdOp.ABORT, Mux(is_write, ColdOp.WRITE, ColdOp.READ))
                ),
                pre.id.index.eq(index),
                pre.id.attempt.eq(state.attempt ^ (act == _Act.SEND)),
                pre.where.eq(where.read_data),
            ]
        pool = pool_of_frame(c, pre.where.frame)
        with m.If(~self.o_command.valid | self.o_command.ready):
            m.d.sync += [
                self.o_command.valid.eq(pre_valid),
                command.op.eq(pre.op),
                command.id.eq(pre.id),
                command.lba.eq(times(Cat(pre.where.page, pre.where.squeue), c.cold_slot_sectors)),
                command.line.eq(sum(frame_base(c, pool, pre.where.frame))),
                command.lines.eq(Array(c.frame_lines)[pool]),
                command.line_mask.eq(line_masks.read_data),
            ]
            with m.If(pre_valid):
                m.d.sync += pre_valid.eq(0)
        # An ABORT's own deadline counts from its acceptance; one register for all of them makes
        # it end later, never earlier.
        with m.If(
            (pre_valid & (pre.op == ColdOp.ABORT))
            | (self.o_command.valid & (command.op == ColdOp.ABORT))
        ):
            m.d.sync += abort_stalled.eq(self.now)

        # The first SEND of an entry since reset goes out with whatever `attempt` its row shows.
        known_row = Signal(entries)
        m.d.sync += known_row.eq(known_row | (here & store.replicate(entries)))
        leaves = pre_valid & (~self.o_command.valid | self.o_command.ready)
        gather(
            m,
            self.fault,
            *(line.fault for line in (demand, writes, aborts)),
            used(where.fault, acts & ((act == _Act.SEND) | (act == _Act.ABORT))),
            used(states.fault, acts & (live | ((act == _Act.SEND) & (here & known_row).any()))),
            used(line_masks.fault, leaves & (pre.op == ColdOp.WRITE)),
        )

        m.d.comb += [
            self.quiet.eq(
                ~Cat(
                    (reading | looking | acting) & (act != _Act.SCAN),
                    prefetches.any(),
                    new_demand,
                    demand.r_level != 0,
                    writes.r_level != 0,
                    aborts.r_level != 0,
                    pre_valid,
                    self.o_command.valid,
                    self.o_fetched.valid,
                    self.o_written_back.valid,
                    self.i_completion.valid,
                    self.i_fetch.valid,
                    self.i_write_back.valid,
                ).any()
            ),
            self.idle.eq(self.quiet & ~active.any() & ~busy_writes.any()),
        ]

        m.d.comb += Assert(~found | prefetches.bit_select(pointer, 1))
        self._asserts(m, busy_writes, active | prefetches, raised)
        return m

    def _asserts(self, m: Module, busy_writes, busy, raised) -> None:
        """Of what others give, and of the lines. `busy`: entries of fetches that are here."""
        # before the first clock edge inputs mean nothing
        twice, unlined, started = Signal(), Signal(), Signal()
        m.d.sync += started.eq(1)
        m.d.sync += [
            Assert(
                ~started
                | ~(self.i_write_back.valid & self.i_write_back.ready)
                | ~busy_writes.bit_select(self.i_write_back.p.token, 1),
                "two write-backs under one token",
            ),
            twice.eq(
                self.i_fetch.valid
                & (busy.bit_select(self.i_fetch.p.miss, 1) | (self.i_raise.valid & raised))
            ),
            unlined.eq(
                Cat(
                    line.w_en & ~line.w_rdy
                    for line in (m.submodules.demand, m.submodules.writes, m.submodules.aborts)
                ).any()
            ),
        ]
        m.d.comb += [Assert(~twice), Assert(~unlined)]

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
    NOTE = 4  #: the tier has accepted its ABORT


_STATE = data.StructLayout(
    {"phase": code_shape(_Phase), "attempt": 1, "tries": TRY_BITS, "sent": TIME_BITS}
)


class _Turn:
    """The engine's turn at one entry: `go`, then `reading`, `looking` and `acting` on it."""

    def __init__(self, config: Config, entries: int):
        self.can_send = Signal()
        self.can_answer = Signal()
        self.go = Signal()
        self.reading = Signal()
        self.looking = Signal()
        self.acting = Signal()
        # Chosen:
        self.act = Signal(code_shape(_Act))
        self.index = Signal(range(entries))
        self.again = Signal()  #: it was sent before, and failed
        self.here = Signal(entries)  #: `index`, one-hot
        self.is_write = Signal()
        self.write_index = Signal(config.write_back_bits)
        # Found out about it while its row was looked at:
        self.live = Signal()
        self.more = Signal()
        self.succeeded = Signal()
        self.rejected = Signal()
        self.expired = Signal()
        self.lapsed = Signal()
        self.noted = Signal()
        # Done, in one cycle:
        self.acts = Signal()
        self.tried = Signal()  #: a try has failed
        self.store = Signal()  #: the row becomes `after`
        self.after = Signal(_STATE)
        self.push_again = Signal()  #: the entry goes back into line
        self.finish = Signal()  #: it is answered


class _Waiting:
    """What waits to be sent beside the lines. Prefetches wait as one bit each, because a raised one
    leaves from the middle."""

    def __init__(self, config: Config):
        self.prefetches = Signal(config.misses)
        self.any_prefetch = Signal()
        self.pointer = Signal(range(config.misses))
        self.found = Signal()  #: the next prefetch is the one at `pointer`
        self.can_leave = Signal()
        self.raised = Signal()
        self.new_demand = Signal()  #: `new_index` goes into line
        self.new_index = Signal(config.miss_bits)
        self.busy_writes = Signal(config.write_backs)  #: tokens of write-backs that are here


class _Command:
    """A command between the reads and the two constant multiplications."""

    def __init__(self, layouts: Layouts, where: data.StructLayout, entries: int):
        self.pre_valid = Signal()
        self.pre = Signal(
            data.StructLayout({"op": code_shape(ColdOp), "id": layouts.cold_id, "where": where})
        )
        #: An ABORT whose acceptance is not in its entry's row yet, one at a time: whose it is,
        #: whether it was accepted, and when.
        self.abort_out, self.aborted = Signal(), Signal(range(entries))
        self.accepted, self.accepted_at = Signal(), Signal(TIME_BITS)


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
    that id, and neither a retry nor the frame's next use begins before. ABORTs leave one at a time:
    the moment of its acceptance is each one's own, and no other's ABORT puts off an entry's end.
    Completions that nobody waits for are ignored; each try of an entry flips the id's attempt bit,
    so that an old one is not taken for its successor's.

    One engine looks at one entry every four cycles: an ABORT's acceptance first, completions and
    commands in turn, and whenever none is due, the next entry's deadline; at one in `BESIDE` + 1
    entries at least, ABORTs' acceptances apart. So a completion is taken within a few cycles, and
    a timeout is noticed within 4 · (`misses` + `write_backs`) cycles when nothing else happens,
    within `BESIDE` + 1 times as many when something always does, at no cost per entry.

    Errors: two write-backs under one token, a fetch under a miss id in use (asserted). What the
    tier reports is no error of this block: `failed` of the answers reports it.

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
    BESIDE = 15  #: entries looked at for commands and completions between two deadlines, at most

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
        where_layout = data.StructLayout(
            {"squeue": c.squeue_bits, "page": c.page_bits, "frame": c.frame_bits}
        )
        line_layout = data.StructLayout({"index": range(entries), "again": 1})
        self._memory(m, "where", entries, where_layout)
        self._memory(m, "states", entries, _STATE)
        self._memory(m, "line_masks", c.write_backs, self.layouts.line_mask)
        # Lines of entries that wait to be sent, each entry at most once in each; one place more,
        # see FreeList.
        self._line(m, "demand", line_layout, c.misses)
        self._line(m, "writes", line_layout, c.write_backs)
        self._line(m, "aborts", line_layout, entries)

        active = Signal(entries)  # sent at least once and not answered: the row of `states` counts
        turn, waiting = _Turn(c, entries), _Waiting(c)
        command = _Command(self.layouts, where_layout, entries)
        self._take_requests(m, turn, waiting)
        self._find_prefetch(m, turn, waiting, command)
        self._choose(m, turn, waiting, command)
        self._read(m, turn)
        self._look(m, turn, active, command)
        self._act(m, turn, waiting, command)
        self._line_up(m, turn, waiting)
        self._answer(m, turn, waiting, active)
        self._send(m, turn, command)
        self._faults(m, turn, command)
        self._rest(m, turn, waiting, active, command)
        self._asserts(m, waiting, active | waiting.prefetches)
        return m

    def _take_requests(self, m: Module, turn: _Turn, waiting: _Waiting) -> None:
        """Fetches, raises and write-backs to their rows; prefetches and write-backs wait from here
        on, a demand from :meth:`_line_up` on."""
        c, where, line_masks = self.config, m.submodules.where, m.submodules.line_masks
        wb = self.i_write_back.payload
        new_write = self.i_write_back.valid & self.i_write_back.ready
        m.d.comb += [
            # Critical path: whether the engine puts its entry back into line.
            self.i_write_back.ready.eq(~self.i_fetch.valid & ~turn.acting),
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
            m.d.sync += waiting.busy_writes.bit_select(wb.token, 1).eq(1)
        with m.If(self.i_fetch.valid & ~self.i_fetch.p.demand):
            m.d.sync += waiting.prefetches.bit_select(self.i_fetch.p.miss, 1).eq(1)
        with m.If(waiting.raised):
            m.d.sync += waiting.prefetches.bit_select(self.i_raise.p, 1).eq(0)

    def _find_prefetch(self, m: Module, turn: _Turn, waiting: _Waiting, command: _Command) -> None:
        """The next prefetch, found ahead of time: the one at the pointer. And whether the engine
        may send or answer at all."""
        c, lines = self.config, m.submodules
        prefetches, pointer, found = waiting.prefetches, waiting.pointer, waiting.found
        raised_here, blocked = Signal(), Signal()
        m.d.comb += [
            raised_here.eq(self.i_raise.valid & (self.i_raise.p == pointer)),
            # No prefetch leaves in the cycle of a raise, so that whether one is raised does not
            # wait for what the engine chooses.
            waiting.raised.eq(self.i_raise.valid & prefetches.bit_select(self.i_raise.p, 1)),
            waiting.can_leave.eq(found & ~self.i_raise.valid),
            turn.can_send.eq(
                (
                    lines.aborts.r_rdy
                    | lines.demand.r_rdy
                    | waiting.can_leave
                    | (lines.writes.r_rdy & ~waiting.any_prefetch)
                )
                & ~blocked
                # Nothing goes before an ABORT.
                & ~(lines.aborts.r_rdy & command.abort_out)
            ),
            turn.can_answer.eq(~self.o_fetched.valid & ~self.o_written_back.valid),
        ]
        # Whether a command waits for the tier is known a cycle later: the one that the engine may
        # be giving counts as given.
        m.d.sync += [
            waiting.any_prefetch.eq(prefetches.any()),
            blocked.eq(
                (
                    command.pre_valid
                    | (turn.acting & ((turn.act == _Act.SEND) | (turn.act == _Act.ABORT)))
                )
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

    def _choose(self, m: Module, turn: _Turn, waiting: _Waiting, command: _Command) -> None:
        """The entry that the engine looks at next, and why."""
        entries, lines = self.entries, m.submodules
        scan, prefer_send = Signal(range(entries)), Signal()
        choice, chosen, chosen_again = Signal(code_shape(_Act)), Signal(range(entries)), Signal()
        id_ = self.i_completion.payload.id
        # A tier that fails at once, and a host that asks again and again, would leave no turn to
        # a command that is never completed.
        beside, overdue = Signal(range(self.BESIDE + 1)), Signal()
        m.d.comb += overdue.eq((beside == self.BESIDE) & turn.can_answer)
        completes = turn.can_answer & self.i_completion.valid & ~(prefer_send & turn.can_send)
        with m.If(~turn.reading & ~turn.looking & ~turn.acting):
            with m.If(command.accepted):
                m.d.comb += [
                    turn.go.eq(1),
                    choice.eq(_Act.NOTE),
                    chosen.eq(command.aborted),
                ]
            with m.Elif(completes & ~overdue):
                m.d.comb += [
                    turn.go.eq(1),
                    choice.eq(_Act.COMPLETE),
                    chosen.eq(Mux(id_.index < entries, id_.index, 0)),
                ]
            with m.Elif(turn.can_send & ~overdue):
                m.d.comb += [
                    turn.go.eq(1),
                    choice.eq(Mux(lines.aborts.r_rdy, _Act.ABORT, _Act.SEND)),
                ]
                with m.If(lines.aborts.r_rdy):
                    self._next(m, Cat(chosen, chosen_again), lines.aborts)
                with m.Elif(lines.demand.r_rdy):
                    self._next(m, Cat(chosen, chosen_again), lines.demand)
                with m.Elif(waiting.can_leave):
                    m.d.comb += chosen.eq(waiting.pointer)
                    m.d.sync += [
                        waiting.prefetches.bit_select(waiting.pointer, 1).eq(0),
                        waiting.found.eq(0),
                    ]
                with m.Else():
                    self._next(m, Cat(chosen, chosen_again), lines.writes)
            with m.Elif(turn.can_answer):
                m.d.comb += [turn.go.eq(1), choice.eq(_Act.SCAN), chosen.eq(scan)]
                m.d.sync += scan.eq(Mux(scan == entries - 1, 0, scan + 1))
            # Critical path: whether one was chosen. These are taken in any case.
            m.d.sync += [turn.act.eq(choice), turn.index.eq(chosen), turn.again.eq(chosen_again)]
        with m.If(turn.go & (choice != _Act.NOTE)):
            m.d.sync += prefer_send.eq((choice == _Act.COMPLETE) | (prefer_send & overdue))
            m.d.sync += beside.eq(Mux(choice == _Act.SCAN, 0, beside + (beside != self.BESIDE)))

    def _read(self, m: Module, turn: _Turn) -> None:
        """The entry's rows; the line mask only when it is sent."""
        states, where, line_masks = (
            m.submodules[name] for name in ("states", "where", "line_masks")
        )
        m.d.comb += [
            states.read_en.eq(turn.reading),
            states.read_address.eq(turn.index),
            where.read_en.eq(turn.reading),
            where.read_address.eq(turn.index),
            turn.write_index.eq(turn.index - self.config.misses),
            line_masks.read_en.eq(turn.acting & (turn.act == _Act.SEND)),
            line_masks.read_address.eq(turn.write_index),
        ]

    def _look(self, m: Module, turn: _Turn, active: Signal, command: _Command) -> None:
        """The entry's row is out: a long comparison, and what that and the completion mean to
        it."""
        c, states = self.config, m.submodules.states
        state, act, completion = states.read_data, turn.act, self.i_completion.payload
        # Of the completion, which stands until it is taken.
        known, attempt, is_ok, is_aborted, mine = Signal(), Signal(), Signal(), Signal(), Signal()
        m.d.sync += [
            turn.live.eq(active.bit_select(turn.index, 1)),
            known.eq(completion.id.index < self.entries),
            attempt.eq(completion.id.attempt),
            turn.here.eq(1 << turn.index),
            is_ok.eq(completion.status == ColdStatus.OK),
            is_aborted.eq(completion.status == ColdStatus.ABORTED),
        ]
        age, unnoted = Signal(TIME_BITS), Signal()
        m.d.comb += [
            turn.is_write.eq(turn.index >= c.misses),
            age.eq(self.now - state.sent),
            # Its ABORT's time has not begun.
            unnoted.eq(command.abort_out & (command.aborted == turn.index)),
            turn.after.eq(state),
        ]
        # The row's next read is two cycles later at the earliest.
        m.d.sync += [
            states.write_address.eq(turn.index),
            states.write_data.eq(turn.after),
            states.write_en.eq(turn.store),
            turn.reading.eq(turn.go),
        ]
        with m.If(turn.reading):
            m.d.sync += turn.looking.eq(1)
        flight, aborting, completes = (
            state.phase == _Phase.FLIGHT,
            state.phase == _Phase.ABORTING,
            act == _Act.COMPLETE,
        )
        m.d.comb += mine.eq(turn.live & known & (attempt == state.attempt))
        with m.If(turn.looking):
            m.d.sync += [
                turn.looking.eq(0),
                turn.acting.eq(1),
                turn.more.eq(state.tries < self.retries),
                turn.expired.eq((act == _Act.SCAN) & turn.live & flight & (age >= self.timeout)),
                turn.lapsed.eq(
                    (act == _Act.SCAN) & turn.live & aborting & ~unnoted & (age >= self.timeout)
                ),
                turn.noted.eq((act == _Act.NOTE) & turn.live & aborting),
                turn.succeeded.eq(completes & mine & flight & is_ok),
                turn.rejected.eq(completes & mine & Mux(is_aborted, aborting, flight & ~is_ok)),
            ]

    def _act(self, m: Module, turn: _Turn, waiting: _Waiting, command: _Command) -> None:
        """The engine acts, in one cycle, with what was found out about the entry."""
        state, after, aborts = m.submodules.states.read_data, turn.after, m.submodules.aborts
        m.d.comb += turn.acts.eq(
            turn.acting & ~(waiting.new_demand & (turn.rejected | turn.lapsed))
        )
        with m.If(turn.acts):
            m.d.sync += turn.acting.eq(0)
            m.d.comb += [
                turn.tried.eq(turn.rejected | turn.lapsed),
                self.i_completion.ready.eq(turn.act == _Act.COMPLETE),
            ]
            with m.If(turn.expired):
                m.d.comb += [
                    after.phase.eq(_Phase.ABORT_QUEUED),
                    turn.store.eq(1),
                    aborts.w_en.eq(1),
                    self.o_timeout.eq(1),
                ]
            with m.If(turn.act == _Act.SEND):
                m.d.comb += [
                    turn.store.eq(1),
                    after.phase.eq(_Phase.FLIGHT),
                    after.attempt.eq(~state.attempt),
                    after.tries.eq(Mux(turn.again, state.tries, 0)),
                    after.sent.eq(self.now),
                ]
            with m.If(turn.act == _Act.ABORT):
                m.d.comb += [turn.store.eq(1), after.phase.eq(_Phase.ABORTING)]
            with m.If(turn.noted):
                m.d.comb += [turn.store.eq(1), after.sent.eq(command.accepted_at)]
            with m.If(turn.tried & turn.more):
                m.d.comb += [
                    turn.push_again.eq(1),
                    turn.store.eq(1),
                    after.phase.eq(_Phase.QUEUED),
                    after.tries.eq(state.tries + 1),
                ]
            m.d.comb += turn.finish.eq(turn.succeeded | (turn.tried & ~turn.more))

    def _line_up(self, m: Module, turn: _Turn, waiting: _Waiting) -> None:
        """Into the lines. A new demand goes first: it cannot wait. The engine does, when it may put
        its entry back."""
        c, wb, is_write = self.config, self.i_write_back.payload, turn.is_write
        demand, writes, aborts = (m.submodules[name] for name in ("demand", "writes", "aborts"))
        new_demand, new_index = waiting.new_demand, waiting.new_index
        new_write = self.i_write_back.valid & self.i_write_back.ready
        m.d.sync += [
            new_demand.eq((self.i_fetch.valid & self.i_fetch.p.demand) | waiting.raised),
            new_index.eq(Mux(self.i_raise.valid, self.i_raise.p, self.i_fetch.p.miss)),
        ]
        m.d.comb += [
            self.o_retry.eq(turn.push_again),
            demand.w_en.eq(new_demand | (turn.push_again & ~is_write)),
            demand.w_data.index.eq(Mux(new_demand, new_index, turn.index)),
            demand.w_data.again.eq(~new_demand),
            writes.w_en.eq(new_write | (turn.push_again & is_write)),
            writes.w_data.index.eq(Mux(turn.push_again, turn.index, c.misses + wb.token)),
            writes.w_data.again.eq(turn.push_again),
            aborts.w_data.index.eq(turn.index),
        ]

    def _answer(self, m: Module, turn: _Turn, waiting: _Waiting, active: Signal) -> None:
        """What has succeeded or failed is no longer `active`, and is answered."""
        with m.If(self.o_fetched.ready):
            m.d.sync += self.o_fetched.valid.eq(0)
        with m.If(self.o_written_back.ready):
            m.d.sync += self.o_written_back.valid.eq(0)
        sends, finish, entries = turn.acts & (turn.act == _Act.SEND), turn.finish, self.entries
        m.d.sync += active.eq(
            (active | (turn.here & sends.replicate(entries)))
            & ~(turn.here & finish.replicate(entries))
        )
        with m.If(finish):
            with m.If(turn.is_write):
                m.d.sync += [
                    self.o_written_back.valid.eq(1),
                    waiting.busy_writes.bit_select(turn.write_index, 1).eq(0),
                ]
            with m.Else():
                m.d.sync += self.o_fetched.valid.eq(1)
        # Critical path: whether there is an answer. What it would be is registered before.
        with m.If(~self.o_written_back.valid):
            m.d.sync += [
                self.o_written_back.payload.token.eq(turn.write_index),
                self.o_written_back.payload.failed.eq(~turn.succeeded),
            ]
        with m.If(~self.o_fetched.valid):
            m.d.sync += [
                self.o_fetched.payload.miss.eq(turn.index),
                self.o_fetched.payload.failed.eq(~turn.succeeded),
                self.o_fetched.payload.line_mask.eq(self.i_completion.payload.line_mask),
            ]

    def _send(self, m: Module, turn: _Turn, stage: _Command) -> None:
        """Commands, by way of `stage`."""
        c, act, state = self.config, turn.act, m.submodules.states.read_data
        pre_valid, pre, command = stage.pre_valid, stage.pre, self.o_command.payload
        with m.If(turn.acts & ((act == _Act.SEND) | (act == _Act.ABORT))):
            m.d.sync += [
                pre_valid.eq(1),
                Assert(
                    ~pre_valid | ~self.o_command.valid | self.o_command.ready,
                    "a command took another's place",
                ),
            ]
        with m.If(turn.acting & ((act == _Act.SEND) | (act == _Act.ABORT))):
            write_or_read = Mux(turn.is_write, ColdOp.WRITE, ColdOp.READ)
            m.d.sync += [
                pre.op.eq(Mux(act == _Act.ABORT, ColdOp.ABORT, write_or_read)),
                pre.id.index.eq(turn.index),
                pre.id.attempt.eq(state.attempt ^ (act == _Act.SEND)),
                pre.where.eq(m.submodules.where.read_data),
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
                command.line_mask.eq(m.submodules.line_masks.read_data),
            ]
            with m.If(pre_valid):
                m.d.sync += pre_valid.eq(0)
        # An ABORT's own deadline counts from its acceptance.
        with m.If(turn.acts & (act == _Act.ABORT)):
            m.d.sync += [stage.abort_out.eq(1), stage.aborted.eq(turn.index)]
        with m.If(self.o_command.valid & self.o_command.ready & (command.op == ColdOp.ABORT)):
            m.d.sync += [stage.accepted.eq(1), stage.accepted_at.eq(self.now)]
        with m.If(turn.acts & (act == _Act.NOTE)):
            m.d.sync += [stage.abort_out.eq(0), stage.accepted.eq(0)]

    def _faults(self, m: Module, turn: _Turn, command: _Command) -> None:
        """What a memory yields counts when it is used."""
        acts, act, s = turn.acts, turn.act, m.submodules
        # The first SEND of an entry since reset goes out with whatever `attempt` its row shows.
        known_row = Signal(self.entries)
        m.d.sync += known_row.eq(known_row | (turn.here & turn.store.replicate(self.entries)))
        leaves = command.pre_valid & (~self.o_command.valid | self.o_command.ready)
        row_counts = turn.live | ((act == _Act.SEND) & (turn.here & known_row).any())
        gather(
            m,
            self.fault,
            *(line.fault for line in (s.demand, s.writes, s.aborts)),
            used(s.where.fault, acts & ((act == _Act.SEND) | (act == _Act.ABORT))),
            used(s.states.fault, acts & row_counts),
            used(s.line_masks.fault, leaves & (command.pre.op == ColdOp.WRITE)),
        )

    def _rest(
        self, m: Module, turn: _Turn, waiting: _Waiting, active: Signal, command: _Command
    ) -> None:
        """`quiet` and `idle`."""
        lines = (m.submodules[name] for name in ("demand", "writes", "aborts"))
        m.d.comb += [
            self.quiet.eq(
                ~Cat(
                    (turn.reading | turn.looking | turn.acting) & (turn.act != _Act.SCAN),
                    waiting.prefetches.any(),
                    waiting.new_demand,
                    *(line.r_level != 0 for line in lines),
                    command.pre_valid,
                    command.accepted,
                    self.o_command.valid,
                    self.o_fetched.valid,
                    self.o_written_back.valid,
                    self.i_completion.valid,
                    self.i_fetch.valid,
                    self.i_write_back.valid,
                ).any()
            ),
            self.idle.eq(self.quiet & ~active.any() & ~waiting.busy_writes.any()),
        ]
        m.d.comb += Assert(~waiting.found | waiting.prefetches.bit_select(waiting.pointer, 1))

    def _asserts(self, m: Module, waiting: _Waiting, busy) -> None:
        """Of what others give, and of the lines. `busy`: entries of fetches that are here."""
        # before the first clock edge inputs mean nothing
        twice, unlined, started = Signal(), Signal(), Signal()
        m.d.sync += started.eq(1)
        m.d.sync += [
            Assert(
                ~started
                | ~(self.i_write_back.valid & self.i_write_back.ready)
                | ~waiting.busy_writes.bit_select(self.i_write_back.p.token, 1),
                "two write-backs under one token",
            ),
            twice.eq(
                self.i_fetch.valid
                & (busy.bit_select(self.i_fetch.p.miss, 1) | (self.i_raise.valid & waiting.raised))
            ),
            unlined.eq(
                Cat(
                    line.w_en & ~line.w_rdy
                    for line in (m.submodules.demand, m.submodules.writes, m.submodules.aborts)
                ).any()
            ),
        ]
        m.d.comb += [Assert(~twice), Assert(~unlined)]

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Register accesses of the host: the window's sequencer, session commands, telemetry read-out (spec
§3, §9). One access at a time: a read of eight registers is answered after 13 cycles, of eight
counters after 53 at most, a write of one register that is no session command after 19 cycles."""

from __future__ import annotations

from amaranth.hdl import Array, Assert, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from kelp_spec.coherence import least_limit
from kelp_spec.config import POOLS, Config
from kelp_spec.messages import LD_ID_BITS
from kelp_spec.metadata import Event, Op
from kelp_spec.registers import (
    EVENT_RECORDS,
    HISTOGRAM_BINS,
    LONGEST_WAIT,
    SESSION_BASE,
    SESSION_STRIDE,
    RegisterMap,
)

from ..layouts import TIME_BITS, Layouts, ResidentLines
from ..lib.broadcast import broadcast
from ..lib.histogram import LatencyHistogram
from ..tracker.signatures import PoolUse
from .counters import QueueCounters, TotalCounters
from .events import EventLog, told_ports
from .register_file import RegisterFile
from .session_control import SessionControl
from .signatures import Counted, status_layout

__all__ = ["Registers"]

_OWED_BITS = 12  #: of steps of a session that wait for M0: more are the most


class Registers(wiring.Component):
    """Serves one register access at a time (spec §3, §9).

    A write's Cmp comes after its effect: a session command's after its op has passed M3. Refused
    accesses answer zeros / Cmp and raise REGISTER_REFUSED.

    Latency: from an access to its answer `LATENCY` cycles for a read of eight registers, event
    records or latencies. Other lines are waited for at their first word: counters for
    `TotalCounters.TURN` - 1 cycles at most (`COUNTERS_LATENCY` in all); counters of a queue for 2
    cycles, and until one in which no queue's event is counted; the line with `resident` for 2
    cycles, and until the queue's lines are counted or `RESIDENT_WAIT` cycles are over: then it
    reads 0. `WRITE_LATENCY` for a write of one register that is no session command, and one cycle
    for each further one. Interval: `INTERVAL` cycles between reads of registers, while the answer
    is taken at once. Counters that the reader may not see are not waited for.

    Parameters
    ----------
    config : Config
    event_sources : int
        Event inputs of the other blocks.

    Members
    -------
    i : in, stream of register_access
        The access stays until it is answered.
    o : out, stream of window_answer
    now : in
    status : in
        Of the endpoint (:func:`.signatures.status_layout`).
    sessions : in
        Session registers as M3 has them.
    decode : in
        Bit s: session s is in decode.
    pools : in, PoolUse
        Frames in use of each pool.
    i_result : in, always-ready stream of result
        Results of M3.
    settings : out
        Values of the control registers (`Layouts.settings`).
    config_write : out, always-ready stream of config_write
        One queue's configuration.
    descriptor : out
        The session register that an OPEN op on `o_control` sets.
    o_control : out, stream of op
        Session commands and steps.
    i_counted : in, Counted
        What counts one more.
    i_latency : in, always-ready stream of latency
        A request was answered: cycles, and whether it missed.
    i_event : in, always-ready streams of event, one per source
    resident : out, ResidentLines
        Of the queue that the host reads.
    quiet : out
        Nothing may enter the pipeline: counters of a queue wait for a cycle in which none counts
        (`QueueCounters`).
    irq : out
        Interrupt of the event log, or `status.fatal`.
    o_told : out, always-ready stream, with `Config.cxlio`
        Events.
    idle : out
        No access, command, step or report is in the block.
    cleared : out
        The telemetry memories are zero after reset.
    """

    LATENCY = 2 + 8 + RegisterFile.LATENCY  # a word a cycle, and the way through the file
    COUNTERS_LATENCY = LATENCY + TotalCounters.TURN - 1
    RESIDENT_WAIT = 127
    WRITE_LATENCY = 2 + 8 * 2 + 1  # two cycles a word, one more for one that is written
    INTERVAL = LATENCY + 2

    def __init__(self, *, config: Config, event_sources: int):
        self.config = config
        self.layouts = layouts = Layouts(config)
        self.event_sources = event_sources
        self.queue_counters = QueueCounters(config=config)
        super().__init__(
            {
                "i": In(stream.Signature(layouts.register_access)),
                "o": Out(stream.Signature(layouts.window_answer)),
                "now": In(TIME_BITS),
                "status": In(status_layout()),
                "sessions": In(data.ArrayLayout(layouts.session, config.sessions)),
                "decode": In(config.sessions),
                "pools": In(PoolUse(config)),
                "i_result": In(stream.Signature(layouts.result, always_ready=True)),
                "settings": Out(layouts.settings),
                "config_write": Out(stream.Signature(layouts.config_write, always_ready=True)),
                "descriptor": Out(layouts.session),
                "o_control": Out(stream.Signature(layouts.op)),
                "i_counted": In(Counted(config)),
                "i_latency": In(stream.Signature(layouts.latency, always_ready=True)),
                "i_event": In(stream.Signature(layouts.event, always_ready=True)).array(
                    event_sources
                ),
                "resident": Out(ResidentLines(config)),
                "quiet": Out(1),
                "irq": Out(1),
                "idle": Out(1),
                "cleared": Out(1),
                **told_ports(config),
            }
        )

    def elaborate(self, platform):
        m = Module()
        c = self.config
        names = RegisterMap(c).by_name
        external = [
            n
            for n in names
            if n.startswith(("count_", "hit_latency_", "miss_latency_", "event_time_"))
            or (n.startswith("event_") and n[6:].isdigit())
            or "_queue_" in n
            or n.endswith("_resident")
        ]
        m.submodules.file = RegisterFile(config=c, external=external)
        m.submodules.control = SessionControl(config=c)
        m.submodules.totals = TotalCounters()
        m.submodules.queue_counters = self.queue_counters
        m.submodules.histogram = LatencyHistogram(cycle_bits=self.layouts.latency["cycles"].shape)
        m.submodules.events = EventLog(config=c, sources=self.event_sources + 2)
        self._sessions(m)
        self._settings(m)
        self._states(m)
        due = self._steps(m)
        refused = self._telemetry(m)
        waited = Signal(range(self.RESIDENT_WAIT + 1))  # cycles of a read at its first word
        come = self._read_out(m, waited)
        self._sequencer(m, due, refused, waited, come)
        return m

    def _sessions(self, m: Module) -> None:
        """Whose registers are whose; what commands are given and where configurations go."""
        c = self.config
        file, control, queues = m.submodules.file, m.submodules.control, m.submodules.queue_counters
        owners = data.ArrayLayout(LD_ID_BITS, c.sessions)
        owner = Signal(owners)
        for s in range(c.sessions):
            m.d.comb += owner[s].eq(Mux(self.sessions[s].open, self.sessions[s].ld_id, 0))
            m.d.comb += [
                control.sessions.open[s].eq(self.sessions[s].open),
                control.sessions.closing[s].eq(self.sessions[s].closing),
            ]
            for part in ("shape", "formats", "queue", "policy", "recency", "budget"):
                m.d.comb += getattr(control.registers, part)[s].eq(getattr(file, f"rw_s{s}_{part}"))
        # A session's owner may write until the cycle in which the session is closed. Its registers
        # are reset in the next.
        was_open = Signal(c.sessions)
        is_open = Cat(self.sessions[s].open for s in range(c.sessions))
        m.d.sync += was_open.eq(is_open)
        m.d.comb += [
            file.forget.eq(was_open & ~is_open),
            file.owner.eq(owner),
            control.given.ld_id.eq(file.ld_id),
            control.configuration.ready.eq(~control.configuration.opening | queues.wipe_ready),
            # A session begins with counters of 0: its owner may not read what another's did.
            queues.wipe_squeue.eq(control.configuration.write.p.squeue),
            queues.wipe.eq(control.configuration.opening),
            self.quiet.eq(queues.quiet),
            self.descriptor.eq(control.descriptor),
        ]
        # Critical path: `control.configuration.write` to the blocks' memories: registered here. The
        # op that ends the walk is two cycles behind the last configuration.
        broadcast(m, control.configuration.write, self.config_write, registered=True)
        for s in range(c.sessions):
            with m.If(getattr(file, f"wo_s{s}_command_strobe")):
                m.d.comb += [
                    control.given.command.valid.eq(1),
                    control.given.session.eq(s),
                    control.given.command.p.eq(getattr(file, f"wo_s{s}_command")),
                ]

    def _settings(self, m: Module) -> None:
        """Registers to settings, and the device's status to registers."""
        c = self.config
        file, events = m.submodules.file, m.submodules.events
        for name in ("low_water", "high_water", "reserve", "cold_retries"):
            m.d.comb += self.settings[name].eq(getattr(file, "rw_" + name).value)
        for name in ("cold_timeout", "starve_limit"):
            wanted = getattr(file, "rw_" + name).value
            longest = wanted > LONGEST_WAIT
            m.d.comb += self.settings[name].eq(Mux(longest, LONGEST_WAIT, wanted))
        m.d.comb += self.settings.prefetch_enable.eq(file.rw_prefetch_enable.as_value())
        for p, pool in enumerate(POOLS):
            limit, fitting, following = (
                Signal(24, init=c.frames[p], name=f"{what}_{pool}")
                for what in ("limit", "fitting", "following")
            )
            wanted = getattr(file, f"rw_pool_limit_{pool}").value
            least = least_limit(c)
            too_few = wanted < least if c.coherence else wanted == 0
            m.d.sync += [
                fitting.eq(Mux(wanted > c.frames[p], c.frames[p], Mux(too_few, least, wanted))),
                limit.eq(following),
            ]
            # A pool in use keeps its limit; the new one is taken once the pool is empty. The one
            # pop that may come in that very cycle finds a frame under any limit, because none is 0.
            m.d.comb += [
                following.eq(Mux(self.pools.unused[p], fitting, limit)),
                self.settings.pool_limit[p].eq(following),
                getattr(file, f"ro_pool_used_{pool}").value.eq(self.pools.used[p]),
            ]
        m.d.comb += [
            file.ro_status.ready.eq(self.status.ready),
            file.ro_status.quiescent.eq(self.status.quiescent),
            file.ro_status.irq.eq(self.irq),
            file.ro_status.event_overflow.eq(events.overflow),
            file.ro_status.fatal.eq(self.status.fatal),
            file.ro_event_count.value.eq(events.count),
            events.clear.eq(file.wo_event_clear_strobe & file.wo_event_clear.value),
            events.take.eq(file.wo_event_taken_strobe),
            events.taken.count.eq(file.wo_event_taken.count),
            events.taken.overflow.eq(file.wo_event_taken.overflow),
            events.irq_enable.eq(file.rw_irq_enable.value),
            self.irq.eq(events.irq | self.status.fatal),
        ]

    def _states(self, m: Module) -> None:
        """Each session's state, and the page word that it asked for."""
        c = self.config
        file, control = m.submodules.file, m.submodules.control
        given = control.given
        # The evictor's PEEKs, which look for a frame's owner, carry its token.
        peek, peeked = Signal(self.layouts.page_word), Signal()
        m.d.comb += peeked.eq(
            self.i_result.valid
            & (self.i_result.p.op.kind == Op.PEEK)
            & (self.i_result.p.op.slot == 0)
        )
        with m.If(peeked):
            m.d.sync += peek.eq(self.i_result.p.word)
        for s in range(c.sessions):
            state, word = getattr(file, f"ro_s{s}_state"), getattr(file, f"ro_s{s}_page_word")
            m.d.comb += [
                state.open.eq(self.sessions[s].open & ~self.sessions[s].closing),
                state.busy.eq((given.busy & (given.busy_session == s)) | self.sessions[s].closing),
                state.refused.eq(given.refused[s]),
                state.decode.eq(self.decode[s]),
                state.step.eq(self.sessions[s].step),
            ]
            # The word belongs to the session that asked: another owner must not read it.
            asked = Signal(name=f"asked_{s}")
            with m.If(peeked):
                m.d.sync += asked.eq(self.i_result.p.op.session == s)
            with m.If(~self.sessions[s].open):
                m.d.sync += asked.eq(0)  # nor the session's next owner
            with m.If(asked):
                m.d.comb += [
                    getattr(word, f).eq(getattr(peek, f))
                    for f in ("state", "format_k", "format_v", "pinned", "place", "last_step")
                ]

    def _steps(self, m: Module) -> Value:
        """Steps that accesses advance, beside the ops of commands; whether a step is due, or has
        left in the cycle before."""
        c = self.config
        file, control = m.submodules.file, m.submodules.control
        access = (
            self.i_result.valid
            & self.i_result.p.first
            & ((self.i_result.p.op.kind == Op.READ) | (self.i_result.p.op.kind == Op.WRITE))
        )
        # Of each session the steps that wait for `o_control`, which takes them all at once: several
        # may fall due before that.
        owed = [Signal(_OWED_BITS, name=f"owed_{s}") for s in range(c.sessions)]
        due, takes = Signal(c.sessions), Signal()
        step_session, stepped = Signal(c.session_bits), Signal(c.session_bits)
        m.d.comb += due.eq(Cat(steps.any() for steps in owed))
        for s, steps in enumerate(owed):
            count, more = Signal(24, name=f"accesses_{s}"), Signal(name=f"more_{s}")
            every = getattr(file, f"rw_s{s}_auto_step").value
            left = Mux(takes & (step_session == s), 0, steps)
            m.d.sync += steps.eq(left + (more & ~left.all()))
            with m.If((every == 0) | ~self.sessions[s].open):
                m.d.sync += [count.eq(0), steps.eq(0)]
            with m.Elif(access & (self.i_result.p.op.session == s)):
                m.d.comb += more.eq(count + 1 >= every)
                m.d.sync += count.eq(Mux(more, 0, count + 1))
        # In turn, from the session behind the one that stepped last: one whose step is always due
        # keeps no other's waiting.
        for behind in (False, True):
            for s in reversed(range(int(behind), c.sessions)):  # session 0 is behind none
                with m.If(due[s] & ((stepped < s) if behind else 1)):
                    m.d.comb += step_session.eq(s)
        # `o_control` is driven by registers only. Critical path: `o_control.ready` to
        # `control.o_op.ready`: registered here (`went`). `control` counts its cycles to M3 from
        # there.
        of_control, went = Signal(), Signal()
        m.d.comb += control.o_op.ready.eq(went & of_control)
        m.d.sync += went.eq(self.o_control.valid & self.o_control.ready)
        with m.If(self.o_control.valid):
            m.d.sync += self.o_control.valid.eq(~self.o_control.ready)
        with m.Elif(~went):
            m.d.comb += takes.eq(~control.o_op.valid & due.any())
            m.d.sync += [
                self.o_control.valid.eq(control.o_op.valid | due.any()),
                self.o_control.p.eq(control.o_op.p),
                of_control.eq(control.o_op.valid),
            ]
            with m.If(~control.o_op.valid):
                m.d.sync += [
                    self.o_control.p.kind.eq(Op.STEP),
                    self.o_control.p.session.eq(step_session),
                    self.o_control.p.delta.eq(Array(owed)[step_session]),
                ]
            with m.If(takes):
                m.d.sync += stepped.eq(step_session)
        return due.any() | went

    def _telemetry(self, m: Module) -> Signal:
        """What is counted and recorded; the signal by which the sequencer records a refusal."""
        c = self.config
        file, control, totals = m.submodules.file, m.submodules.control, m.submodules.totals
        queues, histogram, events = (
            m.submodules.queue_counters,
            m.submodules.histogram,
            m.submodules.events,
        )
        # Reset empties the telemetry memories row by row; the longest of them sets the time.
        clear, longest = Signal(init=1), max(c.squeues, totals.TURN + 4, histogram.ROWS)
        clearing = Signal(range(longest + 1))
        m.d.sync += clearing.eq(Mux(clear, clearing + 1, 0))
        with m.If(clearing == longest):
            m.d.sync += clear.eq(0)
        m.d.comb += [
            self.cleared.eq(~clear),
            totals.clear.eq(clear),
            queues.clear.eq(clear),
            histogram.clear.eq(clear),
            totals.pulses.eq(self.i_counted.pulses),
            events.now.eq(self.now),
        ]
        connect(m, flipped(self.i_counted.queue), queues.i)
        connect(m, flipped(self.i_counted.useful), queues.i_useful)
        connect(m, flipped(self.i_latency), histogram.i)
        if self.config.cxlio:
            connect(m, events.o_told, flipped(self.o_told))
        for k in range(self.event_sources):
            connect(m, flipped(self.i_event[k]), events.i[k])
        connect(m, control.o_event, events.i[self.event_sources])
        refused = Signal()
        m.d.comb += [
            events.i[self.event_sources + 1].valid.eq(refused),
            events.i[self.event_sources + 1].p.code.eq(Event.REGISTER_REFUSED),
            events.i[self.event_sources + 1].p.ld_id.eq(file.ld_id),
            events.i[self.event_sources + 1].p.argument.eq(file.index),
        ]
        return refused

    def _read_out(self, m: Module, waited: Signal) -> Signal:
        """Words of the telemetry memories, each two cycles after its index. The signal that the
        line's words may be asked for, one a cycle, and `index` is at the second after the next
        cycle; until then it is at the first, for `waited` cycles by now, and then `waited` is 0."""
        c = self.config
        file, totals, queues = m.submodules.file, m.submodules.totals, m.submodules.queue_counters
        histogram, events = m.submodules.histogram, m.submodules.events
        index = file.index
        select = Array(getattr(file, f"rw_s{s}_queue").queue for s in range(c.sessions))
        session, given = Signal(c.session_bits), Signal(c.session_bits)
        session_shift = (SESSION_STRIDE // 8).bit_length() - 1
        # An index that is no session's names none that there is not: no memory has a row for it.
        m.d.comb += [
            given.eq((index - SESSION_BASE // 8) >> session_shift),
            session.eq(_within(given, c.sessions)),
        ]
        squeue = Signal(c.squeue_bits)
        m.d.sync += squeue.eq(
            session * c.queues + Mux(select[session] < c.queues, select[session], 0)
        )
        # OPEN has wiped the counters of the queues in use; the others may hold those of an earlier
        # owner.
        in_use = Signal()
        m.d.sync += in_use.eq(
            select[session] < Array(s.used_queues for s in self.sessions)[session]
        )
        # The word of two cycles ago; the line is still the same.
        word, word_next, line = Signal(3), Signal(3), Signal(session_shift - 3)
        m.d.sync += [word_next.eq(index[:3]), word.eq(word_next)]
        m.d.comb += line.eq(index[3:])
        histogram_row = Signal.like(histogram.read_data)
        m.d.sync += histogram_row.eq(histogram.read_data)
        queue_row = Signal.like(queues.read_data)
        queue_due = Signal()
        m.d.sync += queue_due.eq(queues.read_grant)
        with m.If(queue_due):
            m.d.sync += queue_row.eq(queues.read_data)
        m.d.comb += Assert(squeue < c.squeues)
        number = Cat(word[1:], index[3:5])
        m.d.comb += [
            histogram.read_row.eq(index[:6]),
            queues.read_squeue.eq(squeue),
            self.resident.squeue.eq(squeue),
            events.read_index.eq(number),
        ]
        record = events.read_data
        resident_line = RegisterMap(c).by_name["s0_resident"].offset % SESSION_STRIDE // 64
        # `file.allowed`, `squeue` and `counted` are of this line two cycles after its index came.
        settled, counted, come = Signal(), Signal(), Signal(init=1)
        m.d.comb += settled.eq(waited >= 2)
        m.d.sync += counted.eq(self.resident.known)
        with m.If(index >= SESSION_BASE // 8):
            with m.If(line < 0x80 // 64):
                m.d.comb += file.external_data.eq(self.resident.lines)
                with m.If(line == resident_line):
                    m.d.comb += come.eq(settled & (counted | waited.all()))
            with m.Else():
                m.d.comb += file.external_data.eq(
                    Mux(in_use, Array(queue_row[i] for i in range(len(queues.names)))[word], 0)
                )
                m.d.comb += [
                    queues.read.eq(settled & file.allowed),
                    come.eq(settled & (queues.read_grant | ~file.allowed)),
                ]
        with m.Elif(index >= 0x800 // 8):
            m.d.comb += file.external_data.eq(histogram_row)
        with m.Elif(index >= 0x400 // 8):
            m.d.comb += file.external_data.eq(totals.read_data)
            # In step with the pointer: it is at the line's first row a cycle before `index` is. No
            # row is waited for that does not come, or that the reader may not see.
            m.d.comb += come.eq((totals.pointer == line << 3) | (settled & ~file.allowed))
        with m.Elif(~word[0]):
            with m.If(number < events.count):
                m.d.comb += file.external_data.eq(
                    record.event.code
                    | record.event.ld_id << 8
                    | record.event.squeue << 12
                    | record.event.page << 28
                    | record.event.argument << 44
                )
        with m.Elif(number < events.count):
            m.d.comb += file.external_data.eq(record.time)
        assert HISTOGRAM_BINS <= 32 and EVENT_RECORDS == 16
        return come

    def _sequencer(
        self, m: Module, due: Value, refused: Signal, waited: Signal, come: Signal
    ) -> None:
        """The words of an access, one after another."""
        file, control, totals = m.submodules.file, m.submodules.control, m.submodules.totals
        queues, events = m.submodules.queue_counters, m.submodules.events
        word = Signal(3)
        # `step[k]`: word k is at `file.index`; it is in the line `file.LATENCY` cycles later.
        line, step, first = Signal(512), Signal(8 + file.LATENCY), Signal()
        m.d.sync += step.eq(Cat(first, step))
        for k in range(8):
            with m.If(step[k + file.LATENCY]):
                m.d.sync += line.word_select(k, 64).eq(file.read_data)
        side = self.i.p
        # A word is written in the cycle after its register is decoded: it is picked from the line
        # meanwhile. One of which no byte is written needs no decoding.
        lane_enable = Signal(8)
        # Critical path: `i.p` to the decoder of `file`: registered here.
        m.d.sync += file.index.eq(side.offset << 3 | word)
        m.d.sync += [
            lane_enable.eq(side.byte_enable.word_select(word, 8)),
            file.write_data.eq(side.data.word_select(word, 64)),
        ]
        m.d.comb += [
            file.ld_id.eq(side.ld_id),
            self.o.p.tag.eq(side.tag),
            self.o.p.ld_id.eq(side.ld_id),
            self.o.p.write.eq(side.write),
            self.o.p.data.eq(Mux(side.write, 0, line)),
        ]
        for b in range(8):
            m.d.comb += file.mask[8 * b : 8 * b + 8].eq(lane_enable[b].replicate(8))
        touched, served, decoded = Signal(), Signal(), Signal(2)
        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += self.idle.eq(
                    ~self.i.valid
                    & ~control.given.busy
                    & ~due
                    & ~self.o_control.valid
                    & totals.idle
                    & queues.idle
                    & events.idle
                )
                m.d.sync += [word.eq(0), touched.eq(0), served.eq(0), decoded.eq(0)]
                with m.If(self.i.valid):
                    with m.If(side.write):
                        m.next = "WRITE"
                    with m.Else():
                        m.next = "READ"
            with m.State("WRITE"):
                # A command may be running still: its registers must not change under it. Which
                # register comes next is known two cycles later.
                m.d.sync += decoded.eq(Cat(1, decoded[0]))
                writes = lane_enable.any()
                with m.If(decoded[0] & (~writes | (~control.given.busy & decoded[1]))):
                    m.d.sync += decoded.eq(0)
                    m.d.comb += file.write.eq(writes & ~side.poison)
                    with m.If(writes & file.known & (~file.allowed | side.poison)):
                        m.d.comb += refused.eq(1)
                    m.d.sync += word.eq(word + 1)
                    with m.If(word == 7):
                        m.next = "SETTLE"
            with m.State("SETTLE"):
                with m.If(~control.given.busy):
                    m.next = "ANSWER"
            with m.State("READ"):
                m.d.sync += waited.eq(waited + ~waited.all())
                with m.If(come):
                    m.d.comb += first.eq(1)
                    m.d.sync += [word.eq(1), waited.eq(0)]
                    m.next = "WORDS"
            with m.State("WORDS"):
                with m.If(word != 0):
                    m.d.sync += word.eq(word + 1)
                # From the first cycle on the decoder tells of words of this line.
                with m.If(file.known):
                    m.d.sync += [
                        touched.eq(touched | ~file.allowed),
                        served.eq(served | file.allowed),
                    ]
                with m.If(step[-1]):
                    # A host that may read some registers of a line is not refused for the others:
                    # it polls its own state there.
                    m.d.comb += refused.eq(touched & ~served)
                    m.next = "ANSWER"
            with m.State("ANSWER"):
                m.d.comb += self.o.valid.eq(1)
                with m.If(self.o.ready):
                    m.next = "DONE"
            with m.State("DONE"):
                # Critical path: `o.ready` to `i.ready`: a state between them.
                m.d.comb += self.i.ready.eq(1)
                m.next = "IDLE"


def _within(number: Signal, count: int) -> Value:
    """`number`, or 0 where it is not below `count`."""
    return number if count == 1 << len(number) else Mux(number < count, number, 0)

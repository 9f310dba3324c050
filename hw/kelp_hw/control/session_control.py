# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Session commands: OPEN with its walk over the session's queues, CLOSE, step advance, queue
parameters, PEEK (spec §3, §9). A command without a walk becomes an op after 5 cycles, one in 16
cycles; a walk gives its first configuration after 21 cycles, then one a cycle."""

from __future__ import annotations

from amaranth.hdl import Array, Const, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config
from kelp_spec.formats import Format
from kelp_spec.messages import LD_ID_BITS
from kelp_spec.metadata import LAYER_RANGES, Event, Op
from kelp_spec.registers import SessionCommand

from ..layouts import Layouts, code_shape
from ..pipeline import DECIDED
from .signatures import Commands, Configuration, SessionRegisters, SessionStates

__all__ = ["SessionControl"]


class _Command:
    """The command under way, and its session's registers."""

    def __init__(self, owner: SessionControl):
        registers = owner.registers
        self.command = Signal(4)
        self.argument = Signal(24)
        self.session = Signal(owner.config.session_bits)
        self.ld_id = Signal(LD_ID_BITS)
        self.opening = Signal()
        # The pages of an open session keep the shape and the formats that it was opened with, also
        # when the host has written these registers since.
        self.opened_shape = Signal.like(registers.shape)
        self.opened_formats = Signal.like(registers.formats)
        self.shape = Signal.like(registers.shape[0])
        self.formats = Signal.like(registers.formats[0])
        self.queue = Signal.like(registers.queue[0])
        self.policy = Signal.like(registers.policy[0])
        self.recency = Signal.like(registers.recency[0])
        self.budget = Signal.like(registers.budget[0])
        self.is_open = owner.sessions.open.bit_select(self.session, 1)
        self.is_closing = owner.sessions.closing.bit_select(self.session, 1)
        #: Its registers stay as they are while the command runs: a CLOSE would be a command, too.
        self.usable = self.is_open & ~self.is_closing

    def last_layer(self, r):
        """Last layer of range `r` of layers."""
        return self.formats[f"last_layer_{r}"]

    def format(self, half, r):
        """Format of `half`, k or v, in range `r` of layers."""
        return Array(self.formats[f"format_{half}_{n}"] for n in range(LAYER_RANGES))[r]


class _Limits:
    """What the shape means, a cycle or two after the command. Critical path: `shape` to these:
    registered here; CHECK and POOLS wait for them."""

    def __init__(self, shape):
        self.used_queues = Signal(20)
        self.layers = Signal.like(shape.layers)
        self.heads = Signal.like(shape.kv_heads)
        self.legal = Signal()
        self.selects_own = Signal()  #: the selected queue is one that the session uses


class _Walk:
    """Where the walk is: first over the ranges of layers, then over the session's queues."""

    def __init__(self, config: Config):
        self.wait = Signal(range(DECIDED + 1))
        self.range_index = Signal(range(LAYER_RANGES))
        self.stored = Signal(config.half_line_bits + 4)  #: DRAM lines of a page of that range
        self.pools = Array(Signal(2, name=f"pool_{r}") for r in range(LAYER_RANGES))
        self.bad_format = Signal()
        self.layer = Signal(10)
        self.head = Signal(10)
        self.index = Signal(config.queue_bits + 1)
        self.squeue = Signal(config.squeue_bits)
        self.own_range = Signal(range(LAYER_RANGES))  #: of `layer`
        self.selected = Signal(config.squeue_bits)


class SessionControl(wiring.Component):
    """Carries out one session command at a time (spec §3, §9).

    OPEN checks the descriptor, writes every queue's configuration, then sends an OPEN op. It is
    refused (`given.refused`, an event) when the session is open or still closing, by any LD-ID but
    0, or with a descriptor (or a format) outside the configuration. CLOSE, ADVANCE and PEEK become
    ops; APPLY repeats the walk for one queue or all, with the shape and the formats that the
    session was opened with. PEEK and APPLY of a queue that it does not use are refused; of a PEEK's
    page the bits count that a page of the configuration has.
    While the session is not open, or is closing, every command but OPEN is refused. A command ends
    when its op has passed M3; the next one is taken after that.

    Latency: `LATENCY` cycles from a command without a walk to `o_op`, `WALK_LATENCY` from one with
    a walk to its first configuration. Interval: `INTERVAL` cycles between commands without a walk,
    while `o_op` is taken at once; a walk writes one configuration per cycle with
    `configuration.ready`.

    Parameters
    ----------
    config : Config

    Members
    -------
    given : in, Commands
        A command at a time, and what came of it.
    registers : in, SessionRegisters
        Of each session.
    sessions : in, SessionStates
    configuration : out, Configuration
        What a walk writes.
    descriptor : out
        The session register that an OPEN op sets.
    o_op : out, stream of op
    o_event : out, always-ready stream of event
        A refused command.
    """

    _CHECK = 4  #: cycles of state CHECK, and of state POOLS for each range of layers
    LATENCY = 1 + _CHECK
    WALK_LATENCY = LATENCY + _CHECK * LAYER_RANGES
    INTERVAL = LATENCY + 1 + DECIDED + 2  # `o_op` taken, SETTLE, DONE

    def __init__(self, *, config: Config):
        self.config = config
        self.layouts = layouts = Layouts(config)
        super().__init__(
            {
                "given": In(Commands(config)),
                "registers": In(SessionRegisters(config)),
                "sessions": In(SessionStates(config)),
                "configuration": Out(Configuration(config)),
                "descriptor": Out(layouts.session),
                "o_op": Out(stream.Signature(layouts.op)),
                "o_event": Out(stream.Signature(layouts.event, always_ready=True)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        command, walk = _Command(self), _Walk(self.config)
        self._of_session(m, command)
        limits = self._limits(m, command)
        self._stored_lines(m, command, walk)
        self._configuration(m, command, walk)
        self._descriptor(m, command, limits)
        m.d.comb += [
            self.given.busy_session.eq(command.session),
            self.o_event.p.code.eq(Event.OPEN_REFUSED),
            self.o_event.p.ld_id.eq(command.ld_id),
            self.o_event.p.argument.eq(command.session),
            self.o_op.p.session.eq(command.session),
            self.o_op.p.delta.eq(command.argument),
            walk.selected.eq(command.session * self.config.queues + command.queue.queue),
        ]
        with m.FSM():
            with m.State("IDLE"):
                with m.If(self.given.command.valid):
                    m.d.sync += [
                        command.command.eq(self.given.command.p.command),
                        command.argument.eq(self.given.command.p.argument),
                        command.session.eq(self.given.session),
                        command.ld_id.eq(self.given.ld_id),
                        walk.wait.eq(0),
                    ]
                    m.next = "CHECK"
            self._check(m, command, limits, walk)
            self._choose_pools(m, command, walk)
            self._write(m, command, limits, walk)
            self._send(m, command, walk)
            with m.State("DONE"):
                m.d.comb += self.given.busy.eq(1)
                m.d.sync += self.given.refused.bit_select(command.session, 1).eq(0)
                m.next = "IDLE"
            with m.State("REFUSE"):
                m.d.comb += [self.given.busy.eq(1), self.o_event.valid.eq(1)]
                m.d.sync += self.given.refused.bit_select(command.session, 1).eq(1)
                m.next = "IDLE"
        return m

    def _of_session(self, m: Module, command: _Command) -> None:
        """The registers of the command's session."""

        def chosen(given):
            return Array(each.as_value() for each in given)[command.session]

        opening = command.opening
        m.d.comb += [
            opening.eq(command.command == SessionCommand.OPEN),
            command.shape.as_value().eq(
                Mux(opening, chosen(self.registers.shape), chosen(command.opened_shape))
            ),
            command.formats.as_value().eq(
                Mux(opening, chosen(self.registers.formats), chosen(command.opened_formats))
            ),
            command.queue.as_value().eq(chosen(self.registers.queue)),
            command.policy.as_value().eq(chosen(self.registers.policy)),
            command.recency.as_value().eq(chosen(self.registers.recency)),
            command.budget.as_value().eq(chosen(self.registers.budget)),
        ]

    def _limits(self, m: Module, command: _Command) -> _Limits:
        c, shape = self.config, command.shape
        limits = _Limits(shape)
        used_queues = limits.used_queues
        m.d.sync += [
            limits.layers.eq(shape.layers),
            limits.heads.eq(shape.kv_heads),
            used_queues.eq(limits.layers * limits.heads),
            limits.legal.eq(
                (used_queues != 0)
                & (used_queues <= c.queues)
                & (shape.used_lines != 0)
                & (shape.used_lines <= c.half_lines)
                & (shape.used_pages != 0)
                & (shape.used_pages <= c.pages)
            ),
            # A queue that the session does not use may be another session's.
            limits.selects_own.eq(command.queue.queue < used_queues),
        ]
        return limits

    def _stored_lines(self, m: Module, command: _Command, walk: _Walk) -> None:
        """DRAM lines of a page of the range at hand."""
        m.submodules.stored = lines = _StoredLines(config=self.config)
        k, v = (command.format(half, walk.range_index) for half in "kv")
        m.d.sync += [
            lines.format_k.eq(k if self.config.codecs else Format.RAW16),
            lines.format_v.eq(v if self.config.codecs else Format.RAW16),
            lines.used_lines.eq(command.shape.used_lines),
            lines.k_only.eq(command.shape.k_only),
            walk.stored.eq(lines.lines),
        ]

    def _configuration(self, m: Module, command: _Command, walk: _Walk) -> None:
        """What `configuration.write` says of the queue that the walk is at."""
        c, q = self.config, self.configuration.write.p.queue_config
        policy, recency, budget = command.policy, command.recency, command.budget.value
        m.d.comb += walk.own_range.eq(LAYER_RANGES - 1)
        for r in reversed(range(LAYER_RANGES)):
            with m.If(walk.layer <= command.last_layer(r)):
                m.d.comb += walk.own_range.eq(r)
        if c.select_tables:
            m.d.comb += q.tables.eq(policy.tables)
        m.d.comb += [
            self.configuration.write.p.squeue.eq(walk.squeue),
            *(
                q[name].eq(policy[name])
                for name in ("alpha", "mass_shift", "score_source", "window", "policy")
            ),
            *(q[name].eq(recency[name]) for name in ("tau_m", "tau_sh", "idle_m", "idle_sh")),
            q.budget.eq(Mux(budget >> c.dram_line_bits, ~0, budget)),
            q.format_k.eq(command.format("k", walk.own_range)),
            q.format_v.eq(command.format("v", walk.own_range)),
            q.pool.eq(walk.pools[walk.own_range]),
        ]

    def _descriptor(self, m: Module, command: _Command, limits: _Limits) -> None:
        """The session register that an OPEN sets."""
        d, shape = self.descriptor, command.shape
        m.d.comb += [
            d.open.eq(1),
            d.closing.eq(0),
            d.ld_id.eq(shape.owner),
            d.host_type.eq(shape.host_type),
            d.used_queues.eq(limits.used_queues),
            d.used_lines.eq(shape.used_lines),
            d.k_only.eq(shape.k_only),
            d.used_pages.eq(shape.used_pages),
            d.kv_heads.eq(shape.kv_heads),
            d.step.eq(0),
        ]

    def _check(self, m: Module, command: _Command, limits: _Limits, walk: _Walk) -> None:
        """State CHECK: three cycles for the registered product and limits, then one verdict."""
        is_open, is_closing, usable = command.is_open, command.is_closing, command.usable
        policy = command.policy
        privileged, selects_own = command.ld_id == 0, limits.selects_own
        with m.State("CHECK"):
            m.d.comb += self.given.busy.eq(1)
            m.d.sync += [
                walk.wait.eq(walk.wait + 1),
                walk.range_index.eq(0),
                walk.bad_format.eq(0),
            ]
            with m.If(walk.wait == self._CHECK - 1):
                m.next = "REFUSE"
                with m.Switch(command.command):
                    with m.Case(SessionCommand.OPEN):
                        with m.If(privileged & limits.legal & ~is_open & ~is_closing):
                            m.next = "POOLS"
                    with m.Case(SessionCommand.CLOSE):
                        with m.If(privileged & usable):
                            m.next = "SEND"
                    with m.Case(SessionCommand.APPLY_QUEUE, SessionCommand.APPLY_ALL):
                        with m.If(
                            usable
                            & (policy.alpha != 0)
                            & (policy.alpha <= 256)
                            & ((command.command == SessionCommand.APPLY_ALL) | selects_own)
                        ):
                            m.next = "POOLS"
                    with m.Case(SessionCommand.ADVANCE, SessionCommand.PEEK):
                        with m.If(
                            usable & ((command.command == SessionCommand.ADVANCE) | selects_own)
                        ):
                            m.next = "SEND"
                m.d.sync += walk.wait.eq(0)

    def _choose_pools(self, m: Module, command: _Command, walk: _Walk) -> None:
        """State POOLS: of each range formats, its sizes, their sum, then the smallest frame that
        holds them."""
        c, at = self.config, walk.range_index
        with m.State("POOLS"):
            m.d.comb += self.given.busy.eq(1)
            m.d.sync += walk.wait.eq(walk.wait + 1)
            with m.If(walk.wait == self._CHECK - 1):
                smallest = Const(0, 2)
                for size, pool in sorted(
                    ((size, p) for p, size in enumerate(c.frame_lines)), reverse=True
                ):
                    smallest = Mux(walk.stored <= size, pool, smallest)
                m.d.sync += [
                    walk.pools[at].eq(smallest),
                    at.eq(at + 1),
                    walk.wait.eq(0),
                ]
                with m.If(
                    (command.format("k", at) > max(c.formats))
                    | (command.format("v", at) > max(c.formats))
                ):
                    m.d.sync += walk.bad_format.eq(1)
                with m.If(at == LAYER_RANGES - 1):
                    m.d.sync += [
                        walk.layer.eq(0),
                        walk.head.eq(0),
                        walk.index.eq(0),
                        walk.squeue.eq(command.session * c.queues),
                    ]
                    m.next = "WALK"

    def _write(self, m: Module, command: _Command, limits: _Limits, walk: _Walk) -> None:
        """State WALK: a queue's configuration per cycle, of all queues or of the selected one."""
        with m.State("WALK"):
            m.d.comb += self.given.busy.eq(1)
            with m.If(walk.bad_format):
                m.next = "REFUSE"
            with m.Else():
                m.d.comb += self.configuration.opening.eq(command.opening)
                wanted = (command.command != SessionCommand.APPLY_QUEUE) | (
                    walk.squeue == walk.selected
                )
                m.d.comb += self.configuration.write.valid.eq(wanted & self.configuration.ready)
                with m.If(~wanted | self.configuration.ready):
                    m.d.sync += [
                        walk.index.eq(walk.index + 1),
                        walk.squeue.eq(walk.squeue + 1),
                        walk.head.eq(walk.head + 1),
                    ]
                    with m.If(walk.head + 1 == limits.heads):
                        m.d.sync += [walk.head.eq(0), walk.layer.eq(walk.layer + 1)]
                    with m.If(walk.index + 1 == limits.used_queues):
                        m.next = "SEND"
                        with m.If(command.command != SessionCommand.OPEN):
                            m.next = "DONE"

    def _send(self, m: Module, command: _Command, walk: _Walk) -> None:
        """States SEND and SETTLE: the command's op, until it has passed M3."""
        op = self.o_op.p
        with m.State("SEND"):
            m.d.comb += [
                self.given.busy.eq(1),
                self.o_op.valid.eq(1),
                op.squeue.eq(walk.selected),
                op.page.eq(command.queue.page),
                op.kind.eq(Op.PEEK),
            ]
            with m.Switch(command.command):
                with m.Case(SessionCommand.OPEN):
                    m.d.comb += op.kind.eq(Op.OPEN)
                    # What the walk went by: where CLOSED passes M3 in the cycle of the verdict, the
                    # formats of the session before are forgotten in the next.
                    for s in range(self.config.sessions):
                        with m.If(command.session == s):
                            m.d.sync += [
                                command.opened_shape[s].eq(command.shape),
                                command.opened_formats[s].eq(command.formats),
                            ]
                with m.Case(SessionCommand.CLOSE):
                    m.d.comb += op.kind.eq(Op.CLOSE)
                with m.Case(SessionCommand.ADVANCE):
                    m.d.comb += op.kind.eq(Op.STEP)
            with m.If(self.o_op.ready):
                m.next = "SETTLE"
        with m.State("SETTLE"):
            m.d.comb += self.given.busy.eq(1)
            m.d.sync += walk.wait.eq(walk.wait + 1)
            with m.If(walk.wait == DECIDED):
                m.next = "DONE"


class _StoredLines(wiring.Component):
    """DRAM lines of a stored page from its formats: the integer form of
    `kelp_spec.geometry.StoredPage.lines` (spec §4).

    Latency: `LATENCY` cycle. Interval: `INTERVAL`.

    Parameters
    ----------
    config : Config

    Members
    -------
    format_k, format_v : in
        Formats of the two halves.
    used_lines : in
        Host lines of a half.
    k_only : in
        The page has no V half.
    lines : out
    """

    LATENCY = 1
    INTERVAL = 1

    def __init__(self, *, config: Config):
        self.bits = config.half_line_bits
        super().__init__(
            {
                "format_k": In(code_shape(Format)),
                "format_v": In(code_shape(Format)),
                "used_lines": In(self.bits + 1),
                "k_only": In(1),
                "lines": Out(self.bits + 4),
            }
        )

    def elaborate(self, platform):
        m = Module()
        n = self.used_lines

        def payload(fmt):
            lines = Signal(self.bits + 1)
            with m.Switch(fmt):
                for f in Format:
                    per = f.lines_per_dram_line
                    with m.Case(f):
                        m.d.comb += lines.eq((n + (per - 1)) >> (per.bit_length() - 1))
            return lines

        def scales(fmt):
            size = Signal(self.bits + 3)
            with m.Switch(fmt):
                for f in Format:
                    with m.Case(f):
                        m.d.comb += size.eq(n * f.scale_bytes)
            return size

        k, v, k_bytes, v_bytes = (
            Signal(self.bits + 1),
            Signal(self.bits + 1),
            Signal(self.bits + 3),
            Signal(self.bits + 3),
        )
        k_only = Signal()
        m.d.sync += [
            k.eq(payload(self.format_k)),
            v.eq(payload(self.format_v)),
            k_bytes.eq(scales(self.format_k)),
            v_bytes.eq(scales(self.format_v)),
            k_only.eq(self.k_only),
        ]
        total = Signal(self.bits + 4)
        m.d.comb += [
            # That V's two-byte scales are aligned adds a byte behind an odd number of bytes alone:
            # it never begins a line.
            total.eq(k_bytes + Mux(k_only, 0, v_bytes)),
            self.lines.eq(k + Mux(k_only, 0, v) + ((total + 63) >> 6)),
        ]
        return m

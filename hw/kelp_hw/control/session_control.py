# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Session commands: OPEN with its walk over the session's queues, CLOSE, step advance, queue
parameters, PEEK (spec §3, §9). A command without a walk becomes an op after 5 cycles, one in 16
cycles; a walk gives its first configuration after 21 cycles, then one a cycle."""

from __future__ import annotations

from amaranth.hdl import Array, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config
from kelp_spec.formats import Format
from kelp_spec.metadata import LAYER_RANGES, Event, Op
from kelp_spec.registers import RegisterMap, SessionCommand

from ..layouts import Layouts, code_shape
from ..pipeline import DECIDED
from .register_file import register_layout

__all__ = ["SessionControl"]


class SessionControl(wiring.Component):
    """Carries out one session command at a time (spec §3, §9).

    OPEN checks the descriptor, writes every queue's configuration, then sends an OPEN op. It is
    refused (`refused`, an event) when the session is open or still closing, by any LD-ID but 0, or
    with a descriptor (or a format) outside the configuration. CLOSE, ADVANCE and PEEK become ops;
    APPLY repeats the walk for one queue or all, with the shape and the formats that the session was
    opened with. PEEK and APPLY of a queue that the session does not use are refused. A command ends
    when its op has passed M3; the next one is taken after that.

    Latency: `LATENCY` cycles from a command without a walk to `o_op`, `WALK_LATENCY` from one with
    a walk to its first configuration. Interval: `INTERVAL` cycles between commands without a walk,
    while `o_op` is taken at once; a walk writes one configuration per cycle with `config_ready`.

    Parameters
    ----------
    config : Config

    Members
    -------
    command : in, always-ready stream of the command register
        Taken while `busy` is low.
    command_session, command_ld_id : in
        Session of the command, and the host that sends it.
    shape, formats, queue, policy, recency, budget : in
        The registers of those names of each session.
    open, closing : in
        Bit s: session s is open, is closing.
    owner : in
        LD-ID that owns each session.
    config_write : out, always-ready stream of config_write
        One queue's configuration.
    config_ready : in
        `config_write` may be valid in this cycle.
    opening : out
        The walk is that of an OPEN.
    descriptor : out
        The session register that an OPEN op sets.
    o_op : out, stream of op
    busy : out
        A command is carried out, of session `busy_session`.
    busy_session : out
    refused : out
        Bit s: the last command of session s was refused.
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
        by_name = RegisterMap(config).by_name

        def per_session(name):
            return data.ArrayLayout(register_layout(by_name["s0_" + name]), config.sessions)

        super().__init__(
            {
                "command": In(
                    stream.Signature(register_layout(by_name["s0_command"]), always_ready=True)
                ),
                "command_session": In(config.session_bits),
                "command_ld_id": In(4),
                "shape": In(per_session("shape")),
                "formats": In(per_session("formats")),
                "queue": In(per_session("queue")),
                "policy": In(per_session("policy")),
                "recency": In(per_session("recency")),
                "budget": In(per_session("budget")),
                "open": In(config.sessions),
                "closing": In(config.sessions),
                "owner": In(data.ArrayLayout(4, config.sessions)),
                "config_write": Out(stream.Signature(layouts.config_write, always_ready=True)),
                "config_ready": In(1),
                "opening": Out(1),
                "descriptor": Out(layouts.session),
                "o_op": Out(stream.Signature(layouts.op)),
                "busy": Out(1),
                "busy_session": Out(config.session_bits),
                "refused": Out(config.sessions),
                "o_event": Out(stream.Signature(layouts.event, always_ready=True)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        c = self.config
        command, argument, session, ld_id = Signal(4), Signal(24), Signal(c.session_bits), Signal(4)

        def of_session(given):
            held = Signal.like(given[0])
            m.d.comb += held.as_value().eq(
                Array(given[s].as_value() for s in range(c.sessions))[session]
            )
            return held

        # The pages of an open session keep the shape and the formats that it was opened with, also
        # when the host has written these registers since.
        opened_shape, opened_formats = Signal.like(self.shape), Signal.like(self.formats)
        opening = Signal()
        m.d.comb += opening.eq(command == SessionCommand.OPEN)
        shape, formats = Signal.like(self.shape[0]), Signal.like(self.formats[0])
        for held, given, kept in (
            (shape, self.shape, opened_shape),
            (formats, self.formats, opened_formats),
        ):
            m.d.comb += held.as_value().eq(
                Mux(opening, of_session(given).as_value(), of_session(kept).as_value())
            )
        queue, policy, recency, budget = (
            of_session(given) for given in (self.queue, self.policy, self.recency, self.budget)
        )
        is_open = self.open.bit_select(session, 1)
        is_closing = self.closing.bit_select(session, 1)

        # Critical path: `shape` to `used_queues`, `legal` and `pools`: registered here; CHECK and
        # POOLS wait for them.
        used_queues, layers, heads = (
            Signal(20),
            Signal.like(shape.layers),
            Signal.like(shape.kv_heads),
        )
        m.d.sync += [
            layers.eq(shape.layers),
            heads.eq(shape.kv_heads),
            used_queues.eq(layers * heads),
        ]
        legal = Signal()
        m.d.sync += legal.eq(
            (used_queues != 0)
            & (used_queues <= c.queues)
            & (shape.used_lines != 0)
            & (shape.used_lines <= c.half_lines)
            & (shape.used_pages != 0)
            & (shape.used_pages <= c.pages)
        )
        # A queue that the session does not use may be another session's.
        selects_own = Signal()
        m.d.sync += selects_own.eq(queue.queue < used_queues)
        range_index = Signal(range(LAYER_RANGES))
        stored = Signal(c.half_line_bits + 4)
        pools = Array(Signal(2, name=f"pool_{r}") for r in range(LAYER_RANGES))
        ranges = [
            (formats[f"last_layer_{r}"], formats[f"format_k_{r}"], formats[f"format_v_{r}"])
            for r in range(LAYER_RANGES)
        ]
        format_k = Array(k for _, k, _ in ranges)
        format_v = Array(v for _, _, v in ranges)
        m.submodules.stored = lines = _StoredLines(config=c)
        m.d.sync += [
            lines.format_k.eq(format_k[range_index] if c.codecs else Format.RAW16),
            lines.format_v.eq(format_v[range_index] if c.codecs else Format.RAW16),
            lines.used_lines.eq(shape.used_lines),
            lines.k_only.eq(shape.k_only),
            stored.eq(lines.lines),
        ]
        bad_format = Signal()

        layer, head, index, squeue = (
            Signal(10),
            Signal(10),
            Signal(c.queue_bits + 1),
            Signal(c.squeue_bits),
        )
        wait = Signal(range(DECIDED + 1))
        own_range = Signal(range(LAYER_RANGES))
        m.d.comb += own_range.eq(LAYER_RANGES - 1)
        for r in reversed(range(LAYER_RANGES)):
            with m.If(layer <= ranges[r][0]):
                m.d.comb += own_range.eq(r)
        q = self.config_write.p.queue_config
        m.d.comb += [
            self.config_write.p.squeue.eq(squeue),
            q.alpha.eq(policy.alpha),
            q.mass_shift.eq(policy.mass_shift),
            q.score_source.eq(policy.score_source),
            q.window.eq(policy.window),
            q.policy.eq(policy.policy),
            q.tau_m.eq(recency.tau_m),
            q.tau_sh.eq(recency.tau_sh),
            q.idle_m.eq(recency.idle_m),
            q.idle_sh.eq(recency.idle_sh),
            q.budget.eq(Mux(budget.value >> c.dram_line_bits, ~0, budget.value)),
            q.format_k.eq(format_k[own_range]),
            q.format_v.eq(format_v[own_range]),
            q.pool.eq(pools[own_range]),
        ]
        d = self.descriptor
        m.d.comb += [
            d.open.eq(1),
            d.closing.eq(0),
            d.ld_id.eq(shape.owner),
            d.host_type.eq(shape.host_type),
            d.used_queues.eq(used_queues),
            d.used_lines.eq(shape.used_lines),
            d.k_only.eq(shape.k_only),
            d.used_pages.eq(shape.used_pages),
            d.kv_heads.eq(shape.kv_heads),
            d.step.eq(0),
        ]

        def refuse():
            return [self.refused.bit_select(session, 1).eq(1)]

        m.d.comb += [
            self.busy_session.eq(session),
            self.o_event.p.code.eq(Event.OPEN_REFUSED),
            self.o_event.p.ld_id.eq(ld_id),
            self.o_event.p.argument.eq(session),
        ]
        op = self.o_op.p
        m.d.comb += [op.session.eq(session), op.delta.eq(argument)]
        selected = Signal(c.squeue_bits)
        m.d.comb += selected.eq(session * c.queues + queue.queue)

        with m.FSM():
            with m.State("IDLE"):
                with m.If(self.command.valid):
                    m.d.sync += [
                        command.eq(self.command.p.command),
                        argument.eq(self.command.p.argument),
                        session.eq(self.command_session),
                        ld_id.eq(self.command_ld_id),
                        wait.eq(0),
                    ]
                    m.next = "CHECK"
            with m.State("CHECK"):
                # Three cycles for the registered product and limits, then one verdict.
                m.d.comb += self.busy.eq(1)
                m.d.sync += [wait.eq(wait + 1), range_index.eq(0), bad_format.eq(0)]
                with m.If(wait == 3):
                    privileged = ld_id == 0
                    m.next = "REFUSE"
                    with m.Switch(command):
                        with m.Case(SessionCommand.OPEN):
                            with m.If(privileged & legal & ~is_open & ~is_closing):
                                for s in range(c.sessions):
                                    with m.If(session == s):
                                        m.d.sync += [
                                            opened_shape[s].eq(shape),
                                            opened_formats[s].eq(formats),
                                        ]
                                m.next = "POOLS"
                        with m.Case(SessionCommand.CLOSE):
                            with m.If(privileged & is_open & ~is_closing):
                                m.next = "SEND"
                        with m.Case(SessionCommand.APPLY_QUEUE, SessionCommand.APPLY_ALL):
                            with m.If(
                                is_open
                                & (policy.alpha != 0)
                                & (policy.alpha <= 256)
                                & ((command == SessionCommand.APPLY_ALL) | selects_own)
                            ):
                                m.next = "POOLS"
                        with m.Case(SessionCommand.ADVANCE, SessionCommand.PEEK):
                            with m.If(
                                is_open & ((command == SessionCommand.ADVANCE) | selects_own)
                            ):
                                m.next = "SEND"
                    m.d.sync += wait.eq(0)
            with m.State("POOLS"):
                # Each range: formats, its sizes, their sum, then the smallest frame that holds
                # them.
                m.d.comb += self.busy.eq(1)
                m.d.sync += wait.eq(wait + 1)
                with m.If(wait == 3):
                    smallest = Const(0, 2)
                    for size, pool in sorted(
                        ((size, p) for p, size in enumerate(c.frame_lines)), reverse=True
                    ):
                        smallest = Mux(stored <= size, pool, smallest)
                    m.d.sync += [
                        pools[range_index].eq(smallest),
                        range_index.eq(range_index + 1),
                        wait.eq(0),
                    ]
                    with m.If(
                        (format_k[range_index] > max(c.formats))
                        | (format_v[range_index] > max(c.formats))
                    ):
                        m.d.sync += bad_format.eq(1)
                    with m.If(range_index == LAYER_RANGES - 1):
                        m.d.sync += [
                            layer.eq(0),
                            head.eq(0),
                            index.eq(0),
                            squeue.eq(session * c.queues),
                        ]
                        m.next = "WALK"
            with m.State("WALK"):
                m.d.comb += self.busy.eq(1)
                with m.If(bad_format):
                    m.next = "REFUSE"
                with m.Else():
                    m.d.comb += self.opening.eq(opening)
                    wanted = (command != SessionCommand.APPLY_QUEUE) | (squeue == selected)
                    m.d.comb += self.config_write.valid.eq(wanted & self.config_ready)
                    with m.If(~wanted | self.config_ready):
                        m.d.sync += [index.eq(index + 1), squeue.eq(squeue + 1), head.eq(head + 1)]
                        with m.If(head + 1 == heads):
                            m.d.sync += [head.eq(0), layer.eq(layer + 1)]
                        with m.If(index + 1 == used_queues):
                            m.next = "SEND"
                            with m.If(command != SessionCommand.OPEN):
                                m.next = "DONE"
            with m.State("SEND"):
                m.d.comb += [
                    self.busy.eq(1),
                    self.o_op.valid.eq(1),
                    op.squeue.eq(selected),
                    op.page.eq(queue.page),
                    op.kind.eq(Op.PEEK),
                ]
                with m.Switch(command):
                    with m.Case(SessionCommand.OPEN):
                        m.d.comb += op.kind.eq(Op.OPEN)
                    with m.Case(SessionCommand.CLOSE):
                        m.d.comb += op.kind.eq(Op.CLOSE)
                    with m.Case(SessionCommand.ADVANCE):
                        m.d.comb += op.kind.eq(Op.STEP)
                with m.If(self.o_op.ready):
                    m.d.sync += wait.eq(0)
                    m.next = "SETTLE"
            with m.State("SETTLE"):
                m.d.comb += self.busy.eq(1)
                m.d.sync += wait.eq(wait + 1)
                with m.If(wait == DECIDED):
                    m.next = "DONE"
            with m.State("DONE"):
                m.d.comb += self.busy.eq(1)
                m.d.sync += self.refused.bit_select(session, 1).eq(0)
                m.next = "IDLE"
            with m.State("REFUSE"):
                m.d.comb += [self.busy.eq(1), self.o_event.valid.eq(1)]
                m.d.sync += refuse()
                m.next = "IDLE"
        return m


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
        aligned, k_only = Signal(), Signal()  # V's two-byte scales are aligned
        m.d.sync += [
            k.eq(payload(self.format_k)),
            v.eq(payload(self.format_v)),
            k_bytes.eq(scales(self.format_k)),
            v_bytes.eq(scales(self.format_v)),
            aligned.eq(self.format_v == Format.INT4),
            k_only.eq(self.k_only),
        ]
        start = Signal(self.bits + 4)
        total = Signal(self.bits + 5)
        m.d.comb += [
            start.eq(k_bytes + (k_bytes[0] & aligned)),
            total.eq(Mux(k_only | (v_bytes == 0), k_bytes, start + v_bytes)),
            self.lines.eq(k + Mux(k_only, 0, v) + ((total + 63) >> 6)),
        ]
        return m

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Session registers at M3, and what they say of a request (spec §3, docs/design.md §2). One command
a cycle, seen after 1 cycle; the check of a request is combinational."""

from __future__ import annotations

from amaranth.hdl import Assert, Module, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config
from kelp_spec.messages import LD_ID_BITS
from kelp_spec.metadata import Event

from ..layouts import Layouts

__all__ = ["SessionCheck", "Sessions"]


class Sessions(wiring.Component):
    """The registers of every session (spec §3).

    Latency: `LATENCY` cycle from a command to `sessions`; one command in each cycle (`INTERVAL`).
    Errors: OPEN of an open session, two commands at once (asserted).

    OPEN takes `descriptor` and sets `open`; it is for a session that is not open. CLOSE sets
    `closing` of an open one, CLOSED clears both, STEP adds `delta` to the step, modulo 2^24.

    Parameters
    ----------
    config : Config

    Members
    -------
    select : in
        The session that the command is for.
    open, close, closed, step : in
        The command.
    delta : in
        Steps, with `step`.
    descriptor : in
        The registers, with `open`.
    sessions : out
        Registers of every session.
    """

    LATENCY = 1
    INTERVAL = 1

    def __init__(self, *, config: Config):
        self.config = config
        layouts = Layouts(config)
        super().__init__(
            {
                "select": In(config.session_bits),
                "open": In(1),
                "close": In(1),
                "closed": In(1),
                "step": In(1),
                "delta": In(layouts.op["delta"].shape),
                "descriptor": In(layouts.session),
                "sessions": Out(data.ArrayLayout(layouts.session, config.sessions)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        for s in range(self.config.sessions):
            session = self.sessions[s]
            with m.If(self.select == s):
                with m.If(self.open):
                    m.d.sync += [
                        session.eq(self.descriptor),
                        session.open.eq(1),
                        session.closing.eq(0),
                    ]
                    m.d.sync += Assert(~session.open)
                with m.If(self.close):
                    m.d.sync += session.closing.eq(1)
                with m.If(self.closed):
                    m.d.sync += [session.open.eq(0), session.closing.eq(0)]
                with m.If(self.step):
                    m.d.sync += session.step.eq(session.step + self.delta)
        m.d.sync += Assert(self.open + self.close + self.closed + self.step <= 1)
        return m


class SessionCheck(wiring.Component):
    """Whether a request may go on: 0, or the Event code of its refusal (spec §3).

    Combinational (`LATENCY` 0), a request in each cycle (`INTERVAL`).

    The first that applies: what ingress found, CLOSED_SESSION (not open, or closing), FOREIGN_LD,
    OUT_OF_MAP (queue, page or line beyond what the session uses, V of a K-only session).

    Parameters
    ----------
    config : Config

    Members
    -------
    session : in
        The registers of the request's session.
    refused : in
        What ingress found, an Event code.
    ld_id, queue, page, kv_line : in
        Of the request; `queue` is within the session.
    event : out
        The Event code, NONE when it may go on.
    """

    LATENCY = 0
    INTERVAL = 1

    def __init__(self, *, config: Config):
        self.config = config
        layouts = Layouts(config)
        super().__init__(
            {
                "session": In(layouts.session),
                "refused": In(layouts.op["refused"].shape),
                "ld_id": In(LD_ID_BITS),
                "queue": In(config.queue_bits),
                "page": In(config.page_bits),
                "kv_line": In(config.line_bits),
                "event": Out(layouts.op["refused"].shape),
            }
        )

    def elaborate(self, platform):
        m = Module()
        half = self.config.half_line_bits
        s = self.session
        outside = Signal()
        m.d.comb += outside.eq(
            (self.queue >= s.used_queues)
            | (self.page >= s.used_pages)
            | (self.kv_line[:half] >= s.used_lines)
            | (self.kv_line[half] & s.k_only)
        )
        m.d.comb += self.event.eq(self.refused)
        with m.If(self.refused == Event.NONE):
            with m.If(~s.open | s.closing):
                m.d.comb += self.event.eq(Event.CLOSED_SESSION)
            with m.Elif(self.ld_id != s.ld_id):
                m.d.comb += self.event.eq(Event.FOREIGN_LD)
            with m.Elif(outside):
                m.d.comb += self.event.eq(Event.OUT_OF_MAP)
        return m

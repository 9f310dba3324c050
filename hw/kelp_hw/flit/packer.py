# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The sending end of one direction: messages of three channels into flits (docs/cxl.md, "Flits").
One message of each channel and one flit a cycle; a flit leaves after 2 cycles at the earliest."""

from __future__ import annotations

from types import SimpleNamespace

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.flit import (
    BYTE_ENABLES,
    COUNT_BITS,
    DIRECTIONS,
    HOLD,
    NOTHING_TOLD,
    PLENTY,
    QUEUE,
    REFRESH,
    VERSION,
    Middle,
)

from ..layouts import MESSAGES
from ..lib.power_of_two import power_of_two
from ..lib.protected import BlockFault, ProtectedFifo, gather
from .credits import CreditSender
from .layouts import FLIT, GRANTED, PORTS, TOLD, any_of, header

__all__ = ["FlitPacker"]

_COUNTED = 6  #: counts that are told in turn


class FlitPacker(wiring.Component):
    """A flit is filled while messages come, and leaves when the link takes one and it is full,
    or one of its channels has no room in it, or nothing came in this cycle, or `HOLD` cycles have
    passed. While the link takes none it goes on being filled.

    In each cycle a message with data finds its places first, then the narrow channel's, then the
    other wide one's. Narrow messages leave x to lines that may still begin; when `PLENTY` of them
    wait at a flit's begin they take y, which costs it half a line.

    Latency: `LATENCY` cycles from a message to its flit at a quiet link, one more on the narrow
    channel. One message of each channel and one flit a cycle (`INTERVAL`). A message waits while
    its channel has no credit, and no other channel does.

    Parameters
    ----------
    direction : str
        One of `kelp_spec.flit.DIRECTIONS`.
    protect : bool
        The narrow channel's queue carries check bits. A message in it that is beyond repair is
        dropped.

    Members
    -------
    m2s_<channel>, s2m_<channel> : in, streams of messages
        Those of the direction.
    heard : in, TOLD
        What the other end has allowed.
    granted : in
        What this end allows on the channels of the other direction.
    o : out, stream of FLIT
    wrong : out
        `heard` cannot be.
    fault : out, BlockFault
        Of the cycle before: a message was corrected, or dropped (fatal).
    """

    LATENCY = 2
    INTERVAL = 1

    def __init__(self, *, direction: str, protect: bool):
        self.direction = d = DIRECTIONS[direction]
        self.protect = protect
        self.narrow = next(name for name in reversed(d.narrow) if name != d.carrier)
        self.wide = next(name for name in d.wide if name != d.carrier)
        super().__init__(
            {
                **{PORTS[name]: In(stream.Signature(MESSAGES[name])) for name in d.channels},
                "heard": In(TOLD),
                "granted": In(GRANTED),
                "o": Out(stream.Signature(FLIT)),
                "wrong": Out(1),
                "fault": Out(BlockFault),
            }
        )

    def elaborate(self, platform):
        m = Module()
        d = self.direction
        m.submodules.credits = credits = CreditSender()
        m.submodules.queue = queue = ProtectedFifo(
            shape=MESSAGES[self.narrow], depth=QUEUE, protect=self.protect, buffered=False
        )
        waiting = getattr(self, PORTS[self.narrow])
        m.d.comb += [
            credits.heard.eq(self.heard),
            self.wrong.eq(credits.wrong),
            queue.w_en.eq(waiting.valid),
            queue.w_data.eq(waiting.p),
            waiting.ready.eq(queue.w_rdy),
        ]
        lost = queue.fault.uncorrected
        gather(m, self.fault, queue.fault)
        left = dict(zip(d.channels, credits.left, strict=True))

        def head(name):
            port = getattr(self, PORTS[name])
            return SimpleNamespace(valid=port.valid & left[name], p=port.p)

        s = SimpleNamespace(
            carrier=head(d.carrier),
            narrow=SimpleNamespace(
                valid=queue.r_rdy & left[self.narrow] & ~lost,
                p=queue.r_data,
                plenty=queue.level >= PLENTY,
            ),
            wide=head(self.wide),
        )
        # The flit as it is, and as this cycle's messages leave it.
        now, then = self._fill("now"), self._fill("then")
        placed = self._place(m, s, now, then)
        m.d.comb += [
            getattr(self, PORTS[d.carrier]).ready.eq(placed.carrier),
            getattr(self, PORTS[self.wide]).ready.eq(placed.wide),
            queue.r_en.eq(placed.narrow | lost),
            Cat(credits.takes).eq(
                Cat(
                    {
                        d.carrier: placed.carrier,
                        self.narrow: placed.narrow,
                        self.wide: placed.wide,
                    }[name]
                    for name in d.channels
                )
            ),
        ]
        self._send(m, s, placed, now, then, credits)
        return m

    @staticmethod
    def _fill(name):
        """What is taken of a flit. `open`: nothing has y yet."""
        return SimpleNamespace(
            lines=Signal(2, name=f"{name}_lines"),
            taken=Signal(name=f"{name}_middle_taken"),
            middle=Signal(2, name=f"{name}_middle"),
            wides=Signal(5, name=f"{name}_wides"),
            narrows=Signal(4, name=f"{name}_narrows"),
        )

    def _wides(self, f):
        """Wide places of a flit."""
        y = Mux(f.taken & (f.middle != Middle.WIDE), 0, 3)
        return (self.direction.x[0] + 18 + y - 6 * f.lines)[:5]

    def _line_fits(self, f, places):
        """Whether a line fits with so many wide places: its block gives up six."""
        return (f.lines != 3) & (f.wides + places + 6 <= self._wides(f))

    def _narrow_fits(self, f):
        y = f.taken & (f.middle == Middle.NARROW)
        return f.narrows < self.direction.x[1] + Mux(y, 8, 0)

    def _copy(self, m, f, name):
        """A later state of a flit, to be changed."""
        out = self._fill(name)
        m.d.comb += [getattr(out, field).eq(value) for field, value in vars(f).items()]
        return out

    def _take(self, m, f, middle):
        m.d.comb += [f.taken.eq(1), f.middle.eq(middle)]

    def _place(self, m, s, now, then):
        """Which messages find their places in this cycle, and where."""
        d = self.direction
        p = SimpleNamespace(
            carrier=Signal(),
            narrow=Signal(),
            wide=Signal(),
            first=Signal(),
            line=Signal(),
            enables=Signal(),
        )
        before = self._copy(m, now, "before")
        with m.If(s.narrow.valid & s.narrow.plenty & ~now.taken & (now.lines == 0)):
            self._take(m, before, Middle.NARROW)
        now, after = before, self._copy(m, before, "carried")
        if d.carrier in d.wide:
            bep = s.carrier.p.bep
            m.d.comb += [
                p.line.eq(s.carrier.valid & self._line_fits(now, 1 + bep)),
                p.enables.eq(p.line & bep),
                after.wides.eq(now.wides + p.line + p.enables),
            ]
            with m.If(p.line & (after.wides > d.x[0]) & ~now.taken):
                self._take(m, after, Middle.WIDE)
        else:
            fits, room = self._line_fits(now, 0), self._narrow_fits(now)
            with m.If(s.carrier.valid & fits & (room | ~now.taken)):
                m.d.comb += p.line.eq(1)
                with m.If(~room):
                    self._take(m, after, Middle.NARROW)
            with m.If(s.carrier.valid & ~fits & ~now.taken & (now.narrows < d.x[1])):
                m.d.comb += p.first.eq(1)
                self._take(m, after, Middle.FIRST)
            m.d.comb += after.narrows.eq(now.narrows + p.carrier)
        m.d.comb += [p.carrier.eq(p.line | p.first), after.lines.eq(now.lines + p.line)]

        p.narrow_at = after.narrows
        last = self._copy(m, after, "narrowed")
        room = self._narrow_fits(after)
        with m.If(s.narrow.valid):
            if d.carrier in d.narrow:
                is_narrow = after.taken & (after.middle == Middle.NARROW)
                spare = 3 - after.lines + ~after.taken
                with m.If(s.carrier.valid & ~is_narrow):
                    m.d.comb += p.narrow.eq(d.x[1] > after.narrows + spare)
                with m.Else():
                    m.d.comb += p.narrow.eq(room)
            else:
                m.d.comb += p.narrow.eq(room)
            with m.If(~room & ~s.carrier.valid & ~after.taken):
                m.d.comb += p.narrow.eq(1)
                self._take(m, last, Middle.NARROW)
        m.d.comb += last.narrows.eq(after.narrows + p.narrow)

        p.wide_at = last.wides
        m.d.comb += [
            p.wide.eq(s.wide.valid & (last.wides < self._wides(last))),
            *(getattr(then, field).eq(value) for field, value in vars(last).items()),
            then.wides.eq(last.wides + p.wide),
        ]
        with m.If(p.wide & (then.wides > d.x[0]) & ~last.taken):
            self._take(m, then, Middle.WIDE)
        return p

    def _content(self, m, s, p, now, then):
        """What this cycle's messages add to the flit, place by place, from bit 0 on."""
        d = self.direction
        skips = then.taken & (then.middle != Middle.WIDE)

        def at(index, name):
            """The wide place with that number among those that the flit has."""
            out = Signal(5, name=name)
            behind = skips & (index >= d.x[0]) if d.x[0] else skips
            m.d.comb += out.eq(index + Mux(behind, 3, 0))
            return out

        wides, narrows = [], []
        word = header(d.carrier, s.carrier.p)
        if d.carrier in d.wide:
            kind = d.wide.index(d.carrier) + 1
            wides.append((p.carrier, at(now.wides, "carrier_at"), Cat(Const(kind, 2), word)))
            enables = Cat(Const(d.wide.index(BYTE_ENABLES) + 1, 2), s.carrier.p.byte_enable)
            wides.append((p.enables, at(now.wides + 1, "enables_at"), enables))
        else:
            narrows.append((p.carrier, now.narrows, Cat(Const(1, 1), word)))
        which = d.narrow.index(self.narrow)
        word = header(self.narrow, s.narrow.p)
        narrows.append((p.narrow, p.narrow_at, Cat(Const(1 << which, which + 1), word)))
        word = Cat(Const(d.wide.index(self.wide) + 1, 2), header(self.wide, s.wide.p))
        wides.append((p.wide, at(p.wide_at, "wide_at"), word))

        added = {area: [] for area in ("x", "y", "a", "b", "c")}
        first = dict(x=20, y=144, a=400, b=912, c=1424)
        for sources, places in zip((wides, narrows), d.places(), strict=True):
            for n, (area, low) in enumerate(places):
                for valid, index, word in sources:
                    put = valid & (index == n)
                    added[area].append((low - first[area], put, word))
        for n, area in enumerate("abc"):
            added[area].append((0, p.line & (now.lines == n), s.carrier.p.data))
        added["y"].append((0, p.first, s.carrier.p.data[:256]))
        out = {}
        for area, words in added.items():
            out[area] = Signal(FLIT[area].shape, name=f"added_{area}")
            m.d.comb += out[area].eq(any_of([Mux(put, word, 0) << low for low, put, word in words]))
        return out

    def _send(self, m, s, p, now, then, credits):
        """When the flit leaves, and what it tells."""
        d = self.direction
        begun, age = Signal(), Signal(range(HOLD))
        clock, refreshes = Signal(range(power_of_two("REFRESH", REFRESH))), Signal()
        told, turn = [Signal(COUNT_BITS, name=f"told_{n}") for n in range(_COUNTED)], Signal(3)
        # What is told again has a turn of its own: none is left out, whatever else is told.
        again = Signal(range(_COUNTED))
        counts = [*self.granted, *credits.before]
        due, tells, count = Signal(_COUNTED), Signal(3), Signal(COUNT_BITS)
        blocked, full, any_placed, leaves = Signal(), Signal(), Signal(), Signal()
        held = {area: Signal(FLIT[area].shape, name=f"held_{area}") for area in "xyabc"}
        half, next_half = Signal(256), Signal(256)
        if d.carrier in d.wide:
            m.d.comb += full.eq(p.carrier & ~self._line_fits(then, 1))
        else:
            room = self._narrow_fits(then) | ~then.taken
            first = ~then.taken & (then.narrows < d.x[1])
            m.d.comb += full.eq(p.carrier & ~((self._line_fits(then, 0) & room) | first))
        m.d.comb += [
            due.eq(Cat(Value.cast(c) != t for c, t in zip(counts, told, strict=True))),
            blocked.eq(
                (s.carrier.valid & ~p.carrier)
                | (s.narrow.valid & ~p.narrow & s.narrow.plenty)
                | (s.wide.valid & ~p.wide)
            ),
            any_placed.eq(p.carrier | p.narrow | p.wide),
            leaves.eq(
                (~self.o.valid | self.o.ready)
                & (
                    blocked
                    | full
                    | (age == HOLD - 1)
                    | (~any_placed & (begun | due[:3].any() | refreshes))
                )
            ),
            credits.closes.eq(leaves),
            next_half.eq(Mux(p.first, s.carrier.p.data[256:], half)),
            tells.eq(NOTHING_TOLD),
        ]
        with m.Switch(turn):
            for n in range(_COUNTED):
                with m.Case(n):
                    for k in reversed(range(_COUNTED)):
                        with m.If(due[(n + k) % _COUNTED]):
                            m.d.comb += tells.eq((n + k) % _COUNTED)
        with m.If(refreshes):
            m.d.comb += tells.eq(again)
            with m.If(leaves):
                m.d.sync += again.eq(Mux(again == _COUNTED - 1, 0, again + 1))
        with m.Switch(tells):
            for n in range(_COUNTED):
                with m.Case(n):
                    m.d.comb += count.eq(counts[n])
                    with m.If(leaves):
                        m.d.sync += [told[n].eq(counts[n]), turn.eq((n + 1) % _COUNTED)]

        added = self._content(m, s, p, now, then)
        m.d.sync += [half.eq(next_half), clock.eq(clock + 1)]
        with m.If(self.o.ready):
            m.d.sync += self.o.valid.eq(0)
        with m.If(leaves):
            owed = then.taken & (then.middle == Middle.FIRST)
            m.d.sync += [
                self.o.valid.eq(1),
                self.o.p.version.eq(VERSION),
                self.o.p.lines.eq(then.lines),
                self.o.p.middle.eq(then.middle),
                self.o.p.told.eq(tells),
                self.o.p.count.eq(count),
                *(self.o.p[area].eq(held[area] | added[area]) for area in held),
                *(getattr(now, field).eq(0) for field in ("lines", "wides", "narrows")),
                *(held[area].eq(0) for area in held),
                held["y"].eq(next_half & owed.replicate(256)),
                now.taken.eq(owed),
                now.middle.eq(Mux(owed, Middle.SECOND, Middle.WIDE)),
                begun.eq(owed),
                age.eq(0),
                refreshes.eq(0),
            ]
        with m.Else():
            m.d.sync += [
                *(getattr(now, field).eq(value) for field, value in vars(then).items()),
                *(held[area].eq(held[area] | added[area]) for area in held),
                begun.eq(begun | any_placed),
            ]
            with m.If((begun | any_placed) & (age != HOLD - 1)):
                m.d.sync += age.eq(age + 1)
        with m.If(clock == REFRESH - 1):
            m.d.sync += refreshes.eq(1)

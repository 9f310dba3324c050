# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Prefetch candidates from accesses: RoPE window, layer ahead, and the previous step's pages (spec
§7). One candidate a cycle: the first comes 6 cycles after its access, or 3 cycles after the
previous step's walk has begun."""

from __future__ import annotations

from types import SimpleNamespace

from amaranth.hdl import Array, Assert, Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config
from kelp_spec.metadata import PrefetchSource

from ..layouts import Layouts
from .fifo import DISTANCE_BITS, candidate_layout

__all__ = ["AccessSource", "PreviousSource", "access_layout"]


def access_layout(config: Config) -> data.StructLayout:
    """The first demand line of a page in a step."""
    return data.StructLayout(
        {"session": config.session_bits, "squeue": config.squeue_bits, "page": config.page_bits}
    )


class AccessSource(wiring.Component):
    """The pages that one access suggests: the same page of the next layer, then page + 1, − 1, + 2,
    − 2, … within the queue's window.

    Layer ahead means the same head of the next layer (squeue + kv_heads) and has distance 1; it is
    left out in the last layer. The window is clipped to the session's pages (spec §7). Candidates
    leave nearest first. Accesses wait in a FIFO of `accesses`; one that finds it full is `lost`,
    with all it would have suggested.

    Latency: `LATENCY` cycles from an access to its first candidate. Interval: `INTERVAL`, one
    candidate of an access per cycle; the first candidates of two accesses are `ACCESS_INTERVAL`
    cycles apart at least.

    Parameters
    ----------
    config : Config
    accesses : int
        Accesses that can wait, 2 … 64.

    Members
    -------
    i : in, always-ready stream of access_layout
    sessions : in
        The session registers.
    window_on, layer_on : in
        The source is enabled.
    window_squeue : out
        Address of the queue configuration's read port.
    window : in
        Window of `window_squeue`, one cycle later.
    o : out, stream of candidate_layout
    start : out
        Pulse, one cycle before the first candidate of an access, which need not have any.
    lost : out
        Pulse: an access found the FIFO full.
    idle : out
        No access and no candidate is in the block.
    """

    LATENCY = 6
    INTERVAL = 1
    ACCESS_INTERVAL = 3

    def __init__(self, *, config: Config, accesses: int = 16):
        if not isinstance(config, Config):
            raise TypeError(f"config = {config!r} is refused; legal: a kelp_spec.Config")
        if not 2 <= accesses <= 64:
            raise ValueError(f"accesses = {accesses} is refused; legal: 2 … 64")
        self.config = config
        self.accesses = accesses
        layouts = Layouts(config)
        super().__init__(
            {
                "i": In(stream.Signature(access_layout(config), always_ready=True)),
                "sessions": In(data.ArrayLayout(layouts.session, config.sessions)),
                "window_on": In(1),
                "layer_on": In(1),
                "window_squeue": Out(config.squeue_bits),
                "window": In(DISTANCE_BITS),
                "o": Out(stream.Signature(candidate_layout(config))),
                "start": Out(1),
                "lost": Out(1),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        c = self.config
        access = access_layout(c)
        m.submodules.waiting = waiting = SyncFIFO(width=access.size, depth=self.accesses)
        m.d.comb += [
            waiting.w_data.eq(self.i.p),
            waiting.w_en.eq(self.i.valid),
            self.lost.eq(self.i.valid & ~waiting.w_rdy),
        ]

        # Look the window up, then clip it, then walk it: three accesses are under way at a time.
        looked, looked_valid, take_looked = Signal(access), Signal(), Signal()
        m.d.comb += [
            waiting.r_en.eq(~looked_valid | take_looked),
            self.window_squeue.eq(looked.squeue),
        ]
        with m.If(waiting.r_en):
            m.d.sync += [looked_valid.eq(waiting.r_rdy), looked.eq(waiting.r_data)]

        # Critical path: memory of the queue configuration to `window`: registered here. What it is
        # compared with (`room_up`, `ahead`, `end`) is registered beside it.
        session, known = Signal(Layouts(c).session), Signal(2)
        window = Signal(DISTANCE_BITS)
        room_up = Signal(c.page_bits + 1)
        ahead, end = Signal(c.squeue_bits + 2), Signal(c.squeue_bits + 2)
        m.d.comb += session.eq(self.sessions[looked.session])
        m.d.sync += [
            known.eq(Mux(waiting.r_en, 0, Cat(1, known))),
            window.eq(Mux(self.window_on, self.window, 0)),
            room_up.eq(
                Mux(session.used_pages > looked.page, session.used_pages - 1 - looked.page, 0)
            ),
            ahead.eq(looked.squeue + session.kv_heads),
            end.eq(looked.session * c.queues + session.used_queues),
        ]
        walk = data.StructLayout(
            {
                "session": c.session_bits,
                "squeue": c.squeue_bits,
                "page": c.page_bits,
                "up": DISTANCE_BITS,
                "down": DISTANCE_BITS,
                "layer": 1,
                "ahead": c.squeue_bits,
            }
        )
        clipped, clipped_valid, take_clipped = Signal(walk), Signal(), Signal()
        # Critical path: `o.ready` and `done` to `take_clipped`. So `take_looked` does not depend on
        # it: `clipped` stays empty for a cycle between two accesses.
        m.d.comb += take_looked.eq(known[1] & ~clipped_valid)
        with m.If(take_clipped):
            m.d.sync += clipped_valid.eq(0)
        with m.If(take_looked):
            m.d.sync += [
                clipped_valid.eq(1),
                clipped.session.eq(looked.session),
                clipped.squeue.eq(looked.squeue),
                clipped.page.eq(looked.page),
                clipped.up.eq(Mux(room_up < window, room_up, window)),
                clipped.down.eq(Mux(looked.page < window, looked.page, window)),
                clipped.ahead.eq(ahead),
                clipped.layer.eq(self.layer_on & (ahead < end)),
            ]
        # `s`: signals that the methods below share, under the names that they have there.
        s = SimpleNamespace()
        s.waiting, s.looked_valid, s.walk, s.clipped = waiting, looked_valid, walk, clipped
        s.clipped_valid, s.take_clipped = clipped_valid, take_clipped
        self._walk(m, s)
        return m

    def _walk(self, m: Module, s: SimpleNamespace) -> None:
        """One candidate a cycle."""
        c = self.config
        walk, take_clipped, clipped_valid = s.walk, s.take_clipped, s.clipped_valid
        waiting, looked_valid, clipped = s.waiting, s.looked_valid, s.clipped
        # One candidate a cycle: `layer`, then for each distance the page above and the page below,
        # as far as there are any.
        now, now_valid = Signal(walk), Signal()
        distance = Signal(DISTANCE_BITS)
        below = Signal()  # the page below at `distance` is next
        more_up, more_down = Signal(), Signal()
        m.d.comb += [more_up.eq(distance < now.up), more_down.eq(distance < now.down)]
        done = Signal()  # the candidate on `o` is the last
        to_below = Signal()  # next comes the page below at this distance
        m.d.comb += [
            to_below.eq(~now.layer & ~below & (distance <= now.down)),
            done.eq(~to_below & ~more_up & ~more_down & ~(now.layer & (now.up | now.down).any())),
        ]
        o = self.o
        m.d.comb += [
            o.valid.eq(now_valid),
            o.p.session.eq(now.session),
            o.p.squeue.eq(Mux(now.layer, now.ahead, now.squeue)),
            o.p.page.eq(
                Mux(now.layer, now.page, Mux(below, now.page - distance, now.page + distance))
            ),
            o.p.source.eq(Mux(now.layer, PrefetchSource.LAYER_AHEAD, PrefetchSource.WINDOW)),
            o.p.distance.eq(distance),
            take_clipped.eq(clipped_valid & (~now_valid | (o.ready & done))),
            self.start.eq(take_clipped),
            self.idle.eq(
                ~self.i.valid & ~waiting.r_rdy & ~looked_valid & ~clipped_valid & ~now_valid
            ),
        ]
        with m.If(now_valid & o.ready):
            with m.If(now.layer):
                m.d.sync += [now.layer.eq(0), below.eq(now.up == 0)]
            with m.Elif(to_below):
                m.d.sync += below.eq(1)
            with m.Else():
                m.d.sync += [distance.eq(distance + 1), below.eq(~more_up)]
            with m.If(done):
                m.d.sync += now_valid.eq(0)
        with m.If(take_clipped):
            # An access without candidates takes one cycle and shows none.
            any_up, any_down = clipped.up.any(), clipped.down.any()
            m.d.sync += [
                now.eq(clipped),
                now_valid.eq(clipped.layer | any_up | any_down),
                distance.eq(1),
                below.eq(~clipped.layer & ~any_up),
            ]

        m.d.comb += [
            Assert(~now_valid | now.layer | (distance <= Mux(below, now.down, now.up))),
            Assert(~o.valid | (o.p.squeue < c.squeues)),
        ]


class _Rings:
    """Of each session's ring buffer."""

    def __init__(self, sessions: int, size: int):
        def array(shape, name):
            return Array(Signal(shape, name=f"{name}_{s}") for s in range(sessions))

        self.head = array(range(size), "head")  #: where the next access goes
        self.fill = array(range(size + 1), "fill")  #: accesses of the step under way
        #: Its step modulo 4, which each entry has too: among the entries of a walk it tells the
        #: noted ones from those that came after.
        self.age = array(2, "age")
        #: entries of the step that ended, up to `noted_end`
        self.noted = array(range(size + 1), "noted")
        self.noted_end = array(range(size), "noted_end")
        self.waits = Signal(sessions)  #: for its walk


class PreviousSource(wiring.Component):
    """Remembers each session's last accesses and offers those of the step that ended, oldest first,
    with distance 1 (spec §7).

    Each session has a ring buffer, its share of `entries`; when a step has more accesses, the
    oldest are overwritten (`lost` pulses for each). A session's step advance notes what its ring
    holds; the walk begins when `quiet` is on, offers one entry a cycle, skips what has been
    overwritten meanwhile (`lost`), and ends early when the session steps again. Sessions take
    turns, so that one which steps without pause keeps no other's pages back.

    Latency: `LATENCY` cycles from the cycle in which the walk begins (`start`) to its first
    candidate. Interval: `INTERVAL`, one access in and one candidate out per cycle.

    Parameters
    ----------
    config : Config
    entries : int
        Accesses remembered, of all sessions together; a power of two, at least 4 for each session.

    Members
    -------
    i : in, always-ready stream of access_layout
        In the order of M3.
    step : in, always-ready stream of session
        The session whose step advanced, in the order of M3.
    live : in
        Bit s: session s is open; a closed session's ring is emptied.
    quiet : in
        A walk may begin.
    o : out, stream of candidate_layout
    start : out
        Pulse: a walk begins.
    lost : out
        Pulse: an access was overwritten before it was offered.
    idle : out
        No walk is under way or waiting.
    """

    LATENCY = 3
    INTERVAL = 1

    def __init__(self, *, config: Config, entries: int = 256):
        if not isinstance(config, Config):
            raise TypeError(f"config = {config!r} is refused; legal: a kelp_spec.Config")
        sessions = 1 << (config.sessions - 1).bit_length()
        if entries < 4 * sessions or entries & (entries - 1):
            raise ValueError(
                f"entries = {entries} is refused; legal: a power of two, {4 * sessions} and up"
            )
        self.config = config
        self.entries = entries
        self.session_entries = entries // sessions
        super().__init__(
            {
                "i": In(stream.Signature(access_layout(config), always_ready=True)),
                "step": In(stream.Signature(config.session_bits, always_ready=True)),
                "live": In(config.sessions),
                "quiet": In(1),
                "o": Out(stream.Signature(candidate_layout(config))),
                "start": Out(1),
                "lost": Out(1),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        c, rings = self.config, _Rings(self.config.sessions, self.session_entries)
        entry = data.StructLayout({"squeue": c.squeue_bits, "page": c.page_bits, "age": 2})
        m.submodules.ring = ring = Memory(shape=entry, depth=self.entries, init=[])
        overwrites = self._remember(m, ring.write_port(), rings)
        walking, out_valid, stale = self._walk(m, ring.read_port(), rings)
        # After the walk's own updates: a step in the cycle in which a walk of its session begins
        # ends that walk and asks for the next.
        step, fill, age, waits = self.step.p, rings.fill, rings.age, rings.waits
        with m.If(self.step.valid & (fill[step] != 0)):
            m.d.sync += [
                rings.noted[step].eq(fill[step]),
                rings.noted_end[step].eq(rings.head[step]),
                waits.bit_select(step, 1).eq(1),
                fill[step].eq(0),
                age[step].eq(age[step] + 1),
            ]
        for s in range(c.sessions):
            with m.If(~self.live[s]):
                m.d.sync += [fill[s].eq(0), waits[s].eq(0)]
        m.d.comb += [
            self.lost.eq(overwrites | (out_valid & stale)),
            self.idle.eq(~self.i.valid & ~self.step.valid & ~waits.any() & ~walking & ~out_valid),
        ]
        return m

    def _remember(self, m: Module, write, rings: _Rings) -> Signal:
        """An access goes into its session's ring. Returns whether it overwrites one."""
        size, here, overwrites = self.session_entries, self.i.p.session, Signal()
        head, fill = rings.head, rings.fill
        m.d.comb += [
            write.en.eq(self.i.valid),
            write.addr.eq(here * size + head[here]),
            write.data.squeue.eq(self.i.p.squeue),
            write.data.page.eq(self.i.p.page),
            write.data.age.eq(rings.age[here]),
        ]
        with m.If(self.i.valid):
            m.d.sync += head[here].eq(head[here] + 1)
            with m.If(fill[here] == size):
                m.d.comb += overwrites.eq(1)
            with m.Else():
                m.d.sync += fill[here].eq(fill[here] + 1)
        return overwrites

    def _walk(self, m: Module, read, rings: _Rings):
        """`at` runs over the noted entries; one is in the memory's output, one on `o`. Returns
        whether a walk is under way, and whether there is an entry on `o` and it was overwritten
        meanwhile."""
        c, size, waits, noted = self.config, self.session_entries, rings.waits, rings.noted
        walking = Signal()
        session = Signal(c.session_bits)
        at, left, old = Signal(range(size)), Signal(range(size + 1)), Signal(2)
        first = Signal(c.session_bits)
        # From the session behind the one that was served last.
        for behind in (False, True):
            for s in reversed(range(int(behind), c.sessions)):  # session 0 is behind none
                with m.If(waits[s] & ((session < s) if behind else 1)):
                    m.d.comb += first.eq(s)
        ahead_valid = Signal()  # the memory's output is an entry of the walk
        out_valid, stale = Signal(), Signal()
        move, stop = Signal(), Signal()
        m.d.comb += [
            self.o.valid.eq(out_valid & ~stale),
            move.eq(~self.o.valid | self.o.ready),
            stop.eq(waits.bit_select(session, 1) | ~self.live.bit_select(session, 1)),
            read.addr.eq(session * size + at),
            read.en.eq(move),
        ]
        with m.If(move):
            m.d.sync += [
                out_valid.eq(ahead_valid & ~stop),
                stale.eq(read.data.age != old),
                self.o.p.session.eq(session),
                self.o.p.squeue.eq(read.data.squeue),
                self.o.p.page.eq(read.data.page),
                self.o.p.source.eq(PrefetchSource.PREVIOUS),
                self.o.p.distance.eq(1),
            ]
        with m.If(~walking):
            with m.If(waits.any() & self.quiet):
                m.d.comb += self.start.eq(1)
                m.d.sync += [
                    walking.eq(1),
                    session.eq(first),
                    left.eq(noted[first]),
                    at.eq(rings.noted_end[first] - noted[first]),
                    old.eq(rings.age[first] - 1),
                    waits.bit_select(first, 1).eq(0),
                ]
        with m.Elif(stop):
            m.d.sync += [walking.eq(0), ahead_valid.eq(0)]
        with m.Elif(move):
            m.d.sync += [
                ahead_valid.eq(left != 0),
                at.eq(at + 1),
                left.eq(Mux(left == 0, 0, left - 1)),
                walking.eq(left != 0),
            ]
        m.d.comb += Assert(~ahead_valid | walking)
        return walking, out_valid, stale

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Free frames, waiting miss entries and pins of the four pools (docs/design.md §3). One op a cycle,
seen by every answer after 1 cycle."""

from __future__ import annotations

from amaranth.hdl import Array, Assert, Module, Mux, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.coherence import least_reserve
from kelp_spec.config import POOLS, Config

from ..lib.protected import BlockFault, Fault, ProtectedMemory, gather
from .signatures import PoolAnswers, PoolChange, PoolLevels, PoolSettings, count_bits

__all__ = ["FreeFrames", "Pools"]


def counted(counter, up, down):
    """The counter, one more with `up` or one less with `down`. Critical path: `up`, M3's word that
    something is taken; so `down` steers the carry chain."""
    return counter.eq(Mux(up == down, counter, (counter + Mux(down, -1, 1))[: len(counter)]))


class FreeFrames(wiring.Component):
    """Frame ids of one pool: never-used ids ascending first, then freed ids in the order in which
    they came back.

    `frame` is the id that `pop` takes, valid in every cycle in which `free` > 0; the next one
    follows a cycle later. `free` = limit − used; `limit` bounds the number of frames in use, not
    their ids, and changes only while `used` is 0.

    Latency: `LATENCY` cycle from `pop` and `push` to `frame`, `free` and `used`: a frame pushed in
    one cycle can be popped in the next. One pop and one push in each cycle (`INTERVAL`). Errors: a
    pop without a free frame, a push without a used one (asserted); bad parameters (ValueError).

    Parameters
    ----------
    first : int
        Id of the pool's first frame.
    frames : int
        Frames in the pool, 1 and up.
    frame_bits : int
        Width of a frame id.
    protect : bool
        Freed ids carry check bits.

    Members
    -------
    limit : in
        Frames that may be in use in the next cycle, at most `frames`.
    frame : out
        The next frame.
    pop : in
        It is taken.
    push, push_frame : in
        A frame comes back, and which.
    free, used : out
        Frames that may be taken; frames in use.
    unused : out
        `used` is 0, from a register: a change of `limit` waits for it.
    fault : out, Fault
        Of a freed id that becomes `frame` in the next cycle. One beyond repair has two owners or
        none.
    """

    LATENCY = 1
    INTERVAL = 1

    def __init__(self, *, first: int, frames: int, frame_bits: int, protect: bool = False):
        if not isinstance(frames, int) or frames < 1:
            raise ValueError(f"frames = {frames!r} is refused; legal: 1 and up")
        if not 0 <= first <= (1 << frame_bits) - frames:
            raise ValueError(
                f"first = {first!r} is refused; legal: 0 … {(1 << frame_bits) - frames} with "
                + f"{frames} frames of {frame_bits} bits"
            )
        self.first = first
        self.frames = frames
        self.frame_bits = frame_bits
        self.protect = protect
        bits = frames.bit_length()
        super().__init__(
            {
                "limit": In(bits),
                "pop": In(1),
                "frame": Out(frame_bits),
                "push": In(1),
                "push_frame": In(frame_bits),
                "free": Out(bits),
                "used": Out(bits),
                "unused": Out(1, init=1),
                "fault": Out(Fault),
            }
        )
        # State that proofs look at (kelp_verif.formal.pool_specs).
        self.fresh = Signal(bits)  # ids never used so far are first + fresh …
        # Critical path: `pop`. `limit` comes a cycle early, so that what depends on it is known by
        # then.
        self.bound = Signal(bits)  # the limit
        self.has_fresh = Signal()  # fresh < bound
        self.fresh_frame = Signal(frame_bits, init=first)
        self.count = Signal(bits)  # freed ids
        self.head = Signal(frame_bits)  # the oldest of them
        self.behind = Signal(frame_bits)  # the next one
        self.oldest, self.end = (
            Signal(range(frames), name="oldest"),
            Signal(range(frames), name="end"),
        )

    def elaborate(self, platform):
        m = Module()
        fresh, count, oldest, end = self.fresh, self.count, self.oldest, self.end
        fresh_frame, head = self.fresh_frame, self.head
        has_fresh = self.has_fresh
        left = Signal(signed(len(fresh) + 1))
        m.d.comb += left.eq(self.limit - fresh)
        m.d.sync += [
            self.bound.eq(self.limit),
            has_fresh.eq(Mux(self.pop & has_fresh, left > 1, left > 0)),
        ]

        # Freed ids: a ring whose oldest element is also in `head`. The memory shows the one behind
        # it, which moves into `head` with a pop; a push that meets it is seen at once. Whether it
        # does is known for both elements before it is known which is read (critical path: `pop`).
        m.submodules.ring = ring = ProtectedMemory(
            depth=self.frames, shape=self.frame_bits, protect=self.protect, transparent=False
        )
        second, third = (Signal(range(self.frames), name=name) for name in ("second", "third"))
        pop_freed, met, pushed = Signal(), Signal(), Signal(self.frame_bits)

        def after(pointer):
            return Mux(pointer == self.frames - 1, 0, pointer + 1)

        m.d.comb += [
            self.frame.eq(Mux(has_fresh, fresh_frame, head)),
            pop_freed.eq(self.pop & ~has_fresh),
            ring.read_en.eq(1),
            second.eq(after(oldest)),
            third.eq(after(second)),
            ring.read_address.eq(Mux(pop_freed, third, second)),
            ring.write_en.eq(self.push),
            ring.write_address.eq(end),
            ring.write_data.eq(self.push_frame),
            self.behind.eq(Mux(met, pushed, ring.read_data)),
            # `behind` moves into `head`, out of the ring
            self.fault.as_value().eq(
                Mux(pop_freed & (count != 1) & ~met, ring.fault.as_value(), 0)
            ),
        ]
        m.d.sync += [
            met.eq(self.push & Mux(pop_freed, end == third, end == second)),
            pushed.eq(self.push_frame),
        ]
        with m.If(self.pop & has_fresh):
            m.d.sync += [fresh.eq(fresh + 1), fresh_frame.eq(fresh_frame + 1)]
        with m.If(self.push):
            m.d.sync += end.eq(after(end))
        with m.If(pop_freed):
            m.d.sync += [oldest.eq(second), head.eq(self.behind)]
        with m.If(self.push & Mux(pop_freed, count == 1, count == 0)):
            m.d.sync += head.eq(self.push_frame)
        m.d.sync += [
            counted(count, self.push, pop_freed),
            counted(self.used, self.pop, self.push),
            Assert(self.unused == (self.used == 0)),
        ]
        with m.If(self.pop != self.push):
            m.d.sync += self.unused.eq(self.push & (self.used == 1))
        m.d.comb += [
            self.free.eq(self.bound - self.used),
        ]
        m.d.sync += [
            Assert(~self.pop | (self.free != 0)),
            Assert(~self.push | (self.used != 0)),
            Assert(self.bound <= self.frames, "a limit beyond the pool"),
            Assert(
                (self.limit == self.bound) | (self.unused & (~self.pop | (self.limit != 0))),
                "a limit changes under frames that are used",
            ),
            Assert(~pop_freed | (count != 0)),
        ]
        return m


class Pools(wiring.Component):
    """The four pools as M3 sees them: one op per cycle works on the pool `select`.

    `frame`, chosen by `select`, and the `can_*` answers, chosen a cycle earlier by `ahead`, reflect
    every op of earlier cycles (docs/design.md §3).

    Latency: `LATENCY` cycle from an op to every answer; an op in each cycle (`INTERVAL`). Errors: a
    pop or wait without `want`, an `unwait` without a waiting entry (asserted).

    Parameters
    ----------
    config : Config

    Members
    -------
    settings : in, PoolSettings
        Limits of each pool.
    ask : in, PoolAnswers
        The pool at M3 and a cycle ahead; what may be done with it.
    change : in, PoolChange
        What is done with it.
    levels : out, PoolLevels
        Free and used frames of each pool.
    fault : out, BlockFault
        Of their memories.
    """

    LATENCY = 1
    INTERVAL = 1

    def __init__(self, *, config: Config):
        self.config = config
        bits = count_bits(config)
        super().__init__(
            {
                "settings": In(PoolSettings(config)),
                "ask": In(PoolAnswers(config)),
                "change": In(PoolChange(config)),
                "levels": Out(PoolLevels(config)),
                "fault": Out(BlockFault),
            }
        )
        # State that proofs look at (kelp_verif.formal.pool_specs).
        self.waiting = [Signal(range(config.misses + 1), name=f"waiting_{name}") for name in POOLS]
        # used + waiting
        self.taken = [
            Signal(max(bits, len(self.waiting[0])) + 1, name=f"taken_{name}") for name in POOLS
        ]
        # a PIN beyond the limit is refused
        self.pins = [Signal(bits, name=f"pins_{name}") for name in POOLS]

    def elaborate(self, platform):
        m = Module()
        c, settings, ask, change = self.config, self.settings, self.ask, self.change
        bits = count_bits(c)

        def room(counter, limit, name):
            """Whether the counter is below the limit: as it stands, with one more, with one
            less."""
            left = Signal(signed(max(len(counter), len(limit)) + 1), name=f"room_{name}")
            m.d.comb += left.eq(limit - counter)
            whole, some = ~left[-1], left[1:-1].any()
            return whole & (some | left[0]), whole & some, whole

        frames, faults, some_pins, rooms = (
            [],
            [],
            [],
            {name: [] for name in ("can_pop", "can_take", "can_prefetch", "can_pin")},
        )
        fewer = change.unwait | change.push
        for p, name in enumerate(POOLS):
            m.submodules[name] = pool = FreeFrames(
                first=c.pool_first_frame[p],
                frames=c.frames[p],
                frame_bits=c.frame_bits,
                protect=c.protect,
            )
            faults.append(pool.fault)
            here = ask.select == p
            waiting, taken, pins = self.waiting[p], self.taken[p], self.pins[p]
            # Registers change seldom: the sums with them are registered here.
            prefetch_limit, pin_limit = (
                Signal(bits, name=f"prefetch_limit_{name}"),
                Signal(bits, name=f"pin_limit_{name}"),
            )
            limit, reserve = settings.limit[p], settings.reserve
            if least := least_reserve(c):
                reserve = Mux(reserve > least, reserve, least)
            m.d.sync += [
                prefetch_limit.eq(Mux(limit > settings.low_water, limit - settings.low_water, 0)),
                pin_limit.eq(Mux(limit > reserve, limit - reserve, 0)),
            ]
            m.d.comb += [
                pool.limit.eq(limit),
                pool.pop.eq(change.pop & here),
                pool.push.eq(change.push & here),
                pool.push_frame.eq(change.push_frame),
                self.levels.free[p].eq(pool.free),
                self.levels.used[p].eq(pool.used),
                self.levels.spare[p].eq(pool.bound - taken),
                self.levels.unused[p].eq(pool.unused),
            ]
            m.d.sync += Assert(taken == pool.used + waiting)
            some_pins.append(pins != 0)
            m.d.sync += [
                counted(waiting, here & change.wait, here & change.unwait),
                counted(taken, here & change.want, here & fewer),
                counted(pins, here & change.pin, here & change.unpin & some_pins[p]),
            ]
            with m.If(here):
                m.d.sync += Assert(
                    (~change.unwait | (waiting != 0))
                    & ~(change.wait & change.pop)
                    & ~(change.unwait & change.push)
                )
            frames.append(pool.frame)
            for answer, counter, most in (
                ("can_pop", pool.used, limit),
                ("can_take", taken, limit),
                ("can_prefetch", taken, prefetch_limit),
                ("can_pin", pins, pin_limit),
            ):
                rooms[answer].append(room(counter, most, f"{answer}_{name}"))
            # `prefetch_limit` is a cycle behind `limit`, which may have fallen below it.
            rooms["can_prefetch"][p] = [
                spare & free
                for spare, free in zip(rooms["can_prefetch"][p], rooms["can_take"][p], strict=True)
            ]
        m.d.comb += ask.frame.eq(Array(frames)[ask.select])
        gather(m, self.fault, *faults)
        m.d.sync += Assert(change.want == (change.wait | change.pop))
        self._answer(m, rooms, some_pins)
        return m

    def _answer(self, m: Module, rooms: dict[str, list], some_pins: list) -> None:
        """What may be done, from each pool's rooms: as it stands, with one more, with one less."""
        ask, change = self.ask, self.change
        fewer = change.unwait | change.push
        # M3 has the answers from the beginning of its cycle. Critical path: how the op that is
        # there counts; so they are worked out for each way.
        same = ask.ahead == ask.select
        ways = {
            "can_pop": (change.pop, change.push),
            "can_take": (change.want, fewer),
            "can_prefetch": (change.want, fewer),
            "can_pin": (change.pin, change.unpin & Array(some_pins)[ask.select]),
        }
        for answer, (up, down) in ways.items():
            stays, more, less = (
                Signal(name=f"{answer}_{way}") for way in ("stays", "more", "less")
            )
            m.d.comb += [
                way.eq(Array(each)[ask.ahead])
                for way, each in zip(
                    (stays, more, less), zip(*rooms[answer], strict=True), strict=True
                )
            ]
            m.d.sync += getattr(ask, answer).eq(
                Mux(same & (up != down), Mux(up, more, less), stays)
            )

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Contracts of everything that is lent out, for the solver, by induction: ids, frames, write slots.
Nothing has two owners, nothing is lost, and what came back first goes out first.

The sizes are small; nothing in the blocks depends on a size but the width of its counters."""

from amaranth.asserts import AnyConst
from amaranth.hdl import Assert, Assume, Cover, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from kelp_hw.datapath.write_store import WriteStore
from kelp_hw.lib.free_list import FreeList
from kelp_hw.tracker.pools import FreeFrames, Pools
from kelp_spec.config import POOLS

from .fifo_specs import SMALL
from .inside import Follow, open_up, places, row, sound, total

__all__ = ["FreeFramesContract", "FreeListContract", "PoolsContract", "WriteSlotsContract"]


class _Owner:
    """Of one id, any one, whether somebody has it; of all, how many are out. `take` and `give` are
    strobes, `taken` and `given` ids; the first `init` ids are out at the beginning. Assumes that
    the chosen id is given back by its holder only, and no more than is out altogether."""

    def __init__(self, m: Module, *, ids: int, init: int = 0, take, taken, give, given):
        self.chosen, self.number = (
            AnyConst(range(ids)),
            Signal(range(ids + 1), init=init, name="number_out"),
        )
        self.has, self.again = Signal(name="has"), Signal(name="again")
        moved, returned = Signal(name="moved"), Signal(name="returned")
        mine_out, mine_back = take & (taken == self.chosen), give & (given == self.chosen)
        m.d.sync += [
            self.number.eq(self.number + take - give),
            moved.eq(moved ^ mine_out ^ mine_back),
            returned.eq(returned | mine_back),
        ]
        m.d.comb += [
            Assume(self.chosen < ids),
            self.has.eq(moved ^ (self.chosen < init)),
            Assume(~mine_back | self.has),
            Assume(~give | mine_back | (self.number > self.has)),
            Assert(~mine_out | ~self.has),  # never two owners
            Assert(self.number >= self.has),
            Assert(self.number <= ids),
            Assert(~give | (self.number != 0)),
            self.again.eq(mine_out & returned),
        ]

    def once(self, m: Module, places, fresh, exists=1) -> None:
        """The chosen id is with its owner, in one of `places` (there, id), or `fresh`: was never
        used; if it `exists`, otherwise nowhere."""
        m.d.comb += Assert(
            total([self.has, fresh, *(there & (word == self.chosen) for there, word in places)], 4)
            == exists
        )


class FreeListContract(wiring.Component):
    """Whoever holds an id may return it at any time; no id is handed out while somebody holds it,
    `level` counts the others, one of which is there after a cycle at the latest, and they leave in
    the promised order."""

    def __init__(self, block=FreeList, *, count: int = 3, first: int = 2):
        self.count, self.first, self.block = count, first, block(count=count, first=first)
        super().__init__({"take": In(1), "give": In(1), "id": In(range(first + count))})

    def elaborate(self, platform):
        m = Module()
        m.submodules.free = free = self.block
        fifo = open_up(open_up(free).returned).fifo
        ids, o = self.first + self.count, free.o
        taken = o.valid & o.ready
        # The ids below `first` begin in somebody's hands; they may come back in exchange for
        # others.
        owner = _Owner(
            m, ids=8, init=self.first, take=taken, taken=o.payload, give=self.give, given=self.id
        )
        number = owner.number
        m.d.comb += [
            o.ready.eq(self.take),
            free.i.valid.eq(self.give),
            free.i.p.eq(self.id),
            Assume(~self.give | (number > self.first)),
            Assert(free.level == ids - number),
            Assert(number >= self.first),
        ]
        # Each id is in one hand, in the FIFO once, or was never used.
        exists = owner.chosen < ids
        owner.once(m, places(m, fifo), exists & (free.never_used <= owner.chosen), exists)
        m.d.comb += [
            Assert((free.never_used >= self.first) & (free.never_used <= ids)),
            Assert(free.level == fifo.level + (ids - free.never_used)),
        ]
        is_fresh = free.never_used != ids
        f = Follow(
            m,
            arrives=free.i.valid,
            word_in=free.i.p,
            leaves=taken & ~is_fresh,
            word_out=o.payload,
            most=ids,
        )
        f.is_in(m, fifo)
        waits = Signal()
        m.d.sync += waits.eq((free.level != 0) & ~taken)
        m.d.comb += [
            Assert(~waits | o.valid),
            Assert(~(taken & is_fresh) | (o.payload == free.never_used)),
        ]
        m.d.comb += [
            Cover(owner.again & (o.payload == 0)),
            Cover(f.leaving & (f.word == ids - 1)),
            Cover(free.level == 0),
        ]
        return m


class FreeFramesContract(wiring.Component):
    """A pool of frames as M3 uses it: pops when `free` is not zero, pushes what is in use, at once
    if it likes. No frame has two owners, `used` and `free` are exact, `frame` is always good,
    never-used frames go out ascending, then freed ones in their order."""

    def __init__(self, block=FreeFrames, *, frames: int = 5, first: int = 3):
        self.first, self.frames, self.block = (
            first,
            frames,
            block(first=first, frames=frames, frame_bits=4),
        )
        super().__init__(
            {"limit": In(frames.bit_length()), "pop": In(1), "push": In(1), "frame": In(4)}
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.pool = pool = self.block
        memory = open_up(open_up(open_up(pool).ring).rows).memory
        n, end = self.frames, self.first + self.frames
        owner = _Owner(
            m, ids=16, take=pool.pop, taken=pool.frame, give=pool.push, given=pool.push_frame
        )
        number, limit, begun = owner.number, Signal.like(pool.limit), Signal()
        m.d.sync += [limit.eq(pool.limit), begun.eq(1)]
        m.d.comb += [
            pool.limit.eq(self.limit),
            pool.pop.eq(self.pop),
            pool.push.eq(self.push),
            pool.push_frame.eq(self.frame),
            # `limit` is of the next cycle.
            Assume(pool.limit <= n),
            Assume(
                (pool.limit == limit)
                | ~begun
                | ((pool.used == 0) & (~pool.pop | (pool.limit != 0)))
            ),
            Assume(~pool.pop | (pool.free != 0)),
            Assert(pool.used == number),
            Assert(pool.free == limit - number),
            Assert(pool.used <= limit),
            Assert(pool.bound == limit),
            Assert(pool.has_fresh == (pool.fresh < limit)),
        ]
        # Each frame is in use, in the ring once, or was never used.
        ring = [row(m, memory, k) for k in range(n)]
        live = [
            Mux(pool.oldest <= k, k - pool.oldest, k + n - pool.oldest) < pool.count
            for k in range(n)
        ]
        exists = (owner.chosen >= self.first) & (owner.chosen < end)
        owner.once(
            m,
            zip(live, ring, strict=True),
            exists & (owner.chosen >= self.first + pool.fresh),
            exists,
        )
        # The order, and for the induction what the ring holds.
        fresh = pool.has_fresh
        f = Follow(
            m,
            arrives=pool.push,
            word_in=pool.push_frame,
            leaves=pool.pop & ~fresh,
            word_out=pool.frame,
            most=n,
        )

        def at(distance):
            place = Signal(range(3 * n))
            m.d.comb += place.eq(pool.oldest + distance)
            return row(m, memory, Mux(place >= n, place - n, place))

        last = pool.oldest + pool.count
        m.d.comb += [
            Assert(~(pool.pop & fresh) | (pool.frame == self.first + pool.fresh)),
            Assert(pool.fresh == pool.used + pool.count),
            Assert(pool.fresh <= n),
            Assert((pool.oldest < n) & (pool.end < n)),
            Assert(pool.end == Mux(last >= n, last - n, last)),
            Assert(f.owed == pool.count),
            Assert(~f.on | (at(f.ahead) == f.word)),
            Assert(pool.fresh_frame == self.first + pool.fresh),
            Assert((pool.count == 0) | (pool.head == at(0))),
            Assert(~begun | (pool.behind == at(1))),
        ]
        m.d.comb += [
            Cover(owner.again & (f.owed == 1)),
            Cover(f.leaving & (f.word == self.first + n - 1)),
            Cover((pool.used == n) & ~fresh),
        ]
        return m


class WriteSlotsContract(wiring.Component):
    """Slots of the write store: who got one may free it at any time; none has two owners, none is
    lost, `idle` says that all are back."""

    def __init__(self, block=WriteStore):
        self.block = block(config=SMALL)
        super().__init__({"take": In(1), "give": In(1), "slot": In(SMALL.write_slot_bits)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.store = store = self.block
        fifo, offer, n = open_up(store).free, open_up(store).offer, SMALL.write_slots
        taken = store.o_slot.valid & store.o_slot.ready
        owner = _Owner(m, ids=n, take=taken, taken=store.o_slot.p, give=self.give, given=self.slot)
        number = owner.number
        m.d.comb += [
            store.o_slot.ready.eq(self.take),
            store.free.valid.eq(self.give),
            store.free.p.eq(self.slot),
            Assert(store.idle == (number == 0)),
        ]
        offered = [(offer.o.valid, offer.o.p), (offer.spare_valid, offer.spare)]
        owner.once(m, [*places(m, fifo), *offered], owner.chosen >= n - store.unused)
        m.d.comb += [
            Assert(store.unused <= n),
            Assert(number + fifo.level + store.unused + offer.o.valid + offer.spare_valid == n),
            Assert(store.held + store.taken == number),
        ]
        sound(m, fifo)
        # What is free is offered after two cycles at the latest.
        waits, still_waits = Signal(), Signal()
        m.d.sync += [
            waits.eq((number != n) & ~taken),
            still_waits.eq(waits & (number != n) & ~taken),
        ]
        m.d.comb += [
            Assert(~still_waits | store.o_slot.valid),
            Cover(owner.again),
            Cover((number == n) & (store.unused == 0)),
        ]
        return m


class PoolsContract(wiring.Component):
    """The four pools as M3 uses them: of a chosen one, the answers `can_…` follow from what was
    popped, pushed, awaited and pinned there, and no op on another pool touches it."""

    def __init__(self, block=Pools):
        self.block = block(config=SMALL)
        super().__init__(
            {
                "limit": In(3),
                "low_water": In(3),
                "reserve": In(3),
                "select": In(2),
                "ops": In(6),
                "frame": In(SMALL.frame_bits),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.pools = pools = self.block
        ask = pools.ask
        pop, push, wait, unwait, pin, unpin = self.ops
        for name, value in {
            "pop": pop,
            "push": push,
            "wait": wait,
            "unwait": unwait,
            "want": pop | wait,
            "pin": pin,
            "unpin": unpin,
        }.items():
            m.d.comb += getattr(pools.change, name).eq(value)
        m.d.comb += [
            pools.settings.low_water.eq(self.low_water),
            pools.settings.reserve.eq(self.reserve),
            ask.ahead.eq(self.select),
            pools.change.push_frame.eq(self.frame),
        ]
        m.d.comb += [pools.settings.limit[p].eq(self.limit) for p in range(len(POOLS))]
        select = Signal(2)
        m.d.sync += select.eq(self.select)
        m.d.comb += ask.select.eq(select)
        # The limit, which is that of the next cycle, changes where no frame is used, whatever comes
        # in that cycle; the other settings change at any time. What prefetches and pins leave free
        # follows a cycle later.
        begun = Signal(3)
        limit, low_water, reserve = (Signal(3, name=n) for n in ("limit", "low_water", "reserve"))
        limit_before, low_water_before, reserve_before = (
            Signal.like(now, name=f"{now.name}_before") for now in (limit, low_water, reserve)
        )
        m.d.sync += [
            begun.eq((begun << 1) | 1),
            *(
                now.eq(given)
                for now, given in (
                    (limit, self.limit),
                    (low_water, self.low_water),
                    (reserve, self.reserve),
                )
            ),
            limit_before.eq(limit),
            low_water_before.eq(low_water),
            reserve_before.eq(reserve),
        ]
        m.d.comb += [
            Assume((self.limit <= 4) & (self.limit != 0)),
            Assume((begun == 7) | (self.ops == 0)),
        ]

        # M3's side: at most one of pop, push; of wait, pop; of unwait, push; never more back than
        # is out.
        waiting = [Signal(5, name=f"waits_{p}") for p in range(len(POOLS))]
        chosen = AnyConst(range(len(POOLS)))
        used, waits, pins = Signal(3), Signal(5), Signal(3)
        for p, name in enumerate(POOLS):
            pool = getattr(open_up(pools), name)
            here = ask.select == p
            m.d.sync += waiting[p].eq(waiting[p] + (here & wait) - (here & unwait))
            m.d.comb += [
                Assume(~(here & push) | (pool.used != 0)),
                Assume(~(here & unwait) | (waiting[p] != 0)),
                Assume(~(here & wait) | (waiting[p] < SMALL.misses)),
                Assume(~(here & pop) | ask.can_pop),
                Assume(~(here & pin) | ask.can_pin),
                Assert((pool.fresh == pool.used + pool.count) & (pool.fresh <= 4)),
                Assume((self.limit == limit) | (pool.used == 0)),
                Assert(pool.used <= Mux(begun == 7, limit, 0)),
                Assert(pools.waiting[p] == waiting[p]),
                Assert(pools.taken[p] == pool.used + waiting[p]),
            ]
            with m.If(chosen == p):
                m.d.comb += [
                    waits.eq(waiting[p]),
                    Assert(pool.used == used),
                    Assert(pools.pins[p] == pins),
                ]
        mine = ask.select == chosen
        m.d.comb += [Assume(~(pop & push)), Assume(~(wait & pop)), Assume(~(unwait & push))]
        with m.If(mine):
            m.d.sync += [used.eq(used + pop - push), pins.eq(pins + pin - (unpin & (pins != 0)))]
            with m.If(begun == 7):
                m.d.comb += [
                    Assert(ask.can_pop == (used < limit)),
                    Assert(ask.can_take == (used + waits < limit)),
                    Assert(
                        ask.can_prefetch
                        == (used + waits + low_water_before < limit_before) & ask.can_take
                    ),
                    Assert(ask.can_pin == (pins + reserve_before < limit_before)),
                    Assert(~ask.can_prefetch | ask.can_take),
                    Assert(~ask.can_take | ask.can_pop),
                ]
        m.d.comb += [
            Cover((used == 2) & (waits == 2) & (pins == 1) & ~ask.can_take & ask.can_pop & mine),
            Cover((used == 4) & pop & ~mine),
        ]
        return m

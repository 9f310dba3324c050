# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Frame pools: ids, their order, exact counts, limits; against a list."""

import random
from collections import deque

import pytest
from flips import fields, flip, simulate_memory
from simulation import simulate
from timing import check_interval, varied

from kelp_golden.tracker import Tracker
from kelp_hw.tracker.pools import FreeFrames, Pools
from kelp_spec.config import POOLS, named


def test_free_frames_latency_and_interval():
    check_interval(
        lambda: FreeFrames(first=0, frames=8, frame_bits=3),
        "LATENCY",
        "frame",
        varied("pop", (1, 1, 1)),
        prepare={"limit": 8},
    )


def test_pools_latency_and_interval():
    check_interval(
        lambda: Pools(config=named("unit")),
        "LATENCY",
        "ask.frame",
        varied("change.pop", (1, 1, 1), **{"change.want": 1}),
        prepare={"settings.limit": 8},
    )


@pytest.mark.parametrize(("frames", "limit"), [(4, 4), (5, 5), (8, 3), (1, 1)])
def test_free_frames_against_a_list(frames, limit):
    """Phases of draining, filling and both at once, so that the ring is empty, short and full when
    a pop and a push meet."""
    dut = FreeFrames(first=17, frames=frames, frame_bits=6)
    rng = random.Random(frames * 10 + limit)

    async def bench(ctx):
        fresh, freed, out = deque(range(17, 17 + limit)), deque(), []
        ctx.set(dut.limit, limit)
        await ctx.tick()
        for cycle in range(1500):
            p_pop, p_push = ((1, 0.3), (0.3, 1), (1, 1), (0.5, 0.5))[cycle // 50 % 4]
            assert ctx.get(dut.free) == limit - len(out) and ctx.get(dut.used) == len(out)
            pop = bool(fresh or freed) and rng.random() < p_pop
            push = bool(out) and rng.random() < p_push
            if fresh or freed:
                assert ctx.get(dut.frame) == (fresh or freed)[0], cycle
            ctx.set(dut.pop, pop)
            ctx.set(dut.push, push)
            if push:
                back = out.pop(rng.randrange(len(out)))
                ctx.set(dut.push_frame, back)
            if pop:
                out.append((fresh or freed).popleft())
            if push:
                freed.append(back)
            await ctx.tick()

    simulate(dut, bench)


def test_free_frames_limit_may_change_while_unused():
    dut = FreeFrames(first=0, frames=8, frame_bits=3)

    async def bench(ctx):
        async def pop():
            frame = ctx.get(dut.frame)
            ctx.set(dut.pop, 1)
            await ctx.tick()
            ctx.set(dut.pop, 0)
            return frame

        async def push(frame):
            ctx.set(dut.push, 1)
            ctx.set(dut.push_frame, frame)
            await ctx.tick()
            ctx.set(dut.push, 0)

        for limit in (2, 4, 1, 8):
            ctx.set(dut.limit, limit)
            await ctx.tick()
            frames = []
            while ctx.get(dut.free):
                frames.append(await pop())
            assert len(frames) == limit and len(set(frames)) == limit
            for frame in frames:
                await push(frame)

    simulate(dut, bench)


@pytest.mark.parametrize(
    ("name", "limits", "unpinned"),
    [("unit", [8, 5, 4, 7], 3), ("unit_coherent", [16, 11, 9, 12], 9)],
)
def test_pools_against_golden(name, limits, unpinned):
    """Every strobe on every pool; the answers that M3 looks at, in the cycle after. Beside a host
    that caches pins leave more frames than it can hold sectors, though `reserve` is less."""
    config = named(name)
    dut, golden = Pools(config=config), Tracker(config)
    rng = random.Random(1)
    golden.set_limits(limits)
    golden.low_water, golden.reserve = 2, 3

    async def bench(ctx):
        for p, limit in enumerate(limits):
            ctx.set(dut.settings.limit[p], limit)
        ctx.set(dut.settings.low_water, golden.low_water)
        ctx.set(dut.settings.reserve, golden.reserve)
        await ctx.tick().repeat(2)
        out, ahead = [[] for _ in POOLS], 0
        for _ in range(2500):
            p, ahead = ahead, rng.randrange(len(POOLS))
            pool = golden.pools[p]
            ctx.set(dut.ask.select, p)
            ctx.set(dut.ask.ahead, ahead)
            want = (
                pool.free > 0,
                pool.free > pool.waiting,
                pool.free > pool.waiting + golden.low_water,
                pool.pins + unpinned < pool.limit,
            )
            answers = ("can_pop", "can_take", "can_prefetch", "can_pin")
            assert tuple(bool(ctx.get(getattr(dut.ask, name))) for name in answers) == want
            ops = [
                ("unpin",),
                ("pin",) if want[3] else (),
                ("wait",) if pool.waiting < config.misses else (),
                ("unwait",) if pool.waiting else (),
                ("pop",) if want[0] else (),
                ("pop", "unwait") if want[0] and pool.waiting else (),
                ("push",) if out[p] else (),
            ]
            op = rng.choice(ops)
            ctx.set(dut.change.want, "pop" in op or "wait" in op)
            for name in ("pop", "push", "wait", "unwait", "pin", "unpin"):
                ctx.set(getattr(dut.change, name), name in op)
            if "pop" in op:
                frame = pool.pop()
                assert ctx.get(dut.ask.frame) == frame
                out[p].append(frame)
            if "push" in op:
                frame = out[p].pop(rng.randrange(len(out[p])))
                ctx.set(dut.change.push_frame, frame)
                pool.push(frame)
            pool.waiting += ("wait" in op) - ("unwait" in op)
            pool.pins = max(0, pool.pins + ("pin" in op) - ("unpin" in op))
            await ctx.tick()
            for i, pool in enumerate(golden.pools):
                used = pool.limit - pool.free
                want = {"free": pool.free, "used": used, "spare": pool.free - pool.waiting}
                levels = {name: ctx.get(getattr(dut.levels, name)[i]) for name in want}
                assert levels == want
                assert ctx.get(dut.levels.unused[i]) == (used == 0)

    simulate(dut, bench)


@pytest.mark.parametrize("ops", [("pop", "want"), ("wait", "want"), ()])
def test_a_prefetch_never_takes_what_a_lowered_limit_forbids(ops):
    """A pool's limit falls in any cycle in which none of its frames is used, as registers have it.
    What can be prefetched follows the limit a cycle later, and is not asked for beyond it."""
    dut = Pools(config=named("unit"))

    async def bench(ctx):
        ctx.set(dut.settings.limit[0], 8)
        await ctx.tick().repeat(3)
        assert ctx.get(dut.ask.can_prefetch)
        ctx.set(dut.settings.limit[0], 1)
        for op in ops:
            ctx.set(getattr(dut.change, op), 1)
        await ctx.tick()
        for op in ops:
            ctx.set(getattr(dut.change, op), 0)
        for _ in range(3):
            assert ctx.get(dut.ask.can_take) == (not ops)
            assert ctx.get(dut.ask.can_prefetch) == (not ops)
            await ctx.tick()

    simulate(dut, bench)


def test_flipped_bits_in_free_frames():
    """Freed frames are handed out right with a flip each; two flips in one are reported when it
    becomes the next, and never a row that is not read."""
    dut = FreeFrames(first=8, frames=8, frame_bits=5, protect=True)
    rng = random.Random(4)

    async def bench(ctx, memory):
        ctx.set(dut.limit, 8)
        await ctx.tick().repeat(2)

        async def move(pop=0, push=None):
            """One cycle; (frame that was popped, fault of the one that follows)."""
            ctx.set(dut.pop, pop)
            ctx.set(dut.push, push is not None)
            ctx.set(dut.push_frame, push or 0)
            frame = ctx.get(dut.frame)
            fault = fields(ctx, dut.fault)
            await ctx.tick()
            ctx.set(dut.pop, 0)
            ctx.set(dut.push, 0)
            return frame, fault

        assert [(await move(pop=1))[0] for _ in range(8)] == [*range(8, 16)]
        for flips in (0, 1, 2):
            order = rng.sample(range(8, 16), 8)
            for frame in order:
                await move(push=frame)
            await ctx.tick().repeat(2)
            for row in range(8):
                flip(ctx, memory, row, *rng.sample(range(5), flips))
            await ctx.tick()  # the row behind the oldest is out already
            got = [await move(pop=1) for _ in range(8)]
            # The first was in a register from the beginning, and none follows the last.
            expected = {"corrected": flips == 1, "uncorrected": flips == 2}
            assert [fault for _, fault in got[:7]] == [expected] * 7
            assert got[7][1] == {"corrected": 0, "uncorrected": 0}
            assert flips == 2 or [frame for frame, _ in got] == order
            for row in range(8):
                ctx.set(memory[row], 0)

    simulate_memory(dut, bench)


@pytest.mark.parametrize(
    ("given", "names"), [({"frames": 0}, "frames = 0"), ({"first": 60}, "first = 60 .* 0 … 56")]
)
def test_parameters_are_checked(given, names):
    with pytest.raises(ValueError, match=names):
        FreeFrames(**{"first": 0, "frames": 8, "frame_bits": 6} | given)

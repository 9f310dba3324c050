# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Policy `kelp`: the golden model's properties, and the blocks that learn from accesses held to it
(docs/policy.md)."""

import random

import pytest
from amaranth.sim import Simulator

from kelp_golden.kelp_policy import FIRST, SECOND, KelpPolicy, Scan, Scores, Shadow, fold_table
from kelp_golden.ops import Session
from kelp_hw.eviction.kelp_state import KelpState
from kelp_hw.eviction.lru_shadow import LruShadow
from kelp_hw.scores.kelp_scores import remains
from kelp_spec import policy
from kelp_spec.config import named
from kelp_spec.metadata import Op, Outcome, PageState

SMALL = named("trace").with_(queues=16, pages=64)


def simulate(dut, bench):
    simulator = Simulator(dut)
    simulator.add_clock(1e-8)
    simulator.add_testbench(bench)
    simulator.run()


@pytest.mark.parametrize(
    "alpha, bits", [(policy.ALPHA_FAST, policy.FAST_BITS), (policy.ALPHA_SLOW, policy.SLOW_BITS)]
)
def test_fold_tables_agree_and_never_rise(alpha, bits):
    table = remains(alpha, bits)
    assert tuple(table) == fold_table(alpha, bits)
    assert (
        table[0] == 1 << bits
        and table[-1] == 0
        and all(a >= b for a, b in zip(table, table[1:], strict=False))
    )


def test_frequencies_stay_within_their_words():
    """An access in every step brings both to their tops, and long idleness to nothing."""
    scores = Scores(SMALL)
    word = scores.allocate(0, 3, 5, 1)
    for step in range(2, 2000):
        word = scores.touch(word, 0, 3, 5, step, 1)
    fast, slow = word & 511, word >> policy.FAST_BITS
    assert 505 <= fast <= 511 and 4060 <= slow <= 4095
    assert scores.scan(word, 0, 3, 5, 9999, 8000).common == 0


def test_profile_counts_accesses_by_distance_and_forgets():
    scores = Scores(SMALL)
    for page in range(6):
        scores.allocate(0, 3, page, 1)
    word = scores.touch(scores.allocate(0, 3, 6, 1), 0, 3, 2, 2, 1)  # distance 4
    assert [scores.scan(word, 0, 3, page, 2, 1).count for page in (1, 2, 3)] == [0, 1, 0]
    scores.allocate(0, 3, 7, 3)  # page 3 is four behind the newest now
    assert [scores.scan(word, 0, 3, page, 3, 1).count for page in (2, 3)] == [0, 1]
    for step in range(4, 4 + 64):
        scores.touch(word, 0, 3, 3, step, 1)
    held = scores.scan(word, 0, 3, 3, 67, 1).count
    assert held > 32 and scores.scan(word, 0, 3, 3, 67 + 64, 1).count == held // 2


def test_a_page_whose_turn_has_passed_is_worth_less():
    scores = Scores(SMALL)
    word = scores.allocate(0, 3, 5, 1)
    scores.touch(word, 0, 4, 0, 2, 1)
    before, after = scores.scan(word, 0, 3, 5, 2, 1), scores.scan(word, 0, 4, 5, 2, 1)
    assert before.over and not after.over and before.common < after.common
    assert KelpPolicy.worth(before, FIRST, 128) == before.value(FIRST) * 128 >> 8


def test_opinions_differ_by_the_profile_alone():
    scan = Scan(common=1000, count=5, over=False)
    assert scan.value(FIRST) - scan.value(SECOND) == 5 << policy.PROFILE_SHIFT


def test_regret_turns_the_duel():
    kelp = KelpPolicy(SMALL)
    assert kelp.followed == FIRST
    kelp.read(FIRST)
    assert kelp.followed == SECOND
    for _ in range(1000):
        kelp.read(FIRST)
    assert kelp.duel == policy.DUEL_MOST and kelp.credit == -policy.CREDIT_MOST
    for _ in range(2000):
        kelp.read(SECOND)
    assert kelp.followed == FIRST and kelp.duel == -policy.DUEL_MOST


def lru_misses(accesses, frames):
    """What LRU over whole pages would miss, page by page: the shadow may only see fewer."""
    order, missed = {}, 0
    for key in accesses:
        missed += key in order and list(order).index(key) < len(order) - frames
        order.pop(key, None)
        order[key] = None
    return missed


def test_shadow_never_counts_more_than_lru_misses():
    rng = random.Random(7)
    for frames in (10, 30):
        shadow, last, trail, counted = Shadow(), {}, [], 0
        for step in range(1, 150):
            for queue in range(8):
                for page in sorted({int(rng.expovariate(0.4)) for _ in range(4)}):
                    counted += shadow.access(step, last.get((queue, page)), queue, frames)
                    last[queue, page] = step
                    trail.append((queue, page))
        exact = lru_misses(trail, frames)
        assert 0.5 * exact < counted <= exact, (frames, counted, exact)


@pytest.mark.parametrize("seed", [1, 2])
def test_shadow_in_hardware_is_the_golden_one(seed):
    """Two sessions, steps that leap and wrap, sessions that open anew."""
    rng = random.Random(seed)
    dut = LruShadow(config=SMALL)
    golden, credit, leaps = [Shadow(), Shadow()], 0, 0

    async def bench(ctx):
        nonlocal credit, leaps
        frames = rng.choice([40, 100, 200])
        ctx.set(dut.frames, frames)
        last, step = {}, [0, 0]

        async def send(**event):
            ctx.set(dut.i.p, event)
            ctx.set(dut.i.valid, 1)
            await ctx.tick()
            ctx.set(dut.i.valid, 0)
            while not ctx.get(dut.idle):
                await ctx.tick()

        for _ in range(2500):
            session = rng.randrange(2)
            if rng.random() < 0.04:
                leap = rng.choice([1, 1, 1, 1, 2, 7, 60] * 5 + [300])
                leaps += leap > 255
                step[session] += leap
            if rng.random() < 0.001:
                golden[session], step[session] = Shadow(), 0
                last = {key: value for key, value in last.items() if key[0] != session}
                await send(opened=1, session=session)
            key = session, rng.randrange(8), rng.randrange(30)
            before, now = last.get(key), step[session]
            if before == now:
                continue
            read = rng.randrange(2)
            if golden[session].access(now, before, key[1], frames):
                credit = min(policy.CREDIT_MOST, credit + 1)
            if read:
                credit = max(-policy.CREDIT_MOST, credit - 1)
            last[key] = now
            await send(
                access=1,
                read=read,
                session=session,
                octile=key[1],
                step=now,
                last=before or 0,
                new=int(before is None),
            )
            assert ctx.get(dut.credit) == credit
        assert leaps

    simulate(dut, bench)


def test_state_follows_a_result_after_its_latency():
    """A read that the first opinion is to blame for turns the duel; then one of the second's."""
    dut = KelpState(config=SMALL)

    async def bench(ctx):
        ctx.set(dut.i_result.p.op.kind, Op.PREFETCH)
        ctx.set(dut.i_result.p.outcome, Outcome.MISSED)
        ctx.set(dut.i_result.p.policy, 1)
        ctx.set(dut.i_result.p.old.state, PageState.COLD)
        ctx.set(dut.i_result.valid, 1)
        seen = []
        for given in (1, 2, 0, 0, 0):
            ctx.set(dut.i_result.p.old.place, given)
            await ctx.tick().repeat(dut.INTERVAL)
            seen.append(ctx.get(dut.opinion.second))
        assert seen.index(1) == dut.LATENCY - 1

    simulate(dut, bench)


def test_shadow_loses_what_finds_it_full_and_goes_on():
    dut = LruShadow(config=SMALL)
    lost = 0

    async def bench(ctx):
        nonlocal lost
        ctx.set(dut.frames, 5)
        ctx.set(dut.i.valid, 1)
        for n in range(200):
            ctx.set(dut.i.p, {"access": 1, "step": 1, "octile": n % 8, "new": 1})
            lost += ctx.get(dut.lost)
            await ctx.tick()
        ctx.set(dut.i.valid, 0)
        for _ in range(600):
            await ctx.tick()
        assert ctx.get(dut.idle)

    simulate(dut, bench)
    assert 100 < lost < 200


def state_of(ctx, dut, session):
    """What the golden policy calls near, followed second, credit left, marginal, refresh, ahead."""
    waiting, looking = dut.state.refresh, dut.state.ahead
    refresh = (session, ctx.get(waiting.squeue)) if ctx.get(waiting.valid) else None
    ahead = (ctx.get(looking.session), ctx.get(looking.squeue)) if ctx.get(looking.valid) else None
    opinion, credit = dut.opinion, dut.state.in_credit
    values = (ctx.get(x) for x in (opinion.near, opinion.second, credit, opinion.marginal))
    return (*values, refresh, ahead)


@pytest.mark.parametrize("seed", [1, 2])
def test_state_in_hardware_is_the_golden_one(seed):
    """Miss rate, duel, credit, marginal value, and which queues are to be looked at, over random
    results."""
    rng = random.Random(seed)
    dut, golden = KelpState(config=SMALL), KelpPolicy(SMALL)
    queues, heads, session = 12, 2, rng.randrange(2)
    base = session * SMALL.queues
    outcomes = {
        PageState.RESIDENT: Outcome.HIT,
        PageState.COLD: Outcome.MISSED,
        PageState.FETCHING: Outcome.PARKED,
        PageState.ABSENT: Outcome.ALLOCATED,
    }

    async def bench(ctx):
        ctx.set(dut.frames, 191)
        ctx.set(dut.sessions[session].used_queues, queues)
        ctx.set(dut.sessions[session].kv_heads, heads)
        last, step = {}, 1

        async def send(**result):
            ctx.set(dut.i_result.p, result)
            ctx.set(dut.i_result.valid, 1)
            await ctx.tick()
            ctx.set(dut.i_result.valid, 0)
            await ctx.tick()
            while not ctx.get(dut.idle):
                await ctx.tick()

        await send(op={"kind": Op.OPEN, "session": session}, outcome=Outcome.DONE)
        golden.opened(session)
        for _ in range(1200):
            step += rng.random() < 0.02
            queue, page = base + rng.randrange(queues), rng.randrange(60)
            before, given = last.get((queue, page)), rng.randrange(3)
            if before == step:
                continue
            last[queue, page] = step
            state = (
                PageState.ABSENT
                if before is None
                else rng.choice(
                    [PageState.RESIDENT, PageState.RESIDENT, PageState.COLD, PageState.FETCHING]
                )
            )
            golden.refresh = golden.ahead = None
            golden.access(
                session,
                queue,
                Session(used_queues=queues, kv_heads=heads, step=step),
                last=before,
                missed=state in (PageState.COLD, PageState.FETCHING),
                given_by=given if state == PageState.COLD else None,
                frames=191,
            )
            access = dict(
                op={"kind": Op.READ, "session": session, "squeue": queue, "page": page},
                outcome=outcomes[state],
                first=1,
                old={"state": state, "place": given, "last_step": before or 0},
                word={"last_step": step},
            )
            await send(policy=0, **access)  # another policy's access teaches nothing
            await send(policy=1, **access)
            if rng.random() < 0.2:
                given = rng.randrange(3)
                golden.read(given)
                await send(
                    op={"kind": Op.PREFETCH, "session": session, "squeue": queue, "page": page},
                    outcome=Outcome.MISSED,
                    policy=1,
                    old={"state": PageState.COLD, "place": given},
                )
            if rng.random() < 0.3:
                value = rng.randrange(16000)
                golden.gave(value)
                ctx.set(dut.state.gave.p, value)
                ctx.set(dut.state.gave.valid, 1)
                await ctx.tick()
                ctx.set(dut.state.gave.valid, 0)
            assert state_of(ctx, dut, session) == (
                golden.near,
                golden.followed == SECOND,
                golden.credit > 0,
                golden.marginal,
                golden.refresh,
                golden.ahead,
            )
            ctx.set(dut.state.refreshed, 1)
            ctx.set(dut.state.looked, 1)
            await ctx.tick()
            ctx.set(dut.state.refreshed, 0)
            ctx.set(dut.state.looked, 0)

    simulate(dut, bench)

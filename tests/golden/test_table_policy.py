# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The pool compiled is policy 2 of the golden model, decision for decision."""

from types import SimpleNamespace

import numpy as np
import pytest

from kelp_golden.table_policy import TablePolicy
from kelp_sim.select import memory
from kelp_spec import policy2

QUEUES, PAGES, HEADS, SLOT, LATENCY = 6, 24, 3, 183, 25_000


def both(frames):
    pool = memory.new_pool(QUEUES, PAGES, frames)
    golden = TablePolicy(QUEUES, PAGES, frames, heads=HEADS, latency=LATENCY, slot=SLOT)
    share = min(8, frames // QUEUES)
    for queue in range(QUEUES):
        at = queue * PAGES + 8
        pool.state[at - share : at] = memory.RESIDENT
        pool.shadow[at - share : at] = True
        golden.start(queue, range(8 - share, 8), 8)
    pool.newest[:] = 8
    pool.at[memory.USED] = pool.at[memory.SHADOW] = share * QUEUES
    return pool, golden


def compare(pool, golden):
    pages = [page for queue in golden.pages for page in queue]
    names = {memory.ABSENT: (False, False), memory.RESIDENT: (True, False)}
    found = [names.get(state, (False, True)) for state in pool.state.tolist()]
    assert found == [(page.resident, page.flying) for page in pages]
    assert pool.shadow.tolist() == [page.shadow for page in pages]
    learnt = [page for queue in golden.learnt for page in queue.pages]
    for name in ("value", "post", "fast", "slow"):
        assert getattr(pool, name).tolist() == [getattr(page, name) for page in learnt], name
    for name in ("often", "touched"):
        assert getattr(pool, name).tolist() == [getattr(page, name) for page in pages], name
    for name in ("v", "t"):
        assert getattr(pool, name).tolist() == [getattr(queue, name) for queue in golden.learnt]
    for name, place in (("used", memory.USED), ("credit", memory.CREDIT), ("reads", memory.READS)):
        assert pool.at[place] == getattr(golden, name), name


def drive(seed, frames, steps=90):
    """Both through the same steps: what is wanted drifts, and guesses are half right."""
    rng = np.random.default_rng(seed)
    print("seed", seed)
    pool, golden = both(frames)
    now, taste = 0, rng.random((QUEUES, PAGES))
    for step in range(1, steps):
        newest = 8 + step // 8
        taste = 0.95 * taste + 0.05 * rng.random((QUEUES, PAGES))
        for queue in range(QUEUES):
            # Every other page's time a host that gives the tier time for what is fetched early.
            now += int(rng.integers(500, 60_000 if step % 16 < 8 else 9000))

            def turn(at, newest=newest, queue=queue, step=step):
                return memory.Turn(
                    PAGES, frames, HEADS, SLOT, memory.TABLE, policy2.FETCH, newest, queue, step, at
                )

            if step % 8 == 0:
                memory.opened(pool, turn(now), queue)
                golden.opened(queue, newest, step)
            golden.turn(queue, step)
            memory.land(pool, now)
            golden.land(now)
            liked = np.argsort(-taste[queue, :newest] - 0.2 * rng.random(newest))[:5]
            read = np.zeros(PAGES, bool)
            read[liked] = read[0] = read[newest] = True
            keys = slice(queue * PAGES, (queue + 1) * PAGES)
            here = pool.state[keys] == memory.RESIDENT
            pool.held[:] = False
            pool.held[keys] = read & here
            for other in range(QUEUES):
                golden.hold(other, set(np.flatnonzero(read & here)) if other == queue else ())
            wanted, must = read & ~here, bool(rng.random() < 0.1)
            sums = (HEADS * 65535 * taste[queue] ** 6).astype(np.int64)
            names = {page: int(sums[page]) for page in np.flatnonzero(wanted).tolist()}
            if must:
                latest = memory.demand(pool, turn(now), queue, wanted, sums, True)
                assert latest == golden.demand(queue, names, newest, now, must=True)
            memory.turn_over(pool, turn(now), queue, read)
            golden.turn_over(queue, set(np.flatnonzero(read).tolist()), newest, step)
            memory.demand(pool, turn(now), queue, wanted, sums, False)
            golden.demand(queue, names, newest, now, must=False)
            after = (queue + 1) % QUEUES
            mass = (65535 * taste[after] ** 4 * rng.random(PAGES)).astype(np.int64)
            scored = rng.random(PAGES) < 0.7
            memory.early(pool, turn(now), after, mass, scored)
            masses = {page: int(mass[page]) for page in np.flatnonzero(scored)}
            golden.early(after, masses, newest, now)
            compare(pool, golden)
    return pool


@pytest.mark.parametrize(("seed", "frames"), [(1, 24), (2, 40), (3, 80), (4, 24)])
def test_every_decision_is_the_golden_one(seed, frames):
    pool = drive(seed, frames)
    print("flash reads", pool.at[memory.READS], "of which early", pool.at[memory.EARLY])
    assert pool.at[memory.READS] > (50 if frames < 80 else 15)
    assert pool.at[memory.EARLY] > 0


@pytest.mark.parametrize(
    ("module", "name", "value"), [("tables", "LATER_READ", 150), ("table_policy", "FETCH", 3000)]
)
def test_a_changed_constant_is_found(monkeypatch, module, name, value):
    other = SimpleNamespace(**(vars(policy2) | {name: value}))
    monkeypatch.setattr(f"kelp_golden.{module}.p", other)
    with pytest.raises(AssertionError):
        drive(5, 40)

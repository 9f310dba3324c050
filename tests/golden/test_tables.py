# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What a device learns by policy 2: as the lab's compiled pool learns it; steps that skip and wrap;
LRU's shadow by cohorts, against a naive one."""

from types import SimpleNamespace

import numpy as np
import pytest

from kelp_golden.eviction import worth
from kelp_golden.tables import Tables
from kelp_sim.select import memory
from kelp_spec import policy2
from kelp_spec.config import named

CONFIG = named("unit_select").with_(sessions=2, queues=3, pages=64)
QUEUES, PAGES = CONFIG.queues, CONFIG.pages
TURN = 1 << 24
SKIPS = (0, 1, 1, 1, 1, 2, 63, 64, 254, 255, 256, 300)


def whole(tables, squeue):
    queue = tables._queue(squeue)
    pages = [(x.fast, x.slow, x.post, x.before, x.guessed) for x in queue.pages]
    return pages, queue.counts, queue.v, queue.t, tables.value[squeue].tolist()


def alike(tables, pool, queue):
    """Of a session's queue, in either."""
    found, keys = tables._queue(queue), slice(queue * PAGES, (queue + 1) * PAGES)
    for name in ("fast", "slow", "post"):
        assert [getattr(x, name) for x in found.pages] == getattr(pool, name)[keys].tolist(), name
    assert tables.value[queue].tolist() == pool.value[keys].tolist()
    assert (found.v, found.t) == (pool.v[queue].tolist(), pool.t[queue].tolist())
    assert tables.credit(0) == pool.at[memory.CREDIT]


def drive(seed, steps=120):
    """Both learn the same. There is a frame for every page and no time for a guess to fetch, so
    that shadows and credit are the same, too: first pages are in neither shadow, of which none is
    read in its first turn."""
    print("seed", seed)
    rng = np.random.default_rng(seed)
    frames = QUEUES * PAGES
    tables, pool = Tables(CONFIG, frames=frames), memory.new_pool(QUEUES, PAGES, frames)
    taste = rng.random((QUEUES, PAGES))
    pool.shadow[20::PAGES] = True
    for step in range(1, steps):
        newest = 20 + step // 3
        turn = memory.Turn(PAGES, frames, 2, 1, memory.TABLE, policy2.FETCH, newest, 0, step, step)
        taste = 0.95 * taste + 0.05 * rng.random((QUEUES, PAGES))
        for queue in range(QUEUES):
            mass = (65535 * taste[queue] ** 6 * rng.random(PAGES)).astype(np.int64)
            scored = rng.random(PAGES) < 0.7
            masses = {page: int(mass[page]) for page in np.flatnonzero(scored).tolist()}
            memory.early(pool, turn, queue, mass, scored)
            tables.guessed(queue, masses, newest)
            for page in range(newest):
                place = pool.guessed[queue * PAGES + page]
                assert tables.likely(queue, page) == pool.t[queue, place]
            alike(tables, pool, queue)
            read = (rng.random(PAGES) < taste[queue] ** 4) & (np.arange(PAGES) <= newest)
            read = read & (step > 1)
            read[newest], read[0] = True, read[0] or step > 1
            if step % 3 == 0:
                memory.opened(pool, turn, queue)
            memory.turn_over(pool, turn, queue, read)
            tables.turn_over(queue, set(np.flatnonzero(read).tolist()), newest, step)
            alike(tables, pool, queue)
    return tables


def test_what_is_learnt_is_what_the_lab_learns():
    assert drive(1).credit(0) > 50
    drive(2)


@pytest.mark.parametrize("name", ["LATER_READ", "GUESS_SHIFT", "SLOW", "T_SHIFT"])
def test_a_changed_constant_is_found(monkeypatch, name):
    other = SimpleNamespace(**(vars(policy2) | {name: getattr(policy2, name) - 1}))
    monkeypatch.setattr("kelp_golden.tables.p", other)
    with pytest.raises(AssertionError):
        drive(1)


class Shadow:
    """Who would be resident under LRU by cohorts: steps do not wrap, and each page has its own."""

    def __init__(self, frames):
        self.frames, self.last, self.credit, self.met = frames, {}, 0, set()

    def _leave(self, step):
        self.last = {key: at for key, at in self.last.items() if step - at < 255}
        while self.last and min(self.last.values()) != step:
            oldest = min(self.last.values())
            count = list(self.last.values()).count(oldest)
            if 2 * (len(self.last) - self.frames) <= count:
                break
            self.last = {key: at for key, at in self.last.items() if at != oldest}

    def turn_over(self, queue, read, newest, step):
        self._leave(step)
        for page in range(newest + 1):
            if page in read:
                if (queue, page) not in self.last and (queue, page) in self.met:
                    self.credit = min(2048, self.credit + 7)
                self.last[queue, page] = step
            self.met.add((queue, page))
        self._leave(step)


@pytest.mark.parametrize(("seed", "frames"), [(1, 5), (2, 20), (3, 60), (4, 1000)])
def test_the_shadow_is_that_of_whole_cohorts(seed, frames):
    print("seed", seed)
    rng = np.random.default_rng(seed)
    tables, naive = Tables(CONFIG, frames=frames), Shadow(frames)
    first = TURN - 3000 + int(rng.integers(256))  # the device's steps wrap
    step, newest = 0, 0
    for n in range(1000):
        step += int(rng.choice(SKIPS)) if n % 7 == 0 else int(rng.random() < 0.4)
        newest = min(newest + (rng.random() < 0.05), PAGES - 1)
        queue = int(rng.integers(QUEUES))
        read = {int(page) for page in rng.integers(0, newest + 1, 4)}
        naive.turn_over(queue, read, newest, step)
        tables.turn_over(queue, read, newest, (first + step) % TURN)
        assert tables.credit(0) == naive.credit
        if rng.random() < 0.4 and naive.credit > -50:
            tables.spend(0)
            naive.credit -= policy2.COST
        session = tables._sessions[0]
        assert session.total == sum(session.cohorts) == len(naive.last)
        held = {
            (queue, number)
            for queue in range(QUEUES)
            for number, cohort in enumerate(tables._queue(queue).cohorts)
            if cohort is not None
        }
        assert held >= set(naive.last)  # others are found to have left in their queue's turn
    assert step > 3000 and naive.met


@pytest.mark.parametrize("skip", sorted(set(SKIPS)))
def test_idle_steps_fold_at_once_and_a_new_64_steps_halve_counts(skip):
    tables, first = Tables(CONFIG, frames=100), TURN - 10
    for _ in range(20):
        tables.turn_over(1, {0, 3}, 5, first)
    page, counts = tables._queue(1).pages[3], list(tables._queue(1).counts)
    fast, slow = page.fast, page.slow
    assert counts[5] == counts[2] == 20 and 0 < slow < fast
    tables.turn_over(1, set(), 5, (first + skip) % TURN)
    n = min(skip, 255)
    assert page.fast == fast * round(65536 * (200 / 256) ** n * (n < 255)) // 65536
    assert page.slow == slow * round(65536 * (248 / 256) ** n * (n < 255)) // 65536
    assert tables._queue(1).counts[2] == (10 if skip >= 10 else 20)


def test_steps_wrap():
    ends = []
    for first in (TURN - 512, 512):
        rng, tables, step = np.random.default_rng(5), Tables(CONFIG, frames=12), first
        for _ in range(400):
            step = (step + int(rng.choice(SKIPS[:6]))) % TURN
            queue = int(rng.integers(QUEUES))
            tables.turn_over(queue, set(rng.integers(0, 10, 3).tolist()), 9, step)
            tables.spend(0)
        ends.append([whole(tables, queue) for queue in range(QUEUES)] + [tables.credit(0)])
        assert 0 < tables.credit(0) < policy2.CREDIT_MOST
    assert ends[0] == ends[1]


def taught():
    tables = Tables(CONFIG, frames=2)
    for step in range(200):
        for squeue in range(CONFIG.squeues):
            tables.turn_over(squeue, {step % 5, 7}, 7, step)
    return tables


def test_a_session_that_is_opened_is_new_and_the_other_is_not_touched():
    tables, new = taught(), Tables(CONFIG)
    tables.guessed(QUEUES, {1: 5}, 7)
    before = [whole(tables, squeue) for squeue in range(QUEUES)]
    assert tables.value[QUEUES:].any() and tables.credit(1) == policy2.CREDIT_MOST
    tables.opened(1)
    assert [whole(tables, squeue) for squeue in range(QUEUES)] == before
    assert whole(tables, QUEUES) == whole(new, QUEUES)
    assert not tables.value[QUEUES:].any() and tables.credit(1) == 0
    assert tables.credit(0) == policy2.CREDIT_MOST
    assert tables.likely(QUEUES, 1) == 0


def test_marks_count_until_a_turn_that_reaches_them():
    tables = Tables(CONFIG, frames=8)
    tables.mark(0, [1, 5])
    assert [worth(tables, 0, page) for page in (0, 1, 5)] == [0, 65533, 65533]
    tables.guessed(0, {}, 3)
    assert [worth(tables, 0, page) == 65533 for page in (0, 1, 5)] == [False, True, True]
    tables.turn_over(0, {1}, 3, 1)
    assert [worth(tables, 0, page) == 65533 for page in (0, 1, 5)] == [False, False, True]
    tables.opened(0)
    assert worth(tables, 0, 5) == 0


def test_a_page_beyond_a_newest_that_went_back_may_be_taken_for_one_of_a_younger_cohort():
    """docs/select.md: its entry is the step modulo 256, and no turn that ends before it empties
    it."""
    for skipped, credit in ((255, 7), (256, 0), (257, 7)):
        tables = Tables(CONFIG, frames=8)
        tables.turn_over(0, {0, 2}, 2, 1)
        tables.turn_over(0, {0}, 1, 1 + skipped)
        before = tables.credit(0)
        tables.turn_over(0, {2}, 2, 2 + skipped)
        assert tables.credit(0) - before == credit


def test_credit_ends_at_16_bits():
    tables = Tables(CONFIG)
    for n in range(1, 5000):
        tables.spend(1)
        assert tables.credit(1) == max(-8 * n, -32768)
    assert tables.credit(0) == 0


def test_pages_to_fetch_early_are_those_that_are_likely_by_what_credit_there_is():
    tables = Tables(CONFIG, frames=2)
    assert tables.early(0, range(8), 7) == []
    for step in range(300):
        tables.guessed(0, {1: 60000, 2: 6000, 3: 300}, 7)
        tables.turn_over(0, {1, 7} | ({2} if step % 4 == 0 else set()), 7, step)
    tables.guessed(0, {1: 60000, 2: 6000, 3: 300, 6: 9}, 7)
    likely = {page: tables.likely(0, page) for page in range(7)}
    while tables.credit(0) > 0:
        tables.spend(0)
    for credit in range(0, 2048, 7):
        tables._sessions[0].credit = credit
        least = policy2.THRESHOLD - (87 * credit >> 3)
        assert tables.early(0, {7, 3, 1, 2}, 7) == [
            (page, likely[page]) for page in (1, 2, 3) if likely[page] > least
        ]
    assert len(tables.early(0, {7, 3, 1, 2}, 7)) > 1
    tables._sessions[0].credit = -50
    assert [page for page, *_ in tables.early(0, range(8), 7)] == [1]

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What choices and guesses teach the tables, and what these have fetched."""

import numpy as np
import pytest
from select_room import BELL, Room, device, queries

from kelp_golden.select_region import SelectRegion
from kelp_spec.metadata import Op, PageState
from kelp_spec.select import ANSWER_FIELDS, record

FRAMES = 4  #: of LRU's shadow: fewer than a queue's pages


class Taught(Room):
    """A room of two golden twins, whose LRU would have but a few frames."""

    def __init__(self, *, frames=FRAMES, **options):
        self.frames = frames
        self.makes = device(queues=(0, 1)), device(queues=(0, 1))
        super().__init__(self.makes[0], cycles=60_000, **options)
        self.wanted = []
        self.region = SelectRegion(self.makes[1], fetch=self.wanted.extend)
        for made in self.makes:
            made.tracker.pools[0].used = frames
        self.sequence = 0

    async def cycle(self):
        self.ctx.set(self.dut.frames, self.frames)
        self.tell_session(0, "step", self.makes[0].tracker.sessions[0].step)
        await super().cycle()

    async def ask(self, seed, **bell):
        """A SELECT of random queries, as the golden one has it."""
        self.sequence += 1
        found, wanted = await self.select(
            self.region, {"sequence": self.sequence} | bell, queries(seed), group=0
        )
        assert found == wanted
        while not self.ctx.get(self.dut.idle):
            await self.cycle()
        assert self.fetched == self.wanted
        await self.agree((BELL | bell).get("queue", 0))
        return record(ANSWER_FIELDS, found[0])

    async def agree(self, queue):
        """What the tables say of a queue's pages."""
        values, golden, found = self.dut.values, self.makes[1].tables, []
        self.ctx.set(values.squeue, queue)
        for page in range(10):
            self.ctx.set(values.page, page)
            await self.cycle()
            found.append(self.ctx.get(values.value))
        assert found == golden.value[queue, :10].tolist()

    async def select(self, region, bell, rows, *, group):
        await Room.ask(self, region, rows, group=group)
        await self.ring(region, bell, group=group)
        return await self.answered(region, bell["sequence"], group=group)

    def step(self, steps):
        for made in self.makes:
            made.tracker.sessions[0].step += steps

    def move(self, pages, state, squeue=0):
        for made in self.makes:
            for page in pages:
                key = squeue * made.config.pages + page
                word = made.tracker.words[key]
                made.tracker.words[key] = word._replace(state=int(state))

    async def reopen(self):
        """The session ends, and another one begins."""
        self.tell(Op.CLOSE)
        for _ in range(60):
            await self.cycle()
        self.tell(Op.OPEN)
        for made in self.makes:
            made.tables.opened(0)
        self.region.ended(0)
        await self.cycle()

    async def spend(self, most):
        """Reads of flash until no more credit is left than that. What is none costs nothing, nor
        does another session's."""
        read = {
            "op": {"kind": Op.PREFETCH},
            "changed": 1,
            "old": {"state": PageState.COLD},
            "word": {"state": PageState.FETCHING},
        }
        others = (
            {"changed": 0},
            {"old": {"state": PageState.ABSENT}},
            {"word": {"state": PageState.RESIDENT}},
            {"op": {"kind": Op.PREFETCH, "session": 1}},
        )
        while self.credit > most:
            self.results += [read, *(read | other for other in others)]
            for made in self.makes:
                made.tables.spend(0)
        while self.results:
            await self.cycle()
        await self.cycle()

    @property
    def credit(self):
        return self.makes[1].tables.credit(0)


@pytest.mark.parametrize(("offer", "take", "seed"), [(1.0, 1.0, 1), (0.6, 0.5, 2)])
@pytest.mark.sampled
def test_a_guess_fetches_what_tables_say(offer, take, seed):
    """Turns that read what LRU would have lost earn credit; then of a guess the likeliest pages are
    fetched, as many as there is credit for, and without `tables` by their masses."""
    print("seed", seed)
    room, rng = Taught(offer=offer, take=take, seed=seed), np.random.default_rng(seed)
    counts = []

    async def host(room):
        for turn in range(14):
            for queue in (0, 1):
                await room.ask(int(rng.integers(1 << 30)), queue=queue, layer=turn)
            room.step(int(rng.choice([1, 1, 2, 70])))
        assert room.credit > 0 and not room.fetched
        for turn in range(6):
            gone = rng.choice(np.arange(1, 9), 6, replace=False).tolist()
            room.move(gone, PageState.COLD)
            guess = int(rng.integers(1 << 30))
            for tables in (1, 0):
                before = len(room.fetched)
                await room.ask(guess, layer=20 + turn, speculative=1, tables=tables)
                counts.append((tables, len(room.fetched) - before))
            room.move(gone, PageState.RESIDENT)
            await room.ask(guess, layer=20 + turn)
            room.step(1)

    room.run(host)
    print(counts, room.credit)
    assert sum(n for tables, n in counts if tables) > 3
    assert sum(n for tables, n in counts if not tables) > 6


def test_a_guess_fetches_no_more_than_there_is_credit_for():
    """Of the same pages as many as are likely, two for 16 or less, one for 8 or less, none for
    nothing."""
    room, rng = Taught(seed=3), np.random.default_rng(3)
    counts = []

    async def host(room):
        seeds = rng.integers(1 << 30, size=4).tolist()
        for turn in range(24):
            await room.ask(seeds[turn % 4], layer=turn)
            room.step(3)
        room.move(range(1, 9), PageState.COLD)
        for most in (1 << 15, 16, 8, 0):
            await room.spend(most)
            before = len(room.fetched)
            await room.ask(seeds[0], layer=40, speculative=1, tables=1)
            counts.append((room.credit, len(room.fetched) - before))

    room.run(host)
    print(counts)
    (credit, every), (_, two), (_, one), (_, none) = counts
    assert credit > 16 and every > 2
    assert (two, one, none) == (2, 1, 0)


def test_nothing_is_learnt_of_a_session_that_has_ended():
    """It begins anew: the first turn of its queue is as that of a device that is reset."""
    room = Taught()

    async def host(room):
        for turn in range(5):
            await room.ask(turn, layer=turn)
            room.step(1)
        await room.reopen()
        for turn in range(8):
            await room.ask(7 * turn, layer=turn)
            room.step(1)
        gone = [2, 4, 6]
        room.move(gone, PageState.COLD)
        await room.ask(99, layer=20, speculative=1, tables=1)

    room.run(host)
    assert room.credit


@pytest.mark.parametrize("more", [0, 7])
@pytest.mark.sampled
def test_a_session_ends_while_the_tables_have_no_time(more):
    """What stands before them stays, and nothing of it is left in the next session. (A turn after
    300 steps, whose shadow loses pages of more than 200, takes a thousand cycles, in which its
    queue takes no mark.)"""
    room = Taught(frames=60)

    async def host(room):
        for turn in range(6):
            await room.ask(turn, layer=turn)
            room.step(40)
        room.step(300)
        await Room.ask(room, room.region, queries(50))
        for sequence in (20, 21):
            await room.ring(room.region, {"sequence": sequence, "layer": sequence})
            if sequence == 20:
                await room.answered(room.region, 20)
        room.ops.clear()
        while [kind for kind, *_ in room.ops].count("HOLD") < 2:  # the first one's mark stands
            await room.cycle()
        for _ in range(more):
            await room.cycle()
        room.tell(Op.CLOSE)
        for _ in range(2500):
            await room.cycle()
        assert room.ctx.get(room.dut.idle)
        room.tell(Op.OPEN)
        for made in room.makes:
            made.tables.opened(0)
        room.region.ended(0)
        await room.cycle()
        await room.agree(0)

    room.run(host)

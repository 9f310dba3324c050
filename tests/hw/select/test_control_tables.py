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

    def __init__(self, **options):
        self.makes = device(queues=(0, 1)), device(queues=(0, 1))
        super().__init__(self.makes[0], cycles=60_000, **options)
        self.wanted = []
        self.region = SelectRegion(self.makes[1], fetch=self.wanted.extend)
        for made in self.makes:
            made.tracker.pools[0].used = FRAMES
        self.sequence = 0

    async def cycle(self):
        self.ctx.set(self.dut.frames, FRAMES)
        self.ctx.set(self.dut.sessions[0].step, self.makes[0].tracker.sessions[0].step)
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
        assert self.ctx.get(values.known) == golden.known(queue)

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

    @property
    def credit(self):
        return self.makes[1].tables.credit(0)


@pytest.mark.parametrize(("offer", "take", "seed"), [(1.0, 1.0, 1), (0.6, 0.5, 2)])
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


def test_nothing_is_learnt_of_a_session_that_has_ended():
    """It begins anew: the first turn of its queue is as that of a device that is reset."""
    room = Taught()

    async def host(room):
        for turn in range(5):
            await room.ask(turn, layer=turn)
            room.step(1)
        room.tell(Op.CLOSE)
        for _ in range(60):
            await room.cycle()
        room.tell(Op.OPEN)
        for made in room.makes:
            made.tables.opened(0)
        room.region.ended(0)
        await room.cycle()
        for turn in range(8):
            await room.ask(7 * turn, layer=turn)
            room.step(1)
        gone = [2, 4, 6]
        room.move(gone, PageState.COLD)
        await room.ask(99, layer=20, speculative=1, tables=1)

    room.run(host)
    assert room.credit

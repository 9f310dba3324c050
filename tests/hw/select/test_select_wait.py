# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""SELECTs that wait for pages that they want: until these land, until their time is over, until
something else comes of them; nobody else waits for that."""

import pytest
from select_room import BELL, OWNER, SHAPE, Room, device, logged, pins, queries

from kelp_golden.ops import Op as TrackerOp
from kelp_golden.select_region import SelectRegion
from kelp_spec.metadata import Op, Outcome, PageState
from kelp_spec.select import ANSWER_FIELDS, BELL_FIELDS, SelectStatus, record, record_bytes

GONE = (0, 3, 5, 7)
WAITS = {"waits": 1, "wait_above": 0, "patience": 24}


def move(made, pages, state, queue=0):
    for page in pages:
        key = queue * made.config.pages + page
        made.tracker.words[key] = made.tracker.words[key]._replace(state=int(state))


class Waiting(Room):
    """A room whose time goes on, and a golden twin whose pages land as soon as they are waited
    for."""

    def __init__(self, *, lands=True, seed=1, **ends):
        self.makes = device(queues=(0, 1)), device(queues=(0, 1))
        super().__init__(self.makes[0], cycles=40_000, seed=seed, **ends)
        print("seed", seed)
        self.lands, self.waited, self.time, self.wanted = lands, [], 0, []
        self.region = SelectRegion(
            self.makes[1], wait=self._wait, fetch=lambda pages: self.wanted.extend(pages)
        )
        self.golden_ops = logged(self.region)

    def _wait(self, waits):
        self.waited.append(waits)
        if self.lands:
            move(self.makes[1], waits.pages, PageState.RESIDENT, waits.squeue)
        return waits.tries == 0

    async def cycle(self):
        self.ctx.set(self.dut.now, self.time)
        self.time += 1
        await super().cycle()

    async def begin(self, gone=GONE, **bell):
        """Everything summarised and scored once; then pages go, and a SELECT wants them."""
        found, wanted = await self.select(self.region, {"sequence": 1}, queries(1))
        assert found == wanted
        for made in self.makes:
            move(made, gone, PageState.COLD)
        await self.ask(self.region, queries(2))
        await self.ring(self.region, WAITS | {"sequence": 2} | bell)

    async def fetches(self):
        """Cycles until everything that it waits for was asked for, and some more."""
        while len(self.fetched) < len(self.waited[0].pages):
            await self.cycle()
        for _ in range(100):
            await self.cycle()

    async def sequence(self, group=0):
        header = await self.access(self.region.map.bell(0, group))
        return record(ANSWER_FIELDS, header)["sequence"]

    def land(self, pages):
        move(self.makes[0], pages, PageState.RESIDENT)
        for page in pages:
            self.tell(Op.FLIP, page=page)

    async def agree(self, sequence=2):
        """Its answer is the golden one's, and so is all that was done for it."""
        found, wanted = await self.answered(self.region, sequence)
        assert found == wanted, [record(ANSWER_FIELDS, lines[0]) for lines in (found, wanted)]
        for _ in range(30):
            await self.cycle()
        assert self.ops == self.golden_ops and pins(self.makes[0]) == pins(self.makes[1])
        assert self.fetched == self.wanted
        return record(ANSWER_FIELDS, found[0])


@pytest.mark.parametrize(("offer", "take"), [(1.0, 1.0), (0.6, 0.5)])
def test_it_chooses_again_when_they_have_landed(offer, take):
    room = Waiting(offer=offer, take=take, seed=int(10 * take))

    async def host(room):
        await room.begin()
        await room.fetches()
        (waits,) = room.waited
        assert 0 in waits.pages and len(waits.pages) > 1
        assert await room.sequence() == 1 and not room.ctx.get(room.dut.idle)
        assert pins(room.makes[0]), "what was chosen is held meanwhile"
        ops = len(room.ops)
        room.land(waits.pages[:-1])
        room.tell(Op.FLIP, squeue=1, page=waits.pages[-1])
        for _ in range(500):
            await room.cycle()
        assert len(room.ops) == ops, "one of them is still to come"
        room.land(waits.pages[-1:])
        header = await room.agree()
        assert header["missing"] == 0 or header["absent"]
        assert room.ctx.get(room.dut.idle)

    room.run(host)


def test_a_page_that_lands_before_it_waits_is_not_waited_for():
    room = Waiting()

    async def host(room):
        await room.begin(gone=(0,))
        while room.ops.count(("HOLD", 0, 0, 0)) < 2:  # it was not there, and is chosen first
            await room.cycle()
        room.land([0])
        assert (await room.agree())["missing"] == 0
        assert room.waited

    room.run(host)


@pytest.mark.parametrize("after", range(8))
@pytest.mark.sampled
def test_a_page_that_lands_as_it_begins_to_wait_counts(after):
    """Cycles from its last fetch on, among them that in which it begins to wait."""
    room = Waiting(seed=after)

    async def host(room):
        await room.begin()
        while not room.waited or len(room.fetched) < len(room.waited[0].pages):
            await room.cycle()
        (waits,) = room.waited
        for _ in range(after):
            await room.cycle()
        room.land(waits.pages)
        begun = room.time
        assert (await room.agree())["missing"] == 0
        assert room.time - begun < 4000

    room.run(host)


def _refuse(room, page, state):
    """M3 does not take its fetch."""
    room.tell(Op.PREFETCH, page=page, outcome=Outcome.DROPPED, state=state)


async def _drop(room, squeue, *names):
    """The prefetcher does not take a fetch, or one for each name."""
    for name in names:
        room.ctx.set(getattr(room.dut.dropped, name).valid, 1)
        room.ctx.set(getattr(room.dut.dropped, name).p, squeue)
    await room.cycle()
    for name in names:
        room.ctx.set(getattr(room.dut.dropped, name).valid, 0)


@pytest.mark.parametrize("landed", [0, 1])
def test_what_is_not_fetched_is_not_waited_for(landed):
    """It chooses again when the others have landed, and does not wait again if none has."""
    room = Waiting(lands=False, seed=landed)

    async def host(room):
        room.region._wait = lambda waits: room.waited.append(waits) or waits.tries <= landed
        await room.begin()
        await room.fetches()
        waits = room.waited[0]
        assert len(waits.pages) == 3
        ops, begun = len(room.ops), room.time
        # Neither are fetches of another queue, nor pages that are on their way, or there, by now.
        for name in ("judged", "crowded"):
            await _drop(room, 1, name)
        for state in (PageState.FETCHING, PageState.RESIDENT):
            for page in waits.pages:
                _refuse(room, page, state)
        if landed:
            room.tell(Op.FLIP, page=waits.pages[2])
            await _drop(room, 0, "crowded")
        else:
            await _drop(room, 0, "judged", "crowded")
        for _ in range(500):
            await room.cycle()
        assert len(room.ops) == ops, "one of them is still to come"
        _refuse(room, waits.pages[0], PageState.WRITING_BACK)
        if landed:  # it waits once more, and all that it wants is refused
            while len(room.fetched) < 2 * len(waits.pages):
                await room.cycle()
            for page in waits.pages:
                _refuse(room, page, PageState.ABSENT)
        assert (await room.agree())["missing"] > 0
        assert room.time - begun < 8000 and len(room.waited) == 2 + landed

    room.run(host)


def test_its_time_is_over():
    """It is served once more, and answered with what there is."""
    room = Waiting(lands=False)

    async def host(room):
        await room.begin(patience=11)
        await room.fetches()
        begun, fetched = room.time, len(room.waited[0].pages)
        header = await room.agree()
        assert header["missing"] > 0 and header["absent"]
        assert (1 << 11) - 200 < room.time - begun < (1 << 11) + 500
        assert [w.tries for w in room.waited] == [0, 1] and len(room.fetched) == 2 * fetched

    room.run(host)


def test_it_may_wait_once_more_and_no_longer():
    """Other pages of its queue land, as many as it wanted."""
    room = Waiting(lands=False)

    async def host(room):
        room.region._wait = lambda waits: room.waited.append(waits) or waits.tries < 2
        await room.begin(patience=12)
        await room.fetches()
        begun, many = room.time, len(room.waited[0].pages)
        for _ in range(1500):
            await room.cycle()
        for _ in range(many):
            room.tell(Op.FLIP, page=1)
        await room.agree()
        assert (1 << 12) - 200 < room.time - begun < (1 << 12) + 500
        assert len(room.fetched) == 3 * many

    room.run(host)


@pytest.mark.parametrize(
    "bell",
    [{"wait_above": 2 << 16}, {"waits": 0}, {"speculative": 1}, {"wait_above": (1 << 32) - 1}],
)
def test_it_does_not_wait(bell):
    """With a share of 1, without the bit, as a guess."""
    room = Waiting()

    async def host(room):
        await room.begin(**bell)
        header = await room.agree()
        assert not room.waited and header["missing"] > 0
        assert bool(room.fetched) == bool(bell.get("speculative"))

    room.run(host)


@pytest.mark.parametrize("kind", [{"fetch": 1}, {"speculative": 1}, {"waits": 1}])
@pytest.mark.sampled
def test_pages_of_little_mass_are_not_fetched(kind):
    """But the first one is, and what it waits for."""
    numbers = []
    for least in (0, 1 << 10, 1 << 12, 1 << 14, (1 << 32) - 1):
        room = Waiting(lands=False)

        async def host(room, least=least):
            await room.begin(**{"waits": 0, "fetch_from": least, "patience": 9} | kind)
            await room.agree()

        room.run(host)
        assert room.fetched[0] == (0, 0)
        numbers.append(len(room.fetched))
    assert numbers == sorted(numbers, reverse=True) and numbers[0] > 2
    if "waits" in kind:
        assert len(set(numbers)) == 1
    else:
        assert numbers[-1] == 1 and len(set(numbers)) > 2


def test_it_does_not_wait_for_what_is_not_wanted_or_not_missing():
    room = Waiting()

    async def host(room):
        await room.begin(gone=())
        assert (await room.agree())["missing"] == 0 and not room.waited

    room.run(host)


def test_others_are_served_meanwhile():
    """The KV head beside it; then a doorbell of its own block takes its place."""
    room = Waiting(lands=False)

    async def host(room):
        room.region._wait = lambda waits: room.waited.append(waits)
        await room.begin()
        await room.fetches()
        for sequence, group, queue in ((3, 1, 1), (4, 0, 0)):
            bell = {"sequence": sequence, "queue": queue}
            found, wanted = await room.select(room.region, bell, queries(3), group=group)
            assert found == wanted
            assert await room.sequence(0) == (1 if group else 4)
        for _ in range(600):
            await room.cycle()
        room.land(GONE)
        await room.agree(4)
        assert room.ctx.get(room.dut.idle)

    room.run(host)


@pytest.mark.parametrize("rings", [1, 2, 4])
def test_a_doorbell_that_was_taken_meanwhile_is_served_once(rings):
    """It comes while the one before it in its block is under way, which then does not wait; with
    several that take one another's place, the last."""
    room = Waiting(lands=False)

    async def host(room):
        room.region._wait = lambda waits: room.waited.append(waits)
        await room.begin()
        while room.ops.count(("LOOK", 0, 0, 0)) < 3:  # summarised, scored, scored again
            await room.cycle()
        data = record_bytes(BELL_FIELDS, BELL | {"sequence": 9}).ljust(64, b"\0")
        for _ in range(rings - 1):
            await room.access(room.region.map.bell(0, 0), data)
        await room.ring(room.region, {"sequence": 3})
        await room.agree(3)
        for _ in range(600):
            await room.cycle()
        assert room.waited and room.ops == room.golden_ops and room.ctx.get(room.dut.idle)

    room.run(host)


def test_its_session_ends():
    """Slots are given back, nothing is answered, and the next owner has nothing of it: neither the
    wait nor what was seen of pages."""
    room = Waiting(lands=False)

    async def host(room):
        room.region._wait = lambda waits: room.waited.append(waits)
        await room.begin()
        await room.fetches()
        room.region.ended(0)
        scrubs = [(Op.SCRUB, page) for page in range(10)]
        for kind, page in ((Op.CLOSE, 0), *scrubs, (Op.CLOSED, 0), (Op.OPEN, 0)):
            for made in room.makes:
                made.apply(TrackerOp(kind, page=page), descriptor=SHAPE)
            room.tell(kind, page=page)
            for _ in range(60 if kind == Op.CLOSE else 1):
                await room.cycle()
        for _ in range(200):
            await room.cycle()
        assert room.makes[0].tracker.pools[0].pins == 0 and room.ctx.get(room.dut.idle)
        assert await room.access(room.region.map.bell(0, 0), ld_id=OWNER) == bytes(64)
        room.region._wait = room._wait
        # Pages of the new owner were never written nor scored.
        await room.ask(room.region, queries(4))
        await room.ring(room.region, WAITS | {"sequence": 9, "patience": 9})
        found, wanted = await room.answered(room.region, 9)
        assert found == wanted
        assert record(ANSWER_FIELDS, found[0])["status"] == SelectStatus.DONE

    room.run(host)

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""GatherWindow: slots' addresses become their pages', at full rate."""

import random

import pytest
from flips import NO_FAULT, Opened, fields, flip
from simulation import simulate
from streams import Ends, pump

from kelp_hw.select.gather_window import GatherWindow
from kelp_spec.address import AddressMap, KvAddress, Region
from kelp_spec.config import named

CONFIG = named("unit_select")
MAP = AddressMap(CONFIG)
PAGES = {(0, 1): (5, 63, 17), (1, 3): (2,)}  #: (session, queue) → the pages of its slots
GENERATION = 6


async def fill(ctx, dut):
    """The slots of `PAGES`; the last one of each queue does not hold its page."""
    for _ in range(1 << dut.queue_bits):
        assert not ctx.get(dut.ready)
        await ctx.tick()
    assert ctx.get(dut.ready)
    for (session, queue), pages in PAGES.items():
        ctx.set(dut.squeue, session << CONFIG.queue_bits | queue)
        for slot, page in enumerate(pages):
            ctx.set(dut.slot, slot)
            ctx.set(dut.new_slot, {"page": page, "held": page != 17})
            ctx.set(dut.write_slot, 1)
            await ctx.tick()
        ctx.set(dut.write_slot, 0)
        ctx.set(dut.new_queue, {"count": len(pages), "generation": GENERATION})
        ctx.set(dut.write_queue, 1)
        await ctx.tick()
        ctx.set(dut.write_queue, 0)


def asked():
    """Addresses, and what becomes of each. Outside the map none names a page that it means not."""

    def at(session, queue, page, kv, line, region):
        return (
            MAP.encode(KvAddress(session, queue, page, kv, line)) | region << CONFIG.aperture_bits
        )

    for (session, queue), pages in PAGES.items():
        for slot in range(CONFIG.select):
            for kv, line in ((0, 2), (1, 3)):
                there = slot < len(pages) and pages[slot] != 17
                page, region = (pages[slot], Region.GATHER) if there else (0, Region.OUTSIDE)
                asks = MAP.gather(session, queue, GENERATION, kv, slot, line)
                yield asks, at(session, queue, page, kv, line, region)
        asks = MAP.gather(session, queue, GENERATION + 1, 0, 0, 0)
        yield asks, at(session, queue, 0, 0, 0, Region.OUTSIDE)
    yield MAP.gather(0, 0, 0, 0, 0, 0), Region.OUTSIDE << CONFIG.aperture_bits
    for other in (MAP.encode(KvAddress(1, 2, 9, 1, 1)), MAP.hint_base, MAP.select_base + 64):
        yield other, other


def run(offer, take):
    cases = list(asked())
    sends = [{"address": address >> 6, "tag": n} for n, (address, _) in enumerate(cases)]
    ends = Ends(sends={"i": sends}, takes=("o",), offer=offer, take=take, before=fill)
    seen = pump(GatherWindow(config=CONFIG), ends, cycles=int(len(cases) / offer / take) + 20)
    for t, (n, (_, place)) in zip(seen["o"], enumerate(cases), strict=True):
        assert t.item.tag == n
        assert t.item.address << 6 == place
    return seen


def test_addresses():
    run(0.6, 0.7)


class Beside:
    """A block whose rows are any that can be, and a model of them: the choice reads them, and
    writes them unless they are to hold `still`, in any cycle, while any requests pass."""

    def __init__(self, seed, *, still=False):
        print("seed", seed)
        self.rng, self.still = random.Random(seed), still
        self.dut = Opened(GatherWindow(config=CONFIG))
        squeues, slots = range(1 << self.dut.queue_bits), range(1 << CONFIG.slot_bits)
        self.places = [(squeue, slot) for squeue in squeues for slot in slots]
        self.rows = {place: (0, 0) for place in self.places} | dict.fromkeys(squeues, (0, 0))
        self.states = []  # the rows as they are behind each cycle
        self.reads, self.faults = [], []  # of each cycle: the place that is read; what is told
        self.asks = [self.request(n % 64) for n in range(160)]

    def drawn(self, place):
        """A row of a queue or of a slot."""
        if isinstance(place, tuple):
            return self.rng.randrange(CONFIG.pages), int(self.rng.random() < 0.8)
        return self.rng.randrange(CONFIG.select + 1), self.rng.randrange(8)

    def request(self, tag):
        """Most are to slots, of any generation and place, all in any region."""
        rng, region = self.rng, Region.GATHER
        session, queue = rng.randrange(CONFIG.sessions), rng.randrange(CONFIG.queues)
        at = rng.randrange(CONFIG.select), rng.randrange(CONFIG.half_lines)
        address = MAP.gather(session, queue, rng.randrange(8), rng.randrange(2), *at)
        if rng.random() < 0.3:
            region ^= 1 << rng.randrange(40 - CONFIG.aperture_bits)
        address = address & (1 << CONFIG.aperture_bits) - 1 | region << CONFIG.aperture_bits
        others = {"opcode": 4, "snp_type": 3, "meta_field": 2, "meta_value": 2, "ld_id": 4, "tc": 2}
        others = {name: rng.getrandbits(bits) for name, bits in others.items()}
        return {"address": address >> 6, "tag": tag} | others

    async def begin(self, ctx, dut):
        """Rows hold anything before the scrub, of which nothing is seen behind it; then they are
        written."""
        for memory in dut.memories.values():
            for row in range(memory.depth):
                ctx.set(memory[row], self.rng.getrandbits(len(memory[row])))
        ctx.set(dut.new_queue, {"count": 3, "generation": 5})
        for _ in range(1 << dut.queue_bits):
            assert not ctx.get(dut.ready)
            await ctx.tick()
        assert ctx.get(dut.ready)
        ctx.set(dut.read, 1)
        for squeue in range(1 << dut.queue_bits):
            ctx.set(dut.squeue, squeue)
            await ctx.tick()
            assert fields(ctx, dut.found_queue) == {"count": 0, "generation": 0}
            assert fields(ctx, dut.fault) == NO_FAULT
        ctx.set(dut.read, 0)
        for place in self.rows:
            self.write(ctx, place)
            await ctx.tick()
        self.write(ctx)

    def write(self, ctx, *places):
        """Rows at the places, of one queue, as they are drawn."""
        dut = self.dut
        ctx.set(dut.write_slot, 0)
        ctx.set(dut.write_queue, 0)
        for place in places:
            row = self.rows[place] = self.drawn(place)
            if isinstance(place, tuple):
                ctx.set(dut.squeue, place[0])
                ctx.set(dut.slot, place[1])
                ctx.set(dut.new_slot, dict(zip(("page", "held"), row, strict=True)))
                ctx.set(dut.write_slot, 1)
            else:
                ctx.set(dut.squeue, place)
                ctx.set(dut.new_queue, dict(zip(("count", "generation"), row, strict=True)))
                ctx.set(dut.write_queue, 1)

    def watch(self, ctx):
        dut, rng = self.dut, self.rng
        self.faults.append(fields(ctx, dut.fault))
        if self.reads and self.reads[-1]:
            squeue, slot = place = self.reads[-1]
            row = self.states[-1][place], self.states[-1][squeue]
            found = tuple(tuple(fields(ctx, x).values()) for x in (dut.found_slot, dut.found_queue))
            self.seen(place, row, found)
        place = rng.choice(self.places)
        writes = () if self.still else rng.choice([(), (), (), place, place[:1], (place, place[0])])
        if writes == place:
            writes = (place,)
        ctx.set(dut.squeue, place[0])
        ctx.set(dut.slot, place[1])
        self.write(ctx, *writes)
        reads = not writes and rng.random() < 0.6
        ctx.set(dut.read, reads)
        ctx.set(dut.hold, rng.random() < 0.2)
        self.reads.append(place if reads else None)
        self.states.append(dict(self.rows))

    def seen(self, place, row, found):
        """What the choice reads of a row."""
        assert found == row, (place, row, found)

    def becomes(self, ask, rows, lost=False):
        """What becomes of a request by some rows, or where they are `lost`; and whether its slot is
        one of its queue's, of one to no slot None."""
        address = ask["address"] << 6
        region, rest = divmod(address, 1 << CONFIG.aperture_bits)
        if region != Region.GATHER:
            return address, None
        rest, line = divmod(rest >> 6, CONFIG.half_lines)
        rest, slot = divmod(rest, CONFIG.select)
        rest, kv = divmod(rest, 2)
        squeue, generation = divmod(rest, 1 << CONFIG.generation_bits)
        page, held = rows[squeue, slot]
        count, own = rows[squeue]
        if lost or not (held and slot < count and generation == own):
            page, region = 0, Region.OUTSIDE
        of_page = MAP.encode(KvAddress(*divmod(squeue, CONFIG.queues), page, kv, line))
        return of_page | region << CONFIG.aperture_bits, slot < count

    def run(self, *, offer=0.7, take=0.5):
        ends = Ends(
            sends={"i": self.asks},
            takes=("o",),
            offer=offer,
            take=take,
            before=self.begin,
            watch=self.watch,
        )
        cycles = int(len(self.asks) / offer / take * 2)
        seen = pump(self.dut, ends, cycles=cycles, quiet=4)
        assert len(seen["o"]) == len(self.asks)
        for t, ask in zip(seen["o"], self.asks, strict=True):
            assert {name: t.item[name] for name in ask if name != "address"} == {
                name: value for name, value in ask.items() if name != "address"
            }
        return seen


@pytest.mark.parametrize("seed", [1, 2])
def test_any_rows_and_requests(seed):
    """A request is answered by the rows as they are when it comes, or in the cycle before or
    behind that; what the choice reads is what it wrote."""
    room = Beside(seed)
    seen, inside = room.run(), set()
    for asked, given in zip(seen["i"], seen["o"], strict=True):
        rows = room.states[max(0, asked.taken - 2) : asked.taken + 1]
        told = {room.becomes(asked.item, each)[0] for each in rows}
        assert given.item.address << 6 in told
        inside.add(given.item.address << 6 >> CONFIG.aperture_bits)
    assert len(inside) > 15 and not any(any(fault.values()) for fault in room.faults)


@pytest.mark.parametrize("bits", [1, 2])
@pytest.mark.parametrize("name", ["slots_asked", "queues_asked", "slots_own", "queues_own"])
def test_flipped_bits_are_told_where_a_row_is_used(name, bits):
    """One changes nothing; of two a request finds its slot empty. Each use is told, once, and no
    row that is read for nothing."""
    room, uses = Beside(bits, still=True), []
    own, of_queue = name.endswith("own"), name.startswith("queues")

    async def begin(ctx, dut, begin=room.begin):
        await begin(ctx, dut)
        (memory,) = (each for path, each in dut.memories.items() if path.startswith(name))
        for row in range(memory.depth):
            flip(ctx, memory, row, *room.rng.sample(range(len(memory[row])), bits))

    def read(place, row, found):
        if own and (of_queue or place[1] < row[1][0]):
            uses.append(len(room.reads) + 1)
        if bits == 1 or not own:
            assert found == row
        elif not of_queue:
            assert found[1] == row[1]

    room.begin, room.seen = begin, read
    seen = room.run()
    for asked, given in zip(seen["i"], seen["o"], strict=True):
        _, own_slot = room.becomes(asked.item, room.rows)
        used = not own and own_slot is not None and (of_queue or own_slot)
        lost = used and bits == 2
        assert given.item.address << 6 == room.becomes(asked.item, room.rows, lost)[0]
        if used:
            uses.append(given.taken + 1)
    kind = ("corrected", "poisoned")[bits - 1]
    told = [n for n, fault in enumerate(room.faults) if fault[kind]]
    assert told == sorted(n for n in uses if n < len(room.faults)) and len(told) > 20
    assert all(fault == NO_FAULT | {kind: fault[kind]} for fault in room.faults)


def test_it_is_idle_without_a_message():
    dut, seen = GatherWindow(config=CONFIG), []

    async def bench(ctx):
        await fill(ctx, dut)
        for valid, ready in ((0, 0), (1, 0), (0, 0), (0, 1), (0, 1)):
            ctx.set(dut.i.valid, valid)
            ctx.set(dut.o.ready, ready)
            seen.append(ctx.get(dut.idle))
            await ctx.tick()

    simulate(dut, bench)
    assert seen == [1, 0, 0, 0, 1]


def test_latency_and_interval():
    seen = run(1, 1)
    pairs = zip(seen["i"], seen["o"], strict=True)
    assert {o.offered - i.offered for i, o in pairs} == {GatherWindow.LATENCY}
    taken = [t.taken for t in seen["o"]]
    assert {b - a for a, b in zip(taken, taken[1:], strict=False)} == {GatherWindow.INTERVAL}

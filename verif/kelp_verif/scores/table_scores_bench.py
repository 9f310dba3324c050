# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""TableScores against the golden tables: turns, guesses, opened sessions and credit spent in random
order, marks in any order, idle cycles and back-pressure on every port, steps that skip and wrap;
every value that is read, amid a walk of its queue as before it or after it, every page offered
early, all credit. How long walks take."""

import random
from collections import Counter, deque
from functools import reduce

import cocotb
from cocotb.triggers import ReadOnly, RisingEdge

from kelp_golden.tables import Tables
from kelp_hw.export.packing import Packing
from kelp_hw.scores.table_scores import TableScores
from kelp_spec import policy2
from kelp_spec.config import Config

from ..harness.clocking import start_clock
from ..harness.runner import bench_params, record

_TURN = 1 << 24
_LEAST = -(1 << 15)  #: credit
_SKIPS = (0, 1, 1, 1, 1, 2, 63, 64, 254, 255, 256, 300, 1 << 20)


class TB:
    """Offers on every stream, one item at a time on each, and the golden tables beside it."""

    def __init__(self, dut):
        self.dut, self.rng = dut, random.Random(cocotb.RANDOM_SEED)
        self.config = c = Config.of_json(bench_params()["config"])
        block = TableScores(config=c)
        self.packing = {
            name: Packing(getattr(block, f"{name}_layout"))
            for name in ("read", "mass", "turn", "guess", "early")
        }
        self.tables = Tables(c)
        self.masses = [{} for _ in range(c.squeues)]
        self.early = deque()
        self.flips = False  # bits flip: nothing is as expected, but that each guess ends
        self.offers = {}  # stream → item
        self.walks = None  # (squeue, is a turn), which may still be under way
        self.before = None  # what its queue's pages were worth before it, and whether it was known
        self.opens = self.spends = None  # a session
        self.asked = None  # squeue, page
        self.takes = 0.5
        self.frames = 0
        self.cycle, self.accepted = 0, {}
        self.turned = set()  #: sessions that have had a turn since they were opened
        self.seen = Counter()

    async def start(self):
        dut = self.dut
        await start_clock(dut)
        for name in ("open", "spend", "read", "mass", "turn", "guess"):
            getattr(dut, f"i_{name}__valid").value = 0
            getattr(dut, f"i_{name}__payload").value = 0
        dut.o_early__ready.value = dut.frames.value = dut.value_of.value = 0
        await RisingEdge(dut.clk)
        await RisingEdge(dut.clk)
        dut.rst.value = 0

    def session(self, squeue):
        return squeue // self.config.queues

    def credits(self):
        raw = int(self.dut.credit.value)
        words = (raw >> 16 * k & 65535 for k in range(self.config.sessions))
        return [word - (word >> 15 << 16) for word in words]

    async def tick(self):
        """One cycle: what is offered is driven, what the device shows is checked, and what was
        transferred is told to the golden tables."""
        dut, tables = self.dut, self.tables
        for name in ("read", "mass", "turn", "guess"):
            item = self.offers.get(name)
            getattr(dut, f"i_{name}__valid").value = item is not None
            if item is not None:
                getattr(dut, f"i_{name}__payload").value = self.packing[name].pack(**item)
        for name, session in (("open", self.opens), ("spend", self.spends)):
            getattr(dut, f"i_{name}__valid").value = session is not None
            getattr(dut, f"i_{name}__payload").value = session or 0
        dut.frames.value = self.frames
        takes = self.rng.random() < self.takes
        dut.o_early__ready.value = takes
        squeue, page = (
            self.rng.randrange(self.config.squeues),
            self.rng.randrange(self.config.pages),
        )
        dut.value_of.value = self.packing["read"].pack(squeue=squeue, page=page)
        await ReadOnly()
        if self.asked is not None and not self.flips:
            legal, asked = self.asked
            got = int(dut.value.value)
            assert got in legal, f"{asked} {got}, {legal}"
            self.seen["values"] += got > 0
            self.seen["amid"] += len(legal) > 1
        if takes and dut.o_early__valid.value == 1:
            got = self.packing["early"].unpack(dut.o_early__payload.value)
            if not self.flips:
                expected = self.early.popleft()
                assert got["none"] == (expected is None), f"{got}, expected {expected}"
                assert got["none"] or got == expected, f"{got}, expected {expected}"
            elif got["none"]:
                while self.early.popleft() is not None:
                    pass
            self.seen["early"] += not got["none"]
            if got["none"] and not self.early and self.walks and not self.walks[1]:
                self.walks = None
        if dut.idle.value == 1:
            self.walks = None
            assert not self.early
        walking = self.walks[0] if self.walks else None
        for session, credit in enumerate(self.credits()):
            if not self.flips and (walking is None or session != self.session(walking)):
                assert credit == tables.credit(session), (session, credit, tables.credit(session))
        # A value that is asked for now is as it was before what comes in this cycle, but for a mark
        # of its page. Amid a walk of its queue it is as before that or after it.
        mark = self.offers.get("read") == {"squeue": squeue, "page": page}
        marks = mark and dut.i_read__ready.value == 1
        worth = {policy2.ONE if marks else tables.worth(squeue, page)}
        marked = page in tables.marked[squeue]
        if squeue == walking and self.before:
            worth |= set() if marked else {self.before[page]}
        self.asked = worth, (squeue, page)
        self.seen["marked"] += marked
        self._transfers()
        await RisingEdge(dut.clk)
        self.cycle += 1

    def same_shadow(self):
        """While no walk is under way: the cohorts of each session are the golden ones."""
        rows = self.dut.shadow.counts.memory
        for session in self.turned:
            cohorts = self.tables._sessions[session].cohorts
            first = session * len(cohorts)
            got = [int(rows[first + k].value) for k in range(len(cohorts))]
            assert got == cohorts, f"cycle {self.cycle}: cohorts of session {session}"
            self.seen["shadow"] += len(cohorts) - cohorts.count(0) > 1

    def same_learnt(self, squeue):
        """While no walk is under way: V and T of a queue are the golden ones."""
        queue, learning = self.tables._queues[squeue], self.dut.learning
        for name, rows, want in (
            ("V", learning.v.memory, queue.v),
            ("T", learning.t.memory, queue.t),
        ):
            got = [int(rows[squeue * len(want) + k].value) for k in range(len(want))]
            wrong = {k: (g, w) for k, (g, w) in enumerate(zip(got, want, strict=True)) if g != w}
            assert not wrong, f"cycle {self.cycle}: {name} of queue {squeue}: (got, want) {wrong}"

    def _transfers(self):
        c, tables = self.config, self.tables
        for name in ("read", "mass", "turn", "guess"):
            if name not in self.offers or not int(getattr(self.dut, f"i_{name}__ready").value):
                continue
            item = self.offers.pop(name)
            squeue = item["squeue"]
            self.seen[name] += 1
            self.accepted.setdefault(name, []).append(self.cycle)
            if name == "read":
                tables.mark(squeue, [item["page"]])
            elif name == "mass":
                self.masses[squeue][item["page"]] = item["mass"], item["absent"]
            elif name == "turn":
                tables.frames = self.frames
                self._walks(squeue, True)
                marked = set(tables.marked[squeue])
                tables.turn_over(squeue, marked, item["newest"], item["step"])
                self.turned.add(self.session(squeue))
            else:
                self._guessed(squeue, item["newest"])
        if self.spends is not None:
            tables.spend(self.spends)
        if self.opens is not None:
            tables.opened(self.opens)
            if self.walks and self.session(self.walks[0]) == self.opens:
                self.before = None
            self.turned.discard(self.opens)
            self.seen["open"] += 1
            for squeue in range(self.opens * c.queues, (self.opens + 1) * c.queues):
                self.masses[squeue] = {}
        self.opens = self.spends = None

    def _walks(self, squeue, turns):
        """A walk begins."""
        tables = self.tables
        self.walks = squeue, turns
        self.before = [tables.worth(squeue, page) for page in range(self.config.pages)]

    def _guessed(self, squeue, newest):
        self._walks(squeue, False)
        masses = self.masses[squeue]
        self.tables.guessed(squeue, {page: mass for page, (mass, _) in masses.items()}, newest)
        absent = [page for page, (_, absent) in masses.items() if absent]
        for page, likely in self.tables.early(squeue, absent, newest):
            self.early.append({"page": page, "likely": likely, "none": 0})
        self.early.append(None)
        self.masses[squeue] = {}


class Traffic:
    """What hosts and choices do: of each queue, marks and then the walk for which they are."""

    def __init__(self, tb):
        self.tb, self.rng, c = tb, tb.rng, tb.config
        self.step = [tb.rng.randrange(_TURN - 2000, _TURN) for _ in range(c.sessions)]
        self.newest = [tb.rng.randrange(12) for _ in range(c.squeues)]
        self.taste = [[tb.rng.random() ** 3 for _ in range(c.pages)] for _ in range(c.squeues)]
        #: of each queue: marks to come, then a walk; None where nothing is under way
        self.plans = {"read": [None] * c.squeues, "mass": [None] * c.squeues}
        self.pace, self.spending, self.skips = 1.0, 0.05, _SKIPS

    def next(self):
        tb, rng, c = self.tb, self.rng, self.tb.config
        if rng.random() < 0.01:
            self.pace, tb.takes = rng.choice(
                [(1.0, 1.0), (1.0, 0.6), (0.6, 0.4), (0.03, 0.9), (1.0, 0.1)]
            )
            self.spending = rng.choice([0.02, 0.3])
        if rng.random() < 0.0003:
            tb.opens = rng.randrange(c.sessions)
        turning = tb.session(tb.walks[0]) if tb.walks and tb.walks[1] else None
        session = rng.randrange(c.sessions)
        credit = tb.tables.credit(session)
        if (
            rng.random() < self.spending
            and -60 < credit
            and (session != turning or credit < policy2.CREDIT_MOST - 24)
        ):
            tb.spends = session
        if turning is None and "turn" not in tb.offers and rng.random() < 0.05:
            tb.frames = rng.choice([0, 5, 20, 20, 60, c.total_frames])
        for marks, walk in (("read", "turn"), ("mass", "guess")):
            self._plan(marks, walk)
            self._offer(marks, walk)

    def _plan(self, marks, walk):
        squeue = self.rng.randrange(self.tb.config.squeues)
        waits = self.tb.offers.get(walk, {}).get("squeue") == squeue
        if self.plans[marks][squeue] or waits or self.rng.random() >= self.pace:
            return
        rng, taste, pages = self.rng, self.taste[squeue], self.tb.config.pages
        move = (
            rng.choice([0, 0, 0, 0, 1, 1, 1, 2, -3])
            if rng.random() < 0.95
            else rng.randrange(pages)
        )
        newest = self.newest[squeue] = min(max(0, self.newest[squeue] + move), pages - 1)
        if rng.random() < 0.02:
            newest = self.newest[squeue] = rng.choice([0, pages - 1, rng.randrange(12)])
        for page in rng.sample(range(pages), 4):
            taste[page] = rng.choice([0, 1, rng.random() ** 3])
        likes = rng.choice([0, 1, 1, 1])
        chosen = [page for page in range(newest + 1) if rng.random() < likes * taste[page]]
        chosen += rng.choices(range(newest + 1), k=rng.randrange(3))
        rng.shuffle(chosen)
        items = [{"squeue": squeue, "page": page} for page in chosen]
        if marks == "mass":
            for item in items:
                item["mass"] = rng.choice([0, 65535, rng.getrandbits(rng.randint(1, 16))])
                item["absent"] = int(rng.random() < 0.7)
        self.plans[marks][squeue] = items, newest

    def _offer(self, marks, walk):
        rng, tb, plans = self.rng, self.tb, self.plans[marks]
        if marks not in tb.offers and rng.random() < self.pace:
            queues = [q for q, plan in enumerate(plans) if plan and plan[0]]
            if queues:
                tb.offers[marks] = plans[rng.choice(queues)][0].pop()
        if walk in tb.offers or rng.random() >= self.pace:
            return
        marked = tb.offers.get(marks, {}).get("squeue")
        queues = [q for q, plan in enumerate(plans) if plan and not plan[0] and q != marked]
        if not queues:
            return
        squeue = rng.choice(queues)
        session, (_, newest) = tb.session(squeue), plans[squeue]
        item = {"squeue": squeue, "session": session, "newest": newest}
        if walk == "turn":
            skip = rng.choice(self.skips) if rng.random() < 0.2 else int(rng.random() < 0.3)
            self.step[session] = (self.step[session] + skip) % _TURN
            item["step"] = self.step[session]
        tb.offers[walk], plans[squeue] = item, None


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def random_traffic(dut):
    tb = TB(dut)
    await tb.start()
    traffic = Traffic(tb)
    for _ in range(bench_params()["cycles"]):
        traffic.next()
        await tb.tick()
    # Whatever is under way ends; then every value is looked at.
    tb.takes = 1.0
    for _ in range(12000):
        await tb.tick()
        if not tb.offers and dut.idle.value == 1:
            break
    assert not tb.offers and dut.idle.value == 1
    tb.same_shadow()
    before = tb.seen["values"]
    for _ in range(4 * tb.config.page_words):
        await tb.tick()
    assert tb.seen["values"] > before
    record(seen=dict(tb.seen))


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def flipped_words(dut):
    """A bit of some row flips every few cycles: all walks end, each guess once."""
    tb = TB(dut)
    tb.flips = True
    await tb.start()
    traffic = Traffic(tb)
    traffic.skips = 1, 1 << 20  # what a wrong count would have to be waited for
    names = bench_params()["memories"]
    memories = {name: reduce(getattr, name.split("."), dut) for name in names}
    flips = Counter()
    for cycle in range(bench_params()["cycles"]):
        traffic.next()
        await tb.tick()
        if cycle % 4 == 0:
            name = tb.rng.choice(names)
            row = tb.rng.choice(memories[name])
            try:
                row.value = int(row.value) ^ 1 << tb.rng.randrange(len(row))
                flips[name] += 1
            except ValueError:
                pass  # never written
    tb.takes, tb.opens = 1.0, None
    for _ in range(12000):
        await tb.tick()
        if not tb.offers and dut.idle.value == 1:
            break
    assert not tb.offers and dut.idle.value == 1 and not tb.early
    record(seen=dict(tb.seen), flips=dict(flips))


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def credit_falls(dut):
    """By what a read of flash costs, down to its least."""
    tb = TB(dut)
    await tb.start()
    for cycle in range(-_LEAST // policy2.COST + 40):
        tb.spends = int(cycle < 20)
        await tb.tick()
    assert tb.credits() == [_LEAST, tb.tables.credit(1)]


class Walks:
    """Walks of other queues, one directly behind another, and how far apart they are accepted."""

    def __init__(self, tb, step=1000):
        self.tb, self.step = tb, step

    async def accepted(self, name, squeue, newest=0):
        """Offers a walk until it is accepted; when it is."""
        item = {"squeue": squeue, "session": self.tb.session(squeue), "newest": newest}
        self.tb.offers[name] = item | ({"step": self.step} if name == "turn" else {})
        while name in self.tb.offers:
            await self.tb.tick()
        return self.tb.cycle - 1

    async def marked(self, name, squeue, pages):
        for page in pages:
            mark = {"squeue": squeue, "page": page}
            self.tb.offers[name] = mark | ({} if name == "read" else {"mass": 65535, "absent": 1})
            while name in self.tb.offers:
                await self.tb.tick()

    async def scored(self, squeue, newest):
        """A guess of some of a queue's pages."""
        rng = self.tb.rng
        for page in rng.sample(range(newest + 1), rng.randrange(newest + 1)):
            mass = rng.choice([0, 65535, rng.getrandbits(rng.randint(1, 16))])
            mark = {"squeue": squeue, "page": page, "mass": mass, "absent": rng.getrandbits(1)}
            self.tb.offers["mass"] = mark
            while "mass" in self.tb.offers:
                await self.tb.tick()
        await self.accepted("guess", squeue, newest)

    async def over(self):
        while self.tb.offers or self.tb.dut.idle.value != 1:
            await self.tb.tick()

    async def takes(self, name, squeue, newest=0):
        """Cycles from a walk's acceptance to that of the next, of another queue that is not new."""
        first = await self.accepted(name, squeue, newest)
        return await self.accepted(name, 1 if squeue != 1 else 0) - first


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def walks_take(dut):
    """Of walks over some numbers of pages; of first ones; where steps leave the shadow."""
    tb = TB(dut)
    tb.takes, tb.frames = 1.0, tb.config.total_frames
    await tb.start()
    walks, pages = Walks(tb), tb.config.pages
    begun = tb.cycle
    figures = {"first of a queue": await walks.accepted("turn", 0) - begun}
    figures["first of a session"] = await walks.accepted("turn", 0) - figures["first of a queue"]
    await walks.accepted("guess", 1)
    for name in ("turn", "guess"):
        for newest in (0, 1, 5, pages - 1):
            figures[f"{name} {newest}"] = await walks.takes(name, 0, newest)
    for left in range(1, 4):
        # So many steps, each with a page that was wanted in it; then one page is too many.
        tb.frames = tb.config.total_frames
        for page in range(left):
            walks.step += 1
            await walks.marked("read", 0, [page])
            await walks.accepted("turn", 0, 5)
        walks.step += 1
        await walks.accepted("turn", 1)
        await walks.over()
        tb.frames = 0
        figures[f"{left} left"] = await walks.takes("turn", 0)
    record(figures=figures)


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def cohorts_come_and_go(dut):
    """Turns of all queues with few steps between, so that many cohorts stand and pages move from
    one to another; frames become more and fewer. After each turn cohorts and credit are the golden
    ones, and what the queue has learnt of it and of a guess before it."""
    tb = TB(dut)
    tb.takes = 1.0
    await tb.start()
    walks, rng, c = Walks(tb), tb.rng, tb.config
    steps = [_TURN - 150, rng.randrange(1 << 20)]
    for turn in range(180):
        if turn % 20 == 0:
            tb.frames = rng.choice([4, 10, 18, 30])
        squeue, newest = rng.randrange(c.squeues), rng.randrange(6, 14)
        session = tb.session(squeue)
        skip = rng.choice([200, 254, 255, 256]) if turn % 60 == 59 else rng.choice([0, 1, 1, 2, 5])
        walks.step = steps[session] = (steps[session] + skip) % _TURN
        if rng.random() < 0.5:
            await walks.scored(squeue, newest)
            await walks.over()
        await walks.marked("read", squeue, rng.sample(range(newest + 1), rng.randrange(7)))
        await walks.accepted("turn", squeue, newest)
        await walks.over()
        tb.same_shadow()
        tb.same_learnt(squeue)
        if rng.random() < 0.2:
            tb.spends = rng.randrange(c.sessions)
    record(seen=dict(tb.seen), credits=tb.credits())


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def marks_come(dut):
    """How many marks are let in in 40 cycles, with no walk and amid walks of queue 0."""
    tb = TB(dut)
    tb.takes = 1.0
    await tb.start()
    walks, pages = Walks(tb), tb.config.pages
    for squeue in (0, 1):
        await walks.accepted("turn", squeue)
        await walks.over()
    figures = {}
    for walk in (None, "turn", "guess"):
        for name in ("read", "mass"):
            for squeue in (0, 1):
                if walk:
                    await walks.accepted(walk, 0, pages - 1)
                    for _ in range(16):
                        await tb.tick()
                count = 0
                for _ in range(40):
                    mark = {"squeue": squeue, "page": count}
                    mark |= {} if name == "read" else {"mass": count, "absent": 0}
                    tb.offers.setdefault(name, mark)
                    await tb.tick()
                    count += name not in tb.offers
                figures[f"{name} of {squeue} amid {walk}"] = count
                await walks.over()
                await walks.accepted("turn" if name == "read" else "guess", squeue, pages - 1)
                await walks.over()
    record(figures=figures)


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def opened_amid_turns(dut):
    """A session is opened in each of the cycles about its turn's acceptance, and in some of the
    walk: what that turn earns is another owner's and counts for nobody."""
    tb = TB(dut)
    tb.takes, tb.frames = 1.0, 20
    await tb.start()
    walks = Walks(tb)
    for delay in (*range(8), 12, 17, 25, 40):
        await walks.accepted("turn", 0, 7)
        await walks.marked("read", 0, range(8))
        await walks.over()
        item = {"squeue": 0, "session": 0, "newest": 7, "step": walks.step}
        tb.offers["turn"] = item
        for cycle in range(80):
            tb.opens = 0 if cycle == delay else None
            await tb.tick()
        await walks.over()
        await tb.tick()
        assert tb.tables.credit(0) == 0
        for read in ([], [1, 2], [2]):
            walks.step += 1
            await walks.marked("read", 0, read)
            await walks.accepted("turn", 0, 7)
            await walks.over()
        await tb.tick()
        assert tb.credits()[0] == tb.tables.credit(0) > 0


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def early_pages_wait(dut):
    """More pages to fetch than `o_early` has places, and nobody takes them for a while. Marks of
    another queue come meanwhile."""
    tb = TB(dut)
    tb.takes = 1.0
    await tb.start()
    walks, pages = Walks(tb), tb.config.pages
    for squeue in (0, 1):
        await walks.marked("read", squeue, range(pages))
        await walks.accepted("turn", squeue, pages - 1)
    await walks.marked("mass", 0, range(pages))
    tb.takes = 0.0
    await walks.accepted("guess", 0, pages - 1)
    for _ in range(300):
        await tb.tick()
    await walks.marked("read", 1, range(pages))
    await walks.marked("mass", 1, range(pages))
    assert len(tb.early) == pages and dut.idle.value == 0
    tb.takes = 0.7
    await walks.over()
    assert tb.seen["early"] == pages - 1

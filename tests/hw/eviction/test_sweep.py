# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Sweep: in the engine the cycles that it takes; beside a model of its contract what it SCANs, and
what it lists of that."""

import random
from collections import Counter, deque

import pytest
from eviction_runs import run
from simulation import simulate

from kelp_golden import arithmetic
from kelp_golden.eviction import Candidate, candidate_class
from kelp_hw.eviction.signatures import word_pages
from kelp_hw.eviction.sweep import Sweep
from kelp_spec.config import named
from kelp_spec.metadata import STEP_BITS, Op, PageState
from kelp_spec.scores import RECENCY_BIAS, recency_constants

LARGE = named("640x8192").with_(frames=(2048, 256, 256, 256), queues=8)
_STEPS = (1 << STEP_BITS) - 1
M3, SCORED = 4, 7  #: cycles from a SCAN's handshake to its result, and to the page


@pytest.mark.parametrize("resident", [1, 100, 1500])
@pytest.mark.sampled
def test_a_sweep_costs_words_and_pages(resident):
    records = run(LARGE, "sweep_cycles", resident=resident).records
    assert records["words"] == 128
    assert records["cycles"] <= 128 + resident * Sweep.INTERVAL + Sweep.OVERHEAD


class World:
    """Pages of all queues, and the pipeline from the sweep's ops to what comes back."""

    def __init__(self, config, seed):
        self.config, self.rng = config, random.Random(seed)
        self.dut, self.seen, self.number = Sweep(config=config), Counter(), 0
        self.pipe = deque([None] * SCORED, SCORED)  # SCANs on their way, the last one first
        self.of_word, self.word, self.stall = word_pages(config), None, 0.0
        self.former = 0  # the queue of the sweep before

    def begin(self, tables):
        """What the next sweep meets."""
        rng, c = self.rng, self.config
        self.squeue, self.session = rng.randrange(c.squeues), rng.randrange(c.sessions)
        self.step = rng.getrandbits(STEP_BITS)
        words = [rng.choice([0, 0, 0.05, 0.5, 1]) for _ in range(0, c.pages, self.of_word)]
        if rng.random() < 0.15:
            words = [0] * len(words)
        self.listed = [p for p in range(c.pages) if rng.random() < words[p // self.of_word]]
        self.look = {
            "newest": {"page": self.some_page(), "valid": rng.random() < 0.7},
            "policy": rng.getrandbits(1),
        }
        mantissa, shift = recency_constants(rng.randrange(1, 1 << rng.choice([3, 12, 16])))
        self.look |= {"tau_m": mantissa, "tau_sh": shift + RECENCY_BIAS}
        most = 1 << rng.choice([3, 12, 24])
        if tables:
            self.look["tables"] = rng.getrandbits(1)
        kinds = rng.choice([[0], [0, rng.getrandbits(16), 65532, 65535]])
        self.value = [
            rng.choice([*kinds, kinds[-1] and rng.getrandbits(16)]) for _ in range(c.pages)
        ]
        self.pages = {
            p: {
                "page": p,
                "last_step": self.step - rng.choice([0, 1, rng.randrange(most)]) & _STEPS,
                "score": rng.choice([0, 65535, rng.getrandbits(16), 30_000]),
                "eligible": rng.random() < 0.9,
                "finished": rng.getrandbits(1),
            }
            for p in self.listed
        }
        self.newest = None  # of an allocation since `watch`
        self.swept_step = None  # until the first SCAN is decided
        self.scans = []

    def some_page(self):
        """Mostly one that the sweep lists."""
        pages = self.listed if self.listed and self.rng.random() < 0.7 else range(self.config.pages)
        return self.rng.choice(pages)

    def candidates(self):
        """What the list has to be."""
        kelp, tables = self.look["policy"], self.look.get("tables")
        newest = self.look["newest"]["page"] if self.look["newest"]["valid"] else -1
        newest = newest if self.newest is None else self.newest
        recency = self.look["tau_m"], self.look["tau_sh"] - RECENCY_BIAS
        found = []
        for page, at in self.pages.items():
            if not at["eligible"]:
                continue
            last, score = at["last_step"], at["score"]
            if kelp:
                if tables:
                    score = max(score, min(self.value[page], 65533))
                priority = 65535 - score
            else:
                age = arithmetic.age(self.swept_step, last)
                priority = arithmetic.priority(score, arithmetic.decay(age, *recency))
            finished = bool(kelp and at["finished"])
            kind = candidate_class(page, last, self.swept_step, newest, finished, bool(tables))
            found.append(Candidate(kind, -int(priority), page, last))
        return sorted(found)[: self.config.candidates]

    def other_result(self, watched):
        """Some op that M3 decides beside the sweep's; an allocation in its queue counts."""
        rng, c = self.rng, self.config
        asks = [Op.WRITE, Op.READ] if c.coherence else [Op.WRITE]
        kind, squeue, page = rng.choice(asks), self.squeue, rng.randrange(c.pages)
        old = rng.choice([PageState.ABSENT, PageState.LOST])
        new = rng.choice([PageState.RESIDENT, PageState.FETCHING])
        flaw = rng.randrange(8)  # one of six things that make it none, or nothing
        squeue ^= (flaw == 0) << rng.randrange(c.squeue_bits)
        valid, changed = flaw != 1, flaw != 2
        old, new = PageState.COLD if flaw == 3 else old, PageState.LOST if flaw == 4 else new
        if flaw == 5:
            kind = rng.choice([k for k in (Op.READ, Op.PREFETCH, Op.CLAIM) if k not in asks])
        elif flaw > 5 and watched and self.swept_step is None:
            self.newest = page
            self.seen["newest"] += 1
        op = {"kind": kind, "squeue": squeue, "page": page}
        result = {"op": op, "changed": changed, "old": {"state": old}, "word": {"state": new}}
        return valid, result

    def allocation(self, squeue):
        op = {"kind": Op.WRITE, "squeue": squeue, "page": self.some_page()}
        states = {"old": {"state": PageState.ABSENT}, "word": {"state": PageState.RESIDENT}}
        return {"op": op, "changed": 1} | states

    async def tick(self, ctx, *, watched, quiet=False, allocates=None):
        """A cycle of all that is around the sweep; `allocates` is the queue of an allocation. The
        step is its session's when the first SCAN is decided; before and after that it is another
        one."""
        rng, dut, c = self.rng, self.dut, self.config
        decided, scanned, step = self.pipe[M3 - 1], self.pipe[-1], rng.getrandbits(STEP_BITS)
        valid, result = 0, self.other_result(False)[1]
        if decided is not None:
            valid, result = 1, {"op": {"kind": Op.SCAN, "squeue": self.squeue, "page": decided}}
            if self.swept_step is None:
                self.swept_step = step = self.step
        elif allocates is not None:
            valid, result = 1, self.allocation(allocates)
            if watched:
                self.newest = result["op"]["page"]
                self.seen["newest"] += 1
        elif not quiet and rng.random() < 0.2:
            valid, result = self.other_result(watched)
        ctx.set(dut.control.step, step)
        ctx.set(dut.i_result.valid, valid)
        ctx.set(dut.i_result.p, result)
        noise = {"page": rng.randrange(c.pages), "eligible": 1, "score": rng.getrandbits(16)}
        ctx.set(dut.i_scan.valid, scanned is not None)
        ctx.set(dut.i_scan.p, noise if scanned is None else self.pages[scanned])
        ctx.set(dut.read.word, rng.getrandbits(64) if self.word is None else self.word)
        granted, ready = rng.random() >= self.stall, rng.random() >= self.stall
        ctx.set(dut.read.granted, granted)
        ctx.set(dut.o_op.ready, ready)
        request, op = dut.read.request, dut.o_op.p
        self.word, sent = None, None
        if granted and ctx.get(request.valid):
            assert ctx.get(request.squeue) == self.squeue
            first = self.of_word * ctx.get(request.index)
            assert first < c.pages
            self.word = sum(1 << p - first for p in self.listed if 0 <= p - first < self.of_word)
        if ctx.get(dut.o_op.valid):
            names = ("kind", "session", "squeue", "slot", "page")
            told = tuple(ctx.get(op[name]) for name in names)
            page = self.listed[len(self.scans)]
            assert told == (Op.SCAN, self.session, self.squeue, self.number % 16, page)
            if ready:
                self.scans.append(page)
                sent = page
        asked = ctx.get(dut.values.page) if c.select_tables else 0
        if c.select_tables and scanned is not None:
            assert (ctx.get(dut.values.squeue), asked) == (self.squeue, scanned)
        await ctx.tick()
        if c.select_tables:
            ctx.set(dut.values.value, self.value[asked])
        self.pipe.appendleft(sent)

    async def sweep(self, ctx):
        dut, rng = self.dut, self.rng
        ctx.set(dut.control.watch.valid, 1)
        ctx.set(dut.control.watch.p, self.squeue)
        await self.tick(ctx, watched=False, allocates=self.former)
        ctx.set(dut.control.watch.valid, 0)
        ctx.set(dut.control.watch.p, rng.randrange(self.config.squeues))
        # One that comes early is told before `start`, the last one with it.
        wait, early = rng.randrange(6), rng.randrange(1, 8)
        for left in range(wait, 0, -1):
            assert not ctx.get(dut.swept)
            await self.tick(ctx, watched=True, allocates=self.squeue if left == early else None)
        self.number, self.former = self.number + 1, self.squeue
        ctx.set(dut.control.start.valid, 1)
        ctx.set(dut.control.start.p, {"session": self.session, "look": self.look})
        assert ctx.get(dut.swept)
        await self.tick(ctx, watched=True)
        ctx.set(dut.control.start.valid, 0)
        ctx.set(dut.control.start.p, {})
        cycles = 1
        while ctx.get(dut.control.busy):
            cycles += 1
            assert cycles < 4000, "the sweep does not end"
            await self.tick(ctx, watched=True)
        assert self.scans == self.listed
        if not self.stall:
            words = self.config.pages // self.of_word
            assert cycles <= words + len(self.listed) + dut.OVERHEAD + SCORED
        for want in self.candidates():
            best = dut.list.best
            names = ("valid", "kind", "priority", "page", "last_step")
            told = tuple(ctx.get(best[name]) for name in names)
            assert told == (1, want.kind, want.priority, want.page, want.last_step)
            assert ctx.get(dut.list.step) == self.swept_step
            ctx.set(dut.list.take, 1)
            await self.tick(ctx, watched=False, quiet=True)
            ctx.set(dut.list.take, 0)
            self.seen["kelp" if self.look["policy"] else "plain"] += 1
            self.seen["tables"] += self.look.get("tables", 0) and any(self.value)
            if rng.random() < 0.1:
                break
        else:
            assert not ctx.get(dut.list.best.valid)
            self.seen["empty"] += not self.listed
        if rng.random() < 0.5:  # else the next sweep empties the list
            ctx.set(dut.list.clear, 1)
            await self.tick(ctx, watched=False, quiet=True)
            ctx.set(dut.list.clear, 0)
            assert not ctx.get(dut.list.best.valid)


@pytest.mark.parametrize(
    ("name", "pages"),
    [
        ("unit", 8),
        pytest.param("unit", 256, marks=pytest.mark.night),
        pytest.param("unit_coherent", 256, marks=pytest.mark.night),
        ("unit_select", 256),
    ],
)
@pytest.mark.sampled
def test_the_list_is_the_models(name, pages):
    """Words of the map that are empty and full, allocations up to the first decision, stalls."""
    config = named(name).with_(name="other", pages=pages)
    world = World(config, 5)

    async def bench(ctx):
        for n in range(40):
            world.begin(config.select_tables)
            world.stall = (0, 0.4)[n % 2]
            await world.sweep(ctx)

    simulate(world.dut, bench)
    assert min(world.seen[kind] for kind in ("kelp", "plain", "newest", "empty")) > 2, world.seen
    assert (world.seen["tables"] > 2) == config.select_tables

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Queue state against its golden model: random results of M3, budgets rewritten meanwhile; roots,
counts, newest pages and the map compared at rest."""

import random

import cocotb
from cocotb.triggers import ReadOnly, RisingEdge

from kelp_golden.eviction import QueueState
from kelp_hw.eviction.queue_state import QueueState as Block
from kelp_hw.eviction.residency_map import ResidencyMap
from kelp_hw.eviction.signatures import (
    EvictionLayouts,
    MapRead,
    event_count_bits,
    event_depth,
    unforeseen_events,
)
from kelp_hw.export.packing import Packing
from kelp_hw.pipeline import RESERVE
from kelp_spec.config import Config
from kelp_spec.metadata import Op, PageState

from ..harness.clocking import start_clock
from ..harness.runner import bench_params, record

ABSENT, RESIDENT, WRITING_BACK, COLD, FETCHING, LOST = PageState

#: State → what M3 may make of it: (op, new state).
MOVES = {
    ABSENT: [(Op.WRITE, RESIDENT), (Op.WRITE, FETCHING), (Op.READ, ABSENT)],
    RESIDENT: [
        (Op.READ, RESIDENT),
        (Op.CLAIM, WRITING_BACK),
        (Op.CLAIM, WRITING_BACK),
        (Op.SCRUB, ABSENT),
        (Op.PIN, RESIDENT),
    ],
    WRITING_BACK: [
        (Op.READ, RESIDENT),
        (Op.WRITE, RESIDENT),
        (Op.RELEASE, COLD),
        (Op.RELEASE, COLD),
        (Op.RELEASE, RESIDENT),
    ],
    COLD: [(Op.READ, FETCHING), (Op.WRITE, FETCHING), (Op.PREFETCH, FETCHING), (Op.SCRUB, ABSENT)],
    FETCHING: [(Op.FLIP, RESIDENT), (Op.FLIP, RESIDENT), (Op.FLIP, COLD), (Op.READ, FETCHING)],
    LOST: [(Op.WRITE, RESIDENT), (Op.WRITE, FETCHING), (Op.SCRUB, ABSENT), (Op.READ, LOST)],
}


class TB:
    def __init__(self, dut):
        self.dut = dut
        config = bench_params()["config"]
        self.config = Config.of_json(config)
        self.rng = random.Random(cocotb.RANDOM_SEED)
        layouts = EvictionLayouts(self.config)
        self.result, self.write, self.look = (
            Packing(layouts.result),
            Packing(layouts.config_write),
            Packing(layouts.look),
        )
        self.root_bits, self.layouts = layouts.root.size, layouts
        self.ample, self.most_budget = False, (1 << self.config.dram_line_bits) - 1
        self.root, self.offered = Packing(layouts.root), Packing(layouts.offer)
        self.word = Packing(MapRead(self.config).members["request"].shape)
        self.golden = QueueState(self.config)
        self.state = {}
        self.pool = {}
        self.taus = {}
        self.cycle = self.results = self.checks = self.roots = self.within = self.offers = 0
        self.ready, self.known = 0, None
        self.waits = None  # events that waited in the cycle before
        self.comes = self.came = False  # a result becomes an event, or did in the cycle before
        self.reads = False  # words of the map are read amid all else
        self.listed = {}  # squeue → events entered when all of it had, or later
        self.reading, self.word_due = None, None  # (squeue, index); its word, in this cycle
        self.words_read = 0

    async def restarted(self):
        """A bench behind another reset, with this one's counts."""
        tb, self.dut.rst.value = TB(self.dut), 1
        for name in (
            "rng",
            "results",
            "checks",
            "roots",
            "within",
            "offers",
            "words_read",
            "cycle",
        ):
            setattr(tb, name, getattr(self, name))
        await tb.start(clock=False)
        return tb

    async def start(self, clock=True):
        dut = self.dut
        if clock:
            await start_clock(dut)
        for port in (
            dut.i_result__valid,
            dut.config_write__valid,
            dut.view__lookup__request__valid,
            dut.view__lookup__request__payload,
            dut.view__offer__request__valid,
            dut.view__offer__request__payload,
            dut.read__request,
            dut.resident_squeue,
        ):
            port.value = 0
        await RisingEdge(dut.clk)
        await RisingEdge(dut.clk)
        dut.rst.value = 0
        for _ in range(100_000):
            await self.tick()
            if dut.initialised.value == 1:
                break
        first = self.rng.randrange(4)
        for squeue in range(self.config.squeues):
            # Queues of policy 0, the even ones, have two pools: several in one, and no pool that
            # some queue of all keeps over its budget.
            two = (first + squeue // 2 % 2) % 4
            self.pool[squeue] = self.rng.choice([0, 0, 0, 1, 2, 3]) if squeue & 1 else two
            await self.configure(squeue)

    async def configure(self, squeue):
        rng = self.rng
        pool = self.pool[squeue]
        frames = min(self.config.pages, self.config.frames[pool])
        budgets = [0, 0, rng.randrange(frames) * self.config.frame_lines[pool]]
        budget = self.most_budget - rng.randrange(100) if self.ample else rng.choice(budgets)
        self.taus[squeue] = rng.getrandbits(16), rng.getrandbits(5)
        policy = squeue & 1
        self.golden.configure(squeue, pool, budget, policy)
        values = {
            "pool": pool,
            "budget": budget,
            "policy": policy,
            "tau_m": self.taus[squeue][0],
            "tau_sh": self.taus[squeue][1],
        }
        self.dut.config_write__payload.value = self.write.pack(
            squeue=squeue, **{f"queue_config.{name}": value for name, value in values.items()}
        )
        self.dut.config_write__valid.value = 1
        await self.tick()
        self.dut.config_write__valid.value = 0

    async def tick(self):
        await ReadOnly()
        self.ready = int(self.dut.ready.value)
        known, squeue = self.dut.resident_known.value == 1, int(self.dut.resident_squeue.value)
        assert known or self.known != squeue, f"{squeue}: its resident lines are known no longer"
        self.known = squeue if known else None
        self._check_credit()
        self._check_idle()
        self._check_word()
        await RisingEdge(self.dut.clk)
        self.cycle += 1
        self._ask_for_word()

    def _waiting(self):
        """Events that have entered and are not done."""
        view = self.dut.view__entered, self.dut.view__done
        return (int(view[0].value) - int(view[1].value)) % (1 << event_count_bits(self.config))

    def _check_credit(self):
        """Credit is there exactly while there is room; whether the event at hand has left the FIFO
        is not known."""
        room = event_depth(self.config) - RESERVE - unforeseen_events(self.config)
        if self.waits is not None:
            assert self.ready or self.waits >= room, f"no credit, and {self.waits} wait"
            assert not self.ready or self.waits <= room, f"credit, and {self.waits} wait"
        self.waits = self._waiting() if self.dut.initialised.value == 1 else None

    def _check_idle(self):
        dut = self.dut
        asked = dut.view__lookup__request__valid.value or dut.view__offer__request__valid.value
        at_work = self.comes or self.came or self.waits or asked or dut.view__refreshing.value
        assert not (dut.idle.value == 1 and at_work), "idle at work"
        self.came = self.comes

    def _ask_for_word(self):
        if not self.reads:
            return
        c, rng, width = self.config, self.rng, min(64, self.config.pages)
        self.reading = None
        if rng.random() < 0.5:
            self.reading = rng.randrange(c.squeues), rng.randrange(c.pages // width)
        squeue, index = self.reading or (0, 0)
        self.dut.read__request.value = self.word.pack(
            valid=int(self.reading is not None), squeue=squeue, index=index
        )

    def _check_word(self):
        """A word that was granted in the cycle before is the golden one, if all events of its queue
        were done by then."""
        if self.word_due is not None:
            assert int(self.dut.read__word.value) == self.word_due, "a wrong word of the map"
            self.words_read += 1
        self.word_due = None
        if self.reading is None or self.dut.read__granted.value != 1:
            return
        squeue, index = self.reading
        last, bits = self.listed.get(squeue, (0, 0)), event_count_bits(self.config)
        # A result becomes an event two cycles later.
        if self.cycle - last[1] < 3:
            return
        if last[0] is None:
            self.listed[squeue] = last = int(self.dut.view__entered.value), last[1]
        behind = (int(self.dut.view__done.value) - last[0]) % (1 << bits)
        if behind < 1 << (bits - 1):
            width = min(64, self.config.pages)
            pages = self.golden.listed[squeue]
            self.word_due = sum(1 << page % width for page in pages if page // width == index)

    async def step(self, squeue, page):
        """One random result of M3."""
        rng = self.rng
        old = self.state.get((squeue, page), ABSENT)
        lost = rng.random() < 0.01
        if lost:
            # An uncorrectable word reads as LOST, whatever the op.
            op, new, seen = Op.SCAN, LOST, LOST
        else:
            op, new = rng.choice(MOVES[old])
            seen = old
        frames = sum(
            self.state.get((q, p)) == RESIDENT
            for q, p in self.state
            if self.pool[q] == self.pool[squeue]
        )
        if new == RESIDENT and old != RESIDENT and frames >= self.config.frames[self.pool[squeue]]:
            return await self.tick()
        self.state[squeue, page] = new
        self.golden.observe(
            squeue, page, RESIDENT if lost else old, new, op in (Op.READ, Op.WRITE), op == Op.WRITE
        )
        self.dut.i_result__payload.value = self.result.pack(
            **{
                "op.kind": op,
                "op.squeue": squeue,
                "op.page": page,
                "old.state": seen,
                "word.state": new,
                "changed": lost or old != new or op == Op.PIN,
                "pool": self.pool[squeue],
                "uncorrected": lost,
            }
        )
        self.dut.i_result__valid.value = 1
        self.listed[squeue] = None, self.cycle
        allocates = op == Op.WRITE and old in (ABSENT, LOST) and new in (RESIDENT, FETCHING)
        self.comes = lost or allocates or (old == RESIDENT) != (new == RESIDENT)
        await self.tick()
        self.comes = False
        self.dut.i_result__valid.value = 0
        self.results += 1

    async def rest(self):
        for _ in range(200_000):
            await self.tick()
            if self.dut.idle.value == 1:
                return
        raise AssertionError("the queue state does not come to rest")

    async def ask(self, squeue):
        dut = self.dut
        await self.request("view__lookup__request", squeue)
        # `request` returns in the cycle after the transfer.
        for cycle in range(1, Block.LATENCY + 1):
            await ReadOnly()
            answered = dut.view__lookup__answer__valid.value == 1
            assert answered == (cycle == Block.LATENCY), f"look: cycle {cycle}"
            await RisingEdge(dut.clk)
            self.cycle += 1
        return self.look.unpack(dut.view__lookup__answer__payload.value)

    async def request(self, port, payload):
        """One transfer on a stream into the block."""
        valid = getattr(self.dut, port + "__valid")
        getattr(self.dut, port + "__payload").value, valid.value = payload, 1
        for _ in range(200):
            await ReadOnly()
            taken = getattr(self.dut, port + "__ready").value == 1
            await RisingEdge(self.dut.clk)
            self.cycle += 1
            if taken:
                break
        else:
            raise AssertionError(f"{port} is not taken")
        valid.value = 0

    async def offer(self, squeue, excess):
        """Policy `kelp`: what the queue offers, as the evictor says after a sweep."""
        dut = self.dut
        self.golden.offer(squeue, excess)
        await self.request("view__offer__request", self.offered.pack(squeue=squeue, excess=excess))
        for _ in range(200):
            await self.tick()
            if dut.view__offer__done.value == 1:
                break
        else:
            raise AssertionError("an offer is not done")
        self.offers += 1

    async def check(self):
        dut, c, golden = self.dut, self.config, self.golden
        await self.rest()
        for pool in range(4):
            root = self.root.unpack(
                int(dut.view__roots.value) >> pool * self.root_bits & (1 << self.root_bits) - 1
            )
            excess, squeue = golden.root(pool)
            raw = 0 if excess is None else self.layouts.at_budget + excess
            assert root["excess"] == raw and (not raw or root["squeue"] == squeue), (
                f"pool {pool}: {root}, expected {excess} of {squeue}"
            )
            assert (
                int(dut.view__requester.value) >> pool * c.squeue_bits & (1 << c.squeue_bits) - 1
                == golden.requester[pool]
            ), f"requester of pool {pool}"
            self.roots += excess is not None and excess > 0
            self.within += excess is not None and excess <= 0
        for squeue in self.rng.sample(range(c.squeues), min(4, c.squeues)):
            look = await self.ask(squeue)
            newest = golden.newest[squeue]
            assert (
                look["listed"] == bool(golden.listed[squeue])
                and look["pool"] == golden.pool[squeue]
            ), f"{squeue}: {look}"
            assert (look["tau_m"], look["tau_sh"], look["policy"]) == (
                *self.taus[squeue],
                squeue & 1,
            )
            if look["policy"] and look["listed"]:
                await self.offer(squeue, self.rng.choice([0, 1, self.rng.randrange(49152, 65536)]))
            assert look["newest.valid"] == (newest >= 0) and (
                newest < 0 or look["newest.page"] == newest
            ), f"{squeue}: {look}, newest {newest}"
            follows = int(dut.resident_squeue.value) == squeue  # and still shows what it had
            dut.resident_squeue.value = squeue
            await ReadOnly()
            assert follows or int(dut.resident_lines.value) in (0, golden.resident_lines(squeue)), (
                f"{squeue}: another queue's resident lines"
            )
            assert not (dut.resident_lines.value and not dut.resident_known.value)
            await RisingEdge(dut.clk)
            found = set()
            width = min(64, c.pages)
            for index in range(c.pages // width):
                dut.read__request.value = self.word.pack(valid=1, squeue=squeue, index=index)
                await ReadOnly()
                assert dut.read__granted.value == 1
                for _ in range(ResidencyMap.LATENCY):
                    await RisingEdge(dut.clk)
                    dut.read__request.value = 0
                await ReadOnly()
                word = int(dut.read__word.value)
                found |= {index * width + b for b in range(width) if word >> b & 1}
                await RisingEdge(dut.clk)
            assert found == golden.listed[squeue], (
                f"map of {squeue}: {found} expected {golden.listed[squeue]}"
            )
            for _ in range(200):
                await self.tick()
            assert dut.resident_known.value == 1
            assert dut.resident_lines.value == golden.resident_lines(squeue)
        self.checks += 1


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def random_results(dut):
    tb = TB(dut)
    await tb.start()
    rng, c = tb.rng, tb.config
    for n in range(bench_params()["rounds"]):
        if n % 5 in (3, 4):  # all budgets are beyond what queues have, then as they were
            tb.ample = n % 5 == 3
            for squeue in range(c.squeues):
                await tb.configure(squeue)
        pages = [
            (rng.randrange(c.squeues), rng.randrange(c.pages))
            for _ in range(rng.choice([1, 4, 30]))
        ]
        idle = rng.choice([0, 0.5, 0.9])
        beyond, tb.reads = 0, True
        for _ in range(rng.choice([20, 150])):
            beyond = 0 if tb.ready else beyond + 1
            if rng.random() < 0.1:
                dut.resident_squeue.value = rng.randrange(c.squeues)
            if rng.random() < 0.02:
                await tb.configure(rng.randrange(c.squeues))
            elif rng.random() >= idle and beyond < RESERVE:
                await tb.step(*rng.choice(pages))
            else:
                await tb.tick()
        tb.reads, tb.reading, dut.read__request.value = False, None, 0
        await tb.check()
        if n % 40 == 39:  # what was listed is forgotten
            tb = await tb.restarted()
            await tb.check()
            tb.checks -= 1
    record(
        results=tb.results,
        checks=tb.checks,
        roots=tb.roots,
        within=tb.within,
        offers=tb.offers,
        words_read=tb.words_read,
    )


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def cost_of_an_event(dut):
    """Two pages come in adjacent cycles: from the first event's end to the second's."""
    tb = TB(dut)
    await tb.start()
    await tb.rest()
    begun = int(dut.view__done.value)
    dut.i_result__valid.value = 1
    for page in range(2):
        dut.i_result__payload.value = tb.result.pack(
            **{
                "op.kind": Op.WRITE,
                "op.page": page,
                "word.state": RESIDENT,
                "changed": 1,
                "pool": tb.pool[0],
            }
        )
        await tb.tick()
    dut.i_result__valid.value = 0
    ends = []
    for _ in range(500):
        await tb.tick()
        if int(dut.view__done.value) - begun > len(ends):
            ends.append(tb.cycle)
    assert len(ends) == 2
    record(cycles=ends[1] - ends[0])

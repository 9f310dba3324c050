# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Nobody in the endpoint waits for somebody who waits for him (docs/design.md §11): a free-running
endpoint with hardly any frames goes on answering, and evicts as fast as the tier takes it."""

import numpy as np
import pytest
from narrow_unit import UNIT

from kelp_rtl.control import Descriptor, QueueParameters
from kelp_rtl.device import Driver, FlashTiming, MemoryTiming, Pressure, RunRules
from kelp_rtl.program import PARTIAL, READ, WRITE, Program, Response
from kelp_spec.config import POOLS
from kelp_spec.formats import Format
from kelp_spec.metadata import PrefetchSource, ScoreSource
from kelp_spec.policy import Policy
from kelp_verif.endpoint.storm import wide
from kelp_verif.harness.seeds import reseeded
from kelp_verif.measure.endpoint import dirty_pressure

pytestmark = pytest.mark.timeout(1800)  # the first test builds the model

FORMATS = Format.INT4, Format.RAW16
EVERY_SOURCE = (1 << len(PrefetchSource) - 1) - 1


def decoding(rng, pages, lines, steps):
    """What the sessions ask for, side by side: in each step every queue in turn, a page or two that
    it always wants and one that it wants now. Yields rows of `pages` and lines."""
    for _ in range(steps):
        for queue in range(UNIT.queues):
            for session in rng.permutation(len(pages)):
                always = range(1 + (queue + session) % 2)
                for page in (*always, int(rng.integers(0, UNIT.pages))):
                    at = pages[session, queue, page]
                    for _ in range(rng.integers(1, 4)):
                        yield at, int(rng.integers(0, lines))


def tiny_pool(seed, fmt, *, policy, sources, steps):
    """Decoding and random traffic of one or two sessions over pages of one pool of four to eight
    frames, with back-pressure on every port. Returns the device's counters; a run in which nothing
    moves for 10 000 cycles has failed."""
    seed = reseeded(seed)
    rng = np.random.default_rng(seed)
    driver = Driver(
        UNIT,
        memory=MemoryTiming(latency=20, write_latency=20),
        flash=FlashTiming(latency=200, write_latency=300, jitter=150),
        pressure=Pressure.everywhere(float(rng.choice([0.0, 0.3, 0.6]))),
        seed=seed,
        rules=RunRules(max_skip=0, stall_limit=10_000, outstanding=int(rng.choice([16, 64, 1024]))),
    )
    frames, sessions = int(rng.integers(4, 9)), int(rng.integers(1, UNIT.sessions + 1))
    driver.write_registers(
        {"low_water": 0, "high_water": 1, "reserve": 1, "prefetch_enable": sources}
    )
    driver.write_registers({f"pool_limit_{pool}": frames for pool in POOLS})
    for session in range(sessions):
        driver.open_session(
            session,
            Descriptor(layers=2, kv_heads=UNIT.queues // 2, formats=((1023, fmt, fmt),)),
            QueueParameters(
                policy=policy,
                score_source=ScoreSource.OBSERVED,
                window=1,
                auto_step=10,
            ),
        )
    shape = sessions, UNIT.queues, UNIT.pages, UNIT.page_lines
    every = np.ndindex(sessions, UNIT.queues, UNIT.pages, 2, UNIT.half_lines)
    address = np.array([driver.address(*at) for at in every], np.uint64).reshape(shape)
    pages = np.arange(np.prod(shape[:3])).reshape(shape[:3])
    asked = list(decoding(rng, pages, UNIT.page_lines, steps))
    for k in rng.choice(len(asked), len(asked) // 16, replace=False):  # and now and then anything
        asked[k] = int(rng.integers(0, pages.size)), asked[k][1]
    page, line = np.array(asked).T
    opcode = rng.choice([READ, READ, WRITE, PARTIAL], len(asked))
    result = driver.run(
        Program(
            opcode=opcode,
            address=address.reshape(-1, UNIT.page_lines)[page, line],
            data=rng.integers(0, 256, (int((opcode != READ).sum()), 64), np.uint8),
            byte_enable=0xFF00,
        )
    )
    assert not result.missing
    assert not (result.response == Response.POISON).any(), "a page got no frame"
    counters = driver.counters()
    driver.close()
    return counters


@pytest.mark.parametrize(
    "fmt",
    [
        pytest.param(Format.INT4, id="int4"),
        pytest.param(Format.RAW16, id="raw16", marks=pytest.mark.night),
    ],
)
def test_a_tiny_pool_goes_on(fmt):
    """Policy `kelp` with the documented reserve. Prefetches of every source wait for a miss id, and
    then find no frame."""
    evictions = dropped = 0
    for seed in range(3):
        counters = tiny_pool(seed, fmt, policy=Policy.KELP, sources=EVERY_SOURCE, steps=60)
        evictions += counters["evictions"]
        dropped += counters["prefetch_dropped_layer_ahead"]
    assert evictions and dropped  # what is to be shown depends on them


@pytest.mark.slow
@pytest.mark.parametrize("sources", [EVERY_SOURCE, 0])
@pytest.mark.parametrize("policy", list(Policy), ids=lambda policy: policy.name.lower())
@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.label)
def test_tiny_pools_go_on(fmt, policy, sources):
    for seed in range(100, 140):
        tiny_pool(seed, fmt, policy=policy, sources=sources, steps=120)


def test_dirty_pressure():
    """Dirty victims leave side by side, under either policy."""
    flash = FlashTiming(latency=1500, write_latency=1500, bytes_per_cycle=1.5)
    fraction = {
        policy: dirty_pressure(UNIT, policy, pages=8, limit=8, passes=3, flash=flash)
        for policy in Policy
    }
    for policy, (used, cycles) in fraction.items():
        print(f"{policy.name}: {used:.3f} of the tier in {cycles} cycles")
        assert used >= 0.9, policy.name
    assert fraction[Policy.KELP][0] >= 0.9 * fraction[Policy.EMA][0]


def test_a_neighbours_misses_hold_hits_up_for_as_long_as_a_fetch():
    """No miss id, park place or frame is one tenant's own: where one reads nothing but cold pages,
    the hits of another stand behind its misses until one of these has its page, and no longer."""
    latency, rounds = 3000, 150
    driver = Driver(
        UNIT,
        memory=MemoryTiming(latency=8, write_latency=8),
        flash=FlashTiming(latency=latency, write_latency=latency),
        rules=RunRules(max_skip=0, stall_limit=10 * latency),
    )
    driver.write_registers({"low_water": 0, "high_water": 1, "prefetch_enable": 0})
    for session, fmt in enumerate(FORMATS):  # in pools of their own
        formats = ((1023, fmt, fmt),)
        driver.open_session(session, Descriptor(layers=1, kv_heads=UNIT.queues, formats=formats))
    hit = driver.address(1, 0, 0, 0, 0)
    cold = [driver.address(0, q, p, 0, 0) for p in range(UNIT.pages) for q in range(UNIT.queues)]
    pages = np.array([*cold, hit], np.uint64)
    driver.run(Program.writes(pages, np.zeros((len(pages), 64), np.uint8)), settle=True)

    def longest(address):
        """Cycles between two answers to the other tenant."""
        result = driver.run(Program(opcode=READ, address=np.array(address, np.uint64)))
        driver.settle()
        own = np.sort(result.response_cycle[np.array(address) == hit])
        assert (result.response == Response.DATA).all()
        return int(np.diff(own).max())

    longest([*cold, hit, hit])  # what is resident is clean from here on
    alone = longest([hit] * 4 * rounds)
    beside = longest([a for k in range(rounds) for a in (hit, *np.roll(cold, -3 * k)[:3])])
    print(f"hits wait {alone} cycles alone, {beside} beside misses; a fetch takes {latency}")
    assert alone < 100 and latency // 2 < beside < 2 * latency
    driver.close()


@pytest.mark.slow
@pytest.mark.parametrize("budget", [0, 1000])
def test_a_victim_among_many_queues(budget):
    """Pages of many queues are written at once, each the first of its queue. The tree names a
    victim at once, also where no queue is over its budget (docs/decisions.md)."""
    config = wide(640)
    driver = Driver(
        config,
        flash=FlashTiming(latency=100, write_latency=100),
        rules=RunRules(max_skip=0, stall_limit=1_000_000),
    )
    for session in range(config.sessions):
        driver.open_session(
            session, Descriptor(layers=640, kv_heads=1), QueueParameters(budget=budget)
        )
    driver.write_registers({"low_water": 0, "high_water": 1})

    def latency(*places):
        """Of the slowest write."""
        address = np.array([driver.address(*place, 0, 0) for place in places], np.uint64)
        result = driver.run(Program.writes(address, np.zeros((len(places), 64), np.uint8)))
        driver.settle()
        return int(result.latency.max())

    for queue in range(590, 640):  # the pool is full of pages of the last queues
        latency((0, queue, 0))
    for count in (2, 16):
        cycles = latency(*((1, 20 * count + k, 0) for k in range(count)))
        print(f"budget {budget}, {count} new pages at once: {cycles} cycles")
        assert cycles <= count * 600
    driver.close()

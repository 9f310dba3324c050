# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""A host that caches, on the whole endpoint: no stale read, no lost write, no lock, and no page
that leaves while it is held. The bench sees planted bugs."""

import ctypes
import functools

import pytest
from planted_driver import planted_driver

import kelp_hw.coherence.front as front
import kelp_hw.coherence.host_port as host_port
import kelp_hw.endpoint as endpoint
import kelp_hw.eviction.eviction as eviction
from kelp_golden.frame_table import FrameTable as GoldenFrames
from kelp_hw.coherence.front import CoherentFront
from kelp_hw.coherence.grants import Grants
from kelp_hw.coherence.host_port import CoherentHostPort
from kelp_hw.coherence.lost_lines import LostLines
from kelp_hw.eviction.page_recall import PageRecall
from kelp_hw.host.ingress import Ingress
from kelp_hw.tracker.frame_table import FrameTable
from kelp_rtl.device import DriverError
from kelp_spec.config import named
from kelp_verif.coherence.audited_driver import AuditedDriver
from kelp_verif.coherence.endpoint_bench import FAILING, WEATHERS, CachingDriver, weather
from kelp_verif.endpoint.drawn import drawn
from kelp_verif.harness.seeds import reseeded

#: In `make test`; the others are slow.
QUICK = ("rough", "dwelling", "unsaid", "deaf", "flood", "foul")
QUICK_AUDITS = ("unused",)
#: Weathers of tenants and hosts who mean ill; not yet met: each kind of failure.
HOSTILE = (
    "poison",
    "hints",
    "registers",
    "foul",
    "flood",
    "kept",
    "deaf",
    "strangers",
    "nonsense",
    "babble",
)
FRIENDLY = tuple(name for name in WEATHERS if name not in HOSTILE)
#: That of `make test`: with eight codec lanes the model has two thirds of the logic.
FULL = named("unit_coherent")
NARROW = FULL.with_(codec_lanes=8)


def sound(name, *, seed=1, **options):
    """A weather in which nothing was wrong: what was counted."""
    return weather(name, seed=reseeded(seed), **options)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in WEATHERS],
)
@pytest.mark.sampled
def test_the_host_and_the_endpoint_stay_coherent(name):
    short = name in (*QUICK, *HOSTILE)
    config, transactions = (NARROW, 3_000) if short else (FULL, 40_000)
    counted = sound(name, config=config, transactions=transactions)
    assert counted["left"] >= 512  # lines of pages that were evicted or scrubbed
    assert counted["evictions"] > 300 or name in ("dwelling", "unsaid", "deaf")
    assert min(counted[kind] for kind in ("read_any", "own", "uncached", "snoops")) > 20
    assert counted["blocks"] > 20  # BISnp of Blk forms
    assert counted["rounded_writes"] > 100
    gave_up = counted["silent"] + counted["refused"] + counted["kept"]
    assert (gave_up > 10) == (name in ("silent", "foul", "kept", "deaf"))
    assert counted["owed_longest"] < 2_500  # the time-out is 2000 cycles
    assert counted["line_longest"] < 20_000 and counted["aside_longest"] < 20_000
    assert counted["beside"] > 20  # answers to others while a session closed
    assert counted["dropped"] > 0 or name not in ("foul", "kept")
    assert counted["dropped"] == 0 or name in ("foul", "kept", "deaf")
    assert (counted["late_writes"] > 0) == (name == "deaf")
    assert (counted["strange"] > 300) == (name in ("strangers", "foul"))
    assert (counted["babbled"] > 10_000) == (name == "babble")
    assert (counted["odd"] > 300 and counted["odd_snoops"] > 20) == (name == "nonsense")
    assert (counted["spoilt"] > 20) == (name in ("poison", "foul"))
    # Poison of a session that closes is gone with it.
    assert (counted["poisoned"] > 0) == (gave_up + counted["spoilt"] > 0 and name != "deaf")
    assert (counted["hints"] > 500) == (name in ("hints", "foul", "flood"))
    assert (counted["registers"] > 500) == (name in ("registers", "foul"))


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_other_configurations_stay_coherent(seed):
    """A model each, with the directory of `unit_coherent`; the third has 8 places for writes, and 2
    for hints."""
    config = drawn(
        seed,
        name="unit_coherent",
        coherence=True,
        sessions=2,
        queues=4 + 2 * (seed > 0),
        codecs=True,
        frames=(16, 11, 13, 17),
        half_lines=4 << seed // 2,
        pages=(8, 16, 64)[seed],
        select=0,
    )
    for name in ("rough", "kept", "nonsense", "babble", "deaf"):
        assert sound(name, transactions=3_000, seed=1 + seed, config=config)["snoops"] > 300


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("sets", "frames", "pages"), [(2, (16, 6, 7, 12), 8), (8, (24, 18, 19, 22), 16)]
)
def test_other_directories_stay_coherent(sets, frames, pages):
    """`Config.directory_sets` in place of the four that go with the name: with two a sector is
    called back for nearly every other's sake, with eight pools must be larger."""
    config = NARROW.with_(directory_sets=sets, frames=frames, pages=pages)
    snoops = []
    for name in ("rough", "unused", "kept", "foul"):
        counted = sound(name, transactions=3_000, config=config)
        assert counted["evictions"] > 20 and counted["left"] > 100
        snoops.append(counted["snoops"])
    print(sets, snoops)


BOTH = "memory and tier"
FAILURES = [
    pytest.param("uncached", failing, marks=() if failing == BOTH else pytest.mark.slow)
    for failing in FAILING
] + [pytest.param(name, BOTH, marks=pytest.mark.slow) for name in FRIENDLY if name != "uncached"]
FAILURES.append(pytest.param("foul", "memory and late tier", marks=pytest.mark.slow))


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("name", "failing"), FAILURES)
def test_what_memory_or_tier_lose_is_poison_to_a_host_that_caches(name, failing):
    """And nothing else is wrong; what is written when they are well again is sound."""
    counted = sound(name, config=NARROW, transactions=3_000, failing=failing)
    assert counted["poisoned"] > 20
    errors = counted["memory_read_errors"] + counted["memory_write_errors"]
    assert (errors > 0) == ("memory" in failing)
    assert (counted["flash_failed"] > 0) == ("tier" in failing) or name == "dwelling"


@pytest.mark.timeout(900)
def test_the_reference_compares_rounded_values():
    class Unrounded(CachingDriver):
        def _round(self, session, fmt, source, target):
            ctypes.memmove(target, source, 64)

    with pytest.raises(DriverError, match=r"stale read of line \w+ of format [1-4]"):
        weather("smooth", config=NARROW, transactions=3_000, driver=Unrounded)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK_AUDITS else pytest.mark.slow)
        for name in WEATHERS
        # The golden model does not hear when tenants give their queues other policies.
        if "registers" not in WEATHERS[name][0]
    ],
)
def test_every_decision_beside_a_host_that_caches_is_the_golden_models(name):
    config, transactions = (NARROW, 3_000) if name in QUICK_AUDITS else (FULL, 20_000)
    counted = sound(name, config=config, transactions=transactions, seed=2, driver=AuditedDriver)
    assert counted["evictions"] > 200 or name in ("dwelling", "unsaid", "deaf")
    assert counted["own"] > 20 and counted["left"] > 200 and counted["judged"] > transactions


def test_the_audit_beside_a_host_that_caches_sees_an_owned_page_that_is_clean(monkeypatch):
    monkeypatch.setattr(GoldenFrames, "own", lambda *_: None)
    with pytest.raises(AssertionError, match=r"frame \d+ after"):
        weather("unused", config=NARROW, transactions=3_000, driver=AuditedDriver)


#: Planted bugs: where the block is looked up, the block, the piece and what it becomes; the
#: weather that shows it, and what the bench says.
BUGS = {
    "an eviction does not ask": (
        eviction,
        PageRecall,
        "gone = ~seen_held | (ages[k] == 3)",
        "gone, seen_held = 1, 0",
        "smooth",
        "leaves while the host holds it",
    ),
    "the closer does not wait": (
        eviction,
        PageRecall,
        "passes.eq(~seen_held)",
        "passes.eq(1)",
        "rough",
        "leaves while the host holds it",
    ),
    "an owned page has no frame": (
        endpoint,
        Ingress,
        "~take_rwd & asks",
        "~take_rwd & asks & 0",
        "smooth",
        "finds no frame",
    ),
    "an owned page is clean": (
        endpoint,
        FrameTable,
        "stores | s.keeps",
        "stores",
        "unused",
        "holds nothing|stale read",
    ),
    "a rounded copy stays": (
        endpoint,
        CoherentHostPort,
        "(rounds & ~fresh) | ~raw",
        "0",
        "dwelling",
        "a copy that differs is held",
    ),
    "a write that does not say what is kept is one that keeps nothing": (
        host_port,
        CoherentFront,
        "op.evicts.eq(meta0 & (value == MetaValue.INVALID))",
        "op.evicts.eq(~meta0 | (value == MetaValue.INVALID))",
        "unsaid",
        "leaves while the host holds it|a copy that differs is held",
    ),
    "the poison's completion is the host's": (
        host_port,
        LostLines,
        "self.i_ndr.valid & ~takes",
        "self.i_ndr.valid",
        "silent",
        "a completion that nobody waits for",
    ),
    "a stranger is heard": (
        host_port,
        CoherentFront,
        "(message.ld_id == owner)",
        "1",
        "strangers",
        "of which nothing was granted",
    ),
    "a stranger's writes are heard": (
        host_port,
        CoherentFront,
        "(message.ld_id == owner)",
        "((message.ld_id == owner) | is_write)",
        "strangers",
        "leaves while the host holds it",
    ),
    "BIConflict takes the last places": (
        host_port,
        CoherentFront,
        "~evicts & roomy",
        "~evicts & (level <= Completions.DEPTH - self.RESERVE)",
        "babble",
        "nothing moves",
    ),
    "a lost line is not poison": (
        host_port,
        LostLines,
        "rwd.poison.eq(1)",
        "rwd.poison.eq(0)",
        "kept",
        "was given up, is read as sound|stale read",
    ),
    "a lost line has no event": (
        host_port,
        LostLines,
        "self.o_event.valid.eq(self.o_rwd.valid & self.o_rwd.ready)",
        "self.o_event.valid.eq(self.o_rwd.valid & self.o_rwd.ready & ~at.line[0])",
        "kept",
        "SNOOP_LOST names other lines",
    ),
    "a BIRsp that is too late is not told": (
        host_port,
        CoherentFront,
        "self.pulses.unasked.eq(b.recalls.unasked)",
        "self.pulses.unasked.eq(0)",
        "kept",
        "BIRsp came too late",
    ),
    "poison does not enter": (
        endpoint,
        Ingress,
        "r.poison.eq(take_rwd & rwd.poison)",
        "r.poison.eq(0)",
        "poison",
        "written as poison, is read as sound",
    ),
}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_bench_catches_a_grant_that_loses_its_poison():
    tag = "drs.p.tag.eq(grant.tag),"
    planted = planted_driver(CachingDriver, front, Grants, tag, f"{tag} drs.p.poison.eq(0),")
    with pytest.raises(DriverError, match="stale read"):
        weather("uncached", config=NARROW, transactions=3_000, failing=BOTH, driver=planted)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("bug", BUGS)
def test_the_bench_catches_a_planted_bug(bug):
    module, block, old, new, name, said = BUGS[bug]
    driver = planted_driver(CachingDriver, module, block, old, new)
    run = functools.partial(weather, name, config=FULL, driver=driver)
    with pytest.raises((AssertionError, DriverError), match=said):
        run(transactions=20_000)

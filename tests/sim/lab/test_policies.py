# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The lab's policies: against the references, against the future, and against their contract."""

import dataclasses

import numpy as np
import pytest
from paths import RECORDING
from trace_files import contents, save

from kelp_sim.lab import Policy, Timeline, run
from kelp_sim.lab.cells import replay
from kelp_sim.lab.engine import PolicyError
from kelp_sim.lab.policies import IDS, load
from kelp_sim.lab.reads import derived_reads, timeline
from kelp_sim.lab.recorder import ReadRule
from kelp_sim.replay import reference
from kelp_sim.trace.accesses import access_sequence
from kelp_sim.trace.trace import TraceError, read

CAPACITY = 30


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A made-up recording: 4 queues, 24 steps, 10 pages, random reads."""
    return save(tmp_path_factory.mktemp("lab") / "small.npz", contents(seed=3))


@pytest.fixture(scope="module")
def part():
    return timeline(RECORDING, accesses=12_000)


def scopes():
    return [(name, scope == "pooled") for name in IDS for scope in load(name).scopes]


@pytest.mark.parametrize("pooled", [True, False])
@pytest.mark.parametrize("name", ["lru", "belady"])
def test_lru_and_belady_are_the_references(part, name, pooled):
    sequence = part.sequence
    capacity = sequence.capacity(0.25)
    wanted = reference.replay(sequence, name, pooled=pooled, capacity=capacity)
    found = run(part, load(name), capacity=capacity, pooled=pooled)
    assert (sequence.counts(found.missed) == wanted.misses).all()
    assert found.bypasses == wanted.bypasses


def lfu_by_hand(line, frames, pooled):
    """LFU written again in the plainest way: counts of accesses, kept when a page goes; the least
    counted page that may go gives way, ties to the lower key."""
    sequence = line.sequence
    queues = sequence.queues
    share = frames // queues
    count = dict.fromkeys(range(queues * sequence.final_pages), 0)
    resident = {
        q * sequence.final_pages + p for q in range(queues) for p in sequence.initial_pages(frames)
    }
    known = {
        q * sequence.final_pages + p for q in range(queues) for p in range(sequence.history_pages)
    }
    touched, missed = {}, []
    for step, key in zip(sequence.step.tolist(), line.keys.tolist(), strict=True):
        newest = sequence.newest_page(step)
        missed.append(key not in resident and key in known)
        if key not in resident:
            mine = [
                k
                for k in resident
                if pooled or k // sequence.final_pages == key // sequence.final_pages
            ]
            room = len(mine) < (frames if pooled else share)
            may_go = [
                k for k in mine if touched.get(k) != step and k % sequence.final_pages != newest
            ]
            if not room and may_go:
                resident.remove(min(may_go, key=lambda k: (count[k], k)))
            if room or may_go:
                resident.add(key)
                known.add(key)
        count[key] += 1
        touched[key] = step
    return missed


@pytest.mark.parametrize("pooled", [True, False])
def test_lfu_is_counted_by_hand(small, pooled):
    line = timeline(small)
    by_hand = lfu_by_hand(line, 17, pooled)
    assert run(line, load("lfu"), capacity=17, pooled=pooled).missed.tolist() == by_hand and any(
        by_hand
    )
    assert replay(line, "lfu", capacity=17, pooled=pooled).missed.tolist() == by_hand


class Forgets(load("lfu")):
    """A count is lost with the frame."""

    def evicted(self, key, now):
        self.count[key] = 0


class CountsHits(load("lfu")):
    """A miss is not counted."""

    def seen(self, now, missed):
        self.count[now.key] += not missed


class CountsTwice(load("lfu")):
    """One page in seven is counted twice."""

    def seen(self, now, missed):
        self.count[now.key] += 2 if now.key % 7 == 0 else 1


@pytest.mark.parametrize("pooled", [True, False])
@pytest.mark.parametrize("faulty", [Forgets, CountsHits, CountsTwice])
def test_a_fault_in_the_count_is_found(small, pooled, faulty):
    line = timeline(small)
    assert run(line, faulty, capacity=17, pooled=pooled).missed.tolist() != lfu_by_hand(
        line, 17, pooled
    )


def with_another_future(path, step):
    """The recording and one that is equal before ``step`` and read otherwise from there on."""
    trace = read(path)
    other = trace.reads.copy()
    rng = np.random.default_rng(7)
    changed = rng.random(other[:, :, step:].shape) < 0.5
    pages = np.arange(trace.pages)
    newest = (trace.prefill_tokens + np.arange(step, trace.steps)) // trace.page_tokens
    changed &= pages < newest[:, None]
    other[:, :, step:] ^= changed
    return trace, type(trace)(
        **{**{f: getattr(trace, f) for f in trace.__dataclass_fields__}, "reads": other}
    )


def decisions(trace, make, pooled, step):
    sequence = access_sequence(trace)
    mass = np.minimum(1, sequence.step - step).clip(0) + 1  # equal before `step`
    outcome = run(Timeline.of(sequence, mass), make, capacity=CAPACITY, pooled=pooled, record=True)
    before = int(sequence.step_starts[step])
    return outcome.missed[:before].tolist(), [v for v in outcome.victims if v[0] < before]


@pytest.mark.parametrize("name,pooled", scopes())
def test_no_policy_but_belady_sees_the_future(small, name, pooled):
    step = 14
    one, other = (decisions(t, load(name), pooled, step) for t in with_another_future(small, step))
    assert (one == other) == (name != "belady")


@pytest.mark.parametrize("name,pooled", scopes())
@pytest.mark.sampled
def test_every_policy_keeps_the_contract(part, name, pooled):
    """The engine refuses a wrong victim; beyond that, counts must agree with each other."""
    capacity = part.sequence.capacity(0.2)
    outcome = run(part, load(name), capacity=capacity, pooled=pooled)
    lru = run(part, load("lru"), capacity=capacity, pooled=pooled)
    assert 0 < outcome.misses < len(part.keys)
    assert outcome.late <= outcome.useful <= outcome.issued
    assert outcome.issued == 0 or load(name).prefetches
    assert outcome.flash_reads >= outcome.misses
    assert (
        name == "lru" or not (outcome.missed == lru.missed).all() or name in ("freekv", "wtinylfu")
    )


@pytest.mark.parametrize(
    "names, reached",
    [
        (("smollm2_argparse",), {0.125: 0.97, 0.25: 0.17, 0.5: 0}),
        (("attn_0", "attn_2", "attn_3"), {0.125: 0.57, 0.25: 0.27, 0.5: 0.03}),
    ],
    ids=["real model", "small model"],
)
def test_kelp_closes_the_gap_within_the_flash_reads_of_lru(names, reached):
    """What docs/lab.md says of the recordings at hand, none of which is below LRU; the bars of the
    specification are above it on the small model."""
    for residency, least in reached.items():
        top = bottom = own = 0
        for name in names:
            line = timeline(RECORDING.with_name(f"{name}.npz"))
            capacity = line.sequence.capacity(residency)
            lru = reference.replay(line.sequence, "lru", pooled=True, capacity=capacity).misses
            top += lru.sum()
            bottom += reference.replay(
                line.sequence, "belady", pooled=True, capacity=capacity
            ).misses.sum()
            outcome = replay(line, "kelp", capacity=capacity, pooled=True)
            own += outcome.misses
            assert max(outcome.misses, outcome.flash_reads) <= lru.sum(), name
        assert (top - own) / (top - bottom) >= least


def test_quest_reads_are_a_budget_of_pages_with_the_newest_among_them():
    line = timeline(RECORDING, "quest")
    counts = line.sequence.counts()
    assert (counts == 12).all()
    recorded = timeline(RECORDING)
    assert len(recorded.keys) != len(line.keys)


def test_other_read_rules_come_from_the_recorded_mass(tmp_path):
    """The recorded rule asked for by name gives the recorded reads, but for what 16 bits round; a
    smaller one fewer. A recording without its small masses does not serve a larger one."""
    trace = read(RECORDING)
    same = derived_reads(trace, ReadRule(0.9, 16))
    assert (same != trace.reads).mean() < 1e-3
    fewer = timeline(RECORDING, "top-p=0.9,k=8", accesses=2_000).sequence.counts()
    assert fewer.max() == 9 and fewer.min() >= 1
    thin = dataclasses.replace(trace, mass=np.where(trace.mass < 655, 0, trace.mass))
    with pytest.raises(TraceError, match="has not the masses that --reads top-p=0.99,k=64 needs"):
        derived_reads(thin, ReadRule(0.99, 64))
    for rule in ("top-p=0.9", "top-p=2,k=4", "top-p=0.9,k=0", "quests"):
        with pytest.raises(ValueError, match="is refused; legal: recorded, quest, top-p=P,k=K"):
            timeline(RECORDING, rule)


def test_a_derived_rule_counts_the_mass_that_was_not_recorded(tmp_path):
    """A share is of the whole mass, 65 536, of which some is not on record; what ten pages may
    lose by rounding is not missed."""
    keys = contents(with_kv=False)
    keys["mass"] = np.zeros_like(keys["mass"])
    keys["mass"][..., :3] = 40_000, 15_000, 3_978  # 0.9 of the whole but for 4.4
    trace = read(save(tmp_path / "t.npz", keys))
    assert derived_reads(trace, ReadRule(0.9, 5))[..., :3].all()
    assert not derived_reads(trace, ReadRule(0.8, 5))[..., 2].any()
    with pytest.raises(TraceError, match="in 96 of 96 cells"):
        derived_reads(trace, ReadRule(0.901, 5))


class Wrong(Policy):
    """Evicts the page being written."""

    id = "wrong"

    def victim(self, now):
        return now.queue * self.pool.pages + now.newest


def test_a_policy_that_evicts_what_is_protected_is_refused(part):
    with pytest.raises(PolicyError, match="policy 'wrong' evicts key"):
        run(part, Wrong, capacity=part.sequence.capacity(0.25), pooled=True)


@pytest.mark.parametrize("ahead", [0, 1])
def test_prefetch_lands_with_the_next_layer(small, ahead):
    """Pages asked for in the layer that reads them come late; asked for one layer ahead, they are
    there."""

    class Eager(load("lru")):
        id, prefetches = "eager", True

        def prefetch(self, now):
            size = self.pool.kv_heads * self.pool.pages
            first = (now.layer + ahead) % self.pool.layers * size
            yield from range(first, first + size)

    outcome = run(timeline(small), Eager, capacity=36, pooled=True)
    assert outcome.useful > 0 and (outcome.late > 0) == (ahead == 0)

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""`kelp` of the lab is `kelp` of the golden model in lock-step: misses, fetches and every victim,
those of the history too."""

import dataclasses

import numpy as np
import pytest
from paths import RECORDING
from trace_files import contents, save

from kelp_golden.lockstep import LockStep
from kelp_sim.lab import Timeline, run
from kelp_sim.lab.fast_kelp import run_kelp
from kelp_sim.lab.policies import maker
from kelp_sim.lab.policies.kelp import Constants
from kelp_sim.lab.study import TABLES, ladder
from kelp_sim.replay.plan import Excerpt, Prefetch, Retention, plan
from kelp_sim.replay.replay import run_golden
from kelp_sim.trace.accesses import AccessSequence, access_sequence
from kelp_sim.trace.trace import read
from kelp_spec.config import named
from kelp_spec.policy import Policy


@pytest.fixture
def golden_kelp(monkeypatch):
    """Golden lock-step under `kelp`: ((misses, pages fetched), victims in order as (queue, page),
    those of the history among them)."""
    victims, claim = [], LockStep._claim

    def watched(engine, squeue, page, last_step):
        victims.append((squeue, page))
        return claim(engine, squeue, page, last_step)

    monkeypatch.setattr(LockStep, "_claim", watched)

    def replayed(trace, *, residency, accesses=None, first_step=0):
        done = plan(
            trace,
            named("smollm2" if trace.queues > 16 else "trace").with_(frames=(4352,) * 4),
            retention=Retention(policy=Policy.KELP, low_water=0, high_water=1),
            prefetch=Prefetch(sources=frozenset()),
            residency=residency,
            excerpt=Excerpt(accesses=accesses, first_step=first_step),
        )
        found = run_golden(done)
        assert not found.mismatches
        return (found.counters["misses"], found.counters["fetches"]), victims

    return replayed


def lab_kelp(trace, *, residency, accesses=None, first_step=0, **constants):
    """The same of the compiled form."""
    line = Timeline.of(access_sequence(trace, first_step=first_step, accesses=accesses))
    found = run_kelp(
        line,
        capacity=line.sequence.capacity(residency),
        record=True,
        constants=Constants(**constants),
    )
    return (found.misses, found.flash_reads), [
        divmod(key, line.sequence.final_pages) for _, key in found.victims
    ]


@pytest.mark.parametrize(
    "name,residency,accesses,first_step",
    [
        ("attn_0", 0.25, 6_000, 768),
        ("attn_0", 0.5, 12_000, 0),
        ("attn_0", 0.3, 5_000, 1024),
        ("smollm2_argparse", 0.25, 6_000, 768),
        ("smollm2_argparse", 0.5, 8_000, 0),
    ],
)
def test_the_compiled_kelp_is_golden_lock_step(golden_kelp, name, residency, accesses, first_step):
    trace = read(RECORDING.with_name(f"{name}.npz"))
    choice = dict(residency=residency, accesses=accesses, first_step=first_step)
    counts, victims = golden_kelp(trace, **choice)
    assert (counts, victims) == lab_kelp(trace, **choice)
    assert counts[0] > 200 and len(victims) > 500


@pytest.mark.slow
@pytest.mark.parametrize("residency", [0.125, 0.25, 0.5])
@pytest.mark.parametrize("name", ["attn_0", "attn_2", "smollm2_argparse"])
def test_the_compiled_kelp_is_golden_lock_step_over_whole_recordings(golden_kelp, name, residency):
    trace = read(RECORDING.with_name(f"{name}.npz"))
    counts, victims = golden_kelp(trace, residency=residency)
    assert (counts, victims) == lab_kelp(trace, residency=residency)
    assert counts[0] > 500


#: A change of any of these changes victims in a few thousand accesses (of the epoch bits, in a
#: whole recording alone).
FAULTS = {
    "alpha": 5,
    "frequency_bits": 11,
    "once": 9,
    "fade_shift": 0,
    "weight_profile": 31,
    "profile_bits": 4,
    "epoch_shift": 5,
    "turn": 0,
    "late": 2,
    "finished": 0,
    "log_bits": 7,
    "sweeps": 1,
    "reserve": 2,
}


def test_a_changed_constant_is_found(golden_kelp):
    trace = read(RECORDING)
    choice = dict(residency=0.15, accesses=8_000, first_step=1024)
    truth = golden_kelp(trace, **choice)
    assert truth == lab_kelp(trace, **choice)
    unseen = [
        name
        for name, value in FAULTS.items()
        if lab_kelp(trace, **choice, **{name: value}) == truth
    ]
    assert unseen == []


@pytest.mark.parametrize(
    "variant",
    [v for name in ("ablation", "hardware") for v in TABLES[name].values() if isinstance(v, dict)],
    ids=str,
)
@pytest.mark.sampled
def test_constants_mean_the_same_to_both_forms(tmp_path, variant):
    line = Timeline.of(
        access_sequence(
            read(save(tmp_path / "t.npz", contents(seed=5, with_kv=False, steps=300, tokens=316)))
        )
    )
    for frames in (1, 8):  # of each queue
        capacity = line.sequence.queues * frames
        plain = run(line, maker("kelp", variant), capacity=capacity, pooled=True, record=True)
        fast = run_kelp(line, capacity=capacity, constants=Constants(**variant), record=True)
        assert plain.victims == fast.victims and plain.missed.tolist() == fast.missed.tolist()
        assert len(plain.victims) > 100


def test_a_count_that_rested_for_long_is_nothing_to_both_forms():
    """More halvings than a word has bits: with epochs of a step, after 64 steps."""
    random, rows = np.random.default_rng(3), []
    for step in range(400):
        newest, share = (64 + step) // 4, 0.25 if step < 40 or step % 70 == 0 else 0.01
        rows += [(step, page) for page in np.flatnonzero(random.random(newest) < share)]
        rows.append((step, newest))
    step, page = np.array(rows, np.int32).T
    sizes = dict(layers=1, kv_heads=1, page_tokens=4, lines_per_token=1)
    line = Timeline.of(
        AccessSequence(
            **sizes, first_step=0, first_token=64, step=step, queue=np.zeros_like(step), page=page
        )
    )
    variant = dict(epoch_shift=0, epoch_bits=7)
    plain = run(line, maker("kelp", variant), capacity=16, pooled=True, record=True)
    fast = run_kelp(line, capacity=16, constants=Constants(**variant), record=True)
    assert len(plain.victims) > 100 and plain.victims == fast.victims


def test_a_constant_without_sense_is_refused():
    with pytest.raises(ValueError, match="sweeps_most = 0 of policy kelp is refused"):
        dataclasses.replace(Constants(), sweeps_most=0)


def test_the_ladder_of_a_replay_ends_with_the_device(golden_kelp):
    trace = read(RECORDING)
    sequence = access_sequence(trace, accesses=3_000, first_step=768)
    found = ladder(sequence, sequence.capacity(0.25))
    counts, _ = golden_kelp(trace, residency=0.25, accesses=3_000, first_step=768)
    assert found["+ the profile: kelp"] == counts
    assert found["lru"][0] > found["+ the profile: kelp"][0] > found["belady"][0]

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The compiled forms of the lab's policies against their plain ones: every victim, every miss, also
with parameters; and what has no compiled form."""

import pytest
from paths import RECORDING
from trace_files import contents, save

from kelp_sim.lab import run
from kelp_sim.lab.cells import compiled, replay
from kelp_sim.lab.fast_adaptive import ADAPTIVE, run_adaptive
from kelp_sim.lab.fast_kelp import run_kelp
from kelp_sim.lab.fast_lists import LISTS, run_list
from kelp_sim.lab.fast_scored import SCORED, run_scored
from kelp_sim.lab.policies import IDS, load, maker
from kelp_sim.lab.reads import timeline

FORMS = {
    **dict.fromkeys(LISTS, run_list),
    **dict.fromkeys(ADAPTIVE, run_adaptive),
    **dict.fromkeys(SCORED, run_scored),
}
SET = [
    ("s3fifo", {"small": 0.3, "promote": 1}),
    ("wtinylfu", {"window": 25, "protected": 50}),
    ("streamingllm", {"sinks": 3}),
    ("ema", {"alpha": 64, "tau": 40}),
    ("snapkv", {"window": 3}),
    ("quest", {"half": 2}),
    ("tworate", {"fast": 2, "slow": 9}),
]


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A made-up recording: 4 queues, 24 steps, 10 pages, random reads."""
    return timeline(save(tmp_path_factory.mktemp("lab") / "small.npz", contents(seed=3)))


@pytest.fixture(scope="module")
def part():
    return timeline(RECORDING, accesses=12_000)


def decisions(outcome):
    return (
        outcome.victims,
        outcome.missed.tolist(),
        outcome.bypasses,
        outcome.issued,
        outcome.useful,
        outcome.late,
    )


@pytest.mark.parametrize("pooled", [True, False])
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.sampled
def test_a_compiled_policy_decides_like_the_plain_one(part, small, name, pooled):
    for line, capacity in (
        (part, part.sequence.capacity(0.15)),
        (part, part.sequence.capacity(0.3)),
        (small, 17),
    ):
        plain = run(line, load(name), capacity=capacity, pooled=pooled, record=True)
        fast = FORMS[name](line, name, capacity=capacity, pooled=pooled, record=True)
        assert decisions(plain) == decisions(fast)
        assert plain.victims or name == "plain"


@pytest.mark.parametrize("name,parameters", SET)
@pytest.mark.sampled
def test_parameters_mean_the_same_to_both(part, small, name, parameters):
    changed = 0
    for line, capacity, pooled in ((part, part.sequence.capacity(0.25), True), (small, 17, False)):
        plain = run(line, maker(name, parameters), capacity=capacity, pooled=pooled, record=True)
        fast = FORMS[name](
            line, name, capacity=capacity, pooled=pooled, parameters=parameters, record=True
        )
        assert decisions(plain) == decisions(fast)
        changed += (
            plain.victims
            != run(line, load(name), capacity=capacity, pooled=pooled, record=True).victims
        )
    assert changed


@pytest.mark.parametrize("residency", [0.15, 0.25])
def test_the_compiled_kelp_decides_like_the_plain_one(part, residency):
    capacity = part.sequence.capacity(residency)
    plain = run(part, load("kelp"), capacity=capacity, pooled=True, record=True)
    fast = run_kelp(part, capacity=capacity, record=True)
    assert decisions(plain) == decisions(fast)
    assert plain.victims


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.sampled
def test_the_compiled_kelp_on_made_up_reads(tmp_path, seed):
    line = timeline(
        save(tmp_path / "t.npz", contents(seed=seed, with_kv=False, steps=400, tokens=416))
    )
    capacity = line.sequence.queues * 20
    plain, fast = (
        run(line, load("kelp"), capacity=capacity, pooled=True, record=True),
        run_kelp(line, capacity=capacity, record=True),
    )
    assert plain.victims == fast.victims and (plain.missed == fast.missed).all()


def test_what_runs_in_its_plain_form():
    """Every policy that asks for no pages ahead is compiled."""
    plain = {
        name
        for name in IDS
        for scope in load(name).scopes
        if not compiled(name, pooled=scope == "pooled")
    }
    assert plain == {"freekv", "speckv", "infinigen"}


def test_prefetch_off_asks_for_nothing(part):
    capacity = part.sequence.capacity(0.25)
    with_it = replay(part, "speckv", capacity=capacity, pooled=True)
    without = replay(part, "speckv", capacity=capacity, pooled=True, prefetch=False)
    assert with_it.issued > 0 == without.issued
    assert (
        without.missed.tolist()
        == replay(part, "lru", capacity=capacity, pooled=True).missed.tolist()
    )


def test_the_constants_of_kelp_are_parameters(part):
    capacity, changed = part.sequence.capacity(0.25), {"alpha": 20, "late": 0, "finished": 0}
    plain = run(part, maker("kelp", changed), capacity=capacity, pooled=True)
    fast = replay(part, "kelp", capacity=capacity, pooled=True, parameters=changed)
    assert plain.missed.tolist() == fast.missed.tolist()
    assert (
        fast.missed.tolist() != replay(part, "kelp", capacity=capacity, pooled=True).missed.tolist()
    )

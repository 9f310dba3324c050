# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Streaming a prefill, beside keeping it: the figures of docs/decisions.md."""

import pytest

from kelp_sim.lab import Timeline, prefill, run
from kelp_sim.lab.policies.kelp import Kelp
from kelp_sim.lab.policies.lru import Lru
from kelp_sim.trace.accesses import access_sequence
from kelp_sim.trace.trace import read


@pytest.fixture(scope="module")
def timeline(repo_root):
    trace = read(repo_root / "data/traces/attn_0.npz")
    return Timeline.of(access_sequence(trace, accesses=20_000))


@pytest.mark.parametrize("base", [Lru, Kelp])
def test_what_stays_is_the_labs_policy_and_what_streams_starts_with_nothing(timeline, base):
    capacity = timeline.sequence.capacity(0.5)
    history = timeline.sequence.history_pages * timeline.sequence.queues
    plain = run(timeline, base, capacity=capacity, pooled=True)
    stays, streams = (prefill.outcome(timeline, p, capacity) for p in prefill.variants(base))
    assert stays[:2] == (plain.flash_reads, plain.misses)
    assert streams[1] > stays[1] and streams[2] >= max(stays[2], history)


def test_a_neighbours_prefill_takes_frames(timeline):
    capacity = timeline.sequence.capacity(0.25)
    prefill.Beside.burst, before = 64, prefill.Beside.burst
    try:
        beside = prefill.outcome(timeline, prefill.Beside, capacity)
    finally:
        prefill.Beside.burst = before
    assert beside[1] > run(timeline, Lru, capacity=capacity, pooled=True).misses


def test_command_prints_both_sides(repo_root, capsys):
    trace = str(repo_root / "data/traces/attn_0.npz")
    prefill.main([trace, "--residency", "0.5", "--accesses", "5000", "--burst", "16"])
    out = capsys.readouterr().out
    assert "1 recordings" in out and out.count("50.0%") == 3
    # Where everything is resident nobody misses.
    prefill.main([trace, "--residency", "1", "--accesses", "5000", "--burst", "16"])
    assert "100.0% | 0 " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["none.npz"], "none.npz: no such trace"),
        (["{attn}", "--residency", "0.001"], "residency = 0.001 of "),
        (["{attn}", "--burst", "0"], "--burst 0 is refused: no neighbour prefills; legal: 1 and"),
        (["{attn}", "--accesses", "5000"], "--burst 256 is refused: no neighbour prefills"),
    ],
)
def test_what_cannot_be_replayed_is_one_line(repo_root, capsys, arguments, fault):
    attn = str(repo_root / "data/traces/attn_0.npz")
    with pytest.raises(SystemExit):
        prefill.main([part.format(attn=attn) for part in arguments])
    assert fault in capsys.readouterr().err.splitlines()[-1]

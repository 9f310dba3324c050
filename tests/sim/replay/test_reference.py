# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""LRU and Belady under the replay rules: against a plain reading of the rules, and against
published hit rates of the recordings."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_files import contents, save

from kelp_sim.replay import reference
from kelp_sim.replay.reference import REFERENCES, references, replay
from kelp_sim.trace.accesses import AccessSequence, access_sequence
from kelp_sim.trace.trace import read

# Hit rates in per cent over the five recordings together, at residency 12.5, 25 and 50 %.
PUBLISHED = {
    "LRU per queue": (69.12, 90.39, 98.12),
    "LRU pooled": (74.82, 95.96, 99.47),
    "Belady per queue": (76.54, 95.04, 99.34),
    "Belady pooled": (86.50, 98.38, 99.89),
}


def by_the_rules(sequence, policy, pooled, capacity):
    """The rules word by word, scanning everything each time: misses as [steps, queues], and the
    bypasses."""
    limit = capacity if pooled else capacity // sequence.queues
    resident = {
        (queue, page)
        for queue in range(sequence.queues)
        for page in sequence.initial_pages(capacity)
    }
    ever = {
        (queue, page) for queue in range(sequence.queues) for page in range(sequence.history_pages)
    }
    accesses = list(
        zip(
            sequence.step.tolist(),
            zip(sequence.queue.tolist(), sequence.page.tolist(), strict=True),
            strict=True,
        )
    )
    last = {}
    misses = np.zeros((sequence.steps, sequence.queues), int)
    bypasses = 0
    for index, (step, page) in enumerate(accesses):
        if page not in resident:
            misses[step, page[0]] += page in ever
            pool = sorted(other for other in resident if pooled or other[0] == page[0])
            if len(pool) >= limit:
                free = [
                    other
                    for other in pool
                    if last.get(other) != step and other[1] != sequence.newest_page(step)
                ]
                if not free:
                    bypasses += 1
                    continue
                if policy == "lru":
                    resident.remove(min(free, key=lambda other: last.get(other, -1)))
                else:
                    resident.remove(
                        max(
                            free,
                            key=lambda other: next(
                                (s for s, p in accesses[index:] if p == other), 10**9
                            ),
                        )
                    )
            resident.add(page)
            ever.add(page)
        last[page] = step
    return misses, bypasses


@st.composite
def sequences(draw):
    """Short sequences over few pages: ties, full steps and fresh pages are all common."""
    queues, tokens = draw(st.integers(1, 3)), draw(st.sampled_from((1, 2, 4)))
    history, steps = draw(st.integers(1, 4)), draw(st.integers(1, 12))
    rows = []
    for step in range(steps):
        newest = history + step // tokens
        for queue in range(queues):
            rows += [
                (step, queue, page)
                for page in sorted(draw(st.sets(st.integers(0, newest - 1)))) + [newest]
            ]
    step, queue, page = (np.array(column, np.int32) for column in zip(*rows, strict=True))
    return AccessSequence(
        layers=1,
        kv_heads=queues,
        page_tokens=tokens,
        lines_per_token=1,
        first_step=0,
        first_token=history * tokens,
        step=step,
        queue=queue,
        page=page,
    )


@settings(max_examples=150)
@given(sequence=sequences(), extra=st.integers(0, 8), name=st.sampled_from(sorted(REFERENCES)))
def test_replay_follows_the_rules(sequence, extra, name):
    policy, pooled = REFERENCES[name]
    capacity = sequence.queues + extra
    found = replay(sequence, policy, pooled=pooled, capacity=capacity)
    misses, bypasses = by_the_rules(sequence, policy, pooled, capacity)
    assert np.array_equal(found.misses, misses)
    assert found.bypasses == bypasses


def sequence_of(*steps, history=2):
    """One queue whose page being written never changes; each argument is the pages read in that
    step."""
    rows = [(index, 0, page) for index, pages in enumerate(steps) for page in (*pages, history)]
    step, queue, page = (np.array(column, np.int32) for column in zip(*rows, strict=True))
    return AccessSequence(
        layers=1,
        kv_heads=1,
        page_tokens=64,
        lines_per_token=1,
        first_step=0,
        first_token=history * 64,
        step=step,
        queue=queue,
        page=page,
    )


def test_a_first_allocation_is_no_miss():
    found = replay(sequence_of((1,), (1,)), "lru", pooled=True, capacity=2)
    assert (found.accesses.sum(), found.misses.sum(), found.hit_rate) == (4, 0, 1.0)


def test_a_page_touched_in_the_step_and_the_page_being_written_stay():
    # Step 0 leaves page 1 and the newest. In step 2 page 0 takes 1's frame, and 1 is read past the
    # pool, which holds only 0, touched, and the newest, not yet touched.
    found = replay(sequence_of((1,), (1,), (0, 1), (1,)), "lru", pooled=True, capacity=2)
    assert (found.misses.ravel().tolist(), found.bypasses) == ([0, 0, 2, 1], 1)
    # The page being written is not allocated before step 2 lets it in: until then each access to it
    # is its first allocation, no miss.
    found = replay(sequence_of((0, 1), (0, 1), (0,)), "lru", pooled=True, capacity=2)
    assert (found.misses.ravel().tolist(), found.bypasses) == ([0, 0, 0], 2)


def test_a_pool_gives_room_to_the_queue_that_needs_it(tmp_path):
    sequence = access_sequence(read(save(tmp_path / "t.npz", contents(seed=3))))
    found = references(sequence, sequence.capacity(0.5))
    assert found["Belady pooled"].misses.sum() <= found["LRU pooled"].misses.sum()
    assert found["Belady per queue"].misses.sum() <= found["LRU per queue"].misses.sum()
    assert all(np.array_equal(one.accesses, sequence.counts()) for one in found.values())


def test_a_wrong_policy_or_capacity_is_refused(tmp_path):
    sequence = access_sequence(read(save(tmp_path / "t.npz", contents())))
    with pytest.raises(ValueError, match="policy = 'fifo' is refused"):
        replay(sequence, "fifo", pooled=True, capacity=16)
    with pytest.raises(ValueError, match="capacity = 3 frames is refused"):
        replay(sequence, "lru", pooled=True, capacity=3)


# Counts for the tracked recording, so that `make test` notices any change of the rules; the
# published table needs all five recordings.
TRACKED = {
    "LRU per queue": 18_179,
    "LRU pooled": 7_050,
    "Belady per queue": 9_535,
    "Belady pooled": 2_863,
}


def test_the_tracked_recording_gives_its_known_misses(repo_root):
    sequence = access_sequence(read(repo_root / "data" / "traces" / "attn_0.npz"))
    found = references(sequence, sequence.capacity(0.25))
    assert {name: int(one.misses.sum()) for name, one in found.items()} == TRACKED


@pytest.mark.slow
@pytest.mark.skipif(
    "KELP_TRACES" not in os.environ,
    reason="KELP_TRACES names the folder with attn_0.npz … attn_4.npz",
)
def test_the_five_recordings_give_the_published_hit_rates(tmp_path, capsys):
    folder = Path(os.environ["KELP_TRACES"])
    out = tmp_path / "rows.json"
    assert (
        reference.main([*(str(folder / f"attn_{n}.npz") for n in range(5)), "--json", str(out)])
        == 0
    )
    rows = json.loads(out.read_text(encoding="utf-8"))["rows"]
    found = {
        name: tuple(round(100 * row["hit_rate"], 2) for row in rows if row["policy"] == name)
        for name in REFERENCES
    }
    assert found == PUBLISHED


def test_the_program_prints_the_rows(tmp_path, capsys):
    path = save(tmp_path / "t.npz", contents())
    out = tmp_path / "new" / "rows.json"
    assert reference.main([str(path), str(path), "--residency", "0.5", "--json", str(out)]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in REFERENCES)
    written = json.loads(out.read_text(encoding="utf-8"))
    sequence = access_sequence(read(path))
    assert written["accesses"] == 2 * len(sequence)
    found = references(sequence, sequence.capacity(0.5))
    assert {row["policy"]: row["misses"] for row in written["rows"]} == {
        name: 2 * int(one.misses.sum()) for name, one in found.items()
    }


def test_the_program_refuses_in_one_line(tmp_path, capsys):
    assert reference.main([str(tmp_path / "none.npz")]) == 1
    assert capsys.readouterr().err.strip().endswith("none.npz: no such trace")

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""A made-up replay result for tests of the report. Its accesses and references are a recording's;
everything else is invented."""

import numpy as np

from kelp_sim.replay.reference import references
from kelp_sim.replay.result import PageResidency, ReplayResult
from kelp_sim.replay.waiting import waiting


def synthetic_result(sequence, residency=0.25, **changes):
    rng = np.random.default_rng(1)
    capacity = sequence.capacity(residency)
    found = references(sequence, capacity)
    misses = (found["LRU pooled"].misses + found["Belady pooled"].misses + 1) // 2
    prefetch = rng.poisson(0.3, sequence.steps)
    write_back = np.bincount(sequence.step[sequence.opens], minlength=sequence.steps)
    reads = int(misses.sum() + prefetch.sum())
    states = np.full((sequence.final_pages, sequence.queues), PageResidency.COLD)
    wanted = 1 + rng.multinomial(
        capacity - sequence.queues, (share := 1 / (1 + np.arange(sequence.queues))) / share.sum()
    )
    for queue, pages in enumerate(np.minimum(wanted, sequence.final_pages)):
        recent = rng.choice(sequence.final_pages, pages - 1, replace=False)
        states[recent, queue] = PageResidency.CLEAN
    states[-1] = PageResidency.DIRTY
    requests = sequence.line_reads + sequence.line_writes
    fields = dict(
        trace="synthetic",
        engine="rtl",
        command="(synthetic data of a test: no command)",
        config="trace",
        config_hash="0123456789ab",
        policy="policy synthetic",
        seed=1,
        residency=residency,
        capacity=capacity,
        kv_heads=sequence.kv_heads,
        formats={"K": "fp8_e4m3", "V": "int4"},
        accesses=len(sequence),
        lockstep_accesses=2000,
        line_requests=requests,
        mismatches=0,
        lockstep={"misses": 311, "victims": 290, "write_backs": 61, "prefetches": 77},
        waiting=waiting(sequence, misses),
        reference_waiting={name: waiting(sequence, one.misses) for name, one in found.items()},
        step_cycles=np.full(sequence.steps, 2 * requests // sequence.steps),
        resident_step_cycles=np.full(sequence.steps, requests // sequence.steps),
        hit_rate=1 - misses.sum() / len(sequence),
        demand_misses=int(misses.sum()),
        victims=int(misses.sum()),
        write_backs=int(write_back.sum()),
        prefetches=int(prefetch.sum()),
        flash_reads=reads,
        flash_read_bytes=reads * 2048,
        flash_write_bytes=int(write_back.sum()) * 2048,
        cycles=requests * 2,
        lines_per_second=23456.7,
        step_accesses=sequence.counts(),
        step_misses=misses,
        flash_demand=misses.sum(axis=1),
        flash_prefetch=prefetch,
        flash_write_back=write_back,
        residency_map=states,
        resident_pages=np.outer(np.ones(sequence.steps, int), wanted),
        hit_latency=np.array(
            [0, 0, 0, 0, 0, 0, requests - 9000, 8000, 900, 12, 0, 0, 0, 0, 0, 0, 0, 0]
        ),
        miss_latency=np.array([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 40, 3000, 1500, 7]),
        references=found,
    )
    return ReplayResult(**fields | changes)

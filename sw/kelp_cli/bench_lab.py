# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Wall-clock rows of the policy lab: accesses per second of the compiled policies, beside libcachesim's in the same run where that is installed."""

import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["lab_rows"]

_RECORDING = Path("data/traces/attn_0.npz")
_RUNS = 3
_THEIRS = {"lru": "LRU", "fifo": "FIFO", "clock": "Clock", "sieve": "Sieve"}


def lab_rows(recording: Path = _RECORDING, residency: float = 0.25) -> Iterator:
    """One core, pooled, a whole recording; the median of three."""
    from kelp_sim.lab.cells import replay
    from kelp_sim.lab.fast_lists import LISTS
    from kelp_sim.lab.reads import timeline
    from kelp_verif.bench_rows import Row

    line = timeline(recording)
    capacity = line.sequence.capacity(residency)
    for policy in (*LISTS, "kelp"):
        rate = _rate(len(line.keys), lambda policy=policy: replay(line, policy, capacity=capacity, pooled=True))
        yield Row(f"lab.{policy}.accesses_per_second", rate, "accesses/s", "≥ 5000000" if policy in LISTS else "")
    try:
        import libcachesim
    except ModuleNotFoundError:
        return
    for policy, name in _THEIRS.items():
        yield Row(f"libcachesim.{policy}.accesses_per_second", _rate(len(line.keys), lambda name=name: _their_run(libcachesim, name, line.keys, capacity)),
                  "accesses/s")


def _rate(count: int, work: Callable[[], object]) -> float:
    work()    # compiles
    rates = []
    for _ in range(_RUNS):
        began = time.perf_counter()
        work()
        rates.append(count / (time.perf_counter() - began))
    return statistics.median(rates)


def _their_run(libcachesim, name: str, keys, capacity: int) -> None:
    cache, request = getattr(libcachesim, name)(cache_size=capacity), libcachesim.Request()
    request.obj_size = 1
    for key in keys.tolist():
        request.obj_id = key + 1
        cache.get(request)

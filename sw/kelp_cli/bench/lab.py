# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Wall-clock rows of the policy lab: accesses per second of the compiled policies, beside
libcachesim's in the same run where that is installed.

libcachesim reads the same keys from a file of its own format in its own loop, the quickest way it
has; called from Python for each access it does a tenth.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["lab_rows"]

_RECORDING = Path("data/traces/attn_0.npz")
_RUNS = 3
_THEIRS = {
    "lru": "LRU",
    "fifo": "FIFO",
    "clock": "Clock",
    "sieve": "Sieve",
    "arc": "ARC",
    "s3fifo": "S3FIFO",
    "wtinylfu": "WTinyLFU",
    "lfu": "LFU",
}


def lab_rows(recording: Path = _RECORDING, residency: float = 0.25) -> Iterator:
    """One core, pooled, a whole recording; the median of three."""
    from kelp_sim.lab.cells import replay
    from kelp_sim.lab.fast_adaptive import ADAPTIVE
    from kelp_sim.lab.fast_lists import LISTS
    from kelp_sim.lab.reads import timeline
    from kelp_verif.measure.rows import Row

    line = timeline(recording)
    capacity = line.sequence.capacity(residency)
    theirs = _their_rates(line.keys, capacity)
    for policy in (*LISTS, *ADAPTIVE, "lfu", "belady", "ema", "kelp"):
        rate = _rate(
            len(line.keys),
            lambda policy=policy: replay(line, policy, capacity=capacity, pooled=True),
        )
        goal = (
            "≥ 5000000"
            if policy in LISTS
            else f"≥ {theirs[policy]:.0f}"
            if policy in ADAPTIVE and theirs
            else ""
        )
        yield Row(f"lab.{policy}.accesses_per_second", rate, "accesses/s", goal)
    for policy, rate in theirs.items():
        yield Row(f"libcachesim.{policy}.accesses_per_second", rate, "accesses/s")


def _rate(count: int, work: Callable[[], object]) -> float:
    work()  # compiles
    rates = []
    for _ in range(_RUNS):
        began = time.perf_counter()
        work()
        rates.append(count / (time.perf_counter() - began))
    return statistics.median(rates)


def _their_rates(keys, capacity: int) -> dict[str, float]:
    """libcachesim's rate for each policy that it has; empty where it is not installed."""
    import numpy as np

    try:
        import libcachesim
    except ModuleNotFoundError:
        return {}
    requests = np.zeros(
        len(keys), np.dtype([("time", "<u4"), ("id", "<u8"), ("size", "<u4"), ("next", "<i8")])
    )
    requests["id"], requests["size"], requests["next"] = keys + 1, 1, np.iinfo(np.int64).max
    with tempfile.NamedTemporaryFile(suffix=".oracleGeneral.bin") as file:
        requests.tofile(file.name)

        def work(name):
            reader = libcachesim.TraceReader(file.name, libcachesim.TraceType.ORACLE_GENERAL_TRACE)
            getattr(libcachesim, name)(cache_size=capacity).process_trace(reader)

        return {
            policy: _rate(len(keys), lambda name=name: work(name))
            for policy, name in _THEIRS.items()
        }

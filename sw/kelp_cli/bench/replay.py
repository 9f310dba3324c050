# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Wall-clock rows of ``kelp bench``: replay rates, each the median of three, beside the rate of a
plain Python loop in the same run."""

import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

__all__ = ["replay_rows"]

_RECORDING = Path("data/traces/attn_0.npz")
#: Quarter of the pages resident from where 80 of each queue are written, two pools.
_CHOICES = dict(
    residency=0.25,
    first_step=768,
    formats=("0-2:int8,int4", "3-:raw16"),
    prefetch="layer_ahead",
)
_RUNS = 3
_LOOP = 2_000_000


def replay_rows(recording: Path = _RECORDING, accesses: int = 20_000) -> Iterator:
    """RTL lines per second, free-running, comparison included, without the asserts of the stream
    rule; golden accesses per second on metadata."""
    from kelp_sim.replay import replay
    from kelp_verif.measure.rows import Row

    from ..output import progress_bar
    from ..replay.choices import Choices
    from ..replay.engines import run_rtl

    chosen = Choices(trace=recording, accesses=accesses, **_CHOICES).plan()
    lines, cycles = [], 0
    with progress_bar() as bar:
        run_rtl(chosen, bar, lockstep=False, checked=False)  # builds the model, fills caches
        for _ in range(_RUNS):
            done, _meter = run_rtl(chosen, bar, lockstep=False, checked=False)
            lines.append(done.requests / done.seconds)
            cycles = done.cycles
    whole = Choices(trace=recording).plan()
    whole = replace(whole, trace=replace(whole.trace, k=None, v=None))  # metadata alone
    golden = [len(whole.sequence) / replay.run_golden(whole).seconds for _ in range(_RUNS)]
    yield Row(
        "replay.rtl.lines_per_second",
        statistics.median(lines),
        "lines/s",
        "≥ 20000",
        chosen.setup.config.name,
        cycles,
    )
    yield Row(
        "replay.golden.accesses_per_second",
        statistics.median(golden),
        "accesses/s",
        "≥ 50000",
        chosen.setup.config.name,
    )
    yield Row(
        "reference.python_loop.iterations_per_second",
        statistics.median(_loop() for _ in range(_RUNS)),
        "iterations/s",
    )


def _loop() -> float:
    start, total = time.perf_counter(), 0
    for i in range(_LOOP):
        total += i & 7
    return _LOOP / (time.perf_counter() - start)

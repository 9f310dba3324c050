# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What each part of `kelp` is worth, and what each simplification for hardware costs: the tables of
docs/lab.md.

::

    python -m kelp_sim.lab.study {ablation,hardware,sensitivity} TRACE… [--residency 0.125,0.25,0.5]
    [--reads recorded|quest|top-p=P,k=K]

Each line is one variant of :class:`.policies.kelp.Constants`: gap and flash reads against pooled
LRU at each residency, over all traces together. After the sensitivity table: leave-one-out, each
trace judged with the constants that are best (sum of the gaps) on the others.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np

from ..replay import reference
from ..trace.accesses import AccessSequence
from .cells import replay
from .engine import Outcome, Timeline
from .fast_kelp import run_kelp
from .policies.kelp import Constants
from .reads import RULES, timeline

__all__ = ["TABLES", "ladder", "main"]

_WIDE = dict(frequency_bits=16, once=128, weight_profile=512)  #: all 16 times as fine
_IDLE = dict(alpha=0, weight_profile=0)  #: no frequency: idle time alone

#: Table → variant → constants that are not as chosen; a policy's id stands for that policy, pooled.
TABLES: dict[str, dict[str, dict | str]] = {
    "ablation": {
        "lru": "lru",
        "ema (policy 0)": "ema",
        "idle steps alone": _IDLE | dict(turn=0, late=0),
        "+ a turn that is over counts as idle": _IDLE,
        "+ the page's frequency": dict(weight_profile=0, finished=0),
        "+ finished queues give what they read": dict(weight_profile=0),
        "+ the profile: kelp": {},
    },
    "hardware": {
        "kelp": {},
        "no frame in reserve": dict(reserve=0),
        "4 frames in reserve": dict(reserve=4),
        "1 queue swept": dict(sweeps=1),
        "4 queues swept": dict(sweeps=4),
        "the best page of the whole pool": dict(sweeps=0),
        "a frequency of 16 bits": _WIDE,
        "profile counts of 10 bits": dict(profile_bits=10),
        "logarithms of 4 bits": dict(log_bits=4),
        "logarithms of 12 bits": dict(log_bits=12),
        "all of these undone": _WIDE | dict(reserve=0, sweeps=0, profile_bits=10, log_bits=12),
    },
    "sensitivity": {
        "as chosen": {},
        "α 2/256": dict(alpha=2),
        "α 8/256": dict(alpha=8),
        "once 4": dict(once=4),
        "once 16": dict(once=16),
        "once 64": dict(once=64),
        "fades as it is learnt": dict(fade_shift=0),
        "fades four times as fast": dict(fade_shift=2),
        "profile halved": dict(weight_profile=16),
        "profile doubled": dict(weight_profile=64),
        "profile halves in 32 steps": dict(epoch_shift=5),
        "profile halves in 128 steps": dict(epoch_shift=7),
        "a turn that is over: nothing more": dict(late=0),
        "a turn that is over: half a step more": dict(late=2),
    },
}


def _outcome(line: Timeline, variant: dict | str, capacity: int) -> Outcome:
    if isinstance(variant, str):
        return replay(line, variant, capacity=capacity, pooled=True)
    return run_kelp(line, capacity=capacity, constants=Constants(**variant))


def ladder(sequence: AccessSequence, capacity: int) -> dict[str, tuple[int, int]]:
    """(misses, flash reads) of each step of the ablation, between LRU and Belady over one pool."""
    line = Timeline.of(sequence)
    found = {
        name: _outcome(line, variant, capacity)
        for name, variant in (TABLES["ablation"] | {"belady": "belady"}).items()
    }
    return {name: (outcome.misses, outcome.flash_reads) for name, outcome in found.items()}


class Documents:
    """The traces, their references, and what variants miss and read on them."""

    def __init__(self, paths, rule: str, residencies):
        self.lines: list[Timeline] = [timeline(path, rule) for path in paths]
        self.residencies = residencies
        self.lru, self.belady = (
            np.array([[self._reference(line, name, r) for line in self.lines] for r in residencies])
            for name in ("lru", "belady")
        )

    @staticmethod
    def _reference(line: Timeline, name: str, residency: float) -> int:
        return int(
            reference.replay(
                line.sequence, name, pooled=True, capacity=line.sequence.capacity(residency)
            ).misses.sum()
        )

    def replay(self, variant: dict | str) -> tuple[np.ndarray, np.ndarray]:
        """[residencies, traces]: misses and flash reads."""
        found = np.zeros((2, *self.lru.shape), np.int64)
        for i, residency in enumerate(self.residencies):
            for j, line in enumerate(self.lines):
                outcome = _outcome(line, variant, line.sequence.capacity(residency))
                found[:, i, j] = outcome.misses, outcome.flash_reads
        return found[0], found[1]

    def gaps(self, misses: np.ndarray, among=slice(None)) -> np.ndarray:
        """[residencies], of summed counts over the traces ``among``."""
        lru, belady = self.lru[:, among].sum(1), self.belady[:, among].sum(1)
        return (lru - misses[:, among].sum(1)) / (lru - belady)


def left_out(documents: Documents, misses: list[np.ndarray]) -> np.ndarray:
    """[residencies]: each trace judged with the variant that is best on the others."""
    judged = np.zeros_like(documents.lru)
    for one in range(len(documents.lines)):
        others = np.arange(len(documents.lines)) != one
        best = max(misses, key=lambda m: documents.gaps(m, others).sum())
        judged[:, one] = best[:, one]
    return documents.gaps(judged)


def table(name: str, documents: Documents) -> Iterator[str]:
    """Its lines, as they come."""
    yield "".join(["".ljust(42), *(f"{r:.1%}".rjust(16) for r in documents.residencies)])
    every = []
    for title, variant in TABLES[name].items():
        misses, reads = documents.replay(variant)
        every.append(misses)
        against = reads.sum(1) / documents.lru.sum(1)
        yield "".join(
            [
                title.ljust(42),
                *(
                    f"{gap:+.3f} · {flash:.2f}".rjust(16)
                    for gap, flash in zip(documents.gaps(misses), against, strict=True)
                ),
            ]
        )
    if name == "sensitivity" and len(documents.lines) > 1:
        yield "".join(
            [
                "leave-one-out".ljust(42),
                *(f"{gap:+.3f}       ".rjust(16) for gap in left_out(documents, every)),
            ]
        )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m kelp_sim.lab.study",
        description="What the parts of policy kelp are worth (docs/lab.md).",
    )
    parser.add_argument("table", choices=list(TABLES))
    parser.add_argument("traces", nargs="+", metavar="TRACE")
    parser.add_argument("--residency", default="0.125,0.25,0.5")
    parser.add_argument("--reads", default="recorded", help=" | ".join(RULES))
    chosen = parser.parse_args(arguments)
    try:
        documents = Documents(
            chosen.traces, chosen.reads, [float(text) for text in chosen.residency.split(",")]
        )
    except (OSError, ValueError) as error:  # TraceError among them
        parser.error(str(error))
    for line in table(chosen.table, documents):
        print(line, flush=True)


if __name__ == "__main__":
    main()

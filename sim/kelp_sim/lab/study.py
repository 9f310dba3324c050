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

#: 12 and 16 of 28 in the common value, which is 64 times as fine.
_WIDE = dict(fast_bits=16, slow_bits=16, weight_fast=3, weight_slow=4, weight_profile=64 << 6)
_NOTHING = dict(weight_profile=0, turn=0, near_most=256, near_least=256, explore=0, prefetch=False)


def _added(*parts: str) -> dict:
    """The two frequencies alone, with these parts of the policy put back."""
    left = {
        "turn": ("turn",),
        "near": ("near_most", "near_least"),
        "profile": ("weight_profile",),
        "duel": ("explore",),
        "prefetch": ("prefetch",),
    }
    gone = {name for part, names in left.items() if part not in parts for name in names}
    return {name: value for name, value in _NOTHING.items() if name in gone}


#: Table → variant → constants that are not as chosen; a policy's id stands for that policy, pooled.
TABLES: dict[str, dict[str, dict | str]] = {
    "ablation": {
        "lru": "lru",
        "ema (policy 0)": "ema",
        "two frequencies": _added(),
        "+ a turn that is over counts as idle": _added("turn"),
        "+ and is worth a factor less": _added("turn", "near"),
        "+ the profile": _added("turn", "near", "profile"),
        "+ the duel of two opinions": _added("turn", "near", "profile", "duel"),
        "+ prefetch: kelp": {},
    },
    "hardware": {
        "kelp": {},
        "no frame in reserve": dict(reserve=0),
        "4 frames in reserve": dict(reserve=4),
        "1 queue swept": dict(sweeps=1),
        "4 queues swept": dict(sweeps=4),
        "the best page of the whole pool": dict(sweeps=0),
        "frequencies of 16 + 16 bits": _WIDE,
        "profile counts of 10 bits": dict(profile_bits=10),
        "a third of the profile one page ahead": dict(weight_profile=43, weight_next=21),
        "all of these undone": _WIDE
        | dict(reserve=0, sweeps=0, profile_bits=10, weight_profile=43 << 6, weight_next=21 << 6),
    },
    "sensitivity": {
        "as chosen": {},
        "α fast 40/256": dict(alpha_fast=40),
        "α fast 80/256": dict(alpha_fast=80),
        "α slow 6/256": dict(alpha_slow=6),
        "α slow 12/256": dict(alpha_slow=12),
        "fast weight 4": dict(weight_fast=4),
        "fast weight 9": dict(weight_fast=9),
        "profile halved": dict(weight_profile=32),
        "profile doubled": dict(weight_profile=128),
        "profile halves in 32 steps": dict(epoch_shift=5),
        "profile halves in 128 steps": dict(epoch_shift=7),
        "factor from 192": dict(near_most=192),
        "factor from 240": dict(near_most=240),
        "prefetch at the marginal value": dict(margin_shift=0),
        "prefetch at four times": dict(margin_shift=2),
        "one in 4 to the other opinion": dict(explore=4),
        "one in 16 to the other opinion": dict(explore=16),
        "regrets 1 and 4": dict(first_regret=1),
        "regrets 4 and 4": dict(first_regret=4),
    },
}


def _outcome(line: Timeline, variant: dict | str, capacity: int) -> Outcome:
    if isinstance(variant, str):
        return replay(line, variant, capacity=capacity, pooled=True)
    numbers = {name: value for name, value in variant.items() if name != "prefetch"}
    return run_kelp(
        line,
        capacity=capacity,
        constants=Constants(**numbers),
        prefetch=variant.get("prefetch", True),
    )


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

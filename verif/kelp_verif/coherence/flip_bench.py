# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Bits flipped in the coherent front's memories, one and two of a code word, under traffic:
`python -m kelp_verif.coherence.flip_bench --each 40` prints what came of them, and exits with 1
where one was silent."""

from __future__ import annotations

import argparse
import gc
import random
import sys
import warnings
from collections import Counter

from amaranth.hdl import UnusedElaboratable

from kelp_hw.coherence.front import CoherentFront
from kelp_spec.coherence import SIZES
from kelp_spec.config import named
from kelp_verif.endpoint.inventory import inventory

from .coherent_bench import SMOOTH, memories, run, some_lines

__all__ = ["campaign", "main"]

CONFIG, SMALL = named("unit"), SIZES["unit"]
#: Queues are full most of the time, so that their rows are in use.
CROWDED = {**SMOOTH, "inner_req": 6, "ndr": 60, "birsp": 20}
WRITTEN = (1 << 64) - 1  #: the row that has just been written
#: What a run comes to that ends as it should, or is told of what is beyond repair.
GOOD = {1: ("corrected", "nothing"), 2: ("fatal", "nothing")}


def campaign(
    *, each: int, seed: int = 1, make=CoherentFront, only=None
) -> dict[str, dict[int, Counter]]:
    """Memory → bits → what came of `each` flips: `corrected`, `fatal`, `nothing`, or what was wrong
    without a word of the front's."""
    rng, lines = random.Random(seed), some_lines(CONFIG, SMALL, 12)
    with warnings.catch_warnings():
        # The inventory elaborates what nobody simulates.
        warnings.simplefilter("ignore", UnusedElaboratable)
        cells = inventory(make(config=CONFIG, sizes=SMALL))
        gc.collect()
    names = memories(CONFIG, SMALL, make)
    strays = set(cells) ^ set(names)
    assert not strays, f"either the model or the design lacks {sorted(strays)}"
    came = {name: {1: Counter(), 2: Counter()} for name in only or names}
    for number, name in enumerate(names, 1):
        if name not in came:
            continue
        for bits in (1, 2):
            for n in range(each):
                word = rng.choice(cells[name].words)
                first, *second = rng.sample(word, bits)
                figures, _ = run(
                    CONFIG,
                    SMALL,
                    lines,
                    make=make,
                    seed=rng.randrange(1, 1 << 30),
                    transactions=600,
                    ask=20,
                    jitter=20,
                    patience=20_000,
                    **(CROWDED, SMOOTH)[n % 4 == 0],
                    flip_memory=number,
                    flip_row=rng.randrange(cells[name].depth) if n % 4 == 0 else WRITTEN,
                    flip_bits=first | (second[0] + 1 << 16 if second else 0),
                    flip_cycle=rng.randrange(100, 900),
                )
                came[name][bits][_outcome(figures)] += 1
    return came


def _outcome(figures) -> str:
    if figures.fatal:
        return "fatal"
    if figures.said:
        return f"silent: {figures.said.decode()}"
    return "corrected" if figures.corrected else "nothing"


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kelp_verif.coherence.flip_bench")
    parser.add_argument("--each", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(argv)
    bad = 0
    for name, kinds in campaign(each=args.each, seed=args.seed).items():
        for bits, counts in kinds.items():
            print(f"{name}, {bits}: {', '.join(f'{n} {what}' for what, n in counts.items())}")
            bad += sum(n for what, n in counts.items() if what not in GOOD[bits])
    print(f"seed {args.seed}: {bad} that should not be")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())

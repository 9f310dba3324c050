# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Lines a cycle through the coherent front, with a host that answers at once and a memory of 64
cycles behind an endpoint of 20: `python -m kelp_verif.coherence.rates --config trace`."""

from __future__ import annotations

import argparse
import random
import sys

from kelp_spec.coherence import SIZES
from kelp_spec.config import named

from .coherent_bench import run

__all__ = ["main", "rates"]

LATENCY = 84
OWNERSHIP, SHARED, LOOK = 1, 2, 3


def _orders(lines: int, streams: int = 16) -> dict[str, list[int]]:
    shuffled = list(range(lines))
    random.Random(1).shuffle(shuffled)
    apart = lines // streams
    return {
        "in order": list(range(lines)),
        f"{streams} streams": [s * apart + n for n in range(apart) for s in range(streams)],
        "at random": shuffled,
    }


def rates(name: str, *, blocks: bool = False) -> dict[str, float]:
    """Row → lines a cycle, from the first answer to the last; `blocks`: lines are called back four
    or two at once."""
    config, sizes = named(name), SIZES[name]
    rows = {}
    for where, lines in (("within", sizes.lines), ("beyond", 2 * sizes.lines)):
        for order, addresses in _orders(lines).items():
            for what, kind in (("ownership", OWNERSHIP), ("shared", SHARED), ("SnpCur", LOOK)):
                figures, _ = run(
                    config, sizes, addresses, stream=kind, latency=LATENCY, blocks=blocks
                )
                rate = lines / (figures.last - figures.first + 1)
                rows[f"{what}, {where}, {order}"] = rate
    return rows


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kelp_verif.coherence.rates")
    parser.add_argument("--config", default="trace", choices=SIZES)
    parser.add_argument("--blocks", action="store_true", help="a host that takes Blk forms")
    args = parser.parse_args(argv)
    for row, rate in rates(args.config, blocks=args.blocks).items():
        print(f"{row}: {rate:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

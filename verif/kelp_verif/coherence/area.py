# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What the coherent front takes of an ECP5, synthesised alone:
`python -m kelp_verif.coherence.area --config ulx3s`. A minute or two, once for the same sources."""

from __future__ import annotations

import argparse
import sys

from kelp_fpga.flow.cells import cells_of, told
from kelp_hw.coherence.front import CoherentFront
from kelp_spec.coherence import SIZES
from kelp_spec.config import named

__all__ = ["area", "main"]


def area(name: str) -> dict[str, int]:
    """Cells of the front in the named configuration."""
    front = CoherentFront(config=named(name), sizes=SIZES[name])
    return cells_of(front, f"coherent-{name}")


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kelp_verif.coherence.area")
    parser.add_argument("--config", default="ulx3s", choices=SIZES)
    args = parser.parse_args(argv)
    print(f"{args.config}: {told(area(args.config))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

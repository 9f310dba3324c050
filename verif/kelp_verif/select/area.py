# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What the choice of pages takes of an ECP5, each part synthesised alone:
`python -m kelp_verif.select.area --config unit_select`. Some minutes, once for the same
sources."""

from __future__ import annotations

import argparse
import sys

from kelp_fpga.configs import BOARD_CONFIGS
from kelp_fpga.flow.cells import cells_of, told
from kelp_hw.select.gather_window import GatherWindow
from kelp_hw.select.page_reader import PageReader
from kelp_hw.select.select import Select
from kelp_hw.select.select_control import engine_of
from kelp_hw.select.select_window import SelectWindow
from kelp_hw.select.summary_store import SummaryStore
from kelp_spec.config import NAMED

__all__ = ["area", "main"]


#: with a choice
CONFIGS = {n: c for n, c in (NAMED | BOARD_CONFIGS).items() if c.select}
PARTS = {
    "window": SelectWindow,
    "gather": GatherWindow,
    "store": SummaryStore,
    "reader": PageReader,
    "engine": engine_of,
    "all": Select,
}


def area(name: str, part: str) -> dict[str, int]:
    """Cells of one part in the named configuration."""
    return cells_of(PARTS[part](config=CONFIGS[name]), f"select-{part}-{name}")


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kelp_verif.select.area")
    parser.add_argument("--config", default="unit_select", choices=CONFIGS)
    parser.add_argument("--part", choices=PARTS, nargs="*", default=list(PARTS))
    args = parser.parse_args(argv)
    for part in args.part:
        print(f"{part}: {told(area(args.config, part))}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

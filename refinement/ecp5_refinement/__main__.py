# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""`python -m ecp5_refinement PLACED OUTPUT`: refine a netlist that nextpnr-ecp5 has placed
(README.md)."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from .refinement import EPOCHS, refine


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m ecp5_refinement", description="Shorten paths and wires of a placed ECP5."
    )
    parser.add_argument("placed", type=Path, help="what nextpnr-ecp5 --no-route --write wrote")
    parser.add_argument("output", type=Path, help="the same with other places, to be routed")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="fewer are quicker and worse")
    options = parser.parse_args(arguments)
    design = json.loads(options.placed.read_text(encoding="utf-8"))
    [top] = [
        module
        for module in design["modules"].values()
        if int(module.get("attributes", {}).get("top", "0"), 2)
    ]
    refine(top, epochs=options.epochs, tell=lambda line: print(line, flush=True))
    # whole or not at all: what is broken off leaves no half of a netlist
    begun = options.output.with_name(f".{options.output.name}.{os.getpid()}")
    begun.write_text(json.dumps(design), encoding="utf-8")
    begun.replace(options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

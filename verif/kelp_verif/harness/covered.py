# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What simulations leave for ``make coverage`` (kelp_verif.coverage): what of a model was reached,
and figures that benches record."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

__all__ = [
    "COVERAGE_ARGS",
    "COVERAGE_OPT",
    "Reached",
    "covering",
    "leave_coverage",
    "leave_figures",
]

#: A folder: benches leave their coverage in it.
_FOLDER = "KELP_COVERAGE"
#: Where it is set, too, they leave figures alone: models are those of other runs.
_POINTS_ALONE = "KELP_COVER_POINTS_ALONE"
#: Verilator's arguments: lines, and toggles of what has one bit.
COVERAGE_ARGS = ("--coverage-line", "--coverage-toggle", "--coverage-max-width", "1")
COVERAGE_OPT = "-O0"  #: counters make large code, which runs once
_POINT = re.compile(r"C '(.*)' (\d+)")


def covering() -> bool:
    """Whether models count what of them is reached."""
    return bool(os.environ.get(_FOLDER)) and not os.environ.get(_POINTS_ALONE)


def leave_coverage(
    component: str, bench: str, verilog: Path, data: Path, records: Mapping[str, object]
) -> None:
    """What one run of a cocotb bench reached and recorded. ``verilog`` is the model's; ``data`` is
    Verilator's ``coverage.dat``."""
    left = Path(os.environ[_FOLDER]) / f"{component}-{data.parent.name}"
    shutil.copy(data, left.with_name(f"{left.name}.dat"))
    _say(left, component, bench, verilog, records)


def _say(left: Path, component: str, bench: str, verilog: Path, records) -> None:
    said = {"component": component, "bench": bench, "verilog": str(verilog), "records": records}
    left.with_name(f"{left.name}.json").write_text(json.dumps(said), encoding="utf-8")


def leave_figures(bench: str, figures: Mapping[str, object]) -> None:
    """What a run of the module `bench` met, for the cover points that name it; nothing is left but
    for ``make coverage``. A cocotb bench calls :func:`kelp_verif.harness.runner.record` instead."""
    if folder := os.environ.get(_FOLDER):
        with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".json", delete=False) as handle:
            json.dump({"bench": bench, "records": dict(figures)}, handle, default=int)


class Reached:
    """Adds up what the runs of one compiled model reached in this process: a driver in C++ has
    hundreds of them, each with a context of its own.

    Parameters
    ----------
    component, bench
        As :func:`leave_coverage` has them.
    verilog
        The model's.
    """

    def __init__(self, component: str, bench: str, verilog: Path):
        self._met: Counter[str] = Counter()
        name = f"{component}-{verilog.parent.name}-{os.getpid()}"
        self._left = Path(os.environ[_FOLDER]) / name
        #: where the next run writes its ``coverage.dat``
        self.data = self._left.with_name(f"{name}.run")
        _say(self._left, component, bench, verilog, {})

    def add(self) -> None:
        """A run has written ``data``: what is left counts it, too."""
        for line in self.data.read_text(encoding="utf-8", errors="replace").splitlines():
            if found := _POINT.fullmatch(line):
                self._met[found[1]] += int(found[2])
        self.data.unlink()
        text = "".join(f"C '{point}' {count}\n" for point, count in self._met.items())
        self._left.with_name(f"{self._left.name}.dat").write_text(text, encoding="utf-8")

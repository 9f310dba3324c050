# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Shows a :class:`~kelp_sim.replay.result.ReplayResult`: terminal table, plots, one self-contained
HTML page, report.json.

:func:`write` makes all the files; :func:`table` is what the terminal shows. matplotlib is imported
only where a plot is drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kelp_spec.files import write_whole

from ..replay.result import ReplayResult
from .facts import as_json, write_json
from .terminal import table

__all__ = ["as_json", "table", "write", "write_json"]


def write(
    result: ReplayResult, directory: Path | str, *, on_start: Callable[[str], None] | None = None
) -> list[Path]:
    """Write report.json, the plots and report.html into ``directory`` (made if need be); the paths.
    ``on_start`` hears each file's name."""
    from . import page, plots

    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    written = []

    def begin(name: str) -> Path:
        if on_start is not None:
            on_start(name)
        written.append(directory / name)
        return written[-1]

    write_json(result, begin("report.json"))
    pictures = []
    for plot in plots.PLOTS:
        path = begin(f"{plot.name}.png")
        write_whole(path, plots.png(plot.draw(result)))
        pictures.append((plot, path.read_bytes()))
    write_whole(begin("report.html"), page.html(result, pictures))
    return written

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Runs many cells: on all cores through joblib, or on a Dask cluster; a finished row is kept at
once, so that a killed sweep goes on where it was."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

from ..store import append, entries
from .cells import Cell, row

__all__ = ["ClusterError", "sweep"]


class ClusterError(RuntimeError):
    """The cluster that was named cannot be used."""


def sweep(
    wanted: Sequence[Cell],
    *,
    jobs: int = 1,
    cluster: str | None = None,
    store: Path | None = None,
    progress: Callable[[Cell, bool], None] | None = None,
) -> list[dict]:
    """Rows of ``wanted`` in its order. ``store``: a file of one finished row a line, read first;
    rows of other sources or traces do not count. StoreError where it is something else.

    ``progress`` hears each cell when it is done, and whether it was found in the store. ``jobs``
    −1: all cores.
    """
    found = {entry["key"]: entry["row"] for entry in entries(store) if "row" in entry}
    rows: dict[Cell, dict] = {}
    for cell in wanted:
        if cell.key in found:
            rows[cell] = found[cell.key]
            if progress is not None:
                progress(cell, True)
    left = [cell for cell in wanted if cell not in rows]
    with contextlib.ExitStack() as stack:
        for cell, done in _run(left, jobs, cluster, stack):
            rows[cell] = done
            if store is not None:
                append(store, {"key": cell.key, "row": done})
            if progress is not None:
                progress(cell, False)
    return [rows[cell] for cell in wanted]


def _pair(cell: Cell) -> tuple[Cell, dict]:
    return cell, row(cell)


def _run(left: Sequence[Cell], jobs: int, cluster: str | None, stack: contextlib.ExitStack):
    if not left:
        return
    if cluster is None and (jobs == 1 or len(left) == 1):
        yield from map(_pair, left)
        return
    if cluster is None:
        import joblib

        yield from joblib.Parallel(n_jobs=jobs, return_as="generator_unordered")(
            joblib.delayed(_pair)(cell) for cell in left
        )
        return
    import joblib
    from dask.distributed import Client

    try:
        client = stack.enter_context(Client(cluster, timeout="10s"))
    except (OSError, TimeoutError, ValueError) as error:
        raise ClusterError(f"no Dask scheduler answers at {cluster}: {error}") from error
    stack.enter_context(joblib.parallel_config(backend="dask", client=client))
    yield from joblib.Parallel(return_as="generator_unordered")(
        joblib.delayed(_pair)(cell) for cell in left
    )

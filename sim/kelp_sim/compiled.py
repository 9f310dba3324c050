# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Functions compiled by numba, and kept compiled on disk as long as their sources are as they were.

Numba looks at a function's own file alone. Constants of other files, as those of `kelp_spec`, are
compiled in, so with its own cache a changed constant would go on counting as it was.
"""

from __future__ import annotations

import functools
import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

import numba

import kelp_spec

__all__ = ["njit"]


def njit(function: Callable) -> Callable:
    """`function`, compiled when it is first called, or as it was for the same sources."""
    given = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(_folder(given))
    try:
        return numba.njit(cache=True)(function)
    finally:
        numba.config.CACHE_DIR = given


@functools.cache
def _folder(given: str) -> Path:
    """Where code for today's sources is kept, beside this file or where NUMBA_CACHE_DIR says. What
    is there for others goes. Where nothing can be written numba finds a place of its own."""
    state = hashlib.sha256()
    for package in (Path(kelp_spec.__file__).parent, Path(__file__).parent):
        for path in sorted(package.rglob("*.py")):
            state.update(path.read_bytes())
    root = Path(given) if given else Path(__file__).parent / "__pycache__"
    folder = root / f"kelp-{state.hexdigest()[:16]}"
    for other in root.glob("kelp-*"):
        if other != folder:
            shutil.rmtree(other, ignore_errors=True)
    return folder

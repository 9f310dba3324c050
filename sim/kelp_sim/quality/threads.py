# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Keeps NumPy's OpenBLAS to one thread for a while: on a busy machine its threads wait for one
another, which costs more than they save at these sizes."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from pathlib import Path

import numpy as np

__all__ = ["one_thread"]


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Does nothing where NumPy was built with another BLAS."""
    found = _controls()
    before = found[0]() if found else 0
    if found:
        found[1](1)
    try:
        yield
    finally:
        if found:
            found[1](before)


def _controls():
    """(get, set) of the OpenBLAS that NumPy's wheel brings; None where there is none."""
    for path in (Path(np.__file__).parent.parent / "numpy.libs").glob("*openblas*"):
        library = ctypes.CDLL(str(path))
        for prefix in ("scipy_openblas", "openblas"):
            for suffix in ("64_", ""):
                with contextlib.suppress(AttributeError):
                    return getattr(library, f"{prefix}_get_num_threads{suffix}"), getattr(
                        library, f"{prefix}_set_num_threads{suffix}"
                    )
    return None

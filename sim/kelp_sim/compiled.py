# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Functions compiled by numba, and kept compiled on disk as long as their sources are as they were.

Numba looks at a function's own file alone. Constants of other files, as those of `kelp_spec` and
`kelp_golden`, are compiled in, so with its own cache a changed constant would go on counting as it
was. And an exception in the midst of compiling, as Ctrl-C makes one and SIGTERM may, leaves it in a
state that it does not expect: it has ended with a segmentation fault.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import re
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numba

import kelp_golden
import kelp_spec

__all__ = ["njit"]

_OURS = re.compile(r"kelp-[0-9a-f]{16}")
_HELD = signal.SIGINT, signal.SIGTERM


def njit(function: Callable) -> Callable:
    """`function`, compiled when it is first called, or as it was for the same sources. Ctrl-C and
    SIGTERM wait until that is done."""
    given = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(_folder(given))
    try:
        dispatcher = numba.njit(cache=True)(function)
    finally:
        numba.config.CACHE_DIR = given
    compiles = dispatcher.compile

    @functools.wraps(compiles)
    def compile_whole(signature):
        with _undisturbed():
            return compiles(signature)

    dispatcher.compile = compile_whole
    return dispatcher


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """SIGINT and SIGTERM come when the block is over. Python hands them to the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: came.append(number)) for number in _HELD
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if came:
            signal.raise_signal(came[0])


@functools.cache
def _folder(given: str) -> Path:
    """Where code for today's sources is kept, beside this file or where NUMBA_CACHE_DIR says. What
    is there for others goes, and nothing else: that may be anybody's folder. Where nothing can be
    written numba finds a place of its own."""
    state = hashlib.sha256()
    packages = kelp_spec.__file__, kelp_golden.__file__, __file__
    for package in packages:
        for path in sorted(Path(package).parent.rglob("*.py")):
            state.update(path.read_bytes())
    root = Path(given) if given else Path(__file__).parent / "__pycache__"
    folder = root / f"kelp-{state.hexdigest()[:16]}"
    for other in root.glob("kelp-*"):
        if other != folder and _OURS.fullmatch(other.name):
            shutil.rmtree(other, ignore_errors=True)
    return folder

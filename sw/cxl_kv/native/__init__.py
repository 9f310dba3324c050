# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""An optional C library of one file for mapped memory: a line stored as one aligned 64-byte write,
and SIGBUS caught where it strikes.

``python -m cxl_kv.native`` builds it with the machine's C compiler, into the user's cache folder;
no Python header is needed. Without it, everything works: `cxl_kv.backends.guarded` then has the
kernel do the moves, which promises no width. KELP_NATIVE=0 leaves it unused where it was built.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

__all__ = [
    "SOURCE",
    "WAYS",
    "BuildError",
    "best_way",
    "build",
    "drop_lines",
    "drops",
    "library",
    "load_lines",
    "load_spans",
    "path",
    "reader",
    "store_lines",
    "store_parts",
]

#: to write a line; movdir64b and avx512 write it at once
WAYS = ("plain", "sse2", "avx512", "movdir64b")
SOURCE = Path(__file__).with_name("lines.c")


class BuildError(Exception):
    """The library could not be built; the message holds the compiler's."""


def path() -> Path:
    """Where this source's library is or would be. RuntimeError for a user without a home."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not cache.is_absolute():  # by its specification, no such value counts
        cache = Path.home() / ".cache"
    digest = hashlib.sha256(SOURCE.read_bytes() + os.uname().machine.encode()).hexdigest()[:16]
    return cache / "kelp" / f"lines-{digest}.so"


def build() -> Path:
    """Compile the library unless it is there; its path. BuildError names what is missing."""
    try:
        target = path()
    except RuntimeError as error:
        raise BuildError(f"XDG_CACHE_HOME names no folder, and: {error}") from None
    if os.path.isfile(target):
        return target
    compiler = (
        shlex.split(os.environ.get("CC", ""))
        or [c for c in ("cc", "gcc", "clang", "g++") if shutil.which(c)][:1]
    )
    if not compiler:
        raise BuildError(
            "there is no C compiler on PATH (cc, gcc or clang); on Debian or Ubuntu: apt-get "
            + "install gcc"
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            made = Path(folder) / target.name
            command = [*compiler, "-x", "c", "-O2", "-fPIC", "-shared", "-o", made, SOURCE]
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=120
            )
            if done.returncode:
                raise BuildError(f"{' '.join(map(str, command))}:\n{done.stderr.strip()}")
            os.replace(made, target)
    except OSError as error:
        raise BuildError(f"{error.filename}: {error.strerror}") from None
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"{compiler[0]} did not end within {error.timeout} s") from None
    library.cache_clear()
    return target


@functools.cache
def library() -> ctypes.CDLL | None:
    """The library where it was built, else None."""
    if os.environ.get("KELP_NATIVE") == "0":
        return None
    try:
        found = ctypes.CDLL(str(path()))
    except (OSError, RuntimeError):
        # Not built; or for another machine that shares this folder; or this user may not look, or
        # has no home, as in a container.
        return None
    found.kelp_store.restype = found.kelp_load.restype = ctypes.c_long
    found.kelp_load_spans.restype = ctypes.c_long
    found.kelp_load.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_long]
    found.kelp_load_spans.argtypes = found.kelp_load.argtypes
    found.kelp_store.argtypes = [*found.kelp_load.argtypes, ctypes.c_int]
    found.kelp_drop.restype = found.kelp_store_parts.restype = ctypes.c_long
    found.kelp_drop.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_long]
    found.kelp_store_parts.argtypes = [ctypes.c_void_p] * 5 + [ctypes.c_long]
    return found


@functools.cache  # CPUID costs tens of microseconds in a virtual machine
def best_way() -> str:
    """How this CPU writes a line best, of WAYS; the library must be there."""
    return WAYS[library().kelp_best()]


def store_lines(
    base: int, offsets: np.ndarray, lines: np.ndarray, way: str | None = None
) -> np.ndarray:
    """Write uint8[n, 64] to address `base` + offsets, uint64[n], in order, and fence; bool[n] of
    the lines that could not be reached."""
    bad = np.zeros(len(offsets), bool)
    how = WAYS.index(best_way() if way is None else way)
    _checked(
        library().kelp_store(
            base, offsets.ctypes.data, lines.ctypes.data, bad.ctypes.data, len(offsets), how
        )
    )
    return bad


def store_parts(
    base: int, offsets: np.ndarray, lines: np.ndarray, enables: np.ndarray
) -> np.ndarray:
    """Write those bytes of uint8[n, 64] to address `base` + offsets, uint64[n], whose bit is set in
    `enables`, uint64[n]: the lines in order, each fenced from the next, aligned words of 8 bytes at
    once and past the caches. bool[n] of the lines that could not be reached."""
    bad = np.zeros(len(offsets), bool)
    arrays = (array.ctypes.data for array in (offsets, lines, enables, bad))
    _checked(library().kelp_store_parts(base, *arrays, len(offsets)))
    return bad


def drops() -> bool:
    """Whether :func:`drop_lines` does anything on this CPU; the library must be there."""
    return bool(library().kelp_can_drop())


def drop_lines(base: int, offsets: np.ndarray) -> np.ndarray:
    """Have this machine's caches write back and forget lines at address `base` + offsets,
    uint64[n]: the next loads of them are the memory's own answers. bool[n] of the lines that could
    not be reached."""
    bad = np.zeros(len(offsets), bool)
    _checked(library().kelp_drop(base, offsets.ctypes.data, bad.ctypes.data, len(offsets)))
    return bad


def load_lines(base: int, offsets: np.ndarray, lines: np.ndarray) -> np.ndarray:
    """Read uint8[n, 64] from address `base` + offsets; bool[n] of the lines that could not be
    reached, whose bytes are then undefined."""
    bad = np.zeros(len(offsets), bool)
    _checked(library().kelp_load(*_load_arguments(base, offsets, lines, bad)))
    return bad


def load_spans(base: int, offsets: np.ndarray, counts: np.ndarray, lines: np.ndarray) -> bool:
    """Read spans one after another into uint8[n, 64]: counts, int64[spans] lines each, from address
    `base` + offsets, uint64[spans], on. Whether all could be reached; else `lines` is undefined."""
    arrays = (array.ctypes.data for array in (offsets, counts, lines))
    return bool(_checked(library().kelp_load_spans(base, *arrays, len(offsets))))


def reader(base: int, offsets: np.ndarray, lines: np.ndarray) -> Callable[[], bool]:
    """:func:`load_lines`, to be made again and again from and into the same arrays: a call says
    whether all lines could be reached."""
    arrays = base, offsets, lines, np.zeros(len(offsets), bool)
    load, arguments = library().kelp_load, _load_arguments(*arrays)

    def read(_arrays=arrays) -> bool:  # held for as long as their addresses are
        return not _checked(load(*arguments))

    return read


def _load_arguments(base, offsets, lines, bad):
    return base, offsets.ctypes.data, lines.ctypes.data, bad.ctypes.data, len(offsets)


def _checked(result: int) -> int:
    if result < 0:
        raise OSError("the process refuses a handler for SIGBUS")
    return result

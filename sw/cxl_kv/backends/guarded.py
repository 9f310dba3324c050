# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Copies in and out of mapped memory that may be gone: where a plain move would end the process
with SIGBUS, these say which line it was.

Where `cxl_kv.native` was built, its loads and stores are this process's own, a line at a time, and
SIGBUS is caught. Otherwise the kernel does the move (`process_vm_readv` on this very process), so
that a page that cannot be reached is an error code: it finds pages that were truncated away,
unplugged, or known to be bad (hwpoison), promises no width, and a load that *discovers* an
uncorrectable error inside the kernel's own copy may still be fatal to the machine.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable

import numpy as np

from .. import native
from ..errors import TransportError

__all__ = ["move", "read_spans", "reader"]

_PAGE = 4096
_MOST = 1024  #: IOV_MAX
_IOVEC = np.dtype([("base", np.uint64), ("length", np.uint64)])

_libc = ctypes.CDLL(None, use_errno=True)
for _name in ("process_vm_readv", "process_vm_writev"):
    getattr(_libc, _name).restype = ctypes.c_ssize_t
    getattr(_libc, _name).argtypes = [
        ctypes.c_int,
        ctypes.c_void_p,
        ctypes.c_ulong,
        ctypes.c_void_p,
        ctypes.c_ulong,
        ctypes.c_ulong,
    ]


def move(base: int, offsets: np.ndarray, buffer: np.ndarray, *, write: bool) -> np.ndarray:
    """Move lines between mapped memory and a buffer.

    Parameters
    ----------
    base : int
        Address of the mapping.
    offsets : uint64[n]
        Of each line from `base`.
    buffer : uint8[n, 64]
        Contiguous; source of a write, destination of a read.

    Returns
    -------
    bool[n]
        Lines that could not be reached; of their bytes nothing is known after a read.
    """
    if native.library() is not None:
        offsets, lines = np.ascontiguousarray(offsets, np.uint64), np.ascontiguousarray(buffer)
        return (
            native.store_lines(base, offsets, lines)
            if write
            else native.load_lines(base, offsets, buffer)
        )
    return _by_kernel(base, offsets, buffer, write=write)


def read_spans(base: int, offsets: np.ndarray, counts: np.ndarray, buffer: np.ndarray) -> bool:
    """Read spans of lines, one after another, into a buffer of as many.

    Parameters
    ----------
    base : int
        Address of the mapping.
    offsets : uint64[spans]
        Of each span's first line from `base`.
    counts : int64[spans]
        Lines of each.
    buffer : uint8[n, 64]

    Returns
    -------
    bool
        Whether all could be reached; otherwise `move` says which could not.
    """
    if native.library() is not None:
        return native.load_spans(base, offsets, counts, buffer)
    at = 0
    for first in range(0, len(offsets), _MOST):
        remote = _remote(base, offsets[first : first + _MOST], 64 * counts[first : first + _MOST])
        size = int(remote["length"].sum())
        local = _local(buffer, at, size)
        done = _libc.process_vm_readv(
            os.getpid(), local.ctypes.data, 1, remote.ctypes.data, len(remote), 0
        )
        if _checked(done) < size:
            return False
        at += size
    return True


def reader(base: int, offsets: np.ndarray, buffer: np.ndarray) -> Callable[[], bool]:
    """A read of the same lines into the same buffer, as of :func:`move`, to be made again and
    again: a call says whether all of them could be reached."""
    if native.library() is not None:
        return native.reader(base, offsets, buffer)
    remote, local = (
        _remote(base, offsets, np.full(len(offsets), 64)),
        _local(buffer, 0, buffer.size),
    )
    arguments = os.getpid(), local.ctypes.data, 1, remote.ctypes.data, len(remote), 0

    def read(_arrays=(remote, local, buffer)) -> bool:  # held for as long as their addresses are
        return _checked(_libc.process_vm_readv(*arguments)) == buffer.size

    return read


def _by_kernel(base: int, offsets: np.ndarray, buffer: np.ndarray, *, write: bool) -> np.ndarray:
    n = len(offsets)
    bad = np.zeros(n, bool)
    function = _libc.process_vm_writev if write else _libc.process_vm_readv
    # first lines of runs
    edges = np.flatnonzero(np.append(True, offsets[1:] != offsets[:-1] + np.uint64(64)))
    at = 0
    while at < n:
        # As many runs as one call takes, the first of them from line `at` on.
        first = int(np.searchsorted(edges, at, side="right")) - 1
        starts = edges[first : first + _MOST].copy()
        starts[0] = at
        end = int(edges[first + _MOST]) if first + _MOST < len(edges) else n
        remote = _remote(base, offsets[starts], np.diff(np.append(starts, end)) * 64)
        local = _local(buffer, 64 * at, 64 * (end - at))
        done = function(os.getpid(), local.ctypes.data, 1, remote.ctypes.data, len(remote), 0)
        at += _checked(done) // 64
        if at < end:
            # This line's page cannot be reached: go on behind it.
            page = offsets[at] // np.uint64(_PAGE)
            while at < end and offsets[at] // np.uint64(_PAGE) == page:
                bad[at] = True
                at += 1
    return bad


def _remote(base: int, offsets: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    out = np.empty(len(offsets), _IOVEC)
    out["base"], out["length"] = offsets + np.uint64(base), lengths
    return out


def _local(buffer: np.ndarray, first: int, length: int) -> np.ndarray:
    return np.array([(buffer.ctypes.data + first, length)], _IOVEC)


def _checked(done: int) -> int:
    """Bytes that the kernel moved; those it could not reach are none of them."""
    if done < 0 and ctypes.get_errno() != errno.EFAULT:
        raise TransportError(
            f"the kernel refuses to move mapped memory: {os.strerror(ctypes.get_errno())}"
        )
    return max(0, done)

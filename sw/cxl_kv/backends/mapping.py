# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Shared mappings at addresses of whole 2 MiB, so that the kernel can map them by large pages: what
Python's own mmap cannot ask for."""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref

import numpy as np

from ..errors import TransportError
from ..process import Home

__all__ = ["ALIGNMENT", "mapped"]

ALIGNMENT = 1 << 21  #: of a mapping's address and length

_FIXED, _NORESERVE, _FAILED = 0x10, 0x4000, ctypes.c_void_p(-1).value
_DONTFORK = 10  #: of madvise
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def _mmap(*arguments) -> int:
    address = _libc.mmap(*arguments)
    if address == _FAILED:
        raise TransportError(
            f"the kernel refuses to map {arguments[1]} bytes: {os.strerror(ctypes.get_errno())}"
        )
    return address


def mapped(file: int, size: int) -> np.ndarray:
    """The first `size` bytes of an open file or device, a multiple of ALIGNMENT, readable and
    writable, MAP_SHARED: uint8[size] at an address that is one, too.

    The mapping ends with the last array that looks at it, and a child does not have it: there, an
    array that looks at it ends the process with SIGSEGV. TransportError when the kernel refuses.
    """
    # Reserve more than is needed, and put the mapping where it is aligned.
    reserved = _mmap(
        None, size + ALIGNMENT, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE, -1, 0
    )
    base = -(-reserved // ALIGNMENT) * ALIGNMENT
    try:
        _mmap(base, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | _FIXED, file, 0)
        if _libc.madvise(base, size, _DONTFORK):
            raise TransportError(
                "the kernel refuses to keep the mapping from children: "
                + os.strerror(ctypes.get_errno())
            )
    except TransportError:
        _libc.munmap(reserved, size + ALIGNMENT)
        raise
    for first, last in ((reserved, base), (base + size, reserved + size + ALIGNMENT)):
        if first < last:
            _libc.munmap(first, last - first)
    memory = (ctypes.c_uint8 * size).from_address(base)
    weakref.finalize(memory, _unmap, Home(), base, size)
    return np.frombuffer(memory, np.uint8)


def _unmap(home: Home, base: int, size: int) -> None:
    if not home.left():  # in a child, something else may lie there
        _libc.munmap(base, size)

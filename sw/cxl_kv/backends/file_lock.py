# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Locks on bytes of a file that belong to the open file, not to the process (`F_OFD_SETLK`): they
end when the last descriptor of that `open` is closed, however its process ended, and mean the same
in every pid namespace."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import time

from ..errors import TransportError

__all__ = ["free", "take", "taken_by_another", "try_take"]

_FLOCK = "hhqqi0q"  # struct flock of a 64-bit Linux: type, whence, start, length, pid
_FIRST_PAUSE, _LONGEST_PAUSE = 20e-6, 2e-3  #: seconds between two tries


def _set(file: int, kind: int, first: int, command: int, length: int = 1) -> bytes:
    try:
        return fcntl.fcntl(file, command, struct.pack(_FLOCK, kind, os.SEEK_SET, first, length, 0))
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            raise BlockingIOError from None
        raise TransportError(f"the file cannot be locked: {error.strerror}") from None


def try_take(file: int, byte: int) -> bool:
    """Lock one byte against every other open file; whether it was to be had. Harmless where this
    open file has it."""
    try:
        _set(file, fcntl.F_WRLCK, byte, fcntl.F_OFD_SETLK)
    except BlockingIOError:
        return False
    return True


def take(file: int, byte: int, seconds: float) -> None:
    """Lock one byte, waiting for it; TransportError when another holds it that long."""
    deadline, pause = time.monotonic() + seconds, _FIRST_PAUSE
    while not try_take(file, byte):
        if time.monotonic() > deadline:
            raise TransportError(
                f"another process has held the lock for {seconds} s; is it stopped within a call?"
            )
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def free(file: int, byte: int) -> None:
    """Unlock one byte."""
    _set(file, fcntl.F_UNLCK, byte, fcntl.F_OFD_SETLK)


def taken_by_another(file: int, first: int, length: int = 1) -> bool:
    """Whether another open file has a lock on one of `length` bytes (0: all from `first` on)."""
    found = _set(file, fcntl.F_WRLCK, first, fcntl.F_OFD_GETLK, length)
    return struct.unpack(_FLOCK, found)[0] != fcntl.F_UNLCK

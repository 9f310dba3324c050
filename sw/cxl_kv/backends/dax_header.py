# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The header of mapped plain memory: who has which session, and which pages were ever written.

Who has a session is said by a lock on the open file (byte 1 + session of the file; byte 0 is the
header's). The mapping keeps the file open, so the lock lasts exactly as long as its holder can
store, in whatever container that runs. Each opening and closing counts up the session's generation
in the mapped memory; a process compares it with the one that it opened, and so learns that its
session was taken over. A take-over may end at any step: until its last one, the session is free.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import sys
import weakref
import zlib

import numpy as np

from kelp_spec.config import Config, digest_text
from kelp_spec.formats import LINE_BYTES

from ..errors import SessionLostError, TransportError
from ..process import Home, let_go_in_children
from . import file_lock
from .guarded import reader
from .mapping import ALIGNMENT

__all__ = ["Header", "header_bytes", "size_of"]

_LAYOUT = b"KELPDAX"  #: what a layout begins with, and then its version, a digit
_VERSION = b"2"
_MAGIC = int.from_bytes(_LAYOUT + _VERSION, "little")
_HEAD = 64  #: bytes before the table: magic, digest
#: One line for each session. `boot` and `node` say where the session's lock is to be seen.
_SESSION = np.dtype(
    [
        ("open", "<u8"),
        ("generation", "<u8"),
        ("boot", "<u8"),
        ("node", "<u8"),
        ("shape", "<u8"),
        ("formats", "<u8"),
        ("step", "<u8"),
        ("spare", "<u8"),
    ]
)
_HEADER_LOCK, _SESSION_LOCKS = 0, 1  #: bytes of the file
_LOCK_SECONDS = 60

assert _SESSION.itemsize == LINE_BYTES and sys.byteorder == "little"


def header_bytes(config: Config) -> int:
    """Bytes before the aperture, in whole 2 MiB."""
    return -(-_unused(config) // ALIGNMENT) * ALIGNMENT


def _unused(config: Config) -> int:
    """Where the header ends; the bytes from there to the aperture are zeros."""
    return _HEAD + config.sessions * _SESSION.itemsize + -(-config.page_words // 8)


class Header:
    """The header of one mapping, as one open file sees it.

    Owns the file: :meth:`close` closes it. In a child of the process it is closed at once, so that
    the sessions' locks end with the process that took them.

    Parameters
    ----------
    path : str
        For messages.
    file : int
    config : Config

    Attributes
    ----------
    file : int
        -1 once it is closed.
    """

    def __init__(self, path: str, file: int, config: Config):
        self.path, self.file, self.config = path, file, config
        self._home, self._depth = Home(), 0
        self._generations: dict[int, int] = {}  # of the sessions that were opened here
        status = os.fstat(file)
        self._file_is = status.st_dev, status.st_ino
        # A lock is seen by those who opened the same inode of a kernel that runs still.
        self._node = zlib.crc32(repr(self._file_is).encode()) | 1 << 32
        self._boot = _boot()
        let_go_in_children(self)
        # Of a device that nobody closed: its sessions are free when nobody has it any more.
        self._last = weakref.finalize(self, _close_ours, self._home, file, self._file_is)
        self._last.atexit = False

    def map(self, memory: np.ndarray, *, create: bool, cut: bool) -> None:
        """Take the mapping; the header's lock is held. TransportError where there is no layout of
        this configuration; `create` makes one where there is none. Of a layout that was `cut` short
        and is whole again, what any session held may read as zeros: all of them are lost."""
        c = self.config
        base, last_of_header = memory.ctypes.data, header_bytes(c) - LINE_BYTES
        self._head = memory[:_HEAD].view("<u8")
        self._table = memory[_HEAD : _HEAD + c.sessions * _SESSION.itemsize].view(_SESSION)
        self._written = memory[_HEAD + self._table.nbytes :][: -(-c.page_words // 8)]
        # Of each session: a copy of its entry, and what reads it anew. The header is read as plain
        # memory elsewhere, so its last line is read with it, to know that it is there.
        self._entries = []
        for session in range(c.sessions):
            lines = np.empty((2, LINE_BYTES), np.uint8)
            offsets = np.array([_HEAD + session * LINE_BYTES, last_of_header], np.uint64)
            self._entries.append((lines[0].view(_SESSION), reader(base, offsets, lines)))
        if not self._is_layout(self._head.tobytes()):
            if not create:
                raise TransportError(
                    f"{self.path} holds no KELP layout; ?create=1 lays out a device (what is there "
                    + "is lost) or an empty file"
                )
            if file_lock.taken_by_another(self.file, _SESSION_LOCKS, 0):
                raise TransportError(
                    f"{self.path} holds no KELP layout, and yet another process has a session there"
                )
            self._table[:] = 0
            # So that no process takes a session of this layout for one of a former layout.
            self._table["generation"] = [secrets.randbits(62) for _ in range(c.sessions)]
            self._written[:] = 0
            self._head[1], self._head[0] = int(c.digest, 16), _MAGIC
        for session in range(c.sessions):
            self._same_node(self._table[session])
        if cut:
            self._table["open"] = 0
            for entry in self._table:
                entry["generation"] = _next(entry)
            self._written[:] = 0

    def check_ours(self, *, whole: bool) -> None:
        """TransportError where a regular file is not this configuration's to lay out or to make
        longer: it begins as another layout, or holds something where no layout has anything.
        `whole`: it is as long as a layout."""
        c, start = self.config, os.pread(self.file, header_bytes(self.config), 0)
        if self._is_layout(start):
            return
        # Of a layout whose first bytes were cleared, so that it is laid out anew, the table stays.
        if start[:8].strip(b"\0") or start[_unused(c) if whole else 8 :].strip(b"\0"):
            raise TransportError(
                f"{self.path} holds something else than a KELP layout, and is left alone; name "
                + "another file, or remove it"
            )

    def check_layout(self) -> None:
        """TransportError where a regular file is a layout that this one is not, whatever its
        size."""
        self._is_layout(os.pread(self.file, _HEAD, 0))

    def _is_layout(self, start: bytes) -> bool:
        """Whether what begins so is a layout of ours. TransportError of one of another version or
        configuration, which nothing is read from and nothing laid out over."""
        if not start.startswith(_LAYOUT):
            return False
        version = start[len(_LAYOUT) : len(_LAYOUT) + 1]
        if version != _VERSION:
            raise TransportError(
                f"{self.path} is laid out in version {version.decode('ascii', 'backslashreplace')} "
                + f"of the layout, and this cxl_kv has version {_VERSION.decode()}; use the "
                + "cxl_kv that laid it out, or remove the file (of a device, clear its first 64 "
                + "bytes)"
            )
        digest = int.from_bytes(start[8:16], "little")
        if digest != int(self.config.digest, 16):
            raise TransportError(
                f"{self.path} was laid out under another configuration, with digest "
                + f"{digest_text(digest)}, and {self.config.name!r} has digest "
                + f"{self.config.digest}; name that one, or remove the file (of a device, clear "
                + "its first 64 bytes)"
            )
        return True

    def _same_node(self, entry):
        if entry["open"] and int(entry["boot"]) == self._boot and int(entry["node"]) != self._node:
            raise TransportError(
                f"{self.path}: a session was opened through another device node or copy, whose "
                + "locks are not to be seen here; bind-mount one node wherever it is used. "
                + "If nobody has it open any more, clear its first 64 bytes and use ?create=1"
            )

    # - locks --------------------------------------------------------------------------------------
    @contextlib.contextmanager
    def exclusive(self):
        """No other process opens or closes a session, or marks a page as written. Reentrant; the
        core's lock is held."""
        if not self._depth:
            self._own_file()
        self._depth += 1
        try:
            if self._depth == 1:
                file_lock.take(self.file, _HEADER_LOCK, _LOCK_SECONDS)
            yield
        finally:
            self._depth -= 1
            if not self._depth and self.file >= 0:
                try:
                    file_lock.free(self.file, _HEADER_LOCK)
                except KeyboardInterrupt:  # before it was free: other processes wait for it
                    file_lock.free(self.file, _HEADER_LOCK)
                    raise

    def _has_file(self) -> bool:
        """Whether the descriptor is still the one that was opened."""
        return _is_file(self.file, self._file_is)

    def _own_file(self):
        """TransportError unless the descriptor is still the one that was opened."""
        self._home.check()
        if not self._has_file():
            self.file = -1
            raise TransportError(
                f"{self.path}: its file was closed behind this library's back, and no session or "
                + "page can be taken any more; open the device again"
            )

    # - sessions -----------------------------------------------------------------------------------
    def mine(self, session: int) -> np.void | None:
        """The session's entry, None when it was not opened here.

        Raises
        ------
        SessionLostError
            It was opened here, and is another's now.
        TransportError
            The header cannot be reached: the file was truncated or the device unplugged.
        """
        self._home.check()
        generation = self._generations.get(session)
        if generation is None:
            return None
        entry = self._entry(session)
        if not entry["open"] or int(entry["generation"]) != generation:
            raise SessionLostError(
                "another process has taken the session over; what it held is lost", session=session
            )
        return entry

    def check(self, session: int) -> None:
        """SessionLostError when the session was lost while a batch was under way."""
        entry = self._entry(session)
        if not entry["open"] or int(entry["generation"]) != self._generations.get(session):
            raise SessionLostError(
                "another process took the session over during this call; what it held is lost, and "
                + "so may be what was stored",
                session=session,
            )

    def _entry(self, session: int) -> np.void:
        """As it is now; the next call overwrites what this one has returned."""
        entry, read = self._entries[session]
        if not read():
            raise TransportError(
                f"{self.path}: the memory is gone (SIGBUS); the file was truncated or the "
                + "device unplugged"
            )
        return entry[0]

    def shape(self, session: int) -> int:
        """The session's descriptor, as it was opened."""
        return int(self._table[session]["shape"])

    def step(self, session: int) -> int:
        """Of a session that was opened here; 0 of any other."""
        return int(self._table[session]["step"]) if session in self._generations else 0

    def advance(self, session: int, steps: int) -> None:
        self._table[session]["step"] = self.step(session) + steps & 0xFFFFFF

    def taken(self, session: int) -> bool:
        """Whether a process has the session, this one or another."""
        self._own_file()
        with contextlib.suppress(SessionLostError):
            if self.mine(session) is not None:
                return True
        return file_lock.taken_by_another(self.file, _SESSION_LOCKS + session)

    def claim(self, session: int, shape: int, formats: int) -> bool:
        """Open a session that nobody has, emptied; whether it was to be had. `exclusive` is
        held."""
        if self.taken(session) or not file_lock.try_take(self.file, _SESSION_LOCKS + session):
            return False
        try:
            self._entry(session)  # the memory is there
            entry = self._table[session]
            self._same_node(entry)
            # Whoever had it learns of it before anything else changes.
            generation = _next(entry)
            entry["open"], entry["generation"] = 0, generation
            self.forget(session)
            entry["boot"], entry["node"], entry["step"] = self._boot, self._node, 0
            entry["shape"], entry["formats"] = shape, formats
            entry["open"] = 1
        except BaseException:
            file_lock.free(self.file, _SESSION_LOCKS + session)
            raise
        self._generations[session] = generation
        return True

    def give_up(self, session: int) -> None:
        """Close a session that was opened here; `exclusive` is held. Of one that was lost, or whose
        memory is gone, nothing is touched but this process's lock: should the memory come back, the
        session is that of a process that is gone."""
        try:
            self.mine(session)
        except (SessionLostError, TransportError):
            pass
        else:
            self.forget(session)
            entry = self._table[session]
            entry["open"] = 0
            entry["generation"] = _next(entry)
        self._generations.pop(session, None)
        if self.file >= 0:
            file_lock.free(self.file, _SESSION_LOCKS + session)

    def opened(self) -> list[int]:
        """Sessions that were opened here and not closed."""
        return sorted(self._generations)

    # - pages --------------------------------------------------------------------------------------
    def were_written(self, numbers: np.ndarray) -> np.ndarray:
        """bool[n] of pages, by their numbers."""
        return (self._written[numbers >> 3] >> (numbers & 7).astype(np.uint8) & 1).astype(bool)

    def mark_written(self, numbers: np.ndarray) -> None:
        if len(numbers):
            # Bytes of the table may hold pages of two processes' sessions.
            with self.exclusive():
                np.bitwise_or.at(self._written, numbers >> 3, (1 << (numbers & 7)).astype(np.uint8))

    def forget(self, session: int) -> None:
        """No page of the session was ever written; `exclusive` is held."""
        c, written = self.config, self._written
        first, last = session * c.queues * c.pages, (session + 1) * c.queues * c.pages
        for number in range(first, min(last, first + -first % 8)):
            written[number >> 3] &= 0xFF ^ 1 << (number & 7)
        written[-(-first // 8) : last // 8] = 0
        for number in range(max(first, last // 8 * 8), last):
            written[number >> 3] &= 0xFF ^ 1 << (number & 7)

    # - end ----------------------------------------------------------------------------------------
    def close(self) -> None:
        """Sessions that were opened here are closed, then the file."""
        with contextlib.suppress(TransportError):  # where there is nothing left to tidy
            self._own_file()
            with self.exclusive():
                for session in self.opened():
                    self.give_up(session)
        self.let_go()

    def let_go(self) -> None:
        """Close this process's descriptor of the file."""
        self._last.detach()
        has_file, file, self.file = self._has_file(), self.file, -1
        if has_file:
            os.close(file)
        self._head = self._table = self._written = self._entries = None


def _is_file(file: int, inode: tuple[int, int]) -> bool:
    try:
        status = os.fstat(file)
    except OSError:
        return False
    return (status.st_dev, status.st_ino) == inode


def _close_ours(home: Home, file: int, inode: tuple[int, int]) -> None:
    if not home.left() and _is_file(file, inode):
        os.close(file)


def _boot() -> int:
    """Of this run of the kernel; 0 where it does not tell."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as text:
            return zlib.crc32(text.read().encode()) | 1 << 32
    except OSError:
        return 0


def size_of(file: int) -> int:
    """Bytes of a regular file or a devdax device; 0 of what is neither."""
    status = os.fstat(file)
    if stat.S_ISCHR(status.st_mode):
        node = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
        try:
            with open(f"/sys/dev/char/{node}/size", encoding="ascii") as size:
                return int(size.read())
        except (FileNotFoundError, ValueError):
            return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


def _next(entry) -> int:
    """The generation after an entry's; whatever stood there, it fits the field."""
    return (int(entry["generation"]) + 1) % (1 << 64)

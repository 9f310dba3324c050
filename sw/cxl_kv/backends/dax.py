# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""`dax:/path` — a devdax device or a file (as in /dev/shm), mapped shared as plain memory: no
tracker, no formats but raw16, no hints.

What lies there: a header of whole 2 MiB (magic and digest, a table of sessions, one bit per page
that says whether it was ever written), then the KV aperture of the configuration. Contents outlive
the process; a session does not: one whose process is gone is closed by the next that needs its
place. Several processes share one mapping; `flock` keeps them apart while they open and close
sessions.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import secrets
import stat
import sys

import numpy as np

from kelp_spec.address import HINT_BYTES, REGISTER_BYTES, Region
from kelp_spec.config import Config
from kelp_spec.formats import LINE_BYTES, Format
from kelp_spec.registers import SessionCommand

from ..errors import BusError, DeviceFullError, TransportError, UnsupportedError
from ..registers import unpack
from ..transport import ALL_BYTES, Core, Loaded, Status
from .guarded import move
from .mapping import ALIGNMENT, mapped
from .window import RegisterWindow, session_command

__all__ = ["ALIGNMENT", "DaxCore", "mapped_bytes"]

_MAGIC = int.from_bytes(b"KELPDAX1", "little")
_SESSION = np.dtype(
    [
        ("open", "<u8"),
        ("process", "<u8"),
        ("started", "<u8"),
        ("token", "<u8"),
        ("shape", "<u8"),
        ("formats", "<u8"),
        ("step", "<u8"),
        ("spare", "<u8"),
    ]
)
_HEAD = 64  #: bytes before the table: magic, digest


def _header_bytes(config: Config) -> int:
    return (
        -(-(_HEAD + config.sessions * _SESSION.itemsize + -(-config.page_words // 8)) // ALIGNMENT)
        * ALIGNMENT
    )


def mapped_bytes(config: Config) -> int:
    """Bytes that a device or file must have: header and aperture, in whole 2 MiB."""
    return _header_bytes(config) + -(-(1 << config.aperture_bits) // ALIGNMENT) * ALIGNMENT


class DaxCore(Core):
    """One mapping.

    Parameters
    ----------
    path : str
    config : Config
        Says how the memory is cut; what was laid out under another is refused.
    create : bool
        Make the file where there is none, or lay a device out anew.
    """

    formats = frozenset({Format.RAW16})
    hints = False
    persistent = True

    def __init__(self, path: str, config: Config, *, create: bool = False):
        super().__init__()
        self.config, self.path = config, path
        size = mapped_bytes(config)
        try:
            self._file = os.open(
                path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o600
            )
        except OSError as error:
            raise TransportError(
                f"{path}: {error.strerror}" + ("" if create else "; ?create=1 makes a file")
            ) from None
        try:
            has = _size(self._file)
            if has < size and create and stat.S_ISREG(os.fstat(self._file).st_mode):
                self._make_room(size)
                has = size
            if has < size:
                raise TransportError(
                    f"{path} has {has} bytes; configuration {config.name!r} needs {size} "
                    + "(header and aperture, in whole 2 MiB)"
                )
            self._bytes = mapped(self._file, size)
        except BaseException:
            os.close(self._file)
            raise
        self._base = self._bytes.ctypes.data
        self._kv, header = _header_bytes(config), self._bytes
        self._last_of_header = np.array([self._kv - LINE_BYTES], np.uint64)
        self._head = header[:_HEAD].view("<u8")
        self._table = header[_HEAD : _HEAD + config.sessions * _SESSION.itemsize].view(_SESSION)
        self._written_bits = header[_HEAD + self._table.nbytes :][: -(-config.page_words // 8)]
        self._token = secrets.randbits(63) | 1
        in_line = 6 + config.line_bits
        self._queue_mask = (1 << config.queue_bits) - 1
        self._shifts = (
            in_line,
            in_line + config.page_bits,
            in_line + config.page_bits + config.queue_bits,
            config.pages - 1,
            config.page_lines - 1,
            config.half_lines - 1,
        )
        self.window = RegisterWindow(
            config,
            command=self._command,
            read=self._read_register,
            written=lambda name, value: None,
            owner=self._owner,
        )
        self._shape_register = self.window.registers.by_name["s0_shape"]
        with self.exclusive():
            self._check_layout(create)

    def _make_room(self, size):
        """All of the file's memory at once: a hole that finds no room later would be a SIGBUS."""
        had, free = os.fstat(self._file), os.fstatvfs(self._file)
        try:
            if free.f_bavail * free.f_frsize < size - had.st_blocks * 512:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.posix_fallocate(self._file, 0, size)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
                raise
            os.ftruncate(self._file, had.st_size)
            raise DeviceFullError(
                f"{self.path}: no room for {size} bytes ({error.strerror}); free some, or "
                + "name a smaller configuration"
            ) from None

    def _check_layout(self, create):
        digest = int(self.config.digest, 16)
        if int(self._head[0]) != _MAGIC:
            if not create:
                self.close()
                raise TransportError(
                    f"{self.path} holds no KELP layout; ?create=1 lays it out (what is there "
                    + "is lost)"
                )
            self._table[:] = 0
            self._written_bits[:] = 0
            self._head[1], self._head[0] = digest, _MAGIC
        elif int(self._head[1]) != digest:
            self.close()
            raise TransportError(
                f"{self.path} was laid out under another configuration than "
                + f"{self.config.name!r}; name that one, or remove the file"
            )

    @contextlib.contextmanager
    def exclusive(self):
        with self.lock:
            fcntl.flock(self._file, fcntl.LOCK_EX)
            try:
                yield
            finally:
                if self._file >= 0:
                    fcntl.flock(self._file, fcntl.LOCK_UN)

    def _header_there(self):
        """The header is read as plain memory, so it must be known to be there."""
        if move(
            self._base, self._last_of_header, np.empty((1, LINE_BYTES), np.uint8), write=False
        ).any():
            raise TransportError(
                f"{self.path}: the memory is gone (SIGBUS); the file was truncated or the "
                + "device unplugged"
            )

    def _move(self, offsets, buffer, *, write):
        return move(self._base + self._kv, offsets, buffer, write=write)

    # - loads and stores ---------------------------------------------------------------------------
    def _judge(self, addresses, ld_id):
        """Region and offset, and of each line: whether this process may touch it, and its page's
        number."""
        c = self.config
        self._header_there()
        region, offset = (
            addresses >> np.uint64(c.aperture_bits),
            addresses & np.uint64((1 << c.aperture_bits) - 1),
        )
        x = (offset >> np.uint64(6)).astype(np.int64)
        line, x = x & c.page_lines - 1, x >> c.line_bits
        page, x = x & c.pages - 1, x >> c.page_bits
        queue, session = x & (1 << c.queue_bits) - 1, x >> c.queue_bits
        kv = (region == Region.KV) & (session < c.sessions) & (queue < c.queues)
        allowed = kv.copy()
        for s in np.unique(session[kv]).tolist():
            entry = self._table[s]
            mine = kv & (session == s)
            shape = unpack(self._shape_register, int(entry["shape"]))
            half = line >= c.half_lines
            inside = (
                (queue < shape["layers"] * shape["kv_heads"])
                & (page < shape["used_pages"])
                & ((line & c.half_lines - 1) < shape["used_lines"])
                & ~(half & bool(shape["k_only"]))
            )
            allowed[mine & ~(inside & (self._mine(entry) and shape["owner"] == ld_id))] = False
        number = (session * c.queues + queue) * c.pages + page
        return region, offset, kv, allowed, np.where(kv, number, 0)

    def _pages_of(self, addresses, ld_id) -> np.ndarray | None:
        """The usual case of :meth:`_judge`, quickly: page numbers of lines that are all of one
        session and open to it; None where it may be otherwise."""
        self._header_there()
        page_shift, queue_shift, session_shift, page_mask, line_mask, half_mask = self._shifts
        if not len(addresses):
            return None
        session = int(addresses[0]) >> session_shift
        if (
            session >= self.config.sessions
            or int(addresses.min()) >> session_shift != session
            or int(addresses.max()) >> session_shift != session
        ):
            return None
        entry = self._table[session]
        layers, kv_heads, used_pages, used_lines, k_only, owner = _shape_fields(
            int(entry["shape"]), self._shape_register
        )
        if owner != ld_id or not self._mine(entry):
            return None
        x = addresses.view(np.int64)
        line, number = x >> 6 & line_mask, x >> page_shift
        highest = int((number & page_mask).max())
        if (
            int((line & half_mask).max()) >= used_lines
            or k_only
            and int(line.max()) > half_mask
            or highest >= used_pages
            or (int(addresses.max()) >> queue_shift) & self._queue_mask >= layers * kv_heads
        ):
            return None
        if self._queue_mask + 1 != self.config.queues:
            number = (
                number - session * (self._queue_mask + 1 - self.config.queues) * self.config.pages
            )
        return number

    def _were_written(self, numbers) -> np.ndarray:
        return (self._written_bits[numbers >> 3] >> (numbers & 7).astype(np.uint8) & 1).astype(bool)

    def load(self, addresses: np.ndarray, ld_id: int) -> Loaded:
        number = self._pages_of(addresses, ld_id)
        if number is not None and self._were_written(number).all():
            lines, status = (
                np.empty((len(addresses), LINE_BYTES), np.uint8),
                np.zeros(len(addresses), np.uint8),
            )
            bad = self._move(addresses, lines, write=False)
            if bad.any():
                lines[bad], status[bad] = 0, Status.POISON
            return Loaded(lines, status)
        region, offset, _, allowed, number = self._judge(addresses, ld_id)
        lines, status = (
            np.zeros((len(addresses), LINE_BYTES), np.uint8),
            np.zeros(len(addresses), np.uint8),
        )
        there = allowed & self._were_written(number)
        if there.any():
            which = np.flatnonzero(there)
            got = np.empty((len(which), LINE_BYTES), np.uint8)
            bad = self._move(offset[which], got, write=False)
            lines[which] = got
            lines[which[bad]], status[which[bad]] = 0, Status.POISON
        for i in np.flatnonzero(~allowed).tolist():
            if region[i] == Region.REGISTER and offset[i] < REGISTER_BYTES:
                lines[i] = np.frombuffer(
                    self.window.load(int(offset[i]) // LINE_BYTES, ld_id), np.uint8
                )
            else:
                status[i] = Status.NOT_MAPPED
        return Loaded(lines, status)

    def store(
        self, addresses: np.ndarray, lines: np.ndarray, byte_enable: np.ndarray | None, ld_id: int
    ) -> None:
        number = self._pages_of(addresses, ld_id) if byte_enable is None else None
        if number is not None:
            fresh = self._empty_first(number, addresses)
            self._reach(addresses, self._move(addresses, np.ascontiguousarray(lines), write=True))
            self._mark_written(fresh)
            return
        region, offset, _, allowed, number = self._judge(addresses, ld_id)
        for i in np.flatnonzero(~allowed).tolist():
            if region[i] == Region.REGISTER and offset[i] < REGISTER_BYTES:
                self.window.store(
                    int(offset[i]) // LINE_BYTES,
                    lines[i].tobytes(),
                    ALL_BYTES if byte_enable is None else int(byte_enable[i]),
                    ld_id,
                )
            elif region[i] == Region.HINT and offset[i] < HINT_BYTES:
                raise UnsupportedError("plain memory takes no hints")
        which = np.flatnonzero(allowed)
        if not len(which):
            return
        whole = byte_enable is None or (byte_enable[which] == ALL_BYTES).all()
        fresh = self._empty_first(number[which], offset[which] if whole else None)
        data = np.ascontiguousarray(lines if len(which) == len(lines) else lines[which])
        if not whole:
            old = np.zeros_like(data)
            self._reach(offset[which], self._move(offset[which], old, write=False))
            keep = ~np.unpackbits(
                np.ascontiguousarray(byte_enable[which]).view(np.uint8).reshape(-1, 8),
                axis=1,
                bitorder="little",
            ).astype(bool)
            data = np.where(keep, old, data)
        self._reach(offset[which], self._move(offset[which], data, write=True))
        self._mark_written(fresh)

    def _reach(self, offsets, bad):
        if bad.any():
            raise BusError(
                "the memory behind this line is gone (SIGBUS); nothing is known about what it held"
            ).at(int(offsets[np.flatnonzero(bad)[0]]))

    def _empty_first(self, numbers, offsets) -> np.ndarray:
        """Of the pages `numbers` of a store's lines, those never written before. They are emptied
        of what lay there, but for pages of which the store's `offsets` (None: not even whole lines)
        are every line that the session may read."""
        c = self.config
        never = ~self._were_written(numbers)
        if not never.any():
            return numbers[:0]
        numbers = numbers[never]
        ascending = offsets is not None and (offsets[1:] > offsets[:-1]).all()
        if ascending:  # as np.unique would have it, and much quicker
            edges = np.flatnonzero(np.diff(numbers, prepend=-1))
            fresh, counts = numbers[edges], np.diff(edges, append=len(numbers))
        else:
            fresh, counts = np.unique(numbers, return_counts=True)
        session, queue, page = (
            fresh // c.pages // c.queues,
            fresh // c.pages % c.queues,
            fresh % c.pages,
        )
        partly = np.ones(len(fresh), bool)
        if ascending:
            partly = (
                counts < np.array([self._readable_lines(s) for s in range(c.sessions)])[session]
            )
        first = (
            (session[partly] << c.queue_bits | queue[partly]) << c.page_bits | page[partly]
        ) << c.line_bits + 6
        stale = (
            (first[:, None] + np.arange(0, c.page_lines * LINE_BYTES, LINE_BYTES))
            .reshape(-1)
            .astype(np.uint64)
        )
        if len(stale):
            self._reach(
                stale, self._move(stale, np.zeros((len(stale), LINE_BYTES), np.uint8), write=True)
            )
        return fresh

    def _readable_lines(self, session) -> int:
        """Lines of one page, by the session's descriptor."""
        shape = unpack(self._shape_register, int(self._table[session]["shape"]))
        return shape["used_lines"] * (1 if shape["k_only"] else 2)

    def _mark_written(self, fresh):
        if len(fresh):
            # Bytes of the table may hold pages of two processes' sessions.
            with self.exclusive():
                np.bitwise_or.at(
                    self._written_bits, fresh >> 3, (1 << (fresh & 7)).astype(np.uint8)
                )

    def view(self, offset: int, size: int) -> np.ndarray:
        c = self.config
        x = offset >> 6 + c.line_bits
        squeue = (x >> c.page_bits + c.queue_bits) * c.queues + (
            x >> c.page_bits & (1 << c.queue_bits) - 1
        )
        self._mark_written(
            self._empty_first(np.array([squeue * c.pages + (x & c.pages - 1)]), None)
        )
        return self._bytes[self._kv + offset :][:size]

    def _mine(self, entry) -> bool:
        """Whether this process opened the session."""
        return bool(entry["open"]) and int(entry["token"]) == self._token

    def _owner(self, session: int) -> int:
        entry = self._table[session]
        return (
            unpack(self._shape_register, int(entry["shape"]))["owner"] if self._mine(entry) else 0
        )

    # - registers and sessions ---------------------------------------------------------------------
    def _read_register(self, name: str, session: int | None) -> int:
        if name == "status":
            return 1 | 2
        if session is not None and name.endswith("_state"):
            entry = self._table[session]
            taken = bool(entry["open"]) and (self._mine(entry) or _alive(entry))
            return (
                int(taken)
                | self.window.refused[session] << 2
                | (int(entry["step"]) & 0xFFFFFF) << 8
            )
        return 0

    def _command(self, session: int, code: int, argument: int, ld_id: int) -> bool:
        command, entry = session_command(code), self._table[session]
        if command is SessionCommand.OPEN:
            shape, layouts = self.window.descriptor(session)
            taken = bool(entry["open"]) and _alive(entry)
            if (
                ld_id
                or taken
                or layouts is None
                or any(Format.RAW16 != fmt for x in layouts for fmt in (x.format_k, x.format_v))
            ):
                return False
            self._forget(session)
            values = self.window.values
            self._table[session] = (
                1,
                os.getpid(),
                _started(os.getpid()),
                self._token,
                values[f"s{session}_shape"],
                values[f"s{session}_formats"],
                0,
                0,
            )
            return True
        if not self._mine(entry):
            return False
        if command is SessionCommand.CLOSE:
            if ld_id:
                return False
            self._forget(session)
            self._table[session] = 0
        elif command is SessionCommand.ADVANCE:
            entry["step"] = int(entry["step"]) + argument & 0xFFFFFF
        else:
            # Policy means nothing to plain memory, and there are no page words.
            return command in (SessionCommand.APPLY_ALL, SessionCommand.APPLY_QUEUE)
        return True

    def _forget(self, session):
        """No page of the session was ever written."""
        c = self.config
        first, last = session * c.queues * c.pages, (session + 1) * c.queues * c.pages
        for number in range(first, min(last, first + -first % 8)):
            self._written_bits[number >> 3] &= 0xFF ^ 1 << (number & 7)
        self._written_bits[-(-first // 8) : last // 8] = 0
        for number in range(max(first, last // 8 * 8), last):
            self._written_bits[number >> 3] &= 0xFF ^ 1 << (number & 7)

    def close(self) -> None:
        if self._file < 0:
            return
        try:
            self._header_there()
            self._end_sessions()
        except TransportError:
            pass  # there is nothing left to tidy
        os.close(self._file)
        self._file = -1
        # The mapping goes with the last array that looks at it.
        self._head = self._table = self._written_bits = self._bytes = None

    def _end_sessions(self):
        for session in range(self.config.sessions):
            if int(self._head[0]) == _MAGIC and int(self._table[session]["token"]) == self._token:
                self._forget(session)
                self._table[session] = 0


@functools.lru_cache(64)
def _shape_fields(value: int, register) -> tuple[int, ...]:
    shape = unpack(register, value)
    return tuple(
        shape[name]
        for name in ("layers", "kv_heads", "used_pages", "used_lines", "k_only", "owner")
    )


def _size(file: int) -> int:
    """Bytes of a regular file or a devdax device."""
    status = os.fstat(file)
    if stat.S_ISCHR(status.st_mode):
        with open(
            f"/sys/dev/char/{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}/size",
            encoding="ascii",
        ) as size:
            return int(size.read())
    return status.st_size


def _started(process: int) -> int:
    """When a process began, in clock ticks since boot; 0 when it is gone. With its number it names
    one process, not its successor."""
    try:
        with open(f"/proc/{process}/stat", encoding="ascii", errors="replace") as text:
            return int(text.read().rpartition(")")[2].split()[19])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def _alive(entry) -> bool:
    return _started(int(entry["process"])) == int(entry["started"]) != 0


assert sys.byteorder == "little", "mapped memory is read as little-endian"

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""`dax:/path` — a devdax device or a file (as in /dev/shm), mapped shared as plain memory: no
tracker, no formats but raw16, no hints.

What lies there: a header of whole 2 MiB (`cxl_kv.backends.dax_header`), then the KV aperture of the
configuration. Contents outlive the process; a session does not: one whose process is gone is closed
by the next that needs its place. Several processes share one mapping. One that lost its session is
told so by the next load and the next store.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import stat
from typing import NamedTuple

import numpy as np

from kelp_spec.address import HINT_BYTES, REGISTER_BYTES, Region
from kelp_spec.config import Config
from kelp_spec.formats import LINE_BYTES, Format
from kelp_spec.registers import SessionCommand

from ..core import ALL_BYTES, Core, Loaded, Status
from ..errors import (
    BusError,
    DeviceFullError,
    NotMappedError,
    SessionClosedError,
    SessionLostError,
    TransportError,
    UnsupportedError,
)
from ..registers import unpack
from .dax_header import Header, header_bytes, size_of
from .guarded import move, read_spans
from .mapping import ALIGNMENT, mapped
from .window import RegisterWindow, session_command

__all__ = ["ALIGNMENT", "DaxCore", "mapped_bytes"]


def mapped_bytes(config: Config) -> int:
    """Bytes that a device or file must have: header and aperture, in whole 2 MiB."""
    return header_bytes(config) + -(-(1 << config.aperture_bits) // ALIGNMENT) * ALIGNMENT


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
        makes = create and not os.path.lexists(path)
        try:
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o600)
        except OSError as error:
            absent = error.errno == errno.ENOENT and path and not create
            raise TransportError(
                f"dax:{path}: {error.strerror}" + ("; ?create=1 makes a file" if absent else "")
            ) from None
        self.header = Header(path, file, config)
        try:
            with self.exclusive():
                makes = makes and not size_of(file)  # nor has another laid it out meanwhile
                try:
                    self._map(create)
                except BaseException:
                    if makes and _is_at(path, file):  # with all the room that was made
                        os.unlink(path)
                    raise
        except BaseException:
            self.header.let_go()
            raise
        in_line = 6 + config.line_bits
        self._shifts = (
            in_line,
            config.page_bits,
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
        self._shape_fields = functools.lru_cache(64)(self._fields_of_shape)

    def _map(self, create):
        """The header's lock is held: two processes may make the file."""
        size, file = mapped_bytes(self.config), self.header.file
        if not _is_at(self.path, file):  # whoever made it found no room
            raise TransportError(f"{self.path} was removed while it was opened; open it again")
        has = size_of(file)
        regular = stat.S_ISREG(os.fstat(file).st_mode)
        makes = create and regular
        if makes:
            self.header.check_ours(whole=has >= size)
        elif regular:  # first: of another layout another size is needed
            self.header.check_layout()
        cut = has < size
        holes = os.fstat(file).st_blocks * 512 < size
        if makes and (cut or holes):
            self._make_room(size)
            has = size_of(file)
        if has < size:
            raise TransportError(
                f"{self.path} has {has} bytes; configuration {self.config.name!r} needs {size} "
                + "(header and aperture, in whole 2 MiB)"
            )
        self._bytes = mapped(file, size)
        self._kv = header_bytes(self.config)
        self._aperture = self._bytes.ctypes.data + self._kv
        self.header.map(self._bytes, create=create, cut=cut)

    def _make_room(self, size):
        """All of the file's memory at once: a hole that finds no room later would be a SIGBUS."""
        file = self.header.file
        had, free = os.fstat(file), os.fstatvfs(file)
        try:
            if free.f_bavail * free.f_frsize < size - had.st_blocks * 512:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.posix_fallocate(file, 0, size)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
                raise
            os.ftruncate(file, had.st_size)
            raise DeviceFullError(
                f"{self.path}: no room for {size} bytes ({error.strerror}); free some, or "
                + "name a smaller configuration"
            ) from None

    @contextlib.contextmanager
    def exclusive(self):
        with self.lock, self.header.exclusive():
            yield

    def _move(self, offsets, buffer, *, write):
        return move(self._aperture, offsets, buffer, write=write)

    def _read_spans(self, offsets, counts, buffer):
        return read_spans(self._aperture, offsets, counts, buffer)

    # - loads and stores ---------------------------------------------------------------------------
    def _judge(self, addresses, ld_id):
        """Of each line: region, offset, session (−1 outside the KV map), whether this requester may
        touch it, and its page's number. SessionLostError where a session was lost."""
        c = self.config
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
            entry, of_s = self.header.mine(s), kv & (session == s)
            if entry is None:
                allowed[of_s] = False
                continue
            shape = unpack(self._shape_register, int(entry["shape"]))
            half = line >= c.half_lines
            inside = (
                (queue < shape["layers"] * shape["kv_heads"])
                & (page < shape["used_pages"])
                & ((line & c.half_lines - 1) < shape["used_lines"])
                & ~(half & bool(shape["k_only"]))
            )
            allowed[of_s & ~(inside & (shape["owner"] == ld_id))] = False
        number = (session * c.queues + queue) * c.pages + page
        return region, offset, np.where(kv, session, -1), allowed, np.where(kv, number, 0)

    def _check(self, sessions):
        for session in np.unique(sessions).tolist():
            self.header.check(session)

    def _fields_of_shape(self, value: int) -> tuple[int, ...]:
        """Of a descriptor: queues, used_pages, used_lines, k_only, owner."""
        shape = unpack(self._shape_register, value)
        names = ("used_pages", "used_lines", "k_only", "owner")
        return shape["layers"] * shape["kv_heads"], *(shape[name] for name in names)

    def _runs_of(self, addresses, ld_id) -> _Runs | None:
        """The usual case of :meth:`_judge`, quickly: lines that are all of one session and open to
        it; None where it may be otherwise."""
        if not len(addresses):
            return None
        page = addresses.view(np.int64) >> self._shifts[0]
        edges = (page[1:] != page[:-1]).nonzero()[0]
        starts = np.zeros(len(edges) + 1, np.int64)
        np.add(edges, 1, out=starts[1:])
        return self._open_runs(addresses, 1, page[starts], starts, ld_id)

    def _open_runs(self, addresses, counts, pages, starts, ld_id) -> _Runs | None:
        """Runs on ``pages``, numbered through all sessions, where they are all of one session and
        open to it, with ``counts`` lines from each of ``addresses`` on."""
        page_shift, page_bits, session_shift, page_mask, line_mask, half_mask = self._shifts
        session = int(addresses[0]) >> session_shift
        if session >= self.config.sessions:
            return None
        entry = self.header.mine(session)
        if entry is None:
            return None
        queues, used_pages, used_lines, k_only, owner = self._shape_fields(int(entry["shape"]))
        if owner != ld_id:
            return None
        numbers = pages - (session << session_shift - page_shift)
        # A negative one is a large one.
        if numbers.view(np.uint64).max() >= queues << page_bits:
            return None
        if used_pages <= page_mask and (numbers & page_mask).max() >= used_pages:
            return None
        if k_only or used_lines <= half_mask or isinstance(counts, np.ndarray):
            line = addresses.view(np.int64) >> 6
            if ((line & half_mask) + counts).max() > used_lines:
                return None
            if k_only and (line & line_mask).max() > half_mask:
                return None
        c = self.config
        return _Runs(session, numbers + session * c.queues * c.pages, starts)

    def load(self, addresses: np.ndarray, ld_id: int) -> Loaded:
        runs = self._runs_of(addresses, ld_id)
        if runs is not None and self.header.were_written(runs.numbers).all():
            lines, status = (
                np.empty((len(addresses), LINE_BYTES), np.uint8),
                np.zeros(len(addresses), np.uint8),
            )
            bad = self._move(addresses, lines, write=False)
            if bad.any():
                lines[bad], status[bad] = 0, Status.POISON
            self.header.check(runs.session)
            return Loaded(lines, status)
        region, offset, session, allowed, number = self._judge(addresses, ld_id)
        lines, status = (
            np.zeros((len(addresses), LINE_BYTES), np.uint8),
            np.zeros(len(addresses), np.uint8),
        )
        # Of those allowed only: the header is there then.
        there = allowed.copy()
        there[allowed] = self.header.were_written(number[allowed])
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
        self._check(session[allowed])
        return Loaded(lines, status)

    def load_spans(self, addresses: np.ndarray, counts: np.ndarray, ld_id: int):
        if not len(addresses) or counts.min() < 0:
            return None
        pages = addresses.view(np.int64) >> self._shifts[0]
        runs = self._open_runs(addresses, counts, pages, None, ld_id)
        if runs is None or not self.header.were_written(runs.numbers).all():
            return None
        lines = np.empty((int(counts.sum()), LINE_BYTES), np.uint8)
        if not self._read_spans(addresses, counts, lines):
            return None
        self.header.check(runs.session)
        return lines

    def store(
        self, addresses: np.ndarray, lines: np.ndarray, byte_enable: np.ndarray | None, ld_id: int
    ) -> None:
        runs = self._runs_of(addresses, ld_id) if byte_enable is None else None
        if runs is not None:
            fresh = runs.numbers[:0]
            if not self.header.were_written(runs.numbers).all():
                fresh = self._empty_first(runs.of_lines(len(addresses)), addresses)
            self._reach(addresses, self._move(addresses, np.ascontiguousarray(lines), write=True))
            self.header.mark_written(fresh)
            self.header.check(runs.session)
            return
        region, offset, session, allowed, number = self._judge(addresses, ld_id)
        self._refuse(region, offset, session, allowed, ld_id)
        for i in np.flatnonzero(~allowed).tolist():
            self.window.store(
                int(offset[i]) // LINE_BYTES,
                lines[i].tobytes(),
                ALL_BYTES if byte_enable is None else int(byte_enable[i]),
                ld_id,
            )
        which = np.flatnonzero(allowed)
        if not len(which):
            return
        whole = byte_enable is None or (byte_enable[which] == ALL_BYTES).all()
        fresh = self._empty_first(number[which], offset[which] if whole else None)
        data = np.ascontiguousarray(lines if len(which) == len(lines) else lines[which])
        if whole:
            self._reach(offset[which], self._move(offset[which], data, write=True))
        else:
            self._merge(offset[which], data, byte_enable[which])
        self.header.mark_written(fresh)
        self._check(session[which])

    def _merge(self, offsets, lines, enables):
        """The enabled bytes of lines into what lies there."""
        enabled = np.unpackbits(
            np.ascontiguousarray(enables).view(np.uint8).reshape(-1, 8), axis=1, bitorder="little"
        ).astype(bool)
        for part in _rounds(offsets):
            there = np.zeros((len(part), LINE_BYTES), np.uint8)
            self._reach(offsets[part], self._move(offsets[part], there, write=False))
            there = np.where(enabled[part], lines[part], there)
            self._reach(offsets[part], self._move(offsets[part], there, write=True))

    def _refuse(self, region, offset, session, allowed, ld_id):
        """An error for the first line of a store that goes nowhere: no event would tell."""
        register = (region == Region.REGISTER) & (offset < REGISTER_BYTES)
        for i in np.flatnonzero(~allowed & ~register)[:1].tolist():
            if region[i] == Region.HINT and offset[i] < HINT_BYTES:
                raise UnsupportedError("plain memory takes no hints")
            entry = self.header.mine(int(session[i])) if session[i] >= 0 else None
            if session[i] >= 0 and (
                entry is None or unpack(self._shape_register, int(entry["shape"]))["owner"] != ld_id
            ):
                raise SessionClosedError(
                    "the session is closed, or another owner's; nothing was stored",
                    session=int(session[i]),
                )
            raise NotMappedError(
                f"address {int(offset[i]):#x} of region {int(region[i])} is not this requester's; "
                + "nothing was stored",
                session=int(session[i]) if session[i] >= 0 else None,
            )

    def _reach(self, offsets, bad):
        if bad.any():
            raise BusError(
                "the memory behind this line is gone (SIGBUS); nothing is known about what it held"
            ).with_(address=int(offsets[np.flatnonzero(bad)[0]]))

    def _empty_first(self, numbers, offsets) -> np.ndarray:
        """Of the pages `numbers` of a store's lines, those never written before. They are emptied
        of what lay there, but for pages of which the store's `offsets` (None: not even whole lines)
        are every line that the session may read."""
        c = self.config
        never = ~self.header.were_written(numbers)
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
        shape = unpack(self._shape_register, self.header.shape(session))
        return shape["used_lines"] * (1 if shape["k_only"] else 2)

    def view(self, offset: int, size: int, pages: np.ndarray | None = None) -> np.ndarray:
        c = self.config
        session = offset >> 6 + c.line_bits + c.page_bits + c.queue_bits
        if self.header.mine(session) is None:
            raise SessionClosedError("the session is closed, or another owner's", session=session)
        x = np.array([offset]) if pages is None else pages.astype(np.int64)
        x = x >> 6 + c.line_bits
        squeue = session * c.queues + (x >> c.page_bits & (1 << c.queue_bits) - 1)
        self.header.mark_written(self._empty_first(squeue * c.pages + (x & c.pages - 1), None))
        return self._bytes[self._kv + offset :][:size]

    # - registers and sessions ---------------------------------------------------------------------
    def _owner(self, session: int) -> int:
        try:
            entry = self.header.mine(session)
        except SessionLostError:
            return 0
        return 0 if entry is None else unpack(self._shape_register, int(entry["shape"]))["owner"]

    def _read_register(self, name: str, session: int | None) -> int:
        if name == "status":
            return 1 | 2
        if session is not None and name.endswith("_state"):
            return (
                int(self.header.taken(session))
                | self.window.refused[session] << 2
                | self.header.step(session) << 8
            )
        return 0

    def _command(self, session: int, code: int, argument: int, ld_id: int) -> bool:
        command = session_command(code)
        if command is SessionCommand.OPEN:
            _, layouts = self.window.descriptor(session)
            if (
                ld_id
                or layouts is None
                or any(Format.RAW16 != fmt for x in layouts for fmt in (x.format_k, x.format_v))
            ):
                return False
            values = self.window.values
            return self.header.claim(
                session, values[f"s{session}_shape"], values[f"s{session}_formats"]
            )
        if session not in self.header.opened():
            return False
        if command is SessionCommand.CLOSE:
            if ld_id:
                return False
            self.header.give_up(session)
            self.window.forget(session)
        elif command is SessionCommand.ADVANCE:
            self.header.mine(session)
            self.header.advance(session, argument)
        elif command in (SessionCommand.APPLY_QUEUE, SessionCommand.PEEK):
            queues, *_ = self._shape_fields(int(self.header.mine(session)["shape"]))
            return self.window.fields(f"s{session}_queue")["queue"] < queues
        else:  # policy means nothing to plain memory, and there are no page words
            return command is SessionCommand.APPLY_ALL
        return True

    def close(self) -> None:
        if self.header.file < 0:
            return
        self.header.close()
        # The mapping goes with the last array that looks at it.
        self._bytes = None


def _rounds(offsets: np.ndarray) -> list[np.ndarray]:
    """Of at least one line: which are moved together, none twice, in the order of the store."""
    order = np.argsort(offsets, kind="stable")
    count, ordered = np.arange(len(offsets)), offsets[order]
    first = np.append(True, ordered[1:] != ordered[:-1])
    turn = np.empty(len(offsets), np.int64)
    turn[order] = count - np.maximum.accumulate(np.where(first, count, 0))
    return [np.flatnonzero(turn == i) for i in range(int(turn.max()) + 1)]


def _is_at(path: str, file: int) -> bool:
    """Whether an open file is what lies there."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.stat(path), os.fstat(file))
    return False


class _Runs(NamedTuple):
    """Lines of one session, in runs of one page each: the pages' numbers, and where they start."""

    session: int
    numbers: np.ndarray
    starts: np.ndarray

    def of_lines(self, count: int) -> np.ndarray:
        """Of each of the `count` lines, its page's number."""
        return np.repeat(self.numbers, np.diff(self.starts, append=count))

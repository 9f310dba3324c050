# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""How the library reaches a device: 64-byte loads and stores on the address map of
`kelp_spec.address`, and nothing else (spec §3).

A :class:`Transport` is one requester's way to a device: to a :class:`~cxl_kv.core.Core` of this
process (:class:`LocalTransport`), or across a socket (`cxl_kv.backends.remote`). A host with the
region mapped would implement `load` and `store` as moves.
"""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager
from numbers import Integral

import numpy as np

from kelp_spec.config import Config
from kelp_spec.formats import LINE_BYTES, Format

from .arguments import integer, listed, short
from .control import Control
from .core import Core, Loaded
from .errors import CxlKvError, NotMappedError, TransportError
from .process import Home, NotCopied

__all__ = [
    "LocalTransport",
    "Transport",
    "as_addresses",
    "as_enables",
    "as_lines",
]

_UINT64 = "whole numbers of 0 … 2^64 − 1"


def _whole(name: str, values) -> np.ndarray:
    """uint64[n] of an array, a list or one number; ValueError for what are no whole numbers of 0 …
    2^64 − 1."""
    if not isinstance(values, (np.ndarray, np.generic)):
        numbers = [values] if isinstance(values, Integral) else listed(name, values, _UINT64)
        values = np.array([integer(name, n, 0, (1 << 64) - 1) for n in numbers], np.uint64)
    elif values.dtype != np.uint64:
        if values.size and (values.dtype.kind not in "iu" or (values < 0).any()):
            raise ValueError(f"{name} = {short(values)} is refused; legal: {_UINT64}")
        values = values.astype(np.uint64)
    return np.ascontiguousarray(values).reshape(-1)


def as_addresses(addresses) -> np.ndarray:
    """uint64[n], each a multiple of 64; ValueError otherwise."""
    array = _whole("addresses", addresses)
    if int(np.bitwise_or.reduce(array)) % LINE_BYTES:
        raise ValueError(
            f"address {int(array[np.flatnonzero(array & np.uint64(63))[0]]):#x} is refused; "
            + f"legal: multiples of {LINE_BYTES}"
        )
    return array


def as_lines(lines, count: int) -> np.ndarray:
    """uint8[count, 64]; ValueError when there are other than `count` lines."""
    array = np.asarray(lines)
    if array.dtype.hasobject or array.nbytes != count * LINE_BYTES:
        raise ValueError(
            f"lines of dtype {array.dtype} and shape {list(array.shape)} for {count} addresses are "
            + f"refused; legal: {LINE_BYTES} bytes for each"
        )
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(-1, LINE_BYTES)


def as_enables(byte_enable, count: int) -> np.ndarray | None:
    """uint64[count], of one number all alike; None where every byte is stored. ValueError for
    others."""
    if byte_enable is None:
        return None
    array = _whole("byte_enable", byte_enable)
    if len(array) not in (1, count):
        raise ValueError(
            f"byte_enable of {len(array)} lines for {count} addresses is refused; legal: one for "
            + "each, or one for all"
        )
    return np.ascontiguousarray(np.broadcast_to(array, count))


class Transport(NotCopied, ABC):
    """One requester's loads and stores.

    Attributes
    ----------
    config : Config
        Sizes of the device.
    ld_id : int
        Who asks. 0 reaches the control registers; any other reaches its own sessions alone.
    formats, hints, persistent
        As of :class:`Core`.
    lock : RLock
        Held during every call. A session's calls take it behind the session's own.
    home : Home
        The process that may use it; in a child every call is a ForkedError, and `close` lets go
        without a word to the device.
    closed : bool
        Whether it was closed here.
    """

    _uncopied = (
        "a transport is of one process and is not copied or sent to another; open the device there "
        + "by its URL"
    )

    config: Config
    ld_id: int
    formats: frozenset[Format]
    hints: bool
    persistent: bool = False
    lock: threading.RLock
    home: Home
    closed: bool = False

    def check(self) -> None:
        """Raise what every call raises where the device is not to be asked any more: for calls that
        ask it nothing, which end no otherwise than others."""
        self.home.check()
        if self.closed:
            raise TransportError("the device was closed; open it again")

    @abstractmethod
    def load(self, addresses) -> Loaded:
        """Load lines, uint64[n] byte addresses; every earlier store of this transport is seen."""

    def load_spans(self, addresses: np.ndarray, counts: np.ndarray) -> np.ndarray | None:
        """Load spans of lines, one after another: counts, int64[spans], from addresses,
        uint64[spans], on. uint8[n, 64]; None where :meth:`load` is to be asked line by line: always
        but for mapped plain memory, and there where a line has no data."""
        return None

    @abstractmethod
    def store(self, addresses, lines, byte_enable=None) -> None:
        """Store uint8[n, 64]; `byte_enable` uint64[n], bit i for byte i, None for whole lines. Any
        later load sees it."""

    @abstractmethod
    def spec_read(self, addresses) -> None:
        """Speculative reads: the pages may be fetched, nothing is answered."""

    @abstractmethod
    def open_session(self, request: dict) -> int:
        """Open a session for this requester (`Control.begin_open` of `cxl_kv.control` says what
        a request holds); its number."""

    @abstractmethod
    def close_session(self, session: int) -> None:
        """Close it and wait until its pages are scrubbed. NotMappedError for what this transport
        has not opened, or has closed; but LD-ID 0 in the device's process closes any."""

    @abstractmethod
    def events(self) -> list[dict]:
        """Event records not seen by this transport yet; a requester other than LD-ID 0 gets those
        of its own sessions."""

    def exclusive(self) -> AbstractContextManager:
        """A stretch of accesses that no other requester's control sequence interrupts. For calls of
        this transport, and of `Device` and `Registers`: a call of a session that another thread
        uses waits for that thread, which may wait for the end of this stretch."""
        raise NotImplementedError

    def view(self, offset: int, size: int, pages: np.ndarray | None = None) -> np.ndarray | None:
        """As :meth:`Core.view`; None but for mapped plain memory of this process."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Sessions opened through this transport are closed, then the transport."""


class LocalTransport(Transport):
    """A requester in the core's own process. The last transport to close closes the core (`shared`
    keeps it)."""

    def __init__(self, core: Core, ld_id: int = 0, *, shared: bool = False):
        if not 0 <= ld_id <= 15:
            raise ValueError(f"ld_id = {short(ld_id)} is refused; legal: 0 … 15")
        self.core, self.ld_id, self.config, self.shared = core, ld_id, core.config, shared
        self.lock = core.lock
        self.formats, self.hints, self.persistent = core.formats, core.hints, core.persistent
        self.home, self._control = Home(), Control.of(core)
        # session → first event record that is about it under this owner
        self._owned: dict[int, int] = {}
        self._ending: set[int] = set()  # of these: told to close
        with core.lock:
            self._control.attach(self, self._owned)

    def load(self, addresses) -> Loaded:
        addresses = as_addresses(addresses)
        self.home.check()
        with self.core.lock:
            self.check()
            return self.core.load(addresses, self.ld_id)

    def load_spans(self, addresses, counts):
        self.home.check()
        with self.core.lock:
            self.check()
            return self.core.load_spans(addresses, counts, self.ld_id)

    def store(self, addresses, lines, byte_enable=None) -> None:
        addresses = as_addresses(addresses)
        lines = as_lines(lines, len(addresses))
        byte_enable = as_enables(byte_enable, len(addresses))
        self.home.check()
        with self.core.lock:
            self.check()
            self.core.store(addresses, lines, byte_enable, self.ld_id)

    def spec_read(self, addresses) -> None:
        addresses = as_addresses(addresses)
        self.home.check()
        with self.core.lock:
            self.check()
            self.core.spec_read(addresses, self.ld_id)

    def open_session(self, request: dict) -> int:
        opening, session = self.opening(request), None
        try:
            with self.exclusive():
                while session is None:
                    try:
                        next(opening)
                    except StopIteration as opened:
                        session = opened.value
            return session
        except BaseException:
            self._take_back(session)
            raise

    def opening(self, request: dict) -> Iterator[None]:
        """Open a session bit by bit: a generator that yields until it is open, and returns its
        number. It is owned from the first step on; where a later one fails, it is closed, and where
        the generator is left half-way, it is closed as any other that is owned."""
        session = None
        try:
            with self.exclusive():
                request = self._control.checked(request)
                first = self._control.mark(self)  # before OPEN: after it, nothing may fail
                session = self._control.begin_open(request, self.ld_id)
                self._owned[session] = first
            self._begun(session, request)
            budgets = self._control.budgets(session, request)
            while True:
                with self.exclusive():
                    if next(budgets, budgets) is budgets:
                        return session
                yield
        except GeneratorExit:
            raise
        except BaseException:
            self._take_back(session)
            raise

    def _take_back(self, session: int | None) -> None:
        """Close a session, if there is one, that nobody was given, since its opening broke off."""
        if session is not None:
            with contextlib.suppress(CxlKvError):
                self.close_session(session)

    def _begun(self, session: int, request: dict) -> None:
        """A session was opened for this requester, by a checked request."""

    def close_session(self, session: int) -> None:
        with self.exclusive():
            self._begin_close(session)
            self._control.end_close(session)
            self._has_ended(session)

    def _begin_close(self, session: int) -> None:
        """Tell a session to close, unless that was broken off behind it: by now it may be closed,
        and its number another requester's."""
        number = session if type(session) is int else None
        if number not in self._owned and not self._may_end(number):
            raise NotMappedError("this connection did not open it", session=number)
        if session not in self._ending:
            self._control.begin_close(session)
            self._ending.update(self._owned.keys() & {session})

    def _may_end(self, session: int | None) -> bool:
        """Whether it is another's open session, and this requester LD-ID 0, which may close it."""
        if self.ld_id or session not in range(self.config.sessions):
            return False
        return bool(self._control.registers.fields(f"s{session}_state")["open"])

    def _has_ended(self, session: int) -> None:
        self._owned.pop(session, None)
        self._ending.discard(session)

    @property
    def owned(self) -> frozenset[int]:
        """Sessions that this transport opened and that are not closed yet."""
        return frozenset(self._owned)

    def closing(self, session: int) -> Iterator[None]:
        """Close it bit by bit: a generator that yields until it is closed. Where one is left
        half-way, the next goes on from there."""
        with self.exclusive():
            self._begin_close(session)
        while True:
            with self.exclusive():
                if self._control.is_closed(session):
                    self._has_ended(session)
                    return
            yield

    def events(self) -> list[dict]:
        with self.exclusive():
            return self._control.events_of(self)

    @contextlib.contextmanager
    def exclusive(self):
        self.home.check()
        with self.core.lock:  # else another thread may close the core before it is ours
            self.check()
            with self.core.exclusive():
                yield

    def view(self, offset, size, pages=None):
        self.home.check()
        with self.core.lock:
            self.check()
            return self.core.view(offset, size, pages)

    def close(self) -> None:
        if self.home.left():
            return
        with self.core.lock:
            if self.closed:
                return
            try:
                for session in sorted(self._owned):
                    self.close_session(session)
            except TransportError:
                pass  # the core is gone, and its sessions with it
            self.closed = True
            self._control.forget(self)
            if not self.shared:
                self.core.close()

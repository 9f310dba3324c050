# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""One connection to a server: bytes in, a request at a time, bytes out; and what is left to do when
it has gone.

Nothing here waits. The server's loop calls `step`, which does about a millisecond of work and says
what has to happen before the next one; the time is charged to the tenant. A connection has at most
one request under way, and the next one is read when its reply has been sent, so that neither a
flood of requests nor a reader that does not read costs more memory than one frame each way.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections import deque
from dataclasses import asdict
from enum import Enum

import numpy as np

from kelp_spec.formats import LINE_BYTES
from kelp_spec.registers import identity_of

from ..errors import (
    CxlKvError,
    NotMappedError,
    TransportError,
    UnsupportedError,
)
from ..transport import LocalTransport, as_addresses
from .journal import where
from .tenancy import TenantTransport
from .wire import (
    MOST_HELLO,
    MOST_JSON,
    MOST_LINES,
    MOST_PAYLOAD,
    Inbox,
    Op,
    OtherVersionError,
    Reply,
    failure,
    frame,
    from_json,
    to_json,
)

__all__ = ["Connection", "Departure", "Next", "Stream"]

_CHUNK = 1 << 17  #: bytes read in a step
_JSON = (Op.HELLO, Op.OPEN, Op.CLOSE)


class Next(Enum):
    """What a thing to do waits for after a step."""

    TURN = "its turn"
    READ = "bytes"
    WRITE = "room for bytes"
    POLL = "something that has to be asked for"
    LATER = "a second"
    LOCK = "the end of another client's lock"
    NOTHING = "nothing: it is over"


class Hangup(Exception):
    """The connection ends.

    Parameters
    ----------
    why : str
        A word or two; counted.
    detail : str
    """

    def __init__(self, why: str, detail: str = ""):
        super().__init__(why)
        self.why, self.detail = why, detail


class Stream:
    """A socket that is read and written without waiting.

    Attributes
    ----------
    deadline : float
        Of `time.monotonic`, until which the other side must have done what is waited for.
    overdue : str
        Why the connection ends then.
    """

    def __init__(self, server, connection: socket.socket, share):
        connection.setblocking(False)
        self.server, self.connection, self.share = server, connection, share
        self.number = server.next_number()
        self.fileno = connection.fileno()
        self.deadline = time.monotonic() + server.limits.hello_seconds
        self.overdue = "no HELLO"
        self.gone = False
        self.closing = False  # once the last reply is out, and then that is why:
        self.ending = "refused"
        self._out: deque[memoryview] = deque()

    def read(self) -> bytes | None:
        """Some bytes; None when there are none yet. Hangup at the stream's end."""
        try:
            piece = self.connection.recv(_CHUNK)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as error:
            raise Hangup("lost", error.strerror) from None
        if not piece:
            raise Hangup("left")
        return piece

    def write(self, pieces) -> None:
        self._out.extend(pieces)
        self.wait(self.server.limits.reply_seconds, "reply not read")

    def flush(self) -> bool:
        """Send what can be sent; whether that was all."""
        sent = 0
        while self._out and sent < _CHUNK:
            try:
                n = self.connection.send(self._out[0])
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                raise Hangup("lost", error.strerror) from None
            sent += n
            self._out[0] = self._out[0][n:]
            if not self._out[0].nbytes:
                self._out.popleft()
        if not self._out and self.closing:
            raise Hangup(self.ending)
        return not self._out

    def wait(self, seconds: float, overdue: str) -> None:
        self.deadline, self.overdue = time.monotonic() + seconds, overdue

    def late(self, now: float) -> str | None:
        """Why the connection is to end, or None."""
        return self.overdue if now > self.deadline else None

    def who(self) -> dict:
        """Fields of what is logged about it."""
        return {"client": self.number}

    def close(self) -> None:
        """Hang up. Harmless a second time."""
        if not self.gone:
            self.gone = True
            self.connection.close()


class Connection(Stream):
    """A client of the device.

    Parameters
    ----------
    server : Server
    connection : socket.socket
    share : Share
        Of clients that are not known yet.
    local : bool
        Whether it came over a unix socket.
    """

    def __init__(self, server, connection: socket.socket, share, *, local: bool):
        super().__init__(server, connection, share)
        self.local = local
        self.tenant = None
        self.transport: LocalTransport | None = None
        self.locked = False
        self._lock_left = 0.0  # seconds for which it may still keep the server waiting
        self._hurried = False  # and, since somebody waits for its lock, at work
        self._waits_since: float | None = None
        self._inbox = Inbox(MOST_HELLO)
        self._request = None  # generator of the request under way
        self._op, self._reply_number, self._since = 0, 0, 0.0
        self._awaited: str | None = None  # what the deadline is for

    # - steps --------------------------------------------------------------------------------------
    def step(self) -> Next:
        """Hangup when the connection ends here."""
        started = time.monotonic()
        try:
            return self._step()
        finally:
            if self._hurried:
                self._lock_left -= time.monotonic() - started

    def _step(self) -> Next:
        if self._request is None:
            if not self.flush():
                return Next.WRITE
            if not self._receive():
                return Next.TURN if self.closing else Next.READ
        if self.server.is_locked_out(self):
            return Next.LOCK
        try:
            return next(self._request)
        except StopIteration as end:
            self._finish(Reply.OK, end.value or [])
        except (CxlKvError, ValueError) as error:
            self._fail(error)
        except Exception as error:
            # A bug of ours: this client ends, the others go on.
            self.server.journal.error(
                "request_failed",
                **self.who(),
                request=self._op,
                error=type(error).__name__,
                at=where(error),
            )
            self.closing = True
            self._fail(TransportError("the server failed at this request; its log says where"))
        if not self.flush():
            return Next.WRITE
        self._expect()
        return Next.TURN if len(self._inbox) else Next.READ

    def _receive(self) -> bool:
        """Read on; whether a whole request is there."""
        try:
            if (got := self._inbox.take()) is None and (piece := self.read()) is not None:
                self._inbox.feed(piece)
                got = self._inbox.take()
        except OtherVersionError as error:
            self._refuse_version(error)
            return False
        except TransportError as error:
            raise Hangup("broken frame", str(error)) from None
        if got is None:
            self._expect()
            return False
        self._lock_time()
        if self.locked and self._lock_left < 0:
            raise Hangup("kept the lock")
        self._awaited = None
        self._op, self._reply_number, payload = got
        self._since = time.perf_counter()
        self._request = self._serve(self._op, payload)
        return True

    def _refuse_version(self, error: OtherVersionError) -> None:
        """Say which version this is, in a frame of it, and then end: the client can name both."""
        self.closing, self.ending = True, "other version"
        self.write(frame(Reply.FAILED, 0, to_json(failure(error))))

    def _expect(self) -> None:
        """The other side has to send something now: by when."""
        awaited = "frame" if len(self._inbox) else "request"
        if self.transport is None or awaited == self._awaited:
            return  # that time runs already
        self._awaited = awaited
        if awaited == "frame":
            self.wait(self.server.limits.frame_seconds, "half frame")
        else:
            self.wait(self.tenant.idle_seconds, "idle")

    def _finish(self, code, parts) -> None:
        self.server.served(self, self._op, time.perf_counter() - self._since, code is Reply.OK)
        self._request, self._awaited = None, None
        self.write(frame(code, self._reply_number, *parts))
        self._lock_wait()

    def _fail(self, error: Exception) -> None:
        if self.transport is None:
            self.closing = True
        self._finish(Reply.FAILED, [to_json(failure(error))])

    # - the lock's time ----------------------------------------------------------------------------
    def _lock_wait(self) -> None:
        """From now on, the server waits for this client."""
        if self.locked:
            self._waits_since = time.monotonic()

    def _lock_time(self) -> None:
        if self._waits_since is not None:
            self._lock_left -= time.monotonic() - self._waits_since
            self._waits_since = None

    def late(self, now: float) -> str | None:
        """As of any stream, but not while the server itself is at work on it."""
        if self._waits_since is not None and now - self._waits_since > self._lock_left:
            return "kept the lock"
        return super().late(now) if self._request is None else None

    def granted(self, seconds: float) -> None:
        """It has the lock, and may keep the server waiting for so long."""
        self.locked, self._lock_left, self._hurried = True, seconds, False

    def hurry(self, seconds: float) -> None:
        """Somebody waits for the lock: from now on it may keep the server waiting or at work for so
        long, and no longer by asking without a pause."""
        self._hurried = True
        waited = 0.0 if self._waits_since is None else time.monotonic() - self._waits_since
        self._lock_left = min(self._lock_left, waited + seconds)

    # - who it is ----------------------------------------------------------------------------------
    def who(self) -> dict:
        return {
            "client": self.number,
            "tenant": self.tenant.name if self.tenant else None,
            "ld_id": self.transport.ld_id if self.transport else None,
        }

    def close(self) -> None:
        super().close()
        if self._request is not None:
            self._request.close()
            self._request = None

    # - requests -----------------------------------------------------------------------------------
    def _hello(self, code, payload) -> list:
        if code != Op.HELLO:
            raise TransportError(f"request {code} before HELLO")
        asked = from_json(payload)
        if not isinstance(asked, dict) or not isinstance(asked.get("admin", False), bool):
            raise TransportError('HELLO is refused; legal: {"admin": false, "token": string}')
        server, core = self.server, self.server.core
        if asked.get("admin"):
            if not (self.local and _same_user(self.connection)):
                raise UnsupportedError(
                    "admin is refused: it is granted on a unix socket, to the user that runs the "
                    + "server"
                )
            tenant, transport = server.admin, LocalTransport(core, shared=True)
        else:
            tenant = server.admit(asked.get("token"), local=self.local)
            try:
                transport = TenantTransport(core, tenant.ld_id, kept=tenant.kept)
            except BaseException:
                server.leave(tenant)
                raise
        self.tenant, self.transport, self.share = tenant, transport, tenant.share
        tenant.connections.add(self)
        self._inbox.most = MOST_PAYLOAD
        server.known(self)
        return [
            to_json(
                {
                    "config": asdict(core.config),
                    "identity": identity_of(core.config),
                    "digest": core.config.digest,
                    "ld_id": tenant.ld_id,
                    "tenant": tenant.name,
                    "formats": sorted(int(f) for f in core.formats),
                    "hints": core.hints,
                    "persistent": core.persistent,
                }
            )
        ]

    def _serve(self, code, payload):
        """A generator of what the request waits for; it returns the parts of the reply."""
        if self.transport is None:
            return self._hello(code, payload)
        transport, server = self.transport, self.server
        if code in _JSON and len(payload) > MOST_JSON:
            raise TransportError(f"{len(payload)} bytes are refused; legal: {MOST_JSON} at most")
        if code == Op.LOAD:
            return (yield from self._load(_lines_of(payload)))
        if code == Op.STORE:
            return (yield from self._store(*_store(payload)))
        if code == Op.SPEC_READ:
            addresses = _lines_of(payload)
            yield from self._in_parts(
                code, len(addresses), lambda part: transport.spec_read(addresses[part])
            )
            return []
        if code == Op.OPEN:
            self.tenant.check_sessions()
            return (yield from self._open(from_json(payload)))
        if code == Op.CLOSE:
            return (yield from self._close(from_json(payload)))
        if code == Op.EVENTS:
            return [to_json(transport.events())]
        if code == Op.LOCK:
            while not server.lock(self):
                yield Next.LOCK
            return []
        if code == Op.UNLOCK:
            server.unlock(self)
            return []
        raise TransportError(f"request {code} is unknown")

    def _in_parts(self, op, count, do, slow=None):
        """`do` with slices of `count` lines, of about a step each; those that are `slow`, bool[n],
        one by one, since each may take as long as a step."""
        pace, at, spent = self.server.pace[op], 0, 0.0
        ends = [] if slow is None else np.flatnonzero(slow).tolist()
        ends.append(count)
        for end in ends:
            while at < min(end + 1, count):
                part = slice(at, min(at + pace.lines, end) if at < end else at + 1)
                started = time.perf_counter()
                do(part)
                took = time.perf_counter() - started
                if at < end:
                    pace.took(part.stop - at, took)
                at, spent = part.stop, spent + took
                if at < count and spent >= pace.seconds / 2:
                    yield Next.TURN
                    spent = 0.0

    def _load(self, addresses):
        lines, status = [], []

        def load(part):
            loaded = self.transport.load(addresses[part])
            lines.append(loaded.lines)
            status.append(loaded.status)

        yield from self._in_parts(Op.LOAD, len(addresses), load)
        return [*lines, *status]

    def _store(self, addresses, lines, enable):
        transport, server = self.transport, self.server
        counted = transport.counted(addresses, enable) if transport.ld_id else ()
        # Counted before it is stored, so that no other store of the tenant comes between.
        alone = len(counted) and not self.locked
        while alone and not server.lock(self):
            yield Next.LOCK
        try:
            if len(counted):
                transport.count(addresses[counted], lines[counted])
            yield from self._in_parts(
                Op.STORE,
                len(addresses),
                lambda part: transport.store(
                    addresses[part], lines[part], None if enable is None else enable[part]
                ),
                transport.slow(addresses) if transport.ld_id else None,
            )
        finally:
            if alone:
                server.unlock(self)
        return []

    def _open(self, asked):
        opening = self.transport.opening(asked)
        while True:
            try:
                next(opening)
            except StopIteration as opened:
                return [to_json({"session": opened.value})]
            yield Next.TURN

    def _close(self, asked):
        session = asked.get("session") if isinstance(asked, dict) else None
        if type(session) is not int or session not in self.transport.owned:
            raise NotMappedError("this connection did not open it", session=session)
        for _ in self.transport.closing(session):
            yield Next.POLL
        return []


class Departure:
    """What is left of a connection that has gone: its sessions, which have to be closed before
    anybody else may have its LD-ID."""

    def __init__(self, server, tenant, transport: LocalTransport, number: int):
        self.server, self.tenant, self.transport = server, tenant, transport
        self.number, self.share, self.gone = number, tenant.share, False
        self._work = None

    def step(self) -> Next:
        try:
            if self._work is None:
                self._work = self._closing()
            next(self._work)
        except StopIteration:
            self.gone = True
            self.server.departed(self)
            return Next.NOTHING
        except Exception as error:
            # The LD-ID stays out of use while a session of its may be open.
            self._work = None
            self.server.journal.error(
                "sessions_not_closed",
                client=self.number,
                tenant=self.tenant.name,
                error=type(error).__name__,
                at=where(error),
            )
            return Next.LATER
        return Next.POLL

    def _closing(self):
        for session in sorted(self.transport.owned):
            yield from self.transport.closing(session)
        self.transport.close()


def _lines_of(payload) -> np.ndarray:
    """Addresses of a LOAD or SPEC_READ."""
    if len(payload) % 8:
        raise TransportError(f"{len(payload)} bytes are no whole number of addresses")
    _check_count(len(payload) // 8)
    return as_addresses(np.frombuffer(payload, np.uint64))


def _store(payload):
    if len(payload) < 8:
        raise TransportError("a store without its counts")
    n, enables = struct.unpack_from("<II", payload)
    _check_count(n)
    if len(payload) != 8 + n * (8 + LINE_BYTES + 8 * bool(enables)):
        raise TransportError(f"a store of {n} lines in {len(payload)} bytes")
    addresses = as_addresses(np.frombuffer(payload, np.uint64, n, 8))
    lines = np.frombuffer(payload, np.uint8, LINE_BYTES * n, 8 + 8 * n).reshape(n, LINE_BYTES)
    return (
        addresses,
        lines,
        np.frombuffer(payload, np.uint64, n, 8 + (8 + LINE_BYTES) * n) if enables else None,
    )


def _check_count(n):
    if n > MOST_LINES:
        raise TransportError(f"{n} lines in one request are refused; legal: {MOST_LINES} at most")


def _same_user(connection) -> bool:
    _, user, _ = struct.unpack(
        "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    )
    return user == os.getuid()

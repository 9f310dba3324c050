# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""`unix:/path` and `tcp://host:port` — a device behind `kelp serve`, shared with other clients.

A client is a tenant of its own: the server gives it an LD-ID, and the device lets that LD-ID reach
its own sessions alone. `?admin=1` asks for LD-ID 0, which the server grants on a unix socket to the
user that runs it. `?token_file=PATH` names a file whose token makes the client one of that token's
tenant; over TCP one is needed, and KELP_TOKEN_FILE names it where the URL does not. A broken
connection ends the transport; the server then closes the sessions it had opened.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading

import numpy as np

from kelp_spec.config import Config
from kelp_spec.formats import LINE_BYTES, Format
from kelp_spec.registers import unlike

from .. import errors
from ..arguments import seconds, switch
from ..core import ALL_BYTES, Loaded
from ..process import Home, let_go_in_children
from ..serving.tokens import read_token
from ..serving.wire import MOST_LINES, Op, Reply, error_of, from_json, receive, send, to_json
from ..transport import Transport, as_addresses, as_enables, as_lines
from ..url import is_port, split

__all__ = ["RemoteTransport", "connect"]

_HELLO_SECONDS = 30.0


def connect(url: str, timeout: float) -> socket.socket:
    """A connected socket for a `unix:` or `tcp:` URL; ConnectionLostError when nobody listens."""
    scheme, rest, _ = split(url)
    host, _, port = rest.removeprefix("//").rpartition(":")
    if scheme == "tcp" and not (host and is_port(port)):
        raise ValueError(f"{url!r} is refused; legal: tcp://host:port")
    if scheme == "unix" and not rest:
        raise ValueError(f"{url!r} is refused; legal: unix:/path")
    connection = None
    try:
        if scheme == "tcp":
            connection = socket.create_connection((host.strip("[]"), int(port)), timeout)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        else:
            connection = socket.socket(socket.AF_UNIX)
            connection.settimeout(timeout)
            connection.connect(rest)
    except (OSError, UnicodeError) as error:  # the latter of what no host can be called
        if connection is not None:
            connection.close()
        reason = getattr(error, "strerror", None) or error
        raise errors.ConnectionLostError(
            f"{url}: nobody serves there ({reason}); start one with: kelp "
            + f"serve golden:trace --listen {url.partition('?')[0]}"
        ) from None
    return connection


class RemoteTransport(Transport):
    """One connection. Thread-safe: one request at a time.

    Options in the URL: `admin` (0 or 1), `timeout` (seconds for a reply; 600), `token_file` (a
    path).
    """

    def __init__(self, url: str):
        scheme, _, options = split(url)
        self._timeout = seconds(options, "timeout", 600.0)
        admin = switch(options, "admin")
        token_file = options.pop("token_file", None)
        if options:
            raise ValueError(
                f"option {next(iter(options))!r} of {url!r} is unknown; legal: admin, timeout, "
                + "token_file"
            )
        hello: dict = {"admin": admin}
        if scheme == "tcp" and not token_file:
            token_file = os.environ.get("KELP_TOKEN_FILE")
        if token_file:
            hello["token"] = read_token(token_file)
        self.url, self.home = url, Home()
        self.lock = threading.RLock()
        self._number = self.locked = 0
        self._broken: str | None = None
        # A server that answers does so soon; one that is stopped keeps the connection waiting.
        self._connection = connect(url, min(self._timeout, _HELLO_SECONDS))
        let_go_in_children(self)
        try:
            self._learn(from_json(self._ask(Op.HELLO, to_json(hello))))
            self._connection.settimeout(self._timeout)
        except BaseException:
            self._connection.close()
            raise

    def _learn(self, hello) -> None:
        try:
            self.config = Config.of_json(hello["config"])
            self.ld_id, self.hints, self.persistent = (
                hello["ld_id"],
                hello["hints"],
                hello["persistent"],
            )
            self.formats = frozenset(Format(f) for f in hello["formats"])
            why = unlike(self.config, hello["identity"], int(hello["digest"], 16))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise errors.TransportError(
                f"{self.url}: its device is none that this version of cxl_kv knows "
                + f"({type(error).__name__}: {error}); install the server's"
            ) from None
        if why is not None:
            raise errors.TransportError(f"{self.url}: {why}")

    def _ask(self, op: Op, *parts) -> bytearray:
        self.home.check()  # before the lock, which in a child may be a lost thread's
        with self.lock:
            self.check()
            self._number = self._number + 1 & 0xFFFFFFFF
            try:
                send(self._connection, op, self._number, *parts)
                code, number, payload = receive(self._connection)
                if number != self._number:
                    raise errors.TransportError(f"reply {number} to request {self._number}")
            except errors.TransportError as error:
                self._break(f"{self.url}: {error}{_afterwards(op, error)}")
                raise type(error)(self._broken) from None
            except BaseException:
                # Interrupted half-way: the stream is out of step, so it ends here.
                self._break(f"{self.url}: the connection was interrupted within a request")
                raise
        if code == Reply.OK:
            return payload
        reply = from_json(payload)
        if not (isinstance(reply, dict) and reply.keys() >= {"error", "message"}):
            raise errors.TransportError(f"{self.url}: reply {code} is none of an error")
        raise error_of(reply)

    def check(self) -> None:
        super().check()
        if self._broken:
            raise errors.ConnectionLostError(self._broken)

    def _break(self, why):
        self._broken = why
        self.let_go()

    def let_go(self) -> None:
        """Close this process's copy of the connection."""
        with contextlib.suppress(OSError):
            self._connection.close()

    # - accesses -----------------------------------------------------------------------------------
    def load(self, addresses) -> Loaded:
        addresses = as_addresses(addresses)
        if 0 < len(addresses) <= MOST_LINES:  # handed out as it was received
            return self._load_part(addresses)
        self.check()
        lines, status = (
            np.empty((len(addresses), LINE_BYTES), np.uint8),
            np.empty(len(addresses), np.uint8),
        )
        for first in range(0, len(addresses), MOST_LINES):
            part = slice(first, first + MOST_LINES)
            lines[part], status[part] = self._load_part(addresses[part])
        return Loaded(lines, status)

    def _load_part(self, addresses) -> Loaded:
        """Lines of one request; views of its reply."""
        count, payload = len(addresses), np.frombuffer(self._ask(Op.LOAD, addresses), np.uint8)
        if len(payload) != count * (LINE_BYTES + 1):
            self._break(f"{self.url}: {len(payload)} bytes for {count} lines")
            raise errors.TransportError(self._broken)
        return Loaded(
            payload[: count * LINE_BYTES].reshape(-1, LINE_BYTES), payload[count * LINE_BYTES :]
        )

    def store(self, addresses, lines, byte_enable=None) -> None:
        addresses = as_addresses(addresses)
        lines = as_lines(lines, len(addresses))
        byte_enable = as_enables(byte_enable, len(addresses))
        if byte_enable is not None and (byte_enable == ALL_BYTES).all():
            byte_enable = None
        self.check()
        for first in range(0, len(addresses), MOST_LINES):
            cut = slice(first, first + MOST_LINES)
            part = addresses[cut]
            head = np.array([len(part), byte_enable is not None], np.uint32)
            self._ask(
                Op.STORE,
                head,
                part,
                lines[cut],
                *(() if byte_enable is None else (byte_enable[cut],)),
            )

    def spec_read(self, addresses) -> None:
        addresses = as_addresses(addresses)
        self.check()
        for first in range(0, len(addresses), MOST_LINES):
            self._ask(Op.SPEC_READ, addresses[first : first + MOST_LINES])

    def view(self, offset, size, pages=None):
        self.check()
        return None

    # - control ------------------------------------------------------------------------------------
    def open_session(self, request: dict) -> int:
        return from_json(self._ask(Op.OPEN, to_json(request)))["session"]

    def close_session(self, session: int) -> None:
        self._ask(Op.CLOSE, to_json({"session": session}))

    def events(self) -> list[dict]:
        return from_json(self._ask(Op.EVENTS))

    @contextlib.contextmanager
    def exclusive(self):
        self.home.check()
        with self.lock:
            self.locked += 1
            try:
                if self.locked == 1:
                    self._ask(Op.LOCK)
                yield
            finally:
                self.locked -= 1
                if not self.locked and not (self._broken or self.closed):
                    self._ask(Op.UNLOCK)

    def close(self) -> None:
        if self.home.left():
            return
        with self.lock:
            self.closed = True
            self.let_go()


def _afterwards(op: Op, error: errors.TransportError) -> str:
    """What else there is to say of a connection that broke within a request."""
    if op is not Op.HELLO:
        return (
            "; what was in flight may or may not have happened, and this connection's sessions are "
            + "closed"
        )
    lost = isinstance(error, errors.ConnectionLostError)
    return "; the server's log says why it did not answer" if lost else ""

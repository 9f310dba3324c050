# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Serves one device to many clients: the loop behind `kelp serve`.

Each client has a thread and an LD-ID of its own, so the device itself keeps tenants apart; requests
are carried out one at a time, whole. A client that dies has its sessions closed; one that sends a
broken frame is hung up on. Neither disturbs the others.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import stat
import struct
import threading
from dataclasses import asdict

import numpy as np

from kelp_spec.formats import LINE_BYTES

from ..core import Core
from ..errors import (
    ConnectionLostError,
    CxlKvError,
    NotMappedError,
    TransportError,
    UnsupportedError,
)
from ..transport import LocalTransport
from ..url import split
from .tenancy import TenantTransport
from .wire import Op, Reply, from_json, receive, send, to_json

__all__ = ["Server"]

_LOG = logging.getLogger("cxl_kv.serving.server")
_LD_IDS = range(1, 16)
_LOCK_SECONDS = 10  #: between two requests of a client that has locked the device


class Server:
    """Accepts clients of one core.

    Parameters
    ----------
    core : Core
        Closed by :meth:`close`.
    budget_bytes : int, optional
        DRAM per queue that a tenant may keep before its pages are the first to go, whatever it asks
        for, and that it may pin.
    """

    def __init__(self, core: Core, *, budget_bytes: int | None = None):
        self.core, self.budget_bytes = core, budget_bytes
        self._listeners: list[tuple[socket.socket, str]] = []
        self._clients: set[_Client] = set()
        self._free = set(_LD_IDS)
        self._lock = threading.Lock()
        self._stopping = threading.Event()

    def listen(self, url: str) -> str:
        """Listen on `unix:/path` or `tcp://host:port` (port 0: any); the URL that clients use. A
        dead server's socket file is replaced."""
        scheme, rest, _ = split(url)
        if scheme == "unix":
            _remove_dead(rest)
            listener = socket.socket(socket.AF_UNIX)
            mask = os.umask(0o077)
            try:
                listener.bind(rest)
            finally:
                os.umask(mask)
        elif scheme == "tcp":
            host, _, port = rest.removeprefix("//").rpartition(":")
            if not host or not port.isdigit():
                raise ValueError(f"{url!r} is refused; legal: tcp://host:port")
            listener = socket.create_server(
                (host.strip("[]"), int(port)),
                family=socket.AF_INET6 if ":" in host else socket.AF_INET,
            )
            url = f"tcp://{host}:{listener.getsockname()[1]}"
        else:
            raise ValueError(
                f"{url!r} is refused; a server listens on unix:/path or tcp://host:port"
            )
        listener.listen(64)
        self._listeners.append((listener, rest if scheme == "unix" else ""))
        threading.Thread(
            target=self._accept,
            args=(listener, scheme == "unix"),
            name=f"kelp serve {url}",
            daemon=True,
        ).start()
        return url

    def _accept(self, listener, local):
        while not self._stopping.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            client = _Client(self, connection, local)
            with self._lock:
                self._clients.add(client)
            threading.Thread(target=client.run, name="kelp serve client", daemon=True).start()

    @property
    def clients(self) -> int:
        return len(self._clients)

    def take_ld_id(self) -> int:
        with self._lock:
            if not self._free:
                raise UnsupportedError(
                    f"all {len(_LD_IDS)} tenants of this server are taken; try again when a "
                    + "client has left"
                )
            return self._free.pop()

    def gone(self, client, ld_id: int | None) -> None:
        """A client has left and its sessions are closed."""
        with self._lock:
            self._clients.discard(client)
            if ld_id:
                self._free.add(ld_id)

    def close(self) -> None:
        """Hang up on everybody and close the device."""
        self._stopping.set()
        for listener, path in self._listeners:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
            if path:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
        with self._lock:
            clients = list(self._clients)
        for client in clients:
            client.hang_up()
        for client in clients:
            client.ended.wait(30)
        with self.core.lock:
            self.core.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_) -> None:
        self.close()


class _Client:
    """One connection, served by one thread."""

    def __init__(self, server: Server, connection: socket.socket, local: bool):
        self.server, self.connection, self.local = server, connection, local
        self.transport: LocalTransport | None = None
        self.ended = threading.Event()
        self._locks = contextlib.ExitStack()

    def hang_up(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def run(self) -> None:
        ld_id = None
        try:
            while True:
                code, number, payload = receive(self.connection)
                try:
                    if self.transport is None:
                        ld_id, reply = self._hello(code, payload)
                    else:
                        reply = self._serve(code, payload)
                except (CxlKvError, ValueError) as error:
                    send(
                        self.connection,
                        Reply.FAILED,
                        number,
                        to_json(
                            {
                                "error": type(error).__name__,
                                "message": getattr(error, "message", str(error)),
                            }
                        ),
                    )
                else:
                    send(self.connection, Reply.OK, number, *reply)
        except ConnectionLostError:
            pass
        except TransportError as error:
            _LOG.warning("hung up on LD-ID %s: %s", ld_id, error)
        except Exception:
            _LOG.exception("hung up on LD-ID %s", ld_id)
        finally:
            self._locks.close()
            self.connection.close()
            if self.transport is not None:
                try:
                    self.transport.close()
                except Exception:
                    # Its sessions stay open; the others go on.
                    _LOG.exception("sessions of LD-ID %s could not be closed", ld_id)
            self.server.gone(self, ld_id)
            self.ended.set()

    def _hello(self, code, payload):
        if code != Op.HELLO:
            raise TransportError(f"request {code} before HELLO")
        core, admin = self.server.core, bool(from_json(payload).get("admin"))
        if admin and not (self.local and _same_user(self.connection)):
            raise UnsupportedError(
                "admin is refused: it is granted on a unix socket, to the user that runs the server"
            )
        ld_id = 0 if admin else self.server.take_ld_id()
        self.transport = (
            TenantTransport(core, ld_id, limited=self.server.budget_bytes is not None)
            if ld_id
            else LocalTransport(core, shared=True)
        )
        return ld_id, [
            to_json(
                {
                    "config": asdict(core.config),
                    "ld_id": ld_id,
                    "formats": sorted(int(f) for f in core.formats),
                    "hints": core.hints,
                    "persistent": core.persistent,
                }
            )
        ]

    def _serve(self, code, payload):
        transport = self.transport
        if code == Op.LOAD:
            lines, status = transport.load(_array(payload, np.uint64))
            return [np.ascontiguousarray(lines), status]
        if code == Op.STORE:
            transport.store(*_store(payload))
            return []
        if code == Op.SPEC_READ:
            transport.spec_read(_array(payload, np.uint64))
            return []
        if code == Op.OPEN:
            return [to_json({"session": transport.open_session(self._granted(from_json(payload)))})]
        if code == Op.CLOSE:
            session = from_json(payload).get("session")
            if not transport.owns(session):
                raise NotMappedError("this connection did not open it", session=session)
            transport.close_session(session)
            return []
        if code == Op.EVENTS:
            return [to_json(transport.events())]
        if code == Op.LOCK:
            # Whoever holds up the others must get on with it.
            self._locks.enter_context(transport.exclusive())
            self.connection.settimeout(_LOCK_SECONDS)
            return []
        if code == Op.UNLOCK:
            self._locks.close()
            self.connection.settimeout(None)
            return []
        raise TransportError(f"request {code} is unknown")

    def _granted(self, request: dict) -> dict:
        """The request with the server's budget, where it has one and the client is a tenant."""
        numbers = ("shape", "formats", "policy", "recency", "auto_step")
        if (
            not all(isinstance(request.get(name), int) for name in numbers)
            or not isinstance(request.get("budgets"), list)
            or not request["budgets"]
        ):
            raise TransportError("a request to open a session lacks registers")
        if self.transport.ld_id and self.server.budget_bytes is not None:
            lines = self.server.budget_bytes // LINE_BYTES
            request = request | {
                "budgets": [
                    [min(value or lines, lines), queues] for value, queues in request["budgets"]
                ]
            }
        return request


def _array(payload, dtype):
    if len(payload) % np.dtype(dtype).itemsize:
        raise TransportError(f"{len(payload)} bytes are no whole number of {np.dtype(dtype)}")
    return np.frombuffer(payload, dtype)


def _store(payload):
    if len(payload) < 8:
        raise TransportError("a store without its counts")
    n, enables = struct.unpack_from("<II", payload)
    if len(payload) != 8 + n * (8 + LINE_BYTES + 8 * bool(enables)):
        raise TransportError(f"a store of {n} lines in {len(payload)} bytes")
    addresses = np.frombuffer(payload, np.uint64, n, 8)
    lines = np.frombuffer(payload, np.uint8, LINE_BYTES * n, 8 + 8 * n).reshape(n, LINE_BYTES)
    return (
        addresses,
        lines,
        np.frombuffer(payload, np.uint64, n, 8 + (8 + LINE_BYTES) * n) if enables else None,
    )


def _same_user(connection) -> bool:
    _, user, _ = struct.unpack(
        "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    )
    return user == os.getuid()


def _remove_dead(path: str) -> None:
    """Remove a socket file that nobody listens on; anything else there is left, and binding
    fails."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError:
            os.unlink(path)

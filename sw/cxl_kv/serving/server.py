# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Serves one device to many clients: the loop behind `kelp serve`.

One thread does everything, in steps of about a millisecond; whose step is next is decided between
tenants (`cxl_kv.serving.fair`), so that what one tenant sends, holds or does not read costs another
a step at most. Each tenant has an LD-ID of its own, so the device itself keeps tenants apart. A
client on the unix socket is a tenant by itself; one with a token is a client of the tenant that the
token names. A client that dies has its sessions closed; one that sends a broken frame, or keeps the
server waiting, is hung up on.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import resource
import secrets
import select
import socket
import stat
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from logging import getLogger

from ..control import Control
from ..core import Core
from ..errors import DeviceFullError, TransportError, UnsupportedError
from ..url import is_port, split
from .connection import Connection, Departure, Hangup, Next, Stream
from .fair import FairQueue, Pace, Share
from .journal import Journal, where
from .metrics import Measurements, Scrape
from .tenancy import Kept
from .tokens import METRICS, TENANTS, Grant, Tokens

__all__ = ["Limits", "Server"]

_TURN = 0.001  #: seconds of work between two looks at who has something to say
_SWEEP = 0.05  #: seconds between two looks at who is late
_RETRY = 0.2  #: seconds until what failed is tried again
_CLOSE = 10.0  #: seconds that closing the sessions may take at the end
_LISTENS = 0.05  #: seconds from a server's bind to its listen, at most
_SPARE = 32  #: file descriptors for everything that is no client


@dataclass(frozen=True)
class Limits:
    """How long a client may keep the server waiting, in seconds, and how many there may be.

    Attributes
    ----------
    hello : until its HELLO is whole and answered.
    frame : from a frame's first byte to its last.
    reply : until a reply has been read.
    lock, admin_lock : in all, between the requests of a client that holds its tenant's lock, and
        of one that holds that of LD-ID 0.
    hurry : of that, and of the server's work for it, once LD-ID 0 wants its lock.
    idle : between two requests, for clients without a token.
    unknown : connections that have not said HELLO.
    clients : connections in all; fewer where the process may not open so many files.
    """

    hello_seconds: float = 5.0
    frame_seconds: float = 30.0
    reply_seconds: float = 30.0
    lock_seconds: float = 30.0
    admin_lock_seconds: float = 10.0
    hurry_seconds: float = 5.0
    idle_seconds: float = 3600.0
    unknown: int = 128
    clients: int = 4096


class Tenant:
    """One LD-ID, its connections and what of the device they may have."""

    def __init__(self, grant: Grant, *, budget_bytes: int | None, named: bool):
        self.name, self.ld_id, self.named = grant.name, grant.ld_id, named
        self.limit(grant)
        budget = budget_bytes if grant.budget_bytes is None else grant.budget_bytes
        self.kept = None if budget is None else Kept(budget)
        self.share = Share()
        self.connections: set[Connection] = set()
        self.departures: set[Departure] = set()
        self.holder: Connection | None = None  # of its lock

    def limit(self, grant: Grant) -> None:
        """The grant's limits from now on, but for its budget: that of a session holds from its
        opening to its end."""
        self.most_clients, self.most_sessions = grant.clients, grant.sessions
        self.idle_seconds = grant.idle_seconds

    def check_sessions(self) -> None:
        """DeviceFullError when the tenant has as many sessions as it may."""
        opened = sum(len(c.transport.owned) for c in self.connections | self.departures)
        if self.most_sessions is not None and opened >= self.most_sessions:
            raise DeviceFullError(
                f"{opened} sessions of tenant {self.name} are open, which is its limit; close one"
            )

    @property
    def is_gone(self) -> bool:
        """Nobody is connected, and no session is left to be closed."""
        return not (self.connections or self.departures)


class _Listener:
    """A socket that connections come from, one a step."""

    def __init__(self, server, listener: socket.socket, make, path: str):
        listener.setblocking(False)
        self.server, self.socket, self.make, self.path = server, listener, make, path
        self.fileno, self.share, self.gone = listener.fileno(), server.unknown, False
        self._file = _identity(path) if path else None

    def step(self) -> Next:
        try:
            connection, _ = self.socket.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return Next.READ
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                raise
            self.server.no_files(self, error)
            return Next.LATER
        self.server.take(self.make(connection))
        return Next.READ

    def close(self) -> None:
        with contextlib.suppress(OSError):
            if self.path and _identity(self.path) == self._file:  # and not a successor's
                os.unlink(self.path)
        self.socket.close()


class Server:
    """Accepts clients of one core.

    Parameters
    ----------
    core : Core
        Closed by :meth:`close`.
    budget_bytes : int, optional
        DRAM per queue that a tenant may keep before its pages are the first to go, whatever it asks
        for, and that it may pin and its choices may hold; a token may say otherwise.
    tokens : Tokens, optional
        Who may connect over TCP and read metrics; without them nobody may.
    limits : Limits
    fetch : bool
        What tenants' choices want is fetched: :meth:`cxl_kv.Device.fetch_chosen`, of whatever
        sessions are open.
    """

    def __init__(
        self,
        core: Core,
        *,
        budget_bytes: int | None = None,
        tokens: Tokens | None = None,
        limits: Limits = Limits(),
        fetch: bool = True,
    ):
        self.core, self.budget_bytes, self.tokens = core, budget_bytes, tokens or Tokens({})
        self.limits = limits
        self.journal = Journal(getLogger("cxl_kv.serving.server"))
        self.measurements = Measurements(core)
        self.pace: dict[int, Pace] = defaultdict(Pace)
        self.unknown = Share()  # of connections before HELLO, and of new ones
        self.admin = self._tenant(Grant("admin", 0, idle_seconds=limits.idle_seconds), named=True)
        self._named = {
            grant.name: self._tenant(grant, named=True)
            for grant in self.tokens.grants
            if grant.name != METRICS
        }
        taken = {tenant.ld_id for tenant in self._named.values()}
        self._free = sorted(set(range(1, TENANTS + 1)) - taken, reverse=True)
        self._anonymous: set[Tenant] = set()
        self._number = 0
        self._streams: dict[int, Stream | _Listener] = {}  # file descriptor → whose it is
        self._unknown: dict[Stream, None] = {}  # before HELLO, the oldest first
        self._listeners: list[_Listener] = []
        self._departures: set[Departure] = set()
        self._queue = FairQueue()
        self._poll: list = []  # to be asked again
        self._locked_out: list[Connection] = []
        self._holder: Connection | None = None  # of the lock of LD-ID 0
        self._wants_lock: set[Connection] = set()  # of LD-ID 0
        self._resume: list[tuple[float, object]] = []  # when, and what
        self._epoll = select.epoll()
        self._spare: int | None = os.open(os.devnull, os.O_RDONLY)
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._stopping = self._closed = False
        self._renewal: Tokens | None = None
        self._thread: threading.Thread | None = None
        if fetch:
            with core.lock, core.exclusive():
                Control.of(core).fetch_chosen()

    def _tenant(self, grant, *, named):
        return Tenant(grant, budget_bytes=self.budget_bytes if grant.ld_id else None, named=named)

    def renew(self, tokens: Tokens) -> None:
        """Who may connect from now on, in place of `tokens`; carried out by the server's thread
        within a turn. A tenant that is in both keeps its LD-ID, its sessions and its budget, and
        has its other limits anew. Whose token is another, or gone, is hung up on. Where more
        tenants are new than LD-IDs are free, all stays as it is, and the log says so.
        TransportError once the server is closed."""
        self._usable()
        self._renewal = tokens
        os.eventfd_write(self._wake, 1)

    def _usable(self):
        if self._closed:
            raise TransportError("the server was closed; make another one")

    def _renew(self):
        tokens, self._renewal = self._renewal, None
        if tokens is None:
            return
        grants = {grant.name: grant for grant in tokens.grants if grant.name != METRICS}
        gone = self._named.keys() - grants.keys()
        free = len(self._free) + sum(self._named[name].is_gone for name in gone)
        if (new := len(grants.keys() - self._named.keys())) > free:
            why = f"{new} tenants are new, and {free} LD-IDs are free"
            self.journal.warning("tokens_kept", why=why)
            return
        changed, self.tokens = self.tokens.changed(tokens), tokens
        for name in changed & self._named.keys():
            for connection in list(self._named[name].connections):
                self.hang_up(connection, "another token")
        for name in gone:
            tenant = self._named.pop(name)
            tenant.named = False
            self._anonymous.add(tenant)
            self.leave(tenant)
        for name, grant in grants.items():
            if name in self._named:
                self._named[name].limit(grant)
            else:
                grant = replace(grant, ld_id=self._free.pop())
                self._named[name] = self._tenant(grant, named=True)
        self.journal.info("tokens_read", tenants=len(grants))

    # - sockets ------------------------------------------------------------------------------------
    def listen(self, url: str, *, exposed: bool = False) -> str:
        """Listen on `unix:/path` or `tcp://host:port` (port 0: any); the URL that clients use. A
        dead server's socket file is replaced. Over TCP, clients need tokens, and the address is one
        of the loopback unless `exposed`. TransportError once the server is closed."""
        self._usable()
        scheme, rest, options = split(url) if ":" in url else ("", "", {})
        if options:
            raise ValueError(f"{url!r} is refused: its options are for those who connect")
        if scheme == "unix":
            if not rest or "\0" in rest:
                # The kernel would give it a name of its own, which every user may connect to.
                raise ValueError(f"{url!r} is refused; legal: unix:/path")
            _remove_dead(rest)
            listener = socket.socket(socket.AF_UNIX)
            mask = os.umask(0o077)
            try:
                listener.bind(rest)
            except OSError:
                listener.close()
                raise
            finally:
                os.umask(mask)
        elif scheme == "tcp":
            if not self._named:
                raise ValueError(
                    f"{url} is refused: over TCP, clients need tokens, and there are none for "
                    + "tenants (kelp token, kelp serve --tokens)"
                )
            listener, url = self._bind(url, exposed)
        else:
            raise ValueError(
                f"{url!r} is refused; a server listens on unix:/path or tcp://host:port"
            )
        local = scheme == "unix"
        self._add(
            listener,
            lambda connection: Connection(self, connection, self.unknown, local=local),
            rest if local else "",
        )
        return url

    def serve_metrics(self, address: str, *, exposed: bool = False) -> str:
        """Serve `GET /metrics` on `host:port` to who has a token; its URL. TransportError once the
        server is closed."""
        self._usable()
        if not self.tokens.grants:
            raise ValueError(
                f"metrics on {address} are refused: they need a token (kelp token, kelp serve "
                + "--tokens)"
            )
        listener, url = self._bind(f"tcp://{address}", exposed)
        self._add(listener, lambda connection: Scrape(self, connection, self.unknown), "")
        return f"http{url.removeprefix('tcp')}/metrics"

    def _bind(self, url, exposed):
        host, _, port = split(url)[1].removeprefix("//").rpartition(":")
        if not host or not is_port(port):
            raise ValueError(f"{url!r} is refused; legal: tcp://host:port")
        try:
            listener = socket.create_server(
                (host.strip("[]"), int(port)),
                family=socket.AF_INET6 if ":" in host else socket.AF_INET,
                backlog=256,
            )
        except UnicodeError as error:  # of what no host can be called
            raise ValueError(f"{url!r} is refused: {error}") from None
        bound, port = listener.getsockname()[:2]
        if not exposed and not ipaddress.ip_address(bound).is_loopback:
            listener.close()
            raise ValueError(
                f"{url} is refused: others than this machine could reach it, and nothing is "
                + "encrypted; --expose allows it"
            )
        return listener, f"tcp://{host}:{port}"

    def _add(self, listener, make, path):
        listener.listen(256)
        entry = _Listener(self, listener, make, path)
        self._listeners.append(entry)
        self._streams[entry.fileno] = entry
        self._epoll.register(entry.fileno, select.EPOLLIN | select.EPOLLONESHOT)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="kelp serve", daemon=True)
            self._thread.start()

    @property
    def clients(self) -> int:
        """Connections, and those that have gone but whose sessions are not closed yet."""
        return sum(not isinstance(s, _Listener) for s in list(self._streams.values())) + len(
            self._departures
        )

    def close(self) -> None:
        """Hang up on everybody and close the device."""
        if self._closed:
            return
        self._closed = self._stopping = True
        os.eventfd_write(self._wake, 1)
        if self._thread is not None:
            self._thread.join()
        for listener in self._listeners:
            listener.close()
        self._epoll.close()
        os.close(self._wake)
        if self._spare is not None:
            os.close(self._spare)
        with self.core.lock:
            self.core.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    # - the loop -----------------------------------------------------------------------------------
    def _run(self):
        try:
            sweep = 0.0
            while not self._stopping:
                self._renew()
                now = time.monotonic()
                if now >= sweep:
                    self._sweep(now)
                    sweep = now + _SWEEP
                polled, self._poll = self._poll, []
                for item in polled:
                    self._queue.add(item.share, item)
                self._look(0 if self._queue else _SWEEP)
                self._work()
        finally:
            self._end()

    def _look(self, seconds):
        """Queue whoever has something to say, or room to be told."""
        for fileno, _ in self._epoll.poll(seconds, 256):
            if fileno == self._wake:
                os.eventfd_read(fileno)
            elif (stream := self._streams.get(fileno)) is not None:
                self._queue.add(stream.share, stream)

    def _work(self):
        end = time.perf_counter() + _TURN
        while self._queue:
            share, item = self._queue.take()
            if item.gone:
                continue
            started = time.perf_counter()
            try:
                then = item.step()
            except Hangup as hangup:
                self.hang_up(item, hangup.why, hangup.detail)
                then = Next.NOTHING
            except Exception as error:
                self.journal.error("step_failed", error=type(error).__name__, at=where(error))
                then = Next.LATER
                if isinstance(item, Stream):
                    self.hang_up(item, "failed")
                    then = Next.NOTHING
            now = time.perf_counter()
            self._queue.charge(share, now - started)
            self._after(item, then)
            if now > end:
                return

    def _after(self, item, then):
        if then is Next.TURN:
            self._queue.add(item.share, item)
        elif then is Next.POLL:
            self._poll.append(item)
        elif then is Next.LATER:
            self._resume.append((time.monotonic() + _RETRY, item))
        elif then is Next.LOCK:
            self._locked_out.append(item)
        elif then is not Next.NOTHING:
            event = select.EPOLLIN if then is Next.READ else select.EPOLLOUT
            self._epoll.modify(item.fileno, event | select.EPOLLONESHOT)

    def _sweep(self, now):
        for stream in list(self._streams.values()):
            if isinstance(stream, Stream) and (why := stream.late(now)):
                self.hang_up(stream, why)
        waiting, self._resume = self._resume, []
        for at, item in waiting:
            if now >= at:
                self._queue.add(item.share, item)
            else:
                self._resume.append((at, item))

    def _end(self):
        """Hang up on everybody; their sessions have some seconds to close."""
        for stream in list(self._streams.values()):
            if isinstance(stream, Stream):
                self.hang_up(stream, "the server ends")
        deadline = time.monotonic() + _CLOSE
        while self._departures and time.monotonic() < deadline:
            for departure in list(self._departures):
                if departure.step() is Next.LATER:
                    time.sleep(_RETRY)

    # - connections --------------------------------------------------------------------------------
    def next_number(self) -> int:
        self._number += 1
        return self._number

    def _most_clients(self) -> int:
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return min(self.limits.clients, max(1, files - _SPARE))

    def take(self, stream: Stream) -> None:
        """A connection has come. Where there are too many, the one goes that has been silent for
        longest, or this one."""
        most = self._most_clients()
        if len(self._unknown) >= self.limits.unknown or len(self._streams) >= most:
            self._oldest_goes()
        if len(self._streams) >= most:
            self.measurements.hangup("too many")
            self.journal.warning("hung_up", client=stream.number, why="too many")
            stream.close()
            return
        if stream.connection.family != socket.AF_UNIX:
            stream.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._unknown[stream] = None
        self._streams[stream.fileno] = stream
        self._epoll.register(stream.fileno, select.EPOLLIN | select.EPOLLONESHOT)

    def _oldest_goes(self):
        if self._unknown:
            self.hang_up(next(iter(self._unknown)), "too many")

    def no_files(self, listener: _Listener, error: OSError) -> None:
        """`accept` found no file descriptor: whoever is waiting there is hung up on by means of
        the spare one, and listening goes on in a moment."""
        self.journal.warning("cannot_accept", error=errno.errorcode[error.errno])
        self._oldest_goes()
        if self._spare is not None:
            os.close(self._spare)
        self._spare = None
        try:
            listener.socket.accept()[0].close()
        except OSError:
            pass
        finally:
            with contextlib.suppress(OSError):
                self._spare = os.open(os.devnull, os.O_RDONLY)

    def admit(self, token, *, local: bool) -> Tenant:
        """The tenant of a client that says HELLO."""
        if token is None:
            if not local:
                raise UnsupportedError("a token is needed over TCP: ?token_file=PATH in the URL")
            if not self._free:
                raise UnsupportedError(
                    f"all {TENANTS} tenants of this server are taken; try again when a client has "
                    + "left, or share a tenant by its token"
                )
            ld_id = self._free.pop()
            grant = Grant(f"anonymous-{ld_id}", ld_id, idle_seconds=self.limits.idle_seconds)
            tenant = self._tenant(grant, named=False)
            self._anonymous.add(tenant)
            return tenant
        grant = self.tokens.find(token) if isinstance(token, str) else None
        if grant is None or grant.name == METRICS:
            raise UnsupportedError("the token is not one of this server's tenants")
        tenant = self._named[grant.name]
        if len(tenant.connections) + len(tenant.departures) >= tenant.most_clients:
            raise UnsupportedError(
                f"{tenant.most_clients} clients of tenant {tenant.name} are connected, which is "
                + "its limit"
            )
        return tenant

    def leave(self, tenant: Tenant) -> None:
        """Free the LD-ID of a tenant that has nobody left."""
        if not tenant.named and tenant.is_gone:
            self._anonymous.discard(tenant)
            self._free.append(tenant.ld_id)

    def known(self, connection: Connection) -> None:
        self._unknown.pop(connection, None)
        self.journal.info("hello", **connection.who())

    def hang_up(self, stream: Stream, why: str, detail: str = "") -> None:
        if stream.gone:
            return
        if isinstance(stream, Connection) and stream.transport is not None:
            # Before the stream is forgotten, so that `clients` never misses it meanwhile.
            departure = Departure(self, stream.tenant, stream.transport, stream.number)
            stream.tenant.departures.add(departure)
            self._departures.add(departure)
            self._queue.add(departure.share, departure)
            stream.tenant.connections.discard(stream)
            self._wants_lock.discard(stream)
            self.unlock(stream)
        self._unknown.pop(stream, None)
        self._streams.pop(stream.fileno, None)
        with contextlib.suppress(OSError):
            self._epoll.unregister(stream.fileno)
        self.measurements.hangup(why)
        if why not in ("left", "served", "the server ends"):
            fields = stream.who() | ({"detail": detail} if detail else {})
            self.journal.warning("hung_up", **fields, why=why)
        stream.close()

    def departed(self, departure: Departure) -> None:
        """The sessions of a connection that has gone are closed."""
        departure.tenant.departures.discard(departure)
        self._departures.discard(departure)
        self.leave(departure.tenant)

    def tenants(self) -> list[Tenant]:
        return [self.admin, *self._named.values(), *self._anonymous]

    def served(self, connection: Connection, op: int, seconds: float, ok: bool) -> None:
        name = connection.tenant.name if connection.tenant else "unknown"
        self.measurements.served(name, op, seconds, ok)

    # - locks --------------------------------------------------------------------------------------
    def is_locked_out(self, connection: Connection) -> bool:
        """Whether another one's lock keeps this connection from being served."""
        held = [self._holder]
        if connection.tenant is not None:
            held.append(connection.tenant.holder)
        return any(holder not in (None, connection) for holder in held)

    def lock(self, connection: Connection) -> bool:
        """Give the connection its tenant's lock, or that of LD-ID 0, which excludes everybody;
        whether it has it now. To be asked again when a lock ends."""
        if connection.locked:
            return True
        tenant = connection.tenant
        if tenant is self.admin:
            if holders := [t.holder for t in self.tenants() if t.holder and t is not tenant]:
                self._wants_lock.add(connection)
                for holder in holders:  # for as long as it holds on, nobody else gets a lock
                    holder.hurry(self.limits.hurry_seconds)
                return False
            self._wants_lock.discard(connection)
            self._holder = connection
        elif self._wants_lock:
            return False
        tenant.holder = connection
        limits = self.limits
        connection.granted(
            limits.admin_lock_seconds if tenant is self.admin else limits.lock_seconds
        )
        return True

    def unlock(self, connection: Connection) -> None:
        if connection.locked:
            connection.locked = False
            connection.tenant.holder = None
            if self._holder is connection:
                self._holder = None
        waiting, self._locked_out = self._locked_out, []
        for item in waiting:
            self._queue.add(item.share, item)


def _identity(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino


def _remove_dead(path: str) -> None:
    """Remove a socket file that nobody listens on; anything else there is left, and binding
    fails."""
    for again in (False, True):
        try:
            found = os.stat(path)
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(found.st_mode) or not _is_dead(path):
            return
        if not again:  # of a server that has just bound it, and is about to listen
            time.sleep(_LISTENS)
    # Another server may replace it at this moment: what has come in its place goes back.
    aside = f"{path}.{secrets.token_hex(8)}"
    try:
        os.rename(path, aside)
    except FileNotFoundError:
        return
    try:
        if _made(os.stat(aside)) != _made(found):
            with contextlib.suppress(FileExistsError):
                os.link(aside, path)
    finally:
        os.unlink(aside)


def _made(status: os.stat_result) -> tuple[int, int, int]:
    """What tells a socket file from one that was made later, which may have its number."""
    return status.st_dev, status.st_ino, status.st_mtime_ns


def _is_dead(path: str) -> bool:
    """Whether nobody listens on a socket file."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1)  # of one that is stopped, the queue may be full
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return True
        except OSError:
            pass  # it may be somebody else's
    return False

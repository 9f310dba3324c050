# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Clients of `kelp serve` that lie, stall, flood or leave: what each costs itself, and that the
others do not notice."""

import contextlib
import errno
import itertools
import json
import logging
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request

import numpy as np
import pytest
from tenants import greeted, tenants

import cxl_kv
from cxl_kv.backends.remote import connect
from cxl_kv.control import Control
from cxl_kv.device import Device
from cxl_kv.serving import wire
from cxl_kv.serving.fair import FairQueue, Share
from cxl_kv.serving.journal import Journal
from cxl_kv.serving.metrics import sessions
from cxl_kv.serving.server import Limits, Server
from cxl_kv.serving.tenancy import TenantTransport
from cxl_kv.serving.tokens import TokenError, Tokens, add, read_token
from cxl_kv.transport import LocalTransport
from cxl_kv.url import make_core
from kelp_spec.address import AddressMap
from kelp_spec.hints import HintKind, pack, page_lines
from kelp_spec.registers import SessionCommand
from kelp_spec.select import SelectMap

SHAPE = cxl_kv.ModelShape(layers=2, kv_heads=2, head_dim=32)
SHORT = Limits(
    hello_seconds=0.5,
    frame_seconds=0.5,
    reply_seconds=0.5,
    lock_seconds=0.5,
    idle_seconds=60,
    unknown=16,
)
KELP = [sys.executable, "-c", "from kelp_cli.main import main; main()"]


class Served:
    def __init__(self, server, url, folder, caplog):
        self.server, self.url, self.core = server, url, server.core
        self.folder, self.caplog = folder, caplog

    def tenant(self, name):
        return f"{self.url}?token_file={self.folder}/{name}.token"

    def open_sessions(self):
        return [s["session"] for s in sessions(Device(LocalTransport(self.core, shared=True)))]

    def hung_up(self):
        """Why, of each connection that was hung up on."""
        return [r.fields["why"] for r in self.caplog.records if r.event == "hung_up"]

    def logged(self, event):
        return [r.fields for r in self.caplog.records if r.event == event]


@pytest.fixture
def served(tmp_path, caplog):
    caplog.set_level(logging.INFO, "cxl_kv.serving.server")
    known = tenants(tmp_path, "alice", "bob", sessions=3, clients=6)
    with Server(make_core("golden:unit?sessions=8"), tokens=known, limits=SHORT) as server:
        yield Served(server, server.listen(f"unix:{tmp_path}/kelp.sock"), tmp_path, caplog)


def settled(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came about"
        time.sleep(0.01)


def ask(connection, op, *parts):
    wire.send(connection, op, 5, *parts)
    code, _, payload = wire.receive(connection)
    return code, payload


def refused(connection, op, *parts):
    """The message of a request that must fail."""
    code, payload = ask(connection, op, *parts)
    assert code == wire.Reply.FAILED
    return wire.from_json(payload)["message"]


@contextlib.contextmanager
def neighbour(served):
    """A tenant that reads and writes meanwhile; every call of its must be answered within seconds,
    and the server's limits do not end it."""
    with cxl_kv.open(served.tenant("bob")) as device:
        session = device.open_session(SHAPE)
        k, v = np.ones((2, 2, 2, 8, 32), np.float16)
        session.write([0, 1], k, v)
        slowest, over = [0.0], threading.Event()

        def work():
            while not over.is_set():
                started = time.monotonic()
                assert (session.read([0, 1], stop=8)[0] == k).all()
                slowest[0] = max(slowest[0], time.monotonic() - started)
                time.sleep(0.005)
            slowest.append(-1.0)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield slowest
        finally:
            over.set()
            thread.join(60)
        assert slowest[-1] == -1.0, "the neighbour failed"
        assert slowest[0] < 10, "the neighbour waited"


# - OPEN -----------------------------------------------------------------------------------------
def good_open():
    """A request that is granted, with a budget of one queue's own."""
    with cxl_kv.open("golden:unit") as device:
        seen = {}
        device.transport.open_session = lambda request: seen.update(request) or 1 / 0
        with contextlib.suppress(ZeroDivisionError):
            device.open_session(SHAPE)
        return seen | {"budgets": [[0, [0, 1, 2, 3]], [64, [1]]]}


MALFORMED = {
    "no object": lambda r: [r],
    "number": lambda r: 7,
    "null": lambda r: None,
    "nothing": lambda r: {},
    **{
        f"no {name}": (lambda r, n=name: {k: v for k, v in r.items() if k != n})
        for name in good_open()
    },
    "text": lambda r: r | {"shape": "x"},
    "fraction": lambda r: r | {"policy": 1.5},
    "boolean": lambda r: r | {"auto_step": True},
    "negative": lambda r: r | {"formats": -1},
    "65 bits": lambda r: r | {"shape": 1 << 64},
    "a reserved bit": lambda r: r | {"auto_step": 1 << 24},
    "huge": lambda r: r | {"recency": 10**2000},
    "budgets: text": lambda r: r | {"budgets": "x"},
    "budgets: empty": lambda r: r | {"budgets": []},
    "budgets: one number": lambda r: r | {"budgets": [[1, []], [5]]},
    "budgets: three": lambda r: r | {"budgets": [[1, []], [5, [0], 0]]},
    "budgets: no list": lambda r: r | {"budgets": [[1, []], [5, 0]]},
    "budgets: null": lambda r: r | {"budgets": [[1, []], None]},
    "budgets: text of queues": lambda r: r | {"budgets": [[1, []], [5, ["x"]]]},
    "budgets: negative queue": lambda r: r | {"budgets": [[1, []], [5, [-1]]]},
    "budgets: queue beyond the shape": lambda r: r | {"budgets": [[1, []], [5, [4]]]},
    "budgets: huge queue": lambda r: r | {"budgets": [[1, []], [5, [1 << 70]]]},
    "budgets: a queue twice": lambda r: r | {"budgets": [[1, []], [5, [0, 0]]]},
    "budgets: more than queues": lambda r: r | {"budgets": [[1, []]] * 6},
    "budgets: negative": lambda r: r | {"budgets": [[1, []], [-5, [0]]]},
    "budgets: beyond the register": lambda r: r | {"budgets": [[1 << 40, []]]},
    "no shape": lambda r: r | {"shape": 0},
}


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_open_leaves_no_session(served, kind):
    request = good_open()
    connection = greeted(served.tenant("alice"))
    assert refused(connection, wire.Op.OPEN, wire.to_json(MALFORMED[kind](request)))
    assert not served.open_sessions() and not served.logged("request_failed")
    assert ask(connection, wire.Op.OPEN, wire.to_json(request))[0] == wire.Reply.OK
    connection.close()
    settled(lambda: not served.open_sessions())


def test_an_open_that_fails_half_way_is_undone(served, monkeypatch):
    """After the device has taken OPEN, whatever goes wrong closes the session again, in this
    process and behind a server."""
    store, failed = served.core.store, []
    apply_queue = int(SessionCommand.APPLY_QUEUE)

    def failing(addresses, lines, enable, ld_id):
        rows = lines.view("<u8")
        if ld_id == 0 and (rows == apply_queue).any():
            failed.append(served.open_sessions())
            raise KeyError("a bug")
        store(addresses, lines, enable, ld_id)

    request = good_open()
    monkeypatch.setattr(served.core, "store", failing)
    connection = greeted(served.tenant("alice"))
    assert "failed at this request" in refused(connection, wire.Op.OPEN, wire.to_json(request))
    local = LocalTransport(served.core, 9, shared=True)
    with pytest.raises(KeyError):
        local.open_session(request)
    assert failed == [[0], [0]] and not served.open_sessions() and not local.owned
    connection.close()


def test_a_long_open_is_done_in_steps(served, monkeypatch):
    """Of one queue's budget each: a neighbour waits for a step, not for the request. A client that
    leaves half-way leaves no session."""
    store, begun = served.core.store, []
    apply_queue = int(SessionCommand.APPLY_QUEUE)

    def slow(addresses, lines, enable, ld_id):
        if ld_id == 0 and (lines.view("<u8") == apply_queue).any():
            begun.append(served.open_sessions())
            time.sleep(0.4)
        store(addresses, lines, enable, ld_id)

    request = good_open() | {"budgets": [[0, [0, 1, 2, 3]]] + [[64 + q, [q]] for q in range(4)]}
    connection = greeted(served.tenant("alice"))
    with neighbour(served) as slowest:
        monkeypatch.setattr(served.core, "store", slow)
        code, reply = ask(connection, wire.Op.OPEN, wire.to_json(request))
        assert code == wire.Reply.OK and len(begun) == 4
        assert slowest[0] < 1.2, "it waited for more than two steps"
        wire.send(connection, wire.Op.CLOSE, 6, reply)
        wire.receive(connection)
        wire.send(connection, wire.Op.OPEN, 7, wire.to_json(request))
        settled(lambda: len(begun) == 5)
        connection.close()
        settled(lambda: len(served.open_sessions()) == 1)  # the neighbour's


@pytest.mark.parametrize("region", ["hint", "register"])
def test_lines_that_take_long_are_stored_one_by_one(served, monkeypatch, region):
    """However many a request has: a neighbour waits for one of them, not for as many lines as would
    take a step if they were data."""
    store, base = served.core.store, AddressMap(served.core.config)

    def slow(addresses, lines, enable, ld_id):
        if ld_id == 1:  # alice's
            time.sleep(0.05 * len(addresses))
        store(addresses, lines, enable, ld_id)

    connection = greeted(served.tenant("alice"))
    addresses = np.full(60, getattr(base, f"{region}_base"), np.uint64)
    with neighbour(served) as slowest:
        monkeypatch.setattr(served.core, "store", slow)
        ask(connection, wire.Op.STORE, np.array([60, 0], np.uint32), addresses, bytes(60 * 64))
        assert slowest[0] < 1, "it waited for many lines"
    connection.close()


def test_doorbells_take_long_and_what_they_are_about_does_not():
    core = make_core("golden:unit_select")
    places, base = SelectMap(core.config), AddressMap(core.config).select_base
    lines = places.query(0, 1, 0, 0), places.plan(0, 1, 0), places.bell(0, 1)
    addresses = base + 64 * np.array(lines, np.uint64)
    slow = TenantTransport(core, 1, kept=None).slow(np.append(addresses, np.uint64(0)))
    assert slow.tolist() == [False, False, True, False]


def test_an_ld_id_is_free_when_its_sessions_are_closed(served, monkeypatch):
    """And not before: else a later client would read them."""
    taken = [greeted(served.url) for _ in range(12)]  # of 15, two are alice's and bob's
    begin_close, broken = Control.begin_close, [True]

    def refusing(self, session):
        if broken[0]:
            raise cxl_kv.TransportError("the device does not answer")
        begin_close(self, session)

    monkeypatch.setattr(Control, "begin_close", refusing)
    with cxl_kv.open(served.url) as device:
        device.open_session(SHAPE)
        last = device.ld_id
        device.transport.close()  # without closing the session first
        settled(lambda: served.logged("sessions_not_closed"))
        with pytest.raises(cxl_kv.UnsupportedError, match="15 tenants"):
            cxl_kv.open(served.url)
        broken[0] = False
        settled(lambda: served.server.clients == 12)
        assert not served.open_sessions()
        with cxl_kv.open(served.url) as again:
            assert again.ld_id == last
    for connection in taken:
        connection.close()


# - limits ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("op", [wire.Op.LOAD, wire.Op.SPEC_READ, wire.Op.STORE])
def test_the_server_counts_lines_itself(served, op):
    connection = greeted(served.url)
    n = wire.MOST_LINES + 1
    parts = [np.zeros(n, np.uint64)]
    if op is wire.Op.STORE:
        connection.close()
        connection = greeted(served.url)
        parts = [np.array([n, 0], np.uint32)]
    assert f"{wire.MOST_LINES} at most" in refused(connection, op, *parts)
    assert ask(connection, wire.Op.EVENTS)[1] == b"[]"
    connection.close()


@pytest.mark.parametrize(
    "payload",
    [b"[" * 5000, b"[" * 5000 + b"]" * 5000, b"{" * 60000, b'{"a":' * 10000, b"1" * 60000, b"\xff"],
)
def test_json_that_is_meant_to_hurt(served, payload):
    connection = greeted(served.url)
    for op in (wire.Op.OPEN, wire.Op.CLOSE):
        assert refused(connection, op, payload)
    assert "65536 at most" in refused(connection, wire.Op.OPEN, b" " * 65537)
    assert not served.logged("request_failed")
    connection.close()


@pytest.mark.parametrize(
    "payload",
    [b"[]", b"{", b'{"admin": 1}', b'{"token": 5}', b'{"token": null, "admin": []}', b"\xff"],
)
def test_a_malformed_hello_is_refused_and_hung_up_on(served, payload):
    connection = connect(served.url, 10)
    assert refused(connection, wire.Op.HELLO, payload)
    with pytest.raises(cxl_kv.ConnectionLostError):
        wire.receive(connection)
    connection.close()


def test_nothing_but_a_small_hello_before_hello(served):
    connection = connect(served.url, 10)
    assert "before HELLO" in refused(connection, wire.Op.LOAD, np.zeros(1, np.uint64))
    connection.close()
    connection = connect(served.url, 10)
    with contextlib.closing(connection), pytest.raises(cxl_kv.ConnectionLostError):
        # the server may hang up at the header, before all of the payload is sent
        wire.send(connection, wire.Op.HELLO, 1, b" " * (wire.MOST_HELLO + 1))
        wire.receive(connection)


def stalled(served, connection, why):
    """The server hangs up on the connection within seconds, and says why."""
    connection.settimeout(20)
    with contextlib.suppress(ConnectionError):
        while connection.recv(1 << 16):
            pass
    connection.close()
    settled(lambda: why in served.hung_up())


def dripped(connection, frame):
    """A byte now and then prolongs nothing: the server hangs up while they come."""
    with contextlib.closing(connection), pytest.raises(ConnectionError):
        for byte in frame[:400]:
            connection.sendall(bytes([byte]))
            time.sleep(0.05)


def test_who_says_nothing_is_hung_up_on(served):
    with neighbour(served):
        stalled(served, connect(served.url, 10), "no HELLO")
        dripped(connect(served.url, 10), b"".join(wire.frame(wire.Op.HELLO, 1, b" " * 400)))
    settled(lambda: served.hung_up() == ["no HELLO"] * 2)


def test_half_a_frame_is_hung_up_on(served):
    frame = b"".join(wire.frame(wire.Op.LOAD, 1, np.zeros(100, np.uint64)))
    with neighbour(served):
        for cut in (1, 28, 200):
            connection = greeted(served.url)
            connection.sendall(frame[:cut])
            stalled(served, connection, "half frame")
        dripped(greeted(served.url), frame)
    settled(lambda: served.hung_up() == ["half frame"] * 4)


def test_a_reader_that_does_not_read_is_hung_up_on(served):
    with neighbour(served):
        connection = greeted(served.tenant("alice"))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        frame = b"".join(wire.frame(wire.Op.LOAD, 1, np.zeros(wire.MOST_LINES, np.uint64)))
        connection.setblocking(False)
        with contextlib.suppress(OSError):
            for _ in range(100):  # until the server reads no more
                connection.send(frame)
        settled(lambda: "reply not read" in served.hung_up())
        connection.close()


def test_idle_is_limited_and_not_by_other_limits(tmp_path, caplog):
    limits = Limits(hello_seconds=0.3, frame_seconds=0.3, reply_seconds=0.3, idle_seconds=1.5)
    with Server(make_core("golden:unit"), limits=limits) as server:
        url = server.listen(f"unix:{tmp_path}/kelp.sock")
        with cxl_kv.open(url) as device:
            for _ in range(3):
                time.sleep(0.7)
                device.transport.events()
            settled(lambda: not server.clients)
            with pytest.raises(cxl_kv.ConnectionLostError):
                device.transport.events()
    assert [r.fields["why"] for r in caplog.records if r.event == "hung_up"] == ["idle"]


def test_a_lock_holds_up_its_own_tenant_alone_and_not_for_long(served):
    with neighbour(served) as slowest, cxl_kv.open(served.tenant("alice")) as mate:
        session = mate.open_session(SHAPE)
        holder = greeted(served.tenant("alice"))
        ask(holder, wire.Op.LOCK)
        started, done = time.monotonic(), []
        waiting = threading.Thread(target=lambda: done.append(session.read(0, stop=4)))
        waiting.start()
        # Requests under the lock prolong nothing: what counts is how long it is waited for in all.
        with contextlib.suppress(cxl_kv.TransportError):
            while time.monotonic() < started + 20:
                time.sleep(0.1)
                ask(holder, wire.Op.EVENTS)
                ask(holder, wire.Op.LOCK)
                assert not done, "served in spite of the lock"
        held = time.monotonic() - started
        waiting.join(20)
        assert done and "kept the lock" in served.hung_up()
        assert 0.5 < held < 15 and slowest[0] < 5
        holder.close()


def test_a_lock_is_not_kept_from_ld_id_0(tmp_path, caplog):
    """While LD-ID 0 waits for a lock, as `kelp top` does, no tenant gets one; so a holder that sits
    on its own may do so for a moment."""
    limits = Limits(lock_seconds=60, hurry_seconds=0.5)
    known = tenants(tmp_path, "alice", "bob")
    with Server(make_core("golden:unit?sessions=4"), tokens=known, limits=limits) as server:
        served = Served(server, server.listen(f"unix:{tmp_path}/kelp.sock"), tmp_path, caplog)
        holder = greeted(served.tenant("alice"))
        ask(holder, wire.Op.LOCK)
        with cxl_kv.open(served.url + "?admin=1") as admin:
            started = time.monotonic()
            with admin.transport.exclusive():
                assert "kept the lock" in served.hung_up()
            with cxl_kv.open(served.tenant("bob")) as device, device.open_session(SHAPE):
                assert time.monotonic() - started < 20
        holder.close()


def test_a_holder_that_never_pauses_does_not_keep_the_lock_from_ld_id_0(tmp_path, caplog):
    """Nor from all other tenants, who get none while LD-ID 0 waits for it."""
    limits = Limits(lock_seconds=60, hurry_seconds=2)
    known = tenants(tmp_path, "alice", "bob")
    with Server(make_core("golden:unit?sessions=4"), tokens=known, limits=limits) as server:
        served = Served(server, server.listen(f"unix:{tmp_path}/kelp.sock"), tmp_path, caplog)
        holder, over = greeted(served.tenant("alice")), threading.Event()
        ask(holder, wire.Op.LOCK)
        frame = b"".join(wire.frame(wire.Op.LOAD, 1, np.zeros(4000, np.uint64)))

        def flood():
            with contextlib.suppress(OSError):
                while not over.is_set():
                    holder.sendall(frame)

        def read_on():
            with contextlib.suppress(OSError):
                while holder.recv(1 << 20):
                    pass

        threads = [threading.Thread(target=work) for work in (flood, read_on)]
        for thread in threads:
            thread.start()
        stop = threading.Timer(20, over.set)  # else a server that never hangs up is never done
        stop.start()
        try:
            with cxl_kv.open(served.url + "?admin=1") as admin:
                with admin.transport.exclusive():
                    assert "kept the lock" in served.hung_up() and not over.is_set()
                with cxl_kv.open(served.tenant("bob")) as device:
                    device.open_session(SHAPE).telemetry()
        finally:
            stop.cancel()
            over.set()
            with contextlib.suppress(OSError):
                holder.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join(20)
            holder.close()


def test_the_lock_of_ld_id_0_excludes_everybody_and_waits_for_tenants(served):
    with (
        cxl_kv.open(served.tenant("alice")) as tenant,
        cxl_kv.open(served.url + "?admin=1") as admin,
    ):
        order = []

        def locked():
            with admin.transport.exclusive():
                order.append("admin")
                thread = threading.Thread(target=read)
                thread.start()
                time.sleep(0.5)
                admin.counters()
                order.append("admin still")
            thread.join(20)

        def read():
            tenant.transport.events()
            order.append("tenant")

        with tenant.transport.exclusive():
            thread = threading.Thread(target=locked)
            thread.start()
            for _ in range(20):
                tenant.transport.events()
            order.append("tenant's lock ends")
        thread.join(20)
        assert order == ["tenant's lock ends", "admin", "admin still", "tenant"]


def test_clients_and_sessions_of_a_tenant_are_limited(served):
    devices = [cxl_kv.open(served.tenant("alice")) for _ in range(6)]
    with pytest.raises(cxl_kv.UnsupportedError, match="6 clients of tenant alice"):
        cxl_kv.open(served.tenant("alice"))
    for device in devices[:3]:
        device.open_session(SHAPE)
    with pytest.raises(cxl_kv.DeviceFullError, match="3 sessions of tenant alice"):
        devices[4].open_session(SHAPE)
    assert len({device.ld_id for device in devices}) == 1
    with cxl_kv.open(served.tenant("bob")) as other:
        other.open_session(SHAPE)
    for device in devices:
        device.close()
    settled(lambda: not served.server.clients and not served.open_sessions())


def test_pins_are_counted_as_the_device_takes_them(tmp_path):
    """A RELEASE that the device drops, since it is not whole, releases nothing; and clients of one
    tenant have one budget."""
    core = make_core("golden:unit?frames=16,8,8,8")
    frame = SHAPE.frame_bytes(0, core.config)
    known = tenants(tmp_path, "alice", budget_bytes=2 * frame)
    with Server(core, tokens=known) as server:
        url = server.listen(f"unix:{tmp_path}/kelp.sock") + f"?token_file={tmp_path}/alice.token"
        with cxl_kv.open(url) as device, cxl_kv.open(url) as mate:
            session = device.open_session(SHAPE)
            session.hints.pin(0, 0, [0, 1])
            sent, store = [], device.transport.store
            device.transport.store = lambda *arguments: sent.append(arguments)
            session.hints.release(0, 0, [0, 1])
            device.transport.store = store
            addresses, lines, *_ = sent[0]
            mate.transport.store(addresses, lines, np.full(len(lines), (1 << 63) - 1, np.uint64))
            with pytest.raises(cxl_kv.HintRefusedError, match="pinning 3 pages"):
                session.hints.pin(0, 0, [2])
            mate.transport.store(addresses, lines)
            session.hints.pin(0, 0, [2])


# - too many -------------------------------------------------------------------------------------
def refusals(session, count):
    """Hint lines about a page that is not the session's: an event each."""
    [line] = page_lines(HintKind.PIN, session=session.number, queue=0, pages=[7], sequence=0)
    row = np.frombuffer(pack(line, session.device.config), np.uint8)
    addresses = np.full(count, AddressMap(session.device.config).hint_base, np.uint64)
    session.device.transport.store(addresses, np.tile(row, (count, 1)))


def test_events_of_one_tenant_take_no_room_of_anothers(served):
    """Neither hint by hint, so that all are told, nor in one load, which the log of 16 cannot
    tell."""
    shape = cxl_kv.ModelShape(layers=1, kv_heads=1, head_dim=32)
    with cxl_kv.open(served.tenant("alice")) as calm, cxl_kv.open(served.tenant("bob")) as loud:
        mine, its = (d.open_session(shape, max_tokens=4) for d in (calm, loud))
        assert mine.number == 0
        refusals(mine, 1)
        for _ in range(1200):
            refusals(its, 1)
        refusals(its, 200)
        loud.transport.load(np.full(4096, 1 << 45, np.uint64))
        assert [e["code"] for e in calm.events() if e["code"] != "HINT_GAP"] == ["HINT_BAD_PAGE"]
        told = [e["code"] for e in loud.events()]
        assert 1000 < len(told) < 1100 and told[0] == "OVERFLOW" and told.count("OVERFLOW") > 1
        # Its connection and its session are whole.
        k = np.ones((1, 4, 32), np.float16)
        its.write(0, k, k)
        assert (its.read(0, stop=4)[0] == k).all()


def test_strangers_do_not_keep_others_out(served):
    with neighbour(served):
        crowd = []
        for _ in range(60):
            crowd.append(connect(served.url, 10))
            if len(crowd) % 20 == 0:
                with cxl_kv.open(served.tenant("alice")) as device:
                    device.transport.events()
        assert served.server.clients < 30 and "too many" in served.hung_up()
        for connection in crowd:
            connection.close()


def test_without_file_descriptors_the_listener_lives(served):
    late = [socket.socket(socket.AF_UNIX) for _ in range(2)]
    path = served.url.removeprefix("unix:")
    with cxl_kv.open(served.tenant("alice")) as device:
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = os.dup(0)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, before[1]))
        try:
            late[0].connect(path)
            settled(lambda: served.logged("cannot_accept"))
            assert device.transport.events() == []
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        late[1].settimeout(20)
        late[1].connect(path)
        assert ask(late[1], wire.Op.HELLO, b"{}")[0] == wire.Reply.OK
    for connection in late:
        connection.close()


def test_noise_in_sound_frames_is_no_bug_of_the_servers(served):
    """Any payload in any request: refused or answered, and the log names no failure."""
    rng, request = random.Random(5), good_open()
    with neighbour(served):
        connection = greeted(served.tenant("alice"))
        for _ in range(300):
            op = rng.choice([*wire.Op, 10, 255])
            n = rng.choice([0, 1, 8, 16, 80, 88, 800])
            payload = rng.choice(
                [
                    rng.randbytes(n),
                    np.array([rng.getrandbits(64) & ~63 for _ in range(n)], np.uint64).tobytes(),
                    wire.to_json(request | {rng.choice([*request]): rng.choice([None, -1, [[]]])}),
                    wire.to_json({"session": rng.choice([None, 0, 1, -1, "x", [], 1 << 70])}),
                ]
            )
            ask(connection, op, payload)
            ask(connection, wire.Op.UNLOCK)
        connection.close()
    assert not served.logged("request_failed") and not served.logged("step_failed")


def test_a_bug_of_the_servers_is_one_line_and_ends_one_client(served, monkeypatch):
    load = served.core.load

    def failing(addresses, ld_id):
        if ld_id == 1 and len(addresses) == 3:
            raise KeyError("secret")
        return load(addresses, ld_id)

    monkeypatch.setattr(served.core, "load", failing)
    with neighbour(served):
        connection = greeted(served.tenant("alice"))
        said = refused(connection, wire.Op.LOAD, np.zeros(3, np.uint64))
        with pytest.raises(cxl_kv.ConnectionLostError):
            wire.receive(connection)
        connection.close()
    (line,) = served.logged("request_failed")
    assert line["error"] == "KeyError" and line["at"].startswith("test_hostile.py:")
    assert "secret" not in said and not any(record.exc_info for record in served.caplog.records)


# - tokens ---------------------------------------------------------------------------------------
def test_tcp_needs_a_token_and_shows_none(served, monkeypatch):
    url = served.server.listen("tcp://127.0.0.1:0")
    with pytest.raises(cxl_kv.UnsupportedError, match="token is needed"):
        cxl_kv.open(url)
    wrong = served.folder / "wrong"
    wrong.write_text("w" * 43)
    wrong.chmod(0o600)
    with pytest.raises(cxl_kv.UnsupportedError, match="not one of this server's") as caught:
        cxl_kv.open(f"{url}?token_file={wrong}")
    token = read_token(served.folder / "alice.token")
    with pytest.raises(cxl_kv.UnsupportedError, match="admin is refused"):
        cxl_kv.open(f"{url}?token_file={served.folder}/alice.token&admin=1")
    with cxl_kv.open(f"{url}?token_file={served.folder}/alice.token") as device:
        assert device.ld_id == 1 and token not in device.transport.url
    monkeypatch.setenv("KELP_TOKEN_FILE", str(served.folder / "bob.token"))
    with cxl_kv.open(url) as device:
        assert device.ld_id == 2
    said = served.caplog.text + "".join(str(r.__dict__) for r in served.caplog.records)
    assert "w" * 43 not in str(caught.value) + said and token not in said


def test_addresses_that_others_reach_are_refused(tmp_path):
    with Server(make_core("golden:unit"), tokens=tenants(tmp_path, "alice", "metrics")) as server:
        for listen in (server.listen, lambda u, **o: server.serve_metrics(u[6:], **o)):
            with pytest.raises(ValueError, match="--expose"):
                listen("tcp://0.0.0.0:0")
            assert ":0" not in listen("tcp://0.0.0.0:0", exposed=True)[-3:]
    with Server(make_core("golden:unit")) as server:
        with pytest.raises(ValueError, match="need tokens"):
            server.listen("tcp://127.0.0.1:0")
        for nameless in ("unix:", "unix:\0kelp"):
            with pytest.raises(ValueError, match="unix:/path"):
                server.listen(nameless)


def test_token_files_that_others_may_read_are_refused(tmp_path):
    tenants(tmp_path, "alice")
    for read, name in ((Tokens.load, "tokens.toml"), (read_token, "alice.token")):
        for mode in (0o640, 0o604, 0o660):
            (tmp_path / name).chmod(mode)
            with pytest.raises(TokenError, match="chmod 600"):
                read(tmp_path / name)
        (tmp_path / name).chmod(0o600)
        read(tmp_path / name)
        os.mkfifo(tmp_path / f"{name}.fifo", 0o600)
        with pytest.raises(TokenError, match="legal: a regular file"):
            read(tmp_path / f"{name}.fifo")
    for text in (
        "",
        "x",
        "[tenants.alice]",
        '[tenants.alice]\ntoken = "short"',
        f'[tenants.alice]\ntoken = "{"x" * 40}"\nclients = 0',
        f'[tenants.alice]\ntoken = "{"x" * 40}"\nclient = 1',
        f'[tenants.admin]\ntoken = "{"x" * 40}"',
        f'[tenants.a]\ntoken = "{"x" * 40}"\n[tenants.b]\ntoken = "{"x" * 40}"',
        "".join(f'[tenants.t{i}]\ntoken = "{str(i) * 40}"\n' for i in range(16)),
    ):
        (tmp_path / "tokens.toml").write_text(text)
        with pytest.raises(TokenError) as caught:
            Tokens.load(tmp_path / "tokens.toml")
        assert "x" * 40 not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a = " + "[" * 100_000, "is no TOML"),
        (f"a = {'9' * 5000}", "is no TOML"),
        (f'[tenants.a]\ntoken = "{"x" * 40}"\nidle_seconds = {10**400}', "legal: 1 … 31536000"),
        (f'[metrics]\ntoken = "{"x" * 40}"\nclients = 1', "legal: token$"),
        ("#" * (1 << 20) + f'\n[tenants.a]\ntoken = "{"x" * 40}"', "over 1048576 characters"),
    ],
    ids=["nested", "digits", "idle", "limit", "long"],
)
def test_a_token_file_that_is_meant_to_hurt(tmp_path, text, problem):
    path = tmp_path / "tokens.toml"
    path.write_text(text)
    path.chmod(0o600)
    for use in (Tokens.load, lambda path: add(path, "bob", tmp_path / "bob.token")):
        with pytest.raises(TokenError, match=problem):
            use(path)
    assert os.listdir(tmp_path) == ["tokens.toml"]


def test_a_link_to_the_tokens_stays_one(tmp_path):
    """Else a server that reads what it points to never hears of the tenant."""
    (tmp_path / "etc").mkdir()
    real, link = tmp_path / "etc" / "tokens.toml", tmp_path / "tokens.toml"
    link.symlink_to(real)
    for name in ("alice", "bob"):
        add(link, name, tmp_path / name)
        assert link.is_symlink()
    assert [grant.name for grant in Tokens.load(real).grants] == ["alice", "bob"]


@pytest.mark.parametrize("failing", ["the tenant's file", "the end"])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
def test_no_half_of_a_token_is_left(tmp_path, monkeypatch, failing, error):
    add(tmp_path / "tokens.toml", "alice", tmp_path / "alice")
    before = {path.name: path.read_text() for path in tmp_path.iterdir()}
    plain, calls = os.fdopen, itertools.count(1)

    def full(*_):
        raise error

    def fdopen(descriptor, mode):
        file = plain(descriptor, mode)
        if next(calls) == 2:
            file.write = full
        return file

    if failing == "the end":
        monkeypatch.setattr(os, "replace", full)
    else:
        monkeypatch.setattr(os, "fdopen", fdopen)
    with pytest.raises(type(error)):
        add(tmp_path / "tokens.toml", "bob", tmp_path / "bob")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == before


def test_tokens_that_are_made_at_once_are_all_there(tmp_path):
    """Also each in one file: none is lost, and no two tenants share an LD-ID."""
    names = [f"tenant-{i}" for i in range(10)]
    threads = [
        threading.Thread(target=add, args=(tmp_path / "t.toml", name, tmp_path / name))
        for name in names
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    known = Tokens.load(tmp_path / "t.toml")
    assert sorted(grant.name for grant in known.grants) == sorted(names)
    assert {known.find(read_token(tmp_path / name)).name for name in names} == set(names)


# - metrics --------------------------------------------------------------------------------------
def test_a_scraper_that_stalls_or_lies_is_hung_up_on(tmp_path, caplog):
    known = tenants(tmp_path, "metrics")
    with Server(make_core("golden:unit"), tokens=known, limits=SHORT) as server:
        where = server.serve_metrics("127.0.0.1:0").removeprefix("http://").partition("/")[0]
        for sent, answer in (
            (b"GET /metrics HTTP/1.1\r\n", b""),
            (b"POST /metrics HTTP/1.1\r\n\r\n", b"405"),
            (b"GET /metrics HTTP/1.1\r\nAuthorization: Bearer\r\n\r\n", b"401"),
            (b"\xff\x00\r\n\r\n", b"405"),
            (b"x" * 9000, b"431"),
        ):
            connection = connect(f"tcp://{where}", 20)
            connection.sendall(sent)
            got = b""
            with contextlib.suppress(ConnectionResetError):
                while piece := connection.recv(4096):
                    got += piece
            assert got[9:12] == answer, sent
            connection.close()
        token = read_token(tmp_path / "metrics.token")
        request = urllib.request.Request(f"http://{where}/metrics")
        request.add_header("Authorization", f"Bearer {token}")
        with urllib.request.urlopen(request, timeout=20) as answer:
            text = answer.read().decode()
    assert 'kelp_hangups_total{why="no_request"} 1\n' in text and token not in caplog.text


# - parts ----------------------------------------------------------------------------------------
def test_time_is_shared_between_tenants_whatever_they_have_waiting():
    queue, shares = FairQueue(), [Share() for _ in range(3)]
    for share, things in zip(shares, (1000, 10, 1000), strict=True):
        for _ in range(things):
            queue.add(share, share)
    had = dict.fromkeys(shares, 0.0)
    for _ in range(60):
        share, _ = queue.take()
        cost = 5.0 if share is shares[0] else 1.0
        queue.charge(share, cost)
        had[share] += cost
    assert had[shares[1]] == 10 and abs(had[shares[0]] - had[shares[2]]) <= 5
    # One that comes back has the next turn, and not the turns that it did not want.
    queue.add(shares[1], "back")
    queue.add(shares[1], "again")
    taken = []
    for _ in range(4):
        share, _ = queue.take()
        taken.append(share)
        queue.charge(share, 1.0)
    assert taken[0] is shares[1] and taken.count(shares[1]) <= 2


def test_the_journal_does_not_drown(caplog):
    journal = Journal(logging.getLogger("cxl_kv.serving.server"))
    for i in range(500):
        journal.warning("hung_up", client=i)
    assert len(caplog.records) == 10
    time.sleep(1.1)
    journal.warning("hung_up", client=500)
    assert caplog.records[-1].fields == {"client": 500, "suppressed": 490}


# - the end --------------------------------------------------------------------------------------
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_whatever_its_clients_do(tmp_path, number):
    """One idle, one with a session, one half-way in a frame, one that holds the lock, one that does
    not read, one in the midst of long requests; the log is JSON throughout."""
    url = f"unix:{tmp_path}/kelp.sock"
    with open(tmp_path / "log", "w", encoding="utf-8") as log:
        server = subprocess.Popen(
            [*KELP, "serve", "golden:unit?sessions=8", "--listen", url],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    with server:
        assert "serving" in server.stdout.readline()
        idle, half, holder, reader, busy = [greeted(url) for _ in range(5)]
        silent = connect(url, 10)
        with cxl_kv.open(url) as device:
            device.open_session(SHAPE)
            frame = b"".join(wire.frame(wire.Op.LOAD, 1, np.zeros(wire.MOST_LINES, np.uint64)))
            half.sendall(frame[:1000])
            ask(holder, wire.Op.LOCK)
            for connection in (reader, busy):
                connection.setblocking(False)
                with contextlib.suppress(OSError):
                    for _ in range(20):
                        connection.send(frame)
            started = time.monotonic()
            server.send_signal(number)
            assert server.wait(30) == 0 and time.monotonic() - started < 15
            assert "clients hung up on" in server.stdout.read()
            with pytest.raises(cxl_kv.ConnectionLostError):
                device.transport.events()
        for connection in (idle, half, holder, reader, busy, silent):
            connection.close()
    lines = (tmp_path / "log").read_text(encoding="utf-8").splitlines()
    assert len(lines) >= 6 and {json.loads(line)["event"] for line in lines} == {"hello"}

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Any sequence of calls, on every back end, against a dict: what a read gives is what was written,
or an error that was due.

Faults between the calls: frames torn and bits flipped (on the socket, on the serial line), no room
left (frames, sessions, the file system), clients and the server killed by SIGKILL, fetches that
fail.
"""

import contextlib
import os
import resource
import signal
import socket
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from narrow_unit import RTL
from processes import forked
from serial_board import SerialBoard
from simulated_window import SimulatedWindow
from tenants import greeted, tenants

import cxl_kv
from cxl_kv.backends.cxl import CxlCore
from cxl_kv.device import Device
from cxl_kv.serving import wire
from cxl_kv.serving.server import Server
from cxl_kv.transport import LocalTransport
from cxl_kv.url import make_core
from kelp_golden.codec import decode, encode
from kelp_spec.formats import HostType

# Begun before the files that wait for the model that it builds.
pytestmark = pytest.mark.timeout(2100)

TOKENS = 32
FORMATS = ("raw16", "int8", "int4", "fp8_e4m3")
#: A request to open a session of one queue.
_SMALLEST = {
    "shape": 1 | 1 << 10 | 4 << 20 | 8 << 32,
    "formats": 0,
    "policy": 26,
    "recency": 0,
    "auto_step": 0,
    "budgets": [[0, [0]]],
}


class Machine(RuleBasedStateMachine):
    """Two tenants at most (the configuration's sessions); `model` holds what each line must read
    as."""

    url = "golden:unit"
    served = False  # by this process
    apart = False  # by another one, which may be killed
    listen = "unix:{folder}/kelp.sock"
    formats = FORMATS
    crowded = False  # frames may all be pinned

    def __init__(self):
        super().__init__()
        self.stack = contextlib.ExitStack()
        self.model: dict = {}
        self.before: dict = {}  # the same without the writes that failed half-way
        self.lost: dict = {}  # session → pages whose content a fault took
        self.dead: set = set()  # sessions whose server was killed
        self.pinned = False  # so many pages that one may find no frame
        self.due = 0  # fetches that will fail
        self.server_pid = 0

    sessions = Bundle("sessions")

    @initialize()
    def start(self):
        self.begin()

    def begin(self):
        self.folder = folder = self.stack.enter_context(tempfile.TemporaryDirectory())
        url = self.url.format(folder=folder)
        self.board = None
        if self.apart:
            self.addresses = [self.listen.format(folder=folder)] * 2
            self.stack.callback(self.kill_server)
            self.start_server()
        elif self.served:
            self.core = core = make_core(url.removeprefix("cxl:"))
            if url.startswith("cxl:"):
                core = CxlCore(SimulatedWindow(core), core.config)
            known = tenants(Path(folder), "alice", "bob")
            self.server = self.stack.enter_context(Server(core, tokens=known))
            address = self.server.listen(self.listen.format(folder=folder))
            self.addresses = [
                address + (f"?token_file={folder}/{name}.token" if address[0] == "t" else "")
                for name in ("alice", "bob")
            ]
            self.open_devices()
        elif url.startswith("serial:"):
            self.board = self.stack.enter_context(SerialBoard())
            device = self.stack.enter_context(
                cxl_kv.open(f"serial:{self.board.port}?timeout=0.02&patience=30")
            )
            self.core, self.devices = self.board.core, [device]
        elif url.startswith("cxl:"):
            self.core = make_core(url.removeprefix("cxl:"))
            mapped = CxlCore(SimulatedWindow(self.core), self.core.config)
            self.devices = [self.stack.enter_context(Device(LocalTransport(mapped)))]
        else:
            device = self.stack.enter_context(cxl_kv.open(url))
            self.core, self.devices = device.transport.core, [device]
        if self.crowded:
            # Every frame may be pinned; a page without one is given up soon.
            if self.served:
                Device(LocalTransport(self.core, shared=True)).configure(
                    low_water=0, high_water=0, reserve=0
                )
            else:
                self.devices[0].configure(low_water=0, high_water=0, reserve=0)
        self.open_now = 0

    def start_server(self):
        def serve():
            server = Server(make_core(self.url.format(folder=self.folder)))
            server.listen(self.addresses[0])
            return server

        self.server_pid = forked(serve)
        self.core = SimpleNamespace(hints=not self.url.startswith("dax"))
        self.open_devices()

    def open_devices(self):
        self.devices = [self.stack.enter_context(cxl_kv.open(url)) for url in self.addresses]

    def kill_server(self):
        os.kill(self.server_pid, signal.SIGKILL)
        os.waitpid(self.server_pid, 0)

    def teardown(self):
        with self.stack:
            # Whatever was written and not read yet.
            for session in list(self.model):
                for layer in (0, 1):
                    if not (self.lost[session] or self.pinned or self.due):
                        self.check(session, layer, list(range(TOKENS)), [0, 1])
                        continue
                    # one that is lost must not hide the others
                    for head, page in np.ndindex(2, TOKENS // 4):
                        self.check(session, layer, list(range(4 * page, 4 * page + 4)), [head])

    def gone(self, session):
        """Whether the session's server was killed; then every call on it says so."""
        if session not in self.dead:
            return False
        for call in (lambda: session.read(0, stop=1), session.advance, lambda: session.state()):
            with pytest.raises(cxl_kv.ConnectionLostError):
                call()
        return True

    def room(self):
        return self.open_now < 2

    @precondition(room)
    @rule(target=sessions, data=st.data(), bf16=st.booleans(), tenant=st.integers(0, 1))
    def open_one(self, data, bf16, tenant):
        formats = (
            data.draw(st.sampled_from(self.formats), "k"),
            data.draw(st.sampled_from(self.formats), "v"),
        )
        shape = cxl_kv.ModelShape(
            layers=2,
            kv_heads=2,
            head_dim=32,
            dtype="bf16" if bf16 else "fp16",
            formats=cxl_kv.LayerFormats(k=formats[0], v=formats[1]),
        )
        session = self.devices[tenant % len(self.devices)].open_session(
            shape, policy=cxl_kv.Policy(tau=50)
        )
        self.model[session], self.before[session] = np.zeros((2, 2, 2, 2, TOKENS, 32), np.uint16)
        self.lost[session] = set()
        self.open_now += 1
        return session

    @precondition(lambda self: not self.room())
    @rule(tenant=st.integers(0, 1))
    def one_too_many(self, tenant):
        with pytest.raises(cxl_kv.DeviceFullError, match="2 sessions"):
            self.devices[tenant % len(self.devices)].open_session(
                cxl_kv.ModelShape(layers=1, kv_heads=1, head_dim=32)
            )

    @rule(session=consumes(sessions))
    def close_one(self, session):
        if self.gone(session):
            return
        session.close()
        with pytest.raises(cxl_kv.SessionClosedError):
            session.read(0, stop=1)
        del self.model[session], self.before[session], self.lost[session]
        self.open_now -= 1

    @rule(session=sessions, layer=st.integers(0, 1), seed=st.integers(0, 9), data=st.data())
    def write(self, session, layer, seed, data):
        if self.gone(session):
            return
        positions = data.draw(
            st.lists(st.integers(0, TOKENS - 1), min_size=1, max_size=9), "positions"
        )
        heads = data.draw(st.sampled_from([[0], [1], [0, 1]]), "heads")
        x = np.random.default_rng(seed).standard_normal((2, len(heads), len(positions), 32))
        bits = (
            x.astype(np.float16).view(np.uint16)
            if session.shape.dtype == HostType.FP16
            else cxl_kv.float32_to_bf16(x.astype(np.float32))
        )
        lost = [
            (layer, h, p // 4)
            for h in heads
            for p in positions
            if (layer, h, p // 4) in self.lost[session]
        ]
        due, full = self.due, False
        try:
            session.write(layer, bits[0], bits[1], positions=positions, heads=heads)
        except cxl_kv.DeviceFullError as error:
            full = True
            assert self.pinned, "no room, and nothing was pinned"
            assert (
                (error.session, error.layer) == (session.number, layer)
                and error.head in heads
                and error.page in {p // 4 for p in positions}
            )
        formats = session.shape.formats_of(layer)
        for half, fmt in ((0, formats.k), (1, formats.v)):
            stored = decode(
                *encode(bits[half].reshape(-1, 32), session.shape.dtype, fmt),
                session.shape.dtype,
                fmt,
            ).reshape(bits[half].shape)
            for i, head in enumerate(heads):
                for j, position in enumerate(positions):
                    self.model[session][half, layer, head, position] = stored[i, j]
                    if not full:
                        self.before[session][half, layer, head, position] = stored[i, j]
        if full:
            self.lost[session] |= {(layer, h, p // 4) for h in heads for p in positions}
        if due or lost:
            # A write into a page that a failed fetch poisons heals its own lines alone: from here
            # on the page is simply suspect.
            self.lost[session] |= (
                {(layer, h, p // 4) for h in heads for p in positions} if due else set()
            )
        self.due = self.faults()

    @rule(session=sessions, layer=st.integers(0, 1), data=st.data())
    def read(self, session, layer, data):
        if self.gone(session):
            return
        positions = data.draw(
            st.just(list(range(TOKENS)))
            | st.lists(st.integers(0, TOKENS - 1), min_size=1, max_size=9),
            "positions",
        )
        heads = data.draw(st.sampled_from([[0], [1], [0, 1]]), "heads")
        self.check(session, layer, positions, heads)

    def check(self, session, layer, positions, heads):
        touched = {(layer, h, p // 4) for h in heads for p in positions}
        try:
            k, v = session.read(layer, positions=positions, heads=heads, dtype=np.uint16)
        except cxl_kv.PoisonError as error:
            assert (
                (error.session, error.layer) == (session.number, layer)
                and error.head in heads
                and error.page in {p // 4 for p in positions}
            )
            place = (error.layer, error.head, error.page)
            crowded = self.pinned and isinstance(error, cxl_kv.DeviceFullError)
            assert place in self.lost[session] or self.due or crowded, (
                "poison where nothing had failed"
            )
            self.lost[session].add(place)
        else:
            for half, got in enumerate((k, v)):
                now, before = (
                    x[session][half, layer][heads][:, positions] for x in (self.model, self.before)
                )
                assert ((got == now).all(axis=-1) | (got == before).all(axis=-1)).all()
        if self.due:
            # Which of the pages met the failure is the device's business.
            self.lost[session] |= touched if self.faults() < self.due else set()
            self.due = self.faults()

    @rule(session=sessions, steps=st.integers(1, 3))
    def advance(self, session, steps):
        if self.gone(session):
            return
        before = session.step
        session.advance(steps)
        assert session.step == before + steps

    @precondition(lambda self: self.core.hints)
    @rule(
        session=sessions,
        layer=st.integers(0, 1),
        head=st.integers(0, 1),
        pages=st.lists(st.integers(0, 7), min_size=1, max_size=4, unique=True),
        kind=st.sampled_from(["pin", "release", "push_mass"]),
    )
    def hint(self, session, layer, head, pages, kind):
        if self.gone(session):
            return
        self.pinned |= kind == "pin"
        if kind == "push_mass":
            session.hints.push_mass(layer, head, [0.1] * len(pages), first_page=0)
        else:
            getattr(session.hints, kind)(layer, head, pages[:1])

    @precondition(lambda self: self.crowded)
    @rule(session=sessions, layer=st.integers(0, 1), head=st.integers(0, 1), release=st.booleans())
    def no_room_is_left(self, session, layer, head, release):
        """Half of all frames are pinned at once, or let go."""
        self.pinned = True
        (session.hints.release if release else session.hints.pin)(layer, head, range(8))

    @precondition(lambda self: self.url.startswith("dax"))
    @rule()
    def the_file_system_is_full(self):
        """A further file finds no room; nobody else notices."""
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
        try:
            with pytest.raises(cxl_kv.DeviceFullError, match="no room"):
                cxl_kv.open(f"dax:{self.folder}/another?config=unit&create=1")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    @precondition(lambda self: self.board is not None)
    @rule(faults=st.lists(st.sampled_from(["flip", "tear", "double"]), min_size=1, max_size=3))
    def the_line_is_bad(self, faults):
        self.board.line.faults.extend(faults)

    @precondition(lambda self: self.apart)
    @rule()
    def the_server_is_killed(self):
        """By SIGKILL, and its successor starts on the same path; every session is gone, and says
        so."""
        self.kill_server()
        self.dead |= set(self.model)
        self.model, self.before, self.lost, self.open_now, self.pinned = {}, {}, {}, 0, False
        self.start_server()

    @precondition(lambda self: hasattr(self.core, "engine") and not self.due)
    @rule()
    def a_fetch_will_fail(self):
        with self.core.lock:
            self.core.fail_fetches()
        self.due = self.faults()

    def faults(self):
        return self.core.engine.fetches_to_fail if hasattr(self.core, "engine") else 0

    @precondition(lambda self: self.served or self.apart)
    @rule()
    def a_client_is_killed(self):
        """A process of its own, by SIGKILL, within a request and with a session open; then its
        session is free again."""

        def begin():
            connection = greeted(self.addresses[0])
            wire.send(connection, wire.Op.OPEN, 2, wire.to_json(_SMALLEST))
            wire.receive(connection)
            connection.sendall(b"KVC1\x03")
            return connection

        pid = forked(begin)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        self.wait_for_clients()

    def wait_for_clients(self):
        """Until nobody but this machine's tenants holds a session."""
        deadline = time.monotonic() + 30
        if self.apart:
            # Only the server knows; a session that can be opened is one that was given up.
            for _ in range(2 - self.open_now):
                while True:
                    try:
                        self.devices[0].open_session(
                            cxl_kv.ModelShape(layers=1, kv_heads=1, head_dim=32)
                        ).close()
                        break
                    except cxl_kv.DeviceFullError:
                        assert time.monotonic() < deadline
            time.sleep(0.01)
            return
        # Its session, if it got one, must be gone before a tenant may want it.
        while self.server.clients > len(self.devices):
            assert time.monotonic() < deadline
            time.sleep(0.002)

    @precondition(lambda self: self.served)
    @rule(spoil=st.sampled_from(["torn", "flipped", "half a header", "killed in its session"]))
    def a_client_goes_wrong(self, spoil):
        connection = greeted(self.addresses[1])
        if spoil == "killed in its session":
            wire.send(connection, wire.Op.OPEN, 2, wire.to_json(_SMALLEST))
        else:
            ours, theirs = socket.socketpair()
            with ours, theirs:
                wire.send(
                    ours,
                    wire.Op.STORE,
                    2,
                    np.array([1, 0], np.uint32),
                    np.zeros(1, np.uint64),
                    np.full((1, 64), 255, np.uint8),
                )
                frame = bytearray(theirs.recv(4096))
            if spoil == "flipped":
                frame[-3] ^= 16
            connection.sendall(
                frame[: {"torn": len(frame) - 5, "flipped": len(frame), "half a header": 9}[spoil]]
            )
        connection.close()
        self.wait_for_clients()

    @invariant()
    def nothing_is_forgotten(self):
        assert self.open_now == len(self.model)


def machine(name, **attributes):
    return type(name, (Machine,), attributes)


DAX = dict(url="dax:{folder}/memory?config=unit&create=1", formats=("raw16",))
BACK_ENDS = {
    "golden": (machine("Golden"), 25, 30),
    "golden, crowded": (machine("Crowded", crowded=True), 25, 30),
    "dax": (machine("Dax", **DAX), 15, 25),
    "unix to golden": (machine("Unix", served=True, crowded=True), 12, 20),
    "tcp to golden": (machine("Tcp", served=True, listen="tcp://127.0.0.1:0"), 8, 20),
    "unix to dax": (machine("UnixDax", served=True, **DAX), 8, 20),
    "unix to a process": (machine("Apart", apart=True), 10, 20),
    "unix to a process on dax": (machine("ApartDax", apart=True, **DAX), 6, 20),
    "serial": (machine("Serial", url="serial:", crowded=True), 10, 20),
    "cxl on golden": (machine("Cxl", url="cxl:golden:unit"), 10, 20),
    "unix to cxl": (machine("UnixCxl", url="cxl:golden:unit", served=True), 8, 20),
    "rtl": (machine("Rtl", url=RTL), 2, 12),
    "unix to rtl": (machine("UnixRtl", url=RTL, served=True), 3, 12),
}


@pytest.mark.parametrize("name", BACK_ENDS)
@pytest.mark.sampled
def test_any_sequence_of_calls(name):
    kind, examples, steps = BACK_ENDS[name]
    more = int(os.environ.get("KELP_EXAMPLES", "1"))
    # Without shrinking: a failure is to be seen within the time limit.
    run_state_machine_as_test(
        kind,
        settings=settings(
            max_examples=examples * more,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
        ),
    )


def test_the_machine_would_notice():
    """A device that drops a line of every fifth store is found out."""

    class Careless(Machine):
        @initialize()
        def start(self):
            self.begin()
            store, writes = self.core.store, [0]

            def forgetful(addresses, lines, enable, ld_id):
                if enable is None and len(addresses) > 1:
                    writes[0] += 1
                    if writes[0] % 5 == 0:
                        return store(addresses[1:], lines[1:], enable, ld_id)
                return store(addresses, lines, enable, ld_id)

            self.core.store = forgetful

    # The first failure is enough; nobody reads the smallest.
    once = settings(
        max_examples=60,
        stateful_step_count=40,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
    )
    with pytest.raises(AssertionError):
        run_state_machine_as_test(Careless, settings=once)

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Any sequence of calls, on every back end, against a dict: what a read gives is what was written, or an error that was due."""

import contextlib
import os
import socket
import tempfile
import time

import numpy as np
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule, run_state_machine_as_test

import cxl_kv
from cxl_kv import wire
from cxl_kv.backends.remote import connect
from cxl_kv.server import Server
from cxl_kv.url import make_core
from kelp_golden.codec import decode, encode
from kelp_spec.formats import HostType

pytestmark = pytest.mark.timeout(1800)

TOKENS = 32
FORMATS = ("raw16", "int8", "int4", "fp8_e4m3")


class Machine(RuleBasedStateMachine):
    """Two tenants at most (the configuration's sessions); `model` holds what each line must read as."""

    url = "golden:unit"
    served = False
    formats = FORMATS

    def __init__(self):
        super().__init__()
        self.stack = contextlib.ExitStack()
        self.model: dict = {}
        self.lost: dict = {}      # session → pages whose content a fault took
        self.due = 0              # fetches that will fail

    sessions = Bundle("sessions")

    @initialize()
    def start(self):
        self.begin()

    def begin(self):
        folder = self.stack.enter_context(tempfile.TemporaryDirectory())
        url = self.url.format(folder=folder)
        if self.served:
            self.core = make_core(url)
            self.server = self.stack.enter_context(Server(self.core))
            self.address = self.server.listen(f"unix:{folder}/kelp.sock")
            self.devices = [self.stack.enter_context(cxl_kv.open(self.address)) for _ in range(2)]
        else:
            device = self.stack.enter_context(cxl_kv.open(url))
            self.core, self.devices = device.transport.core, [device]
        self.open_now = 0

    def teardown(self):
        self.stack.close()

    def room(self):
        return self.open_now < 2

    @precondition(room)
    @rule(target=sessions, data=st.data(), bf16=st.booleans(), tenant=st.integers(0, 1))
    def open_one(self, data, bf16, tenant):
        formats = data.draw(st.sampled_from(self.formats), "k"), data.draw(st.sampled_from(self.formats), "v")
        shape = cxl_kv.ModelShape(layers=2, kv_heads=2, head_dim=32, dtype="bf16" if bf16 else "fp16", formats=cxl_kv.LayerFormats(k=formats[0], v=formats[1]))
        session = self.devices[tenant % len(self.devices)].open_session(shape, policy=cxl_kv.Policy(tau=50))
        self.model[session] = np.zeros((2, 2, 2, TOKENS, 32), np.uint16)
        self.lost[session] = set()
        self.open_now += 1
        return session

    @rule(session=consumes(sessions))
    def close_one(self, session):
        session.close()
        with pytest.raises(cxl_kv.SessionClosedError):
            session.read(0, stop=1)
        del self.model[session], self.lost[session]
        self.open_now -= 1

    @rule(session=sessions, layer=st.integers(0, 1), seed=st.integers(0, 9), data=st.data())
    def write(self, session, layer, seed, data):
        positions = data.draw(st.lists(st.integers(0, TOKENS - 1), min_size=1, max_size=9), "positions")
        heads = data.draw(st.sampled_from([[0], [1], [0, 1]]), "heads")
        x = np.random.default_rng(seed).standard_normal((2, len(heads), len(positions), 32))
        bits = x.astype(np.float16).view(np.uint16) if session.shape.dtype == HostType.FP16 else cxl_kv.float32_to_bf16(x.astype(np.float32))
        lost = [(layer, h, p // 4) for h in heads for p in positions if (layer, h, p // 4) in self.lost[session]]
        due = self.due
        session.write(layer, bits[0], bits[1], positions=positions, heads=heads)
        formats = session.shape.formats_of(layer)
        for half, fmt in ((0, formats.k), (1, formats.v)):
            stored = decode(*encode(bits[half].reshape(-1, 32), session.shape.dtype, fmt), session.shape.dtype, fmt).reshape(bits[half].shape)
            for i, head in enumerate(heads):
                for j, position in enumerate(positions):
                    self.model[session][half, layer, head, position] = stored[i, j]
        if due or lost:
            # A write into a page that a failed fetch poisons heals its own lines alone: from here on the page is simply suspect.
            self.lost[session] |= {(layer, h, p // 4) for h in heads for p in positions} if due else set()
        self.due = self.faults()

    @rule(session=sessions, layer=st.integers(0, 1), data=st.data())
    def read(self, session, layer, data):
        positions = data.draw(st.lists(st.integers(0, TOKENS - 1), min_size=1, max_size=9), "positions")
        heads = data.draw(st.sampled_from([[0], [1], [0, 1]]), "heads")
        touched = {(layer, h, p // 4) for h in heads for p in positions}
        try:
            k, v = session.read(layer, positions=positions, heads=heads, dtype=np.uint16)
        except cxl_kv.PoisonError as error:
            assert (error.session, error.layer) == (session.number, layer) and error.head in heads and error.page in {p // 4 for p in positions}
            place = (error.layer, error.head, error.page)
            assert place in self.lost[session] or self.due, "poison where nothing had failed"
            self.lost[session].add(place)
        else:
            assert (k == self.model[session][0, layer][heads][:, positions]).all() and (v == self.model[session][1, layer][heads][:, positions]).all()
        if self.due:
            # Which of the pages met the failure is the device's business.
            self.lost[session] |= touched if self.faults() < self.due else set()
            self.due = self.faults()

    @rule(session=sessions, steps=st.integers(1, 3))
    def advance(self, session, steps):
        before = session.step
        session.advance(steps)
        assert session.step == before + steps

    @precondition(lambda self: self.core.hints)
    @rule(session=sessions, layer=st.integers(0, 1), head=st.integers(0, 1), pages=st.lists(st.integers(0, 7), min_size=1, max_size=4, unique=True),
          kind=st.sampled_from(["pin", "release", "push_mass"]))
    def hint(self, session, layer, head, pages, kind):
        if kind == "push_mass":
            session.hints.push_mass(layer, head, [0.1] * len(pages), first_page=0)
        else:
            getattr(session.hints, kind)(layer, head, pages[:1])

    @precondition(lambda self: hasattr(self.core, "engine") and not self.due)
    @rule()
    def a_fetch_will_fail(self):
        with self.core.lock:
            self.core.fail_fetches()
        self.due = self.faults()

    def faults(self):
        return self.core.engine.fetches_to_fail if hasattr(self.core, "engine") else 0

    @precondition(lambda self: self.served)
    @rule(spoil=st.sampled_from(["torn", "flipped", "half a header", "killed in its session"]))
    def a_client_goes_wrong(self, spoil):
        connection = connect(self.address, 30)
        wire.send(connection, wire.Op.HELLO, 1, b'{"admin": false}')
        wire.receive(connection)
        if spoil == "killed in its session":
            request = {"shape": 1 | 1 << 10 | 4 << 20 | 8 << 32, "formats": 0, "policy": 26, "recency": 0, "auto_step": 0, "budgets": [[0, [0]]]}
            wire.send(connection, wire.Op.OPEN, 2, wire.to_json(request))
        else:
            ours, theirs = socket.socketpair()
            with ours, theirs:
                wire.send(ours, wire.Op.STORE, 2, np.array([1, 0], np.uint32), np.zeros(1, np.uint64), np.full((1, 64), 255, np.uint8))
                frame = bytearray(theirs.recv(4096))
            if spoil == "flipped":
                frame[-3] ^= 16
            connection.sendall(frame[: {"torn": len(frame) - 5, "flipped": len(frame), "half a header": 9}[spoil]])
        connection.close()
        # Its session, if it got one, must be gone before a tenant may want it.
        deadline = time.monotonic() + 30
        while self.server.clients > len(self.devices):
            assert time.monotonic() < deadline
            time.sleep(0.002)

    @invariant()
    def nothing_is_forgotten(self):
        assert self.open_now == len(self.model)


def machine(name, **attributes):
    return type(name, (Machine,), attributes)


BACK_ENDS = {
    "golden": (machine("Golden"), 25, 30),
    "dax": (machine("Dax", url="dax:{folder}/memory?config=unit&create=1", formats=("raw16",)), 15, 25),
    "unix to golden": (machine("Unix", served=True), 12, 20),
    "unix to dax": (machine("UnixDax", served=True, url="dax:{folder}/memory?config=unit&create=1", formats=("raw16",)), 8, 20),
    "rtl": (machine("Rtl", url="rtl:unit"), 4, 12),
}


@pytest.mark.parametrize("name", BACK_ENDS)
def test_any_sequence_of_calls(name):
    kind, examples, steps = BACK_ENDS[name]
    more = int(os.environ.get("KELP_EXAMPLES", "1"))
    run_state_machine_as_test(kind, settings=settings(max_examples=examples * more, stateful_step_count=steps, deadline=None, database=None, derandomize=True))


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
    once = settings(max_examples=60, stateful_step_count=40, deadline=None, database=None, derandomize=True, phases=[Phase.generate])
    with pytest.raises(AssertionError):
        run_state_machine_as_test(Careless, settings=once)

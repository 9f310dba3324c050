# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""`kelp serve`: many clients on one device, each a tenant; what dies, lies or is cut off half-way,
and who must not notice."""

import contextlib
import itertools
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import zlib
from dataclasses import asdict

import numpy as np
import pytest
from narrow_unit import RTL
from tenants import greeted, tenants

import cxl_kv
from cxl_kv.backends import remote
from cxl_kv.core import Status
from cxl_kv.errors import DeviceFullError, TransportError, UnsupportedError
from cxl_kv.serving import wire
from cxl_kv.serving.server import Server
from cxl_kv.serving.tokens import Tokens, add, read_token
from cxl_kv.url import make_core
from kelp_spec.config import named
from kelp_spec.registers import identity_of

SHAPE = cxl_kv.ModelShape(layers=2, kv_heads=2, head_dim=32)
KELP = [sys.executable, "-c", "from kelp_cli.main import main; main()"]
DEVICE = "golden:unit?sessions=8"


@pytest.fixture(params=["unix", "tcp"])
def served(request, tmp_path):
    names = [f"tenant-{i}" for i in range(4)]
    with Server(make_core(DEVICE), tokens=tenants(tmp_path, *names)) as server:
        if request.param == "unix":
            server.url = server.listen(f"unix:{tmp_path}/kelp.sock")
            yield Served(server, [server.url])
        else:
            url = server.listen("tcp://127.0.0.1:0")
            yield Served(server, [f"{url}?token_file={tmp_path}/{name}.token" for name in names])


class Served:
    """A server, and the URLs of its tenants in turn."""

    def __init__(self, server, urls):
        self.server, self._urls = server, itertools.cycle(urls)

    @property
    def url(self):
        return next(self._urls)

    @property
    def clients(self):
        return self.server.clients


def tensors(tokens=32, seed=1):
    return np.random.default_rng(seed).standard_normal((2, 2, 2, tokens, 32)).astype(np.float16)


def settled(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came about"
        time.sleep(0.01)


def test_a_client_counts_until_its_sessions_are_closed(tmp_path, monkeypatch):
    """Also for who looks while it is being hung up on: no client means that a session is free."""
    with Server(make_core("golden:unit")) as server:
        seen = []
        warning = server.journal.warning
        monkeypatch.setattr(
            server.journal,
            "warning",
            lambda *event, **fields: (seen.append(server.clients), warning(*event, **fields)),
        )
        connection = greeted(server.listen(f"unix:{tmp_path}/kelp.sock"))
        connection.sendall(bytes(64))
        connection.close()
        settled(lambda: not server.clients)
    assert seen == [1]


@pytest.mark.timeout(1800)  # builds the model
@pytest.mark.parametrize("device", ["golden:unit", RTL])
def test_a_server_changes_nothing(device, tmp_path):
    """Bit for bit what the same calls give without a server between."""
    results = []
    with (
        Server(make_core(device)) as server,
        cxl_kv.open(device) as plain,
        cxl_kv.open(server.listen(f"unix:{tmp_path}/kelp.sock")) as remote,
    ):
        for opened in (plain, remote):
            session = opened.open_session(
                SHAPE.with_(formats="int4"), policy=cxl_kv.Policy(score="pushed")
            )
            session.write([0, 1], *tensors(16))
            session.hints.push_mass(1, 1, [0.25, 0.5], advance=True)
            results.append(
                (
                    session.step,
                    *(x.tobytes() for x in session.read([0, 1], stop=16)),
                    session.page_state(0, 0, 1)["format_k"],
                )
            )
            assert session.telemetry()["evictions"].sum() > 0
    assert results[0] == results[1]


def test_many_clients_at_once(served):
    def work(seed):
        with cxl_kv.open(served.url) as device:
            k, v = tensors(seed=seed)
            with device.open_session(SHAPE) as session:
                for _ in range(3):
                    session.write([0, 1], k, v)
                    got = session.read([0, 1], stop=32)
                    if not ((got[0] == k).all() and (got[1] == v).all()):
                        wrong.append(seed)
        finished.append(seed)

    wrong, finished = [], []
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(finished) == list(range(6)) and not wrong
    settled(lambda: not served.clients)


def test_tenants_cannot_reach_each_other(served):
    with cxl_kv.open(served.url) as first, cxl_kv.open(served.url) as second:
        assert first.ld_id and second.ld_id and first.ld_id != second.ld_id
        mine, theirs = first.open_session(SHAPE), second.open_session(SHAPE)
        k, v = tensors()
        for session in (mine, theirs):
            session.write([0, 1], k, v)
        address = theirs.layout.addresses(np.array([0]), np.array([0]), np.array([0])).reshape(-1)
        loaded = first.transport.load(address)
        assert set(loaded.status.tolist()) == {cxl_kv.Status.NOT_MAPPED} and not loaded.lines.any()
        first.transport.store(address, np.full((len(address), 64), 7, np.uint8))
        first.registers.write(f"s{theirs.number}_command", command=3, argument=9)
        assert (
            first.registers.read(f"s{theirs.number}_state") == 0
            and first.registers.read("count_accesses") == 0
        )
        with pytest.raises(cxl_kv.NotMappedError, match="did not open it"):
            first.transport.close_session(theirs.number)
        with pytest.raises(cxl_kv.UnsupportedError, match="control plane"):
            first.counters()
        with pytest.raises(cxl_kv.UnsupportedError, match="budget_bytes"):
            mine.set_policy(cxl_kv.Policy(budget_bytes=1 << 20))
        assert (theirs.read([0, 1], stop=32)[0] == k).all() and theirs.step == 0
        # What the first one tried is no event of the second one's.
        assert not second.events() and {e["code"] for e in first.events()} <= {"REGISTER_REFUSED"}


def test_a_tenant_is_not_evicted_within_its_quota(tmp_path):
    """One tenant keeps to its budget while another floods the device: only the flood's pages go."""
    frame = SHAPE.frame_bytes(0, make_core(DEVICE).config)
    with Server(make_core("golden:unit?sessions=2&frames=16,8,8,8"), budget_bytes=frame) as server:
        url = server.listen(f"unix:{tmp_path}/kelp.sock")
        with cxl_kv.open(url) as quiet, cxl_kv.open(url) as loud:
            k, v = tensors()
            calm = quiet.open_session(SHAPE, policy=cxl_kv.Policy(budget_bytes=1 << 30))
            calm.write([0, 1], k[:, :, :4], v[:, :, :4])
            flood = loud.open_session(SHAPE, policy=cxl_kv.Policy(budget_bytes=1 << 30))
            for _ in range(4):
                flood.write([0, 1], k, v)
                flood.advance()
                flood.read([0, 1], stop=32)
            assert flood.telemetry()["evictions"].sum() > 50
            assert (
                calm.telemetry()["evictions"].sum() == 0
                and calm.telemetry()["resident_bytes"].sum() == 4 * frame
            )


def test_a_client_that_dies_leaves_no_session_behind(served):
    code = """
import sys, os, numpy as np, cxl_kv
device = cxl_kv.open(sys.argv[1])
session = device.open_session(cxl_kv.ModelShape(layers=2, kv_heads=2, head_dim=32))
session.write(0, np.ones((2, 4, 32), np.float16), np.ones((2, 4, 32), np.float16))
print(session.number, flush=True)
sys.stdin.read()
"""
    with cxl_kv.open(served.url) as device:
        session = device.open_session(SHAPE)
        k, v = tensors()
        session.write([0, 1], k, v)
        child = subprocess.Popen(
            [sys.executable, "-c", code, served.url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        number = int(child.stdout.readline())
        child.kill()
        child.communicate()
        settled(lambda: served.clients == 1)
        assert (session.read([0, 1], stop=32)[0] == k).all()
        again = device.open_session(SHAPE)
        assert again.number == number and not again.read(0, stop=4)[0].any()


def raw_store(number=2, lines=4):
    """The bytes of a STORE frame."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        wire.send(
            ours,
            wire.Op.STORE,
            number,
            np.array([lines, 0], np.uint32),
            np.arange(lines, dtype=np.uint64) * 64,
            np.full((lines, 64), 5, np.uint8),
        )
        return theirs.recv(1 << 20)


def summed(header):
    return header + zlib.crc32(header).to_bytes(4, "little")


def flip(frame, bit):
    return frame[: bit // 8] + bytes([frame[bit // 8] ^ 1 << bit % 8]) + frame[bit // 8 + 1 :]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda frame: frame[:20],
        lambda frame: frame[:-1],
        lambda frame: flip(frame, 8 * len(frame) - 1),
        lambda frame: flip(frame, 8 * 12 + 30),
        lambda frame: flip(frame, 3),
        lambda frame: os.urandom(200),
        lambda frame: summed(frame[:12] + (1 << 60).to_bytes(8, "little") + frame[20:24]),
    ],
    ids=[
        "torn header",
        "torn payload",
        "flipped payload bit",
        "flipped length bit",
        "flipped magic bit",
        "noise",
        "endless frame",
    ],
)
def test_a_broken_frame_has_no_effect(served, spoil):
    with cxl_kv.open(served.url) as device:
        session = device.open_session(SHAPE)
        k, v = tensors()
        session.write([0, 1], k, v)
        connection = greeted(served.url)
        connection.sendall(spoil(raw_store()))
        with contextlib.suppress(OSError):  # the server may have hung up by now
            connection.shutdown(socket.SHUT_WR)
        with pytest.raises(cxl_kv.ConnectionLostError):
            wire.receive(connection)
        connection.close()
        settled(lambda: served.clients == 1)
        assert (session.read([0, 1], stop=32)[1] == v).all()


@pytest.mark.parametrize(
    ("code", "payload", "problem"),
    [
        (wire.Op.LOAD, b"123", "whole number"),
        (wire.Op.STORE, b"\1\0\0\0\0\0\0\0", "store of 1 lines"),
        (wire.Op.OPEN, b"{}", "lacks registers"),
        (wire.Op.OPEN, b"{", "JSON"),
        (wire.Op.LOAD, b"\1\0\0\0\0\0\0\0", "multiples of 64"),
        (99, b"", "unknown"),
        (wire.Op.CLOSE, b'{"session": 3}', "did not open"),
    ],
)
def test_a_senseless_request_is_refused_and_the_client_goes_on(served, code, payload, problem):
    connection = greeted(served.url)
    wire.send(connection, code, 2, payload)
    reply, number, answer = wire.receive(connection)
    assert (reply, number) == (wire.Reply.FAILED, 2) and problem in wire.from_json(answer)[
        "message"
    ]
    wire.send(connection, wire.Op.EVENTS, 3)
    assert wire.receive(connection) == (wire.Reply.OK, 3, b"[]")
    connection.close()


def test_sixteen_tenants_are_one_too_many(tmp_path):
    with Server(make_core(DEVICE), tokens=tenants(tmp_path, "alice")) as server:
        url = server.listen(f"unix:{tmp_path}/kelp.sock")
        devices = [cxl_kv.open(url) for _ in range(14)]  # the fifteenth LD-ID is alice's
        with pytest.raises(cxl_kv.UnsupportedError, match="15 tenants"):
            cxl_kv.open(url)
        devices.append(cxl_kv.open(f"{url}?token_file={tmp_path}/alice.token"))
        assert len({device.ld_id for device in devices}) == 15
        devices.pop(0).close()
        settled(lambda: server.clients <= 14)
        devices.append(cxl_kv.open(url))
        for device in devices:
            device.close()


def test_the_control_plane_is_for_the_servers_own_user(served):
    url = served.url
    if url.startswith("tcp"):
        with pytest.raises(cxl_kv.UnsupportedError, match="admin is refused"):
            cxl_kv.open(url + "&admin=1")
        return
    with cxl_kv.open(url + "?admin=1") as admin, cxl_kv.open(url) as tenant:
        tenant.open_session(SHAPE).write([0, 1], *tensors())
        assert admin.ld_id == 0 and admin.counters()["writes"] == 256


def test_a_killed_server_is_an_error_and_its_successor_serves(tmp_path):
    """kill -9 between requests and within one; the socket file that stays behind does not stop the
    next server."""
    url = f"unix:{tmp_path}/kelp.sock"
    for inside in (False, True):
        server = subprocess.Popen(
            [*KELP, "serve", "golden:unit", "--listen", url], stdout=subprocess.PIPE, text=True
        )
        assert "serving golden:unit" in server.stdout.readline()
        device = cxl_kv.open(url)
        session = device.open_session(SHAPE)
        k, v = tensors()
        session.write([0, 1], k, v)
        assert (session.read([0, 1], stop=32)[0] == k).all()
        if inside:
            os.kill(server.pid, signal.SIGSTOP)
            os.waitpid(server.pid, os.WUNTRACED)  # until then it may still answer
            threading.Timer(0.3, os.kill, (server.pid, signal.SIGKILL)).start()
        else:
            server.kill()
            server.wait()
        for _ in range(2):
            with pytest.raises(
                cxl_kv.ConnectionLostError, match="session 0, layer 1, head 0, page 2: .*kelp.sock"
            ) as caught:
                session.read(1, start=8, stop=32)
            assert (
                caught.value.session,
                caught.value.layer,
                caught.value.head,
                caught.value.page,
            ) == (0, 1, 0, 2)
        with pytest.raises(cxl_kv.ConnectionLostError, match="session 0, layer 0, head 0, page 0"):
            session.write([0, 1], k, v)
        server.wait(30)
        server.stdout.close()
        device.close()
        with pytest.raises(cxl_kv.ConnectionLostError, match="nobody serves there"):
            cxl_kv.open(url)


def test_memory_that_goes_away_behind_a_server_is_named(tmp_path):
    path = tmp_path / "memory"
    with Server(make_core(f"dax:{path}?config=unit&create=1")) as server:
        with cxl_kv.open(server.listen(f"unix:{tmp_path}/kelp.sock")) as device:
            session = device.open_session(SHAPE)
            k, v = tensors()
            session.write([0, 1], k, v)
            os.truncate(path, 2 << 20)  # the header is left
            with pytest.raises(cxl_kv.BusError, match="session 0, layer 1, head 0, page 2") as lost:
                session.write(1, k[1, :, 8:12], v[1, :, 8:12], start=8)
            assert (lost.value.session, lost.value.layer, lost.value.page) == (0, 1, 2)


def test_a_server_outlives_its_memory(tmp_path):
    """Whoever had a session leaves no LD-ID out of use, and who comes then is told."""
    path = tmp_path / "memory"
    with Server(make_core(f"dax:{path}?config=unit&create=1")) as server:
        url = server.listen(f"unix:{tmp_path}/kelp.sock")
        with cxl_kv.open(url) as device:
            session, ld_id = device.open_session(SHAPE), device.ld_id
            session.write([0, 1], *tensors())
            size = path.stat().st_size
            os.truncate(path, 0)
            with pytest.raises(cxl_kv.TransportError, match="truncated or the device unplugged"):
                session.read(0, stop=1)
        settled(lambda: not server.clients)
        with cxl_kv.open(url) as device:
            assert device.ld_id == ld_id
            assert device.transport.load(np.zeros(1, np.uint64)).status == [Status.NOT_MAPPED]
            with pytest.raises(cxl_kv.TransportError, match="truncated or the device unplugged"):
                device.open_session(SHAPE)
            os.truncate(path, size)
            device.open_session(SHAPE).write([0, 1], *tensors())


@pytest.mark.parametrize(
    ("code", "said", "problem"),
    [
        (wire.Reply.OK, {"config": {"name": "x", "warp": 3}}, "none that this version.* 'warp'"),
        (wire.Reply.OK, [], "none that this version of cxl_kv knows .*install the server's"),
        (wire.Reply.OK, {"identity": 0}, "shows 0x0000000000000000; a KELP .* 0x4b454c5000010001"),
        (wire.Reply.OK, {"identity": 0x4B454C50_0002_0001}, "version 2.1 .* this host version 1.1"),
        (
            wire.Reply.OK,
            {"digest": "0123456789ab"},
            f"digest 0123456789ab, and 'unit' has digest {named('unit').digest}",
        ),
        (wire.Reply.FAILED, {"why": "busy"}, "reply 129 is none of an error"),
        (wire.Reply.FAILED, {"error": 3, "message": "busy"}, "busy"),
        (0x55, [1], "reply 85 is none of an error"),
    ],
)
def test_a_server_of_another_version_is_named(tmp_path, code, said, problem):
    if isinstance(said, dict) and said.keys() <= {"identity", "digest"}:
        said = {
            "config": asdict(named("unit")),
            "identity": identity_of(named("unit")),
            "digest": named("unit").digest,
            **{"ld_id": 1, "hints": True, "persistent": False, "formats": [0]},
            **said,
        }
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{tmp_path}/s")
        listener.listen()

        def answer():
            client, _ = listener.accept()
            with client:
                _, number, _ = wire.receive(client)
                wire.send(client, code, number, wire.to_json(said))
                gone.append(client.recv(1) == b"")

        gone = []
        server = threading.Thread(target=answer)
        server.start()
        with pytest.raises(cxl_kv.TransportError, match=problem):
            cxl_kv.open(f"unix:{tmp_path}/s?timeout=20")
        server.join(20)
        assert gone == [True], "the connection is closed"


def test_a_closed_server_says_so(tmp_path):
    """And takes no address, which nobody would serve."""
    path, known = tmp_path / "kelp.sock", tenants(tmp_path, "metrics")
    server = Server(make_core(DEVICE), tokens=known)
    for _ in range(2):
        server.close()
    for call in (
        lambda: server.listen(f"unix:{path}"),
        lambda: server.serve_metrics("127.0.0.1:0"),
        lambda: server.renew(known),
    ):
        with pytest.raises(cxl_kv.TransportError, match="the server was closed"):
            call()
    assert not path.exists()


def framed(version, *parts):
    """A frame as of `wire.frame`, of another version of the protocol."""
    head, *payload = wire.frame(*parts)
    head = bytearray(head[:-4])
    head[5] = version
    return b"".join([head, zlib.crc32(head).to_bytes(4, "little"), *payload])


def test_a_version_is_of_one_protocol(tmp_path):
    """Other requests, another frame or another answer to HELLO have another version: `VERSION`,
    and here."""
    with Server(make_core(DEVICE)) as server:
        with remote.connect(server.listen(f"unix:{tmp_path}/s"), 20) as connection:
            wire.send(connection, wire.Op.HELLO, 1, b"{}")
            said = wire.from_json(wire.receive(connection)[2])
    config = said.pop("config")
    assert config["sessions"] == 8 and wire.VERSION == 3
    assert wire._HEADER.format == "<4sBBHIQI" and [*wire.Reply] == [0x80, 0x81]
    assert [*wire.Op] == [*range(1, 10)] and [op.name for op in wire.Op] == [
        *("HELLO", "LOAD", "STORE", "SPEC_READ", "OPEN", "CLOSE", "EVENTS", "LOCK", "UNLOCK")
    ]
    assert {*said} == {*("identity", "digest", "ld_id", "tenant", "formats", "hints", "persistent")}


@pytest.mark.parametrize("theirs", [wire.VERSION - 1, wire.VERSION + 1])
def test_a_client_of_another_version_is_told_both(tmp_path, caplog, theirs):
    caplog.set_level(logging.INFO, "cxl_kv.serving.server")
    said = f"speaks version {theirs} of the protocol, and this one version {wire.VERSION}"
    hello = framed(theirs, wire.Op.HELLO, 1, b"{}")
    with Server(make_core(DEVICE)) as server:
        for at in (20, 28):  # in two pieces: within the header, and before the payload
            with remote.connect(server.listen(f"unix:{tmp_path}/{at}"), 20) as connection:
                connection.sendall(hello[:at])
                time.sleep(0.1)
                connection.sendall(hello[at:])
                code, _, payload = wire.receive(connection)
                assert code == wire.Reply.FAILED and said in wire.from_json(payload)["message"]
                assert not connection.recv(1)
        settled(
            lambda: (
                [r.fields["why"] for r in caplog.records if r.event == "hung_up"]
                == ["other version"] * 2
            )
        )


@pytest.mark.parametrize("theirs", [wire.VERSION - 1, wire.VERSION + 1])
def test_a_server_of_another_version_of_the_protocol_is_named(tmp_path, theirs):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{tmp_path}/s")
        listener.listen()

        def answer():
            client, _ = listener.accept()
            with client:
                wire.receive(client)
                client.sendall(framed(theirs, wire.Reply.FAILED, 0, b"{}"))

        server = threading.Thread(target=answer)
        server.start()
        said = f"speaks version {theirs} of the protocol, and this one version {wire.VERSION}"
        with pytest.raises(cxl_kv.TransportError, match=said) as refused:
            cxl_kv.open(f"unix:{tmp_path}/s?timeout=20")
        server.join(20)
    assert str(refused.value).endswith("install one version of kelp-cxl on both")


def test_a_server_leaves_its_successors_socket_alone(tmp_path):
    path = tmp_path / "kelp.sock"
    with Server(make_core(DEVICE)) as server:
        url = server.listen(f"unix:{path}")
        path.unlink()  # as some clean-up of temporary files
        with Server(make_core(DEVICE)) as successor:
            successor.listen(url)
            server.close()
            with cxl_kv.open(url) as device:
                assert device.ld_id
        assert not path.exists()


def test_a_stopped_server_with_a_full_queue_keeps_no_other_waiting(tmp_path):
    url = f"unix:{tmp_path}/kelp.sock"
    with socket.socket(socket.AF_UNIX) as stopped, contextlib.ExitStack() as waiting:
        stopped.bind(f"{tmp_path}/kelp.sock")
        stopped.listen(0)
        for _ in range(2):
            client = waiting.enter_context(socket.socket(socket.AF_UNIX))
            client.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                client.connect(f"{tmp_path}/kelp.sock")
        with Server(make_core(DEVICE)) as server:
            with pytest.raises(OSError, match="Address already in use"):
                server.listen(url)


@pytest.mark.parametrize("budget", [1, 63, 1 << 38, 10**30])
def test_a_budget_of_any_size_is_one(tmp_path, budget):
    """More than a register holds is as much as it holds; less than a line is not none."""
    with Server(make_core(DEVICE), budget_bytes=budget) as server:
        with cxl_kv.open(server.listen(f"unix:{tmp_path}/kelp.sock")) as device:
            session = device.open_session(SHAPE)
            lines = server.core.window.values[f"s{session.number}_budget"]
            assert lines == min(max(1, budget // 64), (1 << 32) - 1)


def test_an_error_is_not_hidden_by_the_end_of_its_session(tmp_path):
    """With the connection the server closes the session, so that closing it has nothing to say."""
    shape = cxl_kv.ModelShape(layers=1, kv_heads=1, head_dim=32)
    server = Server(make_core("golden:unit"))
    with cxl_kv.open(server.listen(f"unix:{tmp_path}/kelp.sock")) as device:
        with pytest.raises(cxl_kv.ConnectionLostError, match="layer 0, head 0, page 0"):
            with device.open_session(shape) as session, device.open_session(shape) as other:
                server.close()
                session.read(0, stop=1)
        assert session.closed and other.closed
        session.close()


def test_a_server_that_does_not_answer_is_given_up(tmp_path, monkeypatch):
    """Soon, however long a reply may take later."""
    monkeypatch.setattr(remote, "_HELLO_SECONDS", 0.3)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(f"{tmp_path}/silent.sock")
        silent.listen()
        started = time.monotonic()
        with pytest.raises(cxl_kv.ConnectionLostError, match="silent.sock: .*timed out"):
            cxl_kv.open(f"unix:{tmp_path}/silent.sock")
        assert time.monotonic() - started < 60


def test_the_command_says_what_is_wrong(tmp_path):
    """And nothing else: not that it serves where a later address is refused."""
    here = ["--listen", f"unix:{tmp_path}/kelp.sock"]
    for arguments, problem in (
        (["golden:nonsense"], "unknown configuration"),
        (["golden:unit", "--listen", "udp:x"], "kelp: 'udp:x' is refused"),
        (["golden:unit", "--listen", "unix:"], "'unix:' is refused; legal: unix:/path"),
        (["golden:unit", "--listen", "unix:/tmp/x?admin=1"], "options are for those who connect"),
        (["golden:unit", "--listen", "tcp://127.0.0.1:0"], "kelp: tcp://127.0.0.1:0 is refused"),
        (["golden:unit", "--listen", f"unix:{__file__}"], "end what is there, or name another"),
        (["golden:unit", "--idle", "nan"], "idle = nan is refused"),
        (["golden:unit", "--tokens", ""], "kelp: '': No such file or directory"),
        (["unix:/tmp/kelp.sock"], "'unix:/tmp/kelp.sock' is refused here: it names a server"),
        (["golden:unit", "--budget", "-3"], "budget = -3 is refused"),
        ([f"dax:{tmp_path}/nothing?config=unit"], "create=1"),
        (["golden:unit", *here, "--metrics", "127.0.0.1:0"], "they need a token"),
        (["golden:unit", *here, "--listen", "udp:x"], "kelp: 'udp:x' is refused"),
    ):
        done = subprocess.run(
            [*KELP, "serve", *arguments], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 1 and problem in done.stderr and "Traceback" not in done.stderr
        assert not done.stdout


def _tokens(folder, text):
    """Of a file in which each name in `text` has the token of its own file."""
    (folder / "anew.toml").write_text(text)
    (folder / "anew.toml").chmod(0o600)
    return Tokens.load(folder / "anew.toml")


def _entry(folder, name, more=""):
    return f'[tenants.{name}]\ntoken = "{read_token(folder / f"{name}.token")}"\n{more}\n'


def test_tokens_that_are_read_again_leave_who_stays_alone(tmp_path):
    """Whatever the order of the file: LD-ID, sessions and connections stay. Who is gone, or has
    another token, is hung up on, and its sessions are closed; who is new comes in."""
    known = tenants(tmp_path, "alice", "bob", "carol")
    for name in ("dave", "bob2"):
        add(tmp_path / "others.toml", name, tmp_path / f"{name}.token")
    bob2 = _entry(tmp_path, "bob2").replace("bob2", "bob", 1)
    with Server(make_core(DEVICE), tokens=known) as server:
        url = server.listen("tcp://127.0.0.1:0")

        def opened(name):
            return cxl_kv.open(f"{url}?token_file={tmp_path}/{name}.token")

        alice, bob, carol = map(opened, ("alice", "bob", "carol"))
        sessions = [device.open_session(SHAPE) for device in (alice, bob, carol)]
        k, v = tensors()
        sessions[0].write([0, 1], k, v)
        text = _entry(tmp_path, "dave") + bob2 + _entry(tmp_path, "alice", "sessions = 1")
        server.renew(_tokens(tmp_path, text))
        settled(lambda: server.clients == 1)
        assert (sessions[0].read([0, 1], stop=32)[0] == k).all()
        with pytest.raises(DeviceFullError, match="1 sessions of tenant alice are open"):
            alice.open_session(SHAPE)
        for device, session in ((bob, sessions[1]), (carol, sessions[2])):
            with pytest.raises(TransportError):
                session.read(0, stop=1)
            device.close()
        for name in ("bob", "carol"):
            with pytest.raises(UnsupportedError, match="not one of this server's tenants"):
                opened(name)
        ids = {name: opened(name) for name in ("alice", "bob2", "dave")}
        got = {name: device.transport.ld_id for name, device in ids.items()}
        assert (got["alice"], got["bob2"]) == (1, 2) and got["dave"] not in (0, 1, 2)
        for device in (alice, *ids.values()):
            device.close()


def test_tokens_for_more_tenants_than_there_are_ld_ids_change_nothing(tmp_path):
    """While anonymous clients have some of the fifteen; and once they have left, all come in."""
    known = tenants(tmp_path, "alice")
    names = [f"new-{n}" for n in range(14)]
    for name in names:
        add(tmp_path / "others.toml", name, tmp_path / f"{name}.token")
    text = "".join(_entry(tmp_path, name) for name in ("alice", *names))
    said = []
    with Server(make_core(DEVICE), tokens=known) as server:
        server.journal.warning = lambda event, **fields: said.append((event, fields))
        url = server.listen(f"unix:{tmp_path}/kelp.sock")
        with cxl_kv.open(url) as anonymous:
            server.renew(_tokens(tmp_path, text))
            settled(lambda: said)
            assert said == [("tokens_kept", {"why": "14 tenants are new, and 13 LD-IDs are free"})]
            assert server.tokens is known and anonymous.transport.ld_id == 2
        settled(lambda: not server.clients)
        server.renew(_tokens(tmp_path, text))
        settled(lambda: len(server.tokens.grants) == 15)
        with cxl_kv.open(f"{url}?token_file={tmp_path}/new-13.token") as last:
            assert last.transport.ld_id in range(2, 16)


def test_sighup_reads_the_tokens_again_and_a_broken_file_leaves_them(tmp_path):
    tenants(tmp_path, "alice")
    file = tmp_path / "tokens.toml"
    sound = file.read_text()
    command = ["serve", DEVICE, "--listen", "tcp://127.0.0.1:0", "--tokens", str(file)]
    with subprocess.Popen(
        KELP + command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            url = next(iter(process.stdout)).split()[-1]
            file.write_text("[tenants")
            process.send_signal(signal.SIGHUP)
            told = json.loads(next(iter(process.stderr)))
            assert (told["event"], told["why"]) == ("tokens_kept", f"{file} is no TOML")
            with cxl_kv.open(f"{url}?token_file={tmp_path}/alice.token") as alice:
                file.write_text(sound)
                add(file, "bob", tmp_path / "bob.token")
                process.send_signal(signal.SIGHUP)
                for line in process.stderr:
                    if (told := json.loads(line))["event"] == "tokens_read":
                        break
                assert told["tenants"] == 2
                with cxl_kv.open(f"{url}?token_file={tmp_path}/bob.token") as bob:
                    assert (alice.transport.ld_id, bob.transport.ld_id) == (1, 2)
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_a_signal_before_the_server_waits_for_it_is_kept(tmp_path):
    """Even where a thread that was there before, of a library, could take it."""
    tenants(tmp_path, "alice")
    hup_before_it_waits = """if True:
        import os, pathlib, signal, sys, threading, time
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        import kelp_cli.serve as serve
        from kelp_cli.main import main
        wait = serve._wait
        def later(*arguments):
            pathlib.Path(sys.argv[-1]).write_text("[tenants")
            os.kill(os.getpid(), signal.SIGHUP)
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.2)
            wait(*arguments)
        serve._wait = later
        main()
    """
    command = ["serve", DEVICE, "--listen", f"unix:{tmp_path}/kelp.sock", "--tokens"]
    done = subprocess.run(
        [sys.executable, "-c", hup_before_it_waits, *command, f"{tmp_path}/tokens.toml"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done
    assert json.loads(done.stderr)["event"] == "tokens_kept" and "is closed" in done.stdout


def test_ctrl_c_behind_a_lock_gives_it_back(tmp_path, monkeypatch):
    """Else the server would hang up on the client for keeping it."""
    with Server(make_core(DEVICE)) as server:
        with cxl_kv.open(server.listen(f"unix:{tmp_path}/kelp.sock")) as device:
            transport = device.transport
            ask = transport._ask

            def interrupted(op, *parts):
                reply = ask(op, *parts)
                if op is wire.Op.LOCK:
                    raise KeyboardInterrupt
                return reply

            with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
                patch.setattr(transport, "_ask", interrupted)
                with transport.exclusive():
                    pass
            assert not any(tenant.holder for tenant in server.tenants())
            device.open_session(SHAPE).close()


def test_of_two_servers_at_once_on_a_dead_ones_socket_one_is_refused(tmp_path, monkeypatch):
    """Neither takes the other's socket away: clients would reach one, and the other nobody."""
    path = str(tmp_path / "kelp.sock")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
    rename, quicker = os.rename, []
    with Server(make_core(DEVICE)) as one, Server(make_core(DEVICE)) as two:

        def late(*arguments):
            if not quicker:
                quicker.append(one)
                one.listen(f"unix:{path}")
            rename(*arguments)

        with monkeypatch.context() as patch, pytest.raises(OSError, match="in use"):
            patch.setattr(os, "rename", late)
            two.listen(f"unix:{path}")
        assert os.listdir(tmp_path) == ["kelp.sock"]
        with cxl_kv.open(f"unix:{path}"):
            assert one.clients == 1 and not two.clients
    assert not os.listdir(tmp_path)


def test_a_server_that_is_about_to_listen_keeps_its_socket(tmp_path, monkeypatch):
    with socket.socket(socket.AF_UNIX) as other, Server(make_core(DEVICE)) as server:
        other.bind(f"{tmp_path}/kelp.sock")
        monkeypatch.setattr(time, "sleep", lambda seconds: other.listen(1))
        with pytest.raises(OSError, match="in use"):
            server.listen(f"unix:{tmp_path}/kelp.sock")

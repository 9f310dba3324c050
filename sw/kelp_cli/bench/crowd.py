# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What 200 clients of one server see while others misbehave: the fairness of `kelp serve`.

Server, clients and attackers are processes of their own. Rounds without and with attackers take
turns, so that whatever else the machine does meets both; the answer is the median of their ratios.
"""

import contextlib
import functools
import os
import random
import selectors
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

import cxl_kv
from cxl_kv.backends.remote import connect
from cxl_kv.serving import wire
from cxl_kv.serving.tokens import add, read_token

__all__ = ["ATTACKERS", "Crowd", "measure", "serve_rows", "served"]

_DEVICE = "golden:unit?sessions=16"
_SHAPE = cxl_kv.ModelShape(layers=2, kv_heads=2, head_dim=32)
_TENANTS = 8  #: that behave
_LINES = 16  #: of one request
_KELP = [sys.executable, "-c", "from kelp_cli.main import main; main()"]


# - clients that behave --------------------------------------------------------------------------
class Crowd:
    """Clients that each read some lines of their tenant's session, think, and read again.

    Parameters
    ----------
    url : str
        Of a server.
    folder : Path
        Of the token files `good-0.token` and so on.
    clients : int
    think : float
        Seconds between a reply and the next request, at most; uniform.
    """

    def __init__(self, url: str, folder: Path, *, clients: int, think: float):
        self._think, self._random = think, random.Random(1)
        self._devices, self._requests = [], []
        for i in range(_TENANTS):
            device = cxl_kv.open(f"{url}?token_file={folder}/good-{i}.token")
            self._devices.append(device)
            session = device.open_session(_SHAPE)
            k, v = np.random.default_rng(i).standard_normal((2, 2, 2, 32, 32)).astype(np.float16)
            session.write([0, 1], k, v)
            addresses = session.layout.addresses(np.array([0]), np.array([0]), np.arange(4))
            self._requests.append(np.resize(addresses.reshape(-1), _LINES))
        self._clients = []
        for i in range(clients):
            tenant = i % _TENANTS
            connection = connect(url, 60)
            _greet(connection, folder / f"good-{tenant}.token")
            frame = b"".join(wire.frame(wire.Op.LOAD, 7, self._requests[tenant]))
            self._clients.append((connection, frame))

    def run(self, seconds: float) -> list[float]:
        """Latencies of all requests of that many seconds."""
        out: list[float] = []
        size = sum(piece.nbytes for piece in wire.frame(wire.Reply.OK, 7, bytes(65 * _LINES)))
        start = time.perf_counter()
        due = sorted(
            ((start + self._random.uniform(0, self._think), i) for i in range(len(self._clients))),
            reverse=True,
        )
        sent: dict[int, float] = {}
        got = dict.fromkeys(range(len(self._clients)), 0)
        with selectors.DefaultSelector() as selector:
            for i, (connection, _) in enumerate(self._clients):
                selector.register(connection, selectors.EVENT_READ, i)
            while sent or time.perf_counter() < start + seconds:
                now = time.perf_counter()
                while due and due[-1][0] <= now:
                    _, i = due.pop()
                    if now < start + seconds:
                        sent[i] = time.perf_counter()
                        self._clients[i][0].sendall(self._clients[i][1])
                for key, _ in selector.select(max(0, due[-1][0] - now) if due else 0.01):
                    i = key.data
                    piece = key.fileobj.recv(size - got[i])
                    if not piece:
                        raise RuntimeError(f"the server hung up on client {i} after {got[i]} bytes")
                    got[i] += len(piece)
                    if got[i] == size:
                        now = time.perf_counter()
                        out.append(now - sent.pop(i))
                        got[i] = 0
                        due.append((now + self._random.uniform(0, self._think), i))
                        due.sort(reverse=True)
                if now > start + seconds + 60:
                    raise RuntimeError(f"{len(sent)} requests were not answered in a minute")
        return out

    def close(self) -> None:
        for connection, _ in self._clients:
            connection.close()
        for device in self._devices:
            device.close()


def _greet(connection, token_file) -> None:
    wire.send(connection, wire.Op.HELLO, 1, wire.to_json({"token": read_token(token_file)}))
    if wire.receive(connection)[0] != wire.Reply.OK:
        raise RuntimeError("HELLO was refused")


# - clients that do not --------------------------------------------------------------------------
def _flood(enter):
    """The longest requests, each sent before the reply to the one before is read."""
    connection = enter()
    request = b"".join(
        wire.frame(wire.Op.LOAD, 1, np.arange(wire.MOST_LINES, dtype=np.uint64) * 64)
    )
    connection.sendall(request)
    while True:
        connection.sendall(request)
        wire.receive(connection)


def _crowd(enter):
    """A tenant with many connections that all ask without a pause."""
    connections = [enter() for _ in range(30)]
    request = b"".join(wire.frame(wire.Op.LOAD, 1, np.arange(64, dtype=np.uint64) * 64))
    while True:
        for connection in connections:
            connection.sendall(request)
        for connection in connections:
            wire.receive(connection)


def _slow_reader(enter):
    """Asks for much and reads a byte now and then."""
    connections = [enter() for _ in range(10)]
    for connection in connections:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        wire.send(connection, wire.Op.LOAD, 1, np.arange(wire.MOST_LINES, dtype=np.uint64) * 64)
    while True:
        for connection in connections:
            connection.recv(1)
        time.sleep(0.05)


def _half_frame(enter):
    """Sends a frame byte by byte, and never its end."""
    connections = [enter() for _ in range(10)]
    frame = b"".join(wire.frame(wire.Op.LOAD, 1, np.zeros(1000, np.uint64)))
    for byte in frame[:-1]:
        for connection in connections:
            connection.sendall(bytes([byte]))
        time.sleep(0.02)
    time.sleep(60)


def _lock(enter):
    """Takes the lock and asks for something now and then."""
    connection = enter()
    wire.send(connection, wire.Op.LOCK, 1)
    wire.receive(connection)
    while True:
        wire.send(connection, wire.Op.LOAD, 1, np.arange(64, dtype=np.uint64) * 64)
        wire.receive(connection)
        time.sleep(0.1)


def _malformed_open(enter):
    """Requests to open a session that nobody can, without a pause."""
    connection = enter()
    request = {
        "shape": 0,
        "formats": 0,
        "policy": 0,
        "recency": 0,
        "auto_step": 0,
        "budgets": [[1, []], ["x"] * 1000],
    }
    while True:
        wire.send(connection, wire.Op.OPEN, 1, wire.to_json(request))
        wire.receive(connection)


@functools.cache
def _request_to_open() -> dict:
    """With a budget for each queue."""
    seen: dict = {}
    with cxl_kv.open(_DEVICE) as device:
        device.transport.open_session = lambda request: seen.update(request) or 1 / 0
        with contextlib.suppress(ZeroDivisionError):
            device.open_session(_SHAPE)
    queues = range(_SHAPE.queues)
    return seen | {"budgets": [[0, list(queues)]] + [[64, [queue]] for queue in queues]}


def _open_and_close(enter):
    """Opens sessions with a budget for each queue and closes them, without a pause."""
    connection, request = enter(), wire.to_json(_request_to_open())
    while True:
        wire.send(connection, wire.Op.OPEN, 1, request)
        code, _, reply = wire.receive(connection)
        if code == wire.Reply.OK:
            wire.send(connection, wire.Op.CLOSE, 1, reply)
            wire.receive(connection)


def _strangers(enter):
    """Connections without HELLO, and more of them."""
    for _ in range(400):
        enter(hello=False)
        time.sleep(0.001)


def _broken_frame(enter):
    """Noise, and again."""
    for _ in range(100):
        connection = enter()
        connection.sendall(b"KVC1" + bytes(60))
        connection.recv(100)
        connection.close()


ATTACKERS: dict[str, Callable] = {
    "flood": _flood,
    "crowd": _crowd,
    "slow_reader": _slow_reader,
    "half_frame": _half_frame,
    "lock": _lock,
    "malformed_open": _malformed_open,
    "open_and_close": _open_and_close,
    "strangers": _strangers,
    "broken_frame": _broken_frame,
}


def attack(url: str, folder: Path, names: list[str]) -> None:
    """Run attackers, of tenants `bad-…` in turn, until the process is ended."""

    def once(name, tenant, held):
        def enter(hello=True):
            connection = connect(url, 60)
            held.append(connection)
            if hello:
                _greet(connection, folder / f"bad-{tenant}.token")
            return connection

        with contextlib.suppress(OSError, cxl_kv.CxlKvError, RuntimeError):
            ATTACKERS[name](enter)

    def again(name, tenant):
        while True:
            held: list[socket.socket] = []
            once(name, tenant, held)
            for connection in held:
                connection.close()
            time.sleep(0.1)

    _request_to_open()  # which takes a second of the machine's time, before anything is measured
    for i, name in enumerate(names):
        threading.Thread(target=again, args=(name, i % 4), daemon=True).start()
    print("attacking", flush=True)
    signal.pause()


# - the measurement ------------------------------------------------------------------------------
@contextlib.contextmanager
def served(folder: Path, *options: str) -> Iterator[str]:
    """A `kelp serve` of its own; its URL."""
    for name in [f"good-{i}" for i in range(_TENANTS)] + [f"bad-{i}" for i in range(4)]:
        add(folder / "tokens.toml", name, folder / f"{name}.token")
    with open(folder / "log", "w", encoding="utf-8") as log:
        server = subprocess.Popen(
            [*_KELP, "serve", _DEVICE, "--listen", "tcp://127.0.0.1:0"]
            + ["--tokens", str(folder / "tokens.toml"), *options],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=os.environ | {"COLUMNS": "200"},
        )
    try:
        line = server.stdout.readline()
        if "tcp://" not in line:
            raise RuntimeError(f"kelp serve did not start: {(folder / 'log').read_text()}")
        yield line.split()[-1]
    finally:
        server.terminate()
        server.wait(30)
        server.stdout.close()


def measure(
    *,
    clients: int = 200,
    rounds: int = 5,
    seconds: float = 4.0,
    think: float = 1.0,
    names: list[str] | None = None,
) -> dict:
    """p99 in seconds, `alone` and `beside` attackers (one of each of `names`, or of all), and the
    median of their `ratio`s."""
    with tempfile.TemporaryDirectory() as name, served(folder := Path(name)) as url:
        crowd = Crowd(url, folder, clients=clients, think=think)
        pairs = []
        try:
            crowd.run(seconds / 2)
            for _ in range(rounds):
                alone = _p99(crowd.run(seconds))
                bad = subprocess.Popen(
                    [sys.executable, "-m", __name__, url, name, *(names or ATTACKERS)],
                    stdout=subprocess.PIPE,
                    text=True,
                )
                try:
                    bad.stdout.readline()
                    pairs.append((alone, _p99(crowd.run(seconds))))
                finally:
                    bad.kill()
                    bad.wait()
                    bad.stdout.close()
                time.sleep(0.5)
        finally:
            crowd.close()
    return {
        "alone": statistics.median(a for a, _ in pairs),
        "beside": statistics.median(b for _, b in pairs),
        "ratio": statistics.median(b / a for a, b in pairs),
    }


def _p99(latencies: list[float]) -> float:
    return float(np.percentile(latencies, 99))


def serve_rows() -> Iterator:
    """`serve.fairness`: p99 of 200 clients beside one of each attacker over p99 without (bar 3);
    `serve.p99_ms.*`: the two."""
    from kelp_verif.measure.rows import Row

    found = measure()
    for which in ("alone", "beside"):
        yield Row(f"serve.p99_ms.{which}", 1e3 * found[which], "ms", config="unit")
    yield Row("serve.fairness", found["ratio"], "ratio", "≤ 3", config="unit")


if __name__ == "__main__":
    attack(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])

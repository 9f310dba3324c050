# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""A served device's metrics in Prometheus' text format: the device's counters, the server's own
measurements, and the HTTP that they are fetched by.

The token of `metrics` (`cxl_kv.serving.tokens`) reads everything; a tenant's token reads what the
server measured of that tenant.
"""

from __future__ import annotations

import bisect
from collections import Counter, defaultdict
from itertools import accumulate

from kelp_spec.registers import COUNTERS

from ..core import Core
from ..device import Device
from ..errors import CxlKvError
from ..transport import LocalTransport
from ..version import version
from .connection import Next, Stream
from .tokens import METRICS
from .wire import VERSION, Op

__all__ = ["Measurements", "Scrape", "render", "sessions"]

#: seconds: upper edges of a request's latency
EDGES = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 2.5, 10)
_MOST_HEAD = 8192  #: bytes of an HTTP request


def sessions(device: Device) -> list[dict]:
    """Fields of every open session's `state`, with its number, owner, layers and KV heads; needs
    `ld_id` 0."""
    out = []
    for number in range(device.config.sessions):
        state = device.registers.fields(f"s{number}_state")
        if state["open"] or state["busy"]:
            shape = device.registers.fields(f"s{number}_shape")
            out.append(
                {
                    "session": number,
                    **state,
                    "owner": shape["owner"],
                    "layers": shape["layers"],
                    "kv_heads": shape["kv_heads"],
                }
            )
    return out


class _Text:
    """Lines of the text format."""

    def __init__(self):
        self.lines: list[str] = []

    def metric(self, name, kind, text, samples) -> None:
        """`samples`: pairs of labels, a dict, and a value."""
        self.lines += [f"# HELP kelp_{name} {text}", f"# TYPE kelp_{name} {kind}"]
        self.lines += [f"kelp_{name}{_labels(labels)} {value}" for labels, value in samples]

    def __str__(self) -> str:
        return "\n".join(self.lines) + "\n"


def _labels(labels: dict) -> str:
    text = ",".join(f'{name}="{value}"' for name, value in labels.items())
    return f"{{{text}}}" if text else ""


def render(device: Device) -> str:
    """Counters, latencies, pools and sessions; needs `ld_id` 0."""
    page = _Text()
    metric = page.metric
    counters = device.counters()
    for name, text in COUNTERS:
        if not name.startswith("prefetch_"):
            metric(f"{name}_total", "counter", text, [({}, counters[name])])
    for what in ("issued", "useful", "late", "useless", "dropped"):
        prefix = f"prefetch_{what}_"
        metric(
            f"prefetch_{what}_total",
            "counter",
            f"prefetches {what}, by source",
            [
                ({"source": name.removeprefix(prefix)}, value)
                for name, value in counters.items()
                if name.startswith(prefix)
            ],
        )
    pools = device.pools()
    for what in ("used", "limit", "frame_bytes"):
        unit = "bytes of a frame" if what == "frame_bytes" else f"frames, {what}"
        metric(
            f"pool_{what}",
            "gauge",
            unit,
            [({"pool": pool}, values[what]) for pool, values in pools.items()],
        )
    found = sessions(device)
    metric("sessions_open", "gauge", "open sessions", [({}, sum(s["open"] for s in found))])
    metric(
        "session_step",
        "gauge",
        "decode step of a session",
        [({"session": s["session"], "owner": s["owner"]}, s["step"]) for s in found],
    )
    metric(
        "device_answers_total",
        "counter",
        "answers by the whole part of the binary logarithm of their latency in cycles; "
        + "each stands still at 2^32 - 1",
        [
            ({"kind": kind, "log2_cycles": i}, int(count))
            for kind, bins in device.latency_histograms().items()
            for i, count in enumerate(bins)
        ],
    )
    return str(page)


class Measurements:
    """What a server counts of its clients.

    Parameters
    ----------
    core : Core
    """

    def __init__(self, core: Core):
        self._core = core
        self._device: Device | None = None
        self._requests: Counter = Counter()  # (tenant, request, outcome)
        self._latency: dict = defaultdict(lambda: [[0] * (len(EDGES) + 1), 0.0])
        self._hangups: Counter = Counter()

    def served(self, tenant: str, op: int, seconds: float, ok: bool) -> None:
        """A request was answered so many seconds after its last byte."""
        request = Op(op).name.lower() if op in Op.__members__.values() else "unknown"
        self._requests[tenant, request, "ok" if ok else "failed"] += 1
        bins = self._latency[tenant, request]
        bins[0][bisect.bisect_left(EDGES, seconds)] += 1
        bins[1] += seconds

    def hangup(self, why: str) -> None:
        self._hangups[why] += 1

    def render(self, tenants: list, only: str | None = None) -> str:
        """Text of what was measured, of tenant `only` or of all, and then of the device, too."""
        text = _Text()
        text.metric(
            "build_info",
            "gauge",
            "1; the labels are what is served by what",
            [
                (
                    {"version": version(), "protocol": VERSION}
                    | ({} if only else {"config": self._core.config.name}),
                    1,
                )
            ],
        )
        text.metric(
            "requests_total",
            "counter",
            "requests answered",
            [
                ({"tenant": tenant, "request": request, "outcome": outcome}, n)
                for (tenant, request, outcome), n in sorted(self._requests.items())
                if only in (None, tenant)
            ],
        )
        samples = []
        for (tenant, request), (bins, total) in sorted(self._latency.items()):
            if only in (None, tenant):
                labels = {"tenant": tenant, "request": request}
                for edge, n in zip((*EDGES, "+Inf"), accumulate(bins), strict=True):
                    samples.append(("_bucket", labels | {"le": edge}, n))
                samples += [("_sum", labels, f"{total:.6f}"), ("_count", labels, sum(bins))]
        text.metric("request_seconds", "histogram", "from a request's last byte to its reply", [])
        text.lines += [
            f"kelp_request_seconds{suffix}{_labels(labels)} {value}"
            for suffix, labels, value in samples
        ]
        shown = [t for t in tenants if only in (None, t.name)]
        text.metric(
            "clients",
            "gauge",
            "connections",
            [({"tenant": t.name}, len(t.connections)) for t in shown],
        )
        if only:
            return str(text)
        text.metric(
            "hangups_total",
            "counter",
            "connections that ended, by why",
            [({"why": why.replace(" ", "_")}, n) for why, n in sorted(self._hangups.items())],
        )
        if self._device is None:
            self._device = Device(LocalTransport(self._core, shared=True))
        return str(text) + render(self._device)


class Scrape(Stream):
    """One HTTP request for the metrics; the connection ends with its answer."""

    def __init__(self, server, connection, share):
        super().__init__(server, connection, share)
        self._head = b""
        self.overdue, self.ending = "no request", "served"

    def step(self) -> Next:
        if not self.closing:
            piece = self.read()
            self._head += piece or b""
            whole = b"\r\n\r\n" in self._head or b"\n\n" in self._head
            if not whole and len(self._head) <= _MOST_HEAD:
                return Next.READ
            self.closing = True
            self.write([memoryview(self._answer() if whole else _http("431 Head Too Large", ""))])
        self.flush()
        return Next.WRITE

    def _answer(self) -> bytes:
        first, *lines = self._head.decode("latin-1").splitlines()
        method, _, rest = first.partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        if method != "GET":
            return _http("405 Method Not Allowed", "only GET is served\n", "Allow: GET\r\n")
        if path != "/metrics":
            return _http("404 Not Found", "only /metrics is served\n")
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines)
        }
        scheme, _, token = headers.get("authorization", "").partition(" ")
        grant = self.server.tokens.find(token.strip()) if scheme.lower() == "bearer" else None
        if grant is None:
            return _http("401 Unauthorized", "a token is needed\n", "WWW-Authenticate: Bearer\r\n")
        try:
            body = self.server.measurements.render(
                self.server.tenants(), None if grant.name == METRICS else grant.name
            )
        except CxlKvError as error:
            return _http("503 Service Unavailable", f"{error}\n"[:200])
        return _http("200 OK", body, kind="text/plain; version=0.0.4; charset=utf-8")


def _http(status: str, body: str, more: str = "", kind: str = "text/plain") -> bytes:
    content = body.encode()
    return (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(content)}\r\n"
        + f"Connection: close\r\n{more}\r\n"
    ).encode() + content

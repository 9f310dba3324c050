# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""A device's counters in Prometheus' text format, and an HTTP endpoint that serves them."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from kelp_spec.registers import COUNTERS

from ..device import Device
from ..errors import CxlKvError

__all__ = ["MetricsServer", "render", "sessions"]


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


def render(device: Device) -> str:
    """Counters, pools and sessions; needs `ld_id` 0."""
    lines = []

    def metric(name, kind, text, samples):
        lines.extend([f"# HELP kelp_{name} {text}", f"# TYPE kelp_{name} {kind}"])
        lines.extend(f"kelp_{name}{labels} {value}" for labels, value in samples)

    counters = device.counters()
    for name, text in COUNTERS:
        if not name.startswith("prefetch_"):
            metric(f"{name}_total", "counter", text, [("", counters[name])])
    for what in ("issued", "useful", "late", "useless", "dropped"):
        prefix = f"prefetch_{what}_"
        metric(
            f"prefetch_{what}_total",
            "counter",
            f"prefetches {what}, by source",
            [
                (f'{{source="{name.removeprefix(prefix)}"}}', value)
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
            [(f'{{pool="{pool}"}}', values[what]) for pool, values in pools.items()],
        )
    found = sessions(device)
    metric("sessions_open", "gauge", "open sessions", [("", len(found))])
    metric(
        "session_step",
        "gauge",
        "decode step of a session",
        [(f'{{session="{s["session"]}"}}', s["step"]) for s in found],
    )
    return "\n".join(lines) + "\n"


class MetricsServer:
    """Serves `GET /metrics` of one device on `host`:`port` (0: any; the attribute `port` tells)."""

    def __init__(self, device: Device, host: str, port: int):
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                if self.path.split("?")[0] != "/metrics":
                    self.send_error(404, "only /metrics is served")
                    return
                try:
                    body = render(device).encode()
                except CxlKvError as error:
                    self.send_error(503, str(error)[:200])
                    return
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer((host, port), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(
            target=self._server.serve_forever, name="kelp metrics", daemon=True
        ).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

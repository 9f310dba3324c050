# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""``kelp serve``: one device for many clients of `cxl_kv`."""

import signal
import threading
from typing import Annotated

import typer

from .output import UserError, console

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    @app.command()
    def serve(
        device: Annotated[
            str,
            typer.Argument(
                help="Device to serve: golden:CONFIG, rtl:CONFIG or dax:/path (docs/cxl_kv.md)."
            ),
        ] = "golden:trace",
        listen: Annotated[
            list[str] | None,
            typer.Option(help="unix:/path or tcp://host:port; may be given more than once."),
        ] = None,
        metrics: Annotated[
            str | None, typer.Option(help="HOST:PORT on which Prometheus finds /metrics.")
        ] = None,
        budget: Annotated[
            int | None,
            typer.Option(
                help="DRAM bytes per queue that a tenant may keep before its pages go first."
            ),
        ] = None,
    ) -> None:
        """Serve one device to many processes; each is a tenant with sessions of its own. Ends on
        Ctrl-C."""
        from cxl_kv.errors import CxlKvError
        from cxl_kv.serving.server import Server
        from cxl_kv.url import make_core

        try:
            core = make_core(device)
        except (ValueError, CxlKvError) as error:
            raise UserError(str(error)) from None
        stop = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())
        with Server(core, budget_bytes=budget) as server:
            for url in listen or ["unix:/tmp/kelp.sock"]:
                try:
                    url = server.listen(url)
                except (ValueError, OSError) as error:
                    raise UserError(f"{url}: {error}") from None
                console.print(f"serving {device} on {url}")
            exported = _export(core, metrics) if metrics else None
            stop.wait()
            if exported:
                exported.close()
            console.print(
                f"{server.clients} clients hung up on; the device is closed"
                if server.clients
                else "the device is closed"
            )


def _export(core, where):
    from cxl_kv.device import Device
    from cxl_kv.serving.metrics import MetricsServer
    from cxl_kv.transport import LocalTransport

    host, _, port = where.rpartition(":")
    if not host or not port.isdigit():
        raise UserError(f"metrics = {where!r} is refused; legal: HOST:PORT")
    try:
        server = MetricsServer(Device(LocalTransport(core, shared=True)), host, int(port))
    except OSError as error:
        raise UserError(f"{where}: {error.strerror}") from None
    console.print(f"metrics on http://{host}:{server.port}/metrics")
    return server

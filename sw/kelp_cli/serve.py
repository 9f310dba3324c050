# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""``kelp serve``: one device for many clients of `cxl_kv`."""

import errno
import logging
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from .output import UserError, console

__all__ = ["register"]

_SIGNALS = {signal.SIGINT, signal.SIGTERM}
_SOCKET = "unix:/tmp/kelp.sock"  #: where it listens when nothing is said
_DEVICE = (
    "Device: golden:CONFIG, rtl:CONFIG, dax:/path, cxl:/path or serial:/path (docs/cxl_kv.md)."
)
_LISTEN = f"unix:/path or tcp://host:port; may be given more than once. {_SOCKET} when left out."


def _cannot_listen(where: str, error: OSError) -> str:
    hint = "; end what is there, or name another" if error.errno == errno.EADDRINUSE else ""
    return f"{where}: {error.strerror or error}{hint}"


def _server(device: str, core, **how):
    """A Server; a UserError, and `core` closed, where it finds no file descriptors, or the device
    fails."""
    from cxl_kv.errors import CxlKvError
    from cxl_kv.serving.server import Server

    try:
        return Server(core, **how)
    except OSError as error:
        core.close()
        raise UserError(
            f"{device} is not served: {error.strerror}; let the process open more files (ulimit -n)"
        ) from None
    except CxlKvError as error:
        core.close()
        raise UserError(f"{device} is not served: {error}") from None


def _read_again(server, path: str) -> None:
    """The file of tokens anew; a broken one leaves those that there were."""
    from cxl_kv.serving.tokens import TokenError, Tokens

    try:
        server.renew(Tokens.load(path))
    except TokenError as error:
        server.journal.warning("tokens_kept", why=str(error))


@contextmanager
def _heard(numbers: set[signal.Signals]) -> Iterator[socket.socket]:
    """A socket with a byte for every signal of `numbers` that comes, its number.

    Not a mask and sigwait: threads that libraries started at their import have no mask, and one of
    them takes a signal that comes while the main thread does not wait, which ends the process.
    """
    reader, told = socket.socketpair()
    told.setblocking(False)
    with reader, told:
        woken = signal.set_wakeup_fd(told.fileno(), warn_on_full_buffer=False)
        before = {number: signal.signal(number, lambda *_: None) for number in numbers}
        try:
            yield reader
        finally:
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
            signal.set_wakeup_fd(woken)


def _wait(server, heard: socket.socket, tokens: str | None) -> None:
    """Until a signal ends the server; a second one does not wait for sessions to close."""
    while heard.recv(1)[0] == signal.SIGHUP:
        _read_again(server, tokens)
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)


def register(app: typer.Typer) -> None:
    @app.command()
    def serve(
        device: Annotated[str, typer.Argument(help=_DEVICE)] = "golden:trace",
        listen: Annotated[list[str] | None, typer.Option(help=_LISTEN)] = None,
        tokens: Annotated[
            str | None,
            typer.Option(
                help="Who may connect over TCP and read metrics (kelp token); SIGHUP: anew."
            ),
        ] = None,
        expose: Annotated[
            bool,
            typer.Option(help="Allow addresses that other machines reach; nothing is encrypted."),
        ] = False,
        metrics: Annotated[
            str | None,
            typer.Option(help="HOST:PORT on which Prometheus finds /metrics, with a token."),
        ] = None,
        budget: Annotated[
            int | None,
            typer.Option(
                help="DRAM bytes per queue that a tenant may keep before its pages go first."
            ),
        ] = None,
        fetch: Annotated[
            bool,
            typer.Option(help="Fetch what tenants' choices near memory want (docs/cxl_kv.md)."),
        ] = True,
        idle: Annotated[
            float,
            typer.Option(help="Seconds after which a client without a request is hung up on."),
        ] = 3600.0,
    ) -> None:
        """Serve one device to many processes; each is a tenant with sessions of its own, or one of
        the tenant that its token names. Logs JSON lines to stderr. Ends on Ctrl-C or SIGTERM."""
        from cxl_kv.arguments import integer, real
        from cxl_kv.errors import CxlKvError
        from cxl_kv.serving.journal import JsonFormatter
        from cxl_kv.serving.server import Limits
        from cxl_kv.serving.tokens import Tokens
        from cxl_kv.url import make_core

        try:
            real("idle", idle, 0.001, 31_536_000)
            if budget is not None:
                integer("budget", budget, 1)
            known = None if tokens is None else Tokens.load(tokens)
            core = make_core(device)
        except (ValueError, CxlKvError) as error:
            raise UserError(str(error)) from None
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(JsonFormatter())
        log = logging.getLogger("cxl_kv")
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        numbers = _SIGNALS | ({signal.SIGHUP} if tokens else set())
        limits = Limits(idle_seconds=idle)
        try:
            with (
                _heard(numbers) as heard,
                _server(
                    device, core, budget_bytes=budget, tokens=known, limits=limits, fetch=fetch
                ) as server,
            ):
                places = [
                    (server.listen, url, f"serving {device} on") for url in listen or [_SOCKET]
                ]
                if metrics:
                    places.append((server.serve_metrics, metrics, "metrics on"))
                lines = []
                for begin, where, what in places:
                    try:
                        lines.append(f"{what} {begin(where, exposed=expose)}")
                    except ValueError as error:
                        raise UserError(str(error)) from None
                    except OSError as error:
                        raise UserError(_cannot_listen(where, error)) from None
                for line in lines:  # once nothing is refused any more
                    console.print(line)
                _wait(server, heard, tokens)
                hung_up = server.clients
        finally:
            log.removeHandler(handler)
        console.print(
            f"{hung_up} clients hung up on; the device is closed"
            if hung_up
            else "the device is closed"
        )

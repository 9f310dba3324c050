# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""``kelp top``: a served device, live."""

import time
from typing import Annotated

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table

from .output import UserError, console, show

__all__ = ["register"]

_LONGEST = 86400  #: seconds between two looks
_SHADES = " ░▒▓█"


def register(app: typer.Typer) -> None:
    @app.command()
    def top(
        url: Annotated[
            str, typer.Argument(help="A server of your own: unix:/path (kelp serve).")
        ] = "unix:/tmp/kelp.sock",
        interval: Annotated[float, typer.Option(help="Seconds between two looks.")] = 1.0,
        once: Annotated[bool, typer.Option(help="Look once and end.")] = False,
    ) -> None:
        """Hit rate, residency per layer and head, prefetch usefulness, pools, sessions and events
        of a served device."""
        import cxl_kv
        from cxl_kv.url import split

        if not 0 < interval <= _LONGEST:
            raise UserError(f"interval = {interval} is refused; legal: above 0, to {_LONGEST}")
        try:
            scheme, _, options = split(url)
            ours = scheme == "unix" and "admin" not in options
            with cxl_kv.open(
                url + ("&" if "?" in url else "?") + "admin=1" if ours else url
            ) as device:
                before, events = device.counters(), []
                if once:
                    show(_screen(url, device, before, None, events))
                    return
                with Live(console=console, refresh_per_second=8) as live:
                    while True:
                        now = device.counters()
                        events = (events + device.events())[-8:]
                        live.update(_screen(url, device, now, before, events))
                        before = now
                        time.sleep(interval)
        except (ValueError, cxl_kv.CxlKvError) as error:
            raise UserError(str(error)) from None


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.2f} %" if whole else "–"


def _screen(url, device, now, before, events):
    from cxl_kv.serving.metrics import sessions

    # Totals are modulo 2^48.
    recent = {
        name: (value - (before or {}).get(name, 0)) % (1 << 48) for name, value in now.items()
    }
    totals = Table(title=f"{url} · {device.config.name}", title_justify="left")
    for column in ("", "total", "now"):
        totals.add_column(column, justify="right" if column else "left")
    totals.add_row(
        "hit rate", *(_percent(c["hits"], c["hits"] + c["misses"]) for c in (now, recent))
    )
    for name in (
        "accesses",
        "reads",
        "writes",
        "evictions",
        "write_backs",
        "fetches",
        "hint_updates",
        "refused",
    ):
        totals.add_row(
            name.replace("_", " "), f"{now[name]:,}", f"{recent[name]:,}" if before else ""
        )
    useful, issued = (
        {
            k: sum(v for n, v in c.items() if n.startswith(f"prefetch_{k}_"))
            for k in ("useful", "issued")
        }
        for c in (now, recent)
    )
    totals.add_row(
        "prefetch useful",
        _percent(useful["useful"], useful["issued"]),
        _percent(issued["useful"], issued["issued"]),
    )
    pools = Table(title="pools", title_justify="left")
    for column in ("pool", "used", "limit"):
        pools.add_column(column, justify="left" if column == "pool" else "right")
    for pool, values in device.pools().items():
        if values["used"]:
            pools.add_row(pool, f"{values['used']:,}", f"{values['limit']:,}")
    parts = [totals, pools]
    for s in sessions(device):
        parts.append(_residency(device, s))
    if events:
        log = Table(title="events", title_justify="left")
        for column in ("code", "session", "queue", "page"):
            log.add_column(column)
        for e in events:
            log.add_row(e["code"], *(str(e[name]) for name in ("session", "queue", "page")))
        parts.append(log)
    return Group(*parts)


def _residency(device, s):
    """Resident bytes per layer (rows) and KV head (columns), as shades of the fullest queue."""
    number, heads = s["session"], s["kv_heads"]
    values = []
    with device.transport.exclusive():
        kept = device.registers.read(f"s{number}_queue")
        for queue in range(s["layers"] * heads):
            device.registers.write(f"s{number}_queue", queue=queue)
            values.append(64 * device.registers.read(f"s{number}_resident"))
        device.registers.write(f"s{number}_queue", kept)
    most = max(max(values), 1)
    table = Table(
        title=f"session {number} · owner {s['owner']} · step {s['step']} · "
        + f"{'decode' if s['decode'] else 'prefill'}",
        title_justify="left",
    )
    table.add_column("layer", justify="right")
    table.add_column("residency by head")
    table.add_column("bytes", justify="right")
    for layer in range(s["layers"]):
        row = values[layer * heads : (layer + 1) * heads]
        table.add_row(
            str(layer),
            "".join(_SHADES[-(-v * (len(_SHADES) - 1) // most)] * 2 for v in row),
            f"{sum(row):,}",
        )
    return table

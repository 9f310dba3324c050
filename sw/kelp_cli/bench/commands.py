# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""``kelp bench``: every figure of the contract, measured and held to its bar."""

import json
from dataclasses import asdict, replace
from datetime import date
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from kelp_spec.files import write_whole

from ..install import missing_package
from ..output import UserError, anyway, console, show, writable
from .bars import NOT_MEASURED, meet_bars

__all__ = ["GROUPS", "register"]

_GROUPS = (
    "metadata",
    "codec",
    "blocks",
    "endpoint",
    "kelp",
    "miss",
    "scale",
    "waiting",
    "policy",
    "select",
    "replay",
    "lab",
    "host",
    "serve",
)
_ELSEWHERE = ("hf",)  # needs the packages of another environment: named groups only
GROUPS = _GROUPS + _ELSEWHERE


def register(app: typer.Typer) -> None:
    @app.command()
    def bench(
        only: Annotated[
            list[str] | None,
            typer.Option(
                help=f"Groups to run, of {', '.join(_GROUPS)}; all when left out. hf: in "
                + ".venv.hf alone."
            ),
        ] = None,
        output: Annotated[Path, typer.Option("-o", help="Where the rows go, as JSON.")] = Path(
            "build/bench.json"
        ),
    ) -> None:
        """Measure cycles, rates and ratios; write build/bench.json and print the table. Exit 1
        where one misses its bar; wall-clock rates only warn, since they are of the machine too."""
        wanted = only or list(_GROUPS)
        unknown = [g for g in wanted if g not in GROUPS]
        if unknown:
            raise typer.BadParameter(f"{unknown[0]!r} is no group; legal: {', '.join(_GROUPS)}")
        writable(output)
        _others(output, set())  # refuses another file before what may be hours
        rows = []
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task("bench", total=len(wanted))
            for group in wanted:
                progress.update(task, description=f"measuring {group}")
                rows += [(row, f"kelp bench --only {group}") for row in _rows(group)]
                progress.advance(task)
        today = date.today().isoformat()
        listed = _others(output, {command for _, command in rows}) + [
            {**asdict(r), "met": r.met, "command": command, "measured": today}
            for r, command in rows
        ]
        with anyway(lambda: _show([row for row, _ in rows], whole=only is None)):
            write_whole(output, json.dumps(listed, indent=2, ensure_ascii=False) + "\n")
        console.print(f"{len(rows)} rows measured, {len(listed)} in {output}")
        raise typer.Exit(0 if meet_bars([row for row, _ in rows]) else 1)


def _others(output: Path, measured: set[str]) -> list[dict]:
    """Rows of an earlier run, of groups that were not measured now: groups may need different
    environments."""
    if output.is_char_device():  # /dev/full has no end
        return []
    try:
        rows = json.loads(output.read_text(encoding="utf-8"))
        return [row for row in rows if row["command"] not in measured]
    except FileNotFoundError:
        return []
    except (ValueError, TypeError, KeyError):
        raise UserError(
            f"{output} holds no rows of kelp bench; name another file with -o, or remove it"
        ) from None


def _rows(group: str):
    from kelp_verif.measure import rows as bench_rows

    if group == "metadata":
        return list(bench_rows.metadata_rows())
    if group == "codec":
        return list(bench_rows.codec_rows())
    if group == "blocks":
        return list(bench_rows.block_rows())
    from kelp_verif.measure import endpoint as bench_endpoint

    if group == "endpoint":
        return list(bench_endpoint.endpoint_rows())
    if group == "kelp":
        return list(bench_endpoint.kelp_rows())
    if group == "miss":
        return list(bench_endpoint.miss_rows())
    if group == "scale":
        small = bench_endpoint.scale_row("64x64")
        large = bench_endpoint.scale_row("640x8192")
        return [small, replace(large, goal=f"≤ {1.05 * small.value:.4f}")]
    if group == "waiting":
        from .waiting import waiting_rows

        return list(waiting_rows())
    if group == "policy":
        from .policy import policy_rows

        return list(policy_rows())
    if group == "select":
        from .choice import select_rows

        return list(select_rows())
    if group == "lab":
        from .lab import lab_rows

        return list(lab_rows())
    if group == "serve":
        from .crowd import serve_rows

        return list(serve_rows())
    if group in ("host", "hf"):
        from . import host as bench_host

        return _host_rows(bench_host, group)
    from .replay import replay_rows

    return list(replay_rows())


def _host_rows(bench_host, group):
    try:
        return list(bench_host.host_rows() if group == "host" else bench_host.hf_rows())
    except ModuleNotFoundError as error:
        said = missing_package(error, f"group {group}")
        again = f" bench --only {group}" if said.endswith("bin/kelp") else ""
        raise UserError(said + again) from None


def _show(rows, *, whole: bool) -> None:
    """`whole`: all groups, so that what cannot be measured is listed too."""
    table = Table(title="KELP measured", title_justify="left")
    for column in ("name", "value", "unit", "goal", "met", "configuration", "cycles"):
        table.add_column(
            column, justify="right" if column in ("value", "cycles") else "left", overflow="fold"
        )
    for r in rows:
        met = {None: "", True: Text("yes", "green"), False: Text("no", "bold red")}[r.met]
        table.add_row(
            r.name,
            f"{r.value:.4g}",
            r.unit,
            r.goal,
            met,
            r.config,
            f"{r.cycles:,}" if r.cycles else "",
        )
    for name, unit, goal in NOT_MEASURED if whole else ():
        table.add_row(name, "", unit, goal, "not measured", "", "")
    show(table)

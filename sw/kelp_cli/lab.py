# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""``kelp lab``: what a policy is worth on recorded traces."""

import csv
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from kelp_spec.files import write_whole

from .output import UserError, anyway, drawable, progress_bar, show, writable, write_json

__all__ = ["register"]

#: What is run where nothing is asked for: the ladder from LRU to Belady.
LADDER = ("lru", "ema", "kelp", "belady")
_MOST_JOBS = 1024


def register(app: typer.Typer) -> None:
    app.command()(lab)


def lab(
    traces: Annotated[
        list[Path],
        typer.Argument(
            metavar="TRACE…",
            help="Recordings, such as data/traces/attn_0.npz.",
            show_default=False,
        ),
    ],
    residency: Annotated[
        str, typer.Option(help="Frames as shares of the pages at the end; comma between.")
    ] = "0.125,0.25,0.5",
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="A policy id, several with commas, 'all', or FILE.py:Class; repeat for more.",
            show_default=False,
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="[POLICY.]PARAMETER=V1[,V2…]: an axis of the sweep; repeat for more.",
            show_default=False,
        ),
    ] = None,
    reads: Annotated[
        list[str] | None,
        typer.Option(
            help="Read rule: recorded (when left out), quest (bounds from the recording's q and "
            + "k), or top-p=P,k=K on the recorded mass; repeat for more.",
            show_default=False,
        ),
    ] = None,
    accesses: Annotated[
        int | None,
        typer.Option(help="Only so many accesses, in whole steps.", show_default=False),
    ] = None,
    first_step: Annotated[
        int,
        typer.Option(
            help="Begin here, where a page opens; what was written before is the history."
        ),
    ] = 0,
    jobs: Annotated[int, typer.Option(help="Processes; -1 is all cores.")] = -1,
    cluster: Annotated[
        str | None,
        typer.Option(
            help="A Dask scheduler, tcp://HOST:PORT, instead of this machine's cores.",
            show_default=False,
        ),
    ] = None,
    store: Annotated[
        Path, typer.Option(help="Finished rows; a sweep that was killed goes on from there.")
    ] = Path("build/lab/rows.jsonl"),
    fresh: Annotated[bool, typer.Option("--fresh", help="Do not look into the store.")] = False,
    json: Annotated[
        Path | None,
        typer.Option("--json", help="Also write the rows to this file (- is stdout)."),
    ] = None,
    csv_file: Annotated[
        Path | None, typer.Option("--csv", help="Also write the rows to this file.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Also write one page with plots to this file.")
    ] = None,
) -> None:
    """Replay recordings under policies and report hits, flash reads and the gap to Belady.

    Pooled LRU, pooled Belady and LRU per queue always run: the gap and the flash reads are
    measured against them. docs/lab.md states the rules, the policies and how to write one.
    """
    from kelp_sim.lab import gaps
    from kelp_sim.lab.engine import PolicyError
    from kelp_sim.lab.sweep import ClusterError
    from kelp_sim.trace.trace import TraceError

    asked = Study(
        traces=traces,
        shares=_shares(residency),
        policies=_policies(policy),
        axes=_axes(settings or []),
        rules=list(dict.fromkeys(reads or ["recorded"])),
        accesses=accesses,
        first_step=first_step,
    )
    if html is not None and len(asked.rules) > 1:
        raise UserError(f"--html {html} draws one read rule; --reads names {len(asked.rules)}")
    if jobs != -1 and not 1 <= jobs <= _MOST_JOBS:
        raise UserError(f"--jobs {jobs} is refused; legal: 1 … {_MOST_JOBS}, or -1 for all cores")
    writable(csv_file, html, None if fresh else store, json=json, inputs=traces)
    drawable(html)
    try:
        rows = _sweep(asked.cells(), jobs=jobs, cluster=cluster, store=None if fresh else store)
    except (TraceError, ClusterError, PolicyError, ValueError) as error:
        raise UserError(str(error)) from None
    entries = gaps.summary(rows)

    def tell() -> None:
        for rule in asked.rules if str(json) != "-" else ():
            for table in _tables([e for e in entries if e["rule"] == rule], len(traces), rule):
                show(table)

    with anyway(tell):
        _write(rows, entries, asked.rules, json=json, csv_file=csv_file, html=html)


@dataclass(frozen=True, kw_only=True)
class Study:
    """Which recordings are replayed, under which policies with which settings, in how many
    frames."""

    traces: list[Path]
    shares: list[float]
    policies: list[str]
    axes: dict[str, list[float]]
    rules: list[str]
    accesses: int | None
    first_step: int

    def cells(self) -> list:
        """The replays that this takes, each of which can be done: what cannot be is refused before
        the first begins."""
        from kelp_sim.lab import cells
        from kelp_sim.lab.policies import load
        from kelp_sim.lab.reads import timeline

        for name in self.policies:
            load(name)
        found = []
        for rule in self.rules:
            lines = {
                str(path): timeline(path, rule, self.accesses, self.first_step)
                for path in self.traces
            }
            wanted = cells.cells(
                self.traces,
                self.shares,
                dict.fromkeys(self.policies),
                rule=rule,
                accesses=self.accesses,
                first_step=self.first_step,
                settings=self.axes,
            )
            for cell in wanted:
                cells.refuse(lines[cell.trace].sequence, cell)
            found += wanted
        return found


def _shares(residency: str) -> list[float]:
    try:
        return [float(text) for text in residency.split(",")]
    except ValueError:
        raise UserError(
            f"--residency {residency!r} is not numbers with commas between, such as 0.125,0.25"
        ) from None


def _policies(texts: list[str] | None) -> list[str]:
    from kelp_sim.lab.policies import IDS

    return [
        name for text in texts or LADDER for name in (IDS if text == "all" else text.split(","))
    ]


def _write(rows: list[dict], entries: list[dict], rules: list[str], *, json, csv_file, html):
    """The rows, and `entries`, their summary, into the files that are asked for."""
    from kelp_sim.lab import gaps

    losses = gaps.losses(rows)
    if json is not None:
        content = {"rules": rules, "rows": rows, "summary": entries, "losses": losses}
        write_json(json, "lab", content)
    if csv_file is not None:
        write_whole(csv_file, _csv(rows))
    if html is not None:
        from kelp_sim.lab.page import page

        write_whole(html, page(rows, entries, losses))


def _axes(settings: list[str]) -> dict[str, list[float]]:
    """``ema.tau=500,1000`` → {"ema.tau": [500, 1000]}."""
    found = {}
    for text in settings:
        name, equals, values = text.partition("=")
        if name in found:
            raise UserError(f"--set {name} is given twice; legal: once, with all its values")
        try:
            found[name] = list(dict.fromkeys(_number(value) for value in values.split(",")))
        except ValueError:
            equals = ""
        if not (equals and name):
            raise UserError(
                f"--set {text!r} is refused; legal: a parameter and numbers with commas "
                + "between, such as tau=500,1000 or ema.tau=500,1000"
            )
    return found


def _number(text: str) -> float:
    try:
        return int(text)
    except ValueError:
        return float(text)


def _sweep(wanted, **choices):
    from kelp_sim.lab.sweep import sweep

    with progress_bar() as bar:
        task = bar.add_task("policies", total=len(wanted))

        def heard(cell, stored):
            parameters = "".join(f" {name}={value:g}" for name, value in cell.parameters)
            bar.update(
                task,
                advance=1,
                description=f"{cell.policy}{parameters} {cell.scope} {cell.residency:g}"
                + (" (stored)" if stored else ""),
            )

        return sweep(wanted, progress=heard, **choices)


def _csv(rows: list[dict]) -> str:
    text = io.StringIO()
    fields = list(rows[0])
    writer = csv.DictWriter(text, fields, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        parameters = " ".join(f"{name}={value:g}" for name, value in row["parameters"].items())
        writer.writerow(
            row
            | {
                "parameters": parameters,
                "queue_hit_rates": " ".join(f"{rate:.6f}" for rate in row["queue_hit_rates"]),
            }
        )
    return text.getvalue()


def _tables(entries: list[dict], traces: int, rule: str):
    """Who waits, then who hits."""
    of = f"{traces} trace{'s' * (traces != 1)}" + (f", {rule}" if rule != "recorded" else "")
    yield _table(
        entries,
        f"{of}: token time, layers and tokens that wait",
        "token time: a step's cycles over those with everything resident, by the model of "
        + "docs/replay.md",
        _waits,
    )
    yield _table(
        entries,
        f"{of}: hit rate, flash reads, gap",
        "flash reads relative to LRU per queue; gap: 0 is LRU over one pool, 1 is Belady over "
        + "one pool",
        _figures,
    )


def _table(entries: list[dict], title: str, caption: str, figures):
    from rich.table import Table

    from kelp_sim.lab.gaps import name_of

    shares = list(dict.fromkeys(e["residency"] for e in entries))
    table = Table(
        "policy",
        "scope",
        *(f"{share:.1%} resident" for share in shares),
        title=title,
        caption=caption,
        title_justify="left",
        caption_justify="left",
        box=None,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for policy, scope in dict.fromkeys((name_of(e), e["scope"]) for e in entries):
        own = {e["residency"]: e for e in entries if (name_of(e), e["scope"]) == (policy, scope)}
        table.add_row(policy, scope, *(figures(own[share]) for share in shares))
    for column in table.columns:
        column.no_wrap = True
    return table


def _waits(entry: dict) -> str:
    return f"{entry['token_time']:.2f} {entry['waiting_layers']:.1%} {entry['waiting_tokens']:.1%}"


def _figures(entry: dict) -> str:
    flash, gap = entry["flash_against_lru_per_head"], entry["gap"]
    return (
        f"{entry['hit_rate']:.2%} {'–' if flash is None else f'{flash:.2f}'} "
        + f"{'–' if gap is None else f'{gap:+.2f}'}"
    )

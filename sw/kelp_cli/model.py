# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""``kelp model``: sizes, latencies, hit rates, power and cost of a machine with KV endpoints, and
what comes of the published figures."""

from pathlib import Path
from typing import Annotated

import typer

from kelp_spec.files import write_whole

from .output import UserError, anyway, console, drawable, show, writable, write_json

__all__ = ["register"]

_STYLE = {"reproduced": "green", "depends": "yellow", "refuted": "bold red"}
_NAMES = "kv, wall, latency, endpoint, pipeline, serving, flash, cost, select, verdicts"


def register(app: typer.Typer) -> None:
    app.command()(model)


def model(
    topics: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TOPIC…]", help=f"Of {_NAMES}; all when left out.", show_default=False
        ),
    ] = None,
    inputs: Annotated[
        Path | None,
        typer.Option(
            help="A TOML with every input; what is shipped when left out.", show_default=False
        ),
    ] = None,
    write_inputs: Annotated[
        Path | None,
        typer.Option(
            help="Write the shipped inputs to this file, to be edited, and stop.",
            show_default=False,
        ),
    ] = None,
    bench: Annotated[
        Path | None,
        typer.Option(
            help="Take the RTL's figures from this file of `kelp bench`.", show_default=False
        ),
    ] = None,
    recordings: Annotated[
        list[Path] | None,
        typer.Option(
            help="Measure how much attention the newest pages have; repeat for more.",
            show_default=False,
        ),
    ] = None,
    json: Annotated[
        Path | None,
        typer.Option("--json", help="Also write everything to this file (- is stdout)."),
    ] = None,
    png: Annotated[
        Path | None, typer.Option("--png", help="Also draw the plots into this file.")
    ] = None,
    arithmetic: Annotated[
        bool,
        typer.Option(
            "--arithmetic/--no-arithmetic", help="Show how each published figure was computed."
        ),
    ] = True,
) -> None:
    """Model a machine with KV endpoints: KV sizes, capacity, latency, hit rates, flash, power,
    cost.

    Every input is in one TOML. Each published figure gets a verdict, computed with the inputs
    as shipped: reproduced, depends (on what), or refuted. docs/model.md has the findings.
    """
    from kelp_sim.model import report
    from kelp_sim.model.inputs import DEFAULTS, InputError, load
    from kelp_sim.trace.trace import TraceError

    names = (*report.TOPICS, "verdicts")
    for topic in topics or ():
        if topic not in names:
            raise UserError(f"topic {topic!r} is unknown; legal: {', '.join(names)}")
    if write_inputs is not None:
        _write_inputs(write_inputs)
        return
    writable(png, json=json, inputs=[inputs, bench, *(recordings or ())])
    drawable(png)
    try:
        chosen, shipped = (
            _measured(load(path), bench, recordings) for path in (inputs or DEFAULTS, DEFAULTS)
        )
    except (InputError, TraceError) as error:
        raise UserError(str(error)) from None
    with console.status("simulating decode steps …") if console.is_terminal else _quiet():
        wanted = [t for t in report.TOPICS if not topics or t in topics]
        shown = report.tables(chosen, wanted)
        found = report.all_findings(shipped) if not topics or "verdicts" in topics else []

    def tell() -> None:
        for table in shown if str(json) != "-" else ():
            show(_table(table))
        if found and str(json) != "-":
            show(_verdicts(found, arithmetic))

    with anyway(tell):
        if png is not None:
            from kelp_sim.model.plots import png as drawn

            write_whole(png, drawn(chosen))
        if json is not None:
            write_json(
                json, "model", report.as_json(str(inputs) if inputs else "shipped", shown, found)
            )


def _write_inputs(path: Path) -> None:
    from kelp_sim.model.inputs import DEFAULTS

    writable(path)
    if path.exists():
        raise UserError(f"--write-inputs {path}: the file exists; name another")
    write_whole(path, DEFAULTS.read_text(encoding="utf-8"))
    console.print(f"{path} written: edit it, then kelp model --inputs {path}", soft_wrap=True)


def _measured(inputs, bench: Path | None, recordings: list[Path] | None):
    """Inputs with what a bench and recordings say in place of what is assumed."""
    from kelp_sim.model import attention
    from kelp_sim.model.inputs import with_bench

    if bench is not None:
        inputs = with_bench(inputs, bench)
    return attention.measured(inputs, recordings) if recordings else inputs


def _quiet():
    import contextlib

    return contextlib.nullcontext()


def _new(title: str, caption: str = ""):
    from rich import box
    from rich.table import Table

    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        caption=caption or None,
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )


def _table(table):
    shown = _new(table.title, "\n".join(table.notes))
    for _key, heading, spec in table.columns:
        shown.add_column(heading, justify="right" if spec else "left", overflow="fold")
    for row in table.rows:
        shown.add_row(*table.cells(row))
    return shown


def _verdicts(found, arithmetic: bool):
    from rich.text import Text

    counts = ", ".join(
        f"{sum(f.verdict == verdict for f in found)} {verdict}" for verdict in _STYLE
    )
    shown = _new("Published figures, with the inputs as shipped", counts)
    shown.add_column("figure", overflow="fold")
    for heading in ("claimed", "computed"):
        shown.add_column(heading, justify="right", no_wrap=True)
    shown.add_column("verdict", no_wrap=True)
    shown.add_column(
        "arithmetic; what it depends on" if arithmetic else "depends on", overflow="fold"
    )
    topic = None
    for f in found:
        if f.topic != topic:
            topic = f.topic
            shown.add_row(Text(topic, style="bold cyan"))
        why = f"{f.condition}: {f.under_condition:.4g}" if f.verdict == "depends" else ""
        text = f"{f.arithmetic}. {why}".strip(". ") if arithmetic else why
        shown.add_row(
            "  " + f.what,
            f"{f.claimed} {f.unit}".strip(),
            f"{f.computed:,.4g}",
            Text(f.verdict, style=_STYLE[f.verdict]),
            text,
        )
    return shown

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""``kelp replay``: a recorded trace through the RTL or the golden model."""

import shlex
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ..config import CONFIGURATION
from ..output import UserError, anyway, drawable, progress_bar, show, writable, write_json
from . import engines
from .choices import FORMATS, Choices, Source

__all__ = ["Engine", "register"]


class Engine(StrEnum):
    """Who replays."""

    RTL = "rtl"
    GOLDEN = "golden"


def register(app: typer.Typer) -> None:
    app.command()(replay)


def replay(
    trace: Annotated[
        Path,
        typer.Argument(help="A recording, such as data/traces/attn_0.npz.", show_default=False),
    ],
    engine: Annotated[
        Engine,
        typer.Option(
            help="The generated RTL in Verilator, checked by the golden model; or the "
            + "golden model alone."
        ),
    ] = Engine.RTL,
    config: Annotated[str, typer.Option(help=CONFIGURATION)] = "trace",
    residency: Annotated[
        float, typer.Option(help="Frames, as a share of the pages at the end.")
    ] = 0.25,
    lockstep: Annotated[
        bool,
        typer.Option(
            "--lockstep/--free-running",
            help="RTL: one request at a time, every op equal; or full speed, every op judged.",
        ),
    ] = False,
    accesses: Annotated[
        int | None,
        typer.Option(
            help="Replay whole steps that hold so many accesses; all by default.",
            show_default=False,
        ),
    ] = None,
    first_step: Annotated[
        int,
        typer.Option(
            help="Begin here, where a page opens; what was written before is the history."
        ),
    ] = 0,
    layers: Annotated[
        str | None,
        typer.Option(
            help="Only layers FIRST-LAST of the recording, which are layers 0, 1, … of the replay.",
            show_default="all",
        ),
    ] = None,
    formats: Annotated[
        list[str] | None,
        typer.Option(
            help="Stored formats K,V (or one for both), for all layers or FIRST-LAST:K,V, "
            + "by the recording's layers; repeat for ranges."
        ),
    ] = None,
    policy: Annotated[
        str,
        typer.Option(
            help="Eviction policy: ema (0), the plain formula (1 − score) · recency; kelp "
            + "(1), docs/policy.md."
        ),
    ] = "ema",
    tau: Annotated[float, typer.Option(help="Policy 0: recency time constant in steps.")] = 1000.0,
    alpha: Annotated[int, typer.Option(help="Policy 0: EMA weight in 1/256.")] = 26,
    source: Annotated[
        Source,
        typer.Option(
            help="Policy 0: scores from accesses, or from the attention mass that the "
            + "host pushes after each step."
        ),
    ] = Source.OBSERVED,
    mass_shift: Annotated[int, typer.Option(help="Pushed scores: x = mass · 2^this.")] = 0,
    budget: Annotated[
        str,
        typer.Option(
            help="equal: each queue its share of the frames; none: the queue that asks "
            + "gives way."
        ),
    ] = "equal",
    prefetch: Annotated[
        str,
        typer.Option(
            help="Sources to switch on: window, layer_ahead, previous, comma between; or none."
        ),
    ] = "none",
    window: Annotated[
        int, typer.Option(help="Pages each side that the window source fetches.")
    ] = 1,
    seed: Annotated[
        int, typer.Option(help="Seeds the model's initial values and the host's first tag.")
    ] = 1,
    tier_latency: Annotated[
        int | None,
        typer.Option(
            help="Full speed: cycles of 1 ns from a page's miss to its first byte, and of a write.",
            show_default="25000",
        ),
    ] = None,
    waves: Annotated[
        Path | None,
        typer.Option(
            help="RTL: write waves of the replay, without its history, to this .vcd file "
            + "(slow, large: use --accesses)."
        ),
    ] = None,
    json: Annotated[
        Path | None,
        typer.Option("--json", help="Also write the figures to this file (- is stdout)."),
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="Also write table, plots and page into this directory.")
    ] = None,
    plant: Annotated[
        str | None,
        typer.Option(
            help="RTL: a self-test of the comparison: plant a wrong victim, drop a "
            + "commit, or flip a data bit."
        ),
    ] = None,
) -> None:
    """Replay a recorded trace, compare every line and decision with the golden model, and
    report; exit 1 on a mismatch.

    The recording's own keys and values are written and read, made-up lines where it has none. At
    full speed the RTL replays the same requests once more with everything resident, for the token
    time. A layer's reads are issued when
    the layer before has been answered; docs/replay.md states the rules, and what the reference
    rows are.
    """
    from kelp_sim import report as reports

    if engine is Engine.GOLDEN and (lockstep or waves or plant):
        raise UserError("--lockstep, --waves and --plant are for --engine rtl")
    if waves is not None and waves.suffix != ".vcd":
        raise UserError(f"--waves {waves}: the file must end in .vcd")
    chosen = Choices(
        trace=trace,
        config=config,
        residency=residency,
        accesses=accesses,
        first_step=first_step,
        layers=layers,
        formats=formats or FORMATS,
        policy=policy,
        tau=tau,
        alpha=alpha,
        source=source,
        mass_shift=mass_shift,
        budget=budget,
        prefetch=prefetch,
        window=window,
        seed=seed,
        tier_latency=tier_latency,
    ).plan()
    writable(waves, json=json, folder=report, inputs=[trace])
    drawable(report)
    command = "kelp " + shlex.join(sys.argv[1:])
    with progress_bar() as bar:
        if engine is Engine.GOLDEN:
            result = engines.golden(chosen, command, bar)
        else:
            result = engines.rtl(chosen, command, bar, lockstep=lockstep, plant=plant, waves=waves)
    with anyway(lambda: None if str(json) == "-" else show(reports.table(result))):
        if json is not None:
            write_json(json, "report", reports.as_json(result))
        if report is not None:
            reports.write(result, report)
    raise typer.Exit(1 if result.mismatches else 0)

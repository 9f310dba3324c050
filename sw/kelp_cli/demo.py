# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""``kelp demo``: the default recording through the RTL, in lock-step and at full speed, with a
report."""

import multiprocessing
import shlex
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from .config import CONFIGURATION
from .output import UserError, anyway, console, drawable, progress_bar, show, writable
from .replay.choices import Choices, parse_policy
from .replay.engines import lockstep_part, measured, resident, run_rtl

__all__ = ["LOCKSTEP_NEEDS", "RECORDING", "register"]

RECORDING = Path("data/traces/smollm2_argparse.npz")
#: What is replayed at full speed begins here: 128 pages of each queue are written.
FIRST_STEP = 1024
#: Of these layers alone, so that in as many minutes steps follow one another with frames enough
#: for a working set; and in lock-step, which takes longest, of these.
LAYERS, LOCKSTEP_LAYERS = "12-17", "0-14"
#: An eighth of what is there at the end: memory is what is short.
RESIDENCY = 0.125
#: One pool for pages in three stored formats, whichever part is replayed.
FORMATS = ("0-2:int8,int4", "3-13:fp8_e4m3,int4", "14-:int8,int4")
#: What the lock-step part must have met, or it has shown little.
LOCKSTEP_NEEDS = {"misses": 200, "victims": 200, "write_backs": 50}


def register(app: typer.Typer) -> None:
    app.command()(demo)


def demo(
    trace: Annotated[Path, typer.Argument(help="A recording.")] = RECORDING,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="Where report.html, report.json and the plots go."),
    ] = Path("build/demo"),
    config: Annotated[
        str, typer.Option(help=f"{CONFIGURATION} It fits the recording.")
    ] = "smollm2",
    accesses: Annotated[int, typer.Option(help="Accesses at full speed.")] = 2_000,
    first_step: Annotated[
        int, typer.Option(help="Full speed begins here, where a page opens.")
    ] = FIRST_STEP,
    layers: Annotated[
        str | None,
        typer.Option(
            help="Layers FIRST-LAST of it.",
            show_default=f"of the default recording {LAYERS}, {LOCKSTEP_LAYERS} in lock-step; all "
            + "of another",
        ),
    ] = None,
    residency: Annotated[
        float, typer.Option(help="Frames, as a share of the pages at the end.")
    ] = RESIDENCY,
    lockstep_accesses: Annotated[
        int, typer.Option(help="Accesses in lock-step, from the recording's first step on.")
    ] = 400,
    policy: Annotated[
        str,
        typer.Option(
            help="Eviction policy: ema (0) or kelp (1); with kelp the report has the "
            + "ladder from LRU to it."
        ),
    ] = "kelp",
    tier_latency: Annotated[
        int | None,
        typer.Option(
            help="Full speed: cycles of 1 ns from a page's miss to its first byte.",
            show_default="25000",
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Seeds the model's initial values and the host's first tag.")
    ] = 1,
) -> None:
    """Watch the generated RTL serve a recorded transformer's KV reads and agree with the golden
    model; exit 1 if it does not."""
    from kelp_sim import report
    from kelp_sim.replay.figures import summarise
    from kelp_spec.policy import Policy

    command = shlex.join(["kelp", *sys.argv[1:]])
    ours = layers is None and trace == RECORDING
    chosen = Choices(
        trace=trace,
        config=config,
        accesses=accesses,
        first_step=first_step,
        layers=LAYERS if ours else layers,
        residency=residency,
        formats=FORMATS,
        policy=policy,
        seed=seed,
        tier_latency=tier_latency,
        prefetch="none" if parse_policy(policy) == Policy.KELP else "layer_ahead",
    )
    whole = chosen.plan()
    begun = replace(
        chosen,
        first_step=0,
        accesses=lockstep_accesses,
        layers=LOCKSTEP_LAYERS if ours else layers,
    )
    begun.plan()  # what is wrong with it, or with the folder, is said now
    writable(folder=output)
    drawable(output)
    context = multiprocessing.get_context("spawn")
    with progress_bar() as bar, ProcessPoolExecutor(1, mp_context=context) as beside:
        waiting = beside.submit(_lockstep, begun)
        free, meter = run_rtl(whole, bar, lockstep=False)
        clock = resident(whole, bar)
        task = bar.add_task("reference policies, lock-step beside", total=5)
        result = summarise(
            whole,
            measured(free, clock),
            meter,
            engine="rtl",
            command=command,
            ladder=whole.setup.policy == Policy.KELP,
            on_start=lambda name: bar.update(task, advance=1),
        )
        bar.update(task, advance=1, description="RTL in lock-step, beside all this")
        stepped = waiting.result()
        result = replace(
            result,
            lockstep_accesses=stepped.part.accesses,
            lockstep=stepped.part.counts,
            mismatches=free.mismatches + stepped.mismatches,
            mismatch_examples=(
                *(f"lock-step: {text}" for text in stepped.examples),
                *(f"free-running: {text}" for text in free.examples),
            ),
        )
    with anyway(lambda: show(report.table(result))), progress_bar() as bar:
        task = bar.add_task("report", total=7)
        files = report.write(result, output, on_start=lambda name: bar.update(task, advance=1))
    for path in files:
        console.print(f"  {path}")
    short = [
        f"{result.lockstep[name]} {name}"
        for name, least in LOCKSTEP_NEEDS.items()
        if result.lockstep[name] < least
    ]
    if short and not result.mismatches:
        raise UserError(
            f"the lock-step part met too little to show much: {', '.join(short)}; more "
            + "with --lockstep-accesses"
        )
    raise typer.Exit(1 if result.mismatches else 0)


@dataclass(frozen=True, kw_only=True)
class _Stepped:
    part: object  #: kelp_sim.replay.figures.LockStepPart
    mismatches: int
    examples: tuple[str, ...]


def _lockstep(begun: Choices) -> _Stepped:
    """The lock-step part, in a process of its own: it is half of the demo's time."""
    plan = begun.plan()
    replay, _ = run_rtl(plan, Progress(disable=True), lockstep=True)
    return _Stepped(
        part=lockstep_part(plan, replay), mismatches=replay.mismatches, examples=replay.examples
    )

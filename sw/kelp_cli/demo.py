# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""``kelp demo``: the default recording through the RTL, in lock-step and at full speed, with a
report."""

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from .output import UserError, console, progress_bar
from .replay.choices import Choices, parse_policy
from .replay.engines import lockstep_part, measured, run_rtl

__all__ = ["CHOICES", "KELP_CHOICES", "LOCKSTEP_NEEDS", "register"]

#: What is replayed. The part begins where 80 pages of each queue are written: with a quarter of the
#: pages resident the device is neither idle nor thrashing. Layers 0–2 and 3–5 are stored in pages
#: of two sizes, so two pools are at work.
CHOICES = dict(
    residency=0.25,
    first_step=768,
    formats=("0-2:int8,int4", "3-:raw16"),
    prefetch="layer_ahead",
)
#: Under `kelp`: one pool, so that the lab's figures are the device's, and few enough frames that it
#: has something to prefetch.
KELP_CHOICES = dict(
    residency=0.18,
    first_step=768,
    formats=("0-2:int8,int4", "3-:fp8_e4m3,int4"),
)
#: What the lock-step part must have met, or it has shown little.
LOCKSTEP_NEEDS = {"misses": 200, "victims": 200, "write_backs": 50, "prefetches": 50}


def register(app: typer.Typer) -> None:
    app.command()(demo)


def demo(
    trace: Annotated[Path, typer.Argument(help="A recording with keys and values.")] = Path(
        "data/traces/attn_0.npz"
    ),
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="Where report.html, report.json and the plots go."),
    ] = Path("build/demo"),
    accesses: Annotated[int, typer.Option(help="Accesses at full speed.")] = 20_000,
    lockstep_accesses: Annotated[int, typer.Option(help="Accesses in lock-step.")] = 2_000,
    policy: Annotated[
        str,
        typer.Option(
            help="Eviction policy: ema (0) or kelp (1); with kelp the report has the "
            + "ladder from LRU to it."
        ),
    ] = "kelp",
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
    output.mkdir(parents=True, exist_ok=True)  # before the minutes that come, if it cannot be
    choices = KELP_CHOICES if parse_policy(policy) == Policy.KELP else CHOICES
    whole, part = (
        Choices(trace=trace, accesses=count, seed=seed, policy=policy, **choices).plan()
        for count in (accesses, lockstep_accesses)
    )
    with progress_bar() as bar:
        stepped, _ = run_rtl(part, bar, lockstep=True)
        free, meter = run_rtl(whole, bar, lockstep=False)
        task = bar.add_task("reference policies and report", total=10)
        result = summarise(
            whole,
            replace(
                measured(free),
                mismatches=free.mismatches + stepped.mismatches,
                examples=[f"lock-step: {text}" for text in stepped.examples]
                + [f"free-running: {text}" for text in free.examples],
            ),
            meter,
            engine="rtl",
            command=command,
            lockstep=lockstep_part(part, stepped),
            ladder=whole.setup.policy == Policy.KELP,
            on_start=lambda name: bar.update(task, advance=1),
        )
        files = report.write(result, output, on_start=lambda name: bar.update(task, advance=1))
    console.print(report.table(result))
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

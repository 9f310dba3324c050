# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""``kelp replay``: a recorded trace through the RTL or the golden model."""

import contextlib
import re
import shlex
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from .output import UserError, console, write_json

__all__ = [
    "FORMATS",
    "Engine",
    "lockstep_counts",
    "make_plan",
    "parse_formats",
    "parse_policy",
    "parse_sources",
    "progress_bar",
    "register",
    "run_rtl",
]

#: Stored formats where none are asked for: three of the five, one pool.
FORMATS = ("0-2:int8,int4", "3-:fp8_e4m3,int4")


class Engine(StrEnum):
    """Who replays."""

    RTL = "rtl"
    GOLDEN = "golden"


class Source(StrEnum):
    """Where scores come from."""

    OBSERVED = "observed"
    PUSHED = "pushed"


def register(app: typer.Typer) -> None:
    @app.command()
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
        config: Annotated[
            str, typer.Option(help="Named configuration (kelp config lists them).")
        ] = "trace",
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
        formats: Annotated[
            list[str] | None,
            typer.Option(
                help="Stored formats K,V (or one for both), for all layers or FIRST-LAST:K,V; "
                + "repeat for ranges."
            ),
        ] = None,
        policy: Annotated[
            str,
            typer.Option(
                help="Eviction policy: ema (0), the plain formula (1 − score) · recency; kelp "
                + "(1), docs/policy.md."
            ),
        ] = "ema",
        tau: Annotated[
            float, typer.Option(help="Policy 0: recency time constant in steps.")
        ] = 1000.0,
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
            str | None,
            typer.Option(
                help="Sources to switch on: window, layer_ahead, previous, policy (kelp's "
                + "own), comma between; or none.",
                show_default="the policy's own",
            ),
        ] = None,
        window: Annotated[
            int, typer.Option(help="Pages each side that the window source fetches.")
        ] = 1,
        seed: Annotated[
            int, typer.Option(help="Seeds the model's initial values and the host's first tag.")
        ] = 1,
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

        The recording's own keys and values are written and read. A layer's reads are issued when
        the layer before has been answered; docs/replay.md states the rules, and what the reference
        rows are.
        """
        from kelp_sim import report as reports
        from kelp_spec.config import named

        if engine is Engine.GOLDEN and (lockstep or waves or plant):
            raise UserError("--lockstep, --waves and --plant are for --engine rtl")
        if waves is not None and waves.suffix != ".vcd":
            raise UserError(f"--waves {waves}: the file must end in .vcd")
        chosen = make_plan(
            trace,
            named(config),
            residency=residency,
            accesses=accesses,
            first_step=first_step,
            formats=formats or FORMATS,
            policy=parse_policy(policy),
            prefetch=prefetch,
            window=window,
            tau=tau,
            alpha=alpha,
            source=source,
            mass_shift=mass_shift,
            budget=budget,
            seed=seed,
        )
        command = "kelp " + shlex.join(sys.argv[1:])
        with progress_bar() as bar:
            if engine is Engine.GOLDEN:
                result = _golden(chosen, command, bar)
            else:
                result = _rtl(chosen, command, bar, lockstep=lockstep, plant=plant, waves=waves)
        if json is not None:
            write_json(json, "report", reports.as_json(result))
        if report is not None:
            reports.write(result, report)
        if json is None or str(json) != "-":
            console.print(reports.table(result))
        raise typer.Exit(1 if result.mismatches else 0)


# - choices ----------------------------------------------------------------------------------------


def parse_formats(texts) -> tuple:
    """``K,V`` or ``FORMAT`` for all layers; ``FIRST-LAST:K,V`` (LAST may be left out) for a range,
    ranges in order and without a gap."""
    from kelp_golden.setup import LayerFormats
    from kelp_spec.formats import Format

    found, next_layer = [], 0
    for text in texts:
        match = re.fullmatch(r"(?:(\d+)(-)?(\d+)?:)?([a-z0-9_]+)(?:,([a-z0-9_]+))?", text)
        if match is None or (match[3] and not match[2]):
            raise UserError(f"--formats {text!r} is not K,V or FIRST-LAST:K,V")
        first = int(match[1] or 0)
        last = (int(match[3]) if match[3] else 1023 if match[2] else first) if match[1] else 1023
        if first != next_layer or last < first:
            raise UserError(
                f"--formats {text!r}: ranges must follow one another; layer {next_layer} is next"
            )
        try:
            k = Format.named(match[4])
            v = Format.named(match[5] or match[4])
        except ValueError as error:
            raise UserError(f"--formats {text!r}: {error}") from None
        found.append(LayerFormats(last_layer=last, k=k, v=v))
        next_layer = last + 1
    return tuple(found)


def parse_policy(text: str):
    """A policy by its name or number."""
    from kelp_spec.policy import POLICIES, Policy

    if text in POLICIES:
        return POLICIES[text]
    if text in {str(int(policy)) for policy in Policy}:
        return Policy(int(text))
    raise UserError(
        f"--policy {text!r} is unknown; legal: "
        + f"{', '.join(f'{name} or {int(policy)}' for name, policy in POLICIES.items())}"
    )


def parse_sources(text: str | None, policy=None) -> frozenset:
    """Prefetch sources by name, commas between: those that a recording can trigger under
    ``policy``. None: the policy's own."""
    from kelp_spec.metadata import PrefetchSource
    from kelp_spec.policy import Policy

    own = [PrefetchSource.POLICY] if policy == Policy.KELP else []
    if text is None:
        return frozenset(own)
    legal = {
        s.name.lower(): s
        for s in (PrefetchSource.WINDOW, PrefetchSource.LAYER_AHEAD, PrefetchSource.PREVIOUS, *own)
    }
    names = [name for name in text.split(",") if name]
    if names == ["none"]:
        return frozenset()
    for name in names:
        if name not in legal:
            raise UserError(f"--prefetch {name!r} is unknown; legal: {', '.join(legal)}, or none")
    return frozenset(legal[name] for name in names)


def make_plan(
    trace: Path,
    config,
    *,
    formats,
    prefetch: str | None,
    window: int,
    policy=None,
    source: Source = Source.OBSERVED,
    **choices,
):
    """A plan from what the command line says; UserError where it cannot be. Under `kelp` the device
    keeps one frame free (docs/policy.md)."""
    from kelp_sim.replay.plan import plan
    from kelp_sim.trace.trace import read
    from kelp_spec.metadata import PrefetchSource, ScoreSource
    from kelp_spec.policy import Policy

    policy = Policy.EMA if policy is None else policy
    sources = parse_sources(prefetch, policy)
    choices["source"] = ScoreSource[source.name]
    if policy == Policy.KELP:
        if source is Source.PUSHED:
            raise UserError("--source pushed is for --policy ema; kelp takes no pushed scores")
        choices |= dict(low_water=0, high_water=1)
    window = window if PrefetchSource.WINDOW in sources else 0
    try:
        return plan(
            read(trace),
            config,
            formats=parse_formats(formats),
            prefetch=sources,
            window=window,
            policy=policy,
            **choices,
        )
    except ValueError as error:  # TraceError among them: each is one line that names what is wrong
        raise UserError(str(error)) from None


# - engines ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def progress_bar() -> Iterator[Progress]:
    """On stderr, so that a pipe sees results alone."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=False) as bar:
        yield bar


def _golden(chosen, command: str, bar: Progress):
    from kelp_sim.replay import replay

    task = bar.add_task("golden model: accesses", total=len(chosen.sequence))
    return replay.golden(
        chosen,
        command=command,
        progress=lambda done: bar.update(task, completed=done),
        on_start=_references(bar),
    )


def _references(bar: Progress):
    task = bar.add_task("reference policies", total=4, visible=False)

    def start(name: str) -> None:
        bar.update(task, description=f"reference: {name}", visible=True, advance=1)

    return start


def _job(chosen, *, plant=None, waves=None):
    from kelp_rtl.replay import Job

    requests = chosen.requests
    return Job(
        setup=chosen.setup,
        write=requests["write"],
        queue=requests["queue"],
        page=requests["page"],
        kv=requests["kv"],
        line=requests["line"],
        row=chosen.row,
        step=chosen.step,
        lines=chosen.lines,
        hints=chosen.hints,
        seed=chosen.seed,
        plant=plant,
        waves=waves,
    )


def _rtl(
    chosen,
    command: str,
    bar: Progress,
    *,
    lockstep: bool = False,
    plant: str | None = None,
    waves: Path | None = None,
):
    """One RTL replay as a result."""
    from kelp_sim.replay.figures import summarise

    replay, meter = run_rtl(chosen, bar, lockstep=lockstep, plant=plant, waves=waves)
    accesses = len(chosen.sequence) if lockstep else 0
    return summarise(
        chosen,
        engine="rtl",
        command=command,
        meter=meter,
        counters=replay.counters,
        mismatches=replay.mismatches,
        examples=replay.examples,
        line_requests=replay.requests,
        lockstep_accesses=accesses,
        lockstep=lockstep_counts(replay) if lockstep else {},
        seconds=replay.seconds,
        cycles=replay.cycles,
        flash_bytes=(replay.flash_read_bytes, replay.flash_write_bytes),
        latency=(replay.hit_latency, replay.miss_latency),
        on_start=_references(bar),
    )


def lockstep_counts(replay) -> dict[str, int]:
    """What a lock-step replay went through, from the device's counters."""
    c = replay.counters
    issued = sum(count for name, count in c.items() if name.startswith("prefetch_issued_"))
    return {
        "misses": c["misses"],
        "victims": c["evictions"],
        "write_backs": c["write_backs"],
        "prefetches": issued,
    }


def run_rtl(
    chosen, bar: Progress, *, lockstep: bool, plant: str | None = None, waves: Path | None = None
):
    """The replay and its meter."""
    from kelp_rtl import replay
    from kelp_rtl.device import DriverError
    from kelp_sim.replay.figures import Meter
    from kelp_sim.trace.trace import TraceError

    if plant is not None and plant not in replay.PLANTS:
        raise UserError(f"--plant {plant!r} is unknown; legal: {', '.join(replay.PLANTS)}")
    what = "RTL in lock-step" if lockstep else "RTL free-running"
    task = bar.add_task(f"{what}: building the model", total=None)
    meters = []

    def begin(golden) -> None:
        meters.append(Meter(golden, chosen.setup.queues))
        meters[0].begin()

    def progress(done: int) -> None:
        history = "writing the prefill" if not meters else "line requests"
        bar.update(
            task, description=f"{what}: {history}", completed=done, total=len(chosen.requests)
        )

    try:
        job = _job(chosen, plant=plant, waves=waves)
        engine = replay.lockstep if lockstep else replay.free_running
        done = engine(job, progress=progress, on_begin=begin, on_step=lambda: meters[0].end_step())
    except (TraceError, replay.ReplayError) as error:
        raise UserError(str(error)) from None
    except DriverError as error:
        raise UserError(f"the RTL replay stopped: {error}") from None
    bar.update(task, completed=len(chosen.requests), total=len(chosen.requests))
    return done, meters[0]

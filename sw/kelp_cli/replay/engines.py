# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""A plan carried out by the golden model or by the RTL, with a bar that shows how far it is."""

import contextlib
from dataclasses import replace
from pathlib import Path

from rich.progress import Progress

from ..output import UserError

__all__ = ["golden", "lockstep_part", "measured", "resident", "rtl", "run_rtl"]


def golden(chosen, command: str, bar: Progress):
    """The golden model's replay as a result."""
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


def rtl(
    chosen,
    command: str,
    bar: Progress,
    *,
    lockstep: bool = False,
    plant: str | None = None,
    waves: Path | None = None,
):
    """One RTL replay as a result; at full speed with a second one, of everything resident, for the
    token time. Waves are of the first alone, and then there is no second."""
    from kelp_sim.replay.figures import LockStepPart, summarise

    replay, meter = run_rtl(chosen, bar, lockstep=lockstep, plant=plant, waves=waves)
    clock = None if lockstep or waves else resident(chosen, bar)
    return summarise(
        chosen,
        measured(replay, clock),
        meter,
        engine="rtl",
        command=command,
        lockstep=lockstep_part(chosen, replay) if lockstep else LockStepPart(),
        on_start=_references(bar),
    )


def measured(replay, resident_step_cycles=None):
    """What the RTL's replay did, as every engine's figures are taken; its clock counts where that
    of the same with everything resident is given."""
    from kelp_sim.replay.figures import Measured

    return Measured(
        counters=replay.counters,
        mismatches=replay.mismatches,
        examples=replay.examples,
        line_requests=replay.requests,
        seconds=replay.seconds,
        cycles=replay.cycles,
        step_cycles=None if resident_step_cycles is None else replay.step_cycles,
        resident_step_cycles=resident_step_cycles,
        flash_bytes=(replay.flash_read_bytes, replay.flash_write_bytes),
        latency=(replay.hit_latency, replay.miss_latency),
    )


def lockstep_part(chosen, replay):
    """What a lock-step replay of `chosen` went through, from the device's counters."""
    from kelp_sim.replay.figures import LockStepPart

    c = replay.counters
    issued = sum(count for name, count in c.items() if name.startswith("prefetch_issued_"))
    met = {
        "misses": c["misses"],
        "victims": c["evictions"],
        "write_backs": c["write_backs"],
        "prefetches": issued,
    }
    return LockStepPart(accesses=len(chosen.sequence), counts=met)


def run_rtl(
    chosen,
    bar: Progress,
    *,
    lockstep: bool,
    plant: str | None = None,
    waves: Path | None = None,
    checked: bool = True,
):
    """The replay on the RTL, and its meter; `checked` with the stream rule asserted."""
    from kelp_rtl import replay
    from kelp_sim.replay.figures import Meter

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

    with _faults():
        job = _job(chosen, plant=plant, waves=waves, checked=checked)
        engine = replay.lockstep if lockstep else replay.free_running
        done = engine(job, progress=progress, on_begin=begin, on_step=lambda: meters[0].end_step())
    bar.update(task, completed=len(chosen.requests), total=len(chosen.requests))
    return done, meters[0]


def resident(chosen, bar: Progress, *, checked: bool = True):
    """[steps]: the RTL's cycles of each step with everything resident; None where the configuration
    has too few frames for that."""
    from kelp_rtl import replay

    setup = chosen.resident_setup
    if setup is None:
        return None
    task = bar.add_task("RTL, everything resident", total=len(chosen.requests))
    with _faults():
        job = replace(_job(chosen, checked=checked), setup=setup)
        return replay.resident_cycles(job, progress=lambda done: bar.update(task, completed=done))


@contextlib.contextmanager
def _faults():
    """A replay that cannot be carried out is a UserError."""
    from kelp_rtl import replay
    from kelp_rtl.device import DriverError
    from kelp_sim.trace.trace import TraceError

    try:
        yield
    except (TraceError, replay.ReplayError) as error:
        raise UserError(str(error)) from None
    except DriverError as error:
        raise UserError(f"the RTL replay stopped: {error}") from None


def _job(chosen, *, plant=None, waves=None, checked):
    from kelp_rtl.device import FlashTiming
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
        flash=FlashTiming(latency=chosen.tier_latency, write_latency=chosen.tier_latency),
        plant=plant,
        waves=waves,
        checked=checked,
    )

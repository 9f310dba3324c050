# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Rows of ``kelp bench`` for who waits, and for how long, on the real model's recording of this
repository (docs/replay.md, "Who waits")."""

from collections.abc import Iterator
from pathlib import Path

__all__ = ["waiting_rows"]

_RESIDENCY = 0.25
_POLICIES = ("lru", "kelp", "belady")


def waiting_rows(recording: Path | None = None, accesses: int = 2_000) -> Iterator:
    """Of the whole recording, by the model, policies over one pool; then of the demo's part on the
    RTL's clock, under `kelp`."""
    from kelp_sim.lab.cells import Cell, row
    from kelp_verif.measure.rows import Row

    from ..demo import FIRST_STEP, FORMATS, LAYERS, RECORDING
    from ..output import progress_bar
    from ..replay.choices import Choices
    from ..replay.engines import resident, run_rtl

    recording = recording or RECORDING
    at = f"{_RESIDENCY:g}"
    for policy in _POLICIES:
        found = row(Cell(str(recording), "recorded", None, _RESIDENCY, policy, "pooled"))
        yield Row(f"waiting.{policy}.token_time.{at}", found["token_time"], "ratio", "", at)
        yield Row(f"waiting.{policy}.layers.{at}", found["waiting_layers"], "fraction", "", at)
        yield Row(f"waiting.{policy}.tokens.{at}", found["waiting_tokens"], "fraction", "", at)
    chosen = Choices(
        trace=recording,
        config="smollm2",
        residency=_RESIDENCY,
        accesses=accesses,
        first_step=FIRST_STEP,
        layers=LAYERS,
        formats=FORMATS,
        policy="kelp",
    ).plan()
    with progress_bar() as bar:
        done, _meter = run_rtl(chosen, bar, lockstep=False)
        clock = resident(chosen, bar)
    yield Row(
        f"waiting.rtl.token_time.{at}",
        float(done.step_cycles.sum() / clock.sum()),
        "ratio",
        "",
        chosen.setup.config.name,
        int(done.step_cycles.sum()),
    )

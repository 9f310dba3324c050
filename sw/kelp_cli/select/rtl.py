# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""``kelp select TRACE… --rtl``: the clock that token times are of, and every answer, held to RTL
(docs/select_study.md, "Held to the RTL")."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from kelp_rtl.device import DriverError
from kelp_rtl.replay.choices import PHASES, Asked, Chosen, choices
from kelp_sim.select.decode import ONE, Device, Run, decode
from kelp_sim.select.readers import scale_of
from kelp_sim.select.timing import RTL, Choice, Shape, Timing
from kelp_spec.config import Config, ConfigError
from kelp_spec.config_text import configuration

from ..output import UserError, anyway, progress_bar, show, write_json

__all__ = ["BAR", "CONFIG", "Held", "choosing", "hold", "rtl"]

CONFIG = "trace_select"
BAR = 0.05  #: how far the timing model may be off


@dataclass(frozen=True, eq=False)
class Held:
    """A document on the RTL, and by the timing model."""

    document: str
    counted: slice  #: steps
    modelled: np.ndarray  #: [steps, layers] cycles by the model, of the device's own decisions
    select: np.ndarray  #: [steps, layers, kv_heads] the same, to each answer
    found: Chosen
    same: float  #: share of SELECTs that chose what the decoded run did
    example: list[str] = field(default_factory=list)

    @property
    def error(self) -> float:
        """The model's cycles over the RTL's, less 1."""
        rtl = self.found.cycles[self.counted].sum()
        return float(self.modelled[self.counted].sum() / rtl - 1)

    @property
    def worst(self) -> float:
        """The largest error of one step's cycles, without its sign."""
        each = (part[self.counted].sum(axis=1) for part in (self.modelled, self.found.cycles))
        modelled, measured = each
        return float(np.abs(modelled / measured - 1).max())

    def rate(self, head: int) -> float:
        """Gathered lines a cycle of a KV head; the last one's while nothing else goes on."""
        lines, cycles = (
            part[self.counted, :, head].sum() for part in (self.found.lines, self.found.gather)
        )
        return float(lines / cycles)

    def row(self) -> dict:
        part, found = self.counted, self.found
        return {
            "document": self.document,
            "steps": len(found.cycles[part]),
            "layer_cycles": float(found.cycles[part].mean()),
            "modelled_layer_cycles": float(self.modelled[part].mean()),
            "error": self.error,
            "worst_step_error": self.worst,
            "select_cycles": float(found.select[part].mean()),
            "modelled_select_cycles": float(self.select[part].mean()),
            "gather_lines_per_cycle": self.rate(-1),
            "gather_lines_per_cycle_beside_select": self.rate(0),
            "selects": int(found.select.size),
            "answer_lines": found.answer_lines,
            "gathered_lines": int(found.lines.sum()),
            "asked_again": found.again,
            "wrong": found.wrong,
            "as_decoded": self.same,
            "phases": dict(zip(PHASES, found.phases[part].mean(axis=(0, 1)).tolist(), strict=True)),
            "cycles": found.cycles.tolist(),
            "modelled_cycles": self.modelled.tolist(),
        }


def hold(
    name: str,
    run: Run,
    first: int,
    *,
    config: Config,
    warm: int,
    timing: Timing | None = None,
    compute: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Held:
    """A decoded run, of which the host's lines were kept, on the RTL of `config`; ValueError where
    it does not fit."""
    device = run.device
    timing = timing or replace(RTL, lanes=config.select_lanes)
    m, sh = scale_of(run.q.shape[-1])
    group = run.q.shape[2] // run.k.shape[1]
    found = choices(
        config,
        Asked(
            q=run.q,
            k=run.k,
            v=run.v,
            plans=run.plans,
            first=first,
            most=device.most,
            target=round(device.target * ONE) * group,
            m=m,
            sh=sh,
            compute=compute,
        ),
        progress=progress,
    )
    shape = Shape(
        kv_heads=run.k.shape[1],
        group=group,
        lines=-(-run.q.shape[-1] // 32),
        page_tokens=config.half_lines // -(-run.q.shape[-1] // 32),
    )
    modelled, select = by_the_model(found, shape, first, device, timing)
    pages = run.chosen.shape[-1]
    same = (found.pages[..., :pages] == run.chosen).all(axis=-1).mean()
    counted = slice(warm, None)
    return Held(name, counted, modelled + compute, select, found, float(same))


def by_the_model(
    found: Chosen, shape: Shape, first: int, device: Device, timing: Timing
) -> tuple[np.ndarray, np.ndarray]:
    """Cycles of each layer, and from its first doorbell to each answer, of the decisions that were
    `found`."""
    cycles, select = np.zeros(found.cycles.shape), np.zeros(found.select.shape)
    rung = timing.written(shape) + timing.window * timing.asked(shape)
    counts, slots = found.pages.sum(axis=-1), 0
    for step, layer in np.ndindex(cycles.shape):
        newest, tokens = divmod(first + step, shape.page_tokens)
        clock = timing.begin(shape, device.quota, device.most)
        for head in range(shape.kv_heads):
            place = step, layer, head
            did = Choice(
                pages=newest + 1,
                candidates=int(found.candidates[place]),
                looks=int(found.looks[place]),
                chosen=int(counts[place]),
                tokens=tokens + 1,
                rebuilt=int(found.rebuilt[place]),
                released=0 if head else slots,
            )
            select[place] = clock.serve(did) - rung
        cycles[step, layer] = clock.over()
        slots = int(counts[step, layer].sum())
    return cycles, select


def choosing(config: str, quota: int | None) -> Config:
    """The configuration of a name, which must choose, and name as many pages as are asked for."""
    try:
        sizes = configuration(config)
    except ConfigError as error:
        raise UserError(str(error)) from None
    if not sizes.select:
        raise UserError(f"--config {config}: it chooses no pages; legal: trace_select, or another")
    if quota not in (None, sizes.select_quota):
        raise UserError(
            f"--quotas {quota} is not the device's; legal: {sizes.select_quota}, which "
            + f"configuration {config} has"
        )
    return sizes


def rtl(model, documents: Sequence, sizes: Config, most: int, warm: int, json) -> None:
    """Measure, show, and write what was asked for; exit status 1 where an answer is wrong."""
    device = Device(quota=sizes.select_quota, most=most)
    config, held = sizes.name, []
    with progress_bar() as bar:
        for name, ids, first in documents:
            task = bar.add_task(f"{name}: decoded", total=len(ids) - 1 - first)
            [run] = decode(
                model, ids, first, [device], keep=True,
                progress=lambda n, task=task: bar.update(task, completed=n),
            )  # fmt: skip
            task = bar.add_task(f"{name}: RTL, twice", total=2 * (len(ids) - 1 - first))
            try:
                held.append(
                    hold(
                        name,
                        run,
                        first,
                        config=sizes,
                        warm=warm,
                        progress=lambda n, task=task: bar.update(task, completed=n),
                    )  # fmt: skip
                )
            except (ValueError, DriverError) as error:
                raise UserError(f"{name}: {error}") from None
    rows = [one.row() for one in held]
    with anyway(lambda: None if str(json) == "-" else _show(rows, config)):
        if json is not None:
            write_json(json, "select-rtl", {"config": config, "bar": BAR, "rows": rows})
    wrong = [example for one in held for example in one.found.examples]
    if wrong:
        raise UserError("answers are not the golden model's\n" + "\n".join(wrong))


def _show(rows: list[dict], config: str) -> None:
    from rich import box
    from rich.table import Table

    table = Table(
        title=f"Choices on the RTL, configuration {config}, everything resident",
        title_justify="left",
        title_style="bold",
        caption="layer, SELECT: cycles of a layer, and to a head's answer, by the RTL and by the "
        + f"timing model; error: of the model over all layers, bar ±{BAR:.0%}; worst: of one step; "
        + "gather: lines a cycle; wrong: lines answered and gathered that are not the golden ones; "
        + "decoded: SELECTs that chose what the decoded run did",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=0,
    )
    headings = ("layer", "model", "SELECT", "model", "error", "worst", "gather", "wrong", "decoded")
    for heading in ("document", "steps", *headings):
        left = heading == "document"
        table.add_column(heading, justify="left" if left else "right", no_wrap=True)
    for row in rows:
        table.add_row(
            row["document"],
            str(row["steps"]),
            f"{row['layer_cycles']:.0f}",
            f"{row['modelled_layer_cycles']:.0f}",
            f"{row['select_cycles']:.0f}",
            f"{row['modelled_select_cycles']:.0f}",
            f"{row['error']:+.1%}",
            f"{row['worst_step_error']:.1%}",
            f"{row['gather_lines_per_cycle']:.2f}",
            f"{row['wrong']} of {row['answer_lines'] + row['gathered_lines']}",
            f"{row['as_decoded']:.1%}",
        )
    show(table)
    phases = Table(
        title="Cycles of a layer by what they go to",
        title_justify="left",
        title_style="bold",
        caption="up to the answer those of the first KV head",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    phases.add_column("phase")
    for row in rows:
        phases.add_column(row["document"], justify="right")
    for name in PHASES:
        phases.add_row(name, *(f"{row['phases'][name]:.0f}" for row in rows))
    show(phases)

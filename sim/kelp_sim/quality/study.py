# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The whole study of a model: uniform formats, single units, and the plans that follow, judged on
texts that were not used to choose them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from kelp_spec.metadata import LAYER_RANGES

from .llama import Llama
from .perplexity import Measurer
from .plans import cheapest, cheapest_ranges, uniform

__all__ = ["BARS", "FORMATS", "Study", "bars", "run"]

#: What is measured where nothing is asked for.
FORMATS = (
    "fp8_e4m3",
    "fp8_e5m2",
    "int8",
    "int4",
    "int4+h",
    "int8/int4",
    "int4/int8",
    "int8/int4+h",
    "mxfp4",
    "nvfp4",
    "nvfp4+h",
    "int8/nvfp4",
)
#: Published: increase of perplexity, as a fraction.
BARS = {"fp8_e4m3": 0.001, "int8": 0.005, "int4": 0.01}
GOOD, CHEAP = "int8", "int4"  #: formats that a plan chooses between


@dataclass(frozen=True, kw_only=True)
class Study:
    """Rows as JSON has them; ``units`` are single layers, heads, K or V in int4 with everything
    else raw16."""

    perplexity: float
    documents: list[str]
    tuned_on: list[str]
    formats: list[dict]
    units: list[dict]
    plans: list[dict]

    def as_json(self) -> dict:
        return asdict(self)


def run(
    model: Llama,
    texts: Sequence[tuple[str, np.ndarray]],
    names: Sequence[str],
    *,
    tune: int = 0,
    budgets: Sequence[float] = (),
    store: Path | None = None,
    progress: Callable[[str, str, bool], None] | None = None,
) -> Study:
    """The first ``tune`` of the texts measure the units; plans within ``budgets`` (fractions of
    perplexity) are judged on the others."""
    measurer = Measurer(model, store, progress)
    raw = uniform("raw16", model.layers, model.kv_heads)
    uniforms = [uniform(name, model.layers, model.kv_heads) for name in names]
    # text by text: a study that is cut short has all formats of some texts
    for name, tokens in texts:
        for plan in (raw, *uniforms):
            measurer.nats(name, tokens, plan)
    formats = [asdict(measurer.against_raw(texts, plan)) for plan in uniforms]
    tuning, others = texts[:tune], texts[tune:]
    units, plans = [], []
    if tuning:
        losses = {}
        for layer in range(model.layers):
            for half in (0, 1):
                for head in range(model.kv_heads):
                    plan = raw.with_units(
                        f"layer {layer} head {head} {'KV'[half]}", [(layer, half, head)], CHEAP
                    )
                    found = measurer.against_raw(tuning, plan)
                    losses[layer, half, head] = found.nats
                    units.append({"layer": layer, "head": head, "kv": "KV"[half], **asdict(found)})
        good = uniform(GOOD, model.layers, model.kv_heads)
        for budget in budgets:
            nats = float(np.log1p(budget))
            for label, chosen in (
                ("each head", cheapest(losses, nats)),
                (f"{LAYER_RANGES} layer ranges", cheapest_ranges(losses, nats, LAYER_RANGES)),
            ):
                plan = good.with_units(f"≤ {budget:.1%}, {label}", chosen, CHEAP)
                plans.append(
                    {
                        "budget": budget,
                        "scope": label,
                        "foreseen": float(np.expm1(sum(losses[u] for u in chosen))),
                        "names": plan.names,
                        **asdict(measurer.against_raw(others, plan)),
                    }
                )
    return Study(
        perplexity=measurer.perplexity(texts, raw),
        documents=[name for name, _ in texts],
        tuned_on=[name for name, _ in tuning],
        formats=formats,
        units=units,
        plans=plans,
    )


def count(names: int, texts: int, tune: int, budgets: int, model: Llama) -> int:
    """How many times ``progress`` is told something, with so many formats, texts and budgets."""
    plans = 2 * budgets * 2 * (texts - tune) if tune else 0
    units = 2 * model.layers * model.kv_heads * 2 * tune
    return texts * (1 + names) + 2 * texts * names + units + plans + texts


def bars(study: Study) -> list[dict]:
    """The published losses beside the measured ones; met where the whole interval is below."""
    return [
        {
            "format": row["label"],
            "bar": BARS[row["label"]],
            "increase": row["increase"],
            "met": row["high"] < BARS[row["label"]],
        }
        for row in study.formats
        if row["label"] in BARS
    ]

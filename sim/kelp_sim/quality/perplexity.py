# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Perplexity of a model whose keys and values come back from storage, against the same model with
raw16: paired, with an interval over documents.

One measurement is one text under one plan: the sum of −log p over its tokens. Measurements are kept
in a file as they are made, keyed by model, text, plan and the sources that matter, so that a run
that was killed goes on where it was.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from kelp_golden import codec
from kelp_spec import formats as spec

from ..store import append, entries
from . import formats, llama, plans
from .plans import Plan, uniform
from .threads import one_thread

__all__ = ["Difference", "Measurer", "difference"]

_DRAWS = 10_000


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A plan against raw16: nats for each token, and what that does to perplexity as a fraction;
    the 95 % interval is a bootstrap over documents."""

    label: str
    bits: float
    documents: int
    tokens: int
    nats: float
    increase: float
    low: float
    high: float


@cache
def _sources() -> str:
    """Changes with any source that a measurement depends on."""
    modules = codec, spec, formats, llama, plans
    return hashlib.sha256(
        b"".join(Path(module.__file__).read_bytes() for module in modules)
    ).hexdigest()[:12]


class Measurer:
    """Measures (text, plan) pairs of one model, or finds them in ``store``. ``progress`` hears
    (text, plan label, whether it was found)."""

    def __init__(
        self,
        model: llama.Llama,
        store: Path | None = None,
        progress: Callable[[str, str, bool], None] | None = None,
    ):
        self.model, self._store, self._progress = model, store, progress
        self._found = {
            entry["key"]: float(entry["nats"])
            for entry in entries(store)
            if isinstance(entry.get("nats"), int | float)
        }

    def nats(self, name: str, tokens: np.ndarray, plan: Plan) -> float:
        """Sum of −log p over the text."""
        key = hashlib.sha256(
            "|".join(
                (
                    self.model.digest,
                    hashlib.sha256(tokens.tobytes()).hexdigest(),
                    plan.key,
                    _sources(),
                )
            ).encode()
        ).hexdigest()[:24]
        stored = key in self._found
        if not stored:
            with one_thread():
                self._found[key] = float(self.model.losses(tokens, plan.store).sum())
            if self._store is not None:
                append(
                    self._store,
                    {"key": key, "text": name, "plan": plan.label, "nats": self._found[key]},
                )
        if self._progress is not None:
            self._progress(name, plan.label, stored)
        return self._found[key]

    def against_raw(self, documents: Sequence[tuple[str, np.ndarray]], plan: Plan) -> Difference:
        """``plan`` against raw16 on ``documents``."""
        raw = uniform("raw16", self.model.layers, self.model.kv_heads)
        pairs = [
            (self.nats(name, tokens, plan) - self.nats(name, tokens, raw), len(tokens) - 1)
            for name, tokens in documents
        ]
        return difference(plan.label, plan.bits, np.array(pairs))

    def perplexity(self, documents: Sequence[tuple[str, np.ndarray]], plan: Plan) -> float:
        total = sum(self.nats(name, tokens, plan) for name, tokens in documents)
        return float(np.exp(total / sum(len(tokens) - 1 for _, tokens in documents)))


def difference(label: str, bits: float, pairs: np.ndarray) -> Difference:
    """From [documents, 2]: the sum of paired differences of each document, and its tokens."""
    mean = pairs[:, 0].sum() / pairs[:, 1].sum()
    drawn = np.random.default_rng(1).integers(0, len(pairs), (_DRAWS, len(pairs)))
    means = pairs[drawn, 0].sum(axis=1) / pairs[drawn, 1].sum(axis=1)
    low, high = np.quantile(means, (0.025, 0.975))
    return Difference(
        label=label,
        bits=bits,
        documents=len(pairs),
        tokens=int(pairs[:, 1].sum()),
        nats=float(mean),
        increase=float(np.expm1(mean)),
        low=float(np.expm1(low)),
        high=float(np.expm1(high)),
    )

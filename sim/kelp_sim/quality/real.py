# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""A model of a GGUF file, in NumPy: transformers turns the file into numbers, and they run in
:mod:`.llama` as those of a folder do. Needs the environment `.venv.hf`.

Its texts are those that the lab tunes on, or those that it holds back (:mod:`kelp_sim.lab.texts`):
first the beginning of each, then what follows.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from ..lab import models
from ..lab.texts import TEXTS
from .llama import Llama, check

__all__ = ["excerpts", "load", "of_transformers"]


def load(path: Path):
    """(Llama, tokenizer) of a GGUF file; a ValueError of one line where it cannot be read."""
    found, tokenizer = models.load(str(path))
    digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]
    return of_transformers(found, path, digest), tokenizer


def of_transformers(model, path: Path, digest: str) -> Llama:
    """The same weights, float32."""
    config = check(model.config.to_dict(), str(path))
    weights = {name: tensor.float().cpu().numpy() for name, tensor in model.state_dict().items()}
    return Llama(Path(path), config, weights, digest)


def excerpts(
    tokenizer, count: int, tokens: int, *, held_back: bool = False
) -> list[tuple[str, np.ndarray]]:
    """(text and excerpt, ``tokens`` ids) of each text in turn."""
    ids = {
        name: tokenizer.encode(t.make()) for name, t in TEXTS.items() if t.held_back == held_back
    }
    most = min(map(len, ids.values())) // tokens * len(ids)
    if count > most:
        raise ValueError(
            f"{count} texts of {tokens} tokens are refused; the {len(ids)} texts have {most}"
        )
    return [
        (f"{name} {part + 1}", np.array(ids[name][part * tokens : (part + 1) * tokens], np.int64))
        for part, name in ((n // len(ids), list(ids)[n % len(ids)]) for n in range(count))
    ]

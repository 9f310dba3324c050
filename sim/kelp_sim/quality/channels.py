# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Outlying channels of keys and values, and what they do to the noise of stored ones: for each
layer and head of a model, on one text.

A channel's size is the root of its mean square over the text. ``peak`` is the largest channel's
over the median channel's: 1 where channels are alike.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .formats import stored
from .llama import Llama
from .noise import snr_db
from .threads import one_thread

__all__ = ["measure"]


@one_thread()
def measure(model: Llama, tokens: np.ndarray, names: Sequence[str]) -> list[dict]:
    """Rows {layer, head, kv, peak, channel, snr_db}, ``snr_db`` by name of a format."""
    rows = []

    def seen(layer: int, kv: np.ndarray) -> np.ndarray:
        exact = kv.astype(np.float32)
        size = np.sqrt((exact**2).mean(axis=2))
        for half in (0, 1):
            back = {name: stored(name, kv[half]) for name in names}
            for head in range(model.kv_heads):
                rows.append(
                    {
                        "layer": layer,
                        "head": head,
                        "kv": "KV"[half],
                        "peak": float(size[half, head].max() / np.median(size[half, head])),
                        "channel": int(size[half, head].argmax()),
                        "snr_db": {
                            name: snr_db(exact[half, head], given[head])
                            for name, given in back.items()
                        },
                    }
                )
        return exact

    model.losses(tokens, seen)
    return rows

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Signal to noise of stored keys and values, and of what attention makes of them, for each layer
and head of a recording that holds k, v and q.

SNR in dB is 10 log10(Σ x² / Σ (x − x̂)²) over all tokens. The attention output of every sampled
decode step is computed with the recording's own queries, from stored keys and values both; its
error is the share of its energy that is wrong, Σ (o − ô)² / Σ o².
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..trace.trace import Trace, TraceError
from .formats import stored
from .llama import attend
from .threads import one_thread

__all__ = ["attention_error", "measure", "snr_db"]


def snr_db(exact: np.ndarray, given: np.ndarray) -> float:
    """Infinite is given as 999: JSON has no infinity."""
    noise = float(((exact - given) ** 2).sum(dtype=np.float64))
    return 999.0 if noise == 0 else 10 * float(np.log10((exact**2).sum(dtype=np.float64) / noise))


def attention_error(exact: np.ndarray, given: np.ndarray) -> float:
    noise = float(((exact - given) ** 2).sum(dtype=np.float64))
    return noise and noise / float((exact**2).sum(dtype=np.float64))


@one_thread()
def measure(
    trace: Trace,
    names: Sequence[str],
    *,
    every: int = 16,
    progress: Callable[[str], None] | None = None,
) -> list[dict]:
    """Rows {trace, format, layer, head, k_snr_db, v_snr_db, attention_error}; each ``every``-th
    decode step is attended. A format may set K and V apart."""
    if trace.k is None or trace.q is None:
        raise TraceError(f"{trace.path} has no keys, values and queries: record with --lines")
    for name in ("k", "v", "q"):
        if not np.isfinite(getattr(trace, name)).all():
            raise TraceError(f"{trace.path}: {name} has numbers that are not finite; record again")
    positions = trace.prefill_tokens + np.arange(0, trace.steps, every)
    group = trace.q_heads // trace.kv_heads
    exact, queries = {}, {}
    for layer in range(trace.layers):
        k, v = (array[layer].astype(np.float32) for array in (trace.k, trace.v))
        queries[layer] = trace.q[layer][:, ::every].astype(np.float32)
        exact[layer] = k, v, attend(queries[layer], k, v, positions)
    rows = []
    for name in names:
        k_name, _, v_name = name.partition("/")
        for layer in range(trace.layers):
            k, v, out = exact[layer]
            try:
                k_back = stored(k_name, trace.k[layer])
                v_back = stored(v_name or k_name, trace.v[layer])
            except ValueError as error:
                raise TraceError(f"{trace.path}, stored as {name}: {error}") from None
            given = attend(queries[layer], k_back, v_back, positions)
            for head in range(trace.kv_heads):
                mine = slice(head * group, (head + 1) * group)
                rows.append(
                    {
                        "trace": trace.name,
                        "format": name,
                        "layer": layer,
                        "head": head,
                        "k_snr_db": snr_db(k[head], k_back[head]),
                        "v_snr_db": snr_db(v[head], v_back[head]),
                        "attention_error": attention_error(out[mine], given[mine]),
                    }
                )
        if progress is not None:
            progress(name)
    return rows

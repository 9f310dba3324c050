# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Sessions that a device may choose in: written with random keys and values, and queries for
them."""

import numpy as np

import cxl_kv

__all__ = ["DIM", "GOLDEN", "HEADS", "LAYERS", "TOKENS", "filled", "queries"]

LAYERS, HEADS, DIM, TOKENS = 2, 2, 32, 95
GOLDEN = "golden:unit_select?frames=256,256,256,256"


def filled(url=GOLDEN, *, seed=1, formats="raw16", dtype="fp16", dim=DIM, tokens=TOKENS):
    """(device, session, k, v): `tokens` tokens in every queue, its keys and its values as
    written."""
    rng = np.random.default_rng(seed)
    device = cxl_kv.open(url) if isinstance(url, str) else url
    shape = cxl_kv.ModelShape(
        layers=LAYERS, kv_heads=HEADS, head_dim=dim, formats=formats, dtype=dtype
    )
    session = device.open_session(shape, max_tokens=tokens + 5)
    k, v = (rng.standard_normal((LAYERS, HEADS, tokens, dim)).astype(np.float32) for _ in range(2))
    if dtype == "bf16":
        k, v = cxl_kv.float32_to_bf16(k), cxl_kv.float32_to_bf16(v)
    else:
        k, v = k.astype(np.float16), v.astype(np.float16)
    session.write(range(LAYERS), k, v)
    return device, session, k, v


def queries(rng, heads=2 * HEADS, dim=DIM):
    """float16 [heads, dim]."""
    return (2 * rng.standard_normal((heads, dim))).astype(np.float16)

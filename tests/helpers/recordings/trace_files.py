# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Small synthetic recordings for tests of what reads or replays them."""

import json

import numpy as np


def sizes(**changes):
    meta = dict(
        format="kelp-attention-1",
        layers=2,
        q_heads=4,
        kv_heads=2,
        head_dim=8,
        page_tokens=4,
        prefill_tokens=16,
        steps=24,
        tokens=40,
    )
    return meta | changes


def contents(seed=1, with_kv=True, **changes):
    """The keys of a recording whose reads are random pages and always the page being written;
    ``changes`` are to ``meta``."""
    meta = sizes(**changes)
    rng = np.random.default_rng(seed)
    pages = -(-meta["tokens"] // meta["page_tokens"])
    shape = meta["layers"], meta["kv_heads"], meta["steps"], pages
    newest = (meta["prefill_tokens"] + np.arange(meta["steps"])) // meta["page_tokens"]
    reads = (rng.random(shape) < 0.4) & (np.arange(pages) < newest[:, None])
    reads[:, :, np.arange(meta["steps"]), newest] = True
    keys = {
        "meta": np.array(json.dumps(meta)),
        "reads": np.packbits(reads, axis=-1, bitorder="little"),
        "mass": rng.integers(0, 65536, shape).astype(np.uint16),
    }
    if with_kv:
        for key in ("k", "v"):
            keys[key] = rng.standard_normal((*shape[:2], meta["tokens"], meta["head_dim"])).astype(
                np.float16
            )
    return keys


def save(path, keys):
    np.savez_compressed(path, **keys)
    return path

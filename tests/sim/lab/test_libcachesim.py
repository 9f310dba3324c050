# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The classic policies against libcachesim, access by access. That package is GPL: never a
dependency, only `pip install -e '.[compare]'` for this file."""

import numpy as np
import pytest
from paths import RECORDING

from kelp_sim.lab.policies import load
from kelp_sim.lab.reads import timeline
from kelp_sim.lab.stream import run_keys

THEIRS = {
    "lru": "LRU",
    "fifo": "FIFO",
    "arc": "ARC",
    "s3fifo": "S3FIFO",
    "sieve": "Sieve",
    "clock": "Clock",
    "belady": "Belady",
}


def traces():
    rng = np.random.default_rng(5)
    return {
        "zipf": np.minimum(rng.zipf(1.2, 20_000), 3000) - 1,
        "scan": np.concatenate(
            [np.arange(500) % 250 if i % 3 else rng.integers(0, 800, 500) for i in range(30)]
        ),
        "recorded": timeline(RECORDING, accesses=20_000).keys,
    }


def theirs(lcs, name, keys, frames):
    cache = getattr(lcs, THEIRS[name])(cache_size=frames)
    request = lcs.Request()
    request.obj_size = 1
    order = np.argsort(keys, kind="stable")
    following = np.full(len(keys), np.iinfo(np.int64).max)
    same = keys[order][1:] == keys[order][:-1]
    following[order[:-1][same]] = order[1:][same] + 1  # their clock is at 1 at the first request
    missed = np.zeros(len(keys), bool)
    for index, (key, after) in enumerate(zip(keys.tolist(), following.tolist(), strict=True)):
        request.obj_id, request.next_access_vtime = key + 1, after
        missed[index] = not cache.get(request)
    return missed


@pytest.mark.parametrize("trace", ["zipf", "scan", "recorded"])
@pytest.mark.parametrize("name", THEIRS)
def test_agrees_with_libcachesim(name, trace):
    lcs = pytest.importorskip("libcachesim")
    keys = traces()[trace]
    keys = np.unique(keys, return_inverse=True)[1]
    for frames in (100, 300):
        ours = run_keys(keys, load(name), frames)
        other = theirs(lcs, name, keys, frames)
        assert ours.sum() == other.sum()
        assert (ours == other).all()

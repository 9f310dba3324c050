# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""A host that decodes with RTL: it attends to what was chosen, of pages that come and go."""

import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from kelp_rtl.device import MemoryTiming
from kelp_rtl.replay.decoding import RtlDevice
from kelp_sim.select.decode import Device, Prefix, Query
from kelp_sim.select.timing import RTL, Shape
from kelp_spec.config import named
from kelp_spec.select_plan import plan_lines

pytestmark = pytest.mark.timeout(2400)  # the first test builds the model

CONFIG = named("unit_select")
LAYERS, HEADS, DIM, FIRST, TOKENS = 2, 2, 64, 20, 32
SHAPE = Shape(kv_heads=HEADS, group=2, lines=2, page_tokens=CONFIG.half_lines // 2)
#: a quarter of 16 pages in 4 queues, and FREE more, are the frames that `unit_select` has
LITTLE = Device(residency=0.25, quota=4, most=4, timing=replace(RTL, tier_latency=2000))


def numbers(rng, *shape):
    return rng.standard_normal(shape).astype(np.float16).astype(np.float32)


def prefix(rng, **changes):
    k, v = numbers(rng, 2, LAYERS, HEADS, FIRST, DIM)
    queries = numbers(rng, 2, DIM)
    lines = [[plan_lines(k[at], queries) for at in np.ndindex(1, HEADS)] for _ in range(LAYERS)]
    model = SimpleNamespace(layers=LAYERS, head_dim=DIM)
    return Prefix(model, SHAPE, FIRST, TOKENS, k, v, np.array(lines), [], **changes)


def softmax(q, k, v, chosen, position):
    seen = [t for t in range(position + 1) if chosen[t // SHAPE.page_tokens]]
    score = q @ k[seen].T * DIM**-0.5
    weight = np.exp(score - score.max(axis=1, keepdims=True))
    return weight / weight.sum(axis=1, keepdims=True) @ v[seen]


def decoded(device, steps=TOKENS - FIRST - 1, seed=1):
    """A text of random numbers; every output is checked."""
    print("seed", seed)
    rng = np.random.default_rng(seed)
    text = prefix(rng)
    rtl = RtlDevice(device=device, config=CONFIG, memory=MemoryTiming(latency=2), seed=seed)
    host = rtl.begin(text)
    shape = LAYERS, HEADS, TOKENS, DIM
    k, v = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    k[:, :, :FIRST], v[:, :, :FIRST] = text.k, text.v
    for step, position in enumerate(range(FIRST, FIRST + steps)):
        for layer in range(LAYERS):
            k[layer, :, position], v[layer, :, position] = numbers(rng, 2, HEADS, DIM)
            host.write(layer, position, k[layer, :, position], v[layer, :, position], None)
            query = Query(3 * numbers(rng, 4, DIM), None, None)
            guess = Query(numbers(rng, 4, DIM), None, None) if layer + 1 < LAYERS else None
            out = host.attend(step, layer, position, query, guess)
            for head in range(HEADS):
                mine, chosen = slice(2 * head, 2 * head + 2), host.run.chosen[step, layer, head]
                kept = k[layer, head], v[layer, head]
                wanted = softmax(query.values[mine], *kept, chosen, position)
                assert np.allclose(out[mine], wanted, atol=1e-3), (step, layer, head)
                newest = position // SHAPE.page_tokens
                assert chosen[[0, newest]].all() and not chosen[newest + 1 :].any()
                assert chosen.sum() <= device.most + 2
        host.step_over(step)
    assert rtl.host is host and not host.wrong
    host.driver.close()
    return host


def test_what_was_chosen_is_attended_to():
    host = decoded(LITTLE)
    steps = slice(0, TOKENS - FIRST - 1)
    assert host.run.reads.sum() > 0, "a quarter is resident"
    assert host.run.missing[steps, ..., 3].sum() > 0, "so some pages are scored and not there"
    assert (host.run.cycles[steps] == host.cycles[steps].sum(axis=1)).all()
    assert host.run.link[steps].min() > host.run.useful[steps].min() > 0


@pytest.mark.night
def test_who_waits_is_told():
    """A host that waits finds more of what it wants, and takes longer. One that does not waits for
    pages that went between their choice and their slot."""
    late, waits = (decoded(replace(LITTLE, wait_above=above)) for above in (1.0, 0.05))
    assert waits.run.waits.sum() > late.run.waits.sum()
    assert waits.run.missing[..., 3].sum() < late.run.missing[..., 3].sum() / 1.5
    assert waits.run.cycles.sum() > late.run.cycles.sum() + 10 * 2000


def test_compute_is_in_a_layers_cycles_and_leaves_time_for_guesses():
    host = decoded(replace(LITTLE, compute=5000))
    steps = TOKENS - FIRST - 1
    assert host.cycles[:steps].min() > 5000 and host.guesses == steps * (LAYERS - 1)
    assert not decoded(replace(LITTLE, compute=5000, guess=False), steps=2).guesses


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"most": 7}, "9 pages chosen do not fit configuration 'unit_select'"),
        ({"quota": 8}, "8 pages that each head names do not fit"),
    ],
)
def test_what_does_not_fit_is_refused(change, said):
    rtl = RtlDevice(device=replace(LITTLE, **change), config=CONFIG)
    with pytest.raises(ValueError, match=re.escape(said)):
        rtl.begin(prefix(np.random.default_rng(1)))

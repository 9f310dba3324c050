# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Scores: the golden arithmetic, and the EMA engine against it."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from timing import check_interval, varied

from kelp_golden import arithmetic
from kelp_hw.scores.ema import EmaEngine, EmaStep
from kelp_spec.config import named
from kelp_spec.metadata import ScoreEvent
from kelp_spec.policy import Policy
from kelp_spec.scores import idle_constants, recency_constants
from kelp_verif.harness.flips import PUBLIC
from kelp_verif.harness.runner import Model, made, run_cocotb

#: with pages enough for the SRAM macro, whose words a bench can reach
SMALL = named("unit").with_(pages=1024)
#: the same for each test of SMALL: one model, and the mutants of the one are the others', too
MODEL = Model(public=[*PUBLIC, ("kelp_sram", "words"), ("top", "places")])


def test_step_latency_and_interval():
    check_interval(EmaStep, "LATENCY", "o", varied("a", (100, 200, 50), x=65535))


def run(config, test, **kwargs):
    params = {"config": dataclasses.asdict(config), **kwargs.pop("params", {})}
    return run_cocotb(
        made(EmaEngine, config=config),
        bench="kelp_verif.scores.ema_bench",
        test=test,
        params=params,
        timeout_s=120,
        **kwargs,
    )


@given(st.integers(0, 65535), st.integers(0, 65535), st.integers(0, 300))
def test_score_stays_in_range_and_moves_towards_x(s, x, a):
    after = arithmetic.ema(s, x, a)
    assert min(s, x) <= after <= max(s, x)
    assert after == s + ((x - s) * min(a, 256) + 128) // 256


def test_score_stays_in_range_for_every_score_input_and_alpha():
    """Exhaustive: the step depends on x - s and a alone, and the least and the largest s that go
    with a difference are the worst."""
    d = np.arange(-65535, 65536)
    least, most = np.maximum(0, -d), np.minimum(65535, 65535 - d)
    for a in range(257):
        for s in (least, most):
            after = arithmetic.ema(s, s + d, a)
            assert after.min() >= 0 and after.max() <= 65535, a


def test_arrays_and_integers_agree():
    rng = np.random.default_rng(1)
    n = 2000
    s, x, pushed = (rng.integers(0, 65536, n) for _ in range(3))
    a, k, gap = (
        rng.integers(0, 300, n),
        rng.integers(0, 16, n),
        rng.integers(0, 1 << 24, n) >> rng.integers(0, 24, n),
    )
    m, sh = rng.integers(1 << 15, 1 << 16, n), rng.integers(-4, 16, n)
    for whole, one in (
        (
            arithmetic.ema(s, x, a),
            [arithmetic.ema(*map(int, v)) for v in zip(s, x, a, strict=True)],
        ),
        (
            arithmetic.mass(s, pushed, k, a),
            [arithmetic.mass(*map(int, v)) for v in zip(s, pushed, k, a, strict=True)],
        ),
        (
            arithmetic.touch(s, gap, a, m, sh),
            [arithmetic.touch(*map(int, v)) for v in zip(s, gap, a, m, sh, strict=True)],
        ),
        (
            arithmetic.decay(gap, m, sh),
            [arithmetic.decay(*map(int, v)) for v in zip(gap, m, sh, strict=True)],
        ),
    ):
        assert whole.tolist() == one


@pytest.mark.parametrize("alpha", [1, 26, 77, 128, 200, 255, 256])
def test_lazy_fold_is_close_to_the_steps_that_it_stands_for(alpha):
    m, sh = idle_constants(alpha)
    for s in (65535, 40000, 777):
        for idle in (0, 1, 2, 3, 10, 100, 10_000):
            exact = s * (1 - alpha / 256) ** idle
            assert abs(arithmetic.fold(s, idle, m, sh) - exact) <= 2 + exact * 1e-4


def test_constants_are_the_nearest_and_bad_ones_are_refused():
    assert recency_constants(1000) == (48409, 9)
    for tau in (1, 2, 64, 65536):
        m, sh = recency_constants(tau)
        assert 1 << 15 <= m < 1 << 16 and -1 <= sh <= 15
        assert abs(m * 2.0**-sh / (65536 * np.log2(np.e) / tau) - 1) < 2**-15
    with pytest.raises(ValueError, match="tau = 0 .*1 … 65536"):
        recency_constants(0)
    with pytest.raises(ValueError, match="alpha = 257 .*1 … 256"):
        idle_constants(257)


def test_events_in_order_with_idles_and_waits():
    records = run(SMALL, "random_events", params={"cycles": 8000}, model=MODEL).records
    assert records["committed"] > 1200
    events = (ScoreEvent.INIT, ScoreEvent.TOUCH, ScoreEvent.MASS, ScoreEvent.SCAN)
    committed = {f"{policy.name} {kind.name}" for policy in Policy for kind in events}
    committed -= {"KELP MASS"}
    assert min(records["seen"].get(name, 0) for name in committed) > 20, records["seen"]
    assert 0 < records["waited"]


def test_one_update_per_cycle_over_640_queues():
    records = run(named("ulx3s"), "full_rate", params={"cycles": 10_000}).records
    assert records["queues"] == 640
    assert records["updates_per_cycle"] == 1 / EmaEngine.INTERVAL


def test_flipped_bits():
    run(SMALL, "flipped_bits", model=MODEL)


def test_flipped_bits_in_events_that_wait():
    run(SMALL, "flipped_events", model=MODEL)


def test_flipped_bits_in_events_that_wait_for_their_factor():
    run(SMALL, "flipped_places", model=MODEL)

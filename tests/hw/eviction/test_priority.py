# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Recency and priority: the golden arithmetic, and the pipeline against it."""

import numpy as np
import pytest

from kelp_golden import arithmetic
from kelp_hw.eviction.priority import PriorityUnit
from kelp_spec.config import named
from kelp_spec.scores import recency_constants
from kelp_verif.harness.runner import run_cocotb


def test_worked_rows():
    m, sh = recency_constants(1000)
    assert arithmetic.priority(13828, arithmetic.decay(50, m, sh)) == 2520
    assert arithmetic.priority(5243, arithmetic.decay(2000, m, sh)) == 52132


@pytest.mark.parametrize("tau", [1, 2, 64, 1000, 65536])
def test_decay_is_monotonic_and_within_2_1_lsb(tau):
    ages = np.concatenate([np.arange(100_000), np.arange(100_000, 1 << 24, 257)])
    d = arithmetic.decay(ages, *recency_constants(tau))
    assert d.min() >= 0 and d.max() <= 65535 and (np.diff(d) >= 0).all()
    # The programmed constant is a rounded one: 2^-16 of it shifts the curve by up to 0.4 LSB.
    assert np.abs(d - np.minimum(65535, 65536 * -np.expm1(-ages / tau))).max() <= 2.1 + 0.4


def test_halving_never_rises():
    """Exhaustive over every exponent."""
    h = arithmetic.halving(np.arange(1 << 21))
    assert h[0] == 65536 and h[-1] == 0 and (np.diff(h) <= 0).all() and (h[2:] < 65536).all()


def test_age_wraps():
    assert arithmetic.age(3, (1 << 24) - 2) == 5


@pytest.mark.parametrize("config", ["unit", "unit_select", "llama70b"])
def test_pipeline_is_the_golden_arithmetic(config):
    run_cocotb(
        PriorityUnit(config=named(config)),
        bench="kelp_verif.eviction.priority_bench",
        test=["worked_rows", "random_sweeps"],
        params={"config": config, "pages": 4000},
        timeout_s=100,
    )


def test_one_page_per_cycle():
    config = "llama70b"
    result = run_cocotb(
        PriorityUnit(config=named(config)),
        bench="kelp_verif.eviction.priority_bench",
        test="full_rate",
        params={"config": config},
        timeout_s=100,
    )
    assert result.records["pages_per_cycle"] == 1 / PriorityUnit.INTERVAL

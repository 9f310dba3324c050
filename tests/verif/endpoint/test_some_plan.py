# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Plans without sense are plans all the same, of every kind; those that are none are taken for
none."""

import numpy as np

from kelp_golden.select import plan_of
from kelp_spec.select import CODE_BITS
from kelp_verif.endpoint.some_plan import no_plan, some_plan


def test_plans_of_every_kind_are_plans():
    rng = np.random.default_rng(1)
    found = [plan_of(some_plan(rng, 2)) for _ in range(100)]
    bits = np.array([plan.count.sum(axis=1) for plan in found])
    assert (bits > CODE_BITS).any() and (bits == CODE_BITS).any() and (bits == 0).any()
    exponents = np.array([plan.e for plan in found])
    assert exponents.min() < -127 and exponents.max() > 130
    assert all(plan_of(no_plan(rng, 2)) is None for _ in range(100))

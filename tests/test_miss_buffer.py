# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The miss buffer, its park lists and free lists."""

import pytest

from kelp_hw.free_list import FreeList
from kelp_hw.miss_buffer import MissBuffer
from kelp_hw.park_lists import ParkLists
from kelp_spec.config import named
from kelp_verif.formal import prove
from kelp_verif.miss_specs import ParkListsContract
from kelp_verif.runner import run_cocotb


def test_every_miss_comes_home():
    params = {"config": "unit", "cycles": 20_000}
    seen = run_cocotb(MissBuffer(config=named("unit")), bench="kelp_verif.miss_buffer_bench", params=params, timeout_s=280).records["seen"]
    for what in ("DEMAND", "ALLOCATE", "PREFETCH", "GRANT", "FILL", "REPLAY", "FLIP", "FLIP retry", "GRANT retry", "raised", "orphan"):
        assert seen.get(what, 0) >= 3, f"{what} was not exercised: {seen}"


# Small memories as registers: the solver is much slower on arrays.
ENGINE = "smtbmc --nomem --stbv z3"


@pytest.mark.prove
@pytest.mark.timeout(1200)
def test_parked_requests_leave_once_and_in_order():
    """Bounded: long enough for a list's second life to be read, which the cover shows."""
    assert prove(ParkListsContract(), depth=10, mode="cover", engine=ENGINE).passed
    assert prove(ParkListsContract(), depth=10, mode="bmc", engine=ENGINE, timeout_s=2800).passed


@pytest.mark.prove
@pytest.mark.timeout(1200)
def test_a_list_that_forgets_its_new_life_is_caught():
    assert prove(ParkListsContract(planted=True), depth=10, mode="bmc", engine=ENGINE, timeout_s=2800).status == "FAIL"


def test_bad_parameters_are_refused():
    with pytest.raises(ValueError, match="margin = 33 is refused; legal: 1 … 32"):
        MissBuffer(config=named("unit"), margin=33)
    with pytest.raises(ValueError, match="count = 0 is refused"):
        FreeList(count=0)
    with pytest.raises(ValueError, match="nodes = True is refused"):
        ParkLists(lists=2, nodes=True, shape=4)

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""MissGrants: how soon a miss is granted a frame; the bench of the miss buffer says which."""

from timing import check_phases

from kelp_hw.miss.grants import MissGrants
from kelp_spec.config import named
from kelp_spec.metadata import Outcome


def test_latency_and_interval_at_each_phase():
    check_phases(
        lambda: MissGrants(config=named("unit")),
        "o_op.valid",
        [{"i.valid": 1, "i.p.miss": k, "i.p.pool": k} for k in range(4)],
        {
            "pool_free": 0x1111,
            "starve_limit": 1 << 20,
            "o_op.ready": 1,
            "i_outcome.valid": 1,
            "i_outcome.p": int(Outcome.DONE),
        },
    )

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""QueueConfig: how fast a field is read, and which there are."""

import pytest
from timing import check_pace, varied

from kelp_hw.control.queue_config import QueueConfig
from kelp_spec.config import named

UNIT = named("unit")


def written(squeue, window):
    return {"write.valid": 1, "write.p.squeue": squeue, "write.p.queue_config.window": window}


def test_latency_and_interval():
    check_pace(
        QueueConfig(config=UNIT, fields=("window",)),
        "LATENCY",
        "o",
        varied("read_squeue"),
        prepare={"read_en": 1},
        before=[written(k, k) for k in (1, 2, 3)],
    )


def test_unknown_field_is_refused():
    with pytest.raises(ValueError, match="'tau' is refused; legal: alpha"):
        QueueConfig(config=UNIT, fields=("tau",))

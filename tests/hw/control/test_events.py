# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""EventLog: it keeps the first sixteen; how fast it counts and interrupts."""

import pytest
from counter_runs import rare, run
from timing import check_pace

from kelp_hw.control.events import EventLog
from kelp_spec.config import named
from kelp_spec.metadata import Event

UNIT = named("unit")
EVENT = {"i.0.valid": 1}
OF_CODE = {"i.0.p.code": int(Event.STARVED), "irq_enable": (1 << 32) - 1}


def test_latency_and_interval():
    check_pace(EventLog(config=UNIT, sources=1), "LATENCY", "count", [EVENT] * 3, prepare=OF_CODE)


def test_irq_latency():
    check_pace(EventLog(config=UNIT, sources=1), "IRQ_LATENCY", "irq", [EVENT], prepare=OF_CODE)


def test_it_keeps_the_first_sixteen():
    seen = run(EventLog(config=UNIT, sources=3), "events", cycles=9_000, sources=3)
    assert (
        rare(
            seen,
            "read",
            "one of several",
            "all at once",
            "full",
            "lost below sixteen",
            "lost to a full log",
            "irq",
            "clear of a record",
            "clear of one that comes",
        )
        == {}
        and seen["reset of an event"]
    )


def test_a_log_without_sources_is_refused():
    with pytest.raises(ValueError, match="sources = 0 is refused; legal: 1 and up"):
        EventLog(config=UNIT, sources=0)
    with pytest.raises(TypeError, match="config must be a kelp_spec.Config, not 'unit'"):
        EventLog(config="unit", sources=1)

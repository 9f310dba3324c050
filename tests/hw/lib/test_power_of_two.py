# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Counts that turn over by themselves are powers of two, or the block is not made."""

import pytest

from kelp_hw.choice import page_marks
from kelp_hw.coherence.request_window import RequestWindow
from kelp_hw.control import events
from kelp_hw.eviction import kelp_state
from kelp_hw.eviction.page_recall import PageRecall
from kelp_hw.flit import packer
from kelp_hw.lib.power_of_two import power_of_two
from kelp_hw.media.media_port import MediaPort
from kelp_hw.media.sanitizer import Sanitizer
from kelp_hw.prefetch import throttle
from kelp_hw.scores import table_scores
from kelp_hw.select.summary_store import SummaryStore
from kelp_spec import policy2
from kelp_spec.coherence import SIZES
from kelp_spec.config import named

UNIT, TABLES = named("unit"), named("unit_select").with_(select_tables=True)
JOINED = named("unit_cxl_coherent")


@pytest.mark.parametrize("count", [1, 2, 64, 1 << 30])
def test_a_power_of_two_is_itself(count):
    assert power_of_two("DEPTH", count) == count


@pytest.mark.parametrize("count", [0, -4, 3, 12, True, 4.0, "4"])
def test_anything_else_is_refused(count):
    with pytest.raises(ValueError, match=r"DEPTH = .* is refused; legal: a power of two"):
        power_of_two("DEPTH", count)


#: Constant → where it is, another value that is no power of two, and a block that counts by it.
SITES = {
    "TRY of Sanitizer": (Sanitizer, "TRY", (256,) * 6, lambda: Sanitizer(config=JOINED)),
    "TRY of MediaPort": (MediaPort, "TRY", (256,) * 6, lambda: MediaPort(config=JOINED)),
    "PATIENCE": (PageRecall, "PATIENCE", 200, lambda: PageRecall(config=JOINED)),
    "REFRESH": (
        packer,
        "REFRESH",
        12,
        lambda: packer.FlitPacker(direction="m2s", protect=True),
    ),
    "CREDIT_MAX": (throttle, "CREDIT_MAX", 48, throttle.Throttle),
    "ISSUED_PERIOD": (throttle, "ISSUED_PERIOD", 200, throttle.Throttle),
    "LEFT": (kelp_state, "LEFT", 6, lambda: kelp_state.KelpState(config=UNIT)),
    "DEPTH": (
        RequestWindow,
        "DEPTH",
        6,
        lambda: RequestWindow(config=UNIT, sizes=SIZES["unit"]),
    ),
    "EVENT_RECORDS": (
        events,
        "EVENT_RECORDS",
        12,
        lambda: events.EventLog(config=UNIT, sources=2),
    ),
    "_ROW": (page_marks, "_ROW", 24, lambda: page_marks.PageMarks(pages=64, lists=1)),
    "ROW": (SummaryStore, "ROW", 6, lambda: SummaryStore(config=TABLES)),
    "PROFILE_STEPS": (
        policy2,
        "PROFILE_STEPS",
        48,
        lambda: table_scores.TableScores(config=TABLES),
    ),
    "COST": (policy2, "COST", 3, lambda: table_scores.TableScores(config=TABLES)),
}


@pytest.mark.parametrize("name", SITES)
def test_a_block_is_not_made_with_another_count(monkeypatch, name):
    holder, constant, value, make = SITES[name]
    make().elaborate(None)  # as it is, it is made
    monkeypatch.setattr(holder, constant, value)
    with pytest.raises(ValueError, match=f"{constant}.* = .* is refused; legal: a power of two"):
        make().elaborate(None)

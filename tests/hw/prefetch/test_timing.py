# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""`LATENCY` and `INTERVAL` of the prefetcher and its blocks."""

import pytest
from amaranth.hdl import Mux
from timing import changes

from kelp_hw.prefetch.fifo import PrefetchFifo
from kelp_hw.prefetch.prefetch import Prefetcher
from kelp_hw.prefetch.sources import AccessSource, PreviousSource
from kelp_hw.prefetch.throttle import CREDIT_MAX, ISSUED_PERIOD, SOURCES, Throttle
from kelp_spec.config import named
from kelp_spec.metadata import Op, Outcome

UNIT = named("unit")

OPEN = {
    "sessions.0.open": 1,
    "sessions.0.used_pages": UNIT.pages,
    "sessions.0.used_queues": UNIT.queues,
    "sessions.0.kv_heads": 1,
}
ACCESS = {
    "i_result.valid": 1,
    "i_result.p.first": 1,
    "i_result.p.op.kind": int(Op.READ),
    "i_result.p.outcome": int(Outcome.HIT),
}
OP = {"prepare": OPEN | {"enable": (1 << SOURCES - 1) - 1, "o_op.ready": 1}}


def offered(path):
    """The page of a candidate or an op on the stream `path`, 0 while there is none."""

    def page(dut):
        stream = getattr(dut, path)
        return Mux(stream.valid, stream.p.page, 0)

    return page


def pages(stream, values=(1, 2, 3), **fields):
    return [fields | {f"{stream}.valid": 1, f"{stream}.p.page": page} for page in values]


#: Class, attribute of the latency, output, stimuli, options of `changes`.
CASES = [
    (
        PreviousSource,
        "LATENCY",
        offered("o"),
        [{"quiet": 1}, {}, {}],
        {"prepare": {"live": 1, "o.ready": 1}, "before": [*pages("i"), {"step.valid": 1}]},
    ),
    (PrefetchFifo, "LATENCY", offered("o"), pages("i"), {"prepare": {"o.ready": 1}}),
    (Prefetcher, "ASKED_LATENCY", offered("o_op"), pages("i_hint"), OP),
    (Prefetcher, "ASKED_LATENCY", offered("o_op"), pages("i_spec"), OP),
]


@pytest.mark.parametrize("case", CASES, ids=[f"{cls.__name__}-{lat}" for cls, lat, *_ in CASES])
def test_latency_and_interval(case):
    cls, attribute, output, stimuli, options = case
    latency = getattr(cls, attribute)
    expected = [latency + k * cls.INTERVAL for k in range(len(stimuli))]
    assert changes(cls(config=UNIT), output, stimuli, **options) == expected


def test_accesses_leave_as_far_apart_as_their_interval():
    block = AccessSource(config=UNIT)
    prepare = OPEN | {"layer_on": 1, "o.ready": 1}
    seen = changes(block, "o.valid", pages("i", (1, 2, 3, 4, 5, 6)), prepare=prepare)
    assert seen[0::2] == [block.LATENCY + k * block.ACCESS_INTERVAL for k in range(3)]


def test_candidates_of_one_access_leave_one_a_cycle():
    block = AccessSource(config=UNIT)
    prepare = OPEN | {"window_on": 1, "window": 2, "o.ready": 1}
    seen = changes(block, offered("o"), [*pages("i", (3,)), {}, {}, {}], prepare=prepare)
    assert seen == [block.LATENCY + k * block.INTERVAL for k in range(4)]


def test_op_follows_an_access_after_the_latency():
    block = Prefetcher(config=UNIT)
    assert changes(block, "o_op.valid", [ACCESS], **OP) == [block.LATENCY]


def test_throttle_counts_after_its_latency():
    """Of two groups, the first has credit for all of its candidates; 256 prefetches of no use halve
    the credit, so in the second, `allow` falls with the offer behind that of the last credit."""
    issued = [{"issued.valid": 1, "issued.p": 1}] * ISSUED_PERIOD
    block = Throttle()
    halved = changes(block, "credit.1", [{"settle": 1}], before=issued)
    assert halved == [block.COUNT_LATENCY]
    offers = [{"offer.valid": 1, "offer.p": 1}] * (CREDIT_MAX // 2 - 1)
    block = Throttle()
    used_up = changes(
        block,
        "allow",
        [offers[0]] * 2,
        prepare={"offer.p": 1},
        before=[*issued, {"settle": 1}, *offers],
    )
    assert used_up == [block.COUNT_LATENCY]


def test_throttle_allows_in_the_cycle_of_the_offer():
    block = Throttle()
    spent = [{"issued.valid": 1, "issued.p": 1}] * ISSUED_PERIOD + [{"settle": 1}]
    spent += [{"offer.valid": 1, "offer.p": 1}] * (CREDIT_MAX // 2)
    offers = [{"offer.p": source} for source in (1, 0, 1)]
    seen = changes(block, "allow", offers, before=spent)
    assert seen == [block.LATENCY + k * block.INTERVAL for k in range(3)]

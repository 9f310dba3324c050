# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""`LATENCY`, `INTERVAL` and the like of the blocks of `lib`, which are offered something in each
cycle."""

import pytest
from amaranth.hdl import Mux
from timing import changes

from kelp_hw.lib.bypass_fifo import BypassFifo
from kelp_hw.lib.byte_mask import ByteMask
from kelp_hw.lib.delay import Delay
from kelp_hw.lib.exp2 import Exp2
from kelp_hw.lib.free_list import FreeList
from kelp_hw.lib.histogram import LatencyHistogram
from kelp_hw.lib.order_fifo import OrderFifo
from kelp_hw.lib.protected import ProtectedFifo, ProtectedMemory
from kelp_hw.lib.request_fifo import RequestFifo
from kelp_hw.lib.skid import Skid
from kelp_hw.lib.split_sram import SplitSram
from kelp_hw.lib.sram import Sram
from kelp_hw.lib.wide_memory import WideMemory


def offered(dut):
    return Mux(dut.o.valid, dut.o.p, 0)


TAKEN = {"prepare": {"o.ready": 1}}
ITEMS = [{"i.valid": 1, "i.p": value} for value in (1, 2, 3)]
READS = [{"read_en": 1, "read_address": address} for address in (1, 2, 3)]
ROWS = {
    "before": [{"write_en": 1, "write_address": row, "write_data": 8 + row} for row in (1, 2, 3)]
}
EVENTS = [{"i.valid": 1}] * 3  # of latency 0: they count in row 0
SETS = [{"set_en": 1, "set_bytes": byte} for byte in (1, 2, 4)]
#: Block, cycles from a stimulus to the output, output, stimuli, options of `changes`.
CASES = {
    "BypassFifo": (BypassFifo(depth=4, shape=8), "LATENCY", offered, ITEMS, TAKEN),
    "BypassFifo, registered": (
        BypassFifo(depth=4, shape=8, registered=True),
        "LATENCY",
        offered,
        ITEMS,
        TAKEN,
    ),
    "ByteMask, look": (
        ByteMask(slots=2),
        "LATENCY",
        "look_mask",
        [SETS[0], {"clear_en": 1}, SETS[1]],
        {},
    ),
    "ByteMask, read": (ByteMask(slots=2), "READ_LATENCY", "read_mask", SETS, {}),
    **{
        f"Delay of {cycles}": (
            Delay(shape=8, cycles=cycles),
            "LATENCY",
            "o",
            [{"i": value} for value in (1, 2, 3)],
            {"prepare": {"en": 1}},
        )
        for cycles in (2, 5)
    },
    "Exp2": (
        Exp2(bias=0),
        "LATENCY",
        "halving",
        [{"steps": steps, "mantissa": 1 << 15} for steps in (1, 2, 3)],
        {},
    ),
    "FreeList": (FreeList(count=4, first=1), "LATENCY", offered, ITEMS, TAKEN),
    "FreeList, level": (FreeList(count=4), "LEVEL_LATENCY", "level", [{"o.ready": 1}] * 3, {}),
    "LatencyHistogram, read": (
        LatencyHistogram(cycle_bits=8),
        "READ_LATENCY",
        "read_data",
        [{"read_row": 0}, {"read_row": 1}, {"read_row": 0}],
        {"prepare": {"read_row": 1}, "before": EVENTS[:1]},
    ),
    "OrderFifo": (OrderFifo(width=8, depth=4), "LATENCY", offered, ITEMS, TAKEN),
    "ProtectedFifo": (
        ProtectedFifo(shape=8, depth=4, protect=True),
        "LATENCY",
        lambda dut: Mux(dut.r_rdy, dut.r_data, 0),
        [{"w_en": 1, "w_data": value} for value in (1, 2, 3)],
        {"prepare": {"r_en": 1}},
    ),
    "ProtectedMemory": (
        ProtectedMemory(depth=4, shape=8, protect=True),
        "LATENCY",
        "read_data",
        READS,
        ROWS,
    ),
    "RequestFifo": (RequestFifo(depth=4, shape=8), "LATENCY", offered, ITEMS, TAKEN),
    "Skid": (Skid(8), "LATENCY", offered, ITEMS, TAKEN),
    "Skid, none registered": (Skid(8, registered=()), "LATENCY", offered, ITEMS, TAKEN),
    "SplitSram": (SplitSram(depth=4, shape=8), "LATENCY", "read_data", READS, ROWS),
    "Sram": (Sram(depth=4, shape=8), "LATENCY", "read_data", READS, ROWS),
    "WideMemory": (WideMemory(depth=4, shape=8), "LATENCY", "read_data", READS, ROWS),
    "WideMemory, block RAM": (WideMemory(depth=32, shape=8), "LATENCY", "read_data", READS, ROWS),
}


@pytest.mark.parametrize("case", CASES)
def test_latency_and_interval(case):
    block, attribute, output, stimuli, options = CASES[case]
    expected = [getattr(block, attribute) + k * block.INTERVAL for k in range(len(stimuli))]
    assert changes(block, output, stimuli, **options) == expected


def test_histogram_counts_an_event_in_reads_after_its_latency():
    histogram = LatencyHistogram(cycle_bits=8)
    first = histogram.LATENCY + histogram.READ_LATENCY
    seen = changes(histogram, "read_data", EVENTS)
    assert seen == [first + k * histogram.INTERVAL for k in range(3)]


@pytest.mark.parametrize(
    ("registered", "interval"),
    [(False, BypassFifo.INTERVAL), (True, BypassFifo.REGISTERED_INTERVAL)],
)
def test_bypass_fifo_gives_items_that_wait_at_its_interval(registered, interval):
    fifo = BypassFifo(depth=4, shape=8, registered=registered)
    taken = changes(fifo, "level", [{"o.ready": 1}] * 8, before=ITEMS)
    assert taken == [1, 1 + interval, 1 + 2 * interval]

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Which of KELP's events are errors, and which bit each sets."""

import random

import pytest
from simulation import simulate
from timing import changes

from kelp_hw.media.ras_errors import RasErrors
from kelp_spec.config import named
from kelp_spec.cxlio.component import Correctable, Uncorrectable
from kelp_spec.metadata import Event

UNIT = named("unit").with_(cxlio="joined")
ERRORS = {
    Event.UNCORRECTED: Uncorrectable.CACHE_DATA_ECC,
    Event.WORD_LOST: Uncorrectable.CACHE_DATA_ECC,
    Event.FETCH_FAILED: Uncorrectable.MEM_DATA_ECC,
    Event.MEMORY_READ_FAILED: Uncorrectable.MEM_DATA_ECC,
    Event.MEMORY_WRITE_FAILED: Uncorrectable.MEM_DATA_ECC,
    Event.UNKNOWN_OPCODE: Uncorrectable.RESERVED_ENCODING,
    Event.POISON_RECEIVED: Uncorrectable.POISON_RECEIVED,
    Event.FATAL: Uncorrectable.INTERNAL,
}


@pytest.mark.parametrize("injecting", [0, 1])
def test_each_event_sets_its_bit(injecting):
    dut, seen, rng = RasErrors(config=UNIT), {}, random.Random(6)

    async def bench(ctx):
        ctx.set(dut.injecting, injecting)
        for event in range(32):
            ctx.set(dut.i.payload.as_value(), rng.getrandbits(len(dut.i.payload.as_value())))
            ctx.set(dut.i.p.code, event)
            ctx.set(dut.i.valid, 1)
            header = ctx.get(dut.i.payload.as_value())
            await ctx.tick()
            ctx.set(dut.i.valid, 0)
            if ctx.get(dut.o.valid):
                error = dut.o.p
                bits = ctx.get(error.uncorrectable), ctx.get(error.correctable)
                seen[event] = bits
                assert ctx.get(error.header) == (header if bits[0] else 0)
            await ctx.tick()
            assert not ctx.get(dut.o.valid)

    simulate(dut, bench)
    wanted = {event: (1 << bit, 0) for event, bit in ERRORS.items()}
    wanted[Event.CORRECTED] = (0, 1 << Correctable.CACHE_DATA_ECC)
    if injecting:
        del wanted[Event.POISON_RECEIVED]
    assert seen == wanted


def test_what_is_no_error_says_nothing_right_behind_one():
    dut, seen = RasErrors(config=UNIT), []

    async def bench(ctx):
        for code in (Event.FATAL, Event.CLOSED_SESSION, Event.CORRECTED, Event.CLOSED_SESSION):
            ctx.set(dut.i.p.code, code)
            ctx.set(dut.i.valid, 1)
            await ctx.tick()
            seen.append(ctx.get(dut.o.valid))

    simulate(dut, bench)
    assert seen == [1, 0, 1, 0]


def test_latency_and_interval():
    given = [{"i.valid": 1, "i.p.code": Event.CORRECTED}, {"i.p.code": Event.FATAL}]
    dut = RasErrors(config=UNIT)
    seen = changes(dut, "o.p.correctable", given)
    assert seen == [dut.LATENCY, dut.LATENCY + dut.INTERVAL]

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""RAS: masks, severity, first error pointer, header log, against the golden model."""

import random

import pytest
from simulation import simulate
from timing import check_pace

from kelp_golden.cxlio.ras import Ras
from kelp_golden.cxlio.registers import Registers
from kelp_hw.cxlio.ras_log import RasLog
from kelp_spec.cxlio.component import RAS, Correctable, Uncorrectable, component_registers
from kelp_spec.cxlio.config import named_cxlio

CONFIG = named_cxlio("full")


def test_random_errors():
    rng, seen = random.Random(2), {}
    registers = Registers(component_registers(CONFIG))
    golden, dut = Ras(registers), RasLog(config=CONFIG)
    registers.written = lambda r, _: golden.status_written() if r.name == "uncorrectable" else None

    async def bench(ctx):
        for _ in range(1500):
            uncorrectable = correctable = 0
            if rng.random() < 0.5:
                offset = RAS + 4 * rng.randrange(5)
                value = rng.getrandbits(32) & rng.getrandbits(32)
                registers.write(offset, 4, (1 << 32) - 1 if rng.random() < 0.3 else value)
            else:
                uncorrectable = rng.getrandbits(17) & rng.getrandbits(17) & rng.getrandbits(17)
                correctable = rng.getrandbits(7) & rng.getrandbits(7)
            for key in dut.values.shape().members:
                ctx.set(dut.values[key], registers.values[key])
            header = rng.getrandbits(512)
            # What is not valid is no error.
            valid = bool(uncorrectable or correctable) and rng.random() < 0.9
            ctx.set(dut.i.valid, valid)
            ctx.set(dut.i.p.uncorrectable, uncorrectable)
            ctx.set(dut.i.p.correctable, correctable)
            if not valid:
                uncorrectable = correctable = 0
            for kind, bits in ((Uncorrectable, uncorrectable), (Correctable, correctable)):
                for e in kind:
                    name = f"{kind.__name__}_{e.name}".lower()
                    assert ctx.get(dut.sets[name]) == bits >> e & 1
            ctx.set(dut.i.p.header, header)
            messages = golden.report(uncorrectable, correctable, header)
            await ctx.tick()
            shown = {k for k in ("correctable", "non_fatal", "fatal") if ctx.get(dut.signals[k])}
            assert shown == messages
            first = registers.values["error_control_first"]
            assert ctx.get(dut.first) == first
            kept = sum(registers.values[f"header{i}"] << 32 * i for i in range(16))
            assert ctx.get(dut.header) == kept
            seen[first] = seen.get(first, 0) + 1

    simulate(dut, bench)
    assert len(seen) > 8


MEMORY, POISON = Uncorrectable.MEM_DATA_ECC, Uncorrectable.POISON_RECEIVED


@pytest.mark.parametrize("second", [MEMORY, POISON])
@pytest.mark.parametrize("cleared", [MEMORY, POISON])
def test_an_error_in_the_cycle_of_a_clear(cleared, second):
    """Once the host clears the first error's bit, the next is the first: number and header are its,
    whether it is the same error or another. A clear of another bit leaves both as they are."""
    dut = RasLog(config=CONFIG)

    def key(e):
        return f"uncorrectable_{e.name.lower()}"

    async def bench(ctx):
        async def error(e, header):
            ctx.set(dut.i.valid, 1)
            ctx.set(dut.i.p.uncorrectable, 1 << e)
            ctx.set(dut.i.p.header, header)
            await ctx.tick()
            ctx.set(dut.i.valid, 0)

        def shown():
            return ctx.get(dut.first), ctx.get(dut.header)

        ctx.set(dut.clears[key(MEMORY)], 1)  # what is not set yet is not cleared
        await error(MEMORY, 5)
        ctx.set(dut.clears[key(MEMORY)], 0)
        ctx.set(dut.values[key(MEMORY)], 1)
        ctx.set(dut.clears[key(cleared)], 1)
        await error(second, 7)
        ctx.set(dut.clears[key(cleared)], 0)
        ctx.set(dut.values[key(cleared)], 0)
        ctx.set(dut.values[key(second)], 1)
        for _ in range(3):
            assert shown() == ((second, 7) if cleared is MEMORY else (MEMORY, 5))
            await error(POISON, 9)

    simulate(dut, bench)


def test_latency_and_interval():
    dut = RasLog(config=CONFIG)
    # The first error leaves its header, and each is signalled.
    given = [{"i.valid": 1, "i.p.correctable": value} for value in (1, 0, 2)]
    check_pace(dut, "LATENCY", "signals.correctable", given)

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Registers of CXL.io: each kind of access, every size and alignment, against bytes in Python."""

import random

import pytest
from simulation import simulate
from timing import check_pace, varied

from kelp_golden.cxlio.registers import Registers
from kelp_hw.cxlio.register_bank import RegisterBank
from kelp_spec.cxlio.chmu import chmu_registers
from kelp_spec.cxlio.component import component_registers
from kelp_spec.cxlio.config import named_cxlio
from kelp_spec.cxlio.device import device_registers
from kelp_spec.cxlio.fields import Access, Block, Field, Register
from kelp_spec.cxlio.pci import configuration_space
from kelp_spec.cxlio.pmu import pmu_registers

FULL = named_cxlio("full")
BLOCKS = {
    b.name: b
    for b in (
        *(f(FULL) for f in (configuration_space, component_registers, device_registers)),
        *(f(named_cxlio("joined")) for f in (pmu_registers, chmu_registers)),
    )
}


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.sampled
def test_random_accesses(name):
    block, rng = BLOCKS[name], random.Random(name)
    bank, golden = RegisterBank(block=block), Registers(block)
    offsets = [r.offset + rng.randrange(r.size) for r in block.registers]
    locks = dict.fromkeys(block.locks, 0)
    golden.locked = lambda lock: locks[lock]
    seen = {}

    async def bench(ctx):
        for _ in range(1500):
            for lock in locks:
                locks[lock] = rng.random() < 0.3
                ctx.set(bank.locks[lock], locks[lock])
            for key in block.keys(Access.DEVICE, Access.PRESS):
                golden.values[key] = rng.getrandbits(block.fields[key][1].bits)
                ctx.set(bank.inputs[key], golden.values[key])
            size = rng.choice((1, 2, 4, 8))
            at = rng.choice(offsets) if rng.random() < 0.9 else rng.randrange(block.size)
            at -= at % size
            value, write = rng.getrandbits(8 * size), rng.random() < 0.5
            ctx.set(bank.access.lane, at // 8)
            ctx.set(bank.access.write, write)
            ctx.set(bank.access.write_data, value << 8 * (at % 8))
            ctx.set(bank.access.strobe, ((1 << size) - 1) << at % 8)
            sets = {key: rng.random() < 0.1 for key in block.keys(Access.W1C)}
            for key, on in sets.items():
                ctx.set(bank.sets[key], on)
            load = rng.random() < 0.1
            ctx.set(bank.load, load)
            held = dict(golden.values)
            if write:
                golden.write(at, size, value)
            for key in sets:
                cleared = ctx.get(bank.clears[key]) & held[key]
                assert cleared == held[key] & ~golden.values[key], key
            before = golden.read(at, size)
            for key, bits in block.keys(Access.COUNT).items():
                added = 0 if write else rng.getrandbits(6)
                ctx.set(bank.adds[key], added)
                golden.values[key] = (golden.values[key] + added) % (1 << bits)
            for key, on in sets.items():
                golden.values[key] |= on
            for key, bits in block.keys(Access.SHARED).items():
                given = rng.getrandbits(bits)
                ctx.set(bank.loads[key], given)
                if load:
                    golden.values[key] = given
            await ctx.tick()
            if not write:
                shown = ctx.get(bank.access.read_data) >> 8 * (at % 8) & (1 << 8 * size) - 1
                assert shown == before, f"{name} {at:#x}, {size} bytes"
            for key in block.keys(Access.RW, Access.W1C, Access.W1S, Access.SHARED, Access.COUNT):
                assert ctx.get(bank.values[key]) == golden.values[key], key
            seen[size, write] = seen.get((size, write), 0) + 1

    simulate(bank, bench)
    assert min(seen.values()) > 100 and len(seen) == 8


def test_strobes_and_watched_writes():
    bank, heard = RegisterBank(block=BLOCKS["configuration"]), []

    async def bench(ctx):
        for lane, strobe, value in (
            (0x1E8, 0xF, 1),
            (0x1E8, 0x8, 1 << 31),
            (0x1F0, 0xF, 7),
            (0x1F0, 0, 7),
            (0x1F0, 0x4, 0x55_6677),
        ):
            ctx.set(bank.access.lane, lane // 8)
            ctx.set(bank.access.write, 1)
            ctx.set(bank.access.strobe, strobe)
            ctx.set(bank.access.write_data, value)
            await ctx.delay(1e-9)
            s = bank.strobes
            heard.append(
                tuple(
                    ctx.get(x)
                    for x in (
                        s.doe_control_abort,
                        s.doe_control_go,
                        s.doe_write,
                        bank.written.doe_write,
                    )
                )
            )
            await ctx.tick()

    simulate(bank, bench)
    assert heard == [(1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 7, 1), (0, 0, 0, 0), (0, 0, 0x55_0000, 1)]


def test_latency_and_interval():
    block = RegisterBank(block=BLOCKS["configuration"])
    check_pace(block, "LATENCY", "access.read_data", varied("access.lane", (1, 0, 2)))


@pytest.mark.parametrize(
    "registers",
    [
        (Register("a", 0, 4, ()), Register("b", 2, 2, ())),
        (Register("a", 2, 4, ()),),
        (Register("a", 14, 4, ()),),
        (Register("a", 0, 4, (Field("x", 0, 8), Field("y", 7, 1))),),
        (Register("a", 0, 2, (Field("x", 8, 9),)),),
        (Register("a", 0, 2, ()), Register("a", 4, 2, ())),
    ],
)
def test_a_register_out_of_place_is_refused(registers):
    with pytest.raises(ValueError):
        Block("planted", 16, registers)


def test_a_function_level_reset_leaves_the_devices_registers():
    """Whatever is written or set in its cycle: reset values, where the block says so, and there
    alone."""
    block = configuration_space(named_cxlio("joined"))
    bank, golden = RegisterBank(block=block), Registers(block)
    base, memory = block.by_name["bar0"], block.by_name["cxl_control"]

    async def bench(ctx):
        async def write(register, value):
            ctx.set(bank.access.lane, register.lane)
            ctx.set(bank.access.write, 1)
            ctx.set(bank.access.strobe, ((1 << register.size) - 1) << register.offset % 8)
            ctx.set(bank.access.write_data, value << register.shift)
            golden.write(register.offset, register.size, value)
            await ctx.tick()
            ctx.set(bank.access.write, 0)

        await write(base, 0x5_0000)
        await write(memory, 4)
        ctx.set(bank.sets.pcie_device_status_fatal, 1)
        await ctx.tick()
        assert ctx.get(bank.values.bar0_base) == 5
        ctx.set(bank.function_reset, 1)
        await write(base, 0x6_0000)
        ctx.set(bank.sets.pcie_device_status_fatal, 0)
        ctx.set(bank.function_reset, 0)
        golden.function_reset()
        await ctx.tick()
        for key in block.keys(Access.RW, Access.W1C, Access.W1S):
            assert ctx.get(bank.values[key]) == golden.values[key], key
        assert ctx.get(bank.values.cxl_control_mem) == 1 and not ctx.get(bank.values.bar0_base)

    simulate(bank, bench)

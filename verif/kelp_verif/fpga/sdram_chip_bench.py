# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The SDRAM chip's model, told one wrong thing at a time: each must be seen, and nothing else."""

import cocotb
from cocotb.triggers import RisingEdge, Timer

from ..harness.clocking import start_clock
from ..harness.runner import bench_params, record
from .sdram_bench import broken

_CODES = {"NOP": 7, "ACT": 3, "RD": 5, "WR": 4, "PRE": 2, "REF": 1, "MRS": 0, "STOP": 6}


class Chip:
    def __init__(self, dut):
        self.dut = dut
        self.pins = {
            name: getattr(dut, f"pins__{name}")
            for name in ("cke", "cs_n", "ras_n", "cas_n", "we_n", "ba", "a", "dqm", "dq_o", "dq_oe")
        }
        for name, pin in self.pins.items():
            pin.value = int(name.endswith("_n") or name == "cke")

    async def cycle(self, command="NOP", *, bank=0, a=0, data=None, dqm=0, cke=1):
        code = _CODES[command]
        values = {
            "cke": cke,
            "cs_n": 0,
            "ras_n": code >> 2,
            "cas_n": code >> 1 & 1,
            "we_n": code & 1,
            "ba": bank,
            "a": a,
            "dqm": dqm,
            "dq_o": data or 0,
            "dq_oe": int(data is not None),
        }
        for name, value in values.items():
            self.pins[name].value = value
        await RisingEdge(self.dut.clk)

    async def idle(self, cycles):
        for _ in range(cycles):
            await self.cycle()

    async def set_up(self, mode=0b010_0_011, refreshes=8, wait=16_100, gap=6):
        await self.idle(wait)
        await self.cycle("PRE", a=1 << 10)
        await self.idle(3)
        for _ in range(refreshes):
            await self.cycle("REF")
            await self.idle(gap)
        await self.cycle("MRS", a=mode)
        await self.idle(2)

    async def write(self, bank=0, column=0, beats=8, ap=0, driven=True):
        for n in range(beats):
            await self.cycle(
                "WR" if n == 0 else "NOP",
                bank=bank,
                a=column | ap << 10,
                data=0x1000 + n if driven else None,
            )


async def _wrong_set_up(chip, name):
    match name:
        case "power-up":
            await chip.set_up(wait=15_000)
        case "init":
            await chip.set_up(refreshes=7)
        # the caller gives a clock that is too fast for CAS latency 2
        case "tCK":
            await chip.set_up(wait=25_100, gap=10)
        case "mode":
            await chip.set_up(mode=0b010_0_010)


async def _wrong(chip, name):
    act = 2  # cycles from ACTIVE to READ or WRITE
    match name:
        case "tMRD":
            await chip.cycle("MRS", a=0b010_0_011)
            await chip.cycle("ACT")
        case "tRC":
            # tRAS is kept; a short row cycle is then a short precharge too.
            await chip.cycle("ACT")
            await chip.idle(3)
            await chip.cycle("PRE")
            await chip.cycle("ACT")
        case "tRFC":
            await chip.cycle("REF")
            await chip.idle(4)
            await chip.cycle("ACT")
        case "tRCD":
            await chip.cycle("ACT")
            await chip.cycle("RD")
        case "tRP":
            await chip.cycle("ACT")
            await chip.idle(6)
            await chip.cycle("PRE")
            await chip.cycle("ACT")
        case "tRRD":
            await chip.cycle("ACT", bank=0)
            await chip.cycle("ACT", bank=1)
        case "tRAS":
            await chip.cycle("ACT")
            await chip.idle(2)
            await chip.cycle("PRE")
        case "tRAS max":
            await chip.cycle("ACT")
            for _ in range(9700):
                await chip.cycle()
        case "tWR":
            await chip.cycle("ACT")
            await chip.idle(act - 1)
            await chip.write()
            await chip.cycle("PRE")
        case "tREFI":
            await chip.idle(10 * 624)
        case "ACTIVE of an open bank":
            await chip.cycle("ACT")
            await chip.idle(8)
            await chip.cycle("ACT")
        case "access to a closed bank":
            await chip.cycle("RD")
        case "data pins driven by both":
            await chip.cycle("ACT")
            await chip.idle(act - 1)
            await chip.cycle("RD")
            await chip.idle(4)
            await chip.cycle(data=1)
        case "REFRESH or MODE with a bank open":
            await chip.cycle("ACT")
            await chip.idle(8)
            await chip.cycle("REF")
        case "auto-precharge cut":
            await chip.cycle("ACT", bank=0)
            await chip.idle(1)
            await chip.cycle("ACT", bank=1)
            await chip.idle(1)
            await chip.cycle("RD", bank=0, a=1 << 10)
            await chip.idle(3)
            await chip.cycle("RD", bank=1)
        case "unknown command":
            await chip.cycle("STOP")
        case "write data not driven":
            await chip.cycle("ACT")
            await chip.idle(act - 1)
            await chip.write(driven=False)


#: In this order: a later one may break an earlier one's rule too, because one cannot be had without
#: the other.
COMMANDS = (
    "tMRD",
    "tRP",
    "tRC",
    "tRFC",
    "tRCD",
    "tRRD",
    "tRAS",
    "tWR",
    "tREFI",
    "tRAS max",
    "ACTIVE of an open bank",
    "access to a closed bank",
    "data pins driven by both",
    "REFRESH or MODE with a bank open",
    "auto-precharge cut",
    "unknown command",
    "write data not driven",
)


async def _seen(dut):
    await Timer(1, "ns")
    return set(broken(dut.violation.value))


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def each_wrong_command_is_seen(dut):
    chip = Chip(dut)
    await start_clock(dut)
    await chip.set_up()
    before = await _seen(dut)
    assert not before
    for name in COMMANDS:
        await _wrong(chip, name)
        await chip.idle(12)
        seen = await _seen(dut)
        assert seen - before == {name}, f"{name}: seen {sorted(seen - before)}"
        await chip.cycle("PRE", a=1 << 10)
        await chip.idle(8)
        before = await _seen(dut)
    assert before == set(COMMANDS)


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def a_wrong_set_up_is_seen(dut):
    name = bench_params()["name"]
    chip = Chip(dut)
    await start_clock(dut)
    # Where the clock's random first value is high, the chip has seen an edge with random pins: then
    # this run shows nothing, and says so.
    before = await _seen(dut)
    record(clean=not before)
    if not before:
        await _wrong_set_up(chip, name)
        assert await _seen(dut) == {name}


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def a_right_sequence_is_accepted_and_reads_back(dut):
    chip = Chip(dut)
    await start_clock(dut)
    await chip.set_up()
    await chip.cycle("ACT", bank=2, a=77)
    await chip.idle(1)
    await chip.write(bank=2, column=16, ap=1)
    await chip.idle(5)
    await chip.cycle("ACT", bank=2, a=77)
    await chip.idle(1)
    await chip.cycle("RD", bank=2, a=16 | 1 << 10)
    await chip.idle(1)
    got = []
    for _ in range(8):  # CAS latency 2 is past: the data stands until the next edge
        await Timer(1, "ns")
        got.append(int(dut.pins__dq_i.value))
        await chip.idle(1)
    assert got == [0x1000 + n for n in range(8)]
    await chip.idle(8)
    assert not await _seen(dut)

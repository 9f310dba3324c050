# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""A board's cold tier and memory test beside other traffic on the same memory."""

import cocotb
from cocotb.triggers import ReadOnly, RisingEdge

from kelp_hw.export.packing import Packing
from kelp_hw.layouts import Layouts
from kelp_spec.config import named
from kelp_spec.metadata import ColdOp, ColdStatus

from ..harness.runner import bench_params
from .memory_top import FIRST, LINES
from .sdram_bench import TB

_LINES_PER_SLOT = 8


class Side(TB):
    def __init__(self, dut):
        super().__init__(dut)
        self.config = named(bench_params()["config"])
        layouts = Layouts(self.config)
        self.command, self.completion = (
            Packing(layouts.cold_command),
            Packing(layouts.cold_completion),
        )
        self.got, self.orders = [], []
        dut.cold_command__valid.value = dut.cold_completion__ready.value = dut.start.value = (
            dut.stuck.value
        ) = 0
        dut.first.value = dut.count.value = 0

    async def step(self):
        """One cycle, the cold port's half first."""
        dut = self.dut
        dut.cold_command__valid.value = int(bool(self.orders))
        if self.orders:
            dut.cold_command__payload.value = self.orders[0]
        ready = int(self.rng.random() < 0.5)
        dut.cold_completion__ready.value = ready
        self.issue()
        io = self.io
        for name, queue in (("aw", self.aw), ("w", self.w), ("ar", self.ar)):
            io[f"{name}_valid"].value = int(bool(queue))
            if queue:
                io[f"{name}_payload"].value = queue[0]
        io["r_ready"].value = io["b_ready"].value = 1
        await ReadOnly()
        if self.orders and dut.cold_command__ready.value == 1:
            self.orders.pop(0)
        if ready and dut.cold_completion__valid.value == 1:
            self.got.append(self.completion.unpack(dut.cold_completion__payload.value))
        for name, queue in (("aw", self.aw), ("w", self.w), ("ar", self.ar)):
            if queue and io[f"{name}_ready"].value:
                queue.popleft()
        if io["r_valid"].value:
            got = self.channels["r"].unpack(io["r_payload"].value)
            tag, line, wanted = self.reading.popleft()
            assert got["id"] == tag and (wanted is None or got["data"] == wanted), f"line {line:#x}"
        if io["b_valid"].value:
            assert (
                self.channels["b"].unpack(io["b_payload"].value)["id"] == self.writing.popleft()[0]
            )
        await RisingEdge(dut.clk)
        self.cycle += 1

    def order(self, op, index, *, lba=0, line=0, lines=None, valid=0, poison=0, attempt=0):
        lines = max(self.config.frame_lines) if lines is None else lines
        self.orders.append(
            self.command.pack(
                op=op,
                lba=lba,
                line=line,
                lines=lines,
                **{
                    "id.index": index,
                    "id.attempt": attempt,
                    "line_mask.valid": valid,
                    "line_mask.poison": poison,
                },
            )
        )

    async def completions(self, count):
        for _ in range(20_000):
            if len(self.got) >= count:
                break
            await self.step()
        assert len(self.got) == count
        out, self.got = self.got, []
        return out


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def pages_go_out_and_come_back(dut):
    tb = Side(dut)
    await tb.start()
    c, rng = tb.config, tb.rng
    size, misses = max(c.frame_lines), c.misses
    slots = (LINES - FIRST) // (c.cold_slot_sectors * _LINES_PER_SLOT)
    frames = [n * size for n in range(4)]
    stored = {}
    for n, frame in enumerate(frames):
        for line in range(size):
            tb.write(frame + line)
        stored[n] = None
    await tb.drain(5000)
    line_masks = {}
    for n, frame in enumerate(frames):
        stored[n] = [tb.memory[frame + line] for line in range(size)]
        line_masks[n] = rng.getrandbits(c.page_lines), rng.getrandbits(c.page_lines)
        tb.order(
            ColdOp.WRITE,
            misses + n,
            lba=(slots - 1 - n) * c.cold_slot_sectors,
            line=frame,
            valid=line_masks[n][0],
            poison=line_masks[n][1],
        )
    done = await tb.completions(4)
    assert [(d["id.index"], d["status"]) for d in done] == [
        (misses + n, ColdStatus.OK) for n in range(4)
    ]
    # Back into other frames, with traffic of others in between, and an ABORT in the queue.
    for n in range(4):
        tb.order(
            ColdOp.READ, n, lba=(slots - 1 - n) * c.cold_slot_sectors, line=frames[3 - n], attempt=1
        )
    tb.order(ColdOp.ABORT, 2, attempt=1)
    other = FIRST - 8
    for _ in range(40):
        tb.write(other + rng.randrange(8))
        tb.read(other + rng.randrange(8))
    done = await tb.completions(5)
    assert [(d["id.index"], d["id.attempt"], d["status"]) for d in done] == [
        *((n, 1, ColdStatus.OK) for n in range(4)),
        (2, 1, ColdStatus.ABORTED),
    ]
    assert [(d["line_mask.valid"], d["line_mask.poison"]) for d in done[:4]] == [
        line_masks[n] for n in range(4)
    ]
    for n in range(4):
        for line in range(size):
            tb.memory[frames[3 - n] + line] = stored[n][line]
            tb.read(frames[3 - n] + line)
    await tb.drain(8000)


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def what_lies_beyond_the_region_fails(dut):
    tb = Side(dut)
    await tb.start()
    c = tb.config
    slots = (LINES - FIRST) // (c.cold_slot_sectors * _LINES_PER_SLOT)
    tb.order(ColdOp.WRITE, c.misses, lba=slots * c.cold_slot_sectors)
    tb.order(ColdOp.READ, 0, lba=slots * c.cold_slot_sectors)
    tb.order(ColdOp.WRITE, c.misses, lba=(slots - 1) * c.cold_slot_sectors)
    assert [d["status"] for d in await tb.completions(3)] == [
        ColdStatus.FAILED,
        ColdStatus.FAILED,
        ColdStatus.OK,
    ]


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def the_memory_test_finds_a_stuck_bit(dut):
    tb = Side(dut)
    await tb.start()

    async def run(first, count, stuck):
        dut.first.value, dut.count.value, dut.stuck.value, dut.start.value = first, count, stuck, 1
        await tb.step()
        dut.start.value = 0
        await tb.step()
        while dut.busy.value == 1:
            await tb.step()
        assert dut.done.value == 1
        return int(dut.result.value), int(dut.detail.value)

    assert (await run(20, 40, 0))[0] == 0
    assert await run(20, 40, 1) == (1, 37)
    assert (await run(38, 20, 1))[0] == 0
    assert (await run(20, 0, 0))[0] == 2

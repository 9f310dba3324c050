# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""SDRAM controller on its chip: what is written is read, no timing of the datasheet is broken, and
how many bytes a cycle move."""

import random
from collections import deque

import cocotb
from cocotb.triggers import ReadOnly, RisingEdge

from kelp_hw.export.packing import Packing
from kelp_hw.lib.axi import AxiSignature

from ..harness.clocking import start_clock
from ..harness.runner import bench_params, record
from .chip import VIOLATIONS

_LINES = 1 << 19


def broken(value) -> list[str]:
    return [name for n, name in enumerate(VIOLATIONS) if int(value) >> n & 1]


class TB:
    """A manager with `depth` transactions under way at most; requests in `todo` as (line, None or
    (data, strobe))."""

    def __init__(self, dut, depth=4):
        self.dut, self.rng, self.depth = dut, random.Random(cocotb.RANDOM_SEED), depth
        axi = AxiSignature(address_bits=25, id_bits=4)
        self.channels = {
            name: Packing(member.signature.members["payload"].shape)
            for name, member in axi.members.items()
        }
        self.io = {
            f"{c}_{part}": getattr(dut, f"axi__{c}__{part}")
            for c in self.channels
            for part in ("valid", "ready", "payload")
        }
        self.memory = {}
        self.todo = deque()
        self.reading, self.writing = deque(), deque()  # (id, expected line), (id)
        self.aw, self.w, self.ar = deque(), deque(), deque()
        self.pressure, self.cycle, self.done, self.id = 0.0, 0, 0, 0

    async def start(self):
        dut = self.dut
        for name in ("aw", "w", "ar"):
            self.io[f"{name}_valid"].value = 0
        self.io["r_ready"].value = self.io["b_ready"].value = 0
        await start_clock(dut)
        for _ in range(3):
            await RisingEdge(dut.clk)
        dut.rst.value = 0

    def issue(self):
        """The next request. A line under way in the other direction waits: AXI orders nothing
        between reads and writes."""
        while self.todo and len(self.reading) + len(self.writing) < self.depth:
            line, write = self.todo[0]
            if any(entry[1] == line for entry in (*self.reading, *self.writing)):
                return
            self.todo.popleft()
            self.id = self.id + 1 & 15
            address = {"id": self.id, "addr": line << 6, "len": 0, "size": 6, "burst": 1}
            if write is None:
                self.ar.append(self.channels["ar"].pack(**address))
                self.reading.append((self.id, line, self.memory.get(line, None)))
            else:
                data, strobe = write
                self.aw.append(self.channels["aw"].pack(**address))
                self.w.append(self.channels["w"].pack(data=data, strb=strobe, last=1))
                self.writing.append((self.id, line))
                mask = sum(0xFF << 8 * n for n in range(64) if strobe >> n & 1)
                self.memory[line] = self.memory.get(line, 0) & ~mask | data & mask

    async def step(self):
        self.issue()
        io, rng = self.io, self.rng
        for name, queue in (("aw", self.aw), ("w", self.w), ("ar", self.ar)):
            io[f"{name}_valid"].value = int(bool(queue))
            if queue:
                io[f"{name}_payload"].value = queue[0]
        ready = {name: int(rng.random() >= self.pressure) for name in ("r", "b")}
        for name, value in ready.items():
            io[f"{name}_ready"].value = value
        await ReadOnly()
        for name, queue in (("aw", self.aw), ("w", self.w), ("ar", self.ar)):
            if queue and io[f"{name}_ready"].value:
                queue.popleft()
        if ready["r"] and io["r_valid"].value:
            got = self.channels["r"].unpack(io["r_payload"].value)
            tag, line, wanted = self.reading.popleft()
            assert (got["id"], got["resp"], got["last"]) == (tag, 0, 1)
            assert wanted is None or got["data"] == wanted, (
                f"line {line:#x}: {got['data']:0128x}, written {wanted:0128x}"
            )
            self.done += 1
        if ready["b"] and io["b_valid"].value:
            got = self.channels["b"].unpack(io["b_payload"].value)
            assert (got["id"], got["resp"]) == (self.writing.popleft()[0], 0)
            self.done += 1
        await RisingEdge(self.dut.clk)
        self.cycle += 1

    async def drain(self, limit):
        started = self.cycle
        while self.todo or self.reading or self.writing:
            await self.step()
            assert self.cycle - started < limit, (
                f"{len(self.todo)} to do, {len(self.reading)} reads and {len(self.writing)} "
                + "writes under way"
            )

    def write(self, line, strobe=(1 << 64) - 1):
        self.todo.append((line, (self.rng.getrandbits(512), strobe)))

    def read(self, line):
        self.todo.append((line, None))


async def start(dut, **options) -> TB:
    tb = TB(dut, **options)
    await tb.start()
    for _ in range(40_000):
        await RisingEdge(dut.clk)
        if dut.ready.value == 1:
            break
    assert dut.ready.value == 1 and broken(dut.violation.value) == []
    return tb


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def what_is_written_is_read(dut):
    """Hot and scattered lines, partial writes, back-pressure, pauses long enough for refreshes."""
    tb = await start(dut)
    rng = tb.rng
    places = [rng.randrange(_LINES) for _ in range(30)] + [
        0,
        1,
        2,
        3,
        4,
        64,
        _LINES - 1,
        _LINES - 4,
    ]
    for line in places:
        tb.write(line)
    for _ in range(bench_params().get("requests", 250)):
        line = rng.choice(places)
        if rng.random() < 0.5:
            tb.read(line)
        else:
            tb.write(
                line, rng.choice(((1 << 64) - 1, rng.getrandbits(64), 0, 1 << rng.randrange(64)))
            )
    for line in places:
        tb.read(line)
    for pressure in (0.0, 0.97, 0.5, 0.0):
        tb.pressure = pressure
        for _ in range(1500):
            await tb.step()
    await tb.drain(60_000)
    for _ in range(2000):
        await tb.step()
    tb.read(places[0])
    await tb.drain(1000)
    assert broken(dut.violation.value) == []
    record(checked=tb.done)


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def bandwidth(dut):
    """Bytes a cycle over 150 lines, refresh included."""
    figures = {}
    tb = await start(dut, depth=8)
    rng = tb.rng
    for line in range(256):
        tb.memory[line] = None
    for name in ("sequential_reads", "sequential_writes", "random_reads", "random_mixed", "copy"):
        for n in range(150):
            line = n if "random" not in name else rng.randrange(_LINES)
            tb.memory.pop(line, None)
            if "write" in name or name == "random_mixed" and n % 2 or name == "copy" and n // 4 % 2:
                tb.write(line)
            else:
                tb.read(line)
        done, cycle = tb.done, tb.cycle
        await tb.drain(20_000)
        figures[name] = round(64 * (tb.done - done) / (tb.cycle - cycle), 3)
    assert broken(dut.violation.value) == []
    tb.read(1000)
    started = tb.cycle
    await tb.drain(200)
    record(bytes_per_cycle=figures, latency=tb.cycle - started)

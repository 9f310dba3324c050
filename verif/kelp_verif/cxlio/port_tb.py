# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""CXL.io between a host and the data path, both played: register accesses of 1 to 8 bytes on the
AXI4-Lite port, MSI-X messages, requests and their answers, events. Every stream pauses at
random."""

import random
from collections import defaultdict, deque
from dataclasses import replace

import cocotb
from cocotb.triggers import Lock, ReadOnly, RisingEdge

from kelp_hw.cxlio.signatures import (
    answer_layout,
    error_layout,
    event_layout,
    health_layout,
    message_layout,
    request_layout,
)
from kelp_hw.export.packing import Packing
from kelp_spec.cxlio.config import Space, named_cxlio

from ..harness.clocking import start_clock
from ..harness.runner import bench_params

__all__ = ["OKAY", "TB"]

OKAY = 0
SPACES = {
    "component": Space.COMPONENT,
    "device": Space.DEVICE,
    "pmu": Space.PMU,
    "configuration": Space.CONFIGURATION,
    "chmu": Space.CHMU,
}
ACCESS_LIMIT, COMMAND_LIMIT = 200, 60_000


class TB:
    """`decide(request)` answers a request of the data path, None: not by itself, and `value` goes
    with the answer; `messages` are those that came."""

    def __init__(self, dut, name=None):
        self.dut, self.rng = dut, random.Random(cocotb.RANDOM_SEED)
        config = named_cxlio(name or bench_params()["config"])
        self.config = replace(config, capacity=bench_params().get("capacity", config.capacity))
        self.pause = bench_params().get("pause", 0.3)
        self.event, self.message = Packing(event_layout()), Packing(message_layout())
        self.request, self.answer = Packing(request_layout()), Packing(answer_layout())
        self.error, self.health = Packing(error_layout()), Packing(health_layout())
        self.messages, self.requests, self.events = [], [], deque()
        self.decide, self.value = lambda request: 0, lambda request: 0
        self.cycles = 0
        #: A stream's offers are one behind the other, whoever makes them.
        self._offering = defaultdict(Lock)

    async def start(self):
        dut = self.dut
        for name in (
            *("port__aw__valid", "port__w__valid", "port__ar__valid"),
            *("port__b__ready", "port__r__ready", "messages__ready", "errors__valid"),
            *("events__valid", "requests__ready", "answers__valid", "health"),
            *("host_line__valid", "host_line__payload", "device_line__ready"),
            *("port__aw__payload", "port__w__payload", "port__ar__payload"),
            *("errors__payload", "events__payload", "answers__payload"),
        ):
            getattr(dut, name).value = 0
        if self.config.pmu:
            dut.counted.value = 0
        if self.config.wired:
            dut.progress.value = 0
        if self.config.hot_entries:
            dut.heat__valid.value = dut.heat__payload.value = 0
        dut.memory_ready.value = 1
        await start_clock(dut)
        for _ in range(4):
            await RisingEdge(dut.clk)
        dut.rst.value = 0
        for each in (self._count, self._messages, self._data_path, self._events):
            cocotb.start_soon(each())

    async def _count(self):
        while True:
            await RisingEdge(self.dut.clk)
            self.cycles += 1

    async def _pause(self):
        while self.rng.random() < self.pause:
            await RisingEdge(self.dut.clk)

    async def _take(self, name):
        """The next payload of an output stream."""
        valid, ready = getattr(self.dut, name + "__valid"), getattr(self.dut, name + "__ready")
        while True:
            ready.value = self.rng.random() >= self.pause
            await ReadOnly()
            taken = int(valid.value) and int(ready.value)
            payload = int(getattr(self.dut, name + "__payload").value) if taken else 0
            await RisingEdge(self.dut.clk)
            if taken:
                ready.value = 0
                return payload

    async def _offer(self, name, payload):
        """Until it is taken."""
        await self._pause()
        valid, ready = getattr(self.dut, name + "__valid"), getattr(self.dut, name + "__ready")
        async with self._offering[name]:
            valid.value, getattr(self.dut, name + "__payload").value = 1, payload
            while True:
                await ReadOnly()
                taken = int(ready.value)
                await RisingEdge(self.dut.clk)
                if taken:
                    valid.value = 0
                    return

    async def _messages(self):
        while True:
            self.messages.append(self.message.unpack(await self._take("messages")))

    async def _data_path(self):
        while True:
            request = self.request.unpack(await self._take("requests"))
            self.requests.append(request)
            code = self.decide(request)
            if code is None:
                continue
            for _ in range(self.rng.randrange(1, 40)):
                await RisingEdge(self.dut.clk)
            await self.told(request, code)

    async def told(self, request, code):
        """The data path's answer."""
        self.dut.answers__payload.value = self.answer.pack(
            tag=request["tag"], code=code, value=self.value(request)
        )
        self.dut.answers__valid.value = 1
        await RisingEdge(self.dut.clk)
        self.dut.answers__valid.value = 0

    async def _events(self):
        while True:
            while not self.events:
                await RisingEdge(self.dut.clk)
            await self._offer("events", self.event.pack(**self.events[0]))
            self.events.popleft()

    async def happen(self, counted, cycles=1):
        """For the monitor, in each of so many cycles: (events, decoder) of each capability."""
        each = [events | decoder << 32 for events, decoder in counted]
        self.dut.counted.value = sum(value << 36 * i for i, value in enumerate(each))
        await self.idle(cycles)
        self.dut.counted.value = 0

    async def decoded(self, address):
        """The device address of a host address, or None."""
        await self._offer("host_line", address >> 6)
        payload = await self._take("device_line")
        bits = len(self.dut.device_line__payload) - 1
        return (payload & (1 << bits) - 1) << 6 if payload >> bits else None

    async def report(self, **errors):
        """Errors for RAS, in one cycle."""
        self.dut.errors__payload.value = self.error.pack(**errors)
        self.dut.errors__valid.value = 1
        await RisingEdge(self.dut.clk)
        self.dut.errors__valid.value = 0

    async def read(self, space, offset, size):
        """(value, answer code) of an access that lies in one lane."""
        offered = cocotb.start_soon(self._offer("port__ar", SPACES[space] + offset))
        payload = await self._answer("port__r")
        await offered
        value = payload & (1 << 64) - 1
        return value >> 8 * (offset % 8) & (1 << 8 * size) - 1, payload >> 64

    async def write(self, space, offset, size, value):
        strobe = ((1 << size) - 1) << offset % 8
        data = value << 8 * (offset % 8) | strobe << 64
        parts = [
            cocotb.start_soon(self._offer("port__aw", SPACES[space] + offset)),
            cocotb.start_soon(self._offer("port__w", data)),
        ]
        code = await self._answer("port__b")
        for part in parts:
            await part
        return code

    async def _answer(self, name):
        started = self.cycles
        task = cocotb.start_soon(self._take(name))
        while not task.done():
            await RisingEdge(self.dut.clk)
            assert self.cycles - started < ACCESS_LIMIT, f"no answer on {name}"
        return task.result()

    async def idle(self, cycles=1):
        for _ in range(cycles):
            await RisingEdge(self.dut.clk)

    async def boot(self):
        """Until the mailbox is ready; memory enable is then off again."""
        await self.write("configuration", 4, 2, 2)
        started = self.cycles
        while not (await self.read("device", 0x200, 8))[0] & 0x10:
            await self.idle(50)
            assert self.cycles - started < COMMAND_LIMIT, "the mailbox is never ready"
        await self.write("configuration", 4, 2, 0)

    async def quiet(self):
        """The doorbell is off, no event waits, and the sequencer has had time for the last."""
        started = self.cycles
        while self.events or (await self.read("device", 0x1004, 4))[0] & 1:
            await self.idle()
            assert self.cycles - started < COMMAND_LIMIT, "the mailbox hangs"
        await self.idle(100)

    async def command(self, opcode, payload=b"", length=None):
        """A mailbox command as Linux sends it: (return code, answer, cycles of the doorbell)."""
        at = 0x1020
        for i in range(0, len(payload), 4):
            word = payload[i : i + 4]
            await self.write("device", at + i, len(word), int.from_bytes(word, "little"))
        given = len(payload) if length is None else length
        await self.write("device", 0x1008, 8, opcode | given << 16)
        await self.write("device", 0x1004, 4, 1)
        started = self.cycles
        while (await self.read("device", 0x1004, 4))[0] & 1:
            assert self.cycles - started < COMMAND_LIMIT, f"command {opcode:04x} hangs"
        took = self.cycles - started
        status = (await self.read("device", 0x1010, 8))[0]
        length = (await self.read("device", 0x1008, 8))[0] >> 16
        answer = b""
        for i in range(0, length, 8):
            lane = (await self.read("device", at + i, 8))[0]
            answer += lane.to_bytes(8, "little")
        return status >> 32 & 0xFFFF, answer[:length], took

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Accesses of every size and alignment, commands, events, errors in random order: each read and
each message is what the golden model says."""

import cocotb
from cocotb.triggers import ReadOnly, RisingEdge

from kelp_golden.cxlio.device import Device
from kelp_spec.cxlio.commands import COMMANDS, Opcode
from kelp_spec.cxlio.component import component_registers
from kelp_spec.cxlio.device import device_registers
from kelp_spec.cxlio.pci import MSIX_PENDING, MSIX_TABLE, configuration_space
from kelp_spec.cxlio.pmu import pmu_registers

from ..harness.runner import bench_params, record
from .port_tb import TB

SANITIZE, SET, MESSAGE_LIMIT = 3, 5, 400
#: Its answers are times, which the golden model does not tell.
UNTOLD = Opcode.SET_TIMESTAMP


class Random(TB):
    def __init__(self, dut):
        super().__init__(dut)
        self.golden = golden = Device(self.config)
        golden.mailbox.ask = lambda kind, line, data: self.verdict(line)
        golden.mailbox.condition = (1, 2, 3, 4, 300, 1 << 20)
        self.decide = lambda r: None if r["kind"] == SANITIZE else self.verdict(r["line"])
        self.knobs = list(golden.mailbox.knobs)  #: of the data path, with `config.wired`
        self.seen, self.signalled = {}, set()
        c = self.config
        self.places = {
            "configuration": [r.offset for r in configuration_space(c).registers],
            "component": [r.offset for r in component_registers(c).registers],
            "device": [r.offset for r in device_registers(c).registers],
        }
        self.places["device"] += [0x1020 + 8 * i for i in range(12)]
        self.places["device"] += [MSIX_TABLE + 4 * i for i in range(4 * c.vectors)]
        self.places["device"] += [MSIX_PENDING]
        if c.pmu:
            # Not what counts: the golden model has no clock.
            kept = ("capability", "events", "filter")
            self.places["pmu"] = [
                r.offset for r in pmu_registers(c).registers if any(k in r.name for k in kept)
            ]

    @staticmethod
    def verdict(line):
        return (0, 0, 0, 1, 0, 2, 0, 3)[line % 8]

    def value(self, request):
        """What a vendor feature is, after a write that the data path does not refuse."""
        line = request["line"]
        if request["kind"] == SET and self.verdict(line) == 0:
            self.knobs[line] = request["data"] >> 480
        return self.knobs[line] if request["kind"] > SANITIZE else 0

    def count(self, what):
        self.seen[what] = self.seen.get(what, 0) + 1

    async def watch(self):
        while True:
            await ReadOnly()
            if bits := int(self.dut.signals.value):
                names = ("correctable", "non_fatal", "fatal")
                self.signalled |= {name for i, name in enumerate(names) if bits >> i & 1}
            await RisingEdge(self.dut.clk)

    def place(self):
        rng = self.rng
        space = rng.choice(list(self.places))
        size = rng.choice((1, 2, 4, 8))
        anywhere = rng.random() < 0.05 and space != "pmu"
        at = rng.randrange(4096) if anywhere else rng.choice(self.places[space])
        at += rng.randrange(8) if rng.random() < 0.3 else 0
        return space, at - at % size if at % 8 + size > 8 else at, size

    async def step(self):
        kind = self.rng.choices(
            ("read", "write", "command", "event", "error", "decoder", "reset"),
            (9, 5, 3, 1, 1, 1, int(self.config.flr)),
        )[0]
        await getattr(self, "try_" + kind)()
        await self.settle()
        self.count(kind)

    async def settle(self):
        """Commands and messages have come to an end on both sides."""
        golden = self.golden
        if golden.mailbox.sanitizing:
            code = self.rng.choice((0, 3))
            await self.told(self.requests[-1], code)
            await self.idle(600)
            golden.sanitized(code)
            self.count("sanitized")
        started = self.cycles
        while len(self.messages) < len(golden.msix.sent):
            await self.idle()
            assert self.cycles - started < MESSAGE_LIMIT, "a message is missing"
        sent = [(m["address"], m["data"]) for m in self.messages]
        assert sent == golden.msix.sent, f"{sent[-3:]}, not {golden.msix.sent[-3:]}"

    async def try_read(self):
        space, at, size = self.place()
        got = await self.read(space, at, size)
        wanted = self.golden.read(space, at, size)
        assert got == wanted, f"{space} {at:#x}, {size} bytes: {got[0]:#x}, not {wanted[0]:#x}"
        self.count(f"read of {size}")
        self.count("refused" if got[1] else "allowed")

    async def both(self, space, at, size, value):
        code = await self.write(space, at, size, value)
        assert code == self.golden.write(space, at, size, value)
        if space == "device" and at <= 0x1004 < at + size:
            await self.over()
        await self.idle(60)

    async def over(self):
        started = self.cycles
        while (await self.read("device", 0x1004, 4))[0] & 1 and self.enabled():
            assert self.cycles - started < 60_000, "the mailbox hangs"

    async def opening(self):
        """What random accesses seldom come to: a function-level reset, messages from every log, a
        sanitize."""
        await self.both("configuration", 4, 2, 6)
        await self.both("configuration", 0x7E, 2, 0x8000)
        await self.both("device", MSIX_TABLE + 16 * self.config.event_vector + 12, 4, 0)
        await self.ring(Opcode.SET_INTERRUPT_POLICY, 0x01010101, 4)
        for log in range(4):
            await self.happened({"log": log, "kind": log})
        if self.config.flr:
            # The function is as after power-up; logs, table and policies are what they were.
            await self.both("configuration", 0x10, 4, 0x1234_0000)
            await self.both("configuration", 0x48, 2, 0x8007)
            for at in (0x04, 0x10, 0x44, 0x48, 0x7C):
                assert await self.read("configuration", at, 4) == self.golden.read(
                    "configuration", at, 4
                )
            assert not self.enabled()
            await self.both("configuration", 4, 2, 6)
            await self.both("configuration", 0x7E, 2, 0x8000)
            for at in (0x100, MSIX_PENDING, MSIX_TABLE + 8):
                assert await self.read("device", at, 8) == self.golden.read("device", at, 8)
        if Opcode.SANITIZE in self.config.commands:
            await self.ring(Opcode.SANITIZE, 0, 0)
            await self.settle()

    async def ring(self, opcode, word, length):
        await self.both("device", 0x1020, 4, word)
        await self.both("device", 0x1008, 8, opcode | length << 16)
        await self.both("device", 0x1004, 4, 1)

    async def happened(self, event):
        self.events.append(event)
        while self.events:
            await self.idle()
        await self.idle(500)
        self.golden.event(**event)
        await self.settle()

    def enabled(self):
        return self.golden.pci.values["command_memory"]

    async def try_write(self):
        space, at, size = self.place()
        value = self.rng.getrandbits(8 * size)
        if space == "device" and at <= 0x1009 and at + size > 0x1008:
            value = 0
        await self.both(space, at, size, value)
        if self.rng.random() < 0.7:
            await self.both("configuration", 4, 2, self.rng.choice((6, 6, 6, 4)))
        if self.rng.random() < 0.4:
            await self.both("configuration", 0x7E, 2, 0x8000)
            await self.both("device", MSIX_TABLE + 0x1C, 4, self.rng.random() < 0.3)
        self.count(f"write of {size}")

    async def try_command(self):
        rng, most = self.rng, self.config.payload
        await self.both("configuration", 4, 2, 6)
        opcode = rng.choice([*COMMANDS, Opcode.GET_EVENTS, Opcode.CLEAR_EVENTS, 0x4303])
        if opcode == UNTOLD:
            return
        command = COMMANDS.get(opcode)
        length = command.least if command and rng.random() < 0.9 else rng.randrange(90)
        if opcode in (Opcode.CLEAR_EVENTS, Opcode.GET_EVENTS):
            await self.both(
                "device", 0x1020, 8, rng.randrange(4) | 1 << 16 | rng.randrange(1, 9) << 48
            )
            length = 8 if opcode == Opcode.CLEAR_EVENTS else 1
        elif rng.random() < 0.8:
            await self.both("device", 0x1020, 8, rng.randrange(1 << 10) << 6)
            await self.both("device", 0x1028, 8, rng.randrange(1 << 12))
        if rng.random() < 0.1:
            length = rng.randrange(most + 8)
        await self.both("device", 0x1008, 8, opcode | length << 16)
        await self.both("device", 0x1004, 4, rng.choice((1, 1, 1, 7)))
        for at in (0x1008, 0x1010, 0x1018, 0x100, 0x1020, 0x1028, 0x1038, 0x200):
            got, wanted = await self.read("device", at, 8), self.golden.read("device", at, 8)
            assert got == wanted, f"after {opcode:04x}: {at:#x} is {got[0]:#x}, not {wanted[0]:#x}"

    async def try_reset(self):
        """A function-level reset while a command is carried out, which it does not end."""
        rng = self.rng
        await self.both("configuration", 4, 2, 6)
        opcode = rng.choice([op for op in COMMANDS if op not in (UNTOLD, Opcode.SANITIZE)])
        await self.both("device", 0x1008, 8, opcode | COMMANDS[opcode].least << 16)
        await self.write("device", 0x1004, 4, 1)
        await self.idle(rng.randrange(60))
        await self.write("configuration", 0x48, 2, 0x8000)
        for space, at, value in (("device", 0x1004, 1), ("configuration", 0x48, 0x8000)):
            self.golden.write(space, at, 4 if at == 0x1004 else 2, value)
        assert not self.enabled()
        got, wanted = await self.read("device", 0x1004, 4), self.golden.read("device", 0x1004, 4)
        assert got == wanted, "a function that is reset answers"
        await self.both("configuration", 4, 2, 6)
        await self.over()
        await self.idle(60)
        for at in (0x1008, 0x1010, 0x1020, 0x1028, 0x1038):
            got, wanted = await self.read("device", at, 8), self.golden.read("device", at, 8)
            assert got == wanted, f"after {opcode:04x}: {at:#x} is {got[0]:#x}, not {wanted[0]:#x}"

    async def try_event(self):
        rng = self.rng
        fields = {"log": 2, "kind": 2, "flags": 8, "dpa": 64, "word": 32, "more": 32}
        event = {name: rng.getrandbits(bits) for name, bits in fields.items()}
        if rng.random() < 0.3:
            await self.both("configuration", 4, 2, 6)
            await self.ring(Opcode.SET_INTERRUPT_POLICY, 0x01010101, 4)
        chances = {"poison": 0.3, "quiet": 0.2, "lost": 0.1, "healed": 0.2}
        event |= {name: int(rng.random() < chance) for name, chance in chances.items()}
        event["source"] = rng.getrandbits(3)
        await self.happened(event)

    async def try_error(self):
        rng = self.rng
        errors = {"uncorrectable": 1 << rng.randrange(17), "correctable": rng.getrandbits(7)}
        errors["header"] = rng.getrandbits(512)
        if rng.random() < 0.5:
            await self.both("configuration", 4, 2, 6)
            await self.both("configuration", 0x48, 2, rng.getrandbits(3))
            await self.both("component", 0x1084, 4, rng.getrandbits(17))
        self.signalled.clear()
        await self.report(**errors)
        await self.idle(4)
        wanted = self.golden.report(**errors)
        assert self.signalled == wanted, f"{self.signalled}, not {wanted}"
        self.count("signalled" if wanted else "silent")

    async def try_decoder(self):
        """A commit that is often legal."""
        rng, at = self.rng, 0x1120 + 0x20 * self.rng.randrange(self.config.decoders)
        await self.both("configuration", 4, 2, 6)
        if rng.random() < 0.4:
            await self.both("component", at + 0x10, 4, 0x1000)
        await self.both("component", at, 4, rng.randrange(4) << 28)
        await self.both("component", at + 8, 4, 1 << 28)
        await self.both("component", at + 0x14, 4, 0)
        await self.both("component", at + 0x18, 4, 0)
        await self.both("component", at + 0x10, 4, 0x1200)
        got, _ = await self.read("component", at + 0x10, 4)
        assert got == self.golden.read("component", at + 0x10, 4)[0]
        self.count({0: "free", 1: "committed", 2: "error"}[got >> 10 & 3])


@cocotb.test(timeout_time=100, timeout_unit="ms")
async def random_accesses(dut):
    tb = Random(dut)
    await tb.start()
    condition = {"status": 1, "media": 2, "additional": 3, "life": 4, "temperature": 300}
    dut.health.value = tb.health.pack(**condition, corrected=1 << 20)
    cocotb.start_soon(tb.watch())
    await tb.boot()
    await tb.opening()
    for _ in range(bench_params()["steps"]):
        await tb.step()
    record(seen=tb.seen, messages=len(tb.messages), requests=len(tb.requests))

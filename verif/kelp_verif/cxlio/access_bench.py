# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Accesses of every size and alignment, commands, events, errors in random order, and each bit that
a host may write: each read and each message is what the golden model says."""

import cocotb
from cocotb.triggers import ReadOnly, RisingEdge

from kelp_golden.cxlio.device import Device
from kelp_hw.cxlio.signatures import decoding_layout, window_layout
from kelp_hw.export.packing import Packing
from kelp_spec.cxlio.commands import COMMANDS, Opcode
from kelp_spec.cxlio.component import component_registers
from kelp_spec.cxlio.device import device_registers
from kelp_spec.cxlio.fields import Access
from kelp_spec.cxlio.pci import MSIX_PENDING, MSIX_TABLE, configuration_space
from kelp_spec.cxlio.pmu import pmu_registers

from ..harness.runner import bench_params, record
from .port_tb import TB

CLEAR, SANITIZE, SET, MESSAGE_LIMIT = 2, 3, 5, 400
#: Its answers are times, which the golden model does not tell.
UNTOLD = Opcode.SET_TIMESTAMP
#: Whose answers are read as far as their first record.
LONG = (Opcode.GET_EVENTS, Opcode.POISON_LIST)


class Random(TB):
    def __init__(self, dut):
        super().__init__(dut)
        self.decoding = Packing(decoding_layout(self.config))
        self.window = Packing(window_layout(self.config))
        self.renew()
        self.decide = lambda r: None if r["kind"] == SANITIZE else self.verdict(r["line"])
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

    def renew(self):
        """The golden model as after power-up."""
        self.golden = golden = Device(self.config)
        golden.mailbox.ask = self.wanted
        golden.mailbox.condition = (1, 2, 3, 4, 300, 1 << 20)
        self.requests.clear()
        self.asked = []  #: (kind, line, data) that the mailbox asks of the data path
        self.knobs = list(golden.mailbox.knobs)  #: of the data path, with `config.wired`

    def wanted(self, kind, line, data):
        """The data path, as the golden model asks it."""
        self.asked.append((kind, line, int.from_bytes(data, "little")))
        return self.verdict(line)

    def any_health(self, turned=0):
        """Any health, of both, or one whose every bit is `turned`; its bits."""
        sizes = {"status": 8, "media": 8, "additional": 8, "life": 8, "temperature": 16}
        sizes["corrected"] = 32
        bits = turned or self.rng.getrandbits(sum(sizes.values()))
        told, left = {}, bits
        for name, size in sizes.items():
            told[name], left = left & (1 << size) - 1, left >> size
        told["additional"] &= ~0x1F  # alerts are the mailbox's
        self.dut.health.value = self.health.pack(**told)
        self.golden.mailbox.condition = (*told.values(),)
        return bits

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
        told = [
            (r["kind"], r["line"], {CLEAR: r["data"], SET: r["data"] >> 480}.get(r["kind"], 0))
            for r in self.requests
            if r["kind"] != SANITIZE
        ]
        assert told == self.asked, f"{told[-3:]}, not {self.asked[-3:]}"
        self.decoders_are_told()

    def decoders_are_told(self):
        """To the channels of CXL.mem: what is committed, and where the DVSEC range begins."""
        told, pci = self.decoding.unpack(self.dut.decoding.value), self.golden.pci.values
        for i, wanted in enumerate(self.golden.decoders.windows):
            window = self.window.unpack(told["windows"] >> i * self.window.width)
            assert window["on"] == bool(wanted)
            shown = {
                "base": window["base"] << 28,
                "size": window["size"] << 28,
                "ways": 1 << window["ways"],
                "granule": 256 << window["granularity"],
                "dpa": window["dpa"] << 28,
            }
            assert not wanted or shown == vars(wanted), shown
        shown = told["enable"], told["mem_enable"], told["range_base"]
        enabled = self.golden.component.values["hdm_control_enable"]
        base = pci["range0_base"] | pci["range0_base_high"] << 4
        assert shown == (enabled, pci["cxl_control_mem"], base)

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
        await self.each_bit()

    async def each_bit(self):
        """Of a device's health, and of a line that is cleared, on and off."""
        health = line = 0
        for _ in range(2):
            health = self.any_health(turned=health and health ^ (1 << 80) - 1)
            await self.ring(Opcode.HEALTH, 0, 0)
            for at in (0x1020, 0x1028, 0x1030):
                assert await self.read("device", at, 8) == self.golden.read("device", at, 8)
            line = line ^ (1 << 512) - 1 if line else self.rng.getrandbits(512)
            for n in range(8):
                await self.both("device", 0x1028 + 8 * n, 8, line >> 64 * n & (1 << 64) - 1)
            await self.both("device", 0x1024, 4, 0)
            await self.ring(Opcode.CLEAR_POISON, 512, 72)
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
        often = (Opcode.GET_EVENTS, Opcode.CLEAR_EVENTS, Opcode.HEALTH, Opcode.CLEAR_POISON)
        opcode = rng.choice([*COMMANDS, *often, 0x4303])
        if rng.random() < 0.1:
            opcode ^= 1 << rng.randrange(16)
        if opcode == UNTOLD:
            return
        if rng.random() < 0.3:
            self.any_health()
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
        elif opcode == Opcode.CLEAR_POISON:
            for at in range(0x1020 + 8, 0x1020 + length, 8):
                await self.both("device", at, 8, rng.getrandbits(64))
        if rng.random() < 0.1:
            length = rng.choice((rng.randrange(most + 8), length ^ 1 << rng.randrange(21)))
        await self.both("device", 0x1008, 8, opcode | length << 16)
        await self.both("device", 0x1004, 4, rng.choice((1, 1, 1, 7)))
        answer = range(0x1020, 0x1020 + 8 * (24 if opcode in LONG else 4), 8)
        for at in (0x1008, 0x1010, 0x1018, 0x100, 0x200, *answer):
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
        far = rng.random() < 0.5  # in bits that a small window has not
        await self.both("component", at, 4, (rng.getrandbits(4) if far else rng.randrange(4)) << 28)
        await self.both("component", at + 4, 4, rng.getrandbits(32) if far else 0)
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


#: What a host may set, and see.
WRITABLE = (Access.RW, Access.W1C, Access.W1S, Access.SHARED)


class Bits(Random):
    """Each register's bits, each interleaving of two decoders, what locks hold, and a reset."""

    def __init__(self, dut):
        super().__init__(dut)
        self.blocks = {
            "configuration": configuration_space(self.config).registers,
            "component": component_registers(self.config).registers,
        }

    async def checked(self, space, register):
        at, size = register.offset, register.size
        got, wanted = await self.read(space, at, size), self.golden.read(space, at, size)
        assert got == wanted, f"{space} {register.name}: {got[0]:#x}, not {wanted[0]:#x}"

    async def all_of(self, names=lambda name: True):
        """Each register reads as the golden model's."""
        for space, registers in self.blocks.items():
            for register in registers:
                if names(register.name):
                    await self.checked(space, register)

    async def enabled_again(self):
        await self.both("configuration", 4, 2, 6)

    async def written(self):
        """Ones, zeros and any bits into each register but those that hold others, or start
        something."""
        for space, registers in self.blocks.items():
            for register in registers:
                name = register.name
                if name.startswith(("doe_", "cxl_lock")):
                    continue
                if not any(field.access in WRITABLE for field in register.fields):
                    continue
                ones = (1 << 8 * register.size) - 1
                if name.startswith("decoder") and name.endswith("_control"):
                    ones &= ~0x200  # no commit
                for value in (ones, 0, ones & self.rng.getrandbits(64), ones, 0):
                    await self.both(space, register.offset, register.size, value)
                    await self.enabled_again()
                    await self.checked(space, register)
                    self.count(name)

    async def committed(self, i, base, size, *, skip=0, ways=0, granularity=0, more=0):
        """Whether decoder `i` is committed, as in the golden model."""
        at = 0x1120 + 0x20 * i
        kind = 0x2000 if self.config.coherent else 0x1000
        for offset, value in ((0, base), (8, size), (0x14, skip)):
            await self.both("component", at + offset, 4, value & 0xFFFFFFFF)
            await self.both("component", at + offset + 4, 4, value >> 32)
        control = kind | more | ways << 4 | granularity | 0x200
        await self.both("component", at + 0x10, 4, control)
        got = await self.read("component", at + 0x10, 4)
        assert got == self.golden.read("component", at + 0x10, 4)
        return got[0] >> 10 & 1

    async def freed(self, *decoders):
        for i in decoders:
            await self.both("component", 0x1120 + 0x20 * i + 0x10, 4, 0)

    async def interleaved(self):
        """Lines of two decoders' windows and beside them, in every interleaving."""
        unit, rng = 1 << 28, self.rng
        await self.both("component", 0x1114, 4, 2)
        for granularity in range(8):
            for ways in range(5):
                how = {"ways": ways, "granularity": granularity}
                first = rng.randrange(1 << 8) * unit
                sizes = [unit * rng.randint(1, 2) << min(ways, 3) for _ in range(2)]
                gap, skip = rng.randrange(3) * unit, rng.randrange(2) * unit
                if await self.committed(0, first, sizes[0], **how):
                    base = first + sizes[0] + gap
                    done = await self.committed(1, base, sizes[1], skip=skip, **how)
                    self.count("both" if done else "one")
                else:
                    self.count("none")
                ends = (first, first + sizes[0], first + sizes[0] + gap, first + sum(sizes) + gap)
                near = [end + 64 * rng.randint(-3, 2) for end in ends]
                for address in (*near, *(rng.randrange(*ends[::3]) & ~63 for _ in range(6))):
                    address = max(0, address)
                    wanted = self.golden.decoders.decode(address)
                    assert await self.decoded(address) == wanted, hex(address)
                    self.count("outside" if wanted is None else "inside")
                await self.freed(1, 0)

    async def locked(self):
        """What is locked stays as it is whatever is written, until a reset."""
        unit = 1 << 28
        assert await self.committed(0, 0, unit, more=0x100)
        assert self.config.capacity < 2 or await self.committed(1, unit, unit, more=0x100)
        await self.freed(0, 1)
        (lock,) = (r for r in self.blocks["configuration"] if r.name == "cxl_lock")
        await self.both("configuration", lock.offset, lock.size, 1)
        await self.written()
        await self.both("configuration", lock.offset, lock.size, 0)
        await self.all_of()
        await self.both("component", 0x1114, 4, 2)
        for address in (0, unit, 2 * unit - 64, 2 * unit):
            assert await self.decoded(address) == self.golden.decoders.decode(address)

    async def reset(self):
        self.dut.rst.value, self.dut.memory_ready.value = 1, 0
        await self.idle(3)
        self.dut.rst.value, self.dut.memory_ready.value = 0, 1
        self.renew()
        await self.boot()
        await self.enabled_again()
        await self.all_of(lambda name: not name.startswith("doe_"))
        assert await self.decoded(0) is None


@cocotb.test(timeout_time=100, timeout_unit="ms")
async def every_bit(dut):
    tb = Bits(dut)
    await tb.start()
    await tb.boot()
    await tb.enabled_again()
    await tb.written()
    await tb.interleaved()
    for number in range(17):
        await tb.report(uncorrectable=1 << number, correctable=1 << number % 7, header=number)
        tb.golden.report(uncorrectable=1 << number, correctable=1 << number % 7, header=number)
    await tb.all_of()
    await tb.locked()
    await tb.reset()
    record(seen=tb.seen)

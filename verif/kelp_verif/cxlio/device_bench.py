# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The endpoint behind CXL.io, as a driver and a host use it: a decoder is committed, a session is
opened and used through host addresses, lines are poisoned and cleared by the mailbox, events are
read as records, messages are counted."""

import cocotb
from cocotb.triggers import ReadOnly, RisingEdge

from kelp_hw.datapath.datapath import axi_signature
from kelp_hw.export.packing import Packing
from kelp_hw.layouts import MESSAGES, Layouts
from kelp_rtl.control import Control, Descriptor, QueueParameters
from kelp_spec.address import AddressMap, KvAddress
from kelp_spec.config import named
from kelp_spec.cxlio.commands import Opcode
from kelp_spec.cxlio.component import Uncorrectable
from kelp_spec.cxlio.events import PoisonSource
from kelp_spec.cxlio.pmu import VendorEvent, pmu_map
from kelp_spec.messages import S2MDRS, S2MNDR, M2SReq, M2SRwD
from kelp_spec.metadata import Event
from kelp_spec.registers import RegisterMap, SessionCommand

from ..harness.clocking import start_clock
from ..harness.runner import bench_params, record
from .port_tb import TB as PortTB

BASE = 0xA5C39E << 28  #: where the host has the device
LIMIT = 40_000


class Values(Control):
    """Register values of a session, without a device."""

    def __init__(self, config):
        self.config, self.addresses = config, AddressMap(config)
        self.registers = RegisterMap(config).by_name


class TB(PortTB):
    """`CxlDevice` between a host, a memory and no cold tier."""

    def __init__(self, dut):
        super().__init__(dut)
        self.kelp = named(bench_params()["endpoint"])
        self.values = Values(self.kelp)
        self.addresses, self.names = self.values.addresses, self.values.registers
        self.req, self.rwd = Packing(MESSAGES["M2SReq"]), Packing(MESSAGES["M2SRwD"])
        self.drs, self.ndr = Packing(MESSAGES["S2MDRS"]), Packing(MESSAGES["S2MNDR"])
        channels = axi_signature(self.kelp).members
        self.axi = {
            name: Packing(channels[name].signature.members["payload"].shape) for name in channels
        }
        self.memory: dict[int, int] = {}
        self.refuses = lambda line: False  #: whether memory answers a write with an error
        self.tag = 0

    async def start(self):
        dut = self.dut
        for name in ("m2s_req", "m2s_rwd", "m2s_birsp", "cold_completion", "axi__r", "axi__b"):
            getattr(dut, name + "__valid").value = 0
            getattr(dut, name + "__payload").value = 0
        for name in ("port__aw", "port__w", "port__ar"):
            getattr(dut, name + "__valid").value = 0
            getattr(dut, name + "__payload").value = 0
        for name in ("s2m_drs", "s2m_ndr", "cold_command", "port__b", "port__r", "messages"):
            getattr(dut, name + "__ready").value = 0
        for name in ("axi__ar", "axi__aw", "axi__w"):
            getattr(dut, name + "__ready").value = 0
        dut.skip.value = dut.lockstep.value = dut.temperature.value = 0
        dut.s2m_bisnp__ready.value = 1
        await start_clock(dut)
        for _ in range(4):
            await RisingEdge(dut.clk)
        dut.rst.value = 0
        for each in (self._count, self._messages):
            cocotb.start_soon(each())
        await self.serve()

    async def serve(self):
        """A memory, from a reset on; until the endpoint is ready."""
        self.serving = [
            cocotb.start_soon(each()) for each in (self._memory_reads, self._memory_writes)
        ]
        for _ in range(LIMIT):
            if int(self.dut.ready.value):
                return
            await RisingEdge(self.dut.clk)
        raise AssertionError("the endpoint is never ready")

    async def map_memory(self):
        """A decoder of all the device has, from `BASE` on."""
        await self.write("component", 0x1114, 4, 2)
        high, size = BASE >> 32, 1 << 28
        for at, value in ((0x14, high), (0x10, BASE), (0x1C, 0), (0x18, size), (0x20, 0x1200)):
            await self.write("component", 0x1110 + at, 4, value & 0xFFFFFFFF)
        assert (await self.read("component", 0x1130, 4))[0] >> 10 & 3 == 1, "not committed"

    async def _memory_reads(self):
        while True:
            ar = self.axi["ar"].unpack(await self._take("axi__ar"))
            data = self.memory.get(ar["addr"] >> 6, 0)
            fields = {name: 0 for name in self.axi["r"].fields} | {"id": ar["id"], "data": data}
            fields |= {"last": 1} if "last" in fields else {}
            await self._offer("axi__r", self.axi["r"].pack(**fields))

    async def _memory_writes(self):
        while True:
            aw = self.axi["aw"].unpack(await self._take("axi__aw"))
            w = self.axi["w"].unpack(await self._take("axi__w"))
            mask = sum(0xFF << 8 * i for i in range(64) if w["strb"] >> i & 1)
            line = aw["addr"] >> 6
            self.memory[line] = self.memory.get(line, 0) & ~mask | w["data"] & mask
            fields = {name: 0 for name in self.axi["b"].fields} | {"id": aw["id"]}
            fields["resp"] = 2 if self.refuses(line) else 0
            await self._offer("axi__b", self.axi["b"].pack(**fields))

    # - the host -----------------------------------------------------------------------------------
    async def load(self, address, ld=0):
        """The line at a host address: its bytes, or "poison", or "nxm"."""
        self.tag += 1
        message = self.req.pack(opcode=M2SReq.MEM_RD, tag=self.tag, address=address >> 6, ld_id=ld)
        offered = cocotb.start_soon(self._offer("m2s_req", message))
        answer = self.drs.unpack(await self._within(self._take("s2m_drs")))
        await offered
        assert (answer["tag"], answer["ld_id"]) == (self.tag, ld)
        if answer["opcode"] == S2MDRS.MEM_DATA_NXM:
            return "nxm"
        assert answer["opcode"] == S2MDRS.MEM_DATA
        assert not int(self.dut.quiescent.value)  # a line was on its way
        return "poison" if answer["poison"] else answer["data"].to_bytes(64, "little")

    async def store(self, address, data, enable=(1 << 64) - 1, poison=0, ld=0):
        self.tag += 1
        whole = enable == (1 << 64) - 1
        message = self.rwd.pack(
            opcode=M2SRwD.MEM_WR if whole else M2SRwD.MEM_WR_PTL,
            tag=self.tag,
            address=address >> 6,
            byte_enable=enable,
            poison=poison,
            ld_id=ld,
            data=int.from_bytes(data, "little"),
        )
        offered = cocotb.start_soon(self._offer("m2s_rwd", message))
        answer = self.ndr.unpack(await self._within(self._take("s2m_ndr")))
        await offered
        told = answer["opcode"], answer["tag"], answer["ld_id"]
        assert told == (S2MNDR.CMP, self.tag, ld)

    async def _within(self, awaited):
        task, started = cocotb.start_soon(awaited), self.cycles
        while not task.done():
            await RisingEdge(self.dut.clk)
            assert self.cycles - started < LIMIT, "no answer"
        return task.result()

    async def write_register(self, name, value):
        offset = self.names[name].offset
        at = BASE + self.addresses.register_base + offset // 64 * 64
        data = value.to_bytes(8, "little").rjust(offset % 64 + 8, b"\0").ljust(64, b"\0")
        await self.store(at, data, 0xFF << offset % 64)

    async def read_register(self, name):
        offset = self.names[name].offset
        line = await self.load(BASE + self.addresses.register_base + offset // 64 * 64)
        return int.from_bytes(line[offset % 64 :][:8], "little")

    async def open_session(self, session=0, *, kv_heads=1, owner=0):
        p = f"s{session}_"
        values = self.values._descriptor(p, Descriptor(layers=1, kv_heads=kv_heads), owner)
        values |= self.values._parameters(p, QueueParameters())
        values[p + "command"] = self.values.pack(p + "command", command=SessionCommand.OPEN)
        for name, value in values.items():
            await self.write_register(name, value)
        while True:
            state = self.values.unpack(p + "state", await self.read_register(p + "state"))
            if not state["busy"]:
                break
        assert state["open"], state

    def line(self, page, line, session=0, queue=0):
        """Device address of a line."""
        return self.addresses.encode(KvAddress(session, queue, page, 0, line))

    async def poisons(self):
        """The poison list, once what is on its way is on it: address → source."""
        await self.idle(2000)
        code, listed, _ = await self.command(
            Opcode.POISON_LIST, bytes(8) + (1 << 20).to_bytes(8, "little")
        )
        assert code == 0 and listed[0] in (0, 2), (code, listed[0])
        self.overflow = listed[0] == 2
        entries = [
            int.from_bytes(listed[32 + 16 * i :][:8], "little")
            for i in range(int.from_bytes(listed[10:12], "little"))
        ]
        return {entry & ~63: entry & 63 for entry in entries}

    async def counter(self, which):
        """What a fixed counter of the monitor shows."""
        counters = pmu_map(self.config).counters
        return (await self.read("pmu", 0xC00 + 8 * counters.index(which), 8))[0]


async def errors_and_health(tb, line):
    """RAS and health follow the endpoint's events."""
    zeros = bytes(64)
    # RAS: what the mailbox poisons is no error, what a host sends poisoned is the first one.
    assert (await tb.read("component", 0x1080, 4))[0] == 0
    await tb.write("component", 0x1084, 4, 0)
    await tb.store(BASE + line, zeros, poison=1)
    await tb.idle(50)
    assert (await tb.read("component", 0x1080, 4))[0] == 1 << Uncorrectable.POISON_RECEIVED
    assert (await tb.read("component", 0x1094, 4))[0] & 0x3F == Uncorrectable.POISON_RECEIVED
    words = [(await tb.read("component", 0x1098 + 8 * n, 8))[0] for n in range(8)]
    header, layout = sum(word << 64 * n for n, word in enumerate(words)), Layouts(tb.kelp).event
    event = Packing(layout).unpack(header)
    told = [event[name] for name in ("code", "squeue", "page", "ld_id")]
    assert told == [Event.POISON_RECEIVED, 0, 0, 0] and header >> layout.size == 0, event
    assert await tb.load(BASE + line) == "poison"
    # Health is the endpoint's: nothing lost; the temperature is the sensor's.
    tb.dut.temperature.value = 41
    code, health, _ = await tb.command(Opcode.HEALTH)
    assert code == 0 and health[:4] == bytes(4) and health[4] == 41, health
    corrected = int.from_bytes(health[0xA:0xE], "little")
    assert corrected == await tb.read_register("count_corrected")
    for degrees in (0x5AA5, 0xA55A):
        tb.dut.temperature.value = degrees
        _, health, _ = await tb.command(Opcode.HEALTH)
        assert int.from_bytes(health[4:6], "little") == degrees
    tb.dut.temperature.value = 41


async def interrupts(tb, line):
    """An event is an interrupt of the endpoint's own where the host enables it, and a message of
    the mailbox's."""
    rng, dut, at = tb.rng, tb.dut, 0x8000 + 16 * tb.config.event_vector
    await tb.write("configuration", 0x7E, 2, 0x8000)
    assert (await tb.command(Opcode.SET_INTERRUPT_POLICY, bytes([1] * 4)))[0] == 0
    address, data = rng.getrandbits(64), rng.getrandbits(32)
    for enabled in (0, 1):
        address, data = address ^ (1 << 64) - 1, data ^ (1 << 32) - 1  # each bit is on once
        for offset, size, value in ((0, 8, address & ~3), (8, 4, data), (12, 4, 0)):
            await tb.write("device", at + offset, size, value)
        await tb.write_register("event_clear", 1)
        await tb.write_register("irq_enable", enabled * ((1 << 32) - 1))
        await tb.idle(3000)
        for log in range(4):
            assert (await tb.command(Opcode.CLEAR_EVENTS, bytes([log, 1, 0, 0, 0, 0])))[0] == 0
        tb.messages.clear()
        assert not int(dut.irq.value)
        await tb.store(BASE + line, bytes(64), poison=1)
        await tb.idle(3000)
        assert tb.messages == [{"address": address & ~3, "data": data}], tb.messages
        assert int(dut.irq.value) == enabled
    await tb.write_register("event_clear", 1)
    await tb.idle(50)
    assert not int(dut.irq.value)
    await tb.write_register("irq_enable", 0)


async def time_passes(tb):
    """A cycle at each edge of the clock, and what is added to it; nothing waits for it."""
    dut = tb.dut
    await tb.idle(3000)
    assert int(dut.quiescent.value)
    most = (1 << len(dut.now)) - 1
    for skip in (0, most, *(tb.rng.getrandbits(len(dut.now)) for _ in range(20))):
        dut.skip.value = skip
        await ReadOnly()
        before = int(dut.now.value)
        await RisingEdge(dut.clk)
        await ReadOnly()
        assert (int(dut.now.value) - before - 1 - skip) & most == 0
        await RisingEdge(dut.clk)
    dut.skip.value = 0


async def found_poison(tb, line, pages):
    """The poison list names the lines that a host poisoned, and those that memory lost, no others
    of `pages`, and each until it is written whole or cleared."""
    assert await tb.poisons() == {line: PoisonSource.EXTERNAL}
    await tb.store(BASE + line, bytes(64))
    assert await tb.load(BASE + line) == bytes(64)
    assert not await tb.poisons()  # what a host has written whole is poisoned no more
    data = bytes(i & 0x3F for i in range(64))
    every = [tb.line(page, i) for page in pages for i in range(tb.kelp.half_lines)]
    for at in every:
        await tb.store(BASE + at, data)
    tb.refuses = lambda line: True
    for at in (every[1], every[-1]):
        await tb.store(BASE + at, bytes(64))
    await tb.idle(8000)
    tb.refuses = lambda line: False
    listed = await tb.poisons()
    assert set(listed.values()) == {PoisonSource.INTERNAL} and {every[1], every[-1]} <= set(listed)
    for at in every:
        assert (await tb.load(BASE + at) == "poison") == (at in listed), hex(at)
    kept = listed.popitem()[0]
    for at in listed:
        assert (await tb.command(Opcode.CLEAR_POISON, at.to_bytes(8, "little") + data))[0] == 0
        assert await tb.load(BASE + at) == data
    assert await tb.poisons() == {kept: PoisonSource.INTERNAL}
    await tb.store(BASE + kept, data)
    assert not await tb.poisons()


async def poison_by_all(tb, pages):
    """Host and mailbox poison and heal the same lines at random; at rest the list has those that
    read as poison, unless it says that there was more."""
    rng, data = tb.rng, bytes(i & 0x3F for i in range(64))
    every = [tb.line(page, i) for page in pages for i in range(tb.kelp.half_lines)]
    for at in every:
        await tb.store(BASE + at, data)
    overflows = 0
    for crowd in (1, 2, 4, 40):
        for _ in range(8):
            for _ in range(crowd):
                at, part = BASE + rng.choice(every), rng.choice(((1 << 64) - 1, 0xF0))
                await tb.store(at, data, part, poison=int(rng.random() < 0.5))
            argument = rng.choice(every).to_bytes(8, "little")
            if rng.random() < 0.5:
                assert (await tb.command(Opcode.INJECT_POISON, argument))[0] == 0
            else:
                assert (await tb.command(Opcode.CLEAR_POISON, argument + data))[0] == 0
        await tb.idle(8000)
        listed, overflow = await tb.poisons(), tb.overflow
        found = {at for at in every if await tb.load(BASE + at) == "poison"}
        assert overflow or set(listed) == found, (sorted(listed), sorted(found))
        overflows += overflow
        for at in every:
            await tb.store(BASE + at, data)
            await tb.idle(300)
        assert overflow or not await tb.poisons()
    assert overflows <= 1  # of the last crowd, who are more than wait


@cocotb.test(timeout_time=30, timeout_unit="ms")
async def whole_device(dut):
    tb = TB(dut)
    await tb.start()
    await tb.boot()
    await tb.write("configuration", 4, 2, 6)
    assert await tb.load(BASE) == "nxm"  # no decoder yet; the capability says so
    assert (await tb.read("component", 0x1110, 4))[0] >> 20 & 1
    await tb.map_memory()
    for i in range(len(pmu_map(tb.config).counters)):
        config, _ = await tb.read("pmu", 0x200 + 8 * i, 8)
        await tb.write("pmu", 0x200 + 8 * i, 8, config | 1 << 8)
    await tb.write("pmu", 0x18, 8, 0)
    assert await tb.read_register("identity") != 0
    assert await tb.load(BASE - 64) == "nxm"
    lines = [tb.line(0, i) for i in range(4)]
    assert await tb.load(BASE + lines[0]) == "nxm"  # no session yet
    await tb.open_session()
    wanted = {at: tb.rng.randbytes(64) for at in lines}
    for at in wanted:
        wanted[at] = bytes(b & 0x3F for b in wanted[at])  # no NaN in any format
        await tb.store(BASE + at, wanted[at])
    for at, data in wanted.items():
        assert await tb.load(BASE + at) == data

    def argument(at):
        return at.to_bytes(8, "little")

    # Poison: of a line that is there, of one of an absent page, of a closed session, of no line.
    assert (await tb.command(Opcode.INJECT_POISON, argument(lines[1])))[0] == 0
    refused = {
        "absent": tb.line(3, 0),
        "closed": tb.line(0, 0, session=1),
        "register": tb.addresses.register_base,
    }
    for what, at in refused.items():
        assert (await tb.command(Opcode.INJECT_POISON, argument(at)))[0] == 0xF, what
    assert await tb.load(BASE + lines[1]) == "poison"
    assert await tb.load(BASE + lines[0]) == wanted[lines[0]]
    code, listed, _ = await tb.command(Opcode.POISON_LIST, bytes(8) + argument(1 << 20))
    assert code == 0 and int.from_bytes(listed[32:40], "little") == lines[1] | 3
    # A clear of what is not poisoned changes nothing; one of what is writes its data.
    zeros = bytes(64)
    assert (await tb.command(Opcode.CLEAR_POISON, argument(lines[0]) + zeros))[0] == 0
    assert await tb.load(BASE + lines[0]) == wanted[lines[0]]
    assert (await tb.command(Opcode.CLEAR_POISON, argument(lines[1]) + zeros))[0] == 0
    assert await tb.load(BASE + lines[1]) == zeros
    # The endpoint's events came as records: what it was told of poison, and of a closed session.
    await tb.idle(3000)
    code, records, _ = await tb.command(Opcode.GET_EVENTS, bytes([1]))
    assert code == 0 and int.from_bytes(records[0x14:0x16], "little") >= 1
    record_ = records[0x20:]
    assert record_[:4] == bytes.fromhex("fbcd0a77")
    assert int.from_bytes(record_[0x30:0x38], "little") & ~0x3F == lines[1] & ~0xFFF
    code, records, _ = await tb.command(Opcode.GET_EVENTS, bytes([0]))
    assert code == 0 and Event.CLOSED_SESSION in [
        records[0x20 + 128 * i + 0x38]
        for i in range(int.from_bytes(records[0x14:0x16], "little"))
        if len(records) > 0x20 + 128 * i + 0x38
    ]
    # What the monitor has counted is what went over the channels.
    watched = (1, 1), (1, 2), (2, 0), (3, 0)
    before = [await tb.counter(which) for which in watched]
    for _ in range(5):
        await tb.load(BASE + lines[2])
    for _ in range(3):
        await tb.store(BASE + lines[2], wanted[lines[2]])
    await tb.store(BASE + lines[3], zeros, 0xFF)
    await tb.idle(50)
    after = [await tb.counter(which) for which in watched]
    counted = [b - a for a, b in zip(before, after, strict=True)]
    assert counted == [3, 1, 4, 5], counted
    # Accesses, as the endpoint's own registers count them.
    command = tb.values.pack("s0_command", command=SessionCommand.ADVANCE, argument=1)
    for _ in range(3):
        await tb.write_register("s0_command", command)
        await tb.load(BASE + lines[2])
    await tb.idle(50)
    hits = await tb.counter((4, VendorEvent.HIT))
    assert hits == await tb.read_register("count_hits") >= 3
    await errors_and_health(tb, lines[3])
    await interrupts(tb, lines[3])
    await found_poison(tb, lines[3], (1, 2))
    await poison_by_all(tb, (1, 2))
    await time_passes(tb)
    # Decoded no more: nothing is there.
    await tb.write("component", 0x1130, 4, 0x1000)
    assert await tb.load(BASE + lines[0]) == "nxm"
    assert int(dut.io_fault.value) == 0
    record(cycles=tb.cycles)

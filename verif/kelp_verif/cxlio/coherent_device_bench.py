# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The coherent endpoint behind CXL.io, between a host that caches and a memory: a decoder is
committed device-coherent, nothing is granted before back-invalidate is on, snoops carry the host's
addresses, and what was dirty comes home."""

import cocotb
from cocotb.triggers import RisingEdge

from kelp_hw.export.packing import Packing
from kelp_hw.layouts import MESSAGES, Layouts
from kelp_spec.address import KvAddress
from kelp_spec.coherence import MetaField, MetaValue, SnpType
from kelp_spec.cxlio.commands import Opcode, knob_uuid
from kelp_spec.cxlio.component import BI
from kelp_spec.cxlio.events import PoisonSource
from kelp_spec.cxlio.pmu import pmu_map
from kelp_spec.messages import S2MNDR, M2SBIRsp, M2SReq, M2SRwD, S2MBISnp
from kelp_spec.metadata import ColdOp
from kelp_spec.registers import SessionCommand

from ..harness.runner import record
from .device_bench import BASE, LIMIT
from .device_bench import TB as DeviceTB


class TB(DeviceTB):
    """`held`: host line → the data that the host has of it, newer than the device's."""

    def __init__(self, dut):
        super().__init__(dut)
        self.ndr = Packing(MESSAGES["S2MNDR"])
        self.snoop, self.answer_ = Packing(MESSAGES["S2MBISnp"]), Packing(MESSAGES["M2SBIRsp"])
        self.data, self.completions, self.held, self.snooped = {}, {}, {}, []
        self.silent = False  #: snoops are taken and not answered

    async def start(self):
        self.dut.bi_timeout.value, self.dut.bi_id.value = 0, 5
        self.dut.bi_blocks.value = 1
        await super().start()
        self.dut.s2m_bisnp__ready.value = 0
        for each in (self._collect_data, self._collect_completions, self._give_back):
            cocotb.start_soon(each())

    async def _collect_data(self):
        while True:
            answer = self.drs.unpack(await self._take("s2m_drs"))
            assert answer["tag"] not in self.data, "answered twice"
            self.data[answer["tag"]] = answer

    async def _collect_completions(self):
        while True:
            answer = self.ndr.unpack(await self._take("s2m_ndr"))
            assert answer["tag"] not in self.completions, "completed twice"
            self.completions[answer["tag"]] = answer["opcode"]

    async def _give_back(self):
        while True:
            snoop = self.snoop.unpack(await self._take("s2m_bisnp"))
            assert snoop["opcode"] in (S2MBISnp.INV, S2MBISnp.INV_BLK) and snoop["bi_id"] == 5
            block = snoop["opcode"] == S2MBISnp.INV_BLK
            called = [snoop["address"]]
            if block:
                parts = {1: (0, 1), 2: (2, 3), 3: (0, 1, 2, 3)}[snoop["address"] & 3]
                called = [snoop["address"] & ~3 | k for k in parts]
            for line in called:
                await self._give_line(line << 6)
            opcode = M2SBIRsp.I_BLK if block else M2SBIRsp.I
            await self._offer(
                "m2s_birsp", self.answer_.pack(opcode=opcode, bi_tag=snoop["bi_tag"], bi_id=5)
            )

    async def _give_line(self, address):
        for _ in range(50):  # its grant may be on its way to the host
            if address in self.held:
                break
            await RisingEdge(self.dut.clk)
        assert address in self.held, f"{address:#x} is not held"
        self.snooped.append(address)
        while self.silent:
            await RisingEdge(self.dut.clk)
        await self._store(address, self.held.pop(address), MetaField.META0)

    async def _until(self, where, tag):
        started = self.cycles
        while tag not in where:
            await RisingEdge(self.dut.clk)
            assert self.cycles - started < LIMIT, "no answer"
        return where.pop(tag)

    async def load(self, address, *, own=False):
        """As the device has it now; with `own` the host is to hold it: (data, what was granted)."""
        self.tag += 1
        tag = self.tag
        meta = MetaField.META0 if own else MetaField.NO_OP
        snp = SnpType.INV if own else SnpType.NO_OP
        value = MetaValue.ANY if own else 0
        fields = {"meta_field": meta, "meta_value": value, "snp_type": snp}
        await self._offer(
            "m2s_req",
            self.req.pack(opcode=M2SReq.MEM_RD, tag=tag, address=address >> 6, **fields),
        )
        answer = await self._until(self.data, tag)
        found = "nxm" if answer["opcode"] else answer["data"].to_bytes(64, "little")
        if answer["poison"]:
            found = "poison"
        return (found, await self._until(self.completions, tag)) if own else found

    async def store(self, address, data, enable=(1 << 64) - 1, poison=0):
        await self._store(address, data, MetaField.NO_OP, enable, poison)

    async def _store(self, address, data, meta, enable=(1 << 64) - 1, poison=0):
        self.tag += 1
        tag = self.tag
        whole = enable == (1 << 64) - 1
        message = self.rwd.pack(
            opcode=M2SRwD.MEM_WR if whole else M2SRwD.MEM_WR_PTL,
            tag=tag,
            meta_field=meta,
            meta_value=MetaValue.INVALID,
            address=address >> 6,
            byte_enable=enable,
            poison=poison,
            data=int.from_bytes(data, "little"),
        )
        await self._offer("m2s_rwd", message)
        assert await self._until(self.completions, tag) == S2MNDR.CMP

    async def commit(self, control):
        """Of decoder 0 at BASE; whether it is committed."""
        await self.write("component", 0x1130, 4, 0)
        high, size = BASE >> 32, 1 << 28
        for at, value in ((0x14, high), (0x10, BASE), (0x1C, 0), (0x18, size), (0x20, control)):
            await self.write("component", 0x1110 + at, 4, value & 0xFFFFFFFF)
        await self.idle(10)
        return (await self.read("component", 0x1130, 4))[0] >> 10 & 3


async def poison(tb, places, written):
    """Inject and clear call back first what the host holds of the line's sector."""

    async def ask(opcode, at, data=b""):
        code, _, _ = await tb.command(opcode, (at - BASE).to_bytes(8, "little") + data)
        return code

    inject, clear = Opcode.INJECT_POISON, Opcode.CLEAR_POISON
    first, second, third, absent = places[1], places[2], places[6], BASE + tb.line(0, 0, queue=3)
    for at in (first, second, third):
        if at not in tb.held:
            assert (await tb.load(at, own=True))[1] == S2MNDR.CMP_E
            written[at] = tb.held[at] = bytes(b ^ 3 for b in written[at])
    await tb.idle(300)
    # A line that the host has changed: its data come home, and are then lost, as was asked.
    before = len(tb.snooped)
    assert await ask(inject, first) == 0
    assert tb.snooped[before:] == [first] and first not in tb.held
    assert await tb.load(first) == "poison"
    # A line that is not poisoned: called back, and left as the host had it.
    assert await ask(clear, second, bytes(64)) == 0
    assert tb.snooped[before:] == [first, second] and await tb.load(second) == written[second]
    # What is held of a poisoned line is called back as well; then it has the data given.
    assert await tb.load(first, own=True) == ("poison", S2MNDR.CMP_E)
    written[first] = tb.held[first] = bytes(range(64))
    data = bytes(64 - i for i in range(64))
    assert await ask(clear, first, data) == 0
    # The host's write-back had healed it: a clear of what is not poisoned changes nothing.
    assert await tb.load(first) == written[first]
    assert await ask(inject, first) == 0 and await ask(clear, first, data) == 0
    assert await tb.load(first) == data
    before = len(tb.snooped)
    assert await ask(inject, absent) == 0xF and len(tb.snooped) == before
    # A host that keeps it: to be tried again, and nothing is poisoned; others go on meanwhile.
    tb.silent = True
    asked = cocotb.start_soon(ask(inject, third))
    while not asked.done():
        assert await tb.load(second) == written[second]
    assert asked.result() == 5
    tb.silent = False
    while third in tb.held:
        await tb.idle(20)
    assert await tb.load(third) == written[third]
    # A host that asks for it again and again: either it is tried again, or the poison stays.
    task = cocotb.start_soon(ask(inject, third))
    rounds = 0
    while not task.done():
        found, granted = await tb.load(third, own=True)
        assert granted == S2MNDR.CMP_E
        if found == "poison":
            break
        assert found == written[third]
        tb.held[third] = written[third] = bytes(b ^ 1 for b in found)
        rounds += 1
        while third in tb.held and not task.done():
            await tb.idle(5)
    while not task.done():
        await tb.idle(5)
    injected = task.result()
    assert injected in (0, 5), injected
    if injected == 0:
        assert await tb.load(third) == "poison", rounds
    assert await tb.poisons() == ({third - BASE: PoisonSource.INJECTED} if not injected else {})


async def sanitize(tb, places, written):
    """What the host holds comes home first, while it is let go on, and opens the session again and
    again; then nothing is left."""
    for at in places[9:12]:
        if at not in tb.held:
            assert (await tb.load(at, own=True))[1] == S2MNDR.CMP_E
            tb.held[at] = bytes(b ^ 5 for b in written[at])
    await tb.idle(300)
    layouts = Layouts(tb.kelp)
    command, completion = Packing(layouts.cold_command), Packing(layouts.cold_completion)
    erased = []

    async def tier():
        erased.append(command.unpack(await tb._take("cold_command")))
        index = erased[-1]["id.index"]
        empty = dict.fromkeys(completion.fields, 0)
        await tb._offer("cold_completion", completion.pack(**empty | {"id.index": index}))

    cocotb.start_soon(tier())
    before = len(tb.snooped)
    assert (await tb.command(Opcode.SANITIZE))[0] == 1
    started = tb.cycles
    opens = tb.values.pack("s0_command", command=SessionCommand.OPEN)
    while (await tb.read("device", 0x1010, 8))[0] & 1:
        if not (await tb.read("device", 0x1018, 8))[0] >> 16 & 0x7F:  # nothing is erased yet
            await tb.write_register("s0_command", opens)
        _, granted = await tb.load(places[10], own=True)
        assert granted in (S2MNDR.CMP, S2MNDR.CMP_E)
        if granted == S2MNDR.CMP_E:
            tb.held.setdefault(places[10], bytes(64))
        assert tb.cycles - started < LIMIT, "a sanitize hangs"
    code = (await tb.read("device", 0x1018, 8))[0]
    assert code >> 32 & 0xFFFF == 0 and code >> 16 & 0x7F == 100, hex(code)
    assert [each["op"] for each in erased] == [ColdOp.ERASE]
    assert set(places[9:12]) <= set(tb.snooped[before:]), "a line was not called back"
    assert not any(tb.memory.get(line, 0) for line in range(tb.kelp.dram_lines))
    assert not await tb.read_register("s0_state") & 3
    for at in places[::3]:
        assert await tb.load(at, own=True) == ("nxm", S2MNDR.CMP)
    await tb.open_session()
    assert await tb.load(places[9]) == bytes(64)


COMMIT, HOST_ONLY, BACK_INVALIDATE, TWO_WAYS = 1 << 9, 1 << 12, 1 << 13, 1 << 4


@cocotb.test(timeout_time=30, timeout_unit="ms")
async def whole_device(dut):
    tb = TB(dut)
    await tb.start()
    await tb.boot()
    await tb.write("configuration", 4, 2, 6)
    # The capability says that it is there; a decoder is one model or the other.
    assert (await tb.read("component", 0x1000, 4))[0] >> 24 == 3
    assert (await tb.read("component", 0x100C, 4))[0] & 0xFFFF == 12
    await tb.write("component", 0x1114, 4, 2)
    for refused in (0, HOST_ONLY | BACK_INVALIDATE, BACK_INVALIDATE | TWO_WAYS):
        assert await tb.commit(COMMIT | refused) == 2, hex(refused)
    assert await tb.commit(COMMIT | HOST_ONLY) == 1
    assert await tb.commit(COMMIT | BACK_INVALIDATE) == 1
    await tb.open_session()
    for i in range(len(pmu_map(tb.config).counters)):
        config, _ = await tb.read("pmu", 0x200 + 8 * i, 8)
        await tb.write("pmu", 0x200 + 8 * i, 8, config | 1 << 8)
    await tb.write("pmu", 0x18, 8, 0)
    encode = tb.addresses.encode
    places = [BASE + encode(KvAddress(0, 0, page, kv, 0)) for page in range(8) for kv in (0, 1)]
    written = {at: bytes(b & 0x3F for b in tb.rng.randbytes(64)) for at in places}
    for at, data in written.items():
        await tb.store(at, data)
    # Nothing is granted before the host says that snoops may come.
    assert await tb.load(places[0], own=True) == (written[places[0]], S2MNDR.CMP)
    await tb.write("component", BI + 4, 4, 2)
    # More sectors than the directory has; each line is changed where the host holds it.
    for at in places:
        seen = await tb.load(at, own=True)
        assert seen == (written[at], S2MNDR.CMP_E), hex(at)
        written[at] = tb.held[at] = bytes(b ^ 1 for b in written[at])
    assert len(tb.snooped) >= len(places) - 8, "more is held than the directory has room for"
    for at in tb.snooped:
        assert await tb.load(at) == written[at], "what was dirty is not home"
    # The rest is called back when its page is read for another owner, and at the end.
    counters = pmu_map(tb.config).counters
    snoops = (await tb.read("pmu", 0xC00 + 8 * counters.index((6, S2MBISnp.INV)), 8))[0]
    answers = (await tb.read("pmu", 0xC00 + 8 * counters.index((5, M2SBIRsp.I)), 8))[0]
    assert snoops == answers == len(tb.snooped)
    grants = (await tb.read("pmu", 0xC00 + 8 * counters.index((2, S2MNDR.CMP_E)), 8))[0]
    assert grants == len(places)
    # Features go through the same channels and hold nothing.
    head = knob_uuid(0) + bytes(6) + bytes([1]) + bytes(9)
    assert (await tb.command(Opcode.SET_FEATURE, head + (6).to_bytes(4, "little")))[0] == 0
    assert await tb.read_register("high_water") == 6
    await poison(tb, places, written)
    await sanitize(tb, places, written)
    await tb.idle(50)
    assert not tb.data and not tb.completions, "answers that nobody waits for"
    record(cycles=tb.cycles, snooped=len(tb.snooped))

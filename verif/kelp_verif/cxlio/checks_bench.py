# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What a driver relies on, walked as a driver walks it: capabilities, register blocks, decoders,
the doorbell, interrupts, errors, the CDAT, monitors, flipped bits. Offsets here are written out,
not taken from the register map."""

import cocotb
from cocotb.triggers import ReadOnly, RisingEdge

from kelp_hw.cxlio.chmu import heat_layout
from kelp_hw.export.packing import Packing
from kelp_spec.cxlio.chmu import unit_bits
from kelp_spec.cxlio.pmu import COUNTER_BITS, pmu_map

from ..harness.runner import record
from .port_tb import OKAY, TB

_REFUSED, _ONES = 2, (1 << 64) - 1
_CXL, _DVSEC, _DOE = 0x1E98, 0x23, 0x2E
_BAR_BYTES = 1 << 16


async def started(dut):
    tb = TB(dut)
    await tb.start()
    await tb.boot()
    await tb.write("configuration", 4, 2, 6)
    return tb


async def extended(tb):
    """Extended capability id → offsets, and CXL DVSEC id → (offset, length)."""
    at, capabilities, dvsecs = 0x100, {}, {}
    while at:
        header, _ = await tb.read("configuration", at, 4)
        assert header & 0xFFFF and header >> 16 & 0xF == 1 and at % 4 == 0
        capabilities.setdefault(header & 0xFFFF, []).append(at)
        if header & 0xFFFF == _DVSEC:
            first, _ = await tb.read("configuration", at + 4, 4)
            number, _ = await tb.read("configuration", at + 8, 2)
            assert first & 0xFFFF == _CXL and number not in dvsecs
            dvsecs[number] = (at, first >> 20)
        assert header >> 20 == 0 or header >> 20 > at
        at = header >> 20
    return capabilities, dvsecs


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def capabilities(dut):
    tb = await started(dut)
    c = tb.config
    assert (await tb.read("configuration", 8, 4))[0] >> 8 == 0x050210
    assert (await tb.read("configuration", 6, 2))[0] & 0x10
    at, ids = (await tb.read("configuration", 0x34, 1))[0], []
    while at:
        header, _ = await tb.read("configuration", at, 2)
        ids.append(header & 0xFF)
        at = header >> 8
    assert ids == [0x10, 0x11]
    _, dvsecs = await extended(tb)
    lengths = {0: 0x38, 5: 0x10, 7: 0x20, 8: 0x2C if c.hot_entries else 0x24}
    lengths |= {2: 0x2C} if c.function_map else {}
    assert {number: length for number, (_, length) in dvsecs.items()} == lengths
    ends = sorted((at, at + length) for at, length in dvsecs.values())
    assert all(end <= start for (_, end), (start, _) in zip(ends, ends[1:], strict=False))
    device = dvsecs[0][0]
    capability, _ = await tb.read("configuration", device + 0xA, 2)
    assert capability & 4 and capability >> 4 & 3 in (1, 2)
    size = (await tb.read("configuration", device + 0x18, 4))[0] << 32
    low, _ = await tb.read("configuration", device + 0x1C, 4)
    assert low & 3 == 3
    _, identity, _ = await tb.command(0x4000)
    assert int.from_bytes(identity[16:24], "little") << 28 == size | low & 0xF0000000
    # The locator: each block inside its BAR.
    blocks = {}
    for i in range((dvsecs[8][1] - 0xC) // 8):
        low, _ = await tb.read("configuration", dvsecs[8][0] + 0xC + 8 * i, 4)
        if low:
            blocks[low >> 8 & 0xFF] = (low & 7, low & 0xFFFF0000)
    wanted = {1: (0, 0), 3: (2, 0)} | ({4: (4, 0)} if c.pmu else {})
    wanted |= {5: (4, 0x10000)} if c.hot_entries else {}
    assert blocks == wanted
    for number, (bar, offset) in blocks.items():
        await tb.write("configuration", 0x10 + 4 * bar, 4, 0xFFFFFFFF)
        mask, _ = await tb.read("configuration", 0x10 + 4 * bar, 4)
        length = {1: 0x10000, 3: 0x10000, 4: 0xE00, 5: 0x800 + 8 * c.hot_entries}[number]
        assert mask & 0xF == 4 and offset + length <= (1 << 32) - (mask & ~0xF), number
    await tb.write("configuration", device + 0x14, 1, 1)
    await tb.write("configuration", device + 0x0C, 2, 4)
    assert (await tb.read("configuration", device + 0x0C, 2))[0] & 4 == 0


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def register_blocks(dut):
    tb = await started(dut)
    array, _ = await tb.read("device", 0, 8)
    count, found = array >> 32 & 0xFFFF, {}
    assert array & 0xFFFF == 0
    for i in range(1, count + 1):
        number, offset, length = [(await tb.read("device", 16 * i + 4 * k, 4))[0] for k in range(3)]
        found[number & 0xFFFF] = (offset, length)
        assert offset + length <= _BAR_BYTES
    assert (await tb.read("device", 16 * (count + 1), 8))[0] == 0
    payload = 1 << ((await tb.read("device", found[2][0], 4))[0] & 0x1F)
    assert set(found) == {1, 2, 0x4000} and found[2][1] == 0x20 + payload
    header, _ = await tb.read("component", 0x1000, 4)
    ids = [(await tb.read("component", 0x1000 + 4 * i, 4))[0] for i in range(1, (header >> 24) + 1)]
    assert header & 0xFFFF == 1 and {each & 0xFFFF for each in ids} == {2, 5}
    hdm = 0x1000 + next(each >> 20 for each in ids if each & 0xFFFF == 5)
    shown = (await tb.read("component", hdm, 4))[0]
    assert (2 * (shown & 0xF) or 1) == tb.config.decoders
    # A device says that it answers MemData-NXM; the recordings' stand-in answered ones.
    assert shown >> 20 & 1 == (tb.config.name != "recorded")
    for offset, mask in ((0x10, 0xF0000000), (0x14, 0xFFFFFFFF), (0x18, 0xF0000000)):
        await tb.write("component", hdm + offset, 4, 0xFFFFFFFF)
        assert (await tb.read("component", hdm + offset, 4))[0] == mask


async def committed(tb, decoder, base, size, skip=0, control=0x1200):
    """Bits committed and error after a commit as Linux writes it."""
    at = 0x1120 + 0x20 * decoder
    for offset, value in (
        (4, base >> 32),
        (0, base & 0xFFFFFFFF),
        (0xC, size >> 32),
        (8, size & 0xFFFFFFFF),
        (0x18, skip >> 32),
        (0x14, skip & 0xFFFFFFFF),
        (0x10, control),
    ):
        await tb.write("component", at + offset, 4, value)
    value, _ = await tb.read("component", at + 0x10, 4)
    return value >> 10 & 3


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def decoders(dut):
    tb = await started(dut)
    unit, done, error = 1 << 28, 1, 2
    base = 14 * unit
    assert await tb.decoded(0) is None
    await tb.write("configuration", 0x10C, 2, 6)
    assert await tb.decoded(0) == 0 and await tb.decoded(unit) is None
    await tb.write("component", 0x1114, 4, 2)
    assert await tb.decoded(0) is None
    # Out of order; sizes that are none; ways, types, memory that there are not; then legal.
    assert await committed(tb, 1, base, unit) == error
    for arguments in (
        (0, base, 0),
        (0, base, 2 * unit),
        (0, base, unit, unit),
        (0, base, unit, 0, 0x0200),
        (0, base, unit, 0, 0x3200),
        (0, base, unit, 0, 0x5200),
        (0, base, unit, 0, 0x1280),
        (0, base, unit, 0, 0x1207),
        (0, base, unit, 0, 0x1210),
        (0, (1 << 64) - unit, 2 * unit),
    ):
        assert await committed(tb, *arguments) == error, arguments
    assert await committed(tb, 0, base, unit) == done
    assert await tb.decoded(base - 64) is None and await tb.decoded(base) == 0
    assert await tb.decoded(base + unit - 64) == unit - 64
    assert await tb.decoded(base + unit) is None
    # What is committed does not move, nor does a second decoder overlap it.
    await tb.write("component", 0x1120, 4, 0)
    assert (await tb.read("component", 0x1120, 4))[0] == base & 0xFFFFFFFF
    assert await committed(tb, 1, base, unit) == error
    await tb.write("component", 0x1130, 4, 0x1400)
    assert (await tb.read("component", 0x1130, 4))[0] == 0x1000
    assert await tb.decoded(base) is None
    assert await committed(tb, 0, 3 * unit, unit, 0, 0x1300) == done
    # Locked: nothing but a reset undoes it.
    await tb.write("component", 0x1130, 4, 0)
    assert (await tb.read("component", 0x1130, 4))[0] == 0x1700
    assert await tb.decoded(3 * unit) == 0


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def doorbell_while_busy(dut):
    tb = await started(dut)
    await tb.write("device", 0x1008, 4, 0x4000)
    await tb.write("device", 0x100C, 4, 0)
    await tb.write("device", 0x1004, 4, 1)
    for offset, value in ((0x1008, 0x777), (0x1004, 0), (0x1004, 1), (0x1020, 0x55)):
        await tb.write("device", offset, 4, value)
    assert (await tb.read("device", 0x1004, 4))[0] & 1, "too quick to be caught busy"
    assert (await tb.read("device", 0x1020, 8))[0] == 0
    await tb.quiet()
    assert (await tb.read("device", 0x1010, 8))[0] == 0
    assert (await tb.read("device", 0x1008, 8))[0] == 0x43 << 16 | 0x4000
    name = tb.config.firmware.encode()[:8].ljust(8, b"\0")
    assert (await tb.read("device", 0x1020, 8))[0].to_bytes(8, "little") == name
    # Alone, a zero rings nothing.
    await tb.write("device", 0x1008, 8, 0x777)
    await tb.write("device", 0x1004, 4, 0)
    await tb.quiet()
    assert (await tb.read("device", 0x1010, 8))[0] == 0


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def interrupts(dut):
    tb = await started(dut)
    vector = tb.config.event_vector
    entry = 0x8000 + 16 * vector
    for offset, value in ((0, 0xFEE00000), (4, 1), (8, 0x31)):
        await tb.write("device", entry + offset, 4, value)
    await tb.write("configuration", 0x7E, 2, 0x8000)
    await tb.command(0x0103, bytes([1, 1, 1, 1]))
    tb.events.append({"log": 3})
    await tb.quiet()
    assert (await tb.read("device", 0x100, 4))[0] == 8
    assert not tb.messages and (await tb.read("device", 0x9000, 8))[0] == 1 << vector
    await tb.write("device", entry + 12, 4, 0)
    await tb.idle(100)
    assert tb.messages == [{"address": 0x1_FEE00000, "data": 0x31}]
    assert (await tb.read("device", 0x9000, 8))[0] == 0
    tb.events.append({"log": 3})
    await tb.quiet()
    assert len(tb.messages) == 1
    await tb.command(0x0101, bytes([3, 0, 2, 0, 0, 0, 1, 0, 2, 0]))
    assert (await tb.read("device", 0x100, 4))[0] == 0
    tb.events.append({"log": 3})
    await tb.quiet()
    assert len(tb.messages) == 2


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def errors(dut):
    """Each error sets its bit, is signalled where the host wants it, and what comes first leaves
    its header."""
    tb = await started(dut)
    pointer, _ = await tb.read("configuration", 0x34, 1)
    while (await tb.read("configuration", pointer, 1))[0] != 0x10:
        pointer, _ = await tb.read("configuration", pointer + 1, 1)
    control, status = pointer + 8, pointer + 0xA
    header, _ = await tb.read("component", 0x1000, 4)
    ids = [(await tb.read("component", 0x1000 + 4 * i, 4))[0] for i in range(1, (header >> 24) + 1)]
    ras = 0x1000 + next(each >> 20 for each in ids if each & 0xFFFF == 2)
    words = {name: ras + 4 * n for n, name in enumerate(("bad", "mask", "severity", "mild"))}
    words |= {"mild mask": ras + 0x10, "first": ras + 0x14, "header": ras + 0x18}
    for name in ("mask", "mild mask"):
        await tb.write("component", words[name], 4, 0)

    async def signalled(**error):
        """ERR_COR, ERR_NONFATAL and ERR_FATAL in the cycles around an error."""
        seen = 0
        dut.errors__payload.value = tb.error.pack(**error)
        for valid in (1, 0, 0):
            dut.errors__valid.value = valid
            await RisingEdge(dut.clk)
            await ReadOnly()
            seen |= int(dut.signals.value)
            await RisingEdge(dut.clk)
            dut.errors__valid.value = 0
        return seen

    bits = [n for n in range(17) if n not in (12, 13)]
    for kind, number in [("bad", n) for n in bits] + [("mild", n) for n in range(7)]:
        fatal = number % 2
        wanted = 1 if kind == "mild" else 4 if fatal else 2
        await tb.write("component", words["severity"], 4, fatal << number)
        reports = tb.rng.choice([0, 7, wanted, 7 ^ wanted])
        await tb.write("configuration", control, 2, reports)
        log = tb.rng.getrandbits(512)
        name = "uncorrectable" if kind == "bad" else "correctable"
        assert await signalled(**{name: 1 << number, "header": log}) == wanted & reports, number
        assert (await tb.read("component", words[kind], 4))[0] == 1 << number
        assert (await tb.read("configuration", status, 2))[0] == wanted
        if kind == "bad":
            assert (await tb.read("component", words["first"], 4))[0] & 0x3F == number
            for n in range(16):
                found, _ = await tb.read("component", words["header"] + 4 * n, 4)
                assert found == log >> 32 * n & 0xFFFFFFFF, n
        await tb.write("component", words[kind], 4, 1 << number)
        await tb.write("configuration", status, 2, 7)
        assert (await tb.read("component", words[kind], 4))[0] == 0
        assert (await tb.read("configuration", status, 2))[0] == 0


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def cdat(dut):
    tb = await started(dut)
    capabilities, _ = await extended(tb)
    if not tb.config.doe:
        assert _DOE not in capabilities
        record(tables=0)
        return
    (at,) = capabilities[_DOE]

    async def exchange(*words):
        for word in words:
            await tb.write("configuration", at + 0x10, 4, word)
        await tb.write("configuration", at + 8, 4, 1 << 31)
        for _ in range(300):
            status, _ = await tb.read("configuration", at + 0xC, 4)
            if not status & 1:
                break
        assert not status & 1, "busy for ever"
        answer = []
        while (await tb.read("configuration", at + 0xC, 4))[0] >> 31:
            answer.append((await tb.read("configuration", at + 0x14, 4))[0])
            await tb.write("configuration", at + 0x14, 4, 0)
        return answer

    kinds, index = [], 0
    while True:
        answer = await exchange(0x1, 3, index)
        kinds.append(answer[2] & 0xFFFFFF)
        index = answer[2] >> 24
        if not index:
            break
    assert kinds == [0x1, 0x21E98] and answer[:2] == [1, 3]
    handle, table = 0, b""
    lengths = []
    while handle != 0xFFFF:
        answer = await exchange(0x21E98, 3, handle << 16)
        assert answer[0] == 0x21E98 and answer[1] == len(answer)
        entry = b"".join(word.to_bytes(4, "little") for word in answer[3:])
        lengths.append((entry[0], int.from_bytes(entry[2:4], "little"), len(entry)))
        table += entry
        handle = answer[2] >> 16
    assert int.from_bytes(table[:4], "little") == len(table) and sum(table) % 256 == 0
    assert all(given == length for _, given, length in lengths[1:])
    assert [kind for kind, _, _ in lengths[1:]] == [0, 1, 1, 1, 1, 4]
    # Objects that there are not, get no answer; an error lasts until abort.
    for words in ((0x21E98, 3, 7 << 16), (0x21E98, 3, 1), (0x31E98, 3, 0), (0x1, 2, 0), (0x1,)):
        assert await exchange(*words) == []
    await tb.write("configuration", at + 8, 4, 1 << 31)
    assert (await tb.read("configuration", at + 0xC, 4))[0] == 4
    await tb.write("configuration", at + 8, 4, 1)
    assert (await tb.read("configuration", at + 0xC, 4))[0] == 0
    record(tables=len(lengths))


async def _readiness(tb):
    """Memory that is not ready is neither valid nor active, nor in any state."""
    _, dvsecs = await extended(tb)
    for ready in (0, 1):
        tb.dut.memory_ready.value = ready
        await tb.idle(2)
        size, _ = await tb.read("configuration", dvsecs[0][0] + 0x1C, 4)
        status, _ = await tb.read("device", 0x200, 8)
        assert (size & 3, status >> 2 & 3) == (3 * ready, ready)


async def _counters(tb):
    """Each event by a counter of its own, or of those of capability 0 by counter 0, whose overflow
    is a message."""
    c, dut = tb.config, tb.dut
    pmu = pmu_map(c)
    fixed = [(n, *event) for n, event in enumerate(pmu.counters) if event]
    assert {capability for _, capability, _ in fixed} >= {*range(1, len(pmu.capabilities))}
    events = pmu.capabilities[0][2]
    any_of = [(0, 0, bit) for bit in range(32) if events >> bit & 1]
    for n, capability, bit in (*fixed, *any_of):
        if not n:
            await tb.write("pmu", 0x200, 8, 1 << 24 + bit)
        settings, _ = await tb.read("pmu", 0x200 + 8 * n, 8)
        await tb.write("pmu", 0x18, 8, _ONES)
        await tb.write("pmu", 0x200 + 8 * n, 8, settings | 3 << 8)
        await tb.write("pmu", 0xC00 + 8 * n, 8, (1 << COUNTER_BITS) - 2)
        await tb.write("pmu", 0x18, 8, 0)
        happened = [(0, 0)] * len(pmu.capabilities)
        happened[capability] = 1 << bit, 0
        tb.messages.clear()
        for count in ((1 << COUNTER_BITS) - 1, 0):
            assert not tb.messages
            await tb.happen(happened)
            await tb.idle(30)
            assert (await tb.read("pmu", 0xC00 + 8 * n, 8))[0] == count, (capability, bit)
        assert [message["data"] for message in tb.messages] == [0x40 + c.pmu_vector]
        await tb.write("pmu", 0x200 + 8 * n, 8, settings)
    dut.counted.value = 0


async def _hot_list(tb):
    """Two pages; with the second there are more than one, which is a message."""
    c, heat = tb.config, Packing(heat_layout(tb.config))
    for at, value in ((0x80, 1), (0x58, 1 << 40 | 1 << 48), (0x60, 1)):
        await tb.write("chmu", at, 8, value)
    await tb.write("chmu", 0x50, 8, 3 | 1 << 10 | 1 << 16 | 5 << 32)
    await tb.idle(2 * c.hot_entries)
    tb.messages.clear()
    pages = [(1, 7), ((1 << unit_bits(c)) - 2, (1 << 16) - 3)]
    for unit, score in pages:
        assert not tb.messages
        tb.dut.heat__payload.value = heat.pack(unit=unit, score=score)
        tb.dut.heat__valid.value = 1
        await tb.idle()
        tb.dut.heat__valid.value = 0
        await tb.idle(30)
    assert [message["data"] for message in tb.messages] == [0x40 + c.chmu_vector]
    assert (await tb.read("chmu", 0x7A, 2))[0] == 2
    for n, (unit, score) in enumerate(pages):
        assert (await tb.read("chmu", 0x800 + 8 * n, 8))[0] == unit << 16 | score
    for space, at in (("pmu", 0x1000), ("pmu", 0x1200), ("chmu", 0x1000), ("chmu", 0x1800)):
        assert await tb.read(space, at, 8) == (0, OKAY), (space, at)


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def monitors(dut):
    """Memory says whether it is ready; counters and the hot list hear what is theirs, and each has
    its interrupt; a sanitize says how far it is."""
    tb = await started(dut)
    c = tb.config
    await _readiness(tb)
    for vector in range(c.vectors):
        for offset, value in ((0, 0xFEE00000), (8, 0x40 + vector), (12, 0)):
            await tb.write("device", 0x8000 + 16 * vector + offset, 4, value)
    await tb.write("configuration", 0x7E, 2, 0x8000)
    if c.pmu:
        await _counters(tb)
    if c.hot_entries:
        await _hot_list(tb)
    if c.wired:
        tb.decide = lambda request: None
        assert (await tb.command(0x4400))[0] == 1
        for percent in (42, 85):
            dut.progress.value = percent
            await tb.idle(2)
            assert (await tb.read("device", 0x1018, 8))[0] == percent << 16 | 0x4400
        await tb.told(tb.requests[-1], 0)
        await tb.idle(600)
        assert (await tb.read("device", 0x1018, 8))[0] == 100 << 16 | 0x4400


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def flips(dut):
    """One flipped bit changes nothing. Two are told by the answer to who reads them, or writes them
    in part, and by nothing else; where the device itself uses them, for good."""
    tb = await started(dut)
    told = set()

    async def listening():
        while True:
            await ReadOnly()
            told.update(n for n in range(3) if int(dut.fault.value) >> n & 1)
            await RisingEdge(dut.clk)

    def flip(rows, row, *bits):
        rows[row].value = int(rows[row].value) ^ sum(1 << bit for bit in bits)

    cocotb.start_soon(listening())
    await tb.write("component", 0x1084, 4, 0)
    for rows, at, word in (
        (dut.engine.mailbox.payload.memory, 0x1020, 0x1234_5678_9ABC_DEF0),
        (dut.msix.addresses.memory, 0x8000, 0xFEE0_0000),
        (dut.msix.data.memory, 0x8008, 1 << 32 | 0x31),
    ):
        assert await tb.write("device", at, 8, word) == OKAY
        told.clear()
        flip(rows, 0, 3)
        # Nothing is told of what nobody reads, nor of what lies at its offset elsewhere.
        await tb.idle(20)
        for space, near in (("device", at ^ 0x10), ("device", at ^ 8), ("component", at)):
            assert (await tb.read(space, near, 8))[1] == OKAY
        assert (await tb.read("configuration", at & 0xFFF, 8))[1] == OKAY
        assert not told, hex(at)
        assert await tb.read("device", at, 8) == (word, OKAY)
        await tb.idle(4)
        assert told == {0}
        flip(rows, 0, 7)
        told.clear()
        assert await tb.read("device", at, 8) == (_ONES, _REFUSED), hex(at)
        assert await tb.write("device", at, 1, 0) == _REFUSED
        await tb.idle(4)
        assert told == {1}
        assert await tb.write("device", at, 8, word) == OKAY
        assert await tb.read("device", at, 8) == (word, OKAY)
    assert not (await tb.read("device", 0x200, 8))[0] & 1
    assert (await tb.read("component", 0x1080, 4))[0] == 0
    store = dut.engine.store.memory
    for row in range(len(store)):
        flip(store, row, 3, 9)
    told.clear()
    assert (await tb.command(0x100, bytes(1)))[:2] == (4, b"")
    assert 2 in told and (await tb.read("device", 0x200, 8))[0] & 1
    assert (await tb.read("component", 0x1080, 4))[0] == 1 << 14
    await tb.idle(50)
    assert (await tb.read("device", 0x200, 8))[0] & 1

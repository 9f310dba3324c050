# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""A sanitize of the whole device: two tenants' pages in memory and in a tier, some of them
poisoned; nothing of them is left anywhere, the host is told NXM meanwhile, and errors of memory and
tier, and a reset in its middle, end as they should."""

import cocotb

from kelp_spec.cxlio.commands import Opcode, ReturnCode, knob_uuid
from kelp_spec.metadata import ColdOp

from ..harness.runner import record
from ..miss.flash import Flash, FlashPort
from .device_bench import BASE, LIMIT
from .device_bench import TB as DeviceTB

READY, DISABLED = 1, 3  #: the media, as memory device status has it


class Lines:
    """The bench's memory in bytes, for the tier's DMA."""

    def __init__(self, lines):
        self.lines = lines

    def read(self, address, length):
        first = address // 64
        return b"".join(
            self.lines.get(first + i, 0).to_bytes(64, "little") for i in range(length // 64)
        )

    def write(self, address, data):
        for i in range(0, len(data), 64):
            self.lines[(address + i) // 64] = int.from_bytes(data[i : i + 64], "little")


class TB(DeviceTB):
    """`CxlDevice` between a host, a memory and a cold tier; session 0 is LD-ID 0's, 1 LD-ID 1's."""

    def __init__(self, dut):
        super().__init__(dut)
        self.slow = 6000  #: cycles of an erasure of the tier

    async def serve(self):
        self.tier = Flash(memory=Lines(self.memory), latency=60, bytes_per_cycle=64.0)
        self.port = FlashPort(self.dut, self.tier, self.kelp, pressure=0.2, seed=self.rng.random())
        self.tier_runs = cocotb.start_soon(self.port.run())
        await super().serve()

    async def setup(self):
        """A host that has the device's memory."""
        await self.boot()
        await self.write("configuration", 4, 2, 6)
        await self.map_memory()

    async def reset(self):
        """Device, memory port and tier at once."""
        for task in (*self.serving, self.tier_runs):
            task.cancel()
        dut = self.dut
        for name in ("cold_completion", "axi__r", "axi__b"):
            getattr(dut, name + "__valid").value = 0
        for name in ("cold_command", "axi__ar", "axi__aw", "axi__w"):
            getattr(dut, name + "__ready").value = 0
        dut.rst.value = 1
        await self.idle(4)
        dut.rst.value = 0
        await self.serve()

    async def fill(self):
        """Pages of both sessions, more than there are frames; line → what it holds."""
        await self.open_session(0, kv_heads=4)
        await self.open_session(1, kv_heads=2, owner=1)
        held = {}
        for session, queues in ((0, 4), (1, 2)):
            for queue in range(queues):
                for page in range(3):
                    at = self.line(page, self.rng.randrange(4), session, queue)
                    held[at] = bytes([*self.rng.randbytes(63), session | 0x80])
                    await self.store(BASE + at, held[at], ld=session)
        at, owner = self.rng.choice([(a, b[63] & 1) for a, b in held.items()])
        assert await self.load(BASE + at, ld=owner) == held[at]
        started = self.cycles
        while not self.tier.pages:
            await self.idle(50)
            assert self.cycles - started < LIMIT, "nothing is ever evicted"
        assert any(self.memory.values()) and any(any(p[0]) for p in self.tier.pages.values())
        return held

    async def status(self):
        """(running, opcode, percent, code, media) of the background command."""
        for _ in range(20):
            running = (await self.read("device", 0x1010, 8))[0] & 1
            background = (await self.read("device", 0x1018, 8))[0]
            media = (await self.read("device", 0x200, 8))[0] >> 2 & 3
            if not running or media == DISABLED:
                code = background >> 32 & 0xFFFF
                return running, background & 0xFFFF, background >> 16 & 0x7F, code, media
            # Its end was between the three reads, or nearly.
        raise AssertionError("a sanitize runs, and the media is not disabled")

    async def begin(self):
        self.tier.latency = self.slow
        assert (await self.command(Opcode.SANITIZE))[0] == ReturnCode.BACKGROUND

    async def sanitize(self, held):
        """Until it is over: its code. Meanwhile nothing is there, and nothing else is done."""
        await self.begin()
        percents, started = [0], self.cycles
        first = next(iter(held))
        assert await self.load(BASE + self.addresses.register_base) == "nxm"
        argument = first.to_bytes(8, "little")
        feature = knob_uuid(1) + bytes(2) + b"\x04\x00\x00"
        refused = {
            (Opcode.INJECT_POISON, argument): ReturnCode.MEDIA_DISABLED,
            (Opcode.CLEAR_POISON, argument + bytes(64)): ReturnCode.MEDIA_DISABLED,
            (Opcode.GET_FEATURE, feature): ReturnCode.BUSY,
            (Opcode.SANITIZE, b""): ReturnCode.BUSY,
        }
        for (opcode, given), code in refused.items():
            assert (await self.command(opcode, given))[0] == code, opcode
        while True:
            running, opcode, percent, code, media = await self.status()
            assert opcode == Opcode.SANITIZE
            if not running:
                break
            assert media == DISABLED and percent >= percents[-1] and percent < 100
            percents.append(percent)
            at = self.rng.choice(list(held))
            assert await self.load(BASE + at, ld=held[at][63] & 1) == "nxm"
            await self.store(BASE + at, held[at], ld=held[at][63] & 1)
            await self.idle()
            assert self.cycles - started < LIMIT, "a sanitize hangs"
        assert (percent, media) == (100, READY), (percent, media)
        assert 99 in percents, percents
        self.tier.latency = 60
        return code

    async def listed(self):
        """Lines on the poison list."""
        given = bytes(8) + (1 << 22).to_bytes(8, "little")
        code, answer, _ = await self.command(Opcode.POISON_LIST, given)
        assert code == 0
        return int.from_bytes(answer[10:12], "little")

    async def is_clean(self, held):
        """Nothing of `held` is in memory or tier, or shown to anybody, in sessions closed or
        anew."""
        assert not self.tier.pages
        for line in range(self.kelp.dram_lines):
            assert not self.memory.get(line, 0), f"line {line} has kept something"
        for session in (0, 1):
            state = await self.read_register(f"s{session}_state")
            assert not state & 3, f"session {session} is not closed"
        for at, data in list(held.items())[::5]:
            assert await self.load(BASE + at, ld=data[63] & 1) == "nxm"
        await self.open_session(0, kv_heads=4)
        await self.open_session(1, kv_heads=2, owner=1)
        for at, data in held.items():
            assert await self.load(BASE + at, ld=data[63] & 1) == bytes(64)


async def close(tb):
    """Both sessions, by the host."""
    for session in (0, 1):
        name = f"s{session}_command"
        await tb.write_register(name, tb.values.pack(name, command=2))
        while await tb.read_register(f"s{session}_state") & 3:
            pass


async def filled(dut):
    """A device that a host has begun with, and what its lines hold."""
    tb = TB(dut)
    await tb.start()
    await tb.setup()
    return tb, await tb.fill()


async def fetched(tb, held):
    """A load that waits for the tier, for thousands of cycles: its task, and what it should get."""
    for at, data in held.items():
        tb.tier.latency = 3000
        load = cocotb.start_soon(tb.load(BASE + at, ld=data[63] & 1))
        await tb.idle(400)
        if not load.done():
            return load, data
        assert load.result() == data
    raise AssertionError("every page is there")


@cocotb.test(timeout_time=60, timeout_unit="ms")
async def who_waits_for_the_tier_is_answered(dut):
    """An inject and a sanitize take no answer of a host's for their own."""
    tb, held = await filled(dut)
    load, data = await fetched(tb, held)
    poisoned = next(at for at, other in held.items() if other != data and not other[63] & 1)
    assert (await tb.command(Opcode.INJECT_POISON, poisoned.to_bytes(8, "little")))[0] == 0
    assert load.done() and load.result() == data
    tb.tier.latency = 60
    assert await tb.load(BASE + poisoned) == "poison"
    await tb.store(BASE + poisoned, held[poisoned])
    load, data = await fetched(tb, held)
    await tb.begin()
    while (await tb.status())[0]:
        await tb.idle()
    assert load.done() and load.result() == data
    tb.tier.latency = 60
    await tb.is_clean(held)


@cocotb.test(timeout_time=60, timeout_unit="ms")
async def nothing_is_left(dut):
    tb, held = await filled(dut)
    poisoned = list(held)[3], list(held)[-2]  # session 0's, and LD-ID 1's, which the host poisons
    assert (await tb.command(Opcode.INJECT_POISON, poisoned[0].to_bytes(8, "little")))[0] == 0
    await tb.store(BASE + poisoned[1], bytes(64), poison=1, ld=1)
    assert await tb.load(BASE + poisoned[0]) == "poison" and await tb.listed()
    for _ in range(20):  # more than the list has heard of when all is erased
        await tb.store(BASE + poisoned[1], bytes(64), poison=1, ld=1)
        await tb.store(BASE + poisoned[1], bytes(64), ld=1)
    await tb.store(BASE + poisoned[1], bytes(64), poison=1, ld=1)
    assert await tb.sanitize(held) == ReturnCode.SUCCESS
    assert not await tb.listed()
    await tb.is_clean(held)
    assert not await tb.listed()
    # What is written from now on stays.
    at = tb.line(1, 1)
    await tb.store(BASE + at, bytes(range(64)))
    assert await tb.load(BASE + at) == bytes(range(64))
    await close(tb)

    # Errors: of one write to memory, and of the tier.
    for memory_fails in (True, False):
        held = await tb.fill()
        assert (await tb.command(Opcode.INJECT_POISON, next(iter(held)).to_bytes(8, "little")))[
            0
        ] == 0
        if memory_fails:
            bad = tb.rng.randrange(tb.kelp.dram_lines)
            tb.refuses = lambda line, bad=bad: line == bad
        else:
            tb.tier.fails = lambda command: command.op == ColdOp.ERASE
        assert await tb.sanitize(held) == ReturnCode.INTERNAL
        tb.refuses, tb.tier.fails = (lambda line: False), (lambda command: False)
        # It can be done again.
        assert await tb.listed() == 1
        assert await tb.sanitize(held) == ReturnCode.SUCCESS and not await tb.listed()
        await tb.is_clean(held)
        await close(tb)

    # A reset in its middle: it is over, nothing runs, and nobody sees what was there.
    held = await tb.fill()
    await tb.begin()
    while (await tb.status())[2] <= 10:
        pass
    await tb.reset()
    await tb.setup()
    assert await tb.status() == (0, 0, 0, 0, READY)
    for at, data in list(held.items())[::5]:
        assert await tb.load(BASE + at, ld=data[63] & 1) == "nxm"
    held = await tb.fill()
    assert await tb.sanitize(held) == ReturnCode.SUCCESS
    await tb.is_clean(held)
    # A function-level reset takes the function's registers, not the memory.
    await tb.write("configuration", 0x48, 2, 0x8000)
    assert (await tb.read("configuration", 4, 2))[0] == 0
    assert (await tb.read("device", 0x200, 8))[1] == 2
    assert await tb.load(BASE + tb.line(1, 1)) == bytes(64)
    await tb.write("configuration", 4, 2, 6)
    assert (await tb.read("component", 0x1130, 4))[0] >> 10 & 3 == 1
    record(cycles=tb.cycles)

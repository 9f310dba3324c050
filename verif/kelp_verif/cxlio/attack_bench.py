# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""A host that keeps no rules at the register port, while another keeps the memory busy: commands of
wrong lengths and a doorbell that is rung again, decoders that come and go under traffic,
function-level resets in the midst of commands and of a sanitize, accesses of every size meanwhile.
Every request is answered once, no line changes, and what was begun ends."""

import cocotb

from kelp_spec.cxlio.commands import COMMANDS, Opcode, ReturnCode

from ..harness.runner import record
from .device_bench import BASE, LIMIT
from .port_tb import SPACES
from .sanitize_bench import DISABLED, filled

SLVERR, DECERR = 2, 3
CONTROL, COMMITTED, FLR = 0x1130, 1 << 10, 0x8000


class Traffic:
    """Loads, and stores of what is there already, until `stop`; `lost`: how many found nobody.
    `gone`: nobody need be there."""

    def __init__(self, tb, held):
        self.tb, self.held, self.gone, self.lost, self.answered = tb, held, False, 0, 0
        self._on = True
        self._task = cocotb.start_soon(self._run())

    async def _run(self):
        tb = self.tb
        while self._on:
            at = tb.rng.choice(list(self.held))
            owner = self.held[at][63] & 1
            if tb.rng.random() < 0.4:
                await tb.store(BASE + at, self.held[at], ld=owner)
            gone = self.gone
            got = await tb.load(BASE + at, ld=owner)
            self.answered += 1
            if got == "nxm" and (gone or self.gone):
                self.lost += 1
            else:
                assert got == self.held[at], f"{at:#x} is {got}"

    async def stop(self):
        self._on = False
        await self._task


async def ring(tb, opcode, given=b""):
    """Without waiting for its end."""
    for i in range(0, len(given), 8):
        part = given[i : i + 8]
        await tb.write("device", 0x1020 + i, 8, int.from_bytes(part, "little"))
    await tb.write("device", 0x1008, 8, opcode | len(given) << 16)
    await tb.write("device", 0x1004, 4, 1)


async def over(tb):
    """The command's return code."""
    started = tb.cycles
    while (await tb.read("device", 0x1004, 4))[0] & 1:
        assert tb.cycles - started < LIMIT, "the mailbox hangs"
    return (await tb.read("device", 0x1010, 8))[0] >> 32 & 0xFFFF


async def function_reset(tb):
    """And the function is there again."""
    await tb.write("configuration", 0x48, 2, FLR)
    assert await tb.read("device", 0x1004, 4) == (0xFFFFFFFF, SLVERR)
    await tb.write("configuration", 4, 2, 6)


async def wrong_commands(tb):
    """Lengths that no command has; a second ring and a second command while the first runs."""
    for opcode, command in COMMANDS.items():
        most = min(command.most, tb.config.payload)
        for length in (command.least - 1, most + 1, (1 << 21) - 1):
            if length >= 0:
                code, answer, _ = await tb.command(opcode, length=length)
                assert (code, answer) == (ReturnCode.LENGTH, b""), f"{opcode:04x} {length}"
    identity = (await tb.command(Opcode.IDENTIFY))[1]
    for pause in (0, 7, 60, 150):
        await ring(tb, Opcode.IDENTIFY)
        await tb.idle(pause)
        await ring(tb, Opcode.SANITIZE)
        await over(tb)
        running = (await tb.read("device", 0x1010, 8))[0] & 1
        assert not running, "what was rung while busy was carried out"
    assert (await tb.command(Opcode.IDENTIFY))[1] == identity


async def decoders(tb, traffic):
    """Uncommitted and committed again under traffic, with some that are refused."""
    for _ in range(12):
        traffic.gone = True
        await tb.write("component", CONTROL, 4, tb.rng.choice((0, 0x1000)))
        await tb.idle(tb.rng.randrange(80))
        if tb.rng.random() < 0.5:
            # No base, no size, more ways than there are: an error, and nothing is decoded.
            await tb.write("component", 0x1128, 4, tb.rng.choice((0, 1 << 27)))
            await tb.write("component", CONTROL, 4, 0x1200)
            await tb.idle(10)
            assert not (await tb.read("component", CONTROL, 4))[0] & COMMITTED
            await tb.write("component", CONTROL, 4, 0x1000)
            await tb.write("component", 0x1128, 4, 1 << 28)
        await tb.write("component", CONTROL, 4, 0x1200)
        await tb.idle(10)
        assert (await tb.read("component", CONTROL, 4))[0] & COMMITTED
        await tb.idle(60)
        traffic.gone = False
        await tb.idle(tb.rng.randrange(200))


async def resets(tb, held):
    """In the midst of a command that asks the data path: it ends as if nothing were."""
    lines = [at for at, data in held.items() if not data[63] & 1][:4]
    zeros = bytes(64)
    for at in lines:
        argument = at.to_bytes(8, "little")
        for opcode, given in (
            (Opcode.INJECT_POISON, argument),
            (Opcode.CLEAR_POISON, argument + zeros),
        ):
            await ring(tb, opcode, given)
            await tb.idle(tb.rng.randrange(500))
            await function_reset(tb)
            assert await over(tb) == 0, opcode
            inject = opcode == Opcode.INJECT_POISON
            assert await tb.load(BASE + at) == ("poison" if inject else zeros)
        await tb.store(BASE + at, held[at])
    await tb.idle(3000)  # until the list has heard of all of it
    assert await tb.listed() == 0


async def any_access(tb):
    """A read of any size of any space, or a write to the payload."""
    rng = tb.rng
    space, size = rng.choice(list(SPACES)), rng.choice((1, 2, 4, 8))
    at = rng.randrange(0x1200 if space in ("component", "device") else 0x1000) // size * size
    _, code = await tb.read(space, at, size)
    assert code == 0, f"{space} {at:#x}: {code}"
    if rng.random() < 0.3:
        at = 0x1020 + rng.randrange(tb.config.payload - 8) // size * size
        assert await tb.write("device", at, size, rng.getrandbits(8 * size)) == 0


async def sanitize(tb, held):
    """Beside all this it ends, and leaves nothing."""
    tb.slow = 2500
    await tb.begin()
    started, resets_ = tb.cycles, 0
    while True:
        running, opcode, _, code, media = await tb.status()
        assert opcode == Opcode.SANITIZE
        if not running:
            break
        assert media == DISABLED
        for _ in range(20):
            await any_access(tb)
        if tb.rng.random() < 0.2:
            await function_reset(tb)
            resets_ += 1
        assert tb.cycles - started < LIMIT, "a sanitize hangs"
    assert code == 0 and resets_, (code, resets_)
    tb.tier.latency = 60


@cocotb.test(timeout_time=60, timeout_unit="ms")
async def what_is_against_the_rules(dut):
    tb, held = await filled(dut)
    traffic = Traffic(tb, held)
    await wrong_commands(tb)
    await decoders(tb, traffic)
    await traffic.stop()
    lost, answered = traffic.lost, traffic.answered
    await resets(tb, held)
    traffic = Traffic(tb, held)
    traffic.gone = True
    await sanitize(tb, held)
    traffic.gone = True
    await traffic.stop()
    # A store of the host's, behind the sanitize, found no session: nothing of it is there.
    await tb.is_clean(held)
    record(cycles=tb.cycles, lost=lost, answered=answered)

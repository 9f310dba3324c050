# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Every mailbox command against the golden model: lengths, bad input, what an error leaves; and how
many cycles each takes."""

import random
import re
from collections import Counter

import pytest
import simulation
from amaranth.hdl import ResetInserter, Signal
from flips import fields, flip, opened
from paths import DOCS
from timing import changes

from kelp_golden.cxlio.exchange import Exchange
from kelp_golden.cxlio.mailbox import Event, Mailbox
from kelp_hw.cxlio.command_engine import CommandEngine
from kelp_hw.firmware.commands import image
from kelp_hw.firmware.image import STORE, TABLES
from kelp_hw.lib.constant_memory import ConstantMemory
from kelp_spec.cxlio.commands import (
    CEL_UUID,
    COMMANDS,
    Effect,
    Opcode,
    ReturnCode,
    cel,
    knob_uuid,
)
from kelp_spec.cxlio.config import named_cxlio
from kelp_spec.cxlio.events import PoisonSource
from kelp_spec.cxlio.knobs import KNOBS
from kelp_verif.harness.compiled import simulate
from kelp_verif.harness.runner import made

FULL = named_cxlio("full").replace(name="short", patience=300)
SMALL = FULL.replace(payload_bits=8)
TINY = SMALL.replace(events=4, lsa=8, poisons=4)  #: its store is cleared soon
LIMIT = 20_000
INJECT, CLEAR, SANITIZE, READ, SET = 1, 2, 3, 4, 5  #: kinds of requests


class Host:
    """The engine and the golden model, given the same."""

    def __init__(self, config):
        self.config, self.dut, self.golden = (
            config,
            made(CommandEngine, config=config),
            Mailbox(config),
        )
        self.asked, self.codes, self.time = [], [], 0
        self.expected, self.interrupts, self.told = [], [], []
        self.golden.ask = lambda kind, line, data: self._expect(kind, line, data)
        self.golden.interrupt = lambda vector: self.told.append(1 << vector)
        self.golden.set_now = lambda value: setattr(self, "time", value)
        self.golden.now = lambda: self.time
        self.code, self.stalls, self.standing = 0, False, None
        self.strays = ()  #: answers with tags that differ so come before the one to a request
        #: Of the data path: vendor features.
        self.registers = dict(enumerate(self.golden.knobs))

    def _expect(self, kind, line, data):
        if not self.stalls:
            self.expected.append((kind, line, int.from_bytes(data, "little")))
        return self.code

    async def tick(self, ctx, cycles=1):
        """The data path answers after a few cycles with `code`; None: never."""
        dut = self.dut
        for _ in range(cycles):
            ctx.set(dut.requests.ready, not self.stalls)
            ctx.set(dut.answers.valid, 0)
            if self.codes:
                self.codes[0][0] -= 1
                if self.codes[0][0] == 0:
                    _, tag, code = self.codes.pop(0)
                    ctx.set(dut.answers.valid, 1)
                    ctx.set(dut.answers.p.tag, tag)
                    ctx.set(dut.answers.p.code, code)
            offer = (
                ctx.get(dut.requests.payload.as_value()) if ctx.get(dut.requests.valid) else None
            )
            assert self.standing in (None, offer), "an offer does not stand"
            self.standing = offer if self.stalls else None
            if offer is not None and not self.stalls:
                p = dut.requests.p
                kind, line = ctx.get(p.kind), ctx.get(p.line)
                data = ctx.get(p.data) if kind == 2 else 0
                if kind != SANITIZE:
                    self.asked.append((kind, line, data))
                if kind in (READ, SET):
                    self.asked[-1] = kind, line, ctx.get(p.data) >> 480 if kind == SET else 0
                    if kind == SET and self.code == 0:
                        self.registers[line] = ctx.get(p.data) >> 480
                    ctx.set(dut.answers.p.value, self.registers.get(line, 0))
                if self.code is not None and kind != SANITIZE:
                    tag = ctx.get(p.tag)
                    self.codes += [[1, tag ^ stray, self.code ^ 1] for stray in self.strays]
                    self.codes.append([5, tag, self.code])
                self.tag = ctx.get(p.tag)
            if vector := ctx.get(dut.interrupt):
                self.interrupts.append(vector)
            await ctx.tick()

    async def ready(self, ctx):
        """No byte of the payload is zero then, so that one that is written shows."""
        dut = self.dut
        while not ctx.get(dut.state.ready):
            await self.tick(ctx)
        ctx.set(dut.access.write, 1)
        ctx.set(dut.access.strobe, 0xFF)
        ctx.set(dut.access.write_data, 0xA5A5_A5A5_A5A5_A5A5)
        for lane in range(self.config.payload // 8):
            ctx.set(dut.access.lane, lane)
            await self.tick(ctx)
        ctx.set(dut.access.write, 0)

    async def event(self, ctx, **fields):
        dut = self.dut
        for name, value in fields.items():
            ctx.set(dut.events.p[name], value)
        ctx.set(dut.events.valid, 1)
        while not ctx.get(dut.events.ready):
            await self.tick(ctx)
        await self.tick(ctx)
        ctx.set(dut.events.valid, 0)
        for name in fields:
            ctx.set(dut.events.p[name], 0)
        self.golden.event(Event(**{"log": 0} | fields))

    async def payload(self, ctx, size):
        out = b""
        for lane in range(-(-size // 8)):
            ctx.set(self.dut.access.lane, lane)
            await self.tick(ctx)
            out += ctx.get(self.dut.access.read_data).to_bytes(8, "little")
        return out[:size]

    async def command(self, ctx, opcode, given=b"", length=None):
        """Both carry it out and agree; the return code, the answer and the cycles."""
        dut = self.dut
        for i in range(0, len(given), 8):
            part = given[i : i + 8]
            ctx.set(dut.access.lane, i // 8)
            ctx.set(dut.access.write, 1)
            ctx.set(dut.access.strobe, (1 << len(part)) - 1)
            ctx.set(dut.access.write_data, int.from_bytes(part, "little"))
            await self.tick(ctx)
        ctx.set(dut.access.write, 0)
        before = await self.payload(ctx, self.config.payload)
        ctx.set(dut.opcode, opcode)
        length = len(given) if length is None else length
        ctx.set(dut.length, length)
        ctx.set(dut.ring, 1)
        await self.tick(ctx)
        ctx.set(dut.ring, 0)
        cycles = out_length = 0
        while ctx.get(dut.busy):
            if ctx.get(dut.length_load):
                out_length = ctx.get(dut.out_length)
            await self.tick(ctx)
            cycles += 1
            assert cycles < LIMIT, f"{opcode:04x} hangs"
        code, after = ctx.get(dut.state.code), await self.payload(ctx, self.config.payload)
        answer = after[:out_length]
        whole = given if length == len(given) else length
        assert (code, answer) == self.golden.run(opcode, whole), f"{opcode:04x} {given.hex()}"
        assert after[out_length:] == before[out_length:], f"{opcode:04x} writes behind its answer"
        assert self.asked[-8:] == self.expected[-8:]
        assert ctx.get(dut.state.event_status) == self.golden.event_status
        return code, answer, cycles


def play(config, script):
    host, out = Host(config), []

    async def bench(ctx):
        await host.ready(ctx)
        out.append(await script(ctx, host))
        assert host.interrupts == host.told

    simulate(host.dut, bench)
    return out[0]


def line(address):
    return address.to_bytes(8, "little")


def span(offset, length):
    return line(offset) + line(length)


#: One legal input of each command.
LEGAL = {
    Opcode.GET_EVENTS: bytes(1),
    Opcode.CLEAR_EVENTS: bytes([0, 1, 0, 0, 0, 0]),
    Opcode.SET_INTERRUPT_POLICY: bytes([1] * 4),
    Opcode.SET_TIMESTAMP: line(1 << 40),
    Opcode.GET_LOG: CEL_UUID + bytes(4) + len(cel(FULL.commands)).to_bytes(4, "little"),
    Opcode.SUPPORTED_FEATURES: (512).to_bytes(8, "little"),
    Opcode.GET_FEATURE: knob_uuid(0) + bytes([0, 0, 4, 0, 0]),
    Opcode.SET_FEATURE: knob_uuid(0) + bytes(6) + bytes([1]) + bytes(9) + bytes([7, 0, 0, 0]),
    Opcode.GET_LSA: bytes([8, 0, 0, 0, 64, 0, 0, 0]),
    Opcode.SET_LSA: bytes([8, 0, 0, 0, 0, 0, 0, 0]) + bytes(range(64)),
    Opcode.SET_ALERTS: bytes([15, 15, 90, 0, 80, 0, 5, 0, 9, 0, 0, 0]),
    Opcode.SET_SHUTDOWN: bytes([1]),
    Opcode.POISON_LIST: span(0, 1 << 22),
    Opcode.INJECT_POISON: line(0x1000),
    Opcode.CLEAR_POISON: line(0x1000) + bytes(range(64)),
}


def test_lengths_and_opcodes():
    async def script(ctx, host):
        codes = {}
        for opcode, command in COMMANDS.items():
            legal = LEGAL.get(opcode, b"")
            for length in {command.least - 1, command.most + 1, 1 << 16, (1 << 21) - 1}:
                if 0 <= length <= min(command.most, SMALL.payload):
                    continue
                if length >= 0:
                    code, _, _ = await host.command(ctx, opcode, legal, length)
                    assert code == ReturnCode.LENGTH
            codes[opcode] = (await host.command(ctx, opcode, legal))[0]
        bits = [Opcode.IDENTIFY ^ 1 << bit for bit in range(16)]
        others = {0, 0x104, 0x4303, 0x4802, 0x8400, 0xC000, 0xFFFF, *bits} - set(COMMANDS)
        for opcode in others:
            assert (await host.command(ctx, opcode))[0] == ReturnCode.UNSUPPORTED
        # Each bit of a length counts.
        for bit in range(1, 21):
            code = (await host.command(ctx, Opcode.GET_EVENTS, bytes(1), 1 | 1 << bit))[0]
            assert code == ReturnCode.LENGTH
        return codes

    codes = play(SMALL, script)
    assert codes.pop(Opcode.SANITIZE) == ReturnCode.BACKGROUND and not any(codes.values())


def test_events_overflow_are_given_in_pages_and_cleared_in_order():
    async def script(ctx, host):
        rng = random.Random(9)
        await host.command(ctx, Opcode.SET_INTERRUPT_POLICY, bytes([1, 0, 1, 1]))
        for _ in range(20):
            fields = {"kind": 2, "flags": 8, "dpa": 64, "word": 32, "more": 32}
            given = {name: rng.getrandbits(bits) for name, bits in fields.items()}
            await host.event(ctx, log=2, **given)
        await host.event(ctx, log=1)
        _, answer, _ = await host.command(ctx, Opcode.GET_EVENTS, bytes([2]))
        assert answer[0] == 3 and answer[2] == 4 and len(answer) == 32 + 7 * 128
        bad = [bytes([2, 0, 1, 0, 0, 0, 2, 0]), bytes([2, 0, 2, 0, 0, 0, 1, 0, 3, 0])]
        bad += [bytes([1, 0, 2, 0, 0, 0, 1, 0, 2, 0]), bytes([4, 0, 1, 0, 0, 0, 1, 0])]
        bad += [
            bytes([2, 0, 0, 0, 0, 0]),
            bytes([2, 1, 1, 0, 0, 0, 1, 0]),
            bytes([2, 2, 0, 0, 0, 0]),
        ]
        bad += [bytes([2, 0, 1, 0, 0, 0, 1, 0, 0, 0]), bytes([2, 0, 255, 0, 0, 0])]
        # One more than there are: the oldest again.
        around = [*range(1, 17), 1]
        bad.append(bytes([2, 0, 17, 0, 0, 0]) + b"".join(h.to_bytes(2, "little") for h in around))
        for given in bad:
            assert (await host.command(ctx, Opcode.CLEAR_EVENTS, given))[0]
        handles = b"".join(h.to_bytes(2, "little") for h in range(1, 6))
        good = bytes([2, 0, 5, 0, 0, 0]) + handles
        assert not (await host.command(ctx, Opcode.CLEAR_EVENTS, good))[0]
        for _ in range(7):
            await host.event(ctx, log=2, word=5)
        _, answer, _ = await host.command(ctx, Opcode.GET_EVENTS, bytes([2]))
        assert answer[0] == 3 and answer[2] == 2
        await host.command(ctx, Opcode.CLEAR_EVENTS, bytes([2, 1, 0, 0, 0, 0]))
        await host.event(ctx, log=2)
        await host.command(ctx, Opcode.GET_EVENTS, bytes([2]))
        assert (await host.command(ctx, Opcode.GET_EVENTS, bytes([4])))[0] == ReturnCode.INPUT
        for policy in (bytes([2, 0, 0, 0]), bytes([0, 0, 0, 3])):
            code = (await host.command(ctx, Opcode.SET_INTERRUPT_POLICY, policy))[0]
            assert code == ReturnCode.INPUT
        await host.command(ctx, Opcode.GET_INTERRUPT_POLICY)
        return len(host.interrupts)

    assert play(FULL, script) == 2


def test_lines_that_the_device_found_poisoned_are_listed():
    """Each with its source, once, until it is healed; without a record where the event is quiet.
    One that says that lines were lost is the list's overflow, whatever leaves it then."""

    async def script(ctx, host):
        for i, source in enumerate(PoisonSource):
            await host.event(ctx, log=1, poison=1, quiet=1, dpa=64 * i, source=source)
        await host.event(ctx, log=1, poison=1, quiet=1, dpa=64, source=PoisonSource.INTERNAL)
        _, logged, _ = await host.command(ctx, Opcode.GET_EVENTS, bytes([1]))
        assert int.from_bytes(logged[0x14:0x16], "little") == 0
        await host.event(ctx, log=1, poison=1, dpa=64 * 9, source=PoisonSource.INTERNAL)
        _, logged, _ = await host.command(ctx, Opcode.GET_EVENTS, bytes([1]))
        assert int.from_bytes(logged[0x14:0x16], "little") == 1
        _, listed, _ = await host.command(ctx, Opcode.POISON_LIST, span(0, 1 << 22))
        entries = [int.from_bytes(listed[32 + 16 * i :][:8], "little") for i in range(5)]
        assert entries == [64 * i | source for i, source in enumerate(PoisonSource)] + [64 * 9 | 2]
        assert listed[0] == 0
        await host.event(ctx, poison=1, quiet=1, lost=1, dpa=64 * 10)
        for count, healed in ((5, 10), (5, 9), (4, 0), (3, 0), (3, 1)):
            _, listed, _ = await host.command(ctx, Opcode.POISON_LIST, span(0, 1 << 22))
            assert listed[0] == 2 and int.from_bytes(listed[0xA:0xC], "little") == count
            await host.event(ctx, poison=1, quiet=1, healed=1, dpa=64 * healed)
        await host.event(ctx, poison=1, quiet=1, dpa=64)
        assert not (await host.command(ctx, Opcode.CLEAR_POISON, line(64) + bytes(64)))[0]
        _, listed, _ = await host.command(ctx, Opcode.POISON_LIST, span(0, 1 << 22))
        assert listed[0] == 2 and int.from_bytes(listed[0xA:0xC], "little") == 2

    play(SMALL, script)


def test_poison_is_listed_in_pages_and_cleared():
    config = SMALL

    async def script(ctx, host):
        rng = random.Random(10)
        for code, wanted in (
            (1, ReturnCode.ADDRESS),
            (2, ReturnCode.RETRY),
            (3, ReturnCode.INTERNAL),
        ):
            host.code = code
            for opcode in (Opcode.INJECT_POISON, Opcode.CLEAR_POISON):
                data = bytes(64) if opcode is Opcode.CLEAR_POISON else b""
                assert (await host.command(ctx, opcode, line(64) + data))[0] == wanted
        host.code = 0
        for address, wanted in ((65, 2), (config.bytes, 0xF), (1 << 60, 0xF), (1 << 63 | 1, 2)):
            assert (await host.command(ctx, Opcode.INJECT_POISON, line(address)))[0] == wanted
        lines = [64 * rng.randrange(config.bytes // 64) for _ in range(config.poisons - 1)]
        for address in (*lines, lines[3]):
            assert not (await host.command(ctx, Opcode.INJECT_POISON, line(address)))[0]
        await host.event(ctx, poison=1, dpa=lines[0] + 2)
        await host.event(ctx, poison=1, dpa=0x40, source=PoisonSource.EXTERNAL)
        full = await host.command(ctx, Opcode.INJECT_POISON, line(0x80))
        assert full[0] == ReturnCode.POISON_LIMIT
        await host.event(ctx, poison=1, dpa=0x80)
        pages = 0
        while True:
            _, answer, _ = await host.command(ctx, Opcode.POISON_LIST, span(0, 1 << 22))
            pages += 1
            if not answer[0] & 1:
                break
        assert pages == 3 and answer[0] == 2
        for offset, length in (
            (lines[5], 1),
            (lines[5] + 64, 1 << 40),
            (1 << 40, 5),
            (0, 0),
            (config.bytes // 2, (1 << 64) - 1),
            (0, 1 << 21),
        ):
            await host.command(ctx, Opcode.POISON_LIST, span(offset, length))
        assert (await host.command(ctx, Opcode.POISON_LIST, span(8, 8)))[0] == ReturnCode.INPUT
        await host.command(ctx, Opcode.POISON_LIST, span(0, 1 << 22))
        for address in (lines[7], lines[0], 0x40, 0x12340):
            data = rng.randbytes(64)
            assert not (await host.command(ctx, Opcode.CLEAR_POISON, line(address) + data))[0]
            await host.command(ctx, Opcode.POISON_LIST, span(0, 1 << 22))
        return len(host.asked)

    assert play(config, script) > 30


def test_the_list_reaches_as_far_as_it_is_asked_to():
    """Lines of the largest device: offset and length have 64 bits, and so has what lies between."""
    config = SMALL.replace(capacity=1 << 20)
    end = config.bytes

    async def script(ctx, host):
        lines = (0, (1 << 38) - 64, 1 << 38, (1 << 39) + 64, end - 64)
        for address in lines:
            assert not (await host.command(ctx, Opcode.INJECT_POISON, line(address)))[0]
        listed = []
        for offset, length in (
            (0, end // 64),
            (0, (1 << 64) - 1),
            (0, (1 << 32) - 1),
            (0, 1 << 32),
            (0, (1 << 32) + 1),
            (64, 1 << 33),
            ((1 << 39) + 128, 1 << 41),
            ((1 << 39) + 128, (end - (1 << 39)) // 64 - 3),
            ((1 << 39) + 128, (end - (1 << 39)) // 64 - 2),
        ):
            _, answer, _ = await host.command(ctx, Opcode.POISON_LIST, span(offset, length))
            listed.append(int.from_bytes(answer[0xA:0xC], "little"))
        for each in range(6, 12 + config.poisons - len(lines)):
            await host.event(ctx, poison=1, quiet=1, dpa=end - 64 * each)
        # A length that differs above 32 bits is another request.
        counts = []
        for length in (1 << 43, 1 << 43, 3 << 42, 3 << 42, 1 << 43):
            _, answer, _ = await host.command(ctx, Opcode.POISON_LIST, span(0, length))
            counts.append(int.from_bytes(answer[0x20:0x28], "little") & ~63)
        return listed, counts

    listed, counts = play(config, script)
    assert listed == [5, 5, 1, 2, 3, 2, 0, 0, 1]
    assert counts[0] == counts[2] == counts[4] == 0 != counts[1] == counts[3]


def test_a_data_path_that_does_not_answer():
    async def script(ctx, host):
        host.code = None
        code, _, cycles = await host.command(ctx, Opcode.INJECT_POISON, line(0))
        assert code == ReturnCode.INTERNAL and cycles > FULL.patience
        late = host.tag
        host.code = 0
        # The answer to the lost request comes with its old tag while the next one waits.
        host.codes.append([1, late, 1])
        code, _, answered = await host.command(ctx, Opcode.INJECT_POISON, line(64))
        assert not code and cycles < FULL.patience + answered
        host.strays = range(1, 16)  # and what has any other
        assert not (await host.command(ctx, Opcode.INJECT_POISON, line(128)))[0]
        host.strays = ()
        # An answer to nobody, with the tag of the request that is over.
        host.codes.append([1, host.tag, 1])
        await host.tick(ctx, 200)
        state = host.dut.state
        assert not any(ctx.get(each) for each in (state.opcode, state.running, state.percent))
        assert not (await host.command(ctx, Opcode.CLEAR_POISON, line(64) + bytes(64)))[0]
        assert not (await host.command(ctx, Opcode.INJECT_POISON, line(64)))[0]
        # What was not told of may be poisoned: it is listed.
        _, answer, _ = await host.command(ctx, Opcode.POISON_LIST, span(0, 4))
        assert answer[10] == 3

    play(FULL, script)


def test_a_data_path_that_takes_nothing():
    """The request stands, the command does not: the next ones say so until it is taken."""

    async def script(ctx, host):
        clear = line(0) + bytes(64)
        host.stalls, host.code = True, None
        assert (await host.command(ctx, Opcode.CLEAR_POISON, clear))[0] == ReturnCode.INTERNAL
        host.golden.offered = True
        for opcode, given in (
            (Opcode.INJECT_POISON, line(64)),
            (Opcode.CLEAR_POISON, clear),
            (Opcode.SANITIZE, b""),
        ):
            assert (await host.command(ctx, opcode, given))[0] == ReturnCode.RETRY
        host.stalls, host.golden.offered = False, False
        await host.tick(ctx, 3)
        host.expected.append((2, 0, 0))
        host.code = 0
        assert not (await host.command(ctx, Opcode.INJECT_POISON, line(64)))[0]

    play(FULL, script)


def test_the_list_follows_the_data_path():
    """A listed line is poisoned again where the host has written it; one that is there no more
    leaves the list, and its place is free."""

    async def script(ctx, host):
        await host.command(ctx, Opcode.INJECT_POISON, line(64))
        asked = len(host.asked)
        await host.command(ctx, Opcode.INJECT_POISON, line(64))
        assert len(host.asked) == asked + 1
        for opcode in (Opcode.INJECT_POISON, Opcode.CLEAR_POISON):
            host.code = 0
            await host.command(ctx, Opcode.INJECT_POISON, line(128))
            host.code = 1
            given = line(128) + (bytes(64) if opcode is Opcode.CLEAR_POISON else b"")
            assert (await host.command(ctx, opcode, given))[0] == ReturnCode.ADDRESS
            _, answer, _ = await host.command(ctx, Opcode.POISON_LIST, span(0, 4))
            assert answer[10] == 1

    play(FULL, script)


@pytest.mark.parametrize("code", [0, 3])
def test_sanitize_runs_in_the_background(code):
    async def script(ctx, host):
        dut, state = host.dut, host.dut.state
        await host.command(ctx, Opcode.INJECT_POISON, line(64))
        await host.event(ctx, poison=1, quiet=1, lost=1)
        assert (await host.command(ctx, Opcode.SANITIZE))[0] == ReturnCode.BACKGROUND
        assert ctx.get(dut.state.media) == 3 and ctx.get(dut.state.running)
        assert (await host.command(ctx, Opcode.SANITIZE))[0] == ReturnCode.BUSY
        code_ = (await host.command(ctx, Opcode.INJECT_POISON, line(0)))[0]
        assert code_ == ReturnCode.MEDIA_DISABLED
        await host.command(ctx, Opcode.IDENTIFY)
        # Longer than any other request may take: it waits.
        await host.tick(ctx, 2 * host.config.patience)
        assert ctx.get(state.running) and ctx.get(state.percent) == 0
        host.codes.append([5, host.tag, code])
        await host.tick(ctx, 200)
        told = host.golden.sanitized(code)
        shown = [
            ctx.get(x) for x in (state.running, state.percent, state.background_code, state.media)
        ]
        assert shown == [0, 100, told, 1] and ctx.get(state.opcode) == Opcode.SANITIZE
        _, listed, _ = await host.command(ctx, Opcode.POISON_LIST, span(0, 1 << 22))
        assert (listed[0], listed[0xA]) == ((2, 1) if code else (0, 0))

    play(FULL, script)


def test_events_without_a_pause_keep_no_sanitize_from_its_end():
    """They come from whoever uses the memory."""

    async def script(ctx, host):
        assert (await host.command(ctx, Opcode.SANITIZE))[0] == ReturnCode.BACKGROUND
        ctx.set(host.dut.events.valid, 1)
        await host.tick(ctx, 200)
        host.codes.append([5, host.tag, 0])
        await host.tick(ctx, 1000)
        assert ctx.get(host.dut.state.running) == 0
        taken = 0
        for _ in range(1000):
            taken += ctx.get(host.dut.events.ready)
            await host.tick(ctx)
        assert taken >= 2
        host.told = host.interrupts

    play(FULL, script)


def test_a_host_that_rings_without_a_pause_sees_the_end_of_a_sanitize():
    async def script(ctx, host):
        assert (await host.command(ctx, Opcode.SANITIZE))[0] == ReturnCode.BACKGROUND
        ctx.set(host.dut.opcode, Opcode.GET_SHUTDOWN)
        ctx.set(host.dut.ring, 1)
        await host.tick(ctx, 50)
        host.codes.append([5, host.tag, 0])
        await host.tick(ctx, 600)
        assert ctx.get(host.dut.state.running) == 0

    play(FULL, script)


def test_who_does_one_thing_without_a_pause_keeps_nobody_waiting():
    """Commands, exchanges of DOE and events, all of them all the time: each in its turn."""

    async def script(ctx, host):
        dut = host.dut
        ctx.set(dut.opcode, Opcode.GET_SHUTDOWN)
        ctx.set(dut.ring, 1)
        ctx.set(dut.exchange.valid, 1)
        ctx.set(dut.events.valid, 1)
        order, busy = [], 0
        for _ in range(5000):
            over = {
                "command": busy and not ctx.get(dut.busy),
                "exchange": ctx.get(dut.exchange_send),
                "event": ctx.get(dut.events.ready),
            }
            order += [name for name, ends in over.items() if ends]
            busy = ctx.get(dut.busy)
            await host.tick(ctx)
        assert order[:9] == 3 * ["command", "exchange", "event"]
        host.told = host.interrupts

    play(FULL, script)


def test_state_that_a_host_keeps():
    async def script(ctx, host):
        rng = random.Random(11)
        dut = host.dut
        ctx.set(
            dut.health,
            {
                "status": 0xA1,
                "media": 0x52,
                "additional": 0xC0,
                "life": 3,
                "temperature": 40,
                "corrected": 0x8010_0000,
            },
        )
        host.golden.condition = (0xA1, 0x52, 0xC0, 3, 40, 0x8010_0000)
        await host.command(ctx, Opcode.HEALTH)
        for _ in range(12):
            sizes = {"status": 8, "media": 8, "additional": 8, "life": 8, "temperature": 16}
            told = {name: rng.getrandbits(bits) for name, bits in sizes.items()}
            told["corrected"] = rng.getrandbits(32)
            ctx.set(dut.health, told)
            host.golden.condition = (*told.values(),)
            await host.command(ctx, Opcode.HEALTH)
            given = bytes([rng.randrange(16), rng.randrange(256), rng.randrange(101), 0])
            await host.command(ctx, Opcode.SET_ALERTS, given + rng.randbytes(8))
            await host.command(ctx, Opcode.GET_ALERTS)
        assert (await host.command(ctx, Opcode.SET_ALERTS, bytes([16] + [0] * 11)))[0] == 2
        for state, wanted in ((1, 0), (2, 2), (0, 0), (255, 2)):
            assert (await host.command(ctx, Opcode.SET_SHUTDOWN, bytes([state])))[0] == wanted
            await host.command(ctx, Opcode.GET_SHUTDOWN)
        for _ in range(12):
            offset, size = rng.randrange(300), rng.randrange(40)
            head = offset.to_bytes(4, "little")
            await host.command(ctx, Opcode.SET_LSA, head + bytes(4) + rng.randbytes(size))
            await host.command(ctx, Opcode.GET_LSA, head + size.to_bytes(4, "little"))
        await host.command(ctx, Opcode.GET_LSA, bytes([255] * 8))
        for offset, length in ((0, 100), (3, 7), (50, 0), (0, 101), (101, 0), (1 << 31, 1 << 31)):
            given = CEL_UUID + offset.to_bytes(4, "little") + length.to_bytes(4, "little")
            await host.command(ctx, Opcode.GET_LOG, given)
        other = await host.command(ctx, Opcode.GET_LOG, bytes(24))
        assert other[0] == ReturnCode.LOG

    play(FULL, script)


def test_the_uuids_of_features_are_those_of_the_page():
    text = re.search(r"UUIDs `([0-9A-F-]+)nn`", (DOCS / "cxl.md").read_text(encoding="utf-8"))
    for number in (0, 0x12, 0xFF):
        assert bytes.fromhex(text[1].replace("-", "") + f"{number:02x}") == knob_uuid(number)


def test_features():
    def setting(knob, flags=0, offset=0, version=1, data=b"abcd"):
        head = knob_uuid(knob) + flags.to_bytes(4, "little") + offset.to_bytes(2, "little")
        return head + bytes([version]) + bytes(9) + data

    def asking(knob, offset=0, count=4, selector=0):
        return knob_uuid(knob) + bytes([offset, 0, count, 0, selector])

    async def script(ctx, host):
        code = ReturnCode
        for given, wanted in (
            (setting(3), code.SUCCESS),
            (setting(1, data=b"wxyz"), code.SUCCESS),
            (setting(2, data=bytes([0x9E, 0x8D, 0xFF, 0x80])), code.SUCCESS),
            (setting(4), code.UNSUPPORTED),
            (setting(0, flags=1), code.INPUT),
            (setting(0, flags=2), code.TRANSFER_ORDER),
            (setting(0, flags=4), code.TRANSFER_ORDER),
            (setting(0, flags=5), code.INPUT),
            (setting(0, flags=8), code.INPUT),
            (setting(0, version=2), code.FEATURE_VERSION),
            (setting(0, offset=1), code.INPUT),
            (setting(0, data=b"abc"), code.LENGTH),
            (setting(0, data=b"abcde"), code.LENGTH),
        ):
            assert (await host.command(ctx, Opcode.SET_FEATURE, given))[0] == wanted
        assert [ctx.get(k) for k in host.dut.knobs] == host.golden.knobs
        for knob in range(5):
            for more in (
                {},
                {"offset": 2, "count": 2},
                {"offset": 3},
                {"count": 0},
                {"selector": 1},
            ):
                await host.command(ctx, Opcode.GET_FEATURE, asking(knob, **more))
        bad = await host.command(ctx, Opcode.GET_FEATURE, asking(0, selector=2))
        assert bad[0] == code.FEATURE_SELECTOR
        for count, start in ((7, 0), (8, 0), (55, 0), (56, 0), (152, 1), (4096, 2), (512, 4)):
            given = count.to_bytes(4, "little") + start.to_bytes(4, "little")
            await host.command(ctx, Opcode.SUPPORTED_FEATURES, given)

    play(FULL, script)


def test_the_clock_runs_from_when_it_is_set():
    async def script(ctx, host):
        _, answer, _ = await host.command(ctx, Opcode.GET_TIMESTAMP)
        assert answer == bytes(8)
        now = (1 << 64) - (1 << 32) - 100  # all its bits change on the way
        await host.command(ctx, Opcode.SET_TIMESTAMP, line(now))
        host.golden.now = lambda: 0
        ctx.set(host.dut.opcode, Opcode.GET_TIMESTAMP)
        ctx.set(host.dut.length, 0)
        told = []
        for _ in range(2):
            ctx.set(host.dut.ring, 1)
            await host.tick(ctx)
            ctx.set(host.dut.ring, 0)
            await host.tick(ctx, 400)
            told.append(int.from_bytes(await host.payload(ctx, 8), "little"))
        return now, told

    now, (first, second) = play(FULL, script)
    assert now < first < now + 1600 * FULL.period_ns
    # 402 cycles from one to the next, give or take a turn of the sequencer's loop.
    assert abs((second - first) / FULL.period_ns - 402) < 30


def test_both_halves_of_the_clock_are_of_one_moment():
    """Its lower half wraps before, between and after the two reads."""

    async def script(ctx, host):
        dut, between = host.dut, []

        async def asked(opcode, cycles):
            ctx.set(dut.opcode, opcode)
            ctx.set(dut.length, 8 if opcode is Opcode.SET_TIMESTAMP else 0)
            ctx.set(dut.ring, 1)
            await host.tick(ctx)
            ctx.set(dut.ring, 0)
            await host.tick(ctx, cycles)
            assert not ctx.get(dut.busy)

        for before in range(0, 400, 2):
            given = (5 << 32) - before * host.config.period_ns
            ctx.set(dut.access.lane, 0)
            ctx.set(dut.access.write, 1)
            ctx.set(dut.access.strobe, 0xFF)
            ctx.set(dut.access.write_data, given)
            await host.tick(ctx)
            ctx.set(dut.access.write, 0)
            await asked(Opcode.SET_TIMESTAMP, 300)
            await asked(Opcode.GET_TIMESTAMP, 250)
            told = int.from_bytes(await host.payload(ctx, 8), "little")
            between.append((told - given) // host.config.period_ns)
        return between

    between = play(FULL, script)
    assert max(between) - min(between) < 60 and 100 < min(between) < max(between) < 400


def test_features_are_the_data_paths_registers():
    """With `wired` each command asks; what has no place in the register, and what the data path
    refuses, changes nothing."""
    config = FULL.replace(name="wired", knobs=len(KNOBS), wired=True)

    async def script(ctx, host):
        def get(i, selector=0, offset=0, count=4):
            return knob_uuid(i) + bytes([offset, 0, count, 0, selector])

        def put(i, value):
            head = knob_uuid(i) + bytes(6) + bytes([1]) + bytes(9)
            return head + value.to_bytes(4, "little")

        for i, knob in enumerate(KNOBS):
            for selector in (0, 1):
                code, value, _ = await host.command(ctx, Opcode.GET_FEATURE, get(i, selector))
                assert not code and int.from_bytes(value, "little") == knob.default
            value = (1 << knob.bits) - 2
            assert not (await host.command(ctx, Opcode.SET_FEATURE, put(i, value)))[0]
            assert host.registers[i] == value
            if knob.bits < 32:
                code = (await host.command(ctx, Opcode.SET_FEATURE, put(i, 1 << knob.bits)))[0]
                assert code == ReturnCode.INPUT
            await host.command(ctx, Opcode.GET_FEATURE, get(i, offset=1, count=2))
        host.code = 2
        for opcode, given in ((Opcode.GET_FEATURE, get(0)), (Opcode.SET_FEATURE, put(0, 1))):
            assert (await host.command(ctx, opcode, given))[0] == ReturnCode.RETRY
        # How far a sanitize is: while it runs, and never less than before.
        dut, state = host.dut, host.dut.state
        ctx.set(dut.progress, 77)
        await host.tick(ctx, 3)
        assert not ctx.get(state.percent)
        ctx.set(dut.progress, 0)
        assert (await host.command(ctx, Opcode.SANITIZE))[0] == ReturnCode.BACKGROUND
        for percent, wanted in ((0, 0), (1, 1), (64, 64), (63, 64), (64, 64), (99, 99)):
            ctx.set(dut.progress, percent)
            await host.tick(ctx, 3)
            assert (ctx.get(state.percent), ctx.get(state.running)) == (wanted, 1)
        host.codes.append([5, host.tag, 0])
        await host.tick(ctx, 200)
        assert (ctx.get(state.percent), ctx.get(state.running)) == (100, 0)
        return len(host.asked)

    assert play(config, script) == 3 * len(KNOBS) + 2


def test_alerts_show_in_the_health():
    """Thresholds met, missed by one, not enabled; temperatures on both sides of zero."""

    async def script(ctx, host):
        rng, seen = random.Random(12), set()
        for _ in range(40):
            over, under = rng.randrange(60, 90), rng.randrange(-9, 9)
            enabled = rng.getrandbits(4)
            alerts = bytes([15, enabled, 50, 0]) + over.to_bytes(2, "little")
            alerts += under.to_bytes(2, "little", signed=True) + (9).to_bytes(4, "little")
            assert not (await host.command(ctx, Opcode.SET_ALERTS, alerts))[0]
            life = rng.choice((0, 49, 50, 99, 100, 200))
            degrees = rng.choice((-1, 0, 84, 85, over - 1, over, under, under + 1)) & 0xFFFF
            corrected = rng.choice((8, 9, 1 << 20))
            given = {"life": life, "temperature": degrees, "corrected": corrected}
            ctx.set(host.dut.health, given)
            host.golden.condition = (0, 0, 0, life, degrees, corrected)
            _, answer, _ = await host.command(ctx, Opcode.HEALTH)
            seen |= {answer[2] & 3, answer[2] & 12, answer[2] & 16}
        return seen

    assert play(FULL, script) == {0, 1, 2, 4, 8, 16}


def test_health_agrees_with_itself_while_what_it_tells_changes():
    """Temperature and corrected errors pass their thresholds in every cycle, one way or the other:
    whatever an answer tells of them, its status is of these values."""
    host, seen = Host(FULL), set()

    async def bench(ctx):
        dut = host.dut
        await host.ready(ctx)
        enabled = bytes([15, 15, 50, 0]) + (60).to_bytes(2, "little") + bytes(2)
        await host.command(ctx, Opcode.SET_ALERTS, enabled + (9).to_bytes(4, "little"))
        for n in range(24):
            ctx.set(dut.opcode, Opcode.HEALTH)
            ctx.set(dut.length, 0)
            ctx.set(dut.ring, 1)
            await host.tick(ctx)
            ctx.set(dut.ring, 0)
            cycle = n
            while ctx.get(dut.busy):
                above = cycle // (1 + n % 5) % 2
                ctx.set(dut.health.temperature, (59, 61)[above])
                ctx.set(dut.health.corrected, (8, 10)[above])
                await host.tick(ctx)
                cycle += 1
                assert cycle < LIMIT, "health hangs"
            answer = await host.payload(ctx, 18)
            degrees = int.from_bytes(answer[4:6], "little")
            corrected = int.from_bytes(answer[10:14], "little")
            assert answer[2] == 4 * (degrees == 61) + 16 * (corrected == 10)
            seen.update({("degrees", degrees), ("corrected", corrected)})

    simulate(host.dut, bench)
    assert len(seen) == 4


def test_the_command_effects_log_says_what_each_command_does():
    """What a host can see of what is kept, before and behind each command: of what the log says
    that it changes nothing else, and nothing where it says so."""
    looks = {
        Effect.CONFIGURATION: (
            (Opcode.GET_INTERRUPT_POLICY, b""),
            (Opcode.GET_FEATURE, LEGAL[Opcode.GET_FEATURE]),
            (Opcode.GET_ALERTS, b""),
            (Opcode.GET_LSA, LEGAL[Opcode.GET_LSA]),
        ),
        Effect.DATA: ((Opcode.POISON_LIST, LEGAL[Opcode.POISON_LIST]),),
        Effect.POLICY: ((Opcode.GET_SHUTDOWN, b""),),
        Effect.LOG: ((Opcode.GET_EVENTS, bytes(1)),),
    }

    async def script(ctx, host):
        async def seen():
            return {
                effect: [(await host.command(ctx, *each))[:2] for each in some]
                for effect, some in looks.items()
            }

        told = {}
        await host.event(ctx)
        before = await seen()
        # A sanitize last: it runs until the data path says so.
        for opcode in sorted(COMMANDS, key=lambda each: each == Opcode.SANITIZE):
            asked = len(host.asked)
            code, _, _ = await host.command(ctx, opcode, LEGAL.get(opcode, b""))
            assert code in (ReturnCode.SUCCESS, ReturnCode.BACKGROUND)
            after = await seen()
            changed = {effect for effect in looks if after[effect] != before[effect]}
            if [each for each in host.asked[asked:] if each[0] in (INJECT, CLEAR)]:
                changed.add(Effect.DATA)
            if ctx.get(host.dut.state.running):
                changed.add(Effect.BACKGROUND)
            told[opcode], before = changed, after
        return told

    for opcode, changed in play(FULL, script).items():
        says = {effect for effect in Effect if COMMANDS[opcode].effects & effect}
        # Labels are data, too; the clock is not looked at here; what a sanitize erases, by
        # tests/hw/test_cxl_device.py.
        beyond = {
            Opcode.SET_LSA: {Effect.DATA},
            Opcode.SET_TIMESTAMP: {Effect.POLICY},
            Opcode.SANITIZE: {Effect.DATA, Effect.SECURITY},
        }
        assert changed == says - beyond.get(opcode, set()), opcode.name


def test_cycles_are_those_of_the_page():
    """docs/cxl.md has a row for each command: its cycles from doorbell on to off, for LEGAL."""

    async def script(ctx, host):
        return {op: (await host.command(ctx, op, LEGAL.get(op, b"")))[2] for op in COMMANDS}

    page = (DOCS / "cxl.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([A-Z][A-Z_0-9]*)` \|.* (\d+) \|$", page, re.MULTILINE)
    assert {Opcode[name]: int(cycles) for name, cycles in rows} == play(named_cxlio("full"), script)


def test_tables_are_at_fault_only_where_they_are_read(monkeypatch):
    """A bit of each of their words is wrong: what comes from elsewhere tells nothing of it."""
    dut, coded, tables = CommandEngine(config=SMALL), ConstantMemory._coded, image(SMALL).tables

    def spoiled(self, value):
        return coded(self, value) ^ (self.content == list(tables))

    monkeypatch.setattr(ConstantMemory, "_coded", spoiled)

    async def bench(ctx):
        async def told(cycles):
            count = 0
            for _ in range(cycles):
                await ctx.tick()
                count += ctx.get(dut.fault.corrected)
            return count

        while not ctx.get(dut.state.ready):
            await ctx.tick()
        assert not await told(300)
        ctx.set(dut.opcode, Opcode.SUPPORTED_LOGS)
        ctx.set(dut.ring, 1)
        await ctx.tick()
        ctx.set(dut.ring, 0)
        assert await told(1000) and not ctx.get(dut.busy)
        assert not await told(300)

    simulation.simulate(dut, bench)


def test_exchanges_of_data_objects():
    """Each answer word for word: types, entries of the CDAT, and objects that have no answer."""
    rng = random.Random(13)

    async def script(ctx, host):
        dut, golden = host.dut, Exchange(host.config)
        entry, found = 2 << 16 | 0x1E98, 0
        objects = [(1, 3, index) for index in (0, 1, 2, 255, 256)]
        objects += [(entry, 3, handle << 16) for handle in range(len(golden.entries) + 1)]
        objects += [(entry, 3, 1), (entry, 3, 1 << 31), (entry, 3, 256), (entry ^ 1 << 31, 3, 0)]
        objects += [(1, 4, 0), (1, 3), (1, 3, 0, 0), (1, 3 | 1 << 18, 0), (1, 3, 0, *[0] * 4)]
        for words in objects:
            golden.abort()
            golden.given = list(words)
            golden.go()
            header, length, word = (*words, 0)[:3]
            fields = {"header": header, "length": length, "word": word, "count": len(words)}
            ctx.set(dut.exchange.p, fields)
            ctx.set(dut.exchange.valid, 1)
            told, sends = [], 0
            for _ in range(LIMIT):
                if ctx.get(dut.exchange_word.valid):
                    told.append(ctx.get(dut.exchange_word.p))
                sends = ctx.get(dut.exchange_send)
                await host.tick(ctx)
                if sends:
                    break
            ctx.set(dut.exchange.valid, 0)
            ctx.set(dut.exchange.p, dict.fromkeys(fields, 7))
            assert sends and told == golden.answer, words
            found += bool(told)
            for _ in range(rng.randrange(40)):
                await host.tick(ctx)
                assert not ctx.get(dut.exchange_word.valid) and not ctx.get(dut.exchange_send)
        return found, len(golden.entries)

    found, entries = play(FULL, script)
    assert found == 5 + entries


class Flips:
    """An engine on Amaranth's simulator, and what it tells of its memories."""

    def __init__(self, config):
        self.dut = CommandEngine(config=config)
        self.reset = Signal()
        top, self.memories = opened(self.dut)
        self.top = ResetInserter(self.reset)(top)
        self.told, self.requested = Counter(), 0

    def rows(self, name):
        (memory,) = (memory for path, memory in self.memories.items() if name in path)
        return memory

    async def tick(self, ctx, cycles=1):
        dut = self.dut
        for _ in range(cycles):
            self.requested += ctx.get(dut.requests.valid)
            await ctx.tick()
            seen = {**fields(ctx, dut.fault), "host": ctx.get(dut.host_fault.as_value())}
            self.told.update(name for name, told in seen.items() if told)

    async def ready(self, ctx):
        while not ctx.get(self.dut.state.ready):
            await self.tick(ctx)

    async def command(self, ctx, opcode):
        """Return code, the length that the answer puts there, what was told meanwhile."""
        dut, length = self.dut, None
        self.told.clear()
        ctx.set(dut.opcode, opcode)
        ctx.set(dut.ring, 1)
        await self.tick(ctx)
        ctx.set(dut.ring, 0)
        for _ in range(2000):
            if ctx.get(dut.length_load):
                length = ctx.get(dut.out_length)
            if not ctx.get(dut.busy):
                break
            await self.tick(ctx)
        assert not ctx.get(dut.busy), f"{opcode:#x} hangs"
        await self.tick(ctx)
        return ctx.get(dut.state.code), length, set(self.told)


def test_a_flipped_bit_changes_nothing_and_is_told_where_it_is_used():
    """In store, payload and program: of what is read, of what is written in part, nothing else."""
    flips = Flips(TINY)
    dut = flips.dut

    async def bench(ctx):
        await flips.ready(ctx)
        await flips.tick(ctx, 100)
        assert not flips.told
        store, payload = flips.rows("store"), flips.rows("payload")
        at = (image(TINY).store("shutdown") - STORE) // 4
        flip(ctx, store, at, 3)
        flip(ctx, payload, 0, 3)
        await flips.tick(ctx, 100)
        assert not flips.told
        # The host reads; the engine reads what it has stored, and writes a byte of the payload.
        ctx.set(dut.access.read, 1)
        await flips.tick(ctx)
        ctx.set(dut.access.read, 0)
        await flips.tick(ctx, 2)
        assert set(flips.told) == {"corrected", "host"}
        assert await flips.command(ctx, Opcode.FIRMWARE_INFO) == (0, 0x50, set())
        assert await flips.command(ctx, Opcode.GET_SHUTDOWN) == (0, 1, {"corrected"})
        assert await flips.command(ctx, Opcode.GET_TIMESTAMP) == (0, 8, set())
        flip(ctx, payload, 0, 7)
        assert await flips.command(ctx, Opcode.GET_SHUTDOWN) == (0, 1, {"corrected"})
        # A byte of the labels, which is all of their word that changes.
        flip(ctx, store, (image(TINY).store("lsa") - STORE) // 4, 3)
        ctx.set(dut.access.write, 1)
        ctx.set(dut.access.strobe, 0xFF)
        for lane, value in ((0, 1), (1, 0x55)):
            ctx.set(dut.access.lane, lane)
            ctx.set(dut.access.write_data, value)
            await flips.tick(ctx)
        ctx.set(dut.access.write, 0)
        ctx.set(dut.length, 9)
        assert await flips.command(ctx, Opcode.SET_LSA) == (0, 0, {"corrected"})
        ctx.set(dut.access.lane, 0)
        ctx.set(dut.length, 0)
        flip(ctx, payload, 0, 3, 9)
        flips.told.clear()
        ctx.set(dut.access.read, 1)
        await flips.tick(ctx)
        ctx.set(dut.access.read, 0)
        await flips.tick(ctx, 2)
        assert set(flips.told) == {"poisoned", "host"}
        assert (await flips.command(ctx, Opcode.FIRMWARE_INFO))[:2] == (0, 0x50)

    simulation.simulate(flips.top, bench)


def test_what_is_beyond_repair_halts_it_until_reset():
    """Commands end with an internal error, a sanitize is over, events and exchanges are taken and
    dropped, and no request leaves."""
    flips, im = Flips(TINY), image(TINY)
    dut, state = flips.dut, flips.dut.state

    async def halted(ctx, opcode, memory, row):
        await flips.ready(ctx)
        flips.requested = 0
        assert await flips.command(ctx, Opcode.SANITIZE) == (ReturnCode.BACKGROUND, 0, set())
        assert ctx.get(state.running) and flips.requested == 1
        flip(ctx, memory, row, 3, 9)
        await flips.tick(ctx, 50)
        assert not flips.told
        ctx.set(dut.length, opcode == Opcode.SET_SHUTDOWN)
        assert await flips.command(ctx, opcode) == (ReturnCode.INTERNAL, 0, {"fatal"})
        assert not ctx.get(state.running)
        assert ctx.get(state.background_code) == ReturnCode.INTERNAL
        ctx.set(dut.length, 0)
        for each in (Opcode.IDENTIFY, Opcode.INJECT_POISON):
            assert (await flips.command(ctx, each))[:2] == (ReturnCode.INTERNAL, 0)
        ctx.set(dut.events.valid, 1)
        assert ctx.get(dut.events.ready) and not ctx.get(dut.exchange_send)
        ctx.set(dut.exchange.valid, 1)
        assert ctx.get(dut.exchange_send)
        await flips.tick(ctx, 50)
        assert ctx.get(dut.events.ready) and not ctx.get(dut.length_load)
        assert flips.requested == 1 and not ctx.get(dut.interrupt)
        for port in (dut.events, dut.exchange):
            ctx.set(port.valid, 0)
        flip(ctx, memory, row, 3, 9)
        await flips.tick(ctx)

    async def bench(ctx):
        ctx.set(dut.requests.ready, 1)
        logs, shutdown = im.table("logs") - TABLES, im.store("shutdown") - STORE
        for opcode, name, at in (
            (Opcode.SUPPORTED_LOGS, "tables", logs),
            (Opcode.GET_SHUTDOWN, "store", shutdown),
            (Opcode.SET_SHUTDOWN, "payload", 0),
        ):
            await halted(ctx, opcode, flips.rows(name), at // 4)
            ctx.set(flips.reset, 1)
            await flips.tick(ctx)
            ctx.set(flips.reset, 0)
            flips.told.clear()
            await flips.ready(ctx)
            assert await flips.command(ctx, Opcode.GET_SHUTDOWN) == (0, 1, set())

    simulation.simulate(flips.top, bench)


def test_flipped_bits_of_the_program_are_told_as_it_runs():
    """One in each word changes nothing; two halt it before the next word."""
    flips = Flips(TINY)
    dut = flips.dut

    async def bench(ctx):
        await flips.ready(ctx)
        assert not flips.told
        program = flips.rows("sequencer.rom")
        for row in range(program.depth):
            flip(ctx, program, row, 3)
        await flips.tick(ctx, 20)
        assert set(flips.told) == {"corrected"}
        assert await flips.command(ctx, Opcode.GET_SHUTDOWN) == (0, 1, {"corrected"})
        for row in range(program.depth):
            flip(ctx, program, row, 9)
        flips.told.clear()
        await flips.tick(ctx, 10)
        assert flips.told["fatal"]
        assert (await flips.command(ctx, Opcode.GET_SHUTDOWN))[:2] == (ReturnCode.INTERNAL, 0)
        ctx.set(flips.reset, 1)
        await flips.tick(ctx)
        ctx.set(flips.reset, 0)
        flips.told.clear()
        await flips.tick(ctx, 20)
        assert set(flips.told) == {"fatal"} and not ctx.get(dut.state.ready)

    simulation.simulate(flips.top, bench)


def test_latency_and_interval():
    write = [
        {"access.lane": i, "access.write": 1, "access.strobe": 255, "access.write_data": i}
        for i in range(4)
    ]
    dut = CommandEngine(config=FULL)
    seen = changes(dut, "access.read_data", [{"access.lane": i} for i in (1, 2, 3)], before=write)
    assert seen == [dut.LATENCY + i * dut.INTERVAL for i in range(3)]

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What no driver does, on the compiled registers: accesses of every size at every place, writes
while the mailbox is busy, attempts to move what is committed or locked."""

import random

import pytest

from kelp_golden.cxlio.device import Device
from kelp_rtl.cxlio.model import RegisterModel
from kelp_spec.cxlio.commands import COMMANDS, Opcode, ReturnCode
from kelp_spec.cxlio.component import component_registers
from kelp_spec.cxlio.config import named_cxlio
from kelp_spec.cxlio.device import device_registers
from kelp_spec.cxlio.pci import configuration_space
from kelp_spec.cxlio.pmu import pmu_registers

FULL = named_cxlio("full")
UNIT = 1 << 28
BLOCKS = {
    "configuration": configuration_space(FULL),
    "component": component_registers(FULL),
    "device": device_registers(FULL),
    "pmu": pmu_registers(FULL),
}
#: The doorbell, and what the golden model has no clock for: counters, of which one with `invert`
#: counts without an event.
LEFT_OUT = {("device", lane) for lane in range(0x1000, 0x1020, 8)}
LEFT_OUT |= {("pmu", lane) for lane in (0x10, *range(0xC00, 0xE00, 8))}
DECODER, CONTROL = 0x1120, 0x10


@pytest.fixture(scope="module")
def compiled():
    return RegisterModel(FULL)


@pytest.fixture
def model(compiled):
    compiled.reset()
    compiled.messages.clear()
    compiled.requests.clear()
    compiled.write("configuration", 4, 2, 6)
    return compiled


@pytest.fixture
def golden():
    device = Device(FULL)
    device.write("configuration", 4, 2, 6)
    return device


def lanes(space):
    return sorted({r.offset & ~7 for r in BLOCKS[space].registers} | {0, 0xFF8})


def accesses():
    """Every size at every byte of every lane that has a register, as far as it stays in it."""
    for space in BLOCKS:
        for lane in lanes(space):
            if (space, lane) not in LEFT_OUT:
                for size in (1, 2, 4, 8):
                    for at in range(lane, lane + 9 - size):
                        yield space, at, size


@pytest.mark.timeout(900)
def test_reads_and_writes_of_every_size_at_every_place(model, golden):
    rng, seen = random.Random(9), 0
    for space, at, size in accesses():
        value = rng.getrandbits(8 * size)
        if space == "configuration" and at <= 4 < at + size:
            continue  # memory enable: below
        assert model.write(space, at, size, value) == golden.write(space, at, size, value)
        lane = at & ~7
        model.clock(40)  # a decoder that is asked to commit has been judged
        got, wanted = model.read(space, lane, 8), golden.read(space, lane, 8)
        assert got == wanted, f"{space} {at:#x}, {size} bytes: {got[0]:#x}, not {wanted[0]:#x}"
        assert model.read(space, at, size) == golden.read(space, at, size)
        seen += 1
    assert seen > 2100
    assert not model.messages and not model.requests


def test_without_memory_enable_nothing_is_written(model, golden):
    for device in (model, golden):
        device.write("configuration", 4, 2, 0)
    for space, at, size in accesses():
        if space != "configuration" and size in (1, 8):
            assert model.write(space, at, size, (1 << 8 * size) - 1) == 2
            assert model.read(space, at, size) == ((1 << 8 * size) - 1, 2)
    for device in (model, golden):
        device.write("configuration", 4, 2, 6)
    for space in ("component", "device", "pmu"):
        for lane in lanes(space):
            if (space, lane) not in LEFT_OUT:
                assert model.read(space, lane, 8) == golden.read(space, lane, 8)


def test_a_busy_mailbox_takes_nothing(model):
    rng = random.Random(3)
    expected = model.command(Opcode.IDENTIFY)
    for _ in range(20):
        model.write("device", 0x1008, 8, int(Opcode.IDENTIFY))
        model.write("device", 0x1004, 4, 1)
        for _ in range(6):
            at = rng.choice((0x1004, 0x1008, 0x100C, 0x1020, 0x1038))
            model.write("device", at, 4, rng.getrandbits(32) | 1)
            assert model.read("device", 0x1004, 4)[0] & 1, "too quick to be caught busy"
            assert model.read("device", 0x1020, 8)[0] == 0
        while model.read("device", 0x1004, 4)[0] & 1:
            model.clock(10)
        status, answer = model.read("device", 0x1010, 8)[0] >> 32 & 0xFFFF, b""
        for at in range(0x1020, 0x1020 + 0x48, 8):
            answer += model.read("device", at, 8)[0].to_bytes(8, "little")
        assert (status, answer[:0x43]) == expected


def test_every_wrong_length_and_opcode_is_told(model):
    sized = [c for op, c in COMMANDS.items() if op in FULL.commands and c.least == c.most]
    assert len(sized) > 12
    for op, command in COMMANDS.items():
        if op not in FULL.commands:
            continue
        wrong = {command.least - 1, min(command.most, FULL.payload) + 1, FULL.payload + 1, 0x1FFFFF}
        for length in {n for n in wrong if n >= 0}:
            model.write("device", 0x1008, 8, int(op) | length << 16)
            model.write("device", 0x1004, 4, 1)
            while model.read("device", 0x1004, 4)[0] & 1:
                model.clock(10)
            code = model.read("device", 0x1010, 8)[0] >> 32 & 0xFFFF
            assert code == ReturnCode.LENGTH, f"{op.name} of {length} bytes: {code:#x}"
            assert model.read("device", 0x1008, 8)[0] >> 16 == 0
    for op in (0, 0x0104, 0x4303, 0x4801, 0xFFFF):
        assert model.command(op) == (ReturnCode.UNSUPPORTED, b"")
    assert not model.requests


def commit(model, index, base, size, control=0x1200, skip=0):
    at = DECODER + 0x20 * index
    model.write("component", at + CONTROL, 4, 0x1000)
    for place, value in ((4, base >> 32), (0, base), (12, size >> 32), (8, size)):
        model.write("component", at + place, 4, value & 0xFFFFFFFF)
    for place, value in ((0x14, skip), (0x18, skip >> 32)):
        model.write("component", at + place, 4, value & 0xFFFFFFFF)
    model.write("component", at + CONTROL, 4, control)
    model.clock(10)
    return model.read("component", at + CONTROL, 4)[0] >> 10 & 3


def test_a_locked_decoder_stays_whatever_is_written(model):
    rng = random.Random(5)
    model.write("component", 0x1114, 4, 2)
    assert commit(model, 0, 3 * UNIT, UNIT, 0x1300) == 1
    shown = [model.read("component", DECODER + at, 4)[0] for at in range(0, 0x20, 4)]
    for _ in range(400):
        size = rng.choice((1, 2, 4, 8))
        at = DECODER + rng.randrange(0x20)
        if at % 8 + size > 8:
            continue
        model.write(
            "component", at, size, rng.choice((0, (1 << 8 * size) - 1, rng.getrandbits(64)))
        )
        if rng.random() < 0.1:
            assert model.decode(3 * UNIT) == 0 and model.decode(4 * UNIT) is None
    # The error bit's writes are none of them: all reads as it did.
    assert [model.read("component", DECODER + at, 4)[0] for at in range(0, 0x20, 4)] == shown
    # Nor may another lie over it, or take the memory that it has.
    assert commit(model, 1, 3 * UNIT, UNIT) == 2 and commit(model, 1, 4 * UNIT, UNIT) == 2
    model.reset()
    model.write("configuration", 4, 2, 6)
    assert model.read("component", DECODER + CONTROL, 4)[0] >> 8 & 7 == 0


@pytest.mark.parametrize(
    "size, control",
    [(0, 0x1200), (2 * UNIT, 0x1200), (UNIT, 0x1210), (1 << 52, 0x1200), (UNIT, 0x1280)],
    ids=["nothing", "more than there is", "no whole way", "past the end", "three ways"],
)
def test_a_size_that_is_none_is_refused(model, size, control):
    assert commit(model, 0, (1 << 64) - UNIT if size > 1 << 40 else UNIT, size, control) == 2
    model.write("component", 0x1114, 4, 2)
    assert model.decode(UNIT) is None
    assert commit(model, 0, UNIT, UNIT) == 1 and model.decode(UNIT) == 0


def test_two_registers_of_one_access_are_written_at_once(model, golden):
    """Control and skip of a decoder: it is judged with the skip of the same access, and what was
    frozen before the access stays as it was."""
    for device in (model, golden):
        device.write("component", DECODER + 8, 4, UNIT)

    def write(control, skip):
        for device in (model, golden):
            device.write("component", DECODER + CONTROL, 8, skip << 32 | control)
        model.clock(10)
        got = model.read("component", DECODER + CONTROL, 8)[0]
        assert got == golden.read("component", DECODER + CONTROL, 8)[0]
        return got >> 32, got >> 10 & 3

    assert write(0x1200, UNIT) == (UNIT, 2)  # no memory is left behind the skip
    assert write(0x1200, 0) == (0, 1)
    assert write(0x1000, UNIT) == (0, 0)
    assert write(0x1000, UNIT) == (UNIT, 0)


def test_the_dvsec_lock_holds_base_and_control(model):
    model.write("configuration", 0x10C, 2, 4)
    model.write("configuration", 0x114, 1, 1)
    shown = [model.read("configuration", at, 4)[0] for at in (0x10C, 0x114, 0x120, 0x124)]
    for at in (0x10C, 0x114, 0x120, 0x124):
        for value in (0, 0xFFFFFFFF, 0xA5A5A5A5):
            model.write("configuration", at, 4, value)
    assert [model.read("configuration", at, 4)[0] for at in (0x10C, 0x114, 0x120, 0x124)] == shown

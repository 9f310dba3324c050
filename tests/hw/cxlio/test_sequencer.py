# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The sequencer: every operation against Python, and how long each takes."""

import operator
import random

import pytest
from simulation import simulate

from kelp_hw.cxlio.sequencer import Sequencer
from kelp_hw.firmware.program import Program, Reg

WORD = (1 << 32) - 1
A, B, C = Reg.A, Reg.B, Reg.C


def stores(program, words=(), cycles=4000):
    """What the program stores, as (address, value); loads give `words` by address. And the cycles
    in which the bus was used."""
    dut, seen, when = Sequencer(program=program.words()), [], []
    held = dict(words)

    async def bench(ctx):
        asked = None
        for cycle in range(cycles):
            read, address = ctx.get(dut.read), ctx.get(dut.address) & ~3
            assert asked in (None, address), "the address goes while it is answered"
            asked = address if read else None
            write = ctx.get(dut.write)
            if write:
                value, old = ctx.get(dut.write_data), held.get(address, 0)
                mask = sum(0xFF << 8 * i for i in range(4) if write >> i & 1)
                held[address] = old & ~mask | value & mask
                seen.append((address, held[address]))
            if read or write:
                when.append(cycle)
            await ctx.tick()
            if read:
                ctx.set(dut.read_data, held.get(address, 0))
            if seen and seen[-1][0] == 0x7FC:
                return

    simulate(dut, bench)
    return seen, when


def ended(p):
    p.sw(Reg.ZERO, Reg.ZERO, 0x7FC)
    p.label("end")
    p.jmp("end")
    return p


def test_arithmetic():
    rng = random.Random(7)
    for _ in range(12):
        a, b = rng.getrandbits(23), rng.getrandbits(23)
        imm, bits = rng.randrange(-(1 << 14), 1 << 14), rng.randrange(32)
        p = Program()
        p.li(A, a)
        p.li(B, b)
        p.shl(A, A, 9)
        a = a << 9 & WORD
        expected = []
        for method, value in (
            (p.add, a + b),
            (p.sub, a - b),
            (p.and_, a & b),
            (p.or_, a | b),
            (p.xor, a ^ b),
        ):
            method(C, A, B)
            p.sw(C, Reg.ZERO, 8)
            expected.append(value & WORD)
        for method, operand, value in (
            (p.addi, imm, a + imm),
            (p.andi, imm & 0x7FFF, a & imm & 0x7FFF),
            (p.shl, bits, a << bits),
            (p.shr, bits, a >> bits),
        ):
            method(C, A, operand)
            p.sw(C, Reg.ZERO, 8)
            expected.append(value & WORD)
        assert [value for _, value in stores(ended(p))[0]] == [*expected, 0]


def test_loads_and_stores_of_every_size():
    p = Program()
    p.li(A, 0x100)
    for at in range(4):
        p.lb(B, A, at)
        p.sw(B, Reg.ZERO, 8)
    for at in (0, 2):
        p.lh(B, A, at)
        p.sw(B, Reg.ZERO, 8)
    p.lw(B, A)
    for at in range(4):
        p.sb(B, A, 8 + at)
    p.sh(B, A, 14)
    p.sw(B, A, -4)
    seen, _ = stores(ended(p), {0x100: 0x44332211})
    loaded = [value for address, value in seen if address == 8]
    assert loaded == [0x11, 0x22, 0x33, 0x44, 0x2211, 0x4433]
    assert [value for address, value in seen if address == 0x108][-1] == 0x11111111
    assert (0x10C, 0x22110000) in seen and (0xFC, 0x44332211) in seen


def test_branches_calls_and_the_zero_register():
    p = Program()
    p.li(Reg.ZERO, 5)
    p.li(A, 3)
    p.li(B, 7)
    for name, taken in (("beq", 0), ("bne", 1), ("bltu", 1), ("bgeu", 0)):
        p.li(C, 1)
        getattr(p, name)(A, B, name)
        p.li(C, 0)
        p.label(name)
        p.sw(C, Reg.ZERO, 8 + taken * 4)
    p.call("routine")
    p.sw(C, Reg.ZERO, 0x20)
    ended(p)
    p.label("routine")
    p.li(C, 9)
    p.jr()
    seen, _ = stores(p)
    assert seen == [(8, 0), (12, 1), (12, 1), (8, 0), (0x20, 9), (0x7FC, 0)]


def test_branches_of_equal_greater_and_large_values():
    compare = {"beq": operator.eq, "bne": operator.ne, "bltu": operator.lt, "bgeu": operator.ge}
    pairs = [(5, 5), (7, 3), (3, 7), (0, 0), (0, WORD), (WORD, 0), (1 << 31, (1 << 31) - 1)]
    p, expected = Program(), []
    for case, (a, b) in enumerate(pairs):
        for register, value in ((A, a), (B, b)):
            p.li(register, value >> 9)
            p.shl(register, register, 9)
            p.li(C, value & 511)
            p.or_(register, register, C)
        for name, holds in compare.items():
            p.li(C, 1)
            getattr(p, name)(A, B, f"{name}{case}")
            p.li(C, 0)
            p.label(f"{name}{case}")
            p.sw(C, Reg.ZERO, 8)
            expected.append(int(holds(a, b)))
    assert [value for address, value in stores(ended(p))[0] if address == 8] == expected


def test_pace():
    p = Program()
    for _ in range(3):
        p.sw(Reg.ZERO, Reg.ZERO, 8)
    p.li(A, 1)
    p.sw(Reg.ZERO, Reg.ZERO, 8)
    p.lw(A, Reg.ZERO, 8)
    p.lw(A, Reg.ZERO, 8)
    p.jmp("there")
    p.label("there")
    p.bne(Reg.ZERO, Reg.ZERO, "there")
    _, when = stores(ended(p))
    core = Sequencer
    assert when[1] - when[0] == when[2] - when[1] == core.STORE_INTERVAL
    assert when[3] - when[2] == core.STORE_INTERVAL + core.INTERVAL
    assert when[5] - when[4] == core.LOAD_INTERVAL
    untaken = core.INTERVAL
    assert when[6] - when[5] == core.LOAD_INTERVAL + core.JUMP_INTERVAL + untaken


def test_a_program_without_an_end_is_an_assertion():
    p = Program()
    p.sw(A, Reg.ZERO, 8)
    with pytest.raises(AssertionError, match="the program ends before this"):
        stores(p)


def loop():
    p = Program()
    p.li(A, 5)
    p.label("loop")
    p.sw(A, Reg.ZERO, 8)
    p.jmp("loop")
    return p


def halts(bits, spoil, cycles=200, program=None, harms=True):
    """What a loop of stores stores before `bits` of a row are turned over, and after."""
    p = program or loop()
    dut, seen, corrected = Sequencer(program=p.words(), protect=True), [[], []], [0, 0]

    async def bench(ctx):
        for cycle in range(2 * cycles):
            if cycle == cycles:
                row = spoil(dut)
                ctx.set(row, ctx.get(row) ^ sum(1 << bit for bit in bits))
            corrected[cycle >= cycles] += ctx.get(dut.fault.corrected)
            if ctx.get(dut.write):
                seen[cycle >= cycles].append(ctx.get(dut.write_data))
            await ctx.tick()
        assert ctx.get(dut.halted) == (harms and len(bits) == 2)
        assert not corrected[0] and (corrected[1] > 0) == (harms and len(bits) == 1)

    simulate(dut, bench)
    return seen


@pytest.mark.parametrize("bits", [[3], [3, 7]])
@pytest.mark.parametrize("register", [A + 1, 15, Reg.ZERO])
def test_a_register_that_is_not_used_may_have_flipped_bits(register, bits):
    """One that a constant seems to name, and the row of the zero register."""
    p = Program()
    p.label("loop")
    p.li(A, (1 << 23) - 1)
    p.sw(A, Reg.ZERO, 8)
    p.jmp("loop")
    before, after = halts(bits, lambda dut: dut.register_rows.data[register], 200, p, False)
    assert set(before) == set(after) == {(1 << 23) - 1} and len(after) > 5


@pytest.mark.parametrize(
    "spoil",
    [lambda dut: dut.rom.memory_rows.data[1], lambda dut: dut.register_rows.data[A]],
    ids=["instruction", "register"],
)
def test_what_is_beyond_repair_is_not_carried_out(spoil):
    before, after = halts([3], spoil)
    assert set(before) == set(after) == {5}
    before, after = halts([3, 7], spoil)
    assert set(before) == {5} and len(after) <= 1 and set(after) <= {5}


def test_stop_halts():
    p = Program()
    p.label("loop")
    p.lw(A, Reg.ZERO, 8)
    p.sw(A, Reg.ZERO, 12)
    p.jmp("loop")
    dut, seen = Sequencer(program=p.words()), []

    async def bench(ctx):
        for cycle in range(100):
            # The word that was loaded is beyond repair.
            was_read = ctx.get(dut.read)
            seen.append(ctx.get(dut.write))
            await ctx.tick()
            ctx.set(dut.stop, was_read and cycle > 40)

    simulate(dut, bench)
    assert any(seen[:40]) and not any(seen[60:])


@pytest.mark.parametrize(
    "wrong",
    [
        lambda p: p.jmp("nowhere"),
        lambda p: p.addi(A, A, 1 << 14),
        lambda p: p.lw(A, A, 1 << 14),
        lambda p: p.li(A, 1 << 23),
        lambda p: p.andi(A, A, -1),
        lambda p: (p.label("a"), p.label("a")),
    ],
)
def test_what_does_not_fit_is_refused(wrong):
    p = Program()
    with pytest.raises(ValueError):
        wrong(p)
        p.words()


def test_an_empty_program_is_refused():
    with pytest.raises(ValueError, match="legal"):
        Sequencer(program=[])

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The small core that carries out mailbox commands. An instruction in 3 cycles, a store in 4, a
load in 5."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out

from .program import IMMEDIATE_BITS, PC_BITS, Op

__all__ = ["ADDRESS_BITS", "Sequencer"]

ADDRESS_BITS = 15

#: An instruction's fields, lowest first.
_INSTRUCTION = data.StructLayout({"imm": IMMEDIATE_BITS, "rb": 4, "ra": 4, "rd": 4, "op": 5})


class Sequencer(wiring.Component):
    """Fifteen registers of 32 bits, the instructions of `program` from address 0 on, one bus.

    Halves and bytes are at their own alignment; an address that is not aligned to its access is
    rounded down. An operation that is none does nothing. Reset begins at 0.

    Interval: an instruction each `INTERVAL` cycles, `STORE_INTERVAL` or `LOAD_INTERVAL`. Latency:
    from a load's address to `read_data`, `LATENCY` cycle.

    Parameters
    ----------
    program : list of int
        Instructions, as kelp_hw.cxlio.program makes them.

    Members
    -------
    address : out
        Of bytes.
    write : out
        Bytes of the word at `address` that are written.
    write_data : out
    read : out
        The word at `address` is read.
    read_data : in
    """

    LATENCY = 1
    INTERVAL = 3
    STORE_INTERVAL = 4
    LOAD_INTERVAL = 5

    def __init__(self, *, program):
        self.program = list(program)
        if not self.program:
            raise ValueError("program = [] is refused; legal: an instruction at least")
        super().__init__(
            {
                "address": Out(ADDRESS_BITS),
                "write": Out(4),
                "write_data": Out(32),
                "read": Out(1),
                "read_data": In(32),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.rom = rom = memory.Memory(shape=32, depth=len(self.program), init=self.program)
        m.submodules.registers = file = memory.Memory(shape=32, depth=16, init=())
        fetch = rom.read_port()
        read_a, read_b = file.read_port(domain="comb"), file.read_port(domain="comb")
        keep = file.write_port()
        pc, following = Signal(PC_BITS), Signal(PC_BITS)
        word = data.View(_INSTRUCTION, fetch.data)
        op, rd = Signal(Op), Signal(4)
        a, b, imm, constant = Signal(32), Signal(32), Signal(IMMEDIATE_BITS), Signal(23)
        result, at = Signal(32), Signal(ADDRESS_BITS)
        m.d.comb += [
            fetch.addr.eq(pc),
            fetch.en.eq(1),
            read_a.addr.eq(word.ra),
            read_b.addr.eq(word.rb),
            keep.addr.eq(rd),
            keep.data.eq(result),
            following.eq(pc + 1),
        ]
        word_of = op, a, b, imm, constant
        with m.FSM():
            with m.State("FETCH"):
                m.next = "DECODE"
            with m.State("DECODE"):
                m.d.sync += [
                    op.eq(word.op),
                    rd.eq(word.rd),
                    a.eq(Mux(word.ra == 0, 0, read_a.data)),
                    b.eq(Mux(word.rb == 0, 0, read_b.data)),
                    imm.eq(word.imm),
                    constant.eq(fetch.data[:23]),
                ]
                m.next = "EXECUTE"
            with m.State("EXECUTE"):
                m.d.sync += [pc.eq(following), at.eq(a + imm.as_signed())]
                m.next = "FETCH"
                self._execute(m, word_of, pc, following, result, keep)
            with m.State("STORE"):
                m.d.comb += self._lanes(op, at, b)
                m.next = "FETCH"
            with m.State("LOAD"):
                m.d.comb += [self.address.eq(at), self.read.eq(1)]
                m.next = "LOADED"
            with m.State("LOADED"):
                m.d.comb += [
                    self.address.eq(at),
                    keep.en.eq(rd != 0),
                    result.eq(self._taken(op, at)),
                ]
                m.next = "FETCH"
        return m

    def _execute(self, m, word_of, pc, following, result, keep):
        op, a, b, imm, constant = word_of
        target, kept = imm[:PC_BITS], Signal()
        m.d.comb += keep.en.eq(kept & (keep.addr != 0))
        results = {
            Op.LI: constant,
            Op.ADD: a + b,
            Op.SUB: a - b,
            Op.AND: a & b,
            Op.OR: a | b,
            Op.XOR: a ^ b,
            Op.ADDI: a + imm.as_signed(),
            Op.ANDI: a & imm,
            Op.SHL: (a << imm[:5])[:32],
            Op.SHR: a >> imm[:5],
        }
        taken = {
            Op.BEQ: a == b,
            Op.BNE: a != b,
            Op.BLTU: a < b,
            Op.BGEU: a >= b,
        }
        with m.Switch(op):
            for which, value in results.items():
                with m.Case(which):
                    m.d.comb += [result.eq(value), kept.eq(1)]
            for which, condition in taken.items():
                with m.Case(which), m.If(condition):
                    m.d.sync += pc.eq(target)
            with m.Case(Op.CALL):
                m.d.comb += [result.eq(following), kept.eq(1)]
                m.d.sync += pc.eq(target)
            with m.Case(Op.JR):
                m.d.sync += pc.eq(a)
            with m.Case(Op.LW, Op.LH, Op.LB):
                m.next = "LOAD"
            with m.Case(Op.SW, Op.SH, Op.SB):
                m.next = "STORE"

    def _lanes(self, op, at, b):
        """A store: the value on every lane that could be meant, and which are."""
        half, byte = op == Op.SH, op == Op.SB
        return [
            self.address.eq(at),
            self.write.eq(
                Mux(byte, (1 << at[:2])[:4], Mux(half, Mux(at[1], 0b1100, 0b0011), 0b1111))
            ),
            self.write_data.eq(Mux(byte, b[:8].replicate(4), Mux(half, b[:16].replicate(2), b))),
        ]

    def _taken(self, op, at):
        word = self.read_data
        half = Mux(at[1], word[16:], word[:16])
        byte = Mux(at[0], half[8:], half[:8])
        return Mux(op == Op.LB, Cat(byte), Mux(op == Op.LH, half, word))

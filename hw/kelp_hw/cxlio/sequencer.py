# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The small core that carries out mailbox commands. An instruction in 3 cycles, a store or a
jump in 4, a load in 6."""

from __future__ import annotations

from amaranth.hdl import Array, Assert, Cat, Const, Module, Mux, Signal
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out

from ..firmware.program import IMMEDIATE_BITS, PC_BITS, Op
from ..lib.constant_memory import ConstantMemory
from ..lib.protected import CheckedWord, Fault

__all__ = ["ADDRESS_BITS", "Sequencer"]

ADDRESS_BITS = 15

#: An instruction's fields, lowest first.
_INSTRUCTION = data.StructLayout({"imm": IMMEDIATE_BITS, "rb": 4, "ra": 4, "rd": 4, "op": 5})

_LOADS, _STORES = {Op.LW, Op.LH, Op.LB}, {Op.SW, Op.SH, Op.SB}
_USES_B = {Op.ADD, Op.SUB, Op.AND, Op.OR, Op.XOR, Op.BEQ, Op.BNE, Op.BLTU, Op.BGEU, *_STORES}
_USES_A = {*_USES_B, *_LOADS, Op.ADDI, Op.ANDI, Op.SHL, Op.SHR, Op.JR}


class Sequencer(wiring.Component):
    """Fifteen registers of 32 bits, the instructions of `program` from address 0 on, one bus.

    Halves and bytes are at their own alignment; an address that is not aligned to its access is
    rounded down. An operation that is none does nothing. Reset begins at 0.

    An instruction, or a register that it uses, that is beyond repair is not carried out: the core
    halts until reset, and so it does after `stop`.

    Interval: an instruction each `INTERVAL` cycles; `STORE_INTERVAL`, `LOAD_INTERVAL`, or
    `JUMP_INTERVAL` where the next is not the one behind it. Latency: from a load's address to
    `read_data`, `LATENCY` cycle.

    Parameters
    ----------
    program : list of int
        Instructions, as kelp_hw.firmware.program makes them.
    protect : bool
        Program and registers carry check bits.

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
    stop : in
        What was loaded, or a word of which a part was stored in the cycle before, is beyond repair.
    halted : out
        No instruction is carried out any more.
    fault : out, Fault
        Of instructions and registers.
    """

    LATENCY = 1
    INTERVAL = 3
    JUMP_INTERVAL = 4
    STORE_INTERVAL = 4
    LOAD_INTERVAL = 6

    def __init__(self, *, program, protect: bool = False):
        self.program, self.protect = list(program), protect
        if not self.program:
            raise ValueError("program = [] is refused; legal: an instruction at least")
        super().__init__(
            {
                "address": Out(ADDRESS_BITS),
                "write": Out(4),
                "write_data": Out(32),
                "read": Out(1),
                "read_data": In(32),
                "stop": In(1),
                "halted": Out(1),
                "fault": Out(Fault),
            }
        )
        #: The rows of the memory of that name.
        self.words = {"registers": CheckedWord(32, protect=protect)}

    def elaborate(self, platform):
        m = Module()
        code = self.words["registers"]
        m.submodules.rom = self.rom = rom = ConstantMemory(
            content=self.program, protect=self.protect
        )
        m.submodules.registers = self.register_rows = file = memory.Memory(
            shape=code.code_bits, depth=16, init=()
        )
        read_a, read_b = file.read_port(domain="comb"), file.read_port(domain="comb")
        keep = file.write_port()
        pc, following = Signal(PC_BITS), Signal(PC_BITS)
        #: The instruction, corrected: a cycle of its own, since what it names is corrected, too.
        word = Signal(_INSTRUCTION)
        self._worn, self._broken = Signal(), Signal()
        op, rd = Signal(Op), Signal(4)
        a, b, imm, constant = Signal(32), Signal(32), Signal(IMMEDIATE_BITS), Signal(23)
        result, at, loaded = Signal(32), Signal(ADDRESS_BITS), Signal(32)
        m.d.comb += [
            read_a.addr.eq(word.ra),
            read_b.addr.eq(word.rb),
            keep.addr.eq(rd),
            keep.data.eq(code.encode(m, result)),
            following.eq(pc + 1),
        ]
        word_of = op, a, b, imm, constant
        value_a, value_b, broken = self._checked(m, code, word, read_a, read_b)
        with m.If(broken | self.stop):
            m.d.sync += self.halted.eq(1)
        m.d.sync += [
            Assert(pc < len(self.program), "the program ends before this"),
            Assert(~(self.read & self.write.any()), "a load and a store at once"),
            Assert(~(self.halted & self.write.any()), "a store after the halt"),
        ]
        with m.FSM() as fsm:
            m.d.comb += [
                self._decodes.eq(fsm.ongoing("DECODE")),
                rom.address.eq(Mux(fsm.ongoing("EXECUTE"), following, pc)),
            ]
            with m.State("FETCH"):
                m.next = "CORRECT"
            with m.State("CORRECT"):
                m.d.sync += [
                    word.eq(rom.read_data),
                    self._worn.eq(rom.fault.corrected),
                    self._broken.eq(rom.fault.uncorrected),
                ]
                m.next = "DECODE"
            with m.State("DECODE"):
                m.d.sync += [
                    op.eq(word.op),
                    rd.eq(word.rd),
                    a.eq(Mux(word.ra == 0, 0, value_a)),
                    b.eq(Mux(word.rb == 0, 0, value_b)),
                    imm.eq(word.imm),
                    constant.eq(word.as_value()[:23]),
                ]
                m.next = "EXECUTE"
                with m.If(broken | self.halted):
                    m.next = "HALTED"
            with m.State("EXECUTE"):
                m.d.sync += [pc.eq(following), at.eq(a + imm.as_signed())]
                m.next = "CORRECT"
                self._execute(m, word_of, pc, following, result, keep)
            with m.State("STORE"):
                m.d.comb += self._lanes(op, at, b)
                m.next = "CORRECT"
            with m.State("LOAD"):
                m.d.comb += [self.address.eq(at), self.read.eq(1)]
                m.next = "LOADED"
            with m.State("LOADED"):
                # Critical path: a memory and the correction of its word have a cycle of their own.
                m.d.comb += self.address.eq(at)
                m.d.sync += loaded.eq(self.read_data)
                m.next = "KEEP"
            with m.State("KEEP"):
                m.d.comb += [
                    keep.en.eq((rd != 0) & ~self.halted),
                    result.eq(self._taken(loaded, op, at)),
                ]
                m.next = "CORRECT"
            with m.State("HALTED"):
                pass
        return m

    def _checked(self, m, code, word, read_a, read_b):
        """The registers that an instruction names, corrected; whether it can not be carried out.
        Faults count in the cycle that decodes, of what the operation uses."""
        self._decodes = decodes = Signal()
        uses_a = Array(Const(op in _USES_A, 1) for op in range(32))[word.op] & (word.ra != 0)
        uses_b = Array(Const(op in _USES_B, 1) for op in range(32))[word.op] & (word.rb != 0)
        value_a, single_a, double_a = code.decode(m, read_a.data)
        value_b, single_b, double_b = code.decode(m, read_b.data)
        m.d.comb += [
            self.fault.corrected.eq(
                decodes & (self._worn | (uses_a & single_a) | (uses_b & single_b))
            ),
            self.fault.uncorrected.eq(
                decodes & ~self.halted & (self._broken | (uses_a & double_a) | (uses_b & double_b))
            ),
        ]
        return value_a, value_b, self.fault.uncorrected

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
                    m.next = "FETCH"
            with m.Case(Op.CALL):
                m.d.comb += [result.eq(following), kept.eq(1)]
                m.d.sync += pc.eq(target)
                m.next = "FETCH"
            with m.Case(Op.JR):
                m.d.sync += pc.eq(a)
                m.next = "FETCH"
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

    def _taken(self, word, op, at):
        """Of a word that was loaded, what the operation asks for."""
        half = Mux(at[1], word[16:], word[:16])
        byte = Mux(at[0], half[8:], half[:8])
        return Mux(op == Op.LB, Cat(byte), Mux(op == Op.LH, half, word))

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Instructions of the mailbox's sequencer, and an assembler for them. Every instruction has 32
bits: `op 5 | rd 4 | ra 4 | rb 4 | immediate 15`."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["IMMEDIATE_BITS", "Op", "PC_BITS", "Program", "Reg"]

IMMEDIATE_BITS, PC_BITS = 15, 12
_CONSTANT_BITS = 23  #: LI's immediate: ra and rb belong to it


class Op(IntEnum):
    LI = 0  #: rd = constant, 23 bits
    ADD = 1
    SUB = 2
    AND = 3
    OR = 4
    XOR = 5
    ADDI = 6  #: rd = ra + immediate, signed
    ANDI = 7
    SHL = 8  #: rd = ra << immediate
    SHR = 9
    LW = 10  #: rd = the word, half, byte at ra + immediate
    LH = 11
    LB = 12
    SW = 13  #: that at ra + immediate = rb
    SH = 14
    SB = 15
    BEQ = 16  #: to immediate when ra = rb
    BNE = 17
    BLTU = 18
    BGEU = 19
    CALL = 20  #: r15 = the next instruction; to immediate
    JR = 21  #: to ra


class Reg(IntEnum):
    """r0 is zero; r15 is where CALL comes from."""

    ZERO = 0
    A = 1
    B = 2
    C = 3
    D = 4
    E = 5
    F = 6
    G = 7
    H = 8
    I = 9
    J = 10
    K = 11
    L = 12
    M = 13
    N = 14
    LINK = 15


class Program:
    """Instructions in order. Each method appends one; a target is the name of a label.

    `words()` are the instructions, `labels` name → address. Immediates that do not fit and labels
    that are not there are refused.
    """

    def __init__(self):
        self._code: list[tuple] = []
        self.labels: dict[str, int] = {}

    def label(self, name: str) -> None:
        if name in self.labels:
            raise ValueError(f"label {name!r} is there already")
        self.labels[name] = len(self._code)

    def _add(self, op, rd=0, ra=0, rb=0, imm=0):
        self._code.append((op, rd, ra, rb, imm))

    def li(self, rd, value):
        self._add(Op.LI, rd, 0, 0, value)

    def mov(self, rd, ra):
        self._add(Op.ADDI, rd, ra)

    def addi(self, rd, ra, value):
        self._add(Op.ADDI, rd, ra, 0, value)

    def andi(self, rd, ra, value):
        self._add(Op.ANDI, rd, ra, 0, value)

    def shl(self, rd, ra, bits):
        self._add(Op.SHL, rd, ra, 0, bits)

    def shr(self, rd, ra, bits):
        self._add(Op.SHR, rd, ra, 0, bits)

    def add(self, rd, ra, rb):
        self._add(Op.ADD, rd, ra, rb)

    def sub(self, rd, ra, rb):
        self._add(Op.SUB, rd, ra, rb)

    def and_(self, rd, ra, rb):
        self._add(Op.AND, rd, ra, rb)

    def or_(self, rd, ra, rb):
        self._add(Op.OR, rd, ra, rb)

    def xor(self, rd, ra, rb):
        self._add(Op.XOR, rd, ra, rb)

    def lw(self, rd, ra, at=0):
        self._add(Op.LW, rd, ra, 0, at)

    def lh(self, rd, ra, at=0):
        self._add(Op.LH, rd, ra, 0, at)

    def lb(self, rd, ra, at=0):
        self._add(Op.LB, rd, ra, 0, at)

    def sw(self, rb, ra, at=0):
        self._add(Op.SW, 0, ra, rb, at)

    def sh(self, rb, ra, at=0):
        self._add(Op.SH, 0, ra, rb, at)

    def sb(self, rb, ra, at=0):
        self._add(Op.SB, 0, ra, rb, at)

    def beq(self, ra, rb, target):
        self._add(Op.BEQ, 0, ra, rb, target)

    def bne(self, ra, rb, target):
        self._add(Op.BNE, 0, ra, rb, target)

    def bltu(self, ra, rb, target):
        self._add(Op.BLTU, 0, ra, rb, target)

    def bgeu(self, ra, rb, target):
        self._add(Op.BGEU, 0, ra, rb, target)

    def jmp(self, target):
        self.beq(0, 0, target)

    def call(self, target):
        self._add(Op.CALL, Reg.LINK, 0, 0, target)

    def jr(self, ra=Reg.LINK):
        self._add(Op.JR, 0, ra)

    def words(self) -> list[int]:
        if len(self._code) > 1 << PC_BITS:
            raise ValueError(f"{len(self._code)} instructions; legal: {1 << PC_BITS} at most")
        return [self._encoded(*each) for each in self._code]

    def _encoded(self, op, rd, ra, rb, imm) -> int:
        if isinstance(imm, str):
            if imm not in self.labels:
                raise ValueError(f"label {imm!r} is nowhere")
            imm = self.labels[imm]
        bits = _CONSTANT_BITS if op is Op.LI else IMMEDIATE_BITS
        signed = op is Op.ADDI or Op.LW <= op <= Op.SB
        if not -(signed << bits - 1) <= imm < 1 << bits - signed:
            raise ValueError(f"{op.name} {imm:#x}: legal: {bits} bits")
        return op << 27 | rd << 23 | ra << 19 | rb << 15 | imm & (1 << bits) - 1

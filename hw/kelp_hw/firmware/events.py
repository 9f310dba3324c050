# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The sequencer's program: event logs. A log keeps what an event says in 32 bytes; the record of
128 is made when it is read."""

from __future__ import annotations

from .image import IO, PAYLOAD, Image
from .program import Reg

__all__ = ["append", "clear", "get", "get_policy", "routines", "set_policy"]

A, B, C, D, E, F, G, H = Reg.A, Reg.B, Reg.C, Reg.D, Reg.E, Reg.F, Reg.G, Reg.H
I, J, K, RECORDS, IOS, LOG, ZERO = Reg.I, Reg.J, Reg.K, Reg.L, Reg.M, Reg.N, Reg.ZERO

# A log: records held, index of the oldest, last handle, records lost, times of the first and last.
COUNT, FIRST, HANDLE, LOST, LOST_FIRST, LOST_LAST = 0, 4, 8, 12, 16, 24
# A record as it is kept: the event's first word, its handle, time, address, two words.
TIME, ADDRESS, WORD = 8, 16, 24
# Bits of an event's first word, as `kelp_hw.cxlio.signatures.event_layout` has them.
POISON, QUIET, SOURCE, OVERFLOW, HEALED = 12, 13, 14, 17, 18
KEPT_BYTES, RECORD_BYTES, HEADER_BYTES = 32, 128, 0x20


def routines(im: Image) -> None:
    """`find_log`: A, a log's number → LOG, its state, and RECORDS. `find_record`: F, a record's
    place behind the oldest → G, where it is kept. Both change B and C."""
    p = im.program
    p.label("find_log")
    p.shl(LOG, A, 5)
    p.li(B, im.store("logs"))
    p.add(LOG, LOG, B)
    p.li(RECORDS, im.store("records"))
    p.mov(C, A)
    p.label("find_log_next")
    p.beq(C, ZERO, "find_log_end")
    p.addi(RECORDS, RECORDS, KEPT_BYTES * im.config.events)
    p.addi(C, C, -1)
    p.jmp("find_log_next")
    p.label("find_log_end")
    p.jr()
    p.label("find_record")
    p.lw(G, LOG, FIRST)
    p.add(G, G, F)
    p.li(B, im.config.events)
    p.bltu(G, B, "find_record_end")
    p.sub(G, G, B)
    p.label("find_record_end")
    p.shl(G, G, 5)
    p.add(G, G, RECORDS)
    p.jr()


def append(im: Image) -> None:
    """An event of the device: kept, or counted as lost when its log is full."""
    p = im.program
    p.label("event")
    p.lw(J, IOS, IO.EVENT)
    p.li(B, 1 << QUIET)
    p.and_(B, J, B)
    p.bne(B, ZERO, "event_end")
    p.andi(A, J, 3)
    p.mov(K, A)
    p.call("find_log")
    p.lw(D, IOS, IO.TIME)
    p.lw(E, IOS, IO.TIME_HIGH)
    p.lw(F, LOG, COUNT)
    p.li(B, im.config.events)
    p.bltu(F, B, "event_kept")
    p.lw(B, LOG, LOST)
    p.bne(B, ZERO, "event_lost")
    p.sw(D, LOG, LOST_FIRST)
    p.sw(E, LOG, LOST_FIRST + 4)
    p.label("event_lost")
    p.sw(D, LOG, LOST_LAST)
    p.sw(E, LOG, LOST_LAST + 4)
    p.addi(B, B, 1)
    p.shr(C, B, 16)
    p.bne(C, ZERO, "event_end")
    p.sw(B, LOG, LOST)
    p.jmp("event_end")
    p.label("event_kept")
    p.call("find_record")
    p.addi(H, F, 1)
    p.sw(H, LOG, COUNT)
    p.sw(J, G)
    p.sw(D, G, TIME)
    p.sw(E, G, TIME + 4)
    for word in range(4):
        p.lw(B, IOS, IO.EVENT + 4 + 4 * word)
        p.sw(B, G, ADDRESS + 4 * word)
    # Handles are never zero.
    p.lw(B, LOG, HANDLE)
    p.addi(B, B, 1)
    p.shr(C, B, 16)
    p.beq(C, ZERO, "event_handle")
    p.li(B, 1)
    p.label("event_handle")
    p.sw(B, LOG, HANDLE)
    p.sw(B, G, 4)
    p.bne(F, ZERO, "event_end")
    _first(im)
    p.label("event_end")
    _listed(im)
    p.label("event_take")
    p.sw(ZERO, IOS, IO.EVENT_TAKE)
    p.jmp("idle")


def _first(im: Image) -> None:
    """Log K is not empty any more: its status bit, its interrupt."""
    p = im.program
    p.li(B, 1)
    p.mov(C, K)
    p.label("event_bit")
    p.beq(C, ZERO, "event_status")
    p.shl(B, B, 1)
    p.addi(C, C, -1)
    p.jmp("event_bit")
    p.label("event_status")
    p.lw(C, ZERO, im.store("status"))
    p.or_(C, C, B)
    p.sw(C, ZERO, im.store("status"))
    p.sw(C, IOS, IO.EVENT_STATUS)
    p.li(B, im.store("policy"))
    p.add(B, B, K)
    p.lb(C, B)
    p.andi(C, C, 3)
    p.beq(C, ZERO, "event_end")
    p.li(B, 1 << im.config.event_vector)
    p.sw(B, IOS, IO.INTERRUPT)


def _listed(im: Image) -> None:
    """An event that names a poisoned line adds it to the poison list, or, where it is sound again,
    takes it off; one that says that such were lost is its overflow."""
    p = im.program
    p.li(B, 1 << POISON)
    p.and_(B, J, B)
    p.beq(B, ZERO, "event_take")
    p.li(B, 1 << OVERFLOW)
    p.and_(B, J, B)
    p.beq(B, ZERO, "event_line")
    p.call("poison_overflow")
    p.jmp("event_take")
    p.label("event_line")
    p.lw(E, IOS, IO.EVENT + 4)
    p.lw(F, IOS, IO.EVENT + 8)
    p.shr(E, E, 6)
    p.shl(E, E, 6)
    p.li(B, 1 << HEALED)
    p.and_(B, J, B)
    p.beq(B, ZERO, "event_poisoned")
    p.call("poison_find")
    p.beq(G, C, "event_take")
    p.call("poison_remove")
    p.jmp("event_take")
    p.label("event_poisoned")
    p.shr(J, J, SOURCE)
    p.andi(J, J, 7)
    p.call("poison_add")


def _record(im: Image) -> None:
    """The record of 128 bytes at K from what is kept at G."""
    p = im.program
    p.lw(B, G)
    p.shr(C, B, 2)
    p.andi(C, C, 3)
    p.shl(C, C, 4)
    p.li(A, im.table("event_uuids"))
    p.add(A, A, C)
    for word in range(4):
        p.lw(C, A, 4 * word)
        p.sw(C, K, 4 * word)
    # Length and flags; handle; time.
    p.shl(B, B, 20)
    p.shr(B, B, 24)
    p.shl(B, B, 8)
    p.addi(B, B, RECORD_BYTES)
    p.sw(B, K, 0x10)
    for at, where in ((4, 0x14), (8, 0x18), (12, 0x1C), (16, 0x30), (20, 0x34), (24, 0x38)):
        p.lw(B, G, at)
        p.sw(B, K, where)
    p.lw(B, G, 28)
    p.sw(B, K, 0x3C)
    for where in range(0x20, 0x30, 4):
        p.sw(ZERO, K, where)
    p.addi(B, K, 0x40)
    p.li(C, 16)
    p.call("zeros")


def get(im: Image) -> None:
    """The oldest records of a log, as many as the payload holds."""
    p, most = im.program, (im.config.payload - HEADER_BYTES) // RECORD_BYTES
    p.lb(A, ZERO, PAYLOAD)
    p.li(B, 4)
    p.bgeu(A, B, "bad_input")
    p.call("find_log")
    p.li(B, PAYLOAD)
    p.li(C, HEADER_BYTES // 4)
    p.call("zeros")
    p.lw(H, LOG, COUNT)
    p.li(I, most)
    p.li(D, 0)
    p.bgeu(I, H, "get_all")
    p.mov(H, I)
    p.li(D, 2)
    p.label("get_all")
    p.lw(B, LOG, LOST)
    p.beq(B, ZERO, "get_header")
    p.addi(D, D, 1)
    p.sh(B, ZERO, PAYLOAD + 2)
    for word in range(4):
        p.lw(B, LOG, LOST_FIRST + 4 * word)
        p.sw(B, ZERO, PAYLOAD + 4 + 4 * word)
    p.label("get_header")
    p.sb(D, ZERO, PAYLOAD)
    p.sh(H, ZERO, PAYLOAD + 0x14)
    p.li(F, 0)
    p.li(K, PAYLOAD + HEADER_BYTES)
    p.label("get_next")
    p.bgeu(F, H, "get_end")
    p.call("find_record")
    _record(im)
    p.addi(K, K, RECORD_BYTES)
    p.addi(F, F, 1)
    p.jmp("get_next")
    p.label("get_end")
    p.addi(A, K, -PAYLOAD)
    p.jmp("ok")


def clear(im: Image) -> None:
    """The oldest records of a log, by their handles in order: all of them or none; or, with flag 0,
    the whole log."""
    p = im.program
    p.lb(A, ZERO, PAYLOAD)
    p.lb(H, ZERO, PAYLOAD + 2)
    p.lb(I, ZERO, PAYLOAD + 1)
    p.li(B, 4)
    p.bgeu(A, B, "bad_input")
    p.li(B, 2)
    p.bgeu(I, B, "bad_input")
    p.mov(K, A)
    p.call("find_log")
    p.lw(J, LOG, COUNT)
    p.beq(I, ZERO, "clear_some")
    p.bne(H, ZERO, "bad_input")
    p.mov(H, J)
    p.jmp("clear_checked")
    p.label("clear_some")
    p.beq(H, ZERO, "bad_input")
    p.shl(B, H, 1)
    p.addi(B, B, 6)
    p.lw(C, IOS, IO.LENGTH)
    p.bne(B, C, "bad_length")
    p.bltu(J, H, "bad_handle")
    p.li(F, 0)
    p.li(E, PAYLOAD + 6)
    p.label("clear_check")
    p.call("find_record")
    p.lh(B, G, 4)
    p.lh(C, E)
    p.bne(B, C, "bad_handle")
    p.addi(E, E, 2)
    p.addi(F, F, 1)
    p.bltu(F, H, "clear_check")
    p.label("clear_checked")
    p.sub(J, J, H)
    p.sw(J, LOG, COUNT)
    p.sw(ZERO, LOG, LOST)
    p.lw(G, LOG, FIRST)
    p.add(G, G, H)
    p.li(B, im.config.events)
    p.bltu(G, B, "clear_first")
    p.sub(G, G, B)
    p.label("clear_first")
    p.sw(G, LOG, FIRST)
    p.bne(J, ZERO, "nothing")
    p.li(B, 1)
    p.label("clear_bit")
    p.beq(K, ZERO, "clear_status")
    p.shl(B, B, 1)
    p.addi(K, K, -1)
    p.jmp("clear_bit")
    p.label("clear_status")
    p.lw(C, ZERO, im.store("status"))
    p.or_(C, C, B)
    p.xor(C, C, B)
    p.sw(C, ZERO, im.store("status"))
    p.sw(C, IOS, IO.EVENT_STATUS)
    p.jmp("nothing")


def get_policy(im: Image) -> None:
    """Mode of each log, and in the upper half of its byte the vector that it uses."""
    p = im.program
    p.lw(A, ZERO, im.store("policy"))
    p.sw(A, ZERO, PAYLOAD)
    p.li(A, 4)
    p.jmp("ok")


def set_policy(im: Image) -> None:
    """Mode 0, none, or 1, MSI-X; others are refused."""
    p = im.program
    p.li(E, 0)
    p.li(B, 3)
    p.label("policy_next")
    p.shl(E, E, 8)
    p.lb(C, B, PAYLOAD)
    p.andi(D, C, 3)
    p.shr(C, D, 1)
    p.bne(C, ZERO, "bad_input")
    p.beq(D, ZERO, "policy_off")
    p.addi(E, E, 1 | im.config.event_vector << 4)
    p.label("policy_off")
    p.beq(B, ZERO, "policy_end")
    p.addi(B, B, -1)
    p.jmp("policy_next")
    p.label("policy_end")
    p.sw(E, ZERO, im.store("policy"))
    p.jmp("nothing")

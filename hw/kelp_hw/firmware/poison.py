# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The sequencer's program: the poison list, requests to the data path, sanitize."""

from __future__ import annotations

from kelp_spec.cxlio.commands import Opcode, ReturnCode
from kelp_spec.cxlio.events import PoisonSource

from .image import IO, PAYLOAD, Image, Work
from .program import Reg

__all__ = ["background_end", "clear", "get", "inject", "routines", "sanitize"]

A, B, C, D, E, F, G, H = Reg.A, Reg.B, Reg.C, Reg.D, Reg.E, Reg.F, Reg.G, Reg.H
I, J, K, L, IOS, N, ZERO = Reg.I, Reg.J, Reg.K, Reg.L, Reg.M, Reg.N, Reg.ZERO

# State of the list: entries; overflow and its time; where the last request goes on, 0 when it was
# answered whole; its offset and length.
COUNT, OVERFLOW, OVERFLOW_TIME, NEXT, NEXT_OFFSET, NEXT_LENGTH = 0, 4, 8, 16, 20, 28
HEADER_BYTES, ENTRY_BYTES = 0x20, 16
_INJECT, _CLEAR, _SANITIZE = 1, 2, 3
# What the data path answers; the last is for no answer.
_NO_LINE, _AGAIN, _LATE = 1, 2, 4


def routines(im: Image) -> None:
    """`poison_find`: G, the list's entry of line F:E, or the end of the list. `poison_add`: line
    F:E with source J, where it is not listed; an overflow where there is no place.
    `poison_overflow`: there was none. `poison_remove`: entry G of a list that ends at C leaves
    it."""
    p, state = im.program, im.store("poison_state")
    p.label("poison_find")
    p.li(G, im.store("poisons"))
    p.lw(C, ZERO, state + COUNT)
    p.shl(C, C, 3)
    p.add(C, C, G)
    p.label("poison_find_next")
    p.beq(G, C, "poison_find_end")
    p.lw(A, G)
    p.lw(B, G, 4)
    p.shr(A, A, 6)
    p.shl(A, A, 6)
    p.bne(A, E, "poison_find_other")
    p.beq(B, F, "poison_find_end")
    p.label("poison_find_other")
    p.addi(G, G, 8)
    p.jmp("poison_find_next")
    p.label("poison_find_end")
    p.jr()

    p.label("poison_add")
    p.mov(K, Reg.LINK)
    p.call("poison_find")
    p.bne(G, C, "poison_added")
    p.li(B, im.store("poisons") + 8 * im.config.poisons)
    p.beq(G, B, "poison_lost")
    p.or_(A, E, J)
    p.sw(A, G)
    p.sw(F, G, 4)
    p.lw(C, ZERO, state + COUNT)
    p.addi(C, C, 1)
    p.sw(C, ZERO, state + COUNT)
    p.sw(ZERO, ZERO, state + NEXT)
    p.label("poison_added")
    p.jr(K)
    p.label("poison_overflow")
    p.mov(K, Reg.LINK)
    p.label("poison_lost")
    p.lw(A, ZERO, state + OVERFLOW)
    p.bne(A, ZERO, "poison_added")
    p.li(A, 1)
    p.sw(A, ZERO, state + OVERFLOW)
    p.lw(A, IOS, IO.TIME)
    p.sw(A, ZERO, state + OVERFLOW_TIME)
    p.lw(A, IOS, IO.TIME_HIGH)
    p.sw(A, ZERO, state + OVERFLOW_TIME + 4)
    p.jr(K)

    p.label("poison_remove")
    p.addi(A, G, 8)
    p.beq(A, C, "remove_last")
    p.lw(B, A)
    p.sw(B, G)
    p.lw(B, A, 4)
    p.sw(B, G, 4)
    p.mov(G, A)
    p.jmp("poison_remove")
    p.label("remove_last")
    p.lw(C, ZERO, state + COUNT)
    p.addi(C, C, -1)
    p.sw(C, ZERO, state + COUNT)
    p.sw(ZERO, ZERO, state + NEXT)
    p.jr()
    _request(im)


def _request(im: Image) -> None:
    """`poison_request`: kind J for line F:E → J, the data path's code; `_LATE` when it says
    nothing. One that still offers what came too late the last time is not asked again.
    `poison_refused` ends the command by code J. `poison_gone`: the line leaves the list, if it is
    listed, and the command ends by J."""
    p = im.program
    p.label("poison_request")
    p.lw(A, IOS, IO.WORK)
    p.andi(B, A, Work.OFFERED)
    p.bne(B, ZERO, "poison_retry")
    p.sw(E, IOS, IO.LINE)
    p.sw(F, IOS, IO.LINE_HIGH)
    p.sw(J, IOS, IO.REQUEST)
    p.label("poison_wait")
    p.lw(A, IOS, IO.WORK)
    p.andi(B, A, Work.ANSWER)
    p.bne(B, ZERO, "poison_answer")
    p.andi(B, A, Work.LATE)
    p.beq(B, ZERO, "poison_wait")
    p.sw(ZERO, IOS, IO.ANSWER_TAKE)
    p.li(J, _LATE)
    p.jr()
    p.label("poison_answer")
    p.lw(J, IOS, IO.ANSWER)
    p.sw(ZERO, IOS, IO.ANSWER_TAKE)
    p.jr()
    p.label("poison_gone")
    p.call("poison_find")
    p.beq(G, C, "poison_refused")
    p.call("poison_remove")
    p.label("poison_refused")
    p.beq(J, ZERO, "nothing")
    p.li(B, _NO_LINE)
    p.beq(J, B, "bad_address")
    p.li(B, _AGAIN)
    p.bne(J, B, "internal")
    p.label("poison_retry")
    p.li(A, ReturnCode.RETRY)
    p.jmp("fail")


def _line(im: Image, name: str) -> None:
    """F:E, the line that the payload begins with; ends the command where it is none of the
    device's, or the media is being sanitized."""
    p, c = im.program, im.config
    p.lw(A, ZERO, im.store("background"))
    p.beq(A, ZERO, name + "_media")
    p.li(A, ReturnCode.MEDIA_DISABLED)
    p.jmp("fail")
    p.label(name + "_media")
    p.lw(E, ZERO, PAYLOAD)
    p.lw(F, ZERO, PAYLOAD + 4)
    p.andi(A, E, 63)
    p.bne(A, ZERO, "bad_input")
    # Above the capacity: in units of 256 MiB.
    p.shr(A, F, 28)
    p.bne(A, ZERO, "bad_address")
    p.shl(A, F, 4)
    p.shr(B, E, 28)
    p.or_(A, A, B)
    p.li(B, c.capacity)
    p.bgeu(A, B, "bad_address")


def inject(im: Image) -> None:
    """A line that is listed is asked for all the same: the host may have written it since. One that
    the data path has not told of in time is listed: it may be poisoned."""
    p = im.program
    _line(im, "inject")
    p.call("poison_find")
    p.bne(G, C, "inject_place")
    p.li(B, im.store("poisons") + 8 * im.config.poisons)
    p.bne(G, B, "inject_place")
    p.li(A, ReturnCode.POISON_LIMIT)
    p.jmp("fail")
    p.label("inject_place")
    p.li(J, _INJECT)
    p.call("poison_request")
    p.mov(I, J)
    p.beq(J, ZERO, "inject_listed")
    p.li(B, _NO_LINE)
    p.beq(J, B, "poison_gone")
    p.li(B, _LATE)
    p.bne(J, B, "poison_refused")
    p.label("inject_listed")
    p.li(J, PoisonSource.INJECTED)
    p.call("poison_add")
    p.mov(J, I)
    p.jmp("poison_refused")


def clear(im: Image) -> None:
    """The data path writes the line that follows the address; then it leaves the list, as does one
    that is there no more."""
    p = im.program
    _line(im, "clear")
    p.li(A, PAYLOAD + 8)
    p.li(C, 16)
    p.label("clear_data")
    p.lw(D, A)
    p.sw(D, IOS, IO.DATA)
    p.addi(A, A, 4)
    p.addi(C, C, -1)
    p.bne(C, ZERO, "clear_data")
    p.li(J, _CLEAR)
    p.call("poison_request")
    p.li(B, _AGAIN)
    p.bltu(J, B, "poison_gone")
    p.jmp("poison_refused")


def get(im: Image) -> None:
    """Entries with offset <= address < offset + length, in the order in which they were listed. A
    request that repeats one that had more goes on behind it."""
    p, state, c = im.program, im.store("poison_state"), im.config
    most = (c.payload - HEADER_BYTES) // ENTRY_BYTES
    p.lw(E, ZERO, PAYLOAD)
    p.lw(F, ZERO, PAYLOAD + 4)
    p.lw(H, ZERO, PAYLOAD + 8)
    p.lw(I, ZERO, PAYLOAD + 12)
    p.andi(A, E, 63)
    p.bne(A, ZERO, "bad_input")
    p.li(G, 0)
    p.lw(B, ZERO, state + NEXT_OFFSET)
    p.bne(E, B, "list_anew")
    p.lw(B, ZERO, state + NEXT_OFFSET + 4)
    p.bne(F, B, "list_anew")
    p.lw(B, ZERO, state + NEXT_LENGTH)
    p.bne(H, B, "list_anew")
    p.lw(B, ZERO, state + NEXT_LENGTH + 4)
    p.bne(I, B, "list_anew")
    p.lw(G, ZERO, state + NEXT)
    p.label("list_anew")
    p.sw(E, ZERO, state + NEXT_OFFSET)
    p.sw(F, ZERO, state + NEXT_OFFSET + 4)
    p.sw(H, ZERO, state + NEXT_LENGTH)
    p.sw(I, ZERO, state + NEXT_LENGTH + 4)
    p.sw(ZERO, ZERO, state + NEXT)
    p.li(B, PAYLOAD)
    p.li(C, HEADER_BYTES // 4)
    p.call("zeros")
    p.li(K, PAYLOAD + HEADER_BYTES)
    p.li(L, 0)
    p.li(J, 0)
    p.label("list_next")
    p.lw(A, ZERO, state + COUNT)
    p.bgeu(G, A, "list_end")
    p.shl(B, G, 3)
    p.li(A, im.store("poisons"))
    p.add(B, B, A)
    p.lw(C, B)
    p.lw(D, B, 4)
    p.addi(G, G, 1)
    # Lines from the offset to this one, B:A, and whether they are fewer than the length, I:H.
    p.bltu(D, F, "list_next")
    p.shr(A, C, 6)
    p.shl(A, A, 6)
    p.bne(D, F, "list_above")
    p.bltu(A, E, "list_next")
    p.label("list_above")
    p.sub(B, D, F)
    p.bgeu(A, E, "list_no_borrow")
    p.addi(B, B, -1)
    p.label("list_no_borrow")
    p.sub(A, A, E)
    p.shr(A, A, 6)
    p.shl(N, B, 26)
    p.or_(A, A, N)
    p.shr(B, B, 6)
    p.bltu(I, B, "list_next")
    p.bne(I, B, "list_within")
    p.bgeu(A, H, "list_next")
    p.label("list_within")
    p.li(B, most)
    p.beq(L, B, "list_more")
    p.sw(C, K)
    p.sw(D, K, 4)
    p.li(B, 1)
    p.sw(B, K, 8)
    p.sw(ZERO, K, 12)
    p.addi(K, K, ENTRY_BYTES)
    p.addi(L, L, 1)
    p.jmp("list_next")
    p.label("list_more")
    p.addi(G, G, -1)
    p.sw(G, ZERO, state + NEXT)
    p.li(J, 1)
    p.label("list_end")
    p.lw(A, ZERO, state + OVERFLOW)
    p.beq(A, ZERO, "list_header")
    p.addi(J, J, 2)
    for i in range(4):
        p.lh(A, ZERO, state + OVERFLOW_TIME + 2 * i)
        p.sh(A, ZERO, PAYLOAD + 2 + 2 * i)
    p.label("list_header")
    p.sb(J, ZERO, PAYLOAD)
    p.sh(L, ZERO, PAYLOAD + 0xA)
    p.addi(A, K, -PAYLOAD)
    p.jmp("ok")


def sanitize(im: Image) -> None:
    """Runs in the background: the media is disabled until the data path answers."""
    p = im.program
    p.lw(A, ZERO, im.store("background"))
    p.beq(A, ZERO, "sanitize_idle")
    p.li(A, ReturnCode.BUSY)
    p.jmp("fail")
    p.label("sanitize_idle")
    p.lw(A, IOS, IO.WORK)
    p.andi(B, A, Work.OFFERED)
    p.bne(B, ZERO, "poison_retry")
    p.li(A, 1)
    p.sw(A, ZERO, im.store("background"))
    p.li(A, 0b111)
    p.sw(A, IOS, IO.MEMORY)
    _progress(im, percent=0, running=True)
    p.sw(ZERO, IOS, IO.BACKGROUND_CODE)
    p.li(A, _SANITIZE)
    p.sw(A, IOS, IO.REQUEST)
    p.li(A, ReturnCode.BACKGROUND)
    p.jmp("fail")


def _progress(im: Image, *, percent: int, running: bool) -> None:
    p = im.program
    p.li(A, running)
    p.shl(A, A, 31)
    p.li(B, Opcode.SANITIZE | percent << 16)
    p.or_(A, A, B)
    p.sw(A, IOS, IO.BACKGROUND)


def background_end(im: Image) -> None:
    """The data path's answer to a sanitize: the poison list is empty when it succeeded."""
    p = im.program
    p.label("background_end")
    p.lw(C, IOS, IO.ANSWER)
    p.sw(ZERO, IOS, IO.ANSWER_TAKE)
    p.lw(A, ZERO, im.store("background"))
    p.beq(A, ZERO, "idle")
    p.sw(ZERO, ZERO, im.store("background"))
    p.li(A, 0b101)
    p.sw(A, IOS, IO.MEMORY)
    p.li(B, ReturnCode.INTERNAL)
    p.bne(C, ZERO, "background_code")
    p.li(B, ReturnCode.SUCCESS)
    for at in (COUNT, OVERFLOW, NEXT):
        p.sw(ZERO, ZERO, im.store("poison_state") + at)
    p.label("background_code")
    p.sw(B, IOS, IO.BACKGROUND_CODE)
    _progress(im, percent=100, running=False)
    p.jmp("idle")

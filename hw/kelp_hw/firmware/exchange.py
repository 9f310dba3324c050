# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The sequencer's program: data objects of DOE: discovery, and the entries of the CDAT."""

from __future__ import annotations

from kelp_spec.cxlio.cdat import cdat_entries
from kelp_spec.cxlio.config import CXL_VENDOR

from .image import IO, Image
from .program import Reg

__all__ = ["serve"]

A, B, C, D, E, F, G, H = Reg.A, Reg.B, Reg.C, Reg.D, Reg.E, Reg.F, Reg.G, Reg.H
IOS, ZERO = Reg.M, Reg.ZERO
_SIG, _DISCOVERY, _TABLE_ACCESS, _OBJECT_WORDS = 1, 0, 2, 3


def serve(im: Image) -> None:
    """An object that is none of ours, or of a wrong length, is dropped without an answer: `ready`
    stays 0, as an unknown type's must."""
    p = im.program
    entries = cdat_entries(im.config)
    at, rows = 0, b""
    for each in entries:
        rows += at.to_bytes(2, "little") + (len(each) // 4).to_bytes(2, "little")
        at += len(each)
    im.add("cdat", b"".join(entries))
    im.add("cdat_rows", rows)
    discovery, access = _SIG | _DISCOVERY << 16, CXL_VENDOR | _TABLE_ACCESS << 16
    im.add("doe_types", discovery.to_bytes(4, "little") + access.to_bytes(4, "little"))
    p.label("exchange")
    p.lw(A, IOS, IO.EXCHANGE)
    p.lw(B, IOS, IO.EXCHANGE + 4)
    p.lw(E, IOS, IO.EXCHANGE + 8)
    p.lw(D, IOS, IO.EXCHANGE + 12)
    p.li(C, _OBJECT_WORDS)
    p.bne(B, C, "exchange_end")
    p.bne(D, C, "exchange_end")
    p.li(H, im.table("doe_types"))
    p.lw(B, H)
    p.beq(A, B, "discovery")
    p.lw(B, H, 4)
    p.bne(A, B, "exchange_end")
    # Request code 0, table type 0; a handle that there is.
    p.shl(C, E, 16)
    p.bne(C, ZERO, "exchange_end")
    p.shr(E, E, 16)
    p.li(C, len(entries))
    p.bgeu(E, C, "exchange_end")
    p.sw(A, IOS, IO.EXCHANGE_WORD)
    p.shl(F, E, 2)
    p.li(B, im.table("cdat_rows"))
    p.add(F, F, B)
    p.lh(G, F, 2)
    p.lh(F, F)
    p.addi(A, G, _OBJECT_WORDS)
    p.sw(A, IOS, IO.EXCHANGE_WORD)
    p.addi(A, E, 1)
    p.bne(A, C, "cdat_next")
    p.li(A, 0xFFFF)
    p.label("cdat_next")
    p.shl(A, A, 16)
    p.sw(A, IOS, IO.EXCHANGE_WORD)
    p.li(B, im.table("cdat"))
    p.add(F, F, B)
    p.label("cdat_word")
    p.lw(A, F)
    p.sw(A, IOS, IO.EXCHANGE_WORD)
    p.addi(F, F, 4)
    p.addi(G, G, -1)
    p.bne(G, ZERO, "cdat_word")
    p.jmp("exchange_end")
    # Which types there are: number E, and the number of the next, 0 behind the last.
    p.label("discovery")
    p.andi(E, E, 0xFF)
    p.li(C, 2)
    p.bgeu(E, C, "discovery_none")
    p.sw(A, IOS, IO.EXCHANGE_WORD)
    p.li(B, _OBJECT_WORDS)
    p.sw(B, IOS, IO.EXCHANGE_WORD)
    p.shl(B, E, 2)
    p.add(B, B, H)
    p.lw(A, B)
    p.bne(E, ZERO, "discovery_last")
    p.li(B, 1)
    p.shl(B, B, 24)
    p.or_(A, A, B)
    p.label("discovery_last")
    p.sw(A, IOS, IO.EXCHANGE_WORD)
    p.jmp("exchange_end")
    # An index that there is not: vendor 0xFFFF.
    p.label("discovery_none")
    p.sw(A, IOS, IO.EXCHANGE_WORD)
    p.li(B, _OBJECT_WORDS)
    p.sw(B, IOS, IO.EXCHANGE_WORD)
    p.li(B, 0xFFFF)
    p.sw(B, IOS, IO.EXCHANGE_WORD)
    p.label("exchange_end")
    p.sw(ZERO, IOS, IO.EXCHANGE_SEND)
    p.jmp("exchange_over")

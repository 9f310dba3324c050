# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Payloads between the blocks of the flit front, each declared once (docs/cxl.md, "Flits")."""

from __future__ import annotations

from itertools import zip_longest

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data

from kelp_spec.flit import COUNT_BITS, FLIT_BITS, FLIT_FIELDS, header_fields
from kelp_spec.messages import FIELDS

__all__ = [
    "FLIT",
    "GRANTED",
    "PORTS",
    "REFUSED",
    "TOLD",
    "any_of",
    "chosen",
    "code_words",
    "header",
    "lowest",
]

#: A flit as it passes, `link` included.
FLIT = data.StructLayout(dict(FLIT_FIELDS))
assert FLIT.size == FLIT_BITS

#: Message → the stream that carries it.
PORTS = {
    "M2SReq": "m2s_req",
    "M2SRwD": "m2s_rwd",
    "M2SBIRsp": "m2s_birsp",
    "S2MDRS": "s2m_drs",
    "S2MNDR": "s2m_ndr",
    "S2MBISnp": "s2m_bisnp",
}

#: A count that came with a flit, of channel `channel`; while `valid`.
TOLD = data.StructLayout({"valid": 1, "channel": 2, "count": COUNT_BITS})
#: Messages of each channel that may come, since reset, modulo 2^8.
GRANTED = data.ArrayLayout(COUNT_BITS, 3)
#: What became of the flits of one cycle: one was refused, and why (`Refusal`); so many halves of
#: lines were missing, or nobody's; so many messages were in flits refused before.
REFUSED = data.StructLayout({"refused": 1, "reason": 2, "orphans": 2, "lost": COUNT_BITS})


def code_words(message: str) -> tuple[int, ...]:
    """Bits of each code word of a message in its queue: of its header first, then one of byte
    enables where it has such, then those of its line."""
    fields = dict(FIELDS[message])
    bits = sum(size for _, size in header_fields(message))
    count = -(-bits // 64)
    size = -(-bits // count)
    return (
        *(min(size, bits - low) for low in range(0, bits, size)),
        *(64 for name in ("byte_enable", "data") for _ in range(fields.get(name, 0) // 64)),
    )


def header(message: str, payload) -> Value:
    """The bits of a message's place, from a payload of its layout."""
    return Cat(Value.cast(payload[name]) for name, _ in header_fields(message))


def lowest(mask: Value) -> Value:
    """The lowest bit that is set, alone."""
    return (mask & (~mask + 1))[: len(mask)]


def any_of(values: list[Value]) -> Value:
    """The bits of all, joined by or, in a tree: a chain of them takes the simulator its length's
    square to compile."""
    while len(values) > 1:
        values = [a | b for a, b in zip_longest(values[::2], values[1::2], fillvalue=Const(0))]
    return values[0]


def chosen(m: Module, one_hot: Value, words, name: str) -> Signal:
    """The word whose bit is set."""
    words = [Value.cast(word) for word in words]
    out = Signal(max(map(len, words)), name=name)
    m.d.comb += out.eq(
        any_of([Mux(bit, word, 0) for bit, word in zip(one_hot, words, strict=True)])
    )
    return out

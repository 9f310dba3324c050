# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Stored lines in block form (docs/select.md, "Block form")."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal

from kelp_spec.formats import ELEMENTS, INT4_MANTISSA_BITS, SCALE_NAN

from .signatures import ELEMENT

__all__ = ["unpack"]


def unpack(m: Module, stored, elements, exponent, nan) -> None:
    """Sets `elements`, `exponent` and `nan` to the block of a `stored_line`."""
    size = Cat(stored.scale[8 : 8 + INT4_MANTISSA_BITS], 1)  # 8 + m
    m.d.comb += [
        nan.eq(stored.scale[:8] == SCALE_NAN),
        exponent.eq(stored.scale[:8] - Mux(stored.int4, 124, 127)),
    ]
    for k in range(ELEMENTS):
        whole = stored.payload[8 * k : 8 * k + 8].as_signed()
        small = stored.payload[4 * k : 4 * k + 4].as_signed()
        element = Signal(ELEMENT, name=f"element{k}")
        m.d.comb += [
            element.eq(Mux(stored.int4, small * size, whole)),
            elements[k].eq(element),
        ]

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The payload that takes ops in order from look-up to head, what the two halves of the data path
share (docs/design.md §4). The FIFO that holds it is `OrderFifo`: one op a cycle."""

from __future__ import annotations

from amaranth.lib import data

from kelp_spec.config import Config
from kelp_spec.formats import Format
from kelp_spec.metadata import Answer, DataOp

from ..layouts import Layouts, code_shape

__all__ = ["ORDER_DEPTH", "POSITION_BITS", "order_layout", "raw_only"]

#: Ops between look-up and head. A memory of 64 cycles needs about 80 at one op per cycle; a block
#: RAM has 512 rows anyway.
ORDER_DEPTH = 256
#: Numbers of the ops in order; unique among those queued, at the head, and in the one partial write
#: that is put back later.
POSITION_BITS = (ORDER_DEPTH - 1).bit_length() + 2


def order_layout(config: Config) -> data.StructLayout:
    """A data op whose slots are known, as numbers and one-hot (0: none). `wait_line`, `wait_scale`:
    it needs the slot's fill. A FLUSH has its frame and token in `origin`."""
    c, layouts = config, Layouts(config)
    part, scale_byte = (layouts.data_op[name].shape for name in ("part", "scale_byte"))
    return data.StructLayout(
        {
            "kind": code_shape(DataOp),
            "answer": code_shape(Answer),
            "line_slot": (c.line_slots - 1).bit_length(),
            "scale_slot": (c.scale_slots - 1).bit_length(),
            "wait_line": 1,
            "wait_scale": 1,
            "part": part,
            "scaled": 1,
            "scale_byte": scale_byte,
            "format": code_shape(Format),
            "host_type": 1,
            "partial": 1,
            "fresh": 1,
            "poison": 1,
            "has_write": 1,
            "write_slot": c.write_slot_bits,
            "origin": layouts.origin,
            "line_select": c.line_slots,
            "scale_select": c.scale_slots,
        }
    )


def raw_only(op) -> list:
    """Assignments that make an op one of raw16, which without codecs every op is: what depends on
    the format becomes constant."""
    return [op.format.eq(Format.RAW16), op.part.eq(0), op.scaled.eq(0), op.scale_byte.eq(0)]

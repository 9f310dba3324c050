# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Between a port's one vector and the fields of its layout, fast enough for every cycle of a
bench."""

from __future__ import annotations

from amaranth.hdl import Shape
from amaranth.lib import data

__all__ = ["Packing"]


class Packing:
    """Packs and unpacks one `data.StructLayout`; nested fields are written with a dot
    (`line_mask.valid`).

    `pack(a=1, **{"b.c": 2})` leaves fields that are not named at zero and refuses values that do
    not fit; `unpack(vector)` is a dict of all of them.
    """

    def __init__(self, layout: data.StructLayout):
        self.width = layout.size
        self.fields = dict(self._flatten(layout, "", 0))

    @classmethod
    def _flatten(cls, layout, prefix, base):
        for name, field in layout:
            if isinstance(field.shape, data.StructLayout):
                yield from cls._flatten(field.shape, f"{prefix}{name}.", base + field.offset)
            else:
                yield prefix + name, (base + field.offset, (1 << Shape.cast(field.shape).width) - 1)

    def pack(self, **values: int) -> int:
        vector = 0
        for name, value in values.items():
            offset, mask = self.fields[name]
            value = int(value)
            if value & ~mask:
                raise ValueError(f"{name} = {value} does not fit {mask.bit_length()} bits")
            vector |= value << offset
        return vector

    def unpack(self, vector: int) -> dict[str, int]:
        vector = int(vector)
        return {name: vector >> offset & mask for name, (offset, mask) in self.fields.items()}

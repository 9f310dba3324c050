# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Whether a GGUF file's header says what can be: before the package `gguf` makes an object of each
element that it promises, in the file or not.

GGUF: magic, version, counts of tensors and fields, then the fields (key, type, value) and for each
tensor its name, dimensions, type and offset. An array's value is a type, a count and the elements.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

__all__ = ["check"]

_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  #: bytes, by type
_STRING, _ARRAY = 8, 9
_FIRST = 24  #: byte of the first field
#: at most: fields and tensors, elements of all arrays, arrays in arrays, dimensions
_COUNT, _ELEMENTS, _DEPTH, _DIMENSIONS = 1 << 16, 1 << 24, 4, 4


def check(path: Path) -> None:
    """ValueError or struct.error where the header promises what the file does not hold, or what no
    model has: more than 65536 fields or tensors, 16 million elements of arrays, a tensor of
    none. OSError as of any file."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        _Walk(data).whole()


class _Walk:
    """From the first byte of a header to the last."""

    def __init__(self, data):
        self.data, self.at, self.elements = data, _FIRST, 0
        # The version is small: where its low half is zero, it is of the other byte order.
        self.order = "<" if struct.unpack_from("<H", data, 4)[0] else ">"

    def whole(self) -> None:
        tensors, fields = struct.unpack_from(self.order + "QQ", self.data, 8)
        if max(tensors, fields) > _COUNT:
            raise ValueError(f"{tensors} tensors, {fields} fields")
        for _ in range(fields):
            self._string()
            self._value(self._number("I"), 0)
        for _ in range(tensors):
            self._tensor()

    def _tensor(self):
        self._string()
        dimensions = self._number("I")
        sizes = [self._number("Q") for _ in range(min(dimensions, _DIMENSIONS))]
        if dimensions != len(sizes) or not sizes or 0 in sizes:
            raise ValueError(f"a tensor of {dimensions} dimensions, {sizes}")
        self._skip(4 + 8)

    def _value(self, kind: int, depth: int):
        if kind == _STRING:
            self._string()
        elif kind == _ARRAY:
            self._array(depth)
        else:
            self._skip(_size(kind))

    def _array(self, depth: int):
        kind, count = self._number("I"), self._number("Q")
        self.elements += count
        if self.elements > _ELEMENTS or depth == _DEPTH:
            raise ValueError(f"an array of {count} elements, {depth} deep")
        if kind in (_STRING, _ARRAY):
            for _ in range(count):
                self._value(kind, depth + 1)
        else:
            self._skip(_size(kind) * count)

    def _string(self):
        self._skip(self._number("Q"))

    def _number(self, code: str) -> int:
        (number,) = struct.unpack_from(self.order + code, self.data, self.at)
        self.at += struct.calcsize(self.order + code)
        return number

    def _skip(self, count: int):
        self.at += count
        if self.at > len(self.data):
            raise ValueError("it ends within its header")


def _size(kind: int) -> int:
    if kind not in _SIZES:
        raise ValueError(f"a value of type {kind}")
    return _SIZES[kind]

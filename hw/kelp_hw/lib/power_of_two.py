# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Counts that must be powers of two: nothing of a design, but whether it may be made."""

from __future__ import annotations

__all__ = ["power_of_two"]


def power_of_two(name: str, count: int) -> int:
    """`count`, where a counter of so many values turns over by itself, a place is cut out of a
    number's bits, or a shift stands for a division.

    Raises ValueError, with `name`, where it is none: the design would count to another number.
    """
    if not isinstance(count, int) or isinstance(count, bool) or count < 1 or count & (count - 1):
        raise ValueError(f"{name} = {count!r} is refused; legal: a power of two")
    return count

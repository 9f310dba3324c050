# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Checks of what a caller passes: one line that names the argument, its value and what is legal.
Nothing is rounded or cut: 1.5 is no position, and True is no layer."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from numbers import Integral, Real

import numpy as np

__all__ = [
    "instance",
    "integer",
    "listed",
    "nothing_left",
    "real",
    "seconds",
    "short",
    "switch",
    "unmasked",
    "whole",
]


def integer(
    name: str, value, low: int, high: int | None = None, *, error: type[Exception] = ValueError
) -> int:
    """`value` as an int of low … high (without end where `high` is None); `error` otherwise."""
    whole = type(value) is int or isinstance(value, Integral) and not isinstance(value, bool)
    if not whole or value < low or high is not None and value > high:
        legal = f"{low} and up" if high is None else f"{low} … {high}"
        raise error(f"{name} = {short(value)} is refused; legal: {legal}")
    return int(value)


def real(name: str, value, low: float, high: float) -> float:
    """`value`, a number of low … high, as one of Python's own, which no product takes beyond its
    type's range; ValueError otherwise, for NaN too."""
    plain = value.item() if isinstance(value, np.number) else value
    number = isinstance(plain, Real) and not isinstance(plain, bool)
    if not number or not low <= plain <= high:
        raise ValueError(f"{name} = {short(value)} is refused; legal: {low} … {high}")
    return plain if type(plain) in (int, float) else float(plain)


def instance(name: str, value, kind: type | tuple[type, ...], legal: str):
    """`value`, which is a `kind`; ValueError otherwise."""
    if not isinstance(value, kind):
        raise ValueError(f"{name} = {short(value)} is refused; legal: {legal}")
    return value


def listed(name: str, value, legal: str, *, error: type[Exception] = ValueError) -> list:
    """`value` as a list; `error` where it is none, is text or bytes, or has no order."""
    if not isinstance(value, (str, bytes, bytearray, memoryview, Mapping, set, frozenset)):
        # An array without dimensions has the method, and refuses.
        with contextlib.suppress(TypeError):
            return list(value)
    raise error(f"{name} = {short(value)} is refused; legal: {legal}")


def unmasked(name: str, value, *, error: type[Exception] = ValueError):
    """`value`, unless it is an array with masked elements, whose values are nobody's."""
    mask = np.ascontiguousarray(np.ma.getmaskarray(value)) if np.ma.isMA(value) else np.zeros(1)
    if masked := np.count_nonzero(mask.view(bool)):  # one for each field of a structure
        raise error(
            f"{name} with {masked} masked elements is refused; legal: an array without "
            + "(numpy.ma.filled)"
        )
    return value


def short(value) -> str:
    """A value on one line: of a model or an array, what it is."""
    said = ""
    with contextlib.suppress(ValueError):  # an integer of thousands of digits has no text
        said = repr(value)
    legible = 0 < len(said) <= 100 and "\n" not in said
    return said if legible else f"an object of {type(value).__name__}"


# - options of a URL: texts, each taken out of the others, so that what is left is unknown
def switch(options: dict[str, str], name: str, default: str = "0") -> bool:
    """Option `name`, taken out of `options`: 0 or 1."""
    text = options.pop(name, default)
    if text not in ("0", "1"):
        raise ValueError(f"{name}={text} is refused; legal: 0, 1")
    return text == "1"


def whole(options: dict[str, str], name: str, default: int) -> int:
    """Option `name`, taken out of `options`: a whole number."""
    text = options.pop(name, str(default))
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{name}={text} is refused; legal: a whole number") from None


def seconds(options: dict[str, str], name: str, default: float) -> float:
    """Option `name`, taken out of `options`: a time above 0, of a year at most."""
    text = options.pop(name, str(default))
    try:
        return real(name, float(text), 0.001, 31_536_000)
    except ValueError:
        raise ValueError(f"{name}={text} is refused; legal: seconds, 0.001 … 31536000") from None


def nothing_left(url: str, options: dict[str, str]) -> None:
    """ValueError for an option that nobody has taken out."""
    if options:
        raise ValueError(f"option {next(iter(options))!r} of {url!r} is unknown")

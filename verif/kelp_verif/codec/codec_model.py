# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The quantiser and the dequantiser as functions on NumPy arrays: compiled RTL behind the same
signatures as the golden model.

``rtl_encode(batch)`` and ``rtl_decode(batch)`` take lines of any formats and host types in any
order and return what came out, with the cycles of every transfer; see :class:`Run`.
"""

import ctypes
import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kelp_hw.export.verilog import to_verilog
from kelp_rtl.verilator import QUICK_OPT, Cpp, verilate_model
from kelp_spec.formats import ELEMENTS, LINE_BYTES

__all__ = [
    "Run",
    "pack_lines",
    "pack_stored",
    "rtl_decode",
    "rtl_encode",
    "unpack_lines",
    "unpack_stored",
]

META_BITS = 8  #: width of ``meta`` in every bench of the codec; it carries a running number
_WORDS = 17  #: 32-bit words of each payload: 16 of line, one of the rest


@dataclass(frozen=True)
class Run:
    """What one run produced: the output words, and the cycle in which each item went in and came
    out."""

    words: np.ndarray
    accepted: np.ndarray
    given: np.ndarray


def pack_lines(lines, host_type, fmt) -> np.ndarray:
    """Quantiser input words ``uint32[N, 17]``; ``host_type`` and ``fmt`` are scalars or one per
    line, ``meta`` counts."""
    count = len(lines)
    meta = np.arange(count, dtype=np.uint32) % (1 << META_BITS)
    rest = np.asarray(host_type, np.uint32) | np.asarray(fmt, np.uint32) << 1 | meta << 4
    return np.hstack([np.ascontiguousarray(lines, np.uint16).view(np.uint32), rest[:, None]])


def pack_stored(payload, scale, host_type, fmt) -> np.ndarray:
    """Dequantiser input words; payloads narrower than a line are filled with zeros above."""
    count = len(payload)
    wide = np.zeros((count, LINE_BYTES), np.uint8)
    wide[:, : payload.shape[1]] = payload
    meta = np.arange(count, dtype=np.uint32) % (1 << META_BITS)
    rest = (
        np.asarray(scale, np.uint32)
        | np.asarray(host_type, np.uint32) << 16
        | np.asarray(fmt, np.uint32) << 17
        | meta << 20
    )
    return np.hstack([wide.view(np.uint32), rest[:, None]])


def unpack_stored(words: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Quantiser output words → payload ``uint8[N, 64]``, scale, format, meta."""
    rest = words[:, 16]
    return (
        np.ascontiguousarray(words[:, :16]).view(np.uint8),
        rest & 0xFFFF,
        rest >> 16 & 7,
        rest >> 19,
    )


def unpack_lines(words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Dequantiser output words → lines ``uint16[N, 32]``, meta."""
    return np.ascontiguousarray(words[:, :16]).view(np.uint16).reshape(-1, ELEMENTS), words[:, 16]


def rtl_encode(words: np.ndarray, **options) -> Run:
    """Run quantiser input words; ``options`` as in :func:`_run`."""
    return _run("Quantiser", words, **options)


def rtl_decode(words: np.ndarray, **options) -> Run:
    """Run dequantiser input words; ``options`` as in :func:`_run`."""
    return _run("Dequantiser", words, **options)


def _run(
    name: str,
    words: np.ndarray,
    *,
    lanes: int = ELEMENTS,
    valid: float = 1.0,
    ready: float = 1.0,
    seed: int = 1,
) -> Run:
    """Send every item through a block of ``lanes``; ``valid`` and ``ready`` are the shares of
    cycles in which the bench offers and takes."""
    words = np.ascontiguousarray(words, np.uint32)
    count = len(words)
    assert words.shape == (count, _WORDS)
    out = np.empty_like(words)
    accepted, given = np.empty(count, np.uint32), np.empty(count, np.uint32)
    limit = int(100 + 4 * count * (ELEMENTS // lanes) / (valid * ready))
    taken = _library(name, lanes)(
        words, out, count, round(valid * 256), round(ready * 256), seed, limit, accepted, given
    )
    problem = {
        -1: "an assertion of the RTL failed",
        -2: "an item came out that had not gone in",
    }.get(taken, f"{taken} of {count} items came out")
    assert taken == count, f"{name}, seed {seed}: {problem} within {limit} cycles"
    return Run(out, accepted, given)


@functools.cache
def _library(name: str, lanes: int):
    import kelp_hw.codec.dequantise
    import kelp_hw.codec.quantise

    block = {
        "Quantiser": kelp_hw.codec.quantise.Quantiser,
        "Dequantiser": kelp_hw.codec.dequantise.Dequantiser,
    }[name]
    driver = Path(__file__).with_name("stream_driver.cpp")
    verilog = to_verilog(block(meta_shape=META_BITS, lanes=lanes), checked=True)
    library = verilate_model(
        verilog,
        Cpp(sources=[driver]),
        name=f"{name.lower()}_{lanes}",
        opt=QUICK_OPT,
    )
    function = ctypes.CDLL(str(library)).stream_run
    array = np.ctypeslib.ndpointer(np.uint32, flags="C_CONTIGUOUS")
    function.argtypes = [
        array,
        array,
        ctypes.c_int64,
        ctypes.c_uint,
        ctypes.c_uint,
        ctypes.c_uint64,
        ctypes.c_int64,
        array,
        array,
    ]
    function.restype = ctypes.c_int64
    return function

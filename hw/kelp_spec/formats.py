# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Host element types and stored formats: how many bits each needs and where they lie (spec §5,
docs/arithmetic.md).

A **host line** is 64 bytes of 32 elements, element *i* in bits ``[16i+15:16i]``; it is one block
with one scale. Its **payload** is the stored elements, element 0 in the lowest bits; its **scale**
is stored separately, in the page's scale lines. Nothing here computes a value.
"""

import enum

__all__ = [
    "ELEMENTS",
    "FORMAT_BITS",
    "INT4_MANTISSA_BITS",
    "LINE_BITS",
    "LINE_BYTES",
    "SCALE_BITS",
    "SCALE_NAN",
    "Format",
    "HostType",
    "data_lines",
    "formats_of",
    "scale_lines",
    "stored_page_lines",
]

LINE_BYTES = 64  #: one host line, and one DRAM line
LINE_BITS = 8 * LINE_BYTES
ELEMENTS = LINE_BYTES // 2  #: 16-bit elements in a host line = elements in a block

#: width of a scale where it travels; int8 uses the low byte, the others leave zeros
SCALE_BITS = 16
#: scale code of a block that holds a NaN, in int8 and int4 alike: exponent byte 255, nothing else
SCALE_NAN = 255
#: an int4 scale is {zeros 5, m 3, E 8}: the exponent lies in the low byte, as in int8
INT4_MANTISSA_BITS = 3


class HostType(enum.IntEnum):
    """What the host's elements are."""

    FP16 = 0
    BF16 = 1


class Format(enum.IntEnum):
    """How a line is stored. ``Format.named("int8")`` finds one by the name that reports and the
    command line use."""

    RAW16 = 0
    FP8_E4M3 = 1
    FP8_E5M2 = 2
    INT8 = 3
    INT4 = 4

    @property
    def label(self) -> str:
        """Its name outside Python: ``raw16``, ``fp8_e4m3``, ``fp8_e5m2``, ``int8``, ``int4``."""
        return self.name.lower()

    @classmethod
    def named(cls, label: str) -> "Format":
        for fmt in cls:
            if fmt.label == label:
                return fmt
        raise ValueError(
            f"stored format {label!r} is unknown; legal: {', '.join(fmt.label for fmt in cls)}"
        )

    @property
    def element_bits(self) -> int:
        """Stored bits per element."""
        return _ELEMENT_BITS[self]

    @property
    def payload_bytes(self) -> int:
        """Stored bytes per host line, without its scale."""
        return ELEMENTS * self.element_bits // 8

    @property
    def scale_bytes(self) -> int:
        """Scale bytes per host line."""
        return _SCALE_BYTES[self]

    @property
    def lines_per_dram_line(self) -> int:
        """Host lines whose payloads share one DRAM line."""
        return LINE_BYTES // self.payload_bytes


_ELEMENT_BITS = {
    Format.RAW16: 16,
    Format.FP8_E4M3: 8,
    Format.FP8_E5M2: 8,
    Format.INT8: 8,
    Format.INT4: 4,
}
_SCALE_BYTES = {
    Format.RAW16: 0,
    Format.FP8_E4M3: 0,
    Format.FP8_E5M2: 0,
    Format.INT8: 1,
    Format.INT4: 2,
}

#: Width of a format where it travels.
FORMAT_BITS = max(Format).bit_length()


def formats_of(text: str) -> tuple[Format, Format]:
    """K's and V's format of a label: one for both, or the two apart as ``int8/int4``; ValueError
    for what is no format."""
    k, slash, v = text.partition("/")
    return Format.named(k), Format.named(v if slash else k)


def data_lines(fmt: Format, host_lines: int) -> int:
    """DRAM lines that hold the payloads of ``host_lines`` host lines, begun on a line of their
    own."""
    return -(-_counted(host_lines) // fmt.lines_per_dram_line)


def scale_lines(fmt: Format, host_lines: int) -> int:
    """DRAM lines that hold the scales of ``host_lines`` host lines, begun on a line of their
    own."""
    return -(-_counted(host_lines) * fmt.scale_bytes // LINE_BYTES)


def stored_page_lines(fmt: Format, host_lines: int) -> int:
    """DRAM lines of a page of ``host_lines`` host lines stored in one format (128: raw16 128, fp8
    64, int8 66, int4 36)."""
    return data_lines(fmt, host_lines) + scale_lines(fmt, host_lines)


def _counted(host_lines: int) -> int:
    if host_lines < 0:
        raise ValueError(f"host_lines = {host_lines} is refused; legal: 0 and up")
    return host_lines

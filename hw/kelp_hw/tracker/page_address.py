# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""From a frame and a host line to DRAM lines: the frame's base, the payload's and the scale's
offsets (docs/design.md §2). One line a cycle, placed after 1 cycle."""

from __future__ import annotations

from amaranth.hdl import Array, Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config
from kelp_spec.formats import ELEMENTS, FORMAT_BITS, LINE_BYTES, Format

from ..layouts import POOL_BITS, Layouts

__all__ = ["PageAddress", "frame_base", "pool_of_frame", "times"]


def _by_format(format_, value, width):
    """`value(Format)` chosen by a format code; codes that are no format read as raw16."""
    table = [value(f) for f in Format]
    return Array(
        [Const(table[i] if i < len(table) else table[0], width) for i in range(1 << FORMAT_BITS)]
    )[format_]


def pool_of_frame(config: Config, frame):
    """The pool a global frame id belongs to."""
    return sum(((frame >= first)[0] for first in config.pool_first_frame[1:]), Const(0, 1))[
        :POOL_BITS
    ]


def times(value, constant: int):
    """`value` · `constant` by shifts and adds: a multiplier block would be the slowest thing in the
    stage."""
    return sum(
        (value << bit for bit in range(constant.bit_length()) if constant >> bit & 1), Const(0, 1)
    )


def frame_base(config: Config, pool, frame):
    """Two numbers whose sum, modulo the DRAM lines' width, is the first DRAM line of `frame`, which
    lies in `pool`."""
    width = config.dram_line_bits
    tops = [1 << lines.bit_length() - 1 for lines in config.frame_lines]
    start = [
        (base - first * lines) % (1 << width)
        for base, first, lines in zip(
            config.pool_base_line, config.pool_first_frame, config.frame_lines, strict=True
        )
    ]
    high = (
        Array(times(frame, top) for top in tops)[pool] + Array(Const(k, width) for k in start)[pool]
    )
    low = Array(
        times(frame, lines - top) for lines, top in zip(config.frame_lines, tops, strict=True)
    )[pool]
    return high, low


class PageAddress(wiring.Component):
    """Places one host line of a stored page. It agrees with `kelp_spec.geometry.StoredPage.place`
    for every line that the page has.

    Latency: `LATENCY` cycle; one line in each cycle (`INTERVAL`); never stalls. Errors: lines that
    the page does not have give a meaningless place; nothing reports it. Clause: spec §3.

    Parameters
    ----------
    config : Config

    Members
    -------
    frame, pool : in
        A frame and the pool that it lies in.
    kv_line : in
        The host line: its highest bit chooses V.
    stored : in
        How the page is stored (`Layouts.stored`).
    o : out
        Where the line is stored (`Layouts.place`); `scale_offset` and `scale_byte` count only
        where it is `scaled`.
    """

    LATENCY = 1
    INTERVAL = 1

    def __init__(self, *, config: Config):
        c = self.config = config
        layouts = Layouts(config)
        super().__init__(
            {
                "frame": In(c.frame_bits),
                "pool": In(POOL_BITS),
                "kv_line": In(c.line_bits),
                "stored": In(layouts.stored),
                "o": Out(layouts.place),
            }
        )

    def elaborate(self, platform):
        m = Module()
        c, stored, o = self.config, self.stored, self.o

        def shift(f):  # log2 of the host lines in a DRAM line
            return f.lines_per_dram_line.bit_length() - 1

        def data_lines(format_, lines):  # rounded up
            return (lines + ((1 << _by_format(format_, shift, 2)) - 1)) >> _by_format(
                format_, shift, 2
            )

        format_k, format_v = (
            (stored.format_k, stored.format_v)
            if c.codecs
            else (Const(Format.RAW16, FORMAT_BITS),) * 2
        )
        v, line = self.kv_line[-1], self.kv_line[:-1]
        format_ = Signal(FORMAT_BITS)
        m.d.comb += format_.eq(Mux(v, format_v, format_k))
        width = c.offset_bits + 1
        v_base, v_lines = Signal(width), Signal(width)
        m.d.comb += [
            v_base.eq(data_lines(format_k, stored.used_lines)),
            v_lines.eq(Mux(stored.k_only, 0, data_lines(format_v, stored.used_lines))),
        ]
        # V's first scale is aligned to a V scale, which matters behind an odd number of one-byte K
        # scales.
        byte_bits = c.line_bits + 1
        k_scale, v_scale = (_by_format(f, lambda x: x.scale_bytes, 2) for f in (format_k, format_v))
        k_bytes, v_start = Signal(byte_bits + 1), Signal(byte_bits + 1)
        m.d.comb += [
            k_bytes.eq(stored.used_lines << (k_scale >> 1)),
            v_start.eq(Mux(k_scale == 0, 0, k_bytes + (k_bytes[0] & (v_scale == 2)))),
        ]

        scale_base, byte = Signal(width), Signal(byte_bits + 1)
        format_out, offset, part, scaled = (
            Signal.like(o[name]) for name in ("format", "offset", "part", "scaled")
        )
        high, low = Signal(c.dram_line_bits), Signal(c.dram_line_bits)
        m.d.sync += [
            *(
                half.eq(value)
                for half, value in zip(
                    (high, low), frame_base(c, self.pool, self.frame), strict=True
                )
            ),
            format_out.eq(format_),
            offset.eq(Mux(v, v_base, 0) + (line >> _by_format(format_, shift, 2))),
            part.eq(line & ((1 << _by_format(format_, shift, 2)) - 1)),
            scaled.eq(_by_format(format_, lambda x: x.scale_bytes != 0, 1)),
            scale_base.eq(v_base + v_lines),
            byte.eq(
                Mux(v, v_start, 0)
                + (line << (_by_format(format_, lambda x: x.scale_bytes, 2) >> 1))
            ),
        ]
        m.d.comb += [
            o.base.eq(high + low),
            o.offset.eq(offset),
            o.part.eq(part),
            o.scaled.eq(scaled),
            o.scale_offset.eq(scale_base + byte[6:]),
            o.scale_byte.eq(byte[:6]),
            o.format.eq(format_out),
        ]
        return m


assert LINE_BYTES == 64 and ELEMENTS == 32 and max(f.scale_bytes for f in Format) == 2, (
    "PageAddress is written for these"
)

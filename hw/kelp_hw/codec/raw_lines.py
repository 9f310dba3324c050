# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What stands in the quantiser's and the dequantiser's places where every line is raw16
(`Config.codecs` is False): one register, one line a cycle."""

from __future__ import annotations

from amaranth.hdl import Assert, Module, Value

from kelp_spec.formats import Format

from .dequantise import Dequantiser
from .quantise import Quantiser

__all__ = ["RawDequantiser", "RawQuantiser"]


class RawQuantiser(Quantiser):
    """A host line is its own payload, and has no scale. Latency 1 cycle, throughput one line per
    cycle; a `format` other than RAW16 fails an assertion.

    Members
    -------
    i, o : streams, as the :class:`.quantise.Quantiser`'s
    """

    LATENCY = 1
    INTERVAL = 1

    def elaborate(self, platform):
        return _passed_on(self, self.i.p.line, self.o.p.payload)


class RawDequantiser(Dequantiser):
    """A payload is the host line. Latency 1 cycle, throughput one line per cycle; a `format` other
    than RAW16 fails an assertion.

    Members
    -------
    i, o : streams, as the :class:`.dequantise.Dequantiser`'s
    """

    LATENCY = 1
    INTERVAL = 1

    def elaborate(self, platform):
        return _passed_on(self, self.i.p.payload, self.o.p.line)


def _passed_on(block: Quantiser | Dequantiser, given: Value, taken: Value) -> Module:
    """One register between `i` and `o`."""
    m = Module()
    i, o = block.i, block.o
    m.d.comb += i.ready.eq(o.ready | ~o.valid)
    with m.If(i.ready):
        m.d.sync += [
            o.valid.eq(i.valid),
            taken.eq(given),
            Value.cast(o.p.meta).eq(Value.cast(i.p.meta)),
        ]
    m.d.sync += Assert(~i.valid | (i.p.format == Format.RAW16))
    return m

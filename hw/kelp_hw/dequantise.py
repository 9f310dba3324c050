# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Stored payloads and scales to host lines (spec §5, docs/arithmetic.md "Stored formats")."""

from amaranth.hdl import Array, C, Cat, Module, Mux, Shape, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from kelp_spec.formats import ELEMENTS, FORMAT_BITS, INT4_MANTISSA_BITS, LINE_BITS, SCALE_BITS, SCALE_NAN, Format, HostType

from .codec_lane import RigidPipeline
from .dequantise_lane import absolute, coarsely_rotated, finely_rotated, fp8_parts, host_code, leading_zeros, multiplied

__all__ = ["Dequantiser"]

#: What makes the host's exponent field of a magnitude whose bit 7 is set: to be added to the scale's exponent byte or to fp8's field.
_REBIAS = {
    host: {
        Format.INT8: bias - (127 - 1), Format.INT4: bias - (127 - 4), Format.FP8_E4M3: bias - 7, Format.FP8_E5M2: bias - 15,
    } for host, bias in ((HostType.FP16, 15), (HostType.BF16, 127))
}
_BASE_BITS = 10


class Dequantiser(wiring.Component):
    """Restores host lines from RAW16, FP8_E4M3, FP8_E5M2, INT8 and INT4 to FP16 or BF16, mixed line by line.

    Latency 4 cycles, throughput one line per cycle. The pipeline moves as a whole (:class:`.codec_lane.RigidPipeline`).
    Every payload and every scale has the answer that docs/arithmetic.md gives it, also those that the quantiser never writes.

    Parameters
    ----------
    meta_shape : shape-like
        Whatever has to stay beside a line; it leaves with it, unchanged.

    Members
    -------
    i : stream of ``payload`` 512 (the stored bits lie lowest, the rest is ignored), ``scale`` 16, ``host_type`` 1, ``format`` 3, ``meta``
    o : stream of ``line`` 512, ``meta``
    """

    latency = 4      #: cycles from a line's acceptance to its first cycle at ``o``
    throughput = 1   #: lines per cycle

    def __init__(self, *, meta_shape):
        Shape.cast(meta_shape)
        self.meta_shape = meta_shape
        self.i_layout = data.StructLayout(
            {"payload": LINE_BITS, "scale": SCALE_BITS, "host_type": 1, "format": FORMAT_BITS, "meta": meta_shape})
        self.o_layout = data.StructLayout({"line": LINE_BITS, "meta": meta_shape})
        super().__init__({"i": In(stream.Signature(self.i_layout)), "o": Out(stream.Signature(self.o_layout))})

    def elaborate(self, platform):
        m = Module()
        pipe = RigidPipeline(m, self.i, self.o, self.latency)
        i, o = self.i.payload, self.o.payload
        host_type = pipe.carry(0, 3, i.host_type, "host_type")
        meta = pipe.carry(0, 3, Value.cast(i.meta), "meta")
        is_raw, is_int8, is_int4, is_e5m2 = (i.format == f for f in (Format.RAW16, Format.INT8, Format.INT4, Format.FP8_E5M2))
        is_fp8 = is_e5m2 | (i.format == Format.FP8_E4M3)
        raw = pipe.carry(1, 3, pipe.register(0, Mux(is_raw, i.payload, 0), "raw"), "raw")[3]

        # Stage 0: what the block's scale says of all elements; the host's exponent field when bit 7 of a magnitude is its highest one.
        exponent, m_of_scale = i.scale[0:8], i.scale[8 : 8 + INT4_MANTISSA_BITS]
        is_scaled = is_int8 | is_int4
        void = is_scaled & (exponent == SCALE_NAN)
        rebias = Mux(i.host_type == HostType.BF16, *(
            Mux(is_e5m2, of[Format.FP8_E5M2], Mux(is_int8, of[Format.INT8], Mux(is_int4, of[Format.INT4], of[Format.FP8_E4M3])))
            for of in (_REBIAS[HostType.BF16], _REBIAS[HostType.FP16])))
        base = (Mux(is_scaled, exponent, 0) + rebias)[0:_BASE_BITS].as_signed()
        # At field 1 the leading zeros have to stay, and below, fp16 elements move down instead, and vanish from -12 on.
        below = is_scaled & (base <= 0)
        stops = Cat(is_scaled & (base == 8 - bit) for bit in range(7))
        stop = Mux(below | is_e5m2 & (i.host_type == HostType.FP16), 1, is_scaled & (base == 1))
        vanish = below & (base <= -12)
        base1 = pipe.register(0, base, "base")
        stops1 = pipe.register(0, Cat(stops, stop), "stops")
        turn1 = pipe.register(0, Mux(below, (base - 1)[0:4], 0), "turn")
        deep2 = pipe.carry(1, 2, pipe.register(0, below & (base <= -3), "deep"), "deep")[2]
        clamps2 = pipe.carry(1, 2, pipe.register(0, is_scaled & ~void, "clamps"), "clamps")[2]
        base2 = pipe.register(1, base1, "base")

        once, thrice = Cat(m_of_scale, C(1, 1)), Array(C(3 * (8 + n), 6) for n in range(8))[m_of_scale]
        takes8, takes4, takes_fp8 = (enable.replicate(8) for enable in (is_int8 & ~void & ~vanish, is_int4 & ~void & ~vanish, is_fp8))
        elements = []
        for n in range(ELEMENTS):
            # Stage 0: sign, magnitude, and the exponent that an fp8 element has of its own.
            byte, nibble = i.payload.word_select(n, 8), i.payload.word_select(n, 4)
            significand, own, is_special = fp8_parts(byte[0:7], is_e5m2)
            magnitude = (
                (absolute(byte) & takes8) | (multiplied(absolute(nibble), once, thrice) & takes4) | (significand & takes_fp8) | Mux(void, 0xC0, 0)
            )
            magnitude1 = pipe.register(0, magnitude[0:8], f"magnitude_{n}_")
            own1 = pipe.register(0, Mux(is_fp8, own, 0), f"own_{n}_")
            special = pipe.carry(1, 2, pipe.register(0, void | (is_fp8 & is_special), f"special_{n}_"), f"special_{n}_")[2]
            sign = pipe.register(0, ~void & ((is_int4 & nibble[3]) | ((is_int8 | is_fp8) & byte[7])), f"sign_{n}_")
            sign = pipe.carry(1, 3, sign, f"sign_{n}_")[3]
            # Stage 1: how far to turn; the first half of it.
            zeros = leading_zeros(magnitude1 | stops1)
            places = zeros | turn1
            ring2 = pipe.register(1, coarsely_rotated(magnitude1, places), f"ring_{n}_")
            places2 = pipe.register(1, places[0:2], f"places_{n}_")
            own2 = pipe.register(1, own1 - zeros, f"own_{n}_")
            # Stage 2: the other half, the exponent field, what to do about what fell off or does not fit.
            ring = finely_rotated(ring2, places2)
            field = (base2 + own2)[0:_BASE_BITS]
            hidden = ring[11] & ~deep2
            over = clamps2 & hidden & Mux(host_type[2] == HostType.BF16, field[8:].any() | field[0:8].all(), field[5:].any() | field[0:5].all())
            up = pipe.register(2, deep2 & ring[0] & (ring[1] | ring[8:16].any()), f"up_{n}_")
            fraction = Cat(ring[1:8], ring[8:11] & (~deep2).replicate(3)) | over.replicate(10)
            field3 = pipe.register(2, ((field[0:8] & hidden.replicate(8)) | special.replicate(8) | over.replicate(8)) & ~Cat(over, C(0, 7)), f"field_{n}_")
            # Stage 3: round and put together.
            elements.append(host_code(host_type[3], sign, field3, pipe.register(2, fraction, f"fraction_{n}_"), up))

        pipe.load(3, o.line, Cat(*elements) | raw)
        pipe.load(3, Value.cast(o.meta), meta[3])
        return m

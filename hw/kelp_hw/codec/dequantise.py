# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Stored payloads and scales to host lines (spec §5, docs/arithmetic.md "Stored formats"): with 32
lanes one line a cycle, 6 cycles later."""

import operator

from amaranth.hdl import Array, C, Cat, Module, Mux, Shape, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.formats import (
    ELEMENTS,
    FORMAT_BITS,
    INT4_MANTISSA_BITS,
    LINE_BITS,
    SCALE_BITS,
    SCALE_NAN,
    Format,
    HostType,
)

from ..lib.rigid_pipeline import RigidPipeline
from .codec_lane import gated
from .dequantise_lane import (
    BASE_BITS,
    absolute,
    fp8_parts,
    host_code,
    leading_zeros,
    multiplied,
    rotated,
)

__all__ = ["Dequantiser"]

#: Stages behind the register at the input.
_STAGES = 5
#: Added to fp16's exponent fields, so that they overflow where bf16's do, at 255; the lower five
#: bits stay as they are.
_FP16_OFFSET = 255 - 31
#: What makes the host's exponent field of a magnitude whose bit 7 is set: to be added to the
#: scale's exponent byte or to fp8's field.
_REBIAS = {
    host: {
        Format.INT8: bias - (127 - 1),
        Format.INT4: bias - (127 - 4),
        Format.FP8_E4M3: bias - 7,
        Format.FP8_E5M2: bias - 15,
    }
    for host, bias in ((HostType.FP16, 15 + _FP16_OFFSET), (HostType.BF16, 127))
}


class Dequantiser(wiring.Component):
    """Restores host lines from RAW16, FP8_E4M3, FP8_E5M2, INT8 and INT4 to FP16 or BF16, mixed line
    by line.

    Latency `LATENCY` cycles, one line in `INTERVAL` cycles: with 32 lanes 6 and 1. With fewer a
    line stays for ``32 // lanes`` cycles in the register at the input, in which the part that goes
    next lies lowest. From there the pipeline moves as a whole
    (:class:`.rigid_pipeline.RigidPipeline`). Every payload and every scale has the answer that
    docs/arithmetic.md gives it, also those that the quantiser never writes; a ``format`` beyond the
    last fails an assertion.

    Parameters
    ----------
    meta_shape : shape-like
        Whatever has to stay beside a line; it leaves with it, unchanged.
    lanes : int
        Elements that go through a stage at a time: 32, 16 or 8.

    Members
    -------
    i : stream of ``payload`` 512 (the stored bits lie lowest, the rest is ignored), ``scale`` 16,
    ``host_type`` 1, ``format`` 3, ``meta``
    o : stream of ``line`` 512, ``meta``
    """

    def __init__(self, *, meta_shape, lanes: int = ELEMENTS):
        Shape.cast(meta_shape)
        self.meta_shape, self.lanes = meta_shape, lanes
        self._beats = ELEMENTS // lanes
        self.i_layout = data.StructLayout(
            {
                "payload": LINE_BITS,
                "scale": SCALE_BITS,
                "host_type": 1,
                "format": FORMAT_BITS,
                "meta": meta_shape,
            }
        )
        self.o_layout = data.StructLayout({"line": LINE_BITS, "meta": meta_shape})
        super().__init__(
            {"i": In(stream.Signature(self.i_layout)), "o": Out(stream.Signature(self.o_layout))}
        )

    @property
    def LATENCY(self) -> int:
        """Cycles from a line's acceptance to its first cycle at ``o``."""
        return _STAGES + self._beats

    @property
    def INTERVAL(self) -> int:
        """Cycles from one accepted line to the next at full rate."""
        return self._beats

    def elaborate(self, platform):
        m = Module()
        held = stream.Signature(self.i_layout).create(path=("held",))
        pipe = RigidPipeline(m, held, self.o, _STAGES, beats=self._beats)
        i, o = held.payload, self.o.payload
        moves = self.o.ready | ~self.o.valid
        # Where a line stays for one cycle, the register moves as the stages behind it do: a wide
        # enable that is not one more table away.
        m.d.comb += self.i.ready.eq(moves if self._beats == 1 else ~held.valid | held.ready)
        with m.If(self.i.ready):
            m.d.sync += [held.valid.eq(self.i.valid), i.eq(self.i.payload)]
        if self._beats > 1:
            with m.Elif(moves):
                m.d.sync += i.payload.eq(self._moved_on(i.payload, i.format))
        host_type = pipe.carry(0, 3, i.host_type, "host_type")[3]
        meta = pipe.carry(0, 4, Value.cast(i.meta), "meta")[4]
        raw, is_raw = (
            pipe.carry(0, 4, i.payload[0 : self.lanes * 16], "raw")[4],
            pipe.carry(0, 4, i.format == Format.RAW16, "is_raw")[4],
        )
        block = _Block(pipe, i)

        is_int8, is_int4, is_e5m2 = (
            i.format == f for f in (Format.INT8, Format.INT4, Format.FP8_E5M2)
        )
        is_int4_1, is_fp8_1 = (
            pipe.register(0, is_int4, "is_int4_"),
            pipe.register(0, is_e5m2 | (i.format == Format.FP8_E4M3), "is_fp8_"),
        )
        m_of_scale = i.scale[8 : 8 + INT4_MANTISSA_BITS]
        once, thrice = (
            Cat(m_of_scale, C(1, 1)),
            Array(C(3 * (8 + n), 6) for n in range(8))[m_of_scale],
        )
        bytes_, nibbles = (i.payload[0 : self.lanes * bits] for bits in (8, 4))
        codes = []
        for n in range(self.lanes):
            # Stage 0: sign, magnitude, and the exponent that an fp8 element has of its own.
            byte, nibble = bytes_.word_select(n, 8), nibbles.word_select(n, 4)
            significand, own, is_special = fp8_parts(byte[0:7], is_e5m2)
            low, high = (
                gated(absolute(byte)[0:4], is_int8),
                Mux(is_int8, absolute(byte)[4:8], significand),
            )
            of_byte = pipe.register(0, Cat(low, high), f"of_byte_{n}_")
            of_nibble = pipe.register(
                0, multiplied(absolute(nibble), once, thrice), f"of_nibble_{n}_"
            )
            own1, special1 = (
                pipe.register(0, own, f"own_{n}_"),
                pipe.register(0, is_special, f"special_{n}_"),
            )
            sign1 = pipe.register(0, Mux(is_int4, nibble[3], byte[7]), f"sign_{n}_")
            # Stage 1: how far to turn; the exponent field if there were no leading zeros.
            magnitude = Mux(is_int4_1, of_nibble, of_byte)
            zeros = leading_zeros(magnitude | block.stops)
            magnitude2, places = (
                pipe.register(1, magnitude, f"magnitude_{n}_"),
                pipe.register(1, zeros | block.turn, f"places_{n}_"),
            )
            zeros2 = pipe.register(1, zeros, f"zeros_{n}_")
            full = pipe.register(1, (block.base + gated(own1, is_fp8_1))[0:BASE_BITS], f"full_{n}_")
            special = pipe.carry(
                2, 3, pipe.register(1, is_fp8_1 & special1, f"special_{n}_"), f"special_{n}_"
            )[3]
            sign = pipe.carry(
                2, 3, pipe.register(1, sign1 & ~block.void[1], f"sign_{n}_"), f"sign_{n}_"
            )[3]
            # Stage 2: turn.
            ring = pipe.register(2, rotated(magnitude2, places), f"ring_{n}_")
            field = pipe.register(2, (full - zeros2)[0:BASE_BITS], f"field_{n}_")
            # Stage 3: put together, see what fell off the end.
            code = pipe.register(
                3,
                host_code(
                    host_type, sign, field, ring, block.deep, special, block.clamps, block.void[3]
                ),
                f"code_{n}_",
            )
            up = pipe.register(3, block.deep & ring[0] & (ring[1] | ring[8:16].any()), f"up_{n}_")
            # Stage 4: round. Only what is far below the normal range has something to round, and it
            # has few bits.
            codes.append(Cat((code[0:7] + up)[0:7], code[7:16]))

        elements = Mux(is_raw, raw, Cat(*codes))
        for n in range(self._beats):
            pipe.load(o.line.word_select(n, len(elements)), elements, pipe.until(4, n))
        pipe.load(Value.cast(o.meta), meta)
        return m

    def _moved_on(self, payload, format_):
        """The payload without its lowest part. What lies behind the last one may be anything."""
        steps = {bits: bits * self.lanes for bits in (4, 8, 16)}
        ends = {bits: bits * ELEMENTS - step for bits, step in steps.items()}
        is_raw, is_int4 = format_ == Format.RAW16, format_ == Format.INT4
        four, eight, sixteen = (payload[step:] for step in steps.values())
        return Cat(
            Mux(is_raw, sixteen, Mux(is_int4, four, eight))[: ends[4]],
            Mux(is_raw, sixteen, eight)[ends[4] : ends[8]],
            sixteen[ends[8] : ends[16]],
            payload[ends[16] :],
        )


class _Block:
    """What the lanes of a block share: what its scale says of all elements.

    Attributes
    ----------
    base : BASE_BITS, stage 1; the host's exponent field when bit 7 of a magnitude is its highest
    one, for fp16 plus 224
    stops : 8, stage 1; the bit of the magnitude that leading zeros may not be taken from, because
    the result is subnormal
    turn : 4, stage 1; places that all elements turn, when leading zeros do not matter
    deep : 1, stage 3; all elements have left the upper half of the ring
    clamps : 1, stage 3; elements may be too large for the host type
    void : 1, by stage (1, 3); the block is NaN
    """

    def __init__(self, pipe, i):
        exponent, fp16 = i.scale[0:8], i.host_type == HostType.FP16
        is_int8, is_int4, is_e5m2 = (
            i.format == f for f in (Format.INT8, Format.INT4, Format.FP8_E5M2)
        )
        is_scaled = is_int8 | is_int4
        rebias = Mux(
            fp16,
            *(
                Mux(
                    is_e5m2,
                    of[Format.FP8_E5M2],
                    Mux(
                        is_int8, of[Format.INT8], Mux(is_int4, of[Format.INT4], of[Format.FP8_E4M3])
                    ),
                )
                for of in (_REBIAS[HostType.FP16], _REBIAS[HostType.BF16])
            ),
        )
        self.base = pipe.register(0, (gated(exponent, is_scaled) + rebias)[0:BASE_BITS], "base")

        def field_is(compares, field):
            """Compare the field that ``base`` stands for; with the exponent itself, which does not
            have to wait for an addition."""
            return is_scaled & Mux(
                fp16,
                *(
                    Mux(
                        is_int4,
                        *(
                            compares(exponent, field + offset - of[f])
                            for f in (Format.INT4, Format.INT8)
                        ),
                    )
                    for of, offset in (
                        (_REBIAS[HostType.FP16], _FP16_OFFSET),
                        (_REBIAS[HostType.BF16], 0),
                    )
                ),
            )

        # At field 1 leading zeros stay where they are. Below, fp16 elements move down instead,
        # until after twelve places none is left, which also clears the way for a NaN block.
        below, void = field_is(operator.le, 0), is_scaled & (exponent == SCALE_NAN)
        stop = below | field_is(operator.eq, 1) | (is_e5m2 & fp16) | void
        self.stops = pipe.register(
            0, Cat(*(field_is(operator.eq, 8 - bit) for bit in range(7)), stop), "stops"
        )
        gone = void | field_is(operator.le, -11)
        self.turn = pipe.register(
            0,
            gated((exponent + rebias - 1)[0:4], below & ~gone) | gated(C(16 - 12, 4), gone),
            "turn",
        )
        self.deep = pipe.carry(
            1, 3, pipe.register(0, gone | field_is(operator.le, -3), "deep"), "deep"
        )[3]
        self.void = pipe.carry(1, 3, pipe.register(0, void, "void"), "void")
        self.clamps = pipe.carry(1, 3, pipe.register(0, is_scaled & ~void, "clamps"), "clamps")[3]

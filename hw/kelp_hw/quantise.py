# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Host lines to stored payloads and scales (spec §5, docs/arithmetic.md "Stored formats")."""

from amaranth.hdl import Array, C, Cat, Module, Mux, Shape, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from kelp_spec.formats import ELEMENTS, FORMAT_BITS, LINE_BITS, SCALE_BITS, SCALE_NAN, Format, HostType

from .codec_lane import RigidPipeline, host_exponent, host_fraction, is_all_ones
from .quantise_lane import (
    E4M3_SHIFT, INT4_SHIFT, INT8_SHIFT, REACH_BITS, distance_of, fp8_field, rounded_byte, rounded_nibble, shift_of, shifted,
)

__all__ = ["Quantiser"]

#: 64 · S / 2^⌊log2 amax⌋ of the int4 scales that can be the smallest, ascending; from 16 on the scale's exponent is one higher.
_STEPS = (10, 11, 12, 13, 14, 15, 16, 18, 20)
_STEP_16 = _STEPS.index(16)
#: Host type and fp8 format → biased host exponent of the least normal value.
_LEAST_NORMAL = {
    (HostType.FP16, Format.FP8_E4M3): 15 - 6, (HostType.FP16, Format.FP8_E5M2): 15 - 14,
    (HostType.BF16, Format.FP8_E4M3): 127 - 6, (HostType.BF16, Format.FP8_E5M2): 127 - 14,
}


class Quantiser(wiring.Component):
    """Stores host lines: RAW16, FP8_E4M3, FP8_E5M2, INT8 and INT4 from FP16 and BF16, mixed line by line.

    Latency 7 cycles, throughput one line per cycle. The pipeline moves as a whole (:class:`.codec_lane.RigidPipeline`).
    Every 16-bit pattern is a legal element with the answer that docs/arithmetic.md gives it; there is no error to report.

    Parameters
    ----------
    meta_shape : shape-like
        Whatever has to stay beside a line; it leaves with it, unchanged.

    Members
    -------
    i : stream of ``line`` 512, ``host_type`` 1, ``format`` 3, ``meta``
    o : stream of ``payload`` 512 (the stored bits lie lowest, zeros above), ``scale`` 16 (0 for formats without), ``format`` 3, ``meta``
    """

    latency = 7      #: cycles from a line's acceptance to its first cycle at ``o``
    throughput = 1   #: lines per cycle

    def __init__(self, *, meta_shape):
        Shape.cast(meta_shape)
        self.meta_shape = meta_shape
        self.i_layout = data.StructLayout({"line": LINE_BITS, "host_type": 1, "format": FORMAT_BITS, "meta": meta_shape})
        self.o_layout = data.StructLayout({"payload": LINE_BITS, "scale": SCALE_BITS, "format": FORMAT_BITS, "meta": meta_shape})
        super().__init__({"i": In(stream.Signature(self.i_layout)), "o": Out(stream.Signature(self.o_layout))})

    def elaborate(self, platform):
        m = Module()
        pipe = RigidPipeline(m, self.i, self.o, self.latency)
        i, o = self.i.payload, self.o.payload
        line = pipe.carry(0, 6, i.line, "line")
        host_type = pipe.carry(0, 4, i.host_type, "host_type")
        format_code = pipe.carry(0, 6, i.format, "format")
        meta = pipe.carry(0, 6, Value.cast(i.meta), "meta")
        # One bit per format, ready when a stage begins: each of them steers 32 lanes.
        fmt = {k: {f: pipe.register(k - 1, format_code[k - 1] == f, f"is_{f.label}_") for f in Format} for k in (4, 5, 6)}
        is_fp8 = {k: pipe.register(k - 1, (format_code[k - 1] == Format.FP8_E4M3) | (format_code[k - 1] == Format.FP8_E5M2), "is_fp8_")
                  for k in (4, 5)}

        # Stages 0 to 2: the largest magnitude of the block. Codes without their sign are ordered as the magnitudes are.
        amax = [line[0].word_select(n, 16)[0:15] for n in range(ELEMENTS)]
        for k, levels in ((0, 2), (1, 2), (2, 1)):
            for _ in range(levels):
                amax = [Mux(a > b, a, b) for a, b in zip(amax[0::2], amax[1::2], strict=True)]
            amax = [pipe.register(k, value, f"amax_{n}_") for n, value in enumerate(amax)]
        block = _Block(m, pipe, amax[0], host_type, format_code)

        stored = []
        for n in range(ELEMENTS):
            element = {k: line[k].word_select(n, 16) for k in line}
            # Stage 3: the parts of the element.
            exponent = host_exponent(element[3], host_type[3])
            fraction = host_fraction(element[3], host_type[3])
            hidden = exponent.any()
            exponent4 = pipe.register(3, exponent | ~hidden, f"exponent_{n}_")
            significand = pipe.carry(4, 5, pipe.register(3, Cat(fraction, hidden), f"significand_{n}_"), f"significand_{n}_")
            nan = pipe.carry(4, 6, pipe.register(3, is_all_ones(exponent, host_type[3]) & fraction.any(), f"nan_{n}_"), f"nan_{n}_")
            # Stage 4: how far to shift.
            distance4 = distance_of(block.reach, exponent4)
            distance = pipe.register(4, distance4, f"distance_{n}_")
            shift = pipe.register(4, shift_of(distance4, block.lift[4], is_fp8[4], fmt[4][Format.FP8_E5M2]), f"shift_{n}_")
            # Stage 5: shift.
            value, guard, lost = (pipe.register(5, part, f"{name}_{n}_") for part, name in zip(
                shifted(significand[5], shift, block.lift[5]), ("value", "guard", "lost"), strict=True))
            field, over = (pipe.register(5, part, f"{name}_{n}_") for part, name in zip(
                fp8_field(distance, significand[5][10], fmt[5][Format.FP8_E5M2], is_fp8[5]), ("field", "over"), strict=True))
            # Stage 6: round.
            sign = element[6][15]
            byte = rounded_byte(sign, field, over, nan[6], value, guard, lost, fmt[6])
            nibble = rounded_nibble(sign, value, guard, lost, block.thresholds)
            stored.append((element[6], byte, nibble))

        raw, bytes_, nibbles = (Cat(*parts) for parts in zip(*stored, strict=True))
        keep = ~block.nan
        eight = (~fmt[6][Format.RAW16] & ~fmt[6][Format.INT4] & keep).replicate(LINE_BITS // 2)
        four = (fmt[6][Format.INT4] & keep).replicate(LINE_BITS // 4)
        pipe.load(6, o.payload, (raw & fmt[6][Format.RAW16].replicate(LINE_BITS)) | (bytes_ & eight) | (nibbles & four))
        pipe.load(6, o.scale, block.scale)
        pipe.load(6, o.format, format_code[6])
        pipe.load(6, Value.cast(o.meta), meta[6])
        return m


class _Block:
    """What the lanes of a block share, from its largest magnitude in stage 3.

    Attributes
    ----------
    reach : REACH_BITS, stage 4
    lift : 1, by stage (4, 5); see :mod:`.quantise_lane`
    thresholds : seven of nine bits, stage 6; halves of int4 steps to compare with
    nan : 1, stage 6; the payload is void
    scale : 16, stage 6
    """

    def __init__(self, m, pipe, amax, host_type, format_code):
        bf16, fmt = host_type[3] == HostType.BF16, format_code[3]
        exponent, fraction = host_exponent(amax, host_type[3]), host_fraction(amax, host_type[3])
        subnormal, top = ~exponent.any(), is_all_ones(exponent, host_type[3])
        int4 = fmt == Format.INT4
        scaled = int4 | (fmt == Format.INT8)

        # Stage 3: how far the lanes shift. The exponent of an fp16 subnormal counts on below the least normal one; bf16 meets the end of
        # the scales first: int8 has one more (E = -127), and int4 uses S = 2^-127 for every block below exponent 3.
        zeros = Signal(4, init=10)
        for bit in range(10):
            with m.If(fraction[bit]):
                m.d.comb += zeros.eq(10 - bit)
        small = subnormal & ~bf16
        floor = pipe.carry(3, 5, bf16 & int4 & ~exponent[1:8].any(), "floor")
        edge = pipe.carry(3, 5, bf16 & int4 & (exponent == 2), "edge")
        # Inf counts as the largest finite value. int4 has the same scale and the same q for the power of two above it.
        counted = Mux(floor[3], 2, Mux(top & ~int4, exponent & 0xFE, exponent))
        shift = Mux(int4, INT4_SHIFT, INT8_SHIFT)
        e5m2 = fmt == Format.FP8_E5M2
        reach_fp8 = Mux(bf16, Mux(e5m2, *(_LEAST_NORMAL[HostType.BF16, f] - 2 for f in (Format.FP8_E5M2, Format.FP8_E4M3))),
                        Mux(e5m2, *(C(_LEAST_NORMAL[HostType.FP16, f] - 2, REACH_BITS) for f in (Format.FP8_E5M2, Format.FP8_E4M3))))
        reach = Mux(small, shift + 1 - zeros, counted + shift)
        self.reach = pipe.register(3, Mux(scaled, reach[0:REACH_BITS], reach_fp8), "reach")
        self.lift = pipe.carry(4, 5, pipe.register(3, scaled & small & (zeros > shift), "lift"), "lift")

        # Stage 4: the significand of int4's largest element, normalised; the exponent of the scale less one step of int4.
        fraction4, zeros4 = pipe.register(3, fraction, "fraction"), pipe.register(3, Mux(small, zeros, 0), "zeros")
        log2 = pipe.register(3, Mux(small, 1 - zeros, counted)[0:8], "log2_")
        bias = pipe.register(3, Mux(bf16, 0, 127 - 15) - Mux(int4, 3, 0), "bias")
        normal = (fraction4 << zeros4)[0:10]
        fraction5 = pipe.register(4, Cat(normal[0:4].any(), normal[4:10]), "fraction")
        exponent6 = pipe.carry(5, 6, pipe.register(4, (log2 + bias)[0:8], "exponent"), "exponent")[6]

        # Stage 5: the first int4 step that is large enough, in units of 1/64; a largest element of exactly seven steps is no reason for more.
        least = Signal(range(len(_STEPS)))
        for n, step in enumerate(_STEPS[:-1]):
            with m.If(fraction5 > 2 * (7 * step - 64)):
                m.d.comb += least.eq(n + 1)
        # bf16's exponent 2 has no steps below 16 (S = 2^-127), and exponents 0 and 1, counted as 2, need no more.
        index = Mux(floor[5] | (edge[5] & (least < _STEP_16)), _STEP_16, least)
        # The k-th threshold is k + 1/2 steps. A tie goes to the even neighbour, so it is below the threshold for even k.
        self.thresholds = [
            pipe.register(5, Array(C(min(511, 2 * (2 * k + 1) * step - k % 2), 9) for step in _STEPS)[index], f"threshold_{k}_") for k in range(7)
        ]
        mantissa = pipe.register(5, Array(C(step - 8 if step < 16 else step // 2 - 8, 3) for step in _STEPS)[index], "mantissa")
        carry = pipe.register(5, index >= _STEP_16, "carry")

        # Stage 6.
        is4, is8 = (pipe.carry(3, 6, fmt == f, f"scale_{f.label}_")[6] for f in (Format.INT4, Format.INT8))
        zero = pipe.carry(3, 6, subnormal & ~fraction.any(), "zero")[6]
        self.nan = pipe.carry(3, 6, scaled & top & fraction.any(), "block_nan")[6]
        value = Cat((exponent6 + (is4 & carry))[0:8], Mux(is4, mantissa, 0), C(0, SCALE_BITS - 11))
        self.scale = Mux(~(is4 | is8) | (zero & ~self.nan), 0, Mux(self.nan, SCALE_NAN, value))

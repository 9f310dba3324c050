# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Host lines to stored payloads and scales (spec §5, docs/arithmetic.md "Stored formats"): with 32
lanes one line a cycle, 10 cycles later."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import NamedTuple

from amaranth.hdl import Assert, C, Cat, Module, Mux, Shape, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.formats import (
    ELEMENTS,
    FORMAT_BITS,
    LINE_BITS,
    SCALE_BITS,
    SCALE_NAN,
    Format,
    HostType,
)

from ..lib.rigid_pipeline import RigidPipeline
from .codec_lane import at_least, gated, host_exponent, host_fraction, is_all_ones, largest
from .quantise_lane import (
    INT4_SHIFT,
    INT8_SHIFT,
    REACH_BITS,
    byte_parts,
    distance_of,
    first_quotient_bit,
    fp8_field,
    other_quotient_bits,
    rounded_byte,
    shift_of,
    shifted,
)

__all__ = ["Quantiser"]

#: Stages of a line that goes through them at once.
_STAGES = 10
#: 64 · S / 2^⌊log2 amax⌋ of the int4 scales that can be the smallest, ascending; from 16 on the
#: scale's exponent is one higher.
_STEPS = (10, 11, 12, 13, 14, 15, 16, 18, 20)
#: The least bf16 exponent field whose int4 scale depends on the fraction.
_LEAST_BF16 = 2
#: Host type and fp8 format → biased host exponent of the least normal value.
_LEAST_NORMAL = {
    (HostType.FP16, Format.FP8_E4M3): 15 - 6,
    (HostType.FP16, Format.FP8_E5M2): 15 - 14,
    (HostType.BF16, Format.FP8_E4M3): 127 - 6,
    (HostType.BF16, Format.FP8_E5M2): 127 - 14,
}


class Quantiser(wiring.Component):
    """Stores host lines: RAW16, FP8_E4M3, FP8_E5M2, INT8 and INT4 from FP16 and BF16, mixed line by
    line.

    Latency `LATENCY` cycles, one line in `INTERVAL` cycles: with 32 lanes 10 and 1. With fewer a
    line stays at ``i`` for ``32 // lanes`` cycles, in which its largest element is found, and as
    many more go by until the last of its elements has followed. The pipeline moves as a whole
    (:class:`.rigid_pipeline.RigidPipeline`). Every 16-bit pattern is a legal element with the
    answer that docs/arithmetic.md gives it; a ``format`` beyond the last fails an assertion, as
    does another one than ``only``.

    Parameters
    ----------
    meta_shape : shape-like
        Whatever has to stay beside a line; it leaves with it, unchanged.
    lanes : int
        Elements that go through a stage at a time: 32, 16 or 8.
    only : Format, optional
        The one format that lines are stored in, where there are no others.

    Members
    -------
    i : stream of ``line`` 512, ``host_type`` 1, ``format`` 3, ``meta``
    o : stream of ``payload`` 512 (the stored bits lie lowest, zeros above), ``scale`` 16 (0 for
    formats without), ``format`` 3, ``meta``
    """

    def __init__(self, *, meta_shape, lanes: int = ELEMENTS, only: Format | None = None):
        Shape.cast(meta_shape)
        self.meta_shape, self.lanes, self.only = meta_shape, lanes, only
        self._beats = ELEMENTS // lanes
        self.i_layout = data.StructLayout(
            {"line": LINE_BITS, "host_type": 1, "format": FORMAT_BITS, "meta": meta_shape}
        )
        self.o_layout = data.StructLayout(
            {"payload": LINE_BITS, "scale": SCALE_BITS, "format": FORMAT_BITS, "meta": meta_shape}
        )
        super().__init__(
            {"i": In(stream.Signature(self.i_layout)), "o": Out(stream.Signature(self.o_layout))}
        )

    @property
    def LATENCY(self) -> int:
        """Cycles from a line's acceptance to its first cycle at ``o``."""
        return _STAGES + self._beats - 1

    @property
    def INTERVAL(self) -> int:
        """Cycles from one accepted line to the next at full rate."""
        return self._beats

    def elaborate(self, platform):
        m = Module()
        pipe = RigidPipeline(m, self.i, self.o, _STAGES, beats=self._beats, cut=1)
        i, o = self.i.payload, self.o.payload
        # Whole, until the largest element is known; then element by element.
        line = pipe.carry(
            2, 9, pipe.register(1, pipe.part(1, pipe.accepted(i.line, "line")), "line"), "line"
        )
        host_type = pipe.carry(1, 3, pipe.accepted(i.host_type, "host_type"), "host_type")
        if self.only is None:
            format_code = pipe.carry(1, 9, pipe.accepted(i.format, "format"), "format")
        else:
            format_code = dict.fromkeys(range(1, 10), C(self.only, FORMAT_BITS))
            m.d.sync += Assert(~self.i.valid | (i.format == self.only))
        meta = pipe.carry(1, 9, pipe.accepted(Value.cast(i.meta), "meta"), "meta")
        # One bit per format, ready when a stage begins: each of them steers all lanes.

        def is_one_of(k: int, name: str, *formats: Format) -> Value:
            if self.only is not None:
                return C(self.only in formats, 1)
            each = (format_code[k] == f for f in formats)
            return pipe.register(k, reduce(or_, each), f"is_{name}_")

        fmt = {k: {f: is_one_of(k - 1, f.label, f) for f in Format} for k in range(3, 10)}
        is_fp8 = is_one_of(4, "fp8", Format.FP8_E4M3, Format.FP8_E5M2)
        amax = _two_largest(pipe, i.line, self.lanes)
        # A bit of its own: the lanes' host type has hundreds of loads.
        block = _Block(
            pipe, amax, pipe.register(2, host_type[2] == HostType.FP16, "is_fp16_"), fmt[3]
        )

        shared = _Shared(line, host_type, fmt, is_fp8, block)
        lanes = [_lane(pipe, n, shared) for n in range(self.lanes)]
        bytes_, nibbles = zip(*lanes, strict=True)
        self._join(pipe, shared, bytes_, nibbles)
        pipe.load(o.scale, block.scale)
        pipe.load(o.format, format_code[9])
        pipe.load(Value.cast(o.meta), meta[9])
        return m

    def _join(self, pipe, shared: _Shared, bytes_, nibbles) -> None:
        """The lanes' elements, or the line as it came, to the output."""
        fmt, block = shared.fmt, shared.block
        # What is not the line's format is zero when it meets the others.
        one_byte = ~(fmt[8][Format.RAW16] | fmt[8][Format.INT4] | block.nan)
        eight = pipe.register(8, gated(Cat(*bytes_), one_byte), "bytes")
        is_raw, is_int4 = fmt[9][Format.RAW16], fmt[9][Format.INT4]
        by_element = {16: gated(shared.line[9], is_raw), 8: eight, 4: Cat(*nibbles)}
        # What one beat of int4 fills is the grain: each takes what comes until the beat has come
        # that is its own in the line's format.
        grain = 4 * self.lanes
        for n in range(LINE_BITS // grain):
            here = [
                (bits, elements.word_select(n % (bits // 4), grain))
                for bits, elements in by_element.items()
                if n * grain < bits * ELEMENTS
            ]
            own = Mux(is_raw, n // 4, Mux(is_int4, n, n // 2))
            pipe.load(
                self.o.p.payload.word_select(n, grain),
                reduce(or_, (value for _, value in here)),
                pipe.until(9, own),
            )


class _Shared(NamedTuple):
    """What all lanes have, by stage."""

    line: dict
    host_type: dict
    fmt: dict
    is_fp8: Value
    block: _Block


def _lane(pipe, n: int, shared: _Shared) -> tuple[Value, Value]:
    """Element `n` of a beat as one byte (stage 8) and as int4 (stage 9)."""
    line, host_type, fmt, is_fp8, block = shared
    # Stage 3: the parts of the element.
    element = line[3].word_select(n, 16)
    exponent, fraction = (
        host_exponent(element, host_type[3]),
        host_fraction(element, host_type[3]),
    )
    hidden = exponent.any()
    exponent4 = pipe.register(3, exponent | ~hidden, f"exponent_{n}_")
    significand = pipe.carry(
        4,
        6,
        pipe.register(3, Cat(fraction, hidden), f"significand_{n}_"),
        f"significand_{n}_",
    )
    top, rest_of_nan = (
        pipe.register(3, is_all_ones(exponent, host_type[3]), f"top_{n}_"),
        pipe.register(3, fraction.any(), f"some_{n}_"),
    )
    nan = pipe.carry(5, 8, pipe.register(4, top & rest_of_nan, f"nan_{n}_"), f"nan_{n}_")
    # Stage 4: how far from the block's exponent. The block's answer has the way to all
    # lanes before it, so nothing else is done here.
    distance = pipe.register(4, distance_of(block.reach, exponent4), f"distance_{n}_")
    # Stage 5: how far to shift.
    shift, rise = (
        pipe.register(5, part, f"{name}_{n}_")
        for part, name in zip(
            shift_of(distance, block.lift, is_fp8, fmt[5][Format.FP8_E5M2]),
            ("shift", "rise"),
            strict=True,
        )
    )
    field, over = (
        pipe.carry(6, 7, pipe.register(5, part, f"{name}_{n}_"), f"{name}_{n}_")[7]
        for part, name in zip(
            fp8_field(distance, significand[5][10], fmt[5][Format.FP8_E5M2], is_fp8),
            ("field", "over"),
            strict=True,
        )
    )
    # Stage 6: shift.
    value, guard, lost = (
        pipe.register(6, part, f"{name}_{n}_")
        for part, name in zip(
            shifted(significand[6], shift, rise), ("value", "guard", "lost"), strict=True
        )
    )
    # Stage 7: prepare rounding, or begin to divide.
    sign7, inexact = line[7].word_select(n, 16)[15], guard | lost
    body, up, clamp = (
        pipe.register(7, part, f"{name}_{n}_")
        for part, name in zip(
            byte_parts(field, over, nan[7], value, guard, lost, fmt[7]),
            ("body", "up", "clamp"),
            strict=True,
        )
    )
    at_least_4, rest = (
        pipe.register(7, part, f"{name}_{n}_")
        for part, name in zip(
            first_quotient_bit(value, block.step[7]), ("at_least_4_", "rest"), strict=True
        )
    )
    # Stage 8: round, or divide on.
    sign8 = pipe.register(7, sign7, f"sign_{n}_")
    byte = rounded_byte(sign8, body, up, clamp, nan[8], fmt[8])
    inexact8 = pipe.register(7, inexact, f"inexact_{n}_")
    q = Cat(other_quotient_bits(rest, inexact8, block.step[8], block.step3), at_least_4)
    q9 = pipe.register(8, gated(q, fmt[8][Format.INT4] & ~block.nan), f"q_{n}_")
    # Stage 9: the sign of int4.
    return byte, Mux(pipe.register(8, sign8, f"sign_{n}_"), (-q9)[0:4], q9)


def _two_largest(pipe, line, lanes: int) -> list[Value]:
    """Two magnitudes in stage 3 of which one is the line's largest. Codes without their sign are
    ordered as the magnitudes are."""
    # Critical path: `i.p.line` is registered here and compared in the next stage.
    part = pipe.register(0, pipe.part(0, line), "part")
    four = [part.word_select(n, 16)[0:15] for n in range(lanes)]
    group = 2 if lanes == 8 else 4
    amax = [
        pipe.register(1, largest(four[n : n + group]), f"amax_{n // group}_")
        for n in range(0, lanes, group)
    ]
    half = len(amax) // 2
    if lanes == ELEMENTS:
        return [
            pipe.register(2, largest(amax[n : n + half]), f"amax_{n // half}_") for n in (0, half)
        ]
    # The largest so far stays, from the first beat to the last.
    goes_on = pipe.register(1, pipe.register(0, pipe.beat[0] != 0, "goes_on"), "goes_on")
    so_far = [Signal(15, name=f"amax_{n}_3", reset_less=True) for n in range(2)]
    for n, known in enumerate(so_far):
        pipe.load(known, largest([*amax[n * half : n * half + half], gated(known, goes_on)]))
    return so_far


class _Block:
    """What the lanes of a block share, from the two candidates for its largest magnitude in stage
    3.

    Attributes
    ----------
    reach : REACH_BITS, stage 4
    lift : 1, stage 5; see :func:`.quantise_lane.shift_of`
    step : 5, by stage (7, 8); the int4 scale in 64ths of the power of two in the largest element
    step3 : 6, stage 8; three times that
    nan : 1, stage 8; the payload is void
    scale : 16, stage 9
    """

    def __init__(self, pipe, candidates, is_fp16, fmt):
        # Stage 3: both candidates' answers are computed while the two are compared.
        second_wins = at_least(candidates[1], candidates[0])
        of_both = [_reach(amax, ~is_fp16, fmt) for amax in candidates]
        self.reach, lift, zeros = (
            pipe.first(3, Mux(second_wins, second, first), name)
            for first, second, name in zip(*of_both, ("reach", "lift", "zeros"), strict=True)
        )
        self.lift = pipe.register(4, lift, "lift")
        amax = pipe.first(3, Mux(second_wins, candidates[1], candidates[0]), "amax")

        # Stage 4: the significand of int4's largest element, normalised; the exponent of the scale,
        # for int4 that of the steps below 16.
        bf16 = pipe.register(3, ~is_fp16, "block_bf16_")
        int4, int8 = (
            pipe.carry(4, 9, pipe.register(3, fmt[f], f"block_{f.label}_"), f"block_{f.label}_")
            for f in (Format.INT4, Format.INT8)
        )
        exponent, fraction = host_exponent(amax, bf16), host_fraction(amax, bf16)
        subnormal, top, below = (
            ~exponent.any(),
            is_all_ones(exponent, bf16),
            bf16 & ~exponent[1:8].any(),
        )
        normal = (fraction << zeros)[0:10]
        fraction5 = pipe.register(4, Cat(normal[0:4].any(), normal[4:10]), "fraction")
        # `reach` is the block's exponent and the shift; int4's scale is three exponents below the
        # block's.
        bias = Mux(
            int4[4],
            *(
                Mux(bf16, *(C(host - below_block - shift, 8) for host in (0, 127 - 15)))
                for below_block, shift in ((3, INT4_SHIFT), (0, INT8_SHIFT))
            ),
        )
        exponent5 = pipe.register(4, (self.reach[0:8] + bias)[0:8], "exponent")
        void = pipe.carry(
            5, 9, pipe.register(4, (int4[4] | int8[4]) & top & fraction.any(), "void"), "void"
        )
        zero = pipe.carry(5, 9, pipe.register(4, subnormal & ~fraction.any(), "zero"), "zero")[9]
        below5, least5 = (
            pipe.register(4, below, "below"),
            pipe.register(4, bf16 & (exponent == _LEAST_BF16), "least"),
        )

        # Stage 5: the first step that is large enough; a largest element of exactly seven steps
        # asks for no more.
        needed = _STEPS[0]
        for step, larger in zip(_STEPS, _STEPS[1:], strict=False):
            needed = Mux(fraction5 > 2 * (7 * step - 64), larger, needed)
        # The least exponent of bf16 has no steps below 16 (S = 2^-127), and the exponents below,
        # counted as it, need no more.
        step = Mux(below5 | (least5 & (needed < 16)), 16, needed)[0:5]
        self.step = pipe.carry(6, 9, pipe.register(5, step, "step"), "step")
        self.step3 = pipe.register(7, (self.step[7] + (self.step[7] << 1))[0:6], "step3_")
        self.nan = void[8]
        exponent9 = pipe.carry(5, 9, exponent5, "exponent")[9]

        # Stage 9.
        carry = self.step[9][4]
        mantissa = Mux(carry, self.step[9][1:4], self.step[9][0:3])
        value = Cat(
            (exponent9 + (int4[9] & carry))[0:8], Mux(int4[9], mantissa, 0), C(0, SCALE_BITS - 11)
        )
        self.scale = Mux(void[9], SCALE_NAN, Mux((int4[9] | int8[9]) & ~zero, value, 0))


def _reach(amax, bf16, fmt):
    """``reach``, ``lift``, and how many places an fp16 subnormal lies below a normal value (else
    0); of one candidate in stage 3."""
    int4, e5m2 = fmt[Format.INT4], fmt[Format.FP8_E5M2]
    scaled = int4 | fmt[Format.INT8]
    exponent = host_exponent(amax, bf16)

    def of_zeros(answer, bits):
        """`answer` of the number of places that an fp16 subnormal lies below a normal value; a
        constant for each, so that nothing is left to add."""
        value = C(answer(10), bits)
        for bit in range(10):
            value = Mux(amax[bit], C(answer(10 - bit), bits), value)
        return value

    zeros = of_zeros(lambda n: n, 4)
    subnormal = Mux(
        int4,
        *(
            of_zeros(lambda n, shift=shift: (shift + 1 - n) % (1 << REACH_BITS), REACH_BITS)
            for shift in (INT4_SHIFT, INT8_SHIFT)
        ),
    )
    shift = Mux(int4, INT4_SHIFT, INT8_SHIFT)
    # The special cases are ready before the sum is.
    small, below = ~bf16 & ~amax[10:15].any(), bf16 & int4 & ~amax[8:15].any()
    fp8 = Mux(
        bf16,
        *(
            Mux(
                e5m2,
                *(
                    C(_LEAST_NORMAL[host, f] - 1, REACH_BITS)
                    for f in (Format.FP8_E5M2, Format.FP8_E4M3)
                ),
            )
            for host in (HostType.BF16, HostType.FP16)
        ),
    )
    # Inf counts as the largest finite value; int4 has the same scale and the same q for the power
    # of two above it.
    largest = Mux(bf16, 254 + INT8_SHIFT, 30 + INT8_SHIFT)
    special = Mux(scaled, Mux(small, subnormal, Mux(below, _LEAST_BF16 + INT4_SHIFT, largest)), fp8)
    is_special = ~scaled | small | below | (~int4 & is_all_ones(exponent, bf16))
    return (
        Mux(is_special, special, exponent + shift)[0:REACH_BITS],
        scaled & small & (zeros > shift),
        gated(zeros, small),
    )

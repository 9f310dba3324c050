# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""A register between two blocks, for both directions of a stream."""

from __future__ import annotations

from amaranth.hdl import Assert, Module, Mux, Shape, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["Skid"]


class Skid(wiring.Component):
    """Passes a stream on through registers: neither `o.valid` and its payload nor `i.ready` depends
    on an input of the same cycle.

    Latency 1 cycle, throughput one transfer a cycle. Two places: the one at `o`, and one for the
    transfer that comes while `o` stands still.

    With `late`, for an `o.ready` that comes late in its cycle, the two places are filled in turns
    and `o.p` is the choice of one: `o.ready` steers that choice, and no register of the payload but
    those of the fields in `late`, which come straight from a register.

    Parameters
    ----------
    shape : shape-like
    late : tuple of str, optional
        Names of fields.

    Members
    -------
    i, o : streams
    behind, behind_valid : out
        What comes to `o` behind the transfer that stands there: in the next cycle, if that one is
        taken in this.
    idle : out
        Nothing is held.
    """

    def __init__(self, shape, *, late: tuple[str, ...] | None = None):
        Shape.cast(shape)
        self.shape, self.late = shape, late
        super().__init__(
            {
                "i": In(stream.Signature(shape)),
                "o": Out(stream.Signature(shape)),
                "behind": Out(shape),
                "behind_valid": Out(1),
                "idle": Out(1),
            }
        )
        #: What was at `i` when the transfer at `o` stood still, when `spare_valid`.
        self.spare, self.spare_valid = Signal(shape), Signal()

    def elaborate(self, platform):
        m = Module()
        spare, spare_valid = self.spare, self.spare_valid
        moves = Signal()
        m.d.comb += [
            moves.eq(~self.o.valid | self.o.ready),
            self.i.ready.eq(~spare_valid),
            self.idle.eq(~self.o.valid & ~spare_valid),
        ]
        with m.If(~spare_valid):
            m.d.sync += spare.eq(self.i.p)
        m.d.comb += [
            Value.cast(self.behind).eq(Mux(spare_valid, Value.cast(spare), Value.cast(self.i.p))),
            self.behind_valid.eq(spare_valid | self.i.valid),
        ]
        any_left = self.o.valid & ~self.o.ready
        m.d.sync += [
            self.o.valid.eq(self.behind_valid | any_left),
            spare_valid.eq(self.behind_valid & any_left),
        ]
        if self.late is None:
            with m.If(moves):
                m.d.sync += self.o.p.eq(self.behind)
        else:
            places, puts, gets = (
                [Signal(self.shape, name=f"place_{k}") for k in range(2)],
                Signal(),
                Signal(),
            )
            for k, place in enumerate(places):
                with m.If(~spare_valid & (puts == k)):
                    m.d.sync += place.eq(self.i.p)
            with m.If(self.i.valid & ~spare_valid):
                m.d.sync += puts.eq(~puts)
            with m.If(self.o.valid & self.o.ready):
                m.d.sync += gets.eq(~gets)
            m.d.comb += self.o.p.eq(Mux(gets, Value.cast(places[1]), Value.cast(places[0])))
            m.d.comb += [
                Assert(puts == gets ^ self.o.valid ^ spare_valid),
                Assert(
                    ~spare_valid
                    | (Mux(gets, Value.cast(places[0]), Value.cast(places[1])) == Value.cast(spare))
                ),
            ]
            for name in self.late:
                held = Signal.like(self.o.p[name], name=f"held_{name}")
                with m.If(moves):
                    m.d.sync += held.eq(self.behind[name])
                m.d.comb += self.o.p[name].eq(held)
        m.d.sync += Assert(~spare_valid | self.o.valid)
        return m

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""A skid buffer: a register between two blocks, for both directions of a stream. One transfer a
cycle, which takes 1 cycle."""

from __future__ import annotations

from amaranth.hdl import Assert, Module, Mux, Shape, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["Skid"]


class Skid(wiring.Component):
    """A skid buffer: neither `o.valid` with its payload nor `i.ready` depends on an input of the
    same cycle.

    Latency: `LATENCY` cycle from `i` to `o`. One transfer in each cycle (`INTERVAL`). No error
    cases. Two places: the one at `o`, and one for the transfer that comes while `o` stands still.

    `registered` is for an `o.ready` on a critical path: the two places are filled in turns and
    `o.p` is a multiplexer of both, so that `o.ready` enables a single bit, and no register of the
    payload but those of the fields in `registered`.

    Parameters
    ----------
    shape : shape-like
        Of the payload.
    registered : tuple of str, optional
        The fields of `o.p` that come straight from a register; all of them when left out.

    Members
    -------
    i, o : streams
    behind : out
        What comes to `o` behind the transfer that stands there: in the next cycle, if that one is
        taken in this. Its `item`, while `valid`.
    idle : out
        Nothing is held.
    """

    LATENCY = 1
    INTERVAL = 1

    def __init__(self, shape, *, registered: tuple[str, ...] | None = None):
        Shape.cast(shape)
        self.shape, self.registered = shape, registered
        super().__init__(
            {
                "i": In(stream.Signature(shape)),
                "o": Out(stream.Signature(shape)),
                "behind": Out(data.StructLayout({"valid": 1, "item": shape})),
                "idle": Out(1),
            }
        )
        #: What was at `i` when the transfer at `o` stood still, when `spare_valid`.
        self.spare, self.spare_valid = Signal(shape), Signal()

    def elaborate(self, platform):
        m = Module()
        spare, spare_valid, behind = self.spare, self.spare_valid, self.behind
        moves = Signal()
        m.d.comb += [
            moves.eq(~self.o.valid | self.o.ready),
            self.i.ready.eq(~spare_valid),
            self.idle.eq(~self.o.valid & ~spare_valid),
        ]
        with m.If(~spare_valid):
            m.d.sync += spare.eq(self.i.p)
        m.d.comb += [
            Value.cast(behind.item).eq(Mux(spare_valid, Value.cast(spare), Value.cast(self.i.p))),
            behind.valid.eq(spare_valid | self.i.valid),
        ]
        any_left = self.o.valid & ~self.o.ready
        m.d.sync += [
            self.o.valid.eq(behind.valid | any_left),
            spare_valid.eq(behind.valid & any_left),
        ]
        if self.registered is None:
            with m.If(moves):
                m.d.sync += self.o.p.eq(behind.item)
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
            for name in self.registered:
                held = Signal.like(self.o.p[name], name=f"held_{name}")
                with m.If(moves):
                    m.d.sync += held.eq(behind.item[name])
                m.d.comb += self.o.p[name].eq(held)
        m.d.sync += Assert(~spare_valid | self.o.valid)
        return m

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Zeros to every line of the device's memory, and a cold tier that forgets: what a sanitize does
beside the endpoint. A line a cycle; what the endpoint says passes in the cycle."""

from __future__ import annotations

from amaranth.hdl import Assert, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config
from kelp_spec.metadata import ColdOp, ColdStatus

from ..layouts import Layouts

__all__ = ["MediaEraser"]


class MediaEraser(wiring.Component):
    """Between the endpoint and what holds its data. While `go` is on, with the endpoint at rest,
    each line of DRAM is written with zeros, once, AW and W beside each other, so that memory may
    take either first; and the tier gets one ERASE (docs/cold_tier.md), whose id is none of the
    endpoint's. When memory has confirmed every line and the tier has completed, `done` is on until
    `go` is off. There is no time limit: an erasure of the tier takes what it takes.

    Latency: `LATENCY` of the endpoint's messages, which pass combinationally, and of `go` to the
    first line. Interval: `INTERVAL`, a line a cycle. Errors: `failed`.

    Parameters
    ----------
    config : Config
    axi : wiring.Signature
        Of the memory port, as a manager has it.

    Members
    -------
    inner_axi : In axi, outer_axi : Out axi
    inner_command : In, outer_command : Out stream of cold_command
    outer_completion : In, inner_completion : Out stream of cold_completion
    go : in
    done : out
    failed : out
        With `done`: memory or the tier has answered with an error.
    progress : out
        Percent; 0 while `go` is off, 99 when only the tier is left.
    """

    LATENCY = 0
    INTERVAL = 1
    #: Percents that the lines are shown as.
    _SHOWN = 98

    def __init__(self, *, config: Config, axi: wiring.Signature):
        self.config, self.axi = config, axi
        layouts = Layouts(config)
        command = stream.Signature(layouts.cold_command)
        completion = stream.Signature(layouts.cold_completion)
        super().__init__(
            {
                "inner_axi": In(axi),
                "outer_axi": Out(axi),
                "inner_command": In(command),
                "outer_command": Out(command),
                "outer_completion": In(completion),
                "inner_completion": Out(completion),
                "go": In(1),
                "done": Out(1),
                "failed": Out(1),
                "progress": Out(7),
            }
        )

    def elaborate(self, platform):
        m = Module()
        written, forgotten = self._memory(m), self._tier(m)
        m.d.comb += self.done.eq(self.go & written & forgotten)
        with m.If(~self.go):
            m.d.sync += self.failed.eq(0)
        return m

    def _memory(self, m):
        """Whether every line is confirmed."""
        lines, inner, outer = self.config.dram_lines, self.inner_axi, self.outer_axi
        asked, given, confirmed = (Signal(range(lines + 1), name=name) for name in "awb")
        all_of_them = Signal()
        wiring.connect(m, wiring.flipped(inner).ar, wiring.flipped(outer).ar)
        wiring.connect(m, wiring.flipped(outer).r, wiring.flipped(inner).r)
        m.d.comb += [
            outer.aw.valid.eq(Mux(self.go, asked != lines, inner.aw.valid)),
            outer.aw.p.eq(inner.aw.p),
            inner.aw.ready.eq(outer.aw.ready & ~self.go),
            # Not behind AW: memory may wait for both before it takes either.
            outer.w.valid.eq(Mux(self.go, given != lines, inner.w.valid)),
            outer.w.p.eq(inner.w.p),
            inner.w.ready.eq(outer.w.ready & ~self.go),
            inner.b.valid.eq(outer.b.valid & ~self.go),
            inner.b.p.eq(outer.b.p),
            outer.b.ready.eq(inner.b.ready | self.go),
            all_of_them.eq(confirmed == lines),
        ]
        with m.If(self.go):
            m.d.comb += [
                outer.aw.p.eq(0),
                outer.aw.p.addr.eq(asked << 6),
                outer.aw.p.size.eq(6),
                outer.aw.p.burst.eq(1),
                outer.w.p.eq(0),
                outer.w.p.strb.eq(~0),
                outer.w.p.last.eq(1),
            ]
            m.d.sync += [
                asked.eq(asked + (outer.aw.valid & outer.aw.ready)),
                given.eq(given + (outer.w.valid & outer.w.ready)),
                confirmed.eq(confirmed + outer.b.valid),
            ]
            with m.If(outer.b.valid & (outer.b.p.resp != 0)):
                m.d.sync += self.failed.eq(1)
        with m.Else():
            m.d.sync += [asked.eq(0), given.eq(0), confirmed.eq(0)]
        m.d.sync += [
            Assert(~(self.go & (inner.aw.valid | inner.w.valid)), "the endpoint is not at rest"),
            Assert(
                ~(self.go & outer.b.valid) | ((confirmed != given) & (confirmed != asked)),
                "confirmed and not given",
            ),
        ]
        self._show(m, all_of_them)
        return all_of_them

    def _show(self, m, all_of_them):
        step = -(-self.config.dram_lines // self._SHOWN)
        part, percent = Signal(range(step)), Signal(7)
        with m.If(~self.go):
            m.d.sync += [part.eq(0), percent.eq(0)]
        with m.Elif(self.outer_axi.b.valid):
            m.d.sync += part.eq(part + 1)
            with m.If(part == step - 1):
                m.d.sync += [part.eq(0), percent.eq(percent + 1)]
        m.d.comb += self.progress.eq(Mux(all_of_them, self._SHOWN + 1, percent))

    def _tier(self, m):
        """Whether the tier has forgotten."""
        own = self.config.misses + self.config.write_backs
        inner, outer = self.inner_command, self.outer_command
        told, telling = self.outer_completion, self.inner_completion
        sent, forgotten, mine = Signal(), Signal(), Signal()
        m.d.comb += [
            outer.valid.eq(Mux(self.go, ~sent, inner.valid)),
            outer.p.eq(inner.p),
            inner.ready.eq(outer.ready & ~self.go),
            # What nobody has asked for is taken and ignored, as the endpoint does.
            mine.eq(told.p.id.index == own),
            telling.valid.eq(told.valid & ~mine),
            telling.p.eq(told.p),
            told.ready.eq(telling.ready | mine),
        ]
        with m.If(self.go):
            m.d.comb += [outer.p.eq(0), outer.p.op.eq(ColdOp.ERASE), outer.p.id.index.eq(own)]
            with m.If(outer.ready):
                m.d.sync += sent.eq(1)
            with m.If(sent & told.valid & mine):
                m.d.sync += forgotten.eq(1)
                with m.If(~forgotten & (told.p.status != ColdStatus.OK)):
                    m.d.sync += self.failed.eq(1)
        with m.Else():
            m.d.sync += [sent.eq(0), forgotten.eq(0)]
        m.d.sync += Assert(~(self.go & inner.valid), "the endpoint is not at rest")
        return forgotten

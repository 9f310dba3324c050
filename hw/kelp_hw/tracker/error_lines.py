# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Brings memory's errors to the frame table: finds the host lines of a DRAM line, waits for a gap
in the pipeline (docs/design.md §4). One report at a time: it pauses the pipeline after one cycle
for each line of the page and 2 cycles more; the next begins 1 cycle after its transfer."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config

from ..layouts import Layouts
from .page_address import PageAddress
from .signatures import Pause

__all__ = ["ErrorLines"]


class ErrorLines(wiring.Component):
    """Takes reports one at a time and transfers each when the frame table has executed it.

    A report that `spoils` is for all host lines whose payload or scale lies in its DRAM line:
    each line of the page is placed, one a cycle. Lines that the page does not have may be among
    them; the frame table, which knows which were written, leaves them out. Then `pause` keeps
    requests and engines out of the pipeline, and the frame table takes the report when nothing is
    left in it: behind all ops that had entered, before all others.

    Latency: `config.page_lines` + `LATENCY` cycles from `i` to `pause` (`LATENCY` − 1 where nothing
    is spoiled), then the wait for `paused`. One report at a time; the next begins `INTERVAL` cycle
    after the transfer.

    Parameters
    ----------
    config : Config

    Members
    -------
    i : in, stream of memory_error
    hold : out, Pause
        Empties the pipeline and keeps it empty.
    o : out, stream of frame_error
        Its payload stands until `executed`.
    executed : in
        The frame table has executed it.
    """

    LATENCY = 2
    INTERVAL = 1

    def __init__(self, *, config: Config):
        self.config = config
        layouts = Layouts(config)
        super().__init__(
            {
                "i": In(stream.Signature(layouts.memory_error)),
                "hold": Out(Pause()),
                "o": Out(stream.Signature(layouts.frame_error)),
                "executed": In(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        i, o, lines = self.i, self.o, self.config.page_lines
        m.submodules.place = place = PageAddress(config=self.config)
        line, mask = Signal(range(lines + 1)), Signal(lines)
        m.d.comb += [
            place.kv_line.eq(line),
            place.stored.eq(i.p.stored),
            o.p.frame.eq(i.p.frame),
            o.p.offset.eq(i.p.offset),
            o.p.spoils.eq(i.p.spoils),
            o.p.lines.eq(mask),
        ]
        with m.FSM():
            with m.State("IDLE"):
                m.d.sync += line.eq(0)
                with m.If(i.valid):
                    m.next = "PAUSE"
                    with m.If(i.p.spoils):
                        m.next = "PLACE"
            with m.State("PLACE"):
                # What comes out is of the line before.
                here = (place.o.offset == i.p.offset) | (
                    place.o.scaled & (place.o.scale_offset == i.p.offset)
                )
                m.d.sync += [line.eq(line + 1), mask.eq(Cat(mask[1:], here))]
                with m.If(line == lines):
                    m.next = "PAUSE"
            with m.State("PAUSE"):
                m.d.comb += [self.hold.pause.eq(1), o.valid.eq(self.hold.paused)]
                with m.If(self.hold.paused & o.ready):
                    m.next = "EXECUTE"
            with m.State("EXECUTE"):
                m.d.comb += [self.hold.pause.eq(1), i.ready.eq(self.executed)]
                with m.If(self.executed):
                    m.next = "IDLE"
        return m

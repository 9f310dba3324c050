# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""A FIFO that an item bypasses when nothing waits, so that the pipeline behind it never has to wait
(docs/design.md §4). One item a cycle; combinational from `i` to `o` when nothing waits."""

from __future__ import annotations

from amaranth.hdl import Assert, Module, Mux, Signal, Value
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from .protected import CheckedWord, Fault

__all__ = ["BypassFifo"]


class BypassFifo(wiring.Component):
    """A FIFO of `depth` rows whose input cannot wait: its sender counts the places.

    Latency: `LATENCY` cycles (combinational) from `i` to `o` when nothing waits. One item in each
    cycle (`INTERVAL`); of items that wait, one each `REGISTERED_INTERVAL` cycles when `registered`.
    Errors: an item without a place is an assertion. `o` obeys the stream rule: an item that
    bypasses the rows and is not taken stands in `oldest` in the next cycle. Critical path: no
    enable or address of the rows depends on `o.ready`; the row at the end is always written, and
    counts only when the item did not bypass the rows.

    Parameters
    ----------
    depth : int
        A power of two; 16 rows are one level of an ECP5's distributed RAM.
    shape : shape-like
        Of an item.
    registered : bool
        `oldest` is a register, for items that come two cycles apart on average: it loads in every
        cycle, from the oldest row or, when nothing waits, from `i`. An item that waits behind
        another one is in it two cycles after the other one left.
    protect : bool
        The rows carry check bits, with encoder and decoder combinational.

    Members
    -------
    i : always-ready stream
    o : stream
    oldest : out
        The oldest item that waits, while `valid`; `o.p` is its `item` then.
    level : out
        How many items wait.
    fault : out, Fault
        Of `oldest`: `corrected` when it leaves, `uncorrected` while it is there. Zero when not
        protected.
    """

    LATENCY = 0
    INTERVAL = 1
    REGISTERED_INTERVAL = 2

    def __init__(self, *, depth: int, shape, registered: bool = False, protect: bool = False):
        if not isinstance(depth, int) or depth < 2 or depth & (depth - 1):
            raise ValueError(f"depth = {depth!r} is refused; legal: a power of two, 2 and up")
        self.depth, self.shape, self.registered = depth, shape, registered
        self.word = CheckedWord(shape, protect=protect)
        super().__init__(
            {
                "i": In(stream.Signature(shape, always_ready=True)),
                "o": Out(stream.Signature(shape)),
                "oldest": Out(data.StructLayout({"valid": 1, "item": shape})),
                "level": Out(range(depth + 1)),
                "fault": Out(Fault),
            }
        )
        # State that proofs look at (kelp_verif.formal.fifo_specs): `oldest`.
        self.row, self.row_valid = Signal(shape), Signal()

    def elaborate(self, platform):
        m = Module()
        m.submodules.rows = rows = memory.Memory(
            shape=self.word.code_bits, depth=self.depth, init=()
        )
        write, read = rows.write_port(), rows.read_port(domain="comb")
        begin, end, level = Signal(range(self.depth)), Signal(range(self.depth)), self.level
        waits = Signal()  # level != 0
        takes, keeps = Signal(), Signal()
        row, item = Value.cast(self.row), Value.cast(self.i.p)
        oldest, single, double = self.word.decode(m, read.data)
        fault = Signal(Fault)  # of `row`
        m.d.comb += [
            write.en.eq(self.i.valid),
            write.addr.eq(end),
            write.data.eq(self.word.encode(m, item)),
            read.addr.eq(begin),
            self.oldest.valid.eq(self.row_valid),
            Value.cast(self.oldest.item).eq(row),
            self.o.valid.eq(Mux(waits, self.row_valid, self.i.valid)),
            # By `row_valid`, not `waits`, which has as many bits of `row` to choose: what is not
            # offered may be anything.
            Value.cast(self.o.p).eq(Mux(self.row_valid, row, item)),
            takes.eq(self.row_valid & self.o.ready),
            keeps.eq(self.i.valid & (waits | ~self.o.ready)),
            self.fault.corrected.eq(takes & fault.corrected),
            self.fault.uncorrected.eq(self.row_valid & fault.uncorrected),
        ]
        if self.registered:
            m.d.sync += [
                row.eq(Mux(waits, oldest, item)),
                self.row_valid.eq(Mux(waits, ~takes, keeps)),
                fault.corrected.eq(waits & single.any()),
                fault.uncorrected.eq(waits & double.any()),
            ]
        else:
            m.d.comb += [
                row.eq(oldest),
                self.row_valid.eq(waits),
                fault.corrected.eq(single.any()),
                fault.uncorrected.eq(double.any()),
            ]
        with m.If(takes):
            m.d.sync += begin.eq(begin + 1)
        with m.If(keeps):
            m.d.sync += end.eq(end + 1)
        with m.If(takes != keeps):
            m.d.sync += [level.eq(Mux(keeps, level + 1, level - 1)), waits.eq(keeps | (level != 1))]
        m.d.sync += [
            Assert(~keeps | takes | (level != self.depth), "an item without a place"),
            Assert(waits == (level != 0)),
        ]
        return m

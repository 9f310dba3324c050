# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Data ops to memory and back, in order, through two line buffers and the codec (spec §8,
docs/design.md §4 and §10). One op a cycle while memory gives one line a cycle; AR follows an op
after 3 cycles, the answer follows R by the head's latency."""

from __future__ import annotations

from amaranth.hdl import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from kelp_spec.config import Config

from ..layouts import Layouts
from ..lib.axi import RESP_OKAY, AxiSignature
from ..lib.order_fifo import OrderFifo
from ..lib.protected import BlockFault, gather, used
from .error_reports import ErrorReports
from .flush import FlushUnit
from .front import DataFront
from .head import DataHead
from .line_slots import LineSlots
from .order import ORDER_DEPTH, order_layout
from .scale_slots import ScaleSlots
from .write_out import WriteOut
from .write_path import WritePath

__all__ = ["DataPath", "axi_signature"]


def axi_signature(config: Config) -> AxiSignature:
    """The memory port that a configuration's data path has."""
    slots = order_layout(config)
    return AxiSignature(
        address_bits=config.dram_line_bits + 6,
        id_bits=1 + max(slots["line_slot"].width, slots["scale_slot"].width),
    )


class DataPath(wiring.Component):
    """Executes data ops strictly in the order of `i` and answers them in that order on `o`.

    **Ops.** READ answers DATA with the dequantised line, or without a look at memory POISON when it
    has `poison`, else ZEROS when it has `fresh`. WRITE answers CMP when the line's slot holds the
    new data; `partial` keeps the bytes that the write's byte enables leave out, `fresh` takes them
    as zeros. ANSWER answers what it carries. FLUSH is not answered: `o_flushed` reports it when all
    stored to its frame before it is in memory and no slot holds the frame's lines, so that memory
    may then be changed by others. (Ops on the frame behind the flush are served as always; the
    report then says only that what came before is in memory.) **Write data.** `i_write` fills a
    slot from when `o_write_slot` offers it, and its WRITE frees it, or an ANSWER with `has_write`.
    **Memory.** AXI4, one line per transaction; ID = slot, highest bit set for scales. At most one
    read and one write are under way per slot, and R and B are always ready. Memory may answer in
    any order.

    **Errors.** Each response other than OKAY is reported on `o_error`, by the DRAM line that it
    concerns: one report for all of a line's errors that come before it is taken. A line read with
    an error is answered as poison, and read anew for the next op that wants it. Two writes are lost
    (`spoils`): one that memory did not take, and a partial one into a line that was read with an
    error. READs of that DRAM line are answered with poison until the report's transfer, and so are
    READs that came before it. The transfer says that the frame table has poisoned the host lines
    with payload or scale in that DRAM line.

    Throughput: one op per cycle while memory gives one line per cycle; of int8 and int4, in random
    order, one op in two cycles (two lines each). Latency: `i` → AR `LATENCY_TO_AR` cycles, R → `o`
    `LATENCY` cycles (the head's); neither counts waits for other ops. Up to `line_slots` +
    `scale_slots` reads are outstanding.

    Parameters
    ----------
    config : Config

    Members
    -------
    i : stream of data_op
    i_write : write data, taken always
    o_write_slot : stream of free write slots
    o : stream of answer
    o_flushed : stream of Layouts.flush
    o_error : stream of memory_error
        Its transfer: the frame table has executed it, in the order in which it emits ops.
    waiting : in
        Ops that the frame table has emitted and that have not come on `i`.
    axi : AxiSignature
    idle : no op waits, nothing is under way or dirty
    fault : out, BlockFault
        With `config.protect`: of every memory of the data path. None can be rebuilt.
    """

    LATENCY_TO_AR = DataFront.LATENCY_TO_AR
    #: Cycles without an op after which everything dirty is written.
    DRAIN_AFTER = 32

    def __init__(self, *, config: Config):
        if not isinstance(config, Config):
            raise TypeError(f"config must be a kelp_spec.Config, not {config!r}")
        self.config = config
        self.layouts = layouts = Layouts(config)
        self.axi_signature = axi_signature(config)
        super().__init__(
            {
                "i": In(stream.Signature(layouts.data_op)),
                "i_write": In(stream.Signature(layouts.write_data, always_ready=True)),
                "o_write_slot": Out(stream.Signature(config.write_slot_bits)),
                "o": Out(stream.Signature(layouts.answer)),
                "o_flushed": Out(stream.Signature(layouts.flush)),
                "o_error": Out(stream.Signature(layouts.memory_error)),
                "waiting": In(DataFront.COUNT_BITS),
                "axi": Out(self.axi_signature),
                "idle": Out(1),
                **({"fault": Out(BlockFault)} if config.protect else {}),
            }
        )

    @property
    def LATENCY(self) -> int:
        return DataHead(config=self.config).LATENCY

    @property
    def INTERVAL(self) -> int:
        return DataHead(config=self.config).INTERVAL

    def elaborate(self, platform):
        m = Module()
        c = self.config
        m.submodules.front = front = DataFront(config=c, axi=self.axi_signature)
        m.submodules.order = order = OrderFifo(
            width=order_layout(c).size, depth=ORDER_DEPTH, protect=c.protect
        )
        m.submodules.head = head = DataHead(config=c)
        m.submodules.lines = lines = LineSlots(config=c)
        m.submodules.scales = scales = ScaleSlots(config=c)
        m.submodules.writes = writes = WritePath(config=c)
        m.submodules.flush = flush = FlushUnit(config=c)
        m.submodules.errors = errors = ErrorReports(config=c)
        m.submodules.out = out = WriteOut(
            axi=self.axi_signature,
            line_bits=c.dram_line_bits,
            line_slots=c.line_slots,
            scale_slots=c.scale_slots,
            protect=c.protect,
        )
        if c.protect:
            gather(
                m,
                self.fault,
                *(block.fault for block in (front, order, head, lines, scales, writes, flush, out)),
                # The head stores a result in the cycle after it has addressed it.
                used(writes.result_fault, head.lines.store.valid),
            )

        connect(m, flipped(self.i), front.i)
        connect(m, front.lines, lines.look)
        connect(m, front.scales, scales.look)
        connect(m, front.o, order.i)
        connect(m, front.o_write, writes.i)
        m.d.comb += front.room.eq((order.level <= ORDER_DEPTH - 2) & writes.room)

        connect(m, order.o, head.i)
        connect(m, head.lines, lines.head)
        connect(m, head.scales, scales.head)
        connect(m, head.writes, writes.head)
        connect(m, head.o_flush, flush.i)
        connect(m, head.o, flipped(self.o))

        connect(m, flipped(self.i_write), writes.i_data)
        connect(m, writes.o_slot, flipped(self.o_write_slot))
        connect(m, flush.lines, lines.flush)
        connect(m, flush.scales, scales.flush)
        connect(m, flush.o, flipped(self.o_flushed))

        connect(m, errors.lines, lines.errors)
        connect(m, errors.scales, scales.errors)
        connect(m, errors.o, flipped(self.o_error))
        m.d.comb += [
            front.poisoned.valid.eq(errors.o.valid & errors.o.ready & errors.o.p.spoils),
            front.poisoned.p.eq(errors.o.p.frame),
            front.waiting.eq(self.waiting),
        ]

        connect(m, front.ar, flipped(self.axi.ar))
        connect(m, lines.write_back, out.lines)
        connect(m, scales.write_back, out.scales)
        connect(m, out.aw, flipped(self.axi.aw))
        connect(m, out.w, flipped(self.axi.w))
        # A slot awaits what comes, so R and B never have to wait.
        read, response = self.axi.r, self.axi.b
        m.d.comb += [read.ready.eq(1), response.ready.eq(1)]
        for buffer, of_scales in ((lines, 0), (scales, 1)):
            m.d.comb += [
                buffer.fill.valid.eq(read.valid & (read.p.id[-1] == of_scales)),
                buffer.fill.p.slot.eq(read.p.id),
                buffer.fill.p.data.eq(read.p.data),
                buffer.fill.p.error.eq(read.p.resp != RESP_OKAY),
                buffer.written.valid.eq(response.valid & (response.p.id[-1] == of_scales)),
                buffer.written.p.slot.eq(response.p.id),
                buffer.written.p.error.eq(response.p.resp != RESP_OKAY),
            ]

        # Without ops there is nothing to combine with.
        resting = Signal()
        rest = Signal(range(self.DRAIN_AFTER + 1))
        m.d.comb += resting.eq(~self.i.valid & front.idle & (order.level == 0) & head.idle)
        with m.If(~resting):
            m.d.sync += rest.eq(0)
        with m.Elif(rest != self.DRAIN_AFTER):
            m.d.sync += rest.eq(rest + 1)
        drain = Signal()
        m.d.sync += drain.eq(resting & (rest == self.DRAIN_AFTER))
        m.d.comb += [
            lines.drain.eq(drain),
            scales.drain.eq(drain),
            self.idle.eq(resting & writes.idle & out.idle & flush.idle & lines.idle & scales.idle),
        ]
        return m

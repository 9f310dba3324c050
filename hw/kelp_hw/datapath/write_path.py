# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""From write store to stored form: quantises full writes ahead of the head, and partial ones when
the head has read their line. A full write takes 3 cycles and the quantiser's latency, one line in
each of the quantiser's intervals."""

from __future__ import annotations

from amaranth.hdl import Assert, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out, connect, flipped

from kelp_spec.config import Config
from kelp_spec.formats import LINE_BITS, LINE_BYTES

from ..codec.codec_lane import gated
from ..codec.quantise import Quantiser
from ..codec.raw_lines import RawQuantiser
from ..layouts import Layouts
from ..lib.protected import Fault, fault_ports, fifo_of, memory_of, merged, used
from ..lib.wide_memory import WideMemory
from .signatures import HeadWrites, full_write_layout
from .write_store import WriteStore

__all__ = ["WritePath"]

_SCALE_USED = 11  #: bits of a scale code that are not always zero: int4's exponent and mantissa


class WritePath(wiring.Component):
    """One quantiser for both kinds of writes; its results wait by write slot until the head stores
    them.

    **Full writes** come on `i` in order and are consumed by the head in that order. **Partial
    writes**, one at a time, come on `head.merge`: the enabled bytes of the write slot are put over
    the line as it was. They go before full writes. Both leave their result by write slot.

    Latency `LATENCY` cycles of a full write, from `i` to `head.ready`: 3 and the quantiser's. One
    line in `INTERVAL` cycles: the quantiser's, `32 // codec_lanes`.

    Parameters
    ----------
    config : Config

    Members
    -------
    i : stream of full_write_layout
    room : out
        In the next cycle `i` takes an op, too.
    head : In(HeadWrites)
    i_data : write data, always-ready
    o_slot : stream of free write slots
    idle : out
        No write slot is out.
    fault : out, Fault
        With `config.protect`: of what is read and used here.
    result_fault : out, Fault
        With `config.protect`: of the row at `head.result`.
    """

    #: Full writes that may wait for the quantiser; it takes one per cycle unless a partial one
    #: comes between.
    QUEUED = 16

    def __init__(self, *, config: Config):
        self.config = config
        self.i_layout = full_write_layout(config)
        super().__init__(
            {
                "i": In(stream.Signature(self.i_layout)),
                "room": Out(1),
                "head": In(HeadWrites(config)),
                "i_data": In(stream.Signature(Layouts(config).write_data, always_ready=True)),
                "o_slot": Out(stream.Signature(config.write_slot_bits)),
                "idle": Out(1),
                **fault_ports(config.protect, "fault", "result_fault"),
            }
        )

    @property
    def LATENCY(self) -> int:
        return 3 + self._quantiser(0).LATENCY

    @property
    def INTERVAL(self) -> int:
        return self._quantiser(0).INTERVAL

    def _quantiser(self, meta_shape) -> Quantiser:
        if not self.config.codecs:
            return RawQuantiser(meta_shape=meta_shape)
        return Quantiser(meta_shape=meta_shape, lanes=self.config.codec_lanes)

    def elaborate(self, platform):
        m = Module()
        c = self.config
        head, merge = self.head, self.head.merge
        m.submodules.store = store = WriteStore(config=c)
        connect(m, flipped(self.i_data), store.i)
        connect(m, store.o_slot, flipped(self.o_slot))
        connect(m, flipped(head.free), store.free)
        m.d.comb += self.idle.eq(store.idle)
        meta_layout = data.StructLayout({"partial": 1, "write_slot": c.write_slot_bits})
        quantiser = self._quantiser(meta_layout)
        m.submodules.quantiser = quantiser
        m.submodules.queue = queue = fifo_of(
            SyncFIFO, shape=self.i_layout, depth=self.QUEUED, protect=c.protect
        )
        queued = self.i_layout(Value.cast(queue.r_data))
        m.d.comb += [
            queue.w_en.eq(self.i.valid),
            queue.w_data.eq(self.i.p),
            self.i.ready.eq(queue.w_rdy),
            self.room.eq(queue.level <= self.QUEUED - 2),
        ]

        # Stage 0 addresses the write store; stage 1 has its data, which holds while the quantiser
        # stands still.
        reading_valid = Signal()
        reading = Signal(self.i_layout)
        partial = Signal()
        moves = Signal()
        # `merge` stays up until its line has entered the quantiser, and must be read only once
        start = Signal()
        m.d.comb += [
            moves.eq(~reading_valid | quantiser.i.ready),
            start.eq(merge.valid & ~(reading_valid & partial)),
            store.read_en.eq(moves),
            store.read_slot.eq(Mux(start, merge.p.write.write_slot, queued.write_slot)),
            queue.r_en.eq(moves & ~start),
        ]
        with m.If(moves):
            m.d.sync += [
                reading_valid.eq(start | queue.r_rdy),
                partial.eq(start),
                reading.eq(Mux(start, merge.p.write, queued)),
            ]

        # A full write's byte enables are all ones, so that nothing of `merge_line` is in it,
        # whatever that is.
        row = store.o_row
        m.d.comb += [
            quantiser.i.valid.eq(reading_valid),
            quantiser.i.p.line.eq(
                Cat(
                    Mux(
                        row.byte_enable[n],
                        row.data.word_select(n, 8),
                        gated(merge.p.line.word_select(n, 8), ~merge.p.fresh),
                    )
                    for n in range(LINE_BYTES)
                )
            ),
            quantiser.i.p.format.eq(reading.format),
            quantiser.i.p.host_type.eq(reading.host_type),
            quantiser.i.p.meta.partial.eq(partial),
            quantiser.i.p.meta.write_slot.eq(reading.write_slot),
            merge.ready.eq(reading_valid & partial & quantiser.i.ready),
            quantiser.o.ready.eq(1),
        ]

        self._keep_results(m, quantiser)
        if c.protect:
            fault = used(store.row_fault, reading_valid)
            fault = Fault(Cat(fault.corrected & quantiser.i.ready, fault.uncorrected))
            m.d.comb += self.fault.eq(merged(store.free_fault, queue.fault, fault))
        waiting = Signal(range(c.write_slots + 1))
        m.d.sync += waiting.eq(
            waiting + (quantiser.o.valid & ~quantiser.o.p.meta.partial) - head.consume
        )
        m.d.comb += head.ready.eq(waiting != 0)
        m.d.sync += [
            Assert(~head.consume | head.ready, "a write is stored before it is quantised"),
            Assert(
                ~reading_valid | partial | row.byte_enable.all(), "a full write leaves bytes out"
            ),
        ]
        return m

    def _keep_results(self, m: Module, quantiser: Quantiser) -> None:
        """Results wait by write slot for the head."""
        c, head = self.config, self.head
        # Bits that are always zero are not stored: synthesis gives their read register a reset of
        # its own, and then finds no block RAM that fits.
        stored = data.StructLayout({"payload": LINE_BITS, "scale": _SCALE_USED})
        m.submodules.results = results = memory_of(
            WideMemory,
            depth=c.write_slots,
            shape=stored,
            protect=c.protect,
            transparent=False,
            block=c.wide_blocks,
        )
        done = quantiser.o.p
        m.d.comb += [
            results.write_en.eq(quantiser.o.valid),
            results.write_address.eq(done.meta.write_slot),
            results.write_data.payload.eq(done.payload),
            results.write_data.scale.eq(done.scale),
            results.read_en.eq(1),
            results.read_address.eq(head.slot),
            head.result.payload.eq(results.read_data.payload),
            head.result.scale.eq(results.read_data.scale),
            head.merge_done.eq(quantiser.o.valid & done.meta.partial),
        ]
        if c.protect:
            m.d.comb += self.result_fault.eq(results.fault)

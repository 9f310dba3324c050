# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""From write store to stored form: quantises full writes ahead of the head, and partial ones when
the head has read their line."""

from __future__ import annotations

from amaranth.hdl import Assert, Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config
from kelp_spec.formats import FORMAT_BITS, LINE_BITS, LINE_BYTES, SCALE_BITS

from ..codec.codec_lane import gated
from ..codec.quantise import Quantiser
from ..codec.raw_lines import RawQuantiser
from ..lib.wide_memory import WideMemory
from .write_store import WriteStore

__all__ = ["WritePath"]

_SCALE_USED = 11  #: bits of a scale code that are not always zero: int4's exponent and mantissa


class WritePath(wiring.Component):
    """One quantiser for both kinds of writes; its results wait by write slot until the head stores
    them.

    **Full writes** come on `i` in order (`room`: there is a place in the next cycle, too) and are
    consumed by the head in that order: `ready` says that the oldest one not yet `consume`d is
    quantised. **Partial writes**, one at a time: `merge` (held until `merged`) takes `merge_line`,
    the line as it was (`merge_fresh`: zeros), puts the enabled bytes of write slot `merge_slot`
    over it, and quantises it; `merge_done` pulses when its result is there. They go before full
    writes. **Result.** `read_slot` → `o_result` one cycle later, for that cycle.

    Latency of a full write from `i` to `ready`: 3 cycles and the quantiser's. Throughput one line
    in `32 // codec_lanes` cycles.

    Parameters
    ----------
    config : Config
    """

    #: Full writes that may wait for the quantiser; it takes one per cycle unless a partial one
    #: comes between.
    QUEUED = 16

    @staticmethod
    def full_write_layout(config: Config) -> data.StructLayout:
        """What the quantiser must know of a write."""
        return data.StructLayout(
            {"write_slot": config.write_slot_bits, "format": FORMAT_BITS, "host_type": 1}
        )

    def __init__(self, *, config: Config):
        self.config = config
        bits = config.write_slot_bits
        self.i_layout = self.full_write_layout(config)
        self.result_layout = data.StructLayout({"payload": LINE_BITS, "scale": SCALE_BITS})
        self.store = WriteStore(config=config)
        super().__init__(
            {
                "i": In(stream.Signature(self.i_layout)),
                "room": Out(1),
                "ready": Out(1),
                "consume": In(1),
                "merge": In(1),
                "merge_op": In(self.i_layout),
                "merge_fresh": In(1),
                "merge_line": In(LINE_BITS),
                "merged": Out(1),
                "merge_done": Out(1),
                "read_slot": In(bits),
                "o_result": Out(self.result_layout),
            }
        )

    def elaborate(self, platform):
        m = Module()
        c = self.config
        m.submodules.store = store = self.store
        meta_layout = data.StructLayout({"partial": 1, "write_slot": c.write_slot_bits})
        quantiser = (
            Quantiser(meta_shape=meta_layout, lanes=c.codec_lanes)
            if c.codecs
            else RawQuantiser(meta_shape=meta_layout)
        )
        m.submodules.quantiser = quantiser
        m.submodules.queue = queue = SyncFIFO(width=self.i_layout.size, depth=self.QUEUED)
        queued = self.i_layout(queue.r_data)
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
            start.eq(self.merge & ~(reading_valid & partial)),
            store.read_en.eq(moves),
            store.read_slot.eq(Mux(start, self.merge_op.write_slot, queued.write_slot)),
            queue.r_en.eq(moves & ~start),
        ]
        with m.If(moves):
            m.d.sync += [
                reading_valid.eq(start | queue.r_rdy),
                partial.eq(start),
                reading.eq(Mux(start, self.merge_op, queued)),
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
                        gated(self.merge_line.word_select(n, 8), ~self.merge_fresh),
                    )
                    for n in range(LINE_BYTES)
                )
            ),
            quantiser.i.p.format.eq(reading.format),
            quantiser.i.p.host_type.eq(reading.host_type),
            quantiser.i.p.meta.partial.eq(partial),
            quantiser.i.p.meta.write_slot.eq(reading.write_slot),
            self.merged.eq(reading_valid & partial & quantiser.i.ready),
            quantiser.o.ready.eq(1),
        ]

        # Bits that are always zero are not stored: synthesis gives their read register a reset of
        # its own, and then finds no block RAM that fits.
        stored = data.StructLayout({"payload": LINE_BITS, "scale": _SCALE_USED})
        m.submodules.results = results = WideMemory(depth=c.write_slots, shape=stored, apart=True)
        done = quantiser.o.p
        m.d.comb += [
            results.write_en.eq(quantiser.o.valid),
            results.write_address.eq(done.meta.write_slot),
            results.write_data.payload.eq(done.payload),
            results.write_data.scale.eq(done.scale),
            results.read_en.eq(1),
            results.read_address.eq(self.read_slot),
            self.o_result.payload.eq(results.read_data.payload),
            self.o_result.scale.eq(results.read_data.scale),
            self.merge_done.eq(quantiser.o.valid & done.meta.partial),
        ]
        waiting = Signal(range(c.write_slots + 1))
        m.d.sync += waiting.eq(waiting + (quantiser.o.valid & ~done.meta.partial) - self.consume)
        m.d.comb += self.ready.eq(waiting != 0)
        m.d.sync += [
            Assert(~self.consume | self.ready, "a write is stored before it is quantised"),
            Assert(
                ~reading_valid | partial | row.byte_enable.all(), "a full write leaves bytes out"
            ),
        ]
        return m

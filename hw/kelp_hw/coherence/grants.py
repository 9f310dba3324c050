# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Reads under way in the inner device, and what each grants: an answer leaves with its completion
(docs/coherence.md). One begun and one answered a cycle; an answer takes 1 cycle."""

from __future__ import annotations

from amaranth.hdl import Assert, Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.coherence import Coherence
from kelp_spec.config import Config
from kelp_spec.messages import S2MDRS, S2MNDR

from ..layouts import MESSAGES
from ..lib.free_list import FreeList
from ..lib.protected import BlockFault, ProtectedMemory, gather, used
from .layouts import CoherenceLayouts

__all__ = ["Grants"]

_META_NO_OP = 3


class Grants(wiring.Component):
    """Gives each read a number, which is its tag in the inner device, and joins the answer to what
    the host is to be told: data with the host's tag, and the completion that grants the line.

    The set and way of a grant count as under way until its completion has been taken at `o_ndr`.
    An answer MemData-NXM grants nothing: its completion is Cmp.

    Latency: `LATENCY` cycle from `i_drs` to `o_drs` and `o_ndr`. One read and one answer in each
    cycle (`INTERVAL`). Errors: an entry beyond repair is fatal, for nobody else knows whose answer
    it is, and the answer is dropped. A tag that is no number of a read is an assertion; after a
    fatal error of the inner device it may come, and its answer is dropped, so that no number is
    ever free twice. So is an answer for another LD-ID than the one that asked under its number.

    Parameters
    ----------
    config : Config
    sizes : Coherence

    Members
    -------
    i : in, always-ready stream
        A read that begins: what it `grants`, its `place`, whether it `counts` as a grant. Only
        while `room`.
    o_number : out
        Its number, in the same cycle.
    room : out
        Four more may begin.
    i_look : in
        A set.
    o_under_way : out
        Its ways of which a grant is under way, or begins; in the same cycle.
    i_drs : in, stream of messages
        The inner device's.
    o_drs, o_ndr : out, streams of messages
        The host's.
    idle : out
        No read is under way.
    fault : out, BlockFault
    """

    LATENCY = 1
    INTERVAL = 1
    RESERVE = 4

    def __init__(self, *, config: Config, sizes: Coherence):
        self.config, self.sizes = config, sizes
        self.layouts = layouts = CoherenceLayouts(config, sizes)
        self.begun = data.StructLayout(
            {"grants": layouts.grant, "place": layouts.place_bits, "counts": 1}
        )
        super().__init__(
            {
                "i": In(stream.Signature(self.begun, always_ready=True)),
                "o_number": Out(sizes.pending_bits),
                "room": Out(1),
                "i_look": In(sizes.set_bits),
                "o_under_way": Out(sizes.ways),
                "i_drs": In(stream.Signature(MESSAGES["S2MDRS"])),
                "o_drs": Out(stream.Signature(MESSAGES["S2MDRS"])),
                "o_ndr": Out(stream.Signature(MESSAGES["S2MNDR"])),
                "idle": Out(1),
                "fault": Out(BlockFault),
            }
        )

    def elaborate(self, platform):
        m = Module()
        sizes, layouts = self.sizes, self.layouts
        protect = self.config.protect
        m.submodules.ids = ids = FreeList(count=sizes.pending, protect=protect)
        m.submodules.rows = rows = ProtectedMemory(
            depth=sizes.pending, shape=layouts.grant, protect=protect
        )
        m.d.comb += [
            self.room.eq(ids.level >= self.RESERVE),
            self.o_number.eq(ids.o.p),
            ids.o.ready.eq(self.i.valid),
            rows.write_en.eq(self.i.valid),
            rows.write_address.eq(ids.o.p),
            rows.write_data.eq(self.i.p.grants),
            Assert(~self.i.valid | ids.o.valid, "a read without a number"),
        ]

        # The answer stands here until both of its parts have left.
        held, valid = Signal(MESSAGES["S2MDRS"]), Signal()
        drs_left, ndr_left, leaves = Signal(), Signal(), Signal()
        number, known = held.tag[: sizes.pending_bits], Signal(sizes.pending)
        asked, own, lost = Signal(), Signal(), Signal()
        is_asked = known.bit_select(number, 1) & ~Cat(held.tag[sizes.pending_bits :]).any()
        grant, broken = rows.read_data, rows.fault.uncorrected & asked
        drs, ndr = self.o_drs, self.o_ndr
        m.d.comb += [
            self.i_drs.ready.eq(~valid | leaves),
            rows.read_en.eq(self.i_drs.ready),
            rows.read_address.eq(self.i_drs.p.tag[: sizes.pending_bits]),
            asked.eq(is_asked),
            own.eq(broken | (held.ld_id == grant.ld_id)),
            lost.eq(broken | ~asked | ~own),
            drs.valid.eq(valid & grant.data & ~drs_left & ~lost),
            drs.p.eq(held),
            drs.p.tag.eq(grant.tag),
            drs.p.ld_id.eq(grant.ld_id),
            ndr.valid.eq(valid & grant.has_ndr & ~ndr_left & ~lost),
            ndr.p.opcode.eq(Mux(held.opcode == S2MDRS.MEM_DATA_NXM, S2MNDR.CMP, grant.ndr)),
            ndr.p.meta_field.eq(_META_NO_OP),
            ndr.p.tag.eq(grant.tag),
            ndr.p.ld_id.eq(grant.ld_id),
            ndr.p.dev_load.eq(held.dev_load),
            leaves.eq(
                valid
                & (
                    lost
                    | (
                        (~grant.data | drs_left | drs.ready)
                        & (~grant.has_ndr | ndr_left | ndr.ready)
                    )
                )
            ),
            ids.i.valid.eq(leaves & asked & own),
            ids.i.p.eq(number),
        ]
        with m.If(self.i_drs.ready):
            m.d.sync += [held.eq(self.i_drs.p), valid.eq(self.i_drs.valid)]
        m.d.sync += [
            drs_left.eq(~leaves & valid & (drs_left | (drs.valid & drs.ready))),
            ndr_left.eq(~leaves & valid & (ndr_left | (ndr.valid & ndr.ready))),
        ]
        gather(m, self.fault, used(rows.fault, leaves & asked), ids.fault)

        # Which sets and ways have grants under way.
        def of(place):
            """The way, one-hot, where it is one of the set."""
            way, index = place[: sizes.way_bits], place[sizes.way_bits :]
            return Mux(index == self.i_look, Const(1, sizes.ways) << way, 0)[: sizes.ways]

        under_way = Mux(self.i.valid & self.i.p.counts, of(self.i.p.place), 0)
        for n in range(sizes.pending):
            place, counts = (
                Signal(layouts.place_bits, name=f"place_{n}"),
                Signal(name=f"counts_{n}"),
            )
            begins = self.i.valid & (ids.o.p == n)
            with m.If(begins):
                m.d.sync += [place.eq(self.i.p.place), counts.eq(self.i.p.counts)]
                m.d.sync += known[n].eq(1)
            with m.Elif(leaves & asked & own & (number == n)):
                m.d.sync += [counts.eq(0), known[n].eq(0)]
            under_way |= Mux(counts, of(place), 0)
        m.d.comb += [
            self.idle.eq(~known.any()),
            self.o_under_way.eq(under_way),
            Assert(~valid | is_asked, "an answer to no read"),
        ]
        return m

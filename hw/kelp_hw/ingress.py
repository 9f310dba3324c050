# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""M2S acceptance, address decode and routing (spec §3, docs/design.md §1 stage I0)."""

from __future__ import annotations

from amaranth.hdl import Assert, Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.address import HINT_BYTES, REGISTER_BYTES, Region
from kelp_spec.config import Config
from kelp_spec.messages import M2SReq, M2SRwD
from kelp_spec.metadata import Event

from .layouts import MESSAGES, TIME_BITS, Layouts

__all__ = ["Ingress", "side_layout", "write_layout"]


def side_layout() -> data.StructLayout:
    """An access to the hint aperture (`hint`) or the register window; `offset` is in lines."""
    return data.StructLayout({"hint": 1, "write": 1, "offset": (REGISTER_BYTES // 64 - 1).bit_length(), "byte_enable": 64, "data": 512, "ld_id": 4, "tag": 16,
                              "poison": 1})


def write_layout(config: Config) -> data.StructLayout:
    """64 bytes for the write store; `byte_enable` is all ones for a full write."""
    return data.StructLayout({"slot": config.write_slot_bits, "data": 512, "byte_enable": 64})


class Ingress(wiring.Component):
    """Takes one M2S message a cycle, RwD before Req, and sends it where its address says.

    KV accesses, refused ones and those without memory go to `o_request` in order of acceptance; hint and register accesses to `o_side`; MemSpecRd to
    `o_spec`, dropped
    (and `spec_dropped` pulsed) when that is full. A RwD message that needs a write slot waits for one on `i_write_slot`, and Req messages go on meanwhile.
    Outputs are registered: latency 1 cycle, throughput 1 message a cycle.

    An address outside the map or an unknown opcode leaves as a request with `refused` set; nothing is dropped but MemSpecRd.

    Parameters
    ----------
    config : Config
    """

    def __init__(self, *, config: Config):
        layouts = Layouts(config)
        self.config = config
        self.layouts = layouts
        super().__init__({
            "m2s_req": In(stream.Signature(MESSAGES["M2SReq"])),
            "m2s_rwd": In(stream.Signature(MESSAGES["M2SRwD"])),
            "now": In(TIME_BITS),
            "enable": In(1),                       #: accept nothing until the reset scrub is over
            "i_write_slot": In(stream.Signature(config.write_slot_bits)),
            "o_request": Out(stream.Signature(layouts.request)),
            "o_write": Out(write_layout(config)),
            "o_write_valid": Out(1),
            "o_side": Out(stream.Signature(side_layout())),
            "o_spec": Out(stream.Signature(layouts.page)),
            "spec_dropped": Out(1),
            "idle": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        c = self.config
        req, rwd = self.m2s_req.p, self.m2s_rwd.p

        # One address decoder for the message that would be taken: RwD whenever it can be.
        take_rwd = Signal()
        address = Signal(46)
        m.d.comb += address.eq(Mux(take_rwd, rwd.address, req.address))

        shift = 0

        def cut(bits):
            nonlocal shift
            part = address[shift:shift + bits]
            shift += bits
            return part

        kv_line, page, queue, session = cut(c.line_bits), cut(c.page_bits), cut(c.queue_bits), cut(c.session_bits)
        above = address[shift:]
        in_kv = Signal()
        in_hint = Signal()
        in_register = Signal()
        line_offset = address[:shift]
        m.d.comb += [
            in_kv.eq((above == Region.KV) & (queue < c.queues) & (session < c.sessions)),
            in_hint.eq((above == Region.HINT) & (line_offset < HINT_BYTES // 64)),
            in_register.eq((above == Region.REGISTER) & (line_offset < REGISTER_BYTES // 64)),
        ]
        squeue = Signal(c.squeue_bits)
        m.d.comb += squeue.eq(session * c.queues + queue)

        # What the message is.
        opcode_write = (rwd.opcode == M2SRwD.MEM_WR) | (rwd.opcode == M2SRwD.MEM_WR_PTL)
        partial = (rwd.opcode == M2SRwD.MEM_WR_PTL) & ~rwd.byte_enable.all()
        opcode_read = (req.opcode == M2SReq.MEM_RD) | (req.opcode == M2SReq.MEM_RD_DATA)
        opcode_spec = req.opcode == M2SReq.MEM_SPEC_RD
        opcode_none = (req.opcode == M2SReq.MEM_INV) | (req.opcode == M2SReq.MEM_INV_NT) | (req.opcode == M2SReq.MEM_CLN_EVCT)

        # Places to put it.
        request_free = ~self.o_request.valid | self.o_request.ready
        side_free = ~self.o_side.valid | self.o_side.ready
        spec_free = ~self.o_spec.valid | self.o_spec.ready

        # RwD is judged on its own address, so that its wait does not depend on which one the shared decoder looks at.
        rwd_above = rwd.address[shift:]
        rwd_kv = rwd_above == Region.KV
        rwd_side = (rwd_above == Region.HINT) | (rwd_above == Region.REGISTER)
        needs_slot = opcode_write & rwd_kv
        can_rwd = Signal()
        m.d.comb += can_rwd.eq(self.enable & Mux(opcode_write & rwd_side, side_free & request_free, request_free & (~needs_slot | self.i_write_slot.valid)))
        m.d.comb += take_rwd.eq(self.m2s_rwd.valid & can_rwd)

        req_above = req.address[shift:]
        req_side = (req_above == Region.HINT) | (req_above == Region.REGISTER)
        can_req = Signal()
        m.d.comb += can_req.eq(self.enable & ~take_rwd & Mux(opcode_read & req_side, side_free & request_free, opcode_spec | request_free))
        take_req = self.m2s_req.valid & can_req

        m.d.comb += [
            self.m2s_rwd.ready.eq(can_rwd),
            self.m2s_req.ready.eq(can_req),
        ]

        to_side = Mux(take_rwd, opcode_write, take_req & opcode_read) & (in_hint | in_register)
        to_spec = ~take_rwd & take_req & opcode_spec & in_kv
        to_request = (take_rwd | take_req) & ~to_side & ~(~take_rwd & opcode_spec)
        take_slot = take_rwd & opcode_write & in_kv

        refused = Signal(5)
        known = Mux(take_rwd, opcode_write, opcode_read | opcode_none)
        with m.If(~known):
            m.d.comb += refused.eq(Event.UNKNOWN_OPCODE)
        with m.Elif(~in_kv):
            m.d.comb += refused.eq(Event.OUT_OF_MAP)

        with m.If(self.o_request.ready):
            m.d.sync += self.o_request.valid.eq(0)
        with m.If(to_request):
            r = self.o_request.p
            m.d.sync += [
                self.o_request.valid.eq(1),
                r.write.eq(take_rwd & opcode_write),
                r.partial.eq(take_rwd & partial),
                r.poison.eq(take_rwd & rwd.poison),
                r.has_write.eq(take_slot),
                r.write_slot.eq(self.i_write_slot.p),
                r.session.eq(session),
                r.queue.eq(queue),
                r.squeue.eq(squeue),
                r.page.eq(page),
                r.kv_line.eq(kv_line),
                r.refused.eq(refused),
                r.no_memory.eq(Mux(take_rwd, ~opcode_write, ~opcode_read)),
                r.origin.tag.eq(Mux(take_rwd, rwd.tag, req.tag)),
                r.origin.ld_id.eq(Mux(take_rwd, rwd.ld_id, req.ld_id)),
                r.origin.start.eq(self.now),
                r.origin.missed.eq(0),
            ]

        # A slot reserved for an address whose queue or session turns out to be beyond the configuration is simply not taken.
        m.d.comb += [
            self.i_write_slot.ready.eq(take_slot),
            self.o_write_valid.eq(take_slot),
            self.o_write.slot.eq(self.i_write_slot.p),
            self.o_write.data.eq(rwd.data),
            self.o_write.byte_enable.eq(Mux(partial, rwd.byte_enable, ~0)),
        ]

        with m.If(self.o_side.ready):
            m.d.sync += self.o_side.valid.eq(0)
        with m.If(to_side):
            s = self.o_side.p
            m.d.sync += [
                self.o_side.valid.eq(1),
                s.hint.eq(in_hint),
                s.write.eq(take_rwd),
                s.offset.eq(line_offset),
                s.byte_enable.eq(Mux(partial, rwd.byte_enable, ~0)),
                s.data.eq(rwd.data),
                s.ld_id.eq(Mux(take_rwd, rwd.ld_id, req.ld_id)),
                s.tag.eq(Mux(take_rwd, rwd.tag, req.tag)),
                s.poison.eq(take_rwd & rwd.poison),
            ]

        with m.If(self.o_spec.ready):
            m.d.sync += self.o_spec.valid.eq(0)
        with m.If(to_spec):
            m.d.comb += self.spec_dropped.eq(~spec_free)
            with m.If(spec_free):
                m.d.sync += [
                    self.o_spec.valid.eq(1),
                    self.o_spec.p.squeue.eq(squeue),
                    self.o_spec.p.page.eq(page),
                ]

        m.d.comb += self.idle.eq(~self.o_request.valid & ~self.o_side.valid & ~self.o_spec.valid & ~self.m2s_req.valid & ~self.m2s_rwd.valid)

        # Each accepted message goes to exactly one place, and never onto an unread one.
        m.d.comb += [
            Assert(~(to_request & ~request_free)),
            Assert(~(to_side & ~side_free)),
            Assert(~take_slot | self.i_write_slot.valid),
            Assert(~((take_rwd | take_req) & ~Cat(to_request, to_side, opcode_spec & ~take_rwd).any())),
        ]
        return m

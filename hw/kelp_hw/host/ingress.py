# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""M2S acceptance, address decode and routing (spec §3, docs/design.md §1 stage I0). One message a
cycle, sent on after 1 cycle; write data and `o_ahead` are combinational."""

from __future__ import annotations

from types import SimpleNamespace

from amaranth.hdl import Assert, Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from kelp_spec.address import HINT_BYTES, REGISTER_BYTES, Region
from kelp_spec.coherence import MetaField, MetaValue
from kelp_spec.config import Config
from kelp_spec.messages import M2SReq, M2SRwD
from kelp_spec.metadata import Event
from kelp_spec.select import select_offset_bits

from ..layouts import MESSAGES, TIME_BITS, Layouts, code_shape
from ..lib.skid import Skid

__all__ = ["Ingress"]


class Ingress(wiring.Component):
    """Takes one M2S message a cycle, RwD before Req, and sends it where its address says.

    KV accesses, refused ones and those without memory go to `o_request` in order of acceptance;
    hint and register accesses to `o_window`, each after the requests that were accepted before it
    have left; MemSpecRd to `o_spec`, dropped (and `spec_dropped` pulsed) when that is full. A RwD
    message that needs a write slot waits for one on `i_write_slot`, and Req messages go on
    meanwhile.

    Latency: `LATENCY` cycle to `o_request`, `o_window` and `o_spec`, which are registered;
    `o_write` and `o_ahead` are combinational (`WRITE_LATENCY`, `AHEAD_LATENCY`). One message in
    each cycle (`INTERVAL`), with no path from `o_request.ready` to the channels.

    With `Config.coherence` a MemRd with MetaValue Any, for ownership, becomes a read with
    `partial`: its page is given a frame.

    Errors: an address outside the map or an unknown opcode leaves as a request with `refused` set;
    nothing is dropped but MemSpecRd.

    Parameters
    ----------
    config : Config

    Members
    -------
    m2s_req, m2s_rwd : streams of messages
    now : in
        Time in cycles: the `start` of a request.
    enable : in
        Low until the reset scrub is over: no message is accepted.
    i_write_slot : stream
        Free write slots.
    o_request : stream of `Layouts.request`
    o_ahead : out
        What `o_request.p` is in the next cycle, unless it holds a request that is not taken.
    o_write : always-ready stream of `Layouts.write_data`
        Data of the RwD message that is offered, into the free slot. They count when the message's
        request has `has_write`.
    o_window : stream of `Layouts.window_access`
    o_spec : stream of spec_read
    spec_dropped : out
        Pulse: a MemSpecRd was dropped.
    stuck : out, with `Config.select` and without `Config.coherence`
        What stands on `m2s_rwd`, offered or not, waits for a place at the side, or for a write
        slot.
    idle : out
        No message is offered and none waits for an output.
    """

    LATENCY = 1
    WRITE_LATENCY = 0
    AHEAD_LATENCY = 0
    INTERVAL = 1

    def __init__(self, *, config: Config):
        layouts = Layouts(config)
        self.config = config
        self.layouts = layouts
        offset_bits = config.line_bits + config.page_bits + config.queue_bits + config.session_bits
        self._where = data.StructLayout(
            {
                "kv_line": config.line_bits,
                "page": config.page_bits,
                "queue": config.queue_bits,
                "session": config.session_bits,
                "squeue": config.squeue_bits,
                "line_offset": offset_bits,
                "in_kv": 1,
                "in_hint": 1,
                "in_register": 1,
                **({"in_select": 1} if config.select else {}),
            }
        )
        super().__init__(
            {
                "m2s_req": In(stream.Signature(MESSAGES["M2SReq"])),
                "m2s_rwd": In(stream.Signature(MESSAGES["M2SRwD"])),
                "now": In(TIME_BITS),
                "enable": In(1),
                "i_write_slot": In(stream.Signature(config.write_slot_bits)),
                "o_request": Out(stream.Signature(layouts.request)),
                "o_ahead": Out(layouts.ahead),
                "o_write": Out(stream.Signature(layouts.write_data, always_ready=True)),
                "o_window": Out(stream.Signature(layouts.window_access)),
                "o_spec": Out(stream.Signature(layouts.spec_read)),
                "spec_dropped": Out(1),
                **({"stuck": Out(1)} if config.select and not config.coherence else {}),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        c = self.config
        req, rwd = self.m2s_req.p, self.m2s_rwd.p

        # Each channel's address is decoded on its own. Critical path: `take_rwd`, which selects
        # one of the two.
        take_rwd = Signal()

        def decode(address, name, gathers=False):
            """`gathers`: addresses of pages may be in the GATHER region, as GatherWindow leaves
            them."""
            place = data.StructLayout(
                {
                    "kv_line": c.line_bits,
                    "page": c.page_bits,
                    "queue": c.queue_bits,
                    "session": c.session_bits,
                }
            )
            at = Signal(self._where, name=name)
            shift = place.size
            line_offset, above = address[:shift], address[shift:]
            fields = place(line_offset)
            queue, session = fields.queue, fields.session
            of_page = above == Region.KV
            if gathers:
                of_page |= above == Region.GATHER
            m.d.comb += [
                *(at[field].eq(fields[field]) for field in place.members),
                at.line_offset.eq(line_offset),
                at.in_kv.eq(of_page & (queue < c.queues) & (session < c.sessions)),
                at.in_hint.eq((above == Region.HINT) & (line_offset < HINT_BYTES // 64)),
                at.in_register.eq(
                    (above == Region.REGISTER) & (line_offset < REGISTER_BYTES // 64)
                ),
                at.squeue.eq(session * c.queues + queue),
            ]
            if c.select:
                size = 1 << select_offset_bits(c)
                m.d.comb += at.in_select.eq((above == Region.SELECT) & (line_offset < size))
            return at, above

        of_rwd, rwd_above = decode(rwd.address, "of_rwd")
        of_req, req_above = decode(req.address, "of_req", gathers=c.select > 0)
        at = Signal(self._where)
        m.d.comb += at.eq(Mux(take_rwd, of_rwd, of_req))
        # `s`: signals that the methods below share, under the names that they have there.
        s = SimpleNamespace()
        s.take_rwd, s.of_rwd, s.rwd_above, s.of_req = take_rwd, of_rwd, rwd_above, of_req
        s.req_above, s.at = req_above, at
        self._classify(m, s)
        self._admit(m, s)
        self._request(m, s)
        self._ahead(m, s)
        self._side(m, s)
        self._idle(m, s)
        return m

    def _classify(self, m: Module, s: SimpleNamespace) -> None:
        """What the messages are."""
        rwd, req = self.m2s_rwd.p, self.m2s_req.p
        # What the message is.
        opcode_write = (rwd.opcode == M2SRwD.MEM_WR) | (rwd.opcode == M2SRwD.MEM_WR_PTL)
        partial = (rwd.opcode == M2SRwD.MEM_WR_PTL) & ~rwd.byte_enable.all()
        # A partial write of no byte changes nothing; its poison would be of no byte.
        writes_nothing = Signal()
        m.d.comb += writes_nothing.eq(
            (rwd.opcode == M2SRwD.MEM_WR_PTL) & ~rwd.byte_enable.any() & ~rwd.poison
        )
        opcode_read = (req.opcode == M2SReq.MEM_RD) | (req.opcode == M2SReq.MEM_RD_DATA)
        opcode_spec = req.opcode == M2SReq.MEM_SPEC_RD
        opcode_none = (
            (req.opcode == M2SReq.MEM_INV)
            | (req.opcode == M2SReq.MEM_INV_NT)
            | (req.opcode == M2SReq.MEM_CLN_EVCT)
        )
        s.opcode_write, s.partial, s.writes_nothing = opcode_write, partial, writes_nothing
        s.opcode_read, s.opcode_spec, s.opcode_none = opcode_read, opcode_spec, opcode_none

    def _admit(self, m: Module, s: SimpleNamespace) -> None:
        """Which message is taken, each only into a place that is free: RwD first, but for a Req
        that one went before. So neither channel keeps the other out, whatever it sends."""
        rwd_above, opcode_write, take_rwd = s.rwd_above, s.opcode_write, s.take_rwd
        req_above, opcode_read, opcode_spec = s.req_above, s.opcode_read, s.opcode_spec
        # Places to put it. Critical path: `o_request.ready` comes from M0's choice and ends in this
        # skid buffer; `request_free` is a register.
        m.submodules.requests = requests = Skid(
            self.layouts.request, registered=("squeue", "page", "poison")
        )
        request_free = requests.i.ready
        # What goes to the side comes into sight when the requests before it have left: a CLOSE or a
        # hint does not overtake them. One of them at most is still here when it is accepted.
        side_valid, behind = Signal(), Signal()
        side_free = ~side_valid | (~behind & self.o_window.ready)
        spec_free = ~self.o_spec.valid | self.o_spec.ready

        rwd_kv = rwd_above == Region.KV
        rwd_side = self._is_side(rwd_above)
        needs_slot = opcode_write & rwd_kv
        can_rwd = Signal()
        # A Req stands, past which a RwD went; it is for the side. Critical path: `take_rwd`, which
        # therefore sees of the Req what it was in the cycle before: it stays as it is.
        passed, stands_for_side = Signal(), Signal()
        req_goes = passed & request_free & (~stands_for_side | side_free)
        m.d.comb += can_rwd.eq(
            self.enable
            & ~req_goes
            & Mux(
                opcode_write & rwd_side,
                side_free & request_free,
                request_free & (~needs_slot | self.i_write_slot.valid),
            )
        )
        m.d.comb += take_rwd.eq(self.m2s_rwd.valid & can_rwd)
        if self.config.select and not self.config.coherence:
            no_place = Mux(rwd_side, ~side_free, rwd_kv & ~self.i_write_slot.valid)
            m.d.comb += self.stuck.eq(opcode_write & no_place)

        req_side = self._is_side(req_above)
        can_req = Signal()
        m.d.comb += can_req.eq(
            self.enable
            & ~take_rwd
            & Mux(opcode_read & req_side, side_free & request_free, opcode_spec | request_free)
        )
        take_req = self.m2s_req.valid & can_req
        m.d.sync += [
            stands_for_side.eq(opcode_read & req_side),
            passed.eq((passed | (take_rwd & self.m2s_req.valid)) & ~take_req),
        ]

        m.d.comb += [
            self.m2s_rwd.ready.eq(can_rwd),
            self.m2s_req.ready.eq(can_req),
        ]
        s.requests, s.request_free, s.side_valid = requests, request_free, side_valid
        s.behind, s.side_free, s.spec_free, s.take_req = behind, side_free, spec_free, take_req

    def _is_side(self, above):
        """Whether what is there goes to the side."""
        side = (above == Region.HINT) | (above == Region.REGISTER)
        return side | (above == Region.SELECT) if self.config.select else side

    def _is_window(self, where):
        """The same, of an address in a window."""
        window = where.in_hint | where.in_register
        return window | where.in_select if self.config.select else window

    def _request(self, m: Module, s: SimpleNamespace) -> None:
        """Where the message goes, and the request that is made of it."""
        rwd, req = self.m2s_rwd.p, self.m2s_req.p
        take_rwd, opcode_write, of_rwd, take_req = s.take_rwd, s.opcode_write, s.of_rwd, s.take_req
        opcode_read, of_req, opcode_spec = s.opcode_read, s.of_req, s.opcode_spec
        writes_nothing, opcode_none, requests = s.writes_nothing, s.opcode_none, s.requests
        partial, at = s.partial, s.at
        to_window = Mux(
            take_rwd,
            opcode_write & self._is_window(of_rwd),
            take_req & opcode_read & self._is_window(of_req),
        )
        to_spec = ~take_rwd & take_req & opcode_spec & of_req.in_kv
        to_request = (take_rwd | take_req) & ~to_window & ~(~take_rwd & opcode_spec)
        take_slot = take_rwd & opcode_write & of_rwd.in_kv & ~writes_nothing

        def refusal(known, in_kv):
            return Mux(~known, Event.UNKNOWN_OPCODE, Mux(in_kv, Event.NONE, Event.OUT_OF_MAP))

        refused = Signal(code_shape(Event))
        m.d.comb += refused.eq(
            Mux(
                take_rwd,
                refusal(opcode_write, of_rwd.in_kv),
                refusal(opcode_read | opcode_none, of_req.in_kv),
            )
        )

        r = requests.i.p
        connect(m, requests.o, flipped(self.o_request))
        m.d.comb += [
            requests.i.valid.eq(to_request),
            r.write.eq(take_rwd & opcode_write),
            r.partial.eq(
                (take_rwd & partial) | self._for_ownership(take_rwd, req)
                if self.config.coherence
                else take_rwd & partial
            ),
            r.poison.eq(take_rwd & rwd.poison),
            r.has_write.eq(take_slot),
            r.write_slot.eq(self.i_write_slot.p),
            *(
                r[field].eq(at[field])
                for field in ("session", "queue", "squeue", "page", "kv_line")
            ),
            r.refused.eq(refused),
            r.no_memory.eq(Mux(take_rwd, ~opcode_write | writes_nothing, ~opcode_read)),
            r.origin.tag.eq(Mux(take_rwd, rwd.tag, req.tag)),
            r.origin.ld_id.eq(Mux(take_rwd, rwd.ld_id, req.ld_id)),
            r.origin.start.eq(self.now),
            r.origin.missed.eq(0),
        ]
        if self.config.select:
            m.d.comb += r.gathered.eq(~take_rwd & (s.req_above == Region.GATHER))
        s.to_window, s.to_spec, s.to_request = to_window, to_spec, to_request
        s.take_slot = take_slot

    def _for_ownership(self, take_rwd, req):
        """Whether a read asks for a line to be owned, so that its page is to have a frame."""
        asks = (req.meta_field == MetaField.META0) & (req.meta_value == MetaValue.ANY)
        return ~take_rwd & asks

    def _ahead(self, m: Module, s: SimpleNamespace) -> None:
        """`o_ahead`: what M0 may meet in the next cycle."""
        req, rwd = self.m2s_req.p, self.m2s_rwd.p
        requests, of_req, opcode_read = s.requests, s.of_req, s.opcode_read
        opcode_none, of_rwd, opcode_write = s.opcode_none, s.of_rwd, s.opcode_write
        writes_nothing, take_rwd = s.writes_nothing, s.take_rwd
        # M0 sees both channels' messages. Critical path: `take_rwd`, which says which it is.
        spare = requests.spare
        for k, (channel, where, known, memory) in enumerate(
            (
                (req, of_req, opcode_read | opcode_none, opcode_read),
                (rwd, of_rwd, opcode_write, opcode_write & ~writes_nothing),
            )
        ):
            coming = self.o_ahead.candidates[k]
            m.d.comb += [
                *(
                    coming[f].eq(Mux(requests.spare_valid, spare[f], where[f]))
                    for f in ("session", "squeue", "page", "kv_line")
                ),
                coming.ld_id.eq(Mux(requests.spare_valid, spare.origin.ld_id, channel.ld_id)),
                coming.memory.eq(
                    Mux(
                        requests.spare_valid,
                        (spare.refused == 0) & ~spare.no_memory,
                        where.in_kv & known & memory,
                    )
                ),
            ]
        m.d.comb += self.o_ahead.which.eq(take_rwd)

    def _side(self, m: Module, s: SimpleNamespace) -> None:
        """Write data, and what goes to the window or to the prefetcher."""
        rwd, req = self.m2s_rwd.p, self.m2s_req.p
        take_slot, partial, side_valid, behind = s.take_slot, s.partial, s.side_valid, s.behind
        to_window, side_free, at, take_rwd = s.to_window, s.side_free, s.at, s.take_rwd
        to_spec, spec_free, of_req = s.to_spec, s.spec_free, s.of_req
        # A slot reserved for an address whose queue or session turns out to be beyond the
        # configuration is simply not taken.
        m.d.comb += [
            self.i_write_slot.ready.eq(take_slot),
            # Into a slot that stays free, too. Critical path: `take_slot`, which therefore does not
            # reach these hundreds of write enables.
            self.o_write.valid.eq(self.m2s_rwd.valid & self.i_write_slot.valid),
            self.o_write.p.slot.eq(self.i_write_slot.p),
            self.o_write.p.data.eq(rwd.data),
            self.o_write.p.byte_enable.eq(Mux(partial, rwd.byte_enable, ~0)),
        ]

        m.d.comb += self.o_window.valid.eq(side_valid & ~behind)
        with m.If(self.o_request.ready):
            m.d.sync += behind.eq(0)
        with m.If(self.o_window.valid & self.o_window.ready):
            m.d.sync += side_valid.eq(0)
        with m.If(to_window):
            m.d.sync += [side_valid.eq(1), behind.eq(self.o_request.valid & ~self.o_request.ready)]
        with m.If(side_free):
            window = self.o_window.p
            m.d.sync += [
                window.hint.eq(at.in_hint),
                *((window.select.eq(at.in_select),) if self.config.select else ()),
                window.write.eq(take_rwd),
                window.offset.eq(at.line_offset),
                window.byte_enable.eq(Mux(partial, rwd.byte_enable, ~0)),
                window.data.eq(rwd.data),
                window.ld_id.eq(Mux(take_rwd, rwd.ld_id, req.ld_id)),
                window.tag.eq(Mux(take_rwd, rwd.tag, req.tag)),
                window.poison.eq(take_rwd & rwd.poison),
            ]

        with m.If(self.o_spec.ready):
            m.d.sync += self.o_spec.valid.eq(0)
        with m.If(to_spec):
            m.d.comb += self.spec_dropped.eq(~spec_free)
            with m.If(spec_free):
                m.d.sync += self.o_spec.valid.eq(1)
        # The payload of any message. Critical path: `to_spec`, which reaches `valid` alone.
        with m.If(spec_free):
            m.d.sync += [
                self.o_spec.p.page.squeue.eq(of_req.squeue),
                self.o_spec.p.page.page.eq(of_req.page),
                self.o_spec.p.ld_id.eq(req.ld_id),
            ]

    def _idle(self, m: Module, s: SimpleNamespace) -> None:
        """`idle`, and what holds of each message."""
        requests, side_valid, to_request = s.requests, s.side_valid, s.to_request
        to_window, opcode_spec, take_rwd = s.to_window, s.opcode_spec, s.take_rwd
        request_free, side_free, take_slot = s.request_free, s.side_free, s.take_slot
        take_req = s.take_req
        m.d.comb += self.idle.eq(
            requests.idle
            & ~side_valid
            & ~self.o_spec.valid
            & ~self.m2s_req.valid
            & ~self.m2s_rwd.valid
        )

        # Each accepted message goes to exactly one place, and never onto an unread one.
        ways = Cat(to_request, to_window, opcode_spec & ~take_rwd)
        m.d.comb += [
            Assert(~(to_request & ~request_free)),
            Assert(~(to_window & ~side_free)),
            Assert(~take_slot | self.i_write_slot.valid),
            Assert(~(take_rwd | take_req) | ways.any()),
        ]

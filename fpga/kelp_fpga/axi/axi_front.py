# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""AXI4 in, CXL.mem requests out: for vendors' CXL IP that hands a design AXI4 (Agilex 7 R-tile AFU:
512 bits, 52 address bits, poison in the user bit). Latency 1 cycle out, 2 back; a beat a cycle each
way."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_hw.layouts import MESSAGES
from kelp_hw.lib.wide_memory import WideMemory
from kelp_spec.formats import LINE_BITS, LINE_BYTES
from kelp_spec.messages import S2MDRS, M2SReq, M2SRwD

__all__ = ["AxiFront", "Burst", "FLAT_PORTS"]

_OKAY, _DECERR = 0, 3
_FIXED, _WRAP = 0, 2


def _flat(id_bits: int, address_bits: int) -> dict:
    address = {"id": id_bits, "addr": address_bits, "len": 8, "size": 3, "burst": 2}
    channels = {
        "aw": (In, address),
        "w": (In, {"data": LINE_BITS, "strb": LINE_BYTES, "last": 1, "user": 1}),
        "b": (Out, {"id": id_bits, "resp": 2}),
        "ar": (In, address),
        "r": (Out, {"id": id_bits, "data": LINE_BITS, "resp": 2, "last": 1, "user": 1}),
    }
    ports = {}
    for channel, (flow, fields) in channels.items():
        ports |= {
            f"s_axi_{channel}valid": flow(1),
            f"s_axi_{channel}ready": (Out if flow is In else In)(1),
        }
        ports |= {f"s_axi_{channel}{name}": flow(bits) for name, bits in fields.items()}
    return ports


#: The AXI4 side's ports, by name.
FLAT_PORTS = tuple(_flat(4, 52))


class Burst(wiring.Component):
    """An AXI4 address channel's bursts, beat by beat; the next burst is taken with the last beat of
    the one before, so beats never pause.

    Latency: a burst's first beat comes `LATENCY` cycles after it is taken; a beat each `INTERVAL`
    cycles.

    Members
    -------
    valid, ready, id, addr, len, size, burst
        The channel.
    o : Out stream {id, line, last}
    """

    LATENCY = 1
    INTERVAL = 1

    def __init__(self, *, id_bits: int, address_bits: int):
        self.address_bits = address_bits
        beat = data.StructLayout({"id": id_bits, "line": address_bits - 6, "last": 1})
        super().__init__(
            {
                "valid": In(1),
                "ready": Out(1),
                "id": In(id_bits),
                "addr": In(address_bits),
                "len": In(8),
                "size": In(3),
                "burst": In(2),
                "o": Out(stream.Signature(beat)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        address, left, size, kind, wrap = (
            Signal(self.address_bits),
            Signal(8),
            Signal(3),
            Signal(2),
            Signal(14),
        )
        step, moved = Signal(7), Signal()
        m.d.comb += [
            step.eq(1 << size),
            self.o.p.line.eq(address[6:]),
            self.o.p.last.eq(left == 0),
            moved.eq(self.o.valid & self.o.ready),
            self.ready.eq(~self.o.valid | (moved & self.o.p.last)),
        ]
        following = (address & ~(step - 1)) + step
        with m.If(moved):
            m.d.sync += [left.eq(left - 1), self.o.valid.eq(~self.o.p.last)]
            with m.If(kind == _WRAP):
                m.d.sync += address.eq((address & ~wrap) | (following & wrap))
            with m.Elif(kind != _FIXED):
                m.d.sync += address.eq(following)
        with m.If(self.valid & self.ready):
            m.d.sync += [
                self.o.valid.eq(1),
                self.o.p.id.eq(self.id),
                address.eq(self.addr),
                left.eq(self.len),
                size.eq(self.size),
                kind.eq(self.burst),
                wrap.eq(((self.len + 1) << self.size) - 1),
            ]
        return m


class AxiFront(wiring.Component):
    """Every beat is one request. Reads are answered in the order of their addresses, writes in the
    order of theirs, whatever order the endpoint answers in: all ids are one thread, which AXI4
    allows, so a beat whose page is being fetched holds up the answers (not the requests) behind it.

    Poison: `wuser` with a beat poisons its line; a poisoned line is read with `ruser` set and OKAY.
    A line outside the map reads DECERR. A write is answered when the endpoint has given Cmp for all
    of its beats: any later read sees them; one outside the map is dropped and answered OKAY. A beat
    without strobes asks for nothing, but with poison it poisons its line.

    Throughput: a beat in `INTERVAL` cycles in each direction while no more than `depth` are under
    way. Latency: `LATENCY` cycles from an address to its first request, `ANSWER_LATENCY` from the
    endpoint's answer to ours. All bursts (FIXED, INCR, WRAP) and sizes up to 64 bytes; a narrow
    beat is a request of its own.

    Parameters
    ----------
    id_bits, address_bits : int
        Address bits above 51 do not exist.
    depth : int
        Beats under way in each direction, a power of two; the tag is the beat's place.
    ld_id : int

    Members
    -------
    s_axi_<name> : AXI4, flat, as vendor IP has it
    m2s_req, m2s_rwd, s2m_drs, s2m_ndr
        The endpoint's channels. Nobody else may use them.
    """

    LATENCY = Burst.LATENCY
    ANSWER_LATENCY = 2
    INTERVAL = 1

    def __init__(
        self, *, id_bits: int = 8, address_bits: int = 52, depth: int = 128, ld_id: int = 0
    ):
        if depth < 2 or depth & (depth - 1) or depth > 1 << 15:
            raise ValueError(f"depth = {depth!r} is refused; legal: a power of two, 2 … 32768")
        if not 7 <= address_bits <= 52:
            raise ValueError(f"address_bits = {address_bits!r} is refused; legal: 7 … 52")
        self.id_bits, self.address_bits, self.depth, self.ld_id = (
            id_bits,
            address_bits,
            depth,
            ld_id,
        )
        super().__init__(
            {
                **_flat(id_bits, address_bits),
                "m2s_req": Out(stream.Signature(MESSAGES["M2SReq"])),
                "m2s_rwd": Out(stream.Signature(MESSAGES["M2SRwD"])),
                "s2m_drs": In(stream.Signature(MESSAGES["S2MDRS"])),
                "s2m_ndr": In(stream.Signature(MESSAGES["S2MNDR"])),
            }
        )

    def elaborate(self, platform):
        m = Module()
        self._reads(m)
        self._writes(m)
        return m

    def _bursts(self, m, channel):
        burst = Burst(id_bits=self.id_bits, address_bits=self.address_bits)
        m.submodules[channel] = burst
        m.d.comb += [
            burst.valid.eq(getattr(self, f"s_axi_{channel}valid")),
            getattr(self, f"s_axi_{channel}ready").eq(burst.ready),
            *(
                getattr(burst, name).eq(getattr(self, f"s_axi_{channel}{name}"))
                for name in ("id", "addr", "len", "size", "burst")
            ),
        ]
        return burst.o

    def _ring(self, m, name):
        """A ring of places: (head, tail, places taken, done bits, memory of {id, last}: its write
        and its read port). The done bits are one vector, set and cleared by masks: each on its own
        would be a multiplexer of its own in every model."""
        bits = (self.depth - 1).bit_length()
        head, tail, used = (
            Signal(bits, name=f"{name}_head"),
            Signal(bits, name=f"{name}_tail"),
            Signal(bits + 1, name=f"{name}_used"),
        )
        done = Signal(self.depth, name=f"{name}_done")
        m.submodules[f"{name}_beats"] = beats = memory.Memory(
            shape=self.id_bits + 1, depth=self.depth, init=()
        )
        write = beats.write_port()
        return head, tail, used, done, write, beats.read_port(transparent_for=(write,))

    def _reads(self, m):
        beat = self._bursts(m, "ar")
        head, tail, used, done, write, read = self._ring(m, "read")
        m.submodules.lines = lines = WideMemory(depth=self.depth, shape=LINE_BITS + 2)
        room, sent, popped = used != self.depth, Signal(), Signal()
        m.d.comb += [
            self.m2s_req.valid.eq(beat.valid & room),
            beat.ready.eq(self.m2s_req.ready & room),
            sent.eq(self.m2s_req.valid & self.m2s_req.ready),
            self.m2s_req.p.opcode.eq(M2SReq.MEM_RD),
            self.m2s_req.p.tag.eq(tail),
            self.m2s_req.p.address.eq(beat.p.line),
            self.m2s_req.p.ld_id.eq(self.ld_id),
            write.en.eq(sent),
            write.addr.eq(tail),
            write.data.eq(Cat(beat.p.last, beat.p.id)),
            self.s2m_drs.ready.eq(1),
            lines.write_en.eq(self.s2m_drs.valid),
            lines.write_address.eq(self.s2m_drs.p.tag),
            lines.write_data.eq(
                Cat(
                    self.s2m_drs.p.data,
                    self.s2m_drs.p.poison,
                    self.s2m_drs.p.opcode == S2MDRS.MEM_DATA_NXM,
                )
            ),
            popped.eq(done.bit_select(head, 1) & (~self.s_axi_rvalid | self.s_axi_rready)),
            lines.read_en.eq(popped),
            lines.read_address.eq(head),
            read.en.eq(popped),
            read.addr.eq(head),
            Cat(self.s_axi_rlast, self.s_axi_rid).eq(read.data),
            self.s_axi_rdata.eq(lines.read_data),
            self.s_axi_ruser.eq(lines.read_data[LINE_BITS]),
            self.s_axi_rresp.eq(Mux(lines.read_data[LINE_BITS + 1], _DECERR, _OKAY)),
        ]
        m.d.sync += [tail.eq(tail + sent), head.eq(head + popped), used.eq(used + sent - popped)]
        with m.If(self.s_axi_rready):
            m.d.sync += self.s_axi_rvalid.eq(0)
        with m.If(popped):
            m.d.sync += self.s_axi_rvalid.eq(1)
        answered = self.s2m_drs.valid << self.s2m_drs.p.tag[: len(head)]
        m.d.sync += done.eq((done & ~(popped << head)) | answered)

    def _writes(self, m):
        beat = self._bursts(m, "aw")
        head, tail, used, done, write, read = self._ring(m, "write")
        empty = self.s_axi_wstrb == 0
        rwd, room, taken, popped, shown = (
            self.m2s_rwd,
            used != self.depth,
            Signal(),
            Signal(),
            Signal(),
        )
        m.d.comb += [
            rwd.valid.eq(beat.valid & self.s_axi_wvalid & room & ~(empty & ~self.s_axi_wuser)),
            taken.eq(
                beat.valid & self.s_axi_wvalid & room & (rwd.ready | (empty & ~self.s_axi_wuser))
            ),
            beat.ready.eq(taken),
            self.s_axi_wready.eq(taken),
            rwd.p.opcode.eq(
                Mux(self.s_axi_wstrb.all() | self.s_axi_wuser, M2SRwD.MEM_WR, M2SRwD.MEM_WR_PTL)
            ),
            rwd.p.tag.eq(tail),
            rwd.p.address.eq(beat.p.line),
            rwd.p.poison.eq(self.s_axi_wuser),
            rwd.p.bep.eq(~self.s_axi_wstrb.all()),
            rwd.p.ld_id.eq(self.ld_id),
            rwd.p.byte_enable.eq(self.s_axi_wstrb),
            rwd.p.data.eq(self.s_axi_wdata),
            write.en.eq(taken),
            write.addr.eq(tail),
            write.data.eq(Cat(beat.p.last, beat.p.id)),
            self.s2m_ndr.ready.eq(1),
            # The beat at the head is shown; one that is not its burst's last makes way at once.
            popped.eq(done.bit_select(head, 1) & (~shown | ~read.data[0] | self.s_axi_bready)),
            read.en.eq(popped),
            read.addr.eq(head),
            self.s_axi_bvalid.eq(shown & read.data[0]),
            self.s_axi_bid.eq(read.data[1:]),
            self.s_axi_bresp.eq(_OKAY),
        ]
        m.d.sync += [tail.eq(tail + taken), head.eq(head + popped), used.eq(used + taken - popped)]
        with m.If(~self.s_axi_bvalid | self.s_axi_bready):
            m.d.sync += shown.eq(0)
        with m.If(popped):
            m.d.sync += shown.eq(1)
        answered = self.s2m_ndr.valid << self.s2m_ndr.p.tag[: len(head)]
        dropped = (taken & empty & ~self.s_axi_wuser) << tail
        m.d.sync += done.eq((done & ~(popped << head)) | answered | dropped)

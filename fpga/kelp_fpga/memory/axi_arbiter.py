# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Several AXI4 managers on one memory: a read's address in 2 cycles, one in 2; a write's in 2, its
data in 3, one in 3; an answer in 1, one in 2."""

from __future__ import annotations

from functools import reduce
from operator import or_

from amaranth.hdl import Array, Assert, Cat, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from kelp_hw.lib.axi import AxiSignature
from kelp_hw.lib.skid import Skid

__all__ = ["AxiArbiter"]


class AxiArbiter(wiring.Component):
    """Transactions of `managers` taken in turns, one line each; the memory sees each id with the
    manager's number above it.

    Addresses and data pass through registers, for both directions: no `ready` of the memory's
    reaches a manager in the same cycle. An answer is shown to its manager from the cycle on after
    it comes; its payload passes as it is.

    Latency: `LATENCY` cycles for an address when nothing else is under way, one more for a write's
    data, `ANSWER_LATENCY` for a read's answer, one more for a write's. A read each `INTERVAL`
    cycles, a write each `WRITE_INTERVAL`, less than a memory of this board takes for it; an answer
    each `ANSWER_INTERVAL`.

    Parameters
    ----------
    managers, address_bits, id_bits : int

    Members
    -------
    i_<n> : In(AxiSignature)
    o : Out(AxiSignature)
        `id_bits` and as many as it takes to tell the managers apart.
    """

    LATENCY = 2
    ANSWER_LATENCY = 1
    INTERVAL = ANSWER_INTERVAL = 2
    WRITE_INTERVAL = 3

    def __init__(self, *, managers: int, address_bits: int, id_bits: int):
        if not 2 <= managers <= 8:
            raise ValueError(f"managers = {managers!r} is refused; legal: 2 … 8")
        self.managers, self.id_bits = managers, id_bits
        self.select_bits = (managers - 1).bit_length()
        side = AxiSignature(address_bits=address_bits, id_bits=id_bits)
        super().__init__(
            {
                **{f"i_{n}": In(side) for n in range(managers)},
                "o": Out(
                    AxiSignature(address_bits=address_bits, id_bits=id_bits + self.select_bits)
                ),
            }
        )

    def elaborate(self, platform):
        m = Module()
        ports = [getattr(self, f"i_{n}") for n in range(self.managers)]
        self._addresses(m, "ar", [port.ar for port in ports], self.o.ar, ())
        self._addresses(m, "aw", [port.aw for port in ports], self.o.aw, [port.w for port in ports])
        # A write's answer, which says little, waits in registers: whose it is and whether that one
        # takes it is more than a memory's cycle has time for.
        m.submodules.written = written = Skid(self.o.b.p.shape())
        connect(m, flipped(self.o.b), written.i)
        for name, answer in (("r", self.o.r), ("b", written.o)):
            select = answer.p.id[self.id_bits :]
            shown, taken = Signal(self.managers, name=f"{name}_shown"), Signal(name=f"{name}_taken")
            m.d.comb += [
                taken.eq(
                    Cat(shown[n] & getattr(port, name).ready for n, port in enumerate(ports)).any()
                ),
                answer.ready.eq(taken),
            ]
            for n, port in enumerate(ports):
                channel = getattr(port, name)
                m.d.sync += shown[n].eq(answer.valid & (select == n) & ~taken)
                m.d.comb += [
                    channel.valid.eq(shown[n]),
                    channel.p.id.eq(answer.p.id[: self.id_bits]),
                    *(
                        channel.p[field].eq(answer.p[field])
                        for field in answer.p.shape().members
                        if field != "id"
                    ),
                ]
        return m

    def _addresses(self, m, name, inputs, output, data):
        """Choose one input, hold the choice until its address (and its data) are in the registers
        and those have been taken."""
        # `chosen` again, a bit each: it steers hundreds of bits
        picks = Signal(self.managers, name=f"{name}_picks")
        chosen, busy, sent = (
            Signal(range(self.managers), name=f"{name}_chosen"),
            Signal(name=f"{name}_busy"),
            Signal(2, name=f"{name}_sent"),
        )
        valid, payload = Array(i.valid for i in inputs), Array(i.payload for i in inputs)
        taken = Signal(2, name=f"{name}_taken")
        # The one that is chosen offers its address until it is taken: nobody has to ask, and what
        # others offer reaches no manager.
        m.d.comb += taken[0].eq(busy & ~sent[0] & ~output.valid)
        m.d.sync += Assert(~busy | sent[0] | valid[chosen], "an address is taken back")
        with m.If(output.ready):
            m.d.sync += output.valid.eq(0)
        with m.If(taken[0]):
            m.d.sync += [
                output.valid.eq(1),
                output.p.id.eq(Cat(payload[chosen].id, chosen)),
                *(
                    output.p[field].eq(payload[chosen][field])
                    for field in ("addr", "len", "size", "burst")
                ),
            ]
        with m.If(~busy):
            for offset in reversed(range(1, self.managers + 1)):
                for last in range(self.managers):
                    candidate = (last + offset) % self.managers
                    with m.If((chosen == last) & inputs[candidate].valid):
                        m.d.sync += [chosen.eq(candidate), picks.eq(1 << candidate), busy.eq(1)]
        with m.Else():
            m.d.sync += sent.eq(sent | taken)
            with m.If((sent | taken) == (3 if data else 1)):
                m.d.sync += [busy.eq(0), sent.eq(0)]
        for n, i in enumerate(inputs):
            m.d.comb += i.ready.eq(taken[0] & (chosen == n))
        if data:
            w = self.o.w
            # Told from registers, as of the cycle before, so that no manager waits for an answer
            # of this cycle's to what it offers. What it offers it goes on to offer: asked is who
            # did a cycle ago, and that one's data are there.
            asks, offers = Signal(self.managers), Cat(d.valid for d in data)
            m.d.comb += taken[1].eq(asks.any())
            m.d.sync += [
                asks.eq(Mux(busy & ~sent[1] & ~taken[1] & ~w.valid, picks & offers, 0)),
                Assert(~asks.any() | (busy & ~sent[1] & ~w.valid & (asks == picks))),
                Assert((asks & ~offers) == 0, "data are taken back"),
            ]
            with m.If(w.ready):
                m.d.sync += w.valid.eq(0)
            with m.If(taken[1]):
                m.d.sync += w.valid.eq(1)
            for n, d in enumerate(data):
                m.d.comb += d.ready.eq(asks[n])
            payloads = (
                Value.cast(d.payload) & picks[n].replicate(len(Value.cast(d.payload)))
                for n, d in enumerate(data)
            )
            with m.If(~w.valid):
                m.d.sync += Value.cast(w.payload).eq(reduce(or_, payloads))

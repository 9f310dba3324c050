# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The stream rule is asserted on every stream port, and only a block that breaks it fails."""

import pytest
from amaranth.back import rtlil
from amaranth.hdl import ClockDomain, DomainRenamer, Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect
from simulation import simulate

from kelp_hw.export.stream_rule import Checked, streams_of
from kelp_hw.lib.axi import AxiSignature
from kelp_hw.lib.skid import Skid


class Source(wiring.Component):
    """Offers what its ports say."""

    valid: In(1)
    payload: In(8)
    o: Out(stream.Signature(8))

    def elaborate(self, platform):
        m = Module()
        m.d.comb += [self.o.valid.eq(self.valid), self.o.payload.eq(self.payload)]
        return m


class Inside(wiring.Component):
    """A Source whose stream goes no further than to a Skid's input."""

    valid: In(1)
    payload: In(8)
    ready: In(1)

    def elaborate(self, platform):
        m = Module()
        m.submodules.source = source = Source()
        m.submodules.skid = skid = Skid(8)
        connect(m, source.o, skid.i)
        m.d.comb += [
            source.valid.eq(self.valid),
            source.payload.eq(self.payload),
            skid.o.ready.eq(self.ready),
        ]
        return m


def offer(dut, cycles, ready):
    """Offer (valid, payload) of each of `cycles`, with `ready` as it is in that cycle."""

    async def bench(ctx):
        for (valid, payload), taken in zip(cycles, ready, strict=True):
            ctx.set(dut.valid, valid)
            ctx.set(dut.payload, payload)
            ctx.set(dut.o.ready if isinstance(dut, Source) else dut.ready, taken)
            await ctx.tick()

    simulate(Checked(dut), bench)


@pytest.mark.parametrize(
    ("cycles", "ready"),
    [
        ([(1, 5), (1, 5), (1, 6), (0, 9), (1, 7)], [0, 1, 1, 0, 0]),
        ([(0, 1), (0, 2), (1, 3), (1, 3)], [0, 0, 0, 0]),
    ],
)
def test_an_offer_that_stays_is_fine(cycles, ready):
    offer(Source(), cycles, ready)


@pytest.mark.parametrize("cycles", [[(1, 5), (0, 5), (1, 5)], [(1, 5), (1, 4), (1, 4)]])
def test_an_offer_that_does_not_stay_is_found(cycles):
    with pytest.raises(AssertionError, match=r"the offer at top\.o is withdrawn or changes"):
        offer(Source(), cycles, [0, 0, 0])


def test_blocks_inside_are_looked_at():
    """The Skid takes two items; its input stands still behind them."""
    stands = [(1, 1), (1, 2), (1, 3)]
    offer(Inside(), [*stands, (1, 3), (1, 3)], [0] * 5)
    with pytest.raises(AssertionError, match=r"the offer at top\.(source\.o|skid\.i) is withdrawn"):
        offer(Inside(), [*stands, (0, 3), (0, 3)], [0] * 5)


class Through(wiring.Component):
    """A Source's stream, handed out; by a gate of its own where `gated`."""

    valid: In(1)
    o: Out(stream.Signature(8))

    def __init__(self, gated=""):
        self.gated = gated
        super().__init__()

    def elaborate(self, platform):
        m = Module()
        m.submodules.source = source = Source()
        connect(m, source.o, wiring.flipped(self.o))
        m.d.comb += source.valid.eq(self.valid)
        if self.gated:
            with m.If(self.valid):
                m.d.comb += getattr(self.o if self.gated != "ready" else source.o, self.gated).eq(0)
        return m


@pytest.mark.parametrize("gated", ["", "valid", "payload", "ready"])
def test_ports_that_are_one_stream_have_one_rule(gated):
    """Where anything is between them they are two."""
    dut = Through(gated)
    text = rtlil.convert(Checked(dut), ports=[dut.valid, dut.o.valid, dut.o.payload, dut.o.ready])
    found = [name for name in ("top.source.o", "top.o") if f"the offer at {name} is" in text]
    assert found == ["top.source.o", *(["top.o"] if gated else [])]


def test_every_stream_of_a_signature_is_found():
    class Many(wiring.Component):
        def __init__(self):
            axi = AxiSignature(address_bits=10, id_bits=4)
            plain = stream.Signature(8)
            super().__init__(
                {"axi": Out(axi), "taker": In(axi), "i": In(plain).array(2), "n": In(8)}
            )

    found = {name: flow for name, flow, _ in streams_of(Many())}
    assert found == {
        **{f"axi.{name}": Out for name in ("aw", "w", "ar")},
        **{f"axi.{name}": In for name in ("b", "r")},
        **{f"taker.{name}": In for name in ("aw", "w", "ar")},
        **{f"taker.{name}": Out for name in ("b", "r")},
        "i[0]": In,
        "i[1]": In,
    }


def test_what_is_always_ready_has_no_rule_to_break():
    class Pusher(wiring.Component):
        o: Out(stream.Signature(8, always_ready=True))
        n: Out(stream.Signature(8))

        def elaborate(self, platform):
            m = Module()
            m.d.sync += self.o.payload.eq(self.o.payload + 1)
            return m

    pusher = Pusher()
    text = rtlil.convert(Checked(pusher), ports=[pusher.n.ready])
    assert "the offer at top.n" in text and "the offer at top.o" not in text


def test_a_renamed_block_is_looked_at_in_its_clock():
    m = Module()
    m.domains.slow = slow = ClockDomain()
    m.submodules.skid = DomainRenamer("slow")(Skid(8))
    text = rtlil.convert(Checked(m), ports=[slow.clk, slow.rst])
    assert "the offer at top.skid.o" in text and "\\clk" not in text.replace("\\slow_clk", "")


def test_a_reset_withdraws_every_offer():
    m = Module()
    m.domains.sync = sync = ClockDomain()
    m.submodules.source = source = Source()

    async def bench(ctx):
        for valid, reset in ((1, 0), (0, 1), (0, 0), (1, 0), (0, 0)):
            ctx.set(source.valid, valid)
            ctx.set(sync.rst, reset)
            seen.append((valid, reset))
            await ctx.tick()

    seen = []
    with pytest.raises(AssertionError, match="top.source.o"):
        simulate(Checked(m), bench)
    assert len(seen) == 5, "the first withdrawal is the reset's"

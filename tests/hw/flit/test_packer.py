# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The packer, cycle by cycle and flit by flit what the golden model says."""

import random

import pytest
from amaranth.hdl import Value
from flit_traffic import random_message
from simulation import simulate

from kelp_golden.flit import Packer
from kelp_hw.flit.layouts import PORTS
from kelp_hw.flit.packer import FlitPacker
from kelp_spec.flit import COUNT_BITS, DIRECTIONS

COUNTS = 1 << COUNT_BITS


class Both:
    """RTL and golden model under the same offers. `offer`: channel → how often a message is
    offered; `link`: how often the link takes a flit; `grant`: how often a channel is given a
    credit; `freed`: how often what this end allows goes up."""

    def __init__(self, direction, *, offer, link, grant=1.0, freed=0.1, seed=1):
        self.dut = FlitPacker(direction=direction, protect=True)
        self.golden = Packer(direction)
        self.channels = DIRECTIONS[direction].channels
        self.offer, self.link, self.grant, self.freed = offer, link, grant, freed
        self.rng, self.seed = random.Random(seed), seed
        self.sent, self.flits = dict.fromkeys(self.channels, 0), []

    def simulate(self, cycles):
        async def bench(ctx):
            await self.run(ctx, cycles)

        simulate(self.dut, bench)

    async def run(self, ctx, cycles):
        dut, golden, rng = self.dut, self.golden, self.rng
        granted, waiting, standing = [0] * 3, {}, None
        ports = {name: getattr(dut, PORTS[name]) for name in self.channels}
        for cycle in range(cycles):
            for name, port in ports.items():
                if name not in waiting and rng.random() < self.offer.get(name, 0):
                    waiting[name] = random_message(name, rng)
                    ctx.set(port.payload, waiting[name])
                ctx.set(port.valid, name in waiting)
            ready = rng.random() < self.link
            ctx.set(dut.o.ready, ready)
            for n in range(3):
                granted[n] += rng.random() < self.freed
                ctx.set(dut.granted[n], granted[n] % COUNTS)
            n, told = rng.randrange(3), golden.allowance
            hears = rng.random() < self.grant and told.left(self.channels[n]) < 60
            count = (told.allowed[self.channels[n]] + rng.randrange(1, 5)) % COUNTS
            ctx.set(dut.heard, {"valid": hears, "channel": n, "count": count})

            offered = ctx.get(dut.o.valid)
            if offered:
                flit = ctx.get(Value.cast(dut.o.p))
                assert standing == flit, f"seed {self.seed}, cycle {cycle}"
                if ready:
                    self.flits.append(flit)
            else:
                assert standing is None, f"seed {self.seed}, cycle {cycle}: a flit is missing"
            taken, flit = golden.step(waiting, out_free=not offered or ready, granted=granted)
            for name, port in ports.items():
                took = bool(ctx.get(port.ready)) and name in waiting
                assert took == (name in taken), f"seed {self.seed}, cycle {cycle}, {name}"
                if took:
                    del waiting[name]
                    self.sent[name] += 1
            if not offered or ready:
                standing = flit
            if hears:
                golden.allowance.hear(n, count)
            assert not ctx.get(dut.wrong)
            await ctx.tick()


ALL = {"m2s": dict(M2SReq=1, M2SRwD=1, M2SBIRsp=1), "s2m": dict(S2MDRS=1, S2MNDR=1, S2MBISnp=1)}


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(
    ("rate", "link", "grant"),
    [(1, 1, 1), (1, 0.2, 1), (0.3, 1, 1), (0.5, 0.1, 0.8), (0.02, 0.9, 1), (1, 0.7, 0.1)],
)
def test_flits_are_the_golden_models(direction, rate, link, grant):
    offer = {name: rate for name in DIRECTIONS[direction].channels}
    both = Both(direction, offer=offer, link=link, grant=grant)
    both.simulate(200)
    assert all(both.sent.values()) and both.flits

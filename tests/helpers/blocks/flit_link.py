# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Two flit fronts and what joins them, in Amaranth's simulator."""

import random

from amaranth.hdl import Module, Signal, Value
from flit_traffic import random_message, raw

from kelp_hw.flit.front import FlitFront
from kelp_hw.flit.layouts import PORTS
from kelp_spec.flit import DIRECTIONS, FLIT_BITS

__all__ = ["Link"]


class Link:
    """Two fronts and what they are joined by. `offer`, `read`: channel → how often a message is
    offered, or read; `link`: how often flits pass; `harm`: how often one is spoiled."""

    def __init__(self, *, offer, read=None, link=1.0, harm=0.0, credits=16, protect=True, seed=1):
        self.host = FlitFront(side="host", credits=credits, protect=protect)
        self.device = FlitFront(side="device", credits=credits, protect=protect)
        self.rng, self.seed = random.Random(seed), seed
        self.offer, self.read, self.link, self.harm = offer, read or {}, link, harm
        self.sent, self.got = {name: [] for name in PORTS}, {name: [] for name in PORTS}
        self.waiting = {}
        self.top = m = Module()
        m.submodules.host, m.submodules.device = self.host, self.device
        self.gates = []
        for a, b in ((self.host, self.device), (self.device, self.host)):
            passes, mask = Signal(), Signal(FLIT_BITS)
            m.d.comb += [
                b.i_flit.valid.eq(a.o_flit.valid & passes),
                a.o_flit.ready.eq(b.i_flit.ready & passes),
                Value.cast(b.i_flit.p).eq(Value.cast(a.o_flit.p) ^ mask),
            ]
            self.gates.append((passes, mask))
        self.ports = {}
        for direction, (a, b) in (
            ("m2s", (self.host, self.device)),
            ("s2m", (self.device, self.host)),
        ):
            for name in DIRECTIONS[direction].channels:
                self.ports[name] = getattr(a, PORTS[name]), getattr(b, PORTS[name])

    async def step(self, ctx, *, drain=False):
        """A cycle; with `drain` nothing new is offered and all is read."""
        rng = self.rng
        for name, (entry, leaves) in self.ports.items():
            if not drain and name not in self.waiting:
                if rng.random() < self.offer.get(name, 0):
                    self.waiting[name] = random_message(name, rng)
                    ctx.set(entry.payload, self.waiting[name])
            ctx.set(entry.valid, name in self.waiting)
            ctx.set(leaves.ready, drain or rng.random() < self.read.get(name, 1))
        for passes, mask in self.gates:
            ctx.set(passes, rng.random() < self.link)
            # The version, or the number of lines: what is always seen.
            harm = 1 << rng.choice((0, 5, 6)) if rng.random() < self.harm else 0
            ctx.set(mask, harm)
        for name, (entry, leaves) in self.ports.items():
            if ctx.get(leaves.valid) and ctx.get(leaves.ready):
                self.got[name].append(ctx.get(Value.cast(leaves.p)))
            if name in self.waiting and ctx.get(entry.ready):
                self.sent[name].append(raw(name, self.waiting.pop(name)))
        await ctx.tick()

    async def cycles(self, ctx, count):
        for _ in range(count):
            await self.step(ctx)

    async def drain(self, ctx, limit):
        """Until all has arrived."""
        for _ in range(limit):
            if not self.waiting and all(
                len(self.got[name]) == len(self.sent[name]) for name in PORTS
            ):
                return
            await self.step(ctx, drain=True)
        raise AssertionError(f"seed {self.seed}: not all has arrived after {limit} cycles")

    def counts(self, ctx):
        return [ctx.get(end.counts) for end in (self.host, self.device)]

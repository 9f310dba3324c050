# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""A memory of summaries behind their port, which answers when it likes, and with errors; and what a
bench of the blocks that keep summaries does."""

import random
from collections import deque

from streams import Ends, pump

from kelp_spec.config import named

__all__ = [
    "CHIP",
    "MEMORY",
    "PAGES",
    "SQUEUE",
    "SummaryBench",
    "SummaryPort",
    "codes",
    "told",
    "twice",
]

MEMORY = named("unit_select").with_(half_lines=32)
CHIP = MEMORY.with_(select_port=False)
SQUEUE, PAGES = 5, (3, 9, 63)


def codes(page, line):
    return [page << 8 | line << 4 | k for k in range(16)]


class SummaryPort:
    """`cycle` sets the port's inputs of a cycle and takes what is transferred in it.

    latency : the longest time from an address to its answer, in cycles
    stall : the share of cycles in which a channel does nothing
    errs : (write, byte address) → whether it is answered with an error; it is asked once a line
    """

    def __init__(self, axi, *, rng, latency=1, stall=0.0, errs=lambda write, address: False):
        self.axi, self.rng, self.latency, self.stall, self.errs = axi, rng, latency, stall, errs
        self.lines, self.now = {}, 0
        self.reads, self.writes = deque(), deque()  # (due, address, data)
        self.addresses, self.data = deque(), deque()
        self.offers = {"r": None, "b": None}

    def _due(self):
        return self.now + self.rng.randint(1, self.latency)

    def cycle(self, ctx):
        rng, axi = self.rng, self.axi
        self.now += 1
        ready = {}
        for name in ("ar", "aw", "w"):
            ready[name] = rng.random() >= self.stall
            ctx.set(getattr(axi, name).ready, ready[name])
        for name, waiting in (("r", self.reads), ("b", self.writes)):
            if self.offers[name] is None and waiting and waiting[0][0] <= self.now:
                if rng.random() >= self.stall:
                    self.offers[name] = self._answer(name == "b", *waiting.popleft()[1:])
            channel, offer = getattr(axi, name), self.offers[name]
            ctx.set(channel.valid, offer is not None)
            ctx.set(channel.p, offer or {})
        if ready["ar"] and ctx.get(axi.ar.valid):
            address = self._address(ctx, axi.ar)
            self.reads.append((self._due(), address, self.lines.get(address, 0)))
        if ready["aw"] and ctx.get(axi.aw.valid):
            self.addresses.append(self._address(ctx, axi.aw))
        if ready["w"] and ctx.get(axi.w.valid):
            assert ctx.get(axi.w.p.last) and ctx.get(axi.w.p.strb) == (1 << 64) - 1
            self.data.append(ctx.get(axi.w.p.data))
        while self.addresses and self.data:
            self.writes.append((self._due(), self.addresses.popleft(), self.data.popleft()))
        for name in ("r", "b"):
            if self.offers[name] is not None and ctx.get(getattr(axi, name).ready):
                self.offers[name] = None

    def _answer(self, write, address, data):
        """A write reaches memory with its answer, one that failed never."""
        failed = self.errs(write, address)
        told = {"resp": self.rng.choice((2, 3)) if failed else 0}
        if write:
            if not failed:
                self.lines[address] = data
            return told
        return told | {"data": self.rng.getrandbits(512) if failed else data, "last": 1}

    @staticmethod
    def _address(ctx, channel):
        shown = [ctx.get(getattr(channel.p, name)) for name in ("len", "size", "burst")]
        address = ctx.get(channel.p.addr)
        assert shown == [0, 6, 1] and address % 64 == 0, (shown, address)
        return address


def told(seen):
    """Lines that came, as (page, line, last, codes)."""
    return [(t.item.id, t.item.line, t.item.last, list(t.item.code)) for t in seen["o"]]


def twice(rows=2):
    """What :meth:`SummaryBench.lines` gets, as `told`."""
    return [
        (page, line, line == rows - 1, codes(page, line))
        for page in (*PAGES, *PAGES)
        for line in range(rows)
    ]


class SummaryBench:
    """A block that keeps summaries, of `rows` lines each, and where it has a port the memory behind
    it."""

    def __init__(self, dut, *, rows=2, latency=1, stall=0.0, seed=1, errs=None):
        self.dut, self.rows, self.memory, self.failed = dut, rows, None, []
        if hasattr(dut, "axi"):
            options = {"errs": errs} if errs else {}
            rng = random.Random(seed)
            self.memory = SummaryPort(
                self.dut.axi, rng=rng, latency=latency, stall=stall, **options
            )

    def watch(self, ctx):
        if self.memory:
            self.memory.cycle(ctx)
            if ctx.get(self.dut.o_failed.valid):
                told = self.dut.o_failed.p
                self.failed.append((ctx.get(told.squeue), ctx.get(told.page), ctx.get(told.write)))

    async def tick(self, ctx):
        self.watch(ctx)
        await ctx.tick()

    async def ready(self, ctx, dut):
        """Its inputs that hold still are set, and the scrub of a store is over."""
        ctx.set(dut.squeue, SQUEUE)
        ctx.set(dut.rows, self.rows - 1)
        if hasattr(dut, "ready"):
            ctx.set(dut.token_lines, 1)
            for _ in range(dut.config.page_words):
                await self.tick(ctx)
            assert ctx.get(dut.ready)

    async def write(self, ctx, dut, pages=PAGES):
        """Summaries, each settled before the next."""
        for page in pages:
            for line in range(self.rows):
                ctx.set(dut.i_line.p, {"id": page, "line": line, "code": codes(page, line)})
                ctx.set(dut.i_line.valid, 1)
                taken = False
                while not taken:
                    self.watch(ctx)
                    taken = ctx.get(dut.i_line.ready)
                    await ctx.tick()
            ctx.set(dut.i_line.valid, 0)
            for _ in range(400):
                if self._settled(ctx):
                    break
                await self.tick(ctx)
            assert self._settled(ctx), "settled"

    def _settled(self, ctx):
        return not hasattr(self.dut, "settled") or ctx.get(self.dut.settled)

    async def read(self, ctx, dut, pages=PAGES):
        """Lines of summaries, as (page, line, codes)."""
        got, asked, most = [], [*pages], self.rows * len(pages)
        ctx.set(dut.o.ready, 1)
        while len(got) < most:
            ctx.set(dut.i.valid, bool(asked))
            ctx.set(dut.i.p, asked[0] if asked else 0)
            self.watch(ctx)
            if ctx.get(dut.o.valid):
                line = dut.o.p
                got.append((ctx.get(line.id), ctx.get(line.line), list(ctx.get(line.code))))
            if asked and ctx.get(dut.i.ready):
                asked.pop(0)
            await ctx.tick()
        return got

    def lines(self, *, offer=1.0, take=1.0, cycles=10):
        """Summaries are written, and asked for twice; the transfers."""

        async def before(ctx, dut):
            await self.ready(ctx, dut)
            await self.write(ctx, dut)

        ends = Ends(
            sends={"i": [*PAGES, *PAGES]},
            takes=("o",),
            offer=offer,
            take=take,
            before=before,
            watch=self.watch,
        )
        return pump(self.dut, ends, cycles=int(8 * self.rows / offer / take) + cycles)

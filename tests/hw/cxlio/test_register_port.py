# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The register port: spaces, refusals, turns, pace."""

import random

import pytest
from simulation import simulate
from streams import Ends, pump
from timing import changes

from kelp_hw.cxlio.register_port import RegisterPort
from kelp_hw.cxlio.signatures import RESP_DECERR, RESP_OKAY, RESP_SLVERR
from kelp_spec.cxlio.config import Space

ONES = (1 << 64) - 1


def answers(addresses, memory_enable, spaces=2):
    port = RegisterPort(spaces=spaces)
    ends = Ends(
        sends={"port.ar": [{"addr": a} for a in addresses]},
        takes=("port.r",),
        take=0.5,
        held={"memory_enable": memory_enable, "access.read_data": 0x1234},
    )
    seen = pump(port, ends, cycles=40 * len(addresses))["port.r"]
    return [(each.item["data"], each.item["resp"]) for each in seen]


def test_what_each_space_answers():
    addresses = [0x00000, 0x1FFF8, 0x20000, 0x30FF8, 0x31000, 0x40000, 0xF0000]
    none = (0, RESP_DECERR)
    there = (0x1234, RESP_OKAY)
    assert answers(addresses, 1) == [there, there, none, there, none, none, none]
    off = (ONES, RESP_SLVERR)
    assert answers(addresses, 0) == [off, off, none, there, none, none, none]
    assert answers([0x2FFF8], 1, spaces=3) == [there]


def test_a_refused_write_writes_nothing_and_turns_alternate():
    port = RegisterPort()
    writes, order = [], []

    async def bench(ctx):
        ctx.set(port.memory_enable, 1)
        for name in ("aw", "w", "ar"):
            ctx.set(getattr(port.port, name).valid, 1)
        ctx.set(port.port.b.ready, 1)
        ctx.set(port.port.r.ready, 1)
        for cycle in range(64):
            ctx.set(port.port.aw.p.addr, 0x40000 if cycle >= 32 else 0x10008)
            await ctx.delay(1e-9)
            writes.append(ctx.get(port.access.write) and cycle)
            order.extend(k for k in ("b", "r") if ctx.get(getattr(port.port, k).valid))
            await ctx.tick()

    simulate(port, bench)
    assert any(writes[:32]) and not any(writes[36:])
    assert "bb" not in "".join(order) and "rr" not in "".join(order) and len(order) > 12


def test_while_held_it_takes_no_address():
    port = RegisterPort()

    async def bench(ctx):
        for name in ("aw", "w", "ar"):
            ctx.set(getattr(port.port, name).valid, 1)
        ctx.set(port.hold, 1)
        for _ in range(8):
            taken = [ctx.get(getattr(port.port, name).ready) for name in ("aw", "w", "ar")]
            assert taken == [0, 0, 0]
            await ctx.tick()
        ctx.set(port.hold, 0)
        assert ctx.get(port.port.ar.ready) or ctx.get(port.port.aw.ready)

    simulate(port, bench)


def test_a_write_needs_its_address_and_its_data_and_carries_them():
    port, writes = RegisterPort(), []

    async def bench(ctx):
        ctx.set(port.memory_enable, 1)
        ctx.set(port.port.b.ready, 1)
        ctx.set(port.port.aw.p.addr, 0x1ABC8)
        ctx.set(port.port.w.p, {"data": 0x123456789ABCDEF0, "strb": 0x5A})

        async def offered(aw, w):
            ctx.set(port.port.aw.valid, aw)
            ctx.set(port.port.w.valid, w)
            assert ctx.get(port.port.aw.ready) == ctx.get(port.port.w.ready) == (aw and w)
            await ctx.tick()

        for aw, w in ((1, 0), (0, 1), (1, 1)):
            await offered(aw, w)
        access = port.access
        for _ in range(6):
            if ctx.get(access.write):
                at = ctx.get(port.space), ctx.get(access.lane)
                writes.append((*at, ctx.get(access.write_data), ctx.get(access.strobe)))
            ctx.set(port.port.aw.valid, 0)
            ctx.set(port.port.w.valid, 0)
            await ctx.tick()

    simulate(port, bench)
    assert writes == [(1, 0xABC8 >> 3, 0x123456789ABCDEF0, 0x5A)]


@pytest.mark.parametrize("chmu", [False, True])
def test_any_access_goes_its_way(chmu):
    """To each space, with memory enable on or off, to what is beyond repair: what the block beside
    it sees, in which cycle, and the answer, which stands until it is taken."""
    rng = random.Random(3)
    dut = RegisterPort(spaces=2, chmu=chmu)
    port, access = dut.port, dut.access
    seen = {}

    async def bench(ctx):
        async def step(pulses=(0, 0), valid=(0, 0), ready=(0, 0)):
            """A cycle, in which no more happens than is said."""
            await ctx.delay(1e-9)
            assert (ctx.get(access.read), ctx.get(access.write)) == pulses
            assert (ctx.get(port.r.valid), ctx.get(port.b.valid)) == valid
            assert (ctx.get(port.ar.ready), ctx.get(port.aw.ready)) == ready
            assert ctx.get(port.w.ready) == ready[1]
            await ctx.tick()

        last = None
        for _ in range(600):
            read, write = rng.random() < 0.6, rng.random() < 0.6
            space, enable, broken = rng.randrange(16), rng.random() < 0.8, rng.random() < 0.2
            if rng.random() < 0.8:
                space = rng.choice((0, 1, 2, 3, 4))
            at = space << 16 | rng.choice((rng.getrandbits(16), rng.getrandbits(12)))
            given, strobe, shown = rng.getrandbits(64), rng.getrandbits(8), rng.getrandbits(64)
            ctx.set(dut.memory_enable, enable)
            ctx.set(port.ar.valid, read)
            ctx.set(port.aw.valid, write)
            ctx.set(port.w.valid, write)
            for channel in (port.ar, port.aw):
                ctx.set(channel.p.addr, at)
            ctx.set(port.w.p, {"data": given, "strb": strobe})
            for name in ("r", "b"):
                ctx.set(getattr(port, name).ready, 1)
            writes = write and not (read and last == "write")
            await step(ready=(read and not writes, writes))
            if not (read or write):
                continue
            last = "write" if writes else "read"
            for channel in (port.ar, port.aw, port.w):
                ctx.set(channel.valid, 1)
                ctx.set(channel.payload.as_value(), rng.getrandbits(20))
            bar = space < 2 or chmu and space == Space.CHMU >> 16
            configuration = space == Space.CONFIGURATION >> 16 and at & 0xFFFF < 4096
            there, refused = bar or configuration, bar and not enable
            good = there and not refused
            code = RESP_OKAY if good else RESP_SLVERR if there else RESP_DECERR
            told = shown if good else ONES if there else 0
            await step(pulses=(good and not writes, good and writes))
            assert (ctx.get(dut.space), ctx.get(access.lane)) == (space, (at & 0xFFFF) // 8)
            if writes:
                assert (ctx.get(access.write_data), ctx.get(access.strobe)) == (given, strobe)
            ctx.set(access.read_data, shown)
            ctx.set(dut.broken, broken)
            if good and broken:
                code, told = RESP_SLVERR, ONES
            await step()
            ctx.set(access.read_data, rng.getrandbits(64))
            ctx.set(dut.broken, 0)
            answer, other = (port.b, port.r) if writes else (port.r, port.b)
            for wait in range(rng.randrange(3), -1, -1):
                ctx.set(answer.ready, not wait)
                ctx.set(other.ready, rng.random() < 0.5)
                await step(valid=(not writes, writes))
                assert ctx.get(answer.p.resp) == code
                assert writes or ctx.get(port.r.p.data) == told
            seen[code, writes] = seen.get((code, writes), 0) + 1

    simulate(dut, bench)
    assert len(seen) == 6 and min(seen.values()) > 20


def test_latency_and_interval():
    port = RegisterPort()
    given = [{"port.ar.valid": 1, "port.r.ready": 1, "memory_enable": 1}] * 16
    seen = changes(port, "port.r.valid", given)
    assert seen[0] == port.LATENCY and seen[2] - seen[0] == port.INTERVAL

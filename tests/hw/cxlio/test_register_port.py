# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The register port: spaces, refusals, turns, pace."""

from simulation import simulate
from streams import Ends, pump
from timing import changes

from kelp_hw.cxlio.register_port import RegisterPort
from kelp_hw.cxlio.signatures import RESP_DECERR, RESP_OKAY, RESP_SLVERR

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


def test_latency_and_interval():
    port = RegisterPort()
    given = [{"port.ar.valid": 1, "port.r.ready": 1, "memory_enable": 1}] * 16
    seen = changes(port, "port.r.valid", given)
    assert seen[0] == port.LATENCY and seen[2] - seen[0] == port.INTERVAL

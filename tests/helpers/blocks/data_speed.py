# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""How fast a block of the data path or the codec is while nothing pushes back."""

from simulation import simulate

__all__ = ["ITEMS", "answered", "check_flow", "flow"]

ITEMS = 6


def measured(block, *, held, accepted, seen):
    """Cycles of the first `ITEMS` transfers at the input and at the output: `held` are (signal,
    value) that stand from the start, `accepted` and `seen` are expressions."""
    into, out = [], []

    async def bench(ctx):
        for signal, value in held:
            ctx.set(signal, value)
        for cycle in range(100):
            if ctx.get(accepted):
                into.append(cycle)
            if ctx.get(seen):
                out.append(cycle)
            if len(out) == ITEMS:
                return
            await ctx.tick()

    simulate(block, bench)
    assert len(out) == ITEMS, f"{len(out)} of {ITEMS} came out in 100 cycles"
    return into[:ITEMS], out


def flow(i, o):
    """A stream that is always offered, and one that is always taken."""
    return dict(accepted=i.valid & i.ready, seen=o.valid & o.ready), [(i.valid, 1), (o.ready, 1)]


def check_flow(block, *, held, accepted, seen):
    """LATENCY from the first input to the first output, INTERVAL between outputs."""
    into, out = measured(block, held=held, accepted=accepted, seen=seen)
    assert out[0] - into[0] == block.LATENCY
    assert {b - a for a, b in zip(out, out[1:], strict=False)} == {block.INTERVAL}


def answered(block, asks, answer):
    """`answer` to each of `asks`, `LATENCY` cycles after it. `asks` are set one a cycle: signal,
    value, signal, value …"""
    seen = []

    async def bench(ctx):
        for cycle in range(len(asks) + block.LATENCY):
            ask = asks[cycle] if cycle < len(asks) else ()
            for signal, value in zip(ask[::2], ask[1::2], strict=True):
                ctx.set(signal, value)
            seen.append(ctx.get(answer))
            await ctx.tick()

    simulate(block, bench)
    return seen[block.LATENCY :]

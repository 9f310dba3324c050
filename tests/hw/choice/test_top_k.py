# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""TopK: the best of each list, sorted, ties by order of arrival, one item a cycle."""

import random

import pytest
from amaranth.hdl import signed
from simulation import simulate
from streams import Ends, pump

from kelp_hw.choice.top_k import TopK


def kept(lists, *, depth, offer=1.0, take=1.0, seed=1):
    """What comes out of each list of (score, id), and all transfers."""
    dut, sends = TopK(depth=depth, score=signed(20), id_bits=10), []
    for items in lists:
        for n, (score, name) in enumerate(items):
            sends.append({"score": score, "id": name, "none": 0, "last": n == len(items) - 1})
        if not items:
            sends.append({"score": 7, "id": 0, "none": 1, "last": 1})
    most = len(sends) + len(lists) * (depth + 4)
    ends = Ends(sends={"i": sends}, takes=("o",), offer=offer, take=take)
    seen, out = pump(dut, ends, cycles=int(2 * most / offer / take), seed=seed), [[]]
    for transfer in seen["o"]:
        if not transfer.item.none:
            out[-1].append((transfer.item.score, transfer.item.id))
        if transfer.item.last:
            out.append([])
    assert out.pop() == []
    return out, seen


def best(items, depth):
    return sorted(items, key=lambda item: -item[0])[:depth]


@pytest.mark.parametrize("depth", [1, 2, 7, 16])
def test_the_best_of_each_list_in_order(depth):
    rng = random.Random(depth)
    # Few scores: many are equal, and of those the first ones stay.
    lists = [
        [(rng.randrange(-few, few), name) for name in range(rng.randrange(0, 40))]
        for few in (2, 9, 1 << 19)
        for _ in range(8)
    ]
    out, _ = kept(lists, depth=depth, offer=0.7, take=0.6, seed=depth)
    assert out == [best(items, depth) for items in lists]


@pytest.mark.parametrize("order", [1, -1], ids=["rising", "falling"])
def test_sorted_lists(order):
    items = [(order * n, n) for n in range(30)]
    assert kept([items, items], depth=8)[0] == [best(items, 8)] * 2


def test_idle_is_when_nothing_is_held_or_offered():
    dut, seen = TopK(depth=2, score=4, id_bits=1), []

    async def bench(ctx):
        for valid, last, ready in ((0, 0, 1), (1, 0, 1), (0, 0, 1), (1, 1, 1), (0, 0, 1)):
            ctx.set(dut.i.valid, valid)
            ctx.set(dut.i.p.last, last)
            ctx.set(dut.o.ready, ready)
            seen.append(ctx.get(dut.idle))
            await ctx.tick()
        for _ in range(3):
            seen.append(ctx.get(dut.idle))
            await ctx.tick()

    simulate(dut, bench)
    assert seen == [1, 0, 0, 0, 0, 0, 1, 1]


def test_latency_and_interval():
    items = [(n * 37 % 101, n) for n in range(100)]
    _, seen = kept([items, items], depth=8)
    first, *_, last = (transfer.taken for transfer in seen["i"][:100])
    assert last - first == 99 * TopK.INTERVAL
    out = [transfer.taken for transfer in seen["o"][:8]]
    assert out == list(range(last + TopK.LATENCY, last + TopK.LATENCY + 8))
    assert seen["i"][100].taken == out[-1] + 1, "the next list follows the last item taken"


def test_depth_is_checked():
    with pytest.raises(ValueError, match="depth = 0 is refused; legal: 1 … 256"):
        TopK(depth=0, score=4, id_bits=1)

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Credits: none is lost and none doubled, over counts that wrap and flits that are refused."""

import random

import pytest
from amaranth.hdl import Module
from simulation import simulate
from timing import check_pace

from kelp_hw.flit.credits import CreditReceiver, CreditSender
from kelp_spec.flit import COUNT_BITS, MOST_CREDITS

COUNTS = 1 << COUNT_BITS


@pytest.mark.parametrize("credits", [4, 16, 64])
@pytest.mark.parametrize("loss", [0, 0.2])
def test_all_credits_come_back(credits, loss):
    """Flits of some messages pass or are refused, places are freed at random: in each cycle either
    end allows what is left, and at the end the sender has exactly the credits that it had at the
    beginning."""
    sender, receiver, m = CreditSender(), CreditReceiver(credits=credits), Module()
    m.submodules.sender, m.submodules.receiver = sender, receiver
    rng, sent = random.Random(credits), [0, 0, 0]

    async def bench(ctx):
        held, received = [0, 0, 0], [0, 0, 0]
        before, new = [0, 0, 0], [0, 0, 0]
        heard, granted, longest = [0, 0, 0], [credits] * 3, 0
        most, ended = (20, 0.06) if credits == 64 else (5, 0.4)
        for cycle in range(900):
            ends = cycle >= 800
            loses = not ends and rng.random() < loss
            takes = 0
            left = [(has - gone) % COUNTS != 0 for has, gone in zip(heard, sent, strict=True)]
            assert ctx.get(sender.left) == sum(has << n for n, has in enumerate(left))
            allowed = [count % COUNTS for count in granted]
            assert [ctx.get(receiver.granted[n]) for n in range(3)] == allowed, f"cycle {cycle}"
            for n in range(3):
                if (
                    not ends
                    and new[n] < most
                    and ctx.get(sender.left) >> n & 1
                    and rng.random() < 0.7
                ):
                    takes |= 1 << n
                    new[n] += 1
                    sent[n] += 1
            closes = ends or rng.random() < ended
            ctx.set(sender.takes, takes)
            ctx.set(sender.closes, closes)
            # What was told last, and comes with this flit: a sum of each kind.
            wanted = [count % COUNTS for count in before]
            assert [ctx.get(sender.before[n]) for n in range(3)] == wanted, f"cycle {cycle}"
            n = cycle % 3
            told = {"valid": closes, "channel": n, "count": before[n] % COUNTS}
            ctx.set(receiver.told, told)
            ctx.set(receiver.new, new)
            freed = sum((held[n] > 0 and (ends or rng.random() < 0.3)) << n for n in range(3))
            ctx.set(receiver.freed, freed)
            ctx.set(receiver.takes, closes and not loses)
            lost = closes * (before[n] - received[n])
            assert ctx.get(receiver.lost) == lost, f"cycle {cycle}"
            if closes:
                assert not ctx.get(receiver.refuses), f"cycle {cycle}"
                if not loses:
                    held = [h + k for h, k in zip(held, new, strict=True)]
                    granted[n] += lost
                    longest = max(longest, *new)
                    received[n] = before[n]
                    received = [r + k for r, k in zip(received, new, strict=True)]
                before, new = list(sent), [0, 0, 0]
            held = [h - (freed >> n & 1) for n, h in enumerate(held)]
            granted = [g + (freed >> n & 1) for n, g in enumerate(granted)]
            k = rng.randrange(3)
            count = ctx.get(receiver.granted)[k]
            ctx.set(sender.heard, {"valid": not loses, "channel": k, "count": count})
            heard[k] = heard[k] if loses else count
            await ctx.tick()
            assert not ctx.get(sender.wrong)
        assert min(sent) > 100 and held == [0, 0, 0]
        assert longest >= (16 if credits == 64 else most - 1)
        for n in range(3):
            assert (ctx.get(receiver.granted)[n] - sent[n]) % COUNTS == credits

    simulate(m, bench)


def test_what_cannot_be_is_refused():
    dut = CreditReceiver(credits=4)

    async def bench(ctx):
        for new, told, refused, lost in (
            ([5, 0, 0], None, 1, 0),
            ([0, 0, 5], None, 1, 0),
            ([4, 4, 4], None, 0, 0),
            ([0, 1, 0], (1, 4), 0, 4),
            ([0, 0, 0], (1, 5), 1, 5),
            ([0, 0, 0], (1, 255), 1, 255),
        ):
            ctx.set(dut.new, new)
            channel, count = told or (0, 0)
            ctx.set(dut.told, {"valid": told is not None, "channel": channel, "count": count})
            assert (ctx.get(dut.refuses), ctx.get(dut.lost)) == (refused, lost), (new, told)
        await ctx.tick()

    simulate(dut, bench)


def test_no_more_than_can_be_is_believed():
    """By the sender, of what it hears; what it had stays."""
    dut, told, most = CreditSender(), [], MOST_CREDITS

    async def bench(ctx):
        counts = (most + 1, COUNTS - 1, most, most + 2, most + 1, most + 2, most + 2)
        for count, takes in zip(counts, (0, 0, 0, 1, 0, 1, 0), strict=True):
            ctx.set(dut.heard, {"valid": 1, "channel": 1, "count": count})
            ctx.set(dut.takes, takes << 1)
            told.append(ctx.get(dut.wrong))
            await ctx.tick()
        assert ctx.get(dut.left) == 0b10

    simulate(dut, bench)
    assert told == [1, 1, 0, 1, 0, 1, 0]


def test_latency_and_interval():
    heard = [{"heard.valid": 1, "heard.channel": n, "heard.count": 1} for n in range(3)]
    check_pace(CreditSender(), "LATENCY", "left", heard)
    check_pace(
        CreditReceiver(credits=4),
        "LATENCY",
        "granted",
        [{"takes": 1, "told.valid": 1, "told.channel": n, "told.count": 1} for n in range(3)],
    )

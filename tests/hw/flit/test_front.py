# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Two fronts and a link: all arrives, in order, at full rate, whatever the readers do; what a link
spoils is counted, and afterwards everything goes on."""

import pytest
from amaranth.hdl import Shape
from flips import fields, flip, opened
from flit_link import Link
from simulation import simulate
from timing import changes, check_pace, offers, shown

from kelp_hw.flit.front import FLIT_COUNTS, FlitFront
from kelp_hw.flit.layouts import FLIT, PORTS
from kelp_hw.lib.protected import BlockFault
from kelp_spec.flit import COUNT_BITS, NOTHING_TOLD, QUEUE, REFRESH, VERSION
from kelp_spec.messages import FIELDS

LIMIT = 6000


@pytest.mark.parametrize(
    ("offer", "read", "link"), [(0.7, 0.3, 0.5), (0.1, 0.9, 0.9), (1, 0.8, 0.15)]
)
@pytest.mark.sampled
def test_all_arrives_in_order(offer, read, link):
    both = Link(offer=dict.fromkeys(PORTS, offer), read=dict.fromkeys(PORTS, read), link=link)

    async def bench(ctx):
        await both.cycles(ctx, 100)
        await both.drain(ctx, LIMIT)
        assert both.got == both.sent and all(both.sent.values())
        assert not any(count[name] for count in both.counts(ctx) for name, _ in FLIT_COUNTS)

    simulate(both.top, bench)


def test_each_channel_passes_a_message_a_cycle():
    """All six at once, over a link that takes a flit a cycle."""
    both = Link(offer=dict.fromkeys(PORTS, 1), credits=64)

    async def bench(ctx):
        await both.cycles(ctx, 60)
        before = {name: len(got) for name, got in both.got.items()}
        await both.cycles(ctx, 60)
        rates = {name: len(got) - before[name] for name, got in both.got.items()}
        assert set(rates.values()) == {60}, rates

    simulate(both.top, bench)


@pytest.mark.parametrize("stuck", PORTS)
@pytest.mark.sampled
def test_a_channel_that_nobody_reads_stops_no_other(stuck):
    both = Link(offer=dict.fromkeys(PORTS, 1), read={stuck: 0}, credits=8)

    async def bench(ctx):
        await both.cycles(ctx, 60)
        before = {name: len(got) for name, got in both.got.items()}
        await both.cycles(ctx, 120)  # a round trip of eight credits takes some forty
        for name in PORTS:
            assert (len(both.got[name]) - before[name] >= 10) == (name != stuck), name

    simulate(both.top, bench)


def spoiled(name, got, sent):
    """Messages of `got` that nobody sent, in the order in which they were sent; those whose line
    was lost are poison and zero, behind a header that was sent."""
    head = sum(bits for field, bits in FIELDS[name] if field not in ("data", "byte_enable"))
    poison = 1 << 23 if name == "S2MDRS" else 0
    left, strange = iter(sent), 0
    for message in got:
        lost = not message >> head and message & poison
        strange += not any(
            message == each or (lost and message == (each | poison) & ((1 << head) - 1))
            for each in left
        )
    return strange


def test_after_a_bad_link_all_goes_on():
    """A third of the flits spoiled: none of them makes a message that nobody sent, all are counted;
    then a good link carries everything again, and each channel has exactly its credits."""
    both = Link(offer=dict.fromkeys(PORTS, 0.8), harm=0.3, seed=4)

    async def bench(ctx):
        await both.cycles(ctx, 100)
        both.harm = 0
        await both.cycles(ctx, 14 * REFRESH)
        for name in PORTS:
            assert not spoiled(name, both.got[name], both.sent[name]), name
        for count in both.counts(ctx):
            assert count.refused_header and count.refused_framing and count.lost
            assert not count.refused_credit and not count.wrong_credits
        # Nothing is under way; then nobody reads: each channel sends as much as it has credits.
        both.offer = {}
        await both.cycles(ctx, 60)
        before = {name: len(sent) for name, sent in both.sent.items()}
        both.offer, both.read = dict.fromkeys(PORTS, 1), dict.fromkeys(PORTS, 0)
        await both.cycles(ctx, 60)
        more = {name: len(sent) - before[name] for name, sent in both.sent.items()}
        narrow = ("M2SBIRsp", "S2MNDR")
        assert more == {name: 16 + QUEUE * (name in narrow) for name in PORTS}

    simulate(both.top, bench)


def test_no_line_is_made_of_two():
    """Lines alone, every fourth in two halves, over a link that spoils half of all flits: many a
    first half meets the second of another line, both flits between them refused."""
    both = Link(offer={"S2MDRS": 1}, harm=0.5, seed=4)

    async def bench(ctx):
        await both.cycles(ctx, 600)
        got, host = both.got["S2MDRS"], both.counts(ctx)[0]
        assert not spoiled("S2MDRS", got, both.sent["S2MDRS"])
        assert len(got) > 100 and host.orphans > 10

    simulate(both.top, bench)


def empty(told, count=0):
    return {"version": VERSION, "told": told, "count": count}


def test_counts_stand_still_at_their_greatest_and_credits_that_cannot_be_are_ignored():
    dut = FlitFront(side="host", credits=4, protect=True)

    async def bench(ctx):
        async def send(flit):
            ctx.set(dut.i_flit.p, {name: flit.get(name, 0) for name, _ in FLIT})
            ctx.set(dut.i_flit.valid, 1)
            await ctx.tick()
            ctx.set(dut.i_flit.valid, 0)
            await ctx.tick().repeat(3)
            return ctx.get(dut.counts)

        assert (await send(empty(0, 129))).wrong_credits == 1
        assert (await send(empty(0, 128))).wrong_credits == 1
        assert (await send(empty(0, 127))).wrong_credits == 2
        assert (await send(empty(3, 5))).refused_credit == 1
        assert (await send(empty(3, 4))).lost == 4
        assert (await send(empty(7))).refused_header == 1
        assert (await send(empty(6) | {"x": 1})).refused_framing == 1
        assert (await send(empty(6) | {"y": 2})).refused_encoding == 1
        assert (await send(empty(6) | {"middle": 3})).orphans == 1
        ctx.set(dut.m2s_req.valid, 1)
        assert not ctx.get(dut.m2s_rwd.ready)

    simulate(dut, bench)


def test_a_count_that_is_full_stands_still():
    """Each flit says that as many messages were sent as there are credits, none of which came."""
    dut = FlitFront(side="host", credits=64, protect=False)
    most = Shape.cast(FLIT_COUNTS["lost"].shape).width

    async def bench(ctx):
        seen, count = [], 0
        ctx.set(dut.i_flit.valid, 1)
        for _ in range((1 << most) // 64 + 4):
            count = (count + 64) % (1 << COUNT_BITS)
            ctx.set(dut.i_flit.p, {name: empty(3, count).get(name, 0) for name, _ in FLIT})
            await ctx.tick()
            seen.append(ctx.get(dut.counts.lost))
        full = (1 << most) - 1
        first = seen.index(full)
        assert seen[first - 1] == full + 1 - 64 and set(seen[first:]) == {full}

    simulate(dut, bench)


@pytest.mark.parametrize(("bits", "kind"), [((3,), "corrected"), ((3, 9), "fatal")])
def test_flips_of_what_waits_for_a_credit_are_told(bits, kind):
    """By `fault`, once, and counted: a message that leaves, or does not."""
    dut = FlitFront(side="device", credits=4, protect=True)
    top, memories = opened(dut)
    waiting = [memory for path, memory in memories.items() if "packer" in path]
    left, told = [], []

    async def bench(ctx):
        ctx.set(dut.i_flit.p.version, VERSION)
        ctx.set(dut.s2m_ndr.valid, 1)
        for tag in (5, 6):
            ctx.set(dut.s2m_ndr.p.tag, tag)
            await ctx.tick()
        ctx.set(dut.s2m_ndr.valid, 0)
        await ctx.tick().repeat(4)
        for memory in waiting:
            for row in range(memory.depth):
                flip(ctx, memory, row, *bits)
        ctx.set(dut.o_flit.ready, 1)
        for cycle in range(40):
            # Two credits of each channel.
            ctx.set(dut.i_flit.valid, cycle < 3)
            ctx.set(dut.i_flit.p.told, cycle)
            ctx.set(dut.i_flit.p.count, 2)
            if ctx.get(dut.o_flit.valid):
                left.append(ctx.get(dut.o_flit.p.x) & 3 != 0)
            told.append(fields(ctx, dut.fault))
            await ctx.tick()
        assert {name for name in BlockFault.members if ctx.get(dut.counts[name])} == {kind}
        assert ctx.get(dut.counts[kind]) == sum(each[kind] for each in told) > 0

    simulate(top, bench)
    assert any(left) == (kind == "corrected")


def test_arguments_are_checked():
    with pytest.raises(ValueError, match="side = 'both' is refused"):
        FlitFront(side="both", credits=4, protect=True)
    with pytest.raises(ValueError, match="credits = 5 is refused"):
        FlitFront(side="host", credits=5, protect=True)


def test_latency_and_interval():
    """One NDR in each flit; one BISnp offered to each."""
    flits = [{"i_flit.valid": 1, "i_flit.p.x": 2 | n << 9 + 2} for n in (1, 2, 3)]
    hold = {"i_flit.p.version": VERSION, "i_flit.p.told": NOTHING_TOLD, "s2m_ndr.ready": 1}
    check_pace(
        FlitFront(side="host", credits=4, protect=True),
        "LATENCY",
        shown("s2m_ndr", "tag"),
        flits,
        prepare=hold,
    )
    hold = {"o_flit.ready": 1, "i_flit.p.version": VERSION}
    credits = [{"i_flit.valid": 1, "i_flit.p.told": 0, "i_flit.p.count": 8}]
    told = changes(
        FlitFront(side="host", credits=4, protect=True),
        shown("o_flit", "x"),
        offers((1,), stream="m2s_req", field="tag"),
        prepare=hold,
        before=credits,
    )
    assert told == [FlitFront.SEND_LATENCY]

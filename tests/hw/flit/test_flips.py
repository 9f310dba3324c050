# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Bits that flip in the queues of a flit front (docs/protection.md, "The flit front"): one is
corrected, two make poison, or drop the message and tell; nothing is silent."""

import fnmatch
import re
from collections import Counter
from contextlib import nullcontext
from unittest import mock

import pytest
from amaranth.sim import Simulator
from flips import flip, opened
from flit_link import Link
from paths import DOCS

import kelp_hw.flit.front as front
from kelp_hw.flit.front import FlitFront
from kelp_hw.flit.layouts import PORTS
from kelp_hw.flit.packer import FlitPacker
from kelp_hw.flit.unpacker import FlitUnpacker
from kelp_hw.lib.protected import BlockFault
from kelp_spec.flit import DIRECTIONS
from kelp_spec.messages import FIELDS
from kelp_verif.endpoint.inventory import inventory, memory_name
from kelp_verif.formal.prove import mutant

CREDITS = 8
QUIET = 16  #: cycles without a message, after which none is under way
#: What may come of one flip and of two.
GOOD = {1: {"corrected", "nothing"}, 2: {"fatal", "poison", "nothing"}}
#: Bits of a message below its byte enables and its line; where its poison is.
HEADER = {
    name: sum(bits for field, bits in FIELDS[name] if field not in ("data", "byte_enable"))
    for name in PORTS
}
ENABLES_WORD = 2  #: of a RwD, behind two of its header
ENABLES = ((1 << 64) - 1) << HEADER["M2SRwD"]


def cells(protect=True):
    """Memory → its code words, of both fronts of a link."""
    return {
        f"{side}.{name}": each
        for side in ("host", "device")
        for name, each in inventory(FlitFront(side=side, credits=CREDITS, protect=protect)).items()
    }


def channel_of(name):
    side, block, *rest = name.split(".")
    if block == "packer":
        direction = DIRECTIONS["m2s" if side == "host" else "s2m"]
        return next(each for each in reversed(direction.narrow) if each != direction.carrier)
    return next(each for each, port in PORTS.items() if rest[0] == f"queue_{port}")


def poisoned(name, sent, got):
    """`got` is `sent` with another line, or other byte enables, and says so."""
    at = 0
    for field, bits in FIELDS[name]:
        if field == "poison":
            break
        at += bits
    else:
        return False
    mask = (1 << HEADER[name]) - 1
    right = got & mask == (sent & mask) | 1 << at
    if name == "M2SRwD" and (got ^ sent) & ENABLES:
        right &= got & ENABLES == ENABLES
    return right


class Bench(Link):
    """A link whose messages stand in queues; flips, one after another, and what came of each."""

    def __init__(self, *, seed, protect=True):
        super().__init__(offer=dict.fromkeys(PORTS, 1), credits=CREDITS, protect=protect, seed=seed)
        self.cells = cells(protect)
        self.top, memories = opened(self.top)
        self.memories = {memory_name(path): memory for path, memory in memories.items()}
        assert set(self.memories) == set(self.cells)

    async def settle(self, ctx, limit=4000):
        """Until nothing is under way; False where something never ends."""
        quiet, before = 0, None
        for _ in range(limit):
            await self.step(ctx, drain=True)
            state = sum(map(len, self.got.values()))
            quiet = quiet + 1 if state == before and not self.waiting else 0
            before = state
            if quiet == QUIET:
                return True
        return False

    async def trial(self, ctx, name, bits, which):
        rng, was = self.rng, [self.faults(ctx), self.others(ctx)]
        for channel in PORTS:
            self.sent[channel].clear()
            self.got[channel].clear()
        self.read = dict.fromkeys(PORTS, rng.choice((0, 0, 0.2)))
        await self.cycles(ctx, rng.randrange(18, 30))
        word = rng.choice(self.cells[name].words[slice(which, which and which + 1)])
        row = rng.randrange(self.cells[name].depth)
        flip(ctx, self.memories[name], row, *rng.sample(list(word), bits))
        await self.cycles(ctx, rng.randrange(5))
        if not await self.settle(ctx):
            return "hang"
        if self.others(ctx) != was[1]:
            return "silent"
        told = {
            kind: after - before
            for (kind, before), after in zip(
                was[0][name.split(".")[0]].items(),
                self.faults(ctx)[name.split(".")[0]].values(),
                strict=True,
            )
            if after != before
        }
        return self.judge(channel_of(name), told)

    def judge(self, channel, told):
        if any(self.sent[each] != self.got[each] for each in PORTS if each != channel):
            return "silent"
        sent, got = self.sent[channel], self.got[channel]
        if sent == got:
            return {(): "nothing", ("corrected",): "corrected"}.get(tuple(told), "silent")
        if told == {"fatal": 1} and any(sent[:n] + sent[n + 1 :] == got for n in range(len(sent))):
            return "fatal"
        other = [(a, b) for a, b in zip(sent, got, strict=False) if a != b]
        if told == {"poisoned": 1} and len(sent) == len(got) and len(other) == 1:
            return "poison" if poisoned(channel, *other[0]) else "silent"
        return "silent"

    def faults(self, ctx):
        return {
            side: {kind: ctx.get(end.counts[kind]) for kind in BlockFault.members}
            for side, end in (("host", self.host), ("device", self.device))
        }

    def others(self, ctx):
        """What else is counted at either end: nothing."""
        return [
            ctx.get(end.counts[kind])
            for end in (self.host, self.device)
            for kind in end.counts.shape().members
            if kind not in BlockFault.members
        ]


def campaign(*, each, seed, protect=True, only="*", bits=(1, 2), which=(None,)):
    """Memory → bits → what came of `each` flips, in any code word or, in turn, in those of `which`
    (None is any)."""
    bench = Bench(seed=seed, protect=protect)
    names = fnmatch.filter(bench.cells, only)
    came = {name: {count: Counter() for count in bits} for name in names}

    async def run(ctx):
        for name in names:
            for count in bits:
                for n in range(each):
                    word = which[n % len(which)]
                    outcome = await bench.trial(ctx, name, count, word)
                    came[name][count][outcome] += 1
                    if outcome == "hang":
                        return

    simulator = Simulator(bench.top)
    simulator.add_clock(1e-6)
    simulator.add_testbench(run)
    simulator.run()
    return came


def bad(came):
    return {
        (name, bits): dict(counts)
        for name, kinds in came.items()
        for bits, counts in kinds.items()
        if set(counts) - GOOD[bits]
    }


def total(came, bits):
    return sum((kinds[bits] for kinds in came.values()), Counter())


def test_each_memory_is_in_the_table_once():
    page = (DOCS / "protection.md").read_text(encoding="utf-8")
    lines = page.split("\n## The flit front\n")[1].split("\n## ")[0].splitlines()
    patterns = [
        name
        for line in lines
        if line.startswith("|")
        for name in re.findall(r"`([^`]+)`", line.split("|")[1])
    ]
    names = [name.split(".", 1)[1] for name in cells()]
    rows = {name: [p for p in patterns if fnmatch.fnmatchcase(name, p)] for name in names}
    assert all(len(found) == 1 for found in rows.values()), rows
    assert {found[0] for found in rows.values()} == set(patterns)


def test_one_flip_is_corrected_two_are_told():
    """Of two memories, which are enough to show each outcome; in the byte enables, too."""
    came = campaign(each=2, seed=1, only="*.queue_*_[dr][rw][ds].*", which=(None, ENABLES_WORD))
    assert len(came) == 2 and not bad(came), f"seed 1: {came}"
    assert total(came, 1)["corrected"] and total(came, 2)["poison"]


#: Planted bugs: (block, what it says, what it says instead, memories, bits that show it).
BUGS = {
    "poison": (
        FlitUnpacker,
        "port.p.poison.eq(message.poison | spoiled)",
        "port.p.poison.eq(message.poison)",
        "host.*drs*",
        2,
    ),
    "enables": (
        FlitUnpacker,
        "spoiled = spoiled | (which & message.bep)",
        "spoiled = spoiled | 0",
        "device.*rwd*",
        2,
    ),
    "header": (
        FlitUnpacker,
        "dropped.eq(queue.o.valid & header.any())",
        "dropped.eq(0)",
        "device.*req*",
        2,
    ),
    "narrow": (
        FlitPacker,
        "valid=queue.r_rdy & left[self.narrow] & ~lost",
        "valid=queue.r_rdy & left[self.narrow]",
        "host.packer.*",
        2,
    ),
    "no decoder": (None, "", "", "*ndr*", 1),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_silent(name):
    block, old, new, only, bits = BUGS[name]
    planted = (
        mock.patch.object(front, block.__name__, mutant(block, old, new))
        if block
        else nullcontext()
    )
    with planted:
        which = (ENABLES_WORD if name == "enables" else None,)
        options = {"protect": block is not None, "only": only, "bits": (bits,), "which": which}
        came = campaign(each=16, seed=3, **options)
    assert total(came, bits)["silent"], came


@pytest.mark.slow
def test_flips_in_every_memory():
    came = campaign(each=12, seed=7)
    for name, kinds in came.items():
        print(name, *(f"{bits}: {dict(counts)}" for bits, counts in kinds.items()))
    assert not bad(came), f"seed 7: {came}"

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The unpacker: messages and refusals are the golden model's, whatever comes."""

import random
from collections import Counter

import pytest
from flit_traffic import random_message
from simulation import simulate

from kelp_golden.flit import Packer, Unpacker, decode
from kelp_hw.flit.layouts import PORTS
from kelp_hw.flit.unpacker import FlitUnpacker
from kelp_spec.flit import COUNT_BITS, DIRECTIONS, FLIT_BITS, Middle, Refusal
from kelp_spec.messages import FIELDS

COUNTS = 1 << COUNT_BITS


class Both:
    """RTL and golden model take the same flits. `ready`: channel → how often it is read; `rare`:
    channel → how often it has a message, `offer` elsewhere; `harm`: how often a flit is changed on
    its way; `greed`: how often the sender has a credit too many."""

    protect = True

    def __init__(
        self,
        direction,
        *,
        credits=16,
        offer=0.9,
        rare=None,
        ready=None,
        harm=0.0,
        greed=0.0,
        seed=1,
    ):
        self.direction, self.rng = DIRECTIONS[direction], random.Random(seed)
        self.channels, self.seed = self.direction.channels, seed
        self.dut = FlitUnpacker(direction=direction, credits=credits, protect=self.protect)
        self.golden = Unpacker(direction, credits=credits)
        self.packer = Packer(direction)
        self.offer, self.rare = offer, rare or {}
        self.ready, self.harm, self.greed = ready or {}, harm, greed
        self.expected = {name: [] for name in self.channels}
        self.got = {name: [] for name in self.channels}
        self.refused, self.said = [], []
        self.orphans, self.lost, self.heard = [0, 0], [0, 0], [[], []]
        self.halves = 0
        #: When the flit that came last is taken from the register, and when its messages are in
        #: their queues; when the first one came, what was seen first, and when.
        self.moves, self.ends, self.first = -1, 0, None

    def simulate(self, cycles):
        async def bench(ctx):
            await self.run(ctx, cycles)

        simulate(self.dut, bench)
        return self

    def _harmed(self, flit):
        """One to three bits flipped, most of them where kinds and headers are; or any bits."""
        rng = self.rng
        if rng.random() < 0.1:
            return rng.choice([0, (1 << FLIT_BITS) - 1, rng.getrandbits(FLIT_BITS)])
        wide, narrow = self.direction.places()
        spots = [*range(20), *(at + k for _, at in wide + narrow for k in (0, 1))]
        for _ in range(rng.randint(1, 3)):
            flit ^= 1 << rng.choice(spots)
        return flit

    def _packed(self, waiting):
        """A flit of the golden packer's, if it gives one in this cycle."""
        rng = self.rng
        for name in self.channels:
            if name not in waiting and rng.random() < self.rare.get(name, self.offer):
                waiting[name] = random_message(name, rng)
        allowance = self.packer.allowance
        for n, name in enumerate(self.channels):
            allowance.hear(n, self.golden.allowed[name] % COUNTS)
            if rng.random() < self.greed:
                allowance.allowed[name] += 1
        granted = [rng.randrange(256) for _ in range(3)] if rng.random() < 0.1 else [0] * 3
        taken, flit = self.packer.step(waiting, out_free=True, granted=granted)
        self.halves += flit is not None and decode(self.direction, flit).middle == Middle.SECOND
        for name in taken:
            del waiting[name]
        return flit

    def _count(self, ctx, cycle):
        told, heard = ctx.get(self.dut.told), ctx.get(self.dut.heard)
        if told.refused:
            self.said.append(Refusal(told.reason))
        self.orphans[0] += told.orphans
        self.lost[0] += told.lost
        if heard.valid:
            self.heard[0].append((heard.channel, heard.count))
        assert not ctx.get(self.dut.fault.as_value())
        if cycle > self.moves:  # what was lost is promised anew then
            allowed = [self.golden.allowed[name] % COUNTS for name in self.channels]
            assert [ctx.get(self.dut.granted[n]) for n in range(3)] == allowed

    async def run(self, ctx, cycles):
        dut, golden, rng = self.dut, self.golden, self.rng
        waiting, flit, freed = {}, None, []
        for cycle in range(cycles + 200):
            if flit is None and cycle < cycles and (flit := self._packed(waiting)) is not None:
                if rng.random() < self.harm:
                    flit = self._harmed(flit)
                words = {}
                for name, field in dut.i.p.shape():
                    words[name] = flit >> field.offset & ((1 << field.width) - 1)
                ctx.set(dut.i.p, words)
            ctx.set(dut.i.valid, flit is not None)
            for name in self.channels:
                port = getattr(dut, PORTS[name])
                ready = cycle >= cycles or rng.random() < self.ready.get(name, 1)
                ctx.set(port.ready, ready)
                if ctx.get(port.valid) and self.first and len(self.first) == 1:
                    self.first.append(cycle)
                if ready and ctx.get(port.valid):
                    message = ctx.get(port.payload)
                    self.got[name].append({field: message[field] for field, _ in FIELDS[name]})
                    freed.append(name)
            self._count(ctx, cycle)
            assert ctx.get(dut.i.ready) == (cycle >= self.moves), f"cycle {cycle}"
            if flit is not None and ctx.get(dut.i.ready):
                pending, flit = flit, None
            else:
                pending = None
            await ctx.tick()
            # A flit is judged in the next cycle, by what has left until then.
            for name in freed:
                golden.free(name)
            freed.clear()
            if pending is not None:
                self._take(pending, cycle)
        return self

    def _take(self, flit, cycle):
        """It is judged in the next cycle, and waits there for the messages of the one before; each
        channel has one of its own a cycle, the half of a line too."""
        out = self.golden.take(flit)
        self.moves = cycle + 1
        if out.refused is not None:
            self.refused.append(out.refused)
        else:
            content = decode(self.direction, flit)
            if content.told < 3:
                self.heard[1].append((content.told, content.count))
            messages = Counter(name for name, _ in out.messages)
            messages[self.direction.carrier] += content.middle == Middle.FIRST
            self.moves = max(self.moves, self.ends)
            self.ends = self.moves + max(1, *messages.values())
            if out.messages and self.first is None:
                self.first = [cycle]
        self.orphans[1] += out.orphans
        self.lost[1] += out.lost
        for name, message in out.messages:
            self.expected[name].append(message)

    def check(self):
        for name in self.channels:
            assert self.got[name] == self.expected[name], f"seed {self.seed}, {name}"
        assert self.said == self.refused, f"seed {self.seed}"
        assert self.orphans[0] == self.orphans[1] and self.lost[0] == self.lost[1]
        assert self.heard[0] == self.heard[1], f"seed {self.seed}"
        assert self.first[1] - self.first[0] == self.dut.LATENCY


class Bare(Both):
    """Its queues carry no check bits."""

    protect = False


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("offer", "ready"), [(1, 1), (0.9, 0.5), (0.1, 0.9)])
def test_messages_are_the_golden_models(direction, offer, ready):
    channels = DIRECTIONS[direction].channels
    both = Both(direction, offer=offer, ready=dict.fromkeys(channels, ready)).simulate(200)
    both.check()
    assert all(both.got.values()) and not both.said


@pytest.mark.parametrize(("harm", "cycles"), [(0, 100), (0.3, 100), (0.6, 600)])
@pytest.mark.sampled
def test_lines_in_halves(harm, cycles):
    """Lines and little else: every fourth is half in one flit and half in the next, which may not
    come; nor may those behind it, so that another line's second half comes in its place."""
    both = Both("s2m", offer=1, rare={"S2MNDR": 0.05, "S2MBISnp": 0.05}, harm=harm)
    both.simulate(cycles).check()
    assert all(both.got.values()) and both.halves > 5 and bool(both.orphans[1]) == (harm > 0)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.sampled
def test_what_is_hostile_is_refused_as_a_whole(direction, seed):
    """Flipped kinds, headers, whole flits; each is told, and messages go on coming."""
    both = Both(direction, harm=0.3, seed=seed).simulate(300)
    both.check()
    assert set(both.said) >= {Refusal.HEADER, Refusal.ENCODING, Refusal.FRAMING}


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("credits", [4, 16, 64])
@pytest.mark.sampled
def test_a_sender_with_a_credit_too_many(direction, credits):
    """Now and then; without check bits, too."""
    channels = DIRECTIONS[direction].channels
    ready, kind = dict.fromkeys(channels, 0.3), Both if credits == 4 else Bare
    both = kind(direction, credits=credits, greed=0.05, ready=ready, seed=3)
    both.simulate(200).check()
    assert Refusal.CREDIT in both.said and all(both.got.values())


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.sampled
def test_no_channel_waits_for_anothers_reader(direction):
    channels = DIRECTIONS[direction].channels
    for stuck in channels:
        both = Both(direction, ready={stuck: 0}).simulate(150)
        both.check()
        assert all(len(both.got[name]) > 60 for name in channels if name != stuck), stuck

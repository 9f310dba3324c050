# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Flits by themselves: what is packed is unpacked; the layout has no hole and no overlap; how full
flits are under the loads that they are judged by."""

import random

import pytest
from flit_traffic import LOADS, random_message

from kelp_golden.flit import Content, Packer, Refused, Unpacker, decode, encode, payload_bits
from kelp_spec.flit import (
    BYTE_ENABLES,
    DIRECTIONS,
    FLIT_BITS,
    FLIT_FIELDS,
    NARROW_BITS,
    VERSION,
    WIDE_BITS,
    WIDE_KIND_BITS,
    Middle,
    Refusal,
    header_fields,
)

CYCLES = 2400
#: Load → direction → (messages of each channel in a flit, payload bits of 2048), where the link
#: takes a flit in 8 cycles: docs/cxl.md has this table.
FULL = {
    "reads": {"m2s": ({"M2SReq": 8.0}, 632), "s2m": ({"S2MDRS": 3.5}, 1897)},
    "writes": {"m2s": ({"M2SRwD": 3.0}, 1779), "s2m": ({"S2MNDR": 8.0}, 232)},
    "mixed 2:1": {
        "m2s": ({"M2SReq": 5.0, "M2SRwD": 2.3}, 1759),
        "s2m": ({"S2MDRS": 3.4, "S2MNDR": 1.8}, 1901),
    },
    "BISnp-heavy": {
        "m2s": ({"M2SReq": 2.6, "M2SRwD": 2.4, "M2SBIRsp": 5.2}, 1783),
        "s2m": ({"S2MDRS": 2.5, "S2MNDR": 2.5, "S2MBISnp": 4.9}, 1817),
    },
}


def test_the_layout_has_no_hole_and_no_overlap():
    assert sum(bits for _, bits in FLIT_FIELDS) == FLIT_BITS
    ends, at = {}, 0
    for name, bits in FLIT_FIELDS:
        ends[name], at = (at, at + bits), at + bits
    assert ends["link"] == (242 * 8, FLIT_BITS)
    for direction in DIRECTIONS.values():
        for places, size in zip(direction.places(), (WIDE_BITS, NARROW_BITS), strict=True):
            spans = sorted((at, at + size, area) for area, at in places)
            assert all(a[1] <= b[0] for a, b in zip(spans, spans[1:], strict=False))
            assert all(ends[area][0] <= low and high <= ends[area][1] for low, high, area in spans)
        in_x = [at for places in direction.places() for area, at in places if area == "x"]
        assert len(set(in_x)) == sum(direction.x)
        for names, room in ((direction.wide, WIDE_BITS - WIDE_KIND_BITS), (direction.narrow, 30)):
            for n, name in enumerate(names):
                if name != BYTE_ENABLES:
                    used = sum(bits for _, bits in header_fields(name))
                    assert used <= room - (names is direction.narrow and n)


class Sender:
    """Messages in the proportions of `load` wait in front of a packer whose credits never end."""

    def __init__(self, direction, load, *, seed=1):
        self.packer, self.load = Packer(direction), load
        self.channels = DIRECTIONS[direction].channels
        self.rng, self.waiting = random.Random(seed), {name: [] for name in self.channels}
        self.sent = {name: [] for name in self.channels}

    def cycle(self, *, link, bep=0.0):
        waiting = self.waiting
        # What comes in rounds waits in queues that are not endless.
        levels = [len(waiting[name]) for name in self.load]
        while min(levels) < 8 and max(levels) < 60:
            for name, count in self.load.items():
                waiting[name] += [random_message(name, self.rng, bep=bep) for _ in range(count)]
            levels = [len(waiting[name]) for name in self.load]
        for name in self.channels:
            self.packer.allowance.allowed[name] = self.packer.allowance.sent[name] + 64
        offers = {name: queue[0] for name, queue in waiting.items() if queue}
        taken, flit = self.packer.step(offers, out_free=link, granted=[0] * 3)
        for name in taken:
            self.sent[name].append(waiting[name].pop(0))
        return flit


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("bep", [0, 0.5, 1])
def test_what_is_packed_is_unpacked(direction, bep):
    sender = Sender(direction, dict.fromkeys(DIRECTIONS[direction].channels, 1))
    unpacker, got = Unpacker(direction, credits=64), {name: [] for name in sender.channels}
    for cycle in range(600):
        flit = sender.cycle(link=cycle % 3 == 0, bep=bep)
        if flit is None:
            continue
        assert flit >> 242 * 8 == 0
        out = unpacker.take(flit)
        assert out.refused is None and not out.orphans and not out.lost
        for name, message in out.messages:
            got[name].append(message)
            unpacker.free(name)
    for name in sender.channels:
        assert len(got[name]) > 100 and got[name] == sender.sent[name][: len(got[name])]


def fullness(load, direction, *, every):
    """Messages of each channel in a flit, and payload bits, of a link that takes a flit in so many
    cycles."""
    sender = Sender(direction, LOADS[load][direction])
    unpacker, flits, bits = Unpacker(direction, credits=64), 0, 0
    got = dict.fromkeys(LOADS[load][direction], 0)
    for cycle in range(CYCLES):
        flit = sender.cycle(link=cycle % every == 0)
        if flit is None:
            continue
        flits += 1
        for name, message in unpacker.take(flit).messages:
            bits, got[name] = bits + payload_bits(name, message), got[name] + 1
            unpacker.free(name)
    return {name: count / flits for name, count in got.items()}, bits / flits


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_flits_are_full(load, direction):
    messages, bits = fullness(load, direction, every=8)
    print(load, direction, {name: round(n, 2) for name, n in messages.items()}, round(bits))
    wanted, full = FULL[load][direction]
    assert abs(bits - full) <= 20
    assert all(abs(messages[name] - n) <= 0.1 for name, n in wanted.items())


REQ = ("M2SReq", 5)
RWD = ("M2SRwD", 1)
BEP = ("M2SRwD", 1 << 74)


@pytest.mark.parametrize(
    ("direction", "content", "changes", "reason"),
    [
        ("m2s", {}, {"version": VERSION ^ 1}, Refusal.HEADER),
        ("m2s", {}, {"told": 7}, Refusal.HEADER),
        ("m2s", {}, {"middle": Middle.FIRST}, Refusal.ENCODING),
        ("m2s", {}, {"middle": Middle.SECOND}, Refusal.ENCODING),
        ("m2s", {}, {"x": 2 << WIDE_BITS}, Refusal.ENCODING),
        ("s2m", {}, {"y": 2}, Refusal.ENCODING),
        ("s2m", {}, {"a": 3}, Refusal.ENCODING),
        ("m2s", {"wide": [RWD]}, {}, Refusal.FRAMING),
        ("m2s", {"lines": [1]}, {}, Refusal.FRAMING),
        ("m2s", {"wide": [BEP], "lines": [1]}, {}, Refusal.FRAMING),
        ("m2s", {"wide": [RWD, (BYTE_ENABLES, 1)], "lines": [1]}, {}, Refusal.FRAMING),
        ("s2m", {"middle": Middle.FIRST}, {}, Refusal.FRAMING),
        ("s2m", {"narrow": [("S2MDRS", 1)]}, {}, Refusal.FRAMING),
        ("m2s", {"wide": [REQ] * 5}, {}, Refusal.CREDIT),
        ("m2s", {"told": 3, "count": 5}, {}, Refusal.CREDIT),
        ("m2s", {"told": 5, "count": 255}, {}, Refusal.CREDIT),
        ("m2s", {"wide": [REQ] * 4, "told": 3, "count": 4}, {}, None),
        ("m2s", {"wide": [BEP, (BYTE_ENABLES, 1)], "lines": [1]}, {}, None),
    ],
)
def test_each_reason_to_refuse(direction, content, changes, reason):
    """A flit as a whole or not at all; the next one counts as if it had not been."""
    flit, at = encode(DIRECTIONS[direction], Content(**content)), 0
    for name, bits in FLIT_FIELDS:
        if name in changes:
            flit = flit & ~(((1 << bits) - 1) << at) | changes[name] << at
        at += bits
    unpacker = Unpacker(direction, credits=4)
    out = unpacker.take(flit)
    assert out.refused == reason and bool(out.messages) == (reason is None)
    if reason not in (None, Refusal.CREDIT):
        with pytest.raises(Refused, match=reason.name):
            decode(DIRECTIONS[direction], flit)
    if reason is not None:
        first = DIRECTIONS[direction].wide[0]
        good = encode(DIRECTIONS[direction], Content(wide=[(first, 5)] * 4))
        assert [name for name, _ in unpacker.take(good).messages] == [first] * 4


@pytest.mark.parametrize("refused", [1, 2])
@pytest.mark.parametrize("second", [False, True])
def test_a_half_whose_other_half_was_lost_is_poison(refused, second):
    """Whatever comes behind the refused flits: a second half is another line's."""
    direction = DIRECTIONS["s2m"]
    head = {"narrow": [("S2MDRS", 1 << 7)], "middle": Middle.FIRST, "half": 9}
    first, unpacker = encode(direction, Content(**head)), Unpacker("s2m", credits=4)
    nobodys = encode(direction, Content(middle=Middle.SECOND, half=7))
    assert not unpacker.take(first).messages
    for _ in range(refused):
        assert unpacker.take(0).refused == Refusal.HEADER
    out = unpacker.take(nobodys if second else encode(direction, Content()))
    ((name, message),) = out.messages
    assert (name, message["tag"], message["poison"], message["data"]) == ("S2MDRS", 1, 1, 0)
    assert out.orphans == 1 + second
    out = unpacker.take(nobodys)
    assert out.orphans == 1 and not out.messages
    unpacker.take(first)
    ((_, message),) = unpacker.take(nobodys).messages
    assert (message["poison"], message["data"]) == (0, 9 | 7 << 256)

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""PageReader: a LOOK for each line, and the lines in that order, as int8 would store them."""

import itertools
from collections import Counter

import numpy as np
import pytest
from amaranth.hdl import Value
from flips import Opened, fields, flip
from streams import Ends, pump

from kelp_golden import codec
from kelp_hw.select.page_reader import PageReader
from kelp_spec.config import named
from kelp_spec.formats import SCALE_NAN, Format, HostType
from kelp_spec.metadata import Answer, Op, Outcome
from kelp_spec.select import CODED_LINES

CONFIG = named("unit_select")
GONE, POISONED = 9, 21  #: a page that is not resident; one of which lines 1 and 2 are poisoned
PAGES = [(4, 4), (GONE, 2), (POISONED, 4), (7, 1)]
MASK = (1 << CONFIG.select_rows * CODED_LINES) - 1
#: Pages with a summary of two lines, and tokens of four lines.
LONG = CONFIG.with_(half_lines=32, select_lines=4, codec_lanes=8)


def rows(page):
    return np.random.default_rng(page).standard_normal((32, 32)).astype("<f2").view("<u2")


def poisoned(page, line):
    """What the data path says of a line: either way it is poison."""
    kind = Answer.POISON if (page, line) == (POISONED, 1) else Answer.DATA
    return kind, int((page, line) == (POISONED, 2))


def looked(count, near, token_lines):
    """The lines of a page that are looked at: of the tokens that are near, or of all."""
    last = [line | token_lines for line in range(count)]
    lines = [line for line in range(count) if near >> last[line] & 1 and last[line] < count]
    return lines or [*range(count)]


def run(pages, *, offer=1.0, take=1.0, dut=None, watch=None, queries=(), token_lines=1):
    def answer(path, op):
        if path != "o_op":
            return
        there = op.page != GONE
        told = {"kind": op.kind, "page": op.page, "kv_line": op.kv_line}
        if op.page == POISONED:  # what M3 decides of others, meanwhile
            for kind, outcome in ((Op.HOLD, Outcome.DONE), (Op.READ, Outcome.VOID)):
                yield "i_result", {"op": told | {"kind": kind}, "outcome": outcome}
        yield "i_result", {"op": told, "outcome": Outcome.DONE if there else Outcome.VOID}
        if there:
            kind, poison = poisoned(op.page, op.kv_line)
            data = int.from_bytes(rows(op.page)[op.kv_line].tobytes(), "little")
            yield "i_line", {"answer": kind, "poison": poison, "data": data}

    dut = dut or PageReader(config=CONFIG)
    mask = (1 << len(dut.i.p.near)) - 1
    ends = Ends(
        sends={
            "i": [
                {"page": page, "count": count, "near": (near or [~0])[0] & mask}
                for page, count, *near in pages
            ],
            "i_result": [],
            "i_line": [],
            "i_query": [
                {"data": int.from_bytes(row.tobytes(), "little"), "place": place}
                for row, place in queries
            ],
        },
        takes=("o_op", "o", "o_query") if queries else ("o_op", "o"),
        offer=offer,
        take=take,
        held={
            "token_lines": token_lines,
            "squeue": 6,
            "session": 1,
            "host_type": int(HostType.FP16),
            "query_host_type": int(HostType.BF16),
        },
        answer=answer,
        watch=watch,
    )
    lines = sum(page[1] for page in pages)
    cycles = int((lines + len(queries)) * dut.INTERVAL / offer / take) + 60
    return pump(dut, ends, cycles=cycles)


@pytest.mark.parametrize(("lanes", "token_lines"), [(32, 1), (8, 0)])
@pytest.mark.sampled
def test_lines(lanes, token_lines):
    """Also of tokens of one line, of which some are near."""
    dut = PageReader(config=CONFIG.with_(codec_lanes=lanes))
    pages = [*((*page, ~0) for page in PAGES), (11, 4, 0b0101), (12, 2, 0b1010), (13, 4, 0b1000)]
    seen = run(pages, offer=0.6, take=0.6, dut=dut, token_lines=token_lines)
    asked = []
    for page, count, near in pages:
        lines = looked(count, near, token_lines)
        asked += [(page, line, line == lines[-1]) for line in lines]
    shape, one = dut.o_op.p.shape(), {"kind": Op.LOOK, "session": 1, "squeue": 6}
    wanted = [
        shape.const(one | {"page": page, "kv_line": line, "origin": {"look": 1}})
        for page, line, _ in asked
    ]
    assert [t.item.as_bits() for t in seen["o_op"]] == [op.as_bits() for op in wanted]
    for t, (page, line, ends) in zip(seen["o"], asked, strict=True):
        at = t.item.at
        assert (at.page, at.line) == (page, line & token_lines)
        assert (at.token_end, at.page_end) == (line & token_lines == token_lines, ends)
        assert t.item.there == (page != GONE)
        if page == GONE or poisoned(page, line) != (Answer.DATA, 0):
            assert t.item.scale & 255 == SCALE_NAN
            continue
        payload, scale = codec.encode(rows(page)[line : line + 1], HostType.FP16, Format.INT8)
        assert t.item.payload == int.from_bytes(payload[0, :32].tobytes(), "little")
        assert t.item.scale == scale[0]


def test_tokens_that_are_not_near_are_left_out():
    """A token's last line says whether it is; lines beyond the page's do not count. A page of which
    none is, as a flipped summary may say, is looked at as a whole."""
    pages = [(3, 4, 0b0111), (5, 4, 0b11001000), (6, 2, 0b1000), (8, 4, 0b1010)]
    seen = run(pages, offer=0.6, take=0.6)
    looked = [(3, 0), (3, 1), (5, 2), (5, 3), (6, 0), (6, 1), (8, 0), (8, 1), (8, 2), (8, 3)]
    assert [(t.item.page, t.item.kv_line) for t in seen["o_op"]] == looked
    found = [(t.item.at.page, t.item.at.line, t.item.at.page_end) for t in seen["o"]]
    last = dict(looked)
    assert found == [(page, line % 2, line == last[page]) for page, line in looked]


def test_lines_of_long_pages():
    """The tokens that are near are in either line of the summary, or in none of those that count;
    then there are more lines than places."""
    dut, token_lines = PageReader(config=LONG), LONG.select_lines - 1
    some = 1 << 3 | 1 << 15 | 1 << 19 | 1 << 31
    pages = [(4, 32, 1 << 31), (5, 32, some), (6, 20, 1 << 19 | 1 << 23), (7, 20, 1 << 23)]
    seen = run(pages, dut=dut, token_lines=token_lines)
    asked, ends = [], {}
    for page, count, near in pages:
        lines = looked(count, near, token_lines)
        asked += [(page, line) for line in lines]
        ends[page] = lines[-1]
    assert [(t.item.page, t.item.kv_line) for t in seen["o_op"]] == asked
    assert len(asked) == 1 + 4 + 1 + 20 + token_lines * 6
    for t, (page, line) in zip(seen["o"], asked, strict=True):
        at = t.item.at
        assert (at.page, at.line, at.page_end) == (page, line & token_lines, line == ends[page])
        payload, scale = codec.encode(rows(page)[line : line + 1], HostType.FP16, Format.INT8)
        assert t.item.payload == int.from_bytes(payload[0, :32].tobytes(), "little")
        assert t.item.scale == scale[0]


def test_queries_pass_between_lines():
    """In their own host type, each with its place; `idle` is what is inside, of both kinds."""
    dut, idle, offers = PageReader(config=CONFIG), [], []
    places = [{"head": k % CONFIG.select_heads, "line": k % 3 % 2} for k in range(12)]
    queries = [(rows(100 + k)[0], place) for k, place in enumerate(places)]

    def watch(ctx):
        idle.append(ctx.get(dut.idle))
        into = dut._quantiser.i
        offers.append(tuple(ctx.get(Value.cast(x)) for x in (into.valid, into.ready, into.p)))

    seen = run(
        PAGES * 2,
        offer=0.5,
        take=0.6,
        dut=dut,
        queries=queries,
        watch=watch,
    )
    for (valid, ready, line), (still, _, then) in itertools.pairwise(offers):
        assert not valid or ready or (still, then) == (1, line), "the quantiser's line is changed"
    assert len(seen["o"]) == 2 * sum(count for _, count in PAGES)
    for t, (row, place) in zip(seen["o_query"], queries, strict=True):
        assert {name: t.item.place[name] for name in place} == place
        payload, scale = codec.encode(row[None], HostType.BF16, Format.INT8)
        assert t.item.payload == int.from_bytes(payload[0, :32].tobytes(), "little")
        assert t.item.scale == scale[0]
    inside = set()
    for begins, ends in (("i_query", "o_query"), ("o_op", "o")):
        for a, b in zip(seen[begins], seen[ends], strict=True):
            inside.update(range(a.offered, b.taken + 1))
    assert not any(idle[cycle] for cycle in inside) and idle[-1]


def test_two_choices_are_inside_at_once():
    """Each line is of the bank, and in the host type, with which its page was asked for."""
    dut = PageReader(config=CONFIG)

    def watch(ctx):
        second = ctx.get(dut.i.p.page) > 49
        ctx.set(dut.bank, second)
        ctx.set(dut.host_type, int(HostType.BF16 if second else HostType.FP16))
        ctx.set(dut.squeue, 6 - second)

    pages = [(4, 4), (5, 4), (50, 4), (51, 4)]
    seen = run(pages, dut=dut, watch=watch)
    assert [(t.item.page, t.item.squeue) for t in seen["o_op"]][6:10] == [(5, 6)] * 2 + [
        (50, 5)
    ] * 2
    assert seen["o_op"][8].taken < seen["o"][0].taken
    places = ((page, line) for page, _ in pages for line in range(4))
    for t, (page, line) in zip(seen["o"], places, strict=True):
        second = page > 49
        assert (t.item.at.page, t.item.at.bank) == (page, second)
        host_type = HostType.BF16 if second else HostType.FP16
        payload, scale = codec.encode(rows(page)[line : line + 1], host_type, Format.INT8)
        assert t.item.payload == int.from_bytes(payload[0, :32].tobytes(), "little")
        assert t.item.scale == scale[0]


@pytest.mark.parametrize("bits", [1, 2])
@pytest.mark.parametrize("name", ["lines", "asked", "found"])
@pytest.mark.sampled
def test_flipped_bits_of_what_waits_are_told_of(name, bits):
    """Bits flip in some rows as soon as they wait for the quantiser: one in a row changes nothing,
    with two a line is not scored, and each is told of once, however long it waits; what is known of
    lines is lost for good."""
    dut, faults = Opened(PageReader(config=CONFIG.with_(codec_lanes=8))), Counter()
    (memory,) = (m for path, m in dut.memories.items() if path.startswith(name))
    kept, written, flipped = [0] * memory.depth, [0], [0]

    def watch(ctx):
        faults.update(name for name, on in fields(ctx, dut.fault).items() if on)
        for row in range(memory.depth):
            if (now := ctx.get(memory[row])) != kept[row]:
                written[0] += 1
                if written[0] % 3 == 0:
                    flipped[0] += 1
                    flip(ctx, memory, row, *((3, 4) if name != "found" else (0, 1))[:bits])
                    now = ctx.get(memory[row])
                kept[row] = now

    pages = [(page, 4) for page in range(1, 5)]
    seen = run(pages, take=0.6, dut=dut, watch=watch)["o"]
    if bits == 2 and name != "lines":
        assert faults["fatal"] and not faults["poisoned"]
        return
    broken = 0
    for t, (page, line) in zip(seen, ((p, n) for p, _ in pages for n in range(4)), strict=True):
        payload, scale = codec.encode(rows(page)[line : line + 1], HostType.FP16, Format.INT8)
        if bits == 2 and t.item.scale & 255 == SCALE_NAN:
            broken += 1
        else:
            assert t.item.payload == int.from_bytes(payload[0, :32].tobytes(), "little")
            assert t.item.scale == scale[0]
            assert (t.item.at.page, t.item.there) == (page, 1)
    assert flipped[0] > 2 and faults == {("corrected", "poisoned")[bits - 1]: flipped[0]}
    assert broken == flipped[0] * (bits - 1)


def test_no_more_lines_are_asked_for_than_there_are_places():
    """While none comes back."""
    dut = PageReader(config=CONFIG.with_(codec_lanes=8))
    sends = {"i": [{"page": page, "count": 4, "near": MASK} for page in range(8)]}
    held = {"token_lines": 1, "i_result.valid": 0, "i_line.valid": 0, "i_query.valid": 0}
    seen = pump(dut, Ends(sends=sends, takes=("o_op",), take=0.5, held=held), cycles=120)
    assert len(seen["o_op"]) == CONFIG.select_looks


@pytest.mark.parametrize(("lanes", "latency"), [(32, 12), (8, 18)])
def test_latency_and_interval(lanes, latency):
    dut = PageReader(config=CONFIG.with_(codec_lanes=lanes))
    assert (dut.LATENCY, dut.INTERVAL) == (latency, 32 // lanes)
    seen = run([(4, 4), (5, 4)] * 4, dut=dut)
    first = min(t.taken for t in seen["i_line"])
    assert seen["o"][0].offered - first == dut.LATENCY
    taken = [t.taken for t in seen["o"]]
    assert {b - a for a, b in zip(taken, taken[1:], strict=False)} == {dut.INTERVAL}

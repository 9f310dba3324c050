# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""SelectEngine: whole choices, equal to the golden model's, with memories that answer in order."""

import itertools
from collections import Counter

import numpy as np
import pytest
from flips import Opened, fields, flip
from select_cases import SCALE, Group, plan_items, query_lines
from streams import Ends, pump

from kelp_golden import select
from kelp_hw.choice.code_weights import CodeWeights
from kelp_hw.choice.select_engine import KeySizes, SelectEngine
from kelp_spec.formats import SCALE_NAN, HostType
from kelp_spec.select import CODED_LINES

PAGES = 64
QUIET = 500  #: no choice takes so many cycles at its ports' full rate


def requests(group, newest, *, most=4, target=1 << 24, varied=False):
    """(query, request) of each of `newest` pages: queries and scales take turns; where `varied`,
    all else does, too, from the most on."""
    other = Group(97, heads=group.query.e.shape[0], lines=group.query.e.shape[1], pages=1).query
    found = []
    for n, page in enumerate(newest):
        scale = SCALE | {"m": SCALE["m"] - 900 * (n % 3)}
        asked = {"newest": page, "most": most, "target": target, "scale": scale}
        if varied:
            scale["sh"] += n % 4 - 1
            asked |= {"most": max(0, most - n % 3), "target": target >> 3 * (n % 2)}
        asked["page_lines"] = group.codes[0].size
        found.append(((group.query, other)[n % 2], asked))
    return found


def run(group, asked, *, quota=3, cycles=2500, absent=None, lanes=1, named=None, **pace):
    """All transfers of `asked`, offered when its queries and its plan are in; those come when the
    one before was taken. `pace`: `offer`, `take`, and `keys`, the share of cycles in which pages to
    look at are taken; also `products`, and `flips`, which is called in each cycle with a context
    and the engine, whose memories are protected then, and how many `pages` a queue has. With
    `absent` pages the engine estimates.
    `named`: what pages their keys say that they are of, where that is wrong."""
    offer, take, slow = (pace.get(name, 1.0) for name in ("offer", "take", "keys"))
    heads, lines = group.query.e.shape
    most = asked[0][1]["most"]
    pages = pace.get("pages", PAGES)
    sizes = {"heads": heads, "pages": pages, "quota": quota, "most": most}
    rows = -(-group.codes[0].size // CODED_LINES)
    estimates, absent = absent is not None, absent or ()
    flips = pace.get("flips")
    dut = SelectEngine(
        **sizes,
        sizes=KeySizes(lines, rows, lanes, pace.get("products", 32)),
        context=3,
        estimates=estimates,
        protect=flips is not None,
    )
    if flips:
        dut = Opened(dut)
    tokens = group.scale.shape[1]
    keys, summaries = group.key_lines(), group.summary_lines()
    sent = [query_lines(query) for query, _ in asked]
    plans = [plan_items(group.plan_rows) for _ in asked]
    left = [request | {"context": n % 8} for n, (_, request) in enumerate(asked)]
    begun = ended = 0  # of requests: those whose pages are looked at, those that have been chosen
    left_two, before, leaves = 0, 0, 0  # those behind stage two; who is there; who leaves it
    waits, planned = [len(lines) for lines in sent], [len(lines) for lines in plans]

    def answer(path, item):
        if path == "o_summary":
            page = int(item)
            for line in summaries[page * rows : (page + 1) * rows]:
                yield "i_summary", line
        if path == "o_key":
            page = item.page
            looked = [t for t in range(tokens) if item.near >> (t + 1) * lines - 1 & 1]
            for t, n in itertools.product(looked, range(lines)):
                place = (
                    (named or {}).get(page, page)
                    | pages * (t == looked[-1])
                    | 2 * pages * item.bank
                )
                place |= 4 * pages * (page in absent and t == looked[-1])
                yield "i_key", keys[(page * tokens + t) * lines + n] | {"id": place}

    def after(path, item):
        if path == "i_query":
            waits[0] -= 1
            if not waits[0]:
                waits.pop(0)
                for line in plans.pop(0):
                    yield "i_plan", line
        if path == "i_plan":
            planned[0] -= 1
            if not planned[0]:
                planned.pop(0)
                yield "i", left.pop(0)
        if path == "i" and sent:
            for line in sent.pop(0):
                yield "i_query", line

    def watch(ctx):
        """Whose page each is."""
        nonlocal begun, ended, left_two, before, leaves
        now = ctx.get(dut.scores)
        assert before & ~now == leaves, "who leaves stage two is told"
        before, leaves = now, ctx.get(dut.leaves) << ctx.get(dut.left)
        if leaves:
            assert leaves == 1 << left_two % 2 and ctx.get(dut.scored[left_two % 2]) == left_two % 8
            left_two += 1
        if ctx.get(dut.o_key.valid):
            first, bank = ctx.get(dut.o_key.p.page) == 0, ctx.get(dut.o_key.p.bank)
            assert ctx.get(dut.scores) >> bank & 1
            assert ctx.get(dut.scored[bank]) == (begun if first else begun - 1) % 8
            begun += first and ctx.get(dut.o_key.ready)
        if ctx.get(dut.o.valid):
            assert ctx.get(dut.chooses) and ctx.get(dut.chosen) == ended % 8
            ended += ctx.get(dut.o.ready) and ctx.get(dut.o.p.none)
        if flips:
            flips(ctx, dut)

    ends = Ends(
        sends={"i_query": sent.pop(0), "i_plan": [], "i": [], "i_summary": [], "i_key": []},
        takes=("o_summary", "o_key", "o"),
        offer=offer,
        take=take,
        takes_of={"o_key": slow * take},
        answer=answer,
        sent=after,
        watch=watch,
    )
    return pump(dut, ends, cycles=int(cycles * len(asked) / offer / take), quiet=QUIET), dut


def golden(group, asked, *, quota=3):
    """What comes out: (page, mass) of each, and what ends it."""
    out = []
    for query, request in asked:
        page = request["newest"]
        keys = [select.Blocks(*(part[p] for part in group.keys)) for p in range(page + 1)]
        found = select.select_pages(
            query,
            keys,
            (group.codes[: page + 1], group.plan),
            quota=quota,
            target=request["target"],
            most=request["most"],
            **request["scale"],
        )
        pairs = zip(found.pages, found.masses, strict=True)
        out += [(int(p), int(mass), 0) for p, mass in pairs] + [(0, 0, 1)]
    return out


def given(seen):
    return [(t.item.id, t.item.mass, int(t.item.none)) for t in seen["o"]]


@pytest.mark.parametrize(("heads", "lines", "products"), [(1, 1, 32), (2, 2, 8)])
def test_choices_are_the_golden_ones(heads, lines, products):
    group = Group(heads + 20, heads=heads, lines=lines, pages=30, tokens=4)
    asked = requests(group, [0, 1, 2, 3, 12, 29, 5], varied=True)
    seen, _ = run(group, asked, offer=0.7, take=0.6, cycles=1500, products=products)
    assert given(seen) == golden(group, asked)


def test_summaries_of_several_lines():
    """Tokens that are near lie in either; of the second one a part counts."""
    group = Group(22, heads=1, lines=2, pages=14, tokens=12)
    asked = requests(group, [13, 1, 7], varied=True)
    seen, dut = run(group, asked, lanes=16)
    assert dut.sizes.rows == 2 and given(seen) == golden(group, asked)
    near = [t.item.near for t in seen["o_key"] if t.item.page not in (0, 13)]
    ends = [{token for token in range(12) if each >> 2 * token + 1 & 1} for each in near]
    assert any(max(each) > 7 for each in ends) and any(min(each) < 8 for each in ends)
    assert min(map(len, ends)) < 12


def test_names_of_a_queue_of_many_pages():
    """Those of all heads, wherever they lie: the highest page of a head comes beside others'."""
    group = Group(3, heads=4, lines=1, pages=200, tokens=2)
    asked = requests(group, [199, 60, 180, 100])
    seen, _ = run(group, asked, quota=2, lanes=16, pages=256)
    assert given(seen) == golden(group, asked, quota=2)


def test_pages_of_which_nothing_is_there_share_the_mass():
    """Without estimates, all tokens having the least score; beside a page that is there none has
    any (docs/select.md, "Absent pages")."""
    group = Group(17, heads=2, lines=1, pages=24, tokens=2)
    for first, many in ((group.scale[0].copy(), 6), (SCALE_NAN, 14)):
        group.scale[:] = SCALE_NAN
        group.scale[0] = first
        group.keys = select.of_stored(group.payload, group.scale, HostType.FP16, group.fmt)
        asked = requests(group, [9, 1, 20], target=2 << 16)
        seen, _ = run(group, asked)
        assert given(seen) == golden(group, asked)
        assert sum(not none for _, _, none in given(seen)) == many


def test_names_wait_for_pages_that_are_not_looked_at_yet():
    """Those of the next choice, and what they are guessed to have, where keys come slowly."""
    group, absent = Group(17, heads=2, lines=1, pages=24, tokens=2), {3, 7, 11}
    asked = requests(group, [23] * 3)
    seen, _ = run(group, asked, quota=4, keys=0.04, lanes=16, absent=absent)
    assert given_or_wanted(seen) == estimated(group, asked, quota=4, absent=absent)


def estimated(group, asked, *, quota, absent):
    """What comes out of an engine that estimates: (page, mass, none, wanted, missing at the end), a
    request after another."""
    out = []
    for query, request in asked:
        newest, scale = request["newest"], request["scale"]
        names = select.name_pages(
            query, group.codes[: newest + 1], group.plan, quota=quota, **scale
        )
        scored = np.flatnonzero(names.scored).tolist()
        tokens = group.keys.e.shape[1]
        keys = {
            p: select.Blocks(*(part[p][names.looked(p, tokens)] for part in group.keys))
            for p in scored
        }
        found = select.choose_pages(
            query,
            names,
            keys,
            target=request["target"],
            most=request["most"],
            absent=[p for p in scored if p in absent],
            **scale,
        )
        pairs = zip(found.pages.tolist(), found.masses.tolist(), strict=True)
        out += [(page, mass, 0, 0, 0) for page, mass in pairs]
        needed = zip(found.wanted.tolist(), found.needed.tolist(), strict=True)
        out += [(page, mass, 0, 1, 0) for page, mass in needed]
        out.append((0, 0, 1, 0, found.missing))
    return out


def given_or_wanted(seen):
    """What came out of an engine that estimates, as `estimated`: what is wanted of each choice
    behind what is given."""
    found = [
        (
            i.id,
            select.MOST_MASS if i.wanted and i.always else i.mass,
            int(i.none),
            int(i.wanted),
            i.missing if i.none else 0,
        )
        for _, _, i in seen["o"]
    ]
    ends = [n for n, item in enumerate(found) if item[2]]
    for begin, end in zip([0, *(n + 1 for n in ends)], ends, strict=False):
        found[begin:end] = sorted(found[begin:end], key=lambda item: item[3])
    return found


def test_absent_pages_have_what_their_summaries_say():
    """The first page, candidates and newest pages absent."""
    heads = 2
    group = Group(42, heads=heads, lines=1, pages=30, tokens=2)
    newest = [0, 1, 2, 3, 12, 29, 5, 24]
    asked = requests(group, newest, most=3, target=heads << 15, varied=True)
    rng = np.random.default_rng(heads)
    absent = set(rng.permutation(30)[:12].tolist()) | {0, 5}
    got, _ = run(group, asked, quota=4, offer=0.7, take=0.6, cycles=450, absent=absent)
    out = estimated(group, asked, quota=4, absent=absent)
    assert given_or_wanted(got) == out
    assert sum(item[3] for item in out) > 4 and max(item[4] for item in out) > 1 << 12


def test_estimates_cost_a_choice_no_cycle_where_all_pages_are_there():
    """But one between the last page and what ends the choice."""
    group = Group(11, heads=1, lines=1, pages=12, tokens=2)
    asked = requests(group, [11] * 3)
    times = [
        [
            (t.offered, int(t.item.none))
            for t in run(group, asked, cycles=350, absent=absent)[0]["o"]
        ]
        for absent in (None, set())
    ]
    assert [(t - none, none) for t, none in times[1]] == times[0]


def test_no_more_pages_are_chosen_than_there_are_slots():
    """Also where a bit flips in what names them: so there are several first pages."""
    group = Group(9, heads=2, lines=1, pages=20, tokens=4)
    asked = requests(group, [12, 12], most=2)
    seen, _ = run(group, asked, quota=6, named=dict.fromkeys(range(1, 12), 0))
    ends = [n for n, (_, _, none) in enumerate(given(seen)) if none]
    assert ends == [4, 9] and len(seen["o_key"]) > 2 * 5


@pytest.mark.parametrize("target", [0, 1 << 15, 1 << 16])
@pytest.mark.sampled
def test_the_target_ends_a_choice(target):
    group = Group(9, heads=2, lines=1, pages=20, tokens=4)
    asked = requests(group, [19, 19], target=target, most=8)
    seen, _ = run(group, asked, quota=6)
    assert given(seen) == golden(group, asked, quota=6)


@pytest.mark.parametrize(("name", "bits"), [("names", 2), ("marks", 1)])
def test_flipped_bits_of_names_are_told(name, bits):
    """Of the candidates' marks, or names: one in a row changes nothing."""
    group = Group(20, heads=1, lines=1, pages=20, tokens=2)
    asked, kept, told, flipped = requests(group, [19, 19]), {}, Counter(), []

    def flips(ctx, dut):
        told.update(kind for kind, on in fields(ctx, dut.fault).items() if on)
        (rows,) = (each for path, each in dut.memories.items() if path.startswith(name))
        for row in range(rows.depth):
            if ctx.get(rows[row]) != kept.get(row, 0):
                flip(ctx, rows, row, *range(bits))
                kept[row] = ctx.get(rows[row])
                flipped.append(row)

    seen, _ = run(group, asked, cycles=500, flips=flips)
    assert flipped and {*told} == {"fatal" if bits == 2 else "corrected"}
    if bits == 1:
        assert given(seen) == golden(group, asked)


def test_latency_and_interval():
    group = Group(4, heads=1, lines=1, pages=1, tokens=1)
    seen, dut = run(group, requests(group, [0, 0, 0]), cycles=200)
    starts = [t.offered for t in seen["i"]]
    first = [t.offered for t in seen["o"] if not t.item.none]
    assert (first[0] - starts[0], first[2] - first[1]) == (dut.LATENCY, dut.INTERVAL)


def test_cycles_are_those_of_the_formula():
    """docs/select.md, "Passes and rates", within the fixed latencies of its blocks: the sum of the
    stages until the first choice, then one in as many cycles as the longest stage."""
    heads, lines, tokens, quota, pages = 2, 2, 8, 4, 40
    group = Group(11, heads=heads, lines=lines, pages=pages, tokens=tokens)
    lanes = 4
    seen, _ = run(group, requests(group, [pages - 1] * 3), quota=quota, cycles=900, lanes=lanes)
    scored, first = [], []
    for asked in seen["o_key"]:
        scored += [0] * (asked.item.page == 0)
        scored[-1] += 1
    for chosen in seen["o"]:
        if not chosen.item.none and chosen.item.id == 0:
            first.append(chosen.offered)
    page = lines * tokens // lanes
    walk = [36 * lines, CodeWeights.LATENCY * lines]  # of the plan
    one = (pages - 2) * page + quota
    two = [(count - 1) * tokens * lines for count in scored]  # page 0's keys come meanwhile
    masses = [count + 23 + heads for count in scored]
    took = first[0] - seen["i"][0].offered
    stages = one + two[0] + masses[0]
    assert len(first) == 3 and stages + walk[0] < took < stages + walk[1] + 60
    # Pages of the second choice are asked for while keys of the first are to come.
    asked = next(t.offered for t in seen["o_key"] if t.item.bank)
    assert (
        asked < max(t.taken for t in seen["i_key"][: scored[0] * tokens * lines]) - tokens * lines
    )
    for n in (1, 2):
        least, most = (max(one + w + scored[n] * page, two[n] + tokens * lines) for w in walk)
        apart = first[n] - first[n - 1] - masses[n] + masses[n - 1]
        assert least <= apart < most + 30

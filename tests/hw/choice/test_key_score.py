# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""KeyScore: the golden scores of stored keys, one line a cycle."""

import pytest
from amaranth.hdl import Value
from select_cases import SCALE, Group, put_queries
from streams import Ends, pump

from kelp_hw.choice.key_score import KeyScore
from kelp_spec.formats import Format


def scored(group, *, heads, lines, seed=1, offer=1.0, take=1.0, products=32):
    """The transfers of all tokens' scores."""
    dut = KeyScore(heads=heads, lines=lines, id_bits=8, products=products)
    sends = group.key_lines()
    ends = Ends(
        sends={"i": sends},
        takes=("o",),
        offer=offer,
        take=take,
        held={"scale": SCALE},
        before=put_queries(group.query),
    )
    cycles = int((len(sends) * dut.INTERVAL + 40) / offer / take * 1.5)
    return pump(dut, ends, cycles=cycles, seed=seed, quiet=100)


@pytest.mark.parametrize("fmt", [Format.INT8, Format.INT4])
@pytest.mark.parametrize(
    ("heads", "lines", "products"), [(1, 1, 32), (3, 2, 32), (2, 4, 32), (2, 2, 8), (1, 1, 16)]
)
def test_scores_are_the_golden_ones(fmt, heads, lines, products):
    group = Group(heads, heads=heads, lines=lines, pages=4, fmt=fmt)
    seen = scored(group, heads=heads, lines=lines, offer=0.7, take=0.6, products=products)["o"]
    expected = [group.scores(page)[:, token] for page in range(4) for token in range(16)]
    assert [item.item.id for item in seen] == list(range(64))
    assert [list(item.item.score) for item in seen] == [list(each) for each in expected]


@pytest.mark.parametrize("fmt", [Format.INT8, Format.INT4])
def test_lines_and_queries_of_any_exponents(fmt):
    group = Group(9, heads=8, lines=2, pages=4, fmt=fmt, far=True)
    seen = scored(group, heads=8, lines=2)["o"]
    expected = [group.scores(page)[:, token] for page in range(4) for token in range(16)]
    assert [list(item.item.score) for item in seen] == [list(each) for each in expected]
    up = group.keys.e[..., None, :] + group.query.e  # from beyond all that is kept to nothing
    assert up.min() < -140 and up.max() > 140 and len({*group.query.e.flat}) > 8
    assert len({*map(tuple, expected)}) > 8


@pytest.mark.parametrize("bank", [0, 1])
def test_each_bank_has_queries_of_its_own(bank):
    groups = [Group(seed, heads=2, lines=2, pages=1) for seed in (7, 8)]

    async def put(ctx, dut):
        for number, group in enumerate(groups):
            ctx.set(dut.put_bank, number)
            await put_queries(group.query)(ctx, dut)

    sends = groups[bank].key_lines()
    held = {"scale": SCALE, "bank": bank}
    ends = Ends(sends={"i": sends}, takes=("o",), held=held, before=put)
    dut = KeyScore(heads=2, lines=2, id_bits=8, banks=2)
    seen = pump(dut, ends, cycles=len(sends) + 40, seed=1)["o"]
    expected = groups[bank].scores(0).T
    assert [list(each.item.score) for each in seen] == [list(each) for each in expected]


@pytest.mark.parametrize("products", [32, 8])
def test_idle_is_when_no_line_is_inside(products):
    group, inside, told = Group(3, heads=1, lines=1, pages=3), 0, set()
    dut = KeyScore(heads=1, lines=1, id_bits=8, products=products)

    def watch(ctx):
        nonlocal inside
        offered = ctx.get(dut.i.valid)
        told.add((bool(offered), inside > 0))
        assert ctx.get(dut.idle) == (not offered and not inside)
        inside += offered and ctx.get(dut.i.ready)
        inside -= ctx.get(dut.o.valid) and ctx.get(dut.o.ready)

    ends = Ends(
        sends={"i": group.key_lines()},
        takes=("o",),
        offer=0.08,
        take=0.4,
        held={"scale": SCALE},
        before=put_queries(group.query),
        watch=watch,
    )
    assert len(pump(dut, ends, cycles=3000, quiet=60)["o"]) == 48
    assert len(told) == 4


@pytest.mark.parametrize("bank", [0, 1])
@pytest.mark.parametrize("into", [0, 1])
@pytest.mark.sampled
def test_a_query_may_change_under_lines_of_the_other_bank_alone(bank, into):
    """A line of the query is written in each cycle in which a token is inside."""
    group = Group(6, heads=1, lines=1, pages=1)
    expected = list(group.scores(0)[:, 0])

    def run(late):
        dut, cycle = KeyScore(heads=1, lines=1, id_bits=8, banks=2, products=16), -1

        async def put(ctx, dut):
            ctx.set(dut.put_bank, bank)
            await put_queries(group.query)(ctx, dut)
            ctx.set(dut.put_bank, into)
            ctx.set(Value.cast(dut.i_query.p), 0)

        def watch(ctx):
            nonlocal cycle
            cycle += 1
            ctx.set(dut.i_query.valid, cycle == late)
            if cycle:  # the bank of a line that is there is what counts
                ctx.set(dut.bank, 1 - bank)

        held = {"scale": SCALE, "bank": bank}
        sends = {"i": group.key_lines()[:1]}
        ends = Ends(sends=sends, takes=("o",), held=held, before=put, watch=watch)
        (seen,) = pump(dut, ends, cycles=40, quiet=20)["o"]
        assert list(seen.item.score) == expected
        return seen.taken

    last = run(None)
    for late in range(1, last + 1):
        if bank == into:
            with pytest.raises(AssertionError, match="a query changes under a line"):
                run(late)
        else:
            run(late)
    run(last + 1)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"heads": 0}, "heads = 0 .*1 … 64"),
        ({"lines": 33}, "lines = 33 .*1 … 32"),
        ({"banks": 3}, "banks = 3 .*1 … 2"),
        ({"products": 4}, "products = 4 .*8, 16, 32"),
    ],
)
def test_sizes_are_checked(wrong, said):
    with pytest.raises(ValueError, match=said):
        KeyScore(**{"heads": 1, "lines": 1, "id_bits": 1} | wrong)


@pytest.mark.parametrize(("products", "beats"), [(32, 1), (16, 2), (8, 4)])
def test_latency_and_interval(products, beats):
    group, dut = (
        Group(5, heads=2, lines=2, pages=2),
        KeyScore(heads=2, lines=2, id_bits=8, products=products),
    )
    assert (dut.LATENCY, dut.INTERVAL) == (10 + beats, beats)
    seen = scored(group, heads=2, lines=2, products=products)
    lasts = [line.taken for line in seen["i"] if line.item["last"]]
    assert [score.offered - last for score, last in zip(seen["o"], lasts, strict=True)] == [
        dut.LATENCY
    ] * 32
    first, *_, end = (line.taken for line in seen["i"])
    assert end - first == (len(seen["i"]) - 1) * dut.INTERVAL

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Bits that flip in the endpoint's memories (docs/protection.md): each memory is in the table, and
what the table says of it is so."""

import contextlib
import fnmatch
import functools

import pytest
from narrow_unit import UNIT
from protection import judge, matches, memory_rows

from kelp_hw.endpoint import Endpoint
from kelp_verif.endpoint.flip_campaign import Bench, Outcome, campaign, hidden
from kelp_verif.endpoint.inventory import inventory
from kelp_verif.harness.seeds import reseeded


def rows():
    """Of the endpoint's memories; what stands beside the endpoint has a table of its own."""
    return memory_rows("Memories")


@functools.cache
def design():
    return inventory(Endpoint(config=UNIT))


def checked(name):
    """Whether the table promises check bits."""
    return "SECDED" in matches(name, rows())[0][2]


def test_each_memory_is_in_the_table_once():
    counts = {name: len(matches(name, rows())) for name in design()}
    strays = {name: count for name, count in counts.items() if count != 1}
    assert not strays, f"rows of docs/protection.md for each of these: {strays}"
    patterns = [pattern for row in rows() for pattern in row[0]]
    idle = [pattern for pattern in patterns if not fnmatch.filter(design(), pattern)]
    assert not idle, f"docs/protection.md names what is not there: {idle}"


@pytest.fixture(scope="module")
def bench():
    return Bench(seed=reseeded(11))


def protected():
    return [name for name in design() if checked(name)]


@pytest.mark.timeout(1200)
def test_a_bit_in_each_memory_at_once(bench):
    """In two halves: one bit in each half of a ByteMask are two of one code word."""
    for half in range(2):
        for _ in range(2):
            outcome, seen = bench.trial(*(bench.draw(name, 1) for name in protected()[half::2]))
            assert outcome is Outcome.CORRECTED, seen
            assert seen["corrected"] > 10


@pytest.mark.night
@pytest.mark.timeout(1200)
def test_two_bits_in_each_memory(bench):
    judge(campaign(each=1, bits=(2,), only=protected(), states=1, bench=bench), checked)


@pytest.mark.parametrize(
    ("came", "said"),
    [
        ({"1": {"corrected": 1, "masked": 2}, "2": {"fatal": 1, "masked": 2}}, None),
        ({"1": {"corrected": 1}, "2": {"silent": 1}}, "2 flipped, silent"),
        ({"1": {"corrected": 1, "event": 1}}, "1 flipped, event"),
        ({"1": {"masked": 3}}, "1 flipped, and nobody heard"),
        ({"1": {"corrected": 3}, "2": {"masked": 3, "changed": 1}}, "2 flipped, and nobody heard"),
    ],
)
def test_a_campaign_is_judged_by_what_came_of_it(came, said):
    result = {"memories": {"a": {"width": 9, "depth": 8} | came}, "bad": []}
    with pytest.raises(AssertionError, match=said) if said else contextlib.nullcontext():
        judge(result, lambda name: True)


@pytest.mark.timeout(1200)
def test_what_no_check_bits_tell_is_seen_to_be_silent(bench):
    """So the bench would tell a decoder that overlooks something."""
    names = (
        "data_path.lines.store.rows.rows",
        "data_path.lines.table.addresses",
        "data_path.scales.fill.rows.rows",
        "data_path.writes.store.rows.rows.rows",
    )
    outcomes = [
        bench.trial(hidden(bench.rng, bench.memories[name], bench.cells[name]))[0]
        for name in names
        for _ in range(3)
    ]
    assert outcomes.count(Outcome.SILENT) >= 2, outcomes


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_flips_in_every_memory():
    judge(campaign(each=12, seed=reseeded(12), states=6), checked)

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Bits that flip in CXL.io's memories (docs/protection.md, "CXL.io")."""

import fnmatch
import random

import pytest
from protection import matches, memory_rows

from kelp_verif.cxlio.flip_campaign import BAD, CONFIG, Bench, Flip, campaign, table
from kelp_verif.harness.seeds import reseeded

LIFE = 100


@pytest.fixture(scope="module")
def bench():
    return Bench(seed=reseeded(1))


def test_each_memory_is_in_the_table_once(bench):
    rows = memory_rows("CXL.io")
    found = {name: matches(name, rows) for name in bench.cells}
    assert all(len(each) == 1 for each in found.values()), found
    idle = [p for row in rows for p in row[0] if not fnmatch.filter(bench.cells, p)]
    assert not idle, f"docs/protection.md names what is not there: {idle}"


def met_as_said(result):
    """Memory → numbers of flipped bits that were met there. What came of them is what its row of
    the table says, or nothing."""
    assert not result["bad"], table(result) + str(result["bad"])
    met = {}
    for name, kinds in result["memories"].items():
        ((*_, one, two),) = matches(name, memory_rows("CXL.io"))
        for count, said in (("1", one), ("2", two)):
            came = kinds[count].keys() - {"masked"}
            assert all(outcome in said for outcome in came), (name, count, came)
            met.setdefault(name, set()).update(count if came else ())
    return met


@pytest.mark.slow  # the campaign whole; that it can fail is the next test's
@pytest.mark.timeout(900)
def test_one_flip_is_corrected_two_are_told(bench):
    result = campaign(each=4, seed=reseeded(1), lives=2, bench=bench)
    met_as_said(result)
    one, two = ({o for kinds in result["memories"].values() for o in kinds[n]} for n in "12")
    assert "corrected" in one and two >= {"told", "fatal"}


@pytest.mark.timeout(900)
def test_a_flip_that_check_bits_hide_is_seen_to_be_silent(bench):
    """So the bench would tell a decoder that overlooks something."""
    rng, outcomes = random.Random(2), []
    for name in ("engine.mailbox.payload", "engine.tables", "msix.addresses", "msix.data"):
        for _ in range(6):
            flip = bench.draw(name, 1, LIFE)
            columns, (word, *_) = bench.cells[name].columns[0], bench.cells[name].words
            bit = rng.randrange(32)
            bits = (bit, *(32 + r for r in range(7) if columns[bit] >> r & 1))
            bits = tuple(word[each] for each in bits)
            outcomes.append(bench.trial(LIFE, Flip(name, flip.row, bits, flip.access))[0])
    assert sum(outcome in BAD for outcome in outcomes) >= 4, outcomes


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_without_check_bits_one_flip_is_silent():
    """The planted bug: no decoder at all."""
    result = campaign(each=10, bench=Bench(config=CONFIG.replace(name="bare", protect=False)))
    silent = {name for name, kinds in result["memories"].items() if BAD & set(kinds["1"])}
    assert len(silent) >= 5, table(result)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_flips_in_every_memory():
    """Ten minutes of processor time; of 20 flips one to eighteen are met."""
    result = campaign(each=60, seed=reseeded(7), lives=8)
    met = met_as_said(result)
    assert all(seen == {"1", "2"} for seen in met.values()), table(result)

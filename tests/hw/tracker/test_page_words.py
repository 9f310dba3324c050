# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""PageWords: how fast a word is read, its parts, and how long a scrub takes; the tracker's bench
flips bits in it."""

from timing import check_interval

from kelp_hw.tracker.page_words import PageWords
from kelp_spec.config import named

UNIT = named("unit")


def look(page):
    return {"look.valid": 1, "look.p.page": page}


def test_latency_and_interval():
    write = [{"write": 1, "new.place": place} for place in (1, 2)]
    check_interval(
        lambda: PageWords(config=UNIT),
        "LATENCY",
        "word",
        [look(1), look(2), look(3)],
        settle=UNIT.page_words + 4,
        before=[look(1), look(2), {}, *write],
    )


def test_large_configuration_scrubs_in_time():
    words = PageWords(config=named("llama70b"))
    assert words.config.page_words // words.banks <= 700_000

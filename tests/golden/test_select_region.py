# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""SELECT and GATHER on the golden endpoint: what is answered, held, given back and refused
(docs/select.md)."""

import numpy as np
import pytest

from kelp_golden.endpoint import Endpoint, QueuePolicy
from kelp_golden.ops import Op as TrackerOp
from kelp_golden.ops import QueueConfig, Session
from kelp_golden.select_region import SelectRegion
from kelp_spec.config import named
from kelp_spec.metadata import Op, PageState
from kelp_spec.select import (
    ANSWER_FIELDS,
    BELL_FIELDS,
    CHOSEN_FIELDS,
    Refusal,
    SelectStatus,
    SlotState,
    record,
    record_bytes,
)

CONFIG = named("unit_select")
LINES, TOKENS, PAGES = 2, 2, 12


class Bench:
    """One session of unit_select with `PAGES` pages in queue 0, and a host beside it."""

    def __init__(self, *, seed=1, queues=4, reserve=0, config=CONFIG):
        self.rng = np.random.default_rng(seed)
        self.device = Endpoint(config)
        self.region = SelectRegion(self.device)
        self.device.tracker.reserve = reserve
        for squeue in range(CONFIG.squeues):
            self.device.configure(squeue, QueueConfig(), QueuePolicy())
        shape = Session(used_queues=queues, used_lines=4, used_pages=32, kv_heads=2, ld_id=3)
        self.device.apply(TrackerOp(Op.OPEN, session=0), descriptor=shape)
        self.sequence = 0

    def write(self, page, queue=0, data=None):
        for line in range(4):
            rows = self.rng.standard_normal(32).astype(np.float16) if data is None else data
            self.device.apply(
                TrackerOp(
                    Op.WRITE,
                    squeue=queue,
                    page=page,
                    kv_line=line,
                    write=1,
                    has_write=1,
                    ld_id=3,
                    origin=(rows.tobytes(), (1 << 64) - 1),
                )
            )

    def query(self, codes=None, group=0):
        for head in range(2):
            for line in range(LINES):
                row = self.rng.standard_normal(32) if codes is None else codes
                self.region.write(
                    self.region.map.query(0, group, head, line), row.astype("<f2").tobytes(), 3
                )

    def select(self, group=0, ld_id=3, **fields):
        self.sequence += 1
        bell = {
            "sequence": self.sequence,
            "newest": PAGES - 1,
            "tokens": TOKENS,
            "lines": LINES,
            "most": 4,
            "target": 2 << 16,
            "m": 23637,
            "sh": 17,
        } | fields
        line = self.region.map.bell(0, group)
        self.region.write(line, record_bytes(BELL_FIELDS, bell).ljust(64, b"\0"), ld_id)
        header = record(ANSWER_FIELDS, self.region.read(line, ld_id))
        rows = b"".join(self.region.read(line + n, ld_id) for n in (1,))
        pages = [record(CHOSEN_FIELDS, rows[8 * n : 8 * n + 8]) for n in range(header["count"])]
        return header, pages

    def pinned(self):
        return {
            (key // CONFIG.pages, key % CONFIG.pages)
            for key, word in self.device.tracker.words.items()
            if word.pinned & 2
        }


@pytest.fixture
def bench():
    bench = Bench()
    for page in range(PAGES):
        bench.write(page)
    bench.query()
    return bench


def test_a_choice_is_held_and_gathered(bench):
    header, pages = bench.select()
    assert header["status"] == SelectStatus.DONE and header["count"] == 6 == len(pages)
    assert [p["page"] for p in pages[:2]] == [0, PAGES - 1]
    assert bench.pinned() == {(0, p["page"]) for p in pages}
    assert bench.device.tracker.pools[0].pins == 6
    for slot, page in enumerate(pages):
        assert page["state"] == SlotState.HELD
        assert bench.region.page_of(0, 0, header["generation"], slot) == page["page"]
    assert bench.region.page_of(0, 0, header["generation"], 6) is None
    assert bench.region.page_of(0, 0, header["generation"] + 1, 0) is None


def test_summaries_live_until_a_key_is_written(bench):
    bench.select()
    assert len(bench.device.summaries) == PAGES - 2
    bench.write(4)
    assert len(bench.device.summaries) == PAGES - 3
    bench.select()
    assert len(bench.device.summaries) == PAGES - 2


def test_slots_are_given_back_with_the_next_layer(bench):
    for page in range(PAGES):
        bench.write(page, queue=2)
    first, _ = bench.select(layer=0)
    bench.select(layer=0, queue=2)
    assert len(bench.pinned()) == 12
    bench.select(layer=1, queue=2)
    assert {squeue for squeue, _ in bench.pinned()} == {2}
    assert bench.region.page_of(0, 0, first["generation"], 0) is None
    bench.select(release=1)
    assert not bench.pinned() and bench.device.tracker.pools[0].pins == 0


def test_a_hosts_pin_and_a_slot_count_once(bench):
    tracker = bench.device.tracker
    bench.device.apply(TrackerOp(Op.PIN, page=0))
    bench.select()
    assert tracker.pools[0].pins == 6
    bench.select(release=1)
    assert tracker.pools[0].pins == 1 and tracker.word(0, 0).pinned == 1
    bench.device.apply(TrackerOp(Op.UNPIN, page=0))
    assert tracker.pools[0].pins == 0


def test_without_room_a_page_is_chosen_and_has_no_slot(bench):
    bench.device.tracker.reserve = CONFIG.frames[0] - 3
    header, pages = bench.select()
    assert [p["state"] for p in pages] == 3 * [SlotState.HELD] + 3 * [SlotState.NO_ROOM]
    assert bench.region.page_of(0, 0, header["generation"], 3) is None


def test_pages_that_are_not_there_are_not_chosen(bench):
    bench.select()  # summarises all
    bench.select(release=1)
    tracker = bench.device.tracker
    _, before = bench.select()
    bench.select(release=1)
    gone = before[2]["page"]
    tracker.words[gone] = tracker.words[gone]._replace(state=int(PageState.COLD))
    header, pages = bench.select()
    assert header["absent"] == 1 and gone not in [p["page"] for p in pages]


def test_pages_that_are_not_there_are_fetched_on_demand(bench):
    asked = []
    bench.region._fetch = asked.extend
    bench.select()
    for page in (3, 5):
        bench.device.tracker.words[page] = bench.device.tracker.words[page]._replace(
            state=int(PageState.COLD)
        )
    header, pages = bench.select(most=2)
    assert header["absent"] == len({3, 5}) and not asked
    bench.select(fetch=1, most=2)
    bench.select(speculative=1)
    wanted, every = asked[:-2], asked[-2:]
    assert every == [(0, 3), (0, 5)]
    # Of what is chosen the wanted ones are, which would be among the best two.
    for page in (3, 5):
        bench.device.tracker.words[page] = bench.device.tracker.words[page]._replace(
            state=int(PageState.RESIDENT)
        )
    best = [page["page"] for page in bench.select(most=2)[1][2:]]
    assert {page for _, page in wanted} == {3, 5} & set(best)


def gone(bench, *pages):
    for page in pages:
        bench.device.tracker.words[page] = bench.device.tracker.words[page]._replace(
            state=int(PageState.COLD)
        )


def test_an_absent_page_has_the_mass_that_it_had(bench):
    """The estimate of the same query is right to 1/16 octave a head."""
    masses = {page["page"]: page["mass"] for page in bench.select()[1]}
    page = max(set(masses) - {0, PAGES - 1}, key=masses.get)
    gone(bench, page, 0)
    header, pages = bench.select()
    assert header["absent"] == 2
    exact = masses[page] + masses[0]
    assert 0.95 * exact < header["missing"] < 1.05 * exact
    assert page not in [p["page"] for p in pages] and pages[0]["mass"] > 0


def test_a_page_that_was_never_scored_has_three_quarters_of_its_bound(bench):
    bench.select(speculative=1)  # summaries, and nothing is remembered of a guess
    assert not bench.device.seen
    gone(bench, 3)
    header, _ = bench.select()
    assert header["absent"] == 1 and header["missing"] > 0 and 3 not in bench.device.seen
    assert 0 in bench.device.seen and PAGES - 1 not in bench.device.seen
    gone(bench, *range(1, PAGES - 1))
    assert bench.select()[0]["missing"] < 2 << 16


def test_without_estimates_nothing_is_missing():
    bench = Bench(config=CONFIG.with_(select_estimates=False))
    for page in range(PAGES):
        bench.write(page)
    bench.query()
    bench.select()
    gone(bench, 0, 5)
    header, _ = bench.select()
    assert header["absent"] == 2 and header["missing"] == 0 and not bench.device.seen


def test_a_guess_fetches_and_chooses_nothing(bench):
    asked = []
    bench.region._fetch = asked.extend
    header, pages = bench.select()
    bench.device.tracker.words[3] = bench.device.tracker.words[3]._replace(
        state=int(PageState.COLD)
    )
    guess, nothing = bench.select(layer=1, speculative=1)
    assert guess["status"] == SelectStatus.DONE and guess["absent"] == 1
    assert (guess["count"], guess["generation"], nothing) == (0, 0, [])
    assert asked == [(0, 3)]
    for slot, page in enumerate(pages):  # the slots are as they were
        assert bench.region.page_of(0, 0, header["generation"], slot) == page["page"]


def test_a_query_in_part_is_no_number(bench):
    line = bench.region.map.query(0, 0, 1, 0)
    bench.region.write(line, bytes(64), 3, whole=False)
    assert bench.select()[0]["refusal"] == Refusal.QUERY_NAN
    bench.region.write(line, bytes(64), 3)
    assert bench.select()[0]["status"] == SelectStatus.DONE


def test_tokens_of_other_lines_are_summarised_anew(bench):
    bench.select()
    header, _ = bench.select(lines=1, tokens=1)
    assert header["status"] == SelectStatus.DONE
    assert {lines for lines, _ in bench.device.summaries.values()} == {1}


def test_the_newest_page_is_held_where_it_is_there():
    bench = Bench()
    for page in range(PAGES - 1):
        bench.write(page)
    bench.query()
    header, pages = bench.select()
    assert pages[1] == {"page": PAGES - 1, "state": SlotState.ABSENT, "spare": 0, "mass": 0}
    assert bench.region.page_of(0, 0, header["generation"], 1) is None


@pytest.mark.parametrize(
    ("fields", "refusal"),
    [
        ({"queue": 4}, Refusal.QUEUE),
        ({"newest": 32}, Refusal.PAGE),
        ({"tokens": 0}, Refusal.TOKENS),
        ({"tokens": 3}, Refusal.TOKENS),
        ({"lines": 0}, Refusal.LINES),
        ({"lines": 3}, Refusal.LINES),
        ({"most": 7}, Refusal.COUNT),
    ],
)
def test_refusals_leave_the_slots(bench, fields, refusal):
    bench.select()
    held = bench.pinned()
    header, pages = bench.select(**fields)
    assert (header["status"], header["refusal"]) == (SelectStatus.REFUSED, refusal)
    assert not pages and bench.pinned() == held


def test_k_of_0_chooses_the_first_and_the_newest(bench):
    _, pages = bench.select(most=0)
    assert [p["page"] for p in pages] == [0, PAGES - 1]


def test_queries_with_nan_or_inf(bench):
    bench.query(np.full(32, np.nan))
    assert bench.select()[0]["refusal"] == Refusal.QUERY_NAN
    bench.query(np.full(32, np.inf))
    assert bench.select()[0]["status"] == SelectStatus.DONE


def test_a_foreign_host_reads_and_changes_nothing(bench):
    header, pages = bench.select(ld_id=4)
    assert header["status"] == SelectStatus.NONE and not bench.pinned()
    bench.select()
    assert bench.region.read(bench.region.map.bell(0, 0), 4) == bytes(64)


def test_nothing_is_left_of_a_session(bench):
    bench.select()
    bench.device.apply(TrackerOp(Op.CLOSE))
    bench.region.ended(0)
    for page in range(PAGES):
        bench.device.apply(TrackerOp(Op.SCRUB, page=page))
    bench.device.apply(TrackerOp(Op.CLOSED))
    assert not bench.device.summaries and bench.device.tracker.pools[0].pins == 0
    assert not bench.device.seen
    shape = Session(used_queues=4, used_lines=4, used_pages=32, kv_heads=2, ld_id=3)
    bench.device.apply(TrackerOp(Op.OPEN), descriptor=shape)
    assert bench.region.read(bench.region.map.bell(0, 0), 3) == bytes(64)
    assert bench.region.page_of(0, 0, 0, 0) is None

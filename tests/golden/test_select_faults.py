# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Bad input, and what happens between a choice and its gather, on the golden endpoint: each case of
docs/select.md that needs no hardware."""

import numpy as np
import pytest
from region_bench import CONFIG, LINES, PAGES, TOKENS, Bench, filled, gone

from kelp_golden import select as golden
from kelp_golden.ops import Op as TrackerOp
from kelp_spec.metadata import Event, Op, Outcome, PageState
from kelp_spec.select import (
    BELL_FIELDS,
    Refusal,
    SelectStatus,
    SlotState,
    record_bytes,
)


@pytest.fixture
def bench():
    return filled()


def write(bench, page, line, row, **how):
    """One line of queue 0; `enable` of its bytes."""
    enable = how.pop("enable", (1 << 64) - 1)
    where = {"page": page, "kv_line": line, "write": 1, "has_write": 1, "ld_id": 3}
    bench.device.apply(TrackerOp(Op.WRITE, **where, origin=(row.tobytes(), enable), **how))


def read(bench, header, slot, line):
    """A line of a slot by the window: 32 elements, or None for poison."""
    page = bench.region.page_of(0, 0, header["generation"], slot)
    result = bench.device.apply(TrackerOp(Op.READ, page=page, kv_line=line, ld_id=3))
    version = bench.device.version
    if result.answer or version == -2:
        return None
    return bench.device.lines.resolve([version])[0].view("<f2")


def mass_of(pages, page):
    return next((entry["mass"] for entry in pages if entry["page"] == page), None)


WRONG = {
    Refusal.QUEUE: {"queue": 4},
    Refusal.PAGE: {"newest": 32},
    Refusal.LINES: {"lines": 3},
    Refusal.TOKENS: {"tokens": 0},
    Refusal.COUNT: {"most": 255},
}


def test_of_several_reasons_the_first_is_named(bench):
    """In the order of the codes, but lines before tokens, whose number they bound."""
    reasons = list(WRONG)
    bench.query(np.full(32, np.nan))
    bench.region.write(bench.region.map.plan(0, 0, 0), bytes(64), 3)
    for n, reason in enumerate(reasons):
        fields = {name: value for each in reasons[n:] for name, value in WRONG[each].items()}
        assert bench.select(**fields)[0]["refusal"] == reason
    assert bench.select()[0]["refusal"] == Refusal.QUERY_NAN
    bell = record_bytes(BELL_FIELDS, {"sequence": 99} | WRONG[Refusal.QUEUE] | {"release": 1}, 64)
    bench.region.write(bench.region.map.bell(0, 0), bell, 3, whole=False)
    assert bench.region.read(bench.region.map.bell(0, 0), 3)[5] == Refusal.BELL


@pytest.mark.parametrize("fields", WRONG.values(), ids=[reason.name for reason in WRONG])
def test_of_a_release_nothing_is_looked_at(bench, fields):
    bench.select()
    header, pages = bench.select(release=1, **fields)
    assert (header["status"], header["generation"], pages) == (SelectStatus.DONE, 0, [])
    assert not bench.pinned()


def test_a_closing_session_is_not_served(bench):
    header, _ = bench.select()
    told, place = [], bench.region.map
    bench.region._on_event = lambda *event: told.append(event)
    bench.device.apply(TrackerOp(Op.CLOSE))
    query, line = bytes(bench.region._queries[0]), place.bell(0, 0)
    bench.region.write(place.query(0, 0), b"\1" * 64, 3)
    again, _ = bench.select()
    assert again["sequence"] == 0 and bench.region.read(line, 3) == bytes(64)
    assert bytes(bench.region._queries[0]) == query
    assert set(told) == {(Event.CLOSED_SESSION, 3, 0, 0, 0)}
    for kind in (Op.LOOK, Op.HOLD, Op.UNHOLD):
        assert bench.device.apply(TrackerOp(kind, page=0)).outcome == Outcome.VOID
    bench.region.ended(0)
    assert bench.region.page_of(0, 0, header["generation"], 0) is None
    for page in range(PAGES):
        bench.device.apply(TrackerOp(Op.SCRUB, page=page))
    assert bench.device.tracker.pools[0].pins == 0 and not bench.device.summaries


def test_a_held_page_is_no_victim(bench):
    """One that found no room is, and is read at its own address."""
    bench.device.tracker.reserve = CONFIG.frames[0] - 3
    _, pages = bench.select()
    for entry in pages:
        step = bench.device.tracker.words[entry["page"]].last_step
        claim = bench.device.apply(TrackerOp(Op.CLAIM, page=entry["page"], delta=step))
        held = entry["state"] == SlotState.HELD
        assert claim.outcome == (Outcome.VOID if held else Outcome.DONE)


def test_a_slot_shows_its_page_as_it_is_now(bench):
    """Rewritten, written in part, or poisoned between the choice and its gather."""
    header, pages = bench.select()
    held = [entry["page"] for entry in pages]
    rows = np.arange(64, dtype="<f2").reshape(2, 32)
    write(bench, held[2], 1, rows[0])
    write(bench, held[3], 0, rows[1], partial=1, enable=0xF)
    write(bench, held[4], 0, rows[0], poison=1)
    assert (read(bench, header, 2, 1) == rows[0]).all()
    merged = np.concatenate([rows[1, :2], bench.keys[held[3]][0, 2:]])
    assert (read(bench, header, 3, 0) == merged).all()
    assert read(bench, header, 4, 0) is None
    assert (read(bench, header, 4, 1) == bench.keys[held[4]][1]).all()
    assert not set(held[2:5]) & set(bench.device.summaries), "each is summarised anew"


def test_a_page_that_is_lost_takes_its_protection_along(bench):
    """A double error in its word: the slot shows poison, then what is written anew; protected pages
    are counted right whatever is given back."""
    header, pages = bench.select()
    lost, pool = pages[2]["page"], bench.device.tracker.pools[0]
    bench.device.apply(TrackerOp(Op.READ, page=lost, ld_id=3), fault=2)
    assert bench.device.tracker.word(0, lost).state == PageState.LOST and pool.pins == 5
    assert bench.region.page_of(0, 0, header["generation"], 2) == lost
    assert read(bench, header, 2, 0) is None
    row = np.ones(32, "<f2")
    write(bench, lost, 0, row)
    assert (read(bench, header, 2, 0) == row).all() and read(bench, header, 2, 1) is None
    assert lost not in {page for _, page in bench.pinned()}
    bench.device.apply(TrackerOp(Op.PIN, page=lost))
    again, _ = bench.select()  # gives back what it does not hold
    assert again["absent"] == 0 and pool.pins == len(bench.pinned() | {(0, lost)})
    bench.select(release=1)
    assert pool.pins == 1 and bench.device.tracker.word(0, lost).pinned == 1


def test_a_page_that_was_lost_is_absent(bench):
    before = bench.select()[0]["missing"]
    for page in (0, 5):
        bench.device.apply(TrackerOp(Op.READ, page=page, ld_id=3), fault=2)
    header, pages = bench.select(most=6)
    assert header["absent"] >= 1 and header["missing"] > before == 0
    assert pages[0]["state"] == SlotState.ABSENT and 5 not in [p["page"] for p in pages]


def test_poisoned_keys_have_no_mass_and_count_as_zeros(bench):
    row = np.random.default_rng(3).standard_normal(32)
    bench.query(row)
    bench.write(5, data=(4 * row).astype(np.float16))
    pages = bench.select(most=6)[1]
    assert mass_of(pages, 5) > 1 << 16
    for line in range(4):
        write(bench, 5, line, np.zeros(32, "<f2"), poison=1)
    header, pages = bench.select(most=6)
    assert header["absent"] == 0 and mass_of(pages, 5) is None
    zeros = golden.of_host(np.zeros((TOKENS, LINES, 32), "<u2"))
    codes = golden.summary(zeros, golden.plan_of(bench.plan))
    assert (bench.device.summaries[5][1] == codes).all()


def test_a_page_that_is_not_there_is_estimated_as_one_of_zeros():
    """Its codes are those of keys that are zeros, which are not 0."""
    bench = filled()
    for line in range(4):
        write(bench, 4, line, np.zeros(32, "<f2"))
    bench.write(PAGES - 1, data=np.zeros(32, np.float16))
    gone(bench, 4)
    none = bench.select()[0]["missing"], 4 in bench.device.summaries
    gone_word = bench.device.tracker.words[4]
    bench.device.tracker.words[4] = gone_word._replace(state=int(PageState.RESIDENT))
    bench.select()
    gone(bench, 4)
    codes = bench.device.summaries[4][1]
    assert none == (bench.select()[0]["missing"], False) and codes.all()


def test_a_queue_of_which_nothing_is_there_without_estimates():
    """All its tokens have the least score, so pages share the mass, and are chosen as absent."""
    bench = filled(config=CONFIG.with_(select_estimates=False, select_tables=False))
    gone(bench, *range(PAGES))
    header, pages = bench.select(target=1 << 16, most=2)
    assert header["absent"] > 4 and header["missing"] == 0
    assert {(entry["state"], entry["mass"]) for entry in pages} == {
        (SlotState.ABSENT, pages[0]["mass"])
    }
    assert len(pages) == 4
    bench.device.tracker.words[0] = bench.device.tracker.words[0]._replace(
        state=int(PageState.RESIDENT)
    )
    _, pages = bench.select(target=2 << 16, most=2)
    assert [(entry["page"], entry["mass"] > 0) for entry in pages] == [
        (0, True),
        (PAGES - 1, False),
    ], "beside one that is there none has mass"


def test_a_queue_that_grows_while_it_is_chosen_from():
    """A token with each SELECT; what was the newest page is summarised by the first SELECT that has
    it below its newest."""
    bench = Bench()
    for page in range(3):
        bench.write(page)
    bench.query()
    for page in (3, 4):
        for token in range(TOKENS):
            for line in range(LINES):
                write(bench, page, LINES * token + line, np.ones(32, "<f2"))
            header, pages = bench.select(newest=page, tokens=token + 1)
            assert [entry["page"] for entry in pages[:2]] == [0, page]
            assert pages[1]["tokens"] == token + 1 and pages[1]["state"] == SlotState.HELD
            assert set(bench.device.summaries) == set(range(page))
            assert read(bench, header, 1, LINES * token) is not None
    # A host whose newest page goes back: pages beyond it are not looked at.
    _, pages = bench.select(newest=2)
    assert [entry["page"] for entry in pages[:2]] == [0, 2] and len(pages) == 3


def test_slots_are_given_back_when_their_time_is_over(bench):
    header, _ = bench.select()
    bench.region.give_back(0)
    assert not bench.pinned() and bench.device.tracker.pools[0].pins == 0
    assert bench.region.page_of(0, 0, header["generation"], 0) is None
    again, _ = bench.select()
    assert again["generation"] == header["generation"] + 1 and len(bench.pinned()) == 6


def test_of_two_selects_of_a_queue_the_second_has_the_slots(bench):
    """From a group of its own; the first one's answer can still be read, and leads nowhere."""
    first, _ = bench.select(most=4)
    bench.query(group=1)
    second, pages = bench.select(group=1, most=1)
    assert second["generation"] == first["generation"] + 1
    assert bench.pinned() == {(0, entry["page"]) for entry in pages} and len(pages) == 3
    assert not any(bench.region.page_of(0, 0, first["generation"], slot) for slot in range(8))
    assert bench.region.read(bench.region.map.bell(0, 0), 3)[0] == first["sequence"]


def test_generations_count_modulo_their_bits(bench):
    """A guess, a refusal and a release count nothing, nor does a new session begin anew."""
    many = 1 << CONFIG.generation_bits
    for n in range(many + 2):
        header, _ = bench.select(most=0)
        assert header["generation"] == n % many
        for other in range(many):
            there = bench.region.page_of(0, 0, other, 1)
            assert there == (PAGES - 1 if other == n % many else None)
        for nothing in ({"speculative": 1}, {"queue": 9}):
            assert bench.select(**nothing)[0]["generation"] == 0
        if n % 2:
            assert bench.select(release=1)[0]["generation"] == 0


def test_no_slot_is_another_sessions_or_beyond_the_device(bench):
    header, _ = bench.select()
    sessions, queues = CONFIG.sessions, CONFIG.queues
    for session, queue, slot in ((1, 0, 0), (0, 1, 0), (sessions, 0, 0), (0, queues, 0), (0, 0, 7)):
        assert bench.region.page_of(session, queue, header["generation"], slot) is None


def test_flips_in_summaries_change_which_pages_are_chosen_and_nothing_else(bench):
    """No line, no slot's page; and a page that is written anew is summarised anew."""
    rng = np.random.default_rng(7)
    bench.select()
    kept = dict(bench.device.summaries)
    for _ in range(20):
        for key, (lines, codes) in kept.items():
            flips = rng.integers(0, 1 << 32, codes.shape, np.uint32)
            bench.device.summaries[key] = lines, codes ^ flips
        header, pages = bench.select(most=6)
        assert (header["status"], header["absent"]) == (SelectStatus.DONE, 0)
        for slot, entry in enumerate(pages):
            assert entry["state"] == SlotState.HELD
            assert (read(bench, header, slot, 1) == bench.keys[entry["page"]][1]).all()
    write(bench, 4, 0, bench.keys[4][0])
    bench.select()
    assert (bench.device.summaries[4][1] == kept[4][1]).all()
    assert (bench.device.summaries[5][1] != kept[5][1]).any()

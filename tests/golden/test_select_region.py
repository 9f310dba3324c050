# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""SELECT and GATHER on the golden endpoint: what is answered, held, given back and refused
(docs/select.md)."""

import numpy as np
import pytest
from region_bench import CONFIG, LINES, PAGES, TOKENS, Bench, filled, gone

from kelp_golden import select as golden
from kelp_golden.endpoint import Endpoint
from kelp_golden.ops import Op as TrackerOp
from kelp_golden.ops import Session
from kelp_golden.select_region import SelectRegion
from kelp_spec.metadata import Event, Op, PageState
from kelp_spec.select import (
    ABSENT_MORE,
    Refusal,
    SelectStatus,
    SlotState,
)
from kelp_spec.select_plan import plan_lines


@pytest.fixture
def bench():
    return filled()


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
    assert len(bench.device.summaries) == PAGES - 1
    bench.write(4)
    assert len(bench.device.summaries) == PAGES - 2
    bench.select()
    assert len(bench.device.summaries) == PAGES - 1


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
    asked, row = [], np.random.default_rng(3).standard_normal(32)
    bench.region._fetch = asked.extend
    bench.query(row)
    bench.write(5, data=row.astype(np.float16))  # all look for it
    bench.write(3, data=(row / 4).astype(np.float16))
    bench.select()
    gone(bench, 3, 5)
    header, pages = bench.select(most=1)
    assert header["absent"] == len({3, 5}) and not asked
    bench.select(fetch=1, most=1)
    assert asked == [(0, 5)], "it alone would be chosen"
    bench.select(speculative=1)
    assert asked[1:] == [(0, 5), (0, 3)], "of a guess as many as would be"


def test_a_page_of_little_mass_is_not_fetched(bench):
    """But one that is waited for is, and the first and the newest page in any case."""
    asked = []
    bench.region._fetch = asked.extend
    masses = {page["page"]: page["mass"] for page in bench.select()[1]}
    page = max(set(masses) - {0, PAGES - 1}, key=masses.get)
    gone(bench, page, 0)
    mass = min(bench.select()[0]["missing"], 1 << 17)
    for kind in ({"fetch": 1}, {"speculative": 1}):
        for least, what in ((0, [0, page]), (mass, [0])):
            del asked[:]
            bench.select(fetch_from=least, **kind)
            assert asked == [(0, one) for one in what]
    low, high = 0, mass  # from the page's own mass on it is not
    while high - low > 1:
        del asked[:]
        middle = low + high >> 1
        bench.select(fetch=1, fetch_from=middle)
        low, high = (middle, high) if len(asked) == 2 else (low, middle)
    assert 0.3 < low / masses[page] < 3, "what its codes say of it"
    del asked[:]
    bench.select(fetch=1, fetch_from=(1 << 32) - 1, waits=1, wait_above=(1 << 17) - 1)
    assert asked == [(0, 0)]
    bench.select(fetch_from=(1 << 32) - 1, waits=1, wait_above=0)
    assert asked[1:] == [(0, 0), (0, page)]


def missing(bench, absent):
    """Of the last query and a whole newest page, in floating point."""
    keys = np.stack([bench.keys[page] for page in range(PAGES)]).reshape(PAGES, TOKENS, LINES, 32)
    plan = golden.plan_of(bench.plan)
    codes = golden.summary(golden.of_host(keys.view("<u2")), plan)
    query = golden.of_host(bench.queries.view("<u2"))
    estimate = golden.estimates(query, codes, plan, 23637, 17)
    named = np.pad(golden.candidates(estimate[:, 1:-1], CONFIG.select_quota), 1)
    score = np.einsum("hld,ptld->hpt", *(a.astype(float) for a in (bench.queries, keys)))
    mass, guess = (2 ** (score * 23637 / 2**17)).sum(axis=2), 2.0 ** (estimate / 256)
    gone = np.isin(np.arange(PAGES), absent)
    mass[:, gone] = guess[:, gone] * 2 ** (ABSENT_MORE / 256)
    rest = ~named[1:-1]
    more = guess[:, 1:-1][:, rest].sum(axis=1) / guess[:, named].sum(axis=1)
    counted = named | (np.arange(PAGES) % (PAGES - 1) == 0)
    whole = mass[:, counted].sum(axis=1) + more * mass[:, named].sum(axis=1)
    return (mass[:, counted & gone].sum(axis=1) / whole).sum() * 65536


def test_an_absent_page_has_what_its_codes_tell(bench):
    masses = {page["page"]: page["mass"] for page in bench.select()[1]}
    page = max(set(masses) - {0, PAGES - 1}, key=masses.get)
    gone(bench, page, 0)
    header, pages = bench.select()
    assert header["absent"] == 2
    assert header["missing"] == pytest.approx(missing(bench, [page, 0]), rel=0.05)
    assert page not in [p["page"] for p in pages]
    assert pages[0]["page"] == 0 and pages[0]["mass"], "it is chosen as soon as it is there"
    gone(bench, *range(1, PAGES - 1))
    header = bench.select()[0]
    assert header["absent"] > 4
    assert header["missing"] == pytest.approx(missing(bench, range(PAGES - 1)), rel=0.05)


def test_pages_that_are_wanted_are_named(bench):
    """With what their codes tell, the best first; those that would not be chosen are not."""
    masses = {page["page"]: page["mass"] for page in bench.select(most=6)[1]}
    assert bench.wanted == []
    best = sorted(set(masses) - {0, PAGES - 1}, key=masses.get, reverse=True)
    gone(bench, best[0], best[2])
    header, pages = bench.select(most=6)
    assert {page for page, _ in bench.wanted} == {best[0], best[2]} and header["wanted"] == 2
    assert sum(mass for _, mass in bench.wanted) == header["missing"]
    found = [mass for _, mass in bench.wanted]
    assert found == sorted(found, reverse=True) and 0 not in found
    assert not {page for page, _ in bench.wanted} & {page["page"] for page in pages}
    by_mass = bench.wanted
    header, _ = bench.select(most=1)
    assert header["absent"] == 2 and bench.wanted == by_mass[: header["wanted"]] and bench.wanted
    assert bench.select(target=0)[0]["wanted"] == 0


def test_a_page_that_is_chosen_is_not_named_as_wanted(bench):
    """The first and the newest page are chosen wherever they are; a guess names them."""
    bench.select()
    gone(bench, 0, PAGES - 1)
    header, pages = bench.select()
    assert [page["state"] for page in pages[:2]] == 2 * [SlotState.ABSENT]
    assert header["absent"] == 2 and header["missing"] and header["wanted"] == 0
    header, pages = bench.select(speculative=1)
    assert pages == [] and header["wanted"] == 2
    assert bench.wanted == [(0, 0), (PAGES - 1, 0)]
    gone(bench, *range(PAGES))
    header, _ = bench.select(speculative=1, most=6)
    assert header["wanted"] == CONFIG.select == len(bench.wanted), "a guess names all of them"
    assert header["missing"] > sum(mass for _, mass in bench.wanted) > 0


def test_of_more_than_have_a_place_the_first_are_named():
    seen = set()
    for seed in range(6):
        bench = Bench(seed=seed)
        for page in range(PAGES):
            bench.write(page)
        bench.query()
        bench.select()
        gone(bench, *np.random.default_rng(seed).choice(np.arange(1, PAGES - 1), 4, replace=False))
        bench.select(most=6, speculative=1)
        every = bench.wanted
        for most in (6, 3):
            header, pages = bench.select(most=most)
            room = CONFIG.select - len(pages)
            assert len(bench.wanted) == min(header["wanted"], room)
            assert bench.wanted == every[: len(bench.wanted)]
            seen.add(header["wanted"] - room)
    assert min(seen) < 0 < max(seen) and 0 in seen, seen


def test_what_chooses_nothing_wants_nothing(bench):
    bench.select()
    gone(bench, 0, 3, 5)
    assert bench.select(speculative=1)[0]["wanted"]
    for bell in ({"release": 1}, {"queue": 4}):
        assert bench.select(**bell)[0]["wanted"] == 0


def test_one_that_waited_names_what_its_last_choice_wants(bench):
    bench.select()
    gone(bench, 2, 3, 5, 7)
    bench.select(most=6)
    before = dict(bench.wanted)

    def wait(waits):
        back = waits.pages[0]
        word = bench.device.tracker.words[back]
        bench.device.tracker.words[back] = word._replace(state=int(PageState.RESIDENT))
        return waits.tries == 0

    bench.region._wait = wait
    _, pages = bench.select(most=6, waits=1)
    assert set(before) - {page for page, _ in bench.wanted} <= {p["page"] for p in pages}
    assert len(bench.wanted) == len(before) - 1


def test_without_estimates_nothing_is_missing():
    bench = Bench(config=CONFIG.with_(select_estimates=False, select_tables=False))
    for page in range(PAGES):
        bench.write(page)
    bench.query()
    bench.select()
    gone(bench, 0, 5)
    header, _ = bench.select()
    assert header["absent"] == 2 and header["missing"] == header["wanted"] == 0


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


@pytest.mark.parametrize("line", range(LINES))
def test_a_select_needs_a_plan(bench, line):
    at, plan = bench.region.map.plan(0, 0, line), bench.plan[line].tobytes()
    spare = (int.from_bytes(plan, "little") | 1 << 460).to_bytes(64, "little")
    for data, whole in ((bytes(64), True), (plan, False), (spare, True)):
        bench.region.write(at, data, 3, whole=whole)
        header, pages = bench.select()
        assert (header["status"], header["refusal"]) == (SelectStatus.REFUSED, Refusal.PLAN)
        assert not pages and not bench.device.summaries and not bench.pinned()
    assert bench.select(group=1)[0]["refusal"] == Refusal.PLAN, "each group has its own"
    used = bench.select(lines=1, tokens=1)[0]["refusal"]
    assert used == (0 if line else Refusal.PLAN), "of lines that are not used none is needed"
    bench.region.write(at, plan, 3)
    assert bench.select()[0]["status"] == SelectStatus.DONE


def test_a_plan_of_a_query_without_numbers_is_not_looked_at(bench):
    bench.query(np.full(32, np.nan))
    bench.region.write(bench.region.map.plan(0, 0, 0), bytes(64), 3)
    assert bench.select()[0]["refusal"] == Refusal.QUERY_NAN


def test_lines_no_power_of_two_are_refused():
    bench = Bench(config=CONFIG.with_(select_lines=4), used_lines=3)
    header, _ = bench.select(lines=3, tokens=1)
    assert header["refusal"] == Refusal.LINES
    assert bench.select(lines=1, tokens=1)[0]["refusal"] == Refusal.PLAN


def test_a_summary_is_of_the_plan_that_it_was_made_with(bench):
    """A host that plans anew has to write keys anew."""
    bench.select()
    before = {page: found for page, (_, found) in bench.device.summaries.items()}
    other = plan_lines(np.full((9, 64), 3.0) + np.arange(64), np.ones((1, 64)))
    for line in range(LINES):
        bench.region.write(bench.region.map.plan(0, 0, line), other[line].tobytes(), 3)
    bench.write(4)
    bench.select()
    after = {page: found for page, (_, found) in bench.device.summaries.items()}
    assert [page for page in before if (before[page] != after[page]).any()] == [4]


def test_tokens_of_other_lines_are_summarised_anew(bench):
    bench.select()
    header, _ = bench.select(lines=1, tokens=1)
    assert header["status"] == SelectStatus.DONE
    assert {lines for lines, _ in bench.device.summaries.values()} == {1}


def test_a_page_that_is_not_there_loses_the_codes_of_other_lines(bench):
    """None are made of what is not there, and its place is taken."""
    bench.select()
    gone(bench, 4)
    bench.select(lines=1, tokens=1)
    assert 4 not in bench.device.summaries and len(bench.device.summaries) == PAGES - 2


def test_the_newest_page_is_held_where_it_is_there():
    bench = Bench()
    for page in range(PAGES - 1):
        bench.write(page)
    bench.query()
    header, pages = bench.select()
    told = {"page": PAGES - 1, "state": SlotState.ABSENT, "tokens": TOKENS, "mass": 0}
    assert pages[1] == told
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


def test_events_name_who_asked_and_what(bench):
    """Of a session that the device has not, too: an address may have room for more."""
    config, told = CONFIG.with_(sessions=3), []
    region = SelectRegion(Endpoint(config), on_event=lambda *event: told.append(event))
    session = 1 << region.map.offset_bits - config.session_bits
    for n in (1, 3):
        assert region.read(n * session, 5) == bytes(64)
    assert told == [(Event.CLOSED_SESSION, 5, n, 0, 0) for n in (config.queues, 0)]
    bench.region._on_event = lambda *event: told.append(event)
    bench.select(queue=3, newest=32)
    bench.select(queue=4)
    refused = ((3, 32, Refusal.PAGE), (0, PAGES - 1, Refusal.QUEUE))
    assert told[2:] == [(Event.SELECT_REFUSED, 3, *each) for each in refused]


def test_nothing_is_left_of_a_session(bench):
    bench.select()
    bench.device.apply(TrackerOp(Op.CLOSE))
    bench.region.ended(0)
    for page in range(PAGES):
        bench.device.apply(TrackerOp(Op.SCRUB, page=page))
    bench.device.apply(TrackerOp(Op.CLOSED))
    assert not bench.device.summaries and bench.device.tracker.pools[0].pins == 0
    shape = Session(used_queues=4, used_lines=4, used_pages=32, kv_heads=2, ld_id=3)
    bench.device.apply(TrackerOp(Op.OPEN), descriptor=shape)
    assert bench.region.read(bench.region.map.bell(0, 0), 3) == bytes(64)
    assert bench.region.page_of(0, 0, 0, 0) is None

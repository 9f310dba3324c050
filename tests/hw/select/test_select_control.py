# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""SelectControl: slots that come and go, refusals, sessions that end, pages that are not there."""

from collections import Counter

import numpy as np
import pytest
from select_room import (
    BELL,
    CONFIG,
    LINES,
    OWNER,
    PLAN,
    SHAPE,
    Room,
    compare,
    device,
    logged,
    pins,
    queries,
    write,
)

from kelp_golden.ops import Op as TrackerOp
from kelp_golden.select_region import SelectRegion
from kelp_hw.layouts import TIME_BITS
from kelp_hw.select.select_control import engine_of
from kelp_spec.config import MOST_NAMED, named
from kelp_spec.metadata import Event, Op, Outcome, PageState
from kelp_spec.select import (
    ANSWER_FIELDS,
    BELL_FIELDS,
    Refusal,
    SelectStatus,
    record,
    record_bytes,
)


def test_layers_writes_and_refusals():
    """Slots go with the next layer, a written page is summarised anew, a refusal leaves all as it
    is, a release gives back."""

    def between(room, makes, n):
        if n == 0:
            for made in makes:
                write(made, 0, 4, np.full((4, 32), 0.5, "<f2"))
            room.tell(Op.WRITE, page=4, kv_line=1)
            room.results[-1]["outcome"] = Outcome.HIT

    bells = [
        {"layer": 0},
        {"layer": 0, "queue": 2},
        {"layer": 0, "newest": 32},
        {"layer": 0},
        {"layer": 1, "queue": 2, "tokens": 1},
        {"release": 1},
        {"queue": 4},
        {"lines": 3},
        {"tokens": 3},
        {"lines": 1, "tokens": 5},
        {"most": 7},
    ]
    room, _ = compare(bells, around={"queues": (0, 2)}, between=between, cycles=60_000)
    looked = [op for op in room.ops if op[0] == "LOOK" and op[1:] == (0, 4, 0)]
    assert len(looked) >= 2
    refused = (
        *(Refusal.PAGE, Refusal.QUEUE, Refusal.LINES),
        *(Refusal.TOKENS, Refusal.TOKENS, Refusal.COUNT),
    )
    assert room.events == [(Event.SELECT_REFUSED, code) for code in refused]
    assert room.named[:2] == [(0, 32), (0, 9)], "of a queue that is none, the session's first"


def test_a_guess_leaves_slots_alone():
    """It looks at pages, tells of those that are not there, and changes no slot; tokens of other
    lines have their pages summarised anew."""

    def between(room, makes, n):
        for made in makes:
            word = made.tracker.words[3]
            made.tracker.words[3] = word._replace(state=int(PageState.COLD))

    guess = {"layer": 5, "queue": 2, "speculative": 1}
    bells = [{"layer": 0}, guess, guess | {"queue": 0}, {"layer": 0, "lines": 1}]
    room, region = compare(bells, around={"queues": (0, 2)}, between=between, cycles=60_000)
    kinds = [op[0] for op in room.ops]
    assert kinds.count("UNHOLD") == 6 and len(pins(region.endpoint)) == kinds.count("HOLD") - 6
    assert set(room.fetched) == {(0, 3)}


def test_a_page_that_went_loses_the_codes_of_tokens_of_other_lines():
    """It has no codes in their place, so it is tried again, and has what it has when it is back."""

    def between(room, makes, n):
        state = int(PageState.RESIDENT if n == 2 else PageState.COLD)
        for made in makes:
            made.tracker.words[3] = made.tracker.words[3]._replace(state=state)

    bells = [{"lines": lines, "tokens": 1, "speculative": 1} for lines in (2, 1, 2, 2, 2)]
    room, _ = compare(bells, around={}, between=between, cycles=60_000)
    assert room.ops.count(("LOOK", 0, 3, 0)) >= 4


def test_pages_that_go_and_frames_that_are_short():
    """A page that is not there has no mass and no slot; without room a page is chosen alone."""

    def between(room, makes, n):
        for made in makes:
            for page in ((3, 5), (3, 5, 0))[n % 2]:
                word = made.tracker.words[page]
                made.tracker.words[page] = word._replace(state=int(PageState.COLD))

    room, region = compare(
        [{"target": 1 << 20}] * 3,
        around={"reserve": CONFIG.frames[0] - 4},
        between=between,
        offer=0.8,
        take=0.8,
    )
    answer = record(ANSWER_FIELDS, region.read(region.map.bell(0, 0), OWNER)[:13])
    assert answer["absent"] >= 1 and answer["status"] == SelectStatus.DONE


@pytest.mark.parametrize(("offer", "take"), [(1.0, 1.0), (0.7, 0.3)])
@pytest.mark.sampled
def test_pages_that_are_wanted_are_named(offer, take):
    """Whatever comes when: as many as have a place, one that a page chosen later took among them;
    by a guess all, and of a SELECT behind them that wants nothing none."""
    rng = np.random.default_rng(int(10 * take))

    def between(room, makes, n):
        gone = rng.choice(10, (0, 3, 4, 5, 8)[n % 5], replace=False)
        for made in makes:
            for page in range(10):
                state = int(PageState.COLD if page in gone else PageState.RESIDENT)
                made.tracker.words[page] = made.tracker.words[page]._replace(state=state)

    kinds = {}, {"fetch": 1}, {"most": 3}, {"speculative": 1}, {"release": 1}, {"queue": 4}
    bells = [{"most": 6} | kinds[rng.integers(len(kinds))] for _ in range(40)]
    room, _ = compare(bells, around={}, between=between, offer=offer, take=take, cycles=200_000)
    left, of_guesses = Counter(), []
    for bell, lines in zip(bells, room.told_lines, strict=True):
        header = record(ANSWER_FIELDS, lines[0])
        if "speculative" in bell:
            of_guesses.append(header["wanted"])
        elif header["wanted"]:
            assert header["count"], "nothing is wanted where nothing is chosen"
            left[np.sign(CONFIG.select - header["count"] - header["wanted"])] += 1
    assert set(left) == {-1, 0, 1} and max(of_guesses) > 5, (left, of_guesses)


def test_of_several_reasons_the_first_is_named():
    """In the order of the codes, but lines before tokens; of a release none is looked at."""
    wrong = {"queue": 4}, {"newest": 32}, {"lines": 3}, {"tokens": 0}, {"most": 255}
    bells = [dict(item for each in wrong[n:] for item in each.items()) for n in range(5)]
    bells += [{}, *({"release": 1} | each for each in wrong), bells[0] | {"release": 1}]
    room, _ = compare(bells, around={}, cycles=60_000)
    assert [code for _, code in room.events] == [
        *(Refusal.QUEUE, Refusal.PAGE, Refusal.LINES, Refusal.TOKENS, Refusal.COUNT)
    ]


@pytest.mark.parametrize(
    ("hold", "log", "session"), [(0, 24, 0), (1, 1, 1), (9, 9, 1), (25, 24, 0)]
)
def test_how_long_slots_are_held(hold, log, session):
    """2^hold cycles from the answer on, also as time begins anew; 0, and more than 24, are 24."""
    made = device(session=session)
    room, region = Room(made, session=session), SelectRegion(device(session=session))
    begin = (1 << TIME_BITS) - 3

    async def host(room):
        room.ctx.set(room.dut.now, begin)
        await room.select(region, {"sequence": 1, "hold": hold}, queries())
        if log > 1:
            room.ctx.set(room.dut.now, (1 << log) - 4)
            for _ in range(40):
                await room.cycle()
            assert len(pins(made)) == 6
        room.ctx.set(room.dut.now, (1 << log) - 3)
        for _ in range(60):
            await room.cycle()
        assert not pins(made)

    room.run(host)


def test_time_is_over_and_sessions_end():
    """Slots are given back 2^hold cycles after the answer, and with their session; nothing of it is
    read by the next owner."""
    made = device()
    room, region = Room(made), SelectRegion(device())

    async def host(room):
        await room.select(region, {"sequence": 1, "hold": 8}, queries())
        assert pins(made)
        for now in range(0, 400):
            room.ctx.set(room.dut.now, now)
            await room.cycle()
        assert not pins(made)
        await room.select(region, {"sequence": 2}, queries())
        assert pins(made)
        held = made.tracker.sessions[0]
        made.apply(TrackerOp(Op.CLOSE))
        room.tell(Op.CLOSE)
        for page in range(10):
            made.apply(TrackerOp(Op.SCRUB, page=page))
            room.tell(Op.SCRUB, page=page)
        for _ in range(60):
            await room.cycle()
        made.apply(TrackerOp(Op.CLOSED))
        assert made.tracker.pools[0].pins == 0
        line = region.map.bell(0, 0)
        assert await room.access(line) == bytes(64)
        assert room.events.pop()[0] == Event.CLOSED_SESSION
        made.apply(TrackerOp(Op.OPEN), descriptor=SHAPE)
        room.tell(Op.OPEN)
        for _ in range(20):
            await room.cycle()
        assert held.open and await room.access(line) == bytes(64)
        assert await room.access(line, ld_id=OWNER + 1) == bytes(64)
        assert room.events.pop()[0] == Event.FOREIGN_LD
        await room.access(line, bytes(64), ld_id=OWNER + 1)
        assert room.events.pop()[0] == Event.FOREIGN_LD
        assert room.ctx.get(room.dut.idle)

    room.run(host)


def test_what_one_session_does_leaves_the_other_its_slots():
    """Their layers, their times and their ends are their own."""
    makes = device(session=0), device(session=0)
    for made in makes:
        made.apply(TrackerOp(Op.OPEN, session=1), descriptor=SHAPE)
        rng = np.random.default_rng(9)
        for page in range(10):
            write(made, 0, page, rng.standard_normal((4, 32)).astype("<f2"), session=1)
    room, region = Room(makes[0], cycles=60_000), SelectRegion(makes[1])
    room.shared = True

    def slots(session):
        pages = CONFIG.queues * CONFIG.pages
        return sum(key // pages == session for key in pins(makes[0]))

    async def select(session, **bell):
        room.session = session
        sequence["now"] += 1
        bell |= {"sequence": sequence["now"]}
        found, wanted = await room.select(region, bell, queries(session))
        assert found == wanted

    async def rests(now):
        room.ctx.set(room.dut.now, now)
        for n in range(2000):
            await room.cycle()
            if n > 80 and room.ctx.get(room.dut.idle):
                break
        assert room.ctx.get(room.dut.idle)

    sequence = {"now": 0}

    async def host(room):
        await select(0, layer=3, hold=8)
        await select(1, layer=5, hold=20)
        assert (slots(0), slots(1)) == (6, 6)
        await rests(300)
        assert (slots(0), slots(1)) == (0, 6)
        region.ended(0)
        await select(0, layer=3, queue=0, hold=20)
        await select(1, layer=6, hold=10)
        assert (slots(0), slots(1)) == (6, 6)
        await rests(300 + (1 << 10))
        assert (slots(0), slots(1)) == (6, 0)
        region.ended(1)
        await select(1, layer=6, hold=20)
        for session in (0, 1):  # here they go on, so that what is given back shows
            room.session = session
            room.tell(Op.CLOSE)
            await rests(2000)
            assert (slots(0), slots(1)) == (0, 6 * (session == 0))

    room.run(host)


def test_the_next_owner_finds_no_summary():
    """Not of a page that he has not written, either: it has no codes, as in the golden region."""
    makes = device(), device()
    room, region = Room(makes[0]), SelectRegion(makes[1])

    async def host(room):
        found, wanted = await room.select(region, {"sequence": 1}, queries())
        assert found == wanted and len(makes[1].summaries) == 9
        region.ended(0)
        scrubs = [(Op.SCRUB, page) for page in range(10)]
        for kind, page in ((Op.CLOSE, 0), *scrubs, (Op.CLOSED, 0), (Op.OPEN, 0)):
            room.tell(kind, page=page)
            for made in makes:
                shape = {"descriptor": SHAPE} if kind == Op.OPEN else {}
                made.apply(TrackerOp(kind, page=page), **shape)
            for _ in range(60 * (kind in (Op.CLOSE, Op.OPEN))):
                await room.cycle()
        for page in {*range(10)} - {4, 5}:
            rows = np.random.default_rng(page).standard_normal((4, 32)).astype("<f2")
            for made in makes:
                write(made, 0, page, rows)
            for line in range(4):
                room.tell(Op.WRITE, page=page, kv_line=line, outcome=Outcome.HIT)
        ops, first = logged(region), len(room.ops)
        found, wanted = await room.select(region, {"sequence": 1}, queries())
        assert found == wanted and room.ops[first:] == ops
        assert ("LOOK", 0, 4, 0) in ops and len(makes[1].summaries) == 7

    room.run(host)


def test_nobody_waits_for_a_neighbour_who_writes_in_every_cycle():
    """Not even where pages are summarised: this one's lie in the same row of that memory."""
    room, region = Room(device()), SelectRegion(device())

    async def host(room):
        room.written = 5, 1
        found, wanted = await room.select(region, {"sequence": 1}, queries(1))
        assert found == wanted
        ops = len(room.ops)
        found, wanted = await room.select(region, {"sequence": 2}, queries(1))
        assert found == wanted
        assert len(room.ops) - ops < ops - 4 * 5, "summaries are made once"

    room.run(host)


def test_queries_and_doorbells_that_are_no_good():
    """NaN is refused, Inf is not; a doorbell in part is refused; the later of two is served."""
    made, twin = device(), device()
    room, region = Room(made), SelectRegion(twin)

    async def host(room):
        bad = queries()
        bad[1, 1, 7] = np.nan
        found, wanted = await room.select(region, {"sequence": 1}, bad)
        assert found == wanted
        assert room.events == [(Event.SELECT_REFUSED, Refusal.QUERY_NAN)]
        bad[1, 1, 7] = np.inf
        found, wanted = await room.select(region, {"sequence": 2}, bad)
        assert found == wanted and record(ANSWER_FIELDS, found[0])["count"] == 6
        # A plan of which a line was not written, has a bit behind its fields, or came in part.
        line = region.map.plan(0, 0, LINES - 1)
        for data, whole in ((b"", True), (PLAN[-1].tobytes()[:-1] + b"\x80", True), (b"", False)):
            await room.access(line, data.ljust(64, b"\0"), whole=whole)
            region.write(line, data.ljust(64, b"\0"), OWNER, whole=whole)
            found, wanted = await room.select(region, {"sequence": 20 + len(room.events)})
            assert found == wanted and room.events[-1][1] == Refusal.PLAN
        await room.ask(region, queries())
        found, wanted = await room.select(region, {"sequence": 3}, whole=False)
        assert found == wanted and room.events[-1][1] == Refusal.BELL
        line = region.map.bell(0, 0)
        for sequence in (4, 5, 6):
            data = record_bytes(BELL_FIELDS, BELL | {"sequence": sequence}).ljust(64, b"\0")
            await room.access(line, data)
        await room.select(region, {"sequence": 7})
        answered = [op for op in room.ops if op[0] == "HOLD"]
        assert len(answered) in (18, 24)  # the second, one or two of the four, the last

    room.run(host)


def test_bits_that_are_no_field_are_not_looked_at():
    """In a doorbell and behind it, by block and golden region: the choice is that of zeros."""
    room, region = Room(device()), SelectRegion(device())
    line, found = region.map.bell(0, 0), []

    async def host(room):
        await room.ask(region, queries())
        names = [name for name, _ in BELL_FIELDS]
        sh = sum(bits for _, bits in BELL_FIELDS[: names.index("sh")]) // 8
        for sequence, bits, behind in ((1, 0, b"\0"), (2, 7, b"\xff")):
            bell = BELL | {"sequence": sequence, "spare": bits}
            data = bytearray(record_bytes(BELL_FIELDS, bell).ljust(64, behind))
            data[sh] |= bits << 5
            await room.access(line, data)
            region.write(line, data, OWNER)
            answer, wanted = await room.answered(region, sequence)
            assert answer == wanted and record(ANSWER_FIELDS, answer[0])["count"] == 6
            found.append(answer[1:])
        assert found[0] == found[1]

    room.run(host)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.sampled
def test_doorbells_at_random(seed):
    """Sound ones, in every field, while pages go."""
    print("seed", seed)
    rng, session = np.random.default_rng(seed), seed % 2

    def between(room, makes, n):
        queue = session * CONFIG.queues + int(rng.choice([0, 2]))
        for key in rng.integers(0, 12, 2) + queue * CONFIG.pages:
            for word, made in ((made.tracker.words.get(int(key)), made) for made in makes):
                if word is not None and not word.pinned:
                    made.tracker.words[int(key)] = word._replace(state=int(PageState.COLD))

    kinds = {"layer": 2, "fetch": 2, "tables": 2, "spare": 8, "most": 7, "newest": 12}
    bells = []
    for _ in range(8):
        bell = {name: int(rng.integers(below)) for name, below in kinds.items()}
        bell |= {"tokens": int(rng.integers(1, 3)), "lines": int(rng.choice([1, 2, 2, 2]))}
        bell |= {"queue": int(rng.choice([0, 2])), "speculative": int(rng.random() < 0.3)}
        bell |= {"sh": int(rng.choice([0, 5, 17, 18, 31])), "m": int(rng.choice([0, 1, 47274]))}
        for share in ("target", "fetch_from"):
            bell[share] = int(rng.integers(1 << 32)) >> int(rng.integers(33))
        bells.append(bell | {"release": int(rng.random() < 0.1)})
    around = {"queues": (0, 2), "session": session}
    compare(bells, around=around, between=between, cycles=200_000)


def together(pairs, *, offer=1.0, take=1.0, between=None):
    """Pairs of SELECTs, of two groups, rung one right behind the other: answers and slots are those
    of the golden region, which serves one after the other, and so are the ops of each queue. The
    ops of all pairs, as they came."""
    makes = device(queues=(0, 1, 2)), device(queues=(0, 1, 2))
    room, region = Room(makes[0], offer=offer, take=take, cycles=60_000), SelectRegion(makes[1])
    ops, came = logged(region), []

    async def host(room):
        for n, pair in enumerate(pairs):
            begun = len(room.ops)
            for group in (0, 1):
                await room.ask(region, queries(2 * n + group), group=group)
            for group, bell in enumerate(pair):
                await room.ring(region, {"sequence": 2 * n + group + 1} | bell, group=group)
            if between:
                await between(room, n)
            for group in (0, 1):
                found, wanted = await room.answered(region, 2 * n + group + 1, group=group)
                assert found == wanted, (pair, record(ANSWER_FIELDS, found[0]))
            came.append(room.ops[begun:])
        for _ in range(60):  # the last one's turn of the tables, 27 + 2 · 10
            await room.cycle()
        assert room.ctx.get(room.dut.idle)

    room.run(host)
    for queue in (0, 1, 2):
        assert [op for op in room.ops if op[1] == queue] == [op for op in ops if op[1] == queue]
    assert pins(makes[0]) == pins(makes[1])
    return came, room


def last(ops, kind, queue):
    return max(n for n, op in enumerate(ops) if op[0] == kind and op[1] == queue)


def first(ops, kind, queue):
    return min(n for n, op in enumerate(ops) if op[0] == kind and op[1] == queue)


def test_heads_of_a_layer_overlap():
    """The second one's keys are read, and its slots given back, while the first one's pages are
    chosen and held."""
    pair = ({"queue": 0}, {"queue": 1})
    (built, again), _ = together([pair, pair])
    assert first(again, "LOOK", 1) < last(again, "HOLD", 0) < first(again, "HOLD", 1)
    assert first(again, "UNHOLD", 1) < first(again, "HOLD", 0)
    # A page without a summary is read when the keys of the SELECT before it are.
    assert last(built, "LOOK", 0) < first(built, "LOOK", 1)


def took(most):
    """Cycles of a SELECT of a layer behind one that chose so many pages: from its doorbell to its
    last HOLD, and slots that it gave back."""
    made = device(queues=(0, 1))
    room, region = Room(made), SelectRegion(device(queues=(0, 1)))

    async def host(room):
        await room.select(region, {"sequence": 1, "most": most}, queries())
        bell = {"sequence": 2, "queue": 1, "layer": 1}
        await room.select(region, bell | {"most": 4}, queries())  # summaries are there
        await room.select(region, {"sequence": 3, "most": most}, queries())
        room.ops.clear(), room.when.clear()
        await room.ask(region, queries())
        room.rung = room.cycles - room.left
        await room.ring(region, bell | {"sequence": 4})
        await room.answered(region, 4)

    room.run(host)
    held = max(n for n, (kind, *_) in enumerate(room.ops) if kind == "HOLD")
    return room.when[held] - room.rung, sum(kind == "UNHOLD" for kind, *_ in room.ops)


def test_slots_are_given_back_beside_stage_one():
    """Docs/select.md, "Passes and rates": they cost no time, but that the doorbells' turn is at
    another place."""
    (few, two), (many, six) = took(0), took(4)
    assert (two, six) == (2, 6) and abs(few - many) < CONFIG.sessions * CONFIG.select_groups


def test_what_may_not_overlap_does_not():
    """The same queue, another layer, a release, a refusal, a guess: in turn, and answered in
    turn."""
    pairs = [
        ({"queue": 0}, {"queue": 0, "most": 2}),
        ({"queue": 0}, {"queue": 1, "layer": 1}),
        ({"queue": 1, "layer": 1}, {"release": 1}),
        ({"queue": 0}, {"queue": 4}),
        ({"queue": 0}, {"queue": 2, "layer": 1, "speculative": 1}),
        ({"queue": 2, "layer": 1, "speculative": 1}, {"queue": 1}),
    ]
    (same, layers, release, *_), room = together(pairs, offer=0.8, take=0.8)
    assert last(same, "HOLD", 0) > first(same, "UNHOLD", 0) > first(same, "HOLD", 0)
    assert first(layers, "HOLD", 0) < last(layers, "UNHOLD", 0) < first(layers, "HOLD", 1)
    assert last(release, "HOLD", 1) < last(release, "UNHOLD", 1)
    assert room.events == [(Event.SELECT_REFUSED, Refusal.QUEUE)]


def test_a_session_ends_amid_two_selects():
    """Nobody is answered or refused, no slot is left, and the next owner finds nothing."""
    for n, wait in enumerate((2, 8, 20, 120, 200, 320)):
        at = {"queues": (0, 1), "session": n % 2}
        made = device(**at)
        room, region = Room(made, session=n % 2), SelectRegion(device(**at))

        async def host(room, wait=wait, made=made, region=region):
            for group in (0, 1):
                await room.ask(region, queries(group), group=group)
            for group in (0, 1):
                bell = {"sequence": 1, "queue": group}
                await room.ring(region, bell, group=group)
            for _ in range(wait):
                await room.cycle()
            made.apply(TrackerOp(Op.CLOSE, session=room.session))
            room.tell(Op.CLOSE)
            await room.cycle()
            for _ in range(900):
                await room.cycle()
                if room.ctx.get(room.dut.idle):
                    break
            assert not pins(made) and not room.events
            for _ in range(200):
                assert room.ctx.get(room.dut.idle)
                await room.cycle()
            made.apply(TrackerOp(Op.CLOSED, session=room.session))
            made.apply(TrackerOp(Op.OPEN, session=room.session), descriptor=SHAPE)
            room.tell(Op.OPEN)
            for _ in range(40):
                await room.cycle()
            for group in (0, 1):
                assert await room.access(region.map.bell(room.session, group)) == bytes(64)

        room.run(host)


@pytest.mark.parametrize("write", [0, 1])
def test_summaries_that_memory_loses(write):
    """A SELECT of which a summary is lost is answered all the same, and each loss is an event; the
    next one makes it anew, and is the golden model's."""
    region, page = SelectRegion(device()), 5
    lines = {0: 0, 1: 0}  # of the page, read and written

    def errs(writes, address):
        if address // 64 != page:
            return False
        lines[writes] += 1
        return writes == write and lines[writes] <= 2

    room = Room(device(), errs=errs)

    async def host(room):
        answers = []
        for sequence in range(1, 5):
            answers.append(await room.select(region, {"sequence": sequence}, queries()))
            header = record(ANSWER_FIELDS, answers[-1][0][0])
            shown = header["sequence"], header["status"], header["count"]
            assert shown == (sequence, SelectStatus.DONE, 6)
        print(lines, [found == wanted for found, wanted in answers])
        assert answers[-1][0] == answers[-1][1]
        assert room.events == [(Event.SUMMARY_LOST, write)] * 2
        assert room.losers == [OWNER] * 2
        assert lines[1] == 2 + write  # reads were lost by one SELECT, at both of its looks

    room.run(host)


def test_as_many_candidates_as_are_legal_have_an_engine():
    heads = 15
    config = named("unit_select").with_(select_heads=heads, select_quota=MOST_NAMED // heads)
    assert engine_of(config=config).depth == MOST_NAMED + 2  # and the first and the newest page

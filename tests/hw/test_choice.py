# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""SELECT, GATHER and slots in the whole endpoint, with back-pressure on every port: ops, answers,
and gathered lines are those of the golden model (docs/select.md)."""

from collections import Counter

import numpy as np
import pytest
from select_cases import sound_plan

from kelp_golden import codec
from kelp_golden.endpoint import Endpoint, QueuePolicy
from kelp_golden.ops import Op as TrackerOp
from kelp_golden.ops import QueueConfig, Session, Word
from kelp_golden.select_region import SelectRegion
from kelp_rtl.device import (
    Descriptor,
    Driver,
    FlashTiming,
    MemoryTiming,
    Pressure,
    RunRules,
)
from kelp_rtl.program import PARTIAL, POISON, READ, WRITE, Program, Response
from kelp_spec.config import named
from kelp_spec.formats import Format, HostType
from kelp_spec.metadata import Event, Op, PageState, PrefetchSource
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
from kelp_verif.harness.covered import leave_figures
from kelp_verif.select.hits import hits_beside_choice

pytestmark = pytest.mark.timeout(2400)  # the first test builds the model

CONFIG = named("unit_select")
#: what a board's configuration has of its own: one session, raw16 alone, a quarter of a line a
#: cycle, and summaries on the chip
BOARD = CONFIG.with_(
    name="unit_select_board",
    sessions=1,
    codecs=False,
    codec_lanes=8,
    select_lanes=1,
    select_estimates=False,
    select_tables=False,
    select_port=False,
    protect=False,
)
OWNER, HEADS, LINES, TOKENS = 5, CONFIG.select_heads, 2, 2
POOLS = {Format.RAW16: 0, Format.FP8_E4M3: 1, Format.INT8: 2, Format.INT4: 3}
BELL = {"newest": 11, "tokens": TOKENS, "lines": LINES, "most": 4, "target": HEADS << 16}
BELL |= {"m": 47274, "sh": 18}
CHOICES = (int(Op.LOOK), int(Op.HOLD), int(Op.UNHOLD))
WHOLE = (1 << 64) - 1


class Both:
    """The endpoint, and a golden one beside it that is told what was written."""

    def __init__(
        self,
        *,
        fmt=Format.RAW16,
        host_type=HostType.FP16,
        pressure=0.3,
        latency=64,
        seed=1,
        config=CONFIG,
    ):
        print("seed", seed)
        self.config = config
        self.rng = np.random.default_rng(seed)
        self.fmt, self.host_type = fmt, host_type
        self.driver = Driver(
            config,
            seed=seed,
            flash=FlashTiming(latency=2000, write_latency=1500),
            memory=MemoryTiming(latency=latency),
            rules=RunRules(max_skip=500),
            pressure=Pressure.everywhere(pressure),
        )
        self.open(0)
        self.golden = Endpoint(config)
        self.region = SelectRegion(self.golden)
        for squeue in range(config.squeues):
            stored = QueueConfig(format_k=fmt, format_v=fmt, pool=POOLS[fmt])
            self.golden.configure(squeue, stored, QueuePolicy())
        self.shape = Session(
            used_queues=4,
            used_lines=4,
            used_pages=config.pages,
            kv_heads=2,
            ld_id=OWNER,
            host_type=host_type,
        )
        self.golden.apply(TrackerOp(Op.OPEN), descriptor=self.shape)
        self.written = {}
        self.sequence = 0
        self.driver.take_commits()

    def open(self, session):
        self.driver.open_session(
            session,
            Descriptor(
                layers=2,
                kv_heads=2,
                host_type=self.host_type,
                formats=((1023, self.fmt, self.fmt),),
            ),
            owner=OWNER,
        )

    def lines(self, count):
        """Host lines of normal numbers, uint8."""
        values = self.rng.standard_normal((count, 32)).astype(np.float32)
        if self.host_type == HostType.BF16:
            return (values.view(np.uint32) >> 16).astype("<u2").view(np.uint8)
        return values.astype("<f2").view(np.uint8)

    def write(self, pages, queue=0, told=True):
        """Whole pages; the golden endpoint is `told`, or not."""
        where = [(queue, page, kv, line) for page in pages for kv in (0, 1) for line in range(4)]
        rows = self.lines(len(where))
        addresses = [self.driver.address(0, *place) for place in where]
        self.driver.run(Program.writes(np.array(addresses, np.uint64), rows, ld_id=OWNER))
        for place, row in zip(where, rows, strict=True):
            self.written[place] = row
            if told:
                self.tell(place, row)

    def tell(self, place, row, enable=WHOLE, **how):
        """The golden endpoint hears of a line that was written."""
        queue, page, kv, line = place
        self.golden.apply(
            TrackerOp(
                Op.WRITE,
                squeue=queue,
                page=page,
                kv_line=4 * kv + line,
                write=1,
                has_write=1,
                ld_id=OWNER,
                origin=(row.tobytes(), enable),
                **how,
            )
        )

    def put(self, place, *, enable=WHOLE, poison=0):
        """One line, whole, in part or poisoned."""
        [row] = self.lines(1)
        self.driver.run(
            Program(
                opcode=WRITE if enable == WHOLE else PARTIAL,
                address=np.array([self.driver.address(0, *place)], np.uint64),
                ld_id=OWNER,
                data=row[None],
                byte_enable=np.array([enable], np.uint64),
                flags=POISON * poison,
            )
        )
        bytes_ = enable >> np.arange(64, dtype=np.uint64) & np.uint64(1) > 0
        self.written[place] = np.where(bytes_, row, self.written.get(place, np.uint8(0)))
        self.tell(place, row, enable, partial=int(enable != WHOLE), poison=poison)

    def stored(self, rows):
        """What the host reads of lines that it wrote."""
        payload, scale = codec.encode(rows.view("<u2"), self.host_type, self.fmt)
        return codec.decode(payload, scale, self.host_type, self.fmt).view(np.uint8)

    def region_address(self, line):
        return self.driver.addresses.select_base + 64 * line

    def region_write(self, lines, rows, ld_id=OWNER):
        addresses = np.array([self.region_address(line) for line in lines], np.uint64)
        self.driver.run(Program.writes(addresses, rows, ld_id=ld_id))
        if ld_id == OWNER:
            for line, row in zip(lines, rows, strict=True):
                self.region.write(line, row.tobytes(), OWNER)

    def answer(self, group, *, ld_id=OWNER):
        first = self.region.map.bell(0, group)
        lines = range(first, first + self.region.map.answer_lines)
        addresses = np.array([self.region_address(line) for line in lines], np.uint64)
        return self.driver.run(Program.reads(addresses, ld_id=ld_id)).data

    def select(self, group=0, *, queries=True, **fields):
        """A SELECT of both, compared; the answer's fields, and its pages'."""
        places = self.region.map
        if queries:
            lines = [places.query(0, group, h, n) for h in range(HEADS + 1) for n in range(LINES)]
            plan = sound_plan(self.rng, LINES)  # which is one head more
            self.region_write(lines, np.concatenate([self.lines(HEADS * LINES), plan]))
        self.driver.take_commits()
        self.sequence += 1
        bell = BELL | {"sequence": self.sequence} | fields
        golden_ops, apply = [], self.golden.apply

        def log(op):
            result = apply(op)
            golden_ops.append((op.kind, op.squeue, op.page, op.kv_line, result.outcome))
            return result

        self.region._apply = log
        row = np.frombuffer(record_bytes(BELL_FIELDS, bell).ljust(64, b"\0"), np.uint8)
        self.region_write([places.bell(0, group)], row[None])
        for _ in range(200):
            found = self.answer(group)
            header = record(ANSWER_FIELDS, found[0].tobytes()[:13])
            if header["sequence"] == self.sequence:
                break
        else:
            raise AssertionError(f"no answer to {bell}")
        first = places.bell(0, group)
        for n, line in enumerate(found):
            assert line.tobytes() == self.region.read(first + n, OWNER), (bell, header)
        assert self.choices() == golden_ops
        self.ops = golden_ops
        rows = found[1:].tobytes()
        pages = [record(CHOSEN_FIELDS, rows[8 * n : 8 * n + 8]) for n in range(header["count"])]
        for page in pages:
            tokens = 4 // bell["lines"] if page["page"] != bell["newest"] else bell["tokens"]
            assert page["tokens"] == tokens, (bell, page)
        states = Counter(SlotState(page["state"]).name for page in pages)
        refusal = Refusal(header["refusal"]).name
        leave_figures("tests.hw.test_choice", {refusal: 1, **states, **fields})
        return header, pages

    def choices(self):
        """The ops of choices that the endpoint committed."""
        results = self.driver.take_commits().result
        names = ("op.kind", "op.squeue", "op.page", "op.kv_line", "outcome")
        ops = zip(*(results[name].tolist() for name in names), strict=True)
        # Only a LOOK has a line.
        return [
            (kind, squeue, page, line if kind == Op.LOOK else 0, outcome)
            for kind, squeue, page, line, outcome in ops
            if kind in CHOICES
        ]

    def gather(self, header, pages, queue=0, poisoned=()):
        """The chosen pages by the window, compared with what was written; lines `poisoned` (page,
        kv, line) are."""
        places = [
            (slot, kv, line) for kv in (0, 1) for slot in range(len(pages)) for line in range(4)
        ]
        addresses = [
            self.driver.addresses.gather(0, queue, header["generation"], kv, slot, line)
            for slot, kv, line in places
        ]
        result = self.driver.run(Program.reads(np.array(addresses, np.uint64), ld_id=OWNER))
        held = np.array([pages[slot]["state"] == SlotState.HELD for slot, *_ in places])
        ill = [(pages[slot]["page"], kv, line) in poisoned for slot, kv, line in places]
        answers = np.where(held, np.where(ill, Response.POISON, Response.DATA), Response.NXM)
        assert (result.response == answers).all()
        held &= ~np.array(ill)
        wanted = [self.written[queue, pages[slot]["page"], kv, line] for slot, kv, line in places]
        wanted = self.stored(np.array(wanted))
        assert (result.data[held] == wanted[held]).all()
        return result

    def follow_residency(self, queue=0, pages=range(12)):
        """The golden endpoint's words are the device's."""
        for page in pages:
            word = self.driver.page_word(0, queue, page)
            key = queue * self.config.pages + page
            mine = self.golden.tracker.words[key]
            self.golden.tracker.words[key] = Word(
                word["state"], mine.place, *mine[2:4], word["last_step"], mine.pinned
            )


@pytest.mark.parametrize(
    ("fmt", "host_type"),
    [
        (Format.RAW16, HostType.FP16),
        (Format.RAW16, HostType.BF16),
        (Format.FP8_E4M3, HostType.FP16),
        (Format.INT8, HostType.BF16),
        (Format.INT4, HostType.FP16),
    ],
)
def test_choices_and_gathered_lines(fmt, host_type):
    both = Both(fmt=fmt, host_type=host_type, seed=3)
    both.write(range(12))
    header, pages = both.select()
    assert header["status"] == SelectStatus.DONE and len(pages) == 6
    both.gather(header, pages)
    # A page is written anew: it is gathered as it is now, and summarised anew.
    both.write([pages[2]["page"]])
    both.gather(header, pages)
    again, chosen = both.select()
    assert again["generation"] == header["generation"] + 1
    both.gather(again, chosen)
    stale = both.driver.addresses.gather(0, 0, header["generation"], 0, 0, 0)
    result = both.driver.run(Program.reads(np.array([stale], np.uint64), ld_id=OWNER))
    assert result.response[0] == Response.NXM


def test_a_generation_comes_again():
    """A queue's choices are counted modulo the address's bits: the slots of the choice before lie
    outside the map, those of as many choices before are the newest's."""
    both, span = Both(pressure=0, seed=8), 1 << CONFIG.generation_bits
    both.write(range(12))
    for n in range(span + 2):
        header, pages = both.select()
        assert header["generation"] == n % span
        if n in (0, span - 1, span, span + 1):
            both.gather(header, pages)
        before = both.driver.addresses.gather(0, 0, n - 1, 0, 0, 0)
        result = both.driver.run(Program.reads(np.array([before], np.uint64), ld_id=OWNER))
        assert result.response[0] == Response.NXM


def test_a_memory_that_loses_summaries():
    """A SELECT is answered while memory answers reads with errors, and tells the owner of each page
    whose summary it lost; once memory is well nothing more is told."""
    both = Both(seed=7)
    both.write(range(12))
    both.select()
    driver, bell = both.driver, both.region.map.bell(0, 0)

    def again(sequence):
        row = record_bytes(BELL_FIELDS, BELL | {"sequence": sequence}).ljust(64, b"\0")
        both.region_write([bell], np.frombuffer(row, np.uint8)[None])
        for _ in range(400):
            header = record(ANSWER_FIELDS, both.answer(0)[0].tobytes()[:13])
            if header["sequence"] == sequence:
                break
        assert (header["sequence"], header["status"]) == (sequence, SelectStatus.DONE)
        events = [driver.read_fields(f"event_{n}") for n in range(driver.read64("event_count"))]
        driver.write64("event_taken", driver.pack("event_taken", count=len(events)))
        return [event for event in events if event["code"] == Event.SUMMARY_LOST]

    driver.write64("event_clear", 1)
    driver.configure(memory=MemoryTiming(latency=64, read_error=1.0))
    lost = again(2)
    assert lost and {event["ld_id"] for event in lost} == {OWNER}
    assert {event["argument"] for event in lost} == {0}
    assert {event["page"] for event in lost} <= set(range(11)) and len(lost) > 4
    driver.configure(memory=MemoryTiming(latency=64))
    again(3)  # makes them anew
    assert not again(4)


@pytest.mark.parametrize("config", [CONFIG, pytest.param(BOARD, marks=pytest.mark.slow)])
def test_the_heads_of_a_layer_and_the_next_layer(config):
    both = Both(seed=4, config=config)
    for queue in range(4):
        both.write(range(6), queue)
    asked = {}
    for queue in (0, 1):
        asked[queue] = both.select(group=queue, queue=queue, newest=5)
    for queue in (0, 1):
        both.gather(*asked[queue], queue)
    both.select(queue=2, layer=1, newest=5)
    for queue in (0, 1):
        address = both.driver.addresses.gather(0, queue, asked[queue][0]["generation"], 0, 0, 0)
        result = both.driver.run(Program.reads(np.array([address], np.uint64), ld_id=OWNER))
        assert result.response[0] == Response.NXM
    both.select(release=1)
    assert both.choices() == []


def test_bad_input():
    """Refusals, foreign hosts, a session that closes: answers, and events in order."""
    both = Both(seed=5)
    both.write(range(12))
    header, pages = both.select()
    d, places = both.driver, both.region.map
    for fields, refusal in (
        ({"most": 7}, Refusal.COUNT),
        ({"queue": 4}, Refusal.QUEUE),
        ({"newest": 64}, Refusal.PAGE),
        ({"lines": 3}, Refusal.LINES),
        ({"tokens": 9}, Refusal.TOKENS),
    ):
        assert both.select(queries=False, **fields)[0]["refusal"] == refusal
    nan = np.full((1, 64), 255, np.uint8)
    both.region_write([places.query(0, 0, 1, 1)], nan)
    assert both.select(queries=False)[0]["refusal"] == Refusal.QUERY_NAN
    none = np.zeros((1, 64), np.uint8)
    both.region_write([places.query(0, 0, 1, 1)], both.lines(1))
    both.region_write([places.plan(0, 0, 1)], none)
    assert both.select(queries=False)[0]["refusal"] == Refusal.PLAN
    both.gather(header, pages)  # refusals leave the slots
    # Another host sees zeros and NXM, and changes nothing.
    assert not both.answer(0, ld_id=OWNER + 1).any()
    both.region_write([places.bell(0, 0)], nan, ld_id=OWNER + 1)
    address = np.array([d.addresses.gather(0, 0, header["generation"], 0, 0, 0)], np.uint64)
    assert d.run(Program.reads(address, ld_id=OWNER + 1)).response[0] == Response.NXM
    # Writes to the window lie outside the map.
    d.run(Program(opcode=WRITE, address=address, ld_id=OWNER, data=nan))
    both.gather(header, pages)
    # A session that closes leaves nothing.
    d.close_session(0)
    assert not both.answer(0).any()
    assert d.run(Program.reads(address, ld_id=OWNER)).response[0] == Response.NXM
    both.open(0)
    assert not both.answer(0).any()
    assert d.run(Program.reads(address, ld_id=OWNER)).response[0] == Response.NXM
    # Nor does its event name the page that was in the slot.
    address = np.array([d.addresses.gather(0, 0, header["generation"], 0, 1, 0)], np.uint64)
    assert d.run(Program.reads(address, ld_id=OWNER + 1)).response[0] == Response.NXM
    events = [d.read_fields(f"event_{n}") for n in range(d.read64("event_count"))]
    assert {event["page"] for event in events if event["code"] == Event.OUT_OF_MAP} == {0}
    logged = [event["code"] for event in events]
    assert sorted(logged[:11]) == 4 * [Event.FOREIGN_LD] + 7 * [Event.SELECT_REFUSED]
    assert set(logged[11:]) == {Event.OUT_OF_MAP, Event.CLOSED_SESSION}


def test_pages_that_are_evicted():
    """More pages than frames: what is not there is not chosen, and the held ones stay."""
    both = Both(seed=6)
    both.driver.write_registers({"high_water": 4, "low_water": 2, "reserve": 2})
    both.golden.tracker.reserve = 2
    both.write(range(12))
    header, pages = both.select()
    both.write(range(12, 44), told=False)
    both.driver.settle()
    both.follow_residency()
    for page in pages:
        assert both.driver.page_word(0, 0, page["page"])["state"] == PageState.RESIDENT
    both.gather(header, pages)
    again, chosen = both.select()
    assert again["absent"] > 0 or again["count"] < 6
    both.gather(again, chosen)
    # With `fetch` they come. (The old slots are given back first, so a page may go before it is
    # chosen again: no comparison.)
    both.driver.write_registers({"prefetch_enable": 1 << PrefetchSource.HINT - 1})
    late = alone(both, sequence=99, fetch=1)
    issued = both.driver.counters()["prefetch_issued_hint"]
    assert late["absent"] > 0 and late["missing"] > 0 and issued > 0
    # Pages that are wanted land while it waits, as many as find a frame.
    alone(both, sequence=100, release=1)
    both.write(range(12, 44), told=False)
    late = alone(both, sequence=101)
    waited = alone(both, sequence=102, waits=1, patience=16)
    print("missing, late and waited", late["missing"], waited["missing"])
    assert waited["missing"] < late["missing"]
    assert both.driver.counters()["prefetch_issued_hint"] > issued
    # With the source off none lands, and nobody waits until the time is over.
    both.driver.write_registers({"prefetch_enable": 0})
    alone(both, sequence=103, release=1)
    both.write(range(12, 44), told=False)
    begun = both.driver.time
    refused = alone(both, sequence=104, waits=1, patience=20)
    assert refused["missing"] > 0 and both.driver.time - begun < 1 << 18


def test_lines_that_change_between_choice_and_gather():
    """In part, poisoned, or lost by memory: a slot shows its page as it is now, and the next SELECT
    reads the page anew; a key that is poison counts nothing."""
    both = Both(seed=8)
    both.write(range(12))
    header, pages = both.select(target=1 << 31)
    first, second = (page["page"] for page in pages[2:4])
    both.put((0, first, 0, 1), enable=0xFF << 24)
    both.put((0, second, 0, 0), poison=1)
    both.put((0, second, 1, 2), poison=1)
    poisoned = {(second, 0, 0), (second, 1, 2)}
    both.gather(header, pages, poisoned=poisoned)
    header, pages = both.select(queries=False, target=1 << 31)
    assert {(Op.LOOK, 0, page, line) for page in (first, second) for line in range(4)} <= {
        tuple(op[:4]) for op in both.ops
    }
    both.driver.configure(memory=MemoryTiming(latency=64, read_error=1.0))
    gathered = both.driver.addresses.gather
    address = [gathered(0, 0, header["generation"], kv, 0, 3) for kv in (0, 1)]
    lost = both.driver.run(Program.reads(np.array(address, np.uint64), ld_id=OWNER))
    assert (lost.response == Response.POISON).all() and not lost.data.any()
    both.driver.configure(memory=MemoryTiming(latency=64))
    both.gather(header, pages, poisoned=poisoned)


def test_a_queue_that_grows():
    """Its newest page has a token more with each SELECT, and is summarised when it is newest no
    more."""
    both = Both(seed=10)
    both.write(range(5))
    for page in (5, 6):
        for token in range(TOKENS):
            for kv, line in ((0, 2 * token), (0, 2 * token + 1), (1, 2 * token)):
                both.put((0, page, kv, line))
            header, pages = both.select(newest=page, tokens=token + 1, target=1 << 31)
            assert [one["page"] for one in pages[:2]] == [0, page]
            assert all(one["state"] == SlotState.HELD for one in pages)


def test_without_room_a_page_is_chosen_and_has_no_slot():
    """Slots and a host's pins together leave the reserve; what has none is told, and refused."""
    both = Both(pressure=0.0, seed=9)
    both.write(range(12))
    left = both.config.frames[0] - 3
    both.driver.write_registers({"reserve": left})
    both.golden.tracker.reserve = left
    header, pages = both.select()
    assert [p["state"] for p in pages] == 3 * [SlotState.HELD] + 3 * [SlotState.NO_ROOM]
    both.gather(header, pages)
    both.select(release=1)
    both.driver.write_registers({"reserve": 0})
    both.golden.tracker.reserve = 0
    header, pages = both.select()
    assert {p["state"] for p in pages} == {SlotState.HELD}
    both.gather(header, pages)


def alone(both, **fields):
    """The answer's header of a SELECT of the device alone, when nothing is under way any more."""
    row = np.frombuffer(record_bytes(BELL_FIELDS, BELL | fields).ljust(64, b"\0"), np.uint8)
    address = both.region_address(both.region.map.bell(0, 0))
    both.driver.run(Program.writes(np.array([address], np.uint64), row[None], ld_id=OWNER))
    both.driver.settle()
    header = record(ANSWER_FIELDS, both.answer(0)[0].tobytes())
    assert header["sequence"] == fields["sequence"] and header["status"] == SelectStatus.DONE
    return header


def test_gather_is_at_full_rate():
    """docs/select.md: a request in each cycle, as a read at the page's own address. With a memory
    so near that the few line slots of this configuration cover its latency."""
    both = Both(pressure=0.0, latency=2, seed=7)
    both.write(range(12))
    header, pages = both.select()
    run = [
        both.driver.addresses.gather(0, 0, header["generation"], kv, slot, line)
        for kv in (0, 1)
        for slot in range(len(pages))
        for line in range(4)
    ] * 40
    result = both.driver.run(Program(opcode=READ, address=np.array(run, np.uint64), ld_id=OWNER))
    plain = [
        both.driver.address(0, 0, pages[slot]["page"], kv, line)
        for kv in (0, 1)
        for slot in range(len(pages))
        for line in range(4)
    ] * 40
    other = both.driver.run(Program(opcode=READ, address=np.array(plain, np.uint64), ld_id=OWNER))

    def rate(answered):
        return len(answered) / (answered.max() - answered.min() + 1)

    rates = rate(result.response_cycle), rate(other.response_cycle)
    print("lines a cycle, gathered and plain", rates)
    assert rates[0] >= 0.98
    assert (result.data == other.data).all()


@pytest.mark.parametrize("gathered", [False, True], ids=["plain", "gathered"])
def test_hits_while_a_choice_runs(gathered):
    """Plain hits keep 0.9 of the cycles (docs/select.md). With gathered ones LOOKs take turns, and
    these fill what LOOKs leave. The memory is so near that few line slots cover its latency."""
    found = hits_beside_choice(CONFIG, gathered=gathered, memory=2)
    print("gathered" if gathered else "plain", found)
    assert found.rate >= 1 - found.looks / found.cycles - 0.03
    assert found.rate > (0.8 if gathered else 0.9)

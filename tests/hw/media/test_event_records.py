# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""KELP's events as the mailbox makes records of them."""

import pytest
from flips import NO_FAULT, fields, flip, simulate_memory
from simulation import simulate
from streams import Ends, pump
from timing import check_pace, offers, shown

from kelp_hw.media.event_records import EventRecords
from kelp_spec.address import AddressMap, KvAddress
from kelp_spec.config import named
from kelp_spec.cxlio.events import RECORDS, Kind, Log
from kelp_spec.metadata import Event

UNIT = named("unit").with_(cxlio="joined")


#: Where a queue's number is no part of an address: a session's queues are no power of two.
ODD = UNIT.with_(sessions=3, queues=3)


def event(code, session=0, queue=0, page=0, config=UNIT, **fields):
    return {"code": code, "squeue": session * config.queues + queue, "page": page, **fields}


@pytest.mark.parametrize("protect", [True, False])
def test_each_event_leaves_in_its_log(protect):
    dut = EventRecords(config=UNIT.with_(protect=protect))
    given = [
        event(Event.POISON_RECEIVED, session=1, queue=1, page=3),
        event(Event.FETCH_FAILED, page=2),
        event(Event.CLOSED_SESSION, session=1, queue=1, ld_id=5, argument=0x1234, page=5),
        event(Event.FATAL, argument=4),
        event(Event.CORRECTED, page=6),
        event(Event.WORD_LOST, argument=7),
    ]
    ends = Ends(sends={"i": given}, takes=("o",), offer=0.5, take=0.4)
    seen = [t.item for t in pump(dut, ends, cycles=160)["o"]]
    assert [(e["log"], e["kind"]) for e in seen] == [
        (Log.WARNING, Kind.MEDIA),
        (Log.FAILURE, Kind.MEDIA),
        (Log.INFO, Kind.VENDOR),
        (Log.FATAL, Kind.VENDOR),
        (*RECORDS[Event.CORRECTED],),
        # No page is lost with it: there is no address.
        (Log.FAILURE, Kind.VENDOR),
    ]
    addresses = AddressMap(UNIT)
    assert seen[0]["dpa"] == addresses.encode(KvAddress(1, 1, 3, 0, 0))
    assert seen[1]["dpa"] == addresses.encode(KvAddress(0, 0, 2, 0, 0))
    assert (seen[2]["dpa"], seen[2]["word"], seen[2]["more"]) == (
        5 | given[2]["squeue"] << 32,
        Event.CLOSED_SESSION | 5 << 8,
        0x1234,
    )
    assert seen[0]["word"] == seen[1]["word"] != 0 == seen[4]["word"]
    assert (seen[5]["word"], seen[5]["more"]) == (Event.WORD_LOST, 7)
    assert seen[3]["flags"] and not seen[0]["flags"]
    assert not any(e["poison"] | e["quiet"] | e["lost"] for e in seen)


def test_a_record_has_the_address_of_its_page():
    dut, addresses = EventRecords(config=ODD), AddressMap(ODD)
    places = [(s, q, p) for s in range(ODD.sessions) for q in range(ODD.queues) for p in (0, 7)]
    given = [event(Event.FETCH_FAILED, *place, config=ODD) for place in places]
    seen = pump(dut, Ends(sends={"i": given}, takes=("o",), offer=0.5), cycles=120)["o"]
    assert [t.item["dpa"] for t in seen] == [
        addresses.encode(KvAddress(*place, 0, 0)) for place in places
    ]


def test_a_line_that_a_host_did_not_give_back_has_its_own_address():
    """No other event names a line."""
    config = named("unit_cxl_coherent")
    dut, lines = EventRecords(config=config), config.half_lines
    given = [
        event(Event.SNOOP_LOST, 1, 2, 3, config=config, argument=1 << 15 | lines + 1),
        event(Event.SNOOP_LOST, 0, 0, 7, config=config, argument=0),
        event(Event.POISON_RECEIVED, 1, 2, 3, config=config, argument=lines + 1),
    ]
    seen = [t.item for t in pump(dut, Ends(sends={"i": given}, takes=("o",)), cycles=40)["o"]]
    at = AddressMap(config).encode
    assert [e["dpa"] for e in seen] == [
        at(KvAddress(1, 2, 3, 1, 1)),
        at(KvAddress(0, 0, 7, 0, 0)),
        at(KvAddress(1, 2, 3, 0, 0)),
    ]
    assert {(e["log"], e["kind"]) for e in seen} == {(Log.WARNING, Kind.MEDIA)}


def test_events_of_every_request_leave_room_for_graver_ones():
    """A tenant whose every request is refused, and one whose every write is poison, fill no more
    than their places, while the mailbox takes an event now and then."""
    dut, seen = EventRecords(config=UNIT), []
    graver = {60: Event.MEMORY_WRITE_FAILED, 61: Event.WORD_LOST, 62: Event.FATAL}

    async def bench(ctx):
        ctx.set(dut.i.valid, 1)
        for cycle in range(3000):
            often = Event.FOREIGN_LD if cycle % 2 else Event.POISON_RECEIVED
            ctx.set(dut.i.p.code, graver.get(cycle, often))
            ctx.set(dut.o.ready, cycle % 100 == 99)
            if ctx.get(dut.o.valid) and ctx.get(dut.o.ready):
                seen.append(Log(ctx.get(dut.o.p.log)))
            await ctx.tick()

    simulate(dut, bench)
    assert [log for log in seen if log > Log.WARNING] == [Log.FAILURE, Log.FAILURE, Log.FATAL]
    assert seen.count(Log.WARNING) > 5 and seen.index(Log.FATAL) <= dut.DEPTH


def test_what_finds_no_room_is_lost_and_the_others_are_not():
    dut = EventRecords(config=UNIT)
    given = [event(Event.HINT_GAP, argument=i) for i in range(dut.DEPTH + 9)]
    blocked = pump(dut, Ends(sends={"i": given}, takes=("o",), take=0.0), cycles=60)
    assert blocked["o"] == []
    seen = pump(dut, Ends(sends={"i": given}, takes=("o",)), cycles=80)["o"]
    assert [t.item["more"] for t in seen] == list(range(len(given)))


@pytest.mark.parametrize(
    ("bits", "told", "left"), [(1, "corrected", [1, 2, 3, 4]), (2, "poisoned", [1, 2, 4])]
)
def test_an_event_beyond_repair_is_dropped_and_told(bits, told, left):
    dut, seen, faults = EventRecords(config=UNIT), [], []

    async def bench(ctx, memory):
        for argument in (1, 2, 3, 4):
            ctx.set(dut.i.p.code, Event.HINT_GAP)
            ctx.set(dut.i.p.argument, argument)
            ctx.set(dut.i.valid, 1)
            await ctx.tick()
        ctx.set(dut.i.valid, 0)
        await ctx.tick().repeat(3)
        flip(ctx, memory, 2, *range(3, 3 + bits))
        ctx.set(dut.o.ready, 1)
        for _ in range(12):
            if ctx.get(dut.o.valid):
                seen.append(ctx.get(dut.o.p.more))
            await ctx.tick()
            if (fault := fields(ctx, dut.fault)) != NO_FAULT:
                faults.append(fault)

    simulate_memory(dut, bench)
    assert seen == left
    assert faults == [NO_FAULT | {told: 1}]


def test_latency_and_interval():
    given = offers(field="argument", **{"i.p.code": Event.HINT_GAP})
    prepare = {"o.ready": 1}
    check_pace(EventRecords(config=UNIT), "LATENCY", shown("o", "more"), given, prepare=prepare)

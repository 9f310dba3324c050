# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Select: the ops of whole SELECTs, one after another, and their answers are those of the golden
region."""

import pytest
from select_room import CONFIG, OWNER, Room, compare, device, pins, queries
from streams import Ends, pump

from kelp_golden.select_region import SelectRegion
from kelp_hw.select.select import Select
from kelp_spec.address import AddressMap, KvAddress, Region
from kelp_spec.select import (
    ANSWER_FIELDS,
    record,
)


@pytest.mark.parametrize(("offer", "take"), [(1.0, 1.0), (0.5, 0.6)])
def test_choices_are_the_golden_ones(offer, take):
    room, _ = compare([{}, {"most": 0}, {"newest": 0}], around={}, offer=offer, take=take)
    assert {name for name, *_ in room.ops} == {"LOOK", "HOLD", "UNHOLD"}


def test_hints_without_pause_keep_no_choice_waiting():
    """LOOKs take turns with them, and what changes slots goes before them."""
    room, region, times = Room(device()), SelectRegion(device()), []

    async def host(room):
        for sequence in (1, 2, 3):  # the first one makes summaries
            room.hints, begun = sequence == 3, room.left
            found, wanted = await room.select(region, {"sequence": sequence}, queries())
            assert found == wanted
            times.append(begun - room.left)
            assert record(ANSWER_FIELDS, found[0])["count"] > 2

    room.run(host)
    assert times[2] < 2 * times[1], times


def test_a_summary_that_memory_loses_is_told_to_its_owner():
    room, region = Room(device(), errs=lambda writes, _: writes), SelectRegion(device())

    async def host(room):
        await room.select(region, {"sequence": 1}, queries())
        assert room.losers and set(room.losers) == {OWNER}

    room.run(host)


def test_keys_in_each_cycle_keep_no_choice_waiting_for_a_failing_memory():
    """Those of a page beside one whose summary was not written."""
    room, region = Room(device(), errs=lambda writes, _: writes), SelectRegion(device())

    async def host(room):
        room.written = 1, 3
        found, _ = await room.select(region, {"sequence": 1}, queries())
        assert record(ANSWER_FIELDS, found[0])["sequence"] == 1
        assert room.losers and room.passed

    room.run(host)


def test_gather():
    """A slot's address becomes its page's, in the region of the window; all others pass or lie
    outside the map."""
    made = device()
    room, region = Room(made, take=0.7), SelectRegion(device())
    places, opened = AddressMap(CONFIG), []

    async def host(room):
        found, _ = await room.select(region, {"sequence": 1}, queries())
        header = record(ANSWER_FIELDS, found[0])
        generation = header["generation"]
        for slot, (page, _) in enumerate(region.queues[0].pages):
            for kv, line in ((0, 0), (1, 3)):
                asked = places.gather(0, 0, generation, kv, slot, line)
                window = Region.GATHER << CONFIG.aperture_bits
                of_page = places.encode(KvAddress(0, 0, page, kv, line))
                assert await room.gather(asked) == of_page | window
        empty = (
            places.gather(0, 0, generation, 0, header["count"], 0),
            places.gather(0, 0, generation + 1, 0, 0, 0),
            places.gather(0, 1, generation, 0, 0, 0),
            places.gather(1, 0, generation, 0, 0, 0),
        )
        for asked in empty:
            assert await room.gather(asked) >> CONFIG.aperture_bits == Region.OUTSIDE
        for asked in (places.hint_base, places.encode(KvAddress(1, 3, 9, 1, 2))):
            assert await room.gather(asked) == asked
        # Behind a release nothing is left.
        await room.select(region, {"sequence": 2, "release": 1})
        asked = places.gather(0, 0, generation, 0, 0, 0)
        assert await room.gather(asked) >> CONFIG.aperture_bits == Region.OUTSIDE
        opened.append(generation)

    room.run(host)
    assert opened and not pins(made)


@pytest.mark.parametrize(("offer", "take"), [(1.0, 1.0), (1.0, 0.3), (0.3, 0.6), (0.6, 1.0)])
def test_reads_and_writes_reach_ingress_in_the_order_in_which_they_were_taken(offer, take):
    """Of two in one cycle the write first; neither channel starves the other."""
    sends = {
        "i_request": [{"tag": n} for n in range(60)],
        "i_write": [{"tag": n} for n in range(60)],
    }
    ends = Ends(sends=sends, takes=("o_request", "o_write"), offer=offer, take=take)
    dut = Select(config=CONFIG.with_(protect=False))
    seen = pump(dut, ends, cycles=int(400 / offer / take), quiet=200)

    def order(prefix):
        writes, reads = seen[prefix + "_write"], seen[prefix + "_request"]
        both = [(t.taken, 0, n) for n, t in enumerate(writes)]
        both += [(t.taken, 1, n) for n, t in enumerate(reads)]
        return [(channel, n) for _, channel, n in sorted(both)]

    assert len(order("o")) == 120 and order("o") == order("i")
    assert [t.item.tag for t in seen["o_request"]] == list(range(60))
    taken = [t.taken for t in seen["i_write"]]
    assert max(b - a for a, b in zip(taken, taken[1:], strict=False)) < 40 / offer / take
    if offer == take == 1.0:  # two messages in two cycles
        assert len({t.taken for name in ("i_request", "i_write") for t in seen[name]}) <= 122

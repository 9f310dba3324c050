# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Select: the ops of whole SELECTs, one after another, and their answers are those of the golden
region."""

import pytest
from select_room import CONFIG, Room, compare, device, pins, queries

from kelp_golden.select_region import SelectRegion
from kelp_spec.address import AddressMap, KvAddress, Region
from kelp_spec.select import (
    ANSWER_FIELDS,
    record,
)


@pytest.mark.parametrize(("offer", "take"), [(1.0, 1.0), (0.5, 0.6)])
def test_choices_are_the_golden_ones(offer, take):
    room, _ = compare([{}, {"most": 0}, {"newest": 0}], around={}, offer=offer, take=take)
    assert {name for name, *_ in room.ops} == {"LOOK", "HOLD", "UNHOLD"}


def test_gather():
    """A slot's address becomes its page's, all others pass or lie outside the map."""
    made = device()
    room, region = Room(made, take=0.7), SelectRegion(device())
    places, opened = AddressMap(CONFIG), []

    async def host(room):
        found, _ = await room.select(region, {"sequence": 1}, queries())
        header = record(ANSWER_FIELDS, found[0][:13])
        generation = header["generation"]
        for slot, (page, _) in enumerate(region.queues[0].pages):
            for kv, line in ((0, 0), (1, 3)):
                asked = places.gather(0, 0, generation, kv, slot, line)
                assert await room.gather(asked) == places.encode(KvAddress(0, 0, page, kv, line))
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

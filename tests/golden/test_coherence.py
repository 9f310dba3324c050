# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The directory against a plain set of lines: it holds whatever the host may hold."""

import random

import pytest

from kelp_golden.coherence import Directory, request, written
from kelp_spec.coherence import (
    SIZES,
    DirectoryOp,
    DirectoryOutcome,
    Held,
    MetaField,
    MetaValue,
    SnpType,
)
from kelp_spec.config import named
from kelp_spec.messages import S2MNDR, M2SReq

CONFIG, SMALL = named("unit"), SIZES["unit"]


def message(opcode, value, snoop, field=MetaField.META0):
    return {"opcode": opcode, "meta_field": field, "meta_value": value, "snp_type": snoop}


SHARED = message(M2SReq.MEM_RD, MetaValue.SHARED, SnpType.DATA)
OWN = message(M2SReq.MEM_RD, MetaValue.ANY, SnpType.INV)
EVICT = message(M2SReq.MEM_CLN_EVCT, MetaValue.INVALID, SnpType.NO_OP)
LOOK = message(M2SReq.MEM_RD, MetaValue.INVALID, SnpType.CUR, MetaField.NO_OP)


@pytest.mark.parametrize("seed", range(4))
def test_it_holds_whatever_was_granted(seed):
    rng = random.Random(seed)
    directory, granted, recalls, seen = Directory(SMALL, CONFIG), {}, [], set()
    sectors = SMALL.sets * SMALL.ways * 3
    for _ in range(4000):
        free = len(recalls) < SMALL.recalls
        may = {"free": free, "granting": rng.choice([(), (0,), (1,), (0, 1)])}
        line = rng.randrange(sectors * SMALL.sector)
        sector, result = line // SMALL.sector, None
        kind = rng.random()
        if kind < 0.5:
            what = rng.choice([SHARED, OWN, EVICT, LOOK])
            result = directory.run(DirectoryOp.REQUEST, line=line, message=what, **may)
            if result.outcome in (DirectoryOutcome.DONE, DirectoryOutcome.DONE_RECALL):
                if result.reply.ndr in (S2MNDR.CMP_S, S2MNDR.CMP_E):
                    granted[line] = result.reply.held
                elif what is EVICT:
                    granted.pop(line, None)
        elif kind < 0.8:
            field = rng.choice(list(MetaField))
            what = message(1, rng.choice(list(MetaValue)), SnpType.NO_OP, field)
            says, rounds = field == MetaField.META0, rng.random() < 0.5
            result = directory.write(line, what, rounds=rounds)
            keeps = says and what["meta_value"] != MetaValue.INVALID
            assert result.ungranted == (keeps and line not in granted)
            if says and not keeps:
                granted.pop(line, None)
        elif kind < 0.9:
            result = directory.ask(sector, **may)
            if result.outcome == DirectoryOutcome.DONE:
                assert not any(each // SMALL.sector == sector for each in granted)
        elif recalls:
            way, gone, lines = recalls.pop(rng.randrange(len(recalls)))
            directory.finish(gone, way)
            for k in range(SMALL.sector):
                here = gone * SMALL.sector + k
                assert here not in granted or k in lines, "a line is not called back"
                granted.pop(here, None)
        if result is not None:
            seen.add(result.outcome)
            if result.recall:
                assert free and result.recall[0] not in may["granting"]
                recalls.append(result.recall)
        assert all(directory.held(each) for each in granted)
    assert seen == set(DirectoryOutcome)


def test_sectors_a_power_of_two_apart_do_not_share_a_set():
    sizes = SIZES["llama70b"]
    directory = Directory(sizes, named("llama70b"))
    apart = [n * sizes.sets for n in range(64)]
    assert len({directory.place(sector)[0] for sector in apart}) == 64
    for sector in (*apart, 12345, 999999):
        assert directory.sector_of(*directory.place(sector)) == sector


def test_a_set_that_was_full_gives_its_oldest_sector_ahead_of_need():
    directory = Directory(SMALL, CONFIG)
    same = [s for s in range(64) if directory.place(s)[0] == 1][:4]

    def own(sector):
        return directory.request(sector * SMALL.sector, OWN, free=True)

    first, second, third = map(own, same[:3])
    assert first.outcome == second.outcome == DirectoryOutcome.DONE
    assert third.outcome == DirectoryOutcome.RECALL and third.recall == (0, same[0], (0,))
    assert own(same[2]).outcome == DirectoryOutcome.WAIT
    directory.finish(same[0], 0)
    again = own(same[2])
    assert again.outcome == DirectoryOutcome.DONE_RECALL
    assert again.way == 0 and again.recall == (1, same[1], (0,))
    directory.finish(same[1], 1)
    assert own(same[3]).outcome == DirectoryOutcome.DONE_RECALL
    # Where room is left the set is no longer pressed.
    directory.finish(same[2], 0)
    directory.write(same[3] * SMALL.sector, message(1, MetaValue.INVALID, 0), rounds=False)
    assert own(same[0]).outcome == own(same[1]).outcome == DirectoryOutcome.DONE


#: (MetaField, MetaValue) of those that do not say it: no Meta0-State, or the reserved value of one.
UNSAID = [(field, value) for field in (1, 2, MetaField.NO_OP) for value in MetaValue]
UNSAID.append((MetaField.META0, 1))


@pytest.mark.parametrize(("field", "value"), UNSAID)
def test_a_write_that_does_not_say_what_it_keeps_leaves_the_line_as_held(field, value):
    """But a copy of what was rounded is as old as one that it keeps."""
    for held in Held:
        for recalled in (False, True):
            plain = written(held, field, value, rounds=False, recalled=recalled)
            rounded = written(held, field, value, rounds=True, recalled=recalled)
            stale = held != Held.NONE and not recalled
            assert plain == (held, False)
            assert rounded == (Held.STALE if stale else held, False)


def test_a_rounded_copy_is_called_back_before_the_next_grant():
    assert written(Held.ANY, 0, MetaValue.ANY, rounds=True, recalled=False) == (Held.STALE, False)
    assert request(Held.STALE, M2SReq.MEM_RD, 0, MetaValue.SHARED, SnpType.DATA).first
    assert not request(Held.STALE, M2SReq.MEM_CLN_EVCT, 0, 0, 0).first

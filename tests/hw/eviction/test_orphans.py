# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Orphans: alone, beside a model of its contract, and no frame is taken from who got it during the
search; in the engine, no frame of a lost word stays lost."""

import dataclasses

import pytest
from eviction_runs import SMALL, run
from simulation import simulate

from kelp_hw.eviction.orphans import Orphans
from kelp_spec.config import named
from kelp_spec.metadata import Op, Outcome, PageState
from kelp_verif.harness.runner import run_cocotb

UNIT = named("unit")
FEW = UNIT.with_(frames=(5, 4, 4, 4))  # a search is soon over


def test_each_op_and_event_is_the_models():
    records = run_cocotb(
        Orphans(config=FEW),
        bench="kelp_verif.eviction.orphans_bench",
        test="contract",
        params={"config": dataclasses.asdict(FEW), "cycles": 60_000},
        timeout_s=100,
    ).records
    few = {"searches": 8, "sweeps": 20, "told": 10, "recovered": 4, "left": 20, "freed": 2000}
    assert all(records[name] >= count for name, count in few.items()), records


def test_lost_words_give_their_frames_back():
    assert run(SMALL, "recovers", cycles=10_000).records["recovered"] > 0


def test_more_words_are_lost_at_once_than_can_wait():
    at_once = Orphans.LOST + 2  # one is searched for, LOST wait
    records = run(SMALL, "loses_many", rounds=4, at_once=at_once).records
    assert records["most"] >= at_once and records["sweeps"] >= 2
    assert records["recovered"] > 20


#: Of frame FRAME, which miss entry 3 has, its page's word lost under it. Meanwhile entry 3 ends and
#: the frame returns to its pool; then this happens to `frame`, and the word is lost once more.
FRAME, OTHER = 2, 3
MEANWHILE = {
    "granted": (Op.GRANT, Outcome.DONE, FRAME, False),
    "prefetched": (Op.PREFETCH, Outcome.MISSED, FRAME, False),
    "claimed": (Op.CLAIM, Outcome.DONE, FRAME, False),
    "another granted": (Op.GRANT, Outcome.DONE, OTHER, True),
    "none to grant": (Op.GRANT, Outcome.RETRY, FRAME, True),
    "claim void": (Op.CLAIM, Outcome.VOID, FRAME, True),
    "allocated": (Op.WRITE, Outcome.ALLOCATED, FRAME, True),  # nobody's but its page's
}


@pytest.mark.parametrize(("kind", "outcome", "frame", "taken"), MEANWHILE.values(), ids=MEANWHILE)
def test_a_frame_that_moved_during_the_search_is_left_to_a_sweep(kind, outcome, frame, taken):
    dut = Orphans(config=UNIT)
    page = {"squeue": 5, "page": 6}
    token = dut.layouts.recover_token

    async def bench(ctx):
        async def result(**fields):
            op = fields.pop("op") | page
            ctx.set(dut.i_result.p, {"op": op, "outcome": Outcome.DONE} | fields)
            ctx.set(dut.i_result.valid, 1)
            await ctx.tick()
            ctx.set(dut.i_result.valid, 0)

        async def taken_op():
            """The next op, once it is offered."""
            ctx.set(dut.o_op.ready, 1)
            *_, offered, op = (
                await ctx.tick().sample(dut.o_op.valid, dut.o_op.p).until(dut.o_op.valid)
            )
            ctx.set(dut.o_op.ready, 0)
            return op

        async def peeked(op, in_use):
            """Its word is lost."""
            await result(
                op={"kind": Op.PEEK, "slot": token}, word={"state": PageState.LOST}, frame=op.frame
            )
            owner = {"slot": token, "frame": op.frame, "in_use": int(in_use)} | page
            ctx.set(dut.i_owner.p, owner)
            ctx.set(dut.i_owner.valid, 1)
            await ctx.tick()
            ctx.set(dut.i_owner.valid, 0)

        async def walk(until):
            """PEEKs of frames that are not in use, up to that of frame `until`."""
            while (op := await taken_op()).frame != until:
                assert op.kind == Op.PEEK
                await peeked(op, False)
            return op

        await result(op={"kind": Op.GRANT}, miss=3, frame=FRAME)
        await result(op={"kind": Op.READ}, uncorrected=1)
        await peeked(await walk(FRAME), True)
        await ctx.tick().repeat(5)
        assert not ctx.get(dut.o_op.valid)  # it waits for entry 3
        await result(op={"kind": Op.FLIP}, outcome=Outcome.ORPHAN, miss=3, frame=FRAME)
        await result(op={"kind": kind}, outcome=outcome, miss=4, frame=frame)
        again = await taken_op()
        assert (again.kind, again.frame) == (Op.PEEK, FRAME)
        await peeked(again, True)
        op = await taken_op()
        if taken:
            assert (op.kind, op.frame) == (Op.RECOVER, FRAME)
            return
        while op.frame != UNIT.total_frames - 1:
            assert op.kind == Op.PEEK and op.frame > FRAME
            await peeked(op, False)
            op = await taken_op()
        await peeked(op, False)
        assert not ctx.get(dut.idle)
        op = await taken_op()  # the sweep begins
        assert (op.kind, op.frame) == (Op.PEEK, 0)

    simulate(dut, bench)

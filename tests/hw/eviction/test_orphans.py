# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Orphans: alone, beside a model of its contract, and no frame is taken from who got it during the
search; in the engine, no frame of a lost word stays lost."""

import dataclasses

import pytest
from eviction_runs import SMALL, run
from simulation import simulate

from kelp_hw.eviction.orphans import Orphans
from kelp_spec.config import named
from kelp_spec.metadata import Event, Op, Outcome, PageState
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
    few["lost_when_told"] = 2
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


class Losing:
    """Losses, one a cycle, and the searches that follow, of which no frame comes of."""

    def __init__(self, ctx, dut):
        self.ctx, self.dut, self.told = ctx, dut, []

    async def cycle(self, number=None, **result):
        """A cycle in which the word `number` is lost, or another `result`."""
        ctx, dut = self.ctx, self.dut
        ctx.set(dut.i_result.valid, int(number is not None or bool(result)))
        squeue, page = divmod(number or 0, UNIT.pages)
        lost = {"op": {"squeue": squeue, "page": page}, "uncorrected": 1}
        ctx.set(dut.i_result.p, result or lost)
        if ctx.get(dut.o_event.valid) and ctx.get(dut.event_taken):
            assert ctx.get(dut.o_event.p.code) == Event.FRAME_SWEEP
            event = ctx.get(dut.o_event.p)
            self.told.append(event.squeue * UNIT.pages + event.page)
        await ctx.tick()

    async def answer(self, owner=None, state=PageState.ABSENT):
        """The PEEK that comes next; `owner`: page 0 of queue 0 owns its frame."""
        ctx, dut = self.ctx, self.dut
        ctx.set(dut.o_op.ready, 1)
        while not ctx.get(dut.o_op.valid):
            await self.cycle()
        op = {"kind": Op.PEEK, "slot": dut.layouts.recover_token}
        frame = ctx.get(dut.o_op.p.frame)
        await self.cycle()
        ctx.set(dut.o_op.ready, 0)
        await self.cycle(op=op, word={"state": state})
        ctx.set(dut.i_owner.p, {"slot": op["slot"], "frame": frame, "in_use": int(bool(owner))})
        ctx.set(dut.i_owner.valid, 1)
        await self.cycle()
        ctx.set(dut.i_owner.valid, 0)
        return frame

    async def search(self):
        while await self.answer() < UNIT.total_frames - 1:
            pass


@pytest.mark.parametrize("late", [0, 1, 2], ids=["as its sweep is told", "just after", "later"])
def test_a_word_that_finds_no_place_is_told_before_its_sweep(late):
    """`late` cycles after the event of the sweep is taken."""
    dut = Orphans(config=UNIT)

    async def bench(ctx):
        it = Losing(ctx, dut)
        # The first is searched for, `LOST` wait, one is too many.
        for number in range(2 + dut.LOST):
            await it.cycle(number)
        await it.search()
        while not ctx.get(dut.o_event.valid):
            await it.cycle()
        ctx.set(dut.event_taken, 1)
        for n in range(dut.LOST + late + 2):
            await it.cycle(20 + n if n >= late else None)
        while not ctx.get(dut.o_op.valid):
            await it.cycle()
        lost = [1 + dut.LOST] + [20] * (late == 0)
        assert it.told == lost, f"{it.told} are told, {lost} found no place"

    simulate(dut, bench)


#: Cycles from the end of a search until those that wait begin to leave for a sweep.
GATHERS = 3


@pytest.mark.parametrize("late", range(GATHERS + 2))
def test_a_word_that_finds_no_place_as_a_sweep_begins_is_told(late):
    """That sweep was due for what a search had left, and is told of to nobody but for that word."""
    dut = Orphans(config=UNIT)

    async def bench(ctx):
        it = Losing(ctx, dut)
        await it.cycle(0)
        await it.answer(owner=True)
        await it.answer(owner=True, state=PageState.FETCHING)  # left to a sweep
        for number in range(1, 1 + dut.LOST):
            await it.cycle(number)
        await it.search()
        ctx.set(dut.event_taken, 1)
        for _ in range(late):
            await it.cycle()
        await it.cycle(20)
        while not ctx.get(dut.o_op.valid):
            await it.cycle()
        assert it.told == [20] * (late < GATHERS)

    simulate(dut, bench)

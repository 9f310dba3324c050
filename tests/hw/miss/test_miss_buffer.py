# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The miss buffer: every miss comes home, and how soon it is filled."""

import pytest
from flips import NO_FAULT, fields, flip, opened
from simulation import simulate
from timing import changes

from kelp_hw.miss import park_lists
from kelp_hw.miss.miss_buffer import MissBuffer
from kelp_spec.config import named
from kelp_spec.metadata import MissKind, Op, Outcome, PageState
from kelp_verif.harness.flips import PUBLIC
from kelp_verif.harness.runner import Model, made, run_cocotb


def test_it_fills_after_its_latency():
    missed = {
        "i_result.valid": 1,
        "i_result.p.op.kind": int(Op.PREFETCH),
        "i_result.p.outcome": int(Outcome.MISSED),
    }
    fill = changes(
        MissBuffer(config=named("unit")),
        "o_op.valid",
        [{"i_fetched.valid": 1}],
        prepare={"o_op.ready": 1},
        before=[{"o_miss_free.ready": 1}, missed],
    )
    assert fill == [MissBuffer.LATENCY]


def test_every_miss_comes_home():
    params = {"config": "unit", "cycles": 20_000}
    seen = run_cocotb(
        made(MissBuffer, config=named("unit")),
        bench="kelp_verif.miss.miss_buffer_bench",
        model=Model(public=PUBLIC),
        params=params,
        timeout_s=280,
    ).records["seen"]
    for what in (
        "DEMAND",
        "ALLOCATE",
        "PREFETCH",
        "GRANT",
        "FILL",
        "REPLAY",
        "FLIP",
        "FLIP retry",
        "GRANT retry",
        "raised",
        "orphan",
    ):
        assert seen.get(what, 0) >= 3, f"{what} was not exercised: {seen}"


@pytest.mark.parametrize(
    ("kind", "starves", "told"),
    [
        (MissKind.ALLOCATE, False, False),  # cleared before its FILL
        (MissKind.DEMAND, True, False),  # nothing was fetched, and there is no FILL
        (MissKind.DEMAND, False, True),
    ],
    ids=["cleared", "starved", "fetched"],
)
def test_line_masks_are_told_of_where_a_fill_takes_them(kind, starves, told):
    """Two bits flip in the row of an entry that has landed, or is given up. Ops of the pipeline
    that have no miss name entry 0, which is this one, all the time."""
    dut = MissBuffer(config=named("unit"))
    top, memories = opened(dut)
    (rows,) = (data for path, data in memories.items() if path.startswith("line_masks."))
    writes = kind == MissKind.ALLOCATE

    async def bench(ctx):
        faults = dict(NO_FAULT)

        async def cycle():
            await ctx.tick()
            for name, said in fields(ctx, dut.fault).items():
                faults[name] |= said

        async def decided(outcome, **op):
            for name, value in op.items():
                ctx.set(dut.i_result.p.op[name], value)
            ctx.set(dut.i_result.p.outcome, outcome)
            ctx.set(dut.i_result.valid, 1)
            await cycle()
            ctx.set(dut.i_result.valid, 0)

        async def offered():
            for _ in range(20):
                if ctx.get(dut.o_op.valid):
                    return ctx.get(dut.o_op.payload.kind)
                await cycle()

        await cycle()
        flip(ctx, rows, 0, 0, 1)
        ctx.set(dut.starve_limit, 0 if starves else ~0)
        ctx.set(dut.i_result.p.old.state, PageState.ABSENT if writes else PageState.COLD)
        await decided(Outcome.MISSED, kind=Op.WRITE if writes else Op.READ, write=writes)
        ctx.set(dut.pool_free[0], not starves)
        assert await offered() == Op.GRANT and ctx.get(dut.o_op.payload.failed) == starves
        ctx.set(dut.o_op.ready, 1)
        await cycle()
        ctx.set(dut.o_op.ready, 0)
        await decided(Outcome.DONE, kind=Op.GRANT, miss_kind=kind, failed=starves)
        if told:
            ctx.set(dut.i_fetched.valid, 1)
            await cycle()
            ctx.set(dut.i_fetched.valid, 0)
            await cycle()
            flip(ctx, rows, 0, 0, 1)
        assert await offered() == (Op.REPLAY if starves else Op.FILL)
        ctx.set(dut.o_op.ready, 1)
        for _ in range(6):
            await cycle()
        assert faults == NO_FAULT | {"fatal": told}

    simulate(top, bench)


def test_bad_parameters_are_refused():
    with pytest.raises(ValueError, match="margin = 33 is refused; legal: 1 … 32"):
        MissBuffer(config=named("unit"), margin=33)


def test_a_request_that_waited_leaves_no_place_taken(monkeypatch):
    """A parked request's place that does not become free again is told once nothing is under
    way."""
    places = []

    class Held(park_lists.FreeList):
        def __init__(self, **options):
            super().__init__(**options)
            places.append(self)

    monkeypatch.setattr(park_lists, "FreeList", Held)
    top, _ = opened(MissBuffer(config=named("unit")))

    async def bench(ctx):
        await ctx.tick().repeat(4)
        ctx.set(places[0].level, places[0].count - 1)
        for _ in range(2):
            await ctx.tick()

    with pytest.raises(AssertionError, match="is not given back"):
        simulate(top, bench)

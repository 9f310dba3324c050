# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""SummaryStore: lines come back as they were written; a bit holds until it is cleared."""

from flips import opened
from simulation import simulate
from streams import Ends, pump

from kelp_hw.select.summary_store import SummaryStore
from kelp_spec.config import named

CONFIG = named("unit_select").with_(half_lines=32)
SQUEUE, PAGES = 5, (3, 9, 63)


def codes(page, line):
    return [page << 8 | line << 4 | k for k in range(16)]


async def ready(ctx, dut):
    ctx.set(dut.squeue, SQUEUE)
    ctx.set(dut.token_lines, 1)
    ctx.set(dut.rows, 1)
    for _ in range(CONFIG.page_words):
        await ctx.tick()
    assert ctx.get(dut.ready)


async def write(ctx, dut):
    await ready(ctx, dut)
    for page in PAGES:
        for line in range(2):
            ctx.set(dut.i_line.p, {"id": page, "line": line, "code": codes(page, line)})
            ctx.set(dut.i_line.valid, 1)
            await ctx.tick()
    ctx.set(dut.i_line.valid, 0)


def run(offer, take):
    ends = Ends(sends={"i": [*PAGES, *PAGES]}, takes=("o",), offer=offer, take=take, before=write)
    seen = pump(SummaryStore(config=CONFIG), ends, cycles=int(16 / offer / take) + 10)
    got = [(t.item.id, t.item.line, t.item.last, list(t.item.code)) for t in seen["o"]]
    assert got == [
        (page, line, line, codes(page, line)) for page in (*PAGES, *PAGES) for line in range(2)
    ]
    return seen


def test_lines():
    run(0.5, 0.6)


def test_latency_and_interval():
    seen = run(1, 1)
    assert seen["o"][0].offered - seen["i"][0].offered == SummaryStore.LATENCY
    taken = [t.taken for t in seen["o"]]
    assert {b - a for a, b in zip(taken, taken[1:], strict=False)} == {SummaryStore.INTERVAL}


def test_a_summary_holds_until_it_is_cleared():
    found, rows = [], []

    async def steps(ctx, dut):
        await ready(ctx, dut)

        async def holds(page):
            ctx.set(dut.look, 1)
            ctx.set(dut.look_row, page // dut.ROW)
            await ctx.tick()
            ctx.set(dut.look, 0)
            row = ctx.get(dut.holds)
            found.append(row >> page % dut.ROW & 1)
            rows.append(row)

        async def change(sets=None, clears=None):
            ctx.set(dut.set, sets is not None)
            ctx.set(dut.set_page, sets or 0)
            ctx.set(dut.i_clear.valid, clears is not None)
            ctx.set(dut.i_clear.p, {"squeue": SQUEUE, "page": clears or 0})
            await ctx.tick()
            ctx.set(dut.set, 0)
            ctx.set(dut.i_clear.valid, 0)

        await holds(3)
        await change(sets=3)
        await holds(3)
        await change(clears=3)
        await holds(3)
        await holds(9)
        await change(sets=9)
        ctx.set(dut.token_lines, 0)  # a line of it is no summary of tokens of one line
        await holds(9)
        await change(sets=9)
        await holds(9)
        ctx.set(dut.token_lines, 1)
        await holds(9)

    pump(SummaryStore(config=CONFIG), Ends(sends={}, takes=(), before=steps), cycles=1)
    assert found == [0, 1, 0, 0, 0, 1, 0]
    # Each page of a row has its own: 3 is in the first, 9 in the second.
    assert rows == [0, 8, 0, 0, 0, 2, 0]


def test_it_is_ready_when_no_row_holds():
    """Whatever the memories held before: the last row is scrubbed in the cycle before `ready`."""
    dut = SummaryStore(config=CONFIG)
    top, memories = opened(dut)
    rows = CONFIG.page_words // dut.ROW
    held = [memory for path, memory in memories.items() if "lines_" in path]
    assert len(held) == dut.ROW

    async def bench(ctx):
        for memory in held:
            for row in range(rows):
                ctx.set(memory[row], 2)
        await ctx.tick().repeat(rows - 1)
        assert not ctx.get(dut.ready)
        await ctx.tick()
        assert ctx.get(dut.ready)
        assert not any(ctx.get(memory[row]) for memory in held for row in range(rows))

    simulate(top, bench)

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Miss buffer between a model of the tracker pipeline (what M3 decides, four cycles after an op
enters) and a cold tier that answers in any order."""

import cocotb

from kelp_hw.miss.grants import MissGrants
from kelp_hw.miss.miss_buffer import MissBuffer
from kelp_spec.config import POOLS, named
from kelp_spec.metadata import Op, PageState

from ..harness.clocking import start_clock
from ..harness.runner import bench_params, record
from .miss_buffer_tb import DEPTH, TB

#: Cycles of a visit in which no op can be offered (`MissBuffer`), a GRANT's among them.
VISIT = 12 + MissBuffer.LATENCY


async def start(dut, **arguments) -> TB:
    tb = TB(dut, named(bench_params()["config"]), **arguments)
    await start_clock(dut)
    return tb


async def random_traffic(tb, cycles):
    rng, c = tb.rng, tb.config
    pages = [(rng.randrange(c.squeues), rng.randrange(c.pages)) for _ in range(24)]
    waiting = None
    for n in range(cycles):
        if n % 400 == 0:
            tb.op_ready, load, stir = (
                rng.choice([1.0, 0.6, 0.3]),
                rng.choice([1.0, 0.5, 0.2]),
                rng.choice([0.02, 0.2]),
            )
            few = rng.sample(pages, rng.choice([2, 8, 24]))
            tb.retry_rate, tb.answer_rate = rng.choice([0.0, 0.3]), rng.choice([0.05, 0.3, 1.0])
        if n % 40 == 0:
            tb.tier_answers = rng.random() < 0.5  # so that answers come in bursts
        if waiting is None and rng.random() < load:
            waiting = tb.new_op(
                rng.choice([Op.READ, Op.READ, Op.WRITE, Op.PREFETCH]), rng.choice(few)
            )
        if await tb.cycle(waiting):
            waiting = None
        if rng.random() < stir:
            tb.disturb()


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def every_request_is_replayed_once_in_order(dut):
    tb = await start(dut, frames=[5] * 4)
    await tb.reset()
    await random_traffic(tb, bench_params()["cycles"])
    tb.op_ready, tb.retry_rate, tb.tier_answers = 1.0, 0.0, True
    await tb.free_frames()
    await tb.drain(20_000)
    record(cycles=tb.cycles, parked=tb.parked, seen=tb.seen)


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def reset_under_traffic(dut):
    tb = await start(dut)
    for _ in range(4):
        await tb.reset()
        await random_traffic(tb, tb.rng.randrange(50, 600))
    await tb.reset()
    await random_traffic(tb, 300)
    tb.tier_answers = True
    await tb.free_frames()
    await tb.drain(20_000)


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def no_frame_ends_in_poison(dut):
    """Two pools never have a frame: their misses are given up in time, in order, and the others go
    on."""
    tb = await start(dut, frames=[0, 0, 8, 8])
    await tb.reset(starve_limit=500)
    tb.fail_rate = 0.0
    pages = [(squeue, page) for squeue in range(4) for page in range(3)]
    tb.pages = {(0, 0): (PageState.ABSENT, 0), (1, 0): (PageState.LOST, 0)}
    for page in pages:
        for kind in (
            Op.WRITE if page[1] == 0 else Op.READ,
            Op.READ,
            Op.WRITE if page[1] == 1 else Op.READ,
        ):
            request = tb.new_op(kind, page)
            while not await tb.cycle(request):
                pass
    await tb.drain(500 + 400)
    record(starved=tb.seen["starved"])
    assert tb.seen["starved"] == 6
    states = {page: tb.pages[page][0] for page in pages}
    assert all(state == PageState.RESIDENT for page, state in states.items() if page[0] >= 2)
    # Only a page to which a write was dropped is lost; a read costs nothing.
    assert all(
        state == (PageState.COLD if page[1] == 2 else PageState.LOST)
        for page, state in states.items()
        if page[0] < 2
    ), states


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def a_limit_of_any_length(dut):
    """A miss without a frame is given up when its time is over and not before, whatever bits the
    limit has. It is judged in each round of the pools: of limits one behind the other one is over
    in the cycle in which it is, two before the GRANT is offered."""
    tb, late = await start(dut, frames=[0] * 4), []
    limits = [tb.rng.getrandbits(bits) | 1 << bits - 1 for bits in range(8, 33)]
    for limit in (*limits, *range(200, 200 + MissGrants.TURN + MissGrants.INTERVAL)):
        await tb.reset(starve_limit=limit)
        while not await tb.cycle(tb.new_op(Op.READ, (0, 0))):
            pass
        while not tb.misses:
            await tb.cycle()
        (entry,) = tb.misses.values()
        tb.now = entry.since + limit - VISIT
        for _ in range(3 * VISIT):
            await tb.cycle()
        assert not tb.misses, f"not given up after {limit} cycles"
        late.append(tb.late)
    assert min(late) == 2, late


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def a_flooded_page_still_comes_home(dut):
    """Requests to one page in every cycle cannot keep it fetching, nor keep others waiting."""
    tb = await start(dut)
    await tb.reset()
    tb.fail_rate, tb.answer_rate, tb.op_ready = 0.0, 1.0, 0.125
    for page in ((0, 0), (0, 1), (0, 2)):
        while not await tb.cycle(tb.new_op(Op.READ, page)):
            pass
    pending = None
    while not tb.misses:
        await tb.cycle()
    while tb.misses:
        pending = pending or tb.new_op(Op.READ, (0, 0))
        if await tb.cycle(pending):
            pending = None
        # A page's worth of replays, then what was parked by then; those of the two others.
        assert tb.seen["REPLAY"] <= tb.config.page_lines + tb.config.parked + 2
    assert tb.stood <= 3 * VISIT + tb.seen["FLIP retry"] * (DEPTH + 2)
    assert tb.served == tb.parked > tb.config.page_lines


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def line_masks_arrive_while_another_is_cleared(dut):
    """An entry without a fetch clears its line mask while completions bring those of others."""
    tb = await start(dut, frames=[8, 0, 8, 8])
    await tb.reset()
    tb.fail_rate, tb.answer_rate = 0.0, 1.0
    frame = tb.config.pool_first_frame[1]
    for _ in range(40):
        tb.tier_answers = False
        tb.pages = {(1, 0): (PageState.ABSENT, 0)}
        for page in [(0, page) for page in range(8)]:
            while not await tb.cycle(tb.new_op(Op.READ, page)):
                pass
        while len(tb.answers) < 8:
            await tb.cycle()
        while not await tb.cycle(tb.new_op(Op.WRITE, (1, 0))):
            pass
        while not tb.waiting[1]:
            await tb.cycle()
        tb.free[1] = [frame]
        for _ in range(tb.rng.randrange(20)):
            await tb.cycle()
        tb.tier_answers = True
        await tb.drain(300)
        tb.free[0] = list(range(8))


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def one_replay_per_cycle(dut):
    tb = await start(dut)
    await tb.reset()
    tb.tier_answers = False
    n = tb.config.parked // 2
    for _ in range(n):
        request = tb.new_op(Op.READ, (0, 0))
        while not await tb.cycle(request):
            pass
    tb.tier_answers, tb.answer_rate, tb.fail_rate = True, 1.0, 0.0
    while not tb.answers:
        await tb.cycle()
    began = tb.cycles
    while tb.seen["REPLAY"] == 0:
        await tb.cycle()
    latency = tb.cycles - began
    began = tb.cycles
    while tb.seen["REPLAY"] < n:
        await tb.cycle()
    assert tb.cycles - began == (n - 1) * MissBuffer.INTERVAL, (
        f"{n} replays in {tb.cycles - began} cycles"
    )
    await tb.drain(100)
    record(replays=n, latency=latency)


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def it_rests_while_all_wait(dut):
    """For the tier it is quiet, without a frame it starves as well; one frame ends that. So for
    each pool."""
    tb = await start(dut)
    for pool in range(len(POOLS)):
        tb.frames = [8 * (p != pool) for p in range(len(POOLS))]
        await tb.reset()
        tb.tier_answers, tb.fail_rate = False, 0.0
        for squeue, starves in (((pool + 1) % len(POOLS), 0), (pool, 1)):
            while not await tb.cycle(tb.new_op(Op.READ, (squeue, 0))):
                pass
            for _ in range(40):
                await tb.cycle()
            for _ in range(10):
                await tb.cycle()
                assert (dut.quiet.value, dut.starving.value, dut.idle.value) == (1, starves, 0)
        tb.free[pool] = [tb.config.pool_first_frame[pool]]
        while len(tb.answers) < 2:
            await tb.cycle()
        tb.tier_answers = True
        await tb.drain(300)


#: Memory, when its rows are flipped, and how many uses of a row are counted. Of a FIFO one word is
#: in its output already.
FLIPS = (
    ("ids.returned.fifo.storage", "idle", 7),
    ("lists.free.returned.fifo.storage", "idle", 15),
    *((f"grants.line_{name}.fifo.storage", "waits", 3) for name in POOLS),
    ("grants.rows.rows.memory", "waits", 8),
    ("rows.rows.memory", "fetched", 8),
    ("frames.rows.memory", "fetched", 8),
    ("lists.node.rows.memory", "fetched", 16),
    ("lists.link.rows.memory", "fetched", 16),
    ("lists.head.rows.memory", "fetched", 8),
    # with each request that leaves, and with the end of each visit
    ("lists.tail_seen.rows.memory", "fetched", 24),
    ("lists.tail.rows.memory", "fetched", 8),
    ("landed.fifo.storage", "landed", 7),
    ("line_masks.rows.memory", "landed", 8),
)


async def _eight_misses(tb, path, stage, bits):
    """Two requests for each of eight pages of two pools, that of `path` among them; at `stage` the
    rows of `path` are flipped."""
    first = next((p for p, name in enumerate(POOLS) if f"line_{name}." in path), 0)
    pools = (first, (first - 1) % len(POOLS))
    pages = [(pool, page) for page in range(4) for pool in pools]
    frames = {pool: [tb.config.pool_first_frame[pool] + k for k in range(4)] for pool in pools}
    tb.pages = {}

    async def request(times):
        for page in times * pages:
            while not await tb.cycle(tb.new_op(Op.READ, page)):
                pass

    async def idle():
        for _ in range(30):
            await tb.cycle()

    tb.tier_answers = False
    for pool in pools:
        tb.free[pool] = []
    if stage == "idle":
        tb.faults.flip(path, bits)
    appends = path.startswith("lists.tail.")
    await request(1 if appends else 2)
    await idle()
    if stage == "waits":
        tb.faults.flip(path, bits)
    for pool in pools:
        tb.free[pool] = frames[pool]
    while len(tb.answers) < len(pages):
        await tb.cycle()
    await idle()  # a row that is just being written cannot be flipped
    if stage == "fetched":
        tb.faults.flip(path, bits)
    if appends:
        await request(1)
    if stage == "landed":
        tb.tier_answers, tb.op_ready = True, 0.0
        while tb.answers or tb.offered is not None:
            await tb.cycle()
        await idle()
        tb.faults.flip(path, bits)
    tb.op_ready, tb.tier_answers = 1.0, True
    await tb.drain(500)


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def flipped_bits(dut):
    """One and two in each row of each memory, as :meth:`.Faults.expect` says."""
    tb = await start(dut, frames=[8, 8, 8, 8])
    tb.fail_rate, tb.answer_rate = 0.0, 1.0
    for path, stage, counted in FLIPS:
        for bits in (1, 2):
            await tb.reset()
            tb.faults.clear()
            tb.misses, tb.op_ready = {}, 1.0
            for _ in range(3):  # until ids and nodes have been used before
                await _eight_misses(tb, path, None, 0)
            await tb.faults.expect(path, bits, counted, _eight_misses(tb, path, stage, bits))

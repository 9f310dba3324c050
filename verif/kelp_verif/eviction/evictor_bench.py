# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The eviction engine in a world of golden models: the tracker decides its ops, the rest answers
after random times.

`lockstep` compares every CLAIM with the golden evictor's; `free_running` audits the sweeps under
traffic, cancellations and flash errors; `sweep_cycles` measures; `closes`, `recovers`
and `loses_many` end sessions and lost words; `nothing_to_evict` pins everything;
`chooses_while_written` and `absorbs_without_end` keep a choice waiting; `flipped_bits` flips bits
in memories.
"""

import cocotb

from kelp_hw.eviction.queue_state import QueueState
from kelp_hw.eviction.signatures import event_count_bits
from kelp_hw.pipeline import RESULT_TO_NEED
from kelp_spec.config import POOLS
from kelp_spec.metadata import Event, Op, PageState
from kelp_spec.policy import Policy

from ..harness.flips import Fenced
from ..harness.runner import bench_params, record
from .evictor_tb import RESIDENT, TB, LockStepTB, TrackerOp


@cocotb.test(timeout_time=40, timeout_unit="ms")
async def lockstep(dut):
    tb = LockStepTB(dut)
    await tb.start()
    rng, c = tb.rng, tb.config
    await tb.do(*(tb.open(s) for s in range(c.sessions)))
    pages = [(q, p) for q in range(c.squeues) for p in range(c.pages)]
    for n in range(bench_params()["ops"]):
        if n % 40 == 0:
            few = rng.sample(pages, min(len(pages), rng.choice([4, 20, 64])))
        if n % 25 == 0:
            tb.change()
        if n % 25 == 24 and bench_params().get("closes"):
            # Mostly the session of the queue whose list stands, which its next life is not to have.
            squeue = tb.evictor.squeue
            await tb.reopen(rng.choice([squeue // c.queues] * 3 + [rng.randrange(c.sessions)]))
            for page in rng.sample(range(c.pages), c.pages):
                await tb.do(tb.demand(squeue, page, True))
                await tb.check()
        if n % 3 == 0 and bench_params().get("applies"):
            # Mostly to the queue whose list stands.
            squeue = rng.choice([tb.evictor.squeue, tb.evictor.squeue, rng.randrange(c.squeues)])
            await tb.apply(squeue, rng.choice(list(Policy)))
        op = tb.random_op(few)
        dut.turn__hold.value = 1
        tb.need_frames(rng.choice((1, 2, 2, 3)))  # several victims at once
        await tb.do(op)
        await tb.check()
    tb.check_words()
    record(
        victims=tb.victims,
        void=tb.void,
        sweeps=tb.sweeps,
        write_backs=tb.write_backs,
        events=len(tb.events),
        refreshed=tb.refreshed,
    )


@cocotb.test(timeout_time=40, timeout_unit="ms")
async def free_running(dut):
    tb = TB(dut)
    await tb.start()
    rng, c = tb.rng, tb.config
    tb.flash_fails = 0.2
    await tb.do(*(tb.open(s) for s in range(c.sessions)))
    of_each = bench_params().get("pages_of_each", c.pages)
    pages = [(q, p) for q in range(c.squeues) for p in range(of_each)]
    decoding = tb.decoding(of_each)
    for n in range(bench_params()["cycles"]):
        if n % 1000 == 0:
            few = rng.sample(pages, min(len(pages), rng.choice([8, 30, 64])))
            rate, tb.stall = rng.choice([0.02, 0.1, 0.4]), rng.choice([0, 0.5])
            # Queues that are left are valued anew only where nobody waits for a frame: in a calm
            # decode, step by step, offers of several queues stand side by side.
            calm = Policy.KELP in tb.policies and rng.random() < bench_params().get("calm", 0.5)
        if (
            len(tb.demands) < (0 if calm and not tb.idle else 4)
            and rng.random() < (1 if calm else rate)
            and sum(p.waiting for p in tb.tracker.pools) < c.misses - 1
            and len(tb.tracker.free_misses) > 2
        ):
            if calm:
                op = next(decoding)
            elif tb.releases and rng.random() < 0.1:
                op = tb.wanted_again()
            else:
                op = tb.random_op(few)
            if op:
                tb.demands.append(op)
        await tb.tick()
    tb.flash_fails = 0
    # With everything unpinned no one may starve.
    tb.demands.extend(
        TrackerOp(Op.UNPIN, session=q // c.queues, squeue=q, page=p) for q, p in pages
    )
    await tb.rest()
    tb.check_words()
    assert not (wrong := tb.audit.rest()), wrong
    record(
        victims=tb.victims,
        void=tb.void,
        cancelled=tb.cancelled,
        failed=tb.failed,
        sweeps=tb.sweeps,
        write_backs=tb.write_backs,
        within=tb.within,
    )


@cocotb.test(timeout_time=40, timeout_unit="ms")
async def closes(dut):
    """Close under traffic, reopen, again and again: every page absent, every frame free."""
    tb = TB(dut)
    await tb.start()
    rng, c = tb.rng, tb.config
    pages = [(q, p) for q in range(c.squeues) for p in range(c.pages)]
    for _ in range(bench_params()["closes"]):
        await tb.do(*(tb.open(s) for s in range(c.sessions) if not tb.tracker.sessions[s].open))
        for _ in range(150):
            if len(tb.demands) < 3 and len(tb.tracker.free_misses) > 2:
                op = tb.random_op(pages)
                if op:
                    tb.demands.append(op)
            await tb.tick()
        closed = rng.sample(range(c.sessions), rng.randint(1, c.sessions))
        tb.demands.extend(TrackerOp(Op.CLOSE, session=s) for s in closed)
        for _ in range(20_000):
            await tb.tick()
            if (
                not tb.demands
                and not tb.pipe
                and not any(tb.tracker.sessions[s].closing for s in closed)
            ):
                break
        else:
            pools = [(p.free, p.used, p.waiting, p.pins) for p in tb.tracker.pools]
            raise AssertionError(
                f"a session does not close: (free, used, waiting, pins) {pools}, demands "
                + f"{list(tb.demands)}"
            )
        await tb.rest()
        for key, word in tb.tracker.words.items():
            assert key // c.pages // c.queues not in closed or word.state == PageState.ABSENT
    await tb.do(*(TrackerOp(Op.CLOSE, session=s) for s in range(c.sessions)))
    await tb.rest(40_000)
    assert not any(p.used or p.waiting or p.pins for p in tb.tracker.pools)
    assert not tb.owners and not any(s.open for s in tb.tracker.sessions)


@cocotb.test(timeout_time=40, timeout_unit="ms")
async def recovers(dut):
    """Words are lost under traffic; in the end every frame belongs to a page."""
    tb = TB(dut)
    await tb.start()
    rng, c = tb.rng, tb.config
    await tb.do(*(tb.open(s) for s in range(c.sessions)))
    pages = [(q, p) for q in range(c.squeues) for p in range(c.pages)]
    lost = 0
    for n in range(bench_params()["cycles"]):
        if n % 1000 == 0:  # a search may be over before an eviction, or long after
            tb.flash_time = rng.choice([(20, 200), (800, 1500)])
        if rng.random() < 0.0012:
            # Mostly pages that have a frame, often on their way to the flash.
            leaving = tb.leaving()
            some = leaving if leaving and rng.random() < 0.5 else tb.owners.values()
            page = rng.choice([*some, rng.choice(pages)])
            tb.faults[page] = 2
            if page in leaving:  # so that it is found to be lost before its RELEASE
                tb.demands.append(tb.demand(*page, False))
            lost += 1
        if len(tb.demands) < 3 and rng.random() < 0.1 and len(tb.tracker.free_misses) > 2:
            op = tb.random_op(pages)
            if op:
                tb.demands.append(op)
        await tb.tick()
    tb.faults.clear()
    tb.demands.extend(
        TrackerOp(Op.UNPIN, session=q // c.queues, squeue=q, page=p) for q, p in pages
    )
    await tb.rest(60_000)
    recovered = sum(e["code"] == Event.FRAME_RECOVERED for e in tb.events)
    every_frame_has_a_page(tb)
    record(lost=lost, recovered=recovered)


def every_frame_has_a_page(tb):
    resident = {
        (key // tb.config.pages, key % tb.config.pages)
        for key, word in tb.tracker.words.items()
        if word.state == RESIDENT
    }
    assert set(tb.owners.values()) == resident and len(tb.owners) == sum(
        p.used for p in tb.tracker.pools
    )


@cocotb.test(timeout_time=40, timeout_unit="ms")
async def loses_many(dut):
    """Every page that has a frame loses its word at once, under traffic: more than can wait for a
    search. It is told of, and every frame belongs to a page in the end."""
    tb = TB(dut)
    await tb.start()
    rng, c = tb.rng, tb.config
    for squeue in range(c.squeues):  # in every pool, so that there are enough frames
        tb.configure(squeue, squeue % len(POOLS), 0)
        await tb.tick()
    tb.dut.config_write__valid.value = 0
    await tb.do(*(tb.open(s) for s in range(c.sessions)))
    pages = [(q, p) for q in range(c.squeues) for p in range(c.pages)]

    async def traffic():
        if len(tb.demands) < 3 and rng.random() < 0.1 and len(tb.tracker.free_misses) > 2:
            op = tb.random_op(pages)
            if op:
                tb.demands.append(op)
        await tb.tick()

    most = 0
    for _ in range(bench_params()["rounds"]):
        for _ in range(1200):
            await traffic()
        while len(tb.owners) < bench_params()["at_once"]:
            await traffic()
        owned = list(tb.owners.values())
        most = max(most, len(owned))
        tb.faults = dict.fromkeys(owned, 2)
        tb.demands.extend(tb.demand(*page, False) for page in owned)
        for _ in range(1200):
            await traffic()
        tb.faults.clear()
        tb.demands.extend(
            TrackerOp(Op.UNPIN, session=q // c.queues, squeue=q, page=p) for q, p in pages
        )
        await tb.rest(60_000)
        every_frame_has_a_page(tb)
    codes = [e["code"] for e in tb.events]
    record(
        most=most,
        sweeps=codes.count(Event.FRAME_SWEEP),
        recovered=codes.count(Event.FRAME_RECOVERED),
    )


@cocotb.test(timeout_time=40, timeout_unit="ms")
async def nothing_to_evict(dut):
    """All frames pinned: one event, then a rest, until a pin goes."""
    tb = TB(dut)
    await tb.start()
    c, pool = tb.config, bench_params()["pools"][0]
    other = c.squeues - 1
    tb.configure(other, 1, 0)
    await tb.tick()
    dut.config_write__valid.value = 0
    await tb.do(*(tb.open(s) for s in range(c.sessions)))
    queues = [q for q in range(c.squeues) if tb.pool[q] == pool]
    *pages, last = [(q, p) for q in queues for p in range(c.pages)][: c.frames[pool]]
    tb.tracker.reserve = 0
    tb.dut.low_water.value = tb.tracker.low_water = 0  # counts as 1

    def op(kind, squeue, page):
        return TrackerOp(kind, session=squeue // c.queues, squeue=squeue, page=page)

    for page in pages:
        await tb.do(tb.demand(*page, True), op(Op.PIN, *page))
    await tb.rest()
    assert not tb.events and not tb.victims
    await tb.do(tb.demand(*last, True), op(Op.PIN, *last))
    await tb.rest()
    # The page may have gone before it was pinned.
    if not tb.victims:
        told = [(e["code"], e["argument"], e["squeue"]) for e in tb.events]
        assert told == [(Event.NO_VICTIM, pool, tb.first_tried(pool))]
        before = tb.sweeps
        # A page of another pool, which might be anyone's: searched again, and not told again.
        await tb.do(tb.demand(other, 0, True))
        await tb.rest()
        assert tb.sweeps > before and len(tb.events) == 1
        before = tb.sweeps
        for _ in range(300):
            await tb.tick()
        assert tb.sweeps == before, "the pool does not rest"
        await tb.do(op(Op.UNPIN, *pages[3]))
        await tb.rest()
        assert tb.log == [(*pages[3], True)]


@cocotb.test(timeout_time=40, timeout_unit="ms")
async def one_queue_after_another(dut):
    """One pool for many queues, in each a page that is pinned; a single page may go, of each queue
    in turn. It is found wherever the search begins; where there is none, there is one event."""
    tb = TB(dut)
    await tb.start()
    c, rng = tb.config, tb.rng
    for squeue in range(c.squeues):
        tb.configure(squeue, 0, rng.choice([0, 2, 5]))
        await tb.tick()
    dut.config_write__valid.value = 0
    await tb.do(*(tb.open(s) for s in range(c.sessions)))
    tb.tracker.reserve = 0
    dut.low_water.value = tb.tracker.low_water = 0  # counts as 1

    def op(kind, squeue, page):
        return TrackerOp(kind, session=squeue // c.queues, squeue=squeue, page=page)

    assert c.frames[0] == c.squeues + 1
    for squeue in range(c.squeues):
        await tb.do(tb.demand(squeue, 0, True), op(Op.PIN, squeue, 0))
    await tb.rest()
    queues = 2 * list(range(c.squeues))
    rng.shuffle(queues)
    for squeue in queues:
        await tb.do(tb.demand(squeue, 1, True))
        await tb.rest()
    assert tb.log == [(squeue, 1, True) for squeue in queues]
    assert not tb.events, tb.events
    dut.turn__hold.value = 1
    tb.demands.extend([tb.demand(queues[0], 1, True), op(Op.PIN, queues[0], 1)])
    while tb.demands or tb.pipe:
        await tb.tick()
    await tb.rest()
    told = [(e["code"], e["argument"], e["squeue"]) for e in tb.events]
    assert told == [(Event.NO_VICTIM, 0, tb.first_tried(0))]
    assert len(tb.log) == len(queues), "a pinned page was taken"
    await tb.do(op(Op.UNPIN, queues[-1], 0))
    await tb.rest()
    assert tb.log[-1] == (queues[-1], 0, True) and len(tb.events) == 1
    record(queues=c.squeues, victims=len(tb.log))


@cocotb.test(timeout_time=40, timeout_unit="ms")
async def chooses_while_written(dut):
    """Configuration is written in every cycle, without end. A pool that needs a frame has it for
    all that, when the queues have been worked out anew once; what was written before counts."""
    tb = TB(dut)
    await tb.start()
    c = tb.config
    await tb.do(tb.open(0))
    dut.low_water.value = 0
    await tb.do(*(tb.demand(q, p, True) for q in range(c.queues) for p in range(2)))
    await tb.rest()
    tb.stall, most = 0, (c.squeues + 1) * QueueState(config=c).INTERVAL + 60
    cycles = []
    for squeue in range(c.queues):  # the only one over its budget
        for other in range(c.queues):
            tb.configure(other, 0, 0 if other == squeue else 2 * c.frame_lines[0])
            await tb.tick()
        # Its budget is written over and over.
        dut.low_water.value = c.frames[0] - 2 * c.queues + 1
        claims, begun = len(tb.log), tb.cycle
        while len(tb.log) == claims:
            await tb.tick()
            assert tb.cycle - begun <= most, f"no page of queue {squeue} in {most} cycles"
        cycles.append(tb.cycle - begun)
        dut.low_water.value = 0
        dut.config_write__valid.value = 0
        await tb.rest()
        gone, page, done = tb.log[-1]
        assert gone == squeue and done and len(tb.log) == claims + 1, tb.log[claims:]
        await tb.do(tb.demand(gone, page, True))
        await tb.rest()
    record(cycles=max(cycles), most=most)


@cocotb.test(timeout_time=40, timeout_unit="ms")
async def absorbs_without_end(dut):
    """Configuration is written in every cycle, so that the excess of all queues is worked out anew
    without end, while pages come and go by themselves. A choice waits (as long as an evictor lets
    it that waits for many rounds of all queues), and more is absorbed before it than a count of
    events can tell from less; it is made when the writes end."""
    tb = TB(dut)
    await tb.start()
    c, came = tb.config, 0
    audited = tb.queues.on_change

    def on_change(*change):
        nonlocal came
        came += 1
        if audited is not None:
            audited(*change)

    tb.queues.on_change = on_change
    await tb.do(tb.open(0))
    dut.low_water.value = max(c.frames) + 1
    dut.config_write__valid.value = 1
    # Each comes and goes: two events.
    pages = [(q, p) for q in range(c.queues) for p in range(2)]
    half = 1 << event_count_bits(c) - 1
    for _ in range(half // (2 * len(pages)) + 1):
        await tb.do(*(tb.demand(*page, True) for page in pages))
        await tb.reopen(0)
    await tb.do(*(tb.demand(*page, True) for page in pages))
    assert half < came < 2 * half and not tb.log
    dut.config_write__valid.value = 0
    await tb.rest()
    assert sorted(tb.log) == [(*page, True) for page in pages]
    # Each bit of the low-water mark counts: a page too many goes.
    for bit in range(2, 16):
        dut.low_water.value = 0
        many = max(1, c.frames[tb.pool[0]] - (1 << bit) + 1)
        await tb.do(*(tb.demand(0, page, True) for page in range(many)))
        await tb.rest()
        tb.log.clear()
        dut.low_water.value = 1 << bit
        for _ in range(RESULT_TO_NEED + 1):
            await tb.tick()
        await tb.rest()
        assert len(tb.log) == 1, f"low-water mark {1 << bit}: {tb.log}"
        await tb.reopen(0)


@cocotb.test(timeout_time=40, timeout_unit="ms")
async def flipped_bits(dut):
    """One bit flips in each row of a memory of the queue state, or of the slots while a RELEASE
    waits there: it is told of, and nothing else happens. Two bits are beyond repair."""
    tb = TB(dut)
    await tb.start()
    c, path = tb.config, bench_params()["path"]
    await tb.do(*(tb.open(s) for s in range(c.sessions)))

    async def traffic(bits):
        for squeue in range(c.squeues):  # its row is written anew
            tb.configure(squeue, squeue % len(POOLS), 0)
            await tb.tick()
        dut.config_write__valid.value = 0
        if path.startswith("queues"):
            tb.flips.flip(path, bits)
        dut.low_water.value = 0
        await tb.do(*(tb.demand(0, page, True) for page in range(c.pages - 2)))
        await tb.rest()
        dut.low_water.value = max(c.frames)
        if path.startswith("slots"):
            while not tb.written_backs:
                await tb.tick()
            tb.stall = 1
            while tb.written_backs:
                await tb.tick()
            tb.flips.flip(path, bits)
            tb.stall = 0
        await tb.rest()

    await traffic(1)
    assert tb.flips.told["corrected"] and not tb.flips.told["fatal"], tb.flips.told
    tb.flips.clear()
    try:
        await traffic(2)
    except Fenced:
        return
    raise AssertionError(f"{path}: two bits have flipped in each row, and nobody told")


@cocotb.test(timeout_time=40, timeout_unit="ms")
async def sweep_cycles(dut):
    """Cycles from a need to its CLAIM when slots are free, less what the path itself takes."""
    tb = TB(dut)
    await tb.start()
    rng, c = tb.rng, tb.config
    await tb.do(tb.open(0))
    squeue, resident = 0, bench_params()["resident"]
    tb.pool[squeue] = 0
    tb.configure(squeue, 0, 0)
    await tb.tick()
    dut.config_write__valid.value = 0
    tb.stall = 0
    dut.turn__hold.value = 1
    for page in rng.sample(range(c.pages), resident):
        tb.demands.append(tb.demand(squeue, page, True))
    while tb.demands or tb.pipe:
        await tb.tick()
    for _ in range(200_000):
        await tb.tick()
        if dut.quiet.value == 1:
            break
    dut.turn__hold.value = 0
    dut.low_water.value = tb.tracker.pools[0].free + 1
    while dut.swept.value == 0:
        await tb.tick()
    start = tb.cycle
    while not tb.log:
        await tb.tick()
    # M3's latency both ways and the score's are the path's.
    record(
        cycles=tb.cycle - start - 2 * TB.M3 - TB.SCAN, words=-(-c.pages // 64), resident=resident
    )

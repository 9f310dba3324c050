# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The tracker against its golden model: every op of the table, its decision checked in the cycle in
which it is due.

The bench plays the engines, as far as the tracker can tell: it grants, fills, replays and flips
miss entries, evicts, recovers, closes and reopens sessions. What was decided is known when
`o_frame_op_hot` shows which lane a request took, at M3; the golden model steps then, and the
engines know no more than that.
"""

import random
from collections import deque
from dataclasses import asdict, replace

import cocotb
from cocotb.triggers import RisingEdge

from kelp_golden.ops import Op, QueueConfig, Session
from kelp_spec.config import POOLS, Config, named
from kelp_spec.metadata import Op as K
from kelp_spec.metadata import Outcome, PageState

from ..harness.runner import bench_params, record
from .tracker_engines import Engines
from .tracker_tb import APART, TB


async def start(dut, config, **options) -> TB:
    """A bench on a tracker out of reset, its queues configured at random."""
    tb = TB(dut, config, **options)
    tb.golden.low_water, tb.golden.reserve = 1, 3
    await tb.reset()
    tb.scrub_cycles = await tb.scrubbed()
    for squeue in range(config.squeues):
        await tb.configure(
            squeue,
            QueueConfig(tb.rng.randrange(5), tb.rng.randrange(5), tb.rng.randrange(len(POOLS))),
        )
    return tb


@cocotb.test(timeout_time=400, timeout_unit="us")
async def random_ops(dut):
    """Everything at once, in phases of different pressure; credits come and go."""
    params = bench_params()
    config = Config.of_json(asdict(named("unit")) | params.get("changes", {}))
    rng = random.Random(cocotb.RANDOM_SEED)
    tb = await start(
        dut, config, limits=[rng.randint(4, n) for n in config.frames], flips=params.get("flips", 0)
    )
    engines = Engines(tb)
    if params.get("narrow"):
        # Of one or two pages every op meets others on its page in the pipeline.
        engines.places = rng.sample(engines.places, params["narrow"])
        engines.focus = [rng.choice(engines.places)] * 2
    for s in range(config.sessions):
        tb.want, wants = dict.fromkeys(tb.want, lambda: None), tb.want
        tb.want_request = lambda: None
        await tb.open(s, engines.descriptor(s))
        tb.want, tb.want_request = wants, engines.request
    busy = {"control": (0, 0.02, 0.1), "evict": (0.3, 0.6, 1.0), "miss": (0.3, 1.0)}
    for phase in range(params["phases"]):
        tb.tells = phase % 2
        tb.pauses = 0.01 if phase % 5 == 1 else 0
        tb.writes = 0.02 if phase % 3 == 1 else 0
        # What is refused so has read its word, which golden does not say.
        tb.fatals = 0.05 if phase % 5 == 3 and not tb.flips else 0
        for name in engines.p:
            engines.p[name] = rng.choice(busy.get(name, (0.05, 0.3, 1.0)))
        for name in engines.credits:
            engines.credits[name] = rng.choice((0.5, 0.95, 1.0, 1.0))
        if phase % 4 == 2:
            # Ids come one by one, so that ops behind each other are after the same one; every other
            # time nobody else wants anything.
            engines.credits |= dict.fromkeys(engines.credits, 1.0) | {"free": 0.03}
            if phase % 8 == 2:
                engines.p |= dict.fromkeys(("hint", "evict", "prefetch", "control"), 0.02)
        engines.failed = 0.3 if phase % 6 == 5 else 0.03
        if phase % 3 == 0:
            engines.p["request"] = 1.0
        for _ in range(400):
            await tb.step()
    record(
        outcomes={f"{kind} {outcome}": n for (kind, outcome), n in tb.seen["outcomes"].items()},
        hot=tb.seen["hot"],
        faults=tb.seen["faults"],
        fatal=tb.seen["fatal"],
        paused=tb.seen["paused"],
        taken=tb.taken,
        scrub_cycles=tb.scrub_cycles,
    )


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def spaced_ops(dut):
    """A page touched for the first time in a step, then a few ops on it one to six cycles apart,
    most words written with flipped bits."""
    config = named("unit")
    tb = await start(dut, config, flips=0.7)
    rng = tb.rng
    await tb.open(
        0,
        Session(
            used_queues=config.queues,
            used_lines=config.half_lines,
            used_pages=config.pages,
            ld_id=1,
        ),
    )
    freed = deque()

    def after(op, r, before):
        if r.uncorrected and before.state == PageState.RESIDENT:
            freed.append((r.pool or tb.golden.queue_configs[op.squeue].pool, before.place))
        elif op.kind == K.SCRUB and r.use:
            freed.append((r.pool, r.frame))

    tb.after = after
    where = {"squeue": 1, "page": 2}
    for _ in range(bench_params()["sequences"]):
        write = {"write": 1, "has_write": 1, "ld_id": 1}
        await tb.ops(Op(K.STEP, delta=1))
        todo = deque(
            [
                (
                    "request",
                    rng.choice((Op(K.WRITE, **where, **write), Op(K.READ, **where, ld_id=1))),
                    1,
                )
            ]
        )
        for _ in range(4):
            stream, op = rng.choices(
                (
                    ("request", Op(K.READ, **where, ld_id=1)),
                    ("request", Op(K.READ, **where, ld_id=2)),
                    ("evict", Op(K.SCAN, **where)),
                    ("hint", Op(K.PIN, **where)),
                    ("hint", Op(K.UNPIN, **where)),
                ),
                (6, 1, 1, 1, 1),
            )[0]
            todo.append((stream, op, rng.randint(1, APART + 1)))
        while todo:
            stream, op, gap = todo.popleft()
            for _ in range(gap - 1):
                await tb.step()
            if stream == "request":
                tb.want_request = lambda op=op: op
            else:
                tb.want[stream] = lambda op=op: op
            await tb.step()
            tb.want_request = tb.want[stream] = lambda: None
            while tb.coming or stream in tb.held:
                await tb.step()
        await tb.drain()
        if rng.random() < 0.3:
            await tb.ops(Op(K.SCRUB, **where), stream="evict")
        while freed:
            pool, frame = freed.popleft()
            await tb.ops(Op(K.FREE, pool=pool, frame=frame), stream="evict")
    assert tb.seen["hot"] and min(tb.seen["faults"])
    record(hot=tb.seen["hot"], faults=tb.seen["faults"])


async def among(tb, op, requests):
    """Sends an op of control while requests stand, one behind the other."""
    ops, requests = [op], deque(requests)
    tb.want["control"] = lambda: ops.pop() if ops else None
    tb.want_request = lambda: requests.popleft() if requests else None
    while ops or requests:
        await tb.step()
    await tb.drain()
    tb.want["control"] = tb.want_request = lambda: None


@cocotb.test(timeout_time=400, timeout_unit="us")
async def refusals(dut):
    """Sessions of every size, one after another: requests on both sides of each of their limits, of
    the owner and of one whose LD-ID differs in a bit, while it is open, closing and closed."""
    config = named("unit").with_(parked=64)
    tb = await start(dut, config)
    rng, half = tb.rng, config.half_lines

    def near(used, most):
        """A number on either side of a limit, or any."""
        return rng.choice([used - 1, min(used, most - 1), rng.randrange(most)])

    for n in range(bench_params()["sessions"]):
        s = n % config.sessions
        session = Session(
            ld_id=rng.randrange(16),
            host_type=rng.getrandbits(1),
            used_queues=rng.randint(1, config.queues),
            used_lines=rng.randint(1, half),
            k_only=rng.getrandbits(1),
            used_pages=rng.randint(1, config.pages),
            kv_heads=rng.getrandbits(config.queue_bits + 1),
            step=rng.getrandbits(24),
        )

        def read(s=s, session=session):
            kind = rng.randrange(2)
            line = near(session.used_lines, half) + half * rng.choice([0, 0, 1])
            other = (rng.random() < 0.1) << rng.randrange(4)
            return Op(
                K.WRITE if kind and session.closing else K.READ,
                session=s,
                squeue=s * config.queues + near(session.used_queues, config.queues),
                page=near(session.used_pages, config.pages),
                kv_line=line,
                write=int(kind and session.closing),
                ld_id=session.ld_id ^ other,
            )

        await tb.ops(*(read() for _ in range(4)), stream="request")
        tb.show_descriptor(session)
        await among(tb, Op(K.OPEN, session=s), [read() for _ in range(60)])
        await among(tb, Op(K.CLOSE, session=s), [read() for _ in range(30)])
        session.closing = 1
        await tb.ops(*(read() for _ in range(4)), stream="request")
        await tb.ops(Op(K.CLOSED, session=s), stream="evict")
    refused = sum(n for (_, outcome), n in tb.seen["outcomes"].items() if outcome == "REFUSED")
    assert refused > 20 * bench_params()["sessions"]
    # What is refused as FATAL does not wait for a place in the miss buffer.
    tb.fatals, tb.credit = 1.0, lambda name: int(name != "miss")
    await tb.ops(*(read() for _ in range(6)), stream="request")
    assert tb.seen["fatal"] == 6


@cocotb.test(timeout_time=200, timeout_unit="us")
async def ids_run_out(dut):
    """Writes one behind the other, of which the first of a pool finds its only frame and each of
    the others needs a miss id: as many enter as there are ids, at hand or still to come, and no
    more."""
    config = named("unit").with_(parked=64)
    await start(dut, config)
    used = {"used_queues": config.queues, "used_pages": config.pages}
    for ids in 2 * (*range(1, 10),):
        tb = await again(dut, config, limits=[1] * len(POOLS))
        tb.miss_ids = deque(range(ids))
        often = tb.rng.choice([0.2, 1])
        await tb.open(0, Session(**used, used_lines=config.half_lines, ld_id=1))
        pages = iter([(q, p) for q in range(config.queues) for p in range(config.pages)])

        def write(pages=pages):
            squeue, page = next(pages)
            return Op(K.WRITE, squeue=squeue, page=page, write=1, has_write=1, ld_id=1)

        tb.credit = lambda name, tb=tb, often=often: int(name != "free" or tb.rng.random() < often)
        tb.want_request = write
        for _ in range(8 * ids + 40):
            await tb.step()
        found = sum(not pool.free for pool in tb.golden.pools)
        assert tb.taken["request"] == ids + found, f"{tb.taken['request']} enter with {ids} ids"


class HotModel:
    """Which pages are hot when nothing is under way: places that are filled in turn."""

    def __init__(self, places):
        self.places, self.turn = [None] * places, 0

    def after(self, op, r, before):
        page = op.session, op.squeue, op.page
        if r.outcome in (Outcome.HIT, Outcome.ALLOCATED) and page not in self.places:
            self.places[self.turn] = page
            self.turn = (self.turn + 1) % len(self.places)
        elif op.kind in (K.CLAIM, K.SCRUB):
            self.places = [None if each == page else each for each in self.places]
        elif op.kind in (K.STEP, K.CLOSE):
            self.places = [
                each and (each if each[0] != op.session else None) for each in self.places
            ]


@cocotb.test(timeout_time=200, timeout_unit="us")
async def hot_pages(dut):
    """Op after op, each alone: a request takes the hot lane exactly if its page is one of those
    that came last, and nothing has made it leave since."""
    config = named("unit").with_(parked=64)
    await start(dut, config)
    tb = await again(dut, config)  # a pool for each queue, so that all pages find frames
    rng, model, freed, taken = tb.rng, HotModel(config.hot_pages), deque(), 0
    used = {"used_queues": config.queues, "used_pages": config.pages}
    for s in range(config.sessions):
        await tb.open(s, Session(**used, used_lines=config.half_lines, ld_id=1 + s))

    def after(op, r, before):
        model.after(op, r, before)
        if op.kind == K.SCRUB and r.use:
            freed.append(Op(K.FREE, pool=r.pool, frame=r.frame))

    tb.after = after
    places = [
        (s, s * config.queues + q, page) for s in (0, 1) for q in (1, 2) for page in (0, 1, 5)
    ]
    few = places
    for n in range(bench_params()["ops"]):
        if n % 40 == 0:
            few = rng.sample(places, rng.choice([3, config.hot_pages + 1, 8]))
        session, squeue, page = rng.choice(few)
        where = {"session": session, "squeue": squeue, "page": page}
        kind = rng.choices(("read", "write", "claim", "scrub", "step"), (12, 6, 1, 1, 0.5))[0]
        if kind in ("read", "write"):
            op = Op(K.READ, **where, ld_id=1 + session)
            if kind == "write":
                op.kind, op.write, op.has_write, op.poison = K.WRITE, 1, 1, rng.random() < 0.2
            if rng.random() < 0.05:
                op.ld_id ^= 1 << rng.randrange(4)
            hot = (session, squeue, page) in model.places and not op.poison
            hot, before = hot and op.ld_id == 1 + session, tb.seen["hot"]
            await tb.ops(op, stream="request")
            assert tb.seen["hot"] - before == hot, f"{op}: hot pages are {model.places}"
            taken += hot
        elif kind == "step":
            await tb.ops(Op(K.STEP, session=session, delta=1))
        elif kind == "claim":
            step = tb.golden.word(squeue, page).last_step
            await tb.ops(Op(K.CLAIM, **where, delta=step), stream="evict")
        else:
            await tb.ops(Op(K.SCRUB, **where), stream="evict")
        while freed:
            await tb.ops(freed.popleft(), stream="evict")
    assert bench_params()["ops"] // 8 < taken < bench_params()["ops"] * 3 // 4
    record(hot=taken)


async def measure(tb, requests, least):
    """(requests, background ops) per cycle while `requests` are sent as fast as they go and SCANs
    press from behind."""
    rng, config = tb.rng, tb.config
    todo = iter(requests)
    more = [next(todo)]

    def request():
        op, more[0] = more[0], next(todo, None)
        return op

    def scan():
        return Op(K.SCAN, squeue=rng.randrange(config.queues), page=rng.randrange(config.pages))

    tb.want_request = lambda: request() if more[0] is not None else None
    tb.want["evict"], tb.tells = scan, 1
    await tb.step()  # the first request is shown a cycle ahead
    begin, before = tb.cycle, dict(tb.taken)
    while more[0] is not None:
        await tb.step()
    cycles = tb.cycle - begin
    assert cycles >= least
    sent = {name: (tb.taken[name] - before[name]) / cycles for name in tb.taken}
    tb.want["evict"] = tb.want_request = lambda: None
    await tb.drain()
    return sent["request"], sent["evict"], cycles


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def rates(dut):
    """Requests per cycle with background ops waiting all the time: page-sequential and page-random,
    8 lines per page."""
    config = named(bench_params()["config"])
    tb = await start(dut, config)
    for squeue in range(config.squeues):
        tb.golden.queue_configs[squeue].pool = squeue % len(POOLS)
        await tb.configure(squeue, tb.golden.queue_configs[squeue])
    # What was in the SRAM at power-up is gone.
    await tb.ops(
        *(
            Op(K.PEEK, squeue=tb.rng.randrange(config.squeues), page=tb.rng.randrange(config.pages))
            for _ in range(200)
        )
    )
    assert tb.seen["faults"][1:] == [0, 0]
    lines = 4
    await tb.open(
        0, Session(used_queues=config.queues, used_lines=lines, used_pages=config.pages, ld_id=1)
    )
    streams, pages = [s * config.queues // 16 for s in range(16)], config.pages

    def sequential(write):
        for page in range(pages):
            for line in range(2 * lines):
                for squeue in streams:
                    kv_line = line % lines + line // lines * config.half_lines
                    yield Op(
                        K.WRITE if write else K.READ,
                        squeue=squeue,
                        page=page,
                        kv_line=kv_line,
                        write=write,
                        has_write=write,
                        ld_id=1,
                    )

    def scattered(count):
        places = [(q, p) for q in streams for p in range(pages)]
        for _ in range(count):
            squeue, page = tb.rng.choice(places)
            yield Op(K.READ, squeue=squeue, page=page, kv_line=tb.rng.randrange(lines), ld_id=1)

    figures = {}
    figures["sequential_write"] = await measure(tb, sequential(1), 4000)
    await tb.ops(Op(K.STEP, delta=1))
    figures["sequential_read"] = await measure(
        tb, (op for _ in range(3) for op in sequential(0)), 10_000
    )
    await tb.ops(Op(K.STEP, delta=1))
    alone = (
        Op(
            K.READ,
            squeue=q,
            page=p,
            kv_line=line % lines + line // lines * config.half_lines,
            ld_id=1,
        )
        for q in streams
        for p in range(pages)
        for line in range(2 * lines)
    )
    figures["single_stream_read"] = await measure(tb, alone, 4000)
    figures["random_read"] = await measure(tb, scattered(10_000), 10_000)
    record(**figures)


async def again(dut, config, **options) -> TB:
    """A bench on the tracker behind another reset, its queues configured."""
    tb = TB(dut, config, **options)
    tb.golden.low_water, tb.golden.reserve = 1, 3
    tb.set_pools()
    dut.rst.value = 1
    for payload, valid, _ in tb.ports.values():
        payload.value = valid.value = 0
    dut.i_miss_free__valid.value = 0
    dut.ecc_flip.value = 0
    await RisingEdge(dut.clk)
    dut.rst.value = 0
    assert await tb.scrubbed() == config.page_words
    for squeue in range(config.squeues):
        await tb.configure(squeue, QueueConfig(1, 2, squeue % len(POOLS)))
    return tb


@cocotb.test(timeout_time=100, timeout_unit="us")
async def flipped_bits(dut):
    """Bits flip in the queues' formats: told where an op of the queue uses them, and by no other.
    Bits flip in freed frames: told when they are handed out."""
    config = named("unit").with_(parked=64)
    tb = await start(dut, config)
    rows = "queues.rows.rows.memory"

    def uses(tb):
        """Ops of a queue, the stream of each, and whether it uses the queue's row."""
        where = {"squeue": tb.rng.randrange(1, config.queues), "page": 2}
        read = Op(K.READ, **where, ld_id=1)
        return [
            ("request", read, 1),
            ("request", replace(read, ld_id=2), 0),
            ("request", replace(read, refused=1), 0),
            ("request", replace(read, no_memory=1), 0),
            ("hint", Op(K.MASS, **where), 1),
            ("evict", Op(K.SCAN, **where), 1),
            ("evict", Op(K.CLAIM, **where), 1),
            ("evict", Op(K.PEEK, **where, slot=9), 0),
            ("control", Op(K.PEEK, **where), 0),
            ("control", Op(K.STEP, **where, delta=1), 0),
        ]

    async def opened(tb):
        used = {"used_queues": config.queues, "used_pages": config.pages}
        await tb.open(0, Session(**used, used_lines=config.half_lines, ld_id=1))

    async def recycled(tb, squeue):
        """All frames of a queue's pool have been used, and half of them are free."""
        write = {"write": 1, "has_write": 1, "ld_id": 1}
        for page in range(config.pages):
            await tb.ops(Op(K.WRITE, squeue=squeue, page=page, **write), stream="request")
        for page in range(config.pages // 2):
            word, pool = tb.golden.word(squeue, page), tb.golden.queue_configs[squeue].pool
            await tb.ops(Op(K.SCRUB, squeue=squeue, page=page), stream="evict")
            await tb.ops(Op(K.FREE, pool=pool, frame=word.place), stream="evict")

        async def take():
            for page in range(config.pages // 2):
                await tb.ops(Op(K.WRITE, squeue=squeue, page=page, **write), stream="request")

        return take

    for bits in (1, 2):
        for n in range(len(uses(tb))):
            tb = await again(dut, config)
            await opened(tb)
            stream, op, used = uses(tb)[n]
            tb.faults.flip(rows, bits)
            await tb.faults.expect(rows, bits if used else 1, used, tb.ops(op, stream=stream))
            assert used or not tb.faults.told, f"{op}: {tb.faults.told}"
        for squeue, pool in enumerate(POOLS):
            tb = await again(dut, config)
            await opened(tb)
            take, ring = await recycled(tb, squeue), f"pools.{pool}.ring.rows.memory"
            tb.faults.flip(ring, bits)
            # The next one is in a register already.
            await tb.faults.expect(ring, bits, config.pages // 2 - 1, take())


@cocotb.test(timeout_time=100, timeout_unit="us")
async def reset_forgets(dut):
    """Reset under traffic: page words, sessions and pools are as at the beginning, and nothing
    comes out any more."""
    config = named("unit")
    tb = await start(dut, config)
    engines = Engines(tb)
    for attempt in range(3):
        tb.want, wants, tb.want_request = (
            dict.fromkeys(tb.want, lambda: None),
            tb.want,
            lambda: None,
        )
        for s in range(config.sessions):
            await tb.open(s, engines.descriptor(s))
        tb.want, tb.want_request = wants, engines.request
        for _ in range(300):
            await tb.step()
        assert tb.golden.words
        if attempt == 2:
            break
        tb = await again(dut, config)
        await tb.ops(
            *(
                Op(K.PEEK, session=q // config.queues, squeue=q, page=p)
                for q in range(config.squeues)
                for p in range(config.pages)
            )
        )
        engines = Engines(tb)

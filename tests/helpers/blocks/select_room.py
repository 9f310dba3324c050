# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Select between a host, a tracker and a data path that are the golden endpoint."""

import random
from collections import deque

import numpy as np
from amaranth.hdl import Value
from region_bench import LINES, OWNER, TOKENS, write
from select_cases import SCALE, sound_plan
from summary_port import SummaryPort

from kelp_golden.endpoint import Endpoint, QueuePolicy
from kelp_golden.lines import POISONED
from kelp_golden.ops import Op as TrackerOp
from kelp_golden.ops import QueueConfig, Session
from kelp_golden.select_region import SelectRegion
from kelp_hw.select.select import Select
from kelp_spec.config import named
from kelp_spec.metadata import Answer, Event, Op, Outcome
from kelp_spec.select import (
    ANSWER_FIELDS,
    BELL_FIELDS,
    record,
    record_bytes,
)
from kelp_verif.harness import runner
from kelp_verif.harness.compiled import simulate

__all__ = [
    "BELL",
    "CONFIG",
    "OWNER",
    "PLAN",
    "SHAPE",
    "Room",
    "compare",
    "device",
    "pins",
    "queries",
    "write",
]

#: One lane of eight: the simulator is slow, and nothing here depends on the codec's lanes.
CONFIG = named("unit_select").with_(name="room", codec_lanes=8)
BELL = {"newest": 9, "tokens": TOKENS, "lines": LINES, "most": 4, "target": 2 << 16, **SCALE}
#: The plan of every SELECT that has no other.
PLAN = sound_plan(np.random.default_rng(0), LINES)
#: A page that a hint names.
HINTED = {"squeue": CONFIG.squeues - 1, "page": CONFIG.pages - 1}
SHAPE = Session(used_queues=4, used_lines=4, used_pages=32, kv_heads=2, ld_id=OWNER)


def device(*, pages=10, queues=(0,), reserve=0, seed=1, session=0):
    """A golden endpoint with one session, and pages in some of its queues."""
    rng = np.random.default_rng(seed)
    made = Endpoint(CONFIG)
    made.tracker.reserve = reserve
    for squeue in range(CONFIG.squeues):
        made.configure(squeue, QueueConfig(), QueuePolicy())
    made.apply(TrackerOp(Op.OPEN, session=session), descriptor=SHAPE)
    for queue in queues:
        for page in range(pages):
            write(made, queue, page, rng.standard_normal((4, 32)).astype("<f2"), session)
    return made


class Room:
    """The block, the golden endpoint and a memory of summaries around it, and a host that does one
    access after another, in `session`. `errs` as of SummaryPort."""

    def __init__(self, around, *, offer=1.0, take=1.0, seed=1, cycles=30_000, errs=None, session=0):
        self.around, self.offer, self.take, self.cycles = around, offer, take, cycles
        self.rng, self.errs, self.session = random.Random(seed), errs, session
        self.ops, self.events, self.fetched = [], [], []
        self.named = []  # the queue and the page of each event
        self.told_to = []  # whose it is
        self.stood = {}  # what the block offers and nobody has taken
        self.when = []  # the cycle of each op
        self.told_lines = []  # of each answer that `compare` compared
        self.results, self.answers = deque(), deque()
        #: (squeue, page) whose key the host writes in each cycle: M3 hears of it where the message
        #: has passed, and no LOOK is decided
        self.written, self.passed = None, False
        self.shared = False  # there are two sessions, and any op may be of either
        self.hot_page = None  # what M0 says of a hot page in the next cycle
        #: a hint's op, and a page of one, stand at the block in every cycle
        self.hints = self.hinted = False
        self.passed_pages = 0  # of hints

    def run(self, host):
        """`host(room)` is a coroutine that awaits `access`, `read`, `gather` and `cycle`."""
        self.dut = runner.made(Select, config=CONFIG)
        self.summaries = SummaryPort(
            self.dut.summary_axi,
            rng=random.Random(self.rng.random()),
            latency=1 if self.take == 1 else 12,
            stall=(1 - self.take) / 2,
            **({"errs": self.errs} if self.errs else {}),
        )

        # Amaranth makes objects of a field whenever it is named, which takes longer than all the
        # rest of a cycle: those of the sessions are told when they change.
        self.shapes = [self.dut.sessions[s] for s in range(CONFIG.sessions)]
        self.told = [{} for _ in self.shapes]

        async def bench(ctx):
            self.ctx, self.left = ctx, self.cycles
            ctx.set(self.dut.i_result.valid, 0)
            for _ in range(CONFIG.page_words + 4):
                await self.cycle()
            await host(self)

        simulate(self.dut, bench)

    async def cycle(self):
        """One cycle of everything but the host."""
        ctx, dut, rng = self.ctx, self.dut, self.rng
        self.left -= 1
        assert self.left, "the time is over"
        for s, held in enumerate(self.around.tracker.sessions):
            for name in ("open", "closing", "ld_id", "used_queues", "used_lines", "used_pages"):
                self.tell_session(s, name, int(getattr(held, name)))
        ready = rng.random() < self.take
        ctx.set(dut.o_op.ready, ready)
        ctx.set(dut.i_op.valid, self.hints)
        ctx.set(dut.i_op.p.kind, Op.MASS)
        ctx.set(dut.i_page.valid, self.hinted)
        ctx.set(dut.i_page.p, HINTED)
        ctx.set(dut.i_result.valid, bool(self.results))
        ctx.set(dut.i_write.valid, self.written is not None)
        ctx.set(dut.o_write.ready, 1)
        hot, self.passed = self.passed, bool(ctx.get(dut.o_write.valid))
        ends = False
        if self.results:
            hot &= self.results[0]["op"]["kind"] != Op.LOOK  # they share a stage
            told = self.results.popleft()
            ends = told["op"]["kind"] in (Op.CLOSE, Op.OPEN) and told["outcome"] == Outcome.DONE
            ctx.set(dut.i_result.p, told)
        if hot:
            self.hot_page = {"squeue": self.written[0], "page": self.written[1], "write": 1}
        ctx.set(dut.i_hot.valid, self.hot_page is not None)
        if self.hot_page is not None:
            ctx.set(dut.i_hot.p, self.hot_page)
        self.hot_page = None
        offered = getattr(self, "offered", False) or (
            bool(self.answers) and rng.random() < self.offer
        )
        ctx.set(dut.i_answer.valid, offered)
        if offered:
            ctx.set(dut.i_answer.p, self.answers[0])
        if ctx.get(dut.o_op.valid) and ready and ctx.get(dut.o_op.p.kind) != Op.MASS:
            self._decide(ctx.get(dut.o_op.p))
        self.offered = offered and not ctx.get(dut.i_answer.ready)
        if offered and not self.offered:
            self.answers.popleft()
        fetches = rng.random() < self.take
        ctx.set(dut.o_page.ready, fetches)
        if ctx.get(dut.o_page.valid) and fetches:
            page = ctx.get(dut.o_page.p.squeue), ctx.get(dut.o_page.p.page)
            if self.hinted and page == tuple(HINTED.values()):
                self.passed_pages += 1
            else:
                self.fetched.append(page)
        self._stands()
        assert not (ends and ctx.get(dut.idle)), "a session ends"
        for source in dut.o_event:
            if ctx.get(source.valid):
                self.events.append((Event(ctx.get(source.p.code)), ctx.get(source.p.argument)))
                self.named.append((ctx.get(source.p.squeue), ctx.get(source.p.page)))
                self.told_to.append(ctx.get(source.p.ld_id))
        self.summaries.cycle(ctx)
        await ctx.tick()

    def _stands(self):
        """What the block offers stays until it is taken, and it is not idle meanwhile."""
        get, dut = self.ctx.get, self.dut
        for name in ("o_op", "o_page"):
            stream = getattr(dut, name)
            valid, item = get(stream.valid), get(Value.cast(stream.payload))
            if name in self.stood:
                assert (valid, item) == (1, self.stood.pop(name)), f"{name} is taken back"
            if valid and not get(stream.ready):
                self.stood[name] = item
        own = get(dut.o_op.valid) and get(dut.o_op.p.kind) != Op.MASS
        own |= get(dut.o_page.valid) and not self.hinted
        assert not (own and get(dut.idle)), "it is idle, and has an op or a page"

    @property
    def losers(self):
        """Whose each summary is that memory lost."""
        told = zip(self.events, self.told_to, strict=True)
        return [owner for (event, _), owner in told if event == Event.SUMMARY_LOST]

    def tell_session(self, session, name, value):
        """What M3 says of a session."""
        if self.told[session].get(name) != value:
            self.told[session][name] = value
            self.ctx.set(getattr(self.shapes[session], name), value)

    def _decide(self, op):
        """M3 decides an op, and memory gives its line."""
        assert op.session == op.squeue // CONFIG.queues == self.session or self.shared
        asked = TrackerOp(
            op.kind, session=op.session, squeue=op.squeue, page=op.page, kv_line=op.kv_line
        )
        result = self.around.apply(asked)
        self.ops.append((Op(op.kind).name, op.squeue, op.page, op.kv_line))
        self.when.append(self.cycles - self.left)
        told = {"kind": op.kind, "squeue": op.squeue, "page": op.page, "kv_line": op.kv_line}
        self.results.append({"op": told, "outcome": result.outcome})
        if op.kind == Op.LOOK and result.outcome == Outcome.DONE:
            version = self.around.version
            rows = self.around.lines.resolve([version])
            self.answers.append(
                {
                    "answer": Answer.POISON if version == POISONED else Answer.DATA,
                    "data": int.from_bytes(rows.tobytes(), "little"),
                    "origin": {"look": 1},
                }
            )

    def tell(self, kind, squeue=0, page=0, kv_line=0, *, outcome=Outcome.DONE, state=0, **fields):
        """A result of an op that is not the block's, of a page that was in `state`."""
        op = {"kind": kind, "squeue": squeue, "page": page, "kv_line": kv_line}
        op |= {"session": self.session} | fields
        self.results.append({"op": op, "outcome": outcome, "old": {"state": state}})

    async def access(self, line, data=None, ld_id=OWNER, whole=True):
        """A write of a line of the region, or a read; what is answered."""
        ctx, dut = self.ctx, self.dut
        access = {"select": 1, "offset": line, "ld_id": ld_id, "tag": 7, "write": data is not None}
        if data is not None:
            access |= {
                "data": int.from_bytes(data, "little"),
                "byte_enable": (1 << 64) - (1 if whole else 2),
            }
        ctx.set(dut.i_access.p, access)
        ctx.set(dut.i_access.valid, 1)
        found, done = None, False
        while not done:
            ready = self.rng.random() < self.take
            ctx.set(dut.o_served.ready, ready)
            if ctx.get(dut.o_served.valid) and ready:
                found = ctx.get(dut.o_served.p.data).to_bytes(64, "little")
            done = ctx.get(dut.i_access.ready)
            await self.cycle()
        ctx.set(dut.i_access.valid, 0)
        assert found is not None
        return found

    async def ask(self, region, queries, *, group=0, ld_id=OWNER, plan=PLAN):
        """The lines of a query and of a plan, to the block and to the golden `region`."""
        for head, rows in enumerate([*queries, plan] if len(queries) else ()):
            for n, row in enumerate(rows):
                line = region.map.query(self.session, group, head, n)
                await self.access(line, row.tobytes(), ld_id)
                region.write(line, row.tobytes(), ld_id)

    async def ring(self, region, bell, *, group=0, whole=True, ld_id=OWNER):
        """A doorbell."""
        line = region.map.bell(self.session, group)
        data = record_bytes(BELL_FIELDS, BELL | bell).ljust(64, b"\0")
        await self.access(line, data, ld_id, whole)
        region.write(line, data, ld_id, whole=whole)

    async def answered(self, region, sequence, *, group=0):
        """The lines of an answer of both, when it is there."""
        line, lines = region.map.bell(self.session, group), region.map.answer_lines
        for _ in range(60):
            idle, header = self.ctx.get(self.dut.idle), await self.access(line)
            if record(ANSWER_FIELDS, header)["sequence"] == sequence:
                break
            assert not idle, "a SELECT is under way"
            for _ in range(50):
                await self.cycle()
        found = [header] + [await self.access(line + n) for n in range(1, lines)]
        return found, [region.read(line + n, OWNER) for n in range(lines)]

    async def select(self, region, bell, queries=None, *, group=0, whole=True, ld_id=OWNER):
        """A whole SELECT, and the same on the golden `region`; the answers of both."""
        await self.ask(region, () if queries is None else queries, group=group, ld_id=ld_id)
        await self.ring(region, bell, group=group, whole=whole, ld_id=ld_id)
        return await self.answered(region, bell["sequence"], group=group)

    async def gather(self, address, opcode=0):
        """Where a request goes."""
        ctx, dut = self.ctx, self.dut
        ctx.set(dut.i_request.p, {"address": address >> 6, "tag": 5, "opcode": opcode})
        ctx.set(dut.i_request.valid, 1)
        while not ctx.get(dut.i_request.ready):
            await self.cycle()
        await self.cycle()
        ctx.set(dut.i_request.valid, 0)
        while True:
            ready = self.rng.random() < self.take
            ctx.set(dut.o_request.ready, ready)
            if ready and ctx.get(dut.o_request.valid):
                found = ctx.get(dut.o_request.p.address) << 6
                await self.cycle()
                ctx.set(dut.o_request.ready, 0)
                return found
            await self.cycle()


def queries(seed=5):
    return np.random.default_rng(seed).standard_normal((2, LINES, 32)).astype("<f2")


def logged(region):
    """The ops of a golden region, as they come."""
    ops, apply = [], region.endpoint.apply

    def log(op):
        ops.append((Op(op.kind).name, op.squeue, op.page, op.kv_line))
        return apply(op)

    region._apply = log
    return ops


def pins(endpoint):
    return {key: word.pinned for key, word in endpoint.tracker.words.items() if word.pinned}


def compare(bells, *, around, offer=1.0, take=1.0, between=None, cycles=30_000):
    """SELECTs one after another on block and golden region: the same ops, answers and slots."""
    makes = device(**around), device(**around)
    room = Room(makes[0], offer=offer, take=take, cycles=cycles, session=around.get("session", 0))
    room.hints = room.hinted = take < 1
    region = SelectRegion(makes[1])
    ops, fetched, told = logged(region), [], []
    region._fetch = fetched.extend
    region._on_event = lambda *event: told.append(event)

    async def host(room):
        for n, bell in enumerate(bells):
            found, wanted = await room.select(region, {"sequence": n + 1} | bell, queries(n))
            assert found == wanted, (bell, record(ANSWER_FIELDS, found[0]))
            room.told_lines.append(found)
            for _ in range(30):
                await room.cycle()
            if between:
                between(room, makes, n)

    room.run(host)
    assert room.ops == ops
    assert room.fetched == fetched
    events = zip(room.events, room.told_to, room.named, strict=True)
    assert [(event, to, *at, why) for (event, why), to, at in events] == told
    assert pins(makes[0]) == pins(makes[1])
    return room, region

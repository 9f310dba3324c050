# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The miss buffer with an M3, frames and a cold tier around it (see
:mod:`kelp_verif.miss.miss_buffer_bench`)."""

import random
from collections import Counter, deque

import cocotb
from cocotb.triggers import ReadOnly, RisingEdge

from kelp_hw.export.packing import Packing
from kelp_hw.layouts import Layouts
from kelp_hw.miss.grants import MissGrants
from kelp_hw.pipeline import RESERVE
from kelp_hw.tracker.signatures import count_bits
from kelp_spec.config import POOLS, Config
from kelp_spec.metadata import MissKind, Op, Outcome, PageState, PrefetchSource

from ..harness.flips import Faults

DEPTH = 4  #: cycles from an op's entry to its result
IDS = 4  #: miss ids that the tracker holds at hand
REQUEST_FIELDS = (
    "kv_line",
    "write",
    "partial",
    "poison",
    "has_write",
    "write_slot",
    "origin.tag",
    "origin.ld_id",
    "origin.start",
)


class Miss:
    """What one entry must go through."""

    def __init__(self, page, pool, kind, lost, source, since, session):
        self.page, self.pool, self.kind, self.lost, self.source, self.since, self.session = (
            page,
            pool,
            kind,
            lost,
            source,
            since,
            session,
        )
        self.parked = deque()
        self.frame = None
        self.fetching = self.landed = self.filled = self.starved = self.dropped = False
        self.failed = False
        self.replays = 0
        self.retried = False
        self.line_mask = (0, 0)


class TB:
    def __init__(self, dut, config: Config, *, frames=None):
        self.dut, self.config = dut, config
        self.rng = random.Random(cocotb.RANDOM_SEED)
        layouts = Layouts(config)
        self.orphan_token = layouts.orphan_token
        self.result, self.op = Packing(layouts.result), Packing(layouts.op)
        self.fetch, self.fetched, self.line_mask = (
            Packing(layouts.fetch),
            Packing(layouts.fetched),
            Packing(layouts.line_mask),
        )
        self.frames = frames or list(config.frames)
        self.count_bits = count_bits(config)
        self.now = self.rng.getrandbits(32)
        self.seen = Counter()
        self.faults = Faults(dut, self.rng)
        self.cycles = 0
        self.op_ready = 1.0  # part of the cycles in which an op is accepted
        self.answer_rate = 0.05  # chance that the tier answers in a cycle
        self.fail_rate = 0.1
        self.tier_answers = True
        # chance that a GRANT finds its frame gone, as when a limit is lowered
        self.retry_rate = 0.0

    async def reset(self, *, starve_limit=1 << 30):
        dut = self.dut
        self.pages = {}  # (squeue, page) → (state, frame or miss id)
        self.misses: dict[int, Miss] = {}
        self.waiting = [deque() for _ in POOLS]
        self.free = [
            list(range(first, first + n))
            for first, n in zip(self.config.pool_first_frame, self.frames, strict=True)
        ]
        self.ids = deque()
        self.pipe = deque([None] * DEPTH)
        self.line_mask_expected = self.line_mask_due = None
        self.answers = deque()
        self.offered = None
        self.served = self.parked = 0
        self.drains = False
        self.late = None  #: cycles from an entry's limit to the first offer of a GRANT that fails
        self.had = [False] * len(POOLS)  #: the pool had a frame in the cycle before
        self.hoped = [0] * len(POOLS)  #: cycles for which the pool had a frame for an entry
        self.drained = -DEPTH  #: the cycle of the latest FLIP that ended a drain
        self.stood = 0  #: cycles without an op on offer while an entry is alive that could be home
        self.starve_limit = starve_limit
        dut.starve_limit.value = starve_limit
        for name in (
            "i_result__payload",
            "i_result__valid",
            "o_miss_free__ready",
            "o_op__ready",
            "line_mask_address",
            "i_fetched__valid",
            "i_fetched__payload",
        ):
            getattr(dut, name).value = 0
        dut.pool_free.value = 0
        dut.now.value = self.now & 0xFFFFFFFF
        dut.rst.value = 1
        for _ in range(3):
            await RisingEdge(dut.clk)
        dut.rst.value = 0

    def pool_of(self, page):
        return page[0] % len(POOLS)

    # - what M3 decides ----------------------------------------------------------------------------
    def decide(self, op):
        """Result fields of `op`, a dict of op fields."""
        kind = op["kind"]
        page = (op["squeue"], op["page"])
        state, place = self.pages.get(page, (PageState.COLD, 0))
        pool = self.pool_of(page)
        out = {
            "old.state": state,
            "outcome": Outcome.DONE,
            "pool": pool,
            "miss": op["miss"],
            "frame": op["frame"],
        }
        if kind in (Op.READ, Op.WRITE):
            if state == PageState.FETCHING:
                self.park(place, op)
                return out | {"outcome": Outcome.PARKED, "miss": place}
            if state == PageState.RESIDENT:
                return out | {"outcome": Outcome.HIT}
            if state != PageState.COLD and kind == Op.READ:
                return out | {
                    "outcome": Outcome.POISON if state == PageState.LOST else Outcome.ZERO
                }
            if state != PageState.COLD and len(self.free[pool]) > len(self.waiting[pool]):
                self.pages[page] = (PageState.RESIDENT, frame := self.free[pool].pop(0))
                return out | {"outcome": Outcome.ALLOCATED, "frame": frame}
            miss = self.create(
                page,
                pool,
                MissKind.DEMAND if state == PageState.COLD else MissKind.ALLOCATE,
                state == PageState.LOST,
                0,
                op["session"],
            )
            self.waiting[pool].append(miss)
            self.park(miss, op)
            return out | {"outcome": Outcome.MISSED, "miss": miss}
        if kind == Op.PREFETCH:
            if state != PageState.COLD or len(self.free[pool]) <= len(self.waiting[pool]):
                return out | {"outcome": Outcome.DROPPED}
            miss = self.create(page, pool, MissKind.PREFETCH, False, op["source"], op["session"])
            self.misses[miss].frame = self.free[pool].pop(0)
            self.expect_fetch(miss)
            return out | {"outcome": Outcome.MISSED, "miss": miss, "frame": self.misses[miss].frame}
        entry = self.misses[op["miss"]]
        assert entry.page == page and entry.session == op["session"], (
            f"{Op(kind).name} of another page"
        )
        self.seen[Op(kind).name] += 1
        self.check_op(op, entry)
        return out | {
            Op.GRANT: self.grant,
            Op.FILL: self.fill,
            Op.REPLAY: self.replay,
            Op.FLIP: self.flip,
        }[kind](op, entry)

    def check_op(self, op, entry):
        """Every field of an op of the miss buffer: what the op does not say is zero."""
        kind, page = op["kind"], {"squeue": entry.page[0], "page": entry.page[1]}
        want = page | {name: op[name] for name in ("kind", "miss", "failed", "lost")}
        want |= {"pool": entry.pool, "session": entry.session, "miss_kind": entry.kind}
        if kind != Op.GRANT:
            want |= {"source": entry.source, "slot": self.orphan_token, "origin.missed": 0}
            # What a starved entry's frame was is no matter.
            want["frame"] = op["frame"] if entry.starved else entry.frame
        if kind == Op.REPLAY:
            want |= dict.fromkeys(REQUEST_FIELDS) | entry.parked[0] | {"origin.missed": 1}
        wrong = {name: value for name, value in op.items() if value != want.get(name, 0)}
        assert not wrong, f"{kind.name}: {wrong}, want {want}"
        assert not op["lost"] or kind in (Op.FILL, Op.FLIP), f"{kind.name} says that it is lost"

    def create(self, page, pool, kind, lost, source, session):
        miss = self.ids.popleft()
        assert miss not in self.misses, f"miss id {miss} has two owners"
        self.misses[miss] = Miss(page, pool, kind, lost, source, self.now, session)
        self.pages[page] = (PageState.FETCHING, miss)
        self.seen[kind.name] += 1
        return miss

    def park(self, miss, op):
        entry = self.misses[miss]
        entry.parked.append({name: op[name] for name in REQUEST_FIELDS})
        self.parked += 1
        if entry.kind == MissKind.PREFETCH:
            self.seen["raised"] += 1

    def expect_fetch(self, miss):
        self.misses[miss].fetching = True

    def grant(self, op, entry):
        assert op["pool"] == entry.pool and self.waiting[entry.pool][0] == op["miss"], (
            "not the oldest of its pool"
        )
        assert op["miss_kind"] == entry.kind
        if op["failed"]:
            assert self.now - entry.since >= self.starve_limit, "given up too early"
            entry.starved = entry.landed = True
        elif not self.free[entry.pool] or self.rng.random() < self.retry_rate:
            self.seen["GRANT retry"] += 1
            return {"outcome": Outcome.RETRY}
        else:
            entry.frame = self.free[entry.pool].pop(0)
            if entry.kind == MissKind.DEMAND:
                self.expect_fetch(op["miss"])
            else:
                entry.landed = True
        self.waiting[entry.pool].popleft()
        return {"frame": entry.frame or 0, "pool": entry.pool}

    def fill(self, op, entry):
        assert entry.landed and not entry.filled and not entry.starved, (
            "FILL of a page that is not there"
        )
        assert (
            op["frame"] == entry.frame
            and op["failed"] == entry.failed
            and op["lost"] == entry.lost
            and op["source"] == entry.source
        )
        assert op["miss_kind"] == entry.kind
        entry.filled = True
        if not entry.failed:
            self.line_mask_expected = (op["miss"], entry.line_mask)
        return {}

    def replay(self, op, entry):
        assert entry.filled or entry.starved, "REPLAY before FILL"
        want = entry.parked.popleft()
        assert {name: op[name] for name in REQUEST_FIELDS} == want and op["origin.missed"] == 1
        assert op["failed"] == entry.starved and (entry.starved or op["frame"] == entry.frame)
        entry.dropped |= bool(entry.starved and want["write"])
        entry.replays += 1
        self.served += 1
        return {}

    def flip(self, op, entry):
        if entry.parked:
            self.seen["FLIP retry"] += 1
            entry.retried = True
            return {"outcome": Outcome.RETRY}
        assert op["failed"] == entry.starved and (entry.filled or entry.starved)
        del self.misses[op["miss"]]
        if entry.retried or entry.replays >= self.config.page_lines:
            self.drained = self.cycles
        state, place = self.pages[entry.page]
        if state != PageState.FETCHING or place != op["miss"]:
            self.seen["orphan"] += 1
            if not entry.starved:
                assert op["slot"] == self.orphan_token, str(op)
                self.free[entry.pool].append(entry.frame)
            return {"outcome": Outcome.VOID if entry.starved else Outcome.ORPHAN}
        if entry.starved:
            self.seen["starved"] += 1
            assert op["lost"] == (entry.lost or entry.dropped)
            self.pages[entry.page] = (
                PageState.LOST if op["lost"] or entry.kind == MissKind.ALLOCATE else PageState.COLD,
                0,
            )
        else:
            self.pages[entry.page] = (PageState.RESIDENT, entry.frame)
        return {}

    def disturb(self):
        """Evictions, closes, uncorrectable words."""
        rng = self.rng
        page = rng.choice(sorted(self.pages)) if self.pages else None
        state, place = self.pages.get(page, (None, 0))
        if state == PageState.RESIDENT:
            self.free[self.pool_of(page)].append(place)
            self.pages[page] = (
                rng.choice([PageState.COLD, PageState.ABSENT, PageState.ABSENT, PageState.LOST]),
                0,
            )
        elif state == PageState.FETCHING and rng.random() < 0.2:
            self.pages[page] = (PageState.LOST, 0)

    # - one cycle ----------------------------------------------------------------------------------
    def new_op(self, kind, page):
        rng, c = self.rng, self.config
        write = kind == Op.WRITE
        op = dict.fromkeys(self.op.fields, 0)
        return op | {
            "kind": kind,
            "session": page[0] // c.queues,
            "squeue": page[0],
            "page": page[1],
            "kv_line": rng.randrange(c.page_lines),
            "write": int(write),
            "partial": int(write and rng.random() < 0.3),
            "poison": int(write and rng.random() < 0.1),
            "has_write": int(write),
            "write_slot": rng.randrange(c.write_slots),
            "origin.tag": rng.getrandbits(16),
            "origin.ld_id": rng.randrange(16),
            "origin.start": rng.getrandbits(32),
            "source": rng.choice(list(PrefetchSource)[1:]) if kind == Op.PREFETCH else 0,
        }

    async def cycle(self, request=None):
        """One cycle; `request` is an op to admit if the credits allow. Returns whether it was
        admitted."""
        dut, rng = self.dut, self.rng
        # Decided in the cycle before, and broadcast now.
        due = self.pipe.popleft()
        dut.i_result__valid.value = int(due is not None)
        if due:
            decided = self.decide(due)
            dut.i_result__payload.value = self.result.pack(
                **{f"op.{name}": value for name, value in due.items()}, **decided
            )
        else:
            dut.i_result__payload.value = rng.getrandbits(self.result.width)
        dut.pool_free.value = sum(
            len(free) << self.count_bits * p for p, free in enumerate(self.free)
        )
        dut.now.value = self.now & 0xFFFFFFFF
        if self.line_mask_expected:
            dut.line_mask_address.value = self.line_mask_expected[0]
        accept = rng.random() < self.op_ready
        dut.o_op__ready.value = int(accept)
        dut.o_miss_free__ready.value = int(len(self.ids) < IDS)
        if (
            self.offered is None
            and self.answers
            and self.tier_answers
            and rng.random() < self.answer_rate
        ):
            self.offered = miss = self.answers[k := rng.randrange(len(self.answers))]
            del self.answers[k]
            entry = self.misses[miss]
            lines = self.config.page_lines
            entry.failed, entry.line_mask = (
                rng.random() < self.fail_rate,
                (rng.getrandbits(lines), rng.getrandbits(lines)),
            )
            line_mask = {
                "line_mask.valid": entry.line_mask[0],
                "line_mask.poison": entry.line_mask[1],
            }
            dut.i_fetched__payload.value = self.fetched.pack(
                miss=miss, failed=entry.failed, **line_mask
            )
        dut.i_fetched__valid.value = int(self.offered is not None)
        await ReadOnly()

        if due:
            self.check_fetch(due, decided)
        else:
            assert dut.o_fetch__valid.value == 0 and dut.o_raise__valid.value == 0
        if self.offered is not None and dut.i_fetched__ready.value == 1:
            self.misses[self.offered].landed = True
            self.offered = None
        if len(self.ids) < IDS and dut.o_miss_free__valid.value == 1:
            self.ids.append(int(dut.o_miss_free__payload.value))
        self.stood += dut.o_op__valid.value == 0 and any(
            miss.landed for miss in self.misses.values()
        )
        offer = entering = None
        if dut.o_op__valid.value == 1:
            offer = self.op.unpack(dut.o_op__payload.value)
            offer["kind"] = Op(offer["kind"])
            if accept:
                entering = offer
        self.check_grants(offer, accept)
        taking = sum(1 for op in self.pipe if op and op["kind"] in (Op.READ, Op.WRITE, Op.PREFETCH))
        admitted = (
            request is not None
            and entering is None
            and dut.ready.value == 1
            and len(self.ids) > taking
        )
        self.pipe.append(request if admitted else entering)
        self.check_ready()
        if dut.idle.value == 1:
            assert not self.misses, "idle with misses alive"
        if dut.quiet.value == 1:
            assert dut.o_op__valid.value == 0 and due is None and self.offered is None
            assert all(entry.filled == entry.starved == 0 for entry in self.misses.values())
        self.check_rest()
        self.faults.hear()
        if self.line_mask_due:
            got = self.line_mask.unpack(dut.line_mask_data.value)
            # Two flips are told a cycle after the row, long before its lines are answered.
            known = (got["valid"], got["poison"]) == self.line_mask_due[1]
            assert known or self.faults.flipped > 1, f"line mask of miss {self.line_mask_due[0]}"
        self.line_mask_due, self.line_mask_expected = self.line_mask_expected, None
        await RisingEdge(dut.clk)
        self.cycles += 1
        self.now += 1
        return admitted

    def check_rest(self):
        """Nobody says that all wait while a pool has a frame for an entry; `quiet` hears of the
        frame a cycle later."""
        lines = [[m for m in line if self.now - self.misses[m].since > 4] for line in self.waiting]
        hopes = [bool(line and free) for line, free in zip(lines, self.free, strict=True)]
        if self.dut.starving.value == 1:
            assert any(self.waiting) and not any(hopes), "no entry starves"
        if self.dut.quiet.value == 1:
            still = [now and before for now, before in zip(hopes, self.had, strict=True)]
            assert not any(still), "quiet, and a pool has a frame for an entry"
        self.had = [bool(free) for free in self.free]

    def check_grants(self, offer, accept):
        """No entry is given up before its time, and a pool that has a frame for one waits for three
        GRANTs of others at most, and as many retries of its own as there are."""
        if offer and offer["kind"] == Op.GRANT:
            self.hoped[offer["pool"]] = 0
            waited = self.now - self.misses[offer["miss"]].since
            assert not offer["failed"] or waited >= self.starve_limit, f"given up after {waited}"
            if offer["failed"] and self.late is None:
                self.late = waited - self.starve_limit
        for pool, (line, free) in enumerate(zip(self.waiting, self.free, strict=True)):
            if not (line and free):
                self.hoped[pool] = 0
            elif accept or not offer:  # else the GRANT in turn waits for its op's place
                self.hoped[pool] += 1
            most = len(POOLS) * (MissGrants.INTERVAL + DEPTH + MissGrants.LATENCY)
            assert self.hoped[pool] <= most, f"pool {pool} is not asked for in its turn"

    def check_ready(self):
        """`ready` is low while an entry is drained or fewer places than its margin are free, and at
        no other time. A place counts as free between the REPLAY's handshake and its decision."""
        lines, margin = self.config.page_lines, RESERVE
        free = self.config.parked - (self.parked - self.served)
        leaving = sum(1 for op in self.pipe if op and op["kind"] == Op.REPLAY)
        ready = self.dut.ready.value == 1
        drains = any(entry.retried or entry.replays >= lines for entry in self.misses.values())
        may_drain = self.cycles - self.drained < DEPTH or any(
            entry.retried or entry.replays + len(entry.parked) >= lines
            for entry in self.misses.values()
        )
        # An append is counted two cycles later; a REPLAY is in a register before it is offered.
        assert not ready or free + leaving + 3 >= margin, f"ready, {free} + {leaving} places free"
        assert ready or free < margin or may_drain, f"not ready, {free} places free"
        if drains and self.drains:
            assert not ready, "ready while an entry is drained"
        self.drains = drains

    def check_fetch(self, op, decided):
        """`o_fetch` and `o_raise` are there in the cycle of the result that causes them, and only
        then."""
        dut = self.dut
        miss = decided["miss"]
        entry = self.misses.get(miss)
        wanted = (
            entry is not None
            and entry.fetching
            and miss not in self.answers
            and not entry.landed
            and miss != self.offered
        )
        assert (dut.o_fetch__valid.value == 1) == (
            wanted and op["kind"] in (Op.GRANT, Op.PREFETCH)
        ), f"{op['kind'].name} {decided}"
        if dut.o_fetch__valid.value == 1:
            demand = int(entry.kind == MissKind.DEMAND)
            page = {"squeue": entry.page[0], "page": entry.page[1]}
            assert self.fetch.unpack(dut.o_fetch__payload.value) == page | {
                "miss": miss,
                "frame": entry.frame,
                "demand": demand,
            }
            self.answers.append(miss)
        raises = decided["outcome"] == Outcome.PARKED
        assert (dut.o_raise__valid.value == 1) == raises
        if raises:
            assert int(dut.o_raise__payload.value) == miss

    async def free_frames(self):
        """Evict until nobody waits for a frame."""
        started = self.cycles
        while any(self.waiting):
            await self.cycle()
            self.disturb()
            assert self.cycles - started < 20_000, (
                f"free {self.free}, waiting {self.waiting}, "
                + f"{[(k, vars(v)) for k, v in self.misses.items()]}"
            )

    async def drain(self, limit):
        started = self.cycles
        while self.misses or any(self.pipe) or self.dut.idle.value != 1:
            await self.cycle()
            assert self.cycles - started < limit, (
                f"alive: {[(k, vars(v)) for k, v in self.misses.items()]}"
            )
        assert self.served == self.parked, "a request was lost"
        await self.cycle()
        assert self.dut.quiet.value == 1 and self.dut.starving.value == 0

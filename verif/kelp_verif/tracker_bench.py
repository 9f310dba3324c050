# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The tracker against its golden model: every op of the table, its decision checked in the cycle in which it is due.

The bench plays the engines, as far as the tracker can tell: it grants, fills, replays and flips miss entries, evicts, recovers, closes and
reopens sessions. What was decided is known when `o_frame_op_hot` shows which lane a request took, at M3; the golden model steps then, and the
engines know no more than that.
"""

import random
from collections import deque

import cocotb
from cocotb.triggers import ReadOnly, RisingEdge

from kelp_golden.ops import Op, QueueConfig, Session
from kelp_golden.tracker import Tracker
from kelp_hw.arbiter import BACKGROUND
from kelp_hw.layouts import Layouts
from kelp_hw.pools import count_bits
from kelp_hw.secded import Secded
from kelp_hw.tracker import hot_layout
from kelp_spec.config import POOLS, Config, named
from kelp_spec.metadata import Event, MissKind, Outcome, PageState, ScoreEvent
from kelp_spec.metadata import Op as K
from kelp_verif.clocking import start_clock
from kelp_verif.packing import Packing
from kelp_verif.runner import bench_params, record

WORD = ("state", "place", "format_k", "format_v", "last_step", "pinned")
FRAME_OPS = (K.READ, K.WRITE, K.FILL, K.REPLAY, K.CLAIM, K.RELEASE, K.FREE, K.SCRUB, K.FLIP, K.PEEK, K.RECOVER)


class TB:
    """Drives every port, steps the golden model in M3 order, and compares. A test says what is wanted next on each stream, and is told every result."""

    def __init__(self, dut, config: Config, limits=None, flips=0.0):
        self.dut, self.config, self.rng = dut, config, random.Random(cocotb.RANDOM_SEED)
        self.flips = flips
        layouts = Layouts(config)
        self.request_packing, self.op_packing = Packing(layouts.request), Packing(layouts.op)
        self.result_packing, self.frame_packing = Packing(layouts.result), Packing(layouts.frame_op)
        self.score_packing, self.hot_packing, self.session_packing = Packing(layouts.score_event), Packing(hot_layout(config)), Packing(layouts.session)
        self.config_packing = Packing(layouts.queue_config)
        self.count_bits = count_bits(config)
        self.code = Secded(layouts.page_word.size)
        # A double error that hits the pin itself leaves its count wrong by one, as documented; it is not planted.
        self.flippable = [b for b in range(self.code.code_bits) if b != layouts.page_word.size - 1]
        self.golden = Tracker(config)
        self.limits = list(limits or config.frames)
        self.golden.set_limits(self.limits)
        self.cycle = 0
        self.miss_ids = deque(range(config.misses))
        self.want_request = lambda: None     # → (Op, fields of the request) or None
        self.want = {name: lambda: None for name in BACKGROUND}
        self.after = lambda op, result, before: None
        self.credit = lambda name: 1
        self.held = {}                        # port → (Op, packed) shown and not taken yet
        self.entered = deque()                # (cycle of the handshake, request or None, op or None)
        self.expected = deque()               # (cycle, result or None, hot or None, free, used)
        self.planted = {}                     # page → (cycle from which it can be read, bits)
        self.looked = {}                      # page → cycle in which the last op that looked at its word entered
        self.flip_at = {}                     # cycle → mask
        self.seen = {"hot": 0, "faults": [0, 0, 0], "outcomes": {}}
        self.taken = dict.fromkeys(("request", *BACKGROUND), 0)
        self.ports = {name: [getattr(dut, f"i_{name}__{part}") for part in ("payload", "valid", "ready")] for name in ("request", *BACKGROUND)}

    async def reset(self):
        dut = self.dut
        await start_clock(dut)
        for payload, valid, _ in self.ports.values():
            payload.value = valid.value = 0
        for name in ("data", "miss", "score", "queue", "event"):
            getattr(dut, f"{name}_ready").value = 1
        dut.i_miss_free__valid.value = dut.i_miss_free__payload.value = 0
        dut.config_write.value = dut.config_write_valid.value = dut.descriptor.value = dut.ecc_flip.value = 0
        dut.low_water.value, dut.reserve.value = self.golden.low_water, self.golden.reserve
        dut.pool_limit.value = sum(limit << self.count_bits * p for p, limit in enumerate(self.limits))
        for _ in range(2):
            await RisingEdge(dut.clk)
        dut.rst.value = 0

    async def scrubbed(self):
        """Waits for `ready`; the number of cycles it took."""
        cycles = 0
        while True:
            await ReadOnly()
            if self.dut.ready.value:
                await RisingEdge(self.dut.clk)
                return cycles
            await RisingEdge(self.dut.clk)
            cycles += 1

    async def configure(self, squeue, queue: QueueConfig):
        """Writes one queue's configuration, when nothing of its session is on its way."""
        self.golden.configure(squeue, queue)
        packed = self.config_packing.pack(format_k=queue.format_k, format_v=queue.format_v, pool=queue.pool)
        self.dut.config_write.value = squeue | packed << self.config.squeue_bits
        self.dut.config_write_valid.value = 1
        await RisingEdge(self.dut.clk)
        self.dut.config_write_valid.value = 0

    # --- packing ----------------------------------------------------------------------------------------------------------
    def pack_request(self, op: Op, queue: int | None = None) -> int:
        if queue is None:
            queue = op.squeue - op.session * self.config.queues
        return self.request_packing.pack(
            write=op.write, partial=op.partial, poison=op.poison, has_write=op.has_write, write_slot=op.write_slot, session=op.session, queue=queue,
            squeue=op.squeue, page=op.page, kv_line=op.kv_line, refused=op.refused, no_memory=op.no_memory,
            **{"origin.ld_id": op.ld_id, "origin.tag": op.origin or 0})

    def pack_op(self, op: Op) -> int:
        names = ("kind", "session", "squeue", "page", "kv_line", "write", "partial", "poison", "has_write", "write_slot", "miss", "pool", "frame", "failed",
                 "miss_kind", "lost", "source", "slot", "mass", "delta")
        return self.op_packing.pack(**{n: getattr(op, n) for n in names}, **{"origin.ld_id": op.ld_id, "origin.tag": op.origin or 0})

    def pack_session(self, s: Session) -> int:
        return self.session_packing.pack(**{n: getattr(s, n) for n in Session.__slots__})

    # --- one cycle ----------------------------------------------------------------------------------------------------------
    async def step(self):
        dut, rng = self.dut, self.rng
        for name, (payload, valid, _) in self.ports.items():
            if name not in self.held:
                op = self.want_request() if name == "request" else self.want[name]()
                if op is not None:
                    self.held[name] = op
                    payload.value = self.pack_request(op) if name == "request" else self.pack_op(op)
                    valid.value = 1
                elif valid.value:
                    valid.value = 0
        for name in ("data", "miss", "score", "queue", "event"):
            getattr(dut, f"{name}_ready").value = self.credit(name)
        offer_id = bool(self.miss_ids) and self.credit("free")
        dut.i_miss_free__valid.value = int(offer_id)
        dut.i_miss_free__payload.value = self.miss_ids[0] if offer_id else rng.getrandbits(self.config.miss_bits)
        dut.ecc_flip.value = self.flip_at.pop(self.cycle, 0)
        await ReadOnly()
        self._observe(offer_id)
        await RisingEdge(dut.clk)
        self.cycle += 1

    def _observe(self, offer_id):
        dut, now = self.dut, self.cycle
        if offer_id and dut.i_miss_free__ready.value:
            self.miss_ids.popleft()
        request = op = None
        for name in list(self.held):
            if self.ports[name][2].value:
                taken = self.held.pop(name)
                self.taken[name] += 1
                if name == "request":
                    request = taken
                else:
                    assert op is None, "two background ops in one cycle"
                    op = taken
        if request or op:
            self.entered.append((now, request, op))
        self._check_m3(now)
        self._check_results(now)

    def _check_m3(self, now):
        dut = self.dut
        valid, hot = int(dut.o_frame_op_valid.value), int(dut.o_frame_op_hot.value)
        if not self.entered or self.entered[0][0] != now - 4:
            assert not valid, f"cycle {now}: frame op out of nothing"
            return
        entered, request, op = self.entered.popleft()
        if request and op:
            assert hot, "a request that was not hot shared its cycle"
        hot_result = result = None
        if hot:
            assert request, "hot lane without a request"
            hot_result = self._golden(request, entered, sees_word=False)
            assert (hot_result.outcome, hot_result.first, hot_result.changed) == (Outcome.HIT, 0, 0), f"hot lane took {hot_result}"
            self.seen["hot"] += 1
            self._check_frame_op(hot_result)
        lane = op or (request if not hot else None)
        if lane:
            result = self._golden(lane, entered)
            if not hot and lane.kind in FRAME_OPS:
                assert valid, f"no frame op for {result}"
                self._check_frame_op(result)
            elif not hot:
                assert not valid, f"frame op for {result}"
        free = [p.free for p in self.golden.pools]
        self.expected.append((now + 1, result, hot_result, free, [p.used for p in self.golden.pools]))

    def _golden(self, op, entered, sees_word=True):
        golden = self.golden
        key = op.squeue * self.config.pages + op.page
        since, bits = self.planted.get(key, (0, ()))
        # A word that an op in the pipeline holds is taken from there, not from the SRAM.
        fault = len(bits) if sees_word and bits and since <= entered and self.looked.get(key, -4) <= entered - 4 else 0
        before = golden.word(op.squeue, op.page)
        result = golden.step(op, fault=fault, descriptor=self.descriptor if op.kind == K.OPEN else None)
        if not result.reads:
            assert not (result.corrected or result.uncorrected)
        else:
            self.seen["faults"][fault] += 1
            if sees_word:
                self.looked[key] = entered
            if result.changed or result.corrected:
                # The code word is written two cycles from now, and can be read then.
                bits = ()
                if self.rng.random() < self.flips:
                    bits = tuple(self.rng.sample(self.flippable, self.rng.choice((1, 1, 2))))
                    self.flip_at[self.cycle + 1] = sum(1 << b for b in bits)
                self.planted[key] = (entered + 4, bits)
        name = (K(op.kind).name, Outcome(result.outcome).name)
        self.seen["outcomes"][name] = self.seen["outcomes"].get(name, 0) + 1
        self.after(op, result, before)
        return result

    def _check_frame_op(self, r):
        got = self.frame_packing.unpack(self.dut.o_frame_op.value)
        op, session = r.op, self.golden.sessions[r.op.session]
        demand = op.kind in (K.READ, K.WRITE, K.REPLAY)
        want = {"kind": op.kind, "outcome": r.outcome, "use": int(bool(r.use)), "answer": r.answer, "squeue": op.squeue, "page": op.page, "init": r.init,
                "write": op.write if demand else 0, "has_write": op.has_write if demand else 0}
        if op.kind == K.PEEK:
            want["use"] = int(op.slot == 9)   # this bench's evictor walks with it
            want["frame"] = op.frame
        elif r.use:
            want["frame"] = r.frame
            want["pool"] = r.pool
        if r.init:
            want |= {"lost": r.lost, "failed": op.failed, "source": op.source}
        if op.kind in (K.RELEASE, K.FILL):
            want["failed"] = op.failed
        if op.kind in (K.CLAIM, K.RELEASE, K.SCRUB, K.FLIP, K.RECOVER, K.PEEK):
            want["slot"] = op.slot
        if op.kind == K.FILL:
            want["miss"] = op.miss
        if demand:
            want |= {"write_slot": op.write_slot, "origin.tag": op.origin or 0, "origin.ld_id": op.ld_id}
            if r.use:
                want |= {"kv_line": op.kv_line, "partial": op.partial, "poison": op.poison, "format_k": r.format_k, "format_v": r.format_v,
                         "used_lines": session.used_lines, "k_only": session.k_only, "host_type": session.host_type}
        bad = {n: (got[n], int(v)) for n, v in want.items() if got[n] != int(v)}
        assert not bad, f"frame op of {r}: (got, want) {bad}"

    def _check_results(self, now):
        dut = self.dut
        valid, hot_valid, score_valid = (int(p.value) for p in (dut.o_result_valid, dut.o_hot_valid, dut.o_score_valid))
        if not self.expected or self.expected[0][0] != now:
            assert not (valid or hot_valid or score_valid), f"cycle {now}: result out of nothing"
            return
        _, r, hot, free, used = self.expected.popleft()
        assert (valid, hot_valid) == (r is not None, hot is not None)
        if hot:
            got = self.hot_packing.unpack(dut.o_hot.value)
            assert got == {n: getattr(hot.op, n) for n in got}
        for port, want in ((dut.pool_free, free), (dut.pool_used, used)):
            vector = int(port.value)
            assert [vector >> self.count_bits * p & (1 << self.count_bits) - 1 for p in range(len(POOLS))] == want, f"pool counts after {r}"
        if r is None:
            assert not score_valid
            return
        got = self.result_packing.unpack(dut.o_result.value)
        op = r.op
        want = {"op.kind": op.kind, "op.session": op.session, "op.squeue": op.squeue, "op.page": op.page, "outcome": r.outcome, "corrected": r.corrected,
                "uncorrected": r.uncorrected, "changed": r.changed, "first": r.first, "op.slot": op.slot, "op.source": op.source}
        if r.reads:
            for which, word in (("old", r.old), ("word", r.word)):
                want |= {f"{which}.{n}": v for n, v in zip(WORD, word, strict=True)}
        if op.kind in (K.READ, K.WRITE, K.PIN, K.OPEN):
            want["op.refused"] = r.event
        if op.kind in (K.READ, K.WRITE):
            want |= {"op.kv_line": op.kv_line, "op.write": op.write, "op.has_write": op.has_write, "op.write_slot": op.write_slot}
        if r.outcome in (Outcome.MISSED, Outcome.PARKED) or op.kind in (K.GRANT, K.FILL, K.REPLAY, K.FLIP):
            want["miss"] = r.miss
        if r.outcome == Outcome.MISSED and op.kind != K.PREFETCH or r.use and op.kind != K.PEEK or r.frame:
            want["pool"] = r.pool
        if r.frame:
            want["frame"] = r.frame
        bad = {n: (got[n], int(v)) for n, v in want.items() if got[n] != int(v)}
        assert not bad, f"result {r}: (got, want) {bad}"
        assert score_valid == bool(r.score), f"score event of {r}"
        if r.score:
            got = self.score_packing.unpack(dut.o_score.value)
            want = {"kind": r.score, "squeue": op.squeue, "page": op.page}
            if r.score == ScoreEvent.SCAN:
                want |= {"slot": op.slot, **{f"scan.{n}": v for n, v in zip(WORD, r.word, strict=True)}}
            elif r.score != ScoreEvent.INIT:
                want |= {"gap": r.gap} if r.score == ScoreEvent.TOUCH else {"mass": r.mass}
            bad = {n: (got[n], int(v)) for n, v in want.items() if got[n] != int(v)}
            assert not bad, f"score event of {r}: (got, want) {bad}"
        if op.kind in (K.STEP, K.OPEN, K.CLOSE, K.CLOSED):
            vector = int(dut.sessions.value) >> op.session * self.session_packing.width
            got, session = self.session_packing.unpack(vector), self.golden.sessions[op.session]
            assert got == {n: getattr(session, n) for n in got}, f"session after {r}"

    async def drain(self):
        """Runs until nothing is inside; the caller's `want`s must have run dry."""
        while self.held or self.entered or self.expected:
            await self.step()
        await ReadOnly()
        assert self.dut.idle.value
        await RisingEdge(self.dut.clk)
        self.cycle += 1

    async def ops(self, *ops, stream="control"):
        """Sends ops one after another on one stream, alone."""
        todo = deque(ops)
        self.want[stream] = lambda: todo.popleft() if todo else None
        while todo:
            await self.step()
        await self.drain()
        self.want[stream] = lambda: None

    async def open(self, s, session: Session):
        self.descriptor = session
        self.dut.descriptor.value = self.pack_session(session)
        await self.ops(Op(K.OPEN, session=s))


class Engines:
    """Random requests, hints and sessions, and engines that answer for their consequences."""

    def __init__(self, tb: TB):
        self.tb, self.rng, self.golden, self.config = tb, tb.rng, tb.golden, tb.config
        c = self.config
        self.entries = {}                   # miss id → dict
        self.claims, self.to_free, self.orphans = [], deque(), []
        self.busy = set()                   # what an op on its way works on
        self.closing = None
        self.scrub = 0
        self.p = {"request": 0.9, "miss": 0.6, "control": 0.05, "hint": 0.3, "evict": 0.5, "prefetch": 0.2}
        self.focus = [(0, 0)] * 4
        self.credits = dict.fromkeys(("data", "miss", "score", "queue", "event", "free"), 1.0)
        self.places = [(q, p) for q in range(c.squeues) for p in range(c.pages)]
        tb.want_request = self.request
        tb.want = {"miss": self.miss, "control": self.control, "hint": self.hint, "evict": self.evict, "prefetch": self.prefetch}
        tb.after, tb.credit = self.after, self.credit

    def credit(self, name):
        ok = self.rng.random() < self.credits[name]
        if name == "miss":
            # Requests on their way are not counted here: that is what RESERVE is for.
            ok = ok and sum(self.golden.pending) + 8 <= self.config.parked
        return int(ok)

    def wants(self, stream):
        return self.rng.random() < self.p[stream]

    def page(self):
        rng = self.rng
        if rng.random() < 0.75:
            return rng.choice(self.focus)
        where = rng.choice(self.places)
        if rng.random() < 0.2:
            self.focus[rng.randrange(len(self.focus))] = where
        return where

    def op(self, kind, squeue, page, **fields):
        return Op(kind, session=squeue // self.config.queues, squeue=squeue, page=page, **fields)

    # --- what each stream wants -------------------------------------------------------------------------------------------
    def request(self):
        rng, c = self.rng, self.config
        if not self.wants("request"):
            return None
        squeue, page = self.page()
        session = self.golden.sessions[squeue // c.queues]
        odd = rng.random()
        op = self.op(K.READ, squeue, page, kv_line=rng.randrange(2) * c.half_lines + rng.randrange(max(1, session.used_lines)), ld_id=session.ld_id,
                     origin=rng.getrandbits(16))
        if rng.random() < 0.5:
            op.kind, op.write, op.has_write = K.WRITE, 1, 1
            op.partial, op.poison, op.write_slot = rng.getrandbits(1), rng.getrandbits(1), rng.randrange(c.write_slots)
        if odd < 0.02:
            op.ld_id ^= 1 << rng.randrange(4)
        elif odd < 0.04:
            op.kv_line = rng.randrange(c.page_lines)
        elif odd < 0.06:
            op.refused = rng.choice((Event.OUT_OF_MAP, Event.UNKNOWN_OPCODE))
        elif odd < 0.08 and not op.write:
            op.no_memory = 1
        return op

    def miss(self):
        rng = self.rng
        if not self.wants("miss"):
            return None
        idle = [(i, e) for i, e in self.entries.items() if ("miss", i) not in self.busy]
        if not idle:
            return None
        i, e = rng.choice(idle)
        op = self.op(K.GRANT, e["squeue"], e["page"], miss=i, pool=e["pool"], frame=e["frame"] or 0, miss_kind=e["kind"], lost=e["lost"])
        if e["frame"] is None and not e["failed"]:
            if not self.golden.pools[e["pool"]].free and rng.random() < 0.95:
                return None   # a GRANT in vain only now and then
            op.failed = int(rng.random() < 0.03)
        elif not e["filled"]:
            op.kind, op.failed, op.source = K.FILL, int(rng.random() < 0.1), rng.randrange(6)
            op.lost = int(e["lost"] and e["kind"] == MissKind.ALLOCATE)
        elif e["parked"] and rng.random() < 0.9:
            r = e["parked"].popleft()
            op.kind, op.failed = K.REPLAY, e["failed"]
            for name in ("kv_line", "write", "partial", "poison", "has_write", "write_slot", "ld_id", "origin"):
                setattr(op, name, getattr(r, name))
            e["dropped"] |= op.write & op.failed
        else:
            op.kind, op.failed, op.slot, op.lost = K.FLIP, e["failed"], 15, e["dropped"]
        self.busy.add(("miss", i))
        return op

    def control(self):
        rng = self.rng
        if not self.wants("control") or "control" in self.busy:
            return None
        closed = [s for s, x in enumerate(self.golden.sessions) if not x.open]
        s = rng.randrange(self.config.sessions)
        pick = rng.random()
        if closed and pick < 0.5:
            self.busy.add("control")
            self.tb.descriptor = self.descriptor(rng.choice(closed))
            self.tb.dut.descriptor.value = self.tb.pack_session(self.tb.descriptor)
            return Op(K.OPEN, session=rng.choice(closed))
        if pick < 0.03 and self.golden.sessions[s].open:
            if self.closing is None:
                self.closing, self.scrub = s, 0
                return Op(K.CLOSE, session=s)
            return Op(K.CLOSE, session=self.closing)
        if pick < 0.5:
            return Op(K.STEP, session=s, delta=rng.choice((1, 1, 3, (1 << 24) - 2)))
        return self.op(K.PEEK, *self.page())

    def descriptor(self, s):
        rng, c = self.rng, self.config
        return Session(ld_id=rng.randrange(16), host_type=rng.getrandbits(1), used_queues=rng.choice((c.queues, c.queues - 1)),
                       used_lines=rng.choice((c.half_lines, c.half_lines - 1)), k_only=int(rng.random() < 0.2), used_pages=rng.choice((c.pages, c.pages - 1)),
                       kv_heads=1, step=rng.choice((0, (1 << 24) - 2)))

    def hint(self):
        rng = self.rng
        if not self.wants("hint"):
            return None
        squeue, page = self.page()
        kind = rng.choice((K.MASS, K.PIN, K.PIN, K.UNPIN, K.STEP if rng.random() < 0.1 else K.MASS))
        return self.op(kind, squeue, page, mass=rng.getrandbits(16), delta=1 if kind == K.STEP else 0)

    def prefetch(self):
        if not self.wants("prefetch"):
            return None
        return self.op(K.PREFETCH, *self.page(), source=self.rng.randrange(1, 6))

    def evict(self):
        rng = self.rng
        if not self.wants("evict"):
            return None
        choice = rng.random()
        if self.to_free and choice < 0.3:
            pool, frame, squeue, page = self.to_free.popleft()
            return self.op(K.FREE, squeue, page, pool=pool, frame=frame, slot=8)
        if self.claims and choice < 0.5:
            squeue, page, frame = claim = rng.choice(self.claims)
            if ("release", claim) not in self.busy:
                self.busy.add(("release", claim))
                return self.op(K.RELEASE, squeue, page, frame=frame, failed=int(rng.random() < 0.2), slot=1)
        if self.orphans and choice < 0.6:
            squeue, page, frame = orphan = rng.choice(self.orphans)
            if ("recover", orphan) not in self.busy and not any(claim[:2] == (squeue, page) for claim in self.claims):
                self.busy.add(("recover", orphan))
                return self.op(K.RECOVER, squeue, page, frame=frame, slot=9)
        if self.closing is not None and rng.random() < 0.6:
            return self.close()
        squeue, page = self.page()
        if choice < 0.75 and (resident := [k for k, w in self.golden.words.items() if w.state == PageState.RESIDENT and not w.pinned]):
            squeue, page = divmod(rng.choice(resident), self.config.pages)
        word = self.golden.word(squeue, page)
        if choice < 0.85:
            if any(claim[:2] == (squeue, page) for claim in self.claims) or ("claim", squeue, page) in self.busy or (squeue, page) in self.lost_pages():
                return None
            self.busy.add(("claim", squeue, page))
            return self.op(K.CLAIM, squeue, page, delta=word.last_step ^ (rng.random() < 0.1), slot=2)
        if choice < 0.88:
            return self.op(K.SCRUB, squeue, page, slot=8)
        if choice < 0.9 and word.state in (PageState.RESIDENT, PageState.WRITING_BACK) and not self.busy & {("claim", squeue, page)}:
            # The word's own frame: VOID, if it is still there when it gets to M3.
            return None if self.claims else self.op(K.PEEK, squeue, page, frame=word.place, slot=9)
        return self.op(K.SCAN, squeue, page, slot=rng.randrange(16))

    def lost_pages(self):
        return {o[:2] for o in self.orphans}

    def close(self):
        """Scrubs the session's pages again and again until all are ABSENT and nothing is owed; then CLOSED."""
        c, s, golden = self.config, self.closing, self.golden
        if not golden.sessions[s].closing:
            return None
        base = s * c.queues * c.pages
        mine = range(base, base + c.queues * c.pages)
        owed = [e for e in self.entries.values() if e["squeue"] // c.queues == s]
        owed += [x for x in (*self.claims, *self.orphans) if x[0] // c.queues == s]
        if not owed and not self.to_free and not any(k in golden.words for k in mine) and not self.busy - {"control"} and not self.tb.entered:
            self.busy.add("closed")
            return Op(K.CLOSED, session=s)
        self.scrub = (self.scrub + 1) % len(mine)
        return self.op(K.SCRUB, *divmod(base + self.scrub, c.pages), slot=8)

    # --- what a result means to them --------------------------------------------------------------------------------------
    def after(self, op, r, before):
        here = op.squeue, op.page
        kind = op.kind
        if r.uncorrected and before.state in (PageState.RESIDENT, PageState.WRITING_BACK):
            self.orphans.append((*here, before.place))
        if kind in (K.READ, K.WRITE) and r.outcome == Outcome.MISSED:
            cold = r.old.state == PageState.COLD
            self.entries[r.miss] = {"kind": MissKind.DEMAND if cold else MissKind.ALLOCATE, "squeue": here[0], "page": here[1], "pool": r.pool, "frame": None,
                                    "failed": 0, "filled": False, "parked": deque([op]), "lost": int(r.old.state == PageState.LOST), "dropped": 0}
        elif kind in (K.READ, K.WRITE) and r.outcome == Outcome.PARKED:
            self.entries[r.miss]["parked"].append(op)
        elif kind == K.PREFETCH and r.outcome == Outcome.MISSED:
            self.entries[r.miss] = {"kind": MissKind.PREFETCH, "squeue": here[0], "page": here[1], "pool": r.pool, "frame": r.frame, "failed": 0,
                                    "filled": False, "parked": deque(), "lost": 0, "dropped": 0}
        elif kind in (K.GRANT, K.FILL, K.REPLAY, K.FLIP):
            self.busy.discard(("miss", op.miss))
            e = self.entries[op.miss]
            if kind == K.GRANT and r.outcome == Outcome.DONE:
                e["failed"], e["filled"] = op.failed, bool(op.failed)
                e["frame"] = None if op.failed else r.frame
            elif kind == K.FILL:
                e["filled"] = True
            elif kind == K.FLIP and r.outcome != Outcome.RETRY:
                del self.entries[op.miss]
                self.tb.miss_ids.append(op.miss)
                self.golden.return_miss(op.miss)
                if r.outcome == Outcome.ORPHAN:
                    self.to_free.append((e["pool"], op.frame, *here))
        elif kind == K.CLAIM:
            self.busy.discard(("claim", *here))
            if r.outcome == Outcome.DONE:
                self.claims.append((*here, r.frame))
        elif kind == K.RELEASE:
            self.busy.discard(("release", (*here, op.frame)))
            self.claims.remove((*here, op.frame))
        elif kind == K.SCRUB and r.use:
            self.to_free.append((r.pool, r.frame, *here))
        elif kind == K.RECOVER:
            self.busy.discard(("recover", (*here, op.frame)))
            if r.outcome == Outcome.ORPHAN:
                self.orphans.remove((*here, op.frame))
                self.to_free.append((r.pool, op.frame, *here))
        elif kind == K.CLOSED:
            self.busy.discard("closed")
            self.closing = None
        elif kind == K.OPEN:
            self.busy.discard("control")


async def start(dut, config, **options) -> TB:
    """A bench on a tracker out of reset, its queues configured at random."""
    tb = TB(dut, config, **options)
    tb.golden.low_water, tb.golden.reserve = 1, 3
    await tb.reset()
    tb.scrub_cycles = await tb.scrubbed()
    for squeue in range(config.squeues):
        await tb.configure(squeue, QueueConfig(tb.rng.randrange(5), tb.rng.randrange(5), tb.rng.randrange(len(POOLS))))
    return tb


@cocotb.test(timeout_time=400, timeout_unit="us")
async def random_ops(dut):
    """Everything at once, in phases of different pressure; credits come and go."""
    params = bench_params()
    config = named("unit").with_(**params.get("changes", {}))
    rng = random.Random(cocotb.RANDOM_SEED)
    tb = await start(dut, config, limits=[rng.randint(4, n) for n in config.frames], flips=params.get("flips", 0))
    engines = Engines(tb)
    if params.get("narrow"):
        # One or two pages: every op meets others on its page in the pipeline.
        engines.places = rng.sample(engines.places, params["narrow"])
        engines.focus = [rng.choice(engines.places)] * 2
    for s in range(config.sessions):
        tb.want, wants = dict.fromkeys(tb.want, lambda: None), tb.want
        tb.want_request = lambda: None
        await tb.open(s, engines.descriptor(s))
        tb.want, tb.want_request = wants, engines.request
    busy = {"control": (0, 0.02, 0.1), "evict": (0.3, 0.6, 1.0), "miss": (0.3, 1.0)}
    for phase in range(params["phases"]):
        for name in engines.p:
            engines.p[name] = rng.choice(busy.get(name, (0.05, 0.3, 1.0)))
        for name in engines.credits:
            engines.credits[name] = rng.choice((0.5, 0.95, 1.0, 1.0))
        if phase % 3 == 0:
            engines.p["request"] = 1.0
        for _ in range(400):
            await tb.step()
    record(outcomes={f"{kind} {outcome}": n for (kind, outcome), n in tb.seen["outcomes"].items()}, hot=tb.seen["hot"], faults=tb.seen["faults"],
           taken=tb.taken, scrub_cycles=tb.scrub_cycles)


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def spaced_ops(dut):
    """A page touched for the first time in a step, then a few ops on it one to six cycles apart, most words written with flipped bits."""
    config = named("unit")
    tb = await start(dut, config, flips=0.7)
    rng = tb.rng
    await tb.open(0, Session(used_queues=config.queues, used_lines=config.half_lines, used_pages=config.pages, ld_id=1))
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
        todo = deque([("request", rng.choice((Op(K.WRITE, **where, **write), Op(K.READ, **where, ld_id=1))), 1)])
        for _ in range(4):
            stream, op = rng.choices((("request", Op(K.READ, **where, ld_id=1)), ("request", Op(K.READ, **where, ld_id=2)), ("evict", Op(K.SCAN, **where)),
                                      ("hint", Op(K.PIN, **where)), ("hint", Op(K.UNPIN, **where))), (6, 1, 1, 1, 1))[0]
            todo.append((stream, op, rng.randint(1, 6)))
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
            while stream in tb.held:
                await tb.step()
        await tb.drain()
        if rng.random() < 0.3:
            await tb.ops(Op(K.SCRUB, **where), stream="evict")
        while freed:
            pool, frame = freed.popleft()
            await tb.ops(Op(K.FREE, pool=pool, frame=frame), stream="evict")
    assert tb.seen["hot"] and min(tb.seen["faults"])
    record(hot=tb.seen["hot"], faults=tb.seen["faults"])


async def measure(tb, requests, least):
    """(requests, background ops) per cycle while `requests` are sent as fast as they go and SCANs press from behind."""
    rng, config = tb.rng, tb.config
    todo = iter(requests)
    more = [next(todo)]

    def request():
        op, more[0] = more[0], next(todo, None)
        return op

    def scan():
        return Op(K.SCAN, squeue=rng.randrange(config.queues), page=rng.randrange(config.pages))

    tb.want_request = lambda: request() if more[0] is not None else None
    tb.want["evict"] = scan
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
    """Requests per cycle with background ops waiting all the time: page-sequential and page-random, 8 lines per page."""
    config = named(bench_params()["config"])
    tb = await start(dut, config)
    for squeue in range(config.squeues):
        tb.golden.queue_configs[squeue].pool = squeue % len(POOLS)
        await tb.configure(squeue, tb.golden.queue_configs[squeue])
    # What was in the SRAM at power-up is gone.
    await tb.ops(*(Op(K.PEEK, squeue=tb.rng.randrange(config.squeues), page=tb.rng.randrange(config.pages)) for _ in range(200)))
    assert tb.seen["faults"][1:] == [0, 0]
    lines = 4
    await tb.open(0, Session(used_queues=config.queues, used_lines=lines, used_pages=config.pages, ld_id=1))
    streams, pages = [s * config.queues // 16 for s in range(16)], config.pages

    def sequential(write):
        for page in range(pages):
            for line in range(2 * lines):
                for squeue in streams:
                    kv_line = line % lines + line // lines * config.half_lines
                    yield Op(K.WRITE if write else K.READ, squeue=squeue, page=page, kv_line=kv_line, write=write, has_write=write, ld_id=1)

    def scattered(count):
        places = [(q, p) for q in streams for p in range(pages)]
        for _ in range(count):
            squeue, page = tb.rng.choice(places)
            yield Op(K.READ, squeue=squeue, page=page, kv_line=tb.rng.randrange(lines), ld_id=1)

    figures = {}
    figures["sequential_write"] = await measure(tb, sequential(1), 4000)
    await tb.ops(Op(K.STEP, delta=1))
    figures["sequential_read"] = await measure(tb, (op for _ in range(3) for op in sequential(0)), 10_000)
    await tb.ops(Op(K.STEP, delta=1))
    alone = (Op(K.READ, squeue=q, page=p, kv_line=line % lines + line // lines * config.half_lines, ld_id=1)
             for q in streams for p in range(pages) for line in range(2 * lines))
    figures["single_stream_read"] = await measure(tb, alone, 4000)
    figures["random_read"] = await measure(tb, scattered(10_000), 10_000)
    record(**figures)


@cocotb.test(timeout_time=100, timeout_unit="us")
async def reset_forgets(dut):
    """Reset under traffic: page words, sessions and pools are as at the beginning, and nothing comes out any more."""
    config = named("unit")
    tb = await start(dut, config)
    engines = Engines(tb)
    for attempt in range(3):
        tb.want, wants, tb.want_request = dict.fromkeys(tb.want, lambda: None), tb.want, lambda: None
        for s in range(config.sessions):
            await tb.open(s, engines.descriptor(s))
        tb.want, tb.want_request = wants, engines.request
        for _ in range(300):
            await tb.step()
        assert tb.golden.words
        if attempt == 2:
            break
        tb = TB(dut, config)
        tb.golden.low_water, tb.golden.reserve = 1, 3
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
        await tb.ops(*(Op(K.PEEK, session=q // config.queues, squeue=q, page=p) for q in range(config.squeues) for p in range(config.pages)))
        engines = Engines(tb)

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Eviction beside its golden model: page words, frames and flashes around it (see
:mod:`kelp_verif.eviction.evictor_bench`)."""

import random
from array import array
from collections import deque

import cocotb
from cocotb.triggers import ReadOnly, RisingEdge

from kelp_golden import ops
from kelp_golden.audit.sweeps import SweepAudit
from kelp_golden.eviction import Evictor, QueueState
from kelp_golden.kelp_policy import KelpPolicy, Scan
from kelp_golden.ops import QueueConfig, Session
from kelp_golden.tracker import Tracker
from kelp_hw.eviction.signatures import EvictionLayouts
from kelp_hw.export.packing import Packing
from kelp_hw.tracker.signatures import count_bits, spare_shape
from kelp_spec.config import POOLS, Config
from kelp_spec.metadata import Event, MissKind, Op, Outcome, PageState
from kelp_spec.policy import Policy
from kelp_spec.scores import RECENCY_BIAS, recency_constants

from ..harness.clocking import start_clock
from ..harness.flips import Faults
from ..harness.runner import bench_params

RESIDENT = PageState.RESIDENT
#: What the engine says.
OWN = (Op.RELEASE, Op.FREE, Op.CLAIM, Op.SCAN, Op.PEEK, Op.RECOVER, Op.SCRUB, Op.CLOSED)
ACCESSED = Outcome.HIT, Outcome.MISSED, Outcome.PARKED, Outcome.ALLOCATED


class TrackerOp(ops.Op):
    """An op, and what this bench knows about it: an OPEN's descriptor, the cycle before which a
    retry is not worth it."""

    descriptor = None
    not_before = 0


class Words:
    """What the golden evictor reads, kept beside the tracker's words."""

    def __init__(self, config):
        n = config.page_words
        self.state, self.last_step, self.pinned, self.score = (
            array("B", bytes(n)),
            array("I", bytes(4 * n)),
            array("B", bytes(n)),
            array("H", bytes(2 * n)),
        )


class Values:
    """In place of the golden score engine: a page's word, 16 bits at random, is its value, and the
    lowest of them says that its queue's turn is over."""

    def scan(self, word, *_):
        return Scan(word, bool(word & 1))

    def opened(self, session):
        pass


class Worths:
    """In place of the golden tables: what each page is worth at least, at random; 0 of all pages of
    some queues."""

    def __init__(self, config, rng):
        self.value = {
            (q, p): rng.choice([0, 65532, 65535, rng.getrandbits(16), rng.getrandbits(16)])
            for q in range(config.squeues)
            for p in range(config.pages)
        }
        for q in range(config.squeues):
            if rng.random() < 0.2:
                self.value |= {(q, p): 0 for p in range(config.pages)}

    def worth(self, squeue, page):
        return self.value[squeue, page]


class TB:
    M3 = 4  #: cycles from an op's acceptance to its result
    SCAN = 17  #: least cycles from a SCAN's result to its score

    def __init__(self, dut):
        self.dut = dut
        config = bench_params()["config"]
        self.config = c = Config.of_json(config)
        self.rng = random.Random(cocotb.RANDOM_SEED)
        layouts = self.layouts = EvictionLayouts(c)
        self.op, self.result, self.write = (
            Packing(layouts.op),
            Packing(layouts.result),
            Packing(layouts.config_write),
        )
        self.scanned, self.claim, self.owner = (
            Packing(layouts.scanned),
            Packing(layouts.claim),
            Packing(layouts.frame_owner),
        )
        self.flush, self.write_back, self.written = (
            Packing(layouts.flush),
            Packing(layouts.write_back),
            Packing(layouts.written_back),
        )
        self.session, self.event = Packing(layouts.session), Packing(layouts.event)
        self.count_bits, self.session_bits = count_bits(c), layouts.session.size
        self.spare_bits = spare_shape(c).width
        self.tracker = Tracker(c)
        self.words, self.queues = Words(c), QueueState(c)
        self.tau, self.pool, self.budget = {}, {}, {}
        self.policies = bench_params().get("policies", [Policy.EMA])
        self.policy = dict.fromkeys(range(c.squeues), Policy.EMA)
        self.kelp = KelpPolicy(c)
        self.kelp.scores = Values()
        self.tables = self.kelp.tables = Worths(c, self.rng) if c.select_tables else None
        # the page words of each queue, where its pages' values change with time
        self.ages = [
            range(q * c.pages, (q + 1) * c.pages) for q in range(c.squeues) if max(self.policies)
        ]
        # The audit takes a list for one of the policy that its queue has now.
        self.audits = not bench_params().get("applies")
        self.audit = SweepAudit(
            c, self.queues, self.tracker.sessions, lambda q: self.tau[q], self.kelp
        )
        self.dirty, self.owners = set(), {}  # frames
        self.pipe = deque()  # (due, op) between admission and M3
        self.scans, self.claims, self.peeks, self.flushes, self.written_backs = (
            deque(),
            deque(),
            deque(),
            [],
            [],
        )
        self.cycle = 0
        self.demands, self.log, self.events, self.faults = deque(), [], [], {}
        self.flash_fails, self.flush_time, self.flash_time, self.stall = (
            0.0,
            (3, 40),
            (20, 200),
            0.2,
        )
        self.flips = Faults(dut, self.rng)
        self.under_way = {}  # slot → cycle of its CLAIM
        # slot → its RELEASE's fields, as far as they are known; flushes that are to become FREEs
        self.releases, self.frees = {}, deque()
        self.recovered = deque()  # pages whose frames were recovered and not told of
        self.lost_pages = set()
        self.standing = None  # the flush that is offered and not taken
        self.victims = self.cancelled = self.failed = self.void = self.sweeps = self.write_backs = 0
        self.results = 0
        self.within = 0  # victims of queues within their budgets that did not ask
        self.tracker.low_water = self.tracker.reserve = 2

    # - the world ----------------------------------------------------------------------------------
    async def start(self):
        dut, rng = self.dut, self.rng
        dut.rst.value = 1
        for port in (
            "i_result__valid",
            "config_write__valid",
            "i_scan__valid",
            "i_frame__claim__valid",
            "i_frame__owner__valid",
            "i_flushed__valid",
            "i_frame__error__valid",
            "turn__hold",
            "i_written_back__valid",
            "o_op__ready",
            "o_write_back__ready",
            "resident__squeue",
            "sessions",
            "pools__spare",
            "pools__used",
        ):
            getattr(dut, port).value = 0
        dut.low_water.value = self.tracker.low_water
        await start_clock(dut)
        await RisingEdge(dut.clk)
        await RisingEdge(dut.clk)
        dut.rst.value = 0
        for _ in range(200_000):
            await RisingEdge(dut.clk)
            if dut.ready.value == 1:
                break
        for squeue in range(self.config.squeues):
            pool = rng.choice(bench_params().get("pools", [0, 0, 1]))
            frames = rng.choice(bench_params().get("budgets", [0, 2, 5]))
            self.configure(squeue, pool, frames * self.config.frame_lines[pool])
            await RisingEdge(dut.clk)
        dut.config_write__valid.value = 0

    def configure(self, squeue, pool, budget, policy=None):
        """Offered for as long as `config_write.valid` stays; `policy` is that of the queue's turn
        unless named."""
        tau = recency_constants(2 ** self.rng.uniform(0, 12))
        if policy is None:
            policy = self.policies[squeue % len(self.policies)]
        tables, policy = policy == 2, min(policy, Policy.KELP)
        self.tau[squeue], self.pool[squeue], self.policy[squeue] = tau, pool, policy
        self.queues.configure(squeue, pool, budget, policy, tables)
        self.tracker.configure(squeue, QueueConfig(pool=pool))
        values = {
            "pool": pool,
            "budget": budget,
            "policy": policy,
            "tau_m": tau[0],
            "tau_sh": tau[1] + RECENCY_BIAS,
        } | ({"tables": int(tables)} if self.tables else {})
        self.dut.config_write__payload.value = self.write.pack(
            squeue=squeue, **{f"queue_config.{name}": value for name, value in values.items()}
        )
        self.dut.config_write__valid.value = 1

    def open(self, session):
        c = self.config
        op = TrackerOp(Op.OPEN, session=session)
        op.descriptor = Session(
            used_queues=c.queues,
            used_lines=c.half_lines,
            used_pages=c.pages,
            kv_heads=1,
            step=self.rng.choice([0, (1 << 24) - 3, self.rng.getrandbits(24)]),
        )
        return op

    def demand(self, squeue, page, write=False):
        return TrackerOp(
            Op.WRITE if write else Op.READ,
            session=squeue // self.config.queues,
            squeue=squeue,
            page=page,
            write=int(write),
        )

    def serve(self, result):
        """What a miss needs next: GRANT (until it gets a frame), FILL, REPLAY, FLIP."""
        op, miss = result.op, result.miss
        kind = op.kind
        common = {
            "session": op.session,
            "squeue": op.squeue,
            "page": op.page,
            "miss": miss,
            "pool": result.pool,
        }
        if kind in (Op.READ, Op.WRITE) and result.outcome == Outcome.MISSED:
            miss_kind = MissKind.DEMAND if result.old.state == PageState.COLD else MissKind.ALLOCATE
            return [
                TrackerOp(Op.GRANT, miss_kind=miss_kind, written=op.write, write=op.write, **common)
            ]
        if kind == Op.GRANT:
            if result.outcome == Outcome.RETRY:
                again = TrackerOp(Op.GRANT, miss_kind=op.miss_kind, write=op.write, **common)
                again.not_before = self.cycle + 60
                return [again]
            return [
                TrackerOp(k, frame=result.frame, miss_kind=op.miss_kind, write=op.write, **common)
                for k in (Op.FILL, Op.REPLAY, Op.FLIP)
            ]
        if kind == Op.FLIP:
            if result.outcome == Outcome.RETRY:
                # Somebody parked meanwhile.
                return [
                    TrackerOp(k, frame=op.frame, miss_kind=op.miss_kind, **common)
                    for k in (Op.REPLAY, Op.FLIP)
                ]
            self.tracker.return_miss(miss)
        return []

    def decide(self, op):
        """M3: one op, with everything that follows from it here."""
        t, kind = self.tracker, op.kind
        fault = (
            self.faults.pop((op.squeue, op.page), 0)
            if kind in (Op.READ, Op.SCAN, Op.CLAIM, Op.RELEASE, Op.SCRUB)
            else 0
        )
        result = t.step(op, fault=fault, descriptor=op.descriptor)
        if kind == Op.CLAIM and result.outcome == Outcome.DONE:
            excess = self.queues.excess[op.squeue]
            asks = self.queues.requester[self.queues.pool[op.squeue]]
            self.within += excess is not None and excess <= 0 and op.squeue != asks
        if result.uncorrected:
            self.lost_pages.add((op.squeue, op.page))
        self.keep_word(result)
        self.learn(result)
        if kind == Op.CLOSE:
            self.audit.closing(op.session)
        wrong = None
        if kind == Op.SCAN:
            wrong = self.scan(result)
        elif kind == Op.CLAIM:
            wrong = self.claim_page(result)
        elif kind == Op.RELEASE:
            wrong = self.audit.release(op.squeue, op.page)
            del self.under_way[op.slot], self.releases[op.slot]
            self.cancelled += result.outcome == Outcome.VOID
            self.failed += result.outcome == Outcome.DONE and bool(op.failed)
            if result.outcome == Outcome.DONE and not op.failed:
                self.owners.pop(op.frame)
        elif kind == Op.PEEK:
            self.peek(op)
        elif kind == Op.RECOVER and result.outcome == Outcome.ORPHAN:
            leaving = [each["frame"] for each in self.releases.values()]
            assert op.frame not in leaving, f"frame {op.frame} is recovered amid its eviction"
            self.recovered.append((op.squeue, op.page))
        elif kind == Op.FREE:
            assert op.frame not in self.owners, "a frame was freed with its owner's entry in use"
        self.keep_frame(result)
        assert wrong is None or not self.audits, f"cycle {self.cycle}: {wrong}"
        for following in reversed(self.serve(result)):
            self.demands.appendleft(following)
        return result

    def learn(self, result):
        """What policy `kelp` remembers of an op."""
        op, kelp = result.op, self.kelp
        if op.kind == Op.OPEN:
            kelp.opened(op.session)
        if result.first and self.policy[op.squeue] == Policy.KELP and result.outcome in ACCESSED:
            before, kelp.refresh = kelp.refresh, None
            kelp.access(op.session, op.squeue, self.tracker.sessions[op.session].step)
            if kelp.refresh is None:
                kelp.refresh = before
            else:
                self.audit.left(kelp.refresh)

    def keep_word(self, result):
        """The golden evictor's view of the op's page."""
        op, kind, rng, w = result.op, result.op.kind, self.rng, self.words
        at, word = op.squeue * self.config.pages + op.page, result.word
        if result.changed:
            w.state[at], w.last_step[at], w.pinned[at] = word.state, word.last_step, word.pinned
            self.queues.observe(
                op.squeue,
                op.page,
                RESIDENT if result.uncorrected else result.old.state,
                word.state,
                kind in (Op.READ, Op.WRITE),
                kind == Op.WRITE,
            )
            if kind == Op.WRITE and result.old.state in (PageState.ABSENT, PageState.LOST):
                w.score[at] = self.draw_score()
        if kind in (Op.READ, Op.WRITE) and rng.random() < 0.5:
            w.score[at] = self.draw_score()
            # Under policy `kelp` the other pages' values change with time, and offers go stale.
            for other in self.ages:
                w.score[rng.choice(other)] = self.draw_score()

    def draw_score(self):
        return self.rng.getrandbits(16)

    def scan(self, result):
        """What a SCAN finds comes after a while; what is wrong with it."""
        op, word = result.op, result.word
        score = self.words.score[op.squeue * self.config.pages + op.page]
        eligible = word.state == RESIDENT and not word.pinned
        found = {
            "page": op.page,
            "slot": op.slot,
            "eligible": eligible,
            "last_step": word.last_step,
            "score": score,
            "finished": score & 1,
        }
        self.scans.append((self.cycle + self.SCAN, found))
        return self.audit.scan(
            op.squeue, op.page, op.slot, word.state, word.last_step, word.pinned, score
        )

    def claim_page(self, result):
        """A page leaves for the cold tier, or not; what is wrong with that."""
        op, done = result.op, result.outcome == Outcome.DONE
        wrong = self.audit.claim(op.squeue, op.page, op.delta, done)
        self.log.append((op.squeue, op.page, done))
        if done:
            self.victims += 1
            assert op.slot not in self.under_way, f"slot {op.slot} is taken"
            self.under_way[op.slot] = self.cycle
            self.releases[op.slot] = {
                "squeue": op.squeue,
                "page": op.page,
                "pool": result.pool,
                "frame": result.frame,
                "session": op.squeue // self.config.queues,
                "written": int(result.frame in self.dirty),
                "failed": 0,
            }
            claimed = {
                "slot": op.slot,
                "frame": result.frame,
                "dirty": int(result.frame in self.dirty),
                "line_mask.valid": (1 << self.config.page_lines) - 1 ^ result.frame & 1,
            }
            self.claims.append((self.cycle + 2, claimed))
            self.flushed(result.frame, op.slot)
        else:
            self.void += 1
        return wrong

    def peek(self, op):
        """What the frame table says of a frame."""
        owner = self.owners.get(op.frame)
        squeue, page = owner or (0, 0)
        found = {
            "slot": op.slot,
            "frame": op.frame,
            "in_use": owner is not None,
            "squeue": squeue,
            "page": page,
        }
        self.peeks.append((self.cycle + 2, found))

    def keep_frame(self, result):
        """Owners of frames, and which are dirty."""
        op, kind = result.op, result.op.kind
        if kind in (Op.SCRUB, Op.RECOVER, Op.FLIP) and result.use:
            assert kind != Op.RECOVER or self.owners[result.frame] == (op.squeue, op.page)
            self.owners.pop(result.frame, None)
            self.flushed(result.frame, op.slot if kind != Op.FLIP else 15)
        if result.init:
            self.owners[result.frame] = op.squeue, op.page
            self.dirty.discard(result.frame)
        if kind == Op.WRITE and result.use or kind == Op.REPLAY and op.write:
            self.dirty.add(result.frame)

    def flushed(self, frame, token):
        self.flushes.append(
            (self.cycle + 4 + self.rng.randint(*self.flush_time), {"frame": frame, "token": token})
        )

    def pack_result(self, r):
        op = r.op
        names = (
            "kind",
            "session",
            "squeue",
            "page",
            "miss",
            "pool",
            "frame",
            "failed",
            "slot",
            "delta",
        )
        fields = {f"op.{name}": int(getattr(op, name)) for name in names}
        for name, word in (("old", r.old), ("word", r.word)):
            fields |= {f"{name}.{field}": int(value) for field, value in word._asdict().items()}
        return self.result.pack(
            outcome=r.outcome,
            changed=int(r.changed),
            first=int(r.first),
            # CLOSED comes behind the last queue, which may be none.
            policy=self.policy.get(op.squeue, Policy.EMA),
            frame=r.frame,
            pool=r.pool,
            miss=r.miss,
            uncorrected=r.uncorrected,
            **fields,
        )

    async def tick(self):
        """One cycle: ops in, results and answers out."""
        dut, rng = self.dut, self.rng
        admit = self.admitted()
        dut.o_op__ready.value = ready = int(admit is None and rng.random() >= self.stall)
        dut.o_write_back__ready.value = write_ready = int(rng.random() >= self.stall)
        self.show_result()
        self.show_counts()
        self.show_found()
        done = self.offer()

        await ReadOnly()
        if admit is None and ready and dut.o_op__valid.value == 1:
            admit = self.taken_op()
        if admit is not None:
            self.pipe.append((self.cycle + self.M3, admit))
        asked = self.asks_worth()
        if self.standing and dut.i_flushed__ready.value == 1:
            self.flushes.remove(self.standing)
            if self.standing[1]["token"] >= self.config.write_backs:
                self.frees.append(self.standing[1])
            self.standing = None
        # It waits while a clean page's flush ends, which needs the same way to its RELEASE.
        if done and dut.i_written_back__ready.value == 1:
            self.written_backs.remove(done)
            self.releases[done[1]["token"]]["failed"] = done[1]["failed"]
        if write_ready and dut.o_write_back__valid.value == 1:
            self.take_write_back()
        if dut.o_event__valid.value == 1:
            self.hear(self.event.unpack(dut.o_event__payload.value))
        self.sweeps += int(dut.swept.value)
        self.queue_ready = int(dut.queue_ready.value)
        self.quiet, self.idle = int(dut.quiet.value), int(dut.idle.value)
        self.check_state()
        await RisingEdge(dut.clk)
        if self.tables is not None:
            self.show_worth(asked)
        self.cycle += 1

    def check_state(self):
        """What the engine says of itself beside its ops."""
        dut, where = self.dut, f"cycle {self.cycle}"
        self.flips.hear()
        evicting, learning = int(dut.turn__evicting.value), int(dut.turn__learning.value)
        assert not (self.idle and (evicting or learning)), f"{where}: idle"
        claimed = [slot for slot, cycle in self.under_way.items() if self.cycle - cycle > self.M3]
        assert evicting or not claimed, f"{where}: evictions {claimed} are under way"
        if self.quiet:
            evictions = [f for _, f in self.flushes if f["token"] < self.config.write_backs]
            ours = [op for _, op in self.pipe if op.kind in OWN]
            at_work = (ours, self.scans, self.claims, self.peeks, self.frees, evictions)
            assert not any(at_work), f"{where}: quiet, and {at_work} are under way"
            assert not any(s.closing for s in self.tracker.sessions), f"{where}: quiet"
        assert not (self.idle and self.under_way), f"{where}: idle"

    def admitted(self):
        """A demand that goes to M3 in this cycle, or None. A retry that waits lets others pass."""
        if not self.queue_ready or self.rng.random() >= 0.7:
            return None
        admit = next((op for op in self.demands if op.not_before <= self.cycle), None)
        if admit is not None:
            self.demands.remove(admit)
        return admit

    def show_result(self):
        """What M3 decides in this cycle."""
        result = None
        if self.pipe and self.pipe[0][0] == self.cycle:
            result = self.decide(self.pipe.popleft()[1])
            self.results += 1
        self.dut.i_result__valid.value = int(result is not None)
        if result:
            self.dut.i_result__payload.value = self.pack_result(result)

    def show_counts(self):
        """Pools and sessions, as they are."""
        dut, bits, pools = self.dut, self.spare_bits, self.tracker.pools
        dut.pools__spare.value = sum(
            (p.free - p.waiting & (1 << bits) - 1) << k * bits for k, p in enumerate(pools)
        )
        dut.pools__used.value = sum(p.used << k * self.count_bits for k, p in enumerate(pools))
        dut.sessions.value = sum(
            self.session.pack(
                open=s.open,
                closing=s.closing,
                used_queues=s.used_queues,
                used_pages=s.used_pages,
                step=s.step,
            )
            << k * self.session_bits
            for k, s in enumerate(self.tracker.sessions)
        )

    def show_found(self):
        """What SCANs, CLAIMs and PEEKs found, when it is due."""
        dut = self.dut
        for found, valid, port, packing in (
            (self.scans, dut.i_scan__valid, dut.i_scan__payload, self.scanned),
            (self.claims, dut.i_frame__claim__valid, dut.i_frame__claim__payload, self.claim),
            (self.peeks, dut.i_frame__owner__valid, dut.i_frame__owner__payload, self.owner),
        ):
            due = bool(
                found
                and found[0][0] <= self.cycle
                and (found is not self.scans or self.rng.random() >= self.stall)
            )
            valid.value = int(due)
            if due:
                port.value = packing.pack(**found.popleft()[1])

    def asks_worth(self):
        """What a sweep asks of the tables, (squeue, page); they answer in the next cycle."""
        if self.tables is None or self.dut.i_scan__valid.value != 1:
            return None
        return int(self.dut.values__squeue.value), int(self.dut.values__page.value)

    def show_worth(self, asked):
        self.dut.values__value.value = self.tables.worth(*asked) if asked else 12345

    def offer(self):
        """Offers a flush and a write-back that have ended; returns the write-back, or None. An
        offer stays, though an older flush may fall due beside it."""
        dut = self.dut
        self.standing = self.standing or next((f for f in self.flushes if f[0] <= self.cycle), None)
        dut.i_flushed__valid.value = int(self.standing is not None)
        if self.standing:
            dut.i_flushed__payload.value = self.flush.pack(**self.standing[1])
        done = next((f for f in self.written_backs if f[0] <= self.cycle), None)
        dut.i_written_back__valid.value = int(done is not None)
        if done:
            dut.i_written_back__payload.value = self.written.pack(**done[1])
        return done

    def taken_op(self):
        """The engine's op that is taken in this cycle; what is not its own is zero in it."""
        fields = self.op.unpack(self.dut.o_op__payload.value)
        want = self.expected_op(fields)
        wrong = {name: value for name, value in fields.items() if value != want.get(name, 0)}
        where = f"cycle {self.cycle}: {Op(fields['kind']).name}"
        # Two flips are told a cycle after the op.
        assert not wrong or self.flips.flipped > 1, f"{where} {wrong}, expected {want}"
        names = ("session", "squeue", "page", "pool", "frame", "failed", "slot", "delta")
        return TrackerOp(fields["kind"], **{name: fields[name] for name in names})

    def expected_op(self, op):
        """What an op of the engine must be, field by field; what it chooses is as it says."""
        kind, layouts = op["kind"], self.layouts
        chosen = ("kind", "squeue", "page")
        if kind == Op.RELEASE:
            released = self.releases.get(op["slot"])
            # Of two flips in a row any slot may come.
            assert released or self.flips.flipped > 1, f"RELEASE of slot {op['slot']}, of no page"
            return {"kind": kind, "slot": op["slot"]} | (released or {})
        if kind == Op.FREE:
            free = self.frees.popleft()
            pool = self.pool_of(free["frame"])
            return {"kind": kind, "frame": free["frame"], "slot": free["token"], "pool": pool}
        want = {name: op[name] for name in chosen}
        if kind == Op.CLAIM:
            return want | {"slot": op["slot"], "delta": op["delta"]}
        if kind in (Op.PEEK, Op.RECOVER):
            frame = {"frame": op["frame"], "pool": self.pool_of(op["frame"])}
            return want | frame | {"slot": layouts.recover_token}
        session = op["squeue"] // self.config.queues
        if kind == Op.SCAN:
            return want | {"session": session, "slot": op["slot"]}
        if kind == Op.CLOSED:  # nobody looks at its page
            session = op["session"]
            assert self.tracker.sessions[session].closing, f"session {session} is not closing"
        else:
            assert kind == Op.SCRUB, f"an op of kind {kind}"
        return want | {"session": session, "slot": layouts.scrub_token}

    def pool_of(self, frame):
        return max(p for p in range(len(POOLS)) if frame >= self.config.pool_first_frame[p])

    def first_tried(self, pool):
        """Of a search that found nothing: the queue with which its last round began."""
        excess, root = self.queues.root(pool)
        return self.queues.requester[pool] if excess is None else root

    def hear(self, event):
        """An event says whom it is about, and nothing else."""
        self.events.append(event)
        code, page = event["code"], (event["squeue"], event["page"])
        want = {"code": code, "squeue": page[0], "argument": 0, "page": 0, "ld_id": 0}
        if code == Event.NO_VICTIM:
            want["argument"] = event["argument"]
        elif code == Event.FRAME_RECOVERED:
            want |= dict(zip(("squeue", "page"), self.recovered.popleft(), strict=True))
        else:
            assert code == Event.FRAME_SWEEP and page in self.lost_pages, f"{event}"
            want["page"] = page[1]
        assert event == want, f"cycle {self.cycle}: {event}, expected {want}"

    def take_write_back(self):
        """A page goes to flash, which may fail."""
        rng, c = self.rng, self.config
        w = self.write_back.unpack(self.dut.o_write_back__payload.value)
        assert (
            w["line_mask.valid"] == (1 << c.page_lines) - 1 ^ w["frame"] & 1
            and w["frame"] in self.dirty
        )
        assert self.owners.get(w["frame"], (w["squeue"], w["page"])) == (w["squeue"], w["page"])
        self.write_backs += 1
        self.written_backs.append(
            (
                self.cycle + rng.randint(*self.flash_time),
                {"token": w["token"], "failed": int(rng.random() < self.flash_fails)},
            )
        )

    queue_ready = quiet = idle = 0

    async def do(self, *ops):
        """Have ops decided, and everything that they cause, while the evictor holds still unless
        somebody starves."""
        self.demands.extend(ops)
        for _ in range(20_000):
            starving = any(o.not_before for o in self.demands)
            self.dut.turn__hold.value = int(self.lockstep and not starving)
            await self.tick()
            if not self.demands and not self.pipe:
                return
            if starving and self.lockstep:
                self.predict()
        raise AssertionError(f"demands are not served: {list(self.demands)}")

    async def reopen(self, session):
        """Close a session, while the evictor does what it did, and open it when it is closed."""
        await self.do(TrackerOp(Op.CLOSE, session=session))
        for _ in range(20_000):
            await self.tick()
            if not self.tracker.sessions[session].open:
                break
        else:
            raise AssertionError(f"session {session} does not close")
        await self.do(self.open(session))

    lockstep = False
    pins = 0.12  #: share of PIN and UNPIN, and of STEP before

    def predict(self):
        pass

    async def rest(self, limit=20_000):
        self.dut.turn__hold.value = 0
        for _ in range(limit):
            await self.tick()
            if self.idle and not (self.pipe or self.demands or self.flushes or self.written_backs):
                return
        pools = [(p.free, p.used, p.waiting, p.pins) for p in self.tracker.pools]
        raise AssertionError(
            f"the engine does not come to rest: (free, used, waiting, pins) {pools}, quiet "
            + f"{self.quiet}, demands {list(self.demands)}"
        )

    def random_op(self, pages):
        """One op of a host on the pages given; None when a session is closed."""
        rng, t, c = self.rng, self.tracker, self.config
        squeue, page = rng.choice(pages)
        session = t.sessions[squeue // c.queues]
        if not session.open or session.closing:
            return None
        x = rng.random()
        if x < 0.08:
            return TrackerOp(Op.STEP, session=squeue // c.queues, delta=rng.choice([1, 1, 7]))
        if x < self.pins:
            return TrackerOp(
                rng.choice([Op.PIN, Op.UNPIN, Op.UNPIN]),
                session=squeue // c.queues,
                squeue=squeue,
                page=page,
            )
        return self.demand(squeue, page, rng.random() < 0.5)

    def leaving(self):
        """Pages whose evictions are under way."""
        return [(each["squeue"], each["page"]) for each in self.releases.values()]

    def wanted_again(self):
        """An access that cancels an eviction, if it comes in time."""
        return self.demand(*self.rng.choice(self.leaving()), self.rng.random() < 0.5)

    def decoding(self, pages):
        """Ops of open sessions that decode without end: in each step every queue in turn, two of
        its resident pages and now and then another one of its first `pages`."""
        rng, queues = self.rng, self.config.queues
        while True:
            session = rng.randrange(self.config.sessions)
            yield TrackerOp(Op.STEP, session=session, delta=1)
            for squeue in range(session * queues, (session + 1) * queues):
                listed = sorted(self.queues.listed[squeue])
                for page in rng.sample(listed, min(2, len(listed))):
                    yield self.demand(squeue, page, rng.random() < 0.5)
                if rng.random() < 0.3:
                    yield self.demand(squeue, rng.randrange(pages), rng.random() < 0.5)

    def check_words(self):
        assert sum(len(pages) for pages in self.queues.listed) == sum(
            w.state == RESIDENT for w in self.tracker.words.values()
        )
        for p in self.tracker.pools:
            assert (
                not p.used or p.free >= min(max(1, self.tracker.low_water), p.limit) or self.events
            ), f"{p.free} frames free"


class LockStepTB(TB):
    """Predicts every CLAIM with a golden evictor that has words of its own."""

    lockstep = True

    def __init__(self, dut):
        super().__init__(dut)
        t, c = self.tracker, self.config
        self.evictor = Evictor(
            c,
            self.queues,
            self.words,
            step=lambda s: t.sessions[s].step,
            recency=lambda q: self.tau[q],
            closing=lambda s: bool(t.sessions[s].closing),
            kelp=self.kelp,
        )
        self.expected, self.expected_events = [], 0
        self.predicted = False
        self.refreshed = 0
        self.near, self.bit, self.bits = None, 0, []
        # A frame is always free in time: policy `kelp` values a queue anew when the access is
        # over, and this bench predicts once for each.
        if max(self.policies):
            self.pins = 0

    def draw_score(self):
        """Some are small, which policy `kelp` may take for none; for a while they differ in one
        bit, which few have, so that not each queue's best does."""
        if self.near is not None:
            return self.near & ~self.bit | (self.bit if self.rng.random() < 0.15 else 0)
        return self.rng.getrandbits(self.rng.choice((16, 16, 11)))

    def change(self):
        """From now on scores are any, or one of two that differ in a bit, in each bit in turn."""
        rng, scores = self.rng, self.words.score
        self.bits = self.bits or rng.sample(range(16), 16)
        self.near = rng.choice((None, *3 * [rng.getrandbits(16)]))
        if self.near is not None:
            self.bit = 1 << self.bits.pop()
        for at in range(len(scores)):
            scores[at] = self.draw_score()

    async def apply(self, squeue, policy):
        """The queue has that policy from now on, as by APPLY."""
        self.configure(squeue, self.pool[squeue], self.queues.budget[squeue], policy)
        await RisingEdge(self.dut.clk)
        self.dut.config_write__valid.value = 0
        await self.rest()

    def need_frames(self, low_water):
        """From now on so many frames of each pool are kept free: several pools may ask at once."""
        self.dut.low_water.value = self.tracker.low_water = low_water

    def decide(self, op):
        result = super().decide(op)
        if result.changed or op.kind == Op.RELEASE:
            self.evictor.observe(result.word.state, result.word.pinned, op.kind == Op.RELEASE)
        if op.kind == Op.CLOSE:
            self.evictor.drop(op.session)
        return result

    def predict(self):
        """Let the golden evictor work on copies of what it reads, and remember its CLAIMs."""
        if self.predicted:
            return
        self.predicted = True
        evictor, queues, words = self.evictor, self.queues, self.words
        kept = (
            words.state[:],
            [set(pages) for pages in queues.listed],
            queues.excess[:],
            [h[:] for h in queues._heaps],
        )
        on_change, queues.on_change = queues.on_change, None
        pools = self.tracker.pools
        spare, used = [p.free - p.waiting for p in pools], [p.used for p in pools]

        def claim(squeue, page, last_step):
            at = squeue * self.config.pages + page
            done = (
                words.state[at] == RESIDENT
                and not words.pinned[at]
                and words.last_step[at] == last_step
            )
            if done:
                words.state[at] = PageState.COLD
                queues.observe(squeue, page, RESIDENT, PageState.COLD)
            self.expected.append((squeue, page, done))
            return done

        while (
            pool := evictor.pool_in_need(spare, used, [0] * 4, self.tracker.low_water)
        ) is not None:
            reported = evictor.reported[pool]
            if evictor.attempt(pool, claim) is None:
                self.expected_events += not reported
                evictor.reported[pool] = True
            else:
                spare[pool] += 1
                used[pool] -= 1
                evictor.observe(PageState.COLD, 0, released=True)
        if self.kelp.refresh is not None:
            evictor.refresh(self.kelp.refresh)
            self.kelp.refresh = None
            self.refreshed += 1
        resting = evictor.resting[:]
        offers = [(q, queues.excess[q]) for q in self.policy if self.policy[q] == Policy.KELP]
        words.state, queues.listed, queues.excess, queues._heaps = kept
        for squeue, offer in offers:
            # As it is: 0 lines beyond a budget, of the policy before, are not nothing to give.
            queues._set(squeue, offer)
        queues.on_change = on_change
        evictor.words = words
        self.resting = resting

    async def check(self):
        self.predict()
        self.predicted = False
        await self.rest()
        self.evictor.resting = self.resting
        assert self.log == self.expected, f"CLAIMs {self.log}, expected {self.expected}"
        assert len(self.events) == self.expected_events, (
            f"{self.events}, expected {self.expected_events}"
        )
        assert self.sweeps == self.evictor.sweeps
        self.log.clear()
        self.expected.clear()

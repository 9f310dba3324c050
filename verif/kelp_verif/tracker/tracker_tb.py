# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The tracker beside its golden model: every port driven, every op compared in the cycle in which
it is due (see :mod:`kelp_verif.tracker.tracker_bench`)."""

import random
from collections import deque

import cocotb
from cocotb.triggers import ReadOnly, RisingEdge

from kelp_golden.ops import Op, QueueConfig, Session
from kelp_golden.tracker import Tracker as GoldenTracker
from kelp_hw.export.packing import Packing
from kelp_hw.layouts import Layouts
from kelp_hw.lib.secded import Secded
from kelp_hw.tracker.signatures import BACKGROUND, count_bits, credits_layout, spare_shape
from kelp_hw.tracker.tracker import Tracker
from kelp_spec.config import POOLS, Config
from kelp_spec.metadata import Event, Outcome, ScoreEvent
from kelp_spec.metadata import Op as K
from kelp_spec.policy import Policy

from ..harness.clocking import start_clock
from ..harness.flips import Faults

#: Of an op, what requests alone have, but for a REPLAY.
OF_REQUESTS = ("kv_line", "write", "partial", "poison", "has_write", "write_slot") + tuple(
    f"origin.{name}" for name in ("tag", "ld_id", "start", "missed", "look")
)
WORD = ("state", "place", "format_k", "format_v", "last_step", "pinned")
_CREDITS = tuple(credits_layout(ids=False).members)
#: cycles from an op to the first behind it that finds the page's word in the SRAM: encoded, written
APART = Tracker.LATENCY + 2
FRAME_OPS = (
    K.READ,
    K.WRITE,
    K.FILL,
    K.REPLAY,
    K.CLAIM,
    K.RELEASE,
    K.FREE,
    K.SCRUB,
    K.FLIP,
    K.PEEK,
    K.RECOVER,
    K.LOOK,
)
#: Ops that change a session: M0 admits nothing behind them until what it knows of the session, a
#: cycle old, is what they have made of it (docs/design.md §1).
CHANGES = (K.STEP, K.OPEN, K.CLOSE, K.CLOSED)
#: What an op needs downstream beside a place in the event log (docs/design.md §3).
NEEDS = {
    K.FILL: ("data",),
    K.REPLAY: ("data",),
    K.FREE: ("data",),
    K.RECOVER: ("data",),
    K.PEEK: ("data",),
    K.LOOK: ("data",),
    K.FLIP: ("data", "queue"),
    K.CLAIM: ("data", "queue"),
    K.RELEASE: ("data", "queue"),
    K.SCRUB: ("data", "queue", "score"),
    K.SCAN: ("score",),
    K.MASS: ("score",),
    K.PREFETCH: ("miss",),
}


class TB:
    """Drives every port, steps the golden model in M3 order, and compares. A test says what is
    wanted next on each stream, and is told every result."""

    def __init__(self, dut, config: Config, limits=None, flips=0.0):
        self.dut, self.config, self.rng = dut, config, random.Random(cocotb.RANDOM_SEED)
        self.noise = random.Random(cocotb.RANDOM_SEED + 1)
        self.flips, self.faults = flips, Faults(dut, self.rng)
        layouts = Layouts(config)
        self.request_packing, self.op_packing = Packing(layouts.request), Packing(layouts.op)
        self.coming_packing = Packing(layouts.coming)
        self.result_packing, self.frame_packing = Packing(layouts.result), Packing(layouts.frame_op)
        self.score_packing, self.hot_packing, self.session_packing = (
            Packing(layouts.score_event),
            Packing(layouts.hot),
            Packing(layouts.session),
        )
        self.config_packing = Packing(layouts.queue_config)
        self.count_bits, self.spare_bits = count_bits(config), spare_shape(config).width
        self.code = Secded(layouts.page_word.size)
        # A double error that hits the pin itself leaves its count wrong by one, as documented; it
        # is not planted.
        self.flippable = [b for b in range(self.code.code_bits) if b != layouts.page_word.size - 1]
        self.golden = GoldenTracker(config)
        self.policies = dict.fromkeys(range(config.squeues), Policy.EMA)
        self.golden.set_limits(limits or config.frames)
        # as the registers pass them on
        self.limits = [pool.limit for pool in self.golden.pools]
        self.cycle = 0
        self.miss_ids = deque(range(config.misses))
        self.id_waits = False
        self.at_hand = 0  # ids that the tracker has and no entry has got
        self.stalled = 0  # cycles in which a request waits and nobody can say for what
        self.want_request = lambda: None  # → (Op, fields of the request) or None
        self.want = {name: lambda: None for name in BACKGROUND}
        self.after = lambda op, result, before: None
        self.credit = lambda name: 1
        self.held = {}  # port → Op shown and not taken yet
        # port → Op that is to be shown next there, once it has been told
        self.behind = {}
        # how often a stream with an op tells what is behind it
        self.tells = 0.0
        # the request that is shown a cycle ahead, behind the one in `held`
        self.coming = None
        self.has = self.had = dict.fromkeys(_CREDITS, 1)  # credits of this cycle, of the one before
        self.fatals, self.fatal, self.was_fatal = 0.0, 0, 0  # how often; in this cycle, before it
        self.stays = 0  # cycles in which it stays fatal, and nothing new is asked for
        self.writes = 0.0  # how often the pools' registers are written
        # (cycle of M3 from which they count, low_water, reserve)
        self.settings = deque()
        self.pauses, self.pausing = 0.0, 0  # how often one begins; for how many cycles it has stood
        self.seen_paused, self.unpausing = 0, False
        # (cycle of the handshake, request or None, op or None, credits that they had)
        self.entered = deque()
        # cycle of the handshake of the latest op that changes a session; at first long ago
        self.changed = -Tracker.LATENCY - 2
        # (cycle, result or None, hot or None, (of the pools free, used, spare; the session's step))
        self.expected = deque()
        self.planted = {}  # page → (cycle from which it can be read, bits)
        # page → cycle in which the last op that looked at its word entered
        self.looked = {}
        self.flip_at = {}  # cycle → mask
        self.seen = {"hot": 0, "fatal": 0, "paused": 0, "faults": [0, 0, 0], "outcomes": {}}
        self.taken = dict.fromkeys(("request", *BACKGROUND), 0)
        self.ports = {
            name: [getattr(dut, f"{path}__{part}") for part in ("payload", "valid", "ready")]
            for name, path in (
                ("request", "i_request"),
                *((name, f"ops__{name}") for name in BACKGROUND),
            )
        }

    async def reset(self):
        dut = self.dut
        await start_clock(dut)
        for payload, valid, _ in self.ports.values():
            payload.value = valid.value = 0
        dut.credits.value = (1 << len(_CREDITS)) - 1
        dut.i_miss_free__valid.value = dut.i_miss_free__payload.value = 0
        dut.ops__behind.value = dut.ahead.value = dut.config_write__payload.value = (
            dut.config_write__valid.value
        ) = dut.descriptor.value = dut.ecc_flip.value = dut.hold__pause.value = dut.fatal.value = 0
        self.set_pools()
        for _ in range(2):
            await RisingEdge(dut.clk)
        dut.rst.value = 0

    def set_pools(self):
        """The pools' settings as they are at the beginning."""
        settings = "pool_settings__low_water", "pool_settings__reserve", "pool_settings__limit"
        limits = sum(limit << self.count_bits * p for p, limit in enumerate(self.limits))
        values = self.golden.low_water, self.golden.reserve, limits
        for name, value in zip(settings, values, strict=True):
            getattr(self.dut, name).value = value

    async def scrubbed(self):
        """Waits for `ready`; the number of cycles it took."""
        cycles = 0
        while True:
            await ReadOnly()
            if self.dut.ready.value:
                self._check_sessions("after reset")
                await RisingEdge(self.dut.clk)
                return cycles
            await RisingEdge(self.dut.clk)
            cycles += 1

    async def configure(self, squeue, queue: QueueConfig):
        """Writes one queue's configuration, when nothing of its session is on its way."""
        self.golden.configure(squeue, queue)
        # The tracker only tells it.
        self.policies[squeue] = list(Policy)[squeue + queue.format_k + queue.pool & 1]
        packed = self.config_packing.pack(
            format_k=queue.format_k,
            format_v=queue.format_v,
            pool=queue.pool,
            policy=self.policies[squeue],
        )
        self.dut.config_write__payload.value = squeue | packed << self.config.squeue_bits
        self.dut.config_write__valid.value = 1
        await self.quiet_cycle()
        self.dut.config_write__valid.value = 0

    # - packing ------------------------------------------------------------------------------------
    def origin(self, op: Op) -> dict[str, int]:
        """All of an origin hangs on its tag, so that every bit of it is compared."""
        tag = op.origin or 0
        start, missed = tag * 0x2545F3D & 0xFFFFFFFF, tag.bit_count() & 1
        of = {"tag": tag, "ld_id": op.ld_id, "start": start, "missed": missed}
        if self.config.select:
            of["look"] = int(op.kind == K.LOOK)
        return {f"origin.{name}": value for name, value in of.items()}

    def pack_request(self, op: Op, queue: int | None = None) -> int:
        if queue is None:
            queue = op.squeue - op.session * self.config.queues
        return self.request_packing.pack(
            write=op.write,
            partial=op.partial,
            poison=op.poison,
            has_write=op.has_write,
            write_slot=op.write_slot,
            session=op.session,
            queue=queue,
            squeue=op.squeue,
            page=op.page,
            kv_line=op.kv_line,
            refused=op.refused,
            no_memory=op.no_memory,
            **self.origin(op),
        )

    def _show_ahead(self, op: Op):
        """As one of the two candidates; the other is anything."""
        noise, width = self.noise, self.coming_packing.width
        which = noise.getrandbits(1)
        packed = self.coming_packing.pack(
            session=op.session,
            squeue=op.squeue,
            page=op.page,
            kv_line=op.kv_line,
            ld_id=op.ld_id,
            memory=not (op.refused or op.no_memory),
        )
        self.dut.ahead.value = (
            packed << width * which
            | noise.getrandbits(width) << width * (1 - which)
            | which << 2 * width
        )

    def fields(self, op: Op) -> dict[str, int]:
        """Of a background op."""
        names = (
            "kind",
            "session",
            "squeue",
            "page",
            "kv_line",
            "write",
            "partial",
            "poison",
            "has_write",
            "write_slot",
            "miss",
            "pool",
            "frame",
            "failed",
            "miss_kind",
            "lost",
            "source",
            "slot",
            "mass",
            "delta",
            "written",
        )
        return {n: getattr(op, n) for n in names} | self.origin(op)

    def pack_op(self, op: Op) -> int:
        return self.op_packing.pack(**self.fields(op))

    def pack_session(self, s: Session) -> int:
        return self.session_packing.pack(**{n: getattr(s, n) for n in Session.__slots__})

    # - one cycle ----------------------------------------------------------------------------------
    async def step(self):
        dut = self.dut
        for name, (payload, valid, _) in self.ports.items():
            if name not in self.held:
                if name == "request":
                    op, self.coming = self.coming, None
                else:
                    op = self.behind.pop(name, None) or self.want[name]()
                if op is not None:
                    self.held[name] = op
                    payload.value = self.pack_request(op) if name == "request" else self.pack_op(op)
                    valid.value = 1
                elif valid.value:
                    valid.value = 0
        if self.coming is None and not self.stays and (op := self.want_request()) is not None:
            self.coming = op
            self._show_ahead(op)
        behind = 0
        for k, name in enumerate(BACKGROUND):
            if (
                name != "control"
                and name in self.held
                and name not in self.behind
                and self.noise.random() < self.tells
            ):
                if (op := self.want[name]()) is not None:
                    self.behind[name] = op
            if name in self.behind:
                behind |= (1 | int(self.behind[name].kind) << 1) << 6 * k
        dut.ops__behind.value = behind
        self.had, self.has = self.has, {name: self.credit(name) for name in _CREDITS}
        dut.credits.value = sum(self.has[name] << n for n, name in enumerate(_CREDITS))
        pulse = self.noise.random() < self.fatals
        self.was_fatal, self.fatal = self.fatal, int(pulse or self.stays > 0)
        self.stays = max(0, self.stays - 1)
        dut.fatal.value = self.fatal
        self._write_registers()
        self._pause()
        self._offer_id()
        dut.ecc_flip.value = self.flip_at.pop(self.cycle, 0)
        await ReadOnly()
        self._take_id()
        self._observe()
        await RisingEdge(dut.clk)
        self.cycle += 1

    def _write_registers(self):
        """Two of the pools' settings may change in any cycle; small ones leave something to do."""
        if self.noise.random() >= self.writes:
            return
        few, most = (0, 1, 3), (1 << self.count_bits) - 1
        low_water, reserve = (
            self.noise.choice((*few, self.noise.randint(0, most))) for _ in range(2)
        )
        self.dut.pool_settings__low_water.value = low_water
        self.dut.pool_settings__reserve.value = reserve
        self.settings.append((self.cycle + 2, low_water, reserve))

    def _pause(self):
        """One that stands ends some cycles after the pipeline is said to be empty."""
        ends = self.seen_paused and self.noise.random() < 0.3
        begins = not self.pausing and self.noise.random() < self.pauses
        self.unpausing = self.pausing and ends
        self.pausing = self.pausing + 1 if (self.pausing and not ends) or begins else 0
        if not self.pausing:
            self.seen_paused = 0
        self.dut.hold__pause.value = int(self.pausing > 0)

    def _check_pause(self, taken):
        """From its second cycle on nothing enters; `paused` stands from a cycle after the last op
        has left until the pause ends."""
        busy = bool(self.entered or self.expected)
        assert self.dut.idle.value != busy, f"cycle {self.cycle}: idle is wrong"
        paused = bool(self.dut.hold__paused.value)
        if self.pausing < 2:
            assert not paused or (self.unpausing and not taken), "paused without a pause"
            return
        assert not taken, f"an op enters in cycle {self.pausing} of a pause"
        assert not (paused and busy), "paused with an op inside"
        assert paused or self.pausing <= Tracker.RESULT_LATENCY + 1, "a pause has no end"
        assert paused or not self.seen_paused, "paused ends before the pause"
        self.seen_paused |= paused
        self.seen["paused"] += paused

    async def quiet_cycle(self):
        """One cycle in which nothing new is offered, only a miss id still waits; `idle` in it."""
        self.dut.i_miss_free__valid.value = int(self.id_waits)
        self.pausing = self.seen_paused = self.dut.hold__pause.value = 0
        await ReadOnly()
        self._take_id()
        idle = bool(self.dut.idle.value)
        await RisingEdge(self.dut.clk)
        self.cycle += 1
        return idle

    def _offer_id(self):
        credit = self.credit("free")
        self.id_waits = bool(self.miss_ids) and bool(credit or self.id_waits)  # an offer stays
        self.dut.i_miss_free__valid.value = int(self.id_waits)
        self.dut.i_miss_free__payload.value = (
            self.miss_ids[0] if self.id_waits else self.rng.getrandbits(self.config.miss_bits)
        )

    def _take_id(self):
        if self.id_waits and self.dut.i_miss_free__ready.value:
            self.miss_ids.popleft()
            self.id_waits = False
            self.at_hand += 1

    def _observe(self):
        now = self.cycle
        request = op = None
        self._check_pause([name for name in self.held if self.ports[name][2].value])
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
            behind = now - self.changed
            assert behind > Tracker.LATENCY + 1, f"cycle {now}: {behind} behind a session's change"
        if op and op.kind in CHANGES:
            self.changed = now
        if op:
            lacks = [need for need in ("event", *NEEDS.get(op.kind, ())) if not self.had[need]]
            assert not lacks, f"{op} enters without a credit: {lacks}"
        if request or op:
            had = self.had
            if request and self.fatal:
                # It is refused, so it needs no miss; a device stays so for good, here it does until
                # whoever entered meanwhile has been decided.
                self.stays, had = Tracker.LATENCY + 1, had | {"miss": 1}
            self.entered.append((now, request, op, had))
        self._check_stall(bool(op))
        self._check_m3(now)
        self._check_results(now)

    def _check_stall(self, busy):
        """A request that has all credits, and an id, enters an empty pipeline."""
        self.faults.hear()
        has = all(self.has.values()) and all(self.had.values()) and self.at_hand
        closing = any(s.closing for s in self.golden.sessions)
        empty = not (busy or self.entered or self.expected or self.pausing or self.fatal)
        waits = "request" in self.held and has and empty and not closing
        self.stalled = self.stalled + 1 if waits else 0
        assert self.stalled < 8, f"cycle {self.cycle}: {self.held['request']} waits for nothing"

    def _check_m3(self, now):
        dut = self.dut
        valid, hot = int(dut.o_frame_op__valid.value), int(dut.o_frame_op_hot.value)
        while self.settings and self.settings[0][0] <= now:
            _, self.golden.low_water, self.golden.reserve = self.settings.popleft()
        if not self.entered or self.entered[0][0] != now - Tracker.LATENCY:
            assert not valid, f"cycle {now}: frame op out of nothing"
            return
        entered, request, op, had = self.entered.popleft()
        if request and op:
            assert hot, "a request that was not hot shared its cycle"
        hot_result = result = None
        if hot:
            assert request, "hot lane without a request"
            assert had["data"], f"{request} enters without a credit"
            hot_result = self._golden(request, entered, sees_word=False)
            assert (hot_result.outcome, hot_result.first, hot_result.changed) == (
                Outcome.HIT,
                0,
                0,
            ), f"hot lane took {hot_result}"
            self.seen["hot"] += 1
            self._check_frame_op(hot_result)
        lane = op or (request if not hot else None)
        if lane is request and lane:
            assert all(had.values()), f"{request} enters without a credit: {had}"
            if self.was_fatal:
                lane.refused = Event.FATAL
                self.seen["fatal"] += 1
        if lane:
            result = self._golden(lane, entered)
            if not hot and lane.kind in FRAME_OPS:
                assert valid, f"no frame op for {result}"
                self._check_frame_op(result)
            elif not hot:
                assert not valid, f"frame op for {result}"
        pools = self.golden.pools
        counts = (
            [p.free for p in pools],
            [p.used for p in pools],
            [p.free - p.waiting for p in pools],
            self.golden.sessions[lane.session].step if lane else 0,
        )
        due = entered + Tracker.RESULT_LATENCY
        self.expected.append((due, result, hot_result, counts))

    def _golden(self, op, entered, sees_word=True):
        golden = self.golden
        key = op.squeue * self.config.pages + op.page
        since, bits = self.planted.get(key, (0, ()))
        # A word that an op in the pipeline holds is taken from there, not from the SRAM.
        fault = (
            len(bits)
            if sees_word
            and bits
            and since <= entered
            and self.looked.get(key, -APART) <= entered - APART
            else 0
        )
        before = golden.word(op.squeue, op.page)
        result = golden.step(
            op, fault=fault, descriptor=self.descriptor if op.kind == K.OPEN else None
        )
        if not result.reads:
            assert not (result.corrected or result.uncorrected)
        else:
            self.seen["faults"][fault] += 1
            if sees_word:
                self.looked[key] = entered
            if result.changed or result.corrected:
                # The code word is encoded in the next cycle, written in the one after, and can be
                # read behind that.
                bits = ()
                if self.rng.random() < self.flips:
                    bits = tuple(self.rng.sample(self.flippable, self.rng.choice((1, 1, 2))))
                    self.flip_at[self.cycle + 1] = sum(1 << b for b in bits)
                self.planted[key] = (entered + APART, bits)
        self.at_hand -= op.kind != K.GRANT and result.outcome == Outcome.MISSED
        name = (K(op.kind).name, Outcome(result.outcome).name)
        self.seen["outcomes"][name] = self.seen["outcomes"].get(name, 0) + 1
        self.after(op, result, before)
        return result

    def _check_frame_op(self, r):
        got = self.frame_packing.unpack(self.dut.o_frame_op__payload.value)
        op, session = r.op, self.golden.sessions[r.op.session]
        demand = op.kind in (K.READ, K.WRITE, K.REPLAY)
        want = {
            "kind": op.kind,
            "outcome": r.outcome,
            "use": int(bool(r.use)),
            "answer": r.answer,
            "squeue": op.squeue,
            "page": op.page,
            "init": r.init,
            "write": op.write if demand else 0,
            "has_write": op.has_write if demand else 0,
        }
        if op.kind == K.PEEK:
            want["use"] = int(op.slot == 9)  # this bench's evictor walks with it
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
        if op.kind == K.LOOK and r.use:
            want |= {name: getattr(r, name) for name in ("format_k", "format_v")}
            want |= {name: getattr(session, name) for name in ("used_lines", "k_only")}
            want |= {"kv_line": op.kv_line, "host_type": session.host_type} | self.origin(op)
        if demand:
            want |= {"write_slot": op.write_slot} | self.origin(op)
            if r.use:
                want |= {
                    "kv_line": op.kv_line,
                    "partial": op.partial,
                    "poison": op.poison,
                    "format_k": r.format_k,
                    "format_v": r.format_v,
                    "used_lines": session.used_lines,
                    "k_only": session.k_only,
                    "host_type": session.host_type,
                }
        bad = {n: (got[n], int(v)) for n, v in want.items() if got[n] != int(v)}
        assert not bad, f"frame op of {r}: (got, want) {bad}"

    def _check_results(self, now):
        dut = self.dut
        valid, hot_valid, score_valid = (
            int(p.value) for p in (dut.o_result__valid, dut.o_hot__valid, dut.o_score__valid)
        )
        if not self.expected or self.expected[0][0] != now:
            assert not (valid or hot_valid or score_valid), f"cycle {now}: result out of nothing"
            return
        _, r, hot, (free, used, spare, step) = self.expected.popleft()
        assert (valid, hot_valid) == (r is not None, hot is not None)
        if hot:
            got = self.hot_packing.unpack(dut.o_hot__payload.value)
            assert got == {n: getattr(hot.op, n) for n in got}
        for port, bits, want in (
            (dut.pools__free, self.count_bits, free),
            (dut.pools__used, self.count_bits, used),
            (dut.pools__spare, self.spare_bits, spare),
        ):
            vector, mask = int(port.value), (1 << bits) - 1
            assert [vector >> bits * p & mask for p in range(len(POOLS))] == [
                n & mask for n in want
            ], f"pool counts after {r}"
        if r is None:
            assert not score_valid
            return
        got = self.result_packing.unpack(dut.o_result__payload.value)
        op = r.op
        want = {
            "op.kind": op.kind,
            "op.session": op.session,
            "op.squeue": op.squeue,
            "op.page": op.page,
            "outcome": r.outcome,
            "corrected": r.corrected,
            "uncorrected": r.uncorrected,
            "changed": r.changed,
            "first": r.first,
            "op.slot": op.slot,
            "op.source": op.source,
        }
        if r.reads:
            for which, word in (("old", r.old), ("word", r.word)):
                want |= {f"{which}.{n}": v for n, v in zip(WORD, word, strict=True)}
        if op.kind in (K.READ, K.WRITE, K.PIN, K.OPEN):
            want["op.refused"] = r.event
        if op.kind not in (K.READ, K.WRITE):
            # What only a request has may be another one's in an op that is not a REPLAY.
            said = self.fields(op).items()
            want |= {f"op.{n}": v for n, v in said if n not in OF_REQUESTS or op.kind == K.REPLAY}
        if r.reads and op.kind != K.PEEK:
            want["policy"] = self.policies[op.squeue]
        if op.kind in (K.READ, K.WRITE):
            want |= {
                "op.kv_line": op.kv_line,
                "op.partial": op.partial,
                "op.poison": op.poison,
                "op.no_memory": op.no_memory,
                "op.write": op.write,
                "op.has_write": op.has_write,
                "op.write_slot": op.write_slot,
                **{f"op.{name}": value for name, value in self.origin(op).items()},
            }
        if r.outcome in (Outcome.MISSED, Outcome.PARKED) or op.kind in (
            K.GRANT,
            K.FILL,
            K.REPLAY,
            K.FLIP,
        ):
            want["miss"] = r.miss
        if (
            r.outcome == Outcome.MISSED
            and op.kind != K.PREFETCH
            or r.use
            and op.kind != K.PEEK
            or r.frame
        ):
            want["pool"] = r.pool
        taken = {K.GRANT: Outcome.DONE, K.PREFETCH: Outcome.MISSED}.get(op.kind)
        if r.frame or r.use and op.kind != K.PEEK or r.outcome == taken and not op.failed:
            want["frame"] = r.frame  # which may be frame 0
        bad = {n: (got[n], int(v)) for n, v in want.items() if got[n] != int(v)}
        assert not bad, f"result {r}: (got, want) {bad}"
        assert score_valid == bool(r.score), f"score event of {r}"
        if r.score:
            got = self.score_packing.unpack(dut.o_score__payload.value)
            want = {"kind": r.score, "squeue": op.squeue, "page": op.page}
            want |= {"session": op.session, "step": step & 0xFF}
            if r.score == ScoreEvent.SCAN:
                want |= {
                    "slot": op.slot,
                    **{f"scan.{n}": v for n, v in zip(WORD, r.word, strict=True)},
                }
            elif r.score not in (ScoreEvent.INIT, ScoreEvent.SCRUB):
                want |= {"gap": r.gap} if r.score == ScoreEvent.TOUCH else {"mass": r.mass}
            bad = {n: (got[n], int(v)) for n, v in want.items() if got[n] != int(v)}
            assert not bad, f"score event of {r}: (got, want) {bad}"
        if op.kind in CHANGES:
            self._check_sessions(f"after {r}")

    def _check_sessions(self, when):
        vector, width = int(self.dut.sessions.value), self.session_packing.width
        for s, session in enumerate(self.golden.sessions):
            got = self.session_packing.unpack(vector >> s * width)
            # Of one that is not open only that counts, and that it is not closing.
            names = got if session.open else ("open", "closing")
            want = {name: getattr(session, name) for name in names}
            assert {name: got[name] for name in names} == want, f"session {s} {when}"

    async def drain(self):
        """Runs until nothing is inside; the caller's `want`s must have run dry."""
        while self.held or self.coming or self.behind or self.entered or self.expected:
            await self.step()
        assert await self.quiet_cycle()

    async def ops(self, *ops, stream="control"):
        """Sends ops one after another on one stream, alone."""
        todo = deque(ops)

        def asks(want):
            if stream == "request":
                self.want_request = want
            else:
                self.want[stream] = want

        asks(lambda: todo.popleft() if todo else None)
        while todo:
            await self.step()
        await self.drain()
        asks(lambda: None)

    def show_descriptor(self, session: Session):
        """Of the next OPEN."""
        self.descriptor = session
        self.dut.descriptor.value = self.pack_session(session)

    async def open(self, s, session: Session):
        self.show_descriptor(session)
        await self.ops(Op(K.OPEN, session=s))

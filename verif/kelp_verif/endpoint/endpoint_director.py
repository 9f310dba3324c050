# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What happens to the endpoint while traffic is on: sessions that close and open anew, flipped
bits, new settings; and the look at its log and counters.

Events and counters are compared when the endpoint is quiescent. The log holds sixteen records; when
it has overflowed, what it holds must be explainable, else it must be exactly what the model
foresaw.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from kelp_hw.miss.cold_scheduler import ColdScheduler
from kelp_hw.pipeline import DECIDED
from kelp_spec.address import KvAddress
from kelp_spec.config import POOLS, Config
from kelp_spec.formats import Format
from kelp_spec.messages import M2SReq
from kelp_spec.metadata import LAYER_RANGES, Event, PageState, PrefetchSource, ScoreSource
from kelp_spec.registers import COUNTERS, EVENT_RECORDS, SessionCommand
from kelp_spec.scores import IDLE_BIAS, RECENCY_BIAS, idle_constants, recency_constants

from .endpoint_model import Request
from .endpoint_tb import ONE_LINE, RETRIES, TB, TIMEOUT
from .endpoint_traffic import random_shape

__all__ = ["Director", "Settings"]

#: Events of requests and hints are told apart by LD-ID, the others by page.
_BY_PAGE = {
    Event.UNCORRECTED,
    Event.CORRECTED,
    Event.FETCH_FAILED,
    Event.WRITE_BACK_FAILED,
    Event.FRAME_RECOVERED,
    Event.STARVED,
    Event.PIN_REFUSED,
}
#: cycles for which an op waits for requests, and no longer (proof `arbiter`)
OP_WAITS = 23
_SOURCES = [s.name.lower() for s in PrefetchSource if s]


@dataclass(frozen=True)
class Settings:
    """What a run fixes; None leaves it to chance. `limit`: frames of each pool; `shape`: layers and
    KV heads of every session."""

    low_water: int | None = None
    high_water: int | None = None
    limit: int | None = None
    policy: int | None = None
    format: str | None = None
    shape: tuple[int, int] | None = None


def close_limit(config: Config) -> int:
    """Cycles in which a session closes, whatever the tier does within its time-outs.

    A walk scrubs page by page; what is being fetched is passed over, and walked to again when it
    has landed. A fetch waits for a frame at most, and for itself; frames come from evictions, as
    many side by side as there are slots, and each waits for its write-back. A transfer ends after
    its tries, each with an ABORT, and each noticed a turn of the table later.
    """
    entries = config.misses + config.write_backs
    noticed = ColdScheduler.TURN * entries + ColdScheduler.LATENCY
    transfer = (RETRIES + 1) * 2 * (TIMEOUT + noticed)
    walk = config.queues * config.pages * (OP_WAITS + DECIDED)
    rounds = -(-config.misses // config.write_backs)
    return (rounds + 1) * transfer + 2 * walk


class Director:
    """Acts on a :class:`TB` between and during phases. `seen` counts what it did."""

    def __init__(self, tb: TB, settings: Settings):
        self.tb, self.rng, self.config, self.model = tb, tb.rng, tb.config, tb.model
        self.settings = settings
        formats = [f for f in self.config.formats if settings.format in (None, Format(f).label)]
        self.deck = [(k, v) for k in formats for v in formats]
        self.rng.shuffle(self.deck)
        self.owners = self.rng.sample(range(16), self.config.sessions)
        # LD-ID 0 may do everything
        self.stranger = self.rng.choice([n for n in range(1, 16) if n not in self.owners])
        self.seen: Counter = Counter()
        # flips of one bit that are certain to be corrected; those that may have been written over
        self.singles = self.slack = 0
        self.exact_logs = 0
        self.irq_enable = 0  # as after a reset; another one for each look at the log

    # - settings and sessions ----------------------------------------------------------------------
    async def program(self) -> None:
        """Control registers, before anything else. A pool's limit leaves room for what is kept free
        and for what pins may take."""
        tb, rng, fixed = self.tb, self.rng, self.settings
        low = rng.randint(1, 2) if fixed.low_water is None else fixed.low_water
        high = low + rng.randint(1, 2) if fixed.high_water is None else fixed.high_water
        await tb.write(
            {
                "low_water": low,
                "reserve": rng.randint(2, 4),
                "cold_retries": RETRIES,
                "cold_timeout": TIMEOUT,
            }
        )
        await tb.write(
            {
                "starve_limit": 1 << 24,
                "prefetch_enable": tb.traffic.mix.prefetch,
                "high_water": high,
            }
        )
        self.limits = [fixed.limit or rng.randint(n * 3 // 4, n) for n in self.config.frames]
        await tb.write(
            {f"pool_limit_{pool}": limit for pool, limit in zip(POOLS, self.limits, strict=True)}
        )

    async def watermarks(self) -> None:
        """Other ones, up to a third of the smallest pool, where they are not fixed."""
        if self.settings.low_water is None and self.settings.high_water is None:
            low = self.rng.randint(1, 2)
            await self.tb.write({"low_water": low})
            await self.tb.write({"high_water": low + self.rng.randint(1, min(self.limits) // 3)})

    async def open(self, session: int) -> None:
        tb, rng, model = self.tb, self.rng, self.model
        owner, fixed = self.owners[session], self.settings.shape
        shape = random_shape(self.config, rng, owner, self.deck, fixed)
        p = f"s{session}_"
        ranges = [
            *shape.formats,
            *[(1023, *shape.formats[-1][1:])] * (LAYER_RANGES - len(shape.formats)),
        ]
        tau_m, tau_sh = recency_constants(rng.choice((1, 20, 1000)))
        alpha = rng.choice((1, 26, 256))
        idle_m, idle_sh = idle_constants(alpha)
        await tb.write(
            {
                p + "shape": tb.pack(
                    p + "shape",
                    layers=shape.layers,
                    kv_heads=shape.kv_heads,
                    used_lines=shape.used_lines,
                    host_type=shape.host_type,
                    k_only=shape.k_only,
                    used_pages=shape.used_pages,
                    owner=shape.owner,
                ),
                p + "formats": tb.pack(
                    p + "formats",
                    **{
                        name: value
                        for r, (last, k, v) in enumerate(ranges)
                        for name, value in (
                            (f"last_layer_{r}", last),
                            (f"format_k_{r}", k),
                            (f"format_v_{r}", v),
                        )
                    },
                ),
                p + "policy": tb.pack(
                    p + "policy",
                    alpha=alpha,
                    mass_shift=rng.randrange(8),
                    score_source=rng.choice(list(ScoreSource)),
                    window=rng.choice((0, 1, 3)),
                    policy=(
                        (self.seen["open"] + session) & 1
                        if self.settings.policy is None
                        else self.settings.policy
                    ),
                ),
                p + "recency": tb.pack(
                    p + "recency",
                    tau_m=tau_m,
                    tau_sh=tau_sh + RECENCY_BIAS,
                    idle_m=idle_m,
                    idle_sh=idle_sh + IDLE_BIAS,
                ),
            }
        )
        await tb.write({p + "budget": rng.choice((0, 8, 20, 1 << 20))})
        await tb.write(
            {p + "command": SessionCommand.OPEN}, taken=lambda: model.opening(session, shape)
        )
        model.sessions[session].state = "open"
        state = await tb.read_fields(p + "state")
        assert state["open"] and not state["refused"], state
        tb.traffic.no_hints.discard(session)
        self.seen["open"] += 1

    async def close(self, session: int) -> None:
        """CLOSE under traffic; returns when every page is scrubbed and every frame free."""
        tb, model, p = self.tb, self.model, f"s{session}_"
        tb.traffic.no_hints.add(session)
        await tb.write({p + "command": SessionCommand.CLOSE}, taken=lambda: model.closing(session))
        model.sessions[session].state = "draining"
        since = tb.cycle
        while (state := await tb.read_fields(p + "state"))["busy"]:
            assert not state["open"] and tb.cycle - since < close_limit(self.config), (
                f"session {session} has been closing for {tb.cycle - since} cycles"
            )
            if self.rng.random() < 0.1:
                await self.refused_command(session, SessionCommand.CLOSE)
        closed, done = model.sessions[session], tb.cycle
        # Nothing of the session is left inside, but answers may wait for the host, whose registers'
        # take turns with them.
        while late := _unanswered(closed):
            assert tb.cycle - done < 20_000, f"session {session} is closed, but owes {late}"
            await tb.cycles(20)
        closed.state = "closed"
        closed.pages.clear()
        self.seen["close"] += 1

    async def refused_command(self, session: int, command: SessionCommand, ld_id: int = 0) -> None:
        tb, p = self.tb, f"s{session}_"
        if tb.traffic.budget <= 0:
            return
        tb.traffic.budget -= 1
        self.model.must[Event.OPEN_REFUSED if ld_id == 0 else Event.REGISTER_REFUSED, ld_id] += 1
        await tb.write({p + "command": command}, ld_id)
        self.seen["refused_command"] += 1

    # - actions under traffic ----------------------------------------------------------------------
    async def act(self, actions: dict[str, int]) -> None:
        """One of the actions, by weight."""
        name = self.rng.choices(list(actions), list(actions.values()))[0]
        await getattr(self, name)()

    def some_open(self) -> int | None:
        able = [n for n, s in enumerate(self.model.sessions) if s.state == "open"]
        return self.rng.choice(able) if able else None

    async def reopen(self) -> None:
        if (session := self.some_open()) is not None:
            await self.close(session)
            await self.tb.cycles(self.rng.randrange(100))
            await self.open(session)

    async def advance(self) -> None:
        if (session := self.some_open()) is not None:
            steps = self.rng.randint(1, 20)
            s = self.model.sessions[session]
            command = self.tb.pack(
                f"s{session}_command", command=SessionCommand.ADVANCE, argument=steps
            )
            await self.tb.write(
                {f"s{session}_command": command}, self.rng.choice((0, s.shape.owner))
            )
            s.step += steps
            self.seen["advance"] += 1

    async def peer(self) -> None:
        """Somebody reads and writes registers that are not his."""
        tb = self.tb
        if tb.traffic.budget < 4:
            return
        tb.traffic.budget -= 2
        # the counters and the write; the first line holds something for him
        self.model.must[Event.REGISTER_REFUSED, self.stranger] += 2
        identity = await tb.read_line("identity", self.stranger)
        wanted = b"".join(
            self.tb.registers[name].reset.to_bytes(8, "little")
            for name in ("identity", "digest", "geometry")
        )
        assert identity[:24] == wanted and identity[32:] == bytes(32), identity.hex()
        assert not any(await tb.read_line("count_accesses", self.stranger))
        await tb.write({"low_water": 3}, self.stranger)
        if (session := self.some_open()) is not None:
            await self.refused_command(
                session, self.rng.choice((SessionCommand.CLOSE, SessionCommand.OPEN)), self.stranger
            )
        self.seen["peer"] += 1

    # - flipped bits -------------------------------------------------------------------------------
    async def flip(self, count: int, *, wild: bool) -> None:
        """Flips bits of one page's word. Unless `wild`, nobody has a request under way to the page:
        then what must happen is known exactly."""
        tb, rng, model = self.tb, self.rng, self.model
        session = self.some_open()
        if session is None:
            return
        shape = model.sessions[session].shape
        known = [key for key in model.sessions[session].pages if key not in tb.traffic.banned]
        key = (
            rng.choice(known)
            if known and rng.random() < 0.9
            else (session, rng.randrange(shape.queues), rng.randrange(shape.used_pages))
        )
        page = model.page(key)
        if not wild:
            tb.traffic.banned.add(key)
            while page.busy() or tb.offered(key):
                await tb.cycles(5)
        row, flips = tb.word(key), rng.sample(range(len(tb.word(key))), count)
        flipped, was_lost = [], []

        def deposit():
            flipped.append(int(row.value) ^ sum(1 << f for f in flips))
            was_lost.append(int(row.value) & 7 == PageState.LOST)
            row.value = flipped[0]
            if count == 2 and wild:
                model.doubt(page)

        tb.deposits.append(deposit)
        await tb.cycles(7)
        # An op that had read the word before the flip writes over it without looking.
        now = int(row.value)
        stands = now == flipped[0] or count == 2 and now & 7 == PageState.LOST
        squeue = session * self.config.queues + key[1]
        if count == 1:
            self.singles += stands
            self.slack += not stands
            model.may[Event.CORRECTED, squeue, key[2]] += 1
        else:
            (model.must if stands else model.may)[Event.UNCORRECTED, squeue, key[2]] += 1
            model.count["uncorrected" if stands else "uncorrected_slack"] += 1
            model.may[Event.FRAME_RECOVERED, squeue, key[2]] += 1
            tb.traffic.budget -= 2
            if not wild and stands:
                page.lose(self.config.page_lines)
                tb.watch.lost(page)
        word = await self.peek(key)
        if count == 2 and wild:
            tb.watch.lost(page)
            model.looked_at(page)
        elif count == 2 and stands:
            assert word["state"] == PageState.LOST, (
                f"two bits of page {key} flipped, but its word reads {word}"
            )
        elif count == 1 and not wild and stands and not was_lost[0]:
            assert word["state"] != PageState.LOST, f"one bit of page {key} flipped: {word}"
        tb.traffic.banned.discard(key)
        self.seen[f"flip_{count}{'_wild' if wild else ''}"] += stands

    async def peek(self, key: tuple) -> dict[str, int]:
        session, queue, page = key
        p = f"s{session}_"
        await self.tb.write({p + "queue": self.tb.pack(p + "queue", queue=queue, page=page)})
        await self.tb.write({p + "command": SessionCommand.PEEK})
        return await self.tb.read_fields(p + "page_word")

    async def single(self) -> None:
        await self.flip(1, wild=False)

    async def double(self) -> None:
        await self.flip(2, wild=False)

    async def wild_single(self) -> None:
        await self.flip(1, wild=True)

    async def wild_double(self) -> None:
        await self.flip(2, wild=True)

    # - looks --------------------------------------------------------------------------------------
    async def check_log(self) -> None:
        """The event log against what the model foresaw. Only when nothing is under way."""
        tb, model = self.tb, self.model
        count = await tb.read("event_count")
        status = await tb.read_fields("status")
        overflow, logged = status["event_overflow"], 0
        got: Counter = Counter()
        for first in range(0, count, 4):
            line = await tb.read_line(f"event_{first}")
            for i in range(first, min(count, first + 4)):
                word = int.from_bytes(line[16 * (i - first) : 16 * (i - first) + 8], "little")
                e = {
                    f.name: word >> f.low & (1 << f.bits) - 1
                    for f in tb.registers["event_0"].fields
                }
                code = Event(e["code"])
                logged |= 1 << code
                got[(code, e["squeue"], e["page"]) if code in _BY_PAGE else (code, e["ld_id"])] += 1
        due = bool(logged & self.irq_enable)
        assert tb.dut.irq.value == status["irq"] == due, (
            f"irq {tb.dut.irq.value}, events {logged:#x}, enabled {self.irq_enable:#x}"
        )
        self.seen["irq" if due else "irq_masked"] += logged != 0
        # Sometimes all at once, mostly what was read.
        taken = {"event_clear": 1}
        if self.rng.random() < 0.8:
            taken = {"event_taken": count | overflow << 8}
        await tb.write(taken)
        status = await tb.read_fields("status")
        assert (tb.dut.irq.value, status["event_overflow"]) == (0, 0), status
        self.irq_enable = self.rng.getrandbits(32)
        await tb.write({"irq_enable": self.irq_enable})
        for event in [e for e in got if e[0] in (Event.NO_VICTIM, Event.PIN_REFUSED)]:
            self.seen[event[0].name.lower()] += got.pop(event)
        unexplained = got - (model.must + model.may)
        assert not unexplained, (
            f"events that nothing explains: {unexplained}; expected {model.must}, perhaps "
            + f"{model.may}"
        )
        if not overflow:
            assert count < EVENT_RECORDS or not model.must - got
            missing = model.must - got
            assert not missing, f"events are missing: {missing}; logged {got}"
            self.exact_logs += 1
        model.must.clear()
        model.may.clear()
        tb.traffic.budget = 10

    async def counters(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for i in range(0, len(COUNTERS), 8):
            line = await self.tb.read_line(f"count_{COUNTERS[i][0]}")
            found |= {
                name: int.from_bytes(line[8 * n : 8 * n + 8], "little")
                for n, (name, _) in enumerate(COUNTERS[i : i + 8])
            }
        return found

    async def check_counters(self) -> dict[str, int]:
        """Counters against what the bench saw on the ports. Only when nothing is under way, all
        sessions closed."""
        model, watch = self.model, self.tb.watch
        c = await self.counters()
        unsure = model.seen["unsure"]
        for name in ("reads", "writes", "refused"):
            assert 0 <= c[name] - model.count[name] <= unsure, (
                f"{name}: {c[name]} counted, {model.count[name]} seen, {unsure} may be either"
            )
        assert (
            c["reads"] + c["writes"] + c["refused"]
            >= model.count["reads"] + model.count["writes"] + model.count["refused"]
        )
        assert c["accesses"] == c["hits"] + c["misses"] + c["allocations"], c
        assert (
            c["fetches"] == watch.count["fetches"]
            and c["write_backs"] == watch.count["write_backs"]
        ), (c, watch.count)
        assert self.singles <= c["corrected"] <= self.singles + self.slack, (
            c["corrected"],
            self.singles,
            self.slack,
        )
        doubles = model.count["uncorrected"]
        assert doubles <= c["uncorrected"] <= doubles + model.count["uncorrected_slack"], (
            c["uncorrected"],
            model.count,
        )
        assert c["hint_lines"] == model.count["hint_lines"], (
            c["hint_lines"],
            model.count["hint_lines"],
        )
        updates = model.count["hint_updates"]
        assert c["hint_updates"] == updates or model.loose_hints and c["hint_updates"] <= updates, (
            c["hint_updates"],
            updates,
        )
        for source in _SOURCES:
            known = sum(c[f"prefetch_{what}_{source}"] for what in ("useful", "late", "useless"))
            assert known == c[f"prefetch_issued_{source}"], (source, c)
        return c

    async def check_steps(self) -> None:
        for n, s in enumerate(self.model.sessions):
            if s.state == "open" and not self.model.loose_hints:
                state = await self.tb.read_fields(f"s{n}_state")
                assert state["step"] == s.step and state["open"] and not state["busy"], (
                    n,
                    state,
                    s.step,
                )

    async def read_back(self, chance: float = 1.0) -> None:
        """Every line of every page of the open sessions, or of a part of them; a page is read all
        over."""
        tb, model = self.tb, self.model
        for session, s in enumerate(model.sessions):
            if s.state != "open":
                continue
            for queue in range(s.shape.queues):
                for page in range(s.shape.used_pages):
                    if self.rng.random() < chance:
                        first = model.map.encode(KvAddress(session, queue, page, 0, 0))
                        tb.senders[1].queue += [
                            Request(
                                False,
                                M2SReq.MEM_RD,
                                first + ONE_LINE * (kv * self.config.half_lines + line),
                                s.shape.owner,
                            )
                            for kv in range(1 if s.shape.k_only else 2)
                            for line in range(s.shape.used_lines)
                        ]
        await tb.settle()

    async def finish(self) -> dict[str, int]:
        """Everything read back, every session closed, every frame free, and the books are right.
        The counters are returned."""
        tb, model = self.tb, self.model
        await tb.settle()
        await self.check_log()
        await self.check_steps()
        await self.read_back()
        for session, s in enumerate(model.sessions):
            if s.state == "open":
                await self.close(session)
        await tb.settle()
        await self.check_log()
        for pool in POOLS:
            used = await tb.read(f"pool_used_{pool}")
            assert used == 0, (
                f"{used} frames of pool {pool} are still in use, though every session is closed"
            )
        assert not tb.flash.live and not tb.flash.done, tb.flash.live
        return await self.check_counters()


def _unanswered(session) -> list[str]:
    """Requests that were surely accepted before the session's CLOSE, and have no answer yet."""
    return [
        str(r)
        for page in session.pages.values()
        for line in page.pending.values()
        for r in line
        if not r.unsure
    ]

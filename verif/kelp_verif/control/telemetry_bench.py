# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Telemetry against a plain reading of docs/design.md §3: which counters, queue counters and events
each result, hot request and report causes.

Outputs are valid-only, so nothing can hold them back; every input comes at a pace of its own. What
is caused must appear within two cycles, in order; errors and dropped candidates of one cycle may
follow one by one.
"""

import random
from collections import Counter, deque

import cocotb
from cocotb.triggers import ReadOnly, RisingEdge

from kelp_hw.control.signatures import queue_event_layout
from kelp_hw.export.packing import Packing
from kelp_hw.layouts import DropReason, Layouts
from kelp_spec.config import Config, named
from kelp_spec.metadata import STEP_BITS, Event, MissKind, Op, Outcome, PageState, PrefetchSource
from kelp_spec.registers import COUNTERS, QUEUE_COUNTERS

from ..harness.clocking import start_clock
from ..harness.runner import bench_params, record

LATENCY = 2
SOURCES = [s for s in PrefetchSource if s]
NAMES = [name for name, _ in COUNTERS]
LATE_STARTERS = (
    "corrected",
    "uncorrected",
    *(f"prefetch_dropped_{s.name.lower()}" for s in SOURCES),
)
SHOWN = ("o_counted__queue", "o_counted__useful", "o_event")
#: What says nothing of an op that is no access but that it was not DONE.
ANY_OUTCOME = [each for each in Outcome if each not in (Outcome.REFUSED, Outcome.MISSED)]
SINGLE = {
    "spec_dropped": "prefetch_dropped_spec_read",
    "swept": "sweeps",
    "hint_line": "hint_lines",
    "hint_update": "hint_updates",
    "score_corrected": "corrected",
    "score_uncorrected": "uncorrected",
    "memory_corrected": "corrected",
    "memory_uncorrected": "uncorrected",
}


class Model:
    """What is due: totals, and the queue bumps, useful and late reports and events in order, each
    with the cycle of its cause."""

    FAILURES = {
        Op.FILL: Event.FETCH_FAILED,
        Op.RELEASE: Event.WRITE_BACK_FAILED,
        Op.GRANT: Event.STARVED,
    }

    def __init__(self, config: Config):
        self.config = config
        self.kept = [name for name, _ in QUEUE_COUNTERS][: None if config.wide_counters else 4]
        self.totals = Counter()
        self.reset()

    def reset(self):
        # miss entry of a prefetch that no demand has met → its source
        self.unmet: dict[int, int] = {}
        self.due = {port: deque() for port in ("queue", "useful", "late", "event")}

    def result(self, now, r):
        op, outcome, old = r["op.kind"], r["outcome"], r["old.state"]
        demand = op in (Op.READ, Op.WRITE)
        mine = []  # counters kept per queue too
        if demand and outcome == Outcome.REFUSED:
            self.totals["refused"] += 1
        elif demand and not r["op.no_memory"]:
            self.totals["writes" if op == Op.WRITE else "reads"] += 1
            if r["first"]:
                self.totals["accesses"] += 1
                missed = outcome in (Outcome.MISSED, Outcome.PARKED) and old in (
                    PageState.COLD,
                    PageState.FETCHING,
                )
                mine.append(
                    "hits" if outcome == Outcome.HIT else "misses" if missed else "allocations"
                )
                if missed and old == PageState.COLD and r["age"] < 16:
                    mine.append("evicted_missed")
            if outcome == Outcome.PARKED and r["miss"] in self.unmet:
                self.due["late"].append((now, self.unmet.pop(r["miss"])))
        if outcome == Outcome.MISSED:
            self.unmet.pop(r["miss"], None)
            if op == Op.PREFETCH:
                self.unmet[r["miss"]] = r["op.source"]
                mine.append("prefetch_issued")
        if op == Op.RELEASE and not r["op.failed"]:
            mine += ["evictions"] * (outcome == Outcome.DONE) + ["write_backs"] * r["op.written"]
        self.totals["fetches"] += (
            op == Op.FILL and r["op.miss_kind"] != MissKind.ALLOCATE and not r["op.failed"]
        )
        for name in ("corrected", "uncorrected"):
            self.totals[name] += r[name]
        # in total those are counted by source, at the prefetcher
        self.totals.update(name for name in mine if name != "prefetch_issued")
        # Also where none of its queue's counters is kept, or counts.
        access = demand and outcome != Outcome.REFUSED and not r["op.no_memory"] and r["first"]
        if access or op == Op.RELEASE or "prefetch_issued" in mine:
            kept = frozenset(mine) & frozenset(self.kept)
            self.due["queue"].append((now, (r["op.squeue"], kept)))
        if code := self.event(r, op, outcome, demand):
            self.due["event"].append(
                (
                    now,
                    {
                        "code": code,
                        "ld_id": r["op.origin.ld_id"] if demand else 0,
                        "squeue": r["op.squeue"],
                        "page": r["op.page"],
                        "argument": r["op.origin.tag"] if demand else r["op.frame"],
                    },
                )
            )

    def event(self, r, op, outcome, demand):
        """One event a result, the gravest."""
        failures = self.FAILURES
        if r["uncorrected"]:
            return Event.UNCORRECTED
        if outcome == Outcome.REFUSED:
            return r["op.refused"] if r["op.refused"] != Event.FATAL else Event.NONE
        if r["op.failed"] and op in failures:
            ended = self.config.coherence and op == Op.RELEASE and not r["op.written"]
            return Event.NONE if ended else failures[op]
        if demand and r["op.poison"]:
            return Event.POISON_RECEIVED
        return Event.CORRECTED if r["corrected"] else Event.NONE


class TB:
    def __init__(self, dut):
        self.dut, self.rng = dut, random.Random(cocotb.RANDOM_SEED)
        self.config = named(bench_params()["base"]).with_(**bench_params()["config"])
        layouts = Layouts(self.config)
        self.model = Model(self.config)
        self.packed = {
            "i_result": Packing(layouts.result),
            "i_hot": Packing(layouts.hot),
            "i_usage": Packing(layouts.usage),
        }
        self.prefetch, self.event, self.queue = (
            Packing(layouts.prefetch_pulses),
            Packing(layouts.event),
            Packing(queue_event_layout(self.config)),
        )
        self.reasons = len(DropReason)
        self.got, self.before, self.earlier = Counter(), Counter(), Counter()
        self.seen, self.cycles = Counter(), 0
        self.rate, self.storm = (
            dict.fromkeys(("result", "hot", "usage", "prefetch", "single"), 0.5),
            0.05,
        )
        self.step = (1 << STEP_BITS) - 500  # wraps on the way
        self.meets = False  # pages are prefetched and met, under any miss id, and nothing else

    async def reset(self):
        dut = self.dut
        dut.rst.value = 1
        self.drive(None, None, None, {}, {})
        for _ in range(2):
            await RisingEdge(dut.clk)
        dut.rst.value = 0
        self.model.reset()
        self.model.totals = Counter(self.got)  # what was under way is forgotten
        self.before, self.earlier = Counter(self.got), Counter(self.got)

    def drive(self, result, hot, usage, prefetch, single):
        dut, rng = self.dut, self.rng
        for port, fields in (("i_result", result), ("i_hot", hot), ("i_usage", usage)):
            packing = self.packed[port]
            getattr(dut, f"{port}__payload").value = (
                rng.getrandbits(packing.width)
                if fields is None
                else packing.pack(**{k: v for k, v in fields.items() if k != "age"})
            )
            getattr(dut, f"{port}__valid").value = int(fields is not None)
        vector = 0
        for (what, why), sources in prefetch.items():
            offset, _ = self.prefetch.fields[what]
            vector |= sum(1 << s - 1 for s in sources) << offset + len(SOURCES) * why
        dut.i_prefetch.value = vector
        for name in SINGLE:
            getattr(dut, name).value = int(single.get(name, 0))

    def ranges(self):
        """The ops and states that a result is of, and how many miss ids."""
        kinds = [Op.READ] * 4 + [Op.WRITE] * 4 + [Op.PREFETCH] * 3
        if self.meets:
            return kinds, [PageState.COLD, PageState.FETCHING], self.config.misses
        kinds += [Op.RELEASE] * 2 + [op for op in Op if op]
        states = [*PageState, PageState.COLD, PageState.FETCHING]
        return kinds, states, self.rng.choice([4, self.config.misses])

    def result(self):
        """A result such as M3 makes: op, the word's state before, and the outcomes of
        docs/design.md §3 for them."""
        c, rng = self.config, self.rng
        self.step = self.step + (rng.random() < 0.05) & (1 << STEP_BITS) - 1
        age = rng.choice([0, 15, 16, rng.randrange(1 << c.place_bits)])
        kinds, states, misses = self.ranges()
        kind = rng.choice(kinds)
        r = {
            "op.kind": kind,
            "op.squeue": rng.randrange(c.squeues),
            "op.page": rng.randrange(c.pages),
            "op.origin.ld_id": rng.getrandbits(4),
            "op.origin.tag": rng.getrandbits(16),
            "op.frame": rng.randrange(c.total_frames),
            "op.source": rng.choice(SOURCES),
            "op.written": 0,
            "op.failed": 0,
            "op.poison": 0,
            "op.no_memory": 0,
            "op.miss_kind": rng.choice(list(MissKind)),
            "op.refused": 0,
            "first": 0,
            "miss": rng.randrange(misses),
            "outcome": Outcome.DONE,
            "old.state": rng.choice(states),
            "old.place": self.step - age & (1 << c.place_bits) - 1,
            "word.last_step": self.step,
            "corrected": rng.random() < 0.05,
            "uncorrected": 0,
            "age": age,
        }
        if not r["corrected"] and rng.random() < 0.03:
            r |= {"uncorrected": 1, "old.state": PageState.LOST}
        state = r["old.state"]
        if kind in (Op.READ, Op.WRITE):
            r |= {
                "op.write": kind == Op.WRITE,
                "op.poison": kind == Op.WRITE and rng.random() < 0.1,
            }
            what = rng.random()
            if what < 0.1:
                r |= {
                    "outcome": Outcome.REFUSED,
                    "op.no_memory": rng.getrandbits(1),
                    "op.refused": rng.choice(
                        [
                            Event.OUT_OF_MAP,
                            Event.CLOSED_SESSION,
                            Event.FOREIGN_LD,
                            Event.UNKNOWN_OPCODE,
                            Event.FATAL,
                        ]
                    ),
                }
            elif what < 0.15:
                r |= {"op.no_memory": 1, "op.poison": 0}
            elif state in (PageState.RESIDENT, PageState.WRITING_BACK):
                r |= {"outcome": Outcome.HIT, "first": rng.getrandbits(1)}
            elif state == PageState.COLD:
                r |= {"outcome": Outcome.MISSED, "first": rng.getrandbits(1)}
            elif state == PageState.FETCHING:
                r |= {"outcome": Outcome.PARKED, "first": rng.getrandbits(1)}
                if self.model.unmet and rng.random() < 0.5:
                    r["miss"] = rng.choice(list(self.model.unmet))
            elif kind == Op.WRITE:
                r |= {"outcome": rng.choice([Outcome.ALLOCATED, Outcome.MISSED]), "first": 1}
            else:
                r["outcome"] = Outcome.POISON if state == PageState.LOST else Outcome.ZERO
        elif kind == Op.PREFETCH:
            r["outcome"] = Outcome.MISSED if state == PageState.COLD else Outcome.DROPPED
        elif kind == Op.RELEASE:
            r |= {
                "outcome": rng.choice([Outcome.DONE, Outcome.VOID, rng.choice(ANY_OUTCOME)]),
                "op.failed": rng.random() < 0.5,
                "op.written": rng.getrandbits(1),
            }
        elif kind == Op.FILL:
            r["op.failed"] = r["op.miss_kind"] != MissKind.ALLOCATE and rng.random() < 0.5
        elif kind == Op.GRANT:
            r["op.failed"] = rng.random() < 0.3
            r["outcome"] = (
                Outcome.DONE if r["op.failed"] else rng.choice([Outcome.DONE, Outcome.RETRY])
            )
        elif kind in (Op.PIN, Op.OPEN) and rng.random() < 0.5:
            r |= {
                "outcome": Outcome.REFUSED,
                "op.refused": Event.PIN_REFUSED if kind == Op.PIN else Event.OPEN_REFUSED,
            }
        elif kind not in Model.FAILURES:
            r["outcome"] = rng.choice([Outcome.DONE, Outcome.DONE, Outcome.MISSED])
        # What is not asked for is anything.
        fields = self.packed["i_result"].fields
        others = {name: rng.getrandbits(64) & mask for name, (_, mask) in fields.items()}
        return others | {name: int(value) for name, value in r.items()}

    def reports(self):
        """What the prefetcher counts in a cycle, (kind, reason) → sources; a storm of drops as far
        as the backlog is deep."""
        rng, out = self.rng, {}
        often = rng.choice([0, 0.2, 0.2])  # or nothing but drops
        for what in ("issued", "useful", "late", "useless"):
            out[what, 0] = [s for s in SOURCES if rng.random() < often]
        backlog = max(self.model.totals[n] - self.got[n] for n in LATE_STARTERS[2:])
        for why in range(self.reasons):
            out["dropped", why] = [s for s in SOURCES if backlog < 40 and rng.random() < self.storm]
        return out

    async def cycle(self, quiet=False):
        dut, rng, c, model = self.dut, self.rng, self.config, self.model

        def now(what):
            return not quiet and rng.random() < self.rate[what]

        self.earlier, self.before = self.before, Counter(model.totals)
        result = self.result() if now("result") else None
        # One request a cycle: beside a hot one M3 decides a background op.
        beside = result is None or result["op.kind"] not in (Op.READ, Op.WRITE)
        hot = (
            {"write": rng.getrandbits(1), "squeue": rng.randrange(c.squeues)}
            if beside and now("hot")
            else None
        )
        useful = rng.getrandbits(1)
        usage = (
            {
                "source": rng.choice(SOURCES),
                "squeue": rng.randrange(c.squeues),
                "useful": useful,
                "useless": 1 - useful,
            }
            if now("usage")
            else None
        )
        prefetch = self.reports() if now("prefetch") else {}
        owing = max(model.totals[n] - self.got[n] for n in LATE_STARTERS[:2])
        single = {
            name: now("single") and (not name.startswith(("score", "memory")) or owing < 12)
            for name in SINGLE
        }
        self.drive(result, hot, usage, prefetch, single)
        if result:
            model.result(self.cycles, result)
            failed = result["op.kind"] == Op.RELEASE and result["op.failed"]
            self.seen["ended by the host"] += failed and not result["op.written"]
            self.seen[f"{Op(result['op.kind']).name} {Outcome(result['outcome']).name}"] += 1
        if hot:
            model.totals["writes" if hot["write"] else "reads"] += 1
        if usage and useful:
            model.due["useful"].append((self.cycles, usage["squeue"]))
        for (what, _), sources in prefetch.items():
            model.totals.update(f"prefetch_{what}_{s.name.lower()}" for s in sources)
        for name, counter in SINGLE.items():
            model.totals[counter] += single[name]
        await ReadOnly()
        self.look(not quiet and (result or hot or usage))
        await RisingEdge(dut.clk)
        self.cycles += 1

    def look(self, arriving):
        dut, model = self.dut, self.model
        pulses = int(dut.o_counted__pulses.value)
        self.got.update(name for i, name in enumerate(NAMES) if pulses >> i & 1)
        for name in NAMES:
            low = 0 if name in LATE_STARTERS else self.earlier[name]
            assert low <= self.got[name] <= self.before[name], (
                f"cycle {self.cycles}: {name} {self.got[name]}, expected {low} … "
                + f"{self.before[name]}"
            )
        if dut.o_counted__queue__valid.value == 1:
            got = self.queue.unpack(dut.o_counted__queue__payload.value)
            names = frozenset(name for i, name in enumerate(model.kept) if got["bump"] >> i & 1)
            self.take("queue", (got["squeue"], names))
            self.seen.update(names)
        if dut.o_counted__useful__valid.value == 1:
            self.take("useful", int(dut.o_counted__useful__payload.value))
        if dut.o_late__valid.value == 1:
            self.take("late", int(dut.o_late__payload.value))
        if dut.o_event__valid.value == 1:
            got = self.event.unpack(dut.o_event__payload.value)
            self.take("event", got)
            self.seen[Event(got["code"]).name] += 1
        for port, due in model.due.items():
            assert not due or self.cycles - due[0][0] < LATENCY, (
                f"cycle {self.cycles}: {port} still owes {due[0]}"
            )
        if dut.idle.value == 1:
            self.seen["idle"] += 1
            assert not arriving and self.got == +self.before and not any(model.due.values()), (
                f"cycle {self.cycles}: idle too early"
            )
            told = [name for name in SHOWN if getattr(dut, f"{name}__valid").value == 1]
            assert not pulses and not told, f"cycle {self.cycles}: idle with {told}"

    def take(self, port, got):
        assert self.model.due[port], f"cycle {self.cycles}: {port} {got} out of nothing"
        _, want = self.model.due[port].popleft()
        assert got == want, f"cycle {self.cycles}: {port} {got}, expected {want}"
        self.seen[port] += 1

    async def rest(self):
        for _ in range(60):
            await self.cycle(quiet=True)
        assert self.dut.idle.value == 1 and self.got == +self.model.totals, (
            "something was never counted"
        )


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def random_results(dut):
    tb = TB(dut)
    await start_clock(dut)
    await tb.reset()
    armed = False
    for n in range(bench_params()["cycles"]):
        if n % 100 == 0:
            # Now and then a cause comes alone.
            rates = [0.02] if tb.rng.random() < 0.3 else [0.02, 0.4, 1.0]
            tb.rate = {what: tb.rng.choice(rates) for what in tb.rate}
            tb.storm = tb.rng.choice([0.0, 0.05, 0.5])
            tb.meets = tb.rng.random() < 0.2
        if n % 500 == 250:
            await tb.rest()
        # Once in 1500 cycles, and as soon as a cause is under way if one is within 100 of them.
        due, place = any(tb.model.due.values()), n % 1500
        armed |= place == 1400
        if armed and (due or place == 1499):
            tb.seen["reset of a cause"] += due
            armed = False
            await tb.reset()
        await tb.cycle()
    await tb.rest()
    record(seen=dict(tb.seen), totals=dict(tb.got))

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The register window between a host and the rest of the endpoint, both played here, with a model
of what each register shows to whom.

The model is docs/registers.md as data (kelp_spec.registers) and a dictionary of values. Every
stream has pauses of its own.
"""

import random
from collections import Counter, deque

import cocotb
from cocotb.triggers import ReadOnly, ReadWrite, RisingEdge

from kelp_hw.control.signatures import queue_event_layout
from kelp_hw.export.packing import Packing
from kelp_hw.layouts import Layouts
from kelp_hw.pipeline import DECIDED, M0_TO_M3
from kelp_hw.tracker.signatures import count_bits
from kelp_spec.coherence import least_limit
from kelp_spec.config import POOLS, Config
from kelp_spec.metadata import Event, Op
from kelp_spec.registers import (
    COUNTERS,
    EVENT_RECORDS,
    HISTOGRAM_BINS,
    LONGEST_WAIT,
    QUEUE_COUNTERS,
    Access,
    RegisterMap,
    Scope,
)

from ..harness.runner import bench_params

__all__ = ["FULL", "TB", "fields_of"]

FULL = (1 << 64) - 1
#: Cycles from a control op's intake until its decision shows in the session registers, at most:
#: what the block is told of the pipeline is one more (docs/design.md §1).
TO_M3 = DECIDED - 1
#: Cycles from `quiet` until nothing is counted any more.
ON_ITS_WAY = 8
LINE_LIMIT = 1500
#: Cycles until a queue's resident lines are counted; the last is more than a read waits.
COUNTING = (0, 0, 1, 2, 30, 100, 400)
READY, QUIESCENT, FATAL = 1, 2, 4  #: bits of `status`


def fields_of(register, value):
    return {f.name: value >> f.low & (1 << f.bits) - 1 for f in register.fields}


def used_mask(register):
    return sum((1 << f.bits) - 1 << f.low for f in register.fields)


class TB:
    def __init__(self, dut):
        self.dut, self.rng = dut, random.Random(cocotb.RANDOM_SEED)
        self.config = c = Config.of_json(bench_params()["config"])
        layouts = Layouts(c)
        self.map = RegisterMap(c)
        self.at = {r.offset: r for r in self.map.registers}
        self.access_packing, self.answer = (
            Packing(layouts.register_access),
            Packing(layouts.window_answer),
        )
        self.session, self.op, self.result = (
            Packing(layouts.session),
            Packing(layouts.op),
            Packing(layouts.result),
        )
        self.event, self.queue, self.write = (
            Packing(layouts.event),
            Packing(queue_event_layout(c)),
            Packing(layouts.config_write),
        )
        self.settings, self.page_word = Packing(layouts.settings), Packing(layouts.page_word)
        self.budget_max = self.write.fields["queue_config.budget"][1]
        self.seen, self.cycles, self.now = Counter(), 0, (1 << 32) - 5000
        self.p_ready, self.noise = 0.5, 0.0
        # Cycles in a row, at most, in which everything is counted that can be, then one without. So
        # are those that came some cycles behind one in which the block was `quiet`.
        self.storm = self.storm_left = 0
        self.quiet = deque([0] * ON_ITS_WAY)
        # Whose resident lines are asked for, the cycles until they are counted, and those left; the
        # former two at the last answer.
        self.counted, self.counting, self.asked = (None, 0), 0, (None, 0)
        self.forget()

    def forget(self):
        """As after a reset."""
        c = self.config
        self.values = {r.name: r.reset for r in self.map.registers if r.access is Access.RW}
        self.sessions = [
            dict.fromkeys(("open", "closing", "ld_id", "step", "used_queues"), 0)
            for _ in range(c.sessions)
        ]
        self.were_open = [0] * c.sessions
        self.opened = [None] * c.sessions  # shape and formats as they were at OPEN
        self.refused, self.peeked = [0] * c.sessions, [0] * c.sessions
        # the log: (event fields, earliest and latest time)
        self.events, self.lost, self.irq, self.fatal = [], False, False, False
        self.totals, self.queues, self.bins = (
            Counter(),
            [Counter() for _ in range(c.squeues)],
            Counter(),
        )
        self.pool_used, self.limits = [0] * len(POOLS), list(c.frames)
        self.offer, self.got, self.answered = None, None, 0
        self.status, self.decoding = READY, 0
        self.reports, self.was_idle = False, False
        self.ops, self.writes, self.due = [], [], []

    async def reset(self):
        dut = self.dut
        dut.rst.value = 1
        for port in (
            "i__valid",
            "i_result__valid",
            "i_counted__queue__valid",
            "i_counted__useful__valid",
            "i_latency__valid",
            "i_event__0__valid",
            "i_event__1__valid",
            "i_counted__pulses",
            "o__ready",
            "o_control__ready",
            "sessions",
            "pools__used",
            "pools__unused",
            "decode",
            "resident__lines",
            "resident__known",
            "now",
        ):
            getattr(dut, port).value = 0
        dut.status.value = READY
        for _ in range(2):
            await RisingEdge(dut.clk)
        dut.rst.value = 0
        self.forget()
        for _ in range(200):
            await ReadOnly()
            cleared = dut.cleared.value == 1
            await RisingEdge(dut.clk)
            if cleared:
                return
        raise AssertionError("the telemetry memories are never cleared")

    def maybe(self):
        return int(self.rng.random() < self.p_ready)

    async def cycle(self, *, result=None, events=()):
        """One cycle of everything around the block, and what the block does in it."""
        dut, rng, c = self.dut, self.rng, self.config
        for at, op in [x for x in self.due if x[0] <= self.cycles]:
            self.due.remove((at, op))
            result = self.decide(op) or result
        self.end_sessions()
        dut.sessions.value = sum(
            self.session.pack(**s) << self.session.width * i for i, s in enumerate(self.sessions)
        )
        dut.now.value, dut.status.value = self.now, self.status | FATAL * int(self.fatal)
        dut.decode.value = self.decoding
        dut.pools__used.value = sum(n << count_bits(c) * p for p, n in enumerate(self.pool_used))
        dut.pools__unused.value = sum((n == 0) << p for p, n in enumerate(self.pool_used))
        dut.i__valid.value = int(self.offer is not None)
        packing = self.access_packing
        dut.i__payload.value = (
            rng.getrandbits(packing.width) if self.offer is None else packing.pack(**self.offer)
        )
        for port in ("o__ready", "o_control__ready"):
            getattr(dut, port).value = self.maybe()
        dut.i_result__valid.value = int(result is not None)
        dut.i_result__payload.value = (
            self.result.pack(**result) if result else rng.getrandbits(self.result.width)
        )
        for n in range(2):
            given = dict(events).get(n)
            getattr(dut, f"i_event__{n}__valid").value = int(given is not None)
            getattr(dut, f"i_event__{n}__payload").value = self.event.pack(**given) if given else 0
        self.telemetry()
        await ReadWrite()
        self.count_resident()
        await ReadOnly()
        self.look()
        await RisingEdge(dut.clk)
        self.cycles += 1
        self.now = self.now + 1 & 0xFFFFFFFF
        for p, used in enumerate(self.pool_used):
            if used == 0:
                wanted = max(least_limit(c), self.values[f"pool_limit_{POOLS[p]}"])
                self.limits[p] = min(wanted, c.frames[p])

    def end_sessions(self):
        """What was written to a session is forgotten when it is closed."""
        for s, session in enumerate(self.sessions):
            if self.were_open[s] and not session["open"]:
                self.values |= {r.name: r.reset for r in self.map.session(s) if r.forgotten}
                self.seen["forgotten"] += 1
            self.were_open[s] = session["open"]

    def count_resident(self):
        """Lines of the queue that is asked for; 0 while they are not counted."""
        squeue = int(self.dut.resident__squeue.value)
        if self.counted[0] != squeue:
            self.counted = squeue, self.rng.choice(COUNTING)
            self.counting = self.counted[1]
        self.dut.resident__known.value = int(self.counting == 0)
        self.dut.resident__lines.value = 0 if self.counting else 1000 + squeue
        self.counting -= self.counting > 0

    def telemetry(self):
        """Pulses, queue events and latencies, at the rate `noise`, or in each cycle of a storm."""
        dut, rng, c = self.dut, self.rng, self.config
        self.quiet.append(int(dut.quiet.value))
        was_quiet = self.quiet.popleft()
        storms = self.storm_left > 0 and not was_quiet
        self.storm_left = self.storm_left - 1 if storms else rng.randint(0, self.storm)
        pulses = (
            rng.getrandbits(len(COUNTERS)) & rng.getrandbits(len(COUNTERS))
            if storms or rng.random() < self.noise
            else 0
        )
        self.totals.update(name for i, (name, _) in enumerate(COUNTERS) if pulses >> i & 1)
        dut.i_counted__pulses.value = pulses
        given = [rng.random() < rate for rate in (self.noise, self.noise / 3, self.noise)]
        if storms:
            given = [True, False, True]
        squeue, bump, useful = (
            rng.randrange(c.squeues),
            rng.getrandbits(self.queue.fields["bump"][1].bit_length()) & ~8,
            rng.randrange(c.squeues),
        )
        missed, cycles = rng.getrandbits(1), rng.getrandbits(32) >> rng.randrange(33)
        payloads = {
            "i_counted__queue": self.queue.pack(squeue=squeue, bump=bump),
            "i_counted__useful": useful,
            "i_latency": cycles << 1 | missed,
        }
        for (port, payload), valid in zip(payloads.items(), given, strict=True):
            getattr(dut, f"{port}__valid").value = int(valid)
            getattr(dut, f"{port}__payload").value = payload
        self.reports = bool(pulses or given[0] or given[1])
        if given[0]:
            self.queues[squeue].update(
                name for i, (name, _) in enumerate(QUEUE_COUNTERS) if bump >> i & 1
            )
        if given[1]:
            self.queues[useful]["prefetch_useful"] += 1
        if given[2]:
            self.bins[missed, min(max(cycles.bit_length() - 1, 0), HISTOGRAM_BINS - 1)] += 1

    def look(self):
        dut = self.dut
        idle, commands = dut.idle.value == 1, dut.o_control__valid.value == 1
        assert not idle or self.offer is None and not commands and not self.reports, (
            f"cycle {self.cycles}: idle with {self.offer}"
        )
        assert not (self.was_idle and commands), f"cycle {self.cycles}: a command out of nothing"
        self.was_idle = idle
        if dut.o__valid.value == 1 and dut.o__ready.value == 1:
            assert self.offer is not None and self.got is None, "an answer to nothing"
            self.got = self.answer.unpack(dut.o__payload.value)
            self.asked, self.answered = self.counted, self.cycles
        if self.offer is not None and dut.i__ready.value == 1:
            assert self.got is not None, "an access leaves without its answer"
            self.offer = None
        if dut.o_control__valid.value == 1 and dut.o_control__ready.value == 1:
            op = self.op.unpack(dut.o_control__payload.value)
            if op["kind"] == Op.OPEN:
                op["descriptor"] = self.session.unpack(dut.descriptor.value)
            self.ops.append(op)
            self.due.append((self.cycles + self.rng.randint(M0_TO_M3, TO_M3), op))
        if dut.config_write__valid.value == 1:
            self.writes.append(self.write.unpack(dut.config_write__payload.value))

    def decide(self, op):
        """M3, as far as these ops go; the result of a PEEK."""
        s = self.sessions[op["session"]]
        if op["kind"] == Op.OPEN:
            s.update(op["descriptor"])
        elif op["kind"] == Op.CLOSE:
            s["closing"] = 1
        elif op["kind"] == Op.STEP:
            s["step"] = s["step"] + op["delta"] & 0xFFFFFF
        elif op["kind"] == Op.PEEK:
            word = self.rng.getrandbits(self.page_word.width)
            self.peeked = [0] * len(self.peeked)
            self.peeked[op["session"]] = sum(
                v << self.field("s0_page_word", f).low
                for f, v in self.page_word.unpack(word).items()
            )
            fields = self.page_word.unpack(word)
            return {"op.kind": Op.PEEK, "op.session": op["session"]} | {
                f"word.{f}": v for f, v in fields.items()
            }
        return None

    def field(self, register, name):
        return next(f for f in self.map.by_name[register].fields if f.name == name)

    # - the host -----------------------------------------------------------------------------------
    async def access(self, *, offset, write=False, data=0, byte_enable=FULL, ld_id=0, poison=0):
        """One access of a line; checks the answer's head and returns its data."""
        tag = self.rng.getrandbits(16)
        self.status = self.rng.choice([READY, READY, QUIESCENT, READY | QUIESCENT, 0])
        self.decoding = self.rng.getrandbits(self.config.sessions)
        self.offer = {
            "write": write,
            "offset": offset,
            "byte_enable": byte_enable,
            "data": data,
            "ld_id": ld_id,
            "tag": tag,
            "poison": poison,
        }
        self.got, begun = None, self.cycles
        while self.got is None or self.offer is not None:
            await self.cycle()
            assert self.cycles - begun < LINE_LIMIT, f"no answer to {self.offer}"
        got = self.got
        assert (got["write"], got["tag"], got["ld_id"]) == (write, tag, ld_id), (
            f"{got}, expected tag {tag}"
        )
        await self.cycle()
        return got["data"]

    def allowed(self, register, ld_id):
        if register.scope is Scope.SESSION:
            s = self.sessions[int(register.name[1 : register.name.index("_")])]
            return ld_id in (0, s["ld_id"] if s["open"] else 0)
        return register.scope is Scope.ALL or ld_id == 0

    def log(self, code, begun, **fields):
        if len(self.events) == EVENT_RECORDS:
            self.lost = True
        else:
            self.events.append(
                (
                    {"code": code, "ld_id": 0, "squeue": 0, "page": 0, "argument": 0} | fields,
                    begun,
                    self.now,
                )
            )
            self.irq |= bool(self.values["irq_enable"] >> code & 1)

    async def write_line(self, offset, data, *, byte_enable=FULL, ld_id=0, poison=0):
        """Writes a line and does to the model what it should do; commands come back as [(session,
        command, argument)]."""
        begun, commands = self.now, []
        await self.access(
            offset=offset,
            write=True,
            data=data,
            byte_enable=byte_enable,
            ld_id=ld_id,
            poison=poison,
        )
        for word in range(8):
            r = self.at.get(64 * offset + 8 * word)
            enables = byte_enable >> 8 * word & 0xFF
            if r is None or not enables:
                continue
            if poison or not self.allowed(r, ld_id):
                self.log(Event.REGISTER_REFUSED, begun, ld_id=ld_id, argument=8 * offset + word)
                self.seen["write refused"] += 1
                continue
            mask = sum(0xFF << 8 * b for b in range(8) if enables >> b & 1)
            value = data >> 64 * word & mask
            if r.access is Access.RW:
                self.values[r.name] = (self.values[r.name] & ~mask | value) & used_mask(r)
                self.seen["write of some bytes"] += mask != FULL
            elif r.name == "event_clear" and value & 1:
                self.events, self.lost, self.irq = [], False, False
                self.seen["clear"] += 1
            elif r.name == "event_taken":
                taken = fields_of(r, value)
                self.seen["take of some"] += 0 < taken["count"] < len(self.events)
                self.seen["take of an overflow"] += self.lost and taken["overflow"]
                del self.events[: taken["count"]]
                self.lost &= not taken["overflow"]
                self.irq &= bool(self.events)
            elif r.name.endswith("_command"):
                commands.append(
                    (int(r.name[1 : r.name.index("_")]), value & 15, value >> 16 & 0xFFFFFF)
                )
        return commands

    def value(self, r):
        """What a reader with the right sees."""
        name, c = r.name, self.config
        if r.access is Access.RW:
            return self.values[name]
        if r.access is Access.WO:
            return 0
        if name in ("identity", "digest", "geometry"):
            return r.reset
        if name == "status":
            irq = self.irq or self.fatal
            return self.status | irq << 2 | self.lost << 3 | self.fatal << 4
        if name == "event_count":
            return len(self.events)
        if name.startswith("pool_used_"):
            return self.pool_used[POOLS.index(name[10:])]
        if name.startswith("count_"):
            return self.totals[name[6:]]
        if "_latency_" in name:
            return self.bins[int(name.startswith("miss")), int(name.rpartition("_")[2])]
        s, _, rest = name[1:].partition("_")
        regs = self.sessions[int(s)]
        if rest == "state":
            return (
                (regs["open"] & 1 - regs["closing"])
                | regs["closing"] << 1
                | self.refused[int(s)] << 2
                | (self.decoding >> int(s) & 1) << 3
                | regs["step"] << 8
            )
        if rest == "page_word":
            return self.peeked[int(s)] if regs["open"] else 0
        queue = fields_of(self.map.by_name[f"s{s}_queue"], self.values[f"s{s}_queue"])["queue"]
        squeue = int(s) * c.queues + (queue if queue < c.queues else 0)
        if rest == "resident":
            of, counting = self.asked
            assert of == squeue, "another queue's resident lines are asked for"
            self.seen["resident lines waited for"] += 2 < counting < COUNTING[-1]
            self.seen["resident lines not counted"] += counting == COUNTING[-1]
            return 0 if counting == COUNTING[-1] else 1000 + squeue
        return self.queues[squeue][rest[6:]] if queue < regs["used_queues"] else 0

    async def read_line(self, offset, *, ld_id=0):
        """Reads a line and holds every word of it against the model."""
        begun = self.now
        data = await self.access(offset=offset, ld_id=ld_id)
        here = [(word, r) for word in range(8) if (r := self.at.get(64 * offset + 8 * word))]
        for word in range(8):
            got = data >> 64 * word & FULL
            r = self.at.get(64 * offset + 8 * word)
            if r is None or not self.allowed(r, ld_id):
                assert got == 0, f"{r} shows {got:#x} to LD-ID {ld_id}"
            elif r.name.startswith("event_") and r.name[-1].isdigit():
                self.check_record(r, got)
            else:
                assert got == self.value(r), (
                    f"{r.name} = {got:#x} for LD-ID {ld_id}, expected {self.value(r):#x}"
                )
                self.seen["read"] += 1
                self.seen["read of a queue counter"] += "_queue_" in r.name and got > 0
                self.seen["read by an owner"] += ld_id != 0 and r.scope is Scope.SESSION
        self.seen["unknown line"] += not here
        if here and not any(self.allowed(r, ld_id) for _, r in here):
            self.log(Event.REGISTER_REFUSED, begun, ld_id=ld_id, argument=8 * offset)
            self.seen["read refused"] += 1

    def check_record(self, r, got):
        number, timed = int(r.name.rpartition("_")[2]), "time" in r.name
        if number >= len(self.events):
            assert got == 0, f"{r.name} = {got:#x} of {len(self.events)} events"
            return
        want, begun, ended = self.events[number]
        if timed:
            assert got - begun & 0xFFFFFFFF <= (ended - begun & 0xFFFFFFFF), (
                f"{r.name} = {got}, expected {begun} … {ended}"
            )
            return
        fields = fields_of(r, got)
        assert {f: fields[f] for f in want} == want, f"{r.name}: {fields}, expected {want}"
        self.seen["record"] += 1

    def check_settings(self):
        got = self.settings.unpack(self.dut.settings.value)
        packed = got.pop("pool_limit")
        limits = [packed >> 24 * p & 0xFFFFFF for p in range(len(POOLS))]
        waits = ("cold_timeout", "starve_limit")
        wanted = {name: self.values[name] for name in got}
        wanted |= {name: min(self.values[name], LONGEST_WAIT) for name in waits}
        assert limits == self.limits and got == wanted, (
            f"settings {got} {limits}, expected {wanted} {self.limits}"
        )

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The prefetch queue against a sorted list, and the prefetcher against its golden model in lock-step and by conservation in free running."""

import random
from collections import Counter, deque

import cocotb
from cocotb.triggers import ReadOnly, RisingEdge

from kelp_golden.prefetch import Candidate, Prefetcher, Throttle
from kelp_hw.layouts import Layouts
from kelp_hw.prefetch import pulses_layout
from kelp_hw.prefetch_queue import DropReason, candidate_layout, drop_layout
from kelp_hw.prefetch_sources import access_layout
from kelp_spec.config import named
from kelp_spec.metadata import Op, Outcome, PrefetchSource
from kelp_verif.clocking import start_clock
from kelp_verif.hints_bench import Session, pack_sessions
from kelp_verif.packing import Packing
from kelp_verif.runner import bench_params, record

SOURCES = [s for s in PrefetchSource if s]


# --- the queue ----------------------------------------------------------------------------------------------------------------
class SortedList:
    """What the queue should hold, cycle by cycle, as a list of [distance, candidate, dead]."""

    def __init__(self, slots):
        self.slots, self.held, self.out = slots, [], None

    def cycle(self, new, ready, cancel):
        """One clock edge. Returns (drop, cancelled): (source, reason) of the one dropped, source of a dead one whose turn came."""
        drop = cancelled = None
        free = self.out is None or ready
        leaver = self.held[0] if self.held and (free or self.held[0][2]) else None
        if leaver:
            self.held.pop(0)
        if new:
            page = new["squeue"], new["page"]
            twins = [i for i, (_, h, dead) in enumerate(self.held) if not dead and (h["squeue"], h["page"]) == page]
            gone = [h for h in (self.out, leaver and not leaver[2] and leaver[1]) if h and (h["squeue"], h["page"]) == page]
            if gone or twins and self.held[twins[0]][0] <= new["distance"]:
                drop = new["source"], DropReason.DUPLICATE
                new = None
            elif twins:
                drop = self.held.pop(twins[0])[1]["source"], DropReason.DUPLICATE
        if new:
            place = next((i for i, h in enumerate(self.held) if h[0] > new["distance"]), len(self.held))
            self.held.insert(place, [new["distance"], new, False])
            if len(self.held) > self.slots:
                _, last, dead = self.held.pop()
                drop = last["source"], DropReason.CANCELLED if dead else DropReason.FULL
        for h in self.held:
            h[2] |= cancel >> h[1]["session"] & 1
        if leaver and leaver[2]:
            cancelled = leaver[1]["source"]
        if free:
            self.out = leaver[1] if leaver and not leaver[2] else None
        return drop, cancelled


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def queue_against_list(dut):
    config = named(bench_params()["config"])
    rng = random.Random(cocotb.RANDOM_SEED)
    packing, drops = Packing(candidate_layout(config)), Packing(drop_layout())
    model = SortedList(config.prefetch_slots)
    await start_clock(dut)
    dut.i_valid.value = dut.i.value = dut.o__ready.value = dut.cancel.value = 0
    await RisingEdge(dut.clk)
    await RisingEdge(dut.clk)
    dut.rst.value = 0
    seen = Counter()
    coming = None        # a candidate is compared for a cycle before it goes in
    p_new, p_ready, pages = 1.0, 0.5, 4
    for n in range(bench_params()["cycles"]):
        if n % 200 == 0:
            p_new, p_ready, pages = rng.choice([0.3, 0.8, 1.0]), rng.choice([0.0, 0.1, 0.6, 1.0]), rng.choice([2, config.pages])
        new = None
        if rng.random() < p_new:
            session = rng.randrange(config.sessions)
            new = {"session": session, "squeue": session * config.queues + rng.randrange(config.queues), "page": rng.randrange(pages),
                   "source": rng.choice(SOURCES), "distance": rng.choice([0, 1, 1, 2, 3, 63])}
        ready = int(rng.random() < p_ready)
        cancel = rng.getrandbits(config.sessions) if rng.random() < 0.02 else 0
        dut.i_valid.value = int(new is not None)
        dut.i.value = packing.pack(**new) if new else rng.getrandbits(packing.width)
        dut.o__ready.value, dut.cancel.value = ready, cancel
        await ReadOnly()
        shown = packing.unpack(dut.o__payload.value) if dut.o__valid.value == 1 else None
        assert shown == model.out, n
        assert int(dut.count.value) == len(model.held) + (coming is not None), n
        # A candidate that dies in the cycle in which it is pushed out counts either way; the model says FULL, as the queue does.
        drop, cancelled = model.cycle(coming, ready, cancel)
        coming = new
        got = drops.unpack(dut.o_drop.value) if dut.o_drop_valid.value == 1 else None
        assert (got and (got["source"], got["reason"])) == drop, n
        assert (int(dut.o_cancel.value) if dut.o_cancel_valid.value == 1 else None) == cancelled, n
        seen[drop and drop[1].name] += 1
        seen["CANCEL"] += cancelled is not None
        seen["LEFT"] += shown is not None and ready
        await RisingEdge(dut.clk)
    record(seen=dict(seen))


# --- the throttle and the previous step -------------------------------------------------------------------------------------------
@cocotb.test(timeout_time=5, timeout_unit="ms")
async def throttle_against_model(dut):
    """Offers, issues, uses and settling in any mixture of one cycle."""
    rng = random.Random(cocotb.RANDOM_SEED)
    model = {s: Throttle() for s in SOURCES}
    await start_clock(dut)
    for name in ("offer", "issued", "useful"):
        getattr(dut, name).value = getattr(dut, f"{name}_valid").value = 0
    dut.settle.value = 0
    await RisingEdge(dut.clk)
    await RisingEdge(dut.clk)
    dut.rst.value = 0
    p_useful, refused = 0.5, 0
    for n in range(bench_params()["cycles"]):
        if n % 3000 == 0:
            p_useful = (0.02, 0.5, 0.2, 0.8)[n // 3000 % 4]
        source = {name: rng.choice(SOURCES) for name in ("offer", "issued", "useful")}
        valid = {"offer": rng.random() < 0.6, "issued": rng.random() < 0.9, "useful": rng.random() < p_useful}
        if n < 512:
            # The use in the last cycle of a period counts for the next one: with 63 more it is enough.
            source["issued"] = source["useful"] = PrefetchSource.WINDOW
            valid["issued"], valid["useful"] = True, 255 <= n < 319
        for name in source:
            getattr(dut, name).value, getattr(dut, f"{name}_valid").value = int(source[name]), int(valid[name])
        settle = rng.random() < 0.3
        dut.settle.value = int(settle)
        await ReadOnly()
        credit = int(dut.credit.value)
        assert [credit >> 7 * s & 127 for s in SOURCES] == [model[s].credit for s in SOURCES], n
        if valid["offer"]:
            allowed = model[source["offer"]].offer()
            assert (dut.allow.value == 1) == allowed, n
            refused += not allowed
        if settle:
            for throttle in model.values():
                throttle.settle()
        if valid["issued"]:
            model[source["issued"]].issue()
        if valid["useful"]:
            model[source["useful"]].use()
        await RisingEdge(dut.clk)
    record(throttled=refused)


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def previous_against_lists(dut):
    """A walk offers what its step accessed last, in order; what new accesses have overwritten is left out and counted, nothing else is."""
    config, size = named(bench_params()["config"]), bench_params()["entries"]
    rng = random.Random(cocotb.RANDOM_SEED)
    access, candidate = Packing(access_layout(config)), Packing(candidate_layout(config))
    await start_clock(dut)
    dut.i_valid.value = dut.i.value = dut.step_valid.value = dut.step.value = dut.quiet.value = dut.o__ready.value = 0
    dut.live.value = (1 << config.sessions) - 1
    await RisingEdge(dut.clk)
    await RisingEdge(dut.clk)
    dut.rst.value = 0
    rings = [deque(maxlen=size) for _ in range(config.sessions)]
    noted = {}                                  # session → what its ended step accessed; in the order of arrival
    fresh = [0] * config.sessions               # accesses since then
    walk, walker = deque(), None
    at = length = silent = serial = offered = overwritten = overflows = 0
    for n in range(bench_params()["cycles"]):
        if n % 150 == 0:
            p_access, p_step, p_ready = rng.choice([0.05, 0.3, 0.9]), rng.choice([0.005, 0.05]), rng.choice([0.1, 0.6, 1.0])
        session = rng.randrange(config.sessions)
        event = None
        if rng.random() < p_step and not (walk and session == walker):
            event = "step"
        elif rng.random() < p_access:
            event = "access"
            serial += 1
            squeue, page = session * config.queues + serial // config.pages % config.queues, serial % config.pages
            dut.i.value = access.pack(session=session, squeue=squeue, page=page)
        dut.i_valid.value, dut.step_valid.value, dut.step.value = int(event == "access"), int(event == "step"), session
        # Only between walks, so that what is on `o` is of the walk that we know of.
        quiet, ready = not walk and rng.random() < 0.3, int(rng.random() < p_ready)
        dut.quiet.value, dut.o__ready.value = int(quiet), ready
        await ReadOnly()
        overflow = event == "access" and len(rings[session]) == size
        lost = dut.lost.value == 1
        if walk and dut.o__valid.value == 0 and lost and not overflow:
            walk.popleft()
            at += 1
            overwritten += 1
            assert fresh[walker] > size - length + at - 2, "an entry that is still there was left out"
        elif dut.o__valid.value == 1 and ready:
            c = candidate.unpack(dut.o__payload.value)
            assert walk, "an offer without a walk"
            # A loss that coincides with an overflow shows as one pulse.
            while (c["squeue"], c["page"]) != walk[0]:
                walk.popleft()
                at += 1
                overwritten += 1
                assert fresh[walker] > size - length + at - 2, "an entry that is still there was left out"
            walk.popleft()
            at += 1
            assert (c["session"], c["source"], c["distance"]) == (walker, PrefetchSource.PREVIOUS, 1)
            offered += 1
        assert lost or not overflow
        overflows += overflow
        if dut.start.value == 1:
            walker = min(noted)
            walk = noted.pop(walker)
            at, length = 0, len(walk)
            if event == "step" and session == walker and rings[session]:
                walk.clear()        # ended before it began
        if event == "access":
            rings[session].append((squeue, page))
            fresh[session] += 1
        elif event == "step" and rings[session]:
            noted[session], rings[session], fresh[session] = rings[session], deque(maxlen=size), 0
        silent = 0 if dut.o__valid.value == 1 or dut.start.value == 1 else silent + 1
        if walk and silent > size + 8:
            at, overwritten = at + len(walk), overwritten + len(walk)       # the last ones, in cycles of overflow
            walk.clear()
            assert fresh[walker] > size - length + at - 2, "an entry that is still there was left out"
        await RisingEdge(dut.clk)
    record(offered=offered, overwritten=overwritten, overflows=overflows)


# --- the prefetcher -------------------------------------------------------------------------------------------------------------
class TB:
    """Stands for the tracker (ops in, results out), the frame stage, the queue configuration and the stream sources."""

    def __init__(self, dut, config):
        self.dut, self.config, self.rng = dut, config, random.Random(cocotb.RANDOM_SEED)
        layouts = Layouts(config)
        self.result, self.usage, self.page, self.op = (Packing(x) for x in (layouts.result, layouts.usage, layouts.page, layouts.op))
        self.pulses = Packing(pulses_layout())
        rng = self.rng
        self.sessions = [Session(ld_id=s, used_queues=config.queues - rng.randrange(2), used_pages=rng.randint(max(2, config.pages // 2), config.pages - 1),
                                 kv_heads=rng.choice([1, 2])) for s in range(config.sessions)]
        self.windows = [rng.choice([0, 1, 2, 3, 5, 63]) for _ in range(config.squeues)]
        self.results, self.flying = deque(), deque()      # results to send; ops on their way to M3, with the cycle of their result
        self.hints, self.specs, self.usages, self.lates = deque(), deque(), deque(), deque()
        self.shown = {}                                   # stream → payload that must not change
        self.ops, self.counts = [], Counter()
        self.p_ready, self.p_hint, self.p_spec, self.p_result, self.p_taken = 0.8, 0.8, 0.8, 1.0, 0.7
        self.window_squeue = 0
        self.cycles = 0
        self.on_result = lambda op, taken: None

    async def reset(self):
        dut = self.dut
        await start_clock(dut)
        for port in (dut.i_result, dut.i_result_valid, dut.i_usage, dut.i_usage_valid, dut.i_late, dut.i_late_valid, dut.i_hint__valid, dut.i_hint__payload,
                     dut.i_spec__valid, dut.i_spec__payload, dut.window, dut.o_op__ready):
            port.value = 0
        self.set_sessions()
        self.enable(SOURCES)
        await RisingEdge(dut.clk)
        await RisingEdge(dut.clk)
        dut.rst.value = 0

    def set_sessions(self):
        self.dut.sessions.value = pack_sessions(self.config, self.sessions)

    def enable(self, sources):
        self.dut.enable.value = sum(1 << s - 1 for s in sources)

    def access_result(self, squeue, page):
        rng = self.rng
        return self.result.pack(**{"op.kind": rng.choice([Op.READ, Op.WRITE]), "op.session": squeue // self.config.queues, "op.squeue": squeue, "op.page": page,
                                   "outcome": rng.choice([Outcome.HIT, Outcome.MISSED, Outcome.PARKED, Outcome.ALLOCATED]), "first": 1})

    def other_result(self):
        """A result that suggests nothing."""
        rng = self.rng
        kind, outcome, first = rng.choice([(Op.READ, Outcome.HIT, 0), (Op.WRITE, Outcome.REFUSED, 1), (Op.READ, Outcome.ZERO, 1), (Op.FILL, Outcome.DONE, 1),
                                           (Op.MASS, Outcome.DONE, 0), (Op.REPLAY, Outcome.HIT, 1)])
        return self.result.pack(**{"op.kind": kind, "outcome": outcome, "first": first, "op.page": rng.randrange(self.config.pages)})

    def step_result(self, session):
        return self.result.pack(**{"op.kind": Op.STEP, "op.session": session, "op.delta": 1})

    def _offer(self, name, waiting, chance):
        """Drives one input stream; a payload once offered stays."""
        valid, payload = getattr(self.dut, f"{name}__valid"), getattr(self.dut, f"{name}__payload")
        if name not in self.shown and waiting and self.rng.random() < chance:
            self.shown[name] = waiting[0]
        valid.value = int(name in self.shown)
        payload.value = self.shown.get(name, self.rng.getrandbits(self.page.width))

    async def cycle(self):
        dut, rng = self.dut, self.rng
        sent = None
        if self.flying and self.flying[0][0] <= self.cycles:
            _, op = self.flying.popleft()
            taken = rng.random() < self.p_taken
            sent = self.result.pack(**{"op.kind": Op.PREFETCH, "op.source": op["source"], "op.session": op["session"], "op.squeue": op["squeue"],
                                       "op.page": op["page"], "outcome": Outcome.MISSED if taken else Outcome.DROPPED})
            self.counts["issued" if taken else "refused", PrefetchSource(op["source"])] += 1
            self.on_result(op, taken)
        elif self.results and rng.random() < self.p_result:
            sent = self.results.popleft()
        dut.i_result_valid.value = int(sent is not None)
        dut.i_result.value = sent if sent is not None else rng.getrandbits(self.result.width)
        for name, waiting in (("i_usage", self.usages), ("i_late", self.lates)):
            item = waiting.popleft() if waiting else None
            getattr(dut, f"{name}_valid").value = int(item is not None)
            getattr(dut, name).value = item or 0
        self._offer("i_hint", self.hints, self.p_hint)
        self._offer("i_spec", self.specs, self.p_spec)
        dut.window.value = self.windows[self.window_squeue] if self.window_squeue < self.config.squeues else 0
        dut.o_op__ready.value = int(rng.random() < self.p_ready)
        await ReadOnly()
        for name, waiting in (("i_hint", self.hints), ("i_spec", self.specs)):
            if name in self.shown and getattr(dut, f"{name}__ready").value == 1:
                del self.shown[name]
                waiting.popleft()
                self.counts["accepted"] += 1
        if dut.o_op__valid.value == 1:
            payload = int(dut.o_op__payload.value)
            assert self.shown.get("o_op", payload) == payload, "an offered op changed before it was taken"
            self.shown["o_op"] = payload
            if dut.o_op__ready.value == 1:
                del self.shown["o_op"]
                op = self.op.unpack(payload)
                assert op["kind"] == Op.PREFETCH and op["session"] == op["squeue"] // self.config.queues
                self.ops.append(Candidate(PrefetchSource(op["source"]), op["session"], op["squeue"], op["page"]))
                last = self.flying[-1][0] if self.flying else 0
                self.flying.append((max(last + 1, self.cycles + rng.randint(3, 9)), op))
        else:
            assert "o_op" not in self.shown, "an offered op went away"
        self.window_squeue = int(dut.window_squeue.value)
        pulses = int(dut.pulses.value)
        if pulses:
            fields = self.pulses.unpack(pulses)
            dropped = fields.pop("dropped")
            fields |= {DropReason(r).name: dropped >> r * len(SOURCES) & (1 << len(SOURCES)) - 1 for r in DropReason}
            for name, bits in fields.items():
                for s in SOURCES:
                    self.counts["pulse", name, s] += bits >> s - 1 & 1
        self.counts["access_lost"] += int(dut.access_lost.value)
        self.counts["previous_lost"] += int(dut.previous_lost.value)
        idle = dut.idle.value == 1 and not (self.results or self.flying or self.hints or self.specs or self.usages or self.lates)
        await RisingEdge(dut.clk)
        self.cycles += 1
        return idle

    async def drain(self, limit=20_000):
        for _ in range(limit):
            if await self.cycle():
                await self.cycle()      # the last pulses are two cycles behind
                await self.cycle()
                return
        raise AssertionError("the prefetcher does not come to rest")


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def lockstep(dut):
    """One trigger at a time: the same ops in the same order as the golden model, the same counts, the same credits."""
    config = named(bench_params()["config"])
    tb = TB(dut, config)
    rng = tb.rng
    golden = Prefetcher(config, tb.sessions, previous=bench_params()["previous"])
    tb.on_result = lambda op, taken: golden.result(PrefetchSource(op["source"]), taken)
    await tb.reset()
    enabled = set(SOURCES)
    triggers = Counter()
    accessed = [set() for _ in range(config.sessions)]
    for n in range(bench_params()["triggers"]):
        if n % 50 == 0:
            tb.p_ready, tb.p_taken = rng.choice([0.3, 1.0]), rng.choice([0.0, 0.8, 1.0])
            share = rng.choice([0.2, 0.6]) if n // 1000 % 2 else 0.0      # credits fall, then recover
            enabled = set(SOURCES) if rng.random() < 0.7 else set(rng.sample(SOURCES, 3))
            golden.enable = enabled
            tb.enable(enabled)
        session = rng.randrange(config.sessions)
        regs = tb.sessions[session]
        if rng.random() < (0.3 if regs.closing else 0.01):
            regs.closing = not regs.closing
            if regs.closing:
                golden.closed(session)
                accessed[session].clear()
            tb.set_sessions()
        squeue = session * config.queues + rng.randrange(regs.used_queues)
        kind = rng.choices(["access", "step", "hint", "spec", "other"], [20, 2, 2, 3, 2])[0]
        if kind == "access":
            page = rng.choice([0, 1, regs.used_pages - 1, rng.randrange(regs.used_pages)])
            if (squeue, page) in accessed[session]:
                continue        # not its first demand in this step
            if not regs.closing:
                accessed[session].add((squeue, page))
                tb.results.append(tb.access_result(squeue, page))
                want = golden.access(session, squeue, page, tb.windows[squeue])
            else:
                want = []
        elif kind == "step":
            accessed[session].clear()
            tb.results.append(tb.step_result(session))
            want = golden.step(session)
        elif kind == "hint":
            queue = rng.randrange(config.queues)
            pages = [(session * config.queues + queue, p) for p in rng.sample(range(config.pages), min(config.pages, rng.randint(1, 26)))]
            tb.hints.extend(tb.page.pack(squeue=q, page=p) for q, p in pages)
            want = golden.hint(pages)
        elif kind == "spec":
            tb.specs.append(tb.page.pack(squeue=squeue, page=(page := rng.randrange(config.pages))))
            want = golden.spec_read(squeue, page)
        else:
            tb.results.append(tb.other_result())
            want = []
        triggers[kind] += 1
        tb.ops = []
        # A list must reach the queue without gaps, as it does from the absorber.
        tb.p_hint = 1.0
        await tb.drain()
        assert tb.ops == want, (n, kind)
        # What becomes of some of them.
        for s in SOURCES:
            for _ in range(sum(c.source == s for c in want)):
                if rng.random() < share:
                    useful = rng.random() < 0.8
                    tb.usages.append(tb.usage.pack(source=s, useful=useful, useless=not useful))
                    golden.usage(s, useful)
                elif rng.random() < 0.1:
                    tb.lates.append(int(s))
                    golden.met_late(s)
        if tb.usages or tb.lates:
            await tb.drain()
        credit = int(dut.credit.value)
        golden.settle()
        assert [credit >> 7 * s & 127 for s in SOURCES] == [golden.throttles[s].credit for s in SOURCES], n
    for s in SOURCES:
        for name, counter in (("issued", golden.issued), ("REFUSED", golden.refused), ("useful", golden.useful), ("useless", golden.useless),
                              ("late", golden.late)):
            assert tb.counts["pulse", name, s] == counter[s], (name, s)
        for reason in ("OUTSIDE", "DISABLED", "THROTTLED"):
            assert tb.counts["pulse", reason, s] == golden.dropped[s, reason], (reason, s)
        for reason in ("DUPLICATE", "FULL", "CANCELLED"):
            assert tb.counts["pulse", reason, s] == 0, (reason, s)
    credits = [golden.throttles[s].credit for s in SOURCES]
    record(triggers=dict(triggers), ops=sum(golden.issued.values()) + sum(golden.refused.values()), credits=credits,
           throttled=sum(v for (_, reason), v in golden.dropped.items() if reason == "THROTTLED"), previous_lost=tb.counts["previous_lost"])


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def free_running(dut):
    """Everything at once: each candidate ends as issued, refused or dropped, exactly once; ops stay within their sessions."""
    config = named(bench_params()["config"])
    tb = TB(dut, config)
    rng = tb.rng
    await tb.reset()
    # Each source but the previous step, whose walks are cut short by what goes on around them; two of them come and go.
    steady = {PrefetchSource.WINDOW, PrefetchSource.LAYER_AHEAD}
    offered = last_size = 0
    sizes = deque()     # of the accesses that wait in tb.results: the candidates that each will suggest
    for n in range(bench_params()["cycles"]):
        if n % 300 == 0:
            tb.p_ready, tb.p_hint, tb.p_spec = (rng.choice([0.05, 0.5, 1.0]) for _ in range(3))
            p_access, p_asked = rng.choice([0.02, 0.3, 1.0]), rng.choice([0.0, 0.3, 1.0])
        if n % 400 == 0:
            for regs in tb.sessions:
                regs.closing = int(rng.random() < 0.2)
            tb.set_sessions()
            tb.enable(steady | {s for s in (PrefetchSource.HINT, PrefetchSource.SPEC_READ) if rng.random() < 0.8})
        if rng.random() < p_access and len(tb.results) < 4:
            session = rng.randrange(config.sessions)
            squeue = session * config.queues + rng.randrange(tb.sessions[session].used_queues)
            page = rng.randrange(tb.sessions[session].used_pages)
            tb.results.append(tb.access_result(squeue, page))
            regs = tb.sessions[session]
            size = int(squeue + regs.kv_heads < session * config.queues + regs.used_queues)
            size += min(tb.windows[squeue], regs.used_pages - 1 - page) + min(tb.windows[squeue], page)
            sizes.append(size)
        for waiting in (tb.hints, tb.specs):
            if rng.random() < p_asked and len(waiting) < 8:
                waiting.append(tb.page.pack(squeue=rng.randrange(config.squeues), page=rng.randrange(config.pages)))
        before_results, before_lost = len(tb.results), tb.counts["access_lost"]
        await tb.cycle()
        # An access that finds its queue full says so in the cycle after its result.
        if tb.counts["access_lost"] > before_lost:
            offered -= last_size
        last_size = sizes.popleft() if len(tb.results) < before_results else 0
        offered += last_size
        if rng.random() < 0.1:
            tb.usages.append(tb.usage.pack(source=rng.choice(SOURCES), useful=1))
    for regs in tb.sessions:
        regs.closing = 0
    tb.set_sessions()
    tb.results.clear()
    before_lost = tb.counts["access_lost"]
    tb.p_ready = tb.p_hint = tb.p_spec = 1.0
    await tb.drain()
    if tb.counts["access_lost"] > before_lost:
        offered -= last_size
    offered += tb.counts["accepted"]
    ended = {name: sum(tb.counts["pulse", name, s] for s in SOURCES) for name in ("issued", *(r.name for r in DropReason))}
    for s in SOURCES:
        assert tb.counts["pulse", "issued", s] == tb.counts["issued", s] and tb.counts["pulse", "REFUSED", s] == tb.counts["refused", s]
    assert sum(ended.values()) == offered, (ended, offered)
    record(ended=ended, offered=offered, access_lost=tb.counts["access_lost"])


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def previous_step_under_traffic(dut):
    """Steps, closes and accesses without pause: what the previous step offers was accessed in it, and the prefetcher comes to rest."""
    config = named(bench_params()["config"])
    tb = TB(dut, config)
    rng = tb.rng
    await tb.reset()
    only = {PrefetchSource.PREVIOUS}
    tb.enable(only)
    steps = [[set()] for _ in range(config.sessions)]       # pages accessed, by step
    checked = 0
    for n in range(bench_params()["cycles"]):
        if n % 200 == 0:
            p_access, p_step, tb.p_ready = rng.choice([0.0, 0.1, 0.6]), rng.choice([0.0, 0.01, 0.1]), rng.choice([0.1, 1.0])
            closing = rng.random() < 0.2
            session = rng.randrange(config.sessions)
            tb.sessions[session].closing = int(closing)
            tb.set_sessions()
        session = rng.randrange(config.sessions)
        if len(tb.results) < 2:
            if rng.random() < p_step:
                tb.results.append(tb.step_result(session))
                steps[session].append(set())
            elif rng.random() < p_access:
                squeue = session * config.queues + rng.randrange(tb.sessions[session].used_queues)
                page = rng.randrange(tb.sessions[session].used_pages)
                if (squeue, page) not in steps[session][-1]:
                    steps[session][-1].add((squeue, page))
                    tb.results.append(tb.access_result(squeue, page))
        tb.ops = []
        await tb.cycle()
        for op in tb.ops:
            assert op.source == PrefetchSource.PREVIOUS and any((op.squeue, op.page) in step for step in steps[op.session][:-1])
            checked += 1
    await tb.drain()
    assert sum(tb.counts["issued", s] + tb.counts["refused", s] for s in SOURCES) >= checked
    record(checked=checked, previous_lost=tb.counts["previous_lost"])


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def full_rate(dut):
    """One candidate a cycle is accepted and, with M3 ready, one op a cycle leaves."""
    config = named(bench_params()["config"])
    tb = TB(dut, config)
    tb.sessions[0].used_pages, tb.sessions[0].used_queues = config.pages, config.queues
    await tb.reset()
    tb.p_ready = tb.p_spec = 1.0
    cycles = bench_params()["cycles"]
    tb.specs.extend(tb.page.pack(squeue=n * 7 % config.squeues, page=n // config.squeues) for n in range(cycles + 64))
    for _ in range(32):
        await tb.cycle()
    accepted, left = tb.counts["accepted"], len(tb.ops)
    for _ in range(cycles):
        await tb.cycle()
        tb.usages.append(tb.usage.pack(source=PrefetchSource.SPEC_READ, useful=1))
    record(accepts_per_cycle=(tb.counts["accepted"] - accepted) / cycles, ops_per_cycle=(len(tb.ops) - left) / cycles, cycles=cycles)


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def never_stalls_spec_reads(dut):
    """With M3 taking nothing, MemSpecRd is still accepted every cycle; hints get through after their patience; what gives way is counted."""
    config = named(bench_params()["config"])
    tb = TB(dut, config)
    await tb.reset()
    tb.p_ready, tb.p_spec, tb.p_hint = 0.0, 1.0, 1.0
    cycles = 2000
    rng = tb.rng
    tb.specs.extend(tb.page.pack(squeue=rng.randrange(tb.sessions[0].used_queues), page=rng.randrange(tb.sessions[0].used_pages)) for _ in range(cycles))
    while tb.specs:
        await tb.cycle()
    assert tb.cycles <= cycles + 2
    tb.hints.extend(tb.page.pack(squeue=0, page=p) for p in range(4))
    began = tb.cycles
    while tb.hints:
        await tb.cycle()
        assert tb.cycles - began < 4 * 300, "a hinted page waits for ever"
    tb.p_ready = 1.0
    await tb.drain()
    total = sum(v for key, v in tb.counts.items() if key[0] == "pulse")
    assert total == cycles + 4, total
    record(full=sum(tb.counts["pulse", "FULL", s] for s in SOURCES))

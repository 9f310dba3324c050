# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The prefetcher beside its golden model (see :mod:`kelp_verif.prefetch.prefetch_bench`)."""

import random
from collections import Counter, deque

import cocotb
from cocotb.triggers import ReadOnly, RisingEdge

from kelp_golden.prefetch import Candidate
from kelp_hw.export.packing import Packing
from kelp_hw.layouts import DropReason, Layouts
from kelp_hw.prefetch.prefetch import HINT_PATIENCE
from kelp_spec.metadata import Op, Outcome, PrefetchSource

from ..harness.clocking import start_clock
from ..host.hints_bench import Session, pack_sessions

SOURCES = [s for s in PrefetchSource if s]


class TB:
    """Stands for the tracker (ops in, results out), the frame stage, the queue configuration and
    the stream sources."""

    def __init__(self, dut, config):
        self.dut, self.config, self.rng = dut, config, random.Random(cocotb.RANDOM_SEED)
        layouts = Layouts(config)
        self.result, self.usage, self.page, self.op = (
            Packing(x) for x in (layouts.result, layouts.usage, layouts.page, layouts.op)
        )
        self.pulses, self.spec_read = Packing(layouts.prefetch_pulses), Packing(layouts.spec_read)
        rng = self.rng
        self.sessions = [
            Session(
                ld_id=s,
                used_queues=config.queues - rng.randrange(2),
                # the first session's pages have numbers of every bit
                used_pages=rng.randint(max(2, config.pages // 2), config.pages - 1)
                if s
                else config.pages - 1,
                kv_heads=rng.choice([1, 2]),
            )
            for s in range(config.sessions)
        ]
        self.new_windows()
        # results to send; ops on their way to M3, with the cycle of their result
        self.results, self.flying = deque(), deque()
        self.hints, self.specs, self.usages, self.lates = deque(), deque(), deque(), deque()
        self.shown = {}  # stream → payload that must not change
        self.waited = Counter()  # stream → cycles for which its payload has stood
        self.asked = None  # (stream, payload) of the page that was accepted in this cycle
        self.on_cycle = lambda: None  # in the read-only phase of each cycle
        self.ops, self.counts = [], Counter()
        self.dropped = {"judged": [], "crowded": []}  # squeues that `dropped` tells
        self.p_ready, self.p_hint, self.p_spec, self.p_result, self.p_taken = (
            0.8,
            0.8,
            0.8,
            1.0,
            0.7,
        )
        self.window_squeue = 0
        self.cycles = 0
        self.on_result = lambda op, taken: None

    async def reset(self):
        dut = self.dut
        await start_clock(dut)
        for port in (
            dut.i_result__payload,
            dut.i_result__valid,
            dut.i_usage__payload,
            dut.i_usage__valid,
            dut.i_late__payload,
            dut.i_late__valid,
            dut.i_hint__valid,
            dut.i_hint__payload,
            dut.i_spec__valid,
            dut.i_spec__payload,
            dut.window,
            dut.o_op__ready,
            dut.lockstep,
        ):
            port.value = 0
        self.set_sessions()
        self.enable(SOURCES)
        await RisingEdge(dut.clk)
        await RisingEdge(dut.clk)
        dut.rst.value = 0

    def new_windows(self):
        """Windows at random: lengths of every bit, but long ones, and so long lists, seldom."""
        lengths, weights = (0, 1, 2, 3, 5, 8, 16, 32, 63), (3, 3, 3, 3, 3, 1, 1, 1, 1)
        self.windows = self.rng.choices(lengths, weights, k=self.config.squeues)

    def set_sessions(self):
        self.dut.sessions.value = pack_sessions(self.config, self.sessions)

    def enable(self, sources):
        self.dut.enable.value = sum(1 << s - 1 for s in sources)

    def access_result(self, squeue, page):
        rng = self.rng
        return self.result.pack(
            **{
                "op.kind": rng.choice([Op.READ, Op.WRITE]),
                "op.session": squeue // self.config.queues,
                "op.squeue": squeue,
                "op.page": page,
                "outcome": rng.choice(
                    [Outcome.HIT, Outcome.MISSED, Outcome.PARKED, Outcome.ALLOCATED]
                ),
                "first": 1,
            }
        )

    def other_result(self):
        """A result that suggests nothing."""
        rng = self.rng
        kind, outcome, first = rng.choice(
            [
                (Op.READ, Outcome.HIT, 0),
                (Op.WRITE, Outcome.REFUSED, 1),
                (Op.READ, Outcome.ZERO, 1),
                (Op.FILL, Outcome.DONE, 1),
                (Op.MASS, Outcome.DONE, 0),
                (Op.REPLAY, Outcome.HIT, 1),
            ]
        )
        return self.result.pack(
            **{
                "op.kind": kind,
                "outcome": outcome,
                "first": first,
                "op.page": rng.randrange(self.config.pages),
            }
        )

    def step_result(self, session):
        return self.result.pack(**{"op.kind": Op.STEP, "op.session": session, "op.delta": 1})

    def hint(self, squeue, page):
        """A page of a hint line."""
        return self.page.pack(squeue=squeue, page=page)

    def spec(self, squeue, page, ld_id=None):
        """A MemSpecRd; of its session's owner, if nothing else is said."""
        owner = self.sessions[squeue // self.config.queues].ld_id
        fields = {"page.squeue": squeue, "page.page": page}
        return self.spec_read.pack(ld_id=owner if ld_id is None else ld_id, **fields)

    def _offer(self, name, waiting, chance):
        """Drives one input stream; a payload once offered stays."""
        valid, payload = getattr(self.dut, f"{name}__valid"), getattr(self.dut, f"{name}__payload")
        if name not in self.shown and waiting and self.rng.random() < chance:
            self.shown[name] = waiting[0]
        valid.value = int(name in self.shown)
        payload.value = self.shown.get(name, self.rng.getrandbits(len(payload)))

    async def cycle(self):
        dut, rng = self.dut, self.rng
        sent = None
        if self.flying and self.flying[0][0] <= self.cycles:
            _, op = self.flying.popleft()
            taken = rng.random() < self.p_taken
            sent = self.result.pack(
                **{
                    "op.kind": Op.PREFETCH,
                    "op.source": op["source"],
                    "op.session": op["session"],
                    "op.squeue": op["squeue"],
                    "op.page": op["page"],
                    "outcome": Outcome.MISSED if taken else Outcome.DROPPED,
                }
            )
            self.counts["issued" if taken else "refused", PrefetchSource(op["source"])] += 1
            self.on_result(op, taken)
        elif self.results and rng.random() < self.p_result:
            sent = self.results.popleft()
        dut.i_result__valid.value = int(sent is not None)
        dut.i_result__payload.value = (
            sent if sent is not None else rng.getrandbits(self.result.width)
        )
        for name, waiting in (("i_usage", self.usages), ("i_late", self.lates)):
            item = waiting.popleft() if waiting else None
            getattr(dut, f"{name}__valid").value = int(item is not None)
            getattr(dut, f"{name}__payload").value = item or 0
        self._offer("i_hint", self.hints, self.p_hint)
        self._offer("i_spec", self.specs, self.p_spec)
        dut.window.value = (
            self.windows[self.window_squeue] if self.window_squeue < self.config.squeues else 0
        )
        dut.o_op__ready.value = int(rng.random() < self.p_ready)
        await ReadOnly()
        self._accepted()
        if dut.o_op__valid.value == 1:
            payload = int(dut.o_op__payload.value)
            assert self.shown.get("o_op", payload) == payload, (
                "an offered op changed before it was taken"
            )
            self.shown["o_op"] = payload
            if dut.o_op__ready.value == 1:
                del self.shown["o_op"]
                op = self.op.unpack(payload)
                assert (
                    op["kind"] == Op.PREFETCH
                    and op["session"] == op["squeue"] // self.config.queues
                )
                self.ops.append(
                    Candidate(PrefetchSource(op["source"]), op["session"], op["squeue"], op["page"])
                )
                last = self.flying[-1][0] if self.flying else 0
                self.flying.append((max(last + 1, self.cycles + rng.randint(3, 9)), op))
        else:
            assert "o_op" not in self.shown, "an offered op went away"
        self.on_cycle()
        self.window_squeue = int(dut.window_squeue.value)
        pulses = int(dut.pulses.value)
        if pulses:
            fields = self.pulses.unpack(pulses)
            dropped = fields.pop("dropped")
            fields |= {
                DropReason(r).name: dropped >> r * len(SOURCES) & (1 << len(SOURCES)) - 1
                for r in DropReason
            }
            for name, bits in fields.items():
                for s in SOURCES:
                    self.counts["pulse", name, s] += bits >> s - 1 & 1
        if self.config.select_estimates:
            for name, squeues in self.dropped.items():
                if getattr(dut, f"dropped__{name}__valid").value == 1:
                    squeues.append(int(getattr(dut, f"dropped__{name}__payload").value))
        self.counts["access_lost"] += int(dut.access_lost.value)
        self.counts["previous_lost"] += int(dut.previous_lost.value)
        idle = dut.idle.value == 1 and not (
            self.results or self.flying or self.hints or self.specs or self.usages or self.lates
        )
        await RisingEdge(dut.clk)
        self.cycles += 1
        return idle

    def _accepted(self):
        """Takes what the block accepts: a MemSpecRd after a cycle at most, a hinted page after its
        patience, and its turn."""
        self.asked = None
        for name, waiting, source in (
            ("i_hint", self.hints, PrefetchSource.HINT),
            ("i_spec", self.specs, PrefetchSource.SPEC_READ),
        ):
            if name not in self.shown:
                continue
            if getattr(self.dut, f"{name}__ready").value == 1:
                assert self.asked is None, "two pages in one cycle"
                del self.shown[name]
                self.asked = source, waiting.popleft()
                self.waited[name] = 0
                self.counts["accepted", source] += 1
            else:
                self.waited[name] += 1
        if self.dut.lockstep.value == 1:  # a hinted page waits for room, however long
            self.waited["i_hint"] = 0
        assert self.waited["i_spec"] <= 1 and self.waited["i_hint"] <= HINT_PATIENCE + 1

    async def drain(self, limit=20_000):
        for _ in range(limit):
            if await self.cycle():
                await self.cycle()  # the last pulses are two cycles behind
                await self.cycle()
                return
        raise AssertionError("the prefetcher does not come to rest")

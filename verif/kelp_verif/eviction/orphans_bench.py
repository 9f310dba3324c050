# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Orphans alone, beside a model of its contract: results, owners, evictions under way and back
pressure at random, none of them consistent but in what M3 promises (an answer after each op, the
word before the owner). Each op, event and flushed frame is compared; waiting is bounded."""

import random
from collections import deque

import cocotb
from cocotb.triggers import ReadOnly, RisingEdge, Timer

from kelp_hw.eviction.orphans import Orphans
from kelp_hw.eviction.signatures import EvictionLayouts
from kelp_hw.export.packing import Packing
from kelp_spec.config import Config
from kelp_spec.metadata import Event, Op, Outcome, PageState

from ..harness.clocking import start_quiet
from ..harness.runner import bench_params, record

#: Cycles from what an op or an event waits for to its offer, at most.
SOON = 4


class Search:
    """What the block knows, and what it does next."""

    def __init__(self, frames):
        self.frames, self.frame = frames, 0
        self.lost, self.due, self.untold, self.unplaced = deque(), False, False, None
        self.holding, self.pending, self.moved = set(), set(), False
        self.named = self.fetching = False
        self.left = 0  #: frames that are left to a sweep

    def learn(self, r, full):
        """Of a result: whose page's word is lost, who has a frame, and whether the frame in
        question has moved. `full`: no word finds a place."""
        kind, outcome, miss = r["kind"], r["outcome"], r["miss"]
        given = (kind == Op.GRANT and outcome != Outcome.RETRY) or (
            kind == Op.PREFETCH and outcome == Outcome.MISSED
        )
        if given:
            self.holding.add(miss)
        if kind == Op.FLIP and outcome != Outcome.RETRY:
            self.holding.discard(miss)
            self.pending.discard(miss)
        claimed = kind == Op.CLAIM and outcome == Outcome.DONE
        self.moved |= (given or claimed) and r["frame"] == self.frame
        if r["uncorrected"] and full:
            self.due, self.untold, self.unplaced = True, True, r["page"]
        elif r["uncorrected"]:
            self.lost.append(r["page"])

    def steps(self, page, sweeping):
        """A search for the frame of `page`, or a sweep of all frames: yields ("op", kind, page,
        frame), and is sent the owner or the outcome; ("holders", page); ("event", code, page). A
        page None may be any."""
        for frame in range(self.frames):
            self.frame = frame
            in_use, owner = yield "op", Op.PEEK, None if sweeping else page, frame
            if sweeping:
                if not in_use:
                    continue
                page = owner
                in_use, owner = yield "op", Op.PEEK, page, frame
            if not in_use or owner != page or self.named:
                continue
            if sweeping and self.fetching:
                self.leave()
                continue
            yield "holders", page
            in_use, owner = yield "op", Op.PEEK, page, frame
            if not in_use or owner != page or self.named:
                continue
            if self.fetching or self.moved:
                self.leave()
                continue
            outcome = yield "op", Op.RECOVER, page, frame
            if outcome == Outcome.RETRY:
                self.leave()
            elif outcome == Outcome.ORPHAN:
                yield "event", Event.FRAME_RECOVERED, page
                if not sweeping:
                    return

    def leave(self):
        self.due = True
        self.left += 1


class TB:
    def __init__(self, dut):
        self.dut, self.rng = dut, random.Random(cocotb.RANDOM_SEED)
        self.config = c = Config.of_json(bench_params()["config"])
        layouts = EvictionLayouts(c)
        self.token = layouts.recover_token
        names = ("op", "result", "frame_owner", "flush", "page", "event")
        self.op, self.result, self.owner, self.flush, self.page, self.event = (
            Packing(getattr(layouts, name)) for name in names
        )
        self.search = Search(c.total_frames)
        #: What is under way, its next step, and how far that has come: an op is offered, asked, and
        #: told of; holders are found, counted and gone.
        self.going = self.step = self.phase = None
        self.due = 0  #: the cycle of the answer
        self.waited = 0  #: cycles in which nothing kept the block from what it does next
        self.asked = None  #: the latest frame
        self.flushed, self.cycle = None, 0
        self.telling = False  #: FRAME_SWEEP is offered
        self.figures = dict.fromkeys(("searches", "sweeps", "told", "recovered", "freed"), 0)
        self.figures["lost_when_told"] = 0

    def pool_of(self, frame):
        return max(p for p in range(4) if frame >= self.config.pool_first_frame[p])

    def some_page(self):
        """One of a few, so that they meet; now and then any."""
        rng, c = self.rng, self.config
        few = [(0, 0), (0, 1), (c.squeues - 1, c.pages - 1), (3, 5), (2, 5)]
        any_page = rng.randrange(c.squeues), rng.randrange(c.pages)
        return rng.choice(few) if rng.random() < 0.7 else any_page

    def near(self, value, bits):
        """`value`, or one that differs from it in a bit."""
        return value ^ self.rng.choice([0, 1 << self.rng.randrange(bits)])

    def a_frame(self):
        """Often the one in question, or almost."""
        near = self.near(self.search.frame, self.config.frame_bits)
        meets = self.rng.random() < self.meets
        return near if meets else self.rng.randrange(self.config.total_frames)

    @property
    def unsaid(self):
        rng, frame = self.rng, self.search.frame
        return {
            "miss": rng.randrange(self.config.misses),
            "uncorrected": 1,
            "state": PageState.RESIDENT,
            "place": frame,
            "frame": frame,
            "kind": rng.choice([Op.PEEK, Op.RECOVER, Op.GRANT, Op.FLIP, Op.CLAIM]),
            "outcome": rng.choice([Outcome.DONE, Outcome.ORPHAN]),
            "page": self.some_page(),
            "slot": self.token,
        }

    def weather(self):
        """For a while: how often results come, how many words are lost, how often results are of
        the frame in question, how many frames are in use, who stalls."""
        rng = self.rng
        self.rate, self.losses = rng.choice([0.2, 0.5, 1]), rng.choice([0.001, 0.001, 0.01, 0.1])
        self.meets, self.used = rng.choice([0.02, 0.6]), rng.choice([0.1, 0.2, 0.75])
        self.stall, self.busy = rng.choice([0, 0.5]), rng.choice([0, 0.3, 0.9])
        self.answers = rng.choice([1, 6])

    # - what comes ---------------------------------------------------------------------------------
    def may_lose(self):
        """Not in a cycle in which the queue may just have been read, and be full or not."""
        if self.going is not None or self.telling:
            return True
        if self.search.due:  # gathers: what comes meanwhile is gathered, too
            return SOON + Orphans.LOST < self.waited < Orphans.WAIT - SOON
        return len(self.search.lost) < Orphans.LOST - 1

    @property
    def loses(self):
        """How often a result loses a word: more often where it takes most care."""
        return 0.5 if self.telling else self.losses

    def other_result(self):
        """A result that answers nothing, or none."""
        rng, search = self.rng, self.search
        if rng.random() >= self.rate:
            return None
        kind, outcome = rng.choice(list(Op)), rng.choice(list(Outcome))
        if self.phase in ("asked", "told") and rng.random() < 0.3:  # almost an answer
            kind = self.near(self.step[1], 5)
        elif rng.random() < 0.7:
            kind = rng.choice([Op.GRANT, Op.PREFETCH, Op.FLIP, Op.FLIP, Op.CLAIM, Op.PEEK])
            outcome = rng.choice([Outcome.DONE, Outcome.MISSED, Outcome.RETRY, Outcome.VOID])
        if kind == Op.RECOVER or kind not in list(Op):  # nobody else's, or nothing
            return None
        miss = rng.randrange(self.config.misses)
        if search.pending and kind == Op.FLIP and rng.random() < 0.5:
            miss = rng.choice(sorted(search.pending))
        others = kind == Op.PEEK or rng.random() < 0.5
        return {
            "kind": kind,
            "outcome": outcome,
            "page": self.some_page(),
            "miss": miss,
            "frame": self.a_frame(),
            "slot": self.token ^ (1 << rng.randrange(4) if others else 0),
            "uncorrected": int(self.may_lose() and rng.random() < self.loses),
            "state": rng.choice(list(PageState)),
            "place": self.a_frame(),
        }

    def answer(self):
        """What is due of the op that was taken: a result, or the owner."""
        rng = self.rng
        if self.phase not in ("asked", "told") or self.cycle < self.due:
            return None, None
        _, kind, page, frame = self.step
        page = page or self.some_page()
        if self.phase == "told":
            squeue, number = page
            used, self.asked = 0.9 if frame == self.asked else self.used, frame
            if rng.random() < 0.2:  # another one's, by a bit
                squeue = min(self.near(squeue, 4), self.config.squeues - 1)
                number = self.near(number, self.config.page_bits)
            return None, (rng.random() < used, (squeue, number))
        recovers = [Outcome.ORPHAN, Outcome.ORPHAN, Outcome.VOID, Outcome.RETRY, *Outcome]
        lost = self.may_lose() and rng.random() < self.loses
        return {
            "kind": kind,
            "outcome": rng.choice(recovers if kind == Op.RECOVER else [Outcome.DONE]),
            "page": page,
            "miss": 0,
            "frame": frame,
            "slot": self.token,
            "uncorrected": int(lost),
            "state": rng.choice([PageState.LOST] * (1 if self.meets > 0.1 else 12) + [*PageState]),
            "place": self.near(frame, self.config.frame_bits),
        }, None

    def show_result(self, r):
        """Or what would be an answer, if it were valid."""
        dut = self.dut
        dut.i_result__valid.value = int(r is not None)
        if r is None:
            r = self.unsaid
        squeue, page = r["page"]
        fields = {f"op.{name}": int(r[name]) for name in ("kind", "miss", "slot")}
        fields |= {"op.squeue": squeue, "op.page": page}
        fields |= {"word.state": int(r["state"]), "word.place": r["place"]}
        fields |= {name: int(r[name]) for name in ("outcome", "frame", "miss", "uncorrected")}
        dut.i_result__payload.value = self.result.pack(**fields)

    def show_owner(self, owner):
        """Of the frame that was asked for; or of what somebody else asked."""
        dut, rng = self.dut, self.rng
        valid = owner is not None or rng.random() < 0.3
        dut.i_owner__valid.value = int(valid)
        if owner is not None:
            (in_use, (squeue, page)), slot, frame = owner, self.token, self.step[3]
        else:
            in_use, (squeue, page) = rng.random() < 0.5, self.some_page()
            slot, frame = self.token ^ (valid and 1 << rng.randrange(4)), self.a_frame()
        dut.i_owner__payload.value = self.owner.pack(
            slot=slot, frame=frame, in_use=int(in_use), squeue=squeue, page=page
        )

    async def tick(self):
        """One cycle."""
        dut, rng = self.dut, self.rng
        await Timer(1, "ns")
        self.telling = (
            dut.o_event__valid.value
            and self.event.unpack(dut.o_event__payload.value)["code"] == Event.FRAME_SWEEP
        )
        result, owner = self.answer()
        mine = result is not None
        result = result or self.other_result()
        self.show_result(result)
        self.show_owner(owner)
        if self.flushed is None and rng.random() < 0.2:
            self.flushed = rng.randrange(self.config.total_frames), rng.randrange(16)
        dut.i_flushed__valid.value = int(self.flushed is not None)
        frame, token = self.flushed or (0, 0)
        dut.i_flushed__payload.value = self.flush.pack(frame=frame, token=token)
        for port in (dut.o_free__ready, dut.o_op__ready, dut.event_taken):
            port.value = int(rng.random() >= self.stall)
        working = rng.random() < self.busy
        dut.check__working.value = int(working)
        await ReadOnly()
        self.look()
        self.turn(result, mine, owner, working)
        await RisingEdge(dut.clk)
        self.cycle += 1

    # - what is compared ---------------------------------------------------------------------------
    def look(self):
        """Outputs of this cycle."""
        dut, search = self.dut, self.search
        op, event = int(dut.o_op__valid.value), int(dut.o_event__valid.value)
        self.where = f"cycle {self.cycle}"
        if self.going is None and (op or event):
            self.begin(event)
        self.where += f", {self.step}"
        kind = self.step[0] if self.step else None
        offers = kind == "op" and self.phase in (None, "offered")
        assert not op or offers, f"{self.where}: an op"
        assert not event or kind == "event", f"{self.where}: an event"
        if op:
            self.compare_op()
        elif offers:
            assert self.phase is None, f"{self.where}: withdrawn"
            self.wait()
        if event:
            told = self.event.unpack(dut.o_event__payload.value)
            page = self.step[2] or search.unplaced
            assert (told["code"], (told["squeue"], told["page"])) == (self.step[1], page), (
                f"{self.where}: {told}"
            )
        elif kind == "event":
            self.wait()
        if self.phase == "gone":
            asked = self.page.unpack(dut.check__page.value)
            assert (asked["squeue"], asked["page"]) == self.step[1], f"{self.where}: {asked}"
        if self.going is None and search.due and not search.untold:
            search.lost.clear()  # those that wait are found by the sweep, too
        waiting = self.going or search.lost or search.due or self.flushed
        if self.going is None and (search.lost or search.due):
            self.wait(Orphans.WAIT if search.due and not search.untold else 0)
        elif not waiting and not dut.idle.value:
            self.wait()
        assert not (waiting and dut.idle.value), f"{self.where}: idle"
        self.look_at_free()

    def begin(self, event):
        """What is due begins: an event tells of a sweep first."""
        search = self.search
        assert search.due or search.lost, f"{self.where}: a search for nothing"
        if search.due and search.untold:
            assert event, f"{self.where}: a sweep that nobody was told of"
            self.going = iter([("event", Event.FRAME_SWEEP, None)])
        elif search.due:
            search.due, self.going = False, search.steps(None, True)
            self.figures["sweeps"] += 1
        else:
            self.going = search.steps(search.lost.popleft(), False)
            self.figures["searches"] += 1
        self.follow()

    def wait(self, more=0):
        self.waited += 1
        assert self.waited <= SOON + more, f"{self.where}: nothing happens"

    def compare_op(self):
        offered = self.op.unpack(self.dut.o_op__payload.value)
        _, kind, page, frame = self.step
        names = ("kind", "frame", "slot", "pool")
        got = tuple(offered[name] for name in names)
        assert got == (kind, frame, self.token, self.pool_of(frame)), f"{self.where}: {offered}"
        asks = offered["squeue"], offered["page"]
        assert page in (None, asks), f"{self.where}: {offered}"
        self.phase = "offered"

    def look_at_free(self):
        """FREE is the flushed frame's, on the same way."""
        dut = self.dut
        valid, ready = int(dut.o_free__valid.value), int(dut.o_free__ready.value)
        assert valid == (self.flushed is not None), self.where
        assert int(dut.i_flushed__ready.value) == ready, self.where
        if valid:
            free, (frame, token) = self.op.unpack(dut.o_free__payload.value), self.flushed
            got = tuple(free[name] for name in ("kind", "frame", "slot", "pool"))
            assert got == (Op.FREE, frame, token, self.pool_of(frame)), f"{self.where}: {free}"
            if ready:
                self.flushed = None
                self.figures["freed"] += 1

    # - what follows from a cycle ------------------------------------------------------------------
    def turn(self, result, mine, owner, working):
        dut, search = self.dut, self.search
        phase, full = self.phase, len(search.lost) == Orphans.LOST
        if mine and self.step[1] == Op.PEEK:
            state = result["state"]
            here = state in (PageState.RESIDENT, PageState.WRITING_BACK)
            search.named = here and result["place"] == self.step[3]
            search.fetching = state == PageState.FETCHING
            self.phase, self.due = "told", self.cycle + self.rng.randint(1, self.answers)
        elif mine:
            self.follow(result["outcome"])
        elif owner is not None:
            self.follow(owner)
        elif phase == "offered" and dut.o_op__ready.value:
            self.phase, self.due = "asked", self.cycle + self.rng.randint(1, self.answers)
        elif phase == "counted" and not search.pending:
            self.phase = "gone"
        elif phase == "gone" and not working:
            self.follow()
        elif self.step and self.step[0] == "event" and dut.event_taken.value:
            if self.step[1] == Event.FRAME_SWEEP:
                search.untold = False
                self.figures["told"] += 1
                again = full and result is not None and result["uncorrected"]
                self.figures["lost_when_told"] += int(again)
            else:
                self.figures["recovered"] += 1
            self.follow()
        if phase == "found":
            # Who has a frame by now; not who is given one in this cycle, which is another one.
            search.pending, search.moved = set(search.holding), False
            self.phase = "counted"
        if self.telling and search.lost:
            search.lost.popleft()  # the sweep finds it
        if result is not None:
            known = set(search.pending)
            search.learn(result, full)
            search.pending &= known

    def follow(self, said=None):
        self.phase, self.waited = None, 0
        try:
            self.step = self.going.send(said) if said is not None else next(self.going)
            self.phase = "found" if self.step[0] == "holders" else None
        except StopIteration:
            self.going = self.step = None


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def contract(dut):
    tb = TB(dut)
    offered = "i_flushed__valid", "i_result__valid", "i_owner__valid", "check__working"
    await start_quiet(dut, *offered, "o_free__ready", "o_op__ready", "event_taken")
    for n in range(bench_params()["cycles"]):
        if n % 1000 == 0:
            tb.weather()
        await tb.tick()
    record(left=tb.search.left, **tb.figures)

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The eviction engine: sweeps that run freely pass the audit; events of two of its parts in one
cycle are two events."""

import random

import pytest
from amaranth.hdl import Module, Signal
from amaranth.lib.wiring import connect
from eviction_runs import MEMORIES, SMALL, run
from simulation import simulate

from kelp_hw.control.events import EventLog
from kelp_hw.eviction import eviction, evictor
from kelp_hw.eviction.eviction import Eviction
from kelp_hw.eviction.evictor import Evictor
from kelp_hw.eviction.kelp_search import KelpSearch
from kelp_hw.eviction.orphans import Orphans
from kelp_spec.config import named
from kelp_spec.metadata import Event, Op, Outcome, PageState
from kelp_spec.policy import Policy
from kelp_verif.formal.prove import mutant

ROOMY = named("unit").with_(queues=2, pages=16, frames=(16, 8, 8, 8))  # several pages of each queue


def test_free_running_sweeps_pass_the_audit():
    records = run(SMALL, "free_running", cycles=25_000).records
    assert records["victims"] > 60 and records["cancelled"] > 0 and records["failed"] > 0


def test_free_running_choices_under_kelp_follow_the_offers():
    records = run(SMALL, "free_running", cycles=12_000, policies=[Policy.KELP]).records
    assert records["victims"] > 10 and records["sweeps"] > records["victims"]


@pytest.mark.parametrize("memory", MEMORIES)
def test_flipped_bits_are_told_of(memory):
    run(SMALL, "flipped_bits", path=MEMORIES[memory][0])


#: Queues of both policies in one pool: policies in turn, budgets in frames, pages of each queue.
MIXED = {
    "over budget": ([Policy.KELP, Policy.EMA], [0, 2, 5], 8),
    "within budgets": ([Policy.EMA, Policy.KELP, Policy.KELP], [7, 8, 12], 8),
    "few pages": ([Policy.KELP, Policy.EMA, Policy.EMA], [0, 1, 8], 2),
}


def run_mixed(name, cycles, engine=None):
    policies, budgets, pages = MIXED[name]
    asked = dict(policies=policies, budgets=budgets, pages_of_each=pages, pools=[0])
    return run(SMALL, "free_running", cycles=cycles, engine=engine, **asked)


@pytest.mark.parametrize("name", MIXED)
@pytest.mark.sampled
def test_free_running_choices_in_a_pool_of_both_policies_pass_the_audit(name):
    records = run_mixed(name, 12_000).records
    assert records["victims"] > 20 and records["sweeps"] > records["victims"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("block", "name", "old", "new", "said"),
    [
        # Where the root has no page, the search begins with the queue that asks.
        (
            KelpSearch,
            "few pages",
            "(facts.root != facts.squeue)",
            "(facts.root == facts.squeue)",
            "by the offers",
        ),
        # The root is not tried before the others, or its excess does not count.
        (Evictor, "few pages", "self._gives & (self._root", "0 & (self._root", "by the offers"),
        (
            Evictor,
            "over budget",
            "Mux(self._over, self._root",
            "Mux(0, self._root",
            "by the offers",
        ),
        # One after another, but not the next one.
        (
            Evictor,
            "few pages",
            "Mux(squeue == c.squeues - 1, 0, squeue + 1)",
            "Mux(squeue == 0, c.squeues - 1, squeue - 1)",
            "by the offers",
        ),
    ],
    ids=["not_the_root", "no_root_again", "budget_ignored", "backwards"],
)
def test_the_audit_sees_a_wrong_choice_among_both_policies(
    monkeypatch, block, name, old, new, said
):
    module = eviction if block is Evictor else evictor
    monkeypatch.setattr(module, block.__name__, mutant(block, old, new))
    engine = Eviction(config=SMALL)
    with pytest.raises(AssertionError, match=said):
        run_mixed(name, 60_000, engine)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "calm"),
    [
        # A queue that gave goes on to offer what it gave.
        (
            'm.d.sync += phase.eq(Phase.GIVEN)\n                        m.next = "OFFER"',
            "m.d.comb += verdict.eq(Verdict.DONE)",
            0.5,
        ),
        # Not the queue that asks gives, where all pages are in use, but the one swept last.
        (
            "has_page | (facts.asking == facts.squeue)",
            "has_page | (facts.asking != facts.squeue)",
            0.5,
        ),
        # The queue that asks gives even its newest page.
        ("(best.kind == 2)", "(best.kind == 3)", 0.5),
        # The first queue gives, whatever another one offers. Of several queues an offer is known
        # only where they were left while no frame was wanted.
        ("(worthy != SWEEPS)", "0", 0.9),
    ],
    ids=["stale_offer", "not_asked", "newest_asked", "one_asked"],
)
def test_the_audit_sees_a_wrong_queue_of_the_rtl(monkeypatch, old, new, calm):
    monkeypatch.setattr(evictor, "KelpSearch", mutant(KelpSearch, old, new))
    engine = Eviction(config=ROOMY)
    asked = dict(policies=[Policy.KELP], pools=[0], calm=calm)
    with pytest.raises(AssertionError, match="by the offers"):
        run(ROOMY, "free_running", cycles=25_000, engine=engine, **asked)


def test_within_their_budgets_the_queue_nearest_to_its_own_gives():
    """No queue is over its budget, and often the one that asks has no page."""
    config = named("unit").with_(queues=12, frames=(6, 6, 4, 4))
    asked = dict(budgets=[7, 8, 12], pages_of_each=2)
    records = run(config, "free_running", cycles=16_000, **asked).records
    assert records["victims"] > 50 and records["within"] > 20


def _told(event):
    return event.code, event.squeue, event.page


class _TwoTell:
    """An engine whose evictor tells of something whenever `tells` is on, beside orphans that lose
    words; its events go to a log, another source of which has one whenever `other` is on."""

    OWNED = 2  #: the frame of a word that is lost alone

    def __init__(self, monkeypatch, planted=()):
        tells, parts = Signal(), []

        class Telling(Evictor):
            def elaborate(self, platform):
                m = super().elaborate(platform)
                m.d.comb += self.o_event.valid.eq(tells)
                return m

        class Watched(Orphans):
            def elaborate(self, platform):
                parts.append(self)
                return super().elaborate(platform)

        monkeypatch.setattr(eviction, "Evictor", Telling)
        monkeypatch.setattr(eviction, "Orphans", Watched)
        self.tells, self.parts, self.other = tells, parts, Signal()
        engine = mutant(Eviction, *planted) if planted else Eviction
        self.engine, self.log = engine(config=SMALL), EventLog(config=SMALL, sources=2)
        self.sent, self.logged, self.orders = [], [], set()
        self.overflow = self.was_told = 0
        self.held = self.answer = self.owner = None

    def top(self):
        m = Module()
        m.submodules.engine, m.submodules.log = self.engine, self.log
        connect(m, self.engine.o_event, self.log.i[1])
        m.d.comb += self.log.i[0].valid.eq(self.other)
        m.d.comb += self.log.i[0].p.code.eq(Event.FATAL)
        return m

    def _seen(self, ctx, tells):
        """What the engine tells of in this cycle: the evictor first, and the orphans until they are
        heard."""
        (orphans,) = self.parts
        event = _told(ctx.get(self.engine.o_event.p))
        mine = _told(ctx.get(orphans.o_event.p)) if ctx.get(orphans.o_event.valid) else None
        assert self.held in (None, mine), "the orphans take an event back"
        assert ctx.get(self.engine.o_event.valid) == (tells or mine is not None)
        if mine is not None:
            self.orders.add((self.was_told, tells, self.held is not None))
        self.held = mine if tells else None
        if tells:
            assert event[0] == Event.NO_VICTIM
        elif mine is not None:
            assert event == mine
        self.was_told = tells
        if tells or mine is not None:
            self.sent.append(event)

    def _read(self, ctx):
        """The log is emptied in every cycle."""
        log, count = self.log, ctx.get(self.log.count)
        for n in range(count):
            ctx.set(log.read_index, n)
            event = _told(ctx.get(log.read_data).event)
            if event[0] != Event.FATAL:
                self.logged.append(event)
        ctx.set(log.take, int(count > 0))
        ctx.set(log.taken.count, count)
        self.overflow |= ctx.get(log.overflow)

    async def cycle(self, ctx, tells, other, lost=None):
        """A cycle, in which a PEEK or RECOVER of the cycle before is answered, or a word is
        lost."""
        engine = self.engine
        ctx.set(self.tells, tells)
        ctx.set(self.other, other)
        # The frame table answers after M3.
        owner, self.owner = self.owner, None
        ctx.set(engine.i_frame.owner.valid, int(owner is not None))
        if owner is not None:
            ctx.set(engine.i_frame.owner.p, owner)
        ctx.set(engine.i_result.valid, int(lost is not None or self.answer is not None))
        if lost is not None:
            op = {"kind": Op.PEEK, "squeue": 0, "page": lost}
            ctx.set(engine.i_result.p, {"op": op, "uncorrected": 1, "outcome": Outcome.DONE})
        elif self.answer is not None:
            op, self.answer = self.answer, None
            recovers = op.kind == Op.RECOVER
            fields = {"kind": op.kind, "slot": op.slot, "squeue": op.squeue, "page": op.page}
            outcome = Outcome.ORPHAN if recovers else Outcome.DONE
            word = {"state": PageState.LOST}
            ctx.set(engine.i_result.p, {"op": fields, "outcome": outcome, "word": word})
            owner = {"slot": op.slot, "frame": op.frame, "in_use": int(op.frame == self.OWNED)}
            self.owner = None if recovers else owner | {"squeue": 0, "page": 0}
        ctx.set(engine.o_op.ready, int(lost is None))
        if ctx.get(engine.o_op.valid & engine.o_op.ready):
            self.answer = ctx.get(engine.o_op.p)
        self._seen(ctx, tells)
        self._read(ctx)
        await ctx.tick()

    @property
    def idle(self):
        (orphans,) = self.parts
        return orphans.idle


def _tell_both(it, other):
    """Twelve searches and sweeps beside an evictor that tells, seldom to always; the log's other
    source has an event in so many of the cycles."""
    rng = random.Random(7)

    async def bench(ctx):
        async def cycle(lost=None):
            await it.cycle(ctx, int(rng.random() < busy), int(rng.random() < other), lost)

        while not ctx.get(it.engine.ready):
            await ctx.tick()
        for n in range(12):
            busy = rng.choice([0.1, 0.5, 0.9])
            # One word is lost and its frame recovered; or one more than can wait: a sweep.
            for number in range(1 if n % 2 else 2 + Orphans.LOST):
                await cycle(number)
            await cycle()
            while not ctx.get(it.idle):
                await cycle()
        for _ in range(8):
            await it.cycle(ctx, 0, 0)

    simulate(it.top(), bench)
    codes = [code for code, *_ in it.sent]
    assert codes.count(Event.FRAME_SWEEP) == 6 and codes.count(Event.FRAME_RECOVERED) >= 6
    # Whether the evictor tells in the cycle before, and in the same; and of an event that waits.
    orders = {(b, n, False) for b in (0, 1) for n in (0, 1)} | {(1, 0, True), (1, 1, True)}
    assert orders <= it.orders


@pytest.mark.parametrize("other", [0.0, 0.5], ids=["alone", "beside another source"])
@pytest.mark.sampled
def test_the_evictor_and_the_orphans_tell_in_one_cycle_and_neither_is_lost(monkeypatch, other):
    """In each order, and while the evictor goes on and on. In the log, too, each is found, or the
    overflow says that one is missing: the lane has one place."""
    it = _TwoTell(monkeypatch)
    _tell_both(it, other)
    if other:
        left = iter(it.sent)
        assert it.overflow and all(event in left for event in it.logged)
        assert len(it.logged) > len(it.sent) // 3
    else:
        assert it.logged == it.sent and not it.overflow


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "with m.Else():\n            m.d.comb += orphans.event_taken",
            "if True:\n            m.d.comb += orphans.event_taken",
            "take an event back",
        ),
        (
            "m.If(evictor.o_event.valid)",
            "m.If(evictor.o_event.valid & ~orphans.o_event.valid)",
            "assert",
        ),
        (
            "evictor.o_event.valid | orphans.o_event.valid",
            "evictor.o_event.valid ^ orphans.o_event.valid",
            "assert",
        ),
    ],
    ids=["heard while the evictor tells", "the orphans first", "neither"],
)
@pytest.mark.sampled
def test_two_events_in_one_cycle_that_become_one_are_seen(monkeypatch, old, new, said):
    it = _TwoTell(monkeypatch, (old, new))
    with pytest.raises(AssertionError, match=said):
        _tell_both(it, 0.0)

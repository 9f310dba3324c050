# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""EMA engine: one score per page, updated by what M3 saw (spec §4, §5; docs/design.md §7,
docs/arithmetic.md). One event a cycle on distinct pages, committed after 24 cycles; a SCAN is
answered after 23 cycles."""

from __future__ import annotations

from amaranth.hdl import Assert, Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data, fifo, memory, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from kelp_spec.config import Config
from kelp_spec.metadata import SCORE_BITS, STEP_BITS, PageState, ScoreEvent, ScoreSource
from kelp_spec.policy import (
    EPOCH_BITS,
    EPOCH_SHIFT,
    FADE_SHIFT,
    FOLDED,
    FREQUENCY_BITS,
    PROFILE_BITS,
    Policy,
)
from kelp_spec.scores import IDLE_BIAS

from ..control.queue_config import QueueConfig
from ..layouts import Layouts, code_shape, is_pinned
from ..lib.exp2 import Exp2
from ..lib.protected import BlockFault, CheckedWord, Fault, fifo_of, gather, used
from ..lib.secded import Secded
from ..lib.split_sram import SplitSram
from ..lib.sram import Sram
from ..pipeline import RESERVE, SCORE_BACK, SCORE_FRONT
from .kelp_scores import AGE_BITS, Age, Frequency, Profile, Turns

__all__ = ["EmaEngine", "EmaStep"]


class EmaStep(wiring.Component):
    """One step of the moving average: o = s + ((x − s)·a + 128 >> 8) (docs/arithmetic.md).

    Latency: `LATENCY` cycles; one step in each cycle (`INTERVAL`), never stalls. No error cases.

    Members
    -------
    s, x : in
        The score and what it moves towards, UQ0.16.
    a : in
        256 · α; above 256 it counts as 256.
    o : out
        The score after the step, `LATENCY` cycles later.
    """

    LATENCY = 3
    INTERVAL = 1

    def __init__(self):
        super().__init__(
            {"s": In(SCORE_BITS), "x": In(SCORE_BITS), "a": In(9), "o": Out(SCORE_BITS)}
        )

    def elaborate(self, platform):
        m = Module()
        difference, alpha = (
            Signal(signed(SCORE_BITS + 1), reset_less=True),
            Signal(9, reset_less=True),
        )
        product = Signal(signed(SCORE_BITS + 10), reset_less=True)
        s1, s2 = Signal(SCORE_BITS, reset_less=True), Signal(SCORE_BITS, reset_less=True)
        total = Signal(signed(SCORE_BITS + 3))
        m.d.comb += total.eq(s2 + ((product + 128) >> 8))
        m.d.sync += [
            difference.eq(self.x - self.s),
            alpha.eq(Mux(self.a[8], 256, self.a)),
            s1.eq(self.s),
            product.eq(difference * alpha),
            s2.eq(s1),
            self.o.eq(total),
        ]
        m.d.sync += Assert((total >= 0) & (total <= 65535), "a score left 0 … 65535")
        return m


def _address(event):
    return Cat(event.page, event.squeue)


class _State:
    """What the stages of the engine share: the layouts of an event on its way; the other attributes
    are those signals of a stage that others read, under the names that they have there."""

    def __init__(self, config: Config):
        c = config
        # What of an event goes through the pipeline: `argument` is x, or what a SCAN found; `same`
        # says that the page's last access was in this step.
        self.found = data.StructLayout({"last_step": STEP_BITS, "eligible": 1})
        self.event = data.StructLayout(
            {
                "kind": code_shape(ScoreEvent),
                "session": c.session_bits,
                "squeue": c.squeue_bits,
                "page": c.page_bits,
                "slot": 4,
                "step": 8,
                "idle": STEP_BITS,
                "same": 1,
                "argument": self.found.size,
            }
        )

        # The two parts of an event that go into its place: carried over, and derived from memories.
        self.carried = data.StructLayout(
            {name: shape.shape for name, shape in self.event if name not in ("idle", "same")}
        )
        derived = {
            "idle": FOLDED.bit_length(),
            "gain": 4,
            "alpha": 9,
            "kelp": 1,
            "finished": 1,
            "distance": c.page_bits,
        }
        self.derived = data.StructLayout(derived)
        # From b0 on: `x` is what an EMA step moves towards, and of a SCAN the age of its page.
        self.step = data.StructLayout(
            {"event": self.carried, "x": SCORE_BITS, "over": 1, "fold": 1, **derived}
        )


class EmaEngine(wiring.Component):
    """Score SRAM with SECDED over each score; executes score events in order (spec §4, §5).

    - INIT writes the score of one touch from zero.
    - TOUCH folds the idle steps and takes an EMA step with x = 65535; it counts only for queues
      whose score source is OBSERVED.
    - MASS takes one with x = min(65535, `mass` << the queue's gain); only for source PUSHED.
    - SCAN reads; under `kelp` its answer is the page's value.
    - SCRUB, of a page of a session that closes, changes no score: it forgets the session's turn and
      what the queue's profile has counted at the distance of that number, so that a session's next
      owner finds none of it. It has no `o_commit`.

    A queue's policy says what its pages' words are: a score, or the frequency of `kelp`, for which
    each TOUCH counts and no MASS, and which INIT leaves at 0. With it go the queue's profile, its
    newest page and the session's turn, all as of the events so far.

    Latency: `LATENCY` cycles from `i` to `o_commit` and the write when nothing waits,
    `SCAN_LATENCY` to `o_scan`. One event in each cycle (`INTERVAL`) on distinct pages; an event on
    a page whose previous update is not written yet waits for it (`HAZARD` cycles at most). No event
    is lost: `ready` = at least RESERVE places free.

    Errors: a score with one flipped bit is corrected and written back, also a SCAN's; one with two
    counts as 0. INIT looks at nothing that was there, and every other event comes after one: the
    words need no scrub. With `config.protect` an event on its way carries check bits: one whose
    kind is lost would be a SCAN that never comes back, or comes back twice.

    Parameters
    ----------
    config : Config

    Members
    -------
    i : in, always-ready stream of score_event
        Only within RESERVE events of the last cycle with `ready`.
    ready : out
        Places are free, a cycle old.
    config_write : in, always-ready stream of config_write
        One queue's configuration.
    o_scan : out, always-ready stream of scanned
        In the order of the SCANs.
    o_commit : out, always-ready stream of score_commit
        Each score as it is written, and each SCAN's as it was read, in order.
    corrected, uncorrected : out
        Pulses, for counters and the event log; the page is that of `o_commit` in the same cycle.
    cleared : out
        The reset scrub of the profiles is over; no event may come before.
    idle : out
        No event is inside.
    fault : out, BlockFault
        With `config.protect`: of an event on its way. None can be rebuilt.
    """

    HAZARD = len(SCORE_BACK) - 1
    LATENCY = 1 + len(SCORE_FRONT) + Exp2.LATENCY + 1 + len(SCORE_BACK)  # FIFO, …, `b0`, …
    INTERVAL = 1
    SCAN_LATENCY = LATENCY - 1
    DEPTH = 2 * RESERVE
    #: events between the FIFO and `b0`, a power of two: one for each stage there, and one that is
    #: counted a cycle after it has left
    PLACES = 1 << (len(SCORE_FRONT) + Exp2.LATENCY).bit_length()

    def __init__(self, *, config: Config):
        self.config = config
        layouts = self.layouts = Layouts(config)
        self.secded = Secded(SCORE_BITS)
        #: The rows of the memory *places*.
        self.words = {"places": CheckedWord(_State(config).carried, protect=config.protect)}
        super().__init__(
            {
                "i": In(stream.Signature(layouts.score_event, always_ready=True)),
                "ready": Out(1),
                "config_write": In(stream.Signature(layouts.config_write, always_ready=True)),
                "o_scan": Out(stream.Signature(layouts.scanned, always_ready=True)),
                "o_commit": Out(stream.Signature(layouts.score_commit, always_ready=True)),
                "corrected": Out(1),
                "uncorrected": Out(1),
                "cleared": Out(1),
                "idle": Out(1),
                **({"fault": Out(BlockFault)} if config.protect else {}),
            }
        )

    def elaborate(self, platform):
        m = Module()
        s = _State(self.config)
        self._queue(m, s)
        self._front(m, s)
        self._computed(m, s)
        self._placed(m, s)
        self._admitted(m, s)
        self._read(m, s)
        self._gained(m, s)
        self._corrected(m, s)
        self._folded(m, s)
        self._scanned(m, s)
        self._written(m, s)
        if self.config.protect:
            gather(m, self.fault, s.queue.fault, used(s.got_fault, s.takes))
        m.d.comb += self.idle.eq(
            ~(self.i.valid | s.queue.r_rdy | (s.inside != 0) | s.b0_valid | s.back_valid.any())
        )
        return m

    def _queue(self, m: Module, s: _State) -> None:
        """The FIFO of events."""
        m.submodules.queue = queue = s.queue = fifo_of(
            fifo.SyncFIFO, shape=s.event, depth=self.DEPTH, protect=self.config.protect
        )
        pushed = self._packed(m, s.event, s.found)
        m.d.comb += [
            queue.w_data.eq(pushed),
            queue.w_en.eq(self.i.valid & (self.i.p.kind != ScoreEvent.NONE)),
        ]
        m.d.sync += Assert(~queue.w_en | queue.w_rdy, "a score event came without credit")
        # One place for what comes while `ready` itself is on its way.
        m.d.sync += self.ready.eq(queue.level < self.DEPTH - RESERVE - 1)

    def _front(self, m: Module, s: _State) -> None:
        """a0, a1: configuration and newest page. They never stall, so that an event that waits in
        `b0` steers no register of theirs: there is a place behind them for each event that
        enters."""
        c, event, queue = self.config, s.event, s.queue
        oldest = event(Value.cast(queue.r_data))
        enters, drops, takes, dropped, taken = Signal(), Signal(), Signal(), Signal(), Signal()
        inside = Signal(range(self.PLACES + 1))
        # Critical path: `drops` and `takes`: registered, so an event counts for one cycle more.
        m.d.sync += [
            dropped.eq(drops),
            taken.eq(takes),
            inside.eq((inside + enters - dropped - taken)[: len(inside)]),
        ]
        a0, a0_valid = Signal(event, reset_less=True), Signal()
        m.submodules.settings = settings = QueueConfig(
            config=c, fields=("alpha", "mass_shift", "score_source", "policy", "idle_m", "idle_sh")
        )
        m.submodules.newest = newest = Sram(depth=c.squeues, shape=c.page_bits)
        m.d.comb += [
            queue.r_en.eq(inside < self.PLACES),
            enters.eq(queue.r_en & queue.r_rdy),
            settings.read_en.eq(1),
            settings.read_squeue.eq(oldest.squeue),
            # An event sees the newest page as the events before it left it: the one just before
            # writes as this one reads.
            newest.read_en.eq(1),
            newest.read_address.eq(oldest.squeue),
            newest.write_en.eq(a0_valid & (a0.kind == ScoreEvent.INIT)),
            newest.write_address.eq(a0.squeue),
            newest.write_data.eq(a0.page),
        ]
        connect(m, flipped(self.config_write), settings.write)
        a1, a1_valid, newest1 = (
            Signal(event, reset_less=True),
            Signal(),
            Signal(c.page_bits, reset_less=True),
        )
        setting = Signal(settings.shape, reset_less=True)  # a block RAM is slow to answer
        m.d.sync += [
            a0.eq(oldest),
            a0_valid.eq(enters),
            a1.eq(a0),
            a1_valid.eq(a0_valid),
            newest1.eq(newest.read_data),
            setting.eq(settings.o),
        ]
        s.a1, s.a1_valid, s.newest1, s.setting = a1, a1_valid, newest1, setting
        s.drops, s.takes, s.inside = drops, takes, inside

    def _computed(self, m: Module, s: _State) -> None:
        """a1: whether an event counts, and what it needs of memories; Exp2 begins."""
        c, a1, a1_valid = self.config, s.a1, s.a1_valid
        newest1, setting = s.newest1, s.setting
        counts, kelp = Signal(), Signal()
        m.d.comb += kelp.eq(setting.policy == Policy.KELP)
        touch = a1.kind == ScoreEvent.TOUCH
        with m.Switch(a1.kind):
            with m.Case(ScoreEvent.TOUCH):
                m.d.comb += counts.eq((setting.score_source == ScoreSource.OBSERVED) | kelp)
            with m.Case(ScoreEvent.MASS):
                m.d.comb += counts.eq((setting.score_source == ScoreSource.PUSHED) & ~kelp)
            with m.Default():
                m.d.comb += counts.eq(1)
        carried1, derived2 = Signal(s.carried), Signal(s.derived, reset_less=True)
        m.submodules.turns = turns = Turns(config=c)
        init1, scan1, scrub1 = (
            a1.kind == kind for kind in (ScoreEvent.INIT, ScoreEvent.SCAN, ScoreEvent.SCRUB)
        )
        # A page beyond its queue's newest counts as the newest: a distance is one of the session's
        # pages.
        behind, late = Signal(c.page_bits + 1), Signal()
        # In a value a frequency fades faster than it is learnt. Critical path: what `late` adds
        # carries no further than the table goes.
        short = FOLDED.bit_length() - FADE_SHIFT
        idles, faded = Signal(short + 1), Signal()
        m.d.comb += [
            idles.eq(a1.idle[:short] + late),
            faded.eq(a1.idle[short:].any() | idles[short]),
            *(carried1[name].eq(a1[name]) for name, _ in s.carried),
            *(getattr(turns, name).eq(a1[name]) for name in ("session", "squeue", "page", "step")),
            turns.accessed.eq(a1_valid & kelp & (touch | init1)),
            turns.forgets.eq(a1_valid & scrub1),
            behind.eq(newest1 - a1.page),
        ]
        m.d.sync += [
            derived2.gain.eq(Mux(a1.kind == ScoreEvent.MASS, setting.mass_shift, 0)),
            # A SCAN's score must come back as it was when it is written at all.
            derived2.alpha.eq(Mux(scan1, 0, setting.alpha)),
            derived2.kelp.eq(kelp | scrub1),  # the profile's: a queue may have been `kelp` before
            derived2.finished.eq(turns.finished),
            derived2.distance.eq(
                Mux(init1 | scrub1, a1.page, Mux(behind[c.page_bits], 0, behind[: c.page_bits]))
            ),
            derived2.idle.eq(
                Mux(
                    scan1,
                    Mux(faded, FOLDED, idles << FADE_SHIFT),
                    Mux(a1.idle >= FOLDED, FOLDED, a1.idle),
                )
            ),
        ]
        m.submodules.exp2 = exp2 = Exp2(bias=IDLE_BIAS)
        m.submodules.age = age = Age()
        waiting = Signal(Exp2.LATENCY)
        m.d.comb += [
            # Where its turn has passed without an access, this step counts as idle.
            late.eq(scan1 & turns.over & ~a1.same),
            age.idle.eq(a1.idle),
            age.same.eq(a1.same),
            age.over.eq(turns.over),
            exp2.steps.eq(a1.idle),
            exp2.mantissa.eq(setting.idle_m),
            exp2.shift.eq(setting.idle_sh),
            s.drops.eq(a1_valid & ~counts),
        ]
        m.d.sync += waiting.eq(Cat(a1_valid & counts, waiting))
        s.counts, s.carried1, s.derived2 = counts, carried1, derived2
        s.exp2, s.age, s.waiting = exp2, age, waiting

    def _placed(self, m: Module, s: _State) -> None:
        """The places between a1 and b0: an event goes into its own in two parts, a cycle later what
        has been worked out from memories; age and factor follow when they are
        known."""
        exp2, takes, a1_valid, counts = s.exp2, s.takes, s.a1_valid, s.counts
        # The events in their places, and the factors of those whose b0 is not free.
        word, protect = self.words["places"], self.config.protect
        carried = word.code_bits if protect else s.carried
        m.submodules.places = places = memory.Memory(shape=carried, depth=self.PLACES, init=())
        m.submodules.rests = rests = memory.Memory(shape=s.derived, depth=self.PLACES, init=())
        m.submodules.ages = ages = memory.Memory(shape=AGE_BITS, depth=self.PLACES, init=())
        m.submodules.factors = known = memory.Memory(shape=SCORE_BITS, depth=self.PLACES, init=())
        put, get, know, more = (
            Signal(range(self.PLACES)),
            Signal(range(self.PLACES)),
            Signal(range(self.PLACES)),
            Signal(range(self.PLACES + 1)),
        )
        rest_at, rest_valid, age_at = Signal.like(put), Signal(), Signal.like(put)
        (
            (put_event, get_event),
            (put_rest, get_rest),
            (put_age, get_age),
            (put_factor, get_factor),
        ) = (
            (rows.write_port(), rows.read_port(domain="comb"))
            for rows in (places, rests, ages, known)
        )
        computed, halving = Signal(), Signal(SCORE_BITS)
        m.d.comb += [
            computed.eq(s.waiting[-1]),
            halving.eq(Mux(exp2.halving[SCORE_BITS], 65535, exp2.halving)),
            put_event.en.eq(a1_valid),
            put_event.addr.eq(put),
            put_event.data.eq(word.encode(m, s.carried1) if protect else s.carried1),
            get_event.addr.eq(get),
            put_rest.en.eq(rest_valid),
            put_rest.addr.eq(rest_at),
            put_rest.data.eq(s.derived2),
            get_rest.addr.eq(get),
            put_age.en.eq(s.waiting[Age.LATENCY - 1]),
            put_age.addr.eq(age_at),
            put_age.data.eq(s.age.o),
            get_age.addr.eq(get),
            put_factor.en.eq(computed),
            put_factor.addr.eq(know),
            put_factor.data.eq(halving),
            get_factor.addr.eq(get),
        ]
        m.d.sync += [
            put.eq(put + (a1_valid & counts)),
            rest_at.eq(put),
            rest_valid.eq(a1_valid),
            age_at.eq(age_at + put_age.en),
            know.eq(know + computed),
            get.eq(get + takes),
            more.eq((more + computed - takes)[: len(more)]),
            Assert(s.inside <= self.PLACES),
        ]
        s.more, s.computed, s.halving = more, computed, halving
        s.got, s.rest, s.got_age, s.got_factor = (
            port.data for port in (get_event, get_rest, get_age, get_factor)
        )
        if protect:
            row, single, double = word.decode(m, get_event.data)
            s.got, s.got_fault = Signal(s.carried), Fault(Cat(single.any(), double.any()))
            m.d.comb += s.got.eq(row)

    def _admitted(self, m: Module, s: _State) -> None:
        """b0: the factor is known; the score may be read when no older event is going to write
        it."""
        more, computed, step = s.more, s.computed, s.step
        b0, b0_valid, held, next_ = Signal(step, reset_less=True), Signal(), Signal(), Signal(step)
        factor = Signal(SCORE_BITS, reset_less=True)
        got, rest = s.got, s.rest
        m.d.comb += [
            next_.event.eq(got),
            *(next_[name].eq(rest[name]) for name, _ in s.derived),
            next_.fold.eq((got.kind == ScoreEvent.TOUCH) & (rest.idle != 0)),
            next_.x.eq(
                Mux(
                    got.kind == ScoreEvent.SCAN,
                    s.got_age,
                    Mux(got.kind == ScoreEvent.MASS, got.argument, 65535),
                )
            ),
            s.takes.eq(~held & ((more != 0) | computed)),
        ]
        with m.If(~held):
            m.d.sync += [
                b0.eq(next_),
                b0_valid.eq((more != 0) | computed),
                factor.eq(Mux(more != 0, s.got_factor, s.halving)),
            ]
        s.b0, s.b0_valid, s.held, s.next, s.factor = b0, b0_valid, held, next_, factor

    def _read(self, m: Module, s: _State) -> None:
        """b1 … b9 move in every cycle; the score and its profile are read."""
        c, b0, b0_valid, held, next_ = self.config, s.b0, s.b0_valid, s.held, s.next
        m.submodules.scores = scores = SplitSram(depth=c.page_words, shape=self.secded.code_bits)
        back = [
            Signal(s.step, name=f"b{k}", reset_less=True) for k in range(1, len(SCORE_BACK) + 1)
        ]
        back_valid = Signal(len(back))
        m.submodules.profile = profile = Profile(config=c)
        # The write of the last stage is seen by a read of the same cycle; a page of any older stage
        # is waited for. SCANs do not write (but to correct). Bit k: what stands in b0 waits for
        # stage k + 1. Compared before it comes to b0, with what will have moved on a stage by then;
        # while it waits, the others move on.
        clash, counted = Signal(len(back) - 1), Signal(Profile.BUSY)
        m.d.sync += [clash.eq(clash << 1), counted.eq(counted << 1)]
        with m.If(~held):
            for bits, same in (
                (clash, lambda b: _address(b.event) == _address(next_.event)),
                (
                    counted,
                    lambda b: (
                        b.kelp
                        & (b.event.squeue == next_.event.squeue)
                        & (b.distance == next_.distance)
                    ),
                ),
            ):
                before = zip((b0_valid, *back_valid), (b0, *back), strict=True)
                m.d.sync += bits.eq(
                    Cat(
                        valid & (b.event.kind != ScoreEvent.SCAN) & same(b)
                        for _, (valid, b) in zip(bits, before, strict=False)
                    )
                )
        m.d.comb += [
            held.eq(b0_valid & (clash.any() | counted.any())),
            self.cleared.eq(profile.ready),
            profile.valid.eq(b0_valid & ~held & b0.kelp),
            profile.squeue.eq(b0.event.squeue),
            profile.distance.eq(b0.distance),
            profile.epoch.eq(
                Mux(b0.event.kind == ScoreEvent.SCRUB, 0, b0.event.step[EPOCH_SHIFT:])
            ),
            profile.counts.eq(b0.event.kind == ScoreEvent.TOUCH),
            profile.clears.eq(
                (b0.event.kind == ScoreEvent.INIT) | (b0.event.kind == ScoreEvent.SCRUB)
            ),
            scores.read_en.eq(1),
            scores.read_address.eq(_address(b0.event)),
        ]
        m.d.sync += [back[0].eq(b0), back_valid.eq(Cat(b0_valid & ~held, back_valid))]
        m.d.sync += [back[k].eq(back[k - 1]) for k in range(1, len(back))]
        s.back, s.back_valid, s.scores, s.profile = back, back_valid, scores, profile

    def _gained(self, m: Module, s: _State) -> None:
        """b2 … b4: x << gain in two steps, then saturated; x itself is not needed before b5."""
        b1, b2, b3, b4, *_ = s.back
        low, high = Signal(SCORE_BITS + 3), Signal(SCORE_BITS + 12)
        m.d.comb += [low.eq(b1.x << b1.gain[:2]), high.eq(b2.x << (b2.gain[2:] << 2))]
        m.d.sync += [
            b2.x.eq(low),
            b2.over.eq(low[SCORE_BITS:].any()),
            b3.x.eq(high),
            b3.over.eq(b2.over | high[SCORE_BITS:].any()),
            b4.x.eq(Mux(b3.over, 65535, b3.x)),
        ]

    def _corrected(self, m: Module, s: _State) -> None:
        """b2: the code word; b3: its syndrome; b4: the score, corrected."""
        code, scores, b3, back_valid = self.secded, s.scores, s.back[2], s.back_valid
        raw2, raw3, syndrome3 = (
            scores.read_data,
            Signal(code.code_bits, reset_less=True),
            Signal(code.check_bits, reset_less=True),
        )
        factors = [s.factor] + [
            Signal(SCORE_BITS, name=f"factor{k}", reset_less=True) for k in range(1, 5)
        ]
        m.d.sync += [factors[k].eq(factors[k - 1]) for k in range(1, len(factors))]
        m.d.sync += [raw3.eq(raw2), syndrome3.eq(code.syndrome(raw2))]

        fixed, single, double = code.repair(raw3, syndrome3)
        fresh = (b3.event.kind == ScoreEvent.INIT) | (b3.event.kind == ScoreEvent.SCRUB)
        s4, single4, double4 = Signal(SCORE_BITS, reset_less=True), Signal(), Signal()
        m.d.sync += [
            s4.eq(Mux(fresh | double, 0, fixed)),
            single4.eq(back_valid[2] & single & ~fresh),
            double4.eq(back_valid[2] & double & ~fresh),
        ]
        s.factor4, s.s4, s.single4, s.double4 = factors[4], s4, single4, double4

    def _folded(self, m: Module, s: _State) -> None:
        """b5: the score times its factor; b6 … b8: the EMA step."""
        b5, s4 = s.back[4], s.s4
        product = Signal(2 * SCORE_BITS, reset_less=True)
        s5 = Signal(SCORE_BITS, reset_less=True)
        m.d.sync += [product.eq(s4[:SCORE_BITS] * s.factor4), s5.eq(s4)]

        m.submodules.ema = ema = EmaStep()
        m.d.comb += [
            ema.s.eq(Mux(b5.fold, product[SCORE_BITS:], s5)),
            ema.x.eq(b5.x),
            ema.a.eq(b5.alpha),
        ]
        s.s5, s.ema = s5, ema

    def _scanned(self, m: Module, s: _State) -> None:
        """b8: a frequency that was touched, as policy `kelp` has it, and a SCAN's word as it was; a
        SCAN's answer, score or value, leaves."""
        b2, b8, profile, back_valid = s.back[1], s.back[7], s.profile, s.back_valid
        m.submodules.frequency = frequency = Frequency()
        s6, s7, s8 = (Signal(SCORE_BITS, name=f"s{k}", reset_less=True) for k in (6, 7, 8))
        entries = [
            Signal(PROFILE_BITS + EPOCH_BITS, name=f"entry{k}", reset_less=True)
            for k in range(5, 10)
        ]
        count4, read8 = Signal(PROFILE_BITS, reset_less=True), Signal(reset_less=True)
        m.d.comb += [
            frequency.idle.eq(b2.idle),
            frequency.word.eq(s.s4),
            frequency.count.eq(count4),
        ]
        m.d.sync += [
            s6.eq(s.s5),
            s7.eq(s6),
            s8.eq(s7),
            count4.eq(profile.count),
            # A page that was written and not read since is in use until the step ends.
            read8.eq(s7[:FREQUENCY_BITS].any()),
            entries[0].eq(profile.entry),
            *(after.eq(before) for before, after in zip(entries, entries[1:], strict=False)),
        ]
        info = Signal(s.found)
        m.d.comb += [
            info.eq(b8.event.argument),
            self.o_scan.p.page.eq(b8.event.page),
            self.o_scan.p.slot.eq(b8.event.slot),
            self.o_scan.p.eligible.eq(info.eligible),
            self.o_scan.p.last_step.eq(info.last_step),
            self.o_scan.p.score.eq(Mux(b8.kelp, frequency.often + b8.x[:AGE_BITS], s8)),
            self.o_scan.p.finished.eq(b8.finished & read8),
            self.o_scan.valid.eq(back_valid[7] & (b8.event.kind == ScoreEvent.SCAN)),
        ]
        s.frequency, s.s8, s.entry9 = frequency, s8, entries[-1]

    def _written(self, m: Module, s: _State) -> None:
        """b9: encoded, written, committed."""
        code, scores, back_valid = self.secded, s.scores, s.back_valid
        b8, b9 = s.back[7], s.back[8]
        word9, score9 = (
            Signal(code.code_bits, reset_less=True),
            Signal(SCORE_BITS, reset_less=True),
        )
        score8 = Signal(SCORE_BITS)
        errors = Signal(2 * (len(s.back) - 4))
        # INIT finds 0, and to be written is not to be read.
        m.d.comb += score8.eq(
            Mux(b8.kelp, Mux(b8.event.kind == ScoreEvent.TOUCH, s.frequency.touched, s.s8), s.ema.o)
        )
        m.d.sync += [
            word9.eq(code.encode(score8)),
            score9.eq(score8),
            errors.eq(Cat(s.single4, s.double4, errors)),
        ]
        single9, double9 = errors[-2], errors[-1]
        write9 = Signal()
        m.d.sync += write9.eq(
            back_valid[7]
            & (b8.event.kind != ScoreEvent.SCRUB)
            & ((b8.event.kind != ScoreEvent.SCAN) | errors[-4] | errors[-3])
        )
        m.d.comb += [
            scores.write_en.eq(write9),
            scores.write_address.eq(_address(b9.event)),
            scores.write_data.eq(word9),
            *(self.o_commit.p[name].eq(b9.event[name]) for name in ("kind", "squeue", "page")),
            self.o_commit.p.score.eq(score9),
            self.o_commit.p.profile.eq(Mux(b9.kelp, s.entry9, 0)),
            self.o_commit.valid.eq(back_valid[8] & (b9.event.kind != ScoreEvent.SCRUB)),
            self.corrected.eq(single9),
            self.uncorrected.eq(double9),
        ]

    def _packed(self, m, event, found):
        """What of an event at `i` goes through the pipeline, as `event` has it."""
        pushed, scanned = Signal(event), Signal(found)
        m.d.comb += [
            scanned.last_step.eq(self.i.p.scan.last_step),
            scanned.eligible.eq(
                (self.i.p.scan.state == PageState.RESIDENT) & ~is_pinned(self.i.p.scan)
            ),
            *(
                pushed[name].eq(self.i.p[name])
                for name in ("kind", "session", "squeue", "page", "slot", "step")
            ),
            pushed.idle.eq(Mux(pushed.same, 0, self.i.p.gap - 1)),
            pushed.same.eq(self.i.p.gap == 0),
            pushed.argument.eq(Mux(self.i.p.kind == ScoreEvent.MASS, self.i.p.mass, scanned)),
        ]
        return pushed

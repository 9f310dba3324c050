# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The walks of TableScores over a queue's pages: which is next, and what a turn and a guess make of
each page."""

from __future__ import annotations

from amaranth.hdl import Assert, Cat, Mux, Signal
from amaranth.lib import data, fifo, memory

from kelp_spec import policy2 as p
from kelp_spec.metadata import STEP_BITS

from ..lib.power_of_two import power_of_two
from ..lib.sram import Sram
from .table_values import (
    COUNT_BITS,
    ENTRY,
    FACTOR_BITS,
    MARK,
    NO_SIDES,
    PAGE,
    SIDES,
    VALUE_BITS,
    GuessedValue,
    PageFrequencies,
    later,
    side,
    times,
)

__all__ = ["guess", "sequence", "turn"]

_FOLDS = [fast | slow << FACTOR_BITS for fast, slow in zip(p.FAST_FOLD, p.SLOW_FOLD, strict=True)]


def sequence(block, m, s):
    """A walk after another: what one needs of its queue is read or, of a new one, written first;
    then each page enters it; then it is waited for."""
    c, learning, shadow = block.config, s.learning, s.shadow
    m.submodules.steps = steps = Sram(depth=c.squeues, shape=STEP_BITS)
    s.idle_steps, s.fades, s.last_turn = Signal(8), Signal(), Signal(8)
    s.credit = Signal(range(p.CREDIT_MOST + 1))
    s.room, s.ended = Signal(), Signal()  #: for a page to be fetched; a guess's end is to be told
    s.is_turn, guesses = Signal(), Signal()
    m.d.comb += [
        guesses.eq(block.i_guess.valid & ~s.ended),
        steps.read_en.eq(1),
        steps.read_address.eq(s.squeue),
        steps.write_address.eq(s.squeue),
        steps.write_data.eq(s.step),
        learning.starts.eq(s.starts),
        learning.row.eq(s.row[: ENTRY.size]),
        shadow.session.eq(s.session),
        shadow.step.eq(s.step),
        shadow.passed.eq(s.idle_steps),
        shadow.last_turn.eq(s.last_turn),
    ]
    s.prepared, s.halted = Signal(2), Signal()
    with m.FSM() as fsm:
        with m.State("IDLE"):
            m.d.sync += [s.row.eq(0), s.page.eq(0), s.prepared.eq(0), s.halted.eq(0)]
            with m.If(s.waits[0]):
                m.d.sync += s.squeue.eq(block.i_read.p.squeue)
                m.next = "START"
            with m.Elif(s.waits[1]):
                m.d.sync += s.squeue.eq(block.i_mass.p.squeue)
                m.next = "START"
            # After a turn a guess goes first, and after a guess a turn.
            with m.Elif(block.i_turn.valid & ~(s.is_turn & guesses)):
                m.d.sync += [s.squeue.eq(block.i_turn.p.squeue), s.is_turn.eq(1)]
                m.next = "ACCEPT"
            with m.Elif(guesses):
                m.d.sync += [s.squeue.eq(block.i_guess.p.squeue), s.is_turn.eq(0)]
                m.next = "ACCEPT"
        with m.State("START"):
            m.d.comb += s.starts.eq(1)
            m.d.sync += s.row.eq(s.row + 1)
            with m.If(s.row == block.rows - 1):
                m.d.sync += s.fresh.bit_select(s.squeue, 1).eq(0)
                m.next = "IDLE"
        _accept(block, m, s)
        _pages(m, s, steps)
    m.d.comb += block.idle.eq(
        fsm.ongoing("IDLE")
        & ~Cat(
            block.i_open.valid,
            block.i_read.valid,
            block.i_mass.valid,
            block.i_turn.valid,
            block.i_guess.valid,
            block.o_early.valid,
        ).any()
    )
    m.d.sync += [
        Assert(~s.issues | (s.page + s.distance == s.newest), "a distance is not the page's"),
        Assert(~(s.turns & s.guesses), "two walks at once"),
    ]


def _accept(block, m, s):
    """The walk that was chosen is taken from its stream, unless its queue is new."""
    turned, guessed = block.i_turn.p, block.i_guess.p
    credit = block.credit[guessed.session]
    with m.State("ACCEPT"):
        # A session is opened before its turn, or after its turn has begun.
        with m.If(block.i_open.valid):
            m.next = "ACCEPT"
        with m.Elif(s.fresh.bit_select(s.squeue, 1)):
            m.next = "START"
        with m.Elif(s.is_turn):
            m.d.comb += block.i_turn.ready.eq(1)
            m.d.sync += [
                s.session.eq(turned.session),
                s.newest.eq(turned.newest),
                s.distance.eq(turned.newest),
                s.step.eq(turned.step),
                s.turns.eq(1),
                Assert(block.i_turn.valid & (turned.squeue == s.squeue), "a turn is taken back"),
            ]
            m.next = "STEP"
        with m.Else():
            m.d.comb += block.i_guess.ready.eq(1)
            m.d.sync += [
                s.session.eq(guessed.session),
                s.newest.eq(guessed.newest),
                s.distance.eq(guessed.newest),
                s.credit.eq(Mux(credit < 0, 0, credit)),
                s.guesses.eq(1),
                Assert(block.i_guess.valid & (guessed.squeue == s.squeue), "a guess is taken back"),
            ]
            m.next = "PREPARE"


def _pages(m, s, steps):
    """The walk accepted: what it needs, each page, its end."""
    shadow, passed = s.shadow, (s.step - steps.read_data)[:STEP_BITS]
    low = power_of_two("PROFILE_STEPS", p.PROFILE_STEPS).bit_length() - 1
    with m.State("STEP"):
        m.d.sync += [
            s.idle_steps.eq(Mux(passed > p.FOLDED, p.FOLDED, passed)),
            s.fades.eq(s.step[low:] != steps.read_data[low:]),
            s.last_turn.eq(steps.read_data[:8]),
        ]
        m.d.comb += shadow.begins.eq(1)
        m.next = "PREPARE"
    with m.State("PREPARE"):
        # Until factors, or a guess's threshold, have come.
        m.d.sync += s.prepared.eq(s.prepared + ~s.prepared.all())
        with m.If(s.prepared.all() & (s.guesses | shadow.ready)):
            m.next = "WALK"
    with m.State("WALK"):
        m.d.comb += s.issues.eq(~s.halted & s.room)
        m.d.sync += s.halted.eq(s.turns & s.issues)
        with m.If(s.issues):
            m.d.sync += [s.page.eq(s.page + 1), s.distance.eq(s.distance - 1)]
            with m.If(s.page == s.newest):
                m.next = "DRAIN"
    with m.State("DRAIN"):
        with m.If(~s.busy):
            with m.If(s.turns):
                m.d.comb += [shadow.ends.eq(1), steps.write_en.eq(1)]
                m.next = "SHADOW"
            with m.Else():
                m.d.sync += [s.guesses.eq(0), s.ended.eq(1)]
                m.next = "IDLE"
    with m.State("SHADOW"):
        with m.If(shadow.idle):
            m.d.sync += s.turns.eq(0)
            m.next = "IDLE"


def _folds(m, s):
    """What the idle steps leave of frequencies, 2 cycles after they are known."""
    m.submodules.folds = folds = memory.Memory(
        shape=2 * FACTOR_BITS, depth=len(_FOLDS), init=_FOLDS
    )
    port = folds.read_port()
    s.fast_factor, s.slow_factor = Signal(FACTOR_BITS), Signal(FACTOR_BITS)
    m.d.comb += port.addr.eq(s.idle_steps)
    m.d.sync += Cat(s.fast_factor, s.slow_factor).eq(port.data)


def turn(block, m, s):
    """1: rows are read; 2: folded, and the shadow asked; 6: what it is now, its tables learn;
    11: how likely it is wanted next."""
    _folds(m, s)
    page2, count2 = Signal(PAGE, reset_less=True), Signal(COUNT_BITS, reset_less=True)
    read2 = Signal(reset_less=True)
    m.d.sync += [
        page2.eq(s.pages.read_data),
        count2.eq(s.counts.read_data),
        read2.eq(s.reads.read_data),
    ]
    m.submodules.frequencies = now = PageFrequencies()
    m.d.comb += [
        now.fast.eq(page2.fast),
        now.slow.eq(page2.slow),
        now.count.eq(count2),
        now.fast_factor.eq(s.fast_factor),
        now.slow_factor.eq(s.slow_factor),
        now.fades.eq(s.fades),
        now.read.eq(read2),
        s.shadow.i.valid.eq(s.turned[2]),
        s.shadow.i.p.cohort.eq(page2.cohort),
        s.shadow.i.p.first.eq(~page2.met),
        s.shadow.i.p.read.eq(read2),
    ]
    cohort6 = later(m, s.shadow.kept, 2, "kept")[2]
    before6 = later(m, page2.before, 4, "before")[4]
    met6, read6 = later(m, page2.met, 4, "met")[4], later(m, read2, 4, "read")[4]
    sides2 = Signal(SIDES, reset_less=True)
    m.d.sync += sides2.eq(s.sides.read_data)
    s.turn_sides = later(m, sides2, 4, "sides")[4]
    learning, guessed6 = s.learning, Signal()
    m.d.comb += [
        guessed6.eq(s.turn_sides != NO_SIDES),
        learning.i.valid.eq(s.turned[6]),
        learning.i.p.entry.eq(now.entry),
        learning.i.p.before.eq(before6),
        learning.i.p.read.eq(read6),
        learning.i.p.teaches_v.eq(met6 & ~s.last[6]),
        learning.i.p.teaches_t.eq(guessed6 & ~s.last[6]),
        s.new_page.fast.eq(now.new_fast),
        s.new_page.slow.eq(now.new_slow),
        s.new_page.before.eq(now.entry),
        s.new_page.met.eq(1),
        s.new_page.cohort.eq(cohort6),
        s.new_count.eq(now.new_count),
        s.post.eq(learning.post),
    ]


def guess(block, m, s):
    """1: rows are read; 3: T's entry; 7: what T says; 10: what that is worth."""
    post2, mark2 = Signal(VALUE_BITS, reset_less=True), Signal(MARK, reset_less=True)
    m.d.sync += [post2.eq(s.posts.read_data), mark2.eq(s.masses.read_data)]
    sides3 = Signal(SIDES, reset_less=True)
    m.d.sync += [sides3.mass.eq(mark2.mass), sides3.value.eq(side(m, post2, "post_side"))]
    m.d.comb += [
        s.guess.eq(Mux(s.turns, NO_SIDES, sides3)),
        s.learning.sides.eq(Mux(s.turns, s.turn_sides, sides3)),
    ]
    likely = later(m, s.learning.likely, 3, "likely")
    m.submodules.guessed = guessed = GuessedValue()
    absent10 = later(m, mark2.absent, 8, "absent")[8]
    m.d.comb += [
        guessed.likely.eq(likely[0]),
        s.value.eq(guessed.value),
    ]
    less, least = Signal(VALUE_BITS - 1), Signal(VALUE_BITS - 1)
    cost_bits = power_of_two("COST", p.COST).bit_length() - 1
    m.d.sync += [
        less.eq(times(s.credit, p.THRESHOLD_CREDIT) >> cost_bits),
        least.eq(p.THRESHOLD - less),
    ]
    # That a guess has ended is no item of the FIFO: a flipped bit must not lose it.
    found = data.StructLayout({"page": len(s.page), "likely": VALUE_BITS})
    m.submodules.early = early = fifo.SyncFIFO(width=found.size, depth=block.EARLY_DEPTH)
    o, item = block.o_early, found(early.r_data)
    m.d.comb += [
        early.w_data.eq(Cat(s.at[10], likely[3])),
        early.w_en.eq(s.guessed[10] & absent10 & ~s.last[10] & (likely[3] > least)),
        o.valid.eq(early.r_rdy | s.ended),
        *(o.p[name].eq(item[name]) for name, _ in found),
        o.p.none.eq(~early.r_rdy),
        early.r_en.eq(o.ready),
        # What is on its way has a place.
        s.room.eq(s.turns | (early.level < block.EARLY_DEPTH - 11)),
    ]
    with m.If(o.valid & o.ready & o.p.none):
        m.d.sync += s.ended.eq(0)
    m.d.sync += Assert(~early.w_en | early.w_rdy, "a page to be fetched has no place")

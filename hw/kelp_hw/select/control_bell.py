# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""States of SelectControl in which a doorbell is checked, and its queries go to the engine."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Mux, Signal

from kelp_spec.metadata import Event
from kelp_spec.select import Refusal

from ..choice.block_form import unpack
from .control_slots import Then

__all__ = ["check", "query", "turn"]


def check(control, m, s):
    """The doorbell's fields, and whether a token's lines divide a page's, which is found out while
    queries are loaded."""
    c, p, bell, held = control.config, control.parts, s.bell, s.held
    # The page's lines over the token's, a bit of the quotient in each cycle.
    left, steps = Signal.like(s.used_lines), Signal(range(len(s.used_lines) + 1))
    rest, shifted = Signal(range(c.select_lines)), Signal(range(2 * c.select_lines + 1))
    newest_lines = Signal(bell.tokens.shape().width + 6)
    s.newest_lines, broken = Signal(c.half_line_bits + 1), Signal()
    s.used_tokens = Signal(c.half_line_bits + 1)
    m.d.sync += newest_lines.eq(bell.tokens * bell.lines[:6])
    m.d.comb += [
        s.newest_lines.eq(newest_lines),
        shifted.eq(Cat(left[-1], rest)),
    ]
    s.nan = Signal()  # a query has one
    s.unplanned = Signal()  # a line of the plan is none
    with m.If(steps != len(left)):
        m.d.sync += [
            rest.eq(Mux(shifted >= bell.lines, shifted - bell.lines, shifted)),
            s.used_tokens.eq(Cat(shifted >= bell.lines, s.used_tokens)),
            left.eq(left << 1),
            steps.eq(steps + 1),
        ]
    yield
    with m.State("BELL"):
        m.d.sync += [bell.eq(p.window.bell), broken.eq(p.window.broken)]
        if c.select_estimates:
            m.d.sync += s.taken.eq(s.wait.taken)
        m.d.sync += [left.eq(held.used_lines), steps.eq(0), rest.eq(0)]
        m.d.sync += [s.used_lines.eq(held.used_lines), s.host_type.eq(held.host_type)]
        m.d.sync += s.queue.eq(p.window.bell.queue)
        m.d.comb += s.begins.eq(1)
        m.next = "CHECK"
    with m.State("CHECK"):
        m.next = "REFUSE"
        with m.If(broken):
            m.d.sync += s.refusal.eq(Refusal.BELL)
        with m.Elif(bell.release):
            m.d.sync += [
                s.queue.eq(s.own_low),
                s.last_queue.eq(s.own_high),
                s.all.eq(1),
                s.then.eq(Then.TELL),
            ]
            m.next = "CHECK"
            with m.If(s.alone):
                m.next = "TELL"
                with m.If(s.own):
                    m.d.sync += s.walks.eq(1)
                    m.next = "GIVE_BACK"
        with m.Elif(bell.queue >= held.used_queues):
            m.d.sync += s.refusal.eq(Refusal.QUEUE)
        with m.Elif(bell.newest >= held.used_pages):
            m.d.sync += s.refusal.eq(Refusal.PAGE)
        with m.Elif(
            (bell.lines == 0) | (bell.lines > c.select_lines) | (bell.lines & bell.lines - 1).any()
        ):
            m.d.sync += s.refusal.eq(Refusal.LINES)
        with m.Else():
            m.next = "QUERY"
    with m.State("CHECKED"):
        m.d.comb += s.scans.eq(1)
        m.next = "REFUSE"
        with m.If(steps != len(left)):
            m.next = "CHECKED"
        with m.Elif(rest != 0):
            m.d.sync += s.refusal.eq(Refusal.LINES)
        with m.Elif((newest_lines == 0) | (newest_lines > s.used_lines)):
            m.d.sync += s.refusal.eq(Refusal.TOKENS)
        with m.Elif(bell.most > c.select - 2):
            m.d.sync += s.refusal.eq(Refusal.COUNT)
        with m.Elif(s.nan):
            m.d.sync += s.refusal.eq(Refusal.QUERY_NAN)
        with m.Elif(s.unplanned):
            m.d.sync += s.refusal.eq(Refusal.PLAN)
        with m.Else():
            m.next = "TURN"
            if not c.select_estimates:
                with m.If(bell.speculative):
                    m.next = "SUMMARISE"
    with m.State("REFUSE"):
        m.d.comb += [
            control.o_event.valid.eq(~s.ended(s.session)),
            control.o_event.p.code.eq(Event.SELECT_REFUSED),
            control.o_event.p.ld_id.eq(held.ld_id),
            control.o_event.p.squeue.eq(
                # One beyond the session's would be another session's.
                Mux(bell.queue < held.used_queues, s.squeue, s.session * c.queues)
            ),
            control.o_event.p.page.eq(bell.newest),
            control.o_event.p.argument.eq(s.refusal),
        ]
        m.next = "TELL"
    with m.State("TELL"):
        # Its answer comes behind those of the SELECTs before it.
        m.d.comb += s.tells.eq(s.alone)
        with m.If(s.told):
            m.d.sync += s.block.eq(s.block + 1)
            m.next = "SCAN"


def query(control, m, s):
    """The group's queries and its plan, line by line, into the engine."""
    c, p, bell = control.config, control.parts, s.bell
    head, line, asked = (
        Signal(range(c.select_heads + 1)),
        Signal(range(c.select_lines)),
        Signal(),
    )
    sent = Signal()
    last_line = line == bell.lines - 1
    last = last_line & (head == c.select_heads - 1)
    got = p.reader.o_query
    got_last = (got.p.place.head == c.select_heads - 1) & (got.p.place.line == bell.lines - 1)
    stored = Signal(p.engine.layouts.stored_line)
    to = p.engine.i_query
    is_nan, taken = Signal(), Signal()
    next_line = Mux(last_line, 0, line + 1)
    next_head = Mux(last_line, head + 1, head)
    m.d.comb += [
        stored.payload.eq(got.p.payload),
        stored.scale.eq(got.p.scale),
        p.window.i_look.valid.eq(~asked | taken),
        p.window.i_look.p.eq(
            Mux(taken, next_head, head) * c.select_lines + Mux(taken, next_line, line)
        ),
        p.reader.i_query.p.data.eq(p.window.query),
        p.reader.i_query.p.place.head.eq(head),
        p.reader.i_query.p.place.line.eq(line),
        got.ready.eq(1),
        to.valid.eq(got.valid),
        to.p.head.eq(got.p.place.head),
        to.p.line.eq(got.p.place.line),
    ]
    #: lines of the plan come from now on
    s.plans, plan = Signal(), p.engine.i_plan
    m.d.comb += [
        plan.valid.eq(s.plans),
        plan.p.plan.eq(p.window.query),
        plan.p.line.eq(line),
        plan.p.last.eq(last_line),
    ]
    exponent = Signal.like(to.p.exponent)
    unpack(m, stored, to.p.element, exponent, is_nan)
    m.d.comb += to.p.exponent.eq(exponent)
    yield
    with m.State("QUERY"):
        # A row is there in the cycle after it is addressed: the next one's is, when one is taken.
        # It stays until then, also where its session ends meanwhile, or its owner writes it.
        m.d.sync += asked.eq(1)
        m.d.comb += [
            taken.eq(p.reader.i_query.valid & p.reader.i_query.ready),
            p.reader.i_query.valid.eq(asked & ~sent),
            p.window.query_used.eq(taken),
        ]
        m.d.comb += s.scans.eq(1)
        with m.If(~asked):
            m.d.sync += s.nan.eq(0)
        with m.If(taken):
            m.d.sync += [line.eq(next_line), head.eq(next_head)]
            with m.If(last):
                m.d.sync += sent.eq(1)
        with m.If(got.valid):
            m.d.sync += s.nan.eq(s.nan | is_nan)
            with m.If(got_last):
                m.d.sync += [sent.eq(0), s.unplanned.eq(0)]
                m.next = "PLAN"
    with m.State("PLAN"):
        # The plan is one head more, and `head` has come to it; its first row is there by now.
        m.d.comb += [s.scans.eq(1), s.plans.eq(1), taken.eq(1), p.window.query_used.eq(1)]
        m.d.sync += line.eq(next_line)
        with m.If(~plan.p.plan.planned | plan.p.plan.spare.any()):
            m.d.sync += s.unplanned.eq(1)
        with m.If(last_line):
            m.d.sync += [asked.eq(0), head.eq(0)]
            m.next = "CHECKED"


def turn(control, m, s):
    """A SELECT that is sound begins when those before it leave it its slots."""
    c, p, bell = control.config, control.parts, s.bell
    turned = Signal()
    m.d.sync += turned.eq(0)
    with m.If(turned):
        # Where the queue has slots, they are given back.
        record = p.gather.found_queue
        m.d.sync += s.generation.eq(record.generation + (record.count != 0))
    yield
    with m.State("TURN"):
        # A SELECT that is under way holds slots of its queue, and of its layer, when it is over,
        # and by then it has noted what it saw.
        m.d.comb += s.scans.eq(1)
        waits, guess = 0, bell.speculative if c.select_estimates else Const(0)
        under_way = [(p.engine.scores[b], p.engine.scored[b]) for b in range(2)]
        for busy, of in (*under_way, (p.engine.chooses, p.engine.chosen)):
            same = (of.block >> p.window.map.group_bits) == s.session
            other = (of.layer != bell.layer) & ~guess | (of.queue == bell.queue)
            waits |= busy & same & ~of.speculative & other
        with m.If(~waits & ~s.writes):
            others = s.own & (bell.layer != s.own_layer)
            m.d.comb += p.gather.read.eq(1)
            m.d.sync += [
                turned.eq(1),
                s.walks.eq(1),
                s.all.eq(others),
                s.queue.eq(Mux(others, s.own_low, bell.queue)),
                s.last_queue.eq(Mux(others, s.own_high, bell.queue)),
            ]
            m.next = "SUMMARISE"
            with m.If(guess):
                m.d.sync += [turned.eq(0), s.walks.eq(0)]

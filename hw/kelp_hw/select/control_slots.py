# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""States of SelectControl in which slots are given back, a queue after another."""

from __future__ import annotations

from amaranth.hdl import Cat, Mux, Signal
from amaranth.lib.enum import Enum

from kelp_spec.metadata import Op

__all__ = ["Then", "give_back"]


class Then(Enum):
    """What follows when slots are given back."""

    SCAN = 0
    ANSWER = 1
    SUMMARISE = 2


def give_back(control, m, s):
    """Slots of the queues from `queue` to `last_queue`."""
    c, p = control.config, control.parts
    gather = p.gather
    s.slot, s.page = Signal(range(c.select + 1)), Signal(c.page_bits)
    s.writes_slot, s.held_now = Signal(), Signal()
    record = gather.found_queue
    op = control.o_op.p
    unholds = Signal()
    m.d.comb += [
        gather.squeue.eq(Cat(s.queue, s.session)),
        gather.slot.eq(s.slot),
        gather.new_slot.page.eq(s.page),
        gather.new_slot.held.eq(s.held_now),
        gather.write_slot.eq(s.writes_slot),
        op.kind.eq(Mux(unholds, Op.UNHOLD, Op.HOLD)),
        op.session.eq(s.session),
        op.squeue.eq(s.session * c.queues + s.queue),
        op.page.eq(Mux(unholds, gather.found_slot.page, s.page)),
    ]
    yield
    with m.State("WALK"):
        m.d.comb += gather.read.eq(1)
        m.next = "SLOT"
    with m.State("SLOT"):
        more = s.slot < record.count
        m.d.comb += [
            unholds.eq(1),
            control.o_op.valid.eq(more & gather.found_slot.held),
            gather.new_queue.generation.eq(record.generation + 1),
        ]
        m.d.sync += s.generation.eq(record.generation)
        with m.If(more):
            with m.If(control.o_op.ready | ~gather.found_slot.held):
                m.d.sync += s.slot.eq(s.slot + 1)
                m.next = "WALK"
        with m.Else():
            m.d.sync += s.slot.eq(0)
            with m.If(record.count != 0):
                m.d.comb += gather.write_queue.eq(1)
                m.d.sync += s.generation.eq(record.generation + 1)
            with m.If(s.queue != s.last_queue):
                m.d.sync += s.queue.eq(s.queue + 1)
                m.next = "WALK"
            with m.Else():
                with m.If(s.all):
                    m.d.sync += s.live.eq(s.live & ~(1 << s.session))
                m.next = "ANSWER"
                with m.If(s.then == Then.SCAN):
                    m.next = "SCAN"
                with m.If(s.then == Then.SUMMARISE):
                    m.next = "SUMMARISE"
                    with m.If(s.all):
                        # The queue of the SELECT may not have been among them.
                        m.d.sync += [
                            s.all.eq(0),
                            s.queue.eq(s.bell.queue),
                            s.last_queue.eq(s.bell.queue),
                        ]
                        m.next = "WALK"

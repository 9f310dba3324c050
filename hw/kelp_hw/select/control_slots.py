# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""States of SelectControl in which slots are given back, a queue after another."""

from __future__ import annotations

from amaranth.hdl import Cat, Signal
from amaranth.lib.enum import Enum

from kelp_spec.metadata import Op

__all__ = ["Then", "give_back"]


class Then(Enum):
    """What follows when slots are given back."""

    SCAN = 0
    TELL = 1
    SUMMARISE = 2


def give_back(control, m, s):
    """Slots of the queues from `queue` to `last_queue`."""
    c, p = control.config, control.parts
    gather = p.gather
    slot, record, op = Signal(range(c.select + 1)), gather.found_queue, s.unhold.p
    #: the next slot is read while this one's op is taken
    goes_on = Signal()
    m.d.comb += [
        op.kind.eq(Op.UNHOLD),
        op.session.eq(s.session),
        op.squeue.eq(s.session * c.queues + s.queue),
        op.page.eq(gather.found_slot.page),
    ]
    # In a cycle in which the choice before writes its slots, they wait.
    with m.If(~s.writes):
        m.d.comb += [
            gather.squeue.eq(Cat(s.queue, s.session)),
            gather.slot.eq(slot + goes_on),
            gather.new_queue.generation.eq(record.generation + 1),
        ]
    yield
    with m.State("WALK"):
        with m.If(~s.writes):
            m.d.comb += gather.read.eq(1)
            m.next = "SLOT"
    with m.State("SLOT"):
        more = slot < record.count
        m.d.comb += s.unhold.valid.eq(more & gather.found_slot.held)
        m.d.sync += s.generation.eq(record.generation)
        with m.If(more):
            with m.If(s.unhold.ready | ~gather.found_slot.held):
                m.d.comb += [goes_on.eq(1), gather.read.eq(~s.writes & (slot + 1 < record.count))]
                m.d.sync += slot.eq(slot + 1)
                with m.If(s.writes):
                    m.next = "WALK"
        with m.Elif(~s.writes):
            m.d.sync += slot.eq(0)
            with m.If(record.count != 0):
                m.d.comb += gather.write_queue.eq(1)
                m.d.sync += s.generation.eq(record.generation + 1)
            with m.If(s.queue != s.last_queue):
                m.d.sync += s.queue.eq(s.queue + 1)
                m.next = "WALK"
            with m.Else():
                with m.If(s.all):
                    m.d.comb += s.dies.eq(1 << s.session)
                m.next = "TELL"
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

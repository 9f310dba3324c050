# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""SelectControl's slots given back, a queue after another, beside its own states."""

from __future__ import annotations

from amaranth.hdl import Cat, Signal
from amaranth.lib.enum import Enum

from kelp_spec.metadata import Op

__all__ = ["Then", "give_back"]


class Then(Enum):
    """What waits until slots are given back."""

    SCAN = 0
    TELL = 1


def give_back(control, m, s):
    """Slots of the queues from `queue` to `last_queue`, while `walks`; the SELECT that they are
    given back for is named meanwhile, and asks for no key."""
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
    with m.FSM(name="slots"):
        _states(m, s, gather, slot, goes_on)
    yield
    with m.State("GIVE_BACK"):
        with m.If(~s.walks):
            m.next = "TELL"
            with m.If(s.then == Then.SCAN):
                m.next = "SCAN"


def _states(m, s, gather, slot, goes_on):
    record = gather.found_queue
    with m.State("WALK"):
        with m.If(s.walks & ~s.writes):
            m.d.comb += gather.read.eq(1)
            m.next = "SLOT"
    with m.State("SLOT"):
        more = slot < record.count
        m.d.comb += s.unhold.valid.eq(more & gather.found_slot.held)
        with m.If(more):
            with m.If(s.unhold.ready | ~gather.found_slot.held):
                m.d.comb += [goes_on.eq(1), gather.read.eq(~s.writes & (slot + 1 < record.count))]
                m.d.sync += slot.eq(slot + 1)
                with m.If(s.writes):
                    m.next = "WALK"
        with m.Elif(~s.writes):
            m.d.sync += slot.eq(0)
            m.d.comb += gather.write_queue.eq(record.count != 0)
            m.next = "WALK"
            with m.If(s.queue != s.last_queue):
                m.d.sync += s.queue.eq(s.queue + 1)
            with m.Else():
                m.d.sync += s.walks.eq(0)
                m.d.comb += s.dies.eq(s.all << s.session)

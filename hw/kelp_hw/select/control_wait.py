# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""SELECTs that wait for pages that they want, beside SelectControl's states: each in its block, and
none in the way of others (docs/select.md, "Waiting")."""

from __future__ import annotations

from types import SimpleNamespace

from amaranth.hdl import Mux, Signal
from amaranth.lib import data

from kelp_spec.metadata import Op, Outcome, PageState
from kelp_spec.select import HOLD_MOST

__all__ = ["wait"]

_COUNT_BITS = 8  #: of pages that are settled, or are to be; more counts as the most
_TIME_BITS = HOLD_MOST + 2  #: of a time that is over after 2^HOLD_MOST cycles at most


#: What became of a queue's pages: how many are settled, which either landed or will not; whether
#: there is one of either kind.
_Settled = data.StructLayout({"count": _COUNT_BITS, "landed": 1, "dropped": 1})


class _Waits:
    """Of each block: whether its SELECT waits, and has waited; until when, for how many pages of
    which queue; what became of pages since it began to. `taken` counts the block's doorbells that
    were taken, of which no more are under way than it tells apart: a SELECT whose doorbell is not
    the last one waits no more."""

    def __init__(self, control):
        c, blocks = control.config, range(control.parts.window.blocks)
        self.waits, self.waited = Signal(len(blocks)), Signal(len(blocks))
        self.until = [Signal(_TIME_BITS, name=f"until_{b}") for b in blocks]
        self.left = [Signal(_COUNT_BITS, name=f"left_{b}") for b in blocks]
        self.queue = [Signal(c.queue_bits, name=f"queue_{b}") for b in blocks]
        self.settled = [Signal(_Settled, name=f"settled_{b}") for b in blocks]
        self.taken = [Signal(2, name=f"taken_{b}") for b in blocks]


def wait(control, m, s):
    """Says in `s.ripe` whether the doorbell at `s.block` may be served, in `s.wait.taken` which one
    of its block was taken last; of the SELECT that chooses, whether more is missing than it puts up
    with (`above`), and whether it waits (`begins`). Is told that a page is wanted (`wants`), and
    that it waits from now on (`parks`)."""
    window, engine = control.parts.window, control.parts.engine
    of = engine.chosen
    each = _Waits(control)
    w = s.wait
    time, settled = control.now[:_TIME_BITS], _settled(control, m)
    wanted, own_taken, own_waited = Signal(_COUNT_BITS), Signal(2), Signal()
    until, fruitless = Signal(_TIME_BITS), Signal()
    for b in range(window.blocks):
        with m.If(s.block == b):
            m.d.comb += [
                w.taken.eq(each.taken[b]),
                s.ripe.eq(~each.waits[b] | (each.left[b] == 0) | _over(time, each.until[b])),
            ]
        with m.If(of.block == b):
            m.d.comb += [
                own_taken.eq(each.taken[b]),
                own_waited.eq(each.waited[b]),
                until.eq(each.until[b]),
                fruitless.eq(each.settled[b].dropped & ~each.settled[b].landed),
            ]
    session = of.block >> window.map.group_bits
    later = ((window.pending | window.rung) >> of.block)[0]
    last = (of.taken == own_taken) & ~later & ~s.ended(session)
    m.d.comb += [
        w.above.eq(of.waits & ~of.speculative & (engine.o.p.missing > of.wait_above)),
        w.begins.eq(
            w.above & (wanted != 0) & last & ~(own_waited & (fruitless | _over(time, until)))
        ),
        window.again.eq(w.parks & last),
    ]
    with m.If(w.wants & ~wanted.all()):
        m.d.sync += wanted.eq(wanted + 1)
    with m.If(engine.o.valid & engine.o.ready & engine.o.p.none):
        m.d.sync += wanted.eq(0)
    since = settled.since
    for b in range(window.blocks):
        own, left = each.settled[b], each.left[b]
        now = settled.now(b >> window.map.group_bits, each.queue[b])
        with m.If(each.waits[b]):
            m.d.sync += [
                left.eq(Mux(left > now.count, left - now.count, 0)),
                own.landed.eq(own.landed | now.landed),
                own.dropped.eq(own.dropped | now.dropped),
            ]
        with m.If(window.again & (of.block == b)):
            m.d.sync += [
                each.waits[b].eq(1),
                each.waited[b].eq(1),
                each.queue[b].eq(of.queue),
                left.eq(Mux(wanted > since.count, wanted - since.count, 0)),
                own.landed.eq(since.landed),
                own.dropped.eq(since.dropped),
            ]
            with m.If(~own_waited):
                m.d.sync += each.until[b].eq(time + (1 << of.patience))
        with m.If(window.take & (s.block == b)):
            m.d.sync += [each.waits[b].eq(0), each.taken[b].eq(each.taken[b] + 1)]
        # When the session ends the block is no more pending; its next doorbell begins anew.
        with m.If(window.rung[b]):
            m.d.sync += [each.waits[b].eq(0), each.waited[b].eq(0)]


def _over(time, until):
    return (until - time - 1)[_TIME_BITS - 1]


def _settled(control, m):
    """Pages that a SELECT need not wait for any more: they landed, or their fetch came to nothing.
    `now(session, queue)`: in this cycle; `since`: of the queue of the SELECT that chooses since its
    keys were first asked for, this cycle's among them."""
    c, engine, result = control.config, control.parts.engine, control.i_result
    r, drops = result.p, (control.dropped.judged, control.dropped.crowded)
    lands = result.valid & (r.op.kind == Op.FLIP) & (r.outcome == Outcome.DONE)
    # Of a page that is being fetched, or has landed by now, that is told as well.
    there = (r.old.state == PageState.FETCHING) | (r.old.state == PageState.RESIDENT)
    refused = result.valid & (r.op.kind == Op.PREFETCH) & (r.outcome != Outcome.MISSED) & ~there

    def now(session, queue):
        squeue = session * c.queues + queue
        own = r.op.squeue == squeue
        dropped = [refused & own, *(drop.valid & (drop.p == squeue) for drop in drops)]
        # M3 says one thing in a cycle.
        count = ((lands | refused) & own) + sum(dropped[1:])
        return SimpleNamespace(count=count, landed=lands & own, dropped=sum(dropped) != 0)

    def more(before, context):
        found = Signal(_Settled)
        come = now(context.block >> control.parts.window.map.group_bits, context.queue)
        count, most = before.count + come.count, (1 << _COUNT_BITS) - 1
        m.d.comb += [
            found.count.eq(Mux(count > most, most, count)),
            found.landed.eq(before.landed | come.landed),
            found.dropped.eq(before.dropped | come.dropped),
        ]
        return found

    counts = [Signal(_Settled, name=f"settled_of_{b}") for b in range(2)]
    chosen = Signal(_Settled)
    since = more(chosen, engine.chosen)
    m.d.sync += chosen.eq(since)
    for b, count in enumerate(counts):
        grown = more(count, engine.scored[b])
        m.d.sync += count.eq(Mux(engine.scores[b], grown.as_value(), 0))
        with m.If(engine.leaves & (engine.left == b)):
            m.d.sync += chosen.eq(grown)
    return SimpleNamespace(now=now, since=since)

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""SELECTs that wait for pages that they want, beside SelectControl's states: each in its block, and
none in the way of others (docs/select.md)."""

from __future__ import annotations

from types import SimpleNamespace

from amaranth.hdl import Mux, Signal

from kelp_spec.metadata import Op, Outcome
from kelp_spec.select import HOLD_MOST

__all__ = ["wait"]

_COUNT_BITS = 8  #: of pages that have landed, or are to; more counts as the most
_TIME_BITS = HOLD_MOST + 2  #: of a time that is over after 2^HOLD_MOST cycles at most


class _Waits:
    """Of each block: whether its SELECT waits, and has waited; until when, for how many pages of
    which queue. `taken` counts the block's doorbells that were taken, of which no more are under
    way than it tells apart: a SELECT whose doorbell is not the last one waits no more."""

    def __init__(self, control):
        c, blocks = control.config, range(control.parts.window.blocks)
        self.waits, self.waited = Signal(len(blocks)), Signal(len(blocks))
        self.until = [Signal(_TIME_BITS, name=f"until_{b}") for b in blocks]
        self.left = [Signal(_COUNT_BITS, name=f"left_{b}") for b in blocks]
        self.queue = [Signal(c.queue_bits, name=f"queue_{b}") for b in blocks]
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
    time, landed = control.now[:_TIME_BITS], _landed(control, m)
    wanted, own_taken, own_waited = Signal(_COUNT_BITS), Signal(2), Signal()
    until = Signal(_TIME_BITS)
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
            ]
    session = of.block >> window.map.group_bits
    later = ((window.pending | window.rung) >> of.block)[0]
    last = (of.taken == own_taken) & ~later & ~s.ended(session)
    m.d.comb += [
        w.above.eq(of.waits & ~of.speculative & (engine.o.p.missing > of.wait_above)),
        w.begins.eq(w.above & (wanted != 0) & last & ~(own_waited & _over(time, until))),
        window.again.eq(w.parks & last),
    ]
    with m.If(w.wants & ~wanted.all()):
        m.d.sync += wanted.eq(wanted + 1)
    with m.If(engine.o.valid & engine.o.ready & engine.o.p.none):
        m.d.sync += wanted.eq(0)
    for b in range(window.blocks):
        with m.If(each.waits[b] & landed.of(b >> window.map.group_bits, each.queue[b])):
            m.d.sync += each.left[b].eq(Mux(each.left[b] == 0, 0, each.left[b] - 1))
        with m.If(window.again & (of.block == b)):
            m.d.sync += [
                each.waits[b].eq(1),
                each.waited[b].eq(1),
                each.queue[b].eq(of.queue),
                each.left[b].eq(Mux(wanted > landed.meanwhile, wanted - landed.meanwhile, 0)),
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


def _landed(control, m):
    """Pages that landed: whether one `of` a queue does now; how many of the queue of the SELECT
    that chooses did since its keys were first asked for, `meanwhile`."""
    c, engine, result = control.config, control.parts.engine, control.i_result
    lands = result.valid & (result.p.op.kind == Op.FLIP) & (result.p.outcome == Outcome.DONE)

    def of(session, queue):
        return lands & (result.p.op.squeue == session * c.queues + queue)

    def more(count, context):
        own = of(context.block >> control.parts.window.map.group_bits, context.queue)
        return Mux(own & ~count.all(), count + 1, count)

    counts = [Signal(_COUNT_BITS, name=f"landed_{b}") for b in range(2)]
    meanwhile = Signal(_COUNT_BITS)
    m.d.sync += meanwhile.eq(more(meanwhile, engine.chosen))
    for b, count in enumerate(counts):
        m.d.sync += count.eq(Mux(engine.scores[b], more(count, engine.scored[b]), 0))
        with m.If(engine.leaves & (engine.left == b)):
            m.d.sync += meanwhile.eq(more(count, engine.scored[b]))
    return SimpleNamespace(of=of, meanwhile=meanwhile)

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""SelectControl's look for pages without a summary, and the states in which these get one, a page
after another."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Signal

from kelp_spec.metadata import Op, Outcome

from ..choice.summary_build import SummaryBuild

__all__ = ["summarise"]


def summarise(control, m, s):
    """Summaries of the pages that have none, a page after another. They are looked for from when
    queries are loaded on, and made when slots are given back."""
    c, p, newest = control.config, control.parts, s.bell.newest
    m.submodules.build = build = SummaryBuild(
        lines=c.select_lines,
        rows=c.select_rows,
        id_bits=c.page_bits,
        # A code is made once and scored by every SELECT: where few are scored in a cycle, an
        # eighth as many are made.
        elements=min(c.codec_lanes, 4 * c.select_lanes),
    )
    store, keys, clear = p.store, p.reader.o, p.store.i_clear
    page, complete, touched = Signal(c.page_bits), Signal(), Signal()
    # Pages below `at` are judged, but for those of the row that is looked at, from `low` on.
    # The first page has one where it may be absent and count.
    begin = 0 if c.select_estimates else 1
    at, low, asked = Signal(c.page_bits + 1, init=begin), Signal(c.page_bits + 1), Signal()
    row = store.row_bits
    lacks, lacking = Signal(store.ROW), Signal(c.page_bits)
    #: a SELECT begins; pages are looked for; `page` has no summary
    s.begins, s.scans, found, looked = Signal(), Signal(), Signal(), control.i_result
    #: a LOOK of the page was decided, the last one; all so far found it there
    asks, last, there = Signal(), Signal(), Signal()
    #: the page's last line has gone to the store; it is there, too, or will be
    written, over = Signal(), Signal()
    m.d.comb += [
        asks.eq(s.building & looked.valid & (looked.p.op.kind == Op.LOOK)),
        s.build_ready.eq(build.i.ready),
        build.i_plan.valid.eq(s.plans),
        build.i_plan.p.eq(p.engine.i_plan.p),
        build.i.valid.eq(keys.valid & s.building),
        build.i.p.payload.eq(keys.p.payload),
        build.i.p.scale.eq(keys.p.scale),
        build.i.p.line.eq(keys.p.at.line),
        build.i.p.last.eq(keys.p.at.page_end),
        build.i.p.id.eq(keys.p.at.page),
        build.o.ready.eq(store.i_line.ready),
        store.i_line.valid.eq(build.o.valid),
        store.i_line.p.eq(build.o.p),
        store.look_row.eq(at[row:]),
        store.set_page.eq(page),
        # Keys are written by ops that use the frame stage, as a LOOK does, so none is in this
        # cycle. The lines come later, and none is looked at before; those of no page take the place
        # of ones that may hold for tokens of other lines.
        last.eq(asks & (looked.p.op.kv_line == s.used_lines - 1)),
        there.eq(complete & (looked.p.outcome == Outcome.DONE)),
        store.set.eq(last & ~s.ended(s.session)),
        store.set_holds.eq(there & ~(touched & (looked.p.op.kv_line != 0))),
    ]
    for k in reversed(range(store.ROW)):
        each = Cat(Const(k, row), low[row : c.page_bits])
        m.d.comb += lacks[k].eq(asked & ~store.holds[k] & (each >= low) & (each < newest))
        with m.If(lacks[k]):
            m.d.comb += lacking.eq(each)
    # What M3 decided before it saw the page's first line is in the line.
    with m.If(clear.valid & (clear.p.squeue == s.squeue) & (clear.p.page == page)):
        m.d.sync += touched.eq(1)
    with m.If(asks):
        m.d.sync += complete.eq(there)
        with m.If(looked.p.op.kv_line == 0):
            m.d.sync += touched.eq(0)
    m.d.comb += [store.look.eq(s.scans), store.begins.eq(s.begins)]
    with m.If(s.scans & ~found):
        with m.If(lacks.any()):
            m.d.sync += [asked.eq(0), at.eq(lacking + 1), page.eq(lacking), found.eq(1)]
        with m.Else():
            m.d.sync += asked.eq(at < newest)
            with m.If(at < newest):
                m.d.sync += [low.eq(at), at.eq((at | (store.ROW - 1)) + 1)]
    with m.If(s.begins):
        m.d.sync += [asked.eq(0), at.eq(begin), found.eq(0)]
    yield
    with m.State("SUMMARISE"):
        m.d.comb += s.scans.eq(1)
        with m.If(found):
            m.d.sync += [found.eq(0), complete.eq(1)]
            m.next = "BUILD"
        with m.Elif((at >= newest) & ~lacks.any()):
            m.next = "NAME"
    with m.State("BUILD"):
        # The reader has the keys of one SELECT at a time.
        with m.If(~p.engine.scores.any() & ~s.walks):
            m.d.comb += [
                s.building.eq(1),
                s.asks.page.eq(page),
                s.asks.count.eq(s.used_lines),
                s.asks.near.eq(~0),
                p.reader.i.valid.eq(1),
            ]
            with m.If(p.reader.i.ready):
                m.next = "BUILDING"
    with m.State("BUILDING"):
        m.d.comb += [
            s.building.eq(1),
            over.eq(written | (build.o.valid & build.o.ready & build.o.p.last)),
        ]
        m.d.sync += written.eq(over & ~store.settled)
        with m.If(over & store.settled):
            m.next = "SUMMARISE"

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""LRU's shadow of every session, in cohorts of pages that were last wanted in the same step, and
the credit that its reads earn (docs/select_tables.md). A page in 2 cycles, answered after 2;
4 cycles for each cohort that leaves."""

from __future__ import annotations

from types import SimpleNamespace

from amaranth.hdl import Array, Assert, Cat, Module, Mux, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec import policy2 as p
from kelp_spec.config import Config
from kelp_spec.metadata import STEP_BITS

from ..lib.sram import Sram
from .table_values import COHORT, later

__all__ = ["CREDIT", "TableShadow"]

_COHORT_BITS = COHORT["step"].width
_MOST = (1 << _COHORT_BITS) - 2  #: steps that a page may stay unwanted
CREDIT = signed(16)
_SHOWN = data.StructLayout({"cohort": COHORT, "first": 1, "read": 1})


class TableShadow(wiring.Component):
    """Who would be resident under LRU over one pool, of what turns wanted, and each session's
    credit.

    The shadow of a session is how many pages were last wanted in each step, of the last 255. A page
    that is read goes to the cohort of this step; one that the shadow has not got earns EARNED
    credit, at most CREDIT_MOST, but in its first turn. Before a turn and after it the oldest
    cohorts leave, each as a whole, while more than half of one is beyond the frames (that of this
    step stays) or where a cohort is 255 steps old.

    Latency: from a page to `kept` `LATENCY` cycles; from `begins` to `ready` `BEGIN_LATENCY`, and
    as many as there are cohorts in a session's first turn; from `ends` to `idle` `END_LATENCY`;
    `LEAVE_INTERVAL` more for each cohort that leaves. Pages come 2 cycles apart (`INTERVAL`) or 4
    and more, the last of them `SETTLED` cycles before `ends`.

    A session that is opened begins with nothing; what a turn of its former owner still does is of
    no effect. No error cases.

    Parameters
    ----------
    config : Config

    Members
    -------
    i_open : in, always-ready stream
        A session.
    i_spend : in, always-ready stream
        A session that a read of flash costs COST credit, down to −32768.
    frames : in
        Of LRU's pool.
    begins : in
        A turn begins: of `session`, in `step`, which are constant until it ends.
    session, step : in
    passed, last_turn : in
        Steps since the queue's last turn, at most 255, and the low bits of that one's step;
        constant from `begins` on.
    ready : out
        Pages of the turn may come; the turn may end.
    i : in, always-ready stream
        A page, while `ready`: `cohort`, what was `kept` of it in its queue's last turn; whether
        this is its `first`; whether it was `read`, which is chosen or wanted.
    kept : out
    ends : in
        The turn is over.
    idle : out
        No turn is under way.
    credit : out, array over sessions
    """

    LATENCY = 2
    INTERVAL = 2
    BEGIN_LATENCY = 4
    END_LATENCY = 8
    LEAVE_INTERVAL = 4
    SETTLED = 6

    def __init__(self, *, config: Config):
        self.config = config
        session = stream.Signature(config.session_bits, always_ready=True)
        super().__init__(
            {
                "i_open": In(session),
                "i_spend": In(session),
                "frames": In(range(config.total_frames + 1)),
                "begins": In(1),
                "session": In(config.session_bits),
                "step": In(STEP_BITS),
                "passed": In(_COHORT_BITS),
                "last_turn": In(_COHORT_BITS),
                "ready": Out(1),
                "i": In(stream.Signature(_SHOWN, always_ready=True)),
                "kept": Out(COHORT),
                "ends": In(1),
                "idle": Out(1),
                "credit": Out(data.ArrayLayout(CREDIT, config.sessions)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        c, s = self.config, SimpleNamespace()
        #: of the session whose turn it is; `joined` pages are in the cohort of its step and not yet
        #: counted there; `void`: it was opened meanwhile
        s.count_bits = (c.queues * c.pages).bit_length()
        s.total, s.joined = Signal(s.count_bits), Signal(s.count_bits)
        s.oldest, s.void, s.span = Signal(STEP_BITS), Signal(), Signal(STEP_BITS)
        s.beyond = Signal(signed(1 + max(s.count_bits, len(self.frames))))  #: pages, the frames
        s.earns, s.left, s.joins = Signal(), Signal(), Signal()
        m.submodules.counts = s.counts = Sram(depth=c.sessions << _COHORT_BITS, shape=s.count_bits)
        m.d.comb += s.counts.read_en.eq(1)
        self._page(m, s)
        self._turn(m, s)
        self._credits(m, s)
        return m

    def _page(self, m, s):
        """0: its age; 1: whether it is in the shadow; 2: `kept`, and its cohort is read; 4: has one
        less; 5: is written. What the page before this one writes is taken from `new`."""
        valid = [self.i.valid, *(Signal(name=f"valid_{k}") for k in range(1, 6))]
        m.d.sync += [b.eq(a) for a, b in zip(valid, valid[1:], strict=False)]
        m.d.sync += Assert(~(valid[0] & (valid[1] | valid[3])), "pages come too close")
        cohort, read, first = (
            later(m, self.i.p[name], 2, name) for name in ("cohort", "read", "first")
        )
        age, held, aged = Signal(_COHORT_BITS + 1, reset_less=True), Signal(), Signal()
        m.d.sync += [
            age.eq((self.last_turn - cohort[0].step)[:_COHORT_BITS] + self.passed),
            held.eq(cohort[1].held & (age <= s.span[:_COHORT_BITS])),
            aged.eq(age != 0),
        ]
        now = self.step[:_COHORT_BITS]
        m.d.comb += [
            self.kept.held.eq(read[2] | held),
            self.kept.step.eq(Mux(read[2], now, cohort[2].step)),
            s.joins.eq(valid[2] & read[2] & (~held | aged)),
        ]
        m.d.sync += s.earns.eq(valid[2] & read[2] & ~held & ~first[2])
        leaves = later(m, valid[2] & read[2] & held & aged, 3, "leaves")  # 2 … 5
        places = later(m, cohort[2].step, 3, "place")
        same = Signal()
        m.d.comb += same.eq(leaves[2] & (places[0] == places[2]))
        same = later(m, same, 2, "same")  # 2 … 4
        found, new, old = (
            Signal(s.count_bits, name="found", reset_less=True),
            Signal(s.count_bits, name="new", reset_less=True),
            Signal(s.count_bits, name="old"),
        )
        m.d.comb += [old.eq(Mux(same[2], new, found)), s.left.eq(leaves[2] & old.any())]
        m.d.sync += found.eq(s.counts.read_data)
        with m.If(leaves[2]):
            m.d.sync += new.eq(old - old.any())
        s.leaves, s.place, s.write_place, s.new, s.found = (
            leaves[3],
            places[0],
            places[3],
            new,
            found,
        )

    def _turn(self, m, s):
        c = self.config
        totals = Array([Signal(s.count_bits, name=f"total_{k}") for k in range(c.sessions)])
        oldests = Array([Signal(STEP_BITS, name=f"oldest_{k}") for k in range(c.sessions)])
        fresh = Signal(c.sessions, init=-1)
        s.row, s.over = Signal(_COHORT_BITS), Signal()
        s.read_at, s.write_at = Signal(_COHORT_BITS), Signal(_COHORT_BITS)
        now = self.step[:_COHORT_BITS]
        m.d.comb += [
            s.read_at.eq(s.place),
            s.write_at.eq(s.write_place),
            s.counts.read_address.eq(Cat(s.read_at, self.session)),
            s.counts.write_address.eq(Cat(s.write_at, self.session)),
            s.counts.write_en.eq(s.leaves),
            s.counts.write_data.eq(s.new),
        ]
        m.d.sync += [
            s.total.eq(s.total + s.joins - s.left),
            s.joined.eq(s.joined + s.joins),
        ]
        with m.FSM() as fsm:
            with m.State("IDLE"):
                m.d.comb += self.idle.eq(1)
                m.d.sync += [s.row.eq(0), s.over.eq(0), s.joined.eq(0), s.void.eq(0)]
                with m.If(self.begins):
                    m.d.sync += [
                        s.total.eq(totals[self.session]),
                        s.oldest.eq(oldests[self.session]),
                        fresh.eq(fresh & ~(1 << self.session)),
                    ]
                    with m.If(fresh.bit_select(self.session, 1)):
                        m.next = "CLEAR"
                    with m.Else():
                        m.next = "OLDEST"
            with m.State("CLEAR"):
                m.d.comb += [
                    s.counts.write_en.eq(1),
                    s.write_at.eq(s.row),
                    s.counts.write_data.eq(0),
                ]
                m.d.sync += s.row.eq(s.row + 1)
                with m.If(s.row.all()):
                    m.next = "OLDEST"
            self._shrink(m, s)
            with m.State("PAGES"):
                m.d.comb += self.ready.eq(1)
                with m.If(self.ends):
                    m.next = "READ"
            with m.State("READ"):
                m.d.comb += s.read_at.eq(now)
                m.next = "FOUND"
            with m.State("FOUND"):
                m.next = "JOIN"
            with m.State("JOIN"):
                m.d.comb += [
                    s.counts.write_en.eq(1),
                    s.write_at.eq(now),
                    s.counts.write_data.eq(s.found + s.joined),
                ]
                m.d.sync += [s.over.eq(1), s.row.eq(0)]
                m.next = "OLDEST"
            with m.State("DONE"):
                with m.If(~s.void):
                    m.d.sync += [
                        totals[self.session].eq(s.total),
                        oldests[self.session].eq(s.oldest),
                    ]
                m.next = "IDLE"
        # Critical path: a session is opened after whatever else is done with it in the same cycle.
        with m.If(self.i_open.valid):
            for k in range(c.sessions):
                with m.If(self.i_open.payload == k):
                    m.d.sync += [totals[k].eq(0), fresh[k].eq(1)]
            with m.If(self.i_open.payload == self.session):
                m.d.sync += s.void.eq(1)
        m.d.sync += Assert(~self.i.valid | fsm.ongoing("PAGES"), "a page comes without a turn")

    def _shrink(self, m, s):
        """The oldest cohorts leave; then pages may come or, where they have, the turn is over."""
        oldest = s.oldest[:_COHORT_BITS]
        with m.State("OLDEST"):
            m.d.comb += s.read_at.eq(oldest)
            with m.If(s.total == 0):
                m.d.sync += s.oldest.eq(self.step)
            m.next = "SPAN"
        with m.State("SPAN"):
            m.d.sync += [s.span.eq(self.step - s.oldest), s.beyond.eq(s.total - self.frames)]
            m.d.comb += s.read_at.eq(oldest)
            m.next = "JUDGE"
        with m.State("JUDGE"):
            # `found` is the oldest cohort, here and in the next cycle.
            with m.If((s.span != 0) & ((2 * s.beyond > s.found) | (s.span > _MOST))):
                m.next = "LEAVE"
            with m.Elif(s.over):
                m.next = "DONE"
            with m.Else():
                m.next = "PAGES"
        with m.State("LEAVE"):
            m.d.comb += [
                s.counts.write_en.eq(1),
                s.write_at.eq(oldest),
                s.counts.write_data.eq(0),
            ]
            # Where all cohorts have left nothing is left, whatever a flipped bit made of them.
            m.d.sync += [
                s.total.eq(Mux(s.row.all() | (s.found > s.total), 0, s.total - s.found)),
                s.oldest.eq(s.oldest + 1),
                s.row.eq(s.row + 1),
            ]
            m.next = "OLDEST"

    def _credits(self, m, s):
        for k in range(self.config.sessions):
            credit = self.credit[k]
            earned, spent = (
                Signal(signed(17), name=f"earned_{k}"),
                Signal(signed(17), name=f"spent_{k}"),
            )
            earns = s.earns & (self.session == k) & ~s.void
            spends = self.i_spend.valid & (self.i_spend.payload == k)
            m.d.comb += [
                earned.eq(credit + Mux(earns, p.EARNED, 0)),
                spent.eq(
                    Mux(earned > p.CREDIT_MOST, p.CREDIT_MOST, earned) - Mux(spends, p.COST, 0)
                ),
            ]
            m.d.sync += credit.eq(Mux(spent < -(1 << 15), -(1 << 15), spent))
            with m.If(self.i_open.valid & (self.i_open.payload == k)):
                m.d.sync += credit.eq(0)

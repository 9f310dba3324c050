# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Policy 2's tables in the device: how likely each page is wanted in its queue's next turn, learnt
from choices and guesses (docs/select_tables.md). A page of a turn in 2 cycles, a page of a
guess in 1 cycle; a value is read in 1 cycle."""

from __future__ import annotations

from types import SimpleNamespace

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from kelp_spec.config import Config
from kelp_spec.metadata import SCORE_BITS, STEP_BITS

from ..lib.sram import Sram
from .table_learning import TableLearning
from .table_shadow import CREDIT, TableShadow
from .table_values import (
    COUNT_BITS,
    ENTRY,
    GUESSED_BITS,
    MARK,
    NO_SIDES,
    PAGE,
    SIDES,
    VALUE_BITS,
    later,
    side,
)
from .table_walk import guess, sequence, turn

__all__ = ["TableScores"]


class TableScores(wiring.Component):
    """What `kelp_golden.tables.Tables` says, bit by bit: V, T, frequencies and profile of each
    queue, LRU's shadow and the credit of each session.

    Pages that a choice took or wanted are marked at `i_read`, in any order, and are worth the most
    until the queue's turn is over at `i_turn`; pages that a guess scored are marked at `i_mass`,
    and then `i_guess` renews the values of the queue's pages below the newest and names those to be
    fetched. Each is one walk over pages 0 … newest; what was marked before it counts, and counts
    once. No page beyond the newest is marked. A session that is opened begins as new: at the first
    mark or walk of each of its queues all rows of the queue are written. What was accepted of its
    former owner is of no effect then, but a guess under way ends as it was.

    Latency: `LATENCY` cycle from `value_of` to `value`. From one walk's acceptance to the next
    one's `TURN_LATENCY` + `INTERVAL` · (newest + 1) cycles for a turn, with
    `TableShadow.LEAVE_INTERVAL` more for each step that leaves LRU's shadow, and 256 in a session's
    first; `GUESS_LATENCY` + `GUESS_INTERVAL` · (newest + 1) for a guess while `o_early` takes what
    comes, and one less where a turn follows; before a queue's first mark or walk `rows` +
    `FIRST_LATENCY`. Turns and guesses that wait take turns. Marks: one of each kind in each cycle,
    but amid a turn's walk a read in every other cycle, amid a guess's no mass; and none of those
    that the walk itself takes. `o_early` may wait as long as it likes: a guess's walk waits for it,
    and other walks for that walk, but marks of other queues do not; a guess begins when the one
    before it has ended there.

    No error cases; memories have no check bits: a flipped bit makes a worse choice and nothing
    else.

    Parameters
    ----------
    config : Config

    Members
    -------
    i_open : in, always-ready stream
        A session.
    i_spend : in, always-ready stream
        A session for which a page was read from flash.
    i_read : in, stream of squeue, page
        The page was chosen or wanted.
    i_mass : in, stream of squeue, page, mass, absent
        The page was scored by a guess; its mass, whether it is not resident.
    i_turn : in, stream of squeue, session, newest, step
    i_guess : in, stream of squeue, session, newest
    o_early : out, stream of page, likely, none
        Of a guess, in ascending order, the pages that it scored and that were absent, below the
        newest and likelier than THRESHOLD − (87 · max(0, credit) >> 3), with the credit as it was
        when the guess was accepted; then one item `none`.
    frames : in
        Of the pool of LRU's shadow.
    value_of : in
        squeue, page.
    value : out
        What the page is worth at least, as policy `kelp` counts, amid a walk of its queue as before
        that or after it: the most where it is marked; else what the queue's last guess since its
        turn says; 0 where there was none.
    credit : out, array over sessions
        Signed.
    idle : out
        Nothing is under way and nothing waits at `o_early`.
    """

    LATENCY = 1
    INTERVAL = 2
    GUESS_INTERVAL = 1
    TURN_LATENCY = 27
    GUESS_LATENCY = 20
    FIRST_LATENCY = 3
    EARLY_DEPTH = 32

    def __init__(self, *, config: Config):
        self.config = c = config
        #: cycles of a queue's first walk beside the walk
        self.rows = max(1 << ENTRY.size, c.pages)
        squeue, page = c.squeue_bits, c.page_bits
        where = {"squeue": squeue, "page": page}
        walk = {"squeue": squeue, "session": c.session_bits, "newest": page}
        session = stream.Signature(c.session_bits, always_ready=True)
        self.read_layout = data.StructLayout(where)
        self.mass_layout = data.StructLayout({**where, "mass": SCORE_BITS, "absent": 1})
        self.turn_layout = data.StructLayout({**walk, "step": STEP_BITS})
        self.guess_layout = data.StructLayout(walk)
        self.early_layout = data.StructLayout({"page": page, "likely": VALUE_BITS, "none": 1})
        super().__init__(
            {
                "i_open": In(session),
                "i_spend": In(session),
                "i_read": In(stream.Signature(self.read_layout)),
                "i_mass": In(stream.Signature(self.mass_layout)),
                "i_turn": In(stream.Signature(self.turn_layout)),
                "i_guess": In(stream.Signature(self.guess_layout)),
                "o_early": Out(stream.Signature(self.early_layout)),
                "frames": In(range(c.total_frames + 1)),
                "value_of": In(self.read_layout),
                "value": Out(VALUE_BITS),
                "credit": Out(data.ArrayLayout(CREDIT, c.sessions)),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        s = self._state(m)  #: what its parts share
        self._memories(m, s)
        self._marks(m, s)
        sequence(self, m, s)
        turn(self, m, s)
        guess(self, m, s)
        with m.If(self.i_open.valid):
            for k in range(self.config.sessions):
                with m.If(self.i_open.payload == k):
                    first = k * self.config.queues
                    m.d.sync += s.fresh[first : first + self.config.queues].eq(~0)
        m.d.comb += self.credit.eq(s.shadow.credit)
        return m

    def _state(self, m):
        c, s = self.config, SimpleNamespace()
        s.fresh = Signal(c.squeues, init=-1)  #: queues of which nothing is written
        #: the walk under way: its queue, session, newest page, step; the page that is next and its
        #: distance
        s.squeue, s.session = Signal(c.squeue_bits), Signal(c.session_bits)
        s.newest, s.step = Signal(c.page_bits), Signal(STEP_BITS)
        s.page, s.distance = Signal(c.page_bits), Signal(c.page_bits)
        s.turns, s.guesses = Signal(), Signal()  #: of which kind
        s.issues = Signal()  #: `page` enters the walk
        s.row, s.starts = Signal(range(self.rows)), Signal()  #: all of this row becomes as new
        #: each page on its way, 1 cycle after it entered and later
        s.at = later(m, s.page, 11, "at")
        s.distances = later(m, s.distance, 6, "distance_at")
        s.last = later(m, s.page == s.newest, 10, "last")
        issued = [s.issues, *(Signal(name=f"issued_{k}") for k in range(1, 13))]
        m.d.sync += [b.eq(a) for a, b in zip(issued, issued[1:], strict=False)]
        s.turned = [each & s.turns for each in issued]
        s.guessed = [each & s.guesses for each in issued]
        s.busy = Cat(issued).any()
        m.submodules.shadow = s.shadow = TableShadow(config=c)
        m.submodules.learning = s.learning = TableLearning(config=c)
        connect(m, flipped(self.i_open), s.shadow.i_open)
        connect(m, flipped(self.i_spend), s.shadow.i_spend)
        m.d.comb += [s.shadow.frames.eq(self.frames), s.learning.squeue.eq(s.squeue)]
        return s

    def _memories(self, m, s):
        """A row a page. The walk reads them at `page`; `starts` writes them."""
        c = self.config
        row = s.row[: c.page_bits]

        def rows(name, shape, read, write=None, start=0):
            """`write`: enable, page, data."""
            m.submodules[name] = made = Sram(depth=c.page_words, shape=shape)
            m.d.comb += [made.read_en.eq(1), made.read_address.eq(Cat(read, s.squeue))]
            if write:
                enable, page, value = write
                m.d.comb += [
                    made.write_en.eq(s.starts | enable),
                    made.write_address.eq(Cat(Mux(s.starts, row, page), s.squeue)),
                    made.write_data.eq(Mux(s.starts, start, value)),
                ]
            return made

        s.new_page, s.new_count = Signal(PAGE), Signal(COUNT_BITS)
        s.post, s.guess, s.value = Signal(VALUE_BITS), Signal(SIDES), Signal(GUESSED_BITS)
        s.pages = rows("pages", PAGE, s.page, (s.turned[6], s.at[6], s.new_page))
        s.counts = rows(
            "counts", COUNT_BITS, s.distance, (s.turned[6], s.distances[6], s.new_count)
        )
        s.posts = rows("posts", VALUE_BITS, s.page, (s.turned[11], s.at[11], s.post))
        # A turn forgets the guess that it has read.
        guesses = (s.turned[3] | (s.guessed[3] & ~s.last[3]), s.at[3], s.guess)
        s.sides = rows("places", SIDES, s.page, guesses, NO_SIDES)
        s.reads, s.masses = rows("reads", 1, s.page), rows("masses", MARK, s.page)
        # What is in `reads`, for who asks what a page is worth: that is the most until the turn has
        # forgotten what the guess said, and not only until the walk has read the mark.
        m.submodules.marked = marked = Sram(depth=c.page_words, shape=1)
        m.submodules.values = values = Sram(depth=c.page_words, shape=GUESSED_BITS)
        hidden, of = Signal(), self.value_of.squeue
        s.valued, read = Signal(), self.i_read
        m.d.comb += [
            values.read_en.eq(1),
            values.read_address.eq(Cat(self.value_of.page, self.value_of.squeue)),
            values.write_en.eq(s.starts | s.turned[11] | (s.guessed[10] & ~s.last[10])),
            values.write_address.eq(
                Cat(Mux(s.starts, row, Mux(s.turns, s.at[11], s.at[10])), s.squeue)
            ),
            values.write_data.eq(Mux(s.starts | s.turns, 0, s.value)),
            marked.read_en.eq(1),
            marked.read_address.eq(values.read_address),
            s.valued.eq(s.starts | s.turned[11]),
            marked.write_en.eq(s.valued | (read.valid & read.ready)),
            marked.write_address.eq(
                Mux(s.valued, values.write_address, Cat(read.p.page, read.p.squeue))
            ),
            marked.write_data.eq(~s.valued),
            self.value.eq(Mux(hidden, 0, Mux(marked.read_data, ~0, values.read_data))),
        ]
        m.d.sync += hidden.eq(s.fresh.bit_select(of, 1))

    def _marks(self, m, s):
        """A mark is written where no row is being cleared, which comes before."""
        mass_side = side(m, self.i_mass.p.mass, "mass_side")
        s.waits = []
        mass = Cat(mass_side, self.i_mass.p.absent)
        for port, rows, walks, forgets, stays, mark in (
            (self.i_read, s.reads, s.turns, s.turned[1], s.valued, 1),
            (self.i_mass, s.masses, s.guesses, s.guessed[1], 0, mass),
        ):
            fresh, clears = Signal(), Signal()
            m.d.comb += [
                fresh.eq(s.fresh.bit_select(port.p.squeue, 1)),
                clears.eq(s.starts | forgets),
                port.ready.eq(~(fresh | clears | stays | (walks & (port.p.squeue == s.squeue)))),
                rows.write_en.eq(clears | (port.valid & port.ready)),
                rows.write_address.eq(
                    Mux(
                        clears,
                        Cat(Mux(s.starts, s.row[: len(s.page)], s.at[1]), s.squeue),
                        Cat(port.p.page, port.p.squeue),
                    )
                ),
                rows.write_data.eq(Mux(clears, 0, mark)),
            ]
            s.waits.append(port.valid & fresh)

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""One sweep: SCAN a queue's listed pages and keep the best candidates (spec §7, docs/design.md
§6)."""

from __future__ import annotations

from amaranth.hdl import Assert, Cat, Module, Mux, Signal
from amaranth.lib import data, fifo, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config
from kelp_spec.metadata import SCORE_BITS, STEP_BITS, Op, PageState
from kelp_spec.policy import MARGIN_SHIFT, WANTED

from ..eviction_layouts import EvictionLayouts
from .candidates import CandidateList
from .priority import PriorityUnit
from .residency_map import word_pages

__all__ = ["Sweep"]


class Sweep(wiring.Component):
    """Walks the residency map of one squeue, SCANs each listed page in ascending order, and lists
    the best of what comes back.

    `watch` names the squeue; `start`, later, begins with what the queue state then knows of it
    (`look`): the list is emptied, `busy` until every SCAN has been listed. Class and age refer to
    the session's step (`step`, in every cycle from `watch` on) and to the queue's newest page as
    they are when M3 decides the first SCAN: an allocation since `watch` overrides `look`. `op.slot`
    of the SCANs is the number of the sweep modulo 16. The queue's policy is `look`'s; under `kelp`,
    `near` and `second` hold as they are a cycle after M3 has decided the first SCAN, and the best
    page in the other opinion is kept too.

    With `ahead` the sweep looks for pages to prefetch: it SCANs the pages up to the newest one that
    are not listed, leaves the list alone, and notes those on flash that are worth twice `marginal`,
    up to WANTED of them.

    Throughput: one SCAN per cycle when the path takes them; a word of the map without pages costs a
    cycle. A sweep of R pages in W words takes at most W + R + `OVERHEAD` cycles beside the latency
    of the path from `o_op` to `i_scan`.

    Parameters
    ----------
    config : Config

    Members
    -------
    watch, squeue : in
    start, look, step, session, ahead : in
    near, second, marginal : in
    busy : out
    o_op : out, stream of op
    i_result : in, always-ready stream of result
    i_scan : in, always-ready stream of scanned
    read_valid … word : the residency map's read port
    best, best_valid : out, candidate; take, clear : in
        The list. `clear` empties it while not `busy`.
    other, other_valid, followed : out
        The best page of class 0 in the opinion that is not followed (policy `kelp`), and whether
        the second is followed.
    wanted, wanted_valid : out; drop, next_wanted : in
        Pages to prefetch, ascending; `next_wanted` takes one, `drop` all.
    swept_step : out
        The step that classes refer to.
    """

    OVERHEAD = 11 + PriorityUnit.LATENCY

    def __init__(self, *, config: Config):
        self.config = config
        layouts = self.layouts = EvictionLayouts(config)
        self.word_pages = word_pages(config)
        self.words = config.pages // self.word_pages
        super().__init__(
            {
                "watch": In(1),
                "squeue": In(config.squeue_bits),
                "start": In(1),
                "look": In(layouts.look),
                "step": In(STEP_BITS),
                "busy": Out(1),
                "session": In(config.session_bits),
                "ahead": In(1),
                "near": In(8),
                "second": In(1),
                "marginal": In(SCORE_BITS),
                "other": Out(layouts.candidate),
                "other_valid": Out(1),
                "followed": Out(1),
                "wanted": Out(config.page_bits),
                "wanted_valid": Out(1),
                "drop": In(1),
                "next_wanted": In(1),
                "o_op": Out(stream.Signature(layouts.op)),
                "i_result": In(stream.Signature(layouts.result, always_ready=True)),
                "i_scan": In(stream.Signature(layouts.scanned, always_ready=True)),
                "read_valid": Out(1),
                "read_squeue": Out(config.squeue_bits),
                "read_index": Out(range(max(2, self.words))),
                "read_ready": In(1),
                "word": In(self.word_pages),
                "best": Out(layouts.candidate),
                "best_valid": Out(1),
                "take": In(1),
                "clear": In(1),
                "swept_step": Out(STEP_BITS),
            }
        )

    def elaborate(self, platform):
        m = Module()
        c = self.config
        squeue, look = Signal(c.squeue_bits), Signal(self.layouts.look)
        number = Signal(4)

        # --- words of the map, one per cycle; those with pages wait in a short queue ---
        index_bits = max(1, (self.words - 1).bit_length())
        waiting = data.StructLayout({"index": index_bits, "bits": self.word_pages})
        m.submodules.waiting = queue = fifo.SyncFIFO(width=waiting.size, depth=8)
        index, reading, read_index, walking = (
            Signal(index_bits),
            Signal(),
            Signal(index_bits),
            Signal(),
        )
        entry, arrived, ahead = Signal(waiting), Signal(), Signal()
        # Looking ahead: what is not listed, as far as the newest page.
        below, newest_word = Signal(self.word_pages), Signal(index_bits)
        bit_bits = (self.word_pages - 1).bit_length()
        m.d.comb += [
            newest_word.eq(look.newest[bit_bits:]),
            below.eq((2 << look.newest[:bit_bits]) - 1),
        ]
        if self.words > 1:
            with m.If(read_index != newest_word):
                m.d.comb += below.eq(Mux(read_index < newest_word, ~0, 0))
        m.d.comb += [
            # Three may be on their way when the queue says that it has places.
            self.read_valid.eq(walking & (queue.level < 5)),
            self.read_squeue.eq(squeue),
            self.read_index.eq(index),
            queue.w_data.eq(entry),
            queue.w_en.eq(arrived & entry.bits.any()),
        ]
        m.d.sync += [
            entry.index.eq(read_index),
            entry.bits.eq(Mux(ahead, ~self.word & below, self.word)),
            arrived.eq(reading),
        ]
        m.d.sync += [
            Assert(~queue.w_en | queue.w_rdy),
            reading.eq(self.read_valid & self.read_ready),
            read_index.eq(index),
        ]
        with m.If(self.read_valid & self.read_ready):
            m.d.sync += index.eq(index + 1)
            with m.If(index == self.words - 1):
                m.d.sync += walking.eq(0)

        # --- pages of a word, lowest first: one bit is split off per cycle, encoded in the next ---
        # `rest` is the word without its lowest bit: what comes next is known from registers.
        word, rest, word_index = (
            Signal(self.word_pages),
            Signal(self.word_pages),
            Signal(index_bits),
        )
        split, split_index, split_valid = Signal(self.word_pages), Signal(index_bits), Signal()
        head = Signal(waiting)
        position = Signal((self.word_pages - 1).bit_length())
        out_valid = self.o_op.valid
        advance = Signal()
        m.d.comb += [
            head.eq(queue.r_data),
            advance.eq(~out_valid | self.o_op.ready),
            *(
                position[b].eq(Cat(split[k] for k in range(self.word_pages) if k >> b & 1).any())
                for b in range(len(position))
            ),
        ]
        with m.If(advance):
            m.d.sync += [
                split.eq(word ^ rest),
                split_index.eq(word_index),
                split_valid.eq(word.any()),
                word.eq(rest),
                rest.eq(rest & (rest - 1)),
                out_valid.eq(split_valid),
                self.o_op.payload.page.eq(Cat(position, split_index)),
            ]
            # The last bit leaves now or left before.
            with m.If(rest == 0):
                m.d.comb += queue.r_en.eq(1)
                with m.If(queue.r_rdy):
                    m.d.sync += [
                        word.eq(head.bits),
                        rest.eq(head.bits & (head.bits - 1)),
                        word_index.eq(head.index),
                    ]
        m.d.sync += Assert(rest == (word & (word - 1)))
        op = self.o_op.payload
        session = Signal(c.session_bits)
        m.d.comb += [
            op.kind.eq(Op.SCAN),
            op.session.eq(session),
            op.squeue.eq(squeue),
            op.slot.eq(Mux(ahead, 0, number)),
            op.mass.eq(ahead),
        ]

        # --- what was sent and what came back ---
        sent, listed = Signal(c.page_bits + 1), Signal(c.page_bits + 1)
        with m.If(out_valid & self.o_op.ready):
            m.d.sync += sent.eq(sent + 1)

        # --- the moment of the first SCAN at M3: step and newest page hold from then on ---
        r = self.i_result.p
        watching, overridden, settled = Signal(), Signal(), Signal()
        near = Signal(8)
        m.d.sync += settled.eq(watching & self.i_result.valid & (r.op.kind == Op.SCAN))
        with m.If(settled):
            m.d.sync += [near.eq(self.near), self.followed.eq(self.second)]
        # An allocation is heard of a cycle late: results come from far, and nothing asks for the
        # newest page so soon.
        allocated, allocated_page = Signal(), Signal(c.page_bits)
        m.d.sync += allocated_page.eq(r.op.page)
        m.d.sync += allocated.eq(
            watching
            & self.i_result.valid
            & (r.op.kind == Op.WRITE)
            & r.changed
            & (r.op.squeue == squeue)
            & ((r.old.state == PageState.ABSENT) | (r.old.state == PageState.LOST))
            & ((r.word.state == PageState.RESIDENT) | (r.word.state == PageState.FETCHING))
        )
        with m.If(watching):
            with m.If(~ahead):
                m.d.sync += self.swept_step.eq(self.step)
            with m.If(self.i_result.valid & (r.op.kind == Op.SCAN)):
                m.d.sync += watching.eq(0)
        with m.If(allocated):
            m.d.sync += [look.newest.eq(allocated_page), look.newest_valid.eq(1), overridden.eq(1)]

        # --- priority and list ---
        m.submodules.priority = priority = PriorityUnit(config=c)
        m.submodules.list = candidates = CandidateList(config=c)
        mine = Signal()
        m.d.comb += [
            mine.eq(self.i_scan.valid),
            priority.kelp.eq(look.policy),
            priority.second.eq(self.followed),
            priority.near.eq(Mux(ahead, 256, near)),
            priority.i.p.eq(self.i_scan.p),
            priority.i.valid.eq(mine),
            priority.step.eq(self.swept_step),
            priority.newest.eq(look.newest),
            priority.newest_valid.eq(look.newest_valid),
            priority.recency_m.eq(look.tau_m),
            priority.recency_sh.eq(look.tau_sh),
            candidates.i.p.eq(priority.o.p),
            candidates.i.valid.eq(priority.o.valid & priority.o_eligible & ~ahead),
            candidates.take.eq(self.take),
            candidates.clear.eq(self.clear | (self.start & ~self.ahead)),
            self.best.eq(candidates.best),
            self.best_valid.eq(candidates.best_valid),
        ]
        with m.If(priority.o.valid):
            m.d.sync += listed.eq(listed + 1)
        # As in the list: whether what is coming is the best is a register, and the next is compared
        # with it then.
        other_comes, coming_other = Signal(), Signal(SCORE_BITS)
        m.d.sync += [
            coming_other.eq(priority.o_other),
            other_comes.eq(
                candidates.i.valid
                & (priority.o.p.kind == 0)
                & (
                    (~self.other_valid & ~other_comes)
                    | (priority.o_other > Mux(other_comes, coming_other, self.other.priority))
                )
            ),
        ]
        with m.If(other_comes):
            m.d.sync += [
                self.other.eq(candidates.coming),
                self.other.priority.eq(coming_other),
                self.other_valid.eq(1),
            ]
        with m.If(candidates.clear):
            m.d.sync += [self.other_valid.eq(0), other_comes.eq(0)]

        # --- pages that are worth more on this side ---
        m.submodules.wishes = wishes = fifo.SyncFIFO(width=c.page_bits, depth=WANTED)
        value, wished = Signal(SCORE_BITS), Signal()
        m.d.sync += wished.eq(
            priority.o.valid & ahead & priority.o_cold & (value >= (self.marginal << MARGIN_SHIFT))
        )
        m.d.comb += [
            value.eq(~priority.o.p.priority),
            wishes.w_data.eq(candidates.coming.page),
            wishes.w_en.eq(wished & wishes.w_rdy),
            self.wanted.eq(wishes.r_data),
            self.wanted_valid.eq(wishes.r_rdy),
            wishes.r_en.eq(self.next_wanted | self.drop),
        ]

        # --- a sweep ---
        walked = Signal()
        m.d.comb += walked.eq(
            ~walking & ~reading & ~arrived & ~queue.r_rdy & ~word.any() & ~split_valid & ~out_valid
        )
        with m.If(self.watch):
            m.d.sync += [
                squeue.eq(self.squeue),
                watching.eq(1),
                overridden.eq(0),
                ahead.eq(self.ahead),
            ]
        with m.Elif(self.start):
            m.d.sync += [
                index.eq(0),
                walking.eq(1),
                sent.eq(0),
                listed.eq(0),
                self.busy.eq(1),
                number.eq(number + ~self.ahead),
                look.tau_m.eq(self.look.tau_m),
                look.tau_sh.eq(self.look.tau_sh),
                look.policy.eq(self.look.policy),
                session.eq(self.session),
            ]
            with m.If(~overridden & ~allocated):
                m.d.sync += [
                    look.newest.eq(self.look.newest),
                    look.newest_valid.eq(self.look.newest_valid),
                ]
        with m.Elif(self.busy & walked & (sent == listed)):
            m.d.sync += [self.busy.eq(0), watching.eq(0)]
        started = Signal()  # before the first clock edge inputs mean nothing
        m.d.sync += [
            started.eq(1),
            Assert(~started | ~(self.start & self.busy)),
            Assert(~started | ~self.start | watching),
            Assert(listed <= sent),
            Assert(~started | ~mine | self.busy, "a scan came back outside its sweep"),
            Assert(~started | ~mine | ~watching, "a scan came back before its result"),
        ]
        return m

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""One sweep: SCAN a queue's listed pages and keep the best candidates (spec §7, docs/design.md §6).
One SCAN a cycle; a page that comes back is in the list after 17 cycles, under policy `kelp` after
4."""

from __future__ import annotations

from types import SimpleNamespace

from amaranth.hdl import Assert, Cat, Module, Signal
from amaranth.lib import data, fifo, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped
from amaranth.utils import ceil_log2

from kelp_spec.config import Config
from kelp_spec.metadata import Op, PageState

from ..layouts import PageValues
from .candidates import CandidateList
from .priority import PriorityUnit
from .signatures import EvictionLayouts, MapRead, SweepControl, SweepList, word_pages

__all__ = ["Sweep"]


class Sweep(wiring.Component):
    """Walks the residency map of one squeue, SCANs each listed page in ascending order, and lists
    the best of what comes back.

    `control.watch` names the squeue; `control.start`, later, begins with what the queue state then
    knows of it (`look`): the list is emptied, `busy` until every SCAN has been listed. Class and
    age refer to the session's step (`control.step`) and to the queue's newest page as they are when
    M3 decides the first SCAN: an allocation since `watch` overrides `look`. `op.slot` of the SCANs
    is the number of the sweep modulo 16. The queue's policy is `look`'s.

    Interval: `INTERVAL`, one SCAN per cycle when the path takes them; a word of the map without
    pages costs a cycle. A sweep of R pages in W words takes at most W + R + `OVERHEAD` cycles
    beside the latency of the path from `o_op` to `i_scan`. Latency: `LATENCY` cycles from a page
    that comes back to the list; under `kelp`, `KELP_LATENCY`.

    Parameters
    ----------
    config : Config

    Members
    -------
    control : in, SweepControl
    swept : out
        Pulse: a sweep begins.
    o_op : out, stream of op (SCAN)
    i_result : in, always-ready stream of result
    i_scan : in, always-ready stream of scanned
    read : out, MapRead
        The residency map's.
    list : out, SweepList
    values : out, PageValues
        With `Config.select_tables`: read for each page that comes back.
    """

    LATENCY = PriorityUnit.LATENCY + CandidateList.LATENCY
    KELP_LATENCY = PriorityUnit.KELP_LATENCY + CandidateList.LATENCY
    INTERVAL = 1
    OVERHEAD = 11 + PriorityUnit.LATENCY

    def __init__(self, *, config: Config):
        self.config = config
        layouts = self.layouts = EvictionLayouts(config)
        self.word_pages = word_pages(config)
        self.words = config.pages // self.word_pages
        super().__init__(
            {
                "control": In(SweepControl(config)),
                "swept": Out(1),
                "o_op": Out(stream.Signature(layouts.op)),
                "i_result": In(stream.Signature(layouts.result, always_ready=True)),
                "i_scan": In(stream.Signature(layouts.scanned, always_ready=True)),
                "read": Out(MapRead(config)),
                "list": Out(SweepList(config)),
            }
            | ({"values": Out(PageValues(config))} if config.select_tables else {})
        )

    def elaborate(self, platform):
        m = Module()
        c, control, found = self.config, self.control, self.list
        watch, start, request = control.watch, control.start, self.read.request
        squeue, look = Signal(c.squeue_bits), Signal(self.layouts.look)
        number = Signal(4)
        # `s`: signals that the methods below share, under the names that they have there.
        s = SimpleNamespace()
        s.control, s.found, s.watch, s.start, s.request = control, found, watch, start, request
        s.squeue, s.look, s.number = squeue, look, number
        self._map_words(m, s)
        self._pages(m, s)
        self._flying(m, s)
        self._list(m, s)
        self._course(m, s)
        return m

    def _map_words(self, m: Module, s: SimpleNamespace) -> None:
        """Words of the map, one per cycle; those with pages wait in a short FIFO."""
        request, squeue = s.request, s.squeue
        index_bits = max(1, ceil_log2(self.words))
        waiting = data.StructLayout({"index": index_bits, "bits": self.word_pages})
        m.submodules.waiting = words = fifo.SyncFIFO(width=waiting.size, depth=8)
        index, reading, read_index, walking = (
            Signal(index_bits),
            Signal(),
            Signal(index_bits),
            Signal(),
        )
        entry, arrived = Signal(waiting), Signal()
        m.d.comb += [
            # Three may be on their way when the FIFO says that it has places.
            request.valid.eq(walking & (words.level < 5)),
            request.squeue.eq(squeue),
            request.index.eq(index),
            words.w_data.eq(entry),
            words.w_en.eq(arrived & entry.bits.any()),
        ]
        m.d.sync += [
            entry.index.eq(read_index),
            entry.bits.eq(self.read.word),
            arrived.eq(reading),
        ]
        m.d.sync += [
            Assert(~words.w_en | words.w_rdy),
            reading.eq(request.valid & self.read.granted),
            read_index.eq(index),
        ]
        with m.If(request.valid & self.read.granted):
            m.d.sync += index.eq(index + 1)
            with m.If(index == self.words - 1):
                m.d.sync += walking.eq(0)
        s.index_bits, s.waiting, s.words, s.index = index_bits, waiting, words, index
        s.reading, s.walking, s.arrived = reading, walking, arrived

    def _pages(self, m: Module, s: SimpleNamespace) -> None:
        """Pages of a word, lowest first: one bit is split off per cycle, encoded in the next."""
        c = self.config
        index_bits, waiting, words, squeue = s.index_bits, s.waiting, s.words, s.squeue
        number = s.number
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
            head.eq(words.r_data),
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
                m.d.comb += words.r_en.eq(1)
                with m.If(words.r_rdy):
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
            op.slot.eq(number),
        ]
        s.word, s.split_valid, s.out_valid, s.session = word, split_valid, out_valid, session

    def _flying(self, m: Module, s: SimpleNamespace) -> None:
        """What was sent and what came back; the moment of the first SCAN at M3."""
        c = self.config
        out_valid, found, squeue = s.out_valid, s.found, s.squeue
        control, look = s.control, s.look
        sent, listed = Signal(c.page_bits + 1), Signal(c.page_bits + 1)
        with m.If(out_valid & self.o_op.ready):
            m.d.sync += sent.eq(sent + 1)

        # --- the moment of the first SCAN at M3: step and newest page hold from then on ---
        r = self.i_result.p
        watching, overridden = Signal(), Signal()
        # Critical path: an allocation is registered here; nothing asks for the newest page so soon.
        allocated, allocated_page = Signal(), Signal(c.page_bits)
        m.d.sync += allocated_page.eq(r.op.page)
        asks = r.op.kind == Op.WRITE
        if self.config.coherence:
            asks = asks | (r.op.kind == Op.READ)  # for ownership
        m.d.sync += allocated.eq(
            watching
            & self.i_result.valid
            & asks
            & r.changed
            & (r.op.squeue == squeue)
            & ((r.old.state == PageState.ABSENT) | (r.old.state == PageState.LOST))
            & ((r.word.state == PageState.RESIDENT) | (r.word.state == PageState.FETCHING))
        )
        with m.If(watching):
            m.d.sync += found.step.eq(control.step)
            with m.If(self.i_result.valid & (r.op.kind == Op.SCAN)):
                m.d.sync += watching.eq(0)
        with m.If(allocated):
            m.d.sync += [
                look.newest.page.eq(allocated_page),
                look.newest.valid.eq(1),
                overridden.eq(1),
            ]
        s.sent, s.listed, s.watching, s.overridden = sent, listed, watching, overridden
        s.allocated = allocated

    def _list(self, m: Module, s: SimpleNamespace) -> None:
        """Priority and list."""
        c = self.config
        look, found, start, listed = s.look, s.found, s.start, s.listed
        m.submodules.priority = priority = PriorityUnit(config=c)
        m.submodules.list = candidates = CandidateList(config=c)
        connect(m, flipped(self.i_scan), priority.i)
        mine, held, judged = self.i_scan.valid, priority.constants, priority.o.p
        if c.select_tables:
            m.d.comb += [
                held.tables.eq(look.tables),
                self.values.squeue.eq(s.squeue),
                self.values.page.eq(self.i_scan.p.page),
                priority.value.eq(self.values.value),
            ]
        m.d.comb += [
            held.kelp.eq(look.policy),
            held.step.eq(found.step),
            held.newest.eq(look.newest),
            held.tau_m.eq(look.tau_m),
            held.tau_sh.eq(look.tau_sh),
            candidates.i.p.eq(judged.candidate),
            candidates.i.valid.eq(priority.o.valid & judged.eligible),
            candidates.take.eq(found.take),
            self.swept.eq(start.valid),
            candidates.clear.eq(found.clear | self.swept),
            found.best.eq(candidates.best),
        ]
        with m.If(priority.o.valid):
            m.d.sync += listed.eq(listed + 1)
        s.mine = mine

    def _course(self, m: Module, s: SimpleNamespace) -> None:
        """A sweep from its start to its end."""
        walking, reading, arrived, words = s.walking, s.reading, s.arrived, s.words
        word, split_valid, out_valid, watch = s.word, s.split_valid, s.out_valid, s.watch
        squeue, watching, overridden, start = s.squeue, s.watching, s.overridden, s.start
        index, sent, listed, control, number = s.index, s.sent, s.listed, s.control, s.number
        look, session, allocated, mine = s.look, s.session, s.allocated, s.mine
        walked = Signal()
        constants = ("tau_m", "tau_sh", "policy") + ("tables",) * self.config.select_tables
        m.d.comb += walked.eq(
            ~walking & ~reading & ~arrived & ~words.r_rdy & ~word.any() & ~split_valid & ~out_valid
        )
        with m.If(watch.valid):
            m.d.sync += [squeue.eq(watch.p), watching.eq(1), overridden.eq(0)]
        with m.Elif(start.valid):
            m.d.sync += [
                index.eq(0),
                walking.eq(1),
                sent.eq(0),
                listed.eq(0),
                control.busy.eq(1),
                number.eq(number + 1),
                *(look[name].eq(start.p.look[name]) for name in constants),
                session.eq(start.p.session),
            ]
            with m.If(~overridden & ~allocated):
                m.d.sync += look.newest.eq(start.p.look.newest)
        with m.Elif(control.busy & walked & (sent == listed)):
            m.d.sync += [control.busy.eq(0), watching.eq(0)]
        started = Signal()  # before the first clock edge inputs mean nothing
        m.d.sync += [
            started.eq(1),
            Assert(~started | ~(start.valid & control.busy)),
            Assert(~started | ~start.valid | watching),
            Assert(listed <= sent),
            Assert(~started | ~mine | control.busy, "a scan came back outside its sweep"),
            Assert(~started | ~mine | ~watching, "a scan came back before its result"),
        ]

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What LRU over the whole pool would have read from flash, and so the credit of policy `kelp`'s
prefetch. About 13 cycles an event, off every path (docs/policy.md)."""

from __future__ import annotations

from amaranth.hdl import Array, Assert, Cat, Module, Mux, Signal, signed
from amaranth.lib import data, fifo, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config
from kelp_spec.metadata import STEP_BITS
from kelp_spec.policy import CREDIT_MOST, OCTILE_BITS, SHADOW_STEPS

from ..lib.sram import Sram

__all__ = ["LruShadow", "shadow_event_layout"]

_BUCKET_BITS = STEP_BITS + OCTILE_BITS
_CREDIT_BITS = CREDIT_MOST.bit_length() + 1


def shadow_event_layout(config: Config) -> data.StructLayout:
    """`access`: the first demand of a page in `step`, its access before in `last` unless it is
    `new`. `read`: it, or a prefetch, reads flash."""
    return data.StructLayout(
        {
            "access": 1,
            "read": 1,
            "opened": 1,
            "session": config.session_bits,
            "octile": OCTILE_BITS,
            "step": STEP_BITS,
            "last": STEP_BITS,
            "new": 1,
        }
    )


class _Ring:
    """One session's ring of buckets, a step and its octile each, and the bucket at hand."""

    def __init__(self, slot_bits: int, count_bits: int):
        self.boundary = Signal(_BUCKET_BITS)
        self.inside = Signal(count_bits)  #: pages in the buckets from the boundary on
        self.now = Signal(STEP_BITS)
        self.bucket = Signal(_BUCKET_BITS)
        self.clearing = Signal(slot_bits)
        # Of these numbers, a cycle later:
        self.steps = Signal()  #: steps have passed,
        self.leaps = Signal()  #: so many that all is forgotten
        self.long_ago = Signal()  #: the last access was too long ago to be in the ring
        self.old = Signal(_BUCKET_BITS)  #: the bucket that the one at hand takes the place of
        self.goes = Signal()  #: was a member
        self.below = Signal()  #: the bucket at hand lies below the boundary
        self.member = Signal()
        self.value = Signal(count_bits)


class LruShadow(wiring.Component):
    """Counts pages by (step, octile of queues) of their last access; those of the buckets from a
    boundary on would fill the pool under LRU.

    Latency: off every path. Events wait in a FIFO, and one that finds it full is lost,
    which spoils a count in the ring until its step is forgotten. An event takes about 13 cycles,
    26 more for each step that has passed; a session that opens clears its ring.

    Parameters
    ----------
    config : Config

    Members
    -------
    i : in, always-ready stream of shadow_event
    frames : in
        What LRU could fill.
    credit : out, signed
        Reads of LRU's that were not made, −CREDIT_MOST … CREDIT_MOST.
    lost : out
        Pulse per event that found no place.
    idle : out
    """

    DEPTH = 32

    def __init__(self, *, config: Config):
        self.config = config
        self.layout = shadow_event_layout(config)
        self.count_bits = max(config.page_words, 2).bit_length()
        super().__init__(
            {
                "i": In(stream.Signature(self.layout, always_ready=True)),
                "frames": In(self.count_bits),
                "credit": Out(signed(_CREDIT_BITS)),
                "lost": Out(1),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        c = self.config
        slot_bits = (SHADOW_STEPS - 1).bit_length() + OCTILE_BITS
        m.submodules.events = events = fifo.SyncFIFO(width=self.layout.size, depth=self.DEPTH)
        m.submodules.ring = Sram(depth=c.sessions << slot_bits, shape=self.count_bits)
        m.d.comb += [
            events.w_data.eq(self.i.p),
            events.w_en.eq(self.i.valid & events.w_rdy),
            self.lost.eq(self.i.valid & ~events.w_rdy),
        ]

        e, session = Signal(self.layout), Signal(range(max(2, c.sessions)))
        m.d.comb += session.eq(e.session)
        state = data.StructLayout(
            {"boundary": _BUCKET_BITS, "inside": self.count_bits, "now": STEP_BITS}
        )
        states = Array([Signal(state, name=f"state{k}") for k in range(c.sessions)])
        r = _Ring(slot_bits, self.count_bits)
        self._look(m, e, session, r)
        earn, spend = Signal(), Signal()
        with m.If(earn & (self.credit != CREDIT_MOST)):
            m.d.sync += self.credit.eq(self.credit + 1)
        with m.Elif(spend & (self.credit != -CREDIT_MOST)):
            m.d.sync += self.credit.eq(self.credit - 1)

        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += [self.idle.eq(~events.r_rdy & ~self.i.valid), events.r_en.eq(1)]
                m.d.sync += e.eq(events.r_data)
                with m.If(events.r_rdy):
                    m.next = "RECALL"
            with m.State("RECALL"):
                m.d.sync += [
                    r.boundary.eq(states[session].boundary),
                    r.inside.eq(states[session].inside),
                    r.now.eq(states[session].now),
                    r.clearing.eq(0),
                ]
                m.next = "COMPARE"
            with m.State("COMPARE"):
                m.next = "BEGIN"
            self._begin(m, e, r)
            self._forget(m, e, r)
            self._move(m, e, r, earn)
            self._advance(m, r)
            with m.State("SPEND"):
                m.d.comb += spend.eq(e.read)
                m.next = "DONE"
            with m.State("DONE"):
                after = states[session]
                with m.If(e.access | e.opened):
                    m.d.sync += [
                        after.boundary.eq(r.boundary),
                        after.inside.eq(r.inside),
                        after.now.eq(r.now),
                    ]
                m.next = "IDLE"
        return m

    def _look(self, m: Module, e, session: Signal, r: _Ring) -> None:
        """The bucket at hand, and what event `e` means to the ring."""
        ring, here = m.submodules.ring, Signal(len(r.clearing))
        ahead, since = Signal(STEP_BITS), Signal(STEP_BITS)
        m.d.sync += [
            r.steps.eq(ahead != 0),
            r.leaps.eq(ahead >= SHADOW_STEPS),
            r.long_ago.eq(since >= SHADOW_STEPS),
            r.below.eq((r.bucket + 1)[: _BUCKET_BITS + 1] < r.boundary),
            r.member.eq(r.bucket >= r.boundary),
            # Before step 256 there is nothing to forget.
            r.goes.eq((r.bucket[OCTILE_BITS:] >= SHADOW_STEPS) & (r.boundary <= r.old)),
            r.value.eq(ring.read_data),  # critical path: registered here, behind the block RAM
        ]
        m.d.comb += [
            here.eq(r.bucket),
            ahead.eq(e.step - r.now),
            since.eq(e.step - e.last),
            ring.read_address.eq(Cat(here, session)),
            ring.write_address.eq(Cat(here, session)),
            r.old.eq(r.bucket - (SHADOW_STEPS << OCTILE_BITS)),
        ]

    def _begin(self, m: Module, e, r: _Ring) -> None:
        """State BEGIN: what is to be done for the event, or first for the steps before it."""
        with m.State("BEGIN"):
            m.d.sync += r.bucket.eq(Cat(r.clearing, r.bucket[len(r.clearing) :]))
            with m.If(e.opened):
                m.next = "CLEAR"
            with m.Elif(~e.access):
                m.next = "SPEND"
            with m.Elif(r.leaps):
                m.next = "CLEAR"
            with m.Elif(r.steps):
                # The bucket that this step's takes the place of is 256 steps old.
                m.d.sync += [
                    r.now.eq(r.now + 1),
                    r.bucket.eq(Cat(r.clearing[:OCTILE_BITS], (r.now + 1)[:STEP_BITS])),
                ]
                m.next = "FORGET"
            with m.Else():
                m.d.sync += r.bucket.eq(Cat(e.octile, e.last))
                m.next = "LAST"

    def _forget(self, m: Module, e, r: _Ring) -> None:
        """States that clear the ring, or the buckets of one step. A bucket is read, kept, then
        written."""
        ring = m.submodules.ring
        with m.State("CLEAR"):
            # Everything is forgotten: the session is new, or has leapt.
            m.d.comb += [ring.write_en.eq(1), ring.write_data.eq(0)]
            m.d.sync += [
                r.clearing.eq(r.clearing + 1),
                r.bucket.eq(r.bucket + 1),
                r.inside.eq(0),
                r.now.eq(Mux(e.opened, 0, e.step)),
                r.boundary.eq(Mux(e.opened, 0, Cat(e.octile & 0, e.step))),
            ]
            with m.If(r.clearing.all()):
                m.d.sync += r.clearing.eq(0)
                m.next = "COMPARE"
                with m.If(e.opened):
                    m.next = "DONE"
        with m.State("FORGET"):
            m.d.comb += ring.read_en.eq(1)
            m.next = "FORGETTING"
        with m.State("FORGETTING"):
            m.next = "FORGOTTEN"
        with m.State("FORGOTTEN"):
            m.d.comb += [ring.write_en.eq(1), ring.write_data.eq(0)]
            with m.If(r.goes):
                m.d.sync += [r.inside.eq(r.inside - r.value), r.boundary.eq(r.old + 1)]
            m.d.sync += [r.clearing.eq(r.clearing + 1), r.bucket.eq(r.bucket + 1)]
            m.next = "FORGET"
            with m.If(r.clearing[:OCTILE_BITS].all()):
                m.d.sync += r.clearing.eq(0)
                m.next = "COMPARE"

    def _move(self, m: Module, e, r: _Ring, earn: Signal) -> None:
        """States in which a page leaves the bucket of its last access and joins that of this
        one."""
        ring = m.submodules.ring
        with m.State("LAST"):
            m.d.comb += ring.read_en.eq(1)
            m.next = "LEAVING"
            with m.If(e.new | r.long_ago):
                m.next = "JOIN"
                m.d.sync += r.bucket.eq(Cat(e.octile, e.step))
        with m.State("LEAVING"):
            m.next = "LEAVE"
        with m.State("LEAVE"):
            m.d.comb += [
                earn.eq(r.below),
                ring.write_en.eq(1),
                ring.write_data.eq(Mux(r.value == 0, 0, r.value - 1)),
            ]
            with m.If((r.value != 0) & r.member):
                m.d.sync += r.inside.eq(r.inside - 1)
            m.d.sync += r.bucket.eq(Cat(e.octile, e.step))
            m.next = "JOIN"
        with m.State("JOIN"):
            m.d.comb += ring.read_en.eq(1)
            m.next = "JOINING"
        with m.State("JOINING"):
            m.next = "JOINED"
        with m.State("JOINED"):
            m.d.comb += [ring.write_en.eq(1), ring.write_data.eq(r.value + 1)]
            with m.If(r.member):
                m.d.sync += r.inside.eq(r.inside + 1)
            m.d.sync += r.bucket.eq(r.boundary)
            m.next = "FULL"

    def _advance(self, m: Module, r: _Ring) -> None:
        """States in which the boundary moves on until the pages from it on fill the pool."""
        with m.State("FULL"):
            m.d.comb += m.submodules.ring.read_en.eq(1)
            m.next = "SPEND"
            with m.If(r.inside > self.frames):
                m.next = "ADVANCING"
        with m.State("ADVANCING"):
            m.next = "ADVANCE"
        with m.State("ADVANCE"):
            m.d.sync += [
                r.inside.eq(r.inside - r.value),
                r.boundary.eq(r.boundary + 1),
                r.bucket.eq(r.bucket + 1),
                Assert(r.inside >= r.value),
            ]
            m.next = "FULL"

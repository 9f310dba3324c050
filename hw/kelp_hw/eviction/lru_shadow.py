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
        m.submodules.ring = ring = Sram(depth=c.sessions << slot_bits, shape=self.count_bits)
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
        boundary, inside, now = Signal(_BUCKET_BITS), Signal(self.count_bits), Signal(STEP_BITS)

        # The bucket at hand; a step and its octile make one.
        bucket, wanted, here = Signal(_BUCKET_BITS), Signal(_BUCKET_BITS), Signal(slot_bits)
        ahead, since, old = Signal(STEP_BITS), Signal(STEP_BITS), Signal(_BUCKET_BITS)
        value, member, clearing = Signal(self.count_bits), Signal(), Signal(slot_bits)
        # Of these numbers, a cycle later: steps have passed, so many that all is forgotten; so long
        # ago was the last access; the bucket that is forgotten was a member; the bucket lies below
        # the boundary.
        steps, leaps, long_ago, goes, below = Signal(), Signal(), Signal(), Signal(), Signal()
        m.d.sync += [
            steps.eq(ahead != 0),
            leaps.eq(ahead >= SHADOW_STEPS),
            long_ago.eq(since >= SHADOW_STEPS),
            below.eq((bucket + 1)[: _BUCKET_BITS + 1] < boundary),
            member.eq(bucket >= boundary),
            # Before step 256 there is nothing to forget.
            goes.eq((bucket[OCTILE_BITS:] >= SHADOW_STEPS) & (boundary <= old)),
            value.eq(ring.read_data),  # critical path: registered here, behind the block RAM
        ]
        m.d.comb += [
            here.eq(bucket),
            wanted.eq(Cat(e.octile, e.last)),
            ahead.eq(e.step - now),
            since.eq(e.step - e.last),
            ring.read_address.eq(Cat(here, session)),
            ring.write_address.eq(Cat(here, session)),
            old.eq(bucket - (SHADOW_STEPS << OCTILE_BITS)),
        ]
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
                    boundary.eq(states[session].boundary),
                    inside.eq(states[session].inside),
                    now.eq(states[session].now),
                    clearing.eq(0),
                ]
                m.next = "COMPARE"
            with m.State("COMPARE"):
                m.next = "BEGIN"
            with m.State("BEGIN"):
                m.d.sync += bucket.eq(Cat(clearing, bucket[slot_bits:]))
                with m.If(e.opened):
                    m.next = "CLEAR"
                with m.Elif(~e.access):
                    m.next = "SPEND"
                with m.Elif(leaps):
                    m.next = "CLEAR"
                with m.Elif(steps):
                    # The bucket that this step's takes the place of is 256 steps old.
                    m.d.sync += [
                        now.eq(now + 1),
                        bucket.eq(Cat(clearing[:OCTILE_BITS], (now + 1)[:STEP_BITS])),
                    ]
                    m.next = "FORGET"
                with m.Else():
                    m.d.sync += bucket.eq(wanted)
                    m.next = "LAST"
            with m.State("CLEAR"):
                # Everything is forgotten: the session is new, or has leapt.
                m.d.comb += [ring.write_en.eq(1), ring.write_data.eq(0)]
                m.d.sync += [
                    clearing.eq(clearing + 1),
                    bucket.eq(bucket + 1),
                    inside.eq(0),
                    now.eq(Mux(e.opened, 0, e.step)),
                    boundary.eq(Mux(e.opened, 0, Cat(e.octile & 0, e.step))),
                ]
                with m.If(clearing.all()):
                    m.d.sync += clearing.eq(0)
                    m.next = "COMPARE"
                    with m.If(e.opened):
                        m.next = "DONE"
            # A bucket is read, kept, then written.
            with m.State("FORGET"):
                m.d.comb += ring.read_en.eq(1)
                m.next = "FORGETTING"
            with m.State("FORGETTING"):
                m.next = "FORGOTTEN"
            with m.State("FORGOTTEN"):
                m.d.comb += [ring.write_en.eq(1), ring.write_data.eq(0)]
                with m.If(goes):
                    m.d.sync += [inside.eq(inside - value), boundary.eq(old + 1)]
                m.d.sync += [clearing.eq(clearing + 1), bucket.eq(bucket + 1)]
                m.next = "FORGET"
                with m.If(clearing[:OCTILE_BITS].all()):
                    m.d.sync += clearing.eq(0)
                    m.next = "COMPARE"
            with m.State("LAST"):
                m.d.comb += ring.read_en.eq(1)
                m.next = "LEAVING"
                with m.If(e.new | long_ago):
                    m.next = "JOIN"
                    m.d.sync += bucket.eq(Cat(e.octile, e.step))
            with m.State("LEAVING"):
                m.next = "LEAVE"
            with m.State("LEAVE"):
                m.d.comb += [
                    earn.eq(below),
                    ring.write_en.eq(1),
                    ring.write_data.eq(Mux(value == 0, 0, value - 1)),
                ]
                with m.If((value != 0) & member):
                    m.d.sync += inside.eq(inside - 1)
                m.d.sync += bucket.eq(Cat(e.octile, e.step))
                m.next = "JOIN"
            with m.State("JOIN"):
                m.d.comb += ring.read_en.eq(1)
                m.next = "JOINING"
            with m.State("JOINING"):
                m.next = "JOINED"
            with m.State("JOINED"):
                m.d.comb += [ring.write_en.eq(1), ring.write_data.eq(value + 1)]
                with m.If(member):
                    m.d.sync += inside.eq(inside + 1)
                m.d.sync += bucket.eq(boundary)
                m.next = "FULL"
            with m.State("FULL"):
                m.d.comb += ring.read_en.eq(1)
                m.next = "SPEND"
                with m.If(inside > self.frames):
                    m.next = "ADVANCING"
            with m.State("ADVANCING"):
                m.next = "ADVANCE"
            with m.State("ADVANCE"):
                m.d.sync += [
                    inside.eq(inside - value),
                    boundary.eq(boundary + 1),
                    bucket.eq(bucket + 1),
                    Assert(inside >= value),
                ]
                m.next = "FULL"
            with m.State("SPEND"):
                m.d.comb += spend.eq(e.read)
                m.next = "DONE"
            with m.State("DONE"):
                after = states[session]
                with m.If(e.access | e.opened):
                    m.d.sync += [
                        after.boundary.eq(boundary),
                        after.inside.eq(inside),
                        after.now.eq(now),
                    ]
                m.next = "IDLE"
        return m

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Credits of the three channels of a direction, at both ends of the link. All counts are since
reset, modulo 2^8, so that a flit that was refused loses none and doubles none. A change is seen
after 1 cycle, one a cycle."""

from __future__ import annotations

from amaranth.hdl import Assert, Module, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.flit import COUNT_BITS, MOST_CREDITS

from .layouts import GRANTED, TOLD

__all__ = ["CreditReceiver", "CreditSender"]

_CHANNELS = 3


class CreditSender(wiring.Component):
    """What may be sent. A channel begins without credits and has those that the other end allows.

    Latency: `LATENCY` cycle from `heard` or `takes` to `left`. Each channel may take one credit a
    cycle (`INTERVAL`). Errors: more than `MOST_CREDITS` at once, or a count that goes back, is
    ignored and told by `wrong`. A message without a credit is an assertion.

    Members
    -------
    heard : in, TOLD
        How many messages the other end has allowed on a channel since reset.
    takes : in
        A bit for each channel: a message goes into the flit.
    closes : in
        The flit ends with this cycle's messages.
    left : out
        A bit for each channel: it has a credit.
    before : out
        The messages of each channel that were in flits before the present one.
    wrong : out
    """

    LATENCY = 1
    INTERVAL = 1

    def __init__(self):
        super().__init__(
            {
                "heard": In(TOLD),
                "takes": In(_CHANNELS),
                "closes": In(1),
                "left": Out(_CHANNELS),
                "before": Out(GRANTED),
                "wrong": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        for n in range(_CHANNELS):
            allowed = Signal(COUNT_BITS, name=f"allowed_{n}")
            sent = Signal(COUNT_BITS, name=f"sent_{n}")
            left, more = Signal(COUNT_BITS), Signal(COUNT_BITS)
            after = Signal(COUNT_BITS)
            m.d.comb += [
                left.eq(allowed - sent),
                more.eq(self.heard.count - allowed),
                after.eq(sent + self.takes[n]),
                self.left[n].eq(left != 0),
            ]
            m.d.sync += [
                sent.eq(after),
                Assert(left <= MOST_CREDITS, "more credits than can be"),
                Assert(~self.takes[n] | self.left[n], "a message without a credit"),
            ]
            with m.If(self.closes):
                m.d.sync += self.before[n].eq(after)
            with m.If(self.heard.valid & (self.heard.channel == n)):
                with m.If((more > MOST_CREDITS) | (left + more > MOST_CREDITS)):
                    m.d.comb += self.wrong.eq(1)
                with m.Else():
                    m.d.sync += allowed.eq(self.heard.count)
        return m


class CreditReceiver(wiring.Component):
    """What may come: each channel has `credits` places, and is promised those that are free.

    Latency: `LATENCY` cycle from `takes` or `freed` to `granted`; `refuses` and `lost` are
    combinational. One flit in each cycle (`INTERVAL`). Errors: `refuses`. A place that is promised
    twice or to nobody is an assertion: for each channel promised + held = `credits`.

    Parameters
    ----------
    credits : int
        Of each channel.

    Members
    -------
    new : in
        Messages of each channel in the flit that came.
    told : in, TOLD
        How many messages of a channel were sent before it.
    refuses : out
        It has more messages than were allowed, or tells what cannot be.
    lost : out
        Messages that were sent before it and never came. Their credits are promised anew.
    takes : in
        The flit counts; it is not refused.
    freed : in
        A bit for each channel: a message has left its queue.
    granted : out
        Messages of each channel allowed since reset.
    """

    LATENCY = 1
    INTERVAL = 1
    #: Messages of a channel in a flit, at most.
    NEW_BITS = 5

    def __init__(self, *, credits: int):
        self.credits = credits
        super().__init__(
            {
                "new": In(data.ArrayLayout(self.NEW_BITS, _CHANNELS)),
                "told": In(TOLD),
                "refuses": Out(1),
                "lost": Out(COUNT_BITS),
                "takes": In(1),
                "freed": In(_CHANNELS),
                "granted": Out(GRANTED, init=[credits] * _CHANNELS),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.d.sync += Assert(~(self.takes & self.refuses), "a flit is taken that is refused")
        for n in range(_CHANNELS):
            received = Signal(COUNT_BITS, name=f"received_{n}")
            held = Signal(COUNT_BITS, name=f"held_{n}")
            free, missing = Signal(COUNT_BITS), Signal(COUNT_BITS)
            # What has been freed is promised anew, and so is what was lost.
            more, came = Signal(COUNT_BITS), Signal(COUNT_BITS)
            mine = self.told.valid & (self.told.channel == n)
            m.d.comb += [
                free.eq(self.granted[n] - received),
                missing.eq(self.told.count - received),
                came.eq(self.new[n] & self.takes.replicate(self.NEW_BITS)),
                more.eq(self.freed[n]),
            ]
            with m.If((self.new[n] > free) | (mine & (missing > free))):
                m.d.comb += self.refuses.eq(1)
            m.d.sync += [
                received.eq(received + came),
                held.eq(held + came - self.freed[n]),
                Assert(free + held == self.credits, "a credit is lost, or promised twice"),
            ]
            with m.If(mine):
                m.d.comb += self.lost.eq(missing)
            with m.If(mine & self.takes):
                m.d.comb += more.eq(missing + self.freed[n])
                m.d.sync += received.eq(received + missing + came)
            m.d.sync += self.granted[n].eq(self.granted[n] + more)
            m.d.sync += Assert(~self.freed[n] | (held != 0), "a place is freed twice")
        return m

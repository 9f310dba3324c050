# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Credits of a link of flits, for the solver, by induction: whatever flits are refused, and
whenever counts are told."""

from amaranth.hdl import Assert, Assume, Cover, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from kelp_hw.flit.credits import CreditReceiver, CreditSender
from kelp_spec.flit import COUNT_BITS

from .inside import register

__all__ = ["CreditsContract"]

_MINE = 2  #: the channel that is looked at; each is by itself
_PLACES = 22  #: of a flit


class CreditsContract(wiring.Component):
    """Both ends of a link, one channel of it. Each place of the receiver is promised to the sender,
    on its way there, taken by a message that was sent, or held: together `credits`, at every
    moment. So nothing that is sent with a credit is refused for want of one, no credit is lost for
    ever, and none is there twice. Flits `pass` or are lost; the sender's count is `told` with some;
    what is allowed is `heard` now and then."""

    def __init__(self, block=CreditReceiver, *, credits: int = 4):
        self.sender, self.receiver = CreditSender(), block(credits=credits)
        inputs = ("sends", "closes", "passes", "tells", "frees", "hears")
        super().__init__({name: In(1) for name in inputs})

    def elaborate(self, platform):
        m = Module()
        m.submodules.sender, m.submodules.receiver = sender, receiver = self.sender, self.receiver
        allowed, sent = register(sender, "allowed"), register(sender, "sent")
        received, held = register(receiver, "received"), register(receiver, "held")
        granted, before = receiver.granted[_MINE], sender.before[_MINE]

        def count(name, value):
            out = Signal(COUNT_BITS, name=name)
            m.d.comb += out.eq(value)
            return out

        left = count("left", allowed - sent)
        untold = count("untold", granted - allowed)
        astray = count("astray", sent - received)
        earlier = count("earlier", before - received)
        new = count("new", sent + self.sends - before)
        m.d.comb += [
            Assume(~self.sends | sender.left[_MINE]),
            Assume(~self.frees | (held != 0)),
            Assume(new <= _PLACES),
            sender.takes[_MINE].eq(self.sends),
            sender.closes.eq(self.closes),
            sender.heard.valid.eq(self.hears),
            sender.heard.channel.eq(_MINE),
            sender.heard.count.eq(granted),
            receiver.new[_MINE].eq(new),
            receiver.told.valid.eq(self.tells),
            receiver.told.channel.eq(_MINE),
            receiver.told.count.eq(before),
            receiver.takes.eq(self.closes & self.passes),
            receiver.freed[_MINE].eq(self.frees),
            *(Assert(part <= receiver.credits) for part in (left, untold, astray, held)),
            Assert(left + untold + astray + held == receiver.credits),
            Assert(earlier <= astray),
            Assert(~self.closes | ~receiver.refuses),
            Assert(~sender.wrong),
            Cover((receiver.lost != 0) & receiver.takes & self.tells & (held != 0)),
            Cover((left == 0) & (untold == 0) & (astray == receiver.credits)),
        ]
        return m

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The receiving end of one direction: flits into messages of three channels (docs/cxl.md, "Flits").
One message of each channel and one flit a cycle; a message leaves after 4 cycles."""

from __future__ import annotations

from types import SimpleNamespace

from amaranth.hdl import Assert, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.flit import (
    BYTE_ENABLES,
    CREDITS,
    DIRECTIONS,
    NARROW_BITS,
    NOTHING_TOLD,
    VERSION,
    WIDE_BITS,
    WIDE_KIND_BITS,
    Middle,
    Refusal,
    header_fields,
)

from ..layouts import MESSAGES
from ..lib.order_fifo import OrderFifo
from ..lib.protected import BlockFault, Fault, gather
from .credits import CreditReceiver
from .layouts import FLIT, GRANTED, PORTS, REFUSED, TOLD, chosen, code_words, lowest

__all__ = ["FlitUnpacker"]


class FlitUnpacker(wiring.Component):
    """A flit is judged as a whole in the cycle after it came; a refused one leaves nothing but its
    `Refusal`. Of one that counts, each channel's messages go into the channel's queue, one a cycle
    and all channels at once. A queue has a place for each credit, so that no channel waits for
    another's reader: the next flit waits for the longest list of messages in this one, no more.

    A DRS whose line has its second half in the next flit waits for that; where that flit has none,
    or was refused, it is delivered poisoned, its data zero, with the next flit that counts.

    A message whose header is beyond repair in its queue is dropped, and its place promised anew;
    one of whose line that is so is delivered poisoned, and with all its byte enables on where
    these are: `fault`.

    Latency: `LATENCY` cycles from a flit to its first messages. One message of each channel in each
    cycle, one flit in each cycle that has no more of any (`INTERVAL`). Errors: `told`.

    Parameters
    ----------
    direction : str
        One of `kelp_spec.flit.DIRECTIONS`.
    credits : int
        Of each channel; one of `CREDITS`.
    protect : bool
        The queues carry check bits.

    Members
    -------
    i : in, stream of FLIT
    m2s_<channel>, s2m_<channel> : out, streams of messages
        Those of the direction.
    heard : out, TOLD
        What the other end has allowed on the channels of the other direction.
    granted : out
        What this end allows.
    told : out, REFUSED
    fault : out, BlockFault
        Of the cycle before: a message was corrected, poisoned, or dropped (fatal).
    """

    LATENCY = 4
    INTERVAL = 1

    def __init__(self, *, direction: str, credits: int, protect: bool):
        if credits not in CREDITS:
            legal = ", ".join(map(str, CREDITS))
            raise ValueError(f"credits = {credits!r} is refused; legal: {legal}")
        self.direction, self.credits, self.protect = DIRECTIONS[direction], credits, protect
        super().__init__(
            {
                "i": In(stream.Signature(FLIT)),
                **{
                    PORTS[name]: Out(stream.Signature(MESSAGES[name]))
                    for name in self.direction.channels
                },
                "heard": Out(TOLD),
                "granted": Out(GRANTED),
                "told": Out(REFUSED),
                "fault": Out(BlockFault),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.credits = credits = CreditReceiver(credits=self.credits)
        m.d.comb += self.granted.eq(credits.granted)

        # The flit that came, and what is said of it.
        flit, here, moves = Signal(FLIT), Signal(), Signal()
        m.d.comb += self.i.ready.eq(~here | moves)
        with m.If(self.i.ready):
            m.d.sync += [here.eq(self.i.valid), flit.eq(self.i.p)]
        found = self._find(m, flit)
        good = self._judge(m, flit, here, found, credits)

        # The flit whose messages leave.
        work, ends = self._deliver(m, credits)
        m.d.comb += [moves.eq(here & (ends | ~good)), credits.takes.eq(moves & good)]
        m.d.sync += work.fresh.eq(0)
        with m.If(credits.takes):
            m.d.sync += [
                work.flit.eq(flit),
                work.fresh.eq(1),
                work.line.eq(0),
                *(work.left[kind].eq(found.kinds[kind]) for kind in work.left),
            ]
        counts = here & moves
        if self.direction.halves:
            missed = Signal()
            with m.If(counts):
                m.d.sync += missed.eq(~good)
            with m.If(credits.takes):
                m.d.sync += work.missed.eq(missed)
        m.d.comb += [
            self.told.refused.eq(counts & ~good),
            self.told.lost.eq(credits.lost & (counts & good).replicate(len(credits.lost))),
            self.heard.valid.eq(counts & good & (flit.told < 3)),
            self.heard.channel.eq(flit.told[:2]),
            self.heard.count.eq(flit.count),
        ]
        return m

    def _places(self, flit):
        """(kind, value) of each wide place, and narrow places, as their bits are."""
        bits = Value.cast(flit)
        wide, narrow = self.direction.places()
        return (
            [bits[at : at + WIDE_BITS] for _, at in wide],
            [bits[at : at + NARROW_BITS] for _, at in narrow],
        )

    def _find(self, m, flit):
        """Kind of content → a bit for each place of its size that holds such; reserved kinds."""
        d = self.direction
        wides, narrows = self._places(flit)
        holds = {
            "x": 1,
            "y": flit.middle == Middle.WIDE,
            "a": flit.lines < 1,
            "b": flit.lines < 2,
            "c": flit.lines < 3,
        }
        codes = [Signal(WIDE_KIND_BITS, name=f"code_{n}") for n in range(len(wides))]
        m.d.comb += [
            code.eq(Mux(holds[area], place[:WIDE_KIND_BITS], 0))
            for code, (area, _), place in zip(codes, d.places()[0], wides, strict=True)
        ]
        kinds = {kind: Cat(code == n + 1 for code in codes) for n, kind in enumerate(d.wide)}
        reserved = [code > len(d.wide) for code in codes] if len(d.wide) < 3 else []
        first, second = [], []
        for (area, _), place in zip(d.places()[1], narrows, strict=True):
            used = 1 if area == "x" else flit.middle == Middle.NARROW
            first.append(place[0] & used)
            second.append(~place[0] & place[1] & used)
        kinds[d.narrow[0]] = Cat(first)
        if len(d.narrow) > 1:
            kinds[d.narrow[1]] = Cat(second)
        else:
            reserved += second
        named = {
            kind: Signal(len(bits), name="found_" + _name(kind)) for kind, bits in kinds.items()
        }
        m.d.comb += [named[kind].eq(bits) for kind, bits in kinds.items()]
        return SimpleNamespace(kinds=named, reserved=Cat(reserved).any())

    def _judge(self, m, flit, here, found, credits):
        """Whether the flit counts; if not, why: the first reason of `Refusal`."""
        d = self.direction
        good, told = Signal(), flit.told
        number = {}
        for kind, bits in found.kinds.items():
            number[kind] = Signal(credits.NEW_BITS, name="number_" + _name(kind))
            m.d.comb += number[kind].eq(sum(bits))
        m.d.comb += [
            *(credits.new[n].eq(number[name]) for n, name in enumerate(d.channels)),
            credits.told.valid.eq((told >= 3) & (told < NOTHING_TOLD)),
            credits.told.channel.eq(told - 3),
            credits.told.count.eq(flit.count),
        ]
        starts = flit.lines + (flit.middle == Middle.FIRST) if d.halves else flit.lines
        unframed = number[d.carrier] != starts
        if BYTE_ENABLES in found.kinds:
            low = WIDE_KIND_BITS + _offset(d.carrier, "bep")
            wanting = Signal(credits.NEW_BITS)
            m.d.comb += wanting.eq(
                sum(
                    has & place[low]
                    for has, place in zip(
                        found.kinds[d.carrier], self._places(flit)[0], strict=True
                    )
                )
            )
            unframed = unframed | (number[BYTE_ENABLES] != wanting)
        encoding = found.reserved
        if not d.halves:
            encoding = encoding | (flit.middle >= Middle.FIRST)
        with m.If((flit.version != VERSION) | (told > NOTHING_TOLD)):
            m.d.comb += self.told.reason.eq(Refusal.HEADER)
        with m.Elif(encoding):
            m.d.comb += self.told.reason.eq(Refusal.ENCODING)
        with m.Elif(unframed):
            m.d.comb += self.told.reason.eq(Refusal.FRAMING)
        with m.Elif(credits.refuses):
            m.d.comb += self.told.reason.eq(Refusal.CREDIT)
        with m.Else():
            m.d.comb += good.eq(1)
        return good

    def _deliver(self, m, credits):
        """The messages of the flit at work into their queues. Whether this is its last cycle."""
        d = self.direction
        wides, _ = d.places()
        kinds = {
            kind: len(wides) if kind in d.wide else len(d.places()[1]) for kind in self._kinds()
        }
        work = SimpleNamespace(
            flit=Signal(FLIT),
            fresh=Signal(),  # its first cycle
            line=Signal(2),
            missed=Signal(),  # the flit before was refused
            left={kind: Signal(size, name="left_" + _name(kind)) for kind, size in kinds.items()},
        )
        wide_places, narrow_places = self._places(work.flit)
        ends, one, word = Signal(), {}, {}
        m.d.comb += ends.eq(1)
        for kind, left in work.left.items():
            one[kind] = Signal(len(left), name="one_" + _name(kind))
            m.d.comb += one[kind].eq(lowest(left))
            if kind in d.wide:
                cut, places = WIDE_KIND_BITS, wide_places
            else:
                cut, places = d.narrow.index(kind) + 1, narrow_places
            bits = 64 if kind == BYTE_ENABLES else sum(size for _, size in header_fields(kind))
            places = [place[cut : cut + bits] for place in places]
            word[kind] = chosen(m, one[kind], places, "word_" + _name(kind))
            if kind not in (d.carrier, BYTE_ENABLES):
                m.d.sync += left.eq(left & ~one[kind])
                with m.If((left & ~one[kind]).any()):
                    m.d.comb += ends.eq(0)
        rows = {name: self._queue(m, name, n, credits) for n, name in enumerate(d.channels)}
        if self.protect:
            faults = [row.faults for row in rows.values()]
            gather(
                m, self.fault, *(head for head, _ in faults), poisoned=[line for _, line in faults]
            )
        for name, row in rows.items():
            if name != d.carrier:
                m.d.comb += [row.valid.eq(work.left[name].any()), row.p.eq(word[name])]
        self._carry(m, work, one, word, rows[d.carrier], ends)
        return work, ends

    def _kinds(self):
        return (*self.direction.wide, *self.direction.narrow)

    def _carry(self, m, work, one, word, row, ends):
        """The channel whose messages have lines."""
        d = self.direction
        left, flit = work.left[d.carrier], work.flit
        message, line = Signal(MESSAGES[d.carrier]), Signal(512)
        at = 0
        for name, bits in header_fields(d.carrier):
            m.d.comb += message[name].eq(word[d.carrier][at : at + bits])
            at += bits
        with m.Switch(work.line):
            for n, area in enumerate("abc"):
                with m.Case(n):
                    m.d.comb += line.eq(flit[area])
        m.d.comb += [message.data.eq(line), row.p.eq(message)]
        if not d.halves:
            enables = work.left[BYTE_ENABLES]
            m.d.comb += [
                message.byte_enable.eq(Mux(message.bep, word[BYTE_ENABLES], ~0)),
                row.valid.eq(left.any()),
            ]
            with m.If(left.any()):
                m.d.sync += [left.eq(left & ~one[d.carrier]), work.line.eq(work.line + 1)]
                with m.If(message.bep):
                    m.d.sync += enables.eq(enables & ~one[BYTE_ENABLES])
            with m.If((left & ~one[d.carrier]).any()):
                m.d.comb += ends.eq(0)
            return
        owed, first = Signal(), Signal(MESSAGES[d.carrier])
        second = work.fresh & (flit.middle == Middle.SECOND)
        # Behind a refused flit it is another line's: the first half's own was in that flit.
        whole = second & ~work.missed
        halved = left.any() & (work.line == flit.lines)
        with m.If(work.fresh & owed):
            m.d.comb += [
                row.valid.eq(1),
                row.p.eq(first),
                row.p.data.eq(Mux(whole, Cat(first.data[:256], flit.y), 0)),
                row.p.poison.eq(first.poison | ~whole),
                self.told.orphans.eq(~whole + (second & ~whole)),
            ]
            m.d.sync += owed.eq(0)
            with m.If(left.any()):
                m.d.comb += ends.eq(0)
        with m.Else():
            m.d.comb += [row.valid.eq(left.any() & ~halved), self.told.orphans.eq(second)]
            m.d.sync += [left.eq(left & ~one[d.carrier]), work.line.eq(work.line + left.any())]
            with m.If(halved):
                m.d.sync += [owed.eq(1), first.eq(message), first.data.eq(flit.y)]
            with m.If((left & ~one[d.carrier]).any()):
                m.d.comb += ends.eq(0)

    def _queue(self, m, name, number, credits):
        """The channel's queue, which has a place for each credit; its writing end."""
        layout, port = MESSAGES[name], getattr(self, PORTS[name])
        row = SimpleNamespace(valid=Signal(name=f"{_name(name)}_valid"), p=Signal(layout))
        m.submodules[f"queue_{_name(name)}"] = queue = OrderFifo(
            width=layout.size,
            depth=self.credits,
            protect=self.protect,
            parts=code_words(name) if self.protect else None,
        )
        dropped = Signal(name=f"{_name(name)}_dropped")
        m.d.comb += [
            queue.i.valid.eq(row.valid),
            queue.i.p.eq(row.p),
            port.valid.eq(queue.o.valid & ~dropped),
            port.p.eq(queue.o.p),
            queue.o.ready.eq(port.ready | dropped),
            credits.freed[number].eq(queue.o.valid & queue.o.ready),
        ]
        if self.protect:
            row.faults = self._lost(m, queue, port, dropped)
        m.d.sync += Assert(~queue.i.valid | queue.i.ready, "a message without a place")
        return row

    @staticmethod
    def _lost(m, queue, port, dropped):
        """What becomes of a message that is beyond repair; faults of its header and of its line."""
        message = port.p.shape()(queue.o.p)
        poisoned = Signal(name=f"poisoned_{queue.width}")
        sizes = {name: field.width // 64 for name, field in port.p.shape()}
        enables, line = sizes.get("byte_enable", 0), sizes.get("data", 0)
        words = len(queue.lost)
        header = queue.lost[: words - enables - line]
        m.d.comb += dropped.eq(queue.o.valid & header.any())
        if line:
            spoiled = queue.lost[words - line :].any()
            if enables:
                which = queue.lost[words - line - enables]
                m.d.comb += port.p.byte_enable.eq(message.byte_enable | which.replicate(64))
                # A message that brought none has them all.
                spoiled = spoiled | (which & message.bep)
            m.d.comb += [
                port.p.poison.eq(message.poison | spoiled),
                poisoned.eq(spoiled & port.valid & port.ready),
            ]
        return (
            Fault(Cat(queue.fault.corrected, dropped)),
            Fault(Cat(Const(0, 1), poisoned)),
        )


def _name(kind):
    return PORTS.get(kind, "byte_enables")


def _offset(message, field):
    at = 0
    for name, bits in header_fields(message):
        if name == field:
            return at
        at += bits
    raise KeyError(field)

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""A look inside queues and memories, for proofs by induction.

An induction starts in *any* state that the Asserts allow, so they must say what a memory holds,
which a block does not show. :func:`open_up` elaborates a block ahead of time, so that a spec
reaches its submodules and gives a memory one more read port; of the block nothing changes.
:func:`register` and :func:`ongoing` read its own signals and its state machine. :func:`ends` is the
contract of everything that ends, and :class:`Follow` that of everything that queues: one element,
chosen by the solver, is followed from its arrival to its departure.
"""

import sys

from amaranth.asserts import AnySeq
from amaranth.hdl import Assert, Cat, Module, Mux, Signal, Value
from amaranth.lib.fifo import SyncFIFOBuffered

__all__ = [
    "Follow",
    "ends",
    "ongoing",
    "open_up",
    "places",
    "register",
    "row",
    "sound",
    "total",
    "word_at",
]


def open_up(component):
    """The submodules of `component`, by name. It may be opened more than once, before it is
    elaborated itself."""
    if not hasattr(component, "_opened"):
        names = {}

        def note(frame, event, _):
            if event == "return" and frame.f_locals.get("self") is component:
                names.update(frame.f_locals)

        before = sys.getprofile()
        sys.setprofile(note)
        try:
            module = component.elaborate(None)
        finally:
            sys.setprofile(before)
        component._opened, component._names = module.submodules, names
        component._machine = module._generated.get("fsm")
        component.elaborate = lambda platform: module
    return component._opened


def register(component, name: str) -> Signal:
    """The signal that a method of `component` calls `name` while it is elaborated."""
    open_up(component)
    return component._names[name]


def ongoing(component, *states: str) -> Value:
    """The state machine of `component` is in one of `states`."""
    open_up(component)
    machine = component._machine
    return Cat(machine.state == machine.encoding[state] for state in states).any()


def ends(m: Module, block, *, busy, waits, rank, most: int, again=0) -> None:
    """Assert that every run of `block`, a state machine, ends: in each cycle of it `rank` falls,
    unless the block `waits` for somebody else; then it does not rise. So a run takes at most `most`
    steps of the block's own, whenever the others answer. In a cycle of `again` the others have
    asked for more, and the steps count anew."""
    rank = Value.cast(rank)
    last, ran, step, more = Signal(range(most + 1)), Signal(), Signal(), Signal()
    m.d.sync += [last.eq(rank), ran.eq(busy), step.eq(~waits), more.eq(again)]
    m.d.comb += [
        Assert(ongoing(block, *block._machine.encoding)),
        Assert(~busy | (rank <= most)),
        Assert(~(busy & ran) | more | (rank + step <= last)),
    ]


def total(bits, width: int) -> Value:
    """How many of `bits` are set, in `width` bits: a plain ``sum`` grows by a bit with every
    term."""
    value = 0
    for bit in bits:
        value = (value + bit)[:width] if isinstance(value, Value) else Value.cast(value) + bit
    return Value.cast(value)[:width]


def row(m: Module, memory, address) -> Value:
    """What `memory` (a lib.memory one) holds at `address` now."""
    port = memory.read_port(domain="comb")
    m.d.comb += port.addr.eq(address)
    return port.data


def _ring(fifo):
    """Storage, oldest row and level of the part of a FIFO that is a ring."""
    # a block's of kelp_hw.lib, amaranth's
    storage = open_up(fifo).rows if hasattr(open_up(fifo), "rows") else open_up(fifo).storage
    buffered = isinstance(fifo, SyncFIFOBuffered)
    return (
        storage,
        storage.read_ports[0].addr,
        fifo.level - fifo.r_rdy if buffered else fifo.level,
        buffered,
    )


def sound(m: Module, fifo) -> None:
    """Assert that the pointers of a FIFO of amaranth.lib and its level agree."""
    storage, consume, level, buffered = _ring(fifo)
    produce, depth = storage.write_ports[0].addr, storage.depth
    end = consume + level
    m.d.comb += [
        Assert(consume < depth),
        Assert(produce < depth),
        Assert((level >= 0) & (level <= depth)),
        Assert(produce == Mux(end >= depth, end - depth, end)),
    ]
    if buffered:
        m.d.comb += Assert(fifo.r_rdy | (level <= 1))


def word_at(m: Module, fifo, place) -> Value:
    """The word with `place` others before it: 0 is the next to leave. Means nothing at or behind
    the FIFO's level."""
    storage, consume, _, buffered = _ring(fifo)
    index = Signal(range(2 * storage.depth + 1))
    m.d.comb += index.eq(consume + place - (fifo.r_rdy if buffered else 0))
    word = row(m, storage, Mux(index >= storage.depth, index - storage.depth, index))
    return Mux(fifo.r_rdy & (place == 0), fifo.r_data, word) if buffered else word


def places(m: Module, fifo) -> list[tuple[Value, Value]]:
    """(holds a word, the word) of every place of a FIFO, in no order."""
    storage, consume, level, buffered = _ring(fifo)
    found = [(fifo.r_rdy, fifo.r_data)] if buffered else []
    for k in range(storage.depth):
        behind = Mux(consume <= k, k - consume, k + storage.depth - consume)
        found.append((behind < level, row(m, storage, k)))
    return found


class Follow:
    """One element of a queue, any one, from its arrival to its departure: it leaves after exactly
    those that came before it, as it came; and no queue yields more than it was given.

    A word may arrive and leave in the same cycle when nothing is queued.

    Attributes
    ----------
    owed : words that arrived and have not left
    on, ahead, word : an element is followed; so many must leave before it; what it must look like
    leaving : it leaves now
    """

    def __init__(
        self, m: Module, *, arrives, word_in, leaves, word_out, most: int, name: str = "follow"
    ):
        word_in, word_out = Value.cast(word_in), Value.cast(word_out)
        self.owed, self.ahead = (
            Signal(range(most + 1), name=f"{name}_{part}") for part in ("owed", "ahead")
        )
        self.on, self.leaving, self.word = (
            Signal(name=f"{name}_on"),
            Signal(name=f"{name}_leaving"),
            Signal(len(word_in), name=f"{name}_word"),
        )
        begins = ~self.on & arrives & AnySeq(1)
        at_once = begins & (self.owed == 0) & leaves
        m.d.sync += self.owed.eq(self.owed + arrives - leaves)
        m.d.comb += [
            self.leaving.eq(leaves & (at_once | (self.on & (self.ahead == 0)))),
            Assert(~leaves | (self.owed != 0) | arrives),
            Assert(~self.on | (self.ahead < self.owed)),
            Assert(~self.leaving | (word_out == Mux(self.on, self.word, word_in))),
        ]
        with m.If(begins & ~at_once):
            m.d.sync += [self.on.eq(1), self.ahead.eq(self.owed - leaves), self.word.eq(word_in)]
        with m.Elif(self.on & leaves):
            m.d.sync += self.ahead.eq(self.ahead - 1)
            with m.If(self.leaving):
                m.d.sync += self.on.eq(0)

    def is_in(self, m: Module, fifo) -> None:
        """For the induction: the followed element is in `fifo`, at its place, and nothing else is
        owed."""
        sound(m, fifo)
        m.d.comb += [
            Assert(self.owed == fifo.level),
            Assert(~self.on | (word_at(m, fifo, self.ahead) == self.word)),
        ]

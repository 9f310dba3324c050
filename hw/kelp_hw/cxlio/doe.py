# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Data object exchange: words of a request in, words of the answer out, by configuration accesses.
A word is taken in 1 cycle."""

from __future__ import annotations

from amaranth.hdl import Assert, Module, Mux, Signal
from amaranth.lib import memory, stream, wiring
from amaranth.lib.wiring import In, Out

from ..lib.protected import BlockFault, CheckedWord
from .signatures import exchange_layout

__all__ = ["Doe"]

_ANSWER_WORDS = 16


class Doe(wiring.Component):
    """One data object at a time. Words that are written are the request until `go`; then `busy` is
    on until the sequencer has sent its answer; `ready` is on while words of it are left. Taking the
    last word, or `abort`, begins anew. A word or `go` while busy or ready, and `go` without a word,
    is an error, which `abort` clears. An answer to what has been aborted is dropped. A word of the
    answer that is beyond repair is an error too: it is not shown, and `ready` is off.

    Latency: `LATENCY` cycle from a word, `go`, `take` or `abort` to the state. Interval:
    `INTERVAL`.

    Parameters
    ----------
    protect : bool
        The answer's words carry check bits.

    Members
    -------
    word : In stream, always taken
        A word that the host writes.
    go, abort, take : in
        Pulses; `take`: the word at `read` has been read.
    read : out
        The next word of the answer, zero when there is none; 1 cycle after a `take`.
    busy, error, ready : out
    broken : out
        The word at `read` is beyond repair.
    o : Out stream of exchange_layout
        The request; it stands until the answer is sent.
    answer : In stream, always taken
        A word of the answer.
    send : in
        The answer is whole.
    fault : out, BlockFault
        Of the cycle before; `poisoned`: an answer is lost.
    """

    LATENCY = 1
    INTERVAL = 1

    def __init__(self, *, protect: bool = False):
        self.word_code = CheckedWord(32, protect=protect)
        #: The rows of the memory of that name.
        self.words = {"words": self.word_code}
        super().__init__(
            {
                "word": In(stream.Signature(32, always_ready=True)),
                "go": In(1),
                "abort": In(1),
                "take": In(1),
                "read": Out(32),
                "busy": Out(1),
                "error": Out(1),
                "ready": Out(1),
                "broken": Out(1),
                "o": Out(stream.Signature(exchange_layout(), always_ready=True)),
                "answer": In(stream.Signature(32, always_ready=True)),
                "send": In(1),
                "fault": Out(BlockFault),
            }
        )

    def elaborate(self, platform):
        m = Module()
        request, count = self.o.p, self.o.p.count
        # What the sequencer works on; it may have been aborted meanwhile.
        working, void = Signal(), Signal()
        code = self.word_code
        m.submodules.words = words = memory.Memory(
            shape=code.code_bits, depth=_ANSWER_WORDS, init=()
        )
        write = words.write_port()
        read = words.read_port(domain="comb")
        length, at = Signal(range(_ANSWER_WORDS + 1)), Signal(range(_ANSWER_WORDS + 1))
        left, wrong, broken = Signal(), Signal(), self.broken
        word, single, double = code.decode(m, read.data)
        free = ~self.busy & ~left
        m.d.comb += [
            self.o.valid.eq(working),
            left.eq((at != length) & ~self.busy),
            broken.eq(left & double.any()),
            self.ready.eq(left & ~broken),
            self.error.eq(wrong | broken),
            write.addr.eq(length),
            write.data.eq(code.encode(m, self.answer.p)),
            write.en.eq(self.answer.valid & working),
            read.addr.eq(at),
            self.read.eq(Mux(self.ready, word, 0)),
        ]
        was_broken = Signal()
        m.d.sync += [
            was_broken.eq(broken),
            self.fault.corrected.eq(self.take & self.ready & single.any()),
            self.fault.poisoned.eq(broken & ~was_broken),
            Assert(~(self.answer.valid & working & ~void) | (length < _ANSWER_WORDS), "no room"),
            Assert(~(self.busy & self.ready), "an answer of what is worked on"),
        ]
        with m.If(self.word.valid):
            with m.If(free & ~working):
                for i, part in enumerate((request.header, request.length, request.word)):
                    with m.If(count == i):
                        m.d.sync += part.eq(self.word.p)
                m.d.sync += count.eq(Mux(count == 7, 7, count + 1))
            with m.Else():
                m.d.sync += wrong.eq(1)
        with m.If(self.go):
            with m.If(free & ~working & (count != 0)):
                m.d.sync += [self.busy.eq(1), working.eq(1), void.eq(0)]
                m.d.sync += [length.eq(0), at.eq(0)]
            with m.Else():
                m.d.sync += wrong.eq(1)
        with m.If(self.answer.valid & working):
            m.d.sync += length.eq(length + 1)
        with m.If(self.send & working):
            m.d.sync += [working.eq(0), self.busy.eq(0), count.eq(0)]
            with m.If(void):
                m.d.sync += length.eq(0)
        with m.If(self.take & self.ready):
            m.d.sync += at.eq(at + 1)
        with m.If(self.abort):
            m.d.sync += [wrong.eq(0), void.eq(1), at.eq(0)]
            with m.If(~working | self.send):
                m.d.sync += [count.eq(0), length.eq(0)]
        return m

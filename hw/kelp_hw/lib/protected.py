# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Memories whose rows carry SECDED check bits (spec §4, docs/protection.md). Encoder and decoder
are combinational: one read and one write a cycle, with the latency of the bare memory."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Shape, Signal, Value
from amaranth.lib import data, fifo, wiring
from amaranth.lib.wiring import In, Out

from .secded import LaneSecded, Secded
from .sram import Sram

__all__ = [
    "BlockFault",
    "CheckedWord",
    "Fault",
    "ProtectedFifo",
    "ProtectedMemory",
    "fault_ports",
    "fifo_of",
    "gather",
    "gather_blocks",
    "memory_of",
    "merged",
    "used",
]


#: What check bits say of a word that is used: it has one flipped bit, which is corrected, or more,
#: and its content is not known.
Fault = data.StructLayout({"corrected": 1, "uncorrected": 1})

#: What a block made of the faults that it met in the cycle before: corrected; beyond repair, and
#: what it says is poison now; beyond repair and not to be rebuilt, so that no data may be answered.
BlockFault = data.StructLayout({"corrected": 1, "poisoned": 1, "fatal": 1})


def gather(m: Module, to, *faults, poisoned=()) -> None:
    """Registers faults in `to`, a BlockFault: an uncorrected one of `faults` (a `Fault` each) is
    fatal, one of `poisoned` is not. Faults of one cycle are one."""
    m.d.sync += [
        to.corrected.eq(Cat(fault.corrected for fault in (*faults, *poisoned)).any()),
        to.poisoned.eq(Cat(fault.uncorrected for fault in poisoned).any()),
        to.fatal.eq(Cat(fault.uncorrected for fault in faults).any()),
    ]


def gather_blocks(m: Module, to, *faults) -> None:
    """Joins what several parts of a block, a BlockFault each, have to say."""
    m.d.comb += [
        to[kind].eq(Cat(fault[kind] for fault in faults).any()) for kind in BlockFault.members
    ]


def merged(*faults) -> Value:
    """One `Fault` of several."""
    return Fault(
        Cat(
            Cat(fault.corrected for fault in faults).any(),
            Cat(fault.uncorrected for fault in faults).any(),
        )
    )


def used(fault, condition) -> Value:
    """`fault` where `condition` holds: the row is used in this cycle, not only read."""
    return Fault(Mux(condition, Value.cast(fault), 0))


def fault_ports(protect: bool, *names: str) -> dict:
    """Members of a block's signature, a `Fault` each: none where its memories have no check
    bits."""
    return dict.fromkeys(names, Out(Fault)) if protect else {}


def memory_of(make, *, depth: int, shape, protect: bool, **options) -> wiring.Component:
    """A :class:`ProtectedMemory` of the kind `make`, or, not protected, that memory itself: what is
    left out costs no gate."""
    if protect:
        return ProtectedMemory(make=make, depth=depth, shape=shape, protect=True, **options)
    return make(depth=depth, shape=shape, **options)


def fifo_of(make, *, depth: int, shape, protect: bool) -> wiring.Component | fifo.FIFOInterface:
    """A :class:`ProtectedFifo` of the kind `make`, or, not protected, that FIFO itself, whose data
    are bits without a shape."""
    if protect:
        buffered = make is fifo.SyncFIFOBuffered
        return ProtectedFifo(shape=shape, depth=depth, protect=True, buffered=buffered)
    return make(width=Shape.cast(shape).width, depth=depth)


class CheckedWord:
    """Check bits for a row of any shape: one code word of `Secded` for each of its parts. Its
    methods build combinational logic.

    Parameters
    ----------
    shape : shape-like
        Of a row.
    protect : bool
        Without it a code word is the row, and nothing is built.
    parts : sequence of int or None
        Bits of each part, lowest first, 1 … 64 each where `protect` is set; by default equal parts,
        as few as can be.

    Attributes
    ----------
    parts : tuple[int, ...]
    widths : tuple[int, ...]
        Bits of each part's code word.
    code_bits : int
        Bits of the row's code word.
    """

    MOST = 64

    def __init__(self, shape, *, protect: bool, parts=None):
        width = Shape.cast(shape).width
        if parts is None:
            count = -(-width // self.MOST)
            size = -(-width // count)
            parts = [min(size, width - low) for low in range(0, width, size)]
        self.parts, self.protect = tuple(parts), bool(protect)
        most = self.MOST if self.protect else width
        if sum(self.parts) != width or not all(1 <= size <= most for size in self.parts):
            raise ValueError(
                f"parts = {parts!r} is refused; legal: 1 … {most} bits each, {width} in all"
            )
        self._codes = [_code(size) for size in self.parts] if self.protect else []
        self.widths = (
            tuple(
                size + code.check_bits for size, code in zip(self.parts, self._codes, strict=True)
            )
            if self.protect
            else self.parts
        )
        self.code_bits = sum(self.widths)

    @property
    def columns(self) -> tuple[tuple[int, ...], ...]:
        """For each part, the syndrome of a flip of each bit of its code word. None without
        `protect`."""
        return (
            tuple(
                (*code.columns[:size], *code.columns[code.width :])
                for size, code in zip(self.parts, self._codes, strict=True)
            )
            if self.protect
            else ()
        )

    def encode(self, m: Module, value) -> Value:
        """The code word of a row, with logic in `m`."""
        value = Value.cast(value)
        if not self.protect:
            return value
        words, low = [], 0
        for size, code in zip(self.parts, self._codes, strict=True):
            part = Signal(size)
            m.d.comb += part.eq(value[low : low + size])
            words += [part, self._check(m, code, part)]
            low += size
        return Cat(words)

    def decode(self, m: Module, word) -> tuple[Value, Value, Value]:
        """(row with each part's single error corrected, parts with a single error, parts with an
        uncorrectable one) from a code word as read, with logic in `m`."""
        word = Value.cast(word)
        if not self.protect:
            return word, Const(0, len(self.parts)), Const(0, len(self.parts))
        rows, singles, doubles, low = [], [], [], 0
        for size, width, code in zip(self.parts, self.widths, self._codes, strict=True):
            part, syndrome = Signal(size), Signal(code.check_bits)
            m.d.comb += [
                part.eq(word[low : low + size]),
                syndrome.eq(self._check(m, code, part) ^ word[low + size : low + width]),
            ]
            if isinstance(code, LaneSecded):
                fixed, single, double = code.repair(m, part, syndrome)
            else:
                fixed, single, double = code.repair(part, syndrome)
            rows.append(fixed[:size])
            singles.append(single)
            doubles.append(double)
            low += width
        return Cat(rows), Cat(singles), Cat(doubles)

    @staticmethod
    def _check(m: Module, code, part: Signal) -> Value:
        """The check bits of a part."""
        if isinstance(code, LaneSecded):
            return code.check(m, part)
        return code.encode(Cat(part, Const(0, code.width - len(part))))[code.width :]


def _code(size: int) -> LaneSecded | Secded:
    """The code of a part of `size` bits."""
    return LaneSecded(size) if size >= LaneSecded.LEAST else Secded(max(4, size))


class ProtectedMemory(wiring.Component):
    """A memory of the kind `make` (`Sram`, `SplitSram`, `WideMemory`) whose rows carry check bits.

    Latency: `LATENCY` of the memory that `make` builds, which is 1 of `Sram`: encoder and decoder
    are combinational. One read and one write in each cycle (`INTERVAL`). Collisions and contents
    after configuration are those of `make`; a row that was never written may be no code word, so
    `fault` counts only where the reader uses the row. Not protected, it is that memory, and
    `corrected` and `uncorrected` are zero.

    With `scrub` a row that is read with a single error is written back when the write port is idle
    and the row is not being read; a write that comes first ends that. A row read in the cycle of a
    write is not written back.

    Parameters
    ----------
    depth : int
    shape : shape-like
        Of a row.
    protect : bool
    make : class
        The memory.
    parts : sequence of int or None
        As `CheckedWord` has them.
    scrub : bool
        For a `make` of `LATENCY` 1.
    granularity : int or None
        Of a `WideMemory`: bits of the row for each bit of `write_en`. Each of them is a part.
    options
        Further arguments of `make`.

    Members
    -------
    read_en, read_address : in
    read_data : out
        Corrected.
    write_en, write_address, write_data : in
    corrected, uncorrected : out
        A bit for each part of the row at `read_data`, with it and for as long.
    """

    LATENCY = Sram.LATENCY
    INTERVAL = 1

    def __init__(
        self,
        *,
        depth: int,
        shape,
        protect: bool,
        make=Sram,
        parts=None,
        scrub: bool = False,
        granularity: int | None = None,
        **options,
    ):
        width = Shape.cast(shape).width
        if granularity is not None:
            if granularity < 1 or width % granularity:
                raise ValueError(
                    f"granularity = {granularity!r} is refused; legal: a divisor of {width}"
                )
            parts = [granularity] * (width // granularity)
        if scrub and make.LATENCY != 1:
            raise ValueError(f"scrub of a {make.__name__} is refused; legal: a LATENCY of 1")
        self.word = CheckedWord(shape, protect=protect, parts=parts)
        self.scrub = scrub and self.word.protect
        if granularity is not None:
            options["granularity"] = self.word.widths[0]
        self.rows = make(depth=depth, shape=self.word.code_bits, **options)
        self.LATENCY = make.LATENCY
        members = self.rows.signature.members
        count = len(self.word.parts)
        super().__init__(
            {
                **{
                    name: members[name]
                    for name in ("read_en", "read_address", "write_en", "write_address")
                },
                "read_data": Out(shape),
                "write_data": In(shape),
                "corrected": Out(count),
                "uncorrected": Out(count),
            }
        )

    @property
    def fault(self) -> Value:
        """`Fault` of the row at `read_data`."""
        return Fault(Cat(self.corrected.any(), self.uncorrected.any()))

    def elaborate(self, platform):
        m = Module()
        m.submodules.rows = rows = self.rows
        word, single, double = self.word.decode(m, rows.read_data)
        m.d.comb += [
            Value.cast(self.read_data).eq(word),
            self.corrected.eq(single),
            self.uncorrected.eq(double),
            rows.read_en.eq(self.read_en),
            rows.read_address.eq(self.read_address),
            rows.write_en.eq(self.write_en),
            rows.write_address.eq(self.write_address),
            rows.write_data.eq(self.word.encode(m, self.write_data)),
        ]
        if not self.scrub:
            return m
        # The row is corrected in a register: a write that came between would be undone, so any
        # write ends it.
        fresh, address = Signal(), Signal.like(self.read_address)
        mend, mended, mended_at = Signal(), Signal(len(word)), Signal.like(self.read_address)
        # An op that will be refused may ask for a row that is not there, and see anything.
        there = rows.depth == 1 << len(address) or self.read_address < rows.depth
        m.d.sync += [
            fresh.eq(self.read_en & ~self.write_en.any() & there),
            address.eq(self.read_address),
        ]
        with m.If(self.write_en.any()):
            m.d.sync += mend.eq(0)
        with m.Elif(mend):
            with m.If(~(self.read_en & (self.read_address == mended_at))):
                m.d.sync += mend.eq(0)
                m.d.comb += [
                    rows.write_en.eq(~0),
                    rows.write_address.eq(mended_at),
                    rows.write_data.eq(self.word.encode(m, mended)),
                ]
        with m.Elif(fresh & self.corrected.any() & ~self.uncorrected.any()):
            m.d.sync += [mend.eq(1), mended.eq(word), mended_at.eq(address)]
        return m


class ProtectedFifo(wiring.Component):
    """A `SyncFIFO` or `SyncFIFOBuffered` of Amaranth whose rows carry check bits.

    Latency: `LATENCY` cycles from `w_en` to `r_rdy` when it is empty, 1 when not `buffered`:
    encoder and decoder are combinational. One item in and one out in each cycle (`INTERVAL`). A
    single error leaves with its item; nothing is written back. Not protected, it is that FIFO, and
    `fault` is zero.

    Parameters
    ----------
    shape : shape-like
        Of an item.
    depth : int
    protect : bool
    buffered : bool
        A `SyncFIFOBuffered`.

    Members
    -------
    w_data, w_en : in
    w_rdy, w_level : out
    r_en : in
    r_data, r_rdy, r_level : out
    fault : out, Fault
        `corrected` with `r_en` of an item that had one flipped bit, `uncorrected` as soon as an
        item stands at `r_data` that cannot be corrected.
    """

    LATENCY = 2
    INTERVAL = 1

    def __init__(self, *, shape, depth: int, protect: bool, buffered: bool = True):
        self.word = CheckedWord(shape, protect=protect)
        make = fifo.SyncFIFOBuffered if buffered else fifo.SyncFIFO
        self.fifo = make(width=self.word.code_bits, depth=depth)
        self.depth = depth
        self.LATENCY = 2 if buffered else 1
        level = range(depth + 1)
        super().__init__(
            {
                "w_data": In(shape),
                "w_en": In(1),
                "w_rdy": Out(1),
                "w_level": Out(level),
                "r_data": Out(shape),
                "r_en": In(1),
                "r_rdy": Out(1),
                "r_level": Out(level),
                "fault": Out(Fault),
            }
        )

    @property
    def level(self) -> Signal:
        """As a FIFO of Amaranth has it."""
        return self.w_level

    def elaborate(self, platform):
        m = Module()
        m.submodules.fifo = rows = self.fifo
        item, single, double = self.word.decode(m, rows.r_data)
        m.d.comb += [
            rows.w_data.eq(self.word.encode(m, self.w_data)),
            rows.w_en.eq(self.w_en),
            self.w_rdy.eq(rows.w_rdy),
            self.w_level.eq(rows.w_level),
            Value.cast(self.r_data).eq(item),
            rows.r_en.eq(self.r_en),
            self.r_rdy.eq(rows.r_rdy),
            self.r_level.eq(rows.r_level),
            self.fault.corrected.eq(rows.r_rdy & self.r_en & single.any()),
            self.fault.uncorrected.eq(rows.r_rdy & double.any()),
        ]
        return m

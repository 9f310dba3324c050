# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The built-in self-test: march over the memory, then the program of :mod:`.self_test_program`
through the endpoint's own channels. About 600 cycles an access, beside the memory test's time."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_hw.layouts import MESSAGES
from kelp_spec.messages import FIELDS, M2SReq, M2SRwD

from ..link.bridge import injected
from ..link.crc32 import INITIAL, crc32_step
from ..link.protocol import TO_DEVICE, Kind
from .self_test_program import FULL_LINE, INSTRUCTION, POISON, WRITTEN, Op, Part, Program, State

__all__ = ["SelfTest", "WatchedAnswer", "result_layout"]

_INSTRUCTION = data.StructLayout(dict(INSTRUCTION))
_WORD, _LINE = 8, 64  # bytes
#: the binary logarithm of cycles after which nothing will come any more; a reset scrub and a
#: session's closing take less
_SILENCE_LOG2 = 24

#: What became of each part.
result_layout = data.StructLayout({part.name.lower(): 2 for part in Part})


class WatchedAnswer(wiring.Signature):
    """An answer of the endpoint's, shown to the self-test while it stands at the bridge. No stream:
    the bridge takes the answer; `take` asks it to.

    Members
    -------
    payload, valid : Out
    take : In
    """

    def __init__(self, shape):
        super().__init__({"payload": Out(shape), "valid": Out(1), "take": In(1)})


class _Walk:
    """Where the program is, and the byte that is read, sent or looked at."""

    def __init__(self, rom_bytes: int):
        self.place = Signal(range(rom_bytes))  #: the next instruction
        self.step = Signal(_INSTRUCTION)  #: the one under way
        self.left = Signal(6)  #: repetitions of it
        self.k = Signal(range(max(TO_DEVICE.values()) + 1))  #: the byte
        # Cycles since it is this one, until it is there: the ROM's address and output and the parts
        # of an answer are in registers.
        self.settling = Signal(2)
        self.settled = Signal()
        self.address = Signal(range(rom_bytes))  #: of the ROM
        self.row = Signal(8)  #: what the ROM holds there
        self.write = self.step.op == Op.WRITE
        self.crc = Signal(32, init=INITIAL)  #: of the answers since the last CHECK
        self.answer = Signal(8)
        self.silence = Signal(_SILENCE_LOG2 + 1)  #: cycles since something last came
        self.at_rest = Signal()  #: critical path: registered here


class _Request:
    """The bytes of a request."""

    def __init__(self):
        self.index = Signal(6)  #: of a write's data, the byte
        self.carried = Signal(8)  #: the data begin within a byte: what is left of the one before
        self.last = Signal()


class SelfTest(wiring.Component):
    """The device is reset; the memory test runs; the device is reset again; the program runs, one
    request at a time, each when the endpoint is quiescent; the device is reset once more. What
    hangs on the endpoint's answers is held meanwhile (`busy`).

    Requests leave byte by byte, so that the bridge's own shift register makes messages of them; of
    answers a byte in four cycles is looked at.

    Latency: that of the memory test, then about 600 cycles an access.

    Parameters
    ----------
    program : Program

    Members
    -------
    start : In
        Begin; ignored while busy.
    busy, done, passed : Out
        `done` from the end of a test until the next begins.
    result : Out(result_layout)
        A `State` for each part.
    check : Out(9)
        256 and the number of the first CHECK that failed; otherwise 0.
    reset : Out
        Reset the device.
    memory_ready, ready, quiescent : In
        The memory and the endpoint take requests, and the latter is at rest, which may be some
        cycles behind. Low while the device is reset.
    march, march_done, march_wrong : Out, In, In
        The memory test's.
    flip : Out(2)
        The endpoint's `ecc_flip`.
    o : Out stream(injected)
        To the bridge: a message's bytes.
    owed : In
        The endpoint owes answers.
    drs, ndr : In, WatchedAnswer
        The endpoint's answers, while busy.
    """

    def __init__(self, *, program: Program):
        self.program = program
        super().__init__(
            {
                "start": In(1),
                "busy": Out(1),
                "done": Out(1),
                "passed": Out(1),
                "result": Out(result_layout),
                "check": Out(9),
                "reset": Out(1),
                "memory_ready": In(1),
                "ready": In(1),
                "quiescent": In(1),
                "march": Out(1),
                "march_done": In(1),
                "march_wrong": In(1),
                "flip": Out(2),
                "o": Out(stream.Signature(injected)),
                "owed": In(1),
                "drs": In(WatchedAnswer(MESSAGES["S2MDRS"])),
                "ndr": In(WatchedAnswer(MESSAGES["S2MNDR"])),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.rom = rom = memory.Memory(
            shape=8,
            depth=len(self.program.rom),
            init=self.program.rom,
            attrs={"ram_style": "block"},
        )
        port, walk = rom.read_port(), _Walk(len(self.program.rom))
        m.d.sync += walk.at_rest.eq(self.quiescent & ~self.owed)
        m.d.comb += [walk.settled.eq(walk.settling == 3), port.addr.eq(walk.address)]
        m.d.sync += [
            walk.silence.eq(walk.silence + 1),
            walk.address.eq(walk.place + walk.k),
            walk.row.eq(port.data),
        ]
        request = _Request()
        self._bytes(m, walk, request)
        self._look(m, walk)
        m.d.comb += self.passed.eq(
            self.done
            & (self.check == 0)
            & Cat(self.result[p.name.lower()] == State.PASSED for p in self.program.parts).all()
        )
        with m.FSM():
            self._begin(m, walk)
            self._fetch(m, walk)
            self._obey(m, walk)
            self._send(m, walk, request)
            self._answer(m, walk)
            self._rest(m, walk)
            with m.State("FINISH"):
                m.d.comb += self.reset.eq(1)
                m.d.sync += [self.busy.eq(0), self.done.eq(1)]
                m.next = "IDLE"
        return m

    def _to(self, m: Module, walk: _Walk, state: str) -> None:
        m.d.sync += [walk.silence.eq(0), walk.k.eq(0), walk.settling.eq(0)]
        m.next = state

    def _conclude(self, m: Module, part, state) -> None:
        with m.Switch(part):
            for each in Part:
                with m.Case(each):
                    m.d.sync += self.result[each.name.lower()].eq(state)

    def _give_up(self, m: Module, walk: _Walk, part) -> None:
        """What is waited for never comes."""
        self._conclude(m, part, State.SILENT)
        self._to(m, walk, "FINISH")

    def _bytes(self, m: Module, walk: _Walk, request: _Request) -> None:
        """A request's bytes to `o`."""
        step, k, write = walk.step, walk.k, walk.write
        read_bytes = Value.cast(_message("M2SReq", opcode=M2SReq.MEM_RD, address=step.address))
        enable = Mux(step.word == FULL_LINE, ~Const(0, 64), Const(0xFF, 64) << (step.word[:3] << 3))
        whole = Value.cast(
            _message(
                "M2SRwD",
                opcode=Mux(step.word == FULL_LINE, M2SRwD.MEM_WR, M2SRwD.MEM_WR_PTL),
                address=step.address,
                bep=step.word != FULL_LINE,
                byte_enable=enable,
            )
        )
        head_bits = len(whole) - 8 * _LINE
        head_bytes, skew = divmod(head_bits, 8)
        m.d.comb += request.index.eq(k - head_bytes)
        both = Cat(
            Mux(
                k == head_bytes,
                Cat(Const(0, 8 - skew), whole[8 * head_bytes : head_bits]),
                request.carried,
            ),
            Mux(k == head_bytes + _LINE, 0, walk.row),
        )
        byte = Mux(
            write,
            Mux(
                k < head_bytes,
                whole[: 8 * head_bytes].word_select(k[: (head_bytes - 1).bit_length()], 8),
                both[8 - skew : 16 - skew],
            ),
            read_bytes.word_select(k[:4], 8),
        )
        size = Mux(write, TO_DEVICE[Kind.RWD], TO_DEVICE[Kind.REQ])
        m.d.comb += [
            request.last.eq(k == size - 1),
            self.o.p.byte.eq(byte),
            self.o.p.last.eq(request.last),
            self.o.p.kind.eq(Mux(write, Kind.RWD, Kind.REQ)),
        ]

    def _look(self, m: Module, walk: _Walk) -> None:
        """An answer's byte. It is chosen among its neighbours in one cycle, among those in the
        next, and is there long before it goes into the sum."""
        near = Signal(data.ArrayLayout(8, _WORD))
        k = walk.k
        m.d.sync += [
            *(
                near[n].eq(self.drs.payload.data.word_select(n, 8 * _WORD).word_select(k[:3], 8))
                for n in range(_WORD)
            ),
            walk.answer.eq(
                Mux(
                    walk.write,
                    WRITTEN & ~0x7F | self.ndr.payload.opcode,
                    Mux(
                        k == _LINE,
                        self.drs.payload.opcode | Mux(self.drs.payload.poison, POISON, 0),
                        near[k[3:6]],
                    ),
                )
            ),
        ]

    def _begin(self, m: Module, walk: _Walk) -> None:
        """States from `start` to the program: the memory test between two resets."""
        with m.State("IDLE"):
            with m.If(self.start):
                m.d.comb += self.reset.eq(1)
                m.d.sync += [
                    self.busy.eq(1),
                    self.done.eq(0),
                    self.result.eq(0),
                    self.check.eq(0),
                    walk.place.eq(0),
                    walk.crc.eq(INITIAL),
                ]
                self._to(m, walk, "MEMORY")
        with m.State("MEMORY"):
            with m.If(self.ready & self.memory_ready):
                self._to(m, walk, "MARCH")
            with m.Elif(walk.silence[-1]):
                self._give_up(m, walk, Part.MEMORY)
        with m.State("MARCH"):
            # The memory test watches its own time: it ends when the memory answers.
            m.d.comb += self.march.eq(walk.settling == 0)
            m.d.sync += walk.settling.eq(Mux(walk.settled, walk.settling, walk.settling + 1))
            with m.If(walk.settled & self.march_done):
                m.d.comb += self.reset.eq(1)
                outcome = Mux(self.march_wrong, State.WRONG, State.PASSED)
                self._conclude(m, Const(Part.MEMORY), outcome)
                self._to(m, walk, "SETTLE")
        with m.State("SETTLE"):
            # A request of the host's may have stood at the endpoint's door.
            m.d.comb += [self.drs.take.eq(1), self.ndr.take.eq(1)]
            with m.If(self.ready & walk.at_rest & (walk.silence[:9] == 0x1FF)):
                self._to(m, walk, "FETCH")
            with m.Elif(walk.silence[-1]):
                self._give_up(m, walk, Part.LOOPBACK)

    def _fetch(self, m: Module, walk: _Walk) -> None:
        """State FETCH: an instruction's bytes from the ROM."""
        with m.State("FETCH"):
            m.d.sync += walk.settling.eq(Mux(walk.settled, 0, walk.settling + 1))
            with m.If(walk.settled):
                m.d.sync += [
                    walk.step.eq(Cat(Value.cast(walk.step)[8:], walk.row)),
                    walk.k.eq(walk.k + 1),
                ]
                with m.If(walk.k == _WORD - 1):
                    m.d.sync += walk.place.eq(walk.place + _WORD)
                    self._to(m, walk, "OBEY")

    def _obey(self, m: Module, walk: _Walk) -> None:
        """State OBEY: the sum is checked, or a request is sent."""
        step, result = walk.step, self.result
        with m.State("OBEY"):
            m.d.sync += walk.left.eq(step.repeat)
            self._to(m, walk, "SEND")
            with m.If(step.op == Op.END):
                self._to(m, walk, "FINISH")
            with m.Elif(step.op == Op.CHECK):
                self._to(m, walk, "FETCH")
                m.d.sync += walk.crc.eq(INITIAL)
                wrong = ~walk.crc != step.address[:32]
                with m.Switch(step.part):
                    for part in Part:
                        with m.Case(part):
                            state = result[part.name.lower()]
                            m.d.sync += state.eq(
                                Mux(wrong | (state == State.WRONG), State.WRONG, State.PASSED)
                            )
                with m.If(wrong & (self.check == 0)):
                    m.d.sync += self.check.eq(Cat(step.pointer[:8], 1))

    def _send(self, m: Module, walk: _Walk, request: _Request) -> None:
        """State SEND: the request's bytes leave."""
        step = walk.step
        with m.State("SEND"):
            m.d.comb += [self.o.valid.eq(walk.settled), self.flip.eq(step.flip)]
            with m.If(walk.write):
                of_line = Mux(step.word == FULL_LINE, request.index, request.index[:3])
                m.d.sync += walk.address.eq(Cat(of_line + (step.pointer << 3)))
            with m.If(~walk.settled):
                m.d.sync += walk.settling.eq(walk.settling + 1)
            with m.Elif(self.o.ready):
                m.d.sync += [
                    walk.settling.eq(0),
                    walk.k.eq(walk.k + 1),
                    request.carried.eq(walk.row),
                    walk.silence.eq(0),
                ]
                with m.If(request.last):
                    self._to(m, walk, "ANSWER")
            with m.If(walk.silence[-1]):
                self._give_up(m, walk, step.part)

    def _answer(self, m: Module, walk: _Walk) -> None:
        """State ANSWER: its bytes go into the sum."""
        write = walk.write
        with m.State("ANSWER"):
            m.d.comb += self.flip.eq(walk.step.flip)
            with m.If(Mux(write, self.ndr.valid, self.drs.valid) & ~walk.settled):
                m.d.sync += walk.settling.eq(walk.settling + 1)
            with m.Elif(walk.settled):
                m.d.sync += [
                    walk.settling.eq(0),
                    walk.crc.eq(crc32_step(walk.crc, walk.answer)),
                    walk.k.eq(walk.k + 1),
                    walk.silence.eq(0),
                ]
                with m.If(write | (walk.k == _LINE)):
                    m.d.comb += [self.ndr.take.eq(write), self.drs.take.eq(~write)]
                    self._to(m, walk, "REST")
            with m.Elif(walk.silence[-1]):
                self._give_up(m, walk, walk.step.part)

    def _rest(self, m: Module, walk: _Walk) -> None:
        """State REST: until the endpoint is quiescent; the next access, or the next instruction."""
        step = walk.step
        with m.State("REST"):
            m.d.comb += self.flip.eq(step.flip)
            with m.If(walk.at_rest & walk.silence[:4].all()):
                m.d.sync += [
                    walk.left.eq(walk.left - 1),
                    step.address.eq(step.address + 1),
                    step.pointer.eq(step.pointer + _LINE // _WORD),
                ]
                self._to(m, walk, "SEND")
                with m.If(walk.left == 0):
                    self._to(m, walk, "FETCH")
            with m.Elif(walk.silence[-1]):
                self._give_up(m, walk, step.part)


def _message(name: str, **values) -> Value:
    """A message's bits as kelp_spec.messages packs them; what is not named is 0."""
    assert set(values) <= {field for field, _ in FIELDS[name]}
    return Cat(
        Value.cast(values.get(field, 0))[:bits]
        if len(Value.cast(values.get(field, 0))) >= bits
        else Cat(values.get(field, 0), Const(0, bits - len(Value.cast(values.get(field, 0)))))
        for field, bits in FIELDS[name]
    )

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The built-in self-test: march over the memory, then the program of :mod:`.self_test_program`
through the endpoint's own channels."""

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

__all__ = ["SelfTest", "result_layout"]

_INSTRUCTION = data.StructLayout(dict(INSTRUCTION))
_WORD, _LINE = 8, 64  # bytes
#: the binary logarithm of cycles after which nothing will come any more; a reset scrub and a
#: session's closing take less
_SILENCE_LOG2 = 24

#: What became of each part.
result_layout = data.StructLayout({part.name.lower(): 2 for part in Part})


class SelfTest(wiring.Component):
    """The device is reset; the memory test runs; the device is reset again; the program runs, one
    request at a time, each when the endpoint is quiescent; the device is reset once more. What
    hangs on the endpoint's answers is held meanwhile (`busy`).

    Requests leave byte by byte, so that the bridge's own shift register makes messages of them; of
    answers a byte in four cycles is looked at.

    Time: that of the memory test, then about 600 cycles an access.

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
        The memory and the endpoint take requests, and the latter is at rest, which may come some
        cycles late. Low while the device is reset.
    march, march_done, march_wrong : Out, In, In
        The memory test's.
    flip : Out(2)
        The endpoint's `ecc_flip`.
    o : Out stream(injected)
        To the bridge: a message's bytes.
    owed : In
        The endpoint owes answers.
    drs, ndr : In stream
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
                "drs": In(stream.Signature(MESSAGES["S2MDRS"])),
                "ndr": In(stream.Signature(MESSAGES["S2MNDR"])),
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
        port, row = rom.read_port(), Signal(8)
        # `place`: the next instruction
        result, place = self.result, Signal(range(len(self.program.rom)))
        step, left = Signal(_INSTRUCTION), Signal(6)
        # Byte of what is read, sent or looked at; cycles since it is this one; it is there: the
        # ROM's address and output and the parts of an answer are in registers.
        k, settling, settled = Signal(range(max(TO_DEVICE.values()) + 1)), Signal(2), Signal()
        crc, silence = Signal(32, init=INITIAL), Signal(_SILENCE_LOG2 + 1)
        write, address = step.op == Op.WRITE, Signal.like(port.addr)
        at_rest = Signal()  # comes from far away
        m.d.sync += at_rest.eq(self.quiescent & ~self.owed)
        m.d.comb += [settled.eq(settling == 3), port.addr.eq(address)]
        m.d.sync += [silence.eq(silence + 1), address.eq(place + k), row.eq(port.data)]

        def to(state):
            m.d.sync += [silence.eq(0), k.eq(0), settling.eq(0)]
            m.next = state

        def conclude(part, state):
            with m.Switch(part):
                for each in Part:
                    with m.Case(each):
                        m.d.sync += result[each.name.lower()].eq(state)

        def wait(condition, state, part=step.part):
            """Go to `state` when `condition` holds; give up when it never does."""
            with m.If(condition):
                to(state)
            with m.Elif(silence[-1]):
                conclude(part, State.SILENT)
                to("FINISH")

        # - a request's bytes ----------------------------------------------------------------------
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
        # the data begin within a byte: what is left of one is sent with the next
        head_bytes, skew = divmod(head_bits, 8)
        late, index = Signal(8), Signal(6)
        m.d.comb += index.eq(k - head_bytes)
        both = Cat(
            Mux(k == head_bytes, Cat(Const(0, 8 - skew), whole[8 * head_bytes : head_bits]), late),
            Mux(k == head_bytes + _LINE, 0, row),
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
        last = k == Mux(write, TO_DEVICE[Kind.RWD], TO_DEVICE[Kind.REQ]) - 1
        m.d.comb += [
            self.o.p.byte.eq(byte),
            self.o.p.last.eq(last),
            self.o.p.kind.eq(Mux(write, Kind.RWD, Kind.REQ)),
        ]

        # - an answer's ----------------------------------------------------------------------------
        # A byte is chosen among its neighbours in one cycle, among those in the next, and is there
        # long before it goes into the sum.
        answer, near = Signal(8), Signal(data.ArrayLayout(8, _WORD))
        m.d.sync += [
            *(
                near[n].eq(self.drs.p.data.word_select(n, 8 * _WORD).word_select(k[:3], 8))
                for n in range(_WORD)
            ),
            answer.eq(
                Mux(
                    write,
                    WRITTEN & ~0x7F | self.ndr.p.opcode,
                    Mux(
                        k == _LINE,
                        self.drs.p.opcode | Mux(self.drs.p.poison, POISON, 0),
                        near[k[3:6]],
                    ),
                )
            ),
        ]

        m.d.comb += self.passed.eq(
            self.done
            & (self.check == 0)
            & Cat(result[p.name.lower()] == State.PASSED for p in self.program.parts).all()
        )
        with m.FSM():
            with m.State("IDLE"):
                with m.If(self.start):
                    m.d.comb += self.reset.eq(1)
                    m.d.sync += [
                        self.busy.eq(1),
                        self.done.eq(0),
                        result.eq(0),
                        self.check.eq(0),
                        place.eq(0),
                        crc.eq(INITIAL),
                    ]
                    to("MEMORY")
            with m.State("MEMORY"):
                wait(self.ready & self.memory_ready, "MARCH", Part.MEMORY)
            with m.State("MARCH"):
                # The memory test watches its own time: it ends when the memory answers.
                m.d.comb += self.march.eq(settling == 0)
                m.d.sync += settling.eq(Mux(settled, settling, settling + 1))
                with m.If(settled & self.march_done):
                    m.d.comb += self.reset.eq(1)
                    conclude(Const(Part.MEMORY), Mux(self.march_wrong, State.WRONG, State.PASSED))
                    to("SETTLE")
            with m.State("SETTLE"):
                # A request of the host's may have stood at the endpoint's door.
                m.d.comb += [self.drs.ready.eq(1), self.ndr.ready.eq(1)]
                wait(self.ready & at_rest & (silence[:9] == 0x1FF), "FETCH", Part.LOOPBACK)
            with m.State("FETCH"):
                m.d.sync += settling.eq(Mux(settled, 0, settling + 1))
                with m.If(settled):
                    m.d.sync += [step.eq(Cat(Value.cast(step)[8:], row)), k.eq(k + 1)]
                    with m.If(k == _WORD - 1):
                        m.d.sync += place.eq(place + _WORD)
                        to("OBEY")
            with m.State("OBEY"):
                m.d.sync += left.eq(step.repeat)
                to("SEND")
                with m.If(step.op == Op.END):
                    to("FINISH")
                with m.Elif(step.op == Op.CHECK):
                    to("FETCH")
                    m.d.sync += crc.eq(INITIAL)
                    wrong = ~crc != step.address[:32]
                    with m.Switch(step.part):
                        for part in Part:
                            with m.Case(part):
                                state = result[part.name.lower()]
                                m.d.sync += state.eq(
                                    Mux(wrong | (state == State.WRONG), State.WRONG, State.PASSED)
                                )
                    with m.If(wrong & (self.check == 0)):
                        m.d.sync += self.check.eq(Cat(step.pointer[:8], 1))
            with m.State("SEND"):
                m.d.comb += [self.o.valid.eq(settled), self.flip.eq(step.flip)]
                with m.If(write):
                    m.d.sync += address.eq(
                        Cat(Mux(step.word == FULL_LINE, index, index[:3]) + (step.pointer << 3))
                    )
                with m.If(~settled):
                    m.d.sync += settling.eq(settling + 1)
                with m.Elif(self.o.ready):
                    m.d.sync += [settling.eq(0), k.eq(k + 1), late.eq(row), silence.eq(0)]
                    with m.If(last):
                        to("ANSWER")
                with m.If(silence[-1]):
                    conclude(step.part, State.SILENT)
                    to("FINISH")
            with m.State("ANSWER"):
                m.d.comb += self.flip.eq(step.flip)
                with m.If(Mux(write, self.ndr.valid, self.drs.valid) & ~settled):
                    m.d.sync += settling.eq(settling + 1)
                with m.Elif(settled):
                    m.d.sync += [
                        settling.eq(0),
                        crc.eq(crc32_step(crc, answer)),
                        k.eq(k + 1),
                        silence.eq(0),
                    ]
                    with m.If(write | (k == _LINE)):
                        m.d.comb += [self.ndr.ready.eq(write), self.drs.ready.eq(~write)]
                        to("REST")
                with m.Elif(silence[-1]):
                    conclude(step.part, State.SILENT)
                    to("FINISH")
            with m.State("REST"):
                m.d.comb += self.flip.eq(step.flip)
                with m.If(at_rest & silence[:4].all()):
                    m.d.sync += [
                        left.eq(left - 1),
                        step.address.eq(step.address + 1),
                        step.pointer.eq(step.pointer + _LINE // _WORD),
                    ]
                    to("SEND")
                    with m.If(left == 0):
                        to("FETCH")
                with m.Elif(silence[-1]):
                    conclude(step.part, State.SILENT)
                    to("FINISH")
            with m.State("FINISH"):
                m.d.comb += self.reset.eq(1)
                m.d.sync += [self.busy.eq(0), self.done.eq(1)]
                m.next = "IDLE"
        return m


def _message(name: str, **values) -> Value:
    """A message's bits as kelp_spec.messages packs them; what is not named is 0."""
    assert set(values) <= {field for field, _ in FIELDS[name]}
    return Cat(
        Value.cast(values.get(field, 0))[:bits]
        if len(Value.cast(values.get(field, 0))) >= bits
        else Cat(values.get(field, 0), Const(0, bits - len(Value.cast(values.get(field, 0)))))
        for field, bits in FIELDS[name]
    )

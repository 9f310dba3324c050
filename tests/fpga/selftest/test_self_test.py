# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The built-in self-test: its sequencer against an endpoint that answers as told, and its program;
the whole board's is in tests/fpga/boards/test_board.py and tests/verif/fpga."""

import pytest
from amaranth.sim import Simulator

from kelp_fpga.configs import BOARD_CONFIGS, FIRST_LIGHT, board_config
from kelp_fpga.link.protocol import Kind, unpack
from kelp_fpga.selftest.self_test import SelfTest
from kelp_fpga.selftest.self_test_program import Part, State, Writer, program
from kelp_golden.codec import round_trip
from kelp_hw.layouts import MESSAGES
from kelp_spec.config import named
from kelp_spec.messages import FIELDS, S2MDRS

LINES = [bytes((7 * n + k) & 0xFF for k in range(64)) for n in range(4)]


def short_program():
    w = Writer(board_config("unit"))
    w.register("low_water", value=3)
    w.write(w.line(1, 2, 0, 0), LINES[0] + LINES[1], flip=2)
    w.read(w.line(1, 2, 0, 0), LINES[0] + LINES[1])
    w.check("two lines")
    w.part = Part.CODEC
    w.read(w.line(0, 0, 1, 3), LINES[2], status=S2MDRS.MEM_DATA_NXM)
    w.check("one line")
    w.part = Part.ECC
    w.read(w.line(0, 0, 0, 0), LINES[3])
    w.check("another")
    return w.finish()


def run(answers, *, march_wrong=0, last_ready=True):
    """The messages that the self-test sent, as (kind, fields, flip), and its result; `answers`: a
    line, its status, or None for silence."""
    dut = SelfTest(program=short_program())
    sent, out, waiting = [], {}, list(answers)

    async def bench(ctx):
        for name in ("memory_ready", "quiescent"):
            ctx.set(getattr(dut, name), 1)
        ctx.set(dut.march_wrong, march_wrong)
        ctx.set(dut.start, 1)
        body, resets = b"", 0
        for cycle in range(12_000):
            if ctx.get(dut.done):
                break
            ctx.set(dut.ready, int(last_ready or resets < 2))
            ctx.set(dut.o.ready, int(cycle % 3 != 0))
            ctx.set(dut.march_done, int(cycle > 40))
            if ctx.get(dut.reset):
                resets += 1
            if ctx.get(dut.o.valid) and ctx.get(dut.o.ready):
                byte = ctx.get(dut.o.p)
                body += bytes([byte.byte])
                if byte.last:
                    kind = Kind(byte.kind)
                    sent.append(
                        (
                            kind,
                            unpack(FIELDS["M2SRwD" if kind == Kind.RWD else "M2SReq"], body),
                            ctx.get(dut.flip),
                        )
                    )
                    body = b""
                    if kind == Kind.RWD:
                        ctx.set(dut.ndr.valid, 1)
                    elif (answer := waiting.pop(0)) is not None:
                        data, opcode, poison = answer
                        ctx.set(
                            dut.drs.payload,
                            {
                                "data": int.from_bytes(data, "little"),
                                "opcode": opcode,
                                "poison": poison,
                            },
                        )
                        ctx.set(dut.drs.valid, 1)
            taken = [
                channel
                for channel in (dut.drs, dut.ndr)
                if ctx.get(channel.valid) and ctx.get(channel.take)
            ]
            await ctx.tick()
            ctx.set(dut.start, 0)
            for channel in taken:
                ctx.set(channel.valid, 0)
        out.update(
            done=ctx.get(dut.done),
            passed=ctx.get(dut.passed),
            check=ctx.get(dut.check),
            resets=resets,
            **{part.name: State(ctx.get(dut.result[part.name.lower()])) for part in Part},
        )

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    return sent, out


RIGHT = [(LINES[0], 0, 0), (LINES[1], 0, 0), (LINES[2], S2MDRS.MEM_DATA_NXM, 0), (LINES[3], 0, 0)]


def test_right_answers_pass_and_requests_are_as_written():
    sent, out = run(RIGHT)
    assert out == {"done": 1, "passed": 1, "check": 0, "resets": 3} | {
        part.name: State.PASSED for part in Part
    }
    register, first, second, *reads = sent
    w = Writer(board_config("unit"))
    base = w.line(1, 2, 0, 0)
    assert (
        register[0] == Kind.RWD
        and register[1]["bep"] == 1
        and register[1]["byte_enable"] == 0xFF << 32
        and register[2] == 0
    )
    assert register[1]["data"] >> 256 & (1 << 64) - 1 == 3 and register[1]["opcode"] == 2
    for n, (kind, fields, flip) in enumerate((first, second)):
        assert kind == Kind.RWD and fields["data"].to_bytes(64, "little") == LINES[n] and flip == 2
        assert (fields["address"], fields["opcode"], fields["bep"], fields["byte_enable"]) == (
            base + n,
            1,
            0,
            (1 << 64) - 1,
        )
    assert [(kind, fields["address"], fields["opcode"], flip) for kind, fields, flip in reads] == [
        (Kind.REQ, address, 1, 0)
        for address in (base, base + 1, w.line(0, 0, 1, 3), w.line(0, 0, 0, 0))
    ]


@pytest.mark.parametrize(
    "wrong, part, check",
    [(0, Part.LOOPBACK, 0), (1, Part.LOOPBACK, 0), (2, Part.CODEC, 1), (3, Part.ECC, 2)],
)
@pytest.mark.parametrize("how", ["bit", "status", "poison"])
@pytest.mark.sampled
def test_a_wrong_answer_is_found_in_its_part(wrong, part, check, how):
    answers = list(RIGHT)
    data, opcode, poison = answers[wrong]
    broken = bytearray(data)
    broken[37] ^= 0x10 if how == "bit" else 0
    answers[wrong] = (bytes(broken), opcode ^ (how == "status"), poison ^ (how == "poison"))
    _, out = run(answers)
    assert not out["passed"] and out["check"] == 0x100 | check and out["done"]
    assert {p: out[p.name] for p in Part} == {
        p: State.WRONG if p == part else State.PASSED for p in Part
    }


def test_silence_ends_the_test(monkeypatch):
    monkeypatch.setattr("kelp_fpga.selftest.self_test._SILENCE_LOG2", 10)
    for answers, expected in (
        ([None], [State.PASSED, State.SILENT, State.NOT_RUN, State.NOT_RUN]),
        ([*RIGHT[:3], None], [State.PASSED, State.PASSED, State.PASSED, State.SILENT]),
    ):
        _, out = run(answers)
        assert out["done"] and not out["passed"] and [out[part.name] for part in Part] == expected
    _, out = run(RIGHT, last_ready=False)
    assert out["done"] and not out["passed"] and out["LOOPBACK"] == State.SILENT


def test_a_wrong_memory_is_told_apart():
    _, out = run(RIGHT, march_wrong=1)
    assert not out["passed"] and out["MEMORY"] == State.WRONG and out["CODEC"] == State.PASSED


def test_every_configuration_of_a_board_has_a_program():
    assert program(board_config(FIRST_LIGHT), round_trip).parts == {Part.MEMORY}
    for config in (config for name, config in BOARD_CONFIGS.items() if name != FIRST_LIGHT):
        made = program(config, round_trip)
        assert len(made.rom) <= 4096, "more than two block RAMs"
        assert made.parts == set(Part)
        assert len({what for _, what in made.checks if "of" in what}) == 3 + 2 * len(
            config.formats
        ) and made == program(config, round_trip)
        stored_as_is = program(config, lambda lines, host_type, fmt: lines)
        assert (stored_as_is.rom != made.rom) == config.codecs, (
            "the codec decides what must be seen"
        )
    with pytest.raises(ValueError, match="queues = 3"):
        program(named("unit").with_(queues=3), round_trip)


def test_the_messages_are_those_of_the_interface():
    assert MESSAGES["M2SRwD"].size == 657 and list(FIELDS["M2SRwD"])[-1] == ("data", 512), (
        "the self-test sends the data last"
    )

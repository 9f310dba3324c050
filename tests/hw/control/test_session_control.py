# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""SessionControl: how fast it answers a command, and how far apart commands are; the benches of the
registers and of the endpoint open and close sessions."""

import itertools

from simulation import simulate
from timing import changes, check_pace, varied

from kelp_hw.control.session_control import SessionControl, _StoredLines
from kelp_spec.config import named
from kelp_spec.formats import Format
from kelp_spec.geometry import stored_lines
from kelp_spec.registers import SessionCommand

UNIT = named("unit")
COMMAND = {
    "given.ld_id": 0,
    "registers.shape.0.layers": 1,
    "registers.shape.0.kv_heads": UNIT.queues,
    "registers.shape.0.used_lines": 1,
    "registers.shape.0.used_pages": 1,
    "configuration.ready": 1,
    "o_op.ready": 1,
}


def command(code):
    return {"given.command.valid": 1, "given.command.p.command": int(code)}


def test_latency():
    given = [command(SessionCommand.ADVANCE)]
    prepare = COMMAND | {"sessions.open": 1}
    check_pace(SessionControl(config=UNIT), "LATENCY", "o_op.valid", given, prepare=prepare)


def test_walk_latency():
    given = [command(SessionCommand.OPEN)]
    output = "configuration.write.valid"
    check_pace(SessionControl(config=UNIT), "WALK_LATENCY", output, given, prepare=COMMAND)


def test_commands_are_as_far_apart_as_their_interval():
    block = SessionControl(config=UNIT)
    given = [command(SessionCommand.ADVANCE)] * 80
    seen = changes(block, "o_op.valid", given, prepare=COMMAND | {"sessions.open": 1})
    assert seen[0:6:2] == [block.LATENCY + k * block.INTERVAL for k in range(3)]


def test_stored_lines_are_those_of_the_page():
    """Of every pair of formats and every number of lines, one a cycle."""
    config = named("llama70b")
    dut, seen = _StoredLines(config=config), []
    numbers = range(1, config.half_lines + 1)
    pages = [*itertools.product(Format, Format, numbers, (0, 1))]

    async def bench(ctx):
        for page in pages:
            names = ("format_k", "format_v", "used_lines", "k_only")
            for name, value in zip(names, page, strict=True):
                ctx.set(getattr(dut, name), int(value))
            await ctx.tick()
            seen.append(ctx.get(dut.lines))

    simulate(dut, bench)
    assert seen == [stored_lines(*page) for page in pages]


def test_stored_lines_latency_and_interval():
    check_pace(
        _StoredLines(config=UNIT),
        "LATENCY",
        "lines",
        varied("format_k", [int(code) for code in (Format.INT4, Format.RAW16, Format.INT4)]),
        prepare={"used_lines": UNIT.half_lines, "k_only": 1, "format_k": int(Format.RAW16)},
    )

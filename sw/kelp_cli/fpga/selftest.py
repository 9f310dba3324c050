# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""A board's built-in self-test, started and shown (used by ``kelp fpga selftest``)."""

from __future__ import annotations

from ..output import UserError
from .page_words import wrong_page_word

__all__ = ["selftest"]


def selftest(host, first: int, lines: int | None) -> dict:
    """The bridge by its host, then the board by itself, and page words by the host again; what
    became of each part. The endpoint is as after a reset."""
    from kelp_fpga.board_registers import BoardRegister
    from kelp_fpga.link.host import BoardError
    from kelp_fpga.selftest.self_test_program import PART_NAMES, Part, State, program
    from kelp_golden.codec import round_trip

    host.wait("memory", 30)
    # The bridge there and back: every bit of a register, both ways.
    bridge = True
    for pattern in [*(1 << n for n in range(32)), 0x7E7E7E7E, 0x7D7D7D7D, 0xFFFFFFFF, 0]:
        host.board(BoardRegister.SCRATCH, pattern)
        bridge &= host.board(BoardRegister.SCRATCH) == pattern
    try:
        count = host.start_test(first, lines)
    except ValueError as error:
        raise UserError(str(error)) from None
    # 430 cycles a line and 150 000 for the rest, or far longer where somebody simulates: whoever
    # does has patience.
    host.wait("tested", 10 * host.patience + count / 100)
    passed, result, line, check = (
        host.status()["passed"],
        *map(
            host.board,
            (BoardRegister.TEST_RESULT, BoardRegister.TEST_DETAIL, BoardRegister.TEST_CHECK),
        ),
    )
    made = program(host.config, round_trip)
    states = {part: State(result >> 2 * part & 3) for part in Part}
    parts = {part: state.name.lower().replace("_", " ") for part, state in states.items()}
    if states[Part.MEMORY] == State.WRONG:
        parts[Part.MEMORY] = f"wrong: line {line}"
    if check:
        part, what = made.checks[check & 0xFF]
        parts[part] = f"wrong: {what}"
    parts |= dict.fromkeys(set(Part) - made.parts, "not on this bitstream")
    host.wait("ready", 60)
    words = "not on this bitstream"
    if Part.ECC in made.parts:
        try:
            wrong = wrong_page_word(host)
            words = f"wrong: {wrong}" if wrong else "passed"
            host.reset()
        except (BoardError, UserError) as error:
            # What the other parts came to is told all the same.
            words = f"silent: {error}"
    return {
        "passed": bridge and passed and words in ("passed", "not on this bitstream"),
        "config": host.config.name,
        "clock_hz": host.board(BoardRegister.CLOCK),
        "memory_lines": count,
        "bridge": "passed" if bridge else "wrong",
        **{PART_NAMES[part]: state for part, state in parts.items()},
        "page words": words,
        "frames_bad": host.link.bad,
        "frames_resent": host.link.resent,
        "polls": host.link.polls,
    }

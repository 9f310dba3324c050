# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""A board's host: which boards it speaks to, and which parts of the memory a self-test is started
on. Benches of whole boards,
in tests/fpga/boards, hold the rest."""

import contextlib

import pytest
from serial_board import SerialBoard

from kelp_fpga.board_registers import BoardRegister, Control
from kelp_fpga.configs import board_config
from kelp_fpga.link.host import BoardError, Host
from kelp_fpga.link.serial_port import SerialPort


class Registers(Host):
    """A host whose board is its registers alone."""

    def __init__(self, lines):
        self.held = {BoardRegister.LINES: lines}

    def board(self, register, value=None):
        if value is not None:
            self.held[register] = value
        return self.held[register]


@pytest.mark.parametrize("name", ["timeout", "patience"])
@pytest.mark.parametrize("silence", [0, -1, float("nan"), float("inf")])
def test_a_silence_that_never_ends_is_refused(name, silence):
    with pytest.raises(ValueError, match=f"{name} = {silence} is refused; legal: above 0"):
        Host(None, **{name: silence})


@pytest.mark.parametrize(
    ("asked", "first", "lines"), [((), 0, 64), ((60,), 60, 4), ((3, 7), 3, 7), ((63, 1), 63, 1)]
)
def test_a_self_test_of_part_of_the_memory(asked, first, lines):
    host = Registers(64)
    assert host.start_test(*asked) == lines
    assert host.held[BoardRegister.TEST_FIRST] == first
    assert host.held[BoardRegister.TEST_LINES] == lines
    assert host.held[BoardRegister.CONTROL] == 1 << Control.TEST


@pytest.mark.parametrize("asked", [(-1,), (64,), (0, 0), (0, 65), (63, 2), (1, 2**32 - 1)])
def test_a_self_test_does_not_wrap(asked):
    host = Registers(64)
    with pytest.raises(ValueError, match="is refused; the board has 64 lines"):
        host.start_test(*asked)
    assert host.held == {BoardRegister.LINES: 64}


def test_a_board_of_another_configuration_is_named_with_both_digests():
    small, unit = board_config("board_small"), board_config("unit")
    with SerialBoard() as board:
        both = rf"digest {unit.digest[:8]}…; 'board_small' has digest {small.digest}"
        port = SerialPort(board.port, 3_000_000)
        with contextlib.closing(port), pytest.raises(BoardError, match=both):
            Host(port, config=small)
        host = Host(SerialPort(board.port, 3_000_000))
        host.check_endpoint()
        board.core.window._constants["identity"] ^= 1 << 16
        with pytest.raises(BoardError, match="endpoint: .* version 0.1 .* this host version 1.1"):
            host.check_endpoint()
        host.close()

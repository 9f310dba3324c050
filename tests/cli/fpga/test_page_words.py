# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What `kelp fpga selftest` sees in a board's page words; the board is the golden device at the end
of a line."""

import pytest
from serial_board import SerialBoard

from cxl_kv.backends.golden import GoldenCore
from kelp_cli.fpga import page_words
from kelp_fpga.link.host import BoardError, Host
from kelp_fpga.link.serial_port import SerialPort


def look():
    with SerialBoard() as board:
        host = Host(SerialPort(board.port, 3_000_000))
        try:
            return page_words.wrong_page_word(host)
        finally:
            host.close()


@pytest.fixture
def changed(monkeypatch):
    """What a session's register `wanted` reads as becomes another value."""

    def change(wanted, into):
        read = GoldenCore._read_register

        def other(core, name, session):
            value = read(core, name, session)
            return into(value) if name == f"s{session}_{wanted}" else value

        monkeypatch.setattr(GoldenCore, "_read_register", other)

    return change


def test_a_sound_board():
    assert look() == ""


@pytest.mark.parametrize(
    ("bit", "said"),
    [
        (0, "state is 0x0, should be 0x1"),
        (9, "pinned is 0x1, should be 0x0"),
        (34, "last_step is 0x555554, should be 0x555555"),
    ],
)
def test_a_bit_that_is_another(changed, bit, said):
    changed("page_word", lambda word: word ^ 1 << bit)
    assert look() == f"queue 0, page 0: {said}"


def test_a_bit_of_the_step_that_is_never_0(changed):
    """It should be in the second step alone. Words of pages that were never written are 0."""
    changed("page_word", lambda word: word | (word != 0) << 34)
    assert look() == "queue 0, page 0: last_step is 0xaaaaab, should be 0xaaaaaa"


def test_a_command_that_never_ends(changed, monkeypatch):
    monkeypatch.setattr(page_words, "_POLLS", 5)
    changed("state", lambda state: state | 2)
    with pytest.raises(BoardError, match="still under way after 5 looks: PEEK"):
        look()

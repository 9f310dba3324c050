# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The smallest board on its SDRAM chip, by the host's own code: registers, a reset, LEDs, the
self-test's command. The endpoint on a board: tests/verif/fpga."""

import pytest
from command import kelp

from kelp_cli.fpga.selftest import selftest
from kelp_fpga.board_registers import IDENT, BoardRegister
from kelp_fpga.boards.board import SDRAM_LINES, Board
from kelp_fpga.configs import FIRST_LIGHT, board_config
from kelp_fpga.link.host import Host
from kelp_fpga.link.serial_port import SerialPort
from kelp_golden.codec import round_trip
from kelp_spec.config import named
from kelp_verif.fpga.sim_board import SimBoard

CONFIG = board_config(FIRST_LIGHT)


@pytest.fixture(scope="module")
def simulated():
    with SimBoard(Board(config=CONFIG, round_trip=round_trip, hz=80_000_000, divisor=4)) as board:
        yield board
        assert not board.violations


@pytest.fixture
def host(simulated):
    host = Host(SerialPort(simulated.port, 3_000_000), timeout=5, patience=60)
    yield host
    host.close()


def test_registers_and_a_reset(simulated, host):
    """A register that is written keeps its value, through a reset of the device too; what it is
    built from is told, and after a reset it is ready again."""
    assert host.board(BoardRegister.IDENT) == IDENT
    assert host.board(BoardRegister.DIGEST) == int(CONFIG.digest[:8], 16)
    assert host.board(BoardRegister.CLOCK) == 80_000_000
    first = host.board(BoardRegister.COLD_FIRST)
    assert first >= CONFIG.dram_lines
    assert first + host.board(BoardRegister.COLD_LINES) == host.board(BoardRegister.LINES)
    assert host.board(BoardRegister.LINES) == SDRAM_LINES
    host.board(BoardRegister.SCRATCH, 0xCAFE1234)
    before = host.board(BoardRegister.TIME)
    host.reset()
    status = host.status()
    assert status["memory"] and status["ready"] and not status["testing"]
    assert host.board(BoardRegister.SCRATCH) == 0xCAFE1234
    assert host.board(BoardRegister.TIME) > before
    assert simulated.leds & 0b111 == 0b111, "memory, endpoint, host"


def test_first_light(simulated, host):
    """By the host's own commands: memory is tested, the rest is said not to be there, requests are
    answered."""
    result = selftest(host, 100, 20)
    _, poison, nxm = host.read([0, 64])
    host.write([128], [bytes(64)])
    leds = simulated.leds
    host.close()
    replayed = kelp(
        "fpga",
        "replay",
        "data/traces/attn_0.npz",
        "--port",
        simulated.port,
        "--timeout",
        "5",
        "--patience",
        "60",
    )
    parts = "bridge", "memory march", "endpoint loop-back", "codec signature", "metadata ECC"
    parts += ("page words",)
    assert (
        result["passed"]
        and [result[part] for part in parts] == ["passed"] * 2 + ["not on this bitstream"] * 4
    )
    assert (
        replayed.returncode == 1
        and "for first light and has no endpoint" in replayed.stderr
        and "Traceback" not in replayed.stderr
    )
    assert (
        nxm.all()
        and not poison.any()
        and leds & 0b11000111 == 0b01000111
        and not simulated.violations
    )


def test_what_its_memory_does_not_hold_is_refused():
    with pytest.raises(ValueError, match="dram_lines"):
        Board(config=named("llama70b"), round_trip=round_trip, hz=80_000_000, divisor=27)
    with pytest.raises(ValueError, match="the board has 16, cold tier included"):
        Board(config=CONFIG, round_trip=round_trip, hz=80_000_000, divisor=27, block_lines=16)

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What the built-in self-test finds: the board of `unit` with faults in its codecs and its
metadata, one at a time. Slow: the model is built first."""

import pytest

from kelp_cli.fpga.selftest import selftest
from kelp_fpga.boards.board import Board
from kelp_fpga.configs import board_config
from kelp_fpga.link.host import BoardError, Host
from kelp_fpga.link.serial_port import SerialPort
from kelp_golden.codec import round_trip
from kelp_hw.export.verilog import to_verilog
from kelp_verif.fpga.faults import with_faults
from kelp_verif.fpga.sim_board import SimBoard
from kelp_verif.fpga.sim_top import BoardWithChip

PARTS = {
    "data_path.writes.quantiser": "codec signature",
    "data_path.head.dequantiser": "codec signature",
    "tracker.words": "page words",
}
EACH = 16

SMALL = r"""
module top(clk, o);
  input clk;
  output o;
  \top.part  part (.clk(clk), .o(o));
endmodule
module \top.part (clk, o);
  wire \$1 ;
  wire [3:0] \$2 ;
  wire \$3 ;
  wire \$4 ;
  assign \$1  = ~ clk;
  assign \$2  = 4'h3;
  assign \$3  = clk ? \$1  : 1'h0;
  assign \$4  = ~ clk;
  assign o = \$1 ;
endmodule
"""


def test_a_fault_is_put_where_there_is_place_for_one():
    text, [fault] = with_faults(SMALL, {".part": 1})
    assert (
        fault.n == 1
        and fault.line == r"assign \$1  = ~ clk;"
        and r"assign \$1  = (~ clk) ^ (top.fault == 1);" in text
    )
    # What computes the same, and what synthesis would merge with it, has the same fault.
    assert r"assign \$4  = (~ clk) ^ (top.fault == 1);" in text
    assert text.count("top.fault") == 2 and text.count("reg [31:0] fault") == 1
    with pytest.raises(ValueError, match="has 1 places for a fault; 2 are asked for"):
        with_faults(SMALL, {".part": 2})


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_the_self_test_finds_faults_where_they_are(monkeypatch):
    # nobody waits long for an endpoint that hangs
    monkeypatch.setattr("kelp_fpga.selftest.self_test._SILENCE_LOG2", 16)
    board = Board(
        config=board_config("unit"),
        round_trip=round_trip,
        hz=80_000_000,
        divisor=4,
        block_lines=512,
    )
    text, faults = with_faults(to_verilog(BoardWithChip(board)), dict.fromkeys(PARTS, EACH))
    found, placed = dict.fromkeys(PARTS, 0), dict.fromkeys(PARTS, 0)
    for fault in [None, *faults]:
        with SimBoard(
            board, verilog=text, name="board-faults", plusarg=f"+fault={fault.n}" if fault else ""
        ) as simulated:
            try:
                host = Host(SerialPort(simulated.port, 3_000_000), timeout=5, patience=20)
                result = selftest(host, 0, 8)
                host.close()
            except BoardError:
                result = {"passed": False}  # an Assert of the RTL stopped the simulation
        if fault is None:
            assert result["passed"]
            continue
        module = next(suffix for suffix in PARTS if fault.module.endswith(suffix))
        found[module] += not result["passed"]
        placed[module] += result.get(PARTS[module], "passed") != "passed"
        print(fault, result)
    print(f"found {found}, in the part that tests it {placed}, of {EACH} each")
    assert all(count >= 0.75 * EACH for count in found.values())

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Synthesis for simulation: a netlist does what its RTL does, cycle by cycle, with every kind of
cell that the board's has."""

import re

import pytest
from amaranth.hdl import Array, Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from kelp_hw.export.verilog import to_verilog
from kelp_hw.lib.wide_memory import WideMemory
from kelp_verif.fpga.netlist import CELLS, expressions, netlist
from kelp_verif.harness.runner import Model, run_cocotb

_BOTH = """
module top(clk, rst, i, o, p);
  input clk, rst;
  input [31:0] i;
  output [47:0] o, p;
  rtl rtl (.clk(clk), .rst(rst), .i(i), .o(o));
  mapped mapped (.clk(clk), .rst(rst), .i(i), .o(p));
endmodule
"""


class EveryCell(wiring.Component):
    """Registers with either reset value, enabled by either level, a carry chain, wide multiplexers,
    both kinds of memory."""

    i: In(32)
    o: Out(48)

    def elaborate(self, platform):
        m = Module()
        i = self.i
        total, falling, chosen = Signal(16), Signal(8, init=0xA5), Signal(8)
        m.d.sync += total.eq(total + (i[:16] & Mux(i[16], 0xFFFF, 0x00FF)))
        with m.If(~i[17]):
            m.d.sync += falling.eq(falling ^ i[:8])
        with m.If(i[18]):
            m.d.sync += chosen.eq(
                Array(i.rotate_left(n)[:8] ^ 37 * n & 0xFF for n in range(16))[i[20:24]]
            )
        for name, depth in (("small", 16), ("large", 64)):
            m.submodules[name] = rows = WideMemory(depth=depth, shape=8)
            bits = (depth - 1).bit_length()
            m.d.comb += [
                rows.read_en.eq(i[24]),
                rows.read_address.eq(i[:bits]),
                rows.write_en.eq(i[25]),
                rows.write_address.eq(i[6 : 6 + bits]),
                rows.write_data.eq(total[:8]),
            ]
            # What a memory's output register holds at power-up is left to chance.
            read = Signal(name=f"{name}_read")
            with m.If(i[24]):
                m.d.sync += read.eq(1)
            m.d.comb += self.o[32 if name == "small" else 40 :][:8].eq(Mux(read, rows.read_data, 0))
        m.d.comb += self.o[:32].eq(Cat(total, falling, chosen))
        return m


@pytest.mark.slow  # cells of an ECP5 are slow to compile
def test_a_netlist_does_what_its_rtl_does():
    text, cells = netlist(EveryCell(), name="every-cell")
    assert {"LUT4", "PFUMX", "L6MUX21", "CCU2C", "TRELLIS_FF", "TRELLIS_DPR16X4", "$mem_v2"} <= set(
        cells
    )
    both = (
        text.replace("module top(", "module mapped(") + to_verilog(EveryCell(), name="rtl") + _BOTH
    )
    result = run_cocotb(
        both,
        bench="kelp_verif.harness.netlist_bench",
        params={"cycles": 4000},
        timeout_s=100,
        model=Model(sources=[CELLS], build_args=[f"-I{CELLS.parent}"]),
    )
    assert result.records["different"] > 3000


def test_cells_are_written_as_what_they_compute():
    table = (
        "  LUT4 #(\n    .INIT(16'hc0a1)\n  ) \\x.y_Z  (\n    .A(1'h0),\n    .B(\\q "
        + "[47]),\n    .C(c[1]),\n    .D(\\d ),\n    .Z(\\x.y )\n  );\n"
    )
    # Of the rows with A = 0, from D C B = 000 on: 1 0 0 0 0 0 0 1 in c0a1.
    assert (
        expressions(f"a\n{table}b\n")
        == "a\n  assign \\x.y  = 8'h81 >> {\\d , c[1], \\q [47]};\nb\n"
    )
    parameters = {
        "CEMUX": "INV",
        "CLKMUX": "CLK",
        "GSR": "DISABLED",
        "LSRMUX": "LSR",
        "REGSET": "SET",
        "SRMODE": "LSR_OVER_CE",
    }
    pins = {"CE": "e", "CLK": "clk", "DI": "d", "LSR": "rst", "Q": "q[3]"}
    parameters, pins = (
        ",\n".join(f"    .{name}({value})" for name, value in each.items())
        for each in ({name: f'"{value}"' for name, value in parameters.items()}, pins)
    )
    register = f"  TRELLIS_FF #(\n{parameters}\n  ) r (\n{pins}\n  );\n"
    written = (
        "  reg \\r.q = 1'b1;\n  always @(posedge clk) if (rst) \\r.q <= 1'b1; else if "
        + "(!e) \\r.q <= d;\n  assign q[3] = \\r.q ;\n"
    )
    assert expressions(register) == written
    # What has no expression here stays a cell, with its model.
    other = register.replace("LSR_OVER_CE", "ASYNC")
    assert expressions(other) == other and re.search(
        r"module TRELLIS_FF\b", (CELLS.parent / "common_sim.vh").read_text(encoding="utf-8")
    )

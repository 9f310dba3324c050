// SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

// A memory whose ports are told zeros where they are not enabled, and bits that are not written: it
// does not look at them. For yosys's techmap, once.

(* techmap_celltype = "$mem_v2" *)
module looked_at(RD_CLK, RD_EN, RD_ARST, RD_SRST, RD_ADDR, RD_DATA, WR_CLK, WR_EN, WR_ADDR, WR_DATA);
  parameter MEMID = "";
  parameter signed SIZE = 4, OFFSET = 0, ABITS = 2, WIDTH = 8;
  parameter signed RD_PORTS = 1, WR_PORTS = 1;
  parameter INIT = 1'bx;
  parameter RD_CLK_ENABLE = 1'b1, RD_CLK_POLARITY = 1'b1, RD_CE_OVER_SRST = 1'b0;
  parameter RD_TRANSPARENCY_MASK = 1'b0, RD_COLLISION_X_MASK = 1'b0, RD_WIDE_CONTINUATION = 1'b0;
  parameter RD_ARST_VALUE = 1'bx, RD_SRST_VALUE = 1'bx, RD_INIT_VALUE = 1'bx;
  parameter WR_CLK_ENABLE = 1'b1, WR_CLK_POLARITY = 1'b1;
  parameter WR_PRIORITY_MASK = 1'b0, WR_WIDE_CONTINUATION = 1'b0;
  input [RD_PORTS-1:0] RD_CLK, RD_EN, RD_ARST, RD_SRST;
  input [RD_PORTS*ABITS-1:0] RD_ADDR;
  output [RD_PORTS*WIDTH-1:0] RD_DATA;
  input [WR_PORTS-1:0] WR_CLK;
  input [WR_PORTS*WIDTH-1:0] WR_EN, WR_DATA;
  input [WR_PORTS*ABITS-1:0] WR_ADDR;
  wire [RD_PORTS*ABITS-1:0] read;
  wire [WR_PORTS*ABITS-1:0] written;
  genvar n;
  generate
    for (n = 0; n < RD_PORTS; n = n + 1)
      assign read[n*ABITS +: ABITS] = RD_ADDR[n*ABITS +: ABITS] & {ABITS{RD_EN[n]}};
    for (n = 0; n < WR_PORTS; n = n + 1)
      assign written[n*ABITS +: ABITS] = WR_ADDR[n*ABITS +: ABITS] & {ABITS{|WR_EN[n*WIDTH +: WIDTH]}};
  endgenerate
  \$mem_v2 #(
    .MEMID(MEMID), .SIZE(SIZE), .OFFSET(OFFSET), .ABITS(ABITS), .WIDTH(WIDTH), .INIT(INIT),
    .RD_PORTS(RD_PORTS), .RD_CLK_ENABLE(RD_CLK_ENABLE), .RD_CLK_POLARITY(RD_CLK_POLARITY),
    .RD_TRANSPARENCY_MASK(RD_TRANSPARENCY_MASK), .RD_COLLISION_X_MASK(RD_COLLISION_X_MASK),
    .RD_WIDE_CONTINUATION(RD_WIDE_CONTINUATION), .RD_CE_OVER_SRST(RD_CE_OVER_SRST),
    .RD_ARST_VALUE(RD_ARST_VALUE), .RD_SRST_VALUE(RD_SRST_VALUE), .RD_INIT_VALUE(RD_INIT_VALUE),
    .WR_PORTS(WR_PORTS), .WR_CLK_ENABLE(WR_CLK_ENABLE), .WR_CLK_POLARITY(WR_CLK_POLARITY),
    .WR_PRIORITY_MASK(WR_PRIORITY_MASK), .WR_WIDE_CONTINUATION(WR_WIDE_CONTINUATION)
  ) _TECHMAP_REPLACE_ (
    .RD_CLK(RD_CLK), .RD_EN(RD_EN), .RD_ARST(RD_ARST), .RD_SRST(RD_SRST), .RD_ADDR(read),
    .RD_DATA(RD_DATA), .WR_CLK(WR_CLK), .WR_EN(WR_EN), .WR_ADDR(written),
    .WR_DATA(WR_DATA & WR_EN)
  );
endmodule

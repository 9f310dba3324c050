// SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
// Lines of 64 bytes in UltraRAM: one read and one write port on one clock, a write enable for each byte, read latency one cycle; read_data holds while
// read_en is low. A read of the address that is written in the same cycle returns what either port would. Power-up contents are undefined.
module kelp_line_ram #(
    parameter DEPTH = 4096,
    parameter ADDRESS_WIDTH = 12
) (
    input  wire                     clk,
    input  wire                     read_en,
    input  wire [ADDRESS_WIDTH-1:0] read_address,
    output reg  [511:0]             read_data,
    input  wire [63:0]              write_en,
    input  wire [ADDRESS_WIDTH-1:0] write_address,
    input  wire [511:0]             write_data
);
    (* ram_style = "ultra" *) reg [511:0] words [0:DEPTH-1];
    integer i;

    always @(posedge clk)
        for (i = 0; i < 64; i = i + 1)
            if (write_en[i])
                words[write_address][8*i +: 8] <= write_data[8*i +: 8];

    always @(posedge clk)
        if (read_en)
            read_data <= words[read_address];
endmodule

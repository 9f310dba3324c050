// SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
// Behavioural model of the SRAM macro: one read and one write port on one clock, read latency one cycle. A read of the address that is written
// in the same cycle returns the new data; read_data holds while read_en is low. Power-up contents are undefined. Replace it with what the target
// technology offers, keeping the ports.
module kelp_sram #(
    parameter DEPTH = 2,
    parameter WIDTH = 1,
    parameter ADDRESS_WIDTH = 1
) (
    input  wire                     clk,
    input  wire                     read_en,
    input  wire [ADDRESS_WIDTH-1:0] read_address,
    output reg  [WIDTH-1:0]         read_data,
    input  wire                     write_en,
    input  wire [ADDRESS_WIDTH-1:0] write_address,
    input  wire [WIDTH-1:0]         write_data
);
    (* ram_style = "block" *) reg [WIDTH-1:0] words [0:DEPTH-1];

    always @(posedge clk)
        if (write_en)
            words[write_address] <= write_data;

    always @(posedge clk)
        if (read_en) begin
            if (write_en && read_address == write_address)
                read_data <= write_data;
            else
                read_data <= words[read_address];
        end
endmodule

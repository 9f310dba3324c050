// SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
// Behavioural model of the SRAM macro kelp_sram without the multiplexer from write_data to read_data: after a read of the address that is
// written in the same cycle read_data is undefined.
module kelp_sram_collision_x #(
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
    (* ram_style = "block", no_rw_check *) reg [WIDTH-1:0] words [0:DEPTH-1];

    always @(posedge clk)
        if (write_en)
            words[write_address] <= write_data;

    always @(posedge clk)
        if (read_en) begin
`ifndef SYNTHESIS
            if (write_en && read_address == write_address)
                read_data <= ~write_data;   // a block that uses it fails its tests
            else
`endif
                read_data <= words[read_address];
        end
endmodule

// SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
//
// An SDR SDRAM of 4 banks x 8192 rows x 512 columns x 16 bits that checks every command against its datasheet's timing. The defaults are
// Alliance Memory AS4C16M16SA-7 (AS4C16M16SA-C&I rev. 3.0, table 16). Times are in picoseconds, counted in clock periods of TCK.
//
// Bursts of 8, sequential, CAS latency 2 or 3. dq_o changes half a period after the clock edge that the datasheet's tAC counts from: access time and
// the ways through pads and board. Whatever is broken sets its bit of `violation` for good and is printed once.

module sdram_chip #(
    parameter integer TCK = 12500, TRC = 63000, TRFC = 63000, TRCD = 21000, TRP = 21000, TRRD = 14000, TMRD = 14000, TRAS = 42000,
    parameter integer TRAS_MAX = 120000000, TWR = 14000, TCK2 = 10000, TCK3 = 7000, TREFI = 7800000, TPOWER = 200000000
) (
    input wire clk, input wire cke, input wire cs_n, input wire ras_n, input wire cas_n, input wire we_n,
    input wire [1:0] ba, input wire [12:0] a, input wire [1:0] dqm, input wire [15:0] dq_i, input wire dq_i_driven,
    output reg [15:0] dq_o, output reg dq_oe, output reg [31:0] violation
);
    localparam [4:0] V_POWER = 0, V_INIT = 1, V_RC = 2, V_RFC = 3, V_RCD = 4, V_RP = 5, V_RRD = 6, V_MRD = 7, V_RAS = 8, V_RAS_MAX = 9, V_WR = 10, V_CK = 11,
        V_REFI = 12, V_OPEN = 13, V_CLOSED = 14, V_CONFLICT = 15, V_MODE = 16, V_BUSY = 17, V_CUT = 18, V_UNKNOWN = 19, V_UNDRIVEN = 20;

    reg [15:0] mem [0:(1 << 24) - 1];
    reg [63:0] now;                            // of this edge, ps
    reg [63:0] activated [0:3], closed [0:3], written [0:3], any_activated, refreshed, mode_set, refresh_base;
    reg [3:0] open, closing;                   // `closing`: an auto-precharge will close the bank at closed[]
    reg [12:0] row [0:3];
    reg [31:0] refreshes;
    reg [3:0] init_refreshes;
    reg precharged, configured, started;
    reg [1:0] latency;
    // The burst under way.
    reg bursting, burst_write, burst_ap;
    reg [2:0] burst_left;
    reg [1:0] burst_bank;
    reg [23:0] burst_address;
    reg [15:0] pipe_data [0:2];
    reg [2:0] pipe_valid;
    reg [1:0] dqm_before;
    reg [15:0] next_data;
    reg next_valid;
    integer b;

    task broken(input [4:0] what);
        begin
            if (!violation[what]) $display("sdram_chip: violation %0d at %0d ps", what, now);
            violation[what] = 1;
        end
    endtask

    // Time since `then` must be `least`; a `then` of 0 never was.
    task apart(input [63:0] then, input integer least, input [4:0] what);
        if (then != 0 && now - then < {32'd0, least}) broken(what);
    endtask

    initial dq_oe = 0;

    initial begin
        now = 0; any_activated = 0; refreshed = 0; mode_set = 0; refresh_base = 0; open = 0; closing = 0; refreshes = 0; init_refreshes = 0; precharged = 0;
        configured = 0; started = 0; bursting = 0; pipe_valid = 0; violation = 0; next_valid = 0; latency = 2; burst_write = 0; burst_ap = 0;
        burst_left = 0; dqm_before = 0;
        for (b = 0; b < 4; b = b + 1) begin
            activated[b] = 0; closed[b] = 0; written[b] = 0;
        end
    end

    wire [2:0] command = {ras_n, cas_n, we_n};
    wire selected = cke && !cs_n;

    always @(posedge clk) begin
        now = now + TCK;
        for (b = 0; b < 4; b = b + 1) begin
            if (closing[b] && now >= closed[b]) begin
                closing[b] = 0;
                open[b] = 0;
            end
            if (open[b] && now - activated[b] > TRAS_MAX) broken(V_RAS_MAX);
        end
        if (started && !cke) broken(V_UNKNOWN);        // power-down and self-refresh are not modelled
        if (configured && {32'd0, refreshes} + 8 < (now - refresh_base) / TREFI) broken(V_REFI);

        if (selected && command != 3'b111) begin
            if (!started && now < TPOWER) broken(V_POWER);
            started = 1;
            apart(refreshed, TRFC, V_RFC);
            apart(mode_set, TMRD > 2 * TCK ? TMRD : 2 * TCK, V_MRD);
            case (command)
                3'b011: begin                          // ACTIVE
                    if (!configured) broken(V_INIT);
                    if (open[ba]) broken(V_OPEN);
                    apart(activated[ba], TRC, V_RC);
                    apart(closed[ba], TRP, V_RP);
                    apart(any_activated, TRRD, V_RRD);
                    open[ba] = 1; row[ba] = a; activated[ba] = now; any_activated = now; written[ba] = 0;
                end
                3'b101, 3'b100: begin                  // READ, WRITE
                    if (!configured) broken(V_INIT);
                    if (!open[ba] || closing[ba]) broken(V_CLOSED);
                    apart(activated[ba], TRCD, V_RCD);
                    if (bursting && burst_ap) broken(V_CUT);
                    bursting = 1; burst_write = !we_n; burst_ap = a[10]; burst_left = 7; burst_bank = ba;
                    burst_address = {ba, row[ba], a[8:0]};
                    if (a[10]) begin
                        closing[ba] = 1;
                        closed[ba] = we_n ? now + 8 * TCK : now + 7 * TCK + TWR;
                        if (closed[ba] < activated[ba] + TRAS) closed[ba] = activated[ba] + TRAS;
                    end
                end
                3'b010: begin                          // PRECHARGE
                    for (b = 0; b < 4; b = b + 1) if (a[10] || b[1:0] == ba) begin
                        if (open[b]) begin
                            apart(activated[b], TRAS, V_RAS);
                            apart(written[b], TWR, V_WR);
                            if (closing[b] || (bursting && burst_bank == b[1:0])) broken(V_CUT);
                            closed[b] = now;
                        end
                        if (!configured) closed[b] = now;
                        open[b] = 0;
                    end
                    if (a[10]) precharged = 1;
                end
                3'b001: begin                          // REFRESH
                    if (open != 0) broken(V_BUSY);
                    if (!precharged) broken(V_INIT);
                    for (b = 0; b < 4; b = b + 1) apart(closed[b], TRP, V_RP);
                    refreshed = now; refreshes = refreshes + 1;
                    if (init_refreshes != 15) init_refreshes = init_refreshes + 1;
                end
                3'b000: begin                          // MODE REGISTER SET
                    if (open != 0) broken(V_BUSY);
                    if (!precharged || init_refreshes < 8) broken(V_INIT);
                    for (b = 0; b < 4; b = b + 1) apart(closed[b], TRP, V_RP);
                    if (a[3:0] != 4'b0011 || a[12:7] != 0 || ba != 0 || a[6:5] != 2'b01) broken(V_MODE);
                    latency = a[5:4];
                    if (TCK < (latency == 2 ? TCK2 : TCK3)) broken(V_CK);
                    mode_set = now; configured = 1; refreshes = 0; refresh_base = now;
                end
                default: broken(V_UNKNOWN);
            endcase
        end

        // The beat of this edge.
        pipe_data[2] = pipe_data[1]; pipe_data[1] = pipe_data[0];
        pipe_valid = {pipe_valid[1:0], 1'b0};
        if (bursting) begin
            if (burst_write) begin
                if (dqm != 3 && !dq_i_driven) broken(V_UNDRIVEN);
                if (!dqm[0]) mem[burst_address][7:0] = dq_i[7:0];
                if (!dqm[1]) mem[burst_address][15:8] = dq_i[15:8];
                written[burst_bank] = now;
            end else begin
                pipe_data[0] = mem[burst_address];
                pipe_valid[0] = 1;
            end
            burst_address[2:0] = burst_address[2:0] + 1;
            if (burst_left == 0) bursting = 0;
            burst_left = burst_left - 1;
        end
        // After this edge stands what the next one samples: CAS latency counts from the command's edge. DQM acts two edges on.
        next_valid = pipe_valid[latency - 1];
        next_data = pipe_data[latency - 1];
        if (dqm_before[0]) next_data[7:0] = ~next_data[7:0];
        if (dqm_before[1]) next_data[15:8] = ~next_data[15:8];
        dqm_before = dqm;
        if (dq_oe && dq_i_driven) broken(V_CONFLICT);
    end

    always @(negedge clk) begin
        dq_oe <= next_valid;
        dq_o <= next_valid ? next_data : 16'hdead;
    end
endmodule

// SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
//
// The Verilated board with a UART at the other end of its wires: bytes in, bytes out, cycles run.

#include <cstdint>
#include <deque>
#include <memory>
#include "Vtop.h"
#include "verilated.h"

namespace {

struct Board {
    VerilatedContext context;
    std::unique_ptr<Vtop> top;
    int divisor;
    std::deque<uint8_t> to_board, from_board;
    // The wire to the board: bits left of the byte under way, and cycles left of its bit.
    uint32_t sending = 1;
    int send_bits = 0, send_count = 0;
    // The wire from it.
    int receive_bits = -1, receive_count = 0;
    uint32_t receiving = 0;
    int64_t cycles = 0, framing_errors = 0;

    Board(int divisor_, uint32_t seed, const char* argument) : divisor(divisor_) {
        const char* arguments[] = {"board", argument};
        context.commandArgs(2, arguments);
        context.fatalOnError(false);
        context.randReset(2);
        context.randSeed(seed);
        top = std::make_unique<Vtop>(&context);
        top->clk = 0;
        top->rst = 1;
        top->rx = 1;
        for (int n = 0; n < 4; n++) cycle();
        top->rst = 0;
    }

    ~Board() { enter(); }

    // An Assert that fails, and a board that ends, find the context through the thread: there it is
    // the board built last, which may be gone.
    void enter() { Verilated::threadContextp(&context); }

    void cycle() {
        top->clk = 1;
        top->eval();
        top->clk = 0;
        top->eval();
        context.timeInc(1);
        cycles++;
    }

    void wires() {
        if (send_bits == 0 && !to_board.empty()) {
            sending = to_board.front() << 1 | 1 << 9;      // start bit 0, data, stop bit 1
            to_board.pop_front();
            send_bits = 10;
            send_count = divisor;
        }
        if (send_bits) {
            top->rx = sending & 1;
            if (--send_count == 0) {
                sending >>= 1;
                send_count = divisor;
                send_bits--;
            }
        } else {
            top->rx = 1;
        }
        if (receive_bits < 0) {
            if (!top->tx) {
                receive_bits = 0;
                receive_count = divisor / 2;
                receiving = 0;
            }
        } else if (--receive_count == 0) {
            receive_count = divisor;
            receiving |= uint32_t(top->tx) << receive_bits;
            if (++receive_bits == 10) {
                if (receiving & 1 << 9) from_board.push_back(receiving >> 1);
                else framing_errors++;
                receive_bits = -1;
            }
        }
    }
};

}  // namespace

extern "C" {

// `argument`: what the model asks for with $value$plusargs, or an empty string.
Board* board_new(int divisor, uint32_t seed, const char* argument) { return new Board(divisor, seed, argument); }
void board_free(Board* board) { delete board; }

// Runs until `cycles` have passed or `out` holds `room` bytes; returns the bytes in `out`, −1 after a failed RTL Assert.
int board_run(Board* board, int64_t cycles, const uint8_t* in, int count, uint8_t* out, int room) {
    board->enter();
    board->to_board.insert(board->to_board.end(), in, in + count);
    for (int64_t n = 0; n < cycles; n++) {
        board->wires();
        board->cycle();
        if (board->context.gotError() || board->context.gotFinish()) return -1;
    }
    int length = 0;
    while (length < room && !board->from_board.empty()) {
        out[length++] = board->from_board.front();
        board->from_board.pop_front();
    }
    return length;
}

int64_t board_cycles(const Board* board) { return board->cycles; }
int64_t board_framing_errors(const Board* board) { return board->framing_errors; }
int board_waiting(const Board* board) { return int(board->to_board.size()); }
uint32_t board_violation(const Board* board) { return board->top->violation; }
uint32_t board_leds(const Board* board) { return board->top->leds; }

}

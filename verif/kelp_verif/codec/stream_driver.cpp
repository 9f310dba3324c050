// SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
//
// Drives a model that has one stream in and one stream out through whole arrays, with idle cycles and back-pressure drawn from a seed.
// Both payloads are wider than 64 bits, so they are arrays of 32-bit words in Verilator and here. Verilator writes a second underscore in
// a row as `_05F`.

#include <cstdint>
#include <cstring>
#include <memory>

#include "Vtop.h"
#include "verilated.h"

namespace {

struct Random {  // xorshift64*, one byte at a time
    uint64_t state;
    bool chance(unsigned of_256) {
        if (of_256 >= 256) return true;
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        return ((state * 0x2545F4914F6CDD1Dull) >> 56) < of_256;
    }
};

}  // namespace

// Sends `count` items and takes as many. `accepted` and `given` are the cycles of each item's transfers. Returns the number of items taken
// within `limit` cycles, or -1 when an assertion of the RTL failed, or -2 when an item appeared that was not asked for.
extern "C" int64_t stream_run(const uint32_t *in, uint32_t *out, int64_t count, unsigned valid_of_256, unsigned ready_of_256, uint64_t seed,
                              int64_t limit, uint32_t *accepted, uint32_t *given) {
    auto context = std::make_unique<VerilatedContext>();
    context->fatalOnError(false);
    context->randReset(2);
    context->randSeed(static_cast<int>(seed & 0x7fffffff) | 1);
    auto top = std::make_unique<Vtop>(context.get());
    constexpr size_t in_words = sizeof(top->i___05Fpayload) / 4, out_words = sizeof(top->o___05Fpayload) / 4;
    Random random{seed * 2 + 1};

    auto clock = [&] {
        top->clk = 1;
        top->eval();
        top->clk = 0;
    };
    top->clk = 0;
    top->rst = 1;
    top->i___05Fvalid = 0;
    top->o___05Fready = 0;
    for (int n = 0; n < 2; n++) {
        top->eval();
        clock();
    }
    top->rst = 0;

    int64_t sent = 0, taken = 0;
    bool offering = false;
    for (int64_t cycle = 0; cycle < limit && taken < count; cycle++) {
        if (!offering && sent < count && random.chance(valid_of_256)) {
            offering = true;
            std::memcpy(&top->i___05Fpayload, in + sent * in_words, sizeof(top->i___05Fpayload));
        }
        top->i___05Fvalid = offering;
        top->o___05Fready = random.chance(ready_of_256);
        top->eval();
        if (offering && top->i___05Fready) {
            offering = false;
            accepted[sent++] = static_cast<uint32_t>(cycle);
        }
        if (top->o___05Fvalid && top->o___05Fready) {
            if (taken >= sent) return -2;
            std::memcpy(out + taken * out_words, &top->o___05Fpayload, sizeof(top->o___05Fpayload));
            given[taken++] = static_cast<uint32_t>(cycle);
        }
        clock();
        if (context->gotError()) return -1;
    }
    top->final();
    return taken;
}

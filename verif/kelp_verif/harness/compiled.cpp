// SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
// A block for kelp_verif.harness.compiled: where its ports are, and one cycle. ports.h, generated,
// lists them: PORTS(P) is P(name) for each, and CLOCK is whether there is a `clk`.
#include <cstdint>

#include "Vtop.h"
#include "ports.h"
#include "verilated.h"

namespace {

struct Block {
    VerilatedContext context;
    Vtop top;

    static VerilatedContext* prepared(VerilatedContext& context, int seed) {
        context.fatalOnError(false);
        context.randReset(2);
        context.randSeed(seed);
        return &context;
    }

    explicit Block(int seed) : top{prepared(context, seed)} {
#if CLOCK
        top.clk = top.rst = 0;
#endif
    }
    ~Block() { enter(); }

    // An Assert that fails, and a block that ends, find the context through the thread: there it is
    // the block built last, which may be gone.
    void enter() { Verilated::threadContextp(&context); }
};

}  // namespace

extern "C" {

void* block_new(int seed) { return new Block(seed); }

void block_delete(void* block) { delete static_cast<Block*>(block); }

void block_ports(void* block, void** at) {
    // Verilator renames a port whose name is a word of C++.
#define KELP_PORT(name)                            \
    *at++ = [](auto& top) -> void* {               \
        if constexpr (requires { top.name; })      \
            return &top.name;                      \
        else                                       \
            return &top.__SYM__##name;             \
    }(static_cast<Block*>(block)->top);
    PORTS(KELP_PORT)
#undef KELP_PORT
}

// What is combinational follows the inputs. Whether an Assert has failed.
int block_settle(void* block) {
    auto& b = *static_cast<Block*>(block);
    b.enter();
    b.top.eval();
    return b.context.gotError();
}

int block_tick(void* block) {
    auto& b = *static_cast<Block*>(block);
    b.enter();
    b.context.timeInc(1);
#if CLOCK
    b.top.clk = 1;
    b.top.eval();
    b.top.clk = 0;
#endif
    b.top.eval();
    return b.context.gotError();
}
}

// SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
//
// The memories of a Verilated model, as Python finds and changes them (flip_model.py): every array that is public, by scope and name.

#include <vector>

#include "verilated.h"
#include "verilated_syms.h"

namespace {

struct Array {
    const char *scope;  // the instance, TOP.top.…
    const char *name;
    void *rows;
    uint32_t width, depth, row_bytes;
};

std::vector<Array> arrays(VerilatedContext *context) {
    std::vector<Array> found;
    for (const auto &[scope, place] : *context->scopeNameMap()) {
        if (!place->varsp()) continue;
        for (const auto &[name, variable] : *place->varsp()) {
            if (variable.udims() != 1) continue;
            const auto depth = static_cast<uint32_t>(variable.elements(1));
            found.push_back({scope, name, variable.datap(), variable.entBits(), depth, static_cast<uint32_t>(variable.totalSize() / depth)});
        }
    }
    return found;
}

}  // namespace

extern "C" {

uint64_t flip_arrays(VerilatedContext *context, Array *to, uint64_t room) {
    const auto found = arrays(context);
    for (size_t i = 0; i < found.size() && i < room; i++) to[i] = found[i];
    return found.size();
}

}  // extern "C"

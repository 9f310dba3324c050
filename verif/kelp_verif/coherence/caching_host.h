// SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
//
// What the two hosts that cache have in common: the states of a line at its home, what the home has asked for, and how far a snoop is.

#pragma once

#include <cstdint>
#include <vector>

namespace kelp {

constexpr unsigned AGENTS = 4;
constexpr uint32_t META0 = 0, META_NO_OP = 3, INVALID = 0, ANY = 2, SHARED = 3, SNP_NONE = 0, SNP_DATA = 1, SNP_CUR = 2, SNP_INV = 3;
enum State : uint8_t { I, S, E, M };
enum Out : uint8_t { NONE, READ_SHARED, READ_ANY, OWN, LOOK, CLEAN_EVICT, WRITE_I, WRITE_S, WRITE_A, UNCACHED, KINDS };
enum Snoop : uint8_t { QUIET, HERE, CONFLICT, AFTER };

// What a BISnp asked for: lines that are left to answer for, those that a BIRsp of a Blk form will answer for, and those of which nothing is said.
struct Asked {
    bool block;
    uint32_t left, aside, mute;
};

// Addresses of the lines that a BISnp is about. Of a Blk form the lowest two bits say which part of the 256 bytes it is: 1 the lower half, 2 the upper, 3 all.
inline std::vector<uint64_t> snooped_lines(bool block, uint64_t address) {
    if (!block) return {address};
    const uint64_t first = address & ~3ull;
    switch (address & 3) {
        case 1: return {first, first + 1};
        case 2: return {first + 2, first + 3};
        case 3: return {first, first + 1, first + 2, first + 3};
        default: return {};
    }
}

}  // namespace kelp

// SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
//
// What the two hosts that cache have in common: the states of a line at its home, what the home has asked for, and how far a snoop is.

#pragma once

#include <cstdint>

namespace kelp {

constexpr unsigned AGENTS = 4;
constexpr uint32_t META0 = 0, META_NO_OP = 3, INVALID = 0, ANY = 2, SHARED = 3, SNP_NONE = 0, SNP_DATA = 1, SNP_CUR = 2, SNP_INV = 3;
enum State : uint8_t { I, S, E, M };
enum Out : uint8_t { NONE, READ_SHARED, READ_ANY, OWN, LOOK, CLEAN_EVICT, WRITE_I, WRITE_S, WRITE_A, UNCACHED, KINDS };
enum Snoop : uint8_t { QUIET, HERE, CONFLICT, AFTER };

}  // namespace kelp

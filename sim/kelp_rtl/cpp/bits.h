// SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
//
// Fields of a port's payload, whatever Verilator made of the port: an integer of up to 64 bits or an array of 32-bit words.

#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "verilated.h"

namespace kelp {

// Where a field lies in its payload; generated from the layouts, never written by hand.
struct Field {
    unsigned low, bits;
};

// Verilator declares a port as a reference to its storage.
template <class Port>
using Bare = std::remove_cv_t<std::remove_reference_t<Port>>;

constexpr uint64_t ones(unsigned bits) { return bits >= 64 ? ~0ull : (1ull << bits) - 1; }

template <class Port>
constexpr bool is_wide = !std::is_integral_v<Port>;

// The lowest 64 bits of a field at most.
template <class Port>
inline uint64_t get(const Port &port, Field f) {
    if constexpr (is_wide<Port>) {
        const unsigned word = f.low / 32, shift = f.low % 32, bits = f.bits < 64 ? f.bits : 64;
        uint64_t value = port[word] >> shift;
        if (shift + bits > 32) value |= static_cast<uint64_t>(port[word + 1]) << (32 - shift);
        if (shift + bits > 64) value |= static_cast<uint64_t>(port[word + 2]) << (64 - shift);
        return value & ones(bits);
    } else {
        return static_cast<uint64_t>(port) >> f.low & ones(f.bits);
    }
}

template <class Port>
inline void put(Port &port, Field f, uint64_t value) {
    if constexpr (is_wide<Port>) {
        for (unsigned done = 0; done < f.bits && done < 64;) {
            const unsigned at = f.low + done, shift = at % 32, left = f.bits - done, room = 32 - shift, bits = left < room ? left : room;
            const auto mask = static_cast<uint32_t>(ones(bits) << shift);
            port[at / 32] = (port[at / 32] & ~mask) | (static_cast<uint32_t>((value >> done) << shift) & mask);
            done += bits;
        }
    } else {
        const uint64_t mask = ones(f.bits) << f.low;
        port = static_cast<Port>((port & ~mask) | (value << f.low & mask));
    }
}

constexpr unsigned words_of(unsigned bits) { return (bits + 31) / 32; }

// A field of any width as 32-bit words, lowest first; bits above the field are zero.
template <class Port>
inline void get_words(const Port &port, Field f, uint32_t *out) {
    for (unsigned i = 0; i < words_of(f.bits); i++) {
        const unsigned left = f.bits - 32 * i;
        out[i] = static_cast<uint32_t>(get(port, Field{f.low + 32 * i, left < 32 ? left : 32}));
    }
}

template <class Port>
inline void put_words(Port &port, Field f, const uint32_t *in) {
    for (unsigned i = 0; i < words_of(f.bits); i++) {
        const unsigned left = f.bits - 32 * i;
        put(port, Field{f.low + 32 * i, left < 32 ? left : 32}, in[i]);
    }
}

template <class Port>
inline void clear(Port &port) {
    if constexpr (is_wide<Port>) {
        for (size_t i = 0; i < sizeof(port) / 4; i++) port[i] = 0;
    } else {
        port = 0;
    }
}

// A whole payload appended to a log, `words_of(bits)` words.
template <class Port>
inline void append(std::vector<uint32_t> &log, const Port &port, unsigned bits) {
    if constexpr (is_wide<Port>) {
        for (unsigned i = 0; i < words_of(bits); i++) log.push_back(port[i]);
    } else {
        log.push_back(static_cast<uint32_t>(port));
        if (bits > 32) log.push_back(static_cast<uint32_t>(static_cast<uint64_t>(port) >> 32));
    }
}

template <class Port>
inline bool same(const Port &a, const Port &b) {
    if constexpr (is_wide<Port>) {
        for (size_t i = 0; i < sizeof(a) / 4; i++)
            if (a[i] != b[i]) return false;
        return true;
    } else {
        return a == b;
    }
}

}  // namespace kelp

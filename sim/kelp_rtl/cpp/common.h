// SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
//
// What the driver's models share: settings as Python hands them over, random numbers, a queue that does not allocate in the steady state, and
// the check that a stream's offer stands until it is taken.

#pragma once

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

#include "bits.h"

namespace kelp {

// The endpoint broke a rule, or something that cannot be; the message reaches Python as an exception.
struct Problem : std::runtime_error {
    using std::runtime_error::runtime_error;
};

[[noreturn]] __attribute__((format(printf, 1, 2))) inline void fail(const char *format, ...) {
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    throw Problem(text);
}

// Mirrored field by field by `_Settings` in driver.py. Stalls are chances in 65536 per cycle.
struct Settings {
    uint32_t stall_req, stall_rwd, stall_drs, stall_ndr;
    uint32_t stall_ar, stall_aw, stall_w, stall_r, stall_b;
    uint32_t stall_command, stall_completion;
    uint32_t read_latency, read_jitter, write_latency, memory_shuffle;
    uint32_t read_error, write_error;  // chances in 65536 that memory answers with an error
    uint32_t flash_latency, flash_write_latency, flash_jitter, abort_latency;
    uint32_t flash_failure;  // chance in 65536 that a command fails
    uint32_t outstanding, in_order, record_hot_reads, max_skip;
    double flash_bytes_per_cycle;
    int64_t stall_limit;
};

// Mirrored by `_Counts` in driver.py; totals since the simulation began.
struct Counts {
    int64_t evaluated, simulated;
    int64_t memory_reads, memory_writes, memory_read_errors, memory_write_errors;
    int64_t summary_reads, summary_writes, summary_read_errors, summary_write_errors;
    int64_t flash_reads, flash_writes, flash_read_bytes, flash_write_bytes, flash_failed, flash_never, flash_aborts;
    int64_t accepted, answered, data, nxm, poison, completions;
    int64_t peak_outstanding, peak_memory_reads, peak_summary_reads, peak_flash;
    int64_t commits;
};

class Random {  // xorshift64*
    uint64_t state_;

  public:
    explicit Random(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ull | 1) {
        for (int i = 0; i < 4; i++) next();
    }
    uint64_t next() {
        state_ ^= state_ >> 12;
        state_ ^= state_ << 25;
        state_ ^= state_ >> 27;
        return state_ * 0x2545F4914F6CDD1Dull;
    }
    bool chance(uint32_t of_65536) { return of_65536 && (next() >> 48) < of_65536; }
    uint32_t below(uint32_t limit) { return limit ? static_cast<uint32_t>((next() >> 32) * limit >> 32) : 0; }
};

// First in, first out, growing by doubling; entries may also be taken from the middle.
template <class T>
class Queue {
    std::vector<T> ring_ = std::vector<T>(16);
    size_t head_ = 0, size_ = 0;

  public:
    bool empty() const { return size_ == 0; }
    size_t size() const { return size_; }
    T &operator[](size_t i) { return ring_[(head_ + i) & (ring_.size() - 1)]; }
    T &front() { return (*this)[0]; }
    void clear() { head_ = size_ = 0; }
    T &push() {
        if (size_ == ring_.size()) {
            std::vector<T> larger(2 * ring_.size());
            for (size_t i = 0; i < size_; i++) larger[i] = (*this)[i];
            ring_.swap(larger);
            head_ = 0;
        }
        return (*this)[size_++];
    }
    void pop() {
        head_ = (head_ + 1) & (ring_.size() - 1);
        size_--;
    }
    void erase(size_t at) {
        for (; at > 0; at--) (*this)[at] = (*this)[at - 1];
        pop();
    }
};

// An output stream of the endpoint: once offered, the payload stands and valid stays until it is taken.
template <class Port>
class Offered {
    const char *name_;
    bool waiting_ = false;
    Port held_{};

  public:
    explicit Offered(const char *name) : name_(name) {}
    void reset() { waiting_ = false; }
    // True when a transfer happens in this cycle.
    bool transfer(bool valid, bool ready, const Port &payload) {
        if (waiting_) {
            if (!valid) fail("%s: an offer was withdrawn before it was taken", name_);
            if (!same(held_, payload)) fail("%s: the payload changed before it was taken", name_);
        }
        waiting_ = valid && !ready;
        if (waiting_) held_ = payload;
        return valid && ready;
    }
};

}  // namespace kelp

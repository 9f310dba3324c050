// SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
//
// An AXI4 memory of 64-byte lines, one line per transaction, which may answer with errors.
//
// A read answers `read_latency` cycles after its address was taken, at full rate; a write `write_latency` cycles after address and data. Answers come in order of acceptance or, with
// `memory_shuffle`, in any order that keeps those of one id; jitter adds to a latency. AXI promises nothing between a read and a write that are both under way, so
// the model makes it matter: a write reaches the memory only when its B leaves, and a read takes its data when its address is accepted or, shuffled, perhaps when it answers.

#pragma once

#include <sys/mman.h>

#include <cstring>
#include <type_traits>
#include <utility>

#include "Vtop.h"
#include "common.h"
#include "kelp_ports.h"

namespace kelp {

constexpr unsigned LINE_BYTES = 64;

// A memory port of the endpoint: its signals, the places of its fields, and the totals that its memory counts.
#define KELP_CHANNEL(CHANNEL, PORT)                                                   \
    static auto &CHANNEL(Vtop &top) { return top.PORT##___05F##CHANNEL##___05Fpayload; }    \
    static auto &CHANNEL##_valid(Vtop &top) { return top.PORT##___05F##CHANNEL##___05Fvalid; } \
    static auto &CHANNEL##_ready(Vtop &top) { return top.PORT##___05F##CHANNEL##___05Fready; } \
    static constexpr const char *CHANNEL##_name = #PORT "." #CHANNEL;
#define KELP_PORT(NAME, PORT, COUNTED, LINES)                                                                                                             \
    struct NAME {                                                                                                                                         \
        static constexpr uint64_t lines = LINES;                                                                                                          \
        KELP_CHANNEL(ar, PORT) KELP_CHANNEL(aw, PORT) KELP_CHANNEL(w, PORT) KELP_CHANNEL(r, PORT) KELP_CHANNEL(b, PORT)                                       \
        struct Address {                                                                                                                                  \
            static constexpr Field id = ports::PORT##_ar::id, addr = ports::PORT##_ar::addr, len = ports::PORT##_ar::len, size = ports::PORT##_ar::size; \
            static constexpr Field burst = ports::PORT##_ar::burst;                                                                                       \
        };                                                                                                                                                \
        struct W {                                                                                                                                        \
            static constexpr Field data = ports::PORT##_w::data, strb = ports::PORT##_w::strb, last = ports::PORT##_w::last;                              \
        };                                                                                                                                                \
        struct R {                                                                                                                                        \
            static constexpr Field id = ports::PORT##_r::id, data = ports::PORT##_r::data, resp = ports::PORT##_r::resp, last = ports::PORT##_r::last;     \
        };                                                                                                                                                \
        struct B {                                                                                                                                        \
            static constexpr Field id = ports::PORT##_b::id, resp = ports::PORT##_b::resp;                                                                \
        };                                                                                                                                                \
        static int64_t &reads(Counts &counts) { return counts.COUNTED##_reads; }                                                                          \
        static int64_t &writes(Counts &counts) { return counts.COUNTED##_writes; }                                                                        \
        static int64_t &read_errors(Counts &counts) { return counts.COUNTED##_read_errors; }                                                              \
        static int64_t &write_errors(Counts &counts) { return counts.COUNTED##_write_errors; }                                                            \
        static int64_t &peak_reads(Counts &counts) { return counts.peak_##COUNTED##_reads; }                                                              \
    };

KELP_PORT(FramePort, axi, memory, sizes::dram_lines)
#ifdef KELP_SUMMARIES
KELP_PORT(SummaryPort, summary_axi, summary, sizes::summary_lines)
#endif

template <class Port>
class PortMemory {
    template <class Channel>
    using Payload = Bare<std::remove_reference_t<Channel>>;
    struct Read {
        uint64_t due, line;
        uint32_t id;
        bool late;  // takes its data when it answers
        uint8_t data[LINE_BYTES];
    };
    struct Write {
        uint64_t due, strobe, line;
        uint32_t id;
        uint8_t data[LINE_BYTES];
    };
    struct Address {
        uint32_t id;
        uint64_t line;
    };
    struct Data {
        uint64_t strobe;
        uint8_t data[LINE_BYTES];
    };

    static constexpr size_t PLACES = 512;  // of reads, and of writes, under way

    const Settings &settings_;
    Counts &counts_;
    Random &random_;
    uint8_t *bytes_;
    Queue<Read> reads_;
    Queue<Write> writes_;
    Queue<Address> addresses_;
    Queue<Data> data_;
    bool r_offered_ = false, b_offered_ = false;
    Offered<Payload<decltype(Port::ar(std::declval<Vtop &>()))>> ar_{Port::ar_name};
    Offered<Payload<decltype(Port::aw(std::declval<Vtop &>()))>> aw_{Port::aw_name};
    Offered<Payload<decltype(Port::w(std::declval<Vtop &>()))>> w_{Port::w_name};

    // The entry to answer next, or -1: the oldest, or any due one that no older one of its id precedes.
    template <class T>
    ptrdiff_t choose(Queue<T> &queue, uint64_t now) {
        if (queue.empty()) return -1;
        if (!settings_.memory_shuffle) return queue.front().due <= now ? 0 : -1;
        uint64_t seen[(1u << Port::Address::id.bits) / 64 + 1] = {};
        ptrdiff_t chosen = -1;
        uint32_t candidates = 0;
        for (size_t i = 0; i < queue.size(); i++) {
            uint64_t &word = seen[queue[i].id / 64], bit = 1ull << queue[i].id % 64;
            if (!(word & bit) && queue[i].due <= now && random_.below(++candidates) == 0) chosen = static_cast<ptrdiff_t>(i);
            word |= bit;
        }
        return chosen;
    }

    template <class Payload>
    Address address(const Payload &payload, const char *channel) {
        using f = typename Port::Address;  // AR and AW have one layout
        const uint64_t byte = get(payload, f::addr);
        if (get(payload, f::len) || get(payload, f::size) != 6 || get(payload, f::burst) != 1)
            fail("%s: len %u, size %u, burst %u; one 64-byte INCR beat was expected", channel, unsigned(get(payload, f::len)), unsigned(get(payload, f::size)),
                 unsigned(get(payload, f::burst)));
        if (byte % LINE_BYTES || byte / LINE_BYTES >= Port::lines)
            fail("%s: address %#llx is not a line of the memory (%llu lines)", channel, (unsigned long long)byte, (unsigned long long)Port::lines);
        return {static_cast<uint32_t>(get(payload, f::id)), byte / LINE_BYTES};
    }

    static constexpr size_t SIZE = Port::lines * LINE_BYTES;

  public:
    PortMemory(const Settings &settings, Counts &counts, Random &random) : settings_(settings), counts_(counts), random_(random) {
        // Zeros that cost nothing until they are touched, since the large configurations have gigabytes.
        void *map = mmap(nullptr, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (map == MAP_FAILED) fail("no address space for %zu bytes of memory", SIZE);
        bytes_ = static_cast<uint8_t *>(map);
    }
    ~PortMemory() { munmap(bytes_, SIZE); }
    PortMemory(const PortMemory &) = delete;

    uint8_t *bytes() { return bytes_; }
    uint8_t *line(uint64_t line) { return bytes_ + line * LINE_BYTES; }
    bool idle() const { return reads_.empty() && writes_.empty() && addresses_.empty() && data_.empty() && !r_offered_ && !b_offered_; }

    void reset(Vtop &top) {
        Port::ar_ready(top) = Port::aw_ready(top) = Port::w_ready(top) = Port::r_valid(top) = Port::b_valid(top) = 0;
        reads_.clear();
        writes_.clear();
        addresses_.clear();
        data_.clear();
        r_offered_ = b_offered_ = false;
        ar_.reset();
        aw_.reset();
        w_.reset();
    }

    void drive(Vtop &top, uint64_t now) {
        const Settings &s = settings_;
        Port::ar_ready(top) = reads_.size() < PLACES && !random_.chance(s.stall_ar);
        Port::aw_ready(top) = addresses_.size() + writes_.size() < PLACES && !random_.chance(s.stall_aw);
        Port::w_ready(top) = data_.size() + writes_.size() < PLACES && !random_.chance(s.stall_w);
        if (!r_offered_ && !reads_.empty() && !random_.chance(s.stall_r)) {
            const ptrdiff_t chosen = choose(reads_, now);
            if (chosen >= 0) {
                const Read &read = reads_[chosen];
                uint32_t words[LINE_BYTES / 4];
                std::memcpy(words, read.late ? line(read.line) : read.data, LINE_BYTES);
                auto &r = Port::r(top);
                clear(r);
                put(r, Port::R::id, read.id);
                put_words(r, Port::R::data, words);
                put(r, Port::R::last, 1);
                if (random_.chance(s.read_error)) {
                    for (uint32_t &word : words) word = static_cast<uint32_t>(random_.next());
                    put_words(r, Port::R::data, words);
                    put(r, Port::R::resp, 2 + random_.below(2));
                    Port::read_errors(counts_)++;
                }
                reads_.erase(chosen);
                r_offered_ = true;
            }
        }
        if (!b_offered_ && !writes_.empty() && !random_.chance(s.stall_b)) {
            const ptrdiff_t chosen = choose(writes_, now);
            if (chosen >= 0) {
                const Write &write = writes_[chosen];
                uint8_t *to = line(write.line);
                const bool error = random_.chance(s.write_error);
                const bool destroys = error && random_.below(2);
                for (unsigned i = 0; i < LINE_BYTES; i++) {
                    if (destroys) to[i] = static_cast<uint8_t>(random_.next());
                    else if (!error && (write.strobe >> i & 1)) to[i] = write.data[i];
                }
                clear(Port::b(top));
                put(Port::b(top), Port::B::id, write.id);
                if (error) {
                    put(Port::b(top), Port::B::resp, 2 + random_.below(2));
                    Port::write_errors(counts_)++;
                }
                writes_.erase(chosen);
                b_offered_ = true;
            }
        }
        Port::r_valid(top) = r_offered_;
        Port::b_valid(top) = b_offered_;
    }

    // After the inputs have settled: what is transferred in this cycle. True when anything was.
    bool sample(Vtop &top, uint64_t now) {
        const Settings &s = settings_;
        bool moved = false;
        if (ar_.transfer(Port::ar_valid(top), Port::ar_ready(top), Port::ar(top))) {
            const Address a = address(Port::ar(top), Port::ar_name);
            Read &read = reads_.push();
            read.due = now + s.read_latency + random_.below(s.read_jitter + 1);
            read.id = a.id;
            read.line = a.line;
            read.late = s.memory_shuffle && random_.chance(1 << 15);
            if (!read.late) std::memcpy(read.data, line(a.line), LINE_BYTES);
            Port::reads(counts_)++;
            if (static_cast<int64_t>(reads_.size()) > Port::peak_reads(counts_)) Port::peak_reads(counts_) = static_cast<int64_t>(reads_.size());
            moved = true;
        }
        if (aw_.transfer(Port::aw_valid(top), Port::aw_ready(top), Port::aw(top))) {
            addresses_.push() = address(Port::aw(top), Port::aw_name);
            moved = true;
        }
        if (w_.transfer(Port::w_valid(top), Port::w_ready(top), Port::w(top))) {
            const auto &w = Port::w(top);
            if (!get(w, Port::W::last)) fail("%s: a beat without last", Port::w_name);
            Data &data = data_.push();
            uint32_t words[LINE_BYTES / 4];
            get_words(w, Port::W::data, words);
            std::memcpy(data.data, words, LINE_BYTES);
            data.strobe = get(w, Port::W::strb);
            moved = true;
        }
        while (!addresses_.empty() && !data_.empty()) {
            Write &write = writes_.push();
            write.due = now + s.write_latency + random_.below(s.read_jitter + 1);
            write.strobe = data_.front().strobe;
            write.id = addresses_.front().id;
            write.line = addresses_.front().line;
            std::memcpy(write.data, data_.front().data, LINE_BYTES);
            addresses_.pop();
            data_.pop();
            Port::writes(counts_)++;
        }
        if (r_offered_ && Port::r_ready(top)) r_offered_ = false, moved = true;
        if (b_offered_ && Port::b_ready(top)) b_offered_ = false, moved = true;
        return moved;
    }
};

using Memory = PortMemory<FramePort>;
#ifdef KELP_SUMMARIES
using SummaryMemory = PortMemory<SummaryPort>;
#else
// There is no such port.
struct SummaryMemory {
    SummaryMemory(const Settings &, Counts &, Random &) {}
    bool idle() const { return true; }
    void reset(Vtop &) {}
    void drive(Vtop &, uint64_t) {}
    bool sample(Vtop &, uint64_t) { return false; }
};
#endif

}  // namespace kelp

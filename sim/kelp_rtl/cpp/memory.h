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

#include "Vtop.h"
#include "common.h"
#include "kelp_ports.h"

namespace kelp {

constexpr unsigned LINE_BYTES = 64;

class Memory {
    struct Read {
        uint64_t due;
        uint32_t id, line;
        bool late;  // takes its data when it answers
        uint8_t data[LINE_BYTES];
    };
    struct Write {
        uint64_t due, strobe;
        uint32_t id, line;
        uint8_t data[LINE_BYTES];
    };
    struct Address {
        uint32_t id, line;
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
    Offered<Bare<decltype(Vtop::axi___05Far___05Fpayload)>> ar_{"axi.ar"};
    Offered<Bare<decltype(Vtop::axi___05Faw___05Fpayload)>> aw_{"axi.aw"};
    Offered<Bare<decltype(Vtop::axi___05Fw___05Fpayload)>> w_{"axi.w"};

    // The entry to answer next, or -1: the oldest, or any due one that no older one of its id precedes.
    template <class T>
    ptrdiff_t choose(Queue<T> &queue, uint64_t now) {
        if (queue.empty()) return -1;
        if (!settings_.memory_shuffle) return queue.front().due <= now ? 0 : -1;
        uint64_t seen[(1u << ports::axi_ar::id.bits) / 64 + 1] = {};
        ptrdiff_t chosen = -1;
        uint32_t candidates = 0;
        for (size_t i = 0; i < queue.size(); i++) {
            uint64_t &word = seen[queue[i].id / 64], bit = 1ull << queue[i].id % 64;
            if (!(word & bit) && queue[i].due <= now && random_.below(++candidates) == 0) chosen = static_cast<ptrdiff_t>(i);
            word |= bit;
        }
        return chosen;
    }

    template <class Port>
    Address address(const Port &port, const char *channel) {
        namespace f = ports::axi_ar;  // AR and AW have one layout
        const uint64_t byte = get(port, f::addr);
        if (get(port, f::len) || get(port, f::size) != 6 || get(port, f::burst) != 1)
            fail("%s: len %u, size %u, burst %u; one 64-byte INCR beat was expected", channel, unsigned(get(port, f::len)), unsigned(get(port, f::size)),
                 unsigned(get(port, f::burst)));
        if (byte % LINE_BYTES || byte / LINE_BYTES >= sizes::dram_lines)
            fail("%s: address %#llx is not a line of the memory (%llu lines)", channel, (unsigned long long)byte, (unsigned long long)sizes::dram_lines);
        return {static_cast<uint32_t>(get(port, f::id)), static_cast<uint32_t>(byte / LINE_BYTES)};
    }

    static constexpr size_t SIZE = sizes::dram_lines * LINE_BYTES;

  public:
    Memory(const Settings &settings, Counts &counts, Random &random) : settings_(settings), counts_(counts), random_(random) {
        // Zeros that cost nothing until they are touched, since the large configurations have gigabytes.
        void *map = mmap(nullptr, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (map == MAP_FAILED) fail("no address space for %zu bytes of memory", SIZE);
        bytes_ = static_cast<uint8_t *>(map);
    }
    ~Memory() { munmap(bytes_, SIZE); }
    Memory(const Memory &) = delete;

    uint8_t *bytes() { return bytes_; }
    uint8_t *line(uint64_t line) { return bytes_ + line * LINE_BYTES; }
    bool idle() const { return reads_.empty() && writes_.empty() && addresses_.empty() && data_.empty() && !r_offered_ && !b_offered_; }

    void reset() {
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
        top.axi___05Far___05Fready = reads_.size() < PLACES && !random_.chance(s.stall_ar);
        top.axi___05Faw___05Fready = addresses_.size() + writes_.size() < PLACES && !random_.chance(s.stall_aw);
        top.axi___05Fw___05Fready = data_.size() + writes_.size() < PLACES && !random_.chance(s.stall_w);
        if (!r_offered_ && !reads_.empty() && !random_.chance(s.stall_r)) {
            const ptrdiff_t chosen = choose(reads_, now);
            if (chosen >= 0) {
                const Read &read = reads_[chosen];
                uint32_t words[LINE_BYTES / 4];
                std::memcpy(words, read.late ? line(read.line) : read.data, LINE_BYTES);
                auto &r = top.axi___05Fr___05Fpayload;
                clear(r);
                put(r, ports::axi_r::id, read.id);
                put_words(r, ports::axi_r::data, words);
                put(r, ports::axi_r::last, 1);
                if (random_.chance(s.read_error)) {
                    for (uint32_t &word : words) word = static_cast<uint32_t>(random_.next());
                    put_words(r, ports::axi_r::data, words);
                    put(r, ports::axi_r::resp, 2 + random_.below(2));
                    counts_.memory_read_errors++;
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
                clear(top.axi___05Fb___05Fpayload);
                put(top.axi___05Fb___05Fpayload, ports::axi_b::id, write.id);
                if (error) {
                    put(top.axi___05Fb___05Fpayload, ports::axi_b::resp, 2 + random_.below(2));
                    counts_.memory_write_errors++;
                }
                writes_.erase(chosen);
                b_offered_ = true;
            }
        }
        top.axi___05Fr___05Fvalid = r_offered_;
        top.axi___05Fb___05Fvalid = b_offered_;
    }

    // After the inputs have settled: what is transferred in this cycle. True when anything was.
    bool sample(Vtop &top, uint64_t now) {
        const Settings &s = settings_;
        bool moved = false;
        if (ar_.transfer(top.axi___05Far___05Fvalid, top.axi___05Far___05Fready, top.axi___05Far___05Fpayload)) {
            const Address a = address(top.axi___05Far___05Fpayload, "axi.ar");
            Read &read = reads_.push();
            read.due = now + s.read_latency + random_.below(s.read_jitter + 1);
            read.id = a.id;
            read.line = a.line;
            read.late = s.memory_shuffle && random_.chance(1 << 15);
            if (!read.late) std::memcpy(read.data, line(a.line), LINE_BYTES);
            counts_.memory_reads++;
            if (static_cast<int64_t>(reads_.size()) > counts_.peak_memory_reads) counts_.peak_memory_reads = static_cast<int64_t>(reads_.size());
            moved = true;
        }
        if (aw_.transfer(top.axi___05Faw___05Fvalid, top.axi___05Faw___05Fready, top.axi___05Faw___05Fpayload)) {
            addresses_.push() = address(top.axi___05Faw___05Fpayload, "axi.aw");
            moved = true;
        }
        if (w_.transfer(top.axi___05Fw___05Fvalid, top.axi___05Fw___05Fready, top.axi___05Fw___05Fpayload)) {
            const auto &w = top.axi___05Fw___05Fpayload;
            if (!get(w, ports::axi_w::last)) fail("axi.w: a beat without last");
            Data &data = data_.push();
            uint32_t words[LINE_BYTES / 4];
            get_words(w, ports::axi_w::data, words);
            std::memcpy(data.data, words, LINE_BYTES);
            data.strobe = get(w, ports::axi_w::strb);
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
            counts_.memory_writes++;
        }
        if (r_offered_ && top.axi___05Fr___05Fready) r_offered_ = false, moved = true;
        if (b_offered_ && top.axi___05Fb___05Fready) b_offered_ = false, moved = true;
        return moved;
    }
};

}  // namespace kelp

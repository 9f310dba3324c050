// SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
//
// Drives the data path: an ingress that fills write slots, a legal but unhelpful AXI memory, and a list of steps (ops, waits, and accesses
// of another master to the memory). Verilator writes a second underscore in a row as `_05F`.

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "Vtop.h"
#include "verilated.h"
#if VM_TRACE
#include "verilated_vcd_c.h"
#endif

namespace {

using Line = std::array<uint32_t, 16>;

struct Random {  // xorshift64*
    uint64_t state;
    uint32_t next() {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        return (state * 0x2545F4914F6CDD1Dull) >> 32;
    }
    bool chance(unsigned of_256) { return of_256 >= 256 || (next() >> 24) < of_256; }
    unsigned below(unsigned limit) { return limit ? next() % limit : 0; }
};

uint64_t bits(const uint32_t *words, unsigned first, unsigned width) {
    uint64_t value = 0;
    for (unsigned n = 0; n < width; n++) value |= uint64_t(words[(first + n) / 32] >> ((first + n) % 32) & 1) << n;
    return value;
}

void set_bits(uint32_t *words, unsigned first, unsigned width, uint64_t value) {
    for (unsigned n = 0; n < width; n++) {
        uint32_t bit = 1u << ((first + n) % 32);
        if (value >> n & 1) words[(first + n) / 32] |= bit; else words[(first + n) / 32] &= ~bit;
    }
}

template <typename Port> void load(Port &port, const uint32_t *words) { std::memcpy(&port, words, sizeof port); }

template <typename Port> std::vector<uint32_t> words_of(const Port &port) {
    std::vector<uint32_t> words((sizeof port + 3) / 4 + 1);
    std::memcpy(words.data(), &port, sizeof port);
    return words;
}

}  // namespace

extern "C" {

enum { STEP_OP = 0, STEP_WAIT_FLUSHED = 1, STEP_WRITE_MEMORY = 2, STEP_READ_MEMORY = 3, STEP_PAUSE = 4, STEP_WAIT_ANSWERED = 5, STEP_WAIT_IDLE = 6 };

struct Step {
    uint32_t kind, has_write;
    uint64_t argument;        // count, line address, cycles
    uint32_t op[8];           // data_op
    uint32_t data[16];
    uint32_t byte_enable[2];
};

struct Options {
    uint32_t op_words, answer_words, write_slot_first, write_slot_bits, id_bits, address_bits;
    uint32_t read_latency, read_jitter, write_latency, write_jitter, shuffle, late;  // late: memory reads and writes at a random time within its latency
    uint32_t i_valid, o_ready, ar_ready, aw_ready, w_ready, flushed_ready, r_valid, b_valid;  // chances of 256
    uint32_t write_delay, error_every;
    uint64_t seed, limit;
};

struct Figures {
    uint64_t cycles, answers, flushes, reads, writes, most_reads, first_accepted, last_answered, code, where;
};

// Returns 0, or: 1 out of time, 2 an RTL assertion, 3 the memory port broke AXI4 or the block's own contract (`where` says which check).
// answers: answer_words each. Cycle arrays: one entry per op accepted, answer given, AR, R, flush reported.
int datapath_run(const Step *steps, uint64_t count, const Options *options, uint32_t *answers, uint32_t *accepted, uint32_t *answered, uint32_t *asked,
                 uint32_t *returned, uint32_t *flushed, uint32_t *flushed_at, Line *memory_reads, Figures *figures) {
    const Options &o = *options;
    auto context = std::make_unique<VerilatedContext>();
    context->fatalOnError(false);
    context->randReset(2);
    context->randSeed(static_cast<int>(o.seed & 0x7fffffff) | 1);
    auto top = std::make_unique<Vtop>(context.get());
#if VM_TRACE
    context->traceEverOn(true);
    VerilatedVcdC trace;
    top->trace(&trace, 99);
    trace.open("datapath.vcd");
#endif
    Random random{o.seed * 2 + 1};
    *figures = Figures{};

    struct Pending { uint64_t due, sample; uint32_t id; uint64_t line; Line data; bool sampled; };
    struct Store { uint64_t due, apply; uint32_t id; uint64_t line; Line data; uint64_t strobes; bool applied; };
    struct Queued { uint64_t due; std::array<uint32_t, 8> op; };
    std::unordered_map<uint64_t, Line> memory;
    std::vector<Pending> reads;
    std::vector<Store> stores;
    std::deque<std::pair<uint32_t, uint64_t>> addresses;
    std::deque<std::pair<Line, uint64_t>> lines;
    std::deque<Queued> queue;
    std::vector<bool> reading(1u << o.id_bits), writing(1u << o.id_bits), slot_taken(1u << o.write_slot_bits);
    uint64_t next = 0, sent = 0, memory_read_count = 0, pause_until = 0, ars = 0, rs = 0, op_answers = 0;
    int r_now = -1, b_now = -1;
    bool offering = false;
    auto fail = [&](uint64_t where) { figures->where = where; return 3; };
    auto merge = [](Line &line, const Line &data, uint64_t strobes) {
        auto *to = reinterpret_cast<uint8_t *>(line.data());
        auto *from = reinterpret_cast<const uint8_t *>(data.data());
        for (unsigned n = 0; n < 64; n++) if (strobes >> n & 1) to[n] = from[n];
    };
    auto at = [&](uint64_t line) -> Line & {
        auto [entry, fresh] = memory.try_emplace(line);
        // Memory that nobody wrote holds something, and not zeros.
        if (fresh) for (unsigned n = 0; n < 16; n++) entry->second[n] = static_cast<uint32_t>((line * 2654435761u) ^ (n * 40503u) ^ 0xA5A5A5A5u);
        return entry->second;
    };

    top->clk = 0;
    top->rst = 1;
    top->i___05Fvalid = 0;
    top->i_write___05Fvalid = 0;
    top->axi___05Fr___05Fvalid = 0;
    top->axi___05Fb___05Fvalid = 0;
    for (int n = 0; n < 4; n++) { top->eval(); top->clk = 1; top->eval(); top->clk = 0; }
    top->rst = 0;

    // An answer is owed for every op but FLUSH; `argument` of a STEP_OP tells how many (0 or 1).
    uint64_t owed = 0;
    for (uint64_t cycle = 0; cycle < o.limit; cycle++) {
        figures->cycles = cycle;
        // --- ingress: steps in order, write data first
        top->i_write___05Fvalid = 0;
        top->o_write_slot___05Fready = 0;
        const Step *step = nullptr;
        while (next < count && cycle >= pause_until) {
            const Step &s = steps[next];
            if (s.kind == STEP_OP) { step = &s; break; }
            if (s.kind == STEP_WAIT_FLUSHED && figures->flushes < s.argument) break;
            if (s.kind == STEP_WAIT_ANSWERED && (op_answers < owed || !queue.empty())) break;
            if (s.kind == STEP_WAIT_IDLE && (op_answers < owed || !queue.empty() || !top->idle)) break;
            if (s.kind == STEP_WRITE_MEMORY) std::memcpy(at(s.argument).data(), s.data, 64);
            if (s.kind == STEP_READ_MEMORY) memory_reads[memory_read_count++] = at(s.argument);
            next++;
            if (s.kind == STEP_PAUSE) { pause_until = cycle + s.argument; break; }
        }
        bool room = queue.size() < 512;
        if (step && step->has_write && room) top->o_write_slot___05Fready = 1;
        // --- op
        if (!offering && !queue.empty() && queue.front().due <= cycle && random.chance(o.i_valid)) {
            offering = true;
            load(top->i___05Fpayload, queue.front().op.data());
        }
        top->i___05Fvalid = offering;
        top->o___05Fready = random.chance(o.o_ready);
        top->o_flushed___05Fready = random.chance(o.flushed_ready);
        top->axi___05Far___05Fready = random.chance(o.ar_ready);
        top->axi___05Faw___05Fready = random.chance(o.aw_ready);
        top->axi___05Fw___05Fready = random.chance(o.w_ready);
        // --- memory's answers
        for (Pending &p : reads) if (!p.sampled && p.sample <= cycle) { p.data = at(p.line); p.sampled = true; }
        for (Store &s : stores) if (!s.applied && s.apply <= cycle) { merge(at(s.line), s.data, s.strobes); s.applied = true; }
        auto choose = [&](auto &list, unsigned chance) {
            if (list.empty() || !random.chance(chance)) return -1;
            unsigned start = o.shuffle ? random.below(list.size()) : 0;
            for (unsigned n = 0; n < list.size(); n++) {
                unsigned k = (start + n) % list.size();
                if (list[k].due <= cycle) return static_cast<int>(k);
            }
            return -1;
        };
        if (r_now < 0 && (r_now = choose(reads, o.r_valid)) >= 0) {
            std::vector<uint32_t> words(sizeof(top->axi___05Fr___05Fpayload) / 4 + 1);
            set_bits(words.data(), 0, o.id_bits, reads[r_now].id);
            for (unsigned n = 0; n < 16; n++) set_bits(words.data(), o.id_bits + 32 * n, 32, reads[r_now].data[n]);
            bool error = o.error_every && reads[r_now].line % o.error_every == 0;
            set_bits(words.data(), o.id_bits + 512, 3, 4 | (error ? 2 : 0));
            load(top->axi___05Fr___05Fpayload, words.data());
        }
        top->axi___05Fr___05Fvalid = r_now >= 0;
        if (b_now < 0 && (b_now = choose(stores, o.b_valid)) >= 0) {
            uint32_t words[2] = {stores[b_now].id, 0};
            load(top->axi___05Fb___05Fpayload, words);
        }
        top->axi___05Fb___05Fvalid = b_now >= 0;

        top->eval();
        // --- write slot: its data in the same cycle
        if (step && room) {
            bool take = !step->has_write;
            Queued item{cycle + 4 + random.below(o.write_delay + 1), {}};
            std::memcpy(item.op.data(), step->op, sizeof step->op);
            if (step->has_write && top->o_write_slot___05Fvalid) {
                uint32_t slot = top->o_write_slot___05Fpayload;
                if (slot_taken[slot]) return fail(1);
                slot_taken[slot] = true;
                std::vector<uint32_t> words(sizeof(top->i_write___05Fpayload) / 4 + 1);
                set_bits(words.data(), 0, o.write_slot_bits, slot);
                for (unsigned n = 0; n < 16; n++) set_bits(words.data(), o.write_slot_bits + 32 * n, 32, step->data[n]);
                for (unsigned n = 0; n < 2; n++) set_bits(words.data(), o.write_slot_bits + 512 + 32 * n, 32, step->byte_enable[n]);
                load(top->i_write___05Fpayload, words.data());
                top->i_write___05Fvalid = 1;
                set_bits(item.op.data(), o.write_slot_first, o.write_slot_bits, slot);
                take = true;
            }
            if (take) {
                if (!queue.empty()) item.due = std::max(item.due, queue.back().due);
                queue.push_back(item);
                owed += step->argument;
                next++;
            }
        }
        top->eval();

        // --- transfers
        if (offering && top->i___05Fready) {
            offering = false;
            // From here on the block may give the slot back at any time.
            slot_taken[bits(queue.front().op.data(), o.write_slot_first, o.write_slot_bits)] = false;
            queue.pop_front();
            if (!sent) figures->first_accepted = cycle;
            accepted[sent++] = static_cast<uint32_t>(cycle);
        }
        if (top->o___05Fvalid && top->o___05Fready) {
            if (figures->answers >= sent) return fail(2);
            auto words = words_of(top->o___05Fpayload);
            std::memcpy(answers + figures->answers * o.answer_words, words.data(), o.answer_words * 4);
            answered[figures->answers++] = static_cast<uint32_t>(cycle);
            figures->last_answered = cycle;
            op_answers++;
        }
        if (top->o_flushed___05Fvalid && top->o_flushed___05Fready) {
            uint64_t payload = 0;
            std::memcpy(&payload, &top->o_flushed___05Fpayload, sizeof top->o_flushed___05Fpayload);
            flushed_at[figures->flushes] = static_cast<uint32_t>(cycle);
            flushed[figures->flushes++] = static_cast<uint32_t>(payload);
        }
        if (r_now >= 0 && top->axi___05Fr___05Fready) {
            reading[reads[r_now].id] = false;
            reads.erase(reads.begin() + r_now);
            r_now = -1;
            returned[rs++] = static_cast<uint32_t>(cycle);
        }
        if (b_now >= 0 && top->axi___05Fb___05Fready) {
            if (!stores[b_now].applied) merge(at(stores[b_now].line), stores[b_now].data, stores[b_now].strobes);
            writing[stores[b_now].id] = false;
            stores.erase(stores.begin() + b_now);
            b_now = -1;
        }
        auto address_of = [&](const auto &port, uint32_t &id, uint64_t &line) {
            auto words = words_of(port);
            id = static_cast<uint32_t>(bits(words.data(), 0, o.id_bits));
            uint64_t byte = bits(words.data(), o.id_bits, o.address_bits);
            line = byte / 64;
            return byte % 64 == 0 && bits(words.data(), o.id_bits + o.address_bits, 13) == (0 | 6 << 8 | 1 << 11);
        };
        if (top->axi___05Far___05Fvalid && top->axi___05Far___05Fready) {
            Pending p{cycle + o.read_latency + random.below(o.read_jitter + 1), 0, 0, 0, {}, false};
            if (!address_of(top->axi___05Far___05Fpayload, p.id, p.line)) return fail(3);
            if (reading[p.id]) return fail(4);
            reading[p.id] = true;
            p.sample = o.late ? cycle + 1 + random.below(static_cast<unsigned>(p.due - cycle)) : cycle + 1;
            reads.push_back(p);
            asked[ars++] = static_cast<uint32_t>(cycle);
            figures->most_reads = std::max<uint64_t>(figures->most_reads, reads.size());
        }
        if (top->axi___05Faw___05Fvalid && top->axi___05Faw___05Fready) {
            uint32_t id;
            uint64_t line;
            if (!address_of(top->axi___05Faw___05Fpayload, id, line)) return fail(5);
            if (writing[id]) return fail(6);
            writing[id] = true;
            addresses.emplace_back(id, line);
        }
        if (top->axi___05Fw___05Fvalid && top->axi___05Fw___05Fready) {
            auto words = words_of(top->axi___05Fw___05Fpayload);
            Line data;
            for (unsigned n = 0; n < 16; n++) data[n] = words[n];
            if (!bits(words.data(), 576, 1)) return fail(7);
            lines.emplace_back(data, words[16] | uint64_t(words[17]) << 32);
        }
        while (!addresses.empty() && !lines.empty()) {
            Store s{cycle + o.write_latency + random.below(o.write_jitter + 1), 0, addresses.front().first, addresses.front().second, lines.front().first,
                    lines.front().second, false};
            s.apply = o.late ? cycle + 1 + random.below(static_cast<unsigned>(s.due - cycle)) : cycle + 1;
            stores.push_back(s);
            addresses.pop_front();
            lines.pop_front();
            figures->writes++;
        }
        figures->reads = ars;
#if VM_TRACE
        trace.dump(cycle);
#endif
        top->clk = 1;
        top->eval();
        top->clk = 0;
        if (context->gotError()) return 2;
        if (next == count && queue.empty() && op_answers >= owed) {
            figures->cycles = cycle;
            top->final();
            return 0;
        }
    }
    figures->where = next;
    return 1;
}
}

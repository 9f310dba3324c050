// SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
//
// Drives the data path: an ingress that fills write slots, a legal but unhelpful AXI memory, and a list of steps (ops, waits, and accesses
// of another master to the memory); bits of its memories flip when it is asked for. Verilator writes a second underscore in a row as `_05F`.

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <memory>
#include <set>
#include <unordered_map>
#include <vector>

#include "Vtop.h"
#include "Vtop___024root.h"
#include "datapath_ports.h"
#include "verilated.h"
#include "verilated_syms.h"
#if VM_TRACE
#include "verilated_vcd_c.h"
#endif
#if VM_COVERAGE
#include <string>

#include "verilated_cov.h"
#endif

// Verilator's: all that follows from registers and memories. A row that is changed from here is seen by part of the logic alone before.
void Vtop___024root___eval_settle(Vtop___024root *);

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

// A memory of the block, all its rows; `words`: where each code word of a row begins, and the row's end; `seen`: as they were left by the last flips.
struct Rows {
    std::string name;
    uint8_t *bytes;
    unsigned width, depth, row_bytes;
    std::vector<unsigned> words;
    std::vector<uint8_t> seen;
};

// In the order of DATAPATH_MEMORIES. Of the two memories of a byte mask, which are one code word together, the first.
std::vector<Rows> memories(VerilatedContext &context) {
    std::vector<Rows> found = DATAPATH_MEMORIES;
    for (const auto &[scope, place] : *context.scopeNameMap()) {
        if (!place->varsp()) continue;
        for (const auto &[name, variable] : *place->varsp()) {
            if (variable.udims() != 1) continue;
            const std::string whole = std::string(scope) + "." + name;
            for (Rows &rows : found) {
                if (!whole.ends_with("." + rows.name) && !whole.ends_with("." + rows.name + ".macro.words")) continue;
                rows.bytes = static_cast<uint8_t *>(variable.datap());
                rows.width = static_cast<unsigned>(variable.entBits());
                rows.depth = static_cast<unsigned>(variable.elements(1));
                rows.row_bytes = static_cast<unsigned>(variable.totalSize() / rows.depth);
                rows.seen.assign(rows.bytes, rows.bytes + rows.depth * rows.row_bytes);
            }
        }
    }
    return found;
}

// `count` neighbouring bits of each code word, or only of the one called `only`, of each row that was written since the last time.
void flip(Rows &rows, unsigned count, unsigned only, Random &random) {
    for (unsigned n = 0; n < rows.depth; n++) {
        uint8_t *row = rows.bytes + n * rows.row_bytes, *seen = rows.seen.data() + n * rows.row_bytes;
        for (unsigned k = 0; k + 1 < rows.words.size(); k++) {
            bool written = false;
            for (unsigned bit = rows.words[k]; bit < rows.words[k + 1]; bit++) written |= (row[bit / 8] ^ seen[bit / 8]) >> bit % 8 & 1;
            const unsigned first = rows.words[k] + random.below(rows.words[k + 1] - rows.words[k] + 1 - count);
            if (only != UINT32_MAX && only != k) continue;
            for (unsigned bit = first; written && bit < first + count; bit++) row[bit / 8] ^= 1 << bit % 8;
        }
        std::memcpy(seen, row, rows.row_bytes);
    }
}

#if VM_COVERAGE
std::string coverage_file;

// Leaves there what of the model a run has reached.
struct Reached {
    VerilatedContext &context;
    ~Reached() { context.coveragep()->write(coverage_file.c_str()); }
};
#endif

}  // namespace

extern "C" {

#if VM_COVERAGE
void datapath_coverage(const char *file) { coverage_file = file; }
#endif

enum { STEP_OP = 0, STEP_WAIT_FLUSHED = 1, STEP_WRITE_MEMORY = 2, STEP_READ_MEMORY = 3, STEP_PAUSE = 4, STEP_WAIT_ANSWERED = 5, STEP_WAIT_IDLE = 6, STEP_ERRORS = 7 };

struct Step {
    uint32_t kind, has_write;
    uint64_t argument;        // count, line address, cycles; chances of errors (R, B << 16); of an op: answers owed, its host line + 1 << 8
    uint32_t op[8];           // data_op
    uint32_t data[16];
    uint32_t byte_enable[2];
};

struct Options {
    uint32_t op_words, answer_words, write_slot_first, write_slot_bits, id_bits, address_bits;
    uint32_t read_latency, read_jitter, write_latency, write_jitter, shuffle, late;  // late: memory reads and writes at a random time within its latency
    uint32_t i_valid, o_ready, ar_ready, aw_ready, w_ready, flushed_ready, r_valid, b_valid;  // chances of 256
    uint32_t write_delay, error_every;
    uint32_t stall;  // a channel stands still for up to so many cycles, every now and then
    uint32_t flips, flip_period, flip_memory, flip_word;  // bits of that code word, every so many cycles, of that memory; UINT32_MAX: all of them
    uint32_t kind_first, frame_first, frame_bits, base_first, base_bits, offset_first, scale_offset_first, offset_bits, scaled_first, partial_first,
        fresh_first, poison_first, stored_first, stored_bits;  // of an op
    uint64_t seed, limit;
};

struct Figures {
    uint64_t cycles, answers, flushes, reads, writes, most_reads, most_slots, reports, first_accepted, last_answered, code, where, looks, corrected, fatal, ended;
};

// Returns 0, or: 1 out of time, 2 an RTL assertion, 3 the memory port broke AXI4 or the block's own contract (`where` says which check), 4 a memory is
// not there, or has rows of another width.
// Flips that are beyond repair end the run, and others do where one code word of each row flips: `ended` is the cycle in which the block tells of them,
// at `fault`. Without flips it says nothing there.
// poisoned: of each answer owed, whether the model of the frame table knew the line to be poisoned. answers: answer_words each. Cycle arrays: one entry per op accepted, answer given, AR, R, flush reported.
int datapath_run(const Step *steps, uint64_t count, const Options *options, uint32_t *answers, uint32_t *accepted, uint32_t *answered, uint32_t *asked,
                 uint32_t *returned, uint32_t *flushed, uint32_t *flushed_at, uint32_t *poisoned, Line *memory_reads, Figures *figures) {
    const Options &o = *options;
    auto context = std::make_unique<VerilatedContext>();
    context->fatalOnError(false);
    context->randReset(2);
    context->randSeed(static_cast<int>(o.seed & 0x7fffffff) | 1);
    auto top = std::make_unique<Vtop>(context.get());
#if VM_COVERAGE
    const Reached reached{*context};
#endif
#if VM_TRACE
    context->traceEverOn(true);
    VerilatedVcdC trace;
    top->trace(&trace, 99);
    trace.open("datapath.vcd");
#endif
    Random random{o.seed * 2 + 1}, flipping{o.seed * 2 + 3};
    *figures = Figures{};
    auto rows = memories(*context);
    for (const Rows &each : rows)
        if (each.width != each.words.back()) return 4;

    struct Pending { uint64_t due, sample; uint32_t id; uint64_t line; Line data; bool sampled; unsigned error; };
    struct Store { uint64_t due, apply; uint32_t id; uint64_t line; Line data; uint64_t strobes; bool applied; unsigned error; };
    struct Queued { uint64_t due; std::array<uint32_t, 8> op; uint64_t argument; bool has_write; };
    std::unordered_map<uint64_t, Line> memory;
    std::vector<Pending> reads;
    std::vector<Store> stores;
    std::deque<std::pair<uint32_t, uint64_t>> addresses;
    std::deque<std::pair<Line, uint64_t>> lines;
    std::deque<Queued> queue, passed;  // `passed`: what the frame table has emitted
    std::vector<bool> reading(1u << o.id_bits), writing(1u << o.id_bits), slot_taken(1u << o.write_slot_bits);
    uint64_t next = 0, sent = 0, pause_until = 0, ars = 0, rs = 0, op_answers = 0;
    int r_now = -1, b_now = -1;
    bool offering = false;
    unsigned r_errors = 0, b_errors = 0, owed_passed = 0, slots_taken = 0;
    uint64_t flushes_sent = 0;
    enum { OPS, ANSWERS, FLUSHED, AR, AW, W, CHANNELS };
    std::array<uint64_t, CHANNELS> still_until{};
#if DATAPATH_PROTECTED
    enum { BEYOND_REPAIR = 6 };
    auto fault = [&] { return static_cast<unsigned>(top->fault); };
#else
    enum { BEYOND_REPAIR = 0 };
    auto fault = [] { return 0u; };
#endif
    // What breaks a rule because a word is beyond repair, breaks it before the block can say so.
    auto over = [&](int code) {
        for (int n = 0; n < 2 && o.flips == 2; n++) {
            top->clk = 1;
            top->eval();
            top->clk = 0;
            top->eval();
            if (fault() & BEYOND_REPAIR) {
                figures->fatal = 1;
                figures->ended = figures->cycles;
                return 0;
            }
        }
        return code;
    };
    auto fail = [&](uint64_t where) { figures->where = where; return over(3); };
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

    // What the frame table knows of a host line, and of the DRAM lines whose errors have been reported. An error of a read (1) or of a write (2) is in
    // `unreported` until a report covers it.
    struct Host { uint64_t payload, scale; bool scaled, poisoned; };
    std::unordered_map<uint64_t, Host> hosts;
    std::unordered_map<uint64_t, uint64_t> base_of, stored_of;  // by frame
    std::unordered_map<uint64_t, unsigned> unreported;
    std::set<uint64_t> lost, misread;  // `misread`: a fill with an error may be merged after its report
    auto field = [&](const Queued &q, uint32_t first, uint32_t width) { return bits(q.op.data(), first, width); };
    enum { READ = 1, WRITE = 2, FLUSH = 3 };
    auto pass = [&](Queued q) {
        uint64_t kind = field(q, o.kind_first, 2), base = field(q, o.base_first, o.base_bits), host = q.argument >> 8;
        bool known = false;
        if (host) {
            base_of[field(q, o.frame_first, o.frame_bits)] = base;
            stored_of[field(q, o.frame_first, o.frame_bits)] = field(q, o.stored_first, o.stored_bits);
            uint64_t payload = base + field(q, o.offset_first, o.offset_bits), scale = base + field(q, o.scale_offset_first, o.offset_bits);
            bool scaled = field(q, o.scaled_first, 1);
            auto [entry, fresh] = hosts.try_emplace(host, Host{payload, scale, scaled, lost.count(payload) || (scaled && lost.count(scale))});
            Host &h = entry->second;
            bool never = field(q, o.fresh_first, 1);
            if (never || (kind == WRITE && !field(q, o.partial_first, 1))) h.poisoned = false;
            if (kind == READ && h.poisoned) { set_bits(q.op.data(), o.poison_first, 1, 1); known = true; }
        }
        if (kind != FLUSH) poisoned[owed_passed++] = known;
        passed.push_back(q);
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
            bool waits = !queue.empty() || !passed.empty();
            if (s.kind == STEP_WAIT_ANSWERED && (op_answers < owed || waits)) break;
            if (s.kind == STEP_WAIT_IDLE) {
                if (op_answers < owed || waits || !top->idle) break;
                if (!unreported.empty()) return fail(20);
            }
            if (s.kind == STEP_WRITE_MEMORY) {  // another page comes into the flushed frame
                if (unreported.count(s.argument)) return fail(21);
                std::memcpy(at(s.argument).data(), s.data, 64);
                lost.erase(s.argument);
                for (auto &[id, h] : hosts) if (h.payload == s.argument) h.poisoned = false;
            }
            if (s.kind == STEP_ERRORS) { r_errors = s.argument & 0xffff; b_errors = s.argument >> 16; }
            if (s.kind == STEP_READ_MEMORY) memory_reads[figures->looks++] = at(s.argument);
            next++;
            if (s.kind == STEP_PAUSE) { pause_until = cycle + s.argument; break; }
        }
        bool room = queue.size() < 512;
        if (step && step->has_write && room) top->o_write_slot___05Fready = 1;
        // --- op
        while (!queue.empty() && queue.front().due <= cycle && passed.size() < 16) { pass(queue.front()); queue.pop_front(); }
        auto moves = [&](unsigned channel, unsigned chance) {
            if (o.stall && !random.below(256)) still_until[channel] = cycle + random.below(o.stall);
            return cycle >= still_until[channel] && random.chance(chance);
        };
        if (!offering && !passed.empty() && moves(OPS, o.i_valid)) {
            offering = true;
            load(top->i___05Fpayload, passed.front().op.data());
        }
        top->waiting = passed.size();
        top->o_error___05Fready = random.chance(20);
        top->i___05Fvalid = offering;
        top->o___05Fready = moves(ANSWERS, o.o_ready);
        top->o_flushed___05Fready = moves(FLUSHED, o.flushed_ready);
        top->axi___05Far___05Fready = moves(AR, o.ar_ready);
        top->axi___05Faw___05Fready = moves(AW, o.aw_ready);
        top->axi___05Fw___05Fready = moves(W, o.w_ready);
        // --- memory's answers
        for (Pending &p : reads)
            if (!p.sampled && p.sample <= cycle) {
                p.data = at(p.line);
                if (p.error) for (uint32_t &word : p.data) word = random.next();
                p.sampled = true;
            }
        // A write that memory does not take changes nothing, or all of the line.
        auto apply = [&](Store &s) {
            if (s.error & 4) for (uint32_t &word : at(s.line)) word = random.next();
            else if (!s.error) merge(at(s.line), s.data, s.strobes);
            s.applied = true;
        };
        for (Store &s : stores) if (!s.applied && s.apply <= cycle) apply(s);
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
            if (o.error_every && reads[r_now].line % o.error_every == 0) reads[r_now].error = 2;
            set_bits(words.data(), o.id_bits + 512, 3, 4 | reads[r_now].error);
            load(top->axi___05Fr___05Fpayload, words.data());
        }
        top->axi___05Fr___05Fvalid = r_now >= 0;
        if (b_now < 0 && (b_now = choose(stores, o.b_valid)) >= 0) {
            uint32_t words[2] = {stores[b_now].id | (stores[b_now].error & 3) << o.id_bits, 0};
            load(top->axi___05Fb___05Fpayload, words);
        }
        top->axi___05Fb___05Fvalid = b_now >= 0;

        top->eval();
        if (top->idle) {  // nothing is under way, of what came or left before this cycle
            if (slots_taken || sent - flushes_sent != figures->answers || figures->flushes != flushes_sent) return fail(24);
            if (!reads.empty() || !stores.empty() || !addresses.empty() || !lines.empty()) return fail(25);
        }
        // --- write slot: its data in the same cycle
        if (step && room) {
            bool take = !step->has_write;
            Queued item{cycle + 4 + random.below(o.write_delay + 1), {}, step->argument, bool(step->has_write)};
            std::memcpy(item.op.data(), step->op, sizeof step->op);
            if (step->has_write && top->o_write_slot___05Fvalid) {
                uint32_t slot = top->o_write_slot___05Fpayload;
                if (slot_taken[slot]) return fail(1);
                slot_taken[slot] = true;
                figures->most_slots = std::max<uint64_t>(figures->most_slots, ++slots_taken);
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
                owed += step->argument & 1;
                next++;
            }
        }
        top->eval();
        if (fault()) {
            const bool fatal = fault() & BEYOND_REPAIR;
            if (fatal != (o.flips == 2) || !o.flips) return fail(30);
            figures->corrected += !fatal;
            figures->fatal += fatal;
            if (fatal || o.flip_word != UINT32_MAX) {
                figures->ended = cycle;
                return 0;
            }
        }

        // --- transfers
        if (offering && top->i___05Fready) {
            offering = false;
            // From here on the block may give the slot back at any time.
            if (passed.front().has_write) {
                slot_taken[bits(passed.front().op.data(), o.write_slot_first, o.write_slot_bits)] = false;
                slots_taken--;
            }
            flushes_sent += field(passed.front(), o.kind_first, 2) == FLUSH;
            passed.pop_front();
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
        if (top->o_error___05Fvalid && top->o_error___05Fready) {
            uint32_t words[4] = {};
            std::memcpy(words, &top->o_error___05Fpayload, sizeof top->o_error___05Fpayload);
            uint64_t line = base_of[bits(words, 0, o.frame_bits)] + bits(words, o.frame_bits, o.offset_bits);
            bool spoils = bits(words, o.frame_bits + o.offset_bits, 1);
            if (bits(words, o.frame_bits + o.offset_bits + 1, o.stored_bits) != stored_of[bits(words, 0, o.frame_bits)]) return fail(23);
            if (!unreported.count(line) && !(spoils && misread.count(line))) return fail(22);
            if (spoils) {
                unreported.erase(line);
                lost.insert(line);
                for (auto &[id, h] : hosts) if (h.payload == line || (h.scaled && h.scale == line)) h.poisoned = true;
            } else if (!(unreported[line] &= 2)) unreported.erase(line);
            figures->reports++;
        }
        if (r_now >= 0 && top->axi___05Fr___05Fready) {
            if (reads[r_now].error) { unreported[reads[r_now].line] |= 1; misread.insert(reads[r_now].line); }
            reading[reads[r_now].id] = false;
            reads.erase(reads.begin() + r_now);
            r_now = -1;
            returned[rs++] = static_cast<uint32_t>(cycle);
        }
        if (b_now >= 0 && top->axi___05Fb___05Fready) {
            if (!stores[b_now].applied) apply(stores[b_now]);
            if (stores[b_now].error) unreported[stores[b_now].line] |= 2;
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
            Pending p{cycle + o.read_latency + random.below(o.read_jitter + 1), 0, 0, 0, {}, false, 0};
            if (r_errors && random.chance(r_errors)) p.error = 2 + random.below(2);
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
                    lines.front().second, false, 0};
            if (b_errors && random.chance(b_errors)) s.error = 2 + random.below(2) + 4 * random.below(2);
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
        if (o.flips && cycle % o.flip_period == o.flip_period - 1) {
            for (unsigned n = 0; n < rows.size(); n++)
                if (o.flip_memory == n || o.flip_memory == UINT32_MAX) flip(rows[n], o.flips, o.flip_word, flipping);
            Vtop___024root___eval_settle(top->rootp);
        }
        top->clk = 1;
        top->eval();
        top->clk = 0;
        if (context->gotError()) return over(2);
        if (next == count && queue.empty() && passed.empty() && op_answers >= owed && figures->flushes == flushes_sent) {
            figures->cycles = cycle;
            top->final();
            return 0;
        }
    }
    figures->where = next;
    return 1;
}
}

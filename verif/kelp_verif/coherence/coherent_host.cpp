// SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
//
// A host that caches, around the coherent front: agents with caches of their own behind one home, and behind the front a device that is a plain
// memory. Everything on all channels is delayed at random. The host is written from docs/coherence.md alone.
//
// Every line has one true value. What an agent reads, from its cache or from the device, must be that; what the device says nobody holds must be held
// by nobody, and the device changes its value then, as if the page had been quantised anew; in the end memory must have all of it.

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "Vtop.h"
#include "verilated.h"
#include "verilated_syms.h"

#include "bits.h"
#include "caching_host.h"
#include "kelp_ports.h"

// Verilator's: everything combinational anew.
void Vtop___024root___eval_settle(Vtop___024root *);

namespace {

using namespace kelp;
namespace ports = kelp::ports;
namespace codes = kelp::codes;

struct Random {  // xorshift64*
    uint64_t state;
    uint32_t next() {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        return (state * 0x2545F4914F6CDD1Dull) >> 32;
    }
    bool chance(uint64_t of_256) { return of_256 >= 256 || (next() >> 24) < of_256; }
    uint32_t below(uint32_t limit) { return limit ? next() % limit : 0; }
};

struct Line {
    uint64_t address;
    bool open, rounds;
    State state = I;        // the home's
    uint8_t agents = 0;     // who has a copy
    uint32_t copy[AGENTS];
    uint32_t truth = 0;
    bool raw = false;       // the copies differ from `truth`, since the device rounded what was written
    uint32_t raw_value = 0;
    Out out = NONE;
    uint8_t asker = 0;
    bool has_cmp = false, has_data = false;
    uint32_t cmp = 0, data = 0, epoch = 0, out_epoch = 0;
    Snoop snoop = QUIET;
    uint32_t bi_tag = 0;
    uint64_t snoop_due = 0;
};

struct Message {  // of Req, RwD or BIRsp, whose LowAddr is `value`
    uint32_t opcode, snp, field, value, tag, data;
    uint64_t address;
};

}  // namespace

extern "C" {

struct Options {
    uint64_t seed, transactions, limit, lines, sector, opened, rounded;
    uint64_t req, rwd, birsp, drs, ndr, bisnp;                      // chances of 256 that a channel moves
    uint64_t inner_req, inner_rwd, inner_drs, inner_ndr, latency, jitter;
    uint64_t acts, ask, late, silent, refuse, timeout, stream, patience, dwell;
    uint64_t flip_cycle, flip_memory, flip_row, flip_bits, session_shift, blocks, no_op;  // memories count from 1; `flip_bits` has one bit's number and, above 16 bits, one more than another's
};

struct Figures {
    uint64_t cycles, transactions, hits, snoops, conflicts, ack_first, ack_after, asks, lost, silent, too_late, refused, unasked, ungranted, changed, commits, first,
        last, granted, corrected, fatal, blocks;
    uint64_t done[KINDS];
    char said[200];
};

// The memories of the model, in the order in which `flip_memory` counts them: scope and name, a line each.
void coherent_memories(char *to, uint64_t room) {
    auto context = std::make_unique<VerilatedContext>();
    auto top = std::make_unique<Vtop>(context.get());
    std::string text;
    for (const auto &[scope, place] : *context->scopeNameMap()) {
        if (!place->varsp()) continue;
        for (const auto &[name, variable] : *place->varsp())
            if (variable.udims() == 1) text += std::string(scope) + "." + name + "\n";
    }
    std::snprintf(to, room, "%s", text.c_str());
}

// Returns 0, or 1 with what is wrong in `said`.
int coherent_run(const Options *options, const uint64_t *addresses, uint32_t *commits, uint64_t commit_room, Figures *figures) {
    const Options &o = *options;
    auto context = std::make_unique<VerilatedContext>();
    context->fatalOnError(false);
    context->randReset(2);
    context->randSeed(static_cast<int>(o.seed & 0x7fffffff) | 1);
    auto top = std::make_unique<Vtop>(context.get());
    Random random{o.seed * 2 + 1};
    *figures = Figures{};
    Figures &f = *figures;
    uint64_t cycle = 0;

    auto fail = [&](const char *format, auto... values) {
        std::snprintf(f.said, sizeof f.said, format, values...);
        f.cycles = cycle;
        // What is wrong may be seen before it is said.
        f.fatal += get(top->fault, ports::fault::fatal);
        for (int n = 0; o.flip_memory && n < 3; n++) {
            top->clk = 1;
            top->eval();
            top->clk = 0;
            top->eval();
            f.fatal += get(top->fault, ports::fault::fatal);
        }
        return 1;
    };
    // Turns bits over in the row asked for, or, with ~0, in one that was written in the cycle before.
    bool flipped = !o.flip_memory;
    std::vector<uint8_t> before;
    auto flip = [&] {
        uint64_t number = 0;
        for (const auto &[scope, place] : *context->scopeNameMap()) {
            if (!place->varsp()) continue;
            for (const auto &[name, variable] : *place->varsp()) {
                if (variable.udims() != 1 || ++number != o.flip_memory) continue;
                const uint64_t depth = variable.elements(1), bytes = variable.totalSize() / depth;
                auto *rows = static_cast<uint8_t *>(variable.datap());
                std::vector<uint8_t> now(rows, rows + depth * bytes);
                uint64_t row = o.flip_row % depth;
                if (o.flip_row == ~0ull) {
                    row = 0;
                    while (row < depth && (before.empty() || std::equal(&now[row * bytes], &now[row * bytes] + bytes, &before[row * bytes]))) row++;
                }
                before = now;
                if (row == depth) return;
                const uint64_t second = o.flip_bits >> 16;
                rows[row * bytes + (o.flip_bits & 0xffff) / 8] ^= 1 << (o.flip_bits & 7);
                if (second) rows[row * bytes + (second - 1) / 8] ^= 1 << ((second - 1) & 7);
                flipped = true;
            }
        }
    };
    std::vector<Line> lines(o.lines);
    std::unordered_map<uint64_t, uint32_t> line_at;
    for (uint32_t n = 0; n < o.lines; n++) {
        lines[n].address = addresses[n] >> 2;
        lines[n].open = addresses[n] & 1;
        lines[n].rounds = addresses[n] >> 1 & 1;
        line_at[lines[n].address] = n;
    }
    auto owner = [&](uint64_t address) { return (7 * (address >> o.session_shift) + 3) & 15; };
    auto rounded = [&](const Line &l, uint32_t value) { return l.rounds ? value & ~0xffu : value; };

    std::deque<Message> reqs, rwds, rsps;
    std::deque<std::pair<uint64_t, Message>> late_rsps;
    std::vector<uint32_t> snooped;                     // lines whose snoop is not answered yet
    std::unordered_map<uint32_t, Asked> asked_for;     // BI-Tag → lines
    std::unordered_map<uint32_t, std::vector<uint32_t>> conflicts;  // BI-Tag → lines that wait for its Ack

    // The device: a memory that executes each line's accesses in order, at a random time.
    struct Access { bool write; uint32_t line, tag, value, due; Message message; };
    struct Answer { uint32_t tag, value, line; };
    std::deque<Access> accesses;
    std::vector<Answer> data_answers, write_answers;
    std::vector<uint32_t> memory(o.lines, 0), last_due(o.lines, 0);
    std::deque<Message> rwd_sent;  // what must arrive at the device, as it is
    std::deque<uint64_t> to_ask, asked;  // sectors that are to leave: to be asked for, and asked for
    uint64_t ask_sector = 0;
    uint64_t last_progress = 0, last_unheld = 0, transactions = 0, next_stream = 0, finished_stream = 0;
    bool ending = false;

    bool offer_req = false, offer_rwd = false, offer_ask = false;
    int drs_now = -1, ndr_now = -1;

    auto word = [](uint32_t value, unsigned n) { return value * 2654435761u + n * 40503u; };

    top->clk = 0;
    top->rst = 1;
    top->m2s_req___05Fvalid = top->m2s_rwd___05Fvalid = top->m2s_birsp___05Fvalid = 0;
    top->inner_drs___05Fvalid = top->inner_ndr___05Fvalid = top->i_ask___05Fvalid = 0;
    clear(top->bi);
    put(top->bi, ports::bi::timeout, o.timeout);
    put(top->bi, ports::bi::id, 5);
    put(top->bi, ports::bi::blocks, o.blocks);
    top->fatal = 0;
    clear(top->sessions);
    put(top->sessions, ports::sessions::open, o.opened);
    put(top->sessions, ports::sessions::rounds, o.rounded);
    uint64_t owners = 0;
    for (unsigned k = 0; k < ports::sessions::owners.bits / 4; k++) owners |= owner(static_cast<uint64_t>(k) << o.session_shift) << 4 * k;
    put(top->sessions, ports::sessions::owners, owners);
    for (int n = 0; n < 4; n++) {
        top->eval();
        top->clk = 1;
        top->eval();
        top->clk = 0;
    }
    top->rst = 0;

    auto request = [&](uint32_t n, Out kind, uint32_t opcode, uint32_t field, uint32_t value, uint32_t snp) {
        Line &l = lines[n];
        l.out = kind;
        l.has_cmp = l.has_data = false;
        l.out_epoch = l.epoch;
        reqs.push_back({opcode, snp, field, value, n, 0, l.address});
    };
    auto write = [&](uint32_t n, Out kind, uint32_t value, uint32_t data) {
        Line &l = lines[n];
        l.out = kind;
        l.has_cmp = l.has_data = false;
        uint32_t opcode = random.chance(64) ? codes::MEM_WR_PTL : codes::MEM_WR;
        // One that does not say what the host keeps, whatever it keeps; its MetaValue means nothing.
        const bool silent = o.no_op && random.chance(o.no_op);
        rwds.push_back({opcode, 0, silent ? META_NO_OP : META0, silent ? random.below(4) : value, n, data, l.address});
    };
    auto invalidate = [&](Line &l) {
        l.state = I;
        l.agents = 0;
        l.raw = false;
    };
    auto answer_snoop = [&](Line &l) {
        invalidate(l);
        l.snoop = QUIET;
        f.snoops++;
        transactions++;
        Message m{0, 0, 0, static_cast<uint32_t>(~l.address & 3), l.bi_tag, 0, l.address};  // BIRspI
        uint32_t given = 1;
        Asked &a = asked_for[l.bi_tag];
        a.left--;
        if (a.block) {
            m.value = l.address & 3;
            if (a.left ? random.chance(160) : a.aside || random.chance(128)) {
                a.aside++;
                if (a.left) return;
                m.opcode = codes::BI_RSP_I_BLK;
                m.value = random.below(4);
                // It speaks for lines of which nothing was said, too.
                given = a.aside + a.mute;
                f.silent -= a.mute;
                a.mute = 0;
            }
        }
        if (o.refuse && random.chance(o.refuse)) {
            m.opcode += 1 + random.below(2);  // BIRspS, BIRspE
            f.refused += given;
        } else if (o.silent && random.chance(o.silent)) {
            f.silent += given;
            a.mute++;
            if (!a.left) asked_for.erase(l.bi_tag);
            if (random.chance(128)) late_rsps.push_back({cycle + o.timeout * 2 + 100, m});
            return;
        }
        if (!a.left) asked_for.erase(l.bi_tag);
        rsps.push_back(m);
    };
    auto dirty_home = [&](uint32_t n, Out kind) {
        Line &l = lines[n];
        uint32_t value = l.copy[__builtin_ctz(l.agents)];
        static const uint32_t values[] = {INVALID, SHARED, ANY};
        write(n, kind, values[kind - WRITE_I], value);
        l.truth = rounded(l, value);
        if (kind == WRITE_I) invalidate(l);
        else {
            l.state = kind == WRITE_S ? S : E;
            l.raw = l.rounds && value != l.truth;
            l.raw_value = value;
        }
    };
    auto store = [&](Line &l, unsigned agent) {
        uint32_t value = random.next();
        l.agents = 1u << agent;
        l.copy[agent] = value;
        l.state = M;
        l.truth = value;
        l.raw = false;
    };
    auto check_hit = [&](Line &l, unsigned agent) {
        f.hits++;
        return l.copy[agent] == (l.raw ? l.raw_value : l.truth);
    };
    // The home's request is over when all that belongs to it has come.
    auto done = [&](uint32_t n) -> int {
        Line &l = lines[n];
        bool needs_data = l.out == READ_SHARED || l.out == READ_ANY || l.out == LOOK;
        if (!l.has_cmp || (needs_data && !l.has_data)) return 0;
        Out out = l.out;
        l.out = NONE;
        f.done[out]++;
        transactions++;
        last_progress = cycle;
        if (!f.first) f.first = cycle;
        f.last = cycle;
        if (l.snoop == AFTER) l.snoop = HERE;
        bool granted = l.cmp == codes::CMP_S || l.cmp == codes::CMP_E;
        if (needs_data && l.open && (out != LOOK || (l.state == I && l.epoch == l.out_epoch)) && l.data != l.truth && !l.raw)
            return fail("stale read of line %x: %x, expected %x", n, l.data, l.truth);
        if (!l.open && granted) return fail("a grant of line %x of a closed session", n);
        if (l.open && !granted && (out == READ_SHARED || out == READ_ANY || out == OWN)) return fail("no grant of line %x", n);
        if (out == READ_SHARED || out == READ_ANY) {
            if (!granted) return 0;
            f.granted++;
            if (l.raw) return fail("line %x is read while a copy that differs is held", n);
            if (l.state == I) l.agents = 0;
            l.agents |= 1u << l.asker;
            for (unsigned a = 0; a < AGENTS; a++)
                if (l.agents >> a & 1 && l.state != I && a != l.asker && l.copy[a] != l.data) return fail("agents differ at line %x", n);
            l.copy[l.asker] = l.data;
            l.state = l.cmp == codes::CMP_E ? E : S;
            if (out == READ_ANY) {
                if (l.state != E) return fail("MemRd Any of line %x was answered Cmp-S", n);
                store(l, l.asker);
            }
        } else if (out == OWN && granted) {
            f.granted++;
            if (l.cmp != codes::CMP_E) return fail("MemInv of line %x was answered Cmp-S", n);
            store(l, l.asker);
        }
        return 0;
    };

    for (; cycle < o.limit; cycle++) {
        f.cycles = cycle;
        top->now = static_cast<uint32_t>(cycle);
        // --- agents act
        unsigned acts = o.stream ? 1 : o.acts;
        for (unsigned k = 0; k < acts && top->ready; k++) {
            if (o.stream) {
                if (next_stream < o.lines && reqs.size() < 2) {
                    uint32_t n = static_cast<uint32_t>(next_stream++);
                    if (o.stream == 1) request(n, READ_ANY, codes::MEM_RD, META0, ANY, SNP_INV);
                    else if (o.stream == 2) request(n, READ_SHARED, codes::MEM_RD, META0, SHARED, SNP_DATA);
                    else request(n, LOOK, codes::MEM_RD, META_NO_OP, 0, SNP_CUR);
                }
                break;
            }
            // Now and then the host stays with a few lines.
            uint32_t span = o.dwell ? std::min<uint64_t>(o.lines, o.dwell) : o.lines;
            uint32_t n = (random.below(span) + (o.dwell ? (cycle / 4096) * span / 2 : 0)) % o.lines;
            Line &l = lines[n];
            if (l.out || l.snoop || reqs.size() > 12 || rwds.size() > 12) continue;
            unsigned agent = random.below(AGENTS);
            bool mine = l.state != I && (l.agents >> agent & 1);
            if (ending) {
                if (l.state == M) dirty_home(n, WRITE_I);
                continue;
            }
            l.asker = agent;
            uint32_t what = random.below(100);
            if (what < 35) {  // load
                if (mine) {
                    if (!check_hit(l, agent)) return fail("stale hit of line %x: %x, expected %x", n, l.copy[agent], l.truth);
                } else if (l.state != I) {  // from another agent; who had it alone shares it
                    unsigned from = __builtin_ctz(l.agents);
                    l.copy[agent] = l.copy[from];
                    l.agents = l.state == M ? 1u << agent : l.agents | 1u << agent;
                } else request(n, READ_SHARED, random.chance(200) ? codes::MEM_RD : codes::MEM_RD_DATA, META0, SHARED, SNP_DATA);
            } else if (what < 65) {  // store
                if (l.state == E || l.state == M) store(l, agent);
                else if (l.state == S || random.chance(128)) {
                    if (random.chance(128)) request(n, READ_ANY, codes::MEM_RD, META0, ANY, SNP_INV);
                    else request(n, OWN, random.chance(200) ? codes::MEM_INV : codes::MEM_INV_NT, META0, ANY, SNP_INV);
                } else if (random.chance(100)) {
                    uint32_t value = random.next();
                    l.truth = rounded(l, value);
                    l.epoch++;
                    write(n, UNCACHED, INVALID, value);
                } else request(n, READ_ANY, codes::MEM_RD, META0, ANY, SNP_INV);
            } else if (what < 80) {  // write back, or give up
                if (l.state == M) dirty_home(n, static_cast<Out>(WRITE_I + (l.open ? random.below(3) : 0)));
                else if (l.state != I && random.chance(128)) invalidate(l);
                else if (l.state != I) {
                    invalidate(l);
                    request(n, CLEAN_EVICT, codes::MEM_CLN_EVCT, META0, INVALID, SNP_NONE);
                }
            } else if (what < 85) {
                if (l.state == E) l.state = S;
            } else if (what < 88 && l.state != M) request(n, LOOK, codes::MEM_RD, META_NO_OP, 0, SNP_CUR);
        }
        // --- snoops that can be answered
        for (size_t k = 0; k < snooped.size();) {
            Line &l = lines[snooped[k]];
            if (l.snoop == HERE && !l.out && l.snoop_due <= cycle) {
                if (l.state == M) dirty_home(snooped[k], WRITE_I);
                else answer_snoop(l);
            }
            if (l.snoop) k++;
            else {
                snooped[k] = snooped.back();
                snooped.pop_back();
            }
        }
        while (!late_rsps.empty() && late_rsps.front().first <= cycle) {
            rsps.push_back(late_rsps.front().second);
            f.too_late++;
            late_rsps.pop_front();
        }
        // --- M2S
        offer_req = offer_req || (!reqs.empty() && random.chance(o.req));
        top->m2s_req___05Fvalid = offer_req;
        if (offer_req) {
            clear(top->m2s_req___05Fpayload);
            const Message &m = reqs.front();
            namespace p = ports::m2s_req;
            put(top->m2s_req___05Fpayload, p::opcode, m.opcode);
            put(top->m2s_req___05Fpayload, p::snp_type, m.snp);
            put(top->m2s_req___05Fpayload, p::meta_field, m.field);
            put(top->m2s_req___05Fpayload, p::meta_value, m.value);
            put(top->m2s_req___05Fpayload, p::tag, m.tag);
            put(top->m2s_req___05Fpayload, p::address, m.address);
            put(top->m2s_req___05Fpayload, p::ld_id, owner(m.address));
        }
        offer_rwd = offer_rwd || (!rwds.empty() && random.chance(o.rwd));
        top->m2s_rwd___05Fvalid = offer_rwd;
        if (offer_rwd) {
            clear(top->m2s_rwd___05Fpayload);
            const Message &m = rwds.front();
            namespace p = ports::m2s_rwd;
            put(top->m2s_rwd___05Fpayload, p::opcode, m.opcode);
            put(top->m2s_rwd___05Fpayload, p::meta_field, m.field);
            put(top->m2s_rwd___05Fpayload, p::meta_value, m.value);
            put(top->m2s_rwd___05Fpayload, p::tag, m.tag);
            put(top->m2s_rwd___05Fpayload, p::address, m.address);
            put(top->m2s_rwd___05Fpayload, p::ld_id, owner(m.address));
            put(top->m2s_rwd___05Fpayload, p::byte_enable, ~0ull);
            uint32_t data[16];
            data[0] = m.data;
            for (unsigned n = 1; n < 16; n++) data[n] = word(m.data, n);
            put_words(top->m2s_rwd___05Fpayload, p::data, data);
        }
        top->m2s_birsp___05Fvalid = !rsps.empty() && random.chance(o.birsp);
        if (top->m2s_birsp___05Fvalid) {
            clear(top->m2s_birsp___05Fpayload);
            put(top->m2s_birsp___05Fpayload, ports::m2s_birsp::opcode, rsps.front().opcode);
            put(top->m2s_birsp___05Fpayload, ports::m2s_birsp::bi_tag, rsps.front().tag);
            put(top->m2s_birsp___05Fpayload, ports::m2s_birsp::bi_id, 5);
            put(top->m2s_birsp___05Fpayload, ports::m2s_birsp::low_address, rsps.front().value);
        }
        // --- a sector that is to leave
        uint32_t leaving = random.below(o.lines);
        if (!ending && asked.size() + to_ask.size() < 8 && lines[leaving].open && random.chance(o.ask)) {
            to_ask.push_back(lines[leaving].address / o.sector);
            f.asks++;
        }
        if (!offer_ask && !to_ask.empty() && random.chance(64)) {
            offer_ask = true;
            ask_sector = to_ask.front();
            to_ask.pop_front();
        }
        top->i_ask___05Fpayload = ask_sector;
        top->i_ask___05Fvalid = offer_ask;
        // --- the device
        for (size_t n = 0; n < accesses.size();) {
            Access &a = accesses[n];
            if (a.due > cycle) { n++; continue; }
            if (a.write) {
                memory[a.line] = rounded(lines[a.line], a.value);
                write_answers.push_back({a.tag, 0, a.line});
            } else data_answers.push_back({a.tag, memory[a.line], a.line});
            accesses.erase(accesses.begin() + n);
        }
        auto pick = [&](std::vector<Answer> &answers, uint64_t chance) {
            if (answers.empty() || !random.chance(chance)) return -1;
            size_t n = chance >= 256 ? 0 : random.below(answers.size());
            for (size_t k = 0; k < n; k++) if (answers[k].line == answers[n].line) n = k;
            return static_cast<int>(n);
        };
        if (drs_now < 0 && (drs_now = pick(data_answers, o.inner_drs)) >= 0) {
            clear(top->inner_drs___05Fpayload);
            uint32_t data[16];
            data[0] = data_answers[drs_now].value;
            for (unsigned n = 1; n < 16; n++) data[n] = word(data[0], n);
            put(top->inner_drs___05Fpayload, ports::inner_drs::tag, data_answers[drs_now].tag);
            put(top->inner_drs___05Fpayload, ports::inner_drs::ld_id, owner(lines[data_answers[drs_now].line].address));
            put_words(top->inner_drs___05Fpayload, ports::inner_drs::data, data);
        }
        top->inner_drs___05Fvalid = drs_now >= 0;
        if (ndr_now < 0 && (ndr_now = pick(write_answers, o.inner_ndr)) >= 0) {
            clear(top->inner_ndr___05Fpayload);
            put(top->inner_ndr___05Fpayload, ports::inner_ndr::tag, write_answers[ndr_now].tag);
            put(top->inner_ndr___05Fpayload, ports::inner_ndr::ld_id, owner(lines[write_answers[ndr_now].line].address));
        }
        top->inner_ndr___05Fvalid = ndr_now >= 0;
        top->inner_req___05Fready = accesses.size() < 256 && random.chance(o.inner_req);
        top->inner_rwd___05Fready = accesses.size() < 256 && random.chance(o.inner_rwd);
        top->s2m_drs___05Fready = random.chance(o.drs);
        top->s2m_ndr___05Fready = random.chance(o.ndr);
        top->s2m_bisnp___05Fready = random.chance(o.bisnp);
        top->o_lost___05Fready = random.chance(64);

        if (!flipped && cycle >= o.flip_cycle) {
            flip();
            Vtop___024root___eval_settle(top->rootp);
        }
        top->eval();
        // --- transfers
        if (offer_req && top->m2s_req___05Fready) { reqs.pop_front(); offer_req = false; }
        if (offer_rwd && top->m2s_rwd___05Fready) {
            if (rwds.front().opcode != codes::BI_CONFLICT) rwd_sent.push_back(rwds.front());
            rwds.pop_front();
            offer_rwd = false;
        }
        if (top->m2s_birsp___05Fvalid) rsps.pop_front();
        if (offer_ask && top->i_ask___05Fready) {
            asked.push_back(ask_sector);
            offer_ask = false;
        }
        if (drs_now >= 0 && top->inner_drs___05Fready) { data_answers.erase(data_answers.begin() + drs_now); drs_now = -1; }
        if (ndr_now >= 0 && top->inner_ndr___05Fready) { write_answers.erase(write_answers.begin() + ndr_now); ndr_now = -1; }
        auto accept = [&](Access a) {
            a.due = std::max<uint64_t>(cycle + o.latency + random.below(o.jitter + 1), last_due[a.line] + 1);
            last_due[a.line] = a.due;
            accesses.push_back(a);
        };
        // Of a RwD and a Req that come at once the RwD is first.
        if (top->inner_rwd___05Fvalid && top->inner_rwd___05Fready) {
            namespace p = ports::inner_rwd;
            auto &port = top->inner_rwd___05Fpayload;
            if (rwd_sent.empty()) return fail("the device is sent a write that nobody made");
            Message m = rwd_sent.front();
            rwd_sent.pop_front();
            uint32_t data[16];
            get_words(port, p::data, data);
            bool same = get(port, p::opcode) == m.opcode && get(port, p::address) == m.address && get(port, p::tag) == m.tag && data[0] == m.data &&
                        data[15] == word(m.data, 15) && get(port, p::byte_enable) == ~0ull && get(port, p::ld_id) == owner(m.address);
            if (!same) return fail("a write of line %x is not what the host sent", m.tag);
            accept({true, m.tag, m.tag, m.data, 0, m});
        }
        if (top->inner_req___05Fvalid && top->inner_req___05Fready) {
            namespace p = ports::inner_req;
            auto &port = top->inner_req___05Fpayload;
            uint64_t address = get(port, p::address);
            if (!line_at.count(address) || get(port, p::opcode) != codes::MEM_RD) {
                if (!line_at.count(address) || lines[line_at[address]].open || (get(port, p::opcode) != codes::MEM_INV && get(port, p::opcode) != codes::MEM_INV_NT))
                    return fail("the device is sent a request that nobody made, of %llx", static_cast<unsigned long long>(address));
                // MemInv of a closed session: Cmp, with the host's own tag
                write_answers.push_back({static_cast<uint32_t>(get(port, p::tag)), 0, line_at[address]});
            } else accept({false, line_at[address], static_cast<uint32_t>(get(port, p::tag)), 0, 0, {}});
        }
        if (top->s2m_drs___05Fvalid && top->s2m_drs___05Fready) {
            namespace p = ports::s2m_drs;
            auto &port = top->s2m_drs___05Fpayload;
            uint32_t n = get(port, p::tag), data[16];
            get_words(port, p::data, data);
            if (n >= o.lines || lines[n].has_data || get(port, p::ld_id) != owner(lines[n].address)) return fail("data that nobody asked for, tag %x", n);
            if (data[15] != word(data[0], 15)) return fail("data of line %x are torn", n);
            Line &l = lines[n];
            if (l.out != READ_SHARED && l.out != READ_ANY && l.out != LOOK) return fail("data for line %x, which has no read", n);
            l.has_data = true;
            l.data = data[0];
            if (int bad = done(n)) return bad;
        }
        if (top->s2m_ndr___05Fvalid && top->s2m_ndr___05Fready) {
            namespace p = ports::s2m_ndr;
            auto &port = top->s2m_ndr___05Fpayload;
            uint32_t opcode = get(port, p::opcode), tag = get(port, p::tag);
            if (opcode == codes::BI_CONFLICT_ACK) {
                if (!conflicts.count(tag)) return fail("an Ack of nothing, tag %x", tag);
                const std::vector<uint32_t> told = conflicts[tag];
                conflicts.erase(tag);
                for (uint32_t n : told) {
                    Line &l = lines[n];
                    if (!l.out) { l.snoop = HERE; f.ack_after++; }
                    else if (l.has_cmp) { l.snoop = AFTER; f.ack_after++; }
                    else {  // the snoop comes first
                        if (l.state == M) return fail("the snoop comes first and the host is dirty");
                        f.ack_first++;
                        answer_snoop(l);
                    }
                }
            } else {
                if (tag >= o.lines || !lines[tag].out || lines[tag].has_cmp || get(port, p::ld_id) != owner(lines[tag].address))
                    return fail("a completion that nobody waits for, tag %x", tag);
                lines[tag].has_cmp = true;
                lines[tag].cmp = opcode;
                if (int bad = done(tag)) return bad;
            }
        }
        if (top->s2m_bisnp___05Fvalid && top->s2m_bisnp___05Fready) {
            namespace p = ports::s2m_bisnp;
            auto &port = top->s2m_bisnp___05Fpayload;
            uint64_t address = get(port, p::address);
            const uint32_t opcode = get(port, p::opcode), tag = get(port, p::bi_tag);
            const bool block = opcode == codes::BI_SNP_INV_BLK;
            if ((opcode != codes::BI_SNP_INV && !(block && o.blocks)) || get(port, p::bi_id) != 5) return fail("a BISnp of opcode %x", opcode);
            if (asked_for.count(tag)) return fail("two BISnp with tag %x at once", tag);
            const std::vector<uint64_t> called = snooped_lines(block, address);
            if (called.empty()) return fail("a BISnp of no part of a block");
            asked_for[tag] = {block, static_cast<uint32_t>(called.size()), 0, 0};
            f.blocks += block;
            for (uint64_t at : called) {
                if (!line_at.count(at)) return fail("a BISnp of a line that was never asked for");
                uint32_t n = line_at[at];
                Line &l = lines[n];
                if (l.snoop) return fail("two BISnp of line %x at once", n);
                l.bi_tag = tag;
                l.snoop_due = cycle + (o.late ? random.below(o.late) : 0);
                bool write_back = l.out >= WRITE_I;
                if (!l.out || (write_back && random.chance(128))) l.snoop = HERE;
                else {
                    l.snoop = CONFLICT;
                    auto &told = conflicts[tag];
                    if (told.empty()) {
                        f.conflicts++;
                        rwds.push_back({codes::BI_CONFLICT, 0, 0, 0, tag, 0, l.address});
                    }
                    told.push_back(n);
                }
                snooped.push_back(n);
            }
        }
        if (top->o_answer___05Fvalid) {
            if (asked.empty()) return fail("an answer without a question");
            uint64_t sector = asked.front();
            asked.pop_front();
            if (top->o_answer___05Fpayload) to_ask.push_back(sector);
            else last_unheld = cycle;
            for (uint64_t k = 0; k < o.sector && !top->o_answer___05Fpayload; k++) {
                auto found = line_at.find(sector * o.sector + k);
                if (found == line_at.end()) continue;
                Line &l = lines[found->second];
                if (l.state != I) return fail("line %x leaves while the host holds it", found->second);
                for (const Message &m : rwds)
                    if (m.opcode != codes::BI_CONFLICT && m.tag == found->second && lines[m.tag].out != UNCACHED)
                        return fail("line %x leaves ahead of its dirty data", found->second);
                // The device changes it, where no access of it is under way.
                if (last_due[found->second] < cycle && !l.out) {
                    f.changed++;
                    l.epoch++;
                    l.truth = memory[found->second] = rounded(l, random.next());
                }
            }
        }
        if (top->o_lost___05Fvalid && top->o_lost___05Fready) f.lost++;
        f.unasked += get(top->pulses, ports::pulses::unasked);
        f.ungranted += get(top->pulses, ports::pulses::ungranted);
        if (top->commit___05Fvalid) {
            constexpr unsigned words = (ports::commit::BITS + 31) / 32;
            if (f.commits < commit_room) {
                uint32_t *to = commits + f.commits * words;
                const auto &port = top->commit___05Fpayload;
                for (unsigned n = 0; n < words; n++) to[n] = static_cast<uint32_t>(get(port, Field{32 * n, std::min(32u, ports::commit::BITS - 32 * n)}));
            }
            f.commits++;
        }
        f.corrected += get(top->fault, ports::fault::corrected);
        if (top->fault && (get(top->fault, ports::fault::fatal) || !o.flip_memory)) return fail("a fault of a memory");
        top->clk = 1;
        top->eval();
        top->clk = 0;
        if (context->gotError()) return fail("an assertion of the RTL");

        f.transactions = transactions;
        if (o.stream && next_stream == o.lines && f.done[READ_ANY] + f.done[READ_SHARED] + f.done[LOOK] == o.lines) return 0;
        if (!o.stream && transactions >= o.transactions) ending = true;
        if (ending) {
            bool quiet = reqs.empty() && rwds.empty() && rsps.empty() && accesses.empty() && asked.empty() && to_ask.empty() && !offer_ask && late_rsps.empty();
            if (quiet && std::all_of(lines.begin(), lines.end(), [](const Line &l) { return !l.out && !l.snoop && l.state != M; })) break;
        }
        if (asked.empty() && to_ask.empty() && !offer_ask) last_unheld = cycle;
        if (cycle - last_unheld > o.patience) return fail("nothing leaves: %d sectors are asked for", static_cast<int>(asked.size() + to_ask.size()));
        if (cycle - last_progress > o.patience) {
            for (uint32_t n = 0; n < o.lines; n++)
                if (lines[n].out || lines[n].snoop)
                    return fail("nothing moves: line %x, request %d, snoop %d, %d Req, %d RwD wait", n, lines[n].out, lines[n].snoop, static_cast<int>(reqs.size()), static_cast<int>(rwds.size()));
            if (!ending && !o.stream) last_progress = cycle;
            else return fail("nothing moves");
        }
    }
    if (cycle >= o.limit) return fail("out of time");
    for (uint32_t n = 0; n < o.lines; n++)
        if (memory[n] != lines[n].truth)
            return fail("lost write of line %x: memory has %x, expected %x", n, memory[n], lines[n].truth);
    return 0;
}
}

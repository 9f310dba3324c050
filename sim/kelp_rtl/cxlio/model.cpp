// SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
//
// The Verilated `CxlIo` behind function calls (model.py): a register access, an event, a message, a request of the data path at a time.
// Payloads are 32-bit words, lowest first; where their fields lie Python knows.

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "Vtop.h"
#include "verilated.h"
#include "verilated_syms.h"

#include "../cpp/bits.h"
#include "cxlio_ports.h"

// Verilator's: everything combinational anew.
void Vtop___024root___eval_settle(Vtop___024root *);

namespace {

using kelp::Field;
using Words = std::vector<uint32_t>;
constexpr int ANSWER_LIMIT = 1000;

struct Array {  // as kelp_rtl.library.Array has it
    const char *scope, *name;
    void *rows;
    uint32_t width, depth, row_bytes;
};

template <class Port>
Words words_of(const Port &port, unsigned bits) {
    Words words(kelp::words_of(bits));
    kelp::get_words(port, Field{0, bits}, words.data());
    return words;
}

class Model {
    VerilatedContext context_;
    std::unique_ptr<Vtop> top_;

  public:
    uint64_t cycles = 0, faults[3] = {}, signals[3] = {};
    std::deque<Words> messages, requests, events;
    std::string error;

    explicit Model(uint64_t seed) {
        context_.fatalOnError(false);
        context_.randReset(2);
        context_.randSeed(static_cast<int>(seed % 0x7fffffff) + 1);
        top_ = std::make_unique<Vtop>(&context_);
    }
    ~Model() { enter(); }
    Vtop &top() { return *top_; }
    // Verilator's runtime finds the context through the thread, also as a model ends: there it is the model built last,
    // which may be gone.
    void enter() { Verilated::threadContextp(&context_); }

    void cycle() {
        Vtop &t = *top_;
        t.events___05Fvalid = !events.empty();
        if (!events.empty()) kelp::put_words(t.events___05Fpayload, Field{0, EVENT_BITS}, events.front().data());
        t.eval();
        if (t.messages___05Fvalid) messages.push_back(words_of(t.messages___05Fpayload, MESSAGE_BITS));
        if (t.requests___05Fvalid) requests.push_back(words_of(t.requests___05Fpayload, REQUEST_BITS));
        if (t.events___05Fvalid && t.events___05Fready) events.pop_front();
        for (int i = 0; i < 3; i++) {
            faults[i] += t.fault >> i & 1;
            signals[i] += t.signals >> i & 1;
        }
        t.clk = 1;
        t.eval();
        t.clk = 0;
        cycles++;
        if (error.empty() && (context_.gotError() || context_.gotFinish())) error = "an assertion failed";
    }

    void reset() {
        Vtop &t = *top_;
        context_.assertOn(false);
        events.clear();
        t.clk = 0;
        t.rst = 1;
        t.port___05Faw___05Fvalid = t.port___05Fw___05Fvalid = t.port___05Far___05Fvalid = 0;
        t.port___05Fb___05Fready = t.port___05Fr___05Fready = 1;
        t.messages___05Fready = t.requests___05Fready = t.device_line___05Fready = 1;
        t.errors___05Fvalid = t.answers___05Fvalid = t.host_line___05Fvalid = 0;
        t.memory_ready = 1;
        kelp::clear(t.health);
#if COUNTED_BITS
        kelp::clear(t.counted);
#endif
#if WIRED
        t.progress = 0;
#endif
#if HOT
        t.heat___05Fvalid = 0;
#endif
        for (int i = 0; i < 4; i++) cycle();
        messages.clear();
        requests.clear();
        t.rst = 0;
        context_.assertOn(true);
    }

    // The answer's code; -1 when there is none.
    int access(uint32_t address, bool write, uint64_t *data, uint32_t strobe) {
        Vtop &t = *top_;
        if (write) {
            t.port___05Faw___05Fpayload = address;
            kelp::put(t.port___05Fw___05Fpayload, Field{0, 64}, *data);
            kelp::put(t.port___05Fw___05Fpayload, Field{64, 8}, strobe);
            t.port___05Faw___05Fvalid = t.port___05Fw___05Fvalid = 1;
        } else {
            t.port___05Far___05Fpayload = address;
            t.port___05Far___05Fvalid = 1;
        }
        for (int i = 0; i < ANSWER_LIMIT; i++) {
            t.eval();
            const bool taken = write ? t.port___05Faw___05Fready : t.port___05Far___05Fready;
            const bool answered = write ? t.port___05Fb___05Fvalid : t.port___05Fr___05Fvalid;
            if (answered) {
                const int code = write ? t.port___05Fb___05Fpayload : kelp::get(t.port___05Fr___05Fpayload, Field{64, 2});
                if (!write) *data = kelp::get(t.port___05Fr___05Fpayload, Field{0, 64});
                cycle();
                return code;
            }
            cycle();
            if (taken) t.port___05Faw___05Fvalid = t.port___05Fw___05Fvalid = t.port___05Far___05Fvalid = 0;
        }
        return -1;
    }

    std::vector<Array> arrays() {
        std::vector<Array> found;
        for (const auto &[scope, place] : *context_.scopeNameMap()) {
            if (!place->varsp()) continue;
            for (const auto &[name, variable] : *place->varsp()) {
                if (variable.udims() != 1) continue;
                const auto depth = static_cast<uint32_t>(variable.elements(1));
                found.push_back({scope, name, variable.datap(), variable.entBits(), depth, static_cast<uint32_t>(variable.totalSize() / depth)});
            }
        }
        return found;
    }
};

int taken(std::deque<Words> &from, uint32_t *to) {
    if (from.empty()) return 0;
    std::copy(from.front().begin(), from.front().end(), to);
    from.pop_front();
    return 1;
}

thread_local Model *current = nullptr;

}  // namespace

// Verilator's hook for a failed assertion (VL_USER_STOP).
void vl_stop(const char *file, int line, const char *) {
    Verilated::threadContextp()->gotError(true);
    if (current && current->error.empty()) current->error = std::string("assertion failed at ") + file + ":" + std::to_string(line);
}

extern "C" {

Model *cxlio_new(uint64_t seed) { return new Model(seed); }
void cxlio_delete(Model *m) { delete m; }
const char *cxlio_error(Model *m) { return m->error.c_str(); }
uint64_t cxlio_cycles(Model *m) { return m->cycles; }
void cxlio_reset(Model *m) {
    current = m, m->enter();
    m->reset();
}
void cxlio_clock(Model *m, int cycles) {
    current = m, m->enter();
    while (cycles-- > 0) m->cycle();
}
int cxlio_access(Model *m, uint32_t address, int write, uint64_t *data, uint32_t strobe) {
    current = m, m->enter();
    return m->access(address, write, data, strobe);
}
void cxlio_event(Model *m, const uint32_t *words) { m->events.emplace_back(words, words + kelp::words_of(EVENT_BITS)); }
uint64_t cxlio_waiting(Model *m) { return m->events.size(); }
int cxlio_message(Model *m, uint32_t *words) { return taken(m->messages, words); }
int cxlio_request(Model *m, uint32_t *words) { return taken(m->requests, words); }
void cxlio_answer(Model *m, uint32_t word) {
    current = m, m->enter();
    m->top().answers___05Fpayload = word;
    m->top().answers___05Fvalid = 1;
    m->cycle();
    m->top().answers___05Fvalid = 0;
}
void cxlio_report(Model *m, const uint32_t *words) {
    current = m, m->enter();
    kelp::put_words(m->top().errors___05Fpayload, Field{0, ERROR_BITS}, words);
    m->top().errors___05Fvalid = 1;
    m->cycle();
    m->top().errors___05Fvalid = 0;
}
void cxlio_health(Model *m, const uint32_t *words) { kelp::put_words(m->top().health, Field{0, HEALTH_BITS}, words); }
#if COUNTED_BITS
// The same in each of so many cycles.
void cxlio_happen(Model *m, const uint32_t *words, int cycles) {
    current = m, m->enter();
    kelp::put_words(m->top().counted, Field{0, COUNTED_BITS}, words);
    while (cycles-- > 0) m->cycle();
    kelp::clear(m->top().counted);
}
#endif
// The device's line of a host's, -1 where no window has it.
int64_t cxlio_decode(Model *m, uint64_t line) {
    current = m, m->enter();
    Vtop &t = m->top();
    t.host_line___05Fpayload = line;
    t.host_line___05Fvalid = 1;
    m->cycle();
    t.host_line___05Fvalid = 0;
    for (int i = 0; i < ANSWER_LIMIT; i++) {
        t.eval();
        if (t.device_line___05Fvalid) {
            const uint64_t found = kelp::get(t.device_line___05Fpayload, Field{0, LINE_BITS + 1});
            m->cycle();
            return found >> LINE_BITS ? static_cast<int64_t>(found & kelp::ones(LINE_BITS)) : -1;
        }
        m->cycle();
    }
    return -2;
}
// Cycles with each kind of fault (corrected, poisoned, fatal), then of each signal.
void cxlio_faults(Model *m, uint64_t *to) {
    for (int i = 0; i < 3; i++) to[i] = m->faults[i], to[3 + i] = m->signals[i];
}
void cxlio_propagate(Model *m) { m->enter(), Vtop___024root___eval_settle(m->top().rootp); }
uint64_t cxlio_arrays(Model *m, Array *to, uint64_t room) {
    const auto found = m->arrays();
    std::copy_n(found.begin(), std::min<uint64_t>(room, found.size()), to);
    return found.size();
}
}

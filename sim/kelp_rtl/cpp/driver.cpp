// SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
//
// The Verilated endpoint with a host, a memory and a cold tier around it, run in slices from Python (driver.py).
//
// Each cycle: the models set the endpoint's inputs, the model settles, transfers are noted, the clock rises. All times are the endpoint's own `now`, extended to 64 bits.

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>

#include "Vtop.h"
#include "verilated.h"
#include "verilated_syms.h"
#if VM_TRACE
#include "verilated_vcd_c.h"
#endif

#include "flash.h"
#include "host.h"
#include "memory.h"

// Verilator's: everything combinational anew.
void Vtop___024root___eval_settle(Vtop___024root *);

namespace kelp {
namespace {

// Commit records of one type as they came: `order` numbers the records of all types.
struct Log {
    std::vector<int64_t> cycle, order;
    std::vector<uint32_t> words;
    std::vector<uint8_t> hot;
};

// An array of the model.
struct Array {
    const char *scope;  // the instance, TOP.top.…
    const char *name;
    void *rows;         // live; a change counts when `propagate` has been called
    uint32_t width, depth, row_bytes;
};

class Simulation {
    std::string wave_path_;
    VerilatedContext context_;
    std::unique_ptr<Vtop> top_;
#if VM_TRACE
    std::unique_ptr<VerilatedVcdC> waves_;
#endif
    uint64_t ticks_ = 0;         // for the waves: evaluated and skipped cycles since the beginning
    uint64_t time_ = 0;          // of the cycle under way
    uint32_t last_now_ = 0;
    bool settled_ = false;
    uint64_t last_progress_ = 0; // in evaluated cycles
    int64_t dwell_until_ = 0;    // no jump before this evaluated cycle
    uint64_t elapse_until_ = 0;  // no request comes before this time, whether the tier has something to do or not
    int64_t commits_ = 0;

  public:
    Settings settings;
    Counts counts{};
    Random random;
    Memory memory{settings, counts, random};
    SummaryMemory summaries{settings, counts, random};
    Flash flash{settings, counts, random, memory};
    Host host{settings, counts, random};
    std::unique_ptr<OtherHost> other;
    Log logs[3];                 // result, frame, score
    bool dumping = true;         // into the waves, if any
    std::string error;
    std::string assertion;

    Simulation(const Settings &s, uint64_t seed, const char *waves) : settings(s), random(seed) {
        context_.fatalOnError(false);
        context_.randReset(2);
        context_.randSeed(static_cast<int>(seed % 0x7fffffff) + 1);
        context_.traceEverOn(waves != nullptr);
        top_ = std::make_unique<Vtop>(&context_);
#if VM_TRACE
        if (waves) {
            waves_ = std::make_unique<VerilatedVcdC>();
            top_->trace(waves_.get(), 99);
            waves_->open(waves);
        }
#endif
    }
    ~Simulation() {
        enter();
        top_->final();
#if VM_TRACE
        if (waves_) waves_->close();
#endif
    }

    Vtop &top() { return *top_; }
    uint64_t time() const { return time_; }

    // Verilator's runtime finds the context through the thread: there it is the simulation built last, which may be
    // gone, or built by another thread.
    void enter() { Verilated::threadContextp(&context_); }

  private:
    void dump(bool high) {
#if VM_TRACE
        if (waves_ && dumping) waves_->dump(2 * ticks_ + high);
#else
        (void)high;
#endif
    }

    // Ends a cycle whose inputs have settled.
    void rise() {
        dump(false);
        top_->clk = 1;
        top_->eval();
        dump(true);
        top_->clk = 0;
        counts.evaluated++;
        ticks_ += 1 + top_->skip;
        if (!assertion.empty()) throw Problem(assertion);
        if (context_.gotError() || context_.gotFinish()) fail("the simulation stopped by itself");
    }

    void log(Log &to, bool hot) {
        to.cycle.push_back(static_cast<int64_t>(time_));
        to.order.push_back(commits_++);
        to.hot.push_back(hot);
    }

    void log_frame() {
        const bool hot = top_->commit_hot;
        if (hot && !settings.record_hot_reads && get(top_->commit_frame___05Fpayload, ports::commit_frame::op_kind) == codes::OP_READ) return;
        log(logs[1], hot);
        append(logs[1].words, top_->commit_frame___05Fpayload, ports::commit_frame::BITS);
    }

    void log_commits() {
        Vtop &t = *top_;
        if (t.commit_frame___05Fvalid && t.commit_hot) log_frame();
        if (t.commit_result___05Fvalid) {
            log(logs[0], false);
            append(logs[0].words, t.commit_result___05Fpayload, ports::commit_result::BITS);
        }
        if (t.commit_frame___05Fvalid && !t.commit_hot) log_frame();
        if (t.commit_score___05Fvalid) {
            log(logs[2], false);
            append(logs[2].words, t.commit_score___05Fpayload, ports::commit_score::BITS);
        }
    }

    // Where nothing happens before the tier completes a command, or before a time without requests is over, the time at which to go on; 0 otherwise. A deadline of the endpoint's own may
    // lie on the way: a jump passes it by `max_skip` at most, and where it did not end at a completion, the endpoint has time to look for deadlines before the next.
    uint64_t jump() {
        if (other || !settings.max_skip || counts.evaluated < dwell_until_ || !top_->quiescent || (!flash.waiting() && time_ >= elapse_until_) || !flash.quiet() || !memory.idle() || !summaries.idle() || !host.blocked()) return 0;
        uint64_t to = std::min(flash.next_due(), time_ + settings.max_skip);
        if (time_ < elapse_until_) to = std::min(to, elapse_until_);
        return to > time_ + 1 ? to : 0;
    }

    void cycle() {
        Vtop &t = *top_;
        static const bool none[2] = {false, false};
        host.drive(t, settled_, other ? other->taken : none);
        if (other) other->drive(t, time_, !host.offers(0), !host.offers(1));
        memory.drive(t, time_);
        summaries.drive(t, time_);
        flash.drive(t, time_);
        t.eval();
        bool moved = host.sample(t, time_, other.get());
        moved |= memory.sample(t, time_);
        moved |= summaries.sample(t, time_);
        moved |= flash.sample(t, time_);
        if (other) moved |= other->sample(t, time_);
        else if (t.s2m_bisnp___05Fvalid) fail("s2m_bisnp: a snoop where no host caches");
        log_commits();
        settled_ = !moved && t.quiescent && !host.offering() && memory.idle() && summaries.idle() && flash.idle();
        if (moved) last_progress_ = counts.evaluated;
        const uint64_t to = moved ? 0 : jump();
        if (to) {
            t.skip = static_cast<uint32_t>(to - time_ - 1);
            t.eval();
        }
        rise();
        t.skip = 0;
        const uint32_t now = t.now;
        const uint32_t passed = now - last_now_;
        if (passed != (to ? static_cast<uint32_t>(to - time_) : 1u)) fail("now went from %u to %u", last_now_, now);
        last_now_ = now;
        time_ += passed;
        counts.simulated += passed;
        if (to && flash.next_due() <= to)
            last_progress_ = counts.evaluated;  // such a jump cannot be repeated for ever
        else if (to)
            dwell_until_ = counts.evaluated + sizes::deadline_cycles;
        if (counts.evaluated - static_cast<int64_t>(last_progress_) > settings.stall_limit)
            fail("nothing has moved for %lld cycles; %lld requests wait for an answer, the endpoint is %squiescent", (long long)settings.stall_limit, (long long)host.waiting(),
                 t.quiescent ? "" : "not ");
    }

  public:
    // Runs `body`, which may throw, with this simulation as the one that assertions belong to.
    template <class Body>
    bool guarded(Body body);

    void reset(int cycles, int64_t limit) {
        Vtop &t = *top_;
        host.reset();
        memory.reset(t);
        summaries.reset(t);
        flash.reset();
        settled_ = false;
        // A random state before the reset may break any invariant.
        context_.assertOn(false);
        t.clk = 0;
        t.rst = 1;
        t.skip = 0;
        t.m2s_req___05Fvalid = t.m2s_rwd___05Fvalid = t.m2s_birsp___05Fvalid = 0;
        t.s2m_drs___05Fready = t.s2m_ndr___05Fready = 0;
        t.cold_command___05Fready = t.cold_completion___05Fvalid = 0;
        for (int i = 0; i < cycles; i++) {
            t.eval();
            rise();
        }
        t.rst = 0;
        t.s2m_bisnp___05Fready = 1;
        context_.assertOn(true);
        // Times never go back; their low half stays the endpoint's `now`.
        last_now_ = t.now;
        time_ = (counts.simulated ? (time_ >> 32) + 1 : 0) << 32 | last_now_;
        if (other) other->reset(time_);
        for (int64_t waited = 0;; waited++) {
            if (other) other->drive(t, time_, true, true);
            t.eval();
            if (t.ready) break;
            if (other) other->scrubs(t);
            if (waited == limit) fail("not ready %lld cycles after the reset", (long long)limit);
            log_commits();
            rise();
            time_ += static_cast<uint32_t>(t.now - last_now_);
            counts.simulated += static_cast<uint32_t>(t.now - last_now_);
            last_now_ = t.now;
        }
        last_progress_ = counts.evaluated;
    }

    // True while the program is not over.
    bool run(int64_t cycles) {
        const int64_t end = counts.evaluated + cycles;
        while (host.running() && counts.evaluated < end) cycle();
        return host.running();
    }

    void start(const Program &program) {
        last_progress_ = counts.evaluated;
        host.start(program);
    }

    // Clock cycles with the inputs as they stand: also after an error, to see what the endpoint says of it.
    void clock(int cycles) {
        for (int i = 0; i < cycles; i++) top_->eval(), rise();
    }

    void assertions(bool on) { context_.assertOn(on); }

    // After a change of state from outside, which `eval` would overlook where no input changes: a word and what a
    // decoder says of it would be of two times.
    void propagate() { Vtop___024root___eval_settle(top_->rootp); }

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

    void idle(int64_t cycles) {
        const int64_t end = counts.evaluated + cycles;
        while (counts.evaluated < end) cycle(), last_progress_ = counts.evaluated;
    }

    void elapse(uint64_t cycles) {
        elapse_until_ = time_ + cycles;
        while (time_ < elapse_until_) cycle(), last_progress_ = counts.evaluated;
    }
};

thread_local Simulation *current = nullptr;

template <class Body>
bool Simulation::guarded(Body body) {
    current = this;
    enter();
    try {
        body();
    } catch (const std::exception &problem) {
        error = problem.what();
    }
    current = nullptr;
    return error.empty();
}

}  // namespace
}  // namespace kelp

// Verilator's hook for a failed assertion (VL_USER_STOP): noted here, raised at the end of the cycle.
void vl_stop(const char *file, int line, const char *) {
    Verilated::threadContextp()->gotError(true);
    if (kelp::current && kelp::current->assertion.empty())
        kelp::current->assertion = std::string("assertion failed at ") + file + ":" + std::to_string(line);
}

using kelp::Simulation;

extern "C" {

// Sizes that Python checks its mirrors against.
void kelp_sizes(uint64_t *sizes) {
    sizes[0] = sizeof(kelp::Settings);
    sizes[1] = sizeof(kelp::Counts);
    sizes[2] = sizeof(kelp::Program);
}

// Null when there is no memory for it.
Simulation *kelp_new(const kelp::Settings *settings, uint64_t seed, const char *waves) {
    try {
        return new Simulation(*settings, seed, waves);
    } catch (const std::exception &) {
        return nullptr;
    }
}
void kelp_delete(Simulation *s) { delete s; }
void kelp_configure(Simulation *s, const kelp::Settings *settings) { s->settings = *settings; }
void kelp_dumping(Simulation *s, int on) { s->dumping = on; }
void kelp_lockstep(Simulation *s, int on) { s->top().lockstep = on; }
void kelp_plant(Simulation *s, uint32_t op, uint64_t index, uint32_t kind, uint64_t cycles) { s->flash.plant(op, index, static_cast<kelp::Plant>(kind), cycles); }

const char *kelp_error(Simulation *s) { return s->error.c_str(); }
// Right after a reset: every random choice begins anew.
void kelp_seed(Simulation *s, uint64_t seed) {
    s->random = kelp::Random(seed);
    s->host.draw_tags();
}
int64_t kelp_time(Simulation *s) { return static_cast<int64_t>(s->time()); }
int64_t kelp_finished(Simulation *s) { return s->host.finished(); }
int64_t kelp_waiting(Simulation *s) { return s->host.waiting(); }
int kelp_irq(Simulation *s) { return s->top().irq; }
void kelp_counts(Simulation *s, kelp::Counts *to) {
    *to = s->counts;
    to->commits = static_cast<int64_t>(s->logs[0].cycle.size() + s->logs[1].cycle.size() + s->logs[2].cycle.size());
}

// These return -1 on an error, whose text is kelp_error(); kelp_run returns 1 while the program goes on.
int kelp_reset(Simulation *s, int cycles, int64_t limit) {
    return s->guarded([&] { s->reset(cycles, limit); }) ? 0 : -1;
}
int kelp_start(Simulation *s, const kelp::Program *program) {
    return s->guarded([&] { s->start(*program); }) ? 0 : -1;
}
int kelp_run(Simulation *s, int64_t cycles) {
    bool more = false;
    return s->guarded([&] { more = s->run(cycles); }) ? more : -1;
}
int kelp_idle(Simulation *s, int64_t cycles) {
    return s->guarded([&] { s->idle(cycles); }) ? 0 : -1;
}
int kelp_elapse(Simulation *s, uint64_t cycles) {
    return s->guarded([&] { s->elapse(cycles); }) ? 0 : -1;
}

uint8_t *kelp_memory(Simulation *s) { return s->memory.bytes(); }

// Every array of the model, as far as there is room; how many there are.
uint64_t kelp_arrays(Simulation *s, kelp::Array *to, uint64_t room) {
    const auto found = s->arrays();
    std::copy_n(found.begin(), std::min<uint64_t>(room, found.size()), to);
    return found.size();
}
// Until the next reset.
void kelp_assertions(Simulation *s, int on) { s->assertions(on); }
void kelp_propagate(Simulation *s) { s->propagate(); }
int kelp_clock(Simulation *s, int cycles) {
    return s->guarded([&] { s->clock(cycles); }) ? 0 : -1;
}

int64_t kelp_commit_count(Simulation *s, int log) { return static_cast<int64_t>(s->logs[log].cycle.size()); }
// Hands over the records of one type and forgets them.
void kelp_commit_take(Simulation *s, int log, int64_t *cycle, int64_t *order, uint8_t *hot, uint32_t *words) {
    kelp::Log &from = s->logs[log];
    std::memcpy(cycle, from.cycle.data(), 8 * from.cycle.size());
    std::memcpy(order, from.order.data(), 8 * from.order.size());
    std::memcpy(hot, from.hot.data(), from.hot.size());
    std::memcpy(words, from.words.data(), 4 * from.words.size());
    from.cycle.clear();
    from.order.clear();
    from.hot.clear();
    from.words.clear();
}

// The slot at `lba`: its bytes (null: none) and how many; `line_mask` is its validity and poison.
uint8_t *kelp_flash(Simulation *s, uint64_t lba, uint64_t *size, uint32_t **line_mask) {
    const auto slot = s->flash.slots().find(lba);
    if (slot == s->flash.slots().end()) return nullptr;
    *size = slot->second.bytes.size();
    *line_mask = slot->second.line_mask.data();
    return slot->second.bytes.data();
}

}  // extern "C"

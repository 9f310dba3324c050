// SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
//
// The driver around `CxlDevice` (joined.py): beside its host, memory and cold tier a manager of the register port, one access at a time, and whoever takes MSI-X
// messages, one at a time. Everything else goes on meanwhile.

#include "driver.cpp"

namespace {

constexpr int ANSWER_LIMIT = 1000;

void cycle(Simulation *s) { s->idle(1); }

// The answer's code; -1 when there is none.
int access(Simulation *s, uint32_t address, bool write, uint64_t *data, uint32_t strobe) {
    Vtop &t = s->top();
    if (write) {
        t.port___05Faw___05Fpayload = address;
        kelp::put(t.port___05Fw___05Fpayload, kelp::Field{0, 64}, *data);
        kelp::put(t.port___05Fw___05Fpayload, kelp::Field{64, 8}, strobe);
        t.port___05Faw___05Fvalid = t.port___05Fw___05Fvalid = 1;
    } else {
        t.port___05Far___05Fpayload = address;
        t.port___05Far___05Fvalid = 1;
    }
    for (int i = 0; i < ANSWER_LIMIT; i++) {
        t.eval();
        const bool address_taken = write ? t.port___05Faw___05Fready : t.port___05Far___05Fready;
        const bool data_taken = t.port___05Fw___05Fready;
        const bool answered = write ? t.port___05Fb___05Fvalid : t.port___05Fr___05Fvalid;
        if (answered) {
            const int code = write ? t.port___05Fb___05Fpayload : kelp::get(t.port___05Fr___05Fpayload, kelp::Field{64, 2});
            if (!write) *data = kelp::get(t.port___05Fr___05Fpayload, kelp::Field{0, 64});
            cycle(s);
            return code;
        }
        cycle(s);
        if (address_taken) t.port___05Faw___05Fvalid = t.port___05Far___05Fvalid = 0;
        if (data_taken) t.port___05Fw___05Fvalid = 0;
    }
    return -1;
}

}  // namespace

extern "C" {

// Before the reset: inputs that the driver does not know.
void joined_quiet(Simulation *s) {
    Vtop &t = s->top();
    t.port___05Faw___05Fvalid = t.port___05Fw___05Fvalid = t.port___05Far___05Fvalid = 0;
    t.port___05Fb___05Fready = t.port___05Fr___05Fready = 1;
    t.messages___05Fready = 0;
    t.temperature = 0;
}
void joined_temperature(Simulation *s, uint32_t degrees) { s->top().temperature = degrees & 0xffff; }

// The answer's code, -1 without one, -2 on an error, whose text is kelp_error().
int joined_access(Simulation *s, uint32_t address, int write, uint64_t *data, uint32_t strobe) {
    int code = -1;
    return s->guarded([&] { code = access(s, address, write, data, strobe); }) ? code : -2;
}

// 1 and a message that waited; 0 without one; -2 on an error.
int joined_message(Simulation *s, uint32_t *words) {
    Vtop &t = s->top();
    if (!t.messages___05Fvalid) return 0;
    kelp::get_words(t.messages___05Fpayload, kelp::Field{0, kelp::ports::messages::BITS}, words);
    t.messages___05Fready = 1;
    const bool well = s->guarded([&] { cycle(s); });
    t.messages___05Fready = 0;
    return well ? 1 : -2;
}

// Faults that the memories of CXL.io show in this cycle.
uint32_t joined_fault(Simulation *s) { return s->top().io_fault; }

}  // extern "C"

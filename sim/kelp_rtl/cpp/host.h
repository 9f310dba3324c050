// SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
//
// The CXL.mem host: issues a program's requests on M2S Req and RwD, matches the answers by tag, and says when a group is over.
//
// A group's requests are issued when every answer of the group before has come. Inside a group Req and RwD each keep the program's order and go on side by side, or, with
// `in_order`, one request is offered at a time. Tags of requests that wait for an answer are unique; a tag is used again as late as possible, so that a late second
// answer meets a tag that is free.

#pragma once

#include <vector>

#include "Vtop.h"
#include "common.h"
#include "kelp_ports.h"

namespace kelp {

// One program and the places for its results; arrays of `count`, owned by Python, where not said otherwise. Mirrored by `_Program` in driver.py.
struct Program {
    int64_t count;
    const uint8_t *opcode;        // the message's opcode, | 0x10 on RwD
    const uint64_t *address;      // in bytes
    const uint8_t *ld_id;
    const int32_t *group;
    const uint8_t *flags;         // Flags
    const int64_t *data_index;    // row of `data`, -1 without
    const uint8_t *data;          // [rows, 64]
    const uint64_t *byte_enable;
    // results
    uint8_t *response;            // Response
    int64_t *accept_cycle, *response_cycle;   // -1 where there is none
    int64_t *accept_order, *response_order;
    uint8_t *read_data;           // [count, 64]
    uint32_t each_alone;          // every request is a group that waits for a settled endpoint
    uint32_t settle;              // wait for a settled endpoint at the end
};

enum Flags : uint8_t { POISON = 1, SETTLE = 2 };
enum class Response : uint8_t { NONE = 0, DATA = 1, POISON = 2, NXM = 3, CMP = 4 };

// A second host on the same channels, which caches (kelp_verif/coherence): it offers where the first one does not.
struct OtherHost {
    bool taken[2] = {false, false};  // it offers on Req, on RwD
    virtual ~OtherHost() = default;
    virtual void drive(Vtop &top, uint64_t now, bool req_free, bool rwd_free) = 0;
    virtual bool sample(Vtop &top, uint64_t now) = 0;
    virtual bool takes_data(Vtop &top) = 0;
    virtual bool takes_completion(Vtop &top) = 0;
    // The endpoint was reset; then, in each cycle until it is ready, after `drive`.
    virtual void reset(uint64_t now) = 0;
    virtual void scrubs(Vtop &top) = 0;
};

class Host {
    static constexpr uint8_t RWD = 0x10;
    static constexpr uint64_t META_NO_OP = 3;

    const Settings &settings_;
    Counts &counts_;
    Random &random_;
    Program program_{};
    int64_t group_end_ = 0;            // first request after the current group
    int64_t next_[2] = {0, 0};         // next request to offer on Req, on RwD
    int64_t offered_[2] = {-1, -1};
    int64_t waiting_ = 0;              // accepted or offered, not answered
    int64_t accepted_ = 0, answered_ = 0, finished_ = 0;
    enum class Phase { IDLE, SETTLING, ISSUING, ENDING } phase_ = Phase::IDLE;
    std::vector<int64_t> owner_ = std::vector<int64_t>(65536, -1);      // request that waits under a tag
    std::vector<int64_t> last_owner_ = std::vector<int64_t>(65536, -1);
    std::vector<uint16_t> tags_ = std::vector<uint16_t>(65536);         // ring of free tags
    uint32_t first_tag_ = 0, last_tag_ = 0;
    uint16_t tag_of_[2] = {0, 0};      // of the requests on offer
    Offered<Bare<decltype(Vtop::s2m_drs___05Fpayload)>> drs_{"s2m_drs"};
    Offered<Bare<decltype(Vtop::s2m_ndr___05Fpayload)>> ndr_{"s2m_ndr"};

    bool is_rwd(int64_t i) const { return program_.opcode[i] & RWD; }

    static bool expects_data(uint8_t opcode) { return opcode == codes::MEM_RD || opcode == codes::MEM_RD_DATA; }
    static bool expects_nothing(uint8_t opcode) { return opcode == codes::MEM_SPEC_RD; }

    // On to the group that follows, or to the end of the program.
    void next_group() {
        const int64_t first = group_end_;
        next_[0] = next_[1] = first;
        if (first == program_.count) {
            phase_ = program_.settle ? Phase::ENDING : Phase::IDLE;
            return;
        }
        do group_end_++;
        while (!program_.each_alone && group_end_ < program_.count && program_.group[group_end_] == program_.group[first]);
        phase_ = program_.each_alone || program_.flags[first] & SETTLE ? Phase::SETTLING : Phase::ISSUING;
    }

    // The request that `channel` would offer next, or -1.
    int64_t candidate(unsigned channel) {
        if (settings_.in_order) {
            const int64_t i = next_[0];
            return i < group_end_ && is_rwd(i) == bool(channel) && offered_[!channel] < 0 ? i : -1;
        }
        int64_t &i = next_[channel];
        while (i < group_end_ && is_rwd(i) != bool(channel)) i++;
        return i < group_end_ ? i : -1;
    }

    void free_tag(uint16_t tag) {
        owner_[tag] = -1;
        tags_[last_tag_++ & 0xFFFF] = tag;
    }

    // Begins to offer a request; false when there is none to offer, or one is on offer already.
    bool offer(unsigned channel) {
        if (offered_[channel] >= 0) return false;
        const int64_t i = candidate(channel);
        if (i < 0 || waiting_ >= settings_.outstanding || random_.chance(channel ? settings_.stall_rwd : settings_.stall_req)) return false;
        offered_[channel] = i;
        next_[settings_.in_order ? 0 : channel] = i + 1;
        waiting_++;
        if (waiting_ > counts_.peak_outstanding) counts_.peak_outstanding = waiting_;
        tag_of_[channel] = tags_[first_tag_++ & 0xFFFF];
        owner_[tag_of_[channel]] = last_owner_[tag_of_[channel]] = i;
        return true;
    }

    void put_req(Vtop &top) {
        namespace f = ports::m2s_req;
        const int64_t i = offered_[0];
        auto &port = top.m2s_req___05Fpayload;
        clear(port);
        put(port, f::opcode, program_.opcode[i] & 0xF);
        put(port, f::meta_field, META_NO_OP);  // it caches nothing
        put(port, f::tag, tag_of_[0]);
        put(port, f::address, program_.address[i] >> 6);
        put(port, f::ld_id, program_.ld_id[i]);
    }

    void put_rwd(Vtop &top) {
        namespace f = ports::m2s_rwd;
        const int64_t i = offered_[1];
        auto &port = top.m2s_rwd___05Fpayload;
        clear(port);
        put(port, f::opcode, program_.opcode[i] & 0xF);
        put(port, f::meta_field, META_NO_OP);
        put(port, f::tag, tag_of_[1]);
        put(port, f::address, program_.address[i] >> 6);
        put(port, f::poison, program_.flags[i] & POISON);
        put(port, f::ld_id, program_.ld_id[i]);
        put(port, f::bep, (program_.opcode[i] & 0xF) == codes::MEM_WR_PTL);
        put(port, f::byte_enable, program_.byte_enable[i]);
        if (program_.data_index[i] >= 0) {
            uint32_t words[16];
            std::memcpy(words, program_.data + 64 * program_.data_index[i], 64);
            put_words(port, f::data, words);
        }
    }

    void answer(uint16_t tag, uint8_t ld_id, const char *channel, bool is_data, Response response, uint64_t now) {
        const int64_t i = owner_[tag];
        if (i < 0) {
            if (last_owner_[tag] < 0) fail("%s: tag %#x was never used", channel, tag);
            fail("%s: tag %#x answered again (it was last used by request %lld)", channel, tag, (long long)last_owner_[tag]);
        }
        if (i == offered_[0] || i == offered_[1]) fail("%s: request %lld answered before it was accepted", channel, (long long)i);
        const uint8_t opcode = program_.opcode[i];
        if (expects_data(opcode) != is_data) fail("%s: request %lld (opcode %#x) answered on the wrong channel", channel, (long long)i, opcode);
        if (ld_id != program_.ld_id[i]) fail("%s: request %lld of LD-ID %u answered to LD-ID %u", channel, (long long)i, program_.ld_id[i], ld_id);
        free_tag(tag);
        program_.response[i] = static_cast<uint8_t>(response);
        program_.response_cycle[i] = static_cast<int64_t>(now);
        program_.response_order[i] = answered_++;
        counts_.answered++;
        finished_++;
        waiting_--;
    }

  public:
    Host(const Settings &settings, Counts &counts, Random &random) : settings_(settings), counts_(counts), random_(random) { draw_tags(); }

    // All tags, from a random one on; none is in use.
    void draw_tags() {
        const uint32_t start = static_cast<uint32_t>(random_.next());
        for (uint32_t i = 0; i < 65536; i++) tags_[i] = static_cast<uint16_t>(start + i);
        first_tag_ = last_tag_ = 0;
    }

    bool running() const { return phase_ != Phase::IDLE; }
    int64_t finished() const { return finished_; }
    int64_t waiting() const { return waiting_; }
    bool offering() const { return offered_[0] >= 0 || offered_[1] >= 0; }

    void start(const Program &program) {
        if (waiting_) fail("%lld requests of the program before are still without an answer", (long long)waiting_);
        program_ = program;
        accepted_ = answered_ = finished_ = group_end_ = 0;
        next_group();
    }

    // Requests without an answer are given up; the endpoint is being reset.
    void reset() {
        for (uint32_t tag = 0; tag < 65536; tag++) {
            if (owner_[tag] >= 0) free_tag(static_cast<uint16_t>(tag));
        }
        waiting_ = 0;
        offered_[0] = offered_[1] = -1;
        phase_ = Phase::IDLE;
        drs_.reset();
        ndr_.reset();
    }

    // Nothing can be offered before an answer comes or the endpoint settles.
    bool blocked() {
        if (offering()) return false;
        if (phase_ != Phase::ISSUING || waiting_ >= settings_.outstanding) return true;
        return waiting_ > 0 && candidate(0) < 0 && candidate(1) < 0;
    }

    // `settled`: in the cycle before, nothing moved anywhere and nothing would. `taken`: another host offers on Req, on RwD.
    void drive(Vtop &top, bool settled, const bool *taken) {
        if (phase_ == Phase::ISSUING && waiting_ == 0 && candidate(0) < 0 && candidate(1) < 0) next_group();
        if (phase_ == Phase::SETTLING && settled) phase_ = Phase::ISSUING;
        if (phase_ == Phase::ENDING && settled) phase_ = Phase::IDLE;
        if (phase_ == Phase::ISSUING) {
            if (!taken[1] && offer(1)) put_rwd(top);
            if (!taken[0] && offer(0)) put_req(top);
        }
        top.m2s_rwd___05Fvalid = offered_[1] >= 0;
        top.m2s_req___05Fvalid = offered_[0] >= 0;
        top.s2m_drs___05Fready = !random_.chance(settings_.stall_drs);
        top.s2m_ndr___05Fready = !random_.chance(settings_.stall_ndr);
    }

    bool answer_data(Vtop &top, uint64_t now) {
        namespace f = ports::s2m_drs;
        const auto &drs = top.s2m_drs___05Fpayload;
        const auto opcode = get(drs, f::opcode);
        if (opcode != codes::MEM_DATA && opcode != codes::MEM_DATA_NXM) fail("s2m_drs: opcode %u", unsigned(opcode));
        const bool poison = get(drs, f::poison), nxm = opcode == codes::MEM_DATA_NXM;
        const auto tag = static_cast<uint16_t>(get(drs, f::tag));
        const int64_t i = owner_[tag];
        answer(tag, static_cast<uint8_t>(get(drs, f::ld_id)), "s2m_drs", true, nxm ? Response::NXM : poison ? Response::POISON : Response::DATA, now);
        uint32_t words[16];
        get_words(drs, f::data, words);
        std::memcpy(program_.read_data + 64 * i, words, 64);
        (nxm ? counts_.nxm : poison ? counts_.poison : counts_.data)++;
        return true;
    }

    bool answer_completion(Vtop &top, uint64_t now) {
        namespace f = ports::s2m_ndr;
        const auto &ndr = top.s2m_ndr___05Fpayload;
        if (get(ndr, f::opcode) != codes::CMP) fail("s2m_ndr: opcode %u, where Cmp was expected", unsigned(get(ndr, f::opcode)));
        answer(static_cast<uint16_t>(get(ndr, f::tag)), static_cast<uint8_t>(get(ndr, f::ld_id)), "s2m_ndr", false, Response::CMP, now);
        counts_.completions++;
        return true;
    }

    bool offers(unsigned channel) const { return offered_[channel] >= 0; }

    // `other` takes the answers that are its own.
    bool sample(Vtop &top, uint64_t now, OtherHost *other) {
        bool moved = false;
        for (unsigned channel : {1u, 0u}) {
            if (offered_[channel] < 0 || !(channel ? top.m2s_rwd___05Fready : top.m2s_req___05Fready)) continue;
            const int64_t i = offered_[channel];
            program_.accept_cycle[i] = static_cast<int64_t>(now);
            program_.accept_order[i] = accepted_++;
            counts_.accepted++;
            offered_[channel] = -1;
            if (!channel && expects_nothing(program_.opcode[i])) {
                free_tag(tag_of_[0]);
                waiting_--;
                finished_++;
            }
            moved = true;
        }
        const auto &drs = top.s2m_drs___05Fpayload;
        if (drs_.transfer(top.s2m_drs___05Fvalid, top.s2m_drs___05Fready, drs)) {
            if (other && other->takes_data(top)) moved = true;
            else moved |= answer_data(top, now);
        }
        const auto &ndr = top.s2m_ndr___05Fpayload;
        if (ndr_.transfer(top.s2m_ndr___05Fvalid, top.s2m_ndr___05Fready, ndr)) {
            if (other && other->takes_completion(top)) moved = true;
            else moved |= answer_completion(top, now);
        }
        return moved;
    }
};

}  // namespace kelp

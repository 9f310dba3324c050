// SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
//
// The cold tier: commands with a latency, sharing one link, whose DMA reaches the memory's bytes directly.
//
// A command takes its turn on the link in order of acceptance, for its bytes at `flash_bytes_per_cycle`, and completes `flash_latency` (a write: `flash_write_latency`) after its turn. Its
// bytes are whole 512-byte sectors of data and one sector of validity and poison. From its acceptance until its completion a READ's lines belong to the tier, so the model spoils
// them at once and fills them at the end; a WRITE takes even lines when it is accepted and odd ones when it completes, so that data still on the way to the memory and a frame
// reused too soon are both seen. A failed READ leaves the lines spoiled, a failed WRITE the slot empty.
// ABORT ends a command without a completion of its own, moves nothing afterwards, and completes ABORTED, also when there is nothing left to abort.

#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <unordered_map>

#include "memory.h"

namespace kelp {

// What is planted for the nth command of a kind. Mirrored by `Failure` in driver.py.
enum class Plant : uint32_t { FAILED = 1, NEVER = 2, LATE = 3 };

class Flash {
  public:
    using LineMask = std::array<uint32_t, words_of(ports::cold_command::line_mask.bits)>;
    struct Slot {
        std::vector<uint8_t> bytes;
        LineMask line_mask;
    };

  private:
    static constexpr uint64_t NEVER = ~0ull;
    static constexpr uint32_t SECTOR_BYTES = 512;

    struct Command {
        uint64_t due, lba, line;
        uint32_t op, id, lines;
        bool failed;
        Slot slot;
    };
    struct Completion {
        uint32_t id, status;
        LineMask line_mask;
    };

    const Settings &settings_;
    Counts &counts_;
    Random &random_;
    Memory &memory_;
    std::unordered_map<uint64_t, Slot> slots_;
    std::vector<Command> commands_;  // in flight, in no order
    Queue<Completion> completions_;
    std::map<std::pair<uint32_t, uint64_t>, std::pair<Plant, uint64_t>> plants_;
    uint64_t seen_[4] = {};  // commands accepted, by op
    double link_free_ = 0;
    uint64_t next_due_ = NEVER;
    bool offered_ = false;
    Offered<Bare<decltype(Vtop::cold_command___05Fpayload)>> offer_{"cold_command"};

    void spoil(const Command &c) { std::memset(memory_.line(c.line), 0xA5, size_t{c.lines} * LINE_BYTES); }

    void copy_out(Command &c, unsigned parity) {
        for (uint32_t i = parity; i < c.lines; i += 2) std::memcpy(&c.slot.bytes[size_t{i} * LINE_BYTES], memory_.line(c.line + i), LINE_BYTES);
    }

    void complete(uint32_t id, uint32_t status, const LineMask &line_mask) {
        Completion &c = completions_.push();
        c.id = id;
        c.status = status;
        c.line_mask = line_mask;
    }

    void accept(const Bare<decltype(Vtop::cold_command___05Fpayload)> &port, uint64_t now) {
        namespace f = ports::cold_command;
        Command c{};
        c.op = static_cast<uint32_t>(get(port, f::op));
        c.id = static_cast<uint32_t>(get(port, f::id_index) | get(port, f::id_attempt) << f::id_index.bits);
        const auto planted = plants_.find({c.op, seen_[c.op]++});
        const bool never = planted != plants_.end() && planted->second.first == Plant::NEVER;
        counts_.flash_never += never;
        if (c.op == codes::COLD_ABORT) {
            counts_.flash_aborts++;
            std::erase_if(commands_, [&](const Command &other) { return other.id == c.id && other.op != codes::COLD_ABORT; });
            c.due = never ? NEVER : now + settings_.abort_latency;
        } else if (c.op == codes::COLD_ERASE) {
            if (!commands_.empty()) fail("cold_command: ERASE while %zu commands are in flight", commands_.size());
            c.failed = planted != plants_.end() && planted->second.first == Plant::FAILED;
            c.due = never ? NEVER : now + settings_.flash_write_latency;
        } else {
            c.lba = get(port, f::lba);
            c.line = get(port, f::line);
            c.lines = static_cast<uint32_t>(get(port, f::lines));
            if (!c.lines || c.line + c.lines > sizes::dram_lines)
                fail("cold_command: lines %llu … + %u are not in the memory", (unsigned long long)c.line, c.lines);
            for (const Command &other : commands_)
                if (other.id == c.id && other.op != codes::COLD_ABORT) fail("cold_command: id %u (attempt %u) is in flight already", unsigned(get(port, f::id_index)), unsigned(get(port, f::id_attempt)));
            const uint32_t bytes = (c.lines * LINE_BYTES + SECTOR_BYTES - 1) / SECTOR_BYTES * SECTOR_BYTES + SECTOR_BYTES;
            const double start = std::max(link_free_, static_cast<double>(now));
            link_free_ = start + bytes / settings_.flash_bytes_per_cycle;
            const bool read = c.op == codes::COLD_READ;
            c.due = static_cast<uint64_t>(std::ceil(link_free_)) + (read ? settings_.flash_latency : settings_.flash_write_latency) + random_.below(settings_.flash_jitter + 1);
            c.failed = random_.chance(settings_.flash_failure) || (planted != plants_.end() && planted->second.first == Plant::FAILED);
            counts_.flash_failed += c.failed;
            if (planted != plants_.end() && planted->second.first == Plant::LATE) c.due += planted->second.second;
            if (never) c.due = NEVER;
            (read ? counts_.flash_reads : counts_.flash_writes)++;
            (read ? counts_.flash_read_bytes : counts_.flash_write_bytes) += bytes;
            if (read) {
                const auto slot = slots_.find(c.lba);
                if (slot == slots_.end()) fail("cold_command: READ of lba %llu, which holds nothing", (unsigned long long)c.lba);
                if (slot->second.bytes.size() != size_t{c.lines} * LINE_BYTES)
                    fail("cold_command: READ of %u lines at lba %llu, where %zu were written", c.lines, (unsigned long long)c.lba, slot->second.bytes.size() / LINE_BYTES);
                spoil(c);
            } else {
                slots_.erase(c.lba);
                c.slot.bytes.resize(size_t{c.lines} * LINE_BYTES);
                get_words(port, f::line_mask, c.slot.line_mask.data());
                copy_out(c, 0);
            }
        }
        next_due_ = std::min(next_due_, c.due);
        commands_.push_back(std::move(c));
        counts_.peak_flash = std::max(counts_.peak_flash, static_cast<int64_t>(commands_.size()));
    }

    void finish(Command &c) {
        if (c.op == codes::COLD_ABORT) {
            complete(c.id, codes::COLD_ABORTED, LineMask{});
        } else if (c.failed) {
            complete(c.id, codes::COLD_FAILED, LineMask{});
        } else if (c.op == codes::COLD_ERASE) {
            slots_.clear();
            complete(c.id, codes::COLD_OK, LineMask{});
        } else if (c.op == codes::COLD_READ) {
            const Slot &slot = slots_.at(c.lba);
            std::memcpy(memory_.line(c.line), slot.bytes.data(), slot.bytes.size());
            complete(c.id, codes::COLD_OK, slot.line_mask);
        } else {
            copy_out(c, 1);
            complete(c.id, codes::COLD_OK, LineMask{});
            slots_[c.lba] = std::move(c.slot);
        }
    }

    void finish_due(uint64_t now) {
        next_due_ = NEVER;
        std::vector<size_t> due;
        for (size_t i = 0; i < commands_.size(); i++) {
            if (commands_[i].due <= now)
                due.push_back(i);
            else
                next_due_ = std::min(next_due_, commands_[i].due);
        }
        // In order of their times: after a skip several may be due at once.
        std::sort(due.begin(), due.end(), [&](size_t a, size_t b) { return std::pair(commands_[a].due, a) < std::pair(commands_[b].due, b); });
        for (size_t i : due) finish(commands_[i]);
        std::erase_if(commands_, [&](const Command &c) { return c.due <= now; });
    }

  public:
    Flash(const Settings &settings, Counts &counts, Random &random, Memory &memory) : settings_(settings), counts_(counts), random_(random), memory_(memory) {}

    std::unordered_map<uint64_t, Slot> &slots() { return slots_; }
    void plant(uint32_t op, uint64_t index, Plant kind, uint64_t cycles) { plants_[{op, index}] = {kind, cycles}; }

    // Nothing to offer now, whatever may be in flight.
    bool quiet() const { return completions_.empty() && !offered_; }
    bool idle() const { return quiet() && commands_.empty(); }
    bool waiting() const { return !commands_.empty(); }
    uint64_t next_due() const { return next_due_; }

    void reset() {
        commands_.clear();
        completions_.clear();
        offered_ = false;
        next_due_ = NEVER;
        link_free_ = 0;
        offer_.reset();
    }

    void drive(Vtop &top, uint64_t now) {
        if (next_due_ <= now) finish_due(now);
        top.cold_command___05Fready = !random_.chance(settings_.stall_command);
        if (!offered_ && !completions_.empty() && !random_.chance(settings_.stall_completion)) {
            namespace f = ports::cold_completion;
            const Completion &c = completions_.front();
            auto &port = top.cold_completion___05Fpayload;
            clear(port);
            put(port, f::id_index, c.id & ones(f::id_index.bits));
            put(port, f::id_attempt, c.id >> f::id_index.bits);
            put(port, f::status, c.status);
            put_words(port, f::line_mask, c.line_mask.data());
            completions_.pop();
            offered_ = true;
        }
        top.cold_completion___05Fvalid = offered_;
    }

    bool sample(Vtop &top, uint64_t now) {
        bool moved = false;
        if (offer_.transfer(top.cold_command___05Fvalid, top.cold_command___05Fready, top.cold_command___05Fpayload)) {
            accept(top.cold_command___05Fpayload, now);
            moved = true;
        }
        if (offered_ && top.cold_completion___05Fready) offered_ = false, moved = true;
        return moved;
    }
};

}  // namespace kelp

// SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
//
// A host that caches, on the whole endpoint, beside the driver's own host, which programs registers: agents with caches behind one home. It is written
// from docs/coherence.md alone. Its LD-IDs are 1 and up, the other host's is 0.
//
// Every line has one true value, which is what was written, rounded as its stored format does (by Python, from the golden codec). What an agent reads must be that.
// From what M3 commits it sees besides that a page leaves, or is scrubbed, only when nothing of it is held, and that a write-back finds a frame; from what the event log is told, that each line
// which the host did not give back has its event. A line that was given up is poison from the device's own write on, until it is written whole.
//
// Where memory or the tier fail (`errs`) poison is an answer. So it is where bits flip (`notes`); M3 may then do what it must with a page that is lost, and what an agent must not see is noted
// instead of ending the run. Once the endpoint has told a fatal error the host begins nothing of its own: no request need be answered, nor under the right tag, but what is answered must still be
// true or poison.

#include "driver.cpp"

#include <deque>
#include <string>
#include <unordered_map>

#include "caching_host.h"

namespace kelp {
namespace {

enum Outcome : uint8_t { DONE = 0, HIT = 1 };
constexpr uint32_t ASIDE = 0xe000;  // the first tag of what is not a line
constexpr uint32_t LOST_TAG = 0xffff;  // of the device's own poison, which nobody else uses
enum Phase : uint8_t { CLOSED, OPEN, CLOSING };

// A line that was called back: the answer is owed; the device has written poison since; a write of the host's crossed that, so either may have been first.
enum Lost : uint8_t { GIVEN_BACK, OWED, GIVEN_UP, EITHER };

struct Bytes {
    uint8_t b[64] = {};
    bool operator==(const Bytes &other) const { return !std::memcmp(b, other.b, 64); }
};

struct Options {  // mirrored by `_Options` in endpoint_bench.py; chances of 256
    uint64_t seed, req, rwd, birsp, bisnp, acts, late, silent, refuse, uncached, partial, unused, dwell, patience, timeout, notes, errs, bad, hints, registers, hint_base, register_base, keeps, deaf, strangers, flood, nonsense, babble, blocks, runs, no_op;
};

struct Figures {
    uint64_t transactions, hits, snoops, conflicts, ack_first, ack_after, silent, too_late, refused, granted, poisoned, rounded_writes, left, first, last, wrong, nxm, foreign, spoilt, hints, registers, gathered, gathered_nxm, called_home, answers, times, kept, healed, dropped, given, owed_longest, line_longest, aside_longest, beside, late_writes, late_reads, stale_rsps, strange, odd, odd_snoops, babbled, blocks, done[KINDS];
};

using Rounder = void (*)(uint32_t session, uint32_t format, const uint8_t *from, uint8_t *to);

struct Line {
    uint64_t address;
    uint32_t session, format, page;  // `page`: squeue and page
    State state = I;
    uint8_t agents = 0;
    Bytes copy[AGENTS], truth, raw_value, data;
    bool raw = false;       // the copies differ from `truth`, since the device rounded what was written
    Lost lost = GIVEN_BACK;
    Lost lost_before = GIVEN_BACK;  // … when what is under way began
    uint64_t owed_since = 0, kept_until = 0;  // `kept_until`: the host keeps it, though it was called back
    bool was_asked = false;  // something of it was asked for since the directory was empty of its session
    bool spoilt = false;    // the host wrote poison: it is poison until it is written whole
    bool stored = false;    // written since its session was opened
    Out out = NONE;
    uint8_t asker = 0;
    bool has_cmp = false, has_data = false, nxm = false, poison = false;
    bool strange = false;   // it is asked for by another than its owner
    bool after = false;     // … after a fatal error
    uint32_t cmp = 0, ld_id = 0;
    Snoop snoop = QUIET;
    uint32_t bi_tag = 0;
    uint64_t snoop_due = 0, since = 0, asked_since = 0;
};

// What is no line of the host's: hint lines, register writes, the SELECT region, and lines read by the GATHER window.
struct Aside {
    uint64_t since = 0;
    int64_t line = -1;       // it is read by a slot
    bool reads = false, kept = false;  // `kept`: somebody takes the answer
    bool has_cmp = false, has_data = false, nxm = false, poison = false;
    bool wants_cmp = true, was_dirty = false;
    bool strange = false;    // a line of another tenant's
    bool odd = false;        // a message of any form: its completion, where it has one, is of whatever kind
    uint32_t ld_id = 0;
    Bytes data;
};

// What was dirty when its session closed, or when the device was reset, and is written back when it is somebody else's.
struct Ghost {
    uint64_t due, address;
    uint32_t session, ld_id;
    Bytes data;
};

// An event as the log is told of it.
struct Told {
    uint64_t time, event;
};

// A source of events at the log.
struct Tap {
    const uint8_t *valid;
    const void *event;
    uint32_t bits;
};

struct Message {
    uint32_t opcode, snp, field, value, tag, ld_id;
    uint64_t address, enable;
    Bytes data;
    bool poison = false;
};

class CachingHost final : public OtherHost {
    Random random_;
    Rounder rounder_;
    std::vector<Bytes> pool_;
    std::unordered_map<std::string, Bytes> rounded_;
    std::vector<Line> lines_;
    std::unordered_map<uint64_t, uint32_t> line_at_;
    std::unordered_map<uint32_t, std::vector<uint32_t>> page_lines_;
    struct Session { Phase phase = CLOSED; uint32_t ld_id = 0; };
    std::vector<Session> sessions_ = std::vector<Session>(16);
    std::deque<Message> reqs_, rwds_, rsps_;
    std::deque<std::pair<uint64_t, Message>> late_rsps_;
    std::vector<uint32_t> snooped_;
    struct Block : Asked { bool at_once; std::vector<uint32_t> done; };
    std::unordered_map<uint32_t, Block> blocks_;  // BISnp of Blk forms, by BI-Tag
    std::unordered_map<uint32_t, std::vector<uint32_t>> conflicts_;
    std::unordered_map<uint32_t, Aside> aside_;  // under way, by tag
    std::unordered_map<uint32_t, Aside> taken_;  // answered, for whoever asked
    std::unordered_map<uint64_t, uint32_t> gathering_;  // lines that a slot is read for: how often
    uint32_t next_aside_ = 0, last_ = 0;
    uint64_t now_ = 0, next_ = 0;
    bool birsp_ = false;
    bool over_ = false;  // a fatal error has been told
    std::vector<Ghost> ghosts_;
    std::vector<Tap> taps_;

  public:
    std::vector<Told> told;
    std::vector<uint64_t> losses;
    Options o;
    Figures f{};
    bool acting = false;
    std::vector<uint32_t> favoured;  // lines that every other act is on
    std::string notes;
    uint32_t stream = 0;  // 1: each line is read for ownership once, in order; 2: shared; 3: looked at; 4: stored to, where it is owned; 5: looked at by strangers; 6: written whole

    CachingHost(const Options &options, Rounder rounder) : random_(options.seed), rounder_(rounder), o(options) {}

    void give(const uint8_t *values, uint64_t count) {
        pool_.resize(count);
        std::memcpy(pool_.data(), values, 64 * count);
    }
    void add(uint64_t address, uint32_t session, uint32_t format, uint32_t page) {
        Line l{};
        l.page = page;
        page_lines_[page].push_back(static_cast<uint32_t>(lines_.size()));
        l.address = address;
        l.session = session;
        l.format = format;
        line_at_[address] = static_cast<uint32_t>(lines_.size());
        lines_.push_back(l);
    }
    void phase(uint32_t session, uint32_t to, uint32_t ld_id) {
        if (to == CLOSED && !over_)
            for (uint32_t n = 0; n < lines_.size(); n++) {
                const Line &l = lines_[n];
                if (l.session == session && l.state != I && !l.kept_until) note(f.foreign, "session %u is closed while the host holds line %x in state %u", session, n, l.state);
            }
        if (to == CLOSED) forget(session);
        if (to == OPEN) {
            for (Line &l : lines_)
                if (l.session == session) {
                    l.truth = Bytes{};
                    l.stored = l.raw = l.spoilt = false;
                    l.lost = GIVEN_BACK;
                }
            sessions_[session].ld_id = ld_id;
            rounded_.clear();
        }
        sessions_[session].phase = static_cast<Phase>(to);
    }
    void restart() { next_ = 0; f.first = f.last = 0; }
    // The device forgets everything, and so do the caches; some of what was dirty is written back all the same, some BIRsp that were owed are sent, before a session is open.
    void reset(uint64_t now) override {
        now_ = now;
        told.clear(), losses.clear();
        f.given = f.silent = f.refused = f.kept = f.too_late = f.late_writes = f.late_reads = f.stale_rsps = 0;
        std::vector<uint32_t> owed;
        for (uint32_t n : snooped_) owed.push_back(lines_[n].bi_tag);
        reqs_.clear(), rwds_.clear(), rsps_.clear(), late_rsps_.clear();
        snooped_.clear(), blocks_.clear(), conflicts_.clear(), aside_.clear(), taken_.clear(), gathering_.clear(), ghosts_.clear();
        taken[0] = taken[1] = birsp_ = over_ = false;
        for (Line &l : lines_) l.out = NONE, l.snoop = QUIET, l.has_cmp = l.has_data = l.after = l.strange = false, l.lost = GIVEN_BACK;
        for (uint32_t session = 0; session < sessions_.size(); session++) {
            forget(session);
            sessions_[session].phase = CLOSED;
        }
        for (Ghost &g : ghosts_) {
            g.due = now_;
            late_write(g);
        }
        ghosts_.clear();
        // Somebody reads before a session is open, too, which is nobody's.
        for (unsigned k = 0; k < 2; k++) {
            Aside a;
            a.since = now_, a.ld_id = 1 + random_.below(15), a.reads = a.strange = true;
            const uint32_t tag = aside_tag();
            aside_[tag] = a;
            reqs_.push_back({codes::MEM_RD, SNP_INV, META0, ANY, tag, a.ld_id, lines_[random_.below(static_cast<uint32_t>(lines_.size()))].address, 0, {}});
            f.late_reads++;
        }
        for (uint32_t tag : owed) rsps_.push_back({0, 0, 0, 0, tag, 0, 0, 0, {}}), f.stale_rsps++;
    }
    bool streamed() const { return over_ || (next_ >= lines_.size() && waiting() == 0); }
    uint64_t waiting() const {
        if (over_) return 0;
        uint64_t count = reqs_.size() + rwds_.size() + rsps_.size() + late_rsps_.size() + aside_.size();
        for (const Line &l : lines_) count += l.out || l.snoop || owes(l);
        return count + ghosts_.size();
    }
    uint64_t waiting(uint32_t session) const {
        if (over_) return 0;
        uint64_t count = 0;
        for (const Line &l : lines_) count += l.session == session && (l.out || l.snoop);
        return count + gathering(session);
    }
    uint64_t gathering(uint32_t session) const {
        uint64_t count = 0;
        for (const auto &[n, times] : gathering_) count += lines_[n].session == session ? times : 0;
        return count;
    }
    uint64_t held() const {
        uint64_t count = 0;
        for (const Line &l : lines_) count += l.state != I;
        return count;
    }
    uint64_t snooped() const { return snooped_.size(); }
    // Dirty lines are written back one after another; true when none is left.
    bool flush() {
        if (over_) return true;
        bool dirty = false;
        for (uint32_t n = 0; n < lines_.size(); n++) {
            Line &l = lines_[n];
            dirty |= l.state == M || l.out || l.snoop || l.kept_until;
            if (l.state == M && !l.out && !l.snoop && !l.kept_until && rwds_.size() < 8) dirty_home(n, WRITE_I);
        }
        return !dirty;
    }

    // --- the channels
    void scrubs(Vtop &top) override {
        tell();
        if ((taken[0] && top.m2s_req___05Fready) || (taken[1] && top.m2s_rwd___05Fready)) fail("a message is accepted before the endpoint is ready");
        if (birsp_ && top.m2s_birsp___05Fready) rsps_.pop_front(), birsp_ = false;
    }
    void drive(Vtop &top, uint64_t now, bool req_free, bool rwd_free) override {
        now_ = now;
        act();
        answer_snoops();
        keep();
        if (req_free && !taken[0]) taken[0] = !reqs_.empty() && chance(o.req);
        if (rwd_free && !taken[1]) taken[1] = !rwds_.empty() && chance(o.rwd);
        if (taken[0]) {
            namespace p = ports::m2s_req;
            auto &port = top.m2s_req___05Fpayload;
            const Message &m = reqs_.front();
            clear(port);
            put(port, p::opcode, m.opcode), put(port, p::snp_type, m.snp), put(port, p::meta_field, m.field), put(port, p::meta_value, m.value);
            put(port, p::tag, m.tag), put(port, p::address, m.address), put(port, p::ld_id, m.ld_id);
            top.m2s_req___05Fvalid = 1;
        }
        if (taken[1]) {
            namespace p = ports::m2s_rwd;
            auto &port = top.m2s_rwd___05Fpayload;
            const Message &m = rwds_.front();
            clear(port);
            put(port, p::opcode, m.opcode), put(port, p::meta_field, m.field), put(port, p::meta_value, m.value);
            put(port, p::tag, m.tag), put(port, p::address, m.address), put(port, p::ld_id, m.ld_id), put(port, p::byte_enable, m.enable), put(port, p::poison, m.poison);
            uint32_t words[16];
            std::memcpy(words, m.data.b, 64);
            put_words(port, p::data, words);
            top.m2s_rwd___05Fvalid = 1;
        }
        birsp_ = birsp_ || (!rsps_.empty() && chance(o.birsp));
        top.m2s_birsp___05Fvalid = birsp_;
        if (birsp_) {
            clear(top.m2s_birsp___05Fpayload);
            put(top.m2s_birsp___05Fpayload, ports::m2s_birsp::opcode, rsps_.front().opcode);
            put(top.m2s_birsp___05Fpayload, ports::m2s_birsp::bi_tag, rsps_.front().tag);
            put(top.m2s_birsp___05Fpayload, ports::m2s_birsp::bi_id, 5);
            put(top.m2s_birsp___05Fpayload, ports::m2s_birsp::low_address, rsps_.front().address & 3);
        }
        top.s2m_bisnp___05Fready = chance(o.bisnp);
        top.bi_timeout = static_cast<uint32_t>(o.timeout);
        top.bi_id = 5;
        top.bi_blocks = o.blocks && (now_ >> 11 & 1);  // by turns
    }

    bool sample(Vtop &top, uint64_t) override {
        bool moved = false;
        if (taken[0] && top.m2s_req___05Fready) reqs_.pop_front(), taken[0] = false, moved = true;
        if (taken[1] && top.m2s_rwd___05Fready) rwds_.pop_front(), taken[1] = false, moved = true;
        if (birsp_ && top.m2s_birsp___05Fready) rsps_.pop_front(), birsp_ = false, moved = true;
        if (top.s2m_bisnp___05Fvalid && top.s2m_bisnp___05Fready) bisnp(top), moved = true;
        if (top.commit_result___05Fvalid && !o.notes) committed(top);
        tell();
        over_ |= o.notes && top.irq;
        for (uint32_t n = 0; n < lines_.size(); n++) {
            const Line &l = lines_[n];
            if ((l.out || l.snoop) && !over_ && now_ - l.since > o.patience)
                fail("nothing moves: line %x of session %u, format %u, request %d, snoop %d, state %d; %zu Req, %zu RwD wait", n, l.session, l.format, l.out, l.snoop, l.state, reqs_.size(),
                     rwds_.size());
        }
        for (const auto &[tag, a] : aside_)
            if (!over_ && now_ - a.since > o.patience) fail("what is no line of the host's is not answered: tag %x, LD-ID %u, line %d, read %d, completion %d, data %d, since %llu", tag, a.ld_id, int(a.line), a.reads, a.has_cmp, a.has_data, (unsigned long long)a.since);
        return moved;
    }

    bool takes_data(Vtop &top) override {
        namespace p = ports::s2m_drs;
        const auto &port = top.s2m_drs___05Fpayload;
        if (!get(port, p::ld_id)) return false;
        const auto n = static_cast<uint32_t>(get(port, p::tag));
        uint32_t words[16];
        get_words(port, p::data, words);
        heard(n, 16 + get(port, p::opcode) * 2 + get(port, p::poison), words, 16);
        if (const auto found = aside_.find(n); found != aside_.end()) {
            Aside &a = found->second;
            if (a.odd && !a.reads) return stray("data for what is no read, tag %x", n);
            if (!a.reads || a.has_data || get(port, p::ld_id) != a.ld_id) return stray("data that nobody waits for, tag %x", n);
            std::memcpy(a.data.b, words, 64);
            a.has_data = true;
            a.nxm = get(port, p::opcode) == codes::MEM_DATA_NXM;
            a.poison = get(port, p::poison);
            aside_done(n);
            return true;
        }
        if (n >= lines_.size()) return stray("data under tag %x, which nobody used", n);
        Line &l = lines_[n];
        const bool reads = l.out == READ_SHARED || l.out == READ_ANY || l.out == LOOK;
        if (!reads || l.has_data) return stray("data for line %x, which waits for none (request %d)", n, l.out);
        if (get(port, p::ld_id) != l.ld_id) return stray("data for line %x to LD-ID %u, which did not ask", n, unsigned(get(port, p::ld_id)));
        std::memcpy(l.data.b, words, 64);
        l.has_data = true;
        l.nxm = get(port, p::opcode) == codes::MEM_DATA_NXM;
        l.poison = get(port, p::poison);
        done(n);
        return true;
    }

    bool takes_completion(Vtop &top) override {
        namespace p = ports::s2m_ndr;
        const auto &port = top.s2m_ndr___05Fpayload;
        if (!get(port, p::ld_id)) return false;
        const auto opcode = static_cast<uint32_t>(get(port, p::opcode)), tag = static_cast<uint32_t>(get(port, p::tag));
        heard(tag, opcode, nullptr, 0);
        const auto of = aside_.find(tag);
        if (of != aside_.end() && of->second.odd) {
            Aside &a = of->second;
            if (a.has_cmp || !a.wants_cmp || get(port, p::ld_id) != a.ld_id) return stray("a completion of tag %x that nobody waits for, or another's", tag);
            a.has_cmp = true;
            aside_done(tag);
            return true;
        }
        if (opcode == codes::BI_CONFLICT_ACK) {
            if (!conflicts_.count(tag)) return stray("an Ack of nothing, tag %x", tag);
            const std::vector<uint32_t> waited = conflicts_[tag];
            conflicts_.erase(tag);
            for (uint32_t n : waited) {
                Line &l = lines_[n];
                if (!l.out) l.snoop = HERE, f.ack_after++;
                else if (l.has_cmp) l.snoop = AFTER, f.ack_after++;
                else {  // the snoop comes first
                    if (l.state == M) return stray("the snoop comes first and the host is dirty");
                    f.ack_first++;
                    answer_snoop(l);
                }
            }
            return true;
        }
        if (const auto found = aside_.find(tag); found != aside_.end()) {
            Aside &a = found->second;
            if (a.has_cmp || !a.wants_cmp) return stray("a completion that nobody waits for, tag %x", tag);
            if (opcode != codes::CMP) return stray("a grant of what is no line, tag %x", tag);
            a.has_cmp = true;
            aside_done(tag);
            return true;
        }
        if (tag >= lines_.size() || !lines_[tag].out || lines_[tag].has_cmp) return stray("a completion that nobody waits for, tag %x", tag);
        lines_[tag].has_cmp = true;
        lines_[tag].cmp = opcode;
        done(tag);
        return true;
    }

  private:
    // What an agent must not see.
    template <class... Values>
    void note(uint64_t &count, const char *format, Values... values) {
        if (!o.notes) fail(format, values...);
        char text[200];
        std::snprintf(text, sizeof text, format, values...);
        if (count++ < 8) notes += std::string(text) + '\n';
    }
    // What breaks a rule of the channels; after a fatal error it is passed over.
    template <class... Values>
    bool stray(const char *format, Values... values) {
        if (!over_) fail(format, values...);
        return true;
    }
    // Digests of what was answered, and of when.
    void heard(uint64_t tag, uint64_t what, const uint32_t *words, unsigned count) {
        const auto mix = [](uint64_t &digest, uint64_t value) { digest = (digest ^ value) * 0x100000001b3ull; };
        mix(f.answers, tag << 8 | what);
        for (unsigned k = 0; k < count; k++) mix(f.answers, words[k]);
        mix(f.times, now_);
    }

    void committed(Vtop &top) {
        namespace p = ports::commit_result;
        const auto &port = top.commit_result___05Fpayload;
        const auto kind = get(port, p::op_kind), outcome = get(port, p::outcome);
        if (outcome == DONE && (kind == codes::OP_RELEASE || kind == codes::OP_SCRUB)) {
            const auto found = page_lines_.find(static_cast<uint32_t>(get(port, p::op_squeue) << 16 | get(port, p::op_page)));
            if (found == page_lines_.end() || get(port, p::op_failed)) return;
            for (uint32_t n : found->second) {
                const Line &l = lines_[n];
                f.left++;
                if (l.state != I && !l.lost) fail("the page of line %x leaves while the host holds it in state %u", n, l.state);
            }
        }
        const auto tag = get(port, p::op_origin_tag);
        if (kind != codes::OP_WRITE || !get(port, p::op_origin_ld_id)) return;
        if (tag == LOST_TAG) return given_up(static_cast<uint32_t>(get(port, p::op_squeue) << 16 | get(port, p::op_page)), static_cast<uint32_t>(get(port, p::op_kv_line)), (1u << p::op_kv_line.bits) - 1);
        if (tag >= lines_.size()) return;
        const Line &l = lines_[tag];
        const bool back = l.out == WRITE_I || l.out == WRITE_S || l.out == WRITE_A;
        if (back && !l.lost_before && phase_of(l) == OPEN && outcome != HIT) fail("a write-back of line %llx finds no frame, outcome %u", (unsigned long long)tag, unsigned(outcome));
    }
    // The device poisons a line that was not given back.
    void given_up(uint32_t page, uint32_t kv_line, uint32_t mask) {
        const auto found = page_lines_.find(page);
        const auto here = found == page_lines_.end() ? nullptr : &found->second;
        const auto at = here ? std::find_if(here->begin(), here->end(), [&](uint32_t n) { return (lines_[n].address & mask) == kv_line; }) : std::vector<uint32_t>::const_iterator{};
        if (!here || at == here->end()) fail("a line is given up that the host never asked for, page %x, line %u", page, kv_line);
        Line &l = lines_[*at];
        if (l.lost != OWED && phase_of(l) == OPEN) fail("line %x is given up, which the host does not owe", *at);
        l.lost = l.out >= WRITE_I ? EITHER : GIVEN_UP;
        f.given++;
        losses.push_back(static_cast<uint64_t>(page) << 16 | kv_line);
        f.owed_longest = std::max(f.owed_longest, now_ - l.owed_since);
    }
    bool owes(const Line &l) const { return !o.notes && l.lost == OWED; }
    void owe(Line &l) { l.lost = OWED, l.owed_since = now_; }
    // Events, where they enter the log.
    void tell() {
        if (taps_.empty())
            for (const auto &[scope, place] : *Verilated::threadContextp()->scopeNameMap()) {
                if (!place->varsp() || !std::string(scope).ends_with(".registers.events")) continue;
                for (unsigned k = 0;; k++) {
                    const std::string source = "i__" + std::to_string(k) + "__";
                    const auto valid = place->varsp()->find((source + "valid").c_str()), event = place->varsp()->find((source + "payload").c_str());
                    if (valid == place->varsp()->end() || event == place->varsp()->end()) break;
                    taps_.push_back({static_cast<const uint8_t *>(valid->second.datap()), event->second.datap(), static_cast<uint32_t>(event->second.entBits())});
                }
            }
        if (taps_.empty()) fail("no source of events is in sight");
        for (const Tap &tap : taps_)
            if (*tap.valid) told.push_back({now_, tap.bits > 32 ? *static_cast<const uint64_t *>(tap.event) : *static_cast<const uint32_t *>(tap.event)});
    }
    bool chance(uint64_t of_256) { return of_256 >= 256 || (random_.next() >> 56) < of_256; }
    Phase phase_of(const Line &l) const { return sessions_[l.session].phase; }

    Bytes rounded(const Line &l, const Bytes &value) {
        if (!l.format) return value;
        std::string key(reinterpret_cast<const char *>(value.b), 64);
        key += static_cast<char>(l.format);
        key += static_cast<char>(l.session);
        auto found = rounded_.find(key);
        if (found != rounded_.end()) return found->second;
        Bytes to;
        rounder_(l.session, l.format, value.b, to.b);
        if (rounded_.size() > 100000) rounded_.clear();
        return rounded_[key] = to;
    }

    void begin(uint32_t n, Out kind) {
        Line &l = lines_[n];
        l.out = kind;
        l.ld_id = sessions_[l.session].ld_id;
        l.after = over_;
        l.strange = stream == 5 && kind == LOOK;
        if (l.strange) l.ld_id = 1 + l.ld_id % 15;
        l.has_cmp = l.has_data = l.nxm = l.poison = false;
        l.since = l.asked_since = now_;
        l.lost_before = l.lost;
        l.was_asked |= kind == READ_SHARED || kind == READ_ANY || kind == OWN;
    }
    void request(uint32_t n, Out kind, uint32_t opcode, uint32_t field, uint32_t value, uint32_t snp) {
        begin(n, kind);
        reqs_.push_back({opcode, snp, field, value, n, lines_[n].ld_id, lines_[n].address, 0, {}});
    }
    // `enable`: bytes that are written; with all of them it may still be a MemWrPtl.
    void write(uint32_t n, Out kind, uint32_t value, const Bytes &data, uint64_t enable) {
        begin(n, kind);
        const bool partial = enable != ~0ull || (stream != 6 && chance(40));
        Line &l = lines_[n];
        const bool poison = value == INVALID && stream != 6 && o.bad && chance(o.bad);
        // One that does not say what the host keeps, whatever it keeps; its MetaValue means nothing.
        const bool silent = o.no_op && chance(o.no_op);
        rwds_.push_back({partial ? codes::MEM_WR_PTL : codes::MEM_WR, 0, silent ? META_NO_OP : META0, silent ? random_.below(4) : value, n, l.ld_id, l.address, enable, data, poison});
        f.spoilt += poison;
        if (poison || enable == ~0ull) l.spoilt = poison;
        if (enable == ~0ull && l.lost != OWED) l.lost = GIVEN_BACK;  // it comes after the device's poison
    }
    // Tenants' hint lines and register writes, sound ones and nonsense; each must be answered Cmp, once, and change no data.
    void aside(bool hint) {
        const uint32_t session = random_.below(2);
        const bool own = chance(160);
        Message m{codes::MEM_WR, 0, META0, INVALID, ASIDE + next_aside_++ % 0x1000, own ? sessions_[session].ld_id : 1 + random_.below(15), 0, ~0ull, {}};
        if (!m.ld_id || aside_.count(m.tag) || taken_.count(m.tag)) return;
        for (uint8_t &byte : m.data.b) byte = static_cast<uint8_t>(random_.below(256));
        if (hint) {
            m.address = o.hint_base + random_.below(64);
            if (chance(224)) {  // a line of the right form, of pages that are mostly there
                const uint8_t head[12] = {static_cast<uint8_t>(1 | (1 + random_.below(4)) << 4), static_cast<uint8_t>(random_.below(2)), static_cast<uint8_t>(session),
                                          static_cast<uint8_t>(random_.below(27)), static_cast<uint8_t>(random_.below(5)), 0};
                std::memcpy(m.data.b, head, 12);
                for (unsigned k = 12; k < 64; k += 2) m.data.b[k] = static_cast<uint8_t>(random_.below(16)), m.data.b[k + 1] = 0;
            }
        } else {  // one register, mostly of those that there are
            m.address = o.register_base + random_.below(chance(200) ? 0x80 : 0x400);
            m.opcode = codes::MEM_WR_PTL;
            m.enable = 0xffull << 8 * random_.below(8);
            if (chance(128))
                for (unsigned k = 0; k < 64; k++) m.data.b[k] = k % 8 ? 0 : m.data.b[k] & 15;
        }
        if (chance(16)) m.opcode = codes::MEM_WR_PTL, m.enable &= ~(1ull << random_.below(64));
        m.poison = o.bad && chance(o.bad);
        ++(hint ? f.hints : f.registers);
        aside_[m.tag].since = now_;
        rwds_.push_back(m);
    }
    void aside_done(uint32_t tag) {
        Aside a = aside_[tag];
        if ((a.wants_cmp && !a.has_cmp) || (a.reads && !a.has_data)) return;
        aside_.erase(tag);
        f.aside_longest = std::max(f.aside_longest, now_ - a.since);
        if (a.strange && a.reads && !a.nxm) note(f.foreign, "data of another tenant's line for LD-ID %u", a.ld_id);
        if (a.line >= 0) gathered(a);
        else if (a.kept) taken_[tag] = a;
    }
    // A line that was read by a slot: what its page has, with what the host had of it at home.
    void gathered(const Aside &a) {
        const auto n = static_cast<uint32_t>(a.line);
        if (!--gathering_[n]) gathering_.erase(n);
        const Line &l = lines_[n];
        f.transactions++;
        f.gathered++;
        f.gathered_nxm += a.nxm;
        if (a.nxm || over_) return;  // the slot was given back
        if (phase_of(l) == CLOSED) return note(f.foreign, "a slot shows line %x of a closed session", n);
        if (phase_of(l) != OPEN) return;
        if (l.state == M && !l.lost) note(f.wrong, "line %x is read by a slot while the host has it dirty", n);
        if (l.raw) note(f.wrong, "line %x is read by a slot while a copy that differs is held", n);
        if (l.spoilt && !l.lost && !a.poison) note(f.wrong, "line %x, written as poison, is sound in a slot", n);
        if (a.poison && !l.lost && !l.spoilt && !o.notes && !o.errs) fail("poison in a slot for line %x, which nobody gave up", n);
        if (!a.poison && !(o.notes && l.lost) && !l.spoilt && !(a.data == l.truth))
            note(f.wrong, "a slot shows a stale line %x of format %u: %02x%02x…, expected %02x%02x…", n, l.format, a.data.b[0], a.data.b[1], l.truth.b[0], l.truth.b[1]);
        f.called_home += a.was_dirty;
    }
    uint32_t aside_tag() {
        uint32_t tag;
        do tag = ASIDE + next_aside_++ % 0x1000;
        while (aside_.count(tag) || taken_.count(tag));
        return tag;
    }

  public:
    // For whoever drives the SELECT region: a line written; a line read, whose answer `take` has.
    void put_line(uint64_t address, uint32_t ld_id, const uint8_t *data) {
        Message m{codes::MEM_WR, 0, META0, INVALID, aside_tag(), ld_id, address, ~0ull, {}};
        std::memcpy(m.data.b, data, 64);
        aside_[m.tag].since = now_;
        rwds_.push_back(m);
    }
    uint32_t ask_line(uint64_t address, uint32_t ld_id) {
        const uint32_t tag = aside_tag();
        Aside &a = aside_[tag];
        a.since = now_, a.reads = a.kept = true, a.wants_cmp = false, a.ld_id = ld_id;
        reqs_.push_back({codes::MEM_RD, SNP_NONE, META_NO_OP, 0, tag, ld_id, address, 0, {}});
        return tag;
    }
    // 0: not yet; 1: data; 2: NXM; 3: poison.
    int take_line(uint32_t tag, uint8_t *data) {
        const auto found = taken_.find(tag);
        if (found == taken_.end()) return 0;
        std::memcpy(data, found->second.data.b, 64);
        const int kind = found->second.nxm ? 2 : found->second.poison ? 3 : 1;
        taken_.erase(found);
        return kind;
    }
    // Line `n` by a slot, with every kind of read; mostly one that the host holds, not while something of it is under way. Nobody stores to it meanwhile.
    bool gather(uint32_t n, uint64_t address) {
        Line &l = lines_[n];
        if (l.out || l.snoop || l.kept_until || phase_of(l) != OPEN || reqs_.size() > 24 || (l.state == I && chance(200))) return false;
        const uint32_t tag = aside_tag(), kind = random_.below(3);
        Aside &a = aside_[tag];
        a.since = now_, a.reads = true, a.ld_id = sessions_[l.session].ld_id, a.line = n, a.wants_cmp = kind > 0, a.was_dirty = l.state == M || l.raw;
        const uint32_t field = kind == 2 ? META0 : META_NO_OP, value = kind == 2 ? random_.below(2) ? ANY : SHARED : 0;
        // Ahead of what waits but for the one that may stand at the port: behind it, most lines have been called back for other reasons.
        reqs_.insert(reqs_.begin() + (reqs_.empty() ? 0 : 1), {codes::MEM_RD, kind == 0 ? SNP_NONE : kind == 1 ? SNP_CUR : SNP_INV, field, value, tag, a.ld_id, address, 0, {}});
        gathering_[n]++;
        return true;
    }

  private:
    void invalidate(Line &l) {
        l.state = I;
        l.agents = 0;
        l.raw = false;
    }
    void wrote(Line &l, const Bytes &merged, uint64_t enable) {
        l.truth = rounded(l, merged);
        f.rounded_writes += !(l.truth == merged);
        l.stored = true;
        (void)enable;
    }
    void dirty_home(uint32_t n, Out kind) {
        Line &l = lines_[n];
        const Bytes value = l.copy[__builtin_ctz(l.agents)];
        uint64_t enable = ~0ull;
        if (chance(o.partial) && !l.lost) {  // only what differs from what the device has, and some more
            enable = 0;
            for (unsigned k = 0; k < 64; k++)
                if (value.b[k] != l.truth.b[k] || chance(32)) enable |= 1ull << k;
        }
        static const uint32_t values[] = {INVALID, SHARED, ANY};
        write(n, kind, values[kind - WRITE_I], value, enable);
        if ((enable || l.stored) && !rwds_.back().poison) wrote(l, value, enable);
        if (kind == WRITE_I) invalidate(l);
        else {
            l.state = kind == WRITE_S ? S : E;
            l.raw = !(value == l.truth);
            l.raw_value = value;
        }
    }
    void store(Line &l, unsigned agent) {
        Bytes value = pool_[random_.below(static_cast<uint32_t>(pool_.size()))];
        if (chance(128)) {  // a few elements of what is there
            const Bytes fresh = value;
            value = l.agents ? l.copy[__builtin_ctz(l.agents)] : fresh;
            for (unsigned k = 0; k < 64; k += 2)
                if (chance(40)) value.b[k] = fresh.b[k], value.b[k + 1] = fresh.b[k + 1];
        }
        l.agents = 1u << agent;
        l.copy[agent] = value;
        l.state = M;
        l.raw = false;
    }

    void act() {
        if (!acting || (over_ && !stream)) return;
        if (stream) {
            while (next_ < lines_.size() && reqs_.size() < 4 && rwds_.size() < 8) {
                const auto n = static_cast<uint32_t>(next_);
                if (stream == 3 && phase_of(lines_[n]) == OPEN && (lines_[n].out || lines_[n].snoop)) break;
                if (stream == 6 && (lines_[n].out || lines_[n].snoop)) break;
                next_++;
                if (stream == 6 && phase_of(lines_[n]) == OPEN) {
                    const Bytes value = pool_[random_.below(static_cast<uint32_t>(pool_.size()))];
                    invalidate(lines_[n]);
                    write(n, UNCACHED, INVALID, value, ~0ull);
                    wrote(lines_[n], value, ~0ull);
                }
                if (stream == 6) continue;
                if (stream == 4) {
                    if (lines_[n].state == E) store(lines_[n], 0);
                    continue;
                }
                if (phase_of(lines_[n]) != OPEN || lines_[n].out || lines_[n].snoop || (stream == 3 && lines_[n].state == M)) continue;
                if (stream == 5) request(n, LOOK, codes::MEM_RD, META_NO_OP, 0, SNP_CUR);
                else if (stream == 1) request(n, READ_ANY, codes::MEM_RD, META0, ANY, SNP_INV);
                else if (stream == 2) request(n, READ_SHARED, codes::MEM_RD, META0, SHARED, SNP_DATA);
                else request(n, LOOK, codes::MEM_RD, META_NO_OP, 0, SNP_CUR);
            }
            return;
        }
        if (o.hints && aside_.size() < 8 && chance(o.hints)) aside(true);
        while (o.babble && rwds_.size() < o.babble && aside_.size() < 0x400) {
            Message m{codes::BI_CONFLICT, 0, 0, 0, aside_tag(), 1 + random_.below(15), lines_[random_.below(static_cast<uint32_t>(lines_.size()))].address, 0, {}};
            aside_[m.tag].since = now_, aside_[m.tag].ld_id = m.ld_id, aside_[m.tag].odd = true;
            f.babbled++;
            rwds_.push_back(m);
        }
        while (o.flood && rwds_.size() < o.flood && aside_.size() < 0x400) aside(true);
        if (o.nonsense && aside_.size() < 8 && chance(o.nonsense)) odd();
        if (o.strangers && aside_.size() < 8 && chance(o.strangers)) stranger();
        if (o.registers && aside_.size() < 8 && chance(o.registers)) aside(false);
        for (uint64_t k = 0; k < o.acts; k++) {
            // Now and then the host stays with a few lines.
            const uint64_t count = lines_.size(), span = o.dwell ? std::min(count, o.dwell) : count;
            // More often than not it goes on to a line's neighbour, so that blocks are held as a whole.
            const bool runs = chance(o.runs);
            auto n = static_cast<uint32_t>((runs ? last_ + 1 : random_.below(static_cast<uint32_t>(span)) + (o.dwell ? now_ / 8192 * span / 2 : 0)) % count);
            if (!favoured.empty() && chance(128)) n = favoured[random_.below(static_cast<uint32_t>(favoured.size()))];
            last_ = n;
            Line &l = lines_[n];
            if (l.out || l.snoop || l.kept_until || gathering_.count(n) || phase_of(l) != OPEN || reqs_.size() > 12 || rwds_.size() > 12) continue;
            one_act(n, l, random_.below(runs && l.state == I ? 65 : 100));
        }
    }

    void one_act(uint32_t n, Line &l, uint32_t what) {
        const unsigned agent = random_.below(AGENTS);
        const bool mine = l.state != I && (l.agents >> agent & 1);
        l.asker = static_cast<uint8_t>(agent);
        if (what < 35) {  // load
            if (mine) {
                f.hits++;
                if (l.state != M && !(l.copy[agent] == (l.raw ? l.raw_value : l.truth))) note(f.wrong, "stale hit of line %x of format %u", n, l.format);
            } else if (l.state != I) {  // from another agent; who had it alone shares it
                l.copy[agent] = l.copy[__builtin_ctz(l.agents)];
                l.agents = static_cast<uint8_t>(l.state == M ? 1u << agent : l.agents | 1u << agent);
            } else request(n, READ_SHARED, chance(200) ? codes::MEM_RD : codes::MEM_RD_DATA, META0, SHARED, SNP_DATA);
        } else if (what < 65) {  // store
            if (l.state == E || l.state == M) store(l, agent);
            else if (l.state == I && chance(o.uncached)) {
                const Bytes raw = pool_[random_.below(static_cast<uint32_t>(pool_.size()))];
                uint64_t enable = ~0ull;
                if (chance(o.partial))
                    for (unsigned k = 0; k < 64; k += 2)
                        if (chance(128)) enable &= ~(3ull << k);
                Bytes merged = l.truth;
                for (unsigned k = 0; k < 64; k++)
                    if (enable >> k & 1) merged.b[k] = raw.b[k];
                write(n, UNCACHED, INVALID, raw, enable);
                if (enable && !rwds_.back().poison) wrote(l, merged, enable);
            } else if (l.state == S || chance(128)) {
                if (chance(128)) request(n, READ_ANY, codes::MEM_RD, META0, ANY, SNP_INV);
                else request(n, OWN, chance(200) ? codes::MEM_INV : codes::MEM_INV_NT, META0, ANY, SNP_INV);
            } else request(n, READ_ANY, codes::MEM_RD, META0, ANY, SNP_INV);
        } else if (what < 80) {  // write back, or give up
            if (l.state == M) dirty_home(n, static_cast<Out>(WRITE_I + random_.below(3)));
            else if (l.state != I && chance(128)) invalidate(l);
            else if (l.state != I) {
                invalidate(l);
                request(n, CLEAN_EVICT, codes::MEM_CLN_EVCT, META0, INVALID, SNP_NONE);
            }
        } else if (what < 85) {
            if (l.state == E) l.state = S;
        } else if (what < 88 && l.state != M) request(n, LOOK, codes::MEM_RD, META_NO_OP, 0, SNP_CUR);
    }

    void bisnp(Vtop &top) {
        namespace p = ports::s2m_bisnp;
        const auto &port = top.s2m_bisnp___05Fpayload;
        const uint64_t address = get(port, p::address);
        const uint32_t tag = static_cast<uint32_t>(get(port, p::bi_tag));
        const bool block = get(port, p::opcode) == codes::BI_SNP_INV_BLK;
        const std::vector<uint64_t> called = snooped_lines(block, address);
        std::vector<uint32_t> mine;
        bool sound = (block ? o.blocks && !called.empty() : get(port, p::opcode) == codes::BI_SNP_INV) && get(port, p::bi_id) == 5 && !blocks_.count(tag);
        for (uint64_t at : called) {
            const auto found = line_at_.find(at);
            if (found != line_at_.end()) mine.push_back(found->second), sound &= !lines_[found->second].snoop;
            else sound &= o.nonsense != 0;
        }
        if (!sound) {
            stray("a BISnp of a line that was never asked for, or two at once");
            rsps_.push_back({block ? codes::BI_RSP_I_BLK : 0, 0, 0, 0, tag, 0, address, 0, {}});
            return;
        }
        for (uint64_t at : called)
            if (!line_at_.count(at)) {
                f.odd_snoops++;
                rsps_.push_back({0, 0, 0, 0, tag, 0, at, 0, {}});
            }
        f.blocks += block;
        if (block && !mine.empty()) {
            Block &b = blocks_[tag];
            b.left = static_cast<uint32_t>(mine.size());
            b.at_once = mine.size() == called.size() && chance(128);
        }
        for (uint32_t n : mine) snooped(n, tag);
    }
    void snooped(uint32_t n, uint32_t tag) {
        Line &l = lines_[n];
        if (!l.was_asked && !o.notes) fail("a BISnp of line %x, of which nothing was granted", n);
        l.bi_tag = tag;
        l.snoop_due = now_ + (o.late ? random_.below(static_cast<uint32_t>(o.late)) : 0);
        if (!l.out) l.since = now_;
        if (!l.out || (l.out >= WRITE_I && chance(128))) l.snoop = HERE;
        else {
            l.snoop = CONFLICT;
            auto &told = conflicts_[tag];
            if (told.empty()) {
                f.conflicts++;
                rwds_.push_back({codes::BI_CONFLICT, 0, 0, 0, tag, sessions_[l.session].ld_id, l.address, 0, {}});
            }
            told.push_back(n);
        }
        snooped_.push_back(n);
    }
    void answer_snoops() {
        for (size_t k = 0; k < snooped_.size();) {
            Line &l = lines_[snooped_[k]];
            if (l.snoop == HERE && !l.out && l.snoop_due <= now_) {
                const uint64_t keeps = phase_of(l) == CLOSING ? o.deaf : o.keeps;
                if (keeps && chance(keeps)) {  // no answer, and what the host has stays where it is
                    owe(l);
                    l.snoop = QUIET;
                    keeps_of_block(l);
                    l.kept_until = now_ + random_.below(static_cast<uint32_t>(4 * o.timeout));
                    f.kept++;
                    f.transactions++;
                } else if (l.state == M) dirty_home(snooped_[k], WRITE_I);
                else answer_snoop(l);
            }
            if (l.snoop) k++;
            else {
                snooped_[k] = snooped_.back();
                snooped_.pop_back();
            }
        }
        while (!late_rsps_.empty() && late_rsps_.front().first <= now_) {
            rsps_.push_back(late_rsps_.front().second);
            f.too_late++;
            late_rsps_.pop_front();
        }
    }
    // Lines that the host kept when they were called back: in the end they are dropped, or what is dirty goes home late, and heals the line. A BIRsp comes too late.
    void keep() {
        for (uint32_t n = 0; n < lines_.size(); n++) {
            Line &l = lines_[n];
            if (!l.kept_until || l.kept_until > now_ || l.out || gathering_.count(n)) continue;
            l.kept_until = 0;
            if (l.lost == OWED) {  // home in time, but nobody says so
                if (l.state == M) dirty_home(n, WRITE_I);
                else invalidate(l);
                continue;
            }
            if (chance(128)) rsps_.push_back({0, 0, 0, 0, l.bi_tag, 0, l.address, 0, {}}), f.too_late++;
            if (l.state == M && chance(128)) dirty_home(n, WRITE_I), f.healed++;
            else f.dropped += l.state == M, invalidate(l);
        }
        for (size_t k = 0; k < ghosts_.size();) {
            if (ghosts_[k].due > now_ || rwds_.size() > 8) {
                k++;
                continue;
            }
            late_write(ghosts_[k]);
            ghosts_[k] = ghosts_.back();
            ghosts_.pop_back();
        }
    }
    // What is dirty of a session that is no more stays somewhere; the directory knows of nothing.
    void forget(uint32_t session) {
        for (Line &l : lines_) {
            if (l.session != session) continue;
            if (l.state == M) ghosts_.push_back({now_ + random_.below(4000), l.address, session, sessions_[session].ld_id, l.copy[__builtin_ctz(l.agents)]});
            invalidate(l);
            l.was_asked = false;
            l.kept_until = 0;
        }
    }
    // A write-back in the name of who is no owner any more, with any MetaValue: it must be dropped.
    void late_write(const Ghost &g) {
        const Session &s = sessions_[g.session];
        if (s.phase != CLOSED && s.ld_id == g.ld_id) return;  // it would be a write like any other
        static const uint32_t values[] = {INVALID, SHARED, ANY};
        Message m{chance(40) ? codes::MEM_WR_PTL : codes::MEM_WR, 0, META0, values[random_.below(3)], aside_tag(), g.ld_id, g.address, ~0ull, g.data};
        aside_[m.tag].since = now_;
        rwds_.push_back(m);
        f.late_writes++;
    }
    // A message of any form for a line that no agent uses, mostly beside one that they do: any opcode and fields, anybody's. What is granted of it is in no cache.
    void odd() {
        const Line &near = lines_[random_.below(static_cast<uint32_t>(lines_.size()))];
        const uint64_t address = chance(230) ? near.address ^ random_.below(16) : random_.next() % o.hint_base;
        if (line_at_.count(address)) return;
        const bool writes = chance(100);
        Message m{random_.below(16), random_.below(8), random_.below(4), random_.below(4), aside_tag(), chance(200) ? sessions_[near.session].ld_id : 1 + random_.below(15), address, ~0ull, pool_[random_.below(static_cast<uint32_t>(pool_.size()))], chance(20)};
        if (!m.ld_id) return;
        if (chance(128)) m.opcode = writes ? chance(128) ? codes::MEM_WR : codes::MEM_WR_PTL : chance(128) ? codes::MEM_RD : chance(128) ? codes::MEM_INV : codes::MEM_CLN_EVCT;
        if (chance(128)) m.enable = random_.next();
        f.odd++;
        if (writes || m.opcode != codes::MEM_SPEC_RD) {
            Aside a;
            a.since = now_, a.ld_id = m.ld_id, a.odd = true, a.reads = !writes && (m.opcode == codes::MEM_RD || m.opcode == codes::MEM_RD_DATA);
            a.wants_cmp = !a.reads || m.snp;  // its encoding alone says so
            aside_[m.tag] = a;
        }
        (writes ? rwds_ : reqs_).push_back(m);
    }
    // A tenant asks for a line that is another's, in every way; it gets nothing, and the owner's lines stay what they are.
    void stranger() {
        const Line &l = lines_[random_.below(static_cast<uint32_t>(lines_.size()))];
        const uint32_t ld_id = 1 + random_.below(15), what = random_.below(8);
        if (ld_id == sessions_[l.session].ld_id || phase_of(l) != OPEN) return;
        Aside a;
        a.since = now_, a.ld_id = ld_id, a.strange = true, a.reads = what < 4;
        Message m{codes::MEM_RD, SNP_INV, META0, ANY, aside_tag(), ld_id, l.address, ~0ull, {}};
        if (what == 1) m.value = SHARED, m.snp = SNP_DATA;
        if (what == 2) m.value = INVALID;
        if (what == 3) m.field = META_NO_OP, m.value = 0, m.snp = SNP_CUR;
        if (what == 4) m.opcode = chance(128) ? codes::MEM_INV : codes::MEM_INV_NT;
        if (what == 5) m.opcode = codes::MEM_CLN_EVCT, m.value = INVALID, m.snp = SNP_NONE;
        if (what > 5) m.opcode = chance(64) ? codes::MEM_WR_PTL : codes::MEM_WR, m.value = random_.below(2) ? INVALID : chance(128) ? ANY : SHARED, m.snp = 0, m.data = pool_[0];
        f.strange++;
        aside_[m.tag] = a;
        (what > 5 ? rwds_ : reqs_).push_back(m);
    }
    // One of a block that is answered at once has had its turn; whether it was the last one. `silent`: nothing is said of it.
    bool turn_of_block(Line &l, bool silent, std::vector<uint32_t> &given) {
        Block &b = blocks_[l.bi_tag];
        b.mute += silent;
        if (!silent) b.done.push_back(line_at_[l.address]);
        if (--b.left) return false;
        given = b.done;
        return true;
    }
    // A line of a block is kept, so nothing can be said of the block: the others are given up, too.
    void keeps_of_block(Line &l) {
        const auto found = blocks_.find(l.bi_tag);
        if (found == blocks_.end()) return;
        std::vector<uint32_t> given;
        const bool at_once = found->second.at_once;
        if (!turn_of_block(l, true, given)) return;
        if (at_once) give_up(given);
        blocks_.erase(l.bi_tag);
    }
    void give_up(const std::vector<uint32_t> &given) {
        for (uint32_t n : given) owe(lines_[n]);
        f.silent += given.size();
    }
    void answer_snoop(Line &l) {
        invalidate(l);
        l.snoop = QUIET;
        f.snoops++;
        f.transactions++;
        Message m{0, 0, 0, 0, l.bi_tag, 0, l.address, 0, {}};  // BIRspI
        std::vector<uint32_t> given{line_at_[l.address]};
        if (const auto found = blocks_.find(l.bi_tag); found != blocks_.end()) {
            const bool at_once = found->second.at_once, mute = found->second.mute;
            std::vector<uint32_t> all;
            const bool last = turn_of_block(l, false, all);
            if (last) blocks_.erase(l.bi_tag);
            if (at_once && !last) return;
            if (at_once && mute) return give_up(all);
            if (at_once) m.opcode = codes::BI_RSP_I_BLK, given = all;
        }
        if (o.refuse && chance(o.refuse)) {
            m.opcode += 1 + random_.below(2);  // BIRspS, BIRspE
            f.refused += given.size();
            for (uint32_t n : given) owe(lines_[n]);
        } else if (o.silent && chance(o.silent)) {
            give_up(given);
            if (chance(128)) late_rsps_.push_back({now_ + o.timeout * 2 + 100, m});
            return;
        }
        rsps_.push_back(m);
    }

    // A request is over when all that belongs to it has come.
    void done(uint32_t n) {
        Line &l = lines_[n];
        const bool needs_data = l.out == READ_SHARED || l.out == READ_ANY || l.out == LOOK;
        if (!l.has_cmp || (needs_data && !l.has_data)) return;
        const Out out = l.out;
        l.out = NONE;
        l.since = now_;
        f.done[out]++;
        f.transactions++;
        if (!f.first) f.first = now_;
        f.last = now_;
        if (l.snoop == AFTER) l.snoop = HERE;
        if (l.after && needs_data && !l.poison && !l.nxm) note(f.wrong, "data of line %x after a fatal error", n);
        if (l.strange) {
            if (!l.nxm && !l.poison) note(f.foreign, "data of line %x for LD-ID %u", n, l.ld_id);
            return;
        }
        const Phase phase = phase_of(l);
        const bool granted = l.cmp == codes::CMP_S || l.cmp == codes::CMP_E, asks = out == READ_SHARED || out == READ_ANY || out == OWN;
        if (phase == CLOSED && granted && !over_) note(f.foreign, "a grant of line %x of a closed session", n);
        if (phase == CLOSED && needs_data && !l.nxm && !(o.notes && l.poison)) note(f.foreign, "data of line %x of a closed session", n);
        if (phase == OPEN) {
            const bool given_up = l.lost == GIVEN_UP && l.lost_before == GIVEN_UP;
            if (needs_data && !l.nxm && !l.poison && given_up) note(f.wrong, "line %x, which was given up, is read as sound", n);
            if (needs_data && l.nxm) note(f.nxm, "NXM for line %x", n);
            if (needs_data && !l.nxm && l.spoilt && !l.lost && !l.poison) note(f.wrong, "line %x of format %u, written as poison, is read as sound", n, l.format);
            if (l.poison && !l.lost && !l.spoilt && !o.notes && !o.errs) fail("poison for line %x of format %u, which nobody gave up", n, l.format);
            if (asks && !granted && !l.nxm && !over_) note(f.nxm, "no grant of line %x", n);
            if (needs_data && !l.nxm && !l.poison && !(o.notes && l.lost) && !l.spoilt && !(l.data == l.truth) && !(out == LOOK && l.raw))
                note(f.wrong, "stale read of line %x of format %u by request %d: %02x%02x…, expected %02x%02x…", n, l.format, out, l.data.b[0], l.data.b[1], l.truth.b[0], l.truth.b[1]);
        }
        f.line_longest = std::max(f.line_longest, now_ - l.asked_since);
        f.beside += std::any_of(sessions_.begin(), sessions_.end(), [](const Session &s) { return s.phase == CLOSING; }) && phase == OPEN;
        f.granted += granted;
        f.poisoned += l.poison;
        if (!asks || !granted || l.poison || phase != OPEN) {
            if (asks && granted && l.state == I) l.agents = 0;  // it is dropped in silence
            return;
        }
        if (out != OWN) {
            if (l.raw) note(f.wrong, "line %x is read while a copy that differs is held", n);
            if (l.state == I) l.agents = 0;
            for (unsigned a = 0; a < AGENTS; a++)
                if (l.agents >> a & 1 && a != l.asker && !(l.copy[a] == l.data)) note(f.wrong, "agents differ at line %x", n);
            l.agents |= static_cast<uint8_t>(1u << l.asker);
            l.copy[l.asker] = l.data;
            l.state = l.cmp == codes::CMP_E ? E : S;
        }
        if (out == READ_SHARED) return;
        if (l.cmp != codes::CMP_E) {
            stray("a request for ownership of line %x was answered Cmp-S", n);
            return;
        }
        if (l.state == I) l.agents = 0;
        if (stream) l.state = E, l.agents = 1, l.copy[0] = out == OWN ? l.truth : l.data;
        else if (chance(o.unused)) {  // the store does not come
            if (out == OWN) invalidate(l);
        }
        else store(l, l.asker);
    }
};

}  // namespace
}  // namespace kelp

extern "C" {

using kelp::CachingHost;

CachingHost *caching_new(Simulation *s, const kelp::Options *options, kelp::Rounder rounder) {
    auto host = std::make_unique<CachingHost>(*options, rounder);
    CachingHost *plain = host.get();
    s->other = std::move(host);
    return plain;
}
void caching_options(CachingHost *h, const kelp::Options *options) { h->o = *options; }
void caching_values(CachingHost *h, const uint8_t *values, uint64_t count) { h->give(values, count); }
void caching_line(CachingHost *h, uint64_t address, uint32_t session, uint32_t format, uint32_t page) { h->add(address, session, format, page); }
int caching_phase(Simulation *s, CachingHost *h, uint32_t session, uint32_t phase, uint32_t ld_id) {
    return s->guarded([&] { h->phase(session, phase, ld_id); }) ? 0 : -1;
}
void caching_put(CachingHost *h, uint64_t address, uint32_t ld_id, const uint8_t *data) { h->put_line(address, ld_id, data); }
uint32_t caching_ask(CachingHost *h, uint64_t address, uint32_t ld_id) { return h->ask_line(address, ld_id); }
int caching_take(CachingHost *h, uint32_t tag, uint8_t *data) { return h->take_line(tag, data); }
int caching_gather(CachingHost *h, uint32_t line, uint64_t address) { return h->gather(line, address); }
void caching_favour(CachingHost *h, const uint32_t *lines, uint64_t count) { h->favoured.assign(lines, lines + count); }
// Every event so far, with its time, and every line that was given up: its page and where it is there. How many there are; written, where there is room.
uint64_t caching_told(CachingHost *h, uint64_t *to, uint64_t room) {
    if (room >= h->told.size()) std::memcpy(to, h->told.data(), sizeof(kelp::Told) * h->told.size());
    return h->told.size();
}
uint64_t caching_given_up(CachingHost *h, uint64_t *to, uint64_t room) {
    if (room >= h->losses.size()) std::memcpy(to, h->losses.data(), 8 * h->losses.size());
    return h->losses.size();
}
void caching_act(CachingHost *h, int on, uint32_t stream) {
    h->acting = on;
    if (stream) h->restart();
    h->stream = stream;
}
int caching_streamed(CachingHost *h) { return h->streamed(); }
int caching_flush(CachingHost *h) { return h->flush(); }
uint64_t caching_waiting(CachingHost *h) { return h->waiting(); }
uint64_t caching_session_waiting(CachingHost *h, uint32_t session) { return h->waiting(session); }
uint64_t caching_gathering(CachingHost *h, uint32_t session) { return h->gathering(session); }
uint64_t caching_held(CachingHost *h) { return h->held(); }
uint64_t caching_snooped(CachingHost *h) { return h->snooped(); }
const char *caching_notes(CachingHost *h) { return h->notes.c_str(); }
void caching_figures(CachingHost *h, kelp::Figures *to) { *to = h->f; }

}  // extern "C"

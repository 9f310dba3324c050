# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Clauses that random traffic hardly meets, each driven to its edge: the phase bit, `auto_step`,
time beyond 16 and 32 bits, `irq`, counts that add up (spec §6, §7, §9)."""

import numpy as np
import pytest
from narrow_unit import UNIT

from kelp_rtl.device import Descriptor, Driver, Failure, FlashTiming, QueueParameters, RunRules
from kelp_rtl.program import READ, SPEC_READ, WRITE, Program, Response
from kelp_spec.hints import HintKind, HintLine, pack
from kelp_spec.messages import M2SReq
from kelp_spec.metadata import Event, PageState, PrefetchSource, ScoreSource
from kelp_spec.registers import HISTOGRAM_BINS

pytestmark = pytest.mark.timeout(1800)  # the first test builds the model

WHOLE = Descriptor(layers=1, kv_heads=UNIT.queues)
SESSIONS = range(UNIT.sessions)


def device(**options):
    """A device with every session open, session k for LD-ID k."""
    d = Driver(UNIT, **options)
    for session in SESSIONS:
        d.open_session(
            session, WHOLE, QueueParameters(score_source=ScoreSource.OBSERVED), owner=session
        )
    return d


def line(d, session, *where):
    return d.address(session, *where, 0, 0)


def ask(d, opcode, address, *, ld_id=0, count=1):
    """One request, or the same one `count` times, settled."""
    given = np.zeros((count, 64), np.uint8) if opcode == WRITE else None
    addresses = np.full(count, address, np.uint64)
    return d.run(Program(opcode=opcode, address=addresses, ld_id=ld_id, data=given), settle=True)


# - irq --------------------------------------------------------------------------------------------
def test_irq_is_raised_by_what_is_enabled_and_falls_with_the_log():
    d = device()
    foreign = line(d, 0, 0, 0)
    outside = 3 << UNIT.aperture_bits

    def pending():
        assert d.irq == d.read_fields("status")["irq"]
        return d.irq

    d.write64("irq_enable", 1 << Event.OUT_OF_MAP)
    ask(d, READ, foreign, ld_id=7)
    assert d.read64("event_count") == 1 and not pending()
    ask(d, READ, outside)
    assert d.read64("event_count") == 2 and pending()
    d.write64("irq_enable", 0)  # of events to come
    assert pending()
    d.write64("event_clear", 0)
    assert pending()
    d.write64("event_clear", 1)
    assert d.read64("event_count") == 0 and not pending()
    ask(d, READ, outside)
    assert d.read64("event_count") == 1 and not pending()
    d.write64("event_clear", 1)
    # The log is full of what is masked: what comes then is not recorded.
    d.write64("irq_enable", 1 << Event.OUT_OF_MAP)
    ask(d, READ, foreign, ld_id=7, count=16)
    ask(d, READ, outside)
    assert d.read_fields("status")["event_overflow"] and not pending()
    d.write64("event_clear", 1)
    ask(d, READ, outside)
    assert not d.read_fields("status")["event_overflow"] and pending()
    d.close()


# - rest -------------------------------------------------------------------------------------------
def test_status_says_whether_the_read_of_it_found_the_device_at_rest():
    d = device()
    d.settle()
    assert d.read_fields("status")["quiescent"]
    # Behind a write it finds one at work, and a second read right behind finds the first.
    for opcode, address in ((WRITE, line(d, 0, 0, 0)), (READ, d.addresses.register_base)):
        d.settle()
        program = Program(
            opcode=np.array([opcode, READ]),
            address=np.array([address, d.addresses.register_base], np.uint64),
            data=np.zeros((int(opcode == WRITE), 64), np.uint8),
        )
        words = d.run(program, settle=True).data[1].view("<u8")
        assert not d.unpack("status", int(words[0x18 // 8]))["quiescent"]
    assert d.read_fields("status")["quiescent"]
    d.close()


def take(d, count, overflow=0):
    d.write64("event_taken", d.pack("event_taken", count=count, overflow=overflow))


def test_records_that_are_taken_leave_the_others():
    """`event_taken` (docs/interface.md): of the records, of an overflow, and of `irq`."""
    d = device()
    foreign, outside = line(d, 0, 0, 0), 3 << UNIT.aperture_bits

    def lost():
        return d.read_fields("status")["event_overflow"]

    d.write64("irq_enable", 1 << Event.OUT_OF_MAP)
    ask(d, READ, outside, ld_id=3)
    ask(d, READ, foreign, ld_id=7)
    first = d.read_fields("event_0")
    ask(d, READ, outside, ld_id=5)  # since the host has read
    take(d, 1)
    assert first["ld_id"] == 3 and logged(d) == [Event.FOREIGN_LD, Event.OUT_OF_MAP] and d.irq
    take(d, 0)
    assert d.read64("event_count") == 2 and d.read_fields("event_1")["ld_id"] == 5 and d.irq
    take(d, 2)
    assert d.read64("event_count") == 0 and not d.irq
    # Around the ring, more than once; it says how full it is, and what was lost.
    for n in range(1, 8):
        ask(d, READ, foreign, ld_id=n, count=11)
        assert d.read64("event_count") == 11 and not lost()
        assert {d.read_fields(f"event_{i}")["ld_id"] for i in range(11)} == {n}
        take(d, 11)
    ask(d, READ, foreign, ld_id=7, count=20)
    assert d.read64("event_count") == 16 and lost()
    take(d, 5)
    ask(d, READ, outside)  # there is room again
    assert d.read64("event_count") == 12 and lost() and d.irq
    assert logged(d)[11] == Event.OUT_OF_MAP
    take(d, 0, overflow=1)
    assert d.read64("event_count") == 12 and not lost() and d.irq
    take(d, 31)
    assert d.read64("event_count") == 0 and not d.irq
    # Another LD-ID may not, and that is an event.
    ask(d, READ, foreign, ld_id=7)
    d.write64("event_taken", 31, ld_id=7)
    assert logged(d) == [Event.FOREIGN_LD, Event.REGISTER_REFUSED]
    d.close()


# - phase ------------------------------------------------------------------------------------------
def test_phase_is_decided_by_4096_requests_of_the_session_alone():
    """Decode where reads > 10 × writes, that is with 372 writes of 4096 and not with 373."""
    d = device()
    at = [line(d, session, 0, 0) for session in SESSIONS]

    def phases():
        return [d.read_fields(f"s{session}_state")["decode"] for session in SESSIONS]

    def window(writes, reads):
        ask(d, WRITE, at[0], count=writes)
        ask(d, READ, at[0], count=reads)

    assert phases() == [0, 0]
    # of nobody's 4096: refused, without memory, the other session's
    ask(d, READ, at[0], ld_id=7, count=50)
    ask(d, M2SReq.MEM_INV, at[0], count=50)
    ask(d, WRITE, at[1], ld_id=1, count=300)
    for writes, before, after in ((372, 0, 1), (373, 1, 0), (0, 0, 1), (372, 1, 1)):
        window(writes, 4095 - writes)
        assert phases() == [before, 0], writes
        window(0, 1)
        assert phases() == [after, 0], writes
    ask(d, READ, at[1], ld_id=1, count=4096 - 300)
    assert phases() == [1, 1]
    d.close_session(0)
    d.open_session(0, WHOLE)
    assert phases() == [0, 1]
    d.close()


# - prefetch lists ---------------------------------------------------------------------------------
def test_a_prefetch_list_fetches_the_pages_that_it_names():
    d = device()
    # A prefetch leaves some frames to others.
    pages = [(queue, page) for queue in range(UNIT.queues) for page in range(2)]
    pages = pages[: UNIT.frames[0] - 2]

    def resident():
        return {at for at in pages if d.page_word(0, *at)["state"] == PageState.RESIDENT}

    for at in pages:
        ask(d, WRITE, line(d, 0, *at))
    d.write_registers(
        {"low_water": UNIT.frames[0], "prefetch_enable": 1 << PrefetchSource.HINT - 1}
    )
    d.settle()
    assert not resident()
    d.write_registers({"low_water": 0, "high_water": 0, "reserve": 0})
    for n, (queue, page) in enumerate(reversed(pages)):
        hint = HintLine(kind=HintKind.PREFETCH, session=0, queue=queue, sequence=n, entries=(page,))
        d.push_hints([hint])
        d.settle()
        assert resident() == set(pages[len(pages) - 1 - n :])
    d.close()


# - steps ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.sampled
def test_auto_step_advances_after_so_many_accesses(every):
    """An access is the first line of a page in a step; the step that it ends is still its own."""
    rng = np.random.default_rng(every)
    d = device()
    d.write64("s1_auto_step", every)
    step, accesses, last = 0, 0, {}
    for _ in range(60):
        page = tuple(int(rng.integers(n)) for n in (2, 2))
        new = page not in last
        if rng.random() < 0.2:  # the other session's count for nothing
            ask(d, WRITE, line(d, 0, *page), ld_id=0)
        ask(d, WRITE if new else READ, line(d, 1, *page), ld_id=1)
        if new or last[page] != step:
            last[page] = step
            accesses += 1
            if accesses == every:
                step, accesses = step + 1, 0
        assert d.read_fields("s1_state")["step"] == step
        word = d.page_word(1, *page)
        assert (word["state"], word["last_step"]) == (PageState.RESIDENT, last[page])
    assert step >= 20 // every and d.read_fields("s0_state")["step"] == 0
    d.close()


# - books ------------------------------------------------------------------------------------------
def test_each_page_asked_for_is_counted_and_each_prefetch_ends_in_one_count():
    """MemSpecRd in nearly every cycle, hint lines and reads between them. What finds no room is
    dropped; a page may be read, leave, be fetched again and be met on its way in one step."""
    rng, d = np.random.default_rng(5), device(flash=FlashTiming(latency=60, write_latency=60))
    for at in PAGES:
        ask(d, WRITE, line(d, 0, *at))
    sources = PrefetchSource.SPEC_READ, PrefetchSource.HINT
    enable = sum(1 << source - 1 for source in sources)
    d.write_registers({"prefetch_enable": enable, "low_water": 0, "high_water": 3})
    asked, entries = dict.fromkeys(sources, 0), 8
    for sequence in range(100):
        entry = rng.permutation(UNIT.pages)[:entries]
        hint = HintLine(
            kind=HintKind.PREFETCH,
            session=0,
            queue=int(rng.integers(UNIT.queues)),
            sequence=sequence,
            entries=tuple(map(int, entry)),
        )
        often = [0.85, 0.1, 0.05] if sequence % 2 else [0.1, 0.85, 0.05]
        opcode = rng.choice([SPEC_READ, READ, WRITE], 200, p=often)
        address = np.array([line(d, 0, *PAGES[i]) for i in rng.integers(len(PAGES), size=200)])
        address[opcode == WRITE] = d.addresses.hint_base
        rows = np.frombuffer(pack(hint), np.uint8)[None].repeat(int((opcode == WRITE).sum()), 0)
        asked[PrefetchSource.SPEC_READ] += int((opcode == SPEC_READ).sum())
        asked[PrefetchSource.HINT] += entries * len(rows)
        d.run(Program(opcode=opcode, address=address.astype(np.uint64), data=rows), settle=True)
    d.close_session(0)
    total, bins = d.counters(), d.latency_histograms()
    ends = {}
    for source, count in asked.items():
        name = source.name.lower()
        of = {
            what: total[f"prefetch_{what}_{name}"]
            for what in ("issued", "dropped", "useful", "late", "useless")
        }
        assert of["issued"] + of["dropped"] == count, (name, of, count)
        assert of["issued"] == of["useful"] + of["late"] + of["useless"], (name, of)
        ends |= {what: ends.get(what, 0) + n for what, n in of.items()}
    assert min(ends.values()) >= 5, ends
    assert total["accesses"] == total["hits"] + total["misses"] + total["allocations"]
    answered = total["reads"] + total["writes"] + total["refused"]
    assert sum(map(sum, bins.values())) == answered
    d.close()


# - time -------------------------------------------------------------------------------------------
PAGES = [(q, p) for q in range(UNIT.queues) for p in range(UNIT.pages)]


def in_state(d, state):
    """Numbers of session 0's pages."""
    return [n for n, page in enumerate(PAGES) if d.page_word(0, *page)["state"] == state]


def pass_time(d, until):
    """Fetches of cold pages that take long, until it is time."""
    d.write64("cold_timeout", (1 << 32) - 1)
    while d.time < until:
        page = line(d, 0, *PAGES[in_state(d, PageState.COLD)[0]])
        latency = max(200, min(until - d.time, 1 << 30))
        d.configure(flash=FlashTiming(latency=latency, write_latency=200))
        ask(d, READ, page)
    d.configure(flash=FlashTiming(latency=200, write_latency=200))


@pytest.mark.parametrize("bits", [20, 23, 26])
def test_a_long_miss_is_counted_by_all_its_cycles(bits):
    """As one that a lost command held up, or that waited for a frame; the last bin has all above
    it (kelp_spec.registers)."""
    d = device(flash=FlashTiming(latency=200, write_latency=200), rules=RunRules(max_skip=1 << 30))
    for page in PAGES:
        ask(d, WRITE, line(d, 0, *page))
    d.write64("cold_timeout", (1 << 32) - 1)
    d.configure(flash=FlashTiming(latency=1 << bits, write_latency=200))
    cold, before = in_state(d, PageState.COLD)[0], d.latency_histograms()["miss"]
    ask(d, READ, line(d, 0, *PAGES[cold]))
    counted = np.subtract(d.latency_histograms()["miss"], before)
    assert np.flatnonzero(counted).tolist() == [min(bits, HISTOGRAM_BINS - 1)]
    d.close()


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("bits", [16, 32])
@pytest.mark.sampled
def test_time_wraps_under_traffic(bits, lost):
    """Fetches that begin on one side of 2^16 or 2^32 cycles and land on the other, at the first try
    or, where that is `lost`, at the second, whose time the first's deadline tells: data, latencies
    and retries are as anywhere else."""
    d = device(flash=FlashTiming(latency=200, write_latency=200), rules=RunRules(max_skip=1 << 30))
    address = np.array([line(d, 0, *page) for page in PAGES], np.uint64)
    data = np.random.default_rng(bits).integers(0, 256, (len(PAGES), 64), np.uint8)
    data[:, 1::2] &= 0x3F  # no NaN

    assert (d.run(Program.writes(address, data), settle=True).response == Response.CMP).all()

    def look():
        """What is compared later; and four cold pages and one that is here."""
        cold, hot = in_state(d, PageState.COLD)[:4], in_state(d, PageState.RESIDENT)[0]
        counts = d.counters(), d.counts()["flash_read_bytes"], d.latency_histograms()["miss"]
        return cold, hot, *counts

    began = d.time
    look()
    pass_time(d, (1 << bits) - 3000 - (d.time - began))
    d.configure(flash=FlashTiming(latency=5000, write_latency=200))
    d.write64("cold_timeout", 8000)
    cold, hot, before, bytes_before, histogram = look()
    if lost:
        reads = d.counts()["flash_reads"]
        never = [Failure(index=reads + n, kind="never") for n in range(len(cold))]
        d.configure(flash=FlashTiming(latency=5000, write_latency=200, failures=never))
    assert (1 << bits) - 4900 < d.time < 1 << bits
    # Hits go on meanwhile, so that each cycle is simulated.
    asked = [*cold, *[hot] * 9000]
    read = d.run(Program.reads(address[asked]), settle=True)
    assert (read.response == Response.DATA).all() and (read.data == data[asked]).all()
    assert d.time > (1 << bits) + 2000
    # None is taken for late too early. A cold slot is the page and a sector.
    assert d.counts()["flash_never"] == lost * len(cold)
    assert d.counters()["fetches"] - before["fetches"] == len(cold)
    slot = UNIT.page_lines * 64 + 512
    assert d.counts()["flash_read_bytes"] - bytes_before == (1 + lost) * len(cold) * slot
    # 5000 cycles and a few more, and 8000 before them where the first try was lost.
    grown = np.subtract(d.latency_histograms()["miss"], histogram)
    assert grown.sum() == grown[13 if lost else 12] == len(cold)
    assert Event.FETCH_FAILED not in logged(d)
    d.close()


@pytest.mark.parametrize("bits", [16, 32])
def test_a_miss_starves_across_the_wrap_of_time(bits):
    """Every frame is pinned: a miss waits `starve_limit` cycles, not fewer and hardly more, though
    time wraps meanwhile, and hits go on until then: behind more, a full data path, its answer waits
    besides."""
    d = device(flash=FlashTiming(latency=200, write_latency=200), rules=RunRules(max_skip=1 << 30))
    address = np.array([line(d, 0, *page) for page in PAGES], np.uint64)
    data = np.random.default_rng(bits).integers(0, 256, (len(PAGES), 64), np.uint8)
    d.run(Program.writes(address, data), settle=True)
    pass_time(d, (1 << bits) - 20_000)
    d.write_registers({"low_water": 0, "high_water": 0, "reserve": 0})
    d.push_hints([HintLine(kind=HintKind.PIN, session=0, entries=tuple(range(UNIT.pages)))])
    pinned, cold = address[: UNIT.pages], address[UNIT.pages]
    for _ in range(2):  # what is cold and pinned stays once it is here
        d.run(Program.reads(pinned), settle=True)
    d.write64("starve_limit", limit := 6000)
    now = (1 << bits) - 3000
    assert d.time < now
    d.idle(now - d.time)
    d.write64("event_clear", 1)
    hits = limit // 8  # of four cycles each
    asked = np.append(cold, np.resize(pinned, hits))
    read = d.run(Program.reads(asked), settle=True)
    assert d.time > 1 << bits
    assert read.response[0] == Response.POISON and (read.response[1:] == Response.DATA).all()
    assert (read.data[1:] == np.resize(data[: UNIT.pages], (hits, 64))).all()
    assert limit <= read.latency[0] < limit + 100
    assert logged(d).count(Event.STARVED) == 1
    d.close()


def logged(d):
    count = d.read64("event_count")
    words = d.read_registers([f"event_{i}" for i in range(count)])
    return [Event(d.unpack("event_0", word)["code"]) for word in words]

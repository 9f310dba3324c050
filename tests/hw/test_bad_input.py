# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Bad input to the whole endpoint: each kind has the answer, the event and the counters of
docs/interface.md, and service goes on afterwards."""

from dataclasses import replace

import numpy as np
import pytest
from narrow_unit import UNIT

from kelp_golden import codec
from kelp_rtl.device import (
    Descriptor,
    Driver,
    DriverError,
    Failure,
    FlashTiming,
    MemoryTiming,
    Pressure,
    QueueParameters,
    RunRules,
)
from kelp_rtl.program import PARTIAL, POISON, READ, SPEC_READ, WRITE, Program, Response, rwd
from kelp_spec.formats import Format, HostType
from kelp_spec.hints import HintKind, HintLine, pack
from kelp_spec.messages import M2SReq, M2SRwD
from kelp_spec.metadata import ColdOp, Event, Op, PageState, PrefetchSource, ScoreSource
from kelp_spec.registers import SessionCommand

pytestmark = pytest.mark.timeout(1800)  # the first test builds the model

FAST = FlashTiming(latency=2000, write_latency=1500)
QUICK = RunRules(max_skip=500)
WHOLE = Descriptor(layers=1, kv_heads=UNIT.queues)
OBSERVED = QueueParameters(score_source=ScoreSource.OBSERVED)
ALL = (1 << 64) - 1
ALTERNATING = ALL // 3
DATA, POISONED, NXM, CMP = Response.DATA, Response.POISON, Response.NXM, Response.CMP


def endpoint(**options) -> Driver:
    """The endpoint with session 0 open on every queue."""
    d = Driver(UNIT, **{"flash": FAST, "rules": QUICK} | options)
    d.open_session(0, WHOLE, OBSERVED)
    return d


def random_lines(count, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, 64), np.uint8)


def page_addresses(d, pages, *, session=0, lines=None):
    """Addresses of lines of (queue, page) pairs: all of a page, or `lines` of each half."""
    lines = range(UNIT.half_lines) if lines is None else lines
    return np.array(
        [d.address(session, q, p, kv, line) for q, p in pages for kv in range(2) for line in lines],
        np.uint64,
    )


# four times as many as a pool's frames
PAGES = [(q, p) for q in range(UNIT.queues) for p in range(UNIT.pages)]


def events(d):
    """The event log's records, oldest first, as (event, LD-ID, squeue, page); they are taken."""
    count = d.read64("event_count")
    fields = [
        d.unpack("event_0", word) for word in d.read_registers([f"event_{i}" for i in range(count)])
    ]
    d.write64("event_taken", d.pack("event_taken", count=count, overflow=1))
    return [(Event(f["code"]), f["ld_id"], f["squeue"], f["page"]) for f in fields]


def codes(d):
    return [event[0] for event in events(d)]


def quiet(d):
    """Nothing is in the log but that eviction had to wait, which is no error."""
    return not set(codes(d)) - {Event.NO_VICTIM}


def serves(d, session=0, ld_id=0):
    """Nothing is left in flight and the session takes and gives lines on every one of its
    queues."""
    d.settle()
    addresses = page_addresses(d, [(q, 0) for q in range(UNIT.queues)], session=session)
    data = random_lines(len(addresses), seed=d.time & 0xFFFF)
    assert (d.run(Program.writes(addresses, data, ld_id=ld_id)).response == CMP).all()
    read = d.run(Program.reads(addresses, ld_id=ld_id), settle=True)
    assert (read.response == DATA).all() and (read.data == data).all() and read.missing == 0
    return True


# - where nothing is -------------------------------------------------------------------------------
def small_session(d):
    d.open_session(
        1,
        Descriptor(layers=1, kv_heads=2, used_lines=3, used_pages=5, k_only=1),
        OBSERVED,
        owner=5,
    )


OUTSIDE = {
    "region 3": lambda d: 3 << UNIT.aperture_bits,
    "above the regions": lambda d: 4 << UNIT.aperture_bits,
    "the highest address": lambda d: (1 << 52) - 64,
    "beyond the hint aperture": lambda d: d.addresses.hint_base + 4096,
    "queue": lambda d: d.address(1, 2, 0, 0, 0),
    "page": lambda d: d.address(1, 0, 5, 0, 0),
    "line": lambda d: d.address(1, 0, 0, 0, 3),
    "V of a K-only session": lambda d: d.address(1, 1, 4, 1, 2),
}


@pytest.mark.parametrize("what", OUTSIDE)
def test_outside_the_map(what):
    d = endpoint()
    small_session(d)
    before = d.counters()
    address = OUTSIDE[what](d)
    opcodes = [READ, M2SReq.MEM_RD_DATA, WRITE, PARTIAL, M2SReq.MEM_INV, SPEC_READ]
    result = d.run(
        Program(
            opcode=opcodes, address=[address] * 6, ld_id=5, data=random_lines(2), group=range(6)
        ),
        settle=True,
    )
    assert (
        result.response.tolist() == [NXM, NXM, CMP, CMP, CMP, Response.NONE] and result.missing == 0
    )
    log = events(d)
    assert [(code, ld) for code, ld, *_ in log] == [(Event.OUT_OF_MAP, 5)] * 5
    after = d.counters()
    assert after["refused"] == before["refused"] + 5
    assert all(
        after[name] == before[name] for name in ("reads", "writes", "accesses", "allocations")
    )
    assert serves(d)


def test_the_edge_of_the_map_is_inside():
    d = endpoint()
    small_session(d)
    edge = [d.address(1, 1, 4, 0, 2)]
    data = random_lines(1)
    d.run(Program.writes(edge, data, ld_id=5))
    read = d.run(Program.reads(edge, ld_id=5))
    assert read.response[0] == DATA and (read.data == data).all() and not codes(d)


def test_closed_session():
    d = endpoint()
    address = d.address(1, 0, 0, 0, 0)
    result = d.run(
        Program(
            opcode=[READ, WRITE, PARTIAL, SPEC_READ],
            address=[address] * 4,
            data=random_lines(2),
            group=range(4),
        ),
        settle=True,
    )
    assert result.response.tolist() == [NXM, CMP, CMP, Response.NONE]
    assert [(code, squeue) for code, _, squeue, _ in events(d)] == [
        (Event.CLOSED_SESSION, UNIT.queues)
    ] * 3
    assert d.counters()["refused"] == 3
    small_session(d)
    read = d.run(Program.reads([address], ld_id=5))
    assert read.response[0] == DATA and not read.data.any()  # what was refused left nothing behind
    assert serves(d)


def test_foreign_ld_id():
    d = endpoint()
    small_session(d)
    mine = [d.address(1, 0, 0, 0, 0)]
    data = random_lines(1)
    d.run(Program.writes(mine, data, ld_id=5))
    for ld_id in (0, 4, 15):
        result = d.run(
            Program(
                opcode=[READ, WRITE, PARTIAL],
                address=mine * 3,
                ld_id=ld_id,
                data=random_lines(2, 9),
                group=range(3),
            ),
            settle=True,
        )
        assert result.response.tolist() == [NXM, CMP, CMP] and not result.data.any()
        assert [(code, ld) for code, ld, *_ in events(d)] == [(Event.FOREIGN_LD, ld_id)] * 3
    assert d.counters()["refused"] == 9
    assert (d.run(Program.reads(mine, ld_id=5)).data == data).all()
    assert serves(d)


def test_registers_of_others():
    d = endpoint()
    small_session(d)
    for name in ("low_water", "event_count", "s0_state", "s1_budget"):
        assert d.read64(name, ld_id=5) == 0
    # beside `low_water` lies `identity`, beside `s1_budget` are registers of its own
    assert codes(d) == [Event.REGISTER_REFUSED] * 2
    before = d.read64("low_water")
    d.write64("low_water", before + 3, ld_id=5)
    d.write64("s1_command", d.pack("s1_command", command=SessionCommand.CLOSE), ld_id=5)
    assert d.read64("low_water") == before
    assert d.read_fields("s1_state", ld_id=5)["open"] == 1  # its own; the close was not its to give
    # The read of its own state was no offence, although the line holds registers of LD-ID 0 beside
    # it.
    assert codes(d) == [Event.REGISTER_REFUSED, Event.OPEN_REFUSED]
    assert serves(d)


# - opcodes ----------------------------------------------------------------------------------------
def test_unknown_opcodes_on_both_channels():
    d = endpoint()
    address, data = d.address(0, 0, 0, 0, 0), random_lines(1)
    d.run(Program.writes([address], data))
    harmless = [M2SReq.MEM_INV, M2SReq.MEM_INV_NT, M2SReq.MEM_CLN_EVCT]
    served = {
        int(M2SReq.MEM_RD),
        int(M2SReq.MEM_RD_DATA),
        int(M2SReq.MEM_SPEC_RD),
        *map(int, harmless),
    }
    unknown = [code for code in range(16) if code not in served] + [
        rwd(code) for code in range(16) if code not in (int(M2SRwD.MEM_WR), int(M2SRwD.MEM_WR_PTL))
    ]
    assert len(unknown) > 16
    for opcode in unknown:
        for where in (
            address,
            d.addresses.hint_base,
            d.addresses.register_base,
            3 << UNIT.aperture_bits,
        ):
            result = d.run(
                Program(
                    opcode=[opcode],
                    address=[where],
                    data=random_lines(1, 5) if opcode & 16 else None,
                )
            )
            assert result.response.tolist() == [CMP], opcode
        d.settle()
        assert codes(d) == [Event.UNKNOWN_OPCODE] * 4, opcode
    result = d.run(Program(opcode=harmless, address=[address] * 3), settle=True)
    assert (result.response == CMP).all() and not codes(d)
    read = d.run(Program.reads([address]))
    assert (read.data == data).all()
    assert serves(d)


# - byte enables -----------------------------------------------------------------------------------
PATTERNS = {
    "none": 0,
    "one": 1 << 37,
    "last": 1 << 63,
    "all": ALL,
    "even": ALTERNATING,
    "odd": ALTERNATING << 1,
    "half": ALL >> 32,
}


#: One whose lines stand alone, and the one with most lines in a DRAM line; the rest in `make slow`.
QUICK_FORMATS = (Format.RAW16, Format.INT4)


@pytest.mark.parametrize(
    "fmt",
    [
        pytest.param(fmt, marks=[] if fmt in QUICK_FORMATS else pytest.mark.slow, id=fmt.label)
        for fmt in Format
    ],
)
@pytest.mark.sampled
def test_partial_writes(fmt):
    """Every pattern, on never-written and on written lines, resident and cold, stored again in the
    page's format."""
    d = Driver(UNIT, flash=FAST, seed=int(fmt), rules=replace(QUICK, in_order=True))
    d.open_session(
        0,
        Descriptor(layers=1, kv_heads=UNIT.queues, formats=[(1023, fmt, fmt)]),
        OBSERVED,
    )
    rng = np.random.default_rng(int(fmt))
    addresses = page_addresses(d, PAGES)
    count = len(addresses)
    held = np.zeros((count, 64), np.uint8)
    patterns = np.array([*PATTERNS.values(), ALL], np.uint64)
    for turn in range(4):
        order, which = rng.permutation(count), rng.integers(0, len(patterns), count)
        whole = which == len(patterns) - 1
        sent = (rng.standard_normal((count, 32)) * 8).astype(np.float16).view(np.uint8)
        sent_at, enable = sent[order], patterns[which]
        on = enable[:, None] >> np.arange(64, dtype=np.uint64) & np.uint64(1) == 1
        result = d.run(
            Program(
                opcode=np.where(whole, WRITE, PARTIAL),
                address=addresses[order],
                byte_enable=enable,
                data=sent_at,
            ),
            settle=True,
        )
        assert (result.response == CMP).all()
        merged = np.where(on, sent_at, held[order]).view("<u2").astype(np.uint16)
        stored = codec.round_trip(merged, HostType.FP16, fmt)
        stored = stored.astype("<u2").view(np.uint8)
        # a write that enables no byte stores nothing anew
        held[order] = np.where(enable[:, None] == 0, held[order], stored)
        read = d.run(Program.reads(addresses), settle=True)
        assert (read.response == DATA).all() and (read.data == held).all(), turn
    assert d.counters()["fetches"] > 0 and quiet(d)


def test_partial_write_without_bytes_is_answered_and_changes_nothing():
    d = endpoint()
    address = [d.address(0, 2, 3, 1, 1)]
    write = d.run(
        Program(opcode=[PARTIAL], address=address, data=random_lines(1), byte_enable=0), settle=True
    )
    assert write.response[0] == CMP
    assert d.page_word(0, 2, 3)["state"] == PageState.ABSENT and d.counters()["allocations"] == 0
    read = d.run(Program.reads(address))
    assert read.response[0] == DATA and not read.data.any()


# - values -----------------------------------------------------------------------------------------
def strange_lines(host_type, count, rng):
    """NaNs of every kind, infinities, subnormals, zeros of both signs and the largest values;
    alone, among ordinary values, and mixed."""
    if host_type == HostType.FP16:
        strange = [
            0x7E00,
            0xFE00,
            0x7C01,
            0xFFFF,
            0x7C00,
            0xFC00,
            1,
            0x8001,
            0x3FF,
            0x83FF,
            0x400,
            0,
            0x8000,
            0x7BFF,
            0xFBFF,
        ]
        ordinary = (rng.standard_normal(4096)).astype(np.float16).view(np.uint16)
    else:
        strange = [
            0x7FC0,
            0xFFC0,
            0x7F81,
            0xFFFF,
            0x7F80,
            0xFF80,
            1,
            0x8001,
            0x7F,
            0x807F,
            0x80,
            0,
            0x8000,
            0x7F7F,
            0xFF7F,
        ]
        ordinary = (rng.standard_normal(4096).astype(np.float32).view(np.uint32) >> 16).astype(
            np.uint16
        )
    rows = np.empty((count, 32), np.uint16)
    for n in range(count):
        special = strange[n % len(strange)]
        match n // len(strange) % 5:
            case 0:
                rows[n] = special
            case 1:
                rows[n] = rng.choice(ordinary, 32)
                rows[n, rng.integers(32)] = special
            case 2:
                rows[n] = rng.choice(strange, 32)
            case 3:
                rows[n] = rng.choice([0, special], 32)
            case _:
                rows[n] = rng.integers(0, 1 << 16, 32)
    return rows


@pytest.mark.parametrize("host_type", HostType, ids=lambda h: h.name.lower())
@pytest.mark.parametrize("fmt", Format, ids=lambda f: f.label)
@pytest.mark.sampled
def test_strange_values(fmt, host_type):
    d = Driver(UNIT, flash=FAST, seed=7, rules=QUICK)
    d.open_session(
        0,
        Descriptor(layers=1, kv_heads=UNIT.queues, formats=[(1023, fmt, fmt)], host_type=host_type),
        OBSERVED,
    )
    addresses = page_addresses(d, PAGES)
    rows = strange_lines(host_type, len(addresses), np.random.default_rng(8))
    d.run(Program.writes(addresses, rows.astype("<u2").view(np.uint8)), settle=True)
    read = d.run(Program.reads(addresses), settle=True)
    assert (read.response == DATA).all()
    assert (read.data.view("<u2") == codec.round_trip(rows, host_type, fmt)).all()
    assert not codes(d)


# - poison -----------------------------------------------------------------------------------------
def test_poison_is_kept_and_travels_with_its_page():
    d = endpoint(rules=replace(QUICK, in_order=True))
    addresses = page_addresses(d, PAGES)
    data = random_lines(len(addresses))
    bad = np.zeros(len(addresses), bool)
    bad[::7] = True
    d.run(Program.writes(addresses, data, flags=np.where(bad, POISON, 0)), settle=True)
    log = codes(d)
    # the log holds 16
    assert len(log) == 16 and set(log) == {Event.POISON_RECEIVED} and bad.sum() > 16
    read = d.run(Program.reads(addresses), settle=True)
    assert (read.response == np.where(bad, POISONED, DATA)).all() and d.counters()["fetches"] > 0
    assert (read.data[~bad] == data[~bad]).all() and not read.data[bad].any()
    some = np.flatnonzero(bad)[:4]
    d.run(
        Program(opcode=PARTIAL, address=addresses[some], data=data[some], byte_enable=ALL >> 1),
        settle=True,
    )
    assert (d.run(Program.reads(addresses[some])).response == POISONED).all()
    d.run(Program.writes(addresses[some], data[some]), settle=True)
    read = d.run(Program.reads(addresses[some]))
    assert (read.response == DATA).all() and (read.data == data[some]).all()


# - hints ------------------------------------------------------------------------------------------
def raw_hint(**changes):
    header = {
        "version": 1,
        "kind": 2,
        "flags": 0,
        "session": 0,
        "count": 1,
        "queue": 0,
        "sequence": 0,
        "first_page": 0,
        "reserved": 0,
    } | changes
    value = shift = 0
    bits = {
        "version": 4,
        "kind": 4,
        "flags": 8,
        "session": 8,
        "count": 8,
        "queue": 16,
        "sequence": 16,
        "first_page": 16,
        "reserved": 16,
    }
    for name, width in bits.items():
        value |= header[name] << shift
        shift += width
    return value.to_bytes(64, "little")


@pytest.mark.parametrize(
    ("changes", "event"),
    [
        ({"version": 2}, Event.HINT_MALFORMED),
        ({"kind": 0}, Event.HINT_MALFORMED),
        ({"kind": 9}, Event.HINT_MALFORMED),
        ({"flags": 2}, Event.HINT_MALFORMED),
        ({"count": 27}, Event.HINT_MALFORMED),
        ({"count": 255}, Event.HINT_MALFORMED),
        ({"count": 0}, Event.HINT_MALFORMED),
        ({"first_page": 1}, Event.HINT_MALFORMED),
        ({"reserved": 1}, Event.HINT_MALFORMED),
        ({"session": 2}, Event.OUT_OF_MAP),
        ({"session": 255}, Event.OUT_OF_MAP),
        ({"session": 1}, Event.CLOSED_SESSION),
        ({"queue": 4}, Event.HINT_BAD_QUEUE),
        ({"queue": 0xFFFF}, Event.HINT_BAD_QUEUE),
        ({"sequence": 3}, Event.HINT_GAP),
        ({"kind": 1, "count": 2, "first_page": 7}, Event.HINT_BAD_PAGE),
        ({"kind": 1, "count": 26, "first_page": 0xFFFF}, Event.HINT_BAD_PAGE),
    ],
    ids=lambda value: (
        "-".join(f"{k}={v}" for k, v in value.items())
        if isinstance(value, dict)
        else value.name.lower()
    ),
)
def test_bad_hint_lines(changes, event):
    d = endpoint()
    assert (d.push_hints([raw_hint(**changes)]).response == CMP).all()
    d.settle()
    log = codes(d)
    assert log[0] == event and set(log) == {event}
    assert serves(d)


def test_hint_lines_of_others_in_part_and_poisoned():
    d = endpoint()
    small_session(d)
    line = pack(HintLine(kind=HintKind.PREFETCH, session=0, queue=0, entries=(0,)), UNIT)
    assert d.push_hints([line], ld_id=5).response[0] == CMP
    d.settle()
    assert codes(d) == [Event.FOREIGN_LD]
    row = np.frombuffer(line, np.uint8)
    for opcode, enable, flags in ((PARTIAL, ALL >> 1, 0), (PARTIAL, 0, 0), (WRITE, ALL, POISON)):
        hint = Program(
            opcode=[opcode],
            address=[d.addresses.hint_base],
            data=row,
            byte_enable=enable,
            flags=flags,
        )
        assert d.run(hint, settle=True).response[0] == CMP
        assert codes(d) == [Event.HINT_MALFORMED]
    result = d.run(Program.reads([d.addresses.hint_base]))
    assert result.response[0] == DATA and not result.data.any()
    assert serves(d)


def test_hints_for_absent_pages_do_nothing():
    d = endpoint()
    small_session(d)
    hints = [
        HintLine(kind=kind, session=0, queue=queue, sequence=4 * n + queue, entries=entries)
        for n, (kind, entries) in enumerate(
            [
                (HintKind.PREFETCH, (0, 3, 7)),
                (HintKind.PIN, (1, 2)),
                (HintKind.MASS, (1, 2, 3)),
                (HintKind.RELEASE, (0, 5)),
            ]
        )
        for queue in range(4)
    ]
    assert (d.push_hints(hints).response == CMP).all()
    d.settle()
    assert not codes(d) and all(
        d.page_word(0, q, p)["state"] == PageState.ABSENT for q in range(4) for p in (0, 1, 2, 7)
    )
    assert d.read64("pool_used_raw16") == 0 and d.counters()["fetches"] == 0
    # A page that the configuration has and the session has not.
    line = HintLine(kind=HintKind.PREFETCH, session=1, queue=0, entries=(0, 5, 4, 6, 7))
    d.push_hints([line], ld_id=5)
    d.settle()
    assert [(e, page) for e, _, _, page in events(d)] == [(Event.HINT_BAD_PAGE, 5)]  # once a line
    assert serves(d)


def test_a_flood_of_hints_and_spec_reads():
    """More candidates than there is room for are dropped; none is waited for."""
    d = endpoint()
    addresses = page_addresses(d, PAGES)
    data = random_lines(len(addresses))
    d.run(Program.writes(addresses, data), settle=True)
    d.write64("prefetch_enable", 31)
    hints = [
        HintLine(
            kind=HintKind.PREFETCH, session=0, queue=n % 4, sequence=n, entries=tuple(range(8))
        )
        for n in range(40)
    ]
    rows = np.frombuffer(b"".join(pack(line, UNIT) for line in hints), np.uint8).reshape(-1, 64)
    d.run(Program.writes(np.full(len(hints), d.addresses.hint_base, np.uint64), rows))
    d.run(Program(opcode=[SPEC_READ] * 400, address=np.resize(addresses, 400)), settle=True)
    counters = d.counters()
    assert counters["prefetch_dropped_hint"] > 0 and counters["prefetch_dropped_spec_read"] > 0
    assert (d.run(Program.reads(addresses), settle=True).data == data).all() and not codes(d)


def test_a_foreign_spec_read_fetches_nothing():
    """A page is brought for its owner alone, not even for LD-ID 0."""
    d = endpoint()
    d.open_session(1, WHOLE, OBSERVED, owner=5)
    addresses = page_addresses(d, PAGES, session=1)
    d.run(Program.writes(addresses, random_lines(len(addresses)), ld_id=5), settle=True)
    d.write64("prefetch_enable", 1 << PrefetchSource.SPEC_READ - 1)
    cold = [(q, p) for q, p in PAGES if d.page_word(1, q, p)["state"] == PageState.COLD]
    asked = page_addresses(d, cold[:1], session=1, lines=[0])[:1]
    for ld_id in (0, 4, 13, 1, 7):
        d.run(Program(opcode=[SPEC_READ], address=asked, ld_id=ld_id), settle=True)
        assert d.page_word(1, *cold[0])["state"] == PageState.COLD, ld_id
    counters = d.counters()
    assert counters["prefetch_dropped_spec_read"] == 5
    d.run(Program(opcode=[SPEC_READ], address=asked, ld_id=5), settle=True)
    assert d.counters()["prefetch_issued_spec_read"] == 1 and quiet(d)
    assert d.page_word(1, *cold[0])["state"] != PageState.COLD


# - steps ------------------------------------------------------------------------------------------
def test_the_step_counter_wraps():
    d = endpoint()
    d.write_registers({"low_water": 0, "high_water": 0})
    old = [(0, p) for p in range(6)]
    addresses = page_addresses(d, old)
    data = random_lines(len(addresses))
    d.session_command(0, SessionCommand.ADVANCE, (1 << 24) - 40)
    d.run(Program.writes(addresses, data), settle=True)
    d.session_command(0, SessionCommand.ADVANCE, 38)
    assert d.read_fields("s0_state")["step"] == (1 << 24) - 2
    # Page 0 is young, though its step is a large number and the others' ages are across the wrap.
    d.run(Program.reads(addresses[:1]), settle=True)
    d.push_hints(
        [
            HintLine(kind=HintKind.MASS, session=0, sequence=n, entries=(), advance=True)
            for n in range(4)
        ]
    )
    d.settle()
    assert d.read_fields("s0_state")["step"] == 2
    more = page_addresses(d, [(0, 6), (0, 7), (1, 0)])
    d.run(Program.writes(more, random_lines(len(more), 5)), settle=True)
    states = [d.page_word(0, 0, p)["state"] for p in range(6)]
    assert states[0] == PageState.RESIDENT and states[1:].count(PageState.COLD) >= 2
    assert (d.run(Program.reads(addresses), settle=True).data == data).all()
    assert not codes(d)


def test_dense_reader():
    """Every page in every step, through a quarter of the frames."""
    d = endpoint()
    addresses = page_addresses(d, PAGES)
    data = random_lines(len(addresses))
    d.run(Program.writes(addresses, data))
    for step in range(5):
        d.push_hints(
            [HintLine(kind=HintKind.MASS, session=0, sequence=step, entries=(), advance=True)]
        )
        read = d.run(Program.reads(addresses))
        assert (read.response == DATA).all() and (read.data == data).all()
    d.settle()
    counters = d.counters()
    assert counters["fetches"] >= 5 * (len(PAGES) - UNIT.frames[0]) and counters[
        "reads"
    ] == 5 * len(addresses)
    assert quiet(d) and serves(d)


# - frames -----------------------------------------------------------------------------------------
def pins(queue, pages, sequence, kind=HintKind.PIN):
    return HintLine(kind=kind, session=0, queue=queue, sequence=sequence, entries=tuple(pages))


def test_pins_beyond_the_limit_are_refused():
    d = endpoint()
    d.write_registers({"low_water": 0, "high_water": 0, "reserve": 2})
    first = page_addresses(d, [(0, p) for p in range(6)])
    data = random_lines(len(first))
    d.run(Program.writes(first, data), settle=True)
    d.push_hints([pins(0, range(6), 0)])
    d.run(Program.writes(page_addresses(d, [(1, 0)]), random_lines(8)), settle=True)
    d.push_hints([pins(1, [0], 1)])
    d.settle()
    assert events(d) == [(Event.PIN_REFUSED, 0, 1, 0)]
    assert not d.page_word(0, 1, 0)["pinned"] and all(
        d.page_word(0, 0, p)["pinned"] for p in range(6)
    )
    # All else is served by what the pins leave.
    rest = page_addresses(d, [(q, p) for q in range(1, 4) for p in range(8)])
    others = random_lines(len(rest), 4)
    d.run(Program.writes(rest, others), settle=True)
    assert (d.run(Program.reads(rest), settle=True).data == others).all()
    assert all(d.page_word(0, 0, p)["state"] == PageState.RESIDENT for p in range(6))
    assert (d.run(Program.reads(first)).data == data).all()
    assert quiet(d)


def test_everything_pinned_starves_and_recovers():
    d = endpoint()
    cold = page_addresses(d, [(1, 0)])
    d.run(Program.writes(cold, random_lines(8, 3)), settle=True)
    d.write_registers({"low_water": 0, "high_water": 0, "reserve": 0})
    d.write64("starve_limit", 3000)
    first = page_addresses(d, [(0, p) for p in range(8)])
    data = random_lines(len(first))
    d.run(Program.writes(first, data), settle=True)
    d.push_hints([pins(0, range(8), 0)])  # a cold page is pinned too: once fetched it stays
    assert (d.run(Program.reads(first), settle=True).data == data).all()
    assert (d.run(Program.reads(first), settle=True).data == data).all()
    assert Event.NO_VICTIM in codes(d)  # once, since none has succeeded since
    assert [d.page_word(0, 0, p)["state"] for p in range(8)] == [
        PageState.RESIDENT
    ] * 8 and d.page_word(0, 1, 0)["state"] == PageState.COLD
    new = page_addresses(d, [(2, 2)])
    written = d.run(Program.writes(new, random_lines(8)), settle=True)
    assert (written.response == CMP).all() and (written.latency >= 3000).any()
    read = d.run(Program.reads(cold), settle=True)
    assert (read.response == POISONED).all()
    log = events(d)
    assert [(e, s, p) for e, _, s, p in log if e == Event.STARVED] == [
        (Event.STARVED, 2, 2),
        (Event.STARVED, 1, 0),
    ]
    assert (d.run(Program.reads(new), settle=True).response == POISONED).all()
    # Released, the frames serve again; a lost page comes back with what is written to it.
    d.push_hints([pins(0, range(8), 1, HintKind.RELEASE)])
    d.settle()
    data2 = random_lines(8, 6)
    d.run(Program.writes(new, data2), settle=True)
    assert (d.run(Program.reads(new), settle=True).data == data2).all()
    assert (d.run(Program.reads(first), settle=True).data == data).all() and serves(d)


def test_a_session_begins_with_counters_of_zero():
    """Whoever opens a session reads nothing of what its predecessor did, while another goes on
    counting."""
    d = endpoint()
    d.open_session(1, WHOLE, OBSERVED)
    own, other = page_addresses(d, PAGES), page_addresses(d, PAGES, session=1, lines=[0])

    def counted(session):
        rows = []
        for queue in range(UNIT.queues):
            d.write_registers({f"s{session}_queue": queue})
            rows.append(
                [d.read64(f"s{session}_queue_{name}") for name in ("hits", "misses", "evictions")]
            )
        return np.array(rows)

    d.run(Program.writes(own, random_lines(len(own))), settle=True)
    d.run(Program.writes(other, random_lines(len(other))), settle=True)
    for session in range(2):
        d.session_command(session, SessionCommand.ADVANCE, 1)
    d.run(Program.reads(own), settle=True)
    before, beside = counted(0), counted(1)
    assert (before[:, 1:] > 0).all() and (beside[:, 2] > 0).all()
    d.close_session(0)
    d.settle()
    kept = counted(1)
    d.open_session(0, WHOLE, OBSERVED)
    assert not counted(0).any() and (counted(1) == kept).all()
    d.session_command(1, SessionCommand.ADVANCE, 1)
    d.run(Program.reads(other), settle=True)
    assert (counted(1)[:, 1] > kept[:, 1]).all() and not counted(0).any() and serves(d)


def test_lines_that_were_never_written():
    """They read as zeros, allocate nothing, and show nothing of who had the frame before; through
    the cold tier too."""
    d = endpoint()
    full = page_addresses(d, PAGES)
    assert (
        not d.run(Program.reads(full), settle=True).data.any() and d.read64("pool_used_raw16") == 0
    )
    d.run(Program.writes(full, np.full((len(full), 64), 0xA5, np.uint8)), settle=True)
    d.close_session(0)
    d.open_session(0, WHOLE, OBSERVED)
    assert not d.run(Program.reads(full), settle=True).data.any() and d.counters()["fetches"] == 0
    one = page_addresses(d, PAGES, lines=[2])
    data = random_lines(len(one))
    enable = np.where(np.arange(len(one)) % 2, ALL, ALTERNATING).astype(np.uint64)
    opcode = np.where(np.arange(len(one)) % 2, WRITE, PARTIAL)
    d.run(Program(opcode=opcode, address=one, data=data, byte_enable=enable), settle=True)
    mask = np.where(np.arange(len(one))[:, None] % 2, True, np.arange(64) % 2 == 0)
    expected = {a: row for a, row in zip(one.tolist(), np.where(mask, data, 0), strict=True)}
    read = d.run(Program.reads(full), settle=True)
    assert (read.response == DATA).all() and d.counters()["fetches"] > 0
    assert (read.data == np.array([expected.get(a, np.zeros(64)) for a in full.tolist()])).all()


def test_writes_to_cold_fetching_and_leaving_pages():
    """Reads and writes of one page in one go, in order, whatever state it is in."""
    d = endpoint(
        flash=FlashTiming(latency=700, write_latency=700),
        pressure=Pressure(drs=0.2, ndr=0.2, command=0.2),
        rules=replace(QUICK, in_order=True),
    )
    rng = np.random.default_rng(11)
    addresses = page_addresses(d, PAGES)
    held = random_lines(len(addresses))
    d.run(Program.writes(addresses, held), settle=True)
    d.take_commits()
    count = 3000
    which = rng.integers(0, len(PAGES), count // 6).repeat(6) * 8 + rng.integers(0, 8, count)
    kind = rng.integers(0, 3, count)
    data, enable = random_lines(count, 12), rng.integers(0, 1 << 63, count, np.uint64)
    expected = np.zeros((count, 64), np.uint8)
    for n in range(count):
        if kind[n] == 0:
            expected[n] = held[which[n]]
        else:
            on = (int(enable[n]) if kind[n] == 2 else ALL) >> np.arange(64, dtype=object) & 1
            held[which[n]] = np.where(on == 1, data[n], held[which[n]])
    result = d.run(
        Program(
            opcode=np.array([READ, WRITE, PARTIAL])[kind],
            address=addresses[which],
            data=data,
            data_index=np.where(kind, np.arange(count), -1),
            byte_enable=enable,
            group=np.arange(count) // 60,
        ),
        settle=True,
    )
    assert (result.response == np.where(kind, CMP, DATA)).all()
    assert (result.data[kind == 0] == expected[kind == 0]).all()
    assert (d.run(Program.reads(addresses), settle=True).data == held).all()
    commits = d.take_commits().result
    writes = commits["op.kind"] == Op.WRITE
    for state in (PageState.COLD, PageState.FETCHING, PageState.WRITING_BACK):
        assert (writes & (commits["old.state"] == state)).any(), state


# - sessions and resets under traffic --------------------------------------------------------------
def command_program(d, session, command):
    row = np.zeros(64, np.uint8)
    offset = d.registers[f"s{session}_command"].offset
    row[offset % 64 : offset % 64 + 8] = np.array(
        [d.pack(f"s{session}_command", command=command)], "<u8"
    ).view(np.uint8)
    return offset // 64 * 64 + d.addresses.register_base, 0xFF << offset % 64, row


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.sampled
def test_close_and_reopen_under_traffic(seed):
    d = endpoint(
        seed=seed,
        pressure=Pressure.everywhere(0.1 * seed),
        memory=MemoryTiming(jitter=20),
        rules=replace(QUICK, in_order=True),
    )
    d.open_session(1, WHOLE, OBSERVED)
    rng = np.random.default_rng(seed)
    mine, other = page_addresses(d, PAGES), page_addresses(d, PAGES[:12], session=1)
    data, kept = random_lines(len(mine), seed), random_lines(len(other), 9)
    d.run(Program.writes(other, kept))
    d.run(Program.writes(mine, data))
    # Reads of both sessions, with CLOSE in their midst and OPEN right behind it, which comes too
    # early.
    count = 600
    of_mine = rng.random(count) < 0.6
    index = np.where(of_mine, rng.integers(0, len(mine), count), rng.integers(0, len(other), count))
    address = np.where(of_mine, mine[index % len(mine)], other[index % len(other)])
    opcode = np.full(count, READ)
    enable, rows, data_index = np.full(count, ALL, np.uint64), [], np.full(count, -1)
    for at, command in ((count // 3, SessionCommand.CLOSE), (count // 3 + 1, SessionCommand.OPEN)):
        address[at], enable[at], row = command_program(d, 0, command)
        opcode[at], data_index[at], of_mine[at] = PARTIAL, len(rows), False
        rows.append(row)
    result = d.run(
        Program(
            opcode=opcode,
            address=address,
            byte_enable=enable,
            data=np.array(rows),
            data_index=data_index,
        )
    )
    assert result.missing == 0
    reads, theirs = opcode == READ, ~of_mine & (opcode == READ)
    assert (result.response[theirs] == DATA).all() and (
        result.data[theirs] == kept[index[theirs]]
    ).all()
    answered = of_mine & (result.response == DATA)
    assert (result.data[answered] == data[index[answered]]).all() and (
        result.response[of_mine & ~answered] == NXM
    ).all()
    close = count // 3
    assert (
        result.response[of_mine & (result.accept_order < result.accept_order[close])] == DATA
    ).all()
    after = of_mine & (result.accept_cycle > result.response_cycle[close])
    assert (result.response[after] == NXM).all() and after.any() and (reads.sum() == count - 2)
    state = d._idle_session(0)
    assert not state["open"]
    assert set(codes(d)) <= {Event.CLOSED_SESSION, Event.OPEN_REFUSED, Event.NO_VICTIM}
    assert d.counters()["refused"] == (result.response == NXM).sum()
    assert state["refused"]  # the OPEN that came while the session was closing
    d.open_session(0, WHOLE, OBSERVED)
    fresh = d.run(Program.reads(mine), settle=True)
    assert (fresh.response == DATA).all() and not fresh.data.any()
    again = d.run(Program.reads(other), settle=True)
    assert (again.data == kept).all() and serves(d)


def test_open_of_an_open_session_and_bad_descriptors():
    d = endpoint()
    with pytest.raises(DriverError, match="refused"):
        d.session_command(0, SessionCommand.OPEN)
    assert codes(d) == [Event.OPEN_REFUSED]
    for wrong in (
        {"kv_heads": 5},
        {"layers": 0},
        {"used_lines": 5},
        {"used_pages": 9},
        {"layers": 3, "kv_heads": 2},
    ):
        with pytest.raises(DriverError, match="did not open"):
            d.open_session(1, Descriptor(**{"layers": 1, "kv_heads": 1} | wrong))
        assert codes(d) == [Event.OPEN_REFUSED], wrong
    small_session(d)
    assert d.read_fields("s1_state")["open"] == 1 and serves(d)


def test_apply_keeps_what_the_session_was_opened_with():
    """New formats or another shape in the registers of an open session wait for its next OPEN;
    policy parameters are taken."""
    d = endpoint()
    d.open_session(
        1, Descriptor(layers=1, kv_heads=UNIT.queues, formats=((1023, Format.INT4, Format.INT4),))
    )
    addresses = page_addresses(d, [(q, 0) for q in range(UNIT.queues)], session=1)
    d.run(Program.writes(addresses, random_lines(len(addresses))), settle=True)
    stored, raw = d.run(Program.reads(addresses)).data, d.read64("pool_used_raw16")
    formats = {f"format_{half}_{r}": Format.RAW16 for half in "kv" for r in range(4)}
    d.write_registers(
        {
            "s1_formats": d.pack("s1_formats", **formats),
            "s1_shape": d.pack("s1_shape", used_lines=1, used_pages=1),
            "s1_policy": d.pack("s1_policy", alpha=200),
        }
    )
    d.session_command(1, SessionCommand.APPLY_ALL)
    more = page_addresses(d, [(q, 1) for q in range(UNIT.queues)], session=1)
    d.run(Program.writes(more, random_lines(len(more), 1)), settle=True)
    assert (d.run(Program.reads(addresses)).data == stored).all()
    assert (d.run(Program.reads(more)).response == DATA).all() and d.read64(
        "pool_used_raw16"
    ) == raw
    assert quiet(d) and serves(d)


@pytest.mark.parametrize("cycles", [60, 333, 2500])
def test_reset_under_traffic(cycles):
    d = endpoint(pressure=Pressure.everywhere(0.1))
    addresses = page_addresses(d, PAGES)
    data = random_lines(len(addresses))
    d.run(Program.writes(addresses, data), settle=True)
    opcode = np.resize([READ, READ, WRITE, PARTIAL], len(addresses))
    cut = d.run(
        Program(opcode=opcode, address=addresses, data=data[opcode != READ]),
        max_cycles=cycles,
        partial=True,
    )
    assert cut.missing > 0
    d.reset()
    assert (d.run(Program.reads(addresses)).response == NXM).all() and d.counters()["reads"] == 0
    d.open_session(0, WHOLE, OBSERVED)
    read = d.run(Program.reads(addresses), settle=True)
    assert (read.response == DATA).all() and not read.data.any() and serves(d)


# - the cold tier ----------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["failed", "never"])
def test_a_fetch_that_fails_for_good(kind):
    d = endpoint()
    d.write64("cold_timeout", 4000)
    d.write64("cold_retries", 1)
    addresses = page_addresses(d, PAGES)
    data = random_lines(len(addresses))
    d.run(Program.writes(addresses, data), settle=True)
    queue, page = next((q, p) for q, p in PAGES if d.page_word(0, q, p)["state"] == PageState.COLD)
    reads = d.counts()["flash_reads"]
    d.configure(
        flash=FlashTiming(
            latency=2000,
            write_latency=1500,
            failures=[Failure(index=reads + n, kind=kind) for n in range(2)],
        )
    )
    lost = page_addresses(d, [(queue, page)])
    read = d.run(Program.reads(lost), settle=True)
    assert (read.response == POISONED).all() and not read.data.any() and read.missing == 0
    assert events(d) == [(Event.FETCH_FAILED, 0, queue, page)]
    counts = d.counts()
    assert counts["flash_failed"] + counts["flash_never"] == 2
    # What is written is there again; every other page is unharmed.
    d.run(Program.writes(lost[:1], data[:1]), settle=True)
    read = d.run(Program.reads(lost), settle=True)
    assert (read.data[0] == data[0]).all() and read.response.tolist() == [DATA] + [POISONED] * 7
    others = np.setdiff1d(np.arange(len(addresses)), np.flatnonzero(np.isin(addresses, lost)))
    read = d.run(Program.reads(addresses[others]), settle=True)
    assert (read.response == DATA).all() and (read.data == data[others]).all()


@pytest.mark.parametrize("kind", ["failed", "never"])
def test_a_write_back_that_fails_for_good(kind):
    d = endpoint(
        flash=FlashTiming(
            latency=2000,
            write_latency=1500,
            failures=[Failure(index=n, op=ColdOp.WRITE, kind=kind) for n in range(12)],
        )
    )
    d.write64("cold_timeout", 4000)
    d.write64("cold_retries", 0)
    addresses = page_addresses(d, PAGES)
    data = random_lines(len(addresses))
    assert (d.run(Program.writes(addresses, data), settle=True).response == CMP).all()
    log = codes(d)
    assert log.count(Event.WRITE_BACK_FAILED) == 12 and set(log) <= {
        Event.WRITE_BACK_FAILED,
        Event.NO_VICTIM,
    }
    read = d.run(Program.reads(addresses), settle=True)
    assert (read.response == DATA).all() and (read.data == data).all()
    counters = d.counters()
    assert counters["write_backs"] == d.counts()["flash_writes"] - 12 and serves(d)


def test_a_tier_that_is_dead():
    """No command is ever answered: what is resident is served, the rest is poison, and nothing
    hangs."""
    d = endpoint()
    addresses = page_addresses(d, PAGES)
    data = random_lines(len(addresses))
    d.run(Program.writes(addresses, data), settle=True)
    d.write64("cold_timeout", 2000)
    d.write64("cold_retries", 0)
    d.write64("starve_limit", 20000)
    counts = d.counts()
    never = [
        Failure(index=counts[f"flash_{op.name.lower()}s"] + n, op=op, kind="never")
        for op in (ColdOp.READ, ColdOp.WRITE)
        for n in range(200)
    ]
    d.configure(flash=FlashTiming(latency=2000, write_latency=1500, failures=never))
    resident = [pair for pair in PAGES if d.page_word(0, *pair)["state"] == PageState.RESIDENT]
    here = np.isin(addresses, page_addresses(d, resident))
    read = d.run(Program.reads(addresses[here]), settle=True)
    assert (read.data == data[here]).all()
    read = d.run(Program.reads(addresses[~here]), settle=True)
    assert read.missing == 0 and (read.response == POISONED).all()
    assert Event.FETCH_FAILED in codes(d)

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The data path against a plain model of stored lines, and its rates, latencies and memory traffic
(spec §8, §10)."""

import dataclasses
import itertools

import numpy as np
import pytest

from kelp_hw.codec.dequantise import Dequantiser
from kelp_hw.datapath.datapath import DataPath
from kelp_hw.datapath.slot_table import SlotTable
from kelp_hw.datapath.write_out import WriteOut
from kelp_hw.lib.axi import AxiSignature
from kelp_spec.config import named
from kelp_spec.formats import ELEMENTS, LINE_BYTES, Format, HostType
from kelp_spec.geometry import StoredPage
from kelp_spec.metadata import Answer
from kelp_verif.datapath.datapath_bench import (
    ROUGH,
    Flips,
    Memory,
    Traffic,
    code_words,
    random_lines,
    run,
)
from kelp_verif.harness.seeds import reseeded

#: Eight codec lanes: a line takes the codec four cycles, and the model a third of the time.
NARROW = named("unit").with_(
    name="unit_narrow",
    half_lines=16,
    frames=(256, 8, 8, 8),
    line_slots=32,
    scale_slots=32,
    codec_lanes=8,
)
LARGE = named("64x64")  # 32 lanes; 128 line slots; pages of 128 host lines
UNIT = named("unit")  # 32 lanes; 16 line slots; pages of 8 host lines
ULX3S = named("ulx3s")  # eight lanes, and no check bits
#: As `ulx3s` has few slots, with line-wide memories that a write makes undefined for its cycle.
BLOCKS = ULX3S.with_(name="ulx3s_blocks", wide_blocks=True)


def each(*configs):
    """A test for each configuration; of all but `NARROW` in `make slow`: each is a model."""
    return pytest.mark.parametrize(
        "config",
        [
            pytest.param(c, id=c.name, marks=[] if c is NARROW else pytest.mark.slow)
            for c in configs
        ],
    )


everywhere = each(NARROW, UNIT, ULX3S, BLOCKS)
rated = each(NARROW, LARGE)
QUICK = Memory(read_latency=6, write_latency=6)
STALLED = dataclasses.replace(ROUGH, stall=300)
TURN = 15 + 1  # cycles in which a due line is taken, whatever the reads do (`LineBuffer`)


@pytest.mark.parametrize("bad", [{"read_latency": -1}, {"r_valid": 257}, {"stall": 1 << 31}])
def test_a_memory_is_no_slower_than_time_and_no_surer_than_sure(bad):
    ((name, value),) = bad.items()
    with pytest.raises(ValueError, match=f"{name} = {value} is refused; legal: 0 … "):
        Memory(**bad)


def lines_of(page):
    return [(page, kv, line) for kv in range(2) for line in range(page.stored.used_lines)]


def scattered(t, formats, count, host_types=(HostType.FP16,)):
    """Pages of any of `formats` in frames all over memory, which differ from the first one in one
    bit where there are such, so that a tag with a wrong bit is another page's."""
    config, rng = t.config, t.rng
    most = dict(zip(config.pool_first_frame, config.frame_lines, strict=True))
    fitting = {}
    for frame in range(config.total_frames):
        room = most[max(first for first in most if first <= frame)]
        pairs = [
            pair
            for pair in itertools.product(formats, repeat=2)
            if StoredPage(*pair, config.half_lines).lines <= room
        ]
        if pairs:
            fitting[frame] = pairs
    first, *others = (int(frame) for frame in rng.permutation(list(fitting)))
    others.sort(key=lambda frame: (frame ^ first).bit_count() > 1)
    return [
        t.page(
            frame,
            *fitting[frame][rng.integers(0, len(fitting[frame]))],
            host_type=host_types[rng.integers(0, len(host_types))],
        )
        for frame in (first, *others[: count - 1])
    ]


def mixture(config, seed, formats, *, count=2500, pages=9, hot=8):
    """Everything the frame stage may send, on few lines of each page, anywhere in it, so that each
    op meets the ones before it."""
    t = Traffic(config, reseeded(seed))
    rng = t.rng
    frames = scattered(t, formats, pages, list(HostType))
    for page in frames:
        if rng.random() < 0.7:
            t.load(page)
    starts = rng.integers(0, max(1, config.half_lines - hot + 1), pages)
    for _ in range(count):
        which, kv = rng.integers(0, pages), int(rng.integers(0, 2))
        page = frames[which]
        line = int(starts[which] + rng.integers(0, min(hot, page.stored.used_lines)))
        choice = rng.random()
        if choice < 0.002:
            t.wait_idle()
            for each in frames:
                t.check_memory(each)
        elif choice < 0.014:
            t.flush(page, int(rng.integers(0, 16)))
            # else the eviction is cancelled: ops on the frame follow at once
            if rng.random() < 0.5:
                t.wait_flushed()
                t.check_memory(page)
                if rng.random() < 0.6:  # a new owner, whose page comes from flash or starts empty
                    t.forget(page)
                    if rng.random() < 0.7:
                        t.load(page)
        elif choice < 0.04:
            t.answer(
                Answer(int(rng.integers(Answer.ZEROS, Answer.CMP))), poison=int(rng.integers(0, 2))
            )
        elif choice < 0.06:
            t.answer(Answer.CMP, has_write=True)
        elif choice < 0.1:
            poison = bool(rng.integers(0, 2))
            t.read_nothing(
                page, kv, line, poison=poison, fresh=not poison or bool(rng.integers(0, 2))
            )
        elif choice < 0.2:
            t.write_partial(
                page,
                kv,
                line,
                random_lines(rng, 1)[0],
                int(rng.integers(0, 1 << 64, dtype=np.uint64)),
            )
        elif choice < 0.6 or (page.frame, kv, line) not in t.stored:
            t.write(page, kv, line, random_lines(rng, 1)[0])
        else:
            t.read(page, kv, line)
    t.wait_answered()
    for page in frames:
        t.flush(page, 1)
    t.wait_flushed()
    for page in frames:
        t.check_memory(page)
    return t


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("memory", [QUICK, ROUGH, STALLED], ids=["quick", "rough", "stalled"])
@everywhere
@pytest.mark.sampled
def test_mixture_of_every_format(config, seed, memory):
    figures = run(mixture(config, seed, list(Format)), memory).figures
    # While no op comes for long, writes take all slots that there are.
    assert not memory.stall or figures["most_slots"] == config.write_slots


@pytest.mark.parametrize("fmt", Format)
@everywhere
def test_mixture_on_two_hot_lines(config, fmt):
    run(mixture(config, int(fmt), [fmt], pages=2, hot=1), ROUGH)


@everywhere
def test_every_slot_is_reused_behind_slow_memory(config):
    """Long latencies and random lines of all pages: the buffers run full, and every allocation
    waits for a write-back."""
    run(
        mixture(config, 3, list(Format), pages=8, hot=99),
        dataclasses.replace(ROUGH, read_latency=200, write_latency=200, write_jitter=200),
    )


@rated
def test_many_pages_in_the_rough(config):
    run(mixture(config, 5, list(Format), pages=40, hot=99), ROUGH)


@everywhere
def test_flush_then_another_master_then_read(config):
    t = Traffic(config, 1)
    page = t.page(3, Format.INT8, Format.INT4)
    for _ in range(8):
        for _, kv, line in lines_of(page):
            t.write(page, kv, line, random_lines(t.rng, 1)[0])
        t.flush(page, 7)
        t.wait_flushed()
        t.check_memory(page)
        t.forget(page)
        t.load(page)
        for _, kv, line in lines_of(page):
            t.read(page, kv, line)
        t.flush(page, 8)  # clean now
        t.wait_flushed()
        t.load(page)
        for _, kv, line in lines_of(page):
            t.read(page, kv, line)
    run(t, ROUGH)


@pytest.mark.parametrize("formats", [(Format.FP8_E4M3, Format.INT4), (Format.RAW16,)])
@everywhere
def test_cancelled_flushes_lose_nothing(config, formats):
    """Whole lines of raw16, in all slots, are on their way to memory by the time that the flush
    before them is done."""
    t = Traffic(config, 2)
    page = t.page(0, *formats)
    for turn in range(60):
        for _, kv, line in lines_of(page):
            if t.rng.random() < 0.5:
                t.write(page, kv, line, random_lines(t.rng, 1)[0])
            elif (page.frame, kv, line) in t.stored:
                t.read(page, kv, line)
        t.flush(page, turn % 16)
    t.wait_flushed()
    t.check_memory(page)
    run(t, ROUGH)


@everywhere
def test_a_flush_forgets_its_own_frame_alone(config):
    """What other frames left in slots is there afterwards, in each slot, though the frames differ
    in one bit: it is not read again."""
    t = Traffic(config, 1)
    count = min(config.line_slots, config.scale_slots, config.frames[0])
    pages = [t.page(n, Format.INT8) for n in range(count)]
    for page in pages:
        t.load(page)
    others = [1 << n for n in range(config.frame_bits) if count <= 1 << n < sum(config.frames)]
    for flushed in (None, *others):
        if flushed is not None:
            t.flush(t.page(flushed, Format.INT4), 0)
            t.wait_flushed()
        for page in pages:
            t.read(page, 0, 0)
        t.wait_answered()
    assert others and run(t, QUICK).figures["reads"] == 2 * count


@everywhere
def test_a_flush_forgets_its_own_frame_in_each_slot(config):
    """What a frame left in its slots is read again after its flush: often enough in each slot with
    each bit of the frame's number 0 and 1, before the frame whose number differs in that bit."""
    t = Traffic(config, 1)
    count, passes = min(config.line_slots, config.scale_slots), 8
    for end in (count, config.frames[0], sum(config.frames)):
        pages = [t.page(end - 1 - n, Format.INT8, used_lines=2) for n in range(count)]
        for page in pages:
            t.load(page)
        for _ in range(passes):
            t.rng.shuffle(pages)
            for page in pages:
                t.read(page, 0, 0)
            t.wait_answered()
            t.rng.shuffle(pages)
            for again in (True, False):
                for page in pages:
                    t.flush(page, 0)
                    t.wait_flushed()
                    if again:
                        t.read(page, 0, 0)
                t.wait_answered()
    # Twice in each pass, a line and its scale.
    assert run(t, QUICK).figures["reads"] == 3 * passes * 2 * 2 * count


@rated
def test_flushes_overlap_with_traffic_of_other_frames(config):
    """The head does not wait for a flush: reads of other frames behind five flushes are answered
    before the first can be done."""
    t = Traffic(config, 1)
    dirty = [t.page(n, Format.RAW16) for n in range(5)]
    clean = t.page(9, Format.RAW16)
    t.load(clean)
    for page in dirty:
        t.write(page, 0, 0, random_lines(t.rng, 1)[0])
        t.flush(page, page.frame)
    for line in range(16):
        t.read(clean, 0, line)
    t.wait_flushed()
    for page in dirty:
        t.check_memory(page)
    result = run(t, Memory(read_latency=20, write_latency=400))
    assert result.answered[-1] < result.flushed[0]


@pytest.mark.parametrize("fmt", [Format.FP8_E5M2, Format.INT8])
@rated
def test_flush_is_done_under_reads_of_stored_lines(config, fmt):
    """Reads of lines just written take the store's read port in every cycle; write-back must come
    through all the same, long before they end: each line gets its turn."""
    t = Traffic(config, 1)
    hot, cold = t.page(0, fmt), t.page(1, fmt)
    for page in (hot, cold):
        for line in range(0, 16, 2):  # halves of DRAM lines, which wait for the other half
            t.write(page, 0, line, random_lines(t.rng, 1)[0])
    t.flush(cold, 1)
    for n in range(3000):
        t.read(hot, 0, n % 8 * 2)
    t.check_memory(cold)
    result = run(t)
    # Lines of both pages and a line of scales each, one after another; the last one's response.
    lines, memory = 8 + 8 + 2, Memory()
    most = lines * TURN + memory.read_latency + memory.write_latency
    assert result.flushed[0] - result.accepted[0] <= most


def test_scales_are_written_in_turn_with_lines():
    """While lines of payload are due without end, and memory takes one in twelve cycles."""
    t = Traffic(NARROW, 1)
    hot, cold = (t.page(n, fmt) for n, fmt in enumerate((Format.RAW16, Format.INT8)))
    for n in range(600):
        if n == 100:
            t.write(cold, 0, 0, random_lines(t.rng, 1)[0])
            t.flush(cold, 1)
        t.write(hot, *lines_of(hot)[n % 32][1:], random_lines(t.rng, 1)[0])
    each = 256 / 20
    result = run(t, dataclasses.replace(QUICK, aw_ready=20))
    # Every slot may be due before, and the queue be full.
    most = (NARROW.line_slots + WriteOut.QUEUED + 2) * each
    assert result.flushed[0] - result.accepted[101] < 1.5 * most


@everywhere
def test_refused_writes_give_their_slots_back(config):
    t = Traffic(config, 1)
    page = t.page(0, Format.INT8)
    for n in range(4 * t.config.write_slots):
        t.answer(Answer.CMP, has_write=True)
        if n % 3 == 0:
            t.write_partial(page, 0, n % 4, random_lines(t.rng, 1)[0], 0xFF << n % 32)
    run(t, ROUGH)


@everywhere
def test_every_write_slot_is_handed_out(config):
    """Also where some come back before the last one has been given for the first time."""
    t = Traffic(config, 1)
    page = t.page(0, Format.RAW16)
    for n in range(4 * config.write_slots):
        if n < 2 * config.write_slots:
            t.wait_answered()
        t.write(page, 0, n % 4, random_lines(t.rng, 1)[0])
    slow = dataclasses.replace(QUICK, i_valid=8)
    assert run(t, slow).figures["most_slots"] == config.write_slots


@everywhere
def test_dirty_lines_reach_memory_when_nothing_else_is_to_do(config):
    """`idle` comes without a flush, soon, and means that memory has everything."""
    t = Traffic(config, 1)
    pages = [t.page(n, Format.INT4) for n in range(4)]
    for page in pages:
        t.write(page, 0, 1, random_lines(t.rng, 1)[0])
    t.wait_idle()
    for page in pages:
        t.check_memory(page)
    # A line and a line of scales of each page, were they filled, written and confirmed one by one.
    each = QUICK.read_latency + TURN + QUICK.write_latency
    assert run(t, QUICK).figures["cycles"] < 2 * len(pages) * each


@everywhere
def test_idle_waits_for_flushes(config):
    t = Traffic(config, 1)
    pages = [t.page(n, Format.INT4) for n in range(4)]
    for turn in range(60):
        page = pages[turn % 4]
        if t.rng.random() < 0.5:
            t.write(page, 0, 1, random_lines(t.rng, 1)[0])
        t.flush(page, turn % 16)
        t.wait_idle()
        t.check_memory(page)
    run(t, dataclasses.replace(QUICK, flushed_ready=40))


@pytest.mark.parametrize("before", [0, 8, 16, 24])
@everywhere
def test_dirty_lines_grow_old_under_other_traffic(config, before):
    """Whichever slots they are in: of lines of payload and of scales one each, behind others."""
    t = Traffic(config, 1)
    other, *pages = (t.page(n, Format.INT4 if n else Format.RAW16) for n in range(7 + before))
    alone, filling = pages[:6], pages[6:]
    for page in (other, *filling):
        t.load(page)
    for page in filling:
        t.read(page, 0, 0)
    for page in alone:
        t.write(page, 0, 1, random_lines(t.rng, 1)[0])
    for n in range(1500):
        t.read(other, 0, n % 4)
    for page in alone:
        t.check_memory(page)
    assert run(t, QUICK).figures["writes"] == 2 * len(alone)


def hits(t, page, count=16):
    """Reads of a line that is there: time passes, and nothing is written for want of ops."""
    for _ in range(count):
        t.read(page, 0, 0)
    t.wait_answered()


@pytest.mark.parametrize("flips", [None, Flips(1, period=1)], ids=["sound", "flipped"])
@pytest.mark.sampled
def test_lines_are_written_as_soon_as_they_are_complete(flips):
    """In whatever slot: nothing else is to be done with them. Flipped bits do not reach memory."""
    t = Traffic(NARROW, 1)
    there, *pages = (t.page(n, Format.INT4 if n else Format.RAW16) for n in range(40))
    t.load(there)
    for page in pages:
        for _, kv, line in lines_of(page):
            t.write(page, kv, line, random_lines(t.rng, 1)[0])
        hits(t, there)
        t.check_memory(page)
    run(t, QUICK, flips=flips)


def test_lines_are_written_before_their_slots_are_needed():
    """They are not complete, and in whatever slots; as many reads come behind each that its own
    will be next but for half of them."""
    t = Traffic(NARROW, 1)
    most = NARROW.line_slots // 2 + 1
    there, *pages = (t.page(n, Format.INT8 if n else Format.RAW16) for n in range(80))
    others, alone = itertools.cycle(pages[:40]), pages[40:]
    for page in (there, *pages[:40]):
        t.load(page)
    for page in alone:
        t.write(page, 0, 1, random_lines(t.rng, 1)[0])
        for other in itertools.islice(others, most):
            t.read(other, 0, 0)
        hits(t, there)
        t.check_memory(page)
    run(t, QUICK)


def test_lines_are_written_once_where_writes_follow_each_other():
    """In whatever slots: of a line of payload, of scales those of a few lines."""
    t = Traffic(NARROW, 1)
    pages = [t.page(n, Format.INT8) for n in range(40)]
    for page in pages:
        for line in range(4):
            t.write(page, 0, line, random_lines(t.rng, 1)[0])
            t.pause(16)
    t.wait_idle()
    for page in pages:
        t.check_memory(page)
    assert run(t, QUICK).figures["writes"] == len(pages) * (2 + 1)


@pytest.mark.parametrize("fmt", [Format.RAW16, Format.FP8_E4M3])
@everywhere
def test_lines_that_are_stored_whole_are_not_read(config, fmt):
    """In whatever slots: ops behind do not wait for what those ahead store, at once or to most of
    the slots before the first of them is read."""
    t = Traffic(config, 1)
    parts = 2 if fmt is Format.FP8_E4M3 else 1
    whole = [
        [(page, kv, line) for line in range(first, first + parts)]
        for page in (t.page(n, fmt) for n in range(8))
        for kv in range(2)
        for first in range(0, config.half_lines, parts)
    ]
    for together in (1, config.line_slots * 3 // 4):
        for start in range(0, len(whole), together):
            ahead = list(itertools.chain.from_iterable(whole[start : start + together]))
            for where in ahead:
                t.write(*where, random_lines(t.rng, 1)[0])
            for where in ahead:
                t.read(*where)
    assert run(t, QUICK).figures["reads"] == 0


@everywhere
def test_an_op_waits_for_the_fills_of_its_own_slots(config):
    """As many are under way as there are slots, and memory answers in any order: of each two slots
    the other one's fill is often there first, and is no answer."""
    t = Traffic(config, 1)
    slots = min(config.line_slots, config.scale_slots)
    # An INT8 page fits the frames of the pools raw16 and int8, whatever the others'.
    frames = [config.pool_first_frame[p] + n for p in (0, 2) for n in range(config.frames[p])]
    pages = [t.page(n, Format.INT8) for n in frames[: 2 * slots]]
    assert len(pages) == 2 * slots
    for page in pages:
        t.load(page)
    for _ in range(12):
        t.rng.shuffle(pages)
        for page in pages:
            t.read(page, 0, 0)
    run(t, Memory(read_latency=5, read_jitter=400, shuffle=True))


@pytest.mark.parametrize("fmt", [Format.RAW16, Format.INT8])
@everywhere
def test_partial_writes_to_lines_never_written(config, fmt):
    """What they leave out is zero, whatever was in slots and write slots before."""
    t = Traffic(config, 1)
    *pages, there = (t.page(n, fmt) for n in range(5))
    t.load(there)
    for _ in range(12):
        for page in pages:
            for _, kv, line in lines_of(page)[:16]:
                if t.rng.random() < 0.3:
                    t.read(there, kv, line)
                enable = int(t.rng.integers(0, 1 << 64, dtype=np.uint64))
                t.write_partial(page, kv, line, random_lines(t.rng, 1)[0], enable)
            for _, kv, line in lines_of(page)[:16]:
                t.read(page, kv, line)
            t.flush(page, 3)
            t.forget(page)
    run(t, QUICK)


@everywhere
def test_line_read_with_an_error_is_poison(config):
    t = Traffic(config, 1)
    page = t.page(0, Format.RAW16)
    t.load(page)
    for _, kv, line in lines_of(page):
        t.read(page, kv, line, error=(page.base + page.stored.place(kv, line).offset) % 3 == 0)
    run(t, dataclasses.replace(QUICK, error_every=3))


# - cycles -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", Format)
@rated
def test_latency(config, fmt):
    """AR at most 3 cycles after the op; the answer 2 cycles and the dequantiser's after R (spec
    §10: 20 cycles in all, with 32 lanes; with eight a line stays there three cycles longer)."""
    t = Traffic(config, 1)
    page = t.page(0, fmt)
    t.load(page)
    t.read(page, 0, 5)
    result = run(t)
    assert result.asked[0] - result.accepted[0] == 3
    codec = Dequantiser(meta_shape=0, lanes=config.codec_lanes).LATENCY
    assert result.answered[0] - result.returned[-1] <= 2 + codec


def ordered(pages, order, count, rng):
    """`count` lines: of 16 streams in turn, 1 or 8 lines a time (page-sequential), or of all pages
    in random order."""
    if order == "random":
        lines = [line for page in pages for line in lines_of(page)]
        return [lines[n] for n in rng.integers(0, len(lines), count)]
    chunk = {"by line": 1, "by eight": 8}[order]
    streams = [[line for page in pages[n::16] for line in lines_of(page)] for n in range(16)]
    return [
        streams[s][n]
        for base in range(0, len(streams[0]), chunk)
        for s in range(16)
        for n in range(base, base + chunk)
    ][:count]


def paced(config, fmt, order, what):
    """Of memory at 64 cycles, where the configuration has as many line slots."""
    t = Traffic(config, 1)
    count = 4096 if config is LARGE else 1024
    pages = [t.page(n, fmt) for n in range(256 if order == "random" else 32)]
    if what != "write":
        for page in pages:
            t.load(page)
    data = random_lines(t.rng, 64)
    stored = t.encoded(pages[0], 0, data)
    for n, (page, kv, line) in enumerate(ordered(pages, order, count, t.rng)):
        writes = what == "write" or (
            what == "mixed" and (t.rng.random() < 0.5 if order == "random" else page.frame % 2)
        )
        if writes:
            t.write(page, kv, line, data[n % 64], stored[n % 64])
        else:
            t.read(page, kv, line)
    return run(t, Memory() if config is LARGE else QUICK)


@pytest.mark.parametrize("what", ["read", "write", "mixed"])
@pytest.mark.parametrize("order", ["by line", "by eight", "random"])
@pytest.mark.parametrize("fmt", [Format.RAW16, Format.FP8_E5M2, Format.INT8, Format.INT4])
@rated
@pytest.mark.sampled
def test_rate(config, fmt, order, what):
    """A line a cycle, or in as many cycles as the codec takes. Random lines with scales need two
    DRAM lines each."""
    most = config.codec_lanes / ELEMENTS
    lines = 2 if order == "random" and fmt.scale_bytes else 1
    rate = paced(config, fmt, order, what).rate
    assert min(0.98 * most, 0.48 if lines == 2 else 0.98) <= rate <= most


@pytest.mark.parametrize("order", ["by line", "by eight"])
@pytest.mark.parametrize(
    ("fmt", "limit"), [(Format.FP8_E4M3, 0.53), (Format.INT8, 0.53), (Format.INT4, 0.30)]
)
@rated
def test_page_sequential_reads_share_dram_lines(config, fmt, limit, order):
    """Of a short page each DRAM line is read once, the one of its scales among them."""
    if config is not LARGE:
        limit = Traffic(config, 1).page(0, fmt).stored.lines / config.page_lines
    result = paced(config, fmt, order, "read")
    assert result.figures["reads"] / len(result.accepted) <= limit


@pytest.mark.parametrize(
    ("fmt", "limit", "slow_limit"), [(Format.INT8, 0.6, 0.7), (Format.INT4, 0.35, 0.45)]
)
@rated
def test_page_sequential_writes_are_combined(config, fmt, limit, slow_limit):
    """At a quarter of the pace some are written before their neighbours come."""
    if config is LARGE:
        result = paced(config, fmt, "by line", "write")
    else:
        result, limit = paced(config, fmt, "by eight", "write"), slow_limit
    assert result.figures["writes"] / len(result.accepted) <= limit


@rated
def test_as_many_reads_outstanding_as_line_slots(config):
    """128 where it is `LARGE`."""
    t = Traffic(config, 1)
    pages = [t.page(n, Format.RAW16) for n in range(512 // config.half_lines)]
    for page in pages:
        t.load(page)
    for page, kv, line in ordered(pages, "random", 1024, t.rng):
        t.read(page, kv, line)
    assert run(t, Memory(read_latency=400)).figures["most_reads"] >= config.line_slots


@pytest.mark.parametrize(
    "call",
    [
        lambda: DataPath(config="unit"),
        lambda: AxiSignature(address_bits=5, id_bits=4),
        lambda: AxiSignature(address_bits=32, id_bits=0),
        lambda: SlotTable(config=UNIT, slots=12, lead=3),
        lambda: SlotTable(config=UNIT, slots=16, lead=16),
    ],
)
def test_nonsense_is_refused(call):
    with pytest.raises((TypeError, ValueError), match="is refused|must be"):
        call()


def erring(config, seed, formats, *, reads, writes, pages=5, hot=99, count=1500):
    """Everything at random while memory errs; then, when it is well again, every line is rewritten
    and is as it should be, also in memory."""
    t = Traffic(config, reseeded(seed))
    rng = t.rng
    frames = scattered(t, formats, pages)
    for page in frames:
        t.load(page)
    t.errors(reads, writes)
    for _ in range(count):
        page, kv = frames[rng.integers(0, pages)], int(rng.integers(0, 2))
        line = int(rng.integers(0, min(hot, page.stored.used_lines)))
        choice = rng.random()
        if choice < 0.02:
            t.flush(page, int(rng.integers(0, 16)))
            if rng.random() < 0.5:  # a new owner, whose page comes from flash
                t.wait_flushed()
                t.forget(page)
                t.load(page)
        elif choice < 0.15:
            enable = int(rng.integers(0, 1 << 64, dtype=np.uint64))
            t.write_partial(page, kv, line, random_lines(rng, 1)[0], enable)
        elif choice < 0.5:
            t.write(page, kv, line, random_lines(rng, 1)[0])
        else:
            t.read(page, kv, line)
    t.wait_idle()
    t.errors(0, 0)
    everywhere = list(itertools.chain.from_iterable(map(lines_of, frames)))
    for where in everywhere:
        t.read(*where)
    for where in everywhere:
        t.write(*where, random_lines(rng, 1)[0])
    for where in everywhere:
        t.read(*where)
    for page in frames:
        t.flush(page, 1)
    t.wait_flushed()
    for page in frames:
        t.check_memory(page)
    return t


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("chances", [(20, 20), (0, 100), (100, 0), (256, 256)])
@everywhere
@pytest.mark.sampled
def test_nothing_is_silently_wrong_while_memory_errs(config, seed, chances):
    """Errors of reads and of writes, so many of 256, under every manner of memory."""
    reads, writes = chances
    # Of few pages most lines are there when they are wanted, of many hardly any.
    pages = (5, 12, 12)[seed]
    traffic = erring(config, seed, list(Format), reads=reads, writes=writes, pages=pages)
    found = run(traffic, (QUICK, ROUGH)[seed % 2])
    assert found.figures["reports"] > 20
    table, alone = found.poisoned
    assert table or not writes
    assert alone or not reads


@pytest.mark.parametrize("fmt", Format)
@everywhere
def test_errors_on_two_hot_lines(config, fmt):
    run(erring(config, int(fmt), [fmt], reads=30, writes=60, pages=2, hot=1), ROUGH)


@pytest.mark.parametrize("fmt", [Format.RAW16, Format.INT8])
def test_an_error_in_each_slot(fmt):
    """Of a read, of a line that a partial write is merged into, of a write. What can be asked for
    again is, what is lost is poison, and the line before it, in another slot, is neither."""
    t = Traffic(NARROW, 1)
    before, *pages = (t.page(n, fmt) for n in range(1 + 3 * NARROW.line_slots))
    for page in (before, *pages):
        t.load(page)
    t.read(before, 0, 1)
    t.wait_answered()
    for n, page in enumerate(pages):
        t.errors(*((256, 0), (256, 0), (0, 256))[n % 3])
        if n % 3 == 0:
            t.read(page, 0, 1)
        elif n % 3 == 1:
            t.write_partial(page, 0, 1, random_lines(t.rng, 1)[0], 0x00FF << n % 48)
        else:
            t.write(page, 0, 1, random_lines(t.rng, 1)[0])
        t.wait_idle()
        t.errors(0, 0)
        t.read(before, 0, 1)
        t.read(page, 0, 1)
        t.wait_answered()
        before = page
    table, alone = run(t, QUICK).poisoned
    assert table >= 2 * NARROW.line_slots and alone == NARROW.line_slots


# - flipped bits -----------------------------------------------------------------------------------


@everywhere
def test_one_flipped_bit_of_a_word_changes_nothing(config):
    """In every code word of every memory, whenever it was written, while memory errs, too."""
    if not config.protect:
        pytest.skip("no check bits")
    flips = Flips(1, period=1)
    for traffic, memory in (
        (mixture(config, 1, list(Format), count=800), ROUGH),
        # Of a line of scales every byte is a word.
        (mixture(config, 2, [Format.INT8, Format.INT4], count=2500), QUICK),
        (erring(config, 2, list(Format), reads=20, writes=20, count=400), QUICK),
    ):
        assert run(traffic, memory, flips=flips).figures["corrected"] > 500


@pytest.mark.parametrize(("bits", "told"), [(1, "corrected"), (2, "fatal")])
@everywhere
def test_flipped_bits_of_a_fill_are_told_whatever_part_is_read(config, bits, told):
    """With int4 an op reads a quarter of a line; the others stand for nothing then."""
    if not config.protect:
        pytest.skip("no check bits")
    quarters = Format.INT4.lines_per_dram_line
    for quarter in range(quarters):
        t = Traffic(config, 1)
        page = t.page(0, Format.INT4)
        t.load(page)
        for line in range(quarter, page.stored.used_lines, quarters):
            t.read(page, 0, line)
        found = run(t, QUICK, flips=Flips(bits, "lines.fill.rows.rows", period=1))
        assert found.figures[told], f"quarter {quarter}"


@pytest.mark.parametrize(
    ("bits", "told"), [pytest.param(1, "corrected", marks=pytest.mark.night), (2, "fatal")]
)
@everywhere
def test_flipped_bits_of_each_code_word_are_told(config, bits, told):
    """In a run for each of them, as soon as the word is used: one is corrected, two are fatal
    before they are wrong."""
    if not config.protect:
        pytest.skip("no check bits")
    # With int4 a page's scales take as many bytes as they can.
    scaled, mixed = (
        erring(config, 7, formats, reads=40, writes=40, pages=3, count=250)
        for formats in ([Format.INT4], list(Format))
    )
    scale_bytes = min(LINE_BYTES, 2 * config.half_lines * Format.INT4.scale_bytes)
    for memory, words in code_words(config).items():
        traffic = scaled if memory.startswith("scales.") else mixed
        for word in range(scale_bytes if memory == "scales.store" else len(words)):
            found = run(traffic, ROUGH, flips=Flips(bits, memory, word, period=1))
            assert found.figures[told], f"word {word} of {memory}"

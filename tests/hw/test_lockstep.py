# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Lock-step where no recording leads: a page that gets no frame, in RTL and golden model."""

import numpy as np

from kelp_golden.lines import POISONED
from kelp_golden.lockstep import LockStep
from kelp_golden.ops import Op as TrackerOp
from kelp_golden.setup import LayerFormats, Setup
from kelp_rtl.control import Descriptor, QueueParameters
from kelp_rtl.device import Driver, FlashTiming
from kelp_rtl.program import Program, Response
from kelp_spec.config import named
from kelp_spec.formats import Format
from kelp_spec.hints import HintKind, HintLine, pack
from kelp_spec.metadata import Answer, Op, PageState, ScoreSource

UNIT = named("unit")


def test_what_gets_no_frame_is_given_up_by_both():
    setup = Setup(
        config=UNIT,
        layers=1,
        kv_heads=UNIT.queues,
        used_lines=UNIT.half_lines,
        used_pages=UNIT.pages,
        formats=(LayerFormats(last_layer=1023, k=Format.RAW16, v=Format.RAW16),),
        limits=UNIT.frames,
        budgets=(0,) * 4,
        low_water=0,
        high_water=0,
    )
    golden = setup.endpoint()
    golden.tracker.reserve = 0
    engine = LockStep(golden, evict_target=1)
    engine.open(0, setup.descriptor)
    d = Driver(UNIT, flash=FlashTiming(latency=100, write_latency=100))
    d.open_session(
        0,
        Descriptor(layers=1, kv_heads=UNIT.queues),
        QueueParameters(score_source=ScoreSource.OBSERVED),
    )
    d.write_registers({"low_water": 0, "high_water": 0, "reserve": 0, "starve_limit": 3000})
    rng, starved = np.random.default_rng(3), 0

    def touch(write, queue, page, kv_line=0):
        """One line, by both; the answers are equal."""
        nonlocal starved
        data = rng.integers(0, 256, (1, 64), np.uint8)
        origin = (data.tobytes(), -1) if write else None
        expected = engine.request(
            TrackerOp(
                Op.WRITE if write else Op.READ, 0, queue, page, kv_line, int(write), origin=origin
            )
        )
        address = np.array([d.address(0, queue, page, 0, kv_line)], np.uint64)
        result = d.run(
            Program.writes(address, data) if write else Program.reads(address), lockstep=True
        )
        kind = (
            Response.CMP
            if expected.kind == Answer.CMP
            else Response.POISON
            if expected.poison
            else Response.DATA
        )
        assert result.response[0] == kind, (write, queue, page)
        if kind == Response.DATA:
            assert (
                result.data[0]
                == golden.lines.resolve([expected.version]).view(np.uint8).reshape(64)
            ).all()
        starved += golden.version == POISONED
        for q in range(UNIT.queues):
            for p in range(UNIT.pages):
                assert d.page_word(0, q, p)["state"] == golden.tracker.word(q, p).state, (
                    write,
                    queue,
                    page,
                    q,
                    p,
                )

    def hint(kind, sequence, pages):
        """A list of each queue's pages, to both."""
        for queue in sorted({q for q, _ in pages}):
            line = pack(
                HintLine(
                    kind=kind,
                    session=0,
                    sequence=sequence,
                    queue=queue,
                    entries=tuple(p for q, p in pages if q == queue),
                ),
                UNIT,
            )
            sequence += 1
            engine.hint(line)
            d.push_hints([line])
            d.settle()
        return sequence

    def pages_in(state):
        return [
            (q, p)
            for q in range(UNIT.queues)
            for p in range(UNIT.pages)
            if golden.tracker.word(q, p).state == state
        ]

    for page in range(UNIT.frames[0]):
        touch(True, page % 2, page)
    # One frame is kept free; a pinned page that is cold takes it and keeps it.
    (last,) = pages_in(PageState.COLD)
    sequence = hint(HintKind.PIN, 0, [*pages_in(PageState.RESIDENT), last])
    touch(False, *last)
    pinned = pages_in(PageState.RESIDENT)
    assert len(pinned) == UNIT.frames[0] and starved == 0
    touch(True, 2, 2)  # a new page is lost with what was written to it
    touch(False, 2, 2)
    assert starved == 1
    hint(HintKind.RELEASE, sequence, pinned)
    touch(True, 2, 3)
    (cold, *_) = pages_in(PageState.COLD)
    sequence = hint(HintKind.PIN, sequence + 2, pages_in(PageState.RESIDENT))
    touch(True, 3, 3)
    hint(HintKind.PIN, sequence, [(3, 3)])
    touch(False, 3, 3)
    assert not golden.tracker.pools[0].free
    touch(False, *cold)  # a cold page stays cold, its reader gets poison
    assert starved == 2 and golden.tracker.word(*cold).state == PageState.COLD
    touch(True, *cold)  # what is written to it is dropped, so it is lost
    assert starved == 3 and golden.tracker.word(*cold).state == PageState.LOST
    # What starves is looked for again and again, as time passes; the golden model has no time.
    assert {name: golden.counters[name] for name in d.counters()} | {
        "sweeps": 0
    } == d.counters() | {"sweeps": 0}

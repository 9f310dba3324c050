# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""PageReader: a LOOK for each line, and the lines in that order, as int8 would store them."""

import numpy as np
from streams import Ends, pump

from kelp_golden import codec
from kelp_hw.select.page_reader import PageReader
from kelp_spec.config import named
from kelp_spec.formats import SCALE_NAN, Format, HostType
from kelp_spec.metadata import Answer, Op, Outcome

CONFIG = named("unit_select")
GONE, POISONED = 9, 21  #: a page that is not resident; a page of which line 1 is poisoned
PAGES = [(4, 4), (GONE, 2), (POISONED, 4), (7, 1)]


def rows(page):
    return np.random.default_rng(page).standard_normal((4, 32)).astype("<f2").view("<u2")


def run(pages, *, offer=1.0, take=1.0):
    def answer(path, op):
        if path != "o_op":
            return
        there = op.page != GONE
        told = {"kind": op.kind, "page": op.page, "kv_line": op.kv_line}
        yield "i_result", {"op": told, "outcome": Outcome.DONE if there else Outcome.VOID}
        if there:
            poison = (op.page, op.kv_line) == (POISONED, 1)
            yield (
                "i_line",
                {
                    "answer": Answer.POISON if poison else Answer.DATA,
                    "data": int.from_bytes(rows(op.page)[op.kv_line].tobytes(), "little"),
                },
            )

    ends = Ends(
        sends={
            "i": [{"page": page, "count": count} for page, count in pages],
            "i_result": [],
            "i_line": [],
        },
        takes=("o_op", "o"),
        offer=offer,
        take=take,
        held={"token_lines": 1, "squeue": 6, "session": 1, "host_type": int(HostType.FP16)},
        answer=answer,
    )
    lines = sum(count for _, count in pages)
    return pump(PageReader(config=CONFIG), ends, cycles=int(lines / offer / take) + 60)


def test_lines():
    seen = run(PAGES, offer=0.6, take=0.6)
    asked = [(page, line, count) for page, count in PAGES for line in range(count)]
    ops = [
        (t.item.kind, t.item.session, t.item.squeue, t.item.page, t.item.kv_line)
        for t in seen["o_op"]
    ]
    assert ops == [(Op.LOOK, 1, 6, page, line) for page, line, _ in asked]
    for t, (page, line, count) in zip(seen["o"], asked, strict=True):
        at = t.item.at
        assert (at.page, at.line) == (page, line % 2)
        assert (at.token_end, at.page_end) == (line % 2, line == count - 1)
        assert t.item.there == (page != GONE)
        if page == GONE or (page, line) == (POISONED, 1):
            assert t.item.scale & 255 == SCALE_NAN
            continue
        payload, scale = codec.encode(rows(page)[line : line + 1], HostType.FP16, Format.INT8)
        assert t.item.payload == int.from_bytes(payload[0, :32].tobytes(), "little")
        assert t.item.scale == scale[0]


def test_latency_and_interval():
    seen = run([(4, 4), (5, 4)] * 4)
    first = min(t.taken for t in seen["i_line"])
    assert seen["o"][0].offered - first == PageReader.LATENCY
    taken = [t.taken for t in seen["o"]]
    assert {b - a for a, b in zip(taken, taken[1:], strict=False)} == {PageReader.INTERVAL}

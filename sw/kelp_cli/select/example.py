# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The worked example of docs/select.md: one choice, number by number, by the golden model."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace

import numpy as np

from kelp_golden import select
from kelp_golden.endpoint import Endpoint, QueuePolicy
from kelp_golden.ops import Op as TrackerOp
from kelp_golden.ops import QueueConfig, Session
from kelp_golden.select_region import SelectRegion
from kelp_spec.config import named
from kelp_spec.formats import ELEMENTS
from kelp_spec.metadata import Op, PageState
from kelp_spec.select import BELL_FIELDS, ESTIMATE_MASS_BITS, PLAN_FIELDS, record_bytes

__all__ = ["example", "example_markdown"]

_CONFIG = named("unit_select").with_(select_quota=2, select_tables=False)
_OWNER, _ABSENT = 0, 5
_TOKENS = 2  #: of a page
#: Elements 0 and 1 of each token's key, of two tokens a page; all others are 0.
_KEYS = (
    ((1.5, 0.5), (0.25, -0.25)),
    ((0.75, 0.125), (-1.0, 0.5)),
    ((1.25, -0.5), (1.0, 0.75)),
    ((-0.5, 1.25), (0.5, 0.5)),
    ((-1.5, -1.0), (0.125, 0.25)),
    ((0.25, 1.5), (1.125, 1.0)),
    ((0.5, -0.75), (0.875, 0.375)),
    ((0.625, 0.875), (0.0, 0.0)),
)
#: The same elements of two query heads.
_QUERIES = ((16.0, 4.0), (-4.0, 12.0))
_BELL = {
    "sequence": 1,
    "queue": 0,
    "layer": 0,
    "newest": len(_KEYS) - 1,
    "tokens": 1,
    "lines": 1,
    "most": 2,
    "target": round(0.9 * 65536) * len(_QUERIES),
    "m": 33427,  # log2(e) / √32 · 2^17
    "sh": 17,
}


def _rows(pairs) -> np.ndarray:
    """float16 [..., 32] with two elements each."""
    pairs = np.array(pairs, np.float16)
    rows = np.zeros((*pairs.shape[:-1], ELEMENTS), np.float16)
    rows[..., :2] = pairs
    return rows


def _plan_line() -> bytes:
    """Elements 0 and 1 have codes of four bits, in steps of 64 quarters of 2^−6, so of 1/4."""
    fields = {"exponent": 0, "planned": 1}
    for k in range(2):
        fields |= {f"step_{k}": 6, f"count_{k}": 4}
    return record_bytes(PLAN_FIELDS, fields, 64)


@cache
def example() -> SimpleNamespace:
    """The example's values: what the functions of `kelp_golden.select` find step by step, and the
    doorbell and the answer, bytes, of a device that is asked."""
    plan_line = _plan_line()
    plan = select.plan_of(np.frombuffer(plan_line, np.uint8)[None])
    query = select.of_host(_rows(_QUERIES).view(np.uint16)[:, None])
    keys = select.of_host(_rows(_KEYS).view(np.uint16)[..., None, :])
    codes = select.summary(keys, plan)
    scale = {"m": _BELL["m"], "sh": _BELL["sh"]}
    sums = select.token_sums(query, codes, plan)
    names = select.name_pages(query, codes, plan, quota=_CONFIG.select_quota, **scale)
    looked = {}
    for page in np.flatnonzero(names.scored).tolist():
        whole = _TOKENS if page != _BELL["newest"] else _BELL["tokens"]
        at = names.looked(page, whole)
        found = select.Blocks(*(part[page, at] for part in keys))
        gone = found._replace(nan=np.ones_like(found.nan))
        looked[page] = gone if page == _ABSENT else found
    scores = {page: select.scores(query, of, **scale) for page, of in looked.items()}
    masses = {
        page: [part[:, 0] for part in select.page_masses(score[:, None])]
        for page, score in scores.items()
    }
    masses[_ABSENT] = select.absent_masses(names.estimate[:, _ABSENT])
    e, z = (np.stack([of[k] for of in masses.values()], axis=1) for k in (0, 1))
    here = names.named[list(masses)]
    more = select.unscored(names.estimate, names.named)
    every = select.page_masses(names.estimate, ESTIMATE_MASS_BITS)
    shares = [
        select.mass_sums(e[head, None], z[head, None], here | True, here, more[head, None])
        for head in range(len(_QUERIES))
    ]
    choice = select.choose_pages(
        query, names, looked, target=_BELL["target"], most=_BELL["most"], absent=[_ABSENT], **scale
    )
    bell = record_bytes(BELL_FIELDS, _BELL, 64)
    return SimpleNamespace(
        **{"plan": plan, "plan_line": plan_line, "query": query, "keys": keys, "codes": codes},
        **{"sums": sums, "names": names, "scores": scores, "masses": masses, "more": more},
        **{"every": every, "shares": np.array(shares), "choice": choice, "bell": bell},
        answer=_answer(plan_line, bell),
    )


def _answer(plan_line: bytes, bell: bytes) -> bytes:
    """The answer's first two lines: a guess makes the summaries, then a page is gone."""
    device = Endpoint(_CONFIG)
    region = SelectRegion(device)
    for squeue in range(_CONFIG.squeues):
        device.configure(squeue, QueueConfig(), QueuePolicy())
    shape = Session(used_queues=1, used_lines=_TOKENS, used_pages=32, kv_heads=1, ld_id=_OWNER)
    device.apply(TrackerOp(Op.OPEN, session=0), descriptor=shape)
    for page, line in np.ndindex(len(_KEYS), _TOKENS):
        origin = (_rows(_KEYS)[page, line].tobytes(), (1 << 64) - 1)
        place = {"session": 0, "squeue": 0, "page": page, "kv_line": line, "ld_id": _OWNER}
        device.apply(TrackerOp(Op.WRITE, write=1, has_write=1, origin=origin, **place))
    for head, row in enumerate(_rows(_QUERIES)):
        region.write(region.map.query(0, 0, head), row.tobytes(), _OWNER)
    region.write(region.map.plan(0, 0), plan_line, _OWNER)
    at = region.map.bell(0, 0)
    region.write(at, record_bytes(BELL_FIELDS, _BELL | {"speculative": 1}, 64), _OWNER)
    words = device.tracker.words
    words[_ABSENT] = words[_ABSENT]._replace(state=int(PageState.COLD))
    region.write(at, bell, _OWNER)
    return b"".join(region.read(at + line, _OWNER) for line in range(2))


def _table(head: str, rows) -> list[str]:
    cells = [f"| {' | '.join(str(cell) for cell in row)} |" for row in rows]
    return [head, "|" + "---|" * (head.count("|") - 1), *cells, ""]


def _pair(values) -> str:
    return " · ".join(str(int(value)) for value in values)


def _bytes(name: str, data: bytes) -> list[str]:
    """Rows of four words of eight bytes, lowest address first, but for rows of zeros."""
    rows = ((at, data[at : at + 32]) for at in range(0, len(data), 32))
    return [
        f"{name:8} +{at:3}  " + " ".join(row[word : word + 8].hex() for word in range(0, 32, 8))
        for at, row in rows
        if any(row)
    ]


def example_markdown() -> str:
    """The example as docs/select.md has it."""
    x = example()
    text = "\n".join((*_setting(), *_stage_one(x), *_stage_two(x))).rstrip()
    return text.replace(" -", " −").replace("-0.", "−0.") + "\n"


def _setting() -> list[str]:
    """What the example is of."""
    newest, least = len(_KEYS) - 1, _BELL["tokens"]
    return [
        f"- Two query heads, keys of one line (head_dim {ELEMENTS}), fp16, pages of "
        + f"{_TOKENS} tokens.",
        f"- Pages 0 to {newest}; of page {newest}, the newest, {least} token counts.",
        f"- Each head names {_CONFIG.select_quota} pages. k is {_BELL['most']}. The target is "
        + f"{_BELL['target']}, 0.9 for each head.",
        f"- m = {_BELL['m']} and sh = {_BELL['sh']}, which is log2(e)/√{ELEMENTS}.",
        "- Elements other than 0 and 1 are 0. The plan has exponent 0; elements 0 and 1 have "
        + "mean 0, step 6 and count 4.",
        f"- Pages were summarised while all were resident. Then page {_ABSENT} went.",
        "",
    ]


def _stage_one(x: SimpleNamespace) -> list[str]:
    newest = len(_KEYS) - 1
    lines = [
        "**Queries, codes, estimates.** Two numbers in a cell are of head 0 and head 1.",
        "",
    ]
    lines += _table(
        "| query | elements 0 and 1 | x | e |",
        (
            (f"head {head}", f"{pair[0]:g}, {pair[1]:g}", _pair(x.query.x[head, 0, :2]))
            + (int(x.query.e[head, 0]),)
            for head, pair in enumerate(_QUERIES)
        ),
    )
    lines += _table(
        "| page | token | key's elements 0 and 1 | x | e | code | r, estimated |",
        (
            (page, token, f"{_KEYS[page][token][0]:g}, {_KEYS[page][token][1]:g}")
            + (_pair(x.keys.x[page, token, 0, :2]), int(x.keys.e[page, token, 0]))
            + (f"0x{int(x.codes[page, token, 0]):02x}", _pair(x.sums[:, page, token]))
            for page, token in np.ndindex(newest, _TOKENS)
        ),
    )
    between = range(1, newest)
    last = [sorted(row[1:newest], reverse=True)[1] for row in x.sums.max(axis=-1)]
    near = 3 << _BELL["sh"] >> 8
    lines += _table(
        "| page | largest r | estimate | named | tokens near |",
        (
            (page, _pair(x.sums[:, page].max(axis=-1)), _pair(x.names.estimate[:, page]))
            + ("yes" if x.names.named[page] else "no",)
            + (_pair(x.names.looked(page, _TOKENS)) if x.names.named[page] else "–",)
            for page in between
        ),
    )
    lines += [
        f"The last page that each head names has r = {_pair(last)}. A token is near from "
        + f"r ≥ {_pair(value - near for value in last)} on.",
        "",
    ]
    return lines


def _stage_two(x: SimpleNamespace) -> list[str]:
    lines = [f"**Scores, masses.** Page {_ABSENT} is not resident: its estimate counts.", ""]
    lines += _table(
        "| page | s of its tokens, head 0 | head 1 | e | z | share | mass |",
        (
            (page, *(("–", "–") if page == _ABSENT else map(_pair, x.scores[page])))
            + (_pair(x.masses[page][0]), _pair(x.masses[page][1]))
            + (_pair(x.shares[:, place]), int(x.shares[:, place].sum()))
            for place, page in enumerate(x.masses)
        ),
    )
    choice = x.choice
    lines += [
        f"`more` is {_pair(x.more)}: the estimates of pages 1 to {len(_KEYS) - 2} sum to "
        + " and ".join(f"{int(z)} · 2^({int(e)} − 15)" for e, z in zip(*x.every, strict=True))
        + ".",
        "",
        f"**Choice.** Chosen: pages {', '.join(map(str, choice.pages))}. Missing: "
        + f"{choice.missing}. Wanted: page {', '.join(map(str, choice.wanted))}.",
        "",
        "**Bytes**, lowest address first; rows of zeros are left out:",
        "",
        "```text",
        *_bytes("plan", x.plan_line),
        *_bytes("doorbell", x.bell),
        *_bytes("answer", x.answer),
        "```",
    ]
    return lines

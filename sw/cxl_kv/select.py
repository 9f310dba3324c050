# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""A choice of pages by the device, and what it chose in one read (docs/select.md)."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import NamedTuple, NoReturn

import numpy as np

from kelp_spec.address import AddressMap, Region
from kelp_spec.formats import ELEMENTS, LINE_BYTES, HostType
from kelp_spec.select import (
    ANSWER_FIELDS,
    BELL_FIELDS,
    CHOSEN_FIELDS,
    Refusal,
    SelectMap,
    SelectStatus,
    SlotState,
    record,
    record_bytes,
)

from .arguments import instance, integer, real
from .errors import NotMappedError, SelectRefusedError, TransportError, UnsupportedError
from .layout import to_bits, to_float32
from .plans import empty_plan, plan_of_keys, plan_of_sample

__all__ = ["Chosen", "gather", "plan", "select", "summarise", "table"]

_PATIENCE_SECONDS = 60.0  #: for an answer
#: log2 of the cycles that a SELECT waits at most for pages: at 1 GHz five times what a page takes
#: from flash
_PATIENCE = 17
#: a queue's share of the frames, by so much: pages that are summarised together, with room for
#: others of the queue, so that none of them has gone before
_ROOM = 2


@dataclass(frozen=True, eq=False)
class Chosen:
    """What a device chose for the KV heads of a layer.

    Attributes
    ----------
    session : int
        Whose choice it is: `Session.serial`. Another session does not gather it.
    number : int
        Of the session's choices: a later one gives its slots back.
    layer, tokens : int
    pages : list of int64 arrays
        Of each KV head, in the order of choice: the first page, the newest, then the best.
    masses : list of float64 arrays
        Each page's share of its heads' attention, as the device estimates it.
    held : list of bool arrays
        The page has a slot: it stays resident, and is read by the GATHER window.
    gone : list of bool arrays
        The page was chosen, and was evicted before it had a slot: to gather it is to wait for it.
        One that is neither held nor gone found no room: pins and slots have all frames.
    absent : list of int
        Pages that were looked at and not resident.
    missing : list of float
        The share of the attention that the device estimates these to have; 0 where it does not
        estimate.
    wanted : list of int64 arrays
        Of these the pages that would have been chosen beside `pages`, had they been resident, the
        best first: as many as have a place in an answer, which has `select` for them and the
        chosen ones. A guess chooses nothing, so it names the first and the newest page as well.
        Empty where the device does not estimate.
    wanted_masses : list of float64 arrays
        Their shares as the device estimates them; 0 of the first and the newest page.
    wanted_counts : list of int
        How many are wanted, named or not.
    """

    session: int
    number: int
    layer: int
    tokens: int
    pages: list[np.ndarray]
    masses: list[np.ndarray]
    held: list[np.ndarray]
    gone: list[np.ndarray]
    absent: list[int]
    missing: list[float]
    wanted: list[np.ndarray]
    wanted_masses: list[np.ndarray]
    wanted_counts: list[int]
    generations: list[int]

    @property
    def page_count(self) -> int:
        return sum(map(len, self.pages))


def scale_of(factor: float) -> tuple[int, int]:
    """(m, sh), m · 2^−sh ≈ factor · log2(e): what makes a product of query and key the log2 of a
    weight."""
    wanted = factor * math.log2(math.e)
    sh = 15 - math.floor(math.log2(wanted))
    m = round(wanted * 2.0**sh)
    if m == 1 << 16:
        m, sh = m >> 1, sh - 1
    return m, sh


def select(session, layer, queries, *, tokens, pages, mass, scale, flags) -> Chosen:
    """:meth:`cxl_kv.Session.select`; `flags` are those of a doorbell, by name."""
    c, shape = session.device.config, session.shape
    layer = integer("layer", layer, 0, shape.layers - 1)
    tokens = integer("tokens", tokens, 1, session.max_tokens)
    mass = real("mass", mass, 0.0, 1.0)
    factor = shape.head_dim**-0.5 if scale is None else real("scale", scale, 1.1e-5, 2e4)
    near = session.device.transport.hints
    places = _places(session) if near else None
    queries = _grouped(session, queries, c.select_heads if near else None)
    values = _numbers(queries, shape.dtype)
    if places is None:
        most = integer("pages", session.pages if pages is None else pages, 0, session.pages)
        chosen = _by_the_host(session, layer, values, tokens, most, mass, factor)
        if tokens > 2 * session.page_tokens:  # as with a device: from here on the layer has a plan
            session.plans.setdefault(layer, empty_plan(shape))
        if flags["speculative"]:
            return _nothing(chosen)
        session.choices += 1
        return replace(chosen, number=session.choices)
    most = c.select - 2 if pages is None else integer("pages", pages, 0, c.select - 2)
    m, sh = scale_of(factor)
    rows = _query_lines(session, queries, c.select_heads)
    plans = session.plans.get(layer)
    if plans is None:
        plans = plan_of_sample(session, layer, values, tokens)
    target = min(round(mass * 65536), 65535) * c.select_heads
    fields = {"most": most, "target": target, "m": m, "sh": sh} | flags
    fields |= _fetches(c, session, layer) | _waits(c, session.wait_above)
    answers = _rung(session, layer, tokens, dict(enumerate(zip(rows, plans, strict=True))), fields)
    return _chosen(session, layer, tokens, answers)


def _rung(session, layer, tokens, lines: dict, fields) -> list[_Answer]:
    """SELECTs of KV heads, with the `lines` of each one's queries and plan, by doorbells with these
    `fields`; their answers."""
    c, shape, places = session.device.config, session.shape, _places(session)
    newest, last = divmod(tokens - 1, session.page_tokens)
    of_all = {
        "layer": layer,
        "newest": newest,
        "tokens": last + 1,
        "lines": shape.token_lines,
    }
    bells = [of_all | {"queue": layer * shape.kv_heads + head} | fields for head in lines]
    answers, rows = [], list(lines.values())
    former, chooses = session.choices, not fields.get("speculative")
    session.choices += chooses  # whatever breaks off from here on
    for first in range(0, len(bells), c.select_groups):
        group = slice(first, first + c.select_groups)
        # One for each SELECT of a group: until it is answered, the group shows what the device told
        # of the head before.
        sequence = session.next_sequence()
        rung = [bell | {"sequence": sequence} for bell in bells[group]]
        try:
            told = _ask(session, places, sequence, rung, rows[group])
        except SelectRefusedError:  # by a server, which has not rung it
            session.choices = former + (chooses and first > 0)
            raise
        refusals = [answer for answer in told if isinstance(answer, Refusal)]
        if refusals:
            # A SELECT that is refused changes nothing: the choice before holds what it held.
            session.choices = former + (chooses and (first > 0 or len(refusals) < len(told)))
            _refused(refusals[0])
        answers += told
    return answers


def plan(session, layer, keys, queries) -> None:
    """:meth:`cxl_kv.Session.plan`."""
    shape = session.shape
    layer = integer("layer", layer, 0, shape.layers - 1)
    keys = to_bits(keys, shape.dtype, "keys")
    legal = keys.ndim == 3 and keys.shape[1]
    if not legal or keys.shape[::2] != (shape.kv_heads, shape.head_dim):
        raise ValueError(
            f"keys of shape {list(keys.shape)} are refused; legal: [{shape.kv_heads}, tokens, "
            + f"{shape.head_dim}]"
        )
    queries = to_bits(queries, shape.dtype, "queries")
    legal = queries.ndim == 3 and queries.size and queries.shape[0] % shape.kv_heads == 0
    if not legal or queries.shape[2] != shape.head_dim:
        raise ValueError(
            f"queries of shape {list(queries.shape)} are refused; legal: [query heads, positions, "
            + f"{shape.head_dim}], as many heads for each of {shape.kv_heads} KV heads"
        )
    values = _numbers(queries.reshape(shape.kv_heads, -1, shape.head_dim), shape.dtype)
    session.device.transport.check()
    if not session.device.transport.hints:
        session.plans[layer] = empty_plan(shape)
        return
    _places(session)
    of_heads = zip(to_float32(keys, shape.dtype), values, strict=True)
    session.plans[layer] = np.stack([plan_of_keys(*of_head) for of_head in of_heads])


def summarise(session, layer, start, tokens) -> None:
    """:meth:`cxl_kv.Session.summarise`."""
    device, shape, size = session.device, session.shape, session.page_tokens
    layer = integer("layer", layer, 0, shape.layers - 1)
    tokens = integer("tokens", tokens, 1, session.max_tokens)
    start = integer("start", start, 0, tokens)
    device.transport.check()
    if device.transport.hints:
        _places(session)
    if layer not in session.plans:
        raise ValueError(f"layer {layer} has no plan to summarise its pages by; call plan first")
    if not device.transport.hints:
        return
    lot = max(1, device.frames(shape, layer) // (_ROOM * device.queues))
    nothing = np.zeros((shape.kv_heads, 1, shape.head_dim), np.uint16)
    rows = _query_lines(session, nothing, device.config.select_heads)
    lines = dict(enumerate(zip(rows, session.plans[layer], strict=True)))
    newest = (tokens - 1) // size
    if start // size < newest:  # what the last choice holds may be all of a queue's share
        _rung(session, layer, tokens, lines, {"release": 1})
    # A guess fetches what it does not find, but by tables none that there is no credit for; where
    # there are no tables a choice of nothing holds two pages, and fetches none.
    guess = int(device.config.select_tables)
    m, sh = scale_of(1.0)
    fields = {"m": m, "sh": sh, "speculative": guess, "tables": guess}
    for first in range(start // size, newest, lot):
        last = min(first + lot, newest)
        # What this step has read stays before what earlier ones have: else the page that was read
        # just now is a queue's next victim. With the last lot the newest page, which is not
        # summarised, but would have been read before all others.
        session.advance()
        read = size * np.arange(first, last + (last == newest))
        for head in range(shape.kv_heads):  # pages of a queue whose turn is over may go
            session.sample(layer, read, heads=[head])
            _rung(session, layer, last * size + 1, {head: lines[head]}, fields)
    if start // size < newest and not guess:
        _rung(session, layer, tokens, lines, {"release": 1})


def _places(session) -> SelectMap:
    c = session.device.config
    if not c.select:
        raise UnsupportedError(
            f"configuration {c.name!r} chooses no pages near memory; one with `select` does "
            + "(golden:unit_select)"
        )
    lines, most = session.shape.token_lines, c.select_lines
    if lines > most or lines & lines - 1:
        legal = ", ".join(str(1 << n) for n in range(most.bit_length()))
        raise UnsupportedError(
            f"head_dim = {session.shape.head_dim} takes {lines} lines a token; configuration "
            + f"{c.name!r} chooses among keys of {legal}"
        )
    return SelectMap(c)


def _fetches(config, session, layer: int) -> dict[str, int]:
    """Fields of a doorbell that say which pages that are wanted are fetched; where a queue of the
    layer has policy 2, tables say it of a guess."""
    least = real("fetch_from", session.fetch_from, 0.0, 1.0)
    return {
        "fetch_from": round(least * 65536) * config.select_heads,
        "tables": int(session.by_tables(layer)),
    }


def _waits(config, wait_above: float | None) -> dict[str, int]:
    """Fields of a doorbell that say for how much a SELECT waits."""
    if wait_above is None:
        return {}
    above = round(wait_above * 65536) * config.select_heads
    return {"waits": 1, "wait_above": above, "patience": _PATIENCE}


def _grouped(session, queries, most: int | None) -> np.ndarray:
    """uint16 [kv_heads, query heads of each, head_dim]; of these a divisor of `most`."""
    shape = session.shape
    queries = to_bits(queries, shape.dtype, "queries")
    heads = queries.shape[0] if queries.ndim == 2 else 0
    group = heads // shape.kv_heads
    legal = group and heads % shape.kv_heads == 0 and (most or group) % group == 0
    if not legal or queries.shape[1] != shape.head_dim:
        counts = [str(n) for n in range(1, most + 1) if most % n == 0] if most else ["as many"]
        raise ValueError(
            f"queries of shape {list(queries.shape)} are refused; legal: [query heads, "
            + f"{shape.head_dim}], {', '.join(counts)} for each of {shape.kv_heads} KV heads"
        )
    return queries.reshape(shape.kv_heads, group, -1)


def _numbers(queries: np.ndarray, dtype) -> np.ndarray:
    """Queries as float32; ValueError where one is none."""
    values = to_float32(queries, dtype)
    if np.isnan(values).any():
        raise ValueError("queries with a NaN are refused; legal: numbers")
    return values


def _query_lines(session, queries, most: int) -> np.ndarray:
    """uint8 [kv_heads, select_heads · token_lines, 64] of :func:`_grouped` ones: each KV head's
    query heads, as often as the device has room for."""
    shape = session.shape
    heads, group, _ = queries.shape
    rows = np.zeros((heads, group, shape.token_lines * ELEMENTS), np.uint16)
    rows[..., : shape.head_dim] = queries
    rows = np.repeat(rows, most // group, axis=1)
    return rows.view(np.uint8).reshape(heads, -1, LINE_BYTES)


def _by_the_host(session, layer, queries, tokens, most, mass, factor) -> Chosen:
    """The same choice where the device is plain memory: exact scores of every key, in NumPy.
    Nothing is held, since nothing is evicted."""
    shape, size = session.shape, session.page_tokens
    keys = to_float32(session.read(layer, stop=tokens, dtype=np.uint16)[0], shape.dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        scores = queries @ keys.transpose(0, 2, 1) * np.float32(factor)
    if not np.isfinite(scores).all():
        scores = _scores_of_any(queries, keys, factor, shape.dtype)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    shares = np.add.reduceat(weights, range(0, tokens, size), axis=-1).mean(axis=1)
    pages, masses = [], []
    for share in shares:
        always = sorted({0, len(share) - 1})
        order = [page for page in np.argsort(-share, kind="stable") if page not in always][:most]
        sums = share[always].sum() + np.cumsum([0.0, *share[order]])
        order = order[: int((sums[:-1] < mass).sum())]
        pages.append(np.array([*always, *order], np.int64))
        masses.append(share[pages[-1]].astype(np.float64))
    nothing, none = [0] * len(pages), [np.zeros(len(chosen), bool) for chosen in pages]
    return Chosen(
        session=session.serial,
        number=session.choices,
        layer=layer,
        tokens=tokens,
        pages=pages,
        masses=masses,
        held=none,
        gone=none,
        absent=nothing,
        missing=[0.0] * len(pages),
        wanted=[np.zeros(0, np.int64) for _ in pages],
        wanted_masses=[np.zeros(0) for _ in pages],
        wanted_counts=nothing,
        generations=nothing,
    )


def _scores_of_any(queries, keys, factor: float, dtype) -> np.ndarray:
    """Scores as a device defines them: ±Inf is the largest finite value, a key with a NaN has the
    least."""
    largest = [0x7BFF if dtype == HostType.FP16 else 0x7F7F]
    most = to_float32(largest, dtype)[0].astype(np.float64)
    q, k = (np.nan_to_num(x.astype(np.float64), posinf=most, neginf=-most) for x in (queries, keys))
    scores = q @ k.transpose(0, 2, 1) * factor
    return np.where(np.isnan(keys).any(axis=-1)[:, None], -1e300, scores)


def _nothing(chosen: Chosen) -> Chosen:
    """The answer to a speculative SELECT where everything is there."""
    none = [array[:0] for array in chosen.pages]
    return replace(chosen, pages=none, masses=none, held=none, gone=none)


class _Answer(NamedTuple):
    """An answer's fields, and those of the pages chosen and of those that it names as wanted."""

    header: dict[str, int]
    pages: list[dict[str, int]]
    wanted: list[dict[str, int]]


def _ask(session, places, sequence, bells, lines) -> list[_Answer | Refusal]:
    """SELECTs of as many KV heads as there are groups, with the lines of their queries and plans;
    the answer to each, or why it was refused."""
    transport, c = session.device.transport, session.device.config
    base = AddressMap(c).select_base
    count = session.shape.token_lines
    stores, rows = [], []
    for group, (queries, planned) in enumerate(lines):
        stores += [
            places.query(session.number, group, n // count, n % count) for n in range(len(queries))
        ]
        stores += [places.plan(session.number, group, n) for n in range(count)]
        rows += [queries, planned]
    for group, bell in enumerate(bells):
        stores.append(places.bell(session.number, group))
        line = record_bytes(BELL_FIELDS, bell).ljust(LINE_BYTES, b"\0")
        rows.append(np.frombuffer(line, np.uint8)[None])
    transport.store(base + LINE_BYTES * np.array(stores, np.uint64), np.concatenate(rows))
    answers, until = [], time.monotonic() + _PATIENCE_SECONDS
    for group in range(len(bells)):
        first = places.bell(session.number, group)
        told = base + LINE_BYTES * np.arange(first, first + places.answer_lines, dtype=np.uint64)
        while True:
            header = record(ANSWER_FIELDS, transport.load(told[:1]).lines.tobytes())
            if header["sequence"] == sequence and header["status"] != SelectStatus.NONE:
                break
            session.state()  # a session that the device has lost is an error there
            if time.monotonic() > until:
                raise TransportError(f"no answer to a SELECT within {_PATIENCE_SECONDS:.0f} s")
        if header["status"] == SelectStatus.REFUSED:
            answers.append(Refusal(header["refusal"]))
            continue
        # Not with the header: lines of one load may be read in any order, and these before they are
        # of this answer.
        entries = transport.load(told[1:]).lines.tobytes()
        pages, wanted = (
            [record(CHOSEN_FIELDS, entries[8 * n : 8 * n + 8]) for n in each]
            for each in (
                range(header["count"]),
                places.named_places(header["count"], header["wanted"]),
            )
        )
        answers.append(_Answer(header, pages, wanted))
    return answers


def _refused(refusal: Refusal) -> NoReturn:
    if refusal in (Refusal.BELL, Refusal.PLAN):
        what = {Refusal.BELL: "doorbell", Refusal.PLAN: "plan"}[refusal]
        raise TransportError(
            f"the device refused the SELECT: its {what} did not arrive as it was written "
            + f"({refusal.name}); select again"
        )
    raise SelectRefusedError(
        f"the device refused the SELECT: {refusal.name}; docs/select.md says what is legal"
    )


def _chosen(session, layer, tokens, answers) -> Chosen:
    whole = 65536.0 * session.device.config.select_heads
    headers, chosen, wanted = zip(*answers, strict=True)

    def column(name, entries):
        return [np.array([page[name] for page in pages], np.int64) for pages in entries]

    states = column("state", chosen)
    return Chosen(
        session=session.serial,
        number=session.choices,
        layer=layer,
        tokens=tokens,
        pages=column("page", chosen),
        masses=[masses / whole for masses in column("mass", chosen)],
        held=[of_head == SlotState.HELD for of_head in states],
        gone=[of_head == SlotState.ABSENT for of_head in states],
        absent=[header["absent"] for header in headers],
        missing=[header["missing"] / whole for header in headers],
        wanted=column("page", wanted),
        wanted_masses=[masses / whole for masses in column("mass", wanted)],
        wanted_counts=[header["wanted"] for header in headers],
        generations=[header["generation"] for header in headers],
    )


def table(session, chosen: Chosen) -> np.ndarray:
    """The pages chosen, int64 [kv_heads, n], −1 behind a head's last one; ValueError where they are
    not this session's choice."""
    instance("chosen", chosen, Chosen, "what Session.select returned")
    if chosen.session != session.serial:
        raise ValueError("chosen is another session's choice; legal: this one's")
    return _beside(chosen.pages, -1)


def gather(session, chosen: Chosen) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(first lines, the pages' own first lines, positions) of what was chosen: addresses, uint64
    [kv_heads, halves, pages], by the GATHER window where a page is held, and int64 [kv_heads,
    tokens]. A page's other lines are behind its first. Heads with fewer pages have position −1 at
    the end, and page 0's addresses there. NotMappedError where its slots were given back."""
    c, size, pages = session.device.config, session.page_tokens, table(session, chosen)
    if chosen.number != session.choices and any(held.any() for held in chosen.held):
        # The device would say so of most; but its generations wrap, and some addresses are those
        # of other pages by now.
        raise NotMappedError(
            "the device maps no such line any more: a later choice has given its slot back; select "
            + "again",
            session=session.number,
            layer=chosen.layer,
        )
    queues = session.layout.addresses(
        slice(chosen.layer, chosen.layer + 1), slice(None), np.zeros(1, np.int64)
    )[0, ..., 0]
    own = queues + (pages.clip(0)[:, None].astype(np.uint64) << np.uint64(6 + c.line_bits))
    slots, generations = np.arange(pages.shape[1]), np.array(chosen.generations)[:, None, None]
    held = _beside(chosen.held, False)[:, None]
    first = np.where(held, _window(c, own, slots, generations), own)
    positions = pages[..., None] * size + np.arange(size)
    positions[(pages[..., None] < 0) | (positions >= chosen.tokens)] = -1
    return first, own, positions.reshape(len(pages), -1)


def _beside(rows: list[np.ndarray], filling) -> np.ndarray:
    """Rows of different lengths as one array, filled up at their ends."""
    out = np.full((len(rows), max(map(len, rows))), filling)
    for mine, row in zip(out, rows, strict=True):
        mine[: len(row)] = row
    return out


def _window(c, plain: np.ndarray, slots: np.ndarray, generations: np.ndarray) -> np.ndarray:
    """Plain addresses as addresses of the GATHER window, in other slots' places."""
    x = plain >> np.uint64(6)
    line, half = x & np.uint64(c.half_lines - 1), x >> np.uint64(c.half_line_bits) & np.uint64(1)
    queue = x >> np.uint64(c.line_bits + c.page_bits)
    generations = generations.astype(np.uint64) & np.uint64((1 << c.generation_bits) - 1)
    x = queue << np.uint64(c.generation_bits) | generations
    x = (x << np.uint64(1) | half) << np.uint64(c.slot_bits) | slots.astype(np.uint64)
    x = x << np.uint64(c.half_line_bits) | line
    return np.uint64(Region.GATHER << c.aperture_bits) | x << np.uint64(6)

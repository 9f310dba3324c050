# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Choice of pages near memory, the executable specification (docs/select.md): block form of stored
keys and queries, page summaries, bounds, exact scores, masses, and which pages are chosen.

A **block** is 32 elements of one line: integers x, −127 … 127, and an exponent e, worth
x · 2^(e − 6). All functions take NumPy arrays and are exact: products and sums of elements stay
below 2^24, so that they may be taken in float32, where a matrix product is fast.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kelp_spec.formats import ELEMENTS, SCALE_NAN, Format, HostType
from kelp_spec.select import (
    ALIGNED_BITS,
    ALIGNED_FRACTION,
    BLOCK_EXPONENT_LEAST,
    BOUND_MASS_BITS,
    MASS_BITS,
    RATIO_BITS,
    RECIPROCAL_BITS,
    SCORE_FRACTION,
    SCORE_LEAST,
    SCORE_MOST,
    SEEN_BITS,
    SEEN_NEVER,
    SEEN_SHIFT,
    SHARE_BITS,
    SUMMARY_BITS,
    WEIGHT_BITS,
)

from . import codec

__all__ = [
    "Blocks",
    "Choice",
    "Known",
    "Named",
    "Summary",
    "best",
    "bounds",
    "candidates",
    "choose",
    "choose_pages",
    "mass_sums",
    "name_pages",
    "of_host",
    "of_stored",
    "page_masses",
    "recall",
    "remember",
    "scores",
    "select_pages",
    "summary",
    "unscored",
    "weight",
]

#: 2^(f / 256) with 15 bits after the point, f = 0 … 255.
WEIGHTS = np.array(
    [round(2.0 ** (WEIGHT_BITS - 1 + f / (1 << SCORE_FRACTION))) for f in range(256)], np.int64
)
_MOST_SHIFT = 31  #: more than any accumulator has bits


class Blocks(NamedTuple):
    """Lines in block form; a line with a NaN is all zeros and `nan`."""

    x: np.ndarray  #: int64 [..., lines, 32]
    e: np.ndarray  #: int64 [..., lines]
    nan: np.ndarray  #: bool [..., lines]


class Summary(NamedTuple):
    """A page's: for each element of a key the least and the largest, worth x · 2^(e − 5)."""

    low: np.ndarray  #: int64 [..., lines, 32], −64 … 63
    high: np.ndarray  #: int64 [..., lines, 32], −63 … 64
    e: np.ndarray  #: int64 [..., lines]


def of_host(codes: np.ndarray, host_type: HostType = HostType.FP16) -> Blocks:
    """Host lines uint16 [..., lines, 32] (a query, or keys of raw16): as int8 stores them."""
    payload, scale = codec.encode(codes.reshape(-1, ELEMENTS), host_type, Format.INT8)
    return _int8(payload.reshape(codes.shape), scale.reshape(codes.shape[:-1]))


def of_stored(payload, scale, host_type: HostType, fmt: Format) -> Blocks:
    """Stored lines, payload uint8 [..., payload_bytes] and scale uint16 [...]. int8 and int4 lose
    nothing; raw16 and fp8 lines are seen as int8 would store them."""
    shape = np.shape(scale)
    match Format(fmt):
        case Format.INT8:
            return _int8(payload, scale)
        case Format.INT4:
            nibbles = np.stack([payload & 15, payload >> 4], axis=-1).reshape(*shape, ELEMENTS)
            q = (nibbles.astype(np.int64) ^ 8) - 8
            scale = np.asarray(scale, np.int64)
            nan = (scale & 255) == SCALE_NAN
            x = np.where(nan[..., None], 0, q * (8 + (scale >> 8 & 7))[..., None])
            # (8 + m) / 8 · 2^(E − 127) = (8 + m) · 2^(E − 124 − 6)
            return Blocks(x, np.where(nan, 0, (scale & 255) - 124), nan)
        case _:
            flat = np.ascontiguousarray(payload).reshape(-1, payload.shape[-1])
            lines = codec.decode(flat, np.asarray(scale).reshape(-1), host_type, fmt)
            return of_host(lines.reshape(*shape, ELEMENTS), host_type)


def _int8(payload, scale) -> Blocks:
    scale = np.asarray(scale, np.int64)
    nan = (scale & 255) == SCALE_NAN
    x = np.where(nan[..., None], 0, payload.view(np.int8).astype(np.int64))
    return Blocks(x, np.where(nan, 0, scale - 127), nan)


def summary(keys: Blocks, written: np.ndarray) -> Summary:
    """Of pages: keys [..., tokens, lines], written bool [..., tokens, lines]. What was never
    written and what has a NaN does not count; where nothing counts the summary is of zeros and the
    least exponent. The order in which lines come makes no difference."""
    counts = written & ~keys.nan
    e = np.where(counts, keys.e, BLOCK_EXPONENT_LEAST).max(axis=-2)
    # From the exponent of a line, 6 places after the point, to that of the summary with 5.
    down = np.minimum(e[..., None, :] - keys.e + 1, _MOST_SHIFT)[..., None]
    low, high = keys.x >> down, -(-keys.x >> down)
    most = 1 << SUMMARY_BITS - 1
    some, any_ = counts[..., None], counts.any(axis=-2)[..., None]
    low = np.where(any_, np.where(some, low, most).min(axis=-3), 0)
    high = np.where(any_, np.where(some, high, -most).max(axis=-3), 0)
    return Summary(low, high, e)


def scores(query: Blocks, keys: Blocks, m: int, sh: int) -> np.ndarray:
    """int64 [heads, tokens] from query [heads, lines] and keys [tokens, lines]: log2 of the weight
    of each token, SCORE_FRACTION bits of it after the point. A token with a NaN has the least."""
    dots = np.stack(
        [_product(query.x[:, b], keys.x[:, b].T) for b in range(query.x.shape[1])], axis=-1
    )
    found = _scaled(dots, query.e[:, None] + keys.e[None], m, sh)
    return np.where(keys.nan.any(axis=-1)[None], SCORE_LEAST, found)


def bounds(query: Blocks, pages: Summary, m: int, sh: int) -> np.ndarray:
    """int64 [heads, pages] from query [heads, lines] and summaries [pages, lines]: no token of a
    page has a larger score."""
    up, down = np.maximum(query.x, 0), np.minimum(query.x, 0)
    dots = np.stack(
        [
            _product(up[:, b], pages.high[:, b].T) + _product(down[:, b], pages.low[:, b].T)
            for b in range(query.x.shape[1])
        ],
        axis=-1,
    )
    return _scaled(dots, query.e[:, None] + pages.e[None] + 1, m, sh)


def _product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a.astype(np.float32) @ b.astype(np.float32)).astype(np.int64)


def _scaled(dots: np.ndarray, exponent: np.ndarray, m: int, sh: int) -> np.ndarray:
    """A line's product to ALIGNED_FRACTION bits after the point, clamped; their sum times
    m · 2^−sh, clamped."""
    up = exponent - 12 + ALIGNED_FRACTION
    most = (1 << ALIGNED_BITS - 1) - 1
    left, right = np.clip(up, 0, ALIGNED_BITS), np.clip(-up, 0, ALIGNED_BITS)
    raw = np.clip(dots << left >> right, -most, most).sum(axis=-1)
    return np.clip(raw * m >> sh, SCORE_LEAST, SCORE_MOST)


def best(values: np.ndarray, count: int) -> np.ndarray:
    """The places of the `count` largest, the largest first; of equal ones the lower place."""
    return np.argsort(-values, kind="stable")[:count]


def candidates(bound: np.ndarray, quota: int) -> np.ndarray:
    """bool [..., pages]: pages that any query head has among its `quota` best by
    bound [..., heads, pages]."""
    order = np.argsort(-bound, axis=-1, kind="stable")[..., :quota]
    named = np.zeros(bound.shape, bool)
    np.put_along_axis(named, order, True, axis=-1)
    return named.any(axis=-2)


def weight(score: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(n, w): 2^score = w · 2^(n − 15), w of WEIGHT_BITS bits."""
    return score >> SCORE_FRACTION, WEIGHTS[score & (1 << SCORE_FRACTION) - 1]


def page_masses(score: np.ndarray, bits: int = MASS_BITS) -> tuple[np.ndarray, np.ndarray]:
    """(e, z) [..., pages] of scores [..., pages, tokens]: the sum of a page's weights is
    z · 2^(e − 15), e the largest n so far, z of `bits` bits. Token by token, since what is shifted
    out is lost."""
    n, w = weight(score)
    e, z = n[..., 0], w[..., 0]
    for token in range(1, score.shape[-1]):
        top = np.maximum(e, n[..., token])
        z = (z >> np.minimum(top - e, _MOST_SHIFT)) + (
            w[..., token] >> np.minimum(top - n[..., token], _MOST_SHIFT)
        )
        e, z = top, np.minimum(z, (1 << bits) - 1)
    return e, z


def remember(e: np.ndarray, z: np.ndarray) -> np.ndarray:
    """What is kept of a page's mass (e, z) [...] for when it is absent: its log2, linear between
    powers of two, in SEEN_BITS."""
    z = np.maximum(z, 1)
    whole = np.frexp(z.astype(np.float64))[1] - 1
    log = (e + whole - (WEIGHT_BITS - 1) << SCORE_FRACTION) + (z << SCORE_FRACTION >> whole)
    most = (1 << SEEN_BITS - 1) - 1
    return np.clip(log - (1 << SCORE_FRACTION) >> SEEN_SHIFT, -most, most)


def recall(seen: np.ndarray, bound: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(e, z) of absent pages: what they had when they were scored last; of those that never were
    three quarters of their bound."""
    score = np.where(seen == SEEN_NEVER, bound * 3 >> 2, seen << SEEN_SHIFT)
    return weight(score)


def unscored(bound: np.ndarray, named: np.ndarray) -> np.ndarray:
    """int64 [..., heads]: by how much, UQ8.16, the pages that no head named [..., pages] add to the
    mass of those named, as three quarters of their bounds [..., heads, pages] have it: the largest
    bounds are the furthest off. A bound of SCORE_LEAST has no weight to speak of: no page."""
    softer = bound * 3 >> 2
    e, all_ = page_masses(softer, BOUND_MASS_BITS)
    least = SCORE_LEAST * 3 >> 2
    at, inside = page_masses(np.where(named[..., None, :], softer, least), BOUND_MASS_BITS)
    inside >>= np.minimum(e - at, _MOST_SHIFT)
    ratio = (np.maximum(all_ - inside, 0) << SHARE_BITS) // np.maximum(inside, 1)
    return np.minimum(ratio, (1 << RATIO_BITS) - 1)


def mass_sums(
    e: np.ndarray, z: np.ndarray, counted: np.ndarray, named: np.ndarray, more: np.ndarray
) -> np.ndarray:
    """int64 [..., pages] from [..., heads, pages]: the sum over heads of each page's share of the
    head's whole mass, UQ0.16 each; of those `counted` [..., pages], the others have none. The whole
    has `more` [..., heads] (`unscored`) times the mass of the pages `named` in it."""
    counted, named = counted[..., None, :], named[..., None, :]
    top = np.where(counted, e, SCORE_LEAST >> SCORE_FRACTION).max(axis=-1, keepdims=True)
    aligned = np.where(counted, z >> np.clip(top - e, 0, _MOST_SHIFT), 0)
    inside = np.where(named, aligned, 0).sum(axis=-1)
    whole = aligned.sum(axis=-1) + (inside * more >> SHARE_BITS)
    reciprocal = (1 << RECIPROCAL_BITS) // np.maximum(whole, 1)
    shares = aligned * reciprocal[..., None] >> RECIPROCAL_BITS - SHARE_BITS
    return np.minimum(shares, (1 << SHARE_BITS) - 1).sum(axis=-2)


class Choice(NamedTuple):
    """What SELECT answers."""

    pages: np.ndarray  #: as chosen: those that always are, then by mass
    masses: np.ndarray  #: the sums of theirs
    missing: int  #: the sum of the masses of pages that are not at hand
    wanted: np.ndarray  #: pages that would be chosen, were they at hand; in that order


def choose(pages, masses, present, always, *, target: int, most: int) -> Choice:
    """Of `pages` (ascending) with their mass sums: those in `always`, then the best of those
    `present` that have mass, until the sum reaches `target`, at most `most`. `target` is a share,
    UQ0.16, times the number of heads. What is wanted is what would be chosen, were all there."""
    fixed = np.isin(pages, always)
    order = [*np.flatnonzero(fixed), *_until(target, masses, present, fixed, most)]
    every = _until(target, masses, present | True, fixed, most)
    wanted = [place for place in (*np.flatnonzero(fixed), *every) if not present[place]]
    return Choice(
        pages[order], masses[order], int(masses[~present].sum()), pages[np.array(wanted, np.int64)]
    )


def _until(target, masses, may, fixed, most) -> list[int]:
    """The best places with mass that `may` be chosen beside those `fixed`, until the sum of both
    reaches `target`."""
    held, chosen = int(masses[fixed].sum()), []
    may = may & ~fixed & (masses > 0)
    for place in best(np.where(may, masses, -1), most):
        if held >= target or not may[place]:
            break
        chosen.append(place)
        held += int(masses[place])
    return chosen


def select_pages(
    query: Blocks,
    keys: list[Blocks],
    pages: Summary,
    *,
    quota: int,
    target: int,
    most: int,
    m: int,
    sh: int,
) -> Choice:
    """A whole choice: a group's query [heads, lines], keys [tokens, lines] of each page to the
    newest, and summaries of those pages. `keys` is asked for the pages that are scored, in
    ascending order; those of a page that is not resident are all `nan`. A page without mass is not
    chosen for it."""
    names = name_pages(query, pages, quota=quota, m=m, sh=sh)
    scored = {page: keys[page] for page in np.flatnonzero(names.scored).tolist()}
    return choose_pages(query, names, scored, target=target, most=most, m=m, sh=sh)


class Known(NamedTuple):
    """What a device that estimates knows of the pages that are scored."""

    absent: list[int]  #: pages that were not there
    #: page → what its mass was for each head when it was scored last; noted anew by a choice
    seen: dict[int, np.ndarray]


class Named(NamedTuple):
    """What stage one finds."""

    bound: np.ndarray  #: int64 [heads, pages]; of the first and the newest page the least
    named: np.ndarray  #: bool [pages]: candidates

    @property
    def always(self) -> np.ndarray:
        """The first and the newest page."""
        return np.unique([0, len(self.named) - 1])

    @property
    def scored(self) -> np.ndarray:
        """bool [pages]: those whose keys are looked at."""
        counted = self.named.copy()
        counted[self.always] = True
        return counted


def name_pages(query: Blocks, pages: Summary, *, quota: int, m: int, sh: int) -> Named:
    """Stage one, from summaries of all pages to the newest."""
    newest = len(pages.e) - 1
    bound = bounds(query, pages, m, sh)
    bound[:, np.unique([0, newest])] = SCORE_LEAST
    named = candidates(bound[:, 1:newest], quota)
    return Named(bound, np.concatenate([[False], named, [False]])[: newest + 1])


def choose_pages(
    query: Blocks,
    names: Named,
    keys: dict[int, Blocks],
    *,
    target: int,
    most: int,
    m: int,
    sh: int,
    known: Known | None = None,
) -> Choice:
    """Stage two, masses and choice, from the keys of the pages that are scored, in ascending order;
    `known` of a device that estimates."""
    places = np.array(list(keys))
    masses = [page_masses(scores(query, keys[page], m, sh)[:, None]) for page in keys]
    e, z = (np.concatenate([part[k] for part in masses], axis=1) for k in (0, 1))
    there = np.ones(len(places), bool)
    if known is not None:
        there = ~np.isin(places, known.absent)
        _estimated(e, z, places, there, names, known.seen)
    here = names.named[places]
    more = unscored(names.bound, names.named) if here.any() else np.zeros(len(e), np.int64)
    sums = mass_sums(e, z, here | True, here, more)
    return choose(places, sums, there, names.always, target=target, most=most)


def _estimated(e, z, places, there, names, seen) -> None:
    """Masses (e, z) [heads, places], in ascending order, of pages that are not there as they were
    seen last; the others' are noted. But for the newest page."""
    for place, page in enumerate(places[:-1].tolist()):
        if there[place]:
            seen[page] = remember(e[:, place], z[:, place])
        else:
            last = seen.get(page, np.full(len(e), SEEN_NEVER))
            e[:, place], z[:, place] = recall(last, names.bound[:, page])

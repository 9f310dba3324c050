# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Choice of pages near memory, the executable specification (docs/select.md): block form of stored
keys and queries, page summaries, estimates, exact scores, masses, and which pages are chosen.

A **block** is 32 elements of one line: integers x, −127 … 127, and an exponent e, worth
x · 2^(e − 6). All functions take NumPy arrays and are exact: products and sums of elements stay
below 2^24, so that they may be taken in float32, where a matrix product is fast.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kelp_spec.formats import ELEMENTS, SCALE_NAN, Format, HostType
from kelp_spec.select import (
    ABSENT_MORE,
    ALIGNED_BITS,
    ALIGNED_FRACTION,
    BLOCK_EXPONENT_BITS,
    CODE_BITS,
    ESTIMATE_MASS_BITS,
    MASS_BITS,
    MEAN_BITS,
    NEAR,
    NEAR_PLACES,
    PLAN_FIELDS,
    PLANNED_BITS,
    PLANNED_FRACTION,
    RATIO_BITS,
    RECIPROCAL_BITS,
    SCORE_FRACTION,
    SCORE_LEAST,
    SCORE_MOST,
    SHARE_BITS,
    WEIGHT_BITS,
    record,
)

from . import codec

__all__ = [
    "MOST_MASS",
    "NONE",
    "Blocks",
    "Choice",
    "Named",
    "Plan",
    "absent_masses",
    "best",
    "candidates",
    "choose",
    "choose_pages",
    "estimates",
    "mass_sums",
    "name_pages",
    "of_host",
    "of_stored",
    "page_masses",
    "plan_of",
    "scores",
    "select_pages",
    "summary",
    "token_sums",
    "unscored",
    "weight",
]

#: 2^(f / 256) with 15 bits after the point, f = 0 … 255.
WEIGHTS = np.array(
    [round(2.0 ** (WEIGHT_BITS - 1 + f / (1 << SCORE_FRACTION))) for f in range(256)], np.int64
)
#: more than the bits of any sum: a page's mass has 24, the weights of 8192 estimates have 29
_MOST_SHIFT = 31
#: the estimate of a page that has none: less than any score, and of no weight beside one
NONE = -(1 << 40)
#: no sum of masses, and no bound of one, is more
MOST_MASS = (1 << 32) - 1


class Blocks(NamedTuple):
    """Lines in block form; a line with a NaN is all zeros and `nan`."""

    x: np.ndarray  #: int64 [..., lines, 32]
    e: np.ndarray  #: int64 [..., lines]
    nan: np.ndarray  #: bool [..., lines]


class Plan(NamedTuple):
    """How keys are summarised, element by element: what a host makes of keys and queries."""

    mean: np.ndarray  #: int64 [lines, 32], −128 … 127
    step: np.ndarray  #: int64 [lines, 32], log2 of a step, 0 … 7
    count: np.ndarray  #: int64 [lines, 32], bits of a code, 0 … 7
    e: np.ndarray  #: int64 [lines]: means are worth mean · 2^(e − 6), steps a quarter of that


def plan_of(lines: np.ndarray) -> Plan | None:
    """The plan in lines as a host writes them, uint8 [lines, 64]; None where one is no plan."""
    found = []
    for line in lines:
        fields = record(PLAN_FIELDS, line.tobytes())
        if not fields["planned"] or int.from_bytes(line.tobytes(), "little") >> _PLAN_BITS:
            return None
        found.append(
            [
                [_signed(fields[f"mean_{k}"], MEAN_BITS) for k in range(ELEMENTS)],
                [fields[f"step_{k}"] for k in range(ELEMENTS)],
                [fields[f"count_{k}"] for k in range(ELEMENTS)],
                [_signed(fields["exponent"], BLOCK_EXPONENT_BITS)] * ELEMENTS,
            ]
        )
    mean, step, count, e = np.array(found, np.int64).transpose(1, 0, 2)
    return Plan(mean, step, count, e[:, 0])


_PLAN_BITS = sum(bits for _, bits in PLAN_FIELDS)


def _signed(value: int, bits: int) -> int:
    return value - (value >> bits - 1 << bits)


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


def summary(keys: Blocks, plan: Plan) -> np.ndarray:
    """uint32 [..., lines] of keys [..., lines]: the code of each line. A line with a NaN counts as
    zeros."""
    by = (keys.e - plan.e + PLANNED_FRACTION)[..., None]
    left, right = np.clip(by, 0, PLANNED_BITS), np.clip(-by, 0, PLANNED_BITS)
    most = 1 << PLANNED_BITS - 1
    element = np.clip(keys.x << left >> right, -most, most - 1)
    half = np.where(plan.count > 0, 1 << np.maximum(plan.count - 1, 0), 0)
    step = element - (plan.mean << PLANNED_FRACTION) >> plan.step
    code = np.where(plan.count > 0, np.clip(step, -half, half - 1) + half, 0)
    # One behind the other, the first element's lowest; what finds no place is left out.
    at = np.cumsum(plan.count, axis=-1) - plan.count
    whole = np.where(at < CODE_BITS, code << np.minimum(at, CODE_BITS), 0).sum(axis=-1)
    return (whole & (1 << CODE_BITS) - 1).astype(np.uint32)


def estimates(query: Blocks, codes: np.ndarray, plan: Plan, m: int, sh: int) -> np.ndarray:
    """int64 [heads, pages]: what the best token of a page scores, as far as its codes tell."""
    return _page_scores(token_sums(query, codes, plan).max(axis=-1), m, sh)


def token_sums(query: Blocks, codes: np.ndarray, plan: Plan) -> np.ndarray:
    """int64 [heads, pages, tokens] from query [heads, lines] and codes [pages, tokens, lines]: each
    token's products as far as its codes tell, ALIGNED_FRACTION bits after the point, not scaled."""
    base, weights = _weights(query, plan)
    bits = (codes[..., None] >> np.arange(CODE_BITS, dtype=np.uint32) & 1).astype(np.float64)
    most = (1 << ALIGNED_BITS - 1) - 1
    raw = 0
    for line in range(codes.shape[-1]):
        # Below 2^30, so exact.
        found = np.tensordot(weights[:, line].astype(np.float64), bits[..., line, :], (-1, -1))
        raw += np.clip(found.astype(np.int64) + base[:, line, None, None], -most, most)
    return raw


def _page_scores(raw: np.ndarray, m: int, sh: int) -> np.ndarray:
    return np.clip(raw * m >> sh, SCORE_LEAST, SCORE_MOST)


def _weights(query: Blocks, plan: Plan) -> tuple[np.ndarray, np.ndarray]:
    """([heads, lines], [heads, lines, 32]): what a line scores whose code is 0, and what each bit
    of a code adds to it."""
    # A bit more after the point: codes stand for the middle of a step.
    up = query.e + plan.e - 12 - PLANNED_FRACTION - 1 + ALIGNED_FRACTION
    mean = plan.mean << PLANNED_FRACTION + 1
    lowest = np.where(plan.count > 0, (1 << plan.step) - (1 << plan.step + plan.count), 0)
    base = _aligned((query.x * (mean + lowest)).sum(axis=-1), up)
    weights = np.zeros(query.x.shape[:-1] + (CODE_BITS,), np.int64)
    for line in range(len(plan.e)):
        at = 0
        for k in range(ELEMENTS):
            for bit in range(plan.count[line, k]):
                if at < CODE_BITS:
                    worth = query.x[:, line, k] << plan.step[line, k] + 1 + bit
                    weights[:, line, at] = _aligned(worth, up[:, line])
                at += 1
    return base, weights


def scores(query: Blocks, keys: Blocks, m: int, sh: int) -> np.ndarray:
    """int64 [heads, tokens] from query [heads, lines] and keys [tokens, lines]: log2 of the weight
    of each token, SCORE_FRACTION bits of it after the point. A token with a NaN has the least."""
    dots = np.stack(
        [_product(query.x[:, b], keys.x[:, b].T) for b in range(query.x.shape[1])], axis=-1
    )
    found = _scaled(dots, query.e[:, None] + keys.e[None], m, sh)
    return np.where(keys.nan.any(axis=-1)[None], SCORE_LEAST, found)


def _product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a.astype(np.float32) @ b.astype(np.float32)).astype(np.int64)


def _scaled(dots: np.ndarray, exponent: np.ndarray, m: int, sh: int) -> np.ndarray:
    """A line's product to ALIGNED_FRACTION bits after the point, clamped; their sum times
    m · 2^−sh, clamped."""
    return _page_scores(_aligned(dots, exponent - 12 + ALIGNED_FRACTION).sum(axis=-1), m, sh)


def _aligned(product: np.ndarray, up: np.ndarray) -> np.ndarray:
    """product · 2^up, rounded down and clamped."""
    most = (1 << ALIGNED_BITS - 1) - 1
    left, right = np.clip(up, 0, ALIGNED_BITS), np.clip(-up, 0, ALIGNED_BITS)
    return np.clip(product << left >> right, -most, most)


def best(values: np.ndarray, count: int) -> np.ndarray:
    """The places of the `count` largest, the largest first; of equal ones the lower place."""
    return np.argsort(-values, kind="stable")[:count]


def candidates(estimate: np.ndarray, quota: int) -> np.ndarray:
    """bool [..., pages]: pages that any query head has among its `quota` best by
    estimate [..., heads, pages], scaled or not."""
    order = np.argsort(-estimate, axis=-1, kind="stable")[..., :quota]
    named = np.zeros(estimate.shape, bool)
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


def absent_masses(estimate: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(e, z) of pages that are absent, from their estimates."""
    return weight(np.minimum(estimate + ABSENT_MORE, SCORE_MOST))


def unscored(estimate: np.ndarray, named: np.ndarray) -> np.ndarray:
    """int64 [..., heads]: by how much, UQ8.16, the pages that no head named [..., pages] add to the
    mass of those named, as their estimates [..., heads, pages] have it; a page without one does not
    count."""
    e, all_ = page_masses(estimate, ESTIMATE_MASS_BITS)
    at, inside = page_masses(np.where(named[..., None, :], estimate, NONE), ESTIMATE_MASS_BITS)
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
    needed: np.ndarray  #: int64: their masses; those that always are have as much as can be


def choose(pages, masses, present, always, *, target: int, most: int) -> Choice:
    """Of `pages` (ascending) with their mass sums: those in `always`, then the best of those
    `present` that have mass, until the sum reaches `target`, at most `most`. `target` is a share,
    UQ0.16, times the number of heads. What is wanted is what would be chosen, were all there."""
    fixed = np.isin(pages, always)
    order = [*np.flatnonzero(fixed), *_until(target, masses, present, fixed, most)]
    every = _until(target, masses, present | True, fixed, most)
    wanted = [place for place in (*np.flatnonzero(fixed), *every) if not present[place]]
    wanted = np.array(wanted, np.int64)
    return Choice(
        pages[order],
        masses[order],
        int(masses[~present].sum()),
        pages[wanted],
        np.where(fixed[wanted], MOST_MASS, masses[wanted]),
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
    summaries: tuple[np.ndarray, Plan],
    *,
    quota: int,
    target: int,
    most: int,
    m: int,
    sh: int,
) -> Choice:
    """A whole choice: a group's query [heads, lines], keys [tokens, lines] of each page to the
    newest, and the codes and the plan of their summaries. `keys` is asked for the pages that are
    scored, in ascending order; those of a page that is not resident are all `nan`. A page without
    mass is not chosen for it."""
    names = name_pages(query, *summaries, quota=quota, m=m, sh=sh)
    scored = {}
    for page in np.flatnonzero(names.scored).tolist():
        at = names.looked(page, len(keys[page].e))
        scored[page] = Blocks(*(part[at] for part in keys[page]))
    return choose_pages(query, names, scored, target=target, most=most, m=m, sh=sh)


class Named(NamedTuple):
    """What stage one finds."""

    estimate: np.ndarray  #: int64 [heads, pages]; the first and the newest page have none
    named: np.ndarray  #: bool [pages]: candidates
    first: np.ndarray  #: int64 [heads]: what the first page is estimated to score
    near: np.ndarray  #: bool [pages, tokens]: of candidates, whose keys are looked at

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

    def looked(self, page: int, tokens: int) -> np.ndarray:
        """The tokens of a page that are looked at: of the first and the newest page all of its
        `tokens`, of a candidate those near."""
        return np.flatnonzero(self.near[page]) if self.named[page] else np.arange(tokens)


def name_pages(
    query: Blocks, codes: np.ndarray, plan: Plan, *, quota: int, m: int, sh: int
) -> Named:
    """Stage one, from summaries [pages, tokens, lines] of all pages to the newest.

    Of a candidate those tokens are looked at that a head estimates at no less than the last page
    that it names, but for NEAR."""
    newest = len(codes) - 1
    raw = token_sums(query, codes, plan)
    top = raw.max(axis=-1)
    estimate = _page_scores(top, m, sh)
    first = estimate[:, 0].copy()
    estimate[:, np.unique([0, newest])] = NONE
    named, near = np.zeros(newest + 1, bool), np.zeros(raw.shape[1:], bool)
    if newest > 1:
        between = top[:, 1:newest]
        named[1:newest] = candidates(between, quota)
        last = -np.sort(-between, axis=-1)[:, min(quota, newest - 1) - 1]
        near = (raw >= (last - (NEAR << sh >> NEAR_PLACES))[:, None, None]).any(axis=0)
    return Named(estimate, named, first, near)


def choose_pages(
    query: Blocks,
    names: Named,
    keys: dict[int, Blocks],
    *,
    target: int,
    most: int,
    m: int,
    sh: int,
    absent: list[int] | None = None,
) -> Choice:
    """Stage two, masses and choice, from the keys that are looked at of the pages that are scored,
    in ascending order; of a device that estimates also which of them were `absent`."""
    places = np.array(list(keys))
    masses = [page_masses(scores(query, keys[page], m, sh)[:, None]) for page in keys]
    e, z = (np.concatenate([part[k] for part in masses], axis=1) for k in (0, 1))
    there = np.ones(len(places), bool)
    if absent is not None:
        there = ~np.isin(places, absent)
        # But for the newest page, which has no summary.
        guessed = ~there & (np.arange(len(places)) < len(places) - 1)
        found = np.where(places == 0, names.first[:, None], names.estimate[:, places])
        e[:, guessed], z[:, guessed] = absent_masses(found[:, guessed])
    here = names.named[places]
    more = unscored(names.estimate, names.named) if here.any() else np.zeros(len(e), np.int64)
    sums = mass_sums(e, z, here | True, here, more)
    return choose(places, sums, there, names.always, target=target, most=most)

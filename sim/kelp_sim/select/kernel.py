# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The choice of one KV head compiled: docs/select.md with arithmetic of its own, equal bit for bit
to :mod:`kelp_golden.select`, and beside it what that leaves open: estimates of absent pages.

Pages are 0 … newest. ``state`` of a page is 1 where it is resident.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

from kelp_golden.select import WEIGHTS
from kelp_spec.select import (
    ALIGNED_BITS,
    ALIGNED_FRACTION,
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
)

__all__ = ["RESIDENT", "Asked", "Head", "choose", "consider"]

RESIDENT = 1  #: `state` of a page that may be read
_CLAMP = (1 << ALIGNED_BITS - 1) - 1
_FRACTION = (1 << SCORE_FRACTION) - 1
_MASS, _BOUND_MASS = (1 << MASS_BITS) - 1, (1 << BOUND_MASS_BITS) - 1


@numba.njit(cache=True)
def _remember(e, z):
    whole, rest = 0, max(z, 1)
    while rest > 1:
        rest >>= 1
        whole += 1
    log = (e + whole - 15 << 8) + (max(z, 1) << 8 >> whole) - 256
    most = (1 << SEEN_BITS - 1) - 1
    return min(max(log >> SEEN_SHIFT, -most), most)


class Head(NamedTuple):
    """What a KV head keeps, in block form."""

    x: np.ndarray  #: keys, int8 [tokens, lines, 32]
    e: np.ndarray  #: their exponents [tokens, lines]
    low: np.ndarray  #: summaries, int8 [pages, lines, 32]
    high: np.ndarray
    se: np.ndarray  #: [pages, lines]
    state: np.ndarray  #: [pages]
    seen: np.ndarray  #: int16 [pages, heads]: log2 of the mass that each had when scored last


class Asked(NamedTuple):
    """What a SELECT says."""

    newest: int  #: page
    tokens: int  #: of it that count
    size: int  #: tokens of every other page
    quota: int
    m: int
    sh: int


@numba.njit(cache=True)
def _down(x, places):
    return x >> min(places, 62)


@numba.njit(cache=True)
def _aligned(dot, exponent):
    up = exponent - 12 + ALIGNED_FRACTION
    if up >= 0:
        dot = dot << min(up, ALIGNED_BITS)
    else:
        dot = dot >> min(-up, ALIGNED_BITS)
    return min(max(dot, -_CLAMP), _CLAMP)


@numba.njit(cache=True)
def _scaled(raw, m, sh):
    return min(max(raw * m >> sh, SCORE_LEAST), SCORE_MOST)


@numba.njit(cache=True)
def _bound(qx, qe, low, high, se, m, sh):
    raw = np.int64(0)
    for line in range(len(qe)):
        dot = np.int64(0)
        for i in range(qx.shape[1]):
            x = np.int64(qx[line, i])
            dot += x * (np.int64(high[line, i]) if x >= 0 else np.int64(low[line, i]))
        raw += _aligned(dot, np.int64(qe[line]) + se[line] + 1)
    return _scaled(raw, m, sh)


@numba.njit(cache=True)
def _score(qx, qe, key, ke, m, sh):
    raw = np.int64(0)
    for line in range(len(qe)):
        dot = np.int64(0)
        for i in range(qx.shape[1]):
            dot += np.int64(qx[line, i]) * np.int64(key[line, i])
        raw += _aligned(dot, np.int64(qe[line]) + ke[line])
    return _scaled(raw, m, sh)


@numba.njit(cache=True)
def _add(e, z, score, most):
    """(e, z) with one weight more; e of −2^40 is nothing yet."""
    n, w = score >> SCORE_FRACTION, WEIGHTS[score & _FRACTION]
    top = max(e, n)
    return top, min(_down(z, top - e) + _down(w, top - n), most)


@numba.njit(cache=True)
def _more(bound, named):
    """What the pages that no head named add, of one head: UQ8.16."""
    least = SCORE_LEAST * 3 >> 2
    e, z = -(1 << 40), np.int64(0)
    at, inside = -(1 << 40), np.int64(0)
    for page in range(len(bound)):
        softer = bound[page] * 3 >> 2
        e, z = _add(e, z, softer, _BOUND_MASS)
        at, inside = _add(at, inside, softer if named[page] else least, _BOUND_MASS)
    inside = _down(inside, e - at)
    return min((max(z - inside, 0) << SHARE_BITS) // max(inside, 1), (1 << RATIO_BITS) - 1)


@numba.njit(cache=True)
def _shares(e, z, counted, named, more, sums):
    """Adds each page's share of one head's mass to ``sums``."""
    top = np.int64(SCORE_LEAST >> SCORE_FRACTION)
    for page in range(len(e)):
        if counted[page]:
            top = max(top, e[page])
    whole, inside = np.int64(0), np.int64(0)
    for page in range(len(e)):
        if counted[page]:
            aligned = _down(z[page], top - e[page])
            whole += aligned
            if named[page]:
                inside += aligned
    whole += inside * more >> SHARE_BITS
    reciprocal = (1 << RECIPROCAL_BITS) // max(whole, 1)
    for page in range(len(e)):
        if counted[page]:
            share = _down(z[page], top - e[page]) * reciprocal >> RECIPROCAL_BITS - SHARE_BITS
            sums[page] += min(share, (1 << SHARE_BITS) - 1)


@numba.njit(cache=True)
def consider(qx, qe, head, asked, sums, true):
    """Stage one and two of a KV head: query qx [heads, lines, 32], qe [heads, lines].

    Into ``sums`` [newest + 1] the mass of each page, a sum of shares over heads, those of absent
    pages estimated as what they were when they were scored last; into ``true`` the same with
    everything resident. What was seen of those that are resident is renewed. Returns how many
    candidates there are, how many of them absent.
    """
    keys, ke, low, high, se, state, seen = head
    newest, tokens, size, quota, m, sh = asked
    heads, pages = len(qx), newest + 1
    bound = np.full((heads, pages), SCORE_LEAST)
    named, counted = np.zeros(pages, np.bool_), np.zeros(pages, np.bool_)
    for h in range(heads):
        for page in range(1, newest):
            bound[h, page] = _bound(qx[h], qe[h], low[page], high[page], se[page], m, sh)
        if newest > 1:
            order = np.argsort(-bound[h, 1:newest], kind="mergesort")
            for place in order[:quota]:
                named[place + 1] = True
    counted[:] = named
    counted[0] = counted[newest] = True
    sums[:pages] = 0
    true[:pages] = 0
    e, z = np.zeros(pages, np.int64), np.zeros(pages, np.int64)
    exact_e, exact_z = np.zeros(pages, np.int64), np.zeros(pages, np.int64)
    for h in range(heads):
        for page in range(pages):
            if not counted[page]:
                continue
            at, found = -(1 << 40), np.int64(0)
            for token in range(page * size, page * size + (tokens if page == newest else size)):
                score = _score(qx[h], qe[h], keys[token], ke[token], m, sh)
                at, found = _add(at, found, score, _MASS)
            e[page] = exact_e[page] = at
            z[page] = exact_z[page] = found
            if page < newest:
                if state[page] == RESIDENT:
                    seen[page, h] = _remember(at, found)
                else:
                    score = np.int64(seen[page, h]) << SEEN_SHIFT
                    if seen[page, h] == SEEN_NEVER:
                        score = bound[h, page] * 3 >> 2
                    e[page], z[page] = score >> SCORE_FRACTION, WEIGHTS[score & _FRACTION]
        more = _more(bound[h], named)
        _shares(e, z, counted, named, more, sums)
        _shares(exact_e, exact_z, counted, named, more, true)
    candidates, absent = 0, 0
    for page in range(pages):
        if named[page]:
            candidates += 1
            absent += state[page] != RESIDENT
    return candidates, absent


@numba.njit(cache=True)
def choose(sums, state, newest, target, most, chosen, wanted):
    """Into ``chosen`` [pages] bool: the first page where it is resident and the newest, then the
    best of those resident until the sum reaches ``target``, at most ``most``. Into ``wanted``: the
    absent pages that would be among them if they were here. Returns the mass of all pages that are
    scored and absent."""
    pages = newest + 1
    order = np.argsort(-sums[:pages], kind="mergesort")
    missing = np.int64(0)
    chosen[:], wanted[:] = False, False
    chosen[0] = state[0] == RESIDENT
    wanted[0] = not chosen[0] and newest > 0
    missing += sums[0] if wanted[0] else 0
    chosen[newest] = True
    base = sums[0] + (sums[newest] if newest else 0)
    held, taken, all_held, all_taken = base, 0, base, 0
    for page in order:
        if sums[page] <= 0:
            break
        if page == 0 or page == newest:
            continue
        here = state[page] == RESIDENT
        if not here:
            missing += sums[page]
        if all_held < target and all_taken < most:
            all_held += sums[page]
            all_taken += 1
            wanted[page] = not here
        if here and held < target and taken < most:
            held += sums[page]
            taken += 1
            chosen[page] = True
    return missing

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""First-come queues, compiled: an open one of several servers, and decoding sessions that share a
link, a memory and a flash tier with what is written.

Times are in one unit, the caller's. Queues are exact (every customer in order of arrival); equal
seeds give equal results.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np

from ..compiled import njit

__all__ = ["READ_ONLY", "Busy", "Flash", "Reads", "Writes", "decode", "waits"]


class Reads(NamedTuple):
    """What a layer of a session reads before it computes."""

    layers: int
    compute: float  #: time that a layer computes for
    link: float  #: time that its pages hold the shared link
    fixed: float  #: from the later of link and memory until they have arrived
    pages: int
    miss_rate: float  #: chance of each page to be on flash


class Flash(NamedTuple):
    """The tier that missing pages come from."""

    page: float  #: time that a page holds it
    latency: float  #: until the last page of a read arrives
    slow_share: float  #: chance of a page to be slow
    slow_latency: float  #: latency of a read with a slow page


class Writes(NamedTuple):
    """What a session writes, and what becomes of it. A page is written back once at most, when it
    leaves DRAM: what is full does not change."""

    #: how long the lines of one token and layer hold the link (the controller takes a line a cycle,
    #: read or write)
    token_link: float
    token_memory: float  #: … and the memory
    page_memory: float  #: one page into memory or out of it
    page_flash: float  #: one page onto flash
    heads: float  #: pages that a layer opens every ``page_tokens`` tokens
    page_tokens: int
    leaves: float  #: share of the pages that leave DRAM
    #: pages that may wait to be written back before a page to be read waits for a frame
    free_frames: float
    #: pages of each queue that are written before a session begins to decode
    prefill_pages: int
    prefill_every: float  #: time from one of them to the next


READ_ONLY = Writes(0.0, 0.0, 0.0, 0.0, 0.0, 1, 0.0, 0.0, 0, 0.0)


class Busy(NamedTuple):
    """Shares of the time; ``written``: of it, what flash spent on write-backs."""

    link: float
    memory: float
    flash: float
    written: float


@njit
def waits(arrival: np.ndarray, service: np.ndarray, servers: int) -> np.ndarray:
    """How long each customer waits before it is served; ``arrival`` ascends."""
    free = [0.0] * servers
    out = np.empty(len(arrival))
    for i in range(len(arrival)):
        start = max(heapq.heappop(free), arrival[i])
        out[i] = start - arrival[i]
        heapq.heappush(free, start + service[i])
    return out


def decode(begin, steps, reads, flash, seed, writes):
    """Step times [sessions, steps] of sessions that begin to decode at ``begin`` (float64,
    ascending), and how :class:`Busy` what they share was.

    For each layer a session asks for its pages (:class:`Reads`): they hold the shared link, and the
    shared memory for a page's time each; each page that misses holds the shared :class:`Flash` and
    the memory once more. When hits and misses are there the layer computes, writes its token
    (:class:`Writes`), and the next is asked for. Endpoints share their requests evenly, so that
    several act as one of their summed rate.

    Flash reads go before write-backs, but for the one that has begun, and for those that
    ``free_frames`` cannot hold.
    """
    # Compiled code that made the tuple itself would call Python for that, where a Ctrl-C of
    # meanwhile is taken: numba does not expect one there, and ends with a segmentation fault.
    out, *busy = _decode(begin, steps, reads, flash, seed, writes)
    return out, Busy(*busy)


@njit
def _decode(begin, steps, reads, flash, seed, writes):
    """Of :func:`decode`: the step times, and each share."""
    np.random.seed(seed)
    layers, compute, link, fixed, pages, miss_rate = reads
    page, flash_latency, slow_share, slow_latency = flash
    sessions = len(begin)
    out = np.zeros((sessions, steps))
    waiting = [(begin[s], s) for s in range(sessions)]
    if writes.prefill_pages > 0:
        for s in range(sessions):
            waiting.append((begin[s] - writes.prefill_pages * writes.prefill_every, sessions + s))
    heapq.heapify(waiting)
    layer, step = np.zeros(sessions, np.int64), np.zeros(sessions, np.int64)
    started, prefilled = begin.copy(), np.zeros(sessions, np.int64)
    origin = waiting[0][0]
    link_free = memory_free = flash_free = end = origin
    link_busy = memory_busy = flash_busy = written = backlog = 0.0
    token_lines = layers * writes.page_tokens
    while len(waiting):
        now, s = heapq.heappop(waiting)
        idle = now - flash_free  # flash has had this long for what waits to be written
        if idle > 0:
            done = min(backlog, idle)
            backlog -= done
            written += done
            flash_free = now
        if s >= sessions:  # a page of every queue, of a session in its prefill
            s -= sessions
            left = np.random.binomial(int(layers * writes.heads), writes.leaves)
            link_free = max(link_free, now) + token_lines * writes.token_link
            memory = token_lines * writes.token_memory + left * writes.page_memory
            memory_free = max(memory_free, now) + memory
            link_busy += token_lines * writes.token_link
            memory_busy += memory
            backlog += left * writes.page_flash
            prefilled[s] += 1
            if prefilled[s] < writes.prefill_pages:
                heapq.heappush(waiting, (now + writes.prefill_every, sessions + s))
            continue
        missed = np.random.binomial(pages, miss_rate) if miss_rate > 0 else 0
        left = (
            np.random.binomial(int(writes.heads), writes.leaves)
            if (step[s] + s) % writes.page_tokens == 0 and writes.leaves > 0
            else 0
        )
        link_free = max(link_free, now) + link + writes.token_link
        memory = (pages + missed + left) * writes.page_memory + writes.token_memory
        memory_free = max(memory_free, now) + memory
        link_busy += link + writes.token_link
        memory_busy += memory
        done = max(link_free, memory_free) + fixed
        if missed > 0:
            first = 0.0
            if idle > 0 and backlog > 0:
                # what is left of the page that is being written
                first = min(backlog, writes.page_flash * np.random.random())
            first = max(first, backlog - writes.free_frames * writes.page_flash)
            backlog -= first
            written += first
            flash_free += first + missed * page
            flash_busy += missed * page
            slow = slow_share > 0 and np.random.random() < 1 - (1 - slow_share) ** missed
            done = max(done, flash_free + (slow_latency if slow else flash_latency))
        backlog += left * writes.page_flash
        done += compute
        end = max(end, done)
        layer[s] += 1
        if layer[s] == layers:
            out[s, step[s]] = done - started[s]
            layer[s], started[s] = 0, done
            step[s] += 1
        if step[s] < steps:
            heapq.heappush(waiting, (done, s))
    span = end - origin
    flash_share = (flash_busy + written) / span
    return out, link_busy / span, memory_busy / span, flash_share, written / span

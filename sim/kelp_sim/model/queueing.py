# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""First-come queues, compiled: an open one of several servers, and decoding sessions that share a link and a flash tier.

Times are in one unit, the caller's. Queues are exact (every customer in order of arrival); equal seeds give equal results.
"""

from __future__ import annotations

import heapq

import numba
import numpy as np

__all__ = ["decode", "waits"]


@numba.njit(cache=True)
def waits(arrival: np.ndarray, service: np.ndarray, servers: int) -> np.ndarray:
    """How long each customer waits before it is served; ``arrival`` ascends."""
    free = [0.0] * servers
    out = np.empty(len(arrival))
    for i in range(len(arrival)):
        start = max(heapq.heappop(free), arrival[i])
        out[i] = start - arrival[i]
        heapq.heappush(free, start + service[i])
    return out


@numba.njit(cache=True)
def decode(begin, steps, layers, compute, link, fixed, pages, miss_rate, page, flash_latency, slow_share, slow_latency, seed):
    """Step times [sessions, steps] of sessions that begin at ``begin`` (float64, ascending), and the shares of the time that link and flash were busy.

    For each layer a session asks for its pages: they hold the shared link for ``link`` and arrive ``fixed`` later; each of ``pages`` misses with chance
    ``miss_rate`` and holds the shared flash for ``page``; the last of them arrives ``flash_latency`` later, or ``slow_latency`` where one is slow (chance
    ``slow_share`` each). When both are there the layer computes for ``compute``, and the next is asked for. Endpoints share their requests evenly, so that
    several act as one of their summed rate.
    """
    np.random.seed(seed)
    sessions = len(begin)
    out = np.zeros((sessions, steps))
    waiting = [(begin[s], s) for s in range(sessions)]
    heapq.heapify(waiting)
    layer, step, started = np.zeros(sessions, np.int64), np.zeros(sessions, np.int64), begin.copy()
    link_free = flash_free = link_busy = flash_busy = end = 0.0
    while len(waiting):
        now, s = heapq.heappop(waiting)
        link_free = max(link_free, now) + link
        link_busy += link
        done = link_free + fixed
        missed = np.random.binomial(pages, miss_rate) if miss_rate > 0 else 0
        if missed > 0:
            flash_free = max(flash_free, now) + missed * page
            flash_busy += missed * page
            slow = slow_share > 0 and np.random.random() < 1 - (1 - slow_share) ** missed
            done = max(done, flash_free + (slow_latency if slow else flash_latency))
        done += compute
        end = max(end, done)
        layer[s] += 1
        if layer[s] == layers:
            out[s, step[s]] = done - started[s]
            layer[s], started[s] = 0, done
            step[s] += 1
        if step[s] < steps:
            heapq.heappush(waiting, (done, s))
    span = end - begin[0]
    return out, link_busy / span, flash_busy / span

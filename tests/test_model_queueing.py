# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The queueing simulation against closed forms: M/D/1, M/M/1, M/M/c, and the bounds of a closed loop."""

import math

import numpy as np
import pytest

from kelp_sim.model.queueing import decode, waits

CUSTOMERS = 2_000_000


def arrivals(rate, seed=1, count=CUSTOMERS):
    return np.cumsum(np.random.default_rng(seed).exponential(1 / rate, count))


def erlang_c(servers, load):
    """Chance to wait in M/M/c with `load` = arrival rate / service rate."""
    top = load**servers / math.factorial(servers) * servers / (servers - load)
    return top / (sum(load**k / math.factorial(k) for k in range(servers)) + top)


@pytest.mark.parametrize("rho", [0.3, 0.7, 0.9])
def test_m_d_1(rho):
    found = waits(arrivals(rho), np.ones(CUSTOMERS), 1)
    assert found.mean() == pytest.approx(rho / (2 * (1 - rho)), rel=0.05)
    assert (found == 0).mean() == pytest.approx(1 - rho, abs=0.01)


@pytest.mark.parametrize("servers,rho", [(1, 0.8), (2, 0.7), (8, 0.8)])
def test_m_m_c(servers, rho):
    service = np.random.default_rng(2).exponential(1.0, CUSTOMERS)
    found = waits(arrivals(rho * servers), service, servers)
    wait = erlang_c(servers, rho * servers)
    assert found.mean() == pytest.approx(wait / (servers * (1 - rho)), rel=0.06)
    assert (found > 0).mean() == pytest.approx(wait, abs=0.015)


def alone(begin, steps=1, layers=1, **changed):
    chosen = dict(compute=0.0, link=0.0, fixed=0.0, pages=0, miss_rate=0.0, page=0.0, flash_latency=0.0, slow_share=0.0, slow_latency=0.0) | changed
    return decode(np.asarray(begin, np.float64), steps, layers, *chosen.values(), 1)


def test_sessions_of_one_layer_are_an_m_d_1_link():
    times, link, _ = alone(arrivals(0.8, count=200_000), link=1.0)
    assert times.mean() == pytest.approx(1 + 0.8 / 0.4, rel=0.05) and link == pytest.approx(0.8, abs=0.01)


def test_flash_is_a_queue_of_its_own():
    # Every page misses: 4 pages hold the flash for 0.2 each, which is M/D/1 at 0.8 too; the link is idle meanwhile and the read takes 3 more.
    times, _, busy = alone(arrivals(1.0, count=200_000), pages=4, miss_rate=1.0, page=0.2, flash_latency=3.0)
    assert times.mean() == pytest.approx(0.8 + 3 + 0.8 * 0.8 / 0.4, rel=0.05) and busy == pytest.approx(0.8, abs=0.01)


def test_one_session_alone_by_hand():
    # Each of 3 layers: the link for 2 and 0.5 of latency, flash 1 + 4 beside it, then compute of 10.
    times, link, _ = alone([0.0], steps=2, layers=3, compute=10.0, link=2.0, fixed=0.5, pages=1, miss_rate=1.0, page=1.0, flash_latency=4.0)
    assert times.tolist() == [[45.0, 45.0]] and link == pytest.approx(6 * 2 / 90)


@pytest.mark.parametrize("sessions", [1, 3, 6, 12])
def test_a_closed_loop_is_bound_by_its_cycle_or_its_link(sessions):
    # One layer: cycle of 5 + 1 alone; n sessions share a link of 1: at best max(6, n) each.
    times, link, _ = alone(np.zeros(sessions), steps=200, compute=5.0, link=1.0)
    assert times[:, 20:].mean() == pytest.approx(max(6, sessions), rel=0.01) and link == pytest.approx(min(1, sessions / 6), abs=0.02)


def test_slow_reads_come_as_often_as_asked():
    times, _, _ = alone(np.arange(50_000) * 100.0, pages=10, miss_rate=1.0, page=0.0, flash_latency=1.0, slow_share=0.01, slow_latency=50.0)
    assert (times == 50).mean() == pytest.approx(1 - 0.99**10, rel=0.05) and set(np.unique(times).tolist()) == {1.0, 50.0}

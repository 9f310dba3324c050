# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The queueing simulation against closed forms: M/D/1, M/M/1, M/M/c, two classes in turn and in
priority, and the bounds of a closed loop."""

import math
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from kelp_sim.model.queueing import READ_ONLY, Flash, Reads, decode, waits

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


IDLE = Reads(layers=1, compute=0.0, link=0.0, fixed=0.0, pages=0, miss_rate=0.0)


FAST = Flash(page=0.0, latency=0.0, slow_share=0.0, slow_latency=0.0)


def alone(begin, steps=1, flash=FAST, writes=None, **reads):
    return decode(
        np.asarray(begin, np.float64),
        steps,
        IDLE._replace(**reads),
        flash,
        1,
        READ_ONLY._replace(**writes or {}),
    )


def test_sessions_of_one_layer_are_an_m_d_1_link():
    times, busy = alone(arrivals(0.8, count=200_000), link=1.0)
    assert times.mean() == pytest.approx(1 + 0.8 / 0.4, rel=0.05) and busy.link == pytest.approx(
        0.8, abs=0.01
    )


def test_flash_is_a_queue_of_its_own():
    # Every page misses: 4 pages hold the flash for 0.2 each, which is M/D/1 at 0.8 too; the link is
    # idle meanwhile and the read takes 3 more.
    flash = FAST._replace(page=0.2, latency=3.0)
    times, busy = alone(arrivals(1.0, count=200_000), flash=flash, pages=4, miss_rate=1.0)
    assert times.mean() == pytest.approx(
        0.8 + 3 + 0.8 * 0.8 / 0.4, rel=0.05
    ) and busy.flash == pytest.approx(0.8, abs=0.01)
    assert busy.written == 0


def test_one_session_alone_by_hand():
    # Each of 3 layers: the link for 2 and 0.5 of latency, flash 1 + 4 beside it, then compute of
    # 10.
    times, busy = alone(
        [0.0],
        steps=2,
        flash=FAST._replace(page=1.0, latency=4.0),
        layers=3,
        compute=10.0,
        link=2.0,
        fixed=0.5,
        pages=1,
        miss_rate=1.0,
    )
    assert times.tolist() == [[45.0, 45.0]] and busy.link == pytest.approx(6 * 2 / 90)


@pytest.mark.parametrize("sessions", [1, 3, 6, 12])
def test_a_closed_loop_is_bound_by_its_cycle_or_its_link(sessions):
    # One layer: cycle of 5 + 1 alone; n sessions share a link of 1: at best max(6, n) each.
    times, busy = alone(np.zeros(sessions), steps=200, compute=5.0, link=1.0)
    assert times[:, 20:].mean() == pytest.approx(
        max(6, sessions), rel=0.01
    ) and busy.link == pytest.approx(min(1, sessions / 6), abs=0.02)


def test_slow_reads_come_as_often_as_asked():
    flash = FAST._replace(latency=1.0, slow_share=0.01, slow_latency=50.0)
    times, _ = alone(np.arange(50_000) * 100.0, flash=flash, pages=10, miss_rate=1.0)
    assert (times == 50).mean() == pytest.approx(1 - 0.99**10, rel=0.05) and set(
        np.unique(times).tolist()
    ) == {1.0, 50.0}


READ, WRITE, RATE = 1.0, 0.6, 0.5


def mixed(free_frames):
    """Reads that arrive at random, and one write-back for each, at random too: written so long
    before its read that they have nothing to do with each other."""
    writes = dict(
        page_flash=WRITE,
        heads=1.0,
        page_tokens=1 << 30,
        leaves=1.0,
        free_frames=free_frames,
        prefill_pages=1,
        prefill_every=5000.0,
    )
    return alone(
        arrivals(RATE, count=300_000),
        flash=FAST._replace(page=READ),
        writes=writes,
        pages=1,
        miss_rate=1.0,
    )


def test_write_backs_in_turn_are_an_m_g_1():
    # Without a free frame a read waits for every write-back before it: wait = λ(r² + w²)/2 / (1 −
    # λ(r + w)).
    times, busy = mixed(0.0)
    wait = RATE * (READ**2 + WRITE**2) / 2 / (1 - RATE * (READ + WRITE))
    assert times.mean() == pytest.approx(READ + wait, rel=0.03)
    assert busy.flash == pytest.approx(
        RATE * (READ + WRITE), abs=0.01
    ) and busy.written == pytest.approx(RATE * WRITE, abs=0.01)


def test_write_backs_that_can_wait_delay_a_read_by_what_is_left_of_one():
    # Reads first, not breaking into a write-back: wait = λ(r² + w²)/2 / (1 − λr).
    times, busy = mixed(1e9)
    assert times.mean() == pytest.approx(
        READ + RATE * (READ**2 + WRITE**2) / 2 / (1 - RATE * READ), rel=0.03
    )
    assert busy.written == pytest.approx(RATE * WRITE, abs=0.01)


def test_few_free_frames_are_between():
    none, few, many = (mixed(frames)[0].mean() for frames in (0.0, 2.0, 1e9))
    assert many < few < none


def test_memory_is_a_queue_of_its_own():
    # 4 pages of 0.2 each: M/D/1 at 0.8. Missed, they come into memory too: twice the work.
    times, busy = alone(arrivals(1.0, count=200_000), pages=4, writes=dict(page_memory=0.2))
    assert times.mean() == pytest.approx(
        0.8 + 0.8 * 0.8 / 0.4, rel=0.05
    ) and busy.memory == pytest.approx(0.8, abs=0.01)
    assert alone(
        arrivals(1.0, count=200_000), pages=4, miss_rate=1.0, writes=dict(page_memory=0.1)
    )[1].memory == pytest.approx(0.8, abs=0.01)


def test_a_prefill_by_hand():
    # 3 pages of 2 heads and 2 layers, 4 tokens each, every 10: each holds the link for 4·2·0.5 = 4,
    # the memory for 4·2·0.25 + 4·0.1 (all of them leave), and flash for 4·0.5. The session begins
    # at 0, when all is done: 1 page for its token's layer at steps 0 and 4 of 6.
    writes = dict(
        token_link=0.5,
        token_memory=0.25,
        page_memory=0.1,
        page_flash=0.5,
        heads=2.0,
        page_tokens=4,
        leaves=1.0,
        free_frames=9.0,
        prefill_pages=3,
        prefill_every=10.0,
    )
    times, busy = alone([0.0], steps=6, layers=2, compute=10.0, writes=writes)
    span = 30 + 12 * 10.5
    assert times.tolist() == [[21.0] * 6]
    assert busy.link == pytest.approx((3 * 4 + 12 * 0.5) / span) and busy.memory == pytest.approx(
        (3 * 2.4 + 12 * 0.25 + 2 * 2 * 2 * 0.1) / span
    )
    assert busy.written == pytest.approx((3 * 2 + 2 * 2 * 2 * 0.5) / span) == busy.flash


def test_an_interrupt_within_compiled_code_is_one():
    """A signal that comes while it runs is taken behind it: a process of its own, since it used to
    end with a segmentation fault."""
    code = """
        import signal
        import numpy as np
        from kelp_sim.model.queueing import READ_ONLY, Flash, Reads, decode

        def taken(*_):
            raise KeyboardInterrupt

        reads, flash = Reads(80, 1.0, 0.1, 0.1, 64, 0.1), Flash(0.1, 1.0, 0.1, 2.0)
        decode(np.zeros(1), 1, reads, flash, 1, READ_ONLY)  # compiled by now
        signal.signal(signal.SIGALRM, taken)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        try:
            decode(np.zeros(64), 2000, reads, flash, 1, READ_ONLY)
        except KeyboardInterrupt:
            print("interrupted")
        except SystemError as error:  # numba's, of that; kelp_cli.main takes it for the same
            print("interrupted" if isinstance(error.__cause__, KeyboardInterrupt) else error)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=250)
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr

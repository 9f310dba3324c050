# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Resets under a caching host's traffic (docs/coherence.md): amid grants, recalls, write-backs and
a CLOSE. The caches drop what they hold; some of what was dirty, and answers to snoops of before,
come all the same, and the sessions after it show nothing of all that.
`python -m kelp_verif.coherence.reset_trial --resets 200`."""

from __future__ import annotations

import random
import sys

from kelp_spec.config import Config, named
from kelp_spec.metadata import Event
from kelp_spec.registers import SessionCommand

from .endpoint_bench import (
    CLOSING,
    FORMATS,
    HOST_TYPES,
    WEATHERS,
    CachingDriver,
    each_weather,
    made,
    settings,
    some_lines,
)

__all__ = ["main", "reset_trial"]

_LONGEST = 6_000  #: cycles of traffic before a reset
#: What is summed up over a run; the host's own counts of these begin anew with each reset.
_COUNTED = ("late_writes", "stale_rsps", "given")


def reset_trial(
    name: str,
    *,
    resets: int,
    seed: int = 1,
    config: Config = named("unit_coherent"),
    driver=CachingDriver,
) -> dict:
    """So many resets in a weather of `WEATHERS`; what was counted. AssertionError or DriverError
    with what was wrong."""
    rng = random.Random(seed)
    # What has events of its own goes on while it is reset.
    beside = WEATHERS[name][0].keys() & {"hints", "registers", "flood", "nonsense"}
    d = made(name, seed=seed, config=config, driver=driver)
    some_lines(d, rng, config.pages)
    counted = dict.fromkeys((*_COUNTED, "under_recall", "under_close", "looked"), 0)
    for n in range(resets):
        settings(d, name)
        for session in range(config.sessions):
            fmts = FORMATS[session]
            d.open(session, rng.randrange(1, 16), fmts, HOST_TYPES[rng.randrange(2)])
        if n % 4 == 3:  # every line is zeros, or what was written since
            d.look()
            counted["looked"] += 1
        d.act(True)
        d.idle(rng.randrange(200, _LONGEST))
        if n % 4 == 1:  # whatever was begun since the last reset comes to its end
            d.rest()
            d.act(True)
            d.idle(rng.randrange(200, _LONGEST))
        if (
            rng.random() < 0.4
        ):  # the host goes on while a session closes, and what it held goes home
            session = rng.randrange(config.sessions)
            d.phase(session, CLOSING)
            d.write64(
                f"s{session}_command",
                d.pack(f"s{session}_command", command=SessionCommand.CLOSE),
            )
            d.idle(rng.randrange(1, 800))
            counted["under_close"] += 1
        counted["under_recall"] += d.snooped > 0
        counted["given"] += d.figures().given
        d.reset(rng.randrange(1, 4))
        d.act(False)
        d.until(lambda: not d.waiting)
        f, told = d.figures(), d.told()
        closed = (told["code"] == Event.CLOSED_SESSION).sum()
        unasked = (told["code"] == Event.BIRSP_UNASKED).sum()
        assert unasked == f.stale_rsps, f"{f.stale_rsps} BIRsp of before, {unasked} told"
        if not beside:
            late = f.late_writes + f.late_reads
            assert closed == late, f"{late} came too late and were refused, {closed} told"
            assert set(told["code"]) <= {Event.CLOSED_SESSION, Event.BIRSP_UNASKED}
        counted["late_writes"] += f.late_writes
        counted["stale_rsps"] += f.stale_rsps
    figures = d.figures().as_dict()
    counted["cycles"], counted["judged"] = d.counts()["evaluated"], d.judged
    d.close()
    return figures | counted


def main(argv=None) -> int:
    return each_weather("reset_trial", reset_trial, argv, count="resets", default=100)


if __name__ == "__main__":
    sys.exit(main())

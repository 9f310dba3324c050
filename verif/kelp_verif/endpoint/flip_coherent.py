# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What a host that caches does while bits flip in an endpoint with coherence (docs/coherence.md):
agents load, store, share, drop and write back; in the end what is dirty goes home, and every line
is read past the caches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kelp_spec.config import POOLS, named

from ..coherence.endpoint_bench import FORMATS, HOST_TYPES, WEATHERS, CachingDriver
from .flip_traffic import TURN, Host

__all__ = ["CachingHost"]

#: Of WEATHERS, by choice; in the latter four a session changes hands.
_WAYS = (
    "dwelling",
    "slow NDR",
    "slow BIRsp",
    "slow memory",
    "rough",
    "slow RwD",
    "unused",
    "dwelling",
)
_ACTS = 8  # tries of an agent in a cycle, so that queues are full
#: Cycles in which a request is answered whatever waits: `starve_limit`, and as long again.
_PATIENCE = 40_000
_AFTER_FATAL = 3_000  # cycles in which every line is asked for once more


class CachingHost(Host):
    """Tenants behind one home. Their caches are C++ beside the driver, which judges each answer."""

    def __init__(self, seed: int):
        super().__init__(seed, named("unit_coherent").with_(codec_lanes=8))
        # Pages of which half is never written.
        self.places = [place for place in self.places if (place[3] + place[4]) % 2]

    def limits(self):
        """Frames for a part of the pages, and more than the directory has sectors."""
        return [(pool, 10) for pool in POOLS]

    def device(self, seed: int, **options) -> CachingDriver:
        """With every line that a tenant uses."""
        driver = CachingDriver(
            self.config,
            seed=seed,
            driver=options,
            notes=1,
            patience=_PATIENCE,
            acts=_ACTS,
            **WEATHERS[_WAYS[0]][0],
        )
        for n in self.rng.permutation(len(self.places)):
            session, queue, page, kv, line = self.places[n]
            layer = queue // (self.config.queues // len(FORMATS[session]))
            driver.add((session, queue, page, kv, line), FORMATS[session][layer][kv])
        self._noted = 0
        return driver

    def begin(self, driver: CachingDriver, choice: int) -> None:
        super().begin(driver, choice)
        options, pressure = WEATHERS[_WAYS[choice]]
        driver.choose(**options)
        driver.configure(pressure=pressure)
        self._noted = len(driver.notes())

    def open(self, driver: CachingDriver, session: int) -> None:
        driver.open(session, self.owners[session], FORMATS[session], HOST_TYPES[session])

    def reopen(self, driver: CachingDriver, session: int) -> None:
        with self._looking(driver):
            driver.end(session)
            self.pass_on(session)
            self.open(driver, session)

    def play(
        self, driver: CachingDriver, count: int, turn: Callable[[], object] | None = None
    ) -> None:
        """So many transactions."""
        goal = driver.figures().transactions + count
        with self._looking(driver):
            driver.act(True)
            while driver.figures().transactions < goal and not driver.irq:
                driver.idle(TURN)
                if turn:
                    turn()
            driver.act(False)

    def everything(self, driver: CachingDriver) -> None:
        with self._looking(driver):
            driver.rest()
            self._stream(driver, 3)

    def strangers(self, driver: CachingDriver) -> None:
        with self._looking(driver):
            self._stream(driver, 5)

    def _stream(self, driver, number):
        """After a fatal error an answer need not come."""
        driver.stream(number)
        if driver.irq:
            driver.act(True, number)
            driver.idle(_AFTER_FATAL)
            driver.act(False)

    @contextmanager
    def _looking(self, driver: CachingDriver) -> Iterator[None]:
        """What agents see meanwhile, also where the device breaks off."""
        try:
            yield
        finally:
            figures, seen = driver.figures(), self.seen
            seen.wrong = driver.notes()[self._noted :] if figures.wrong else []
            seen.poisoned, seen.refused = figures.poisoned, figures.nxm
            seen.foreign = figures.foreign
            seen.answers, seen.cycles = f"{figures.answers:x}", f"{figures.times:x}"

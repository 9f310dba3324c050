# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Device-wide settings with which what choices near memory want is fetched (docs/select.md)."""

from __future__ import annotations

from kelp_spec.config import POOLS, Config
from kelp_spec.formats import Format
from kelp_spec.geometry import smallest_pool, stored_lines
from kelp_spec.metadata import LAYER_RANGES

from .registers import Registers

__all__ = ["Fetching"]

_MARKS = ("low_water", "high_water")
#: frames that eviction keeps free beside those for new pages: fetches take these alone
_FETCHED = 4
#: of a pool's frames, one in so many is kept free at most
_FREE_SHARE = 4


class Fetching:
    """The source `hint`, and how many frames fetches leave to pages that are written for the first
    time: one for each queue of the sessions that are open (`low_water`), and 4 more that they may
    take (`high_water`), as far as these are no more than a quarter of a pool that is in use. With
    fewer a token that begins a page waits until another page has gone to flash; where `high_water`
    is not above `low_water` nothing is fetched.

    ``registers``: of LD-ID 0; the caller keeps others from them meanwhile.
    """

    def __init__(self, config: Config, registers: Registers):
        self._config, self._registers = config, registers
        self._set = [registers.register(name).reset for name in _MARKS]

    def begin(self) -> None:
        """Switch the source on, beside those that are."""
        sources = self._registers.fields("prefetch_enable")
        if not sources["hint"]:
            self._registers.write("prefetch_enable", **sources | {"hint": 1})
        self.follow()

    def follow(self) -> None:
        """Set the marks for the sessions that are open now, unless somebody else has set them."""
        if self._registers.read_many(_MARKS) != self._set:
            return
        queues, frames = self._in_use()
        if not queues:
            return
        free = max(2, frames // _FREE_SHARE)
        fetched = min(_FETCHED, free // 2)
        low = min(queues, free - fetched)
        if self._set != [low, low + fetched]:
            self._set = [low, low + fetched]
            self._registers.write_many(zip(_MARKS, self._set, strict=True))

    def _in_use(self) -> tuple[int, int]:
        """Queues of all sessions that are open, and frames of the smallest pool that they use."""
        c, registers = self._config, self._registers
        queues, pools = 0, set()
        for p in (f"s{session}_" for session in range(c.sessions)):
            if not registers.fields(p + "state")["open"]:
                continue
            shape, formats = registers.fields(p + "shape"), registers.fields(p + "formats")
            queues += shape["layers"] * shape["kv_heads"]
            for r in range(LAYER_RANGES):
                k, v = (Format(formats[f"format_{half}_{r}"]) for half in "kv")
                lines = stored_lines(k, v, shape["used_lines"], bool(shape["k_only"]))
                pools.add(POOLS[smallest_pool(c.frame_lines, lines)])
        limits = registers.read_many(f"pool_limit_{pool}" for pool in pools)
        return queues, min(limits, default=0)

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Whose turn it is: start-time fair queueing of a server's time among tenants."""

from __future__ import annotations

from collections import deque

__all__ = ["FairQueue", "Pace", "Share"]

_LEAST, _MOST = 32, 4096  #: lines of a step


class Share:
    """One tenant's claim: the seconds it has had, and what of its waits for a turn."""

    def __init__(self):
        self.used = 0.0
        self.waiting: deque = deque()


class FairQueue:
    """Things to do, each on behalf of a :class:`Share`. The share that has had the least time is
    served first, and within a share the thing that has waited longest.

    A share that had nothing to do comes back level with the one served last: time that it did not
    want is not saved up. So a share waits for at most one step of each other share, however many
    things those have waiting.
    """

    def __init__(self):
        self._active: list[Share] = []
        self._clock = 0.0  # time used by the share served last

    def __bool__(self) -> bool:
        return bool(self._active)

    def add(self, share: Share, item) -> None:
        if not share.waiting:
            share.used = max(share.used, self._clock)
            self._active.append(share)
        share.waiting.append(item)

    def take(self) -> tuple[Share, object]:
        """The next thing to do, taken out; :meth:`charge` its share for it afterwards."""
        share = min(self._active, key=lambda s: s.used)
        self._clock = share.used
        item = share.waiting.popleft()
        if not share.waiting:
            self._active.remove(share)
        return share, item

    def charge(self, share: Share, seconds: float) -> None:
        share.used += seconds


class Pace:
    """How many lines make a step of about `seconds`, by what the last steps took.

    Attributes
    ----------
    lines : int
        Of the next step.
    """

    def __init__(self, seconds: float = 0.001):
        self.seconds, self.lines = seconds, 64

    def took(self, lines: int, seconds: float) -> None:
        """A step of so many lines is over."""
        if seconds > self.seconds:
            self.lines = max(_LEAST, self.lines // 2)
        elif lines == self.lines and seconds < self.seconds / 4:
            self.lines = min(_MOST, self.lines * 2)

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Golden model of the phase detector (spec §7)."""

from __future__ import annotations

__all__ = ["PhaseDetector"]


class PhaseDetector:
    """One session's phase: `decode` is decided after every `window` requests, by whether reads
    exceed ten times the writes."""

    __slots__ = ("decode", "reads", "window", "writes")

    def __init__(self, window: int = 4096):
        self.window = window
        self.opened()

    def opened(self) -> None:
        """The session is opened: prefill, nothing counted."""
        self.decode = False
        self.reads = self.writes = 0

    def request(self, write: bool) -> None:
        """One demand line request that was served."""
        if write:
            self.writes += 1
        else:
            self.reads += 1
        if self.reads + self.writes == self.window:
            self.decode = self.reads > 10 * self.writes
            self.reads = self.writes = 0

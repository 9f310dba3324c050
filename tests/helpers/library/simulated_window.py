# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""A device's memory as a processor reaches it, on a core of this process in the place of a mapping:
what has no data reads as ones, what is poisoned is lost, part of a line goes in words of 8 bytes
and in single bytes."""

import numpy as np

from cxl_kv.backends.cxl import window_bytes
from cxl_kv.core import ALL_BYTES, Core, Status


class SimulatedWindow:
    """As `cxl_kv.backends.cxl.Window`. With `words`, no store is wider than 8 bytes, as under an
    emulator."""

    def __init__(self, core: Core, *, words: bool = False):
        self.core, self.size = core, window_bytes(core.config)
        self.whole, self.closed = not words, False

    def load(self, offsets):
        lines, status = self.core.load(offsets, 0)
        lines = np.where((status == Status.NOT_MAPPED)[:, None], np.uint8(0xFF), lines)
        return lines, status == Status.POISON

    def store(self, offsets, lines):
        if not self.whole:
            return self.store_parts(offsets, lines, np.full(len(offsets), ALL_BYTES, np.uint64))
        self.core.store(offsets, lines, None, 0)
        return np.zeros(len(offsets), bool)

    def store_parts(self, offsets, lines, enables):
        for offset, line, enable in zip(offsets, lines, enables, strict=True):
            enabled = int(enable)
            words = [0xFF << 8 * word for word in range(8)]
            for word in words:
                if enabled & word == word:
                    self._one(offset, line, word)
                    enabled &= ~word
            if enabled:  # through the caches: the line is read, and written back as a whole
                old, _ = self.core.load(np.array([offset], np.uint64), 0)
                bits = np.unpackbits(np.array([enabled], "<u8").view(np.uint8), bitorder="little")
                self._one(offset, np.where(bits.astype(bool), line, old[0]), ALL_BYTES)
        return np.zeros(len(offsets), bool)

    def _one(self, offset, line, enable):
        self.core.store(np.array([offset], np.uint64), line[None], np.array([enable], np.uint64), 0)

    def close(self):
        self.closed = True
        self.core.close()

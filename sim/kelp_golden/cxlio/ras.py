# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""RAS: status bits, first error, header log, and which message an error is."""

from __future__ import annotations

from kelp_spec.cxlio.component import HEADER_WORDS, Correctable, Uncorrectable

from .registers import Registers

__all__ = ["Ras"]


class Ras:
    def __init__(self, registers: Registers):
        self.values, self.held = registers.values, False

    def status_written(self) -> None:
        first = self.values["error_control_first"]
        names = {int(e): e.name.lower() for e in Uncorrectable}
        if first in names and not self.values["uncorrectable_" + names[first]]:
            self.held = False

    def report(self, uncorrectable: int, correctable: int, header: int) -> set[str]:
        """Errors of one cycle: the messages that they are."""
        messages = set()
        for e in Uncorrectable:
            name = e.name.lower()
            if not uncorrectable >> e & 1:
                continue
            self.values["uncorrectable_" + name] = 1
            if self.values["uncorrectable_mask_" + name]:
                continue
            messages.add("fatal" if self.values["severity_" + name] else "non_fatal")
            if not self.held:
                self.held = True
                self.values["error_control_first"] = int(e)
                for i in range(HEADER_WORDS):
                    self.values[f"header{i}"] = header >> 32 * i & 0xFFFF_FFFF
        for e in Correctable:
            if correctable >> e & 1:
                self.values["correctable_" + e.name.lower()] = 1
                if not self.values["correctable_mask_" + e.name.lower()]:
                    messages.add("correctable")
        return messages

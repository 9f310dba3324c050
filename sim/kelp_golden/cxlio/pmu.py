# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The performance monitor: what a cycle's events add to which counter."""

from __future__ import annotations

from kelp_spec.cxlio.config import CxlIoConfig
from kelp_spec.cxlio.pmu import COUNTER_BITS, NO_FILTER, pmu_map, pmu_registers

from .registers import Registers

__all__ = ["Pmu"]


class Pmu:
    """`registers` are its block; `cycle` tells whether a message leaves."""

    def __init__(self, config: CxlIoConfig):
        self.map = pmu_map(config)
        self.registers = Registers(pmu_registers(config))
        self.registers.locked = self._running
        self.held = [False] * len(self.map.counters)

    def _running(self, name: str) -> bool:
        number = int(name.removeprefix("counter").removesuffix("_running"))
        return not self.registers.values["freeze"] >> number & 1

    def cycle(self, counted: list[tuple[int, int]]) -> bool:
        """(events, decoder) of each capability."""
        values, message, stop = self.registers.values, False, False
        frozen = values["freeze"]
        for i, what in enumerate(self.map.counters):
            p = f"counter{i}_config_"
            capability = what[0] if what else values[p + "index"]
            chosen = 1 << what[1] if what else values[p + "events"]
            events, decoder = counted[capability] if what or not capability else (0, 0)
            wanted = values[f"counter{i}_filter"] & 0xFFFF
            number = (events & chosen).bit_count() if wanted in (NO_FILTER, decoder) else 0
            threshold, invert = values[p + "threshold"], values[p + "invert"]
            holds = (number >= max(1, threshold)) != bool(invert)
            began, self.held[i] = holds and not self.held[i], holds
            if not values[p + "enable"] or frozen >> i & 1:
                continue
            if values[p + "edge"]:
                number = began
            elif invert or threshold > 1:
                number = holds
            count = values[f"counter{i}"] + number
            values[f"counter{i}"] = count % (1 << COUNTER_BITS)
            if count >> COUNTER_BITS:
                values["overflow"] |= 1 << i
                message |= bool(values[p + "irq"])
                stop |= bool(values[p + "stop"])
        if stop:
            values["freeze"] = (1 << len(self.map.counters)) - 1
        return message

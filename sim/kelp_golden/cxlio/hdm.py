# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""HDM decoders: which commits are refused, and what a committed decoder decodes."""

from __future__ import annotations

from dataclasses import dataclass

from kelp_spec.cxlio.config import UNIT_BYTES, CxlIoConfig

from .registers import Registers

__all__ = ["HdmDecoders"]


@dataclass(frozen=True)
class Window:
    base: int
    size: int
    ways: int
    granule: int
    dpa: int


class HdmDecoders:
    def __init__(self, config: CxlIoConfig, registers: Registers):
        self.config, self.values = config, registers.values
        self.windows: list[Window | None] = [None] * config.decoders
        #: where the memory and the host addresses of a decoder ended when it was committed
        self.ends = [(0, 0)] * config.decoders

    def held(self, i: int) -> bool:
        p = f"decoder{i}_control_"
        asked = self.values[p + "commit"] and not self.values[p + "error"]
        return bool(self.values[p + "committed"] or asked)

    def locked(self, i: int) -> bool:
        p = f"decoder{i}_control_"
        return bool(self.values[p + "committed"] and self.values[p + "lock"])

    def control_written(self, i: int) -> None:
        p = f"decoder{i}_control_"
        self.values[p + "error"] = 0
        if not self.values[p + "commit"]:
            self.values[p + "committed"], self.windows[i] = 0, None
        elif not self.values[p + "committed"]:
            window = self._legal(i)
            self.values[p + ("committed" if window else "error")] = 1
            self.windows[i] = window

    def _legal(self, i: int) -> Window | None:
        def whole(what):
            return (
                self.values[f"decoder{i}_{what}"] << 28
                | self.values[f"decoder{i}_{what}_high"] << 32
            )

        def control(what):
            return self.values[f"decoder{i}_control_{what}"]

        base, size, skip = whole("base"), whole("size"), whole("skip")
        base_before, dpa_before = self.ends[i - 1] if i else (0, 0)
        if [bool(w) for w in self.windows] != [j < i for j in range(self.config.decoders)]:
            return None
        coherent = self.config.coherent
        if control("ways") > (0 if coherent else 3) or control("granularity") > 6:
            return None
        host_only, snooped = bool(control("host_only")), bool(control("back_invalidate"))
        if control("uio") or host_only == snooped or (snooped and not coherent):
            return None
        ways = 1 << control("ways")
        dpa = dpa_before + skip
        if not size or size % (ways * UNIT_BYTES) or base < base_before or base + size > 1 << 64:
            return None
        if dpa + size // ways > self.config.bytes:
            return None
        self.ends[i] = (base + size, dpa + size // ways)
        return Window(base, size, ways, 256 << control("granularity"), dpa)

    def decode(self, address: int) -> int | None:
        """The device address of a host address, or None: not of any decoder."""
        for w in self.windows:
            if w and w.base <= address < w.base + w.size:
                granule, inside = divmod(address - w.base, w.granule)
                return w.dpa + granule // w.ways * w.granule + inside
        return None

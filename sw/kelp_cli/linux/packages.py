# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Debian packages, fetched by the machine's own `apt-get` as it is configured and unpacked into a
folder: nothing is installed, no root is needed."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

__all__ = ["Missing", "Packages"]

KERNEL = "6.12"
_SECONDS = 900
#: Unpacked beside the emulator: what its binary and `cxl` load, as far as the machine lacks it.
_TOOLS = ("qemu-system-x86", "seabios", "ipxe-qemu", "busybox-static", "acpica-tools", "ndctl")


class Missing(Exception):
    """What cannot be had, in one line."""


class Packages:
    """A folder of unpacked packages.

    Parameters
    ----------
    folder : Path
        Kept between runs: what is there is not fetched again.
    say : callable
        Takes a line of progress.
    """

    def __init__(self, folder: Path, say):
        self.folder, self.say = folder, say
        self._state = folder / "apt"
        for needed in ("apt-get", "apt-cache", "dpkg-deb"):
            if not shutil.which(needed):
                raise Missing(f"{needed} is not on this machine: kelp linux needs Debian packages")

    def _apt(self, tool: str, *arguments: str, cwd: Path | None = None) -> str:
        """`apt-get` or `apt-cache` with package lists of its own, in the folder."""
        lists = self._state / "lists"
        (lists / "partial").mkdir(parents=True, exist_ok=True)
        (self._state / "archives" / "partial").mkdir(parents=True, exist_ok=True)
        command = [
            tool,
            "-o",
            f"Dir::State::lists={lists}",
            "-o",
            f"Dir::Cache={self._state}",
            "-o",
            "APT::Sandbox::User=",
            "-o",
            "Debug::NoLocking=1",
            *arguments,
        ]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_SECONDS, cwd=cwd, check=False
            )
        except subprocess.TimeoutExpired:
            raise Missing(f"{tool} {arguments[0]} did not end in {_SECONDS} s") from None
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise Missing(f"{tool} {' '.join(arguments)}: {last}")
        return done.stdout

    def lists(self) -> None:
        """Today's package lists, where there are none yet."""
        if not list((self._state / "lists").glob("*Packages*")):
            self.say("package lists")
            self._apt("apt-get", "update", "-q")

    def kernel(self) -> str:
        """The newest image of `KERNEL` for clouds, which is small, else of any version."""
        found = self._apt("apt-cache", "search", "--names-only", "^linux-image-[0-9]").splitlines()
        names = [line.split()[0] for line in found]
        cloud = [n for n in names if re.fullmatch(r"linux-image-\d\S*-cloud-amd64", n)]
        ours = [n for n in cloud if n.startswith(f"linux-image-{KERNEL}.")] or cloud
        if not ours:
            raise Missing("no package linux-image-…-cloud-amd64 is known to apt-cache")

        def age(name):
            return [int(digits) for digits in re.findall(r"\d+", name)]

        return max(ours, key=age)

    def unpack(self, into: str, *names: str) -> Path:
        """The folder with these packages' files."""
        root, debs = self.folder / into, self.folder / "debs"
        debs.mkdir(parents=True, exist_ok=True)
        missing = [n for n in names if not (root / f".{n}").exists()]
        if missing:
            self.say("packages " + " ".join(missing))
            self._apt("apt-get", "download", "-q", *missing, cwd=debs)
        for name in missing:
            deb = max(debs.glob(f"{name}_*.deb"), key=lambda path: path.stat().st_mtime)
            root.mkdir(parents=True, exist_ok=True)
            subprocess.run(["dpkg-deb", "-x", str(deb), str(root)], check=True, timeout=_SECONDS)
            (root / f".{name}").touch()
            deb.unlink()
        return root

    def tools(self) -> Path:
        """Emulator, table compiler, `cxl`, a shell, and the libraries that they need and this
        machine does not have."""
        plan = self._apt("apt-get", "-s", "install", "--no-install-recommends", *_TOOLS)
        wanted = re.findall(r"^Inst (\S+)", plan, re.M)
        # Installed already, as far as it is: the machine's own are used.
        left_out = ("systemd", "udev", "linux-", "initramfs", "libpam", "libnss")
        wanted = [n for n in wanted if not n.startswith(left_out)]
        return self.unpack("tools", *dict.fromkeys([*_TOOLS, *wanted]))

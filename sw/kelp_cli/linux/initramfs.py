# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What runs in the machine: a shell, kernel modules in their order, `cxl`, and one C program, as an
initramfs."""

from __future__ import annotations

import lzma
import re
import shutil
import stat
import subprocess
from collections.abc import Collection
from pathlib import Path

from kelp_spec.files import write_whole

from .packages import Missing

__all__ = ["GUEST", "MODULES", "Initramfs", "compile_guest", "module_order"]

GUEST = Path(__file__).with_name("guest")
MODULES = ("cxl_acpi", "cxl_mem", "cxl_pci", "dax_cxl", "device_dax")


class Initramfs:
    """Files by their path, written as one archive of the `newc` kind."""

    def __init__(self):
        self._out, self._inode = bytearray(), 0
        self._folders: set[str] = set()
        for name in ("dev", "proc", "sys", "tmp", "bin", "lib", "lib64", "modules"):
            self.folder(name)
        self._entry("dev/console", stat.S_IFCHR | 0o600, b"", (5, 1))

    def _entry(self, name: str, mode: int, content: bytes, device=(0, 0)):
        self._inode += 1
        path = name.encode() + b"\0"
        fields = (self._inode, mode, 0, 0, 1, 0, len(content), 0, 0, *device, len(path), 0)
        self._out += b"070701" + "".join(f"{field:08x}" for field in fields).encode() + path
        self._out += bytes(-len(self._out) % 4) + content
        self._out += bytes(-len(self._out) % 4)

    def folder(self, name: str) -> None:
        parts = name.split("/")
        for i in range(1, len(parts) + 1):
            each = "/".join(parts[:i])
            if each not in self._folders:
                self._folders.add(each)
                self._entry(each, stat.S_IFDIR | 0o755, b"")

    def file(self, name: str, content: bytes, mode: int = 0o755) -> None:
        if "/" in name:
            self.folder(name.rpartition("/")[0])
        self._entry(name, stat.S_IFREG | mode, content)

    def link(self, name: str, to: str) -> None:
        self._entry(name, stat.S_IFLNK | 0o777, to.encode())

    def program(self, path: Path, env: dict, name: str) -> bool:
        """A program and the libraries that it loads; False where one of these is missing."""
        if not self.libraries(path, env):
            return False
        self.file(name, path.read_bytes())
        return True

    def libraries(self, path: Path, env: dict, known: Collection[Path] = ()) -> bool:
        """The libraries that a program or library loads, but for those `known` to lie elsewhere;
        False where one is missing."""
        said = subprocess.run(
            ["ldd", str(path)], capture_output=True, text=True, env=env, timeout=60, check=False
        ).stdout
        if "not found" in said:
            return False
        for library in re.findall(r"(?:=> )?(/\S+) \(0x", said):
            if Path(library).resolve() in known:
                continue
            where = f"lib/{Path(library).name}"
            if "ld-linux" in library:
                where = f"lib64/{Path(library).name}"
            if where not in self._folders:
                self._folders.add(where)
                self.file(where, Path(library).read_bytes())
        return True

    def write(self, path: Path) -> None:
        self._entry("TRAILER!!!", 0, b"")
        write_whole(path, bytes(self._out))


def module_order(root: Path) -> list[tuple[str, bytes]]:
    """(name, content) of `MODULES` and what they depend on, in the order in which a kernel takes
    them."""
    files = {path.name.split(".ko")[0].replace("-", "_"): path for path in root.rglob("*.ko*")}
    done: dict[str, bytes] = {}

    def take(name):
        if name in done:
            return
        if name not in files:
            raise Missing(f"the kernel's package has no module {name}")
        content = files[name].read_bytes()
        if files[name].suffix == ".xz":
            content = lzma.decompress(content)
        depends = re.search(rb"\0depends=([^\0]*)\0", content)
        for other in filter(None, depends[1].decode().split(",") if depends else []):
            take(other.replace("-", "_"))
        done[name] = content

    for name in MODULES:
        take(name)
    return list(done.items())


def compile_guest(folder: Path, header: str) -> Path:
    """The guest's program, static."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if not compiler:
        raise Missing("gcc is not on this machine: it compiles what runs in the guest")
    write_whole(folder / "places.h", header)
    out = folder / "session"
    done = subprocess.run(
        [compiler, "-O1", "-static", "-I", str(folder), "-o", str(out), str(GUEST / "session.c")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode:
        raise Missing(f"gcc -static fails: {done.stderr.strip().splitlines()[-1]}")
    return out

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The emulated machine: one pass to learn where its firmware places things, one that boots."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from .fabric import Fabric
from .packages import Missing
from .places import Places
from .proxy import Proxy

__all__ = ["Machine"]

_MEMORY = "640M"
_FIRMWARE_SECONDS = 60
_KERNEL_LINE = "console=ttyS0 pci=nocrs panic=-1 oops=panic loglevel=6 trace_buf_size=64k"


class Machine:
    """An emulator from unpacked packages.

    Parameters
    ----------
    tools : Path
        With `usr/bin/qemu-system-x86_64` and what it loads.
    folder : Path
        For sockets and tables.
    """

    def __init__(self, tools: Path, folder: Path):
        self.tools, self.folder = tools, folder
        libraries = [tools / "usr/lib/x86_64-linux-gnu", tools / "lib/x86_64-linux-gnu"]
        self.env = dict(os.environ, LD_LIBRARY_PATH=":".join(map(str, libraries)))
        self.binary = tools / "usr/bin/qemu-system-x86_64"
        version = subprocess.run(
            [str(self.binary), "--version"],
            capture_output=True,
            text=True,
            env=self.env,
            timeout=60,
        )
        if version.returncode:
            raise Missing(f"the emulator does not start: {version.stderr.strip().splitlines()[-1]}")
        self.version = version.stdout.split("version ")[1].split()[0]

    def _start(self, end: socket.socket, *more: str) -> subprocess.Popen:
        share = self.tools / "usr/share"
        command = [
            str(self.binary),
            *("-L", str(share / "seabios"), "-L", str(share / "qemu")),
            *("-L", str(self.tools / "usr/lib/ipxe/qemu")),
            *("-machine", "q35,memory-backend=ram", "-m", _MEMORY),
            *("-object", f"memory-backend-memfd,id=ram,size={_MEMORY},share=on"),
            # One processor: with two, accesses of the remote device re-enter and are lost. Without
            # the hypervisor bit a decoder's commit needs no special build of the kernel.
            *("-accel", "tcg", "-cpu", "max,hypervisor=off", "-smp", "1"),
            *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
            *("-serial", "stdio", "-monitor", "none"),
            *("-device", f"x-pci-proxy-dev,fd={end.fileno()}"),
            *more,
        ]
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[end.fileno()],
            env=self.env,
        )

    @contextlib.contextmanager
    def _running(self, read, write, *more: str) -> Iterator[tuple[subprocess.Popen, Proxy]]:
        ours, theirs = socket.socketpair()
        process = self._start(theirs, *more)
        theirs.close()
        try:
            yield process, Proxy(ours, read, write)
        finally:
            process.kill()
            process.wait()
            ours.close()

    def places(self) -> Places:
        """Where the firmware puts the three windows."""
        with self._running(lambda at, size: 0, lambda at, size, value: None) as (process, proxy):
            until = time.monotonic() + _FIRMWARE_SECONDS
            with contextlib.suppress(EOFError, ConnectionError):
                while proxy.places is None and time.monotonic() < until:
                    proxy.serve(1.0)
            if proxy.places is None:
                process.kill()
                said = process.stdout.read().decode(errors="replace").strip().splitlines()
                raise Missing(f"the firmware places no window: {said[-1] if said else 'no word'}")
            return proxy.places

    def boot(
        self, fabric: Fabric, kernel: Path, initrd: Path, tables: list[Path], seconds: float
    ) -> Iterator[str]:
        """The console's lines, until the machine ends or the time is over."""
        path = self.folder / "qtest.sock"
        path.unlink(missing_ok=True)
        more = [
            *("-kernel", str(kernel), "-initrd", str(initrd), "-append", _KERNEL_LINE),
            *("-qtest", f"unix:{path},server=on,wait=off"),
        ]
        for table in tables:
            more += ["-acpitable", f"file={table}"]
        with contextlib.ExitStack() as stack:
            process, proxy = stack.enter_context(self._running(fabric.read, fabric.write, *more))
            interrupts = stack.enter_context(contextlib.closing(_Interrupts(path)))
            until, text = time.monotonic() + seconds, b""
            os.set_blocking(process.stdout.fileno(), False)
            while time.monotonic() < until:
                try:
                    if not proxy.serve(0.002):
                        fabric.pump()
                except (EOFError, ConnectionError):
                    break
                for message in fabric.take_messages():
                    interrupts.send(message["address"], message["data"])
                if select.select([process.stdout], [], [], 0)[0]:
                    text += process.stdout.read() or b""
                    *lines, text = text.split(b"\n")
                    for line in lines:
                        yield line.decode(errors="replace").rstrip("\r")
            with contextlib.suppress(BlockingIOError, TypeError):
                os.set_blocking(process.stdout.fileno(), True)
                process.kill()
                text += process.stdout.read()
            yield from (line.decode(errors="replace").rstrip("\r") for line in text.split(b"\n"))


class _Interrupts:
    """Writes of interrupt messages into the machine, through the emulator's test socket: the remote
    device has no way of its own without hardware virtualisation."""

    def __init__(self, path: Path):
        self.path, self.socket = path, None

    def close(self) -> None:
        if self.socket:
            self.socket.close()

    def send(self, address: int, data: int) -> None:
        if self.socket is None:
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.connect(str(self.path))
        self.socket.sendall(f"writel {address:#x} {data:#x}\n".encode())

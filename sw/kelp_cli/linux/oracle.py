# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The emulator's own CXL type 3 device, reached without a guest, and its answers beside another
device's."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

from .packages import Missing
from .probe import Port, probe

__all__ = ["EXPECTED", "EmulatedDevice", "compare"]

_ECAM = 0xB0000000
_BUS, _BELOW = 12, 13  #: of the host bridge, and below its root port
_BARS = {0: 0xD0000000, 2: 0xD0100000, 4: 0xD0200000}
_SECONDS = 60
_DATA = {1: "b", 2: "w", 4: "l", 8: "q"}

#: Where the emulator (7.2) answers otherwise, and why; (ours, its).
EXPECTED = {
    # it has no DVSEC of the flex bus in an endpoint
    "DVSECs of a device, of GPF, of the flex bus, of registers": (
        [True, True, True, True],
        [True, True, False, True],
    ),
    # it says "unsupported", and gives back what it was sent; the standard has "invalid log"
    "an unknown log": ((0x17, b""), (3, bytes(20) + b"\4\0\0\0")),
}


class EmulatedDevice:
    """A :class:`~.probe.Port` on `cxl-type3`, below a root port, its processor stopped; a context
    manager. Missing where the emulator has no such device."""

    def __init__(self, tools: Path, env: dict):
        share = tools / "usr/share"
        command = [
            str(tools / "usr/bin/qemu-system-x86_64"),
            *("-L", str(share / "seabios"), "-L", str(share / "qemu")),
            *("-L", str(tools / "usr/lib/ipxe/qemu")),
            *("-machine", "q35,cxl=on", "-m", "128M", "-accel", "tcg", "-S", "-qtest", "stdio"),
            *("-nodefaults", "-no-user-config", "-display", "none"),
            *("-object", "memory-backend-ram,id=cxl.memory,size=256M"),
            *("-object", "memory-backend-ram,id=cxl.labels,size=64K"),
            *("-device", f"pxb-cxl,bus_nr={_BUS},bus=pcie.0,id=cxl.1"),
            *("-device", "cxl-rp,port=0,bus=cxl.1,id=cxl.rp,chassis=0,slot=2"),
            *("-device", "cxl-type3,bus=cxl.rp,memdev=cxl.memory,lsa=cxl.labels"),
        ]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
        )
        try:
            self._place()
        except BaseException:
            self.close()
            raise

    def _ask(self, line: str) -> int:
        """A command of the emulator's test protocol; its value, 0 where it has none."""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        for said in self._process.stdout:
            if said.startswith("OK"):
                words = said.split()
                return int(words[1], 16) if len(words) > 1 else 0
            if said.startswith("FAIL"):
                break
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)
            said = self._process.stderr.read().strip().splitlines()
            raise Missing(f"the emulator's CXL device: {said[-1] if said else 'no word'}")
        raise Missing(f"the emulator does not answer {line!r}")

    def _place(self) -> None:
        """As firmware does: configuration space in memory, buses, windows, BARs, memory enable."""
        for at, value in ((0x60, _ECAM | 1), (0x64, 0)):
            self._ask(f"outl 0xcf8 {0x80000000 | at:#x}")
            self._ask(f"outl 0xcfc {value:#x}")
        port = _ECAM | _BUS << 20
        self._ask(f"writel {port + 0x18:#x} {_BELOW << 16 | _BELOW << 8 | _BUS:#x}")
        self._ask(f"writel {port + 0x20:#x} {0xD0F0D000:#x}")
        self._ask(f"writew {port + 4:#x} 6")
        for bar, base in _BARS.items():
            self.write("configuration", 0x10 + 4 * bar, 4, base)
        self.write("configuration", 4, 2, 6)

    def _address(self, space: str, offset: int) -> int:
        if space == "configuration":
            return (_ECAM | _BELOW << 20) + offset
        return _BARS[{"component": 0, "device": 2}[space]] + offset

    def read(self, space: str, offset: int, size: int) -> tuple[int, int]:
        return self._ask(f"read{_DATA[size]} {self._address(space, offset):#x}"), 0

    def write(self, space: str, offset: int, size: int, value: int) -> int:
        self._ask(f"write{_DATA[size]} {self._address(space, offset):#x} {value:#x}")
        return 0

    def clock(self, cycles: int) -> None:
        """Nothing of it takes time."""

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            with contextlib.suppress(BrokenPipeError):
                stream.close()

    def __enter__(self) -> EmulatedDevice:
        return self

    def __exit__(self, *exception) -> None:
        self.close()


def compare(ours: Port, theirs: Port) -> dict:
    """`compared`: how many questions both answer; `expected`: the names of `EXPECTED` in which they
    differ as is said there; `differing`: name → [ours, theirs] in text of any others."""
    one, two = probe(ours), probe(theirs)
    both = one.keys() & two.keys()
    unequal = [name for name in sorted(both) if one[name] != two[name]]
    expected = [n for n in unequal if EXPECTED.get(n) == (one[n], two[n])]
    return {
        "compared": len(both),
        "expected": expected,
        "differing": {n: [repr(one[n]), repr(two[n])] for n in unequal if n not in expected},
    }

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""One boot: what is fetched and made for it, what the guest says, and the report of both."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from kelp_hw.export import tools as rtl_tools
from kelp_rtl.cxlio.joined import JoinedDriver
from kelp_spec.config import Config
from kelp_spec.cxlio.cdat import cdat_entries

from ..output import write_json
from .fabric import Fabric
from .initramfs import GUEST, Initramfs, compile_guest, module_order
from .machine import Machine
from .oracle import EmulatedDevice, compare
from .packages import Missing, Packages
from .pmu_module import pmu_module
from .python import add_python
from .session import header
from .tables import write_tables

__all__ = ["Found", "run"]

_PREFIX = "kelp: "
#: Lines of the guest that stand in the report: name → how.
_NUMBERS = ("words", "words_differing", "interrupts")


def run(
    config: Config, seconds: float, perf: bool, verbose: bool, say: Callable
) -> tuple[Path, dict]:
    """The folder and the report."""
    folder = rtl_tools.build_root() / "linux"
    folder.mkdir(parents=True, exist_ok=True)
    report = {
        "kernel": None,
        "bound": None,
        "region": None,
        "words": 0,
        "words_differing": None,
        "interrupts": 0,
        "events": 0,
        "cxl_kv": None,
        "oracle": None,
        "pmu_exact": None,
        "registers": "rtl",
        "configuration": config.name,
        "digest": config.digest,
        "failed": [],
    }
    try:
        report |= _boot(folder, config, seconds, perf, verbose, say, report)
    except Missing as missing:
        report["missing"] = str(missing)
    write_json(folder / "report.json", "linux", report)
    return folder, report


def _boot(folder, config, seconds, perf, verbose, say, report) -> dict:
    packages = Packages(folder, say)
    packages.lists()
    kernel = packages.kernel()
    tools = packages.tools()
    image = packages.unpack(kernel, kernel)
    machine = Machine(tools, folder)
    say(f"{kernel}; emulator {machine.version}")
    places = machine.places()
    say("the device's RTL" if not verbose else f"windows at {places}")
    device = JoinedDriver(config)
    oracle = _oracle(device, tools, machine, say)
    fabric = Fabric(device, places)
    tables = write_tables(folder, places, tools / "usr/bin/iasl", machine.env)
    initrd = folder / "initramfs"
    pmu = _pmu(packages, kernel, machine, say) if perf and device.io.pmu else None
    _initramfs(folder, image, tools, machine, device, pmu, say, initrd)
    (vmlinuz,) = image.glob("boot/vmlinuz-*")
    found = Found()
    say("boots")
    with open(folder / "console.txt", "w", encoding="utf-8") as log:
        with contextlib.closing(machine.boot(fabric, vmlinuz, initrd, tables, seconds)) as lines:
            for line in lines:
                log.write(line + "\n")
                if line.startswith(_PREFIX):
                    found.take(line.removeprefix(_PREFIX))
                    say(line.removeprefix(_PREFIX))
                elif verbose:
                    say(line)
    return found.report(report) | {
        "verilog": device.verilog,
        "package": kernel,
        "emulator": machine.version,
        "counts": dict(fabric.counts),
        "cdat": _cdat(found, device.io),
        "oracle": oracle,
    }


def _oracle(device, tools, machine, say) -> dict | None:
    """The device's answers beside those of the emulator's own; None where it has none. The device
    is reset behind it."""
    device.write("configuration", 4, 2, 2)
    try:
        with EmulatedDevice(tools, machine.env) as emulated:
            found = compare(device, emulated)
    except Missing as missing:
        say(f"no second device to compare with: {missing}")
        return None
    finally:
        device.reset()
    say(f"{found['compared']} answers beside the emulator's own device's: {found['differing']}")
    return found


def _pmu(packages, kernel, machine, say) -> Path | None:
    """The kernel's PMU driver, which Debian leaves out, as a module; None where it cannot be
    built."""
    try:
        return pmu_module(packages, kernel, machine.env)
    except Missing as missing:
        say(f"no counters by perf: {missing}")
        return None


def _cdat(found, io) -> dict:
    """Bytes of the CDAT as the kernel has read them by DOE, and whether they are the device's: its
    header has a length and a checksum, then come the entries."""
    seen = bytes.fromhex("".join(found.all("cdat")))
    wanted = b"".join(cdat_entries(io)) if io.doe else b""
    return {"bytes": len(seen), "same": seen == wanted}


def _initramfs(folder, image, tools, machine, driver, pmu, say, to):
    archive = Initramfs()
    busybox = (tools / "bin/busybox").read_bytes()
    archive.file("bin/busybox", busybox)
    for applet in (
        *("sh", "mount", "insmod", "sleep", "seq", "ls", "cat", "sed", "grep", "tail", "head"),
        *("dmesg", "uname", "awk", "poweroff", "tr", "wc", "hexdump"),
    ):
        archive.link(f"bin/{applet}", "busybox")
    archive.program(tools / "usr/bin/cxl", machine.env, "bin/cxl")
    archive.file("bin/session", compile_guest(folder, header(driver)).read_bytes())
    try:
        add_python(archive)
    except Missing as missing:
        say(f"no session of cxl_kv: {missing}")
    order = module_order(image)
    if pmu:
        archive.file("modules/cxl_pmu.ko", pmu.read_bytes(), 0o644)
        archive.file("modules/pmu", b"", 0o644)
    for name, content in order:
        archive.file(f"modules/{name}.ko", content, 0o644)
    archive.file("modules/order", "\n".join(name for name, _ in order).encode(), 0o644)
    archive.file("init", (GUEST / "init").read_bytes())
    archive.write(to)


class Found:
    """What the guest has said."""

    def __init__(self):
        self.lines: list[tuple[str, str]] = []

    def take(self, line: str) -> None:
        name, _, rest = line.partition(" ")
        self.lines.append((name, rest))

    def all(self, name: str) -> list[str]:
        return [rest for each, rest in self.lines if each == name]

    def report(self, report: dict) -> dict:
        bound, region = self.all("bound"), self.all("region")
        out = {
            "kernel": next(iter(self.all("kernel")), None),
            "bound": bool(bound),
            "region": region[0] if region else None,
            "events": sum("cxl_general_media" in line for line in self.all("trace")),
            "torn_down": bool(self.all("torn_down")),
            "failed": self.all("failed"),
        }
        for name in _NUMBERS:
            if values := self.all(name):
                out[name] = int(values[-1])
        if self.all("kv_differing"):
            out["cxl_kv"] = {
                name: int(self.all(f"kv_{name}")[-1])
                for name in ("elements", "differing", "reads", "writes")
                if self.all(f"kv_{name}")
            } | {"configuration": self.all("kv_config")[-1]}
        counts = [line.split() for line in self.all("counted")]
        if counts:
            out["counted"] = {name: [int(got), int(true)] for name, got, true in counts}
            out["pmu_exact"] = all(got == true for got, true in out["counted"].values())
        for when, number in (("after_poison", 0), ("after_clear", 1)):
            looks = {name: self.all(name)[number:] for name in ("lost", "zero", "other")}
            out[when] = {name: int(look[0]) for name, look in looks.items() if look}
        if not self.all("end"):
            out["failed"] = [*out["failed"], "the guest did not come to its end"]
        return report | out

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""``kelp linux`` without a boot: tables, the emulator's wire, the archive, what is said where
packages cannot be had. A boot is `kelp linux` itself."""

import json
import socket
import struct
import subprocess

import pytest
from typer.testing import CliRunner

from kelp_cli.linux import packages, tables
from kelp_cli.linux.fabric import RootPort
from kelp_cli.linux.initramfs import Initramfs
from kelp_cli.linux.places import Places
from kelp_cli.linux.proxy import Proxy
from kelp_cli.linux.python import add_python
from kelp_cli.linux.run import Found
from kelp_cli.main import build_app

PLACES = Places(0xF0800000, 0xF0000000, 0xE0000000)


def test_the_early_discovery_table_adds_up():
    table = tables.cedt(PLACES)
    assert table[:4] == b"CEDT" and struct.unpack_from("<I", table, 4) == (len(table),)
    assert sum(table) % 256 == 0
    kinds, at = [], 36
    while at < len(table):
        kind, length = struct.unpack_from("<BxH", table, at)
        kinds.append((kind, length))
        at += length
    assert kinds == [(0, 32), (1, 40)] and at == len(table)


class Emulator:
    """The other end of the wire."""

    def __init__(self):
        self.socket, end = socket.socketpair()
        self.memory = {}
        self.proxy = Proxy(
            end,
            lambda at, size: self.memory.get((at, size), 0),
            lambda at, size, value: self.memory.update({(at, size): value}),
        )

    def ask(self, kind, body):
        self.socket.sendall(struct.pack("<i4xQ", kind, len(body)) + body)
        assert self.proxy.serve(1.0)
        kind, size, value = struct.unpack("<i4xQQ", self.socket.recv(24))
        assert (kind, size) == (1, 8)
        return value

    def config(self, at, size, value=None):
        kind = 3 if value is None else 2
        return self.ask(kind, struct.pack("<IIi", at, value or 0, size))


def test_firmware_sizes_and_places_three_bars_and_then_finds_nothing():
    e = Emulator()
    assert e.config(0, 2) == 0x1B36
    sizes = []
    for i in range(6):
        e.config(0x10 + 4 * i, 4, 0xFFFFFFFF)
        mask = e.config(0x10 + 4 * i, 4)
        sizes.append(-mask & 0xFFFFFFFF)
    assert sizes == [2 << 20, 8 << 20, 256 << 20, 0, 0, 0]
    for i, base in enumerate((PLACES.ecam, PLACES.mmio, PLACES.window)):
        e.config(0x10 + 4 * i, 4, base)
    assert e.proxy.places is None
    e.config(4, 2, 2)
    assert e.proxy.places == PLACES
    assert e.config(0, 4) == 0xFFFFFFFF
    e.config(4, 2, 0)
    assert e.proxy.places == PLACES
    assert e.ask(4, struct.pack("<QQI?3x", 0xE0000040, 0x55, 8, True)) == 0
    assert e.ask(5, struct.pack("<QQI?3x", 0xE0000040, 0, 8, True)) == 0x55
    e.socket.close()
    with pytest.raises(EOFError):
        e.proxy.serve(1.0)
    e.proxy.socket.close()


def test_the_root_port_forwards_its_window_alone():
    port = RootPort(PLACES)
    assert port.read(0x0A, 2) == 0x0604 and port.read(0x18, 4) & 0xFFFFFF == 0x010100
    base, limit = port.read(0x20, 2) << 16, port.read(0x22, 2) << 16
    assert (base, limit) == (0xF0200000, 0xF0700000)
    port.write(0, 4, 0)
    port.write(4, 2, 6)
    assert port.read(0, 2) == 0x1B36 and port.read(4, 2) == 6


def test_the_archive_has_each_folder_before_its_files(tmp_path):
    archive = Initramfs()
    archive.file("modules/a.ko", b"abc", 0o644)
    archive.link("bin/sh", "busybox")
    archive.write(tmp_path / "initramfs")
    data, at, names = (tmp_path / "initramfs").read_bytes(), 0, {}
    while True:
        assert data[at : at + 6] == b"070701"
        size, length = (int(data[at + o : at + o + 8], 16) for o in (54, 94))
        name = data[at + 110 : at + 110 + length - 1].decode()
        at += 110 + length
        at += -at % 4
        names[name] = data[at : at + size]
        at += size + -size % 4
        if name == "TRAILER!!!":
            break
    order = list(names)
    assert order.index("modules") < order.index("modules/a.ko")
    assert names["modules/a.ko"] == b"abc" and names["bin/sh"] == b"busybox"


def test_what_the_guest_says_stands_in_the_report():
    found = Found()
    for line in (
        "kernel 6.12.1",
        "bound mem0",
        "region region0 0xe0000000 0x10000000",
        "words 256",
        "words_differing 0",
        "trace x cxl_general_media: a",
        "trace x cxl_poison: b",
        "interrupts 3",
        "counted writes 300 300",
        "counted data 199 200",
        *("lost 24", "zero 0", "other 0", "lost 0", "zero 24", "other 0"),
        *("kv_config unit_cxl", "kv_elements 2048", "kv_differing 0", "kv_reads 512"),
    ):
        found.take(line)
    report = found.report({"bound": None})
    assert report["bound"] is True and report["kernel"] == "6.12.1"
    assert (report["words"], report["words_differing"], report["interrupts"]) == (256, 0, 3)
    assert report["events"] == 1 and report["pmu_exact"] is False
    assert report["after_poison"] == {"lost": 24, "zero": 0, "other": 0}
    assert report["after_clear"] == {"lost": 0, "zero": 24, "other": 0}
    wanted = {"configuration": "unit_cxl", "elements": 2048, "differing": 0, "reads": 512}
    assert report["cxl_kv"] == wanted
    # It did not come to its end, and that is said.
    assert report["failed"]


def test_the_guests_python_stands_alone(tmp_path):
    """What is packed for the guest runs in a folder of its own, and has the host library."""
    archive = Initramfs()
    files = {}
    archive.file = lambda name, content, mode=0o755: files.update({name: content})
    add_python(archive)
    assert any(name.endswith("/encodings/ascii.pyc") for name in files)
    assert not [name for name in files if "kelp_golden" in name or name.endswith(".py.pyc")]
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (tmp_path / "bin/python").chmod(0o755)
    where = {
        "PYTHONHOME": f"{tmp_path}/python",
        "PYTHONPATH": f"{tmp_path}/python/site",
        "XDG_CACHE_HOME": f"{tmp_path}/cache",
        "LD_LIBRARY_PATH": f"{tmp_path}/lib",
    }
    done = subprocess.run(
        [tmp_path / "bin/python", tmp_path / "bin/kv.py", "cxl:/dev/null"],
        capture_output=True,
        text=True,
        env=where,
        timeout=120,
        check=False,
    )
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("cxl_kv.errors.TransportError: cxl:/dev/null has 0 bytes; legal: a ")
    assert str(tmp_path) in done.stderr and "site-packages" not in done.stderr


def test_without_packages_nothing_is_bound_and_that_is_no_failure(monkeypatch, tmp_path):
    monkeypatch.setenv("KELP_BUILD", str(tmp_path))
    monkeypatch.setattr(packages.shutil, "which", lambda name: None)
    done = CliRunner().invoke(build_app(), ["linux"])
    assert done.exit_code == 0, done.output
    assert "apt-get is not on this machine" in done.output
    report = json.loads((tmp_path / "linux" / "report.json").read_text(encoding="utf-8"))
    assert report["bound"] is None and "apt-get" in report["missing"]

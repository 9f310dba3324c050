# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""ACPI tables that tell a kernel of a second PCI segment with a CXL host bridge, and of its memory
window."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

from kelp_spec.files import write_whole

from .places import BRIDGE_BYTES, ECAM_BYTES, MMIO_BYTES, SEGMENT, WINDOW_BYTES, Places

__all__ = ["cedt", "write_tables"]

_UID = 1
_TYPE3, _VOLATILE = 2, 4  #: restrictions of a fixed memory window

_SSDT = """\
DefinitionBlock ("", "SSDT", 2, "KELP", "CXLHOST", 1)
{{
    Scope (\\_SB)
    {{
        Device (CXLM) {{ Name (_HID, "ACPI0017") }}
        Device (CXLE)
        {{
            Name (_HID, EisaId ("PNP0C02"))
            Name (_UID, "CXLE")
            Name (_CRS, ResourceTemplate ()
            {{
                Memory32Fixed (ReadWrite, {ecam:#x}, {ecam_bytes:#x})
            }})
        }}
        Device (PCX1)
        {{
            Name (_HID, "ACPI0016")
            Name (_CID, Package () {{ EisaId ("PNP0A08"), EisaId ("PNP0A03") }})
            Name (_UID, {uid})
            Name (_SEG, {segment})
            Name (_BBN, 0)
            Name (_CBA, {ecam:#x})
            Name (_CRS, ResourceTemplate ()
            {{
                WordBusNumber (ResourceProducer, MinFixed, MaxFixed, PosDecode, 0, 0, 1, 0, 2)
                DWordMemory (ResourceProducer, PosDecode, MinFixed, MaxFixed, NonCacheable,
                    ReadWrite, 0, {mmio:#x}, {mmio_end:#x}, 0, {mmio_bytes:#x})
            }})
            Method (_OSC, 4) {{ Return (Arg3) }}
        }}
    }}
}}
"""


def write_tables(folder: Path, places: Places, iasl: Path, env: dict) -> list[Path]:
    """The files for the emulator's `-acpitable`."""
    source = folder / "ssdt.asl"
    write_whole(
        source,
        _SSDT.format(
            ecam=places.ecam,
            ecam_bytes=ECAM_BYTES,
            uid=_UID,
            segment=SEGMENT,
            mmio=places.mmio,
            mmio_end=places.mmio + MMIO_BYTES - 1,
            mmio_bytes=MMIO_BYTES,
        ),
    )
    subprocess.run(
        [str(iasl), "-p", str(folder / "ssdt"), str(source)],
        check=True,
        capture_output=True,
        timeout=60,
        env=env,
    )
    early = folder / "cedt.aml"
    write_whole(early, cedt(places))
    return [folder / "ssdt.aml", early]


def cedt(places: Places) -> bytes:
    """CXL early discovery table: a host bridge of CXL 2.0, and a window with one target."""
    bridge = struct.pack("<BxHIIIQQ", 0, 32, _UID, 1, 0, places.mmio, BRIDGE_BYTES)
    window = struct.pack(
        "<BxHIQQBBHIHHI",
        1,
        40,
        0,
        places.window,
        WINDOW_BYTES,
        0,
        0,
        0,
        0,
        _TYPE3 | _VOLATILE,
        0,
        _UID,
    )
    body = bridge + window
    head = struct.pack(
        "<4sIBB6s8sI4sI", b"CEDT", 36 + len(body), 1, 0, b"KELP  ", b"CXLHOST ", 1, b"KELP", 1
    )
    table = bytearray(head + body)
    table[9] = -sum(table) & 0xFF
    return bytes(table)

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What the guest's program must know of the device: a C header with its session's registers."""

from __future__ import annotations

from kelp_rtl.control import Descriptor, QueueParameters
from kelp_rtl.device import Driver
from kelp_spec.address import REGISTER_BYTES, KvAddress
from kelp_spec.cxlio.config import CXL_VENDOR
from kelp_spec.messages import S2MDRS, S2MNDR, M2SReq, M2SRwD
from kelp_spec.registers import SessionCommand

__all__ = ["LINES", "header"]

LINES = 32
#: What the guest counts: name, of stores or of loads, group and event.
COUNTED = (
    ("requests", False, 0x20, M2SReq.MEM_RD),
    ("writes", True, 0x21, M2SRwD.MEM_WR_PTL),
    ("completions", True, 0x24, S2MNDR.CMP),
    ("data", False, 0x25, S2MDRS.MEM_DATA),
)
_PAGE = 2 << 20


def header(driver: Driver) -> str:
    """`places.h`."""
    c, addresses = driver.config, driver.addresses
    shape = Descriptor(layers=1, kv_heads=1)
    registers = driver._descriptor("s0_", shape, 0) | driver._parameters("s0_", QueueParameters())

    def command(which):
        return driver.pack("s0_command", command=which)

    registers["s0_command"] = command(SessionCommand.OPEN)
    state = {f.name: (1 << f.bits) - 1 << f.low for f in driver.registers["s0_state"].fields}
    places = [
        addresses.encode(KvAddress(0, 0, i // c.half_lines, 0, i % c.half_lines))
        for i in range(LINES)
    ]
    mapped = -(-(addresses.register_base + REGISTER_BYTES) // _PAGE) * _PAGE
    lines = [
        "#pragma once",
        f"#define LINES {LINES}",
        f"#define MAPPED {mapped:#x}ull",
        f"#define REGISTER_BASE {addresses.register_base:#x}ull",
        f"#define IDENTITY {driver.registers['identity'].offset:#x}",
        f"#define IDENTITY_VALUE {driver.registers['identity'].reset:#x}ull",
        f"#define STATE {driver.registers['s0_state'].offset:#x}",
        f"#define STATE_BUSY {state['busy']:#x}ull",
        f"#define STATE_OPEN {state['open']:#x}ull",
        f"#define COMMAND {driver.registers['s0_command'].offset:#x}",
        f"#define COMMAND_CLOSE {command(SessionCommand.CLOSE):#x}ull",
        "static const uint64_t OPEN[][2] = {",
        *(
            f"    {{{driver.registers[name].offset:#x}, {value:#x}ull}},"
            for name, value in registers.items()
        ),
        "};",
        "static const uint64_t LINES_AT[] = {" + ", ".join(f"{at:#x}" for at in places) + "};",
        "#define LINE(i) LINES_AT[i]",
        "static const struct { const char *name; int store; uint64_t config; } COUNTED[] = {",
        *(
            f'    {{"{name}", {int(store)}, {CXL_VENDOR << 48 | group << 32 | 1 << event:#x}ull}},'
            for name, store, group, event in COUNTED
        ),
        "};",
    ]
    return "\n".join(lines) + "\n"

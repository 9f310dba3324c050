# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""CXL.mem transaction-layer messages, 256-byte flit fields and encodings (spec §3; CXL 3.x, HDM-H
semantics). Plain Python.

The Valid bit of each message is the stream's `valid`; reserved bits are not carried.
"""

from __future__ import annotations

from enum import IntEnum

__all__ = [
    "FIELDS",
    "LD_ID_BITS",
    "TAG_BITS",
    "DevLoad",
    "M2SBIRsp",
    "M2SReq",
    "M2SRwD",
    "S2MBISnp",
    "S2MDRS",
    "S2MNDR",
]

TAG_BITS = 16
LD_ID_BITS = 4


class M2SReq(IntEnum):
    MEM_INV = 0
    MEM_RD = 1
    MEM_RD_DATA = 2
    MEM_RD_FWD = 3
    MEM_WR_FWD = 4
    MEM_SPEC_RD = 8
    MEM_INV_NT = 9
    MEM_CLN_EVCT = 10


class M2SRwD(IntEnum):
    MEM_WR = 1
    MEM_WR_PTL = 2
    BI_CONFLICT = 4


class M2SBIRsp(IntEnum):
    I = 0
    S = 1
    E = 2
    I_BLK = 4
    S_BLK = 5
    E_BLK = 6


class S2MDRS(IntEnum):
    MEM_DATA = 0
    MEM_DATA_NXM = 1


class S2MNDR(IntEnum):
    CMP = 0
    CMP_S = 1
    CMP_E = 2
    CMP_M = 3
    BI_CONFLICT_ACK = 4


class S2MBISnp(IntEnum):
    CUR = 0
    DATA = 1
    INV = 2
    CUR_BLK = 4
    DATA_BLK = 5
    INV_BLK = 6


class DevLoad(IntEnum):
    LIGHT = 0
    OPTIMAL = 1
    MODERATE = 2
    SEVERE = 3


#: message → (field, bits), lowest first. `address` is host address bits 51:6.
FIELDS: dict[str, tuple[tuple[str, int], ...]] = {
    "M2SReq": (
        ("opcode", 4),
        ("snp_type", 3),
        ("meta_field", 2),
        ("meta_value", 2),
        ("tag", TAG_BITS),
        ("address", 46),
        ("ld_id", LD_ID_BITS),
        ("tc", 2),
    ),
    "M2SRwD": (
        ("opcode", 4),
        ("snp_type", 3),
        ("meta_field", 2),
        ("meta_value", 2),
        ("tag", TAG_BITS),
        ("address", 46),
        ("poison", 1),
        ("bep", 1),
        ("ld_id", LD_ID_BITS),
        ("tc", 2),
        ("byte_enable", 64),
        ("data", 512),
    ),
    "M2SBIRsp": (("opcode", 4), ("bi_tag", 12), ("bi_id", 12), ("low_address", 2)),
    "S2MBISnp": (("opcode", 4), ("bi_tag", 12), ("bi_id", 12), ("address", 46)),
    "S2MNDR": (
        ("opcode", 3),
        ("meta_field", 2),
        ("meta_value", 2),
        ("tag", TAG_BITS),
        ("ld_id", LD_ID_BITS),
        ("dev_load", 2),
    ),
    "S2MDRS": (
        ("opcode", 3),
        ("meta_field", 2),
        ("meta_value", 2),
        ("tag", TAG_BITS),
        ("poison", 1),
        ("ld_id", LD_ID_BITS),
        ("dev_load", 2),
        ("data", 512),
    ),
}

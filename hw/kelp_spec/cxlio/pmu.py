# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The performance monitor (register locator block 4, BAR4): which events there are, which counter
counts what. Linux programs configurable counters of capability 0 alone as it should; so everything
else is counted by fixed ones."""

from __future__ import annotations

from dataclasses import dataclass

from ..messages import S2MDRS, S2MNDR, M2SBIRsp, M2SReq, M2SRwD, S2MBISnp
from ..metadata import PrefetchSource
from .config import CXL_VENDOR, CxlIoConfig
from .fields import Access, Block, Field, Register, constant

__all__ = [
    "BI_GROUPS",
    "COUNTER_BITS",
    "EVENT_BITS",
    "GROUPS",
    "NO_FILTER",
    "PmuMap",
    "VENDOR_COUNTERS",
    "VendorEvent",
    "pmu_map",
    "pmu_registers",
]

COUNTER_BITS, EVENT_BITS, INDEX_BITS = 48, 32, 5
NO_FILTER = 0xFFFF
FIXED, CONFIGURABLE = 1, 2
_REQUESTS, _WRITES, _RESPONSES, _DATA = 0x20, 0x21, 0x24, 0x25
#: Of messages on M2S Req, M2S RwD, S2M NDR, S2M DRS.
GROUPS = (_REQUESTS, _WRITES, _RESPONSES, _DATA)
#: With HDM-DB: of messages on M2S BIRsp, S2M BISnp.
BI_GROUPS = (0x22, 0x23)
RW = Access.RW


class VendorEvent:
    """Bits of the vendor's group 1."""

    GROUP = 1
    HIT, MISS, EVICTION, PREFETCH_USEFUL, PREFETCH_LATE = range(5)
    #: Of the recording's stand-in.
    RECORDED_LOAD, RECORDED_REFUSED = range(2)


_SOURCES = tuple(s.name.lower() for s in PrefetchSource if s)
#: Event of the vendor's group → the counters (`kelp_spec.registers.COUNTERS`) that it counts with.
VENDOR_COUNTERS = {
    VendorEvent.HIT: ("hits",),
    VendorEvent.MISS: ("misses",),
    VendorEvent.EVICTION: ("evictions",),
    VendorEvent.PREFETCH_USEFUL: tuple(f"prefetch_useful_{s}" for s in _SOURCES),
    VendorEvent.PREFETCH_LATE: tuple(f"prefetch_late_{s}" for s in _SOURCES),
}


@dataclass(frozen=True)
class PmuMap:
    """`capabilities`: (vendor, group, events that there are); `counters`: None for one that is
    configurable, of capability 0, else (capability, event) of a fixed one."""

    capabilities: tuple[tuple[int, int, int], ...]
    counters: tuple[tuple[int, int] | None, ...]


def _bits(*events: int) -> int:
    return sum(1 << event for event in events)


def pmu_map(c: CxlIoConfig) -> PmuMap:
    v = VendorEvent
    if c.pmu == "recorded":
        return PmuMap(
            (
                (CXL_VENDOR, _REQUESTS, _bits(M2SReq.MEM_RD, M2SReq.MEM_RD_DATA)),
                (CXL_VENDOR, _WRITES, _bits(M2SRwD.MEM_WR, M2SRwD.MEM_WR_PTL)),
                (c.device, v.GROUP, _bits(v.RECORDED_LOAD, v.RECORDED_REFUSED)),
            ),
            (None, (1, M2SRwD.MEM_WR_PTL), (2, v.RECORDED_LOAD), (2, v.RECORDED_REFUSED)),
        )
    requests = (
        M2SReq.MEM_INV,
        M2SReq.MEM_RD,
        M2SReq.MEM_RD_DATA,
        M2SReq.MEM_SPEC_RD,
        M2SReq.MEM_INV_NT,
        M2SReq.MEM_CLN_EVCT,
    )
    # What HDM-DB adds, all that the device sends or takes.
    conflict, granted, snoops = (), (), ()
    if c.coherent:
        conflict = (M2SRwD.BI_CONFLICT,)
        granted = (S2MNDR.CMP_S, S2MNDR.CMP_E, S2MNDR.BI_CONFLICT_ACK)
        messages = (tuple(M2SBIRsp), (S2MBISnp.INV, S2MBISnp.INV_BLK))
        snoops = zip(BI_GROUPS, messages, strict=True)
    capabilities = (
        (CXL_VENDOR, _REQUESTS, requests),
        (CXL_VENDOR, _WRITES, (M2SRwD.MEM_WR, M2SRwD.MEM_WR_PTL, *conflict)),
        (CXL_VENDOR, _RESPONSES, (S2MNDR.CMP, *granted)),
        (CXL_VENDOR, _DATA, (S2MDRS.MEM_DATA, S2MDRS.MEM_DATA_NXM)),
        (
            c.vendor,
            v.GROUP,
            (v.HIT, v.MISS, v.EVICTION, v.PREFETCH_USEFUL, v.PREFETCH_LATE),
        ),
        *((CXL_VENDOR, group, messages) for group, messages in snoops),
    )
    fixed = ((i, e) for i, (_, _, events) in enumerate(capabilities) if i for e in events)
    return PmuMap(
        tuple((vendor, group, _bits(*events)) for vendor, group, events in capabilities),
        (None, None, *fixed),
    )


def pmu_registers(c: CxlIoConfig) -> Block:
    pmu = pmu_map(c)
    n = len(pmu.counters)
    capability = (
        n - 1
        | COUNTER_BITS << 8
        | len(pmu.capabilities) - 1 << 20
        | 1 << 32  # filter: HDM decoder
        | c.pmu_vector << 44
        | 0b111 << 48  # writable when frozen, freeze, interrupt
    )
    registers = [
        constant("pmu_capability", 0x000, 8, capability, "counters, width, events, filter"),
        Register(
            "overflow", 0x010, 8, (Field("value", 0, n, Access.W1C),), "a bit for each counter"
        ),
        Register(
            "freeze", 0x018, 8, (Field("value", 0, n, Access.SHARED),), "a bit for each counter"
        ),
    ]
    for i, (vendor, group, events) in enumerate(pmu.capabilities):
        value = events | group << 32 | vendor << 48
        registers.append(constant(f"events{i}", 0x100 + 8 * i, 8, value, "events, group, vendor"))
    for i, what in enumerate(pmu.counters):
        registers += _counter(i, what)
    return Block("pmu", 4096, registers)


def _counter(i: int, what: tuple[int, int] | None):
    if what is None:
        kind = CONFIGURABLE
        chosen = (Field("events", 24, EVENT_BITS, RW), Field("index", 59, INDEX_BITS, RW))
    else:
        kind, (capability, event) = FIXED, what
        chosen = (
            Field("events", 24, EVENT_BITS, reset=1 << event),
            Field("index", 59, INDEX_BITS, reset=capability),
        )
    fields = (
        Field("type", 0, 2, reset=kind, doc="1 fixed, 2 configurable"),
        Field("enable", 8, 1, RW),
        Field("irq", 9, 1, RW, doc="message on overflow"),
        Field("stop", 10, 1, RW, doc="overflow freezes all counters"),
        Field("edge", 11, 1, RW, doc="counts when the condition begins to hold"),
        Field("invert", 12, 1, RW, doc="condition: fewer events than the threshold"),
        Field("threshold", 16, 8, RW, doc="events in a cycle"),
        *chosen,
    )
    yield Register(f"counter{i}_config", 0x200 + 8 * i, 8, fields, "what is counted")
    decoder = (Field("value", 0, 32, RW, NO_FILTER),)
    yield Register(f"counter{i}_filter", 0x400 + 32 * i, 4, decoder, "HDM decoder, 0xFFFF: all")
    count = (Field("value", 0, COUNTER_BITS, Access.COUNT),)
    what_it_is = "written while frozen"
    yield Register(f"counter{i}", 0xC00 + 8 * i, 8, count, what_it_is, f"counter{i}_running")

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""A configuration of CXL.io: what a device shows of itself, checked once."""

from __future__ import annotations

from dataclasses import dataclass, fields

from ..formats import LINE_BYTES
from .commands import COMMANDS, Opcode
from .knobs import KNOBS

__all__ = [
    "CXLIO",
    "CXL_VENDOR",
    "CxlIoConfig",
    "MOST_TRACKED",
    "Space",
    "UNIT_BYTES",
    "cxlio_of",
    "named_cxlio",
]

CXL_VENDOR = 0x1E98  #: of the consortium: DVSECs, DOE
MOST_TRACKED = 64  #: units of capacity with a hot list
UNIT_BYTES = 256 << 20  #: capacities, decoder bases and sizes are multiples of it
#: Command → the one that tells a host what it is for; storage and tables go by these.
_NEEDS = {
    Opcode.GET_FEATURE: Opcode.SUPPORTED_FEATURES,
    Opcode.SET_FEATURE: Opcode.GET_FEATURE,
    Opcode.SET_LSA: Opcode.GET_LSA,
}


class Space:
    """Where the register port shows what: address bits 19:16 choose the space."""

    COMPONENT = 0x0_0000  #: BAR0
    DEVICE = 0x1_0000  #: BAR2
    PMU = 0x2_0000  #: BAR4
    CONFIGURATION = 0x3_0000
    CHMU = 0x4_0000  #: BAR4 + 64 KiB
    ADDRESS_BITS = 20
    NAMES = ("component", "device", "pmu", "configuration", "chmu")


@dataclass(frozen=True, kw_only=True)
class CxlIoConfig:
    """`capacity` in units of 256 MiB. `payload_bits`: 2^n bytes of mailbox payload. `events`:
    records of each log; `poisons`: entries of the poison list. `lsa`: bytes of label storage.
    `knobs`: 32-bit vendor features; `wired`: they are registers of the data path's
    (`kelp_spec.cxlio.knobs`), asked for with each command, not kept here. `period_ns`: nanoseconds
    of a clock cycle. `pmu` names a map of the monitor's counters (kelp_spec.cxlio.pmu), "" none.
    `patience`: cycles after which a request to the data path counts as lost. `latency_ns`,
    `bandwidth_mb`: of a hit, as the CDAT says it, at the clock that the device has: by default what
    `kelp bench` measures (20 cycles, 64 of memory, a line a cycle), and 2 cycles of decode.
    `hot_entries`: of the hotness monitor's list, a power of two, 0 without the monitor; `hot_unit`:
    log2 of the bytes of what it lists, a page. `coherent`: the device calls lines back (HDM-DB).
    `flr`: function-level reset, of CXL.io alone. `nxm`: what no window decodes is answered
    MemData-NXM, not ones. `protect`: memories carry check bits."""

    name: str
    vendor: int = CXL_VENDOR
    device: int = 0x4B50
    serial: int = 0x4B454C50_00000001
    firmware: str = "KELP 0.1"
    capacity: int = 1
    decoders: int = 2
    payload_bits: int = 9
    vectors: int = 4
    event_vector: int = 1
    events: int = 16
    poisons: int = 32
    lsa: int = 0
    knobs: int = 0
    wired: bool = False
    period_ns: int = 4
    patience: int = 1 << 16
    latency_ns: int = 344
    bandwidth_mb: int = 15_680
    protect: bool = True
    mailbox_irq: bool = False
    function_map: bool = False
    doe: bool = False
    pmu: str = ""
    pmu_vector: int = 2
    hot_entries: int = 0
    hot_unit: int = 13
    chmu_vector: int = 3
    coherent: bool = False
    flr: bool = False
    nxm: bool = True
    commands: tuple[Opcode, ...] = tuple(COMMANDS)

    def __post_init__(self):
        limits = {
            "vendor": (0, 0xFFFF),
            "device": (0, 0xFFFF),
            "serial": (0, (1 << 64) - 1),
            "capacity": (1, 1 << 20),
            "payload_bits": (8, 12),
            "vectors": (2 if self.pmu else 1, 16),
            "event_vector": (0, self.vectors - 1),
            "pmu_vector": (1, self.vectors - 1) if self.pmu else (0, 15),
            "hot_entries": (0, 256),
            "hot_unit": (8, 28),
            "chmu_vector": (0, self.vectors - 1 if self.hot_entries else 15),
            "events": (1, 16),
            "poisons": (1, 64),
            "lsa": (0, 1024),
            "knobs": (0, 16),
            "period_ns": (1, 1000),
            "patience": (16, 1 << 30),
            "latency_ns": (1, 0xFFFE),
            "bandwidth_mb": (1, 0xFFFE),
        }
        for name, (least, most) in limits.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
                raise ValueError(f"{name} = {value!r} is refused; legal: {least} … {most}")
        most = LINE_BYTES * 1000 // self.period_ns
        if self.bandwidth_mb > most:
            raise ValueError(
                f"bandwidth_mb = {self.bandwidth_mb} is refused; legal: 1 … {most}, a line a cycle "
                + f"of period_ns = {self.period_ns}"
            )
        if self.pmu not in ("", "recorded", "full"):
            raise ValueError(f"pmu = {self.pmu!r} is refused; legal: '', recorded, full")
        n = self.hot_entries
        if n and (n < 4 or n & (n - 1) or not self.pmu or self.capacity > MOST_TRACKED):
            raise ValueError(
                f"hot_entries = {n} is refused; legal: 0, or a power of two from 4 on, with pmu "
                + f"and a capacity of {MOST_TRACKED} at most"
            )
        if self.decoders not in (1, 2, 4):
            raise ValueError(f"decoders = {self.decoders!r} is refused; legal: 1, 2, 4")
        if self.wired and not 0 < self.knobs <= len(KNOBS):
            raise ValueError(f"knobs = {self.knobs} is refused; legal with wired: 1 … {len(KNOBS)}")
        if len(self.firmware.encode()) > 16:
            raise ValueError(f"firmware = {self.firmware!r} is refused; legal: 16 bytes at most")
        missing = {Opcode.SUPPORTED_LOGS, Opcode.GET_LOG, Opcode.IDENTIFY} - set(self.commands)
        if missing:
            names = ", ".join(sorted(op.name for op in missing))
            raise ValueError(f"commands without {names} are refused: no host would bind")
        for optional, size in ((Opcode.GET_LSA, self.lsa), (Opcode.GET_FEATURE, self.knobs)):
            if bool(size) != (optional in self.commands):
                raise ValueError(f"{optional.name} without its storage is refused, and vice versa")
        for one, other in _NEEDS.items():
            if one in self.commands and other not in self.commands:
                raise ValueError(f"commands with {one.name} and without {other.name} are refused")
        if self.lsa % 4:
            raise ValueError(f"lsa = {self.lsa} is refused; legal: a multiple of 4")

    @property
    def bytes(self) -> int:
        return self.capacity * UNIT_BYTES

    @property
    def payload(self) -> int:
        return 1 << self.payload_bits

    def replace(self, **changes) -> CxlIoConfig:
        given = {f.name: getattr(self, f.name) for f in fields(self)}
        return CxlIoConfig(**given | changes)


_OF_THE_RECORDING = (
    Opcode.GET_EVENTS,
    Opcode.CLEAR_EVENTS,
    Opcode.GET_INTERRUPT_POLICY,
    Opcode.SET_INTERRUPT_POLICY,
    Opcode.FIRMWARE_INFO,
    Opcode.GET_TIMESTAMP,
    Opcode.SET_TIMESTAMP,
    Opcode.SUPPORTED_LOGS,
    Opcode.GET_LOG,
    Opcode.IDENTIFY,
    Opcode.HEALTH,
    Opcode.POISON_LIST,
    Opcode.INJECT_POISON,
    Opcode.CLEAR_POISON,
)

_RECORDED = CxlIoConfig(
    name="recorded",
    firmware="KELP-PEERS 0.1",
    nxm=False,
    commands=_OF_THE_RECORDING,
)
_FULL = CxlIoConfig(
    name="full",
    payload_bits=10,
    vectors=8,
    lsa=256,
    knobs=4,
    mailbox_irq=True,
    function_map=True,
    doe=True,
    pmu="full",
)
_JOINED = _FULL.replace(
    name="joined",
    flr=True,
    hot_entries=64,
    knobs=len(KNOBS),
    wired=True,
)
_NAMED = {
    "recorded": _RECORDED,
    "recorded_pmu": _RECORDED.replace(name="recorded_pmu", pmu="recorded"),
    "full": _FULL,
    "joined": _JOINED,
    "joined_coherent": _JOINED.replace(name="joined_coherent", coherent=True),
}
#: Names of configurations.
CXLIO = tuple(_NAMED)


def named_cxlio(name: str) -> CxlIoConfig:
    """A configuration by its name: `recorded` and `recorded_pmu` show what the stand-in behind the
    recordings of data/linux showed, `full` everything there is, `joined` what stands before the
    endpoint: all of it, and the hotness monitor; `joined_coherent` before one with HDM-DB."""
    if name not in _NAMED:
        raise ValueError(f"{name!r} is no configuration; there are {', '.join(_NAMED)}")
    return _NAMED[name]


def cxlio_of(config) -> CxlIoConfig:
    """CXL.io before a `kelp_spec.config.Config`'s endpoint: it has room for the whole address map,
    and what it lists as hot is a page of its."""
    named = named_cxlio(config.cxlio)
    return named.replace(
        capacity=max(named.capacity, config.map_units), hot_unit=config.line_bits + 6
    )

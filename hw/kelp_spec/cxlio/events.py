# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Which event record a host gets of each of KELP's events: its log, and its kind."""

from __future__ import annotations

from enum import IntEnum

from ..metadata import Event
from .component import Correctable, Uncorrectable

__all__ = [
    "CORRECTABLE",
    "HealthStatus",
    "Kind",
    "Log",
    "MediaStatus",
    "PoisonSource",
    "RECORDS",
    "UNCORRECTABLE",
]


class Log(IntEnum):
    INFO = 0
    WARNING = 1
    FAILURE = 2
    FATAL = 3


class Kind(IntEnum):
    """Of a record."""

    MEDIA = 0  #: general media, of the page's address
    DRAM = 1
    MODULE = 2
    VENDOR = 3  #: page 31:0, session and queue 63:32; code 7:0, LD-ID 11:8; argument


class PoisonSource(IntEnum):
    """Of an entry of the poison list."""

    UNKNOWN = 0
    EXTERNAL = 1
    INTERNAL = 2
    INJECTED = 3


#: Event → log and kind; what is left out is a vendor record in the information log.
RECORDS = {
    Event.CORRECTED: (Log.INFO, Kind.MEDIA),
    Event.UNCORRECTED: (Log.FAILURE, Kind.MEDIA),
    Event.FETCH_FAILED: (Log.FAILURE, Kind.MEDIA),
    Event.WRITE_BACK_FAILED: (Log.FAILURE, Kind.MEDIA),
    Event.POISON_RECEIVED: (Log.WARNING, Kind.MEDIA),
    Event.MEMORY_READ_FAILED: (Log.FAILURE, Kind.MEDIA),
    Event.MEMORY_WRITE_FAILED: (Log.FAILURE, Kind.MEDIA),
    Event.SNOOP_LOST: (Log.WARNING, Kind.MEDIA),
    Event.FRAME_RECOVERED: (Log.WARNING, Kind.VENDOR),
    Event.STARVED: (Log.WARNING, Kind.VENDOR),
    Event.NO_VICTIM: (Log.WARNING, Kind.VENDOR),
    Event.SUMMARY_LOST: (Log.WARNING, Kind.VENDOR),
    Event.WORD_LOST: (Log.FAILURE, Kind.VENDOR),
    Event.FATAL: (Log.FATAL, Kind.VENDOR),
}

#: Event → the bit of the RAS capability's status that it sets. What is left out sets none.
UNCORRECTABLE = {
    Event.UNCORRECTED: Uncorrectable.CACHE_DATA_ECC,
    Event.WORD_LOST: Uncorrectable.CACHE_DATA_ECC,
    Event.FETCH_FAILED: Uncorrectable.MEM_DATA_ECC,
    Event.MEMORY_READ_FAILED: Uncorrectable.MEM_DATA_ECC,
    Event.MEMORY_WRITE_FAILED: Uncorrectable.MEM_DATA_ECC,
    Event.UNKNOWN_OPCODE: Uncorrectable.RESERVED_ENCODING,
    Event.POISON_RECEIVED: Uncorrectable.POISON_RECEIVED,
    Event.FATAL: Uncorrectable.INTERNAL,
}
CORRECTABLE = {Event.CORRECTED: Correctable.CACHE_DATA_ECC}


class HealthStatus(IntEnum):
    """Bits of the health status (Get Health Info)."""

    MAINTENANCE = 0
    DEGRADED = 1
    REPLACEMENT = 2


class MediaStatus(IntEnum):
    NORMAL = 0
    NOT_READY = 1
    WRITES_LOST = 2
    ALL_DATA_LOST = 3

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What passes between the blocks of this room, and the register port: AXI4-Lite of 64 bits."""

from __future__ import annotations

from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.cxlio.config import UNIT_BYTES, CxlIoConfig, Space

__all__ = [
    "Access",
    "AxiLiteSignature",
    "LANE_BYTES",
    "RESP_DECERR",
    "RESP_OKAY",
    "RESP_SLVERR",
    "UNIT_BITS",
    "answer_layout",
    "decoding_layout",
    "error_layout",
    "event_layout",
    "exchange_layout",
    "health_layout",
    "message_layout",
    "request_layout",
    "window_layout",
]

LANE_BYTES = 8
UNIT_BITS = 64 - (UNIT_BYTES.bit_length() - 1)  #: of an address in units of 256 MiB
RESP_OKAY, RESP_SLVERR, RESP_DECERR = 0, 2, 3


class AxiLiteSignature(wiring.Signature):
    """AXI4-Lite seen from the manager: each channel is a stream named after it. 64 bits of data; a
    narrower access is a write with fewer strobes, or a read of the whole lane.

    Members
    -------
    aw, ar : Out stream {addr}
    w : Out stream {data, strb}
    b : In stream {resp}
    r : In stream {data, resp}
    """

    def __init__(self, *, address_bits: int = Space.ADDRESS_BITS):
        address = data.StructLayout({"addr": address_bits})
        super().__init__(
            {
                "aw": Out(stream.Signature(address)),
                "w": Out(stream.Signature(data.StructLayout({"data": 64, "strb": 8}))),
                "b": In(stream.Signature(data.StructLayout({"resp": 2}))),
                "ar": Out(stream.Signature(address)),
                "r": In(stream.Signature(data.StructLayout({"data": 64, "resp": 2}))),
            }
        )


class Access(wiring.Signature):
    """An access of the port to a block. `lane` and what is written stand from the cycle of `write`,
    or of the read, until `read_data` has been taken two cycles later.

    Members
    -------
    lane : Out
        Which 64 bits.
    read : Out
        In this cycle the lane is read, and will be answered. Without it, too, `read_data` is the
        lane's.
    write : Out
        In this cycle the bytes of `strobe` are written.
    write_data, strobe : Out
    read_data : In
        Valid 1 cycle after `lane`.
    """

    def __init__(self, *, lane_bits: int):
        super().__init__(
            {
                "lane": Out(lane_bits),
                "read": Out(1),
                "write": Out(1),
                "write_data": Out(64),
                "strobe": Out(LANE_BYTES),
                "read_data": In(64),
            }
        )


def message_layout() -> data.StructLayout:
    """An MSI-X message: a write of 32 bits on the link."""
    return data.StructLayout({"address": 64, "data": 32})


def event_layout() -> data.StructLayout:
    """An event as the device reports it; the mailbox makes the 128-byte record of it.

    `log`: 0 info, 1 warning, 2 failure, 3 fatal. `kind`: 0 general media, 1 DRAM, 2 memory module,
    3 vendor. `flags`: those of the record's header. `word`: general media and DRAM: descriptor,
    type, transaction type, a byte each; vendor: the first words of its data. `poison`: the line of
    `dpa` is poisoned, and belongs on the poison list, as of `source`
    (`kelp_spec.cxlio.events.PoisonSource`); with `healed` it is sound, and leaves the list; with
    `lost` there was no room for one: the list has overflowed. `quiet`: there is no record of it.
    """
    return data.StructLayout(
        {
            "log": 2,
            "kind": 2,
            "flags": 8,
            "poison": 1,
            "quiet": 1,
            "source": 3,
            "lost": 1,
            "healed": 1,
            "reserved": 13,
            "dpa": 64,
            "word": 32,
            "more": 32,
        }
    )


def request_layout() -> data.StructLayout:
    """What the mailbox asks of the data path. `kind`: 1 inject poison, 2 write `data` and clear
    poison, 3 sanitize; 4 read vendor feature number `line`, 5 set it to the last 32 bits of `data`.
    `line`: device address / 64. `tag` comes back with the answer."""
    return data.StructLayout({"kind": 3, "tag": 4, "line": 46, "data": 512})


def answer_layout() -> data.StructLayout:
    """`code`: 0 done, 1 no such line (absent, closed), 2 try again, 3 failed. `value`: of a vendor
    feature."""
    return data.StructLayout({"tag": 4, "code": 2, "value": 32})


def health_layout() -> data.StructLayout:
    """Health as the device reports it: fields of Get Health Info, temperature in degrees
    Celsius. A mailbox that knows alerts adds bits 4:0 of `additional`, which are 0 here."""
    return data.StructLayout(
        {
            "status": 8,
            "media": 8,
            "additional": 8,
            "life": 8,
            "temperature": 16,
            "reserved": 16,
            "corrected": 32,
        }
    )


def exchange_layout() -> data.StructLayout:
    """A data object that came in through DOE: its first words, and how many there were (7: seven or
    more)."""
    return data.StructLayout({"header": 32, "length": 32, "word": 32, "count": 3})


def error_layout() -> data.StructLayout:
    """Errors of one cycle, bits as in the status registers; `header` goes with the
    uncorrectable."""
    return data.StructLayout({"uncorrectable": 17, "correctable": 7, "header": 512})


def window_layout(config: CxlIoConfig) -> data.StructLayout:
    """A committed decoder: host addresses `base` and on, `size`, both in units of 256 MiB; 2^ways
    ways of 2^granularity · 256 bytes; device memory from unit `dpa` on."""
    return data.StructLayout(
        {
            "on": 1,
            "base": UNIT_BITS,
            "size": UNIT_BITS,
            "ways": 2,
            "granularity": 3,
            "dpa": config.capacity.bit_length(),
        }
    )


def decoding_layout(config: CxlIoConfig) -> data.StructLayout:
    """What decodes host addresses: the committed decoders, whether they do, and the DVSEC range
    that does otherwise where `mem_enable` is on."""
    return data.StructLayout(
        {
            "windows": data.ArrayLayout(window_layout(config), config.decoders),
            "enable": 1,
            "mem_enable": 1,
            "range_base": UNIT_BITS,
        }
    )

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The memory port: AXI4, 512 bits, one line per transaction (spec §8)."""

from __future__ import annotations

from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.formats import LINE_BITS, LINE_BYTES

__all__ = [
    "AxiSignature",
    "BURST_INCR",
    "RESP_OKAY",
    "SIZE_LINE",
    "address_layout",
    "read_layout",
    "response_layout",
    "write_layout",
]

SIZE_LINE = (LINE_BYTES - 1).bit_length()  #: AxSIZE of a 64-byte beat
BURST_INCR = 1
RESP_OKAY = 0


def address_layout(*, address_bits: int, id_bits: int) -> data.StructLayout:
    """AR and AW. `addr` counts bytes."""
    return data.StructLayout({"id": id_bits, "addr": address_bits, "len": 8, "size": 3, "burst": 2})


def write_layout() -> data.StructLayout:
    return data.StructLayout({"data": LINE_BITS, "strb": LINE_BYTES, "last": 1})


def read_layout(*, id_bits: int) -> data.StructLayout:
    return data.StructLayout({"id": id_bits, "data": LINE_BITS, "resp": 2, "last": 1})


def response_layout(*, id_bits: int) -> data.StructLayout:
    return data.StructLayout({"id": id_bits, "resp": 2})


class AxiSignature(wiring.Signature):
    """AXI4 seen from the manager: each channel is a stream named after it, whose payload has the
    standard field names.

    A wrapper that exposes `m_axi_arvalid`, `m_axi_arid` … renames; nothing has to be computed.
    Signals that are constant for one-line transactions and unknown to the endpoint (lock, cache,
    prot, qos, region, user) are left to that wrapper.

    Parameters
    ----------
    address_bits, id_bits : int

    Members
    -------
    aw, ar : Out stream of :func:`address_layout`
    w : Out stream of :func:`write_layout`
    r : In stream of :func:`read_layout`
    b : In stream of :func:`response_layout`
    """

    def __init__(self, *, address_bits: int, id_bits: int):
        if not isinstance(address_bits, int) or not 6 <= address_bits <= 64:
            raise ValueError(f"address_bits = {address_bits!r} is refused; legal: 6 … 64")
        if not isinstance(id_bits, int) or not 1 <= id_bits <= 16:
            raise ValueError(f"id_bits = {id_bits!r} is refused; legal: 1 … 16")
        self.address_bits = address_bits
        self.id_bits = id_bits
        #: Payload of AR and AW, and of W.
        self.address = address_layout(address_bits=address_bits, id_bits=id_bits)
        self.write = write_layout()
        super().__init__(
            {
                "aw": Out(stream.Signature(self.address)),
                "w": Out(stream.Signature(self.write)),
                "b": In(stream.Signature(response_layout(id_bits=id_bits))),
                "ar": Out(stream.Signature(self.address)),
                "r": In(stream.Signature(read_layout(id_bits=id_bits))),
            }
        )

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What each port of :class:`.axi_endpoint.AxiEndpoint` is for: the table that `kelp fpga axi`
writes beside the Verilog."""

from __future__ import annotations

from kelp_hw.export.ports import ports_of, ports_table

from .axi_endpoint import AxiEndpoint

__all__ = ["PORT_DOCS", "axi_ports_markdown"]

_HANDSHAKE = {
    "valid": "a transfer is offered; holds until taken",
    "ready": "it is taken in this cycle",
}


def _channel(prefix: str, fields: dict[str, str]) -> dict[str, str]:
    return {prefix + name: what for name, what in (_HANDSHAKE | fields).items()}


def _bursts(kind: str) -> dict[str, str]:
    return {
        "id": "comes back with the answer; all ids are one thread, answered in the order of "
        + f"the {kind} addresses",
        "addr": "bytes: the host's address less the base of the region that the IP decodes "
        + "(docs/interface.md has the map)",
        "len": "beats less one, 0 … 255",
        "size": "log2 of a beat's bytes, 0 … 6; each beat, narrow or not, is one request",
        "burst": "0 FIXED, 1 INCR, 2 WRAP",
    }


def _lines(what: str) -> dict[str, str]:
    return {
        "id": f"{what}; one transaction of an id at a time",
        "addr": "bytes from the base of the endpoint's memory; a multiple of 64",
        "len": "0: one beat",
        "size": "6: 64 bytes",
        "burst": "1: INCR",
    }


def _memory(prefix: str, *, wrote: str, read: str) -> dict[str, str]:
    """A port to memory, and what an error of it does."""
    return {
        **_channel(prefix + "aw", _lines("of the write")),
        **_channel(
            prefix + "w",
            {
                "data": "a line as it is stored",
                "strb": "bytes to write; the memory must honour it",
                "last": "1",
            },
        ),
        **_channel(
            prefix + "b",
            {"id": "the write's; any order across ids", "resp": f"other than OKAY: {wrote}"},
        ),
        **_channel(prefix + "ar", _lines("of the read")),
        **_channel(
            prefix + "r",
            {
                "id": "the read's; any order across ids",
                "data": "the line",
                "resp": f"other than OKAY: {read}",
                "last": "not looked at",
            },
        ),
    }


#: Port → what it is. Of a stream's payload, its fields' meaning is in the document named.
PORT_DOCS = {
    "clk": "one clock for everything",
    "rst": "synchronous, active high; metadata is scrubbed after it",
    **_channel("s_axi_aw", _bursts("write")),
    **_channel(
        "s_axi_w",
        {
            "data": "a beat; byte 0 lowest",
            "strb": "bytes to write; a beat with none, and no poison, asks for nothing",
            "last": "not looked at: `awlen` counts",
            "user": "poison: the whole line is poisoned, whatever the strobes",
        },
    ),
    **_channel(
        "s_axi_b",
        {
            "id": "the burst's",
            "resp": "0 OKAY, also where nothing is mapped (the write is dropped); every read "
            + "from now on sees the burst",
        },
    ),
    **_channel("s_axi_ar", _bursts("read")),
    **_channel(
        "s_axi_r",
        {
            "id": "the burst's",
            "data": "the whole line, for narrow beats too; zeros with poison or DECERR",
            "resp": "0 OKAY, 3 DECERR: not mapped",
            "last": "the burst's last beat",
            "user": "the line is poisoned; `rresp` is OKAY",
        },
    ),
    **_memory(
        "m_axi_",
        wrote="host lines stored in that line are poisoned",
        read="what needs the line is answered with poison",
    ),
    **_memory(
        "m_axi_summary_",
        wrote="a page's summary is made anew, and the choice under way has none",
        read="a page's summary is zeros for the choice under way, and made anew",
    ),
    **_channel("cold_command__", {"payload": "a command to the cold tier (docs/cold_tier.md)"}),
    **_channel("cold_completion__", {"payload": "an answer of the cold tier (docs/cold_tier.md)"}),
    "ready": "the scrub after a reset is over: requests are taken",
    "irq": "an event is logged (docs/registers.md)",
}


def axi_ports_markdown(top: AxiEndpoint) -> str:
    """The table, a row for each port in the order of the signature; KeyError for a port that
    `PORT_DOCS` does not have."""
    lines = [
        "# Ports of kelp_axi_endpoint",
        "",
        f"Configuration `{top.config.name}`. A transfer happens in a cycle with `valid` and "
        + "`ready`. Packed payloads list their fields as",
        "name [highest:lowest bit].",
        "",
        *ports_table(ports_of(top.signature), lambda port: PORT_DOCS[port.name]),
    ]
    return "\n".join(lines) + "\n"

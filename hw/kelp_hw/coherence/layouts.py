# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Payloads between the blocks of the coherent front, each declared once (docs/coherence.md)."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Signal, Value
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from kelp_spec.coherence import Coherence, DirectoryOp, DirectoryOutcome, Held
from kelp_spec.config import Config
from kelp_spec.messages import LD_ID_BITS, S2MNDR, TAG_BITS

from ..layouts import MESSAGES, code_shape

__all__ = [
    "BI_ID_BITS",
    "CoherenceLayouts",
    "channels",
    "first_from",
    "folded",
    "lowest",
    "name_line",
]


BI_ID_BITS = 12


def channels() -> dict:
    """Ports of what stands between a host and the endpoint: the host's channels, but for BIRsp, and
    those towards the endpoint."""
    message = {name: stream.Signature(shape) for name, shape in MESSAGES.items()}
    return {
        "m2s_req": In(message["M2SReq"]),
        "m2s_rwd": In(message["M2SRwD"]),
        "s2m_drs": Out(message["S2MDRS"]),
        "s2m_ndr": Out(message["S2MNDR"]),
        "s2m_bisnp": Out(message["S2MBISnp"]),
        "inner_req": Out(message["M2SReq"]),
        "inner_rwd": Out(message["M2SRwD"]),
        "inner_drs": In(message["S2MDRS"]),
        "inner_ndr": In(message["S2MNDR"]),
    }


class CoherenceLayouts:
    """Every payload of the room.

    Parameters
    ----------
    config : Config
    sizes : Coherence

    Attributes
    ----------
    op : layout
        To the directory. `evicts`: the host holds nothing of the line afterwards; `holds`: it asks
        for S or E, and `shared` for S; `tracked`: the directory has a say. WRITE: `holds`, it keeps
        a copy, `shared` as S; `evicts`, it keeps none; neither, it does not say; `rounds`: the
        line's format does. FINISH: `way`. `epoch`: of a
        REQUEST. With `Config.select` `gathers`: of a REQUEST, it comes by a slot of the GATHER
        window, and what the host has of the line must be home first.
    result : layout
        What the op came to; `free`: a recall might have begun, but of the ways that are `granting`:
        grants of them are under way. `ndr` of a request that is done: its
        completion. `place`: set and way of what is granted. `lines`: of a recall, those that are
        held; `recalled`: where they are.
    recall : layout
        A recall that begins.
    lost : layout
        A line that the host did not give back; `refused`: it said so, else it was silent.
    grant : layout
        What an answer needs to know of its request.
    sessions : layout
        Of each session, whether it is open, whether its formats round, and its owner's LD-ID.
    bi : layout
        Cycles until a BISnp counts as unanswered, 0 for never; the device's BI-ID; whether the host
        takes BISnp of Blk forms.
    pulses : layout
        A bit for each of CoherenceEvent's UNASKED and UNGRANTED.
    place : layout
        Where a line of the KV map is, from its address in lines.
    """

    def __init__(self, config: Config, sizes: Coherence):
        if not isinstance(sizes, Coherence):
            raise TypeError(f"sizes must be a kelp_spec.coherence.Coherence, not {sizes!r}")
        S = data.StructLayout
        self.config, self.sizes = config, sizes
        self.sector_bits = sizes.sector_address_bits(config)
        self.place_bits = sizes.set_bits + sizes.way_bits

        self.way = S(
            {
                "tag": sizes.tag_bits(config),
                "held": data.ArrayLayout(code_shape(Held), sizes.sector),
                "recalled": 1,
            }
        )
        self.row = S(
            {
                "ways": data.ArrayLayout(self.way, sizes.ways),
                "turn": sizes.way_bits,
                "pressed": 1,
            }
        )
        self.op = S(
            {
                "kind": code_shape(DirectoryOp),
                "sector": self.sector_bits,
                "line": sizes.sector_bits,
                "tracked": 1,
                "holds": 1,
                "shared": 1,
                "evicts": 1,
                "rounds": 1,
                "way": sizes.way_bits,
                "epoch": 1,
            }
            | ({"gathers": 1} if config.select else {})
        )
        self.result = S(
            {
                "op": self.op,
                "outcome": code_shape(DirectoryOutcome),
                "dropped": 1,
                "hit": 1,
                "free": 1,
                "granting": sizes.ways,
                "ndr": code_shape(S2MNDR),
                "place": self.place_bits,
                "recalled": self.place_bits,
                "recalled_sector": self.sector_bits,
                "lines": sizes.sector,
                "ungranted": 1,
            }
        )
        self.recall = S(
            {
                "sector": self.sector_bits,
                "place": self.place_bits,
                "lines": sizes.sector,
            }
        )
        self.lost = S({"sector": self.sector_bits, "line": sizes.sector_bits, "refused": 1})
        self.grant = S(
            {
                "tag": TAG_BITS,
                "ld_id": LD_ID_BITS,
                "has_ndr": 1,
                "ndr": code_shape(S2MNDR),
                "data": 1,
            }
        )
        self.sessions = S(
            {
                "open": config.sessions,
                "rounds": config.sessions,
                "owners": data.ArrayLayout(LD_ID_BITS, config.sessions),
            }
        )
        self.pulses = S({"unasked": 1, "ungranted": 1})
        self.bi = S({"timeout": 32, "id": BI_ID_BITS, "blocks": 1})
        self.place = S(
            {
                "line": config.line_bits,
                "page": config.page_bits,
                "queue": config.queue_bits,
                "session": config.session_bits,
            }
        )


def name_line(event, place, owners, config: Config) -> list:
    """Assignments by which an event names a line of the KV map, in the name of its session's owner:
    `argument` is the line in its page. `owners`: the LD-ID of each session."""
    return [
        event.ld_id.eq(owners[place.session] if config.sessions > 1 else owners[0]),
        event.squeue.eq(place.session * config.queues + place.queue),
        event.page.eq(place.page),
        event.argument.eq(place.line),
    ]


def folded(value, bits: int) -> Value:
    """`value`'s parts of so many bits each, XORed."""
    value = Value.cast(value)
    total = 0
    for low in range(0, len(value), bits):
        total = total ^ value[low : low + bits]
    return Value.cast(total)[:bits]


def lowest(m: Module, bits, name: str) -> Signal:
    """The number of the lowest bit that is set; 0 where none is."""
    bits = Value.cast(bits)
    number = Signal(range(max(2, len(bits))), name=name)
    for n in reversed(range(len(bits))):
        with m.If(bits[n]):
            m.d.comb += number.eq(n)
    return number


def first_from(m: Module, bits, start, name: str) -> Signal:
    """The number of the first bit that is set, from bit `start` on and round; `start` where none
    is. So many bits as are a power of two."""
    bits = Value.cast(bits)
    count = len(bits)
    turned = Signal(count, name=f"{name}_turned")
    m.d.comb += turned.eq(Cat(bits, bits) >> start)
    number = Signal(range(count), name=name)
    m.d.comb += number.eq(start + lowest(m, turned, f"{name}_lowest"))
    return number

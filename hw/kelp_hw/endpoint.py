# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The whole endpoint: CXL.mem in front, AXI4 memory and a cold tier behind (spec §3, §8, §9; docs/design.md)."""

from __future__ import annotations

from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config

from .axi import AxiSignature
from .layouts import MESSAGES, TIME_BITS, Layouts

__all__ = ["Endpoint", "endpoint_signature"]


def endpoint_signature(config: Config) -> dict:
    """The endpoint's ports.

    M2S and S2M channels carry one message per transfer (kelp_spec.messages). `axi` is the memory port, one 64-byte line per transaction. `cold_command` and `cold_completion` are the cold
    tier; its DMA reaches the same memory by a port of its own. `ready` rises when the reset scrub is over; M2S is not accepted before.

    Verification ports (spec §9), to be left alone in hardware: `skip` cycles are added to the time base at each clock edge; `lockstep` makes engines take turns (evictions and prefetches wait
    until the request before them is answered); `quiescent` says that nothing will change until an input does or a cold-tier deadline passes; `commit_*` are valid-only records, in
    one cycle in the order commit_frame (when `commit_hot`), commit_result, commit_frame (otherwise), commit_score.
    """
    layouts = Layouts(config)
    return {
        "m2s_req": In(stream.Signature(MESSAGES["M2SReq"])),
        "m2s_rwd": In(stream.Signature(MESSAGES["M2SRwD"])),
        "m2s_birsp": In(stream.Signature(MESSAGES["M2SBIRsp"])),
        "s2m_drs": Out(stream.Signature(MESSAGES["S2MDRS"])),
        "s2m_ndr": Out(stream.Signature(MESSAGES["S2MNDR"])),
        "s2m_bisnp": Out(stream.Signature(MESSAGES["S2MBISnp"])),
        "axi": Out(AxiSignature(address_bits=config.dram_line_bits + 6, id_bits=(config.line_slots - 1).bit_length() + 1)),
        "cold_command": Out(stream.Signature(layouts.cold_command)),
        "cold_completion": In(stream.Signature(layouts.cold_completion)),
        "ready": Out(1),
        "irq": Out(1),
        "now": Out(TIME_BITS),
        "skip": In(TIME_BITS),
        "lockstep": In(1),
        "quiescent": Out(1),
        "commit_result": Out(layouts.result), "commit_result_valid": Out(1),
        "commit_frame": Out(layouts.frame_commit), "commit_frame_valid": Out(1), "commit_hot": Out(1),
        "commit_score": Out(layouts.score_commit), "commit_score_valid": Out(1),
    }


class Endpoint(wiring.Component):
    """See :func:`endpoint_signature` for the ports and docs/design.md for the structure.

    Parameters
    ----------
    config : Config
    """

    def __init__(self, *, config: Config):
        self.config = config
        super().__init__(endpoint_signature(config))

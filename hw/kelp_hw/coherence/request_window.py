# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Requests from their acceptance until the directory is done with them, in order
(docs/coherence.md). One a cycle, offered after 1 cycle."""

from __future__ import annotations

from amaranth.hdl import Module, Signal
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.coherence import Coherence, DirectoryOp, DirectoryOutcome
from kelp_spec.config import Config

from ..layouts import MESSAGES
from ..lib.power_of_two import power_of_two
from ..lib.protected import BlockFault, CheckedWord, Fault, gather
from .layouts import CoherenceLayouts

__all__ = ["RequestWindow"]


class RequestWindow(wiring.Component):
    """Offers one request after another. Where the directory sends one back (WAIT, RECALL), that one
    is offered again, and all behind it, in the other epoch: what is under way of the old one is
    dropped there. So nothing overtakes within the window, and the window holds up nothing else.

    Latency: `LATENCY` cycle from `m2s_req` to `message`. One request in each cycle (`INTERVAL`).
    Errors: a request beyond repair is fatal when it is taken, for its line and its tag are not
    known.

    Parameters
    ----------
    config : Config
    sizes : Coherence

    Members
    -------
    m2s_req : in, stream of messages
    enable : in
    waits : out
        A request is offered, which `take` takes.
    message, epoch : out
    take : in
    i_result : in, always-ready stream of result
        The directory's.
    ends : out
        With `i_result`: it is done with the oldest request taken.
    idle : out
        No request is here.
    fault : out, BlockFault
    """

    LATENCY = 1
    INTERVAL = 1
    DEPTH = 8  #: those in the directory's pipeline, and as many again

    def __init__(self, *, config: Config, sizes: Coherence):
        layouts = CoherenceLayouts(config, sizes)
        #: Of a row: its check bits.
        self.word = CheckedWord(MESSAGES["M2SReq"], protect=config.protect)
        super().__init__(
            {
                "m2s_req": In(stream.Signature(MESSAGES["M2SReq"])),
                "enable": In(1),
                "waits": Out(1),
                "message": Out(MESSAGES["M2SReq"]),
                "epoch": Out(1),
                "take": In(1),
                "i_result": In(stream.Signature(layouts.result, always_ready=True)),
                "ends": Out(1),
                "idle": Out(1),
                "fault": Out(BlockFault),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.rows = rows = memory.Memory(
            shape=self.word.code_bits, depth=self.DEPTH, init=()
        )
        write, read = rows.write_port(), rows.read_port(domain="comb")
        pointer = range(2 * power_of_two("DEPTH", self.DEPTH))
        begin, following, end = (
            Signal(pointer, name=name) for name in ("begin", "following", "end")
        )
        result = self.i_result.p
        row, single, double = self.word.decode(m, read.data)
        fault = Signal(Fault)
        accepts, mine, back = Signal(), Signal(), Signal()
        m.d.comb += [
            self.m2s_req.ready.eq(self.enable & ((end - begin)[: len(end)] != self.DEPTH)),
            accepts.eq(self.m2s_req.valid & self.m2s_req.ready),
            write.en.eq(accepts),
            write.addr.eq(end),
            write.data.eq(self.word.encode(m, self.m2s_req.p)),
            read.addr.eq(following),
            self.message.eq(data.View(MESSAGES["M2SReq"], row)),
            fault.corrected.eq(self.take & self.waits & single.any()),
            fault.uncorrected.eq(self.take & self.waits & double.any()),
            self.waits.eq(following != end),
            self.idle.eq((begin == end) & ~self.m2s_req.valid),
            mine.eq(
                self.i_result.valid & ~result.dropped & (result.op.kind == DirectoryOp.REQUEST)
            ),
            back.eq(
                mine
                & (
                    (result.outcome == DirectoryOutcome.WAIT)
                    | (result.outcome == DirectoryOutcome.RECALL)
                )
            ),
            self.ends.eq(mine & ~back),
        ]
        gather(m, self.fault, fault)
        with m.If(accepts):
            m.d.sync += end.eq(end + 1)
        with m.If(self.ends):
            m.d.sync += begin.eq(begin + 1)
        with m.If(back):
            m.d.sync += [following.eq(begin), self.epoch.eq(~self.epoch)]
        with m.Elif(self.take & self.waits):
            m.d.sync += following.eq(following + 1)
        return m

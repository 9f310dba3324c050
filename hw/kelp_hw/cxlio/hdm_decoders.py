# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Commit and lock of the HDM decoders. A commit is judged in 4 cycles."""

from __future__ import annotations

from amaranth.hdl import Array, Assert, Cat, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.cxlio.component import component_registers
from kelp_spec.cxlio.config import CxlIoConfig
from kelp_spec.cxlio.fields import Access as Kind

from .signatures import UNIT_BITS, window_layout

__all__ = ["HdmDecoders"]

_MOST_WAYS, _MOST_GRANULARITY = 3, 6


class HdmDecoders(wiring.Component):
    """Sets `committed` or `error` of each decoder that the host asks to commit, and holds what was
    committed.

    A commit is refused, with `error`, unless: the decoder before is committed and none after; the
    size is not 0 and a multiple of the ways; ways and granularity are legal; the base is not below
    the end of the decoder before (no overlap) and base + size is an address; skip and size fit into
    the device's memory behind the decoder before; host-only is 1, back-invalidate and UIO 0. With
    `config.coherent` it may be the other way round, host-only 0 and back-invalidate 1, and there
    is one way: a snoop's address must be known from the device's alone. The
    error goes with the next write of the control register. A decoder whose commit bit is cleared is
    no longer committed, in any order; those after it stay as they are. Lock with commit: frozen
    until reset. Where the memory of decoder i begins is settled at its commit.

    Latency: `LATENCY` cycles from the commit bit to `committed` or `error`. Interval: `INTERVAL`.

    Parameters
    ----------
    config : CxlIoConfig

    Members
    -------
    values : in
        Those of the component's registers.
    written : in
        Its watched registers.
    states : out
        For each decoder: committed, error; held (all but the commit bit is frozen), locked (the
        commit bit is, too).
    windows : out
        For each decoder, what is decoded.
    """

    LATENCY = 4
    INTERVAL = 4

    def __init__(self, *, config: CxlIoConfig):
        self.config = config
        block = component_registers(config)
        kept = block.keys(Kind.RW, Kind.W1C, Kind.W1S, Kind.SHARED)
        #: units of the device's memory, and one more for an end
        self.dpa_bits = config.capacity.bit_length()
        state = data.StructLayout({"committed": 1, "error": 1, "held": 1, "locked": 1})
        window = window_layout(config)
        super().__init__(
            {
                "values": In(data.StructLayout(kept)),
                "written": In(data.StructLayout(dict.fromkeys(block.watched, 1))),
                "states": Out(data.ArrayLayout(state, config.decoders)),
                "windows": Out(data.ArrayLayout(window, config.decoders)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        n = self.config.decoders
        of = [f"decoder{i}_" for i in range(n)]
        value = self.values

        def units(i, what):
            return Cat(value[of[i] + what], value[of[i] + what + "_high"])

        asked, index = self._states(m), Signal(range(n))
        choices = {
            what: Array([units(i, what) for i in range(n)]) for what in ("base", "size", "skip")
        }
        control = {
            what: Array([value[of[i] + "control_" + what] for i in range(n)])
            for what in ("granularity", "ways", "host_only", "back_invalidate", "uio", "commit")
        }
        base, size, skip = (Signal(UNIT_BITS, name=w) for w in ("base", "size", "skip"))
        ways, granularity, legal = Signal(4), Signal(4), Signal()
        # What lies before: where its host addresses and its device memory end.
        end_before, dpa_before, order = Signal(UNIT_BITS + 1), Signal(self.dpa_bits), Signal()
        ends, dpa_ends = (
            Array([Signal(UNIT_BITS + 1, name=f"end{i}") for i in range(n)]),
            Array([Signal(self.dpa_bits, name=f"dpa_end{i}") for i in range(n)]),
        )
        committed = Cat(s.committed for s in self.states)
        end, start, share = Signal(UNIT_BITS + 1), Signal(UNIT_BITS + 1), Signal(UNIT_BITS)
        whole, good, dpa_end = Signal(), Signal(), Signal(UNIT_BITS + 2)
        with m.FSM():
            with m.State("IDLE"):
                for i in reversed(range(n)):
                    with m.If(asked[i]):
                        m.d.sync += index.eq(i)
                with m.If(asked.any()):
                    m.next = "TAKE"
            with m.State("TAKE"):
                m.d.sync += [
                    base.eq(choices["base"][index]),
                    size.eq(choices["size"][index]),
                    skip.eq(choices["skip"][index]),
                    ways.eq(control["ways"][index]),
                    granularity.eq(control["granularity"][index]),
                    legal.eq(
                        self._model(control["host_only"][index], control["back_invalidate"][index])
                        & ~control["uio"][index]
                    ),
                    # Ones below the index, zeros from it on.
                    order.eq(committed == ((1 << index) - 1)[:n]),
                    end_before.eq(Mux(index == 0, 0, ends[(index - 1)[: len(index)]])),
                    dpa_before.eq(Mux(index == 0, 0, dpa_ends[(index - 1)[: len(index)]])),
                ]
                m.next = "ADD"
            with m.State("ADD"):
                m.d.sync += [
                    end.eq(base + size),
                    start.eq(skip + dpa_before),
                    share.eq(size >> ways[:2]),
                    whole.eq((size & ((1 << ways[:2]) - 1)[:UNIT_BITS]) == 0),
                    legal.eq(
                        legal
                        & order
                        & (size != 0)
                        & (ways <= (0 if self.config.coherent else _MOST_WAYS))
                        & (granularity <= _MOST_GRANULARITY)
                        & (base >= end_before)
                    ),
                ]
                m.next = "JUDGE"
            with m.State("JUDGE"):
                m.d.comb += [
                    dpa_end.eq(start + share),
                    good.eq(
                        legal
                        & whole
                        & (end <= 1 << UNIT_BITS)
                        & (dpa_end <= self.config.capacity)
                        & control["commit"][index]
                    ),
                ]
                with m.Switch(index):
                    for i in range(n):
                        with m.Case(i):
                            window = self.windows[i]
                            # With a write of this very cycle the error goes, or is found anew.
                            again = self.written[of[i] + "control"]
                            m.d.sync += [
                                self.states[i].error.eq(~(good | again) & control["commit"][index]),
                                self.states[i].committed.eq(good),
                                window.base.eq(base),
                                window.size.eq(size),
                                window.ways.eq(ways),
                                window.granularity.eq(granularity),
                                window.dpa.eq(start),
                                ends[i].eq(end),
                                dpa_ends[i].eq(dpa_end),
                            ]
                m.next = "IDLE"
        self._invariants(m)
        return m

    def _model(self, host_only, back_invalidate):
        """Whether the coherency model of a decoder is one of the device's."""
        if self.config.coherent:
            return host_only ^ back_invalidate
        return host_only & ~back_invalidate

    def _invariants(self, m):
        """What a host can rely on of decoders that are committed."""
        for i, (state, window) in enumerate(zip(self.states, self.windows, strict=True)):
            m.d.sync += [
                Assert(~(state.committed & state.error), "committed, and refused"),
                Assert(~window.on | (window.size != 0), "an empty window"),
            ]
            for behind in list(self.windows)[i + 1 :]:
                m.d.sync += Assert(
                    ~(window.on & behind.on)
                    | (behind.base >= window.base + window.size) & (behind.dpa > window.dpa),
                    "windows overlap",
                )

    def _states(self, m):
        """Which decoders ask to be committed."""
        asked = Signal(self.config.decoders)
        for i, state in enumerate(self.states):
            p = f"decoder{i}_control"
            commit = self.values[p + "_commit"]
            m.d.comb += [
                asked[i].eq(commit & ~state.committed & ~state.error),
                state.held.eq(state.committed | asked[i]),
                state.locked.eq(state.committed & self.values[p + "_lock"]),
                self.windows[i].on.eq(state.committed),
            ]
            with m.If(~commit):
                m.d.sync += state.committed.eq(0)
            with m.If(self.written[p]):
                m.d.sync += state.error.eq(0)
        return asked

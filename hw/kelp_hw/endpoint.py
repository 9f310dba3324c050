# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The whole endpoint: CXL.mem in front, AXI4 memory and a cold tier behind (spec §3, §8, §9;
docs/design.md). One request a cycle; a hit takes at most 20 cycles beyond the memory's own
latency."""

from __future__ import annotations

from types import SimpleNamespace

from amaranth.hdl import Assert, Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from kelp_spec.config import POOLS, Config
from kelp_spec.metadata import Event, Op, Outcome, Protected
from kelp_spec.registers import COUNTERS

from .coherence.ask_share import AskShare
from .coherence.host_port import CoherentHostPort
from .control.events import told_ports
from .control.faults import FaultMonitor
from .control.phase import PhaseDetector
from .control.queue_config import QueueConfig
from .control.registers import Registers
from .control.telemetry import Telemetry
from .datapath.datapath import DataPath, axi_signature
from .eviction.eviction import Eviction
from .host.egress import Egress
from .host.hints import HintAbsorber
from .host.ingress import Ingress
from .host.windows import WindowRouter
from .layouts import MESSAGES, TIME_BITS, Layouts, recall_ports
from .lib.broadcast import broadcast
from .lib.bypass_fifo import BypassFifo
from .lib.protected import BlockFault, gather
from .lib.skid import Skid
from .miss.cold_scheduler import ColdScheduler
from .miss.miss_buffer import MissBuffer
from .pipeline import RESERVE
from .prefetch.prefetch import Prefetcher
from .scores.ema import EmaEngine
from .select.select import Select, select_events, summary_ports
from .tracker.error_lines import ErrorLines
from .tracker.frame_table import FrameTable
from .tracker.signatures import BACKGROUND, SELECT_KINDS, poisoned_ports
from .tracker.tracker import Tracker

__all__ = ["Endpoint", "endpoint_signature"]


def endpoint_signature(config: Config) -> dict:
    """The endpoint's ports, which :class:`Endpoint` explains."""
    layouts = Layouts(config)
    return {
        "m2s_req": In(stream.Signature(MESSAGES["M2SReq"])),
        "m2s_rwd": In(stream.Signature(MESSAGES["M2SRwD"])),
        "m2s_birsp": In(stream.Signature(MESSAGES["M2SBIRsp"])),
        "s2m_drs": Out(stream.Signature(MESSAGES["S2MDRS"])),
        "s2m_ndr": Out(stream.Signature(MESSAGES["S2MNDR"])),
        "s2m_bisnp": Out(stream.Signature(MESSAGES["S2MBISnp"])),
        **({"bi_timeout": In(32), "bi_id": In(12), "bi_blocks": In(1)} if config.coherence else {}),
        "axi": Out(axi_signature(config)),
        **summary_ports(config),
        "cold_command": Out(stream.Signature(layouts.cold_command)),
        "cold_completion": In(stream.Signature(layouts.cold_completion)),
        "ready": Out(1),
        "irq": Out(1),
        "now": Out(TIME_BITS),
        "skip": In(TIME_BITS),
        "lockstep": In(1),
        "quiescent": Out(1),
        "commit_result": Out(stream.Signature(layouts.result, always_ready=True)),
        "commit_frame": Out(stream.Signature(layouts.frame_commit, always_ready=True)),
        "commit_hot": Out(1),
        "commit_score": Out(stream.Signature(layouts.score_commit, always_ready=True)),
        **told_ports(config),
        **poisoned_ports(config),
        **({"o_counted": Out(len(COUNTERS))} if config.cxlio else {}),
        **({"o_answered": Out(1), "o_rest": Out(1)} if config.cxlio else {}),
        **(
            {name: port.flip() for name, port in recall_ports(config).items()}
            if config.cxlio and config.coherence
            else {}
        ),
    }


class Endpoint(wiring.Component):
    """CXL.mem in front, memory and a cold tier behind; docs/design.md has the structure.

    Throughput: one request per cycle (docs/design.md §1). Latency of a hit beyond the memory's own:
    at most 20 cycles.

    Parameters
    ----------
    config : Config

    Members
    -------
    m2s_req, m2s_rwd, m2s_birsp : in, streams of M2SReq, M2SRwD, M2SBIRsp
        One message per transfer (kelp_spec.messages).
    s2m_drs, s2m_ndr, s2m_bisnp : out, streams of S2MDRS, S2MNDR, S2MBISnp
    bi_timeout, bi_id, bi_blocks : in
        With `Config.coherence`: cycles until a BISnp counts as unanswered, 0 for never; the
        device's BI-ID; whether the host takes BISnp of Blk forms.
    axi : out
        Memory port (AXI4), one 64-byte line per transaction.
    summary_axi : out
        With `Config.select_port`: the memory port of summaries, the same.
    cold_command : out, stream of cold_command
    cold_completion : in, stream of cold_completion
        The cold tier; its DMA has its own port to the memory.
    ready : out
        The reset scrub is over; M2S is not accepted before.
    irq : out
        Interrupt of the event log.
    now : out
        The time base.
    o_told : out, always-ready stream of event, with `Config.cxlio`
        Events, for CXL.io.
    o_poisoned : out, always-ready stream of poisoned_lines, with `Config.cxlio`
        As `FrameTable` has it.
    o_counted : out, with `Config.cxlio`
        Bit i: entry i of `COUNTERS` counts one more, for its monitor.
    o_answered, o_rest : out, with `Config.cxlio`
        Quiescent, and no request waits for the tier: no answer is owed. And beside that, the tier
        has no command that may still read or write memory.
    recall : in, stream of sectors, still_held : out, always-ready stream
        With `Config.cxlio` and `Config.coherence`: a sector that the host is to hold no more;
        whether it still holds something of it. As `CoherentFront` has them.

    The others are for verification (spec §9); in hardware the inputs stay 0.

    skip : in
        Cycles that are added to the time base at each clock edge.
    lockstep : in
        Engines take turns: evictions and prefetches wait until the request before them is answered.
    quiescent : out
        Nothing changes until an input does or a cold-tier deadline passes.
    commit_result, commit_frame, commit_score : out, always-ready streams
        In one cycle the order is commit_frame (when `commit_hot`), commit_result, commit_frame
        (otherwise), commit_score.
    commit_hot : out

    Attributes
    ----------
    ecc_flip : Signal
        No port, for a board's self-test: its bits are XORed into the low bits of every page word's
        code word on its way to the SRAM. Where it is not driven, it is 0 and costs no logic.
    """

    def __init__(self, *, config: Config):
        self.config = config
        self.ecc_flip = Signal(2)
        super().__init__(endpoint_signature(config))

    def elaborate(self, platform):
        m = Module()
        self._blocks(m)
        self._time(m)
        self._requests_and_answers(m)
        busy, recent = self._busy(m)
        self._prefetch_turn(m, busy, recent)
        self._eviction_turn(m, busy, recent)
        self._ops(m)
        self._frames_and_data(m)
        self._settings(m)
        self._results(m)
        self._misses(m)
        self._scores_and_eviction(m)
        self._prefetch_and_hints(m)
        self._phase(m)
        self._telemetry(m)
        if self.config.protect:
            self._faults(m)
        self._quiescence(m)
        self._commits(m)
        return m

    def _blocks(self, m: Module) -> None:
        """Every block, and the skid buffers in front of the tracker and the prefetcher."""
        c, s = self.config, m.submodules
        s.ingress = Ingress(config=c)
        s.router = WindowRouter(config=c)
        s.tracker = Tracker(config=c)
        s.frame_table = FrameTable(config=c)
        s.error_lines = ErrorLines(config=c)
        s.data_fifo = DataFifo(config=c)
        s.data_path = DataPath(config=c)
        s.egress = Egress(config=c)
        s.miss_buffer = MissBuffer(config=c)
        s.cold = ColdScheduler(config=c)
        s.eviction = Eviction(config=c)
        s.ema = EmaEngine(config=c)
        s.prefetcher = Prefetcher(config=c)
        s.windows = QueueConfig(config=c, fields=("window",))
        s.hints = HintAbsorber(config=c)
        s.phase = PhaseDetector(config=c)
        s.telemetry = Telemetry(config=c)
        # sources of events without the choice's
        self._own_events = 5 + c.protect + CoherentHostPort.EVENTS * c.coherence
        s.registers = Registers(config=c, event_sources=self._own_events + select_events(c))
        if c.select:
            s.select = Select(config=c)

        # Critical path: M0's choice to each engine's `o_op.ready`: cut by a skid buffer per engine.
        # None of this is on a hit's path.
        op, page = Layouts(c).op, Layouts(c).page
        # Critical path: the skid buffers' `o.ready`. M0 chooses in the cycle before, by
        # `tracker.ops.behind`, which op it would take.
        s.op_miss, s.op_hint, s.op_evict, s.op_prefetch = (
            Skid(op, registered=()) for _ in range(4)
        )
        s.spec, s.hinted = Skid(Layouts(c).spec_read), Skid(page)
        if c.protect:
            s.faults = FaultMonitor(config=c)
        if c.coherence:
            s.coherence = CoherentHostPort(config=c)

    @staticmethod
    def _skids(s) -> tuple[Skid, ...]:
        """Those on the way to M0."""
        return s.op_miss, s.op_hint, s.op_evict, s.op_prefetch, s.spec

    def _time(self, m: Module) -> None:
        s = m.submodules
        m.d.sync += self.now.eq(self.now + 1 + self.skip)
        choice = (s.select,) if self.config.select else ()
        for block in (s.ingress, s.egress, s.miss_buffer, s.cold, s.registers, *choice):
            m.d.comb += block.now.eq(self.now)

    def _requests_and_answers(self, m: Module) -> None:
        s = m.submodules
        host, access = flipped(self), s.router.o_register
        request, write = host.m2s_req, host.m2s_rwd
        answer, served = s.data_path.o, s.registers.o
        if self.config.select:
            self._choice(m, request, access, answer, served)
            connect(m, write, s.select.i_write)
            request, write, access = s.select.o_request, s.select.o_write, s.select.o_access
            answer, served = s.select.o_answer, s.select.o_served
        if self.config.coherence:
            # Behind the GATHER window: what the host holds of a line is known by its page.
            host = self._coherence(m, request, write)
            request, write = host.m2s_req, host.m2s_rwd
        connect(m, request, s.ingress.m2s_req)
        connect(m, write, s.ingress.m2s_rwd)
        connect(m, s.ingress.o_request, s.tracker.i_request)
        connect(m, s.data_path.o_write_slot, s.ingress.i_write_slot)
        connect(m, s.ingress.o_window, s.router.i)
        connect(m, access, s.registers.i)
        m.d.comb += s.router.hints_busy.eq(~s.hints.idle | self._hint_stands(s.op_hint))
        connect(m, s.router.o_hint, s.hints.i)
        connect(m, answer, s.egress.i)
        connect(m, served, s.router.i_register)
        connect(m, s.router.o, s.egress.i_window)
        connect(m, s.egress.s2m_drs, host.s2m_drs)
        connect(m, s.egress.s2m_ndr, host.s2m_ndr)
        connect(m, s.data_path.axi, flipped(self.axi))
        if self.config.cxlio:
            connect(m, s.registers.o_told, flipped(self.o_told))
            connect(m, s.frame_table.o_poisoned, flipped(self.o_poisoned))
            m.d.comb += self.o_counted.eq(s.telemetry.o_counted.pulses)
        if not self.config.coherence:
            # no BISnp is ever sent (HDM-H), so no BIRsp answers one
            m.d.comb += self.m2s_birsp.ready.eq(1)
        m.d.comb += [
            s.ingress.enable.eq(self.ready),
            self.irq.eq(s.registers.irq),
        ]
        connect(m, s.ingress.o_write, s.data_path.i_write)
        ready = (
            s.tracker.ready
            & s.ema.cleared
            & s.frame_table.ready
            & s.registers.cleared
            & s.eviction.ready
        )
        if self.config.coherence:
            ready = ready & s.coherence.ready
        m.d.sync += self.ready.eq(ready)

    def _hint_stands(self, skid: Skid):
        """An op of a hint line waits for M0, which may keep it for longer than it takes from there;
        those of a choice come by the same way."""

        def of_hint(op):
            return ~Cat(op.kind == kind for kind in SELECT_KINDS).any() if self.config.select else 1

        places = (skid.o.valid, skid.o.p), (skid.spare_valid, skid.spare)
        return Cat(valid & of_hint(op) for valid, op in places).any()

    def _coherence(self, m: Module, request, write) -> SimpleNamespace:
        """The coherent front before the channels, which then are its inner ones. `request`,
        `write`: what the host sends there."""
        s, port = m.submodules, m.submodules.coherence
        connect(m, request, port.m2s_req)
        connect(m, write, port.m2s_rwd)
        connect(m, flipped(self.m2s_birsp), port.m2s_birsp)
        for name in ("s2m_drs", "s2m_ndr", "s2m_bisnp"):
            connect(m, getattr(port, name), flipped(getattr(self, name)))
        asks, told = s.eviction.o_ask, s.eviction.i_answer
        if self.config.cxlio:
            s.asks = share = AskShare(sector_bits=len(port.i_ask.p))
            connect(m, asks, share.i_first)
            connect(m, share.o_first, told)
            connect(m, flipped(self.recall), share.i_second)
            connect(m, share.o_second, flipped(self.still_held))
            asks, told = share.o_ask, share.i_answer
        connect(m, asks, port.i_ask)
        connect(m, port.o_answer, told)
        for k, event in enumerate(port.o_event):
            connect(m, event, s.registers.i_event[self._own_events - port.EVENTS + k])
        m.d.comb += [
            port.sessions.eq(s.tracker.sessions),
            port.enable.eq(self.ready),
            port.now.eq(self.now),
            port.bi.timeout.eq(self.bi_timeout),
            port.bi.id.eq(self.bi_id),
            port.bi.blocks.eq(self.bi_blocks),
        ]
        return SimpleNamespace(
            m2s_req=port.inner_req,
            m2s_rwd=port.inner_rwd,
            s2m_drs=port.inner_drs,
            s2m_ndr=port.inner_ndr,
        )

    def _choice(self, m: Module, request, access, answer, served) -> None:
        """The choice of pages between host, registers and data path (docs/select.md): it sees these
        streams first."""
        s, select = m.submodules, m.submodules.select
        connect(m, request, select.i_request)
        connect(m, access, select.i_access)
        connect(m, answer, select.i_answer)
        connect(m, served, select.i_served)
        connect(m, s.hints.o_op, select.i_op)
        connect(m, s.hints.o_prefetch, select.i_page)
        broadcast(m, s.tracker.o_result, select.i_result)
        broadcast(m, s.tracker.o_hot, select.i_hot)
        m.d.comb += select.sessions.eq(s.tracker.sessions)
        if not self.config.coherence:
            m.d.comb += select.stuck.eq(s.ingress.stuck)
        if self.config.select_estimates:
            connect(m, s.prefetcher.dropped, select.dropped)
        if self.config.select_tables:
            connect(m, s.eviction.values, select.values)
            used = s.tracker.pools.used
            m.d.sync += select.frames.eq(sum((used[p] for p in range(1, len(POOLS))), used[0]))
        for k in range(select_events(self.config)):
            connect(m, select.o_event[k], s.registers.i_event[self._own_events + k])
        if self.config.select_port:
            connect(m, select.summary_axi, flipped(self.summary_axi))

    def _busy(self, m: Module):
        """For lock-step, in which a prefetch or an eviction waits its turn by the rules of the
        golden model's LockStep: an op is on its way; one was within the last few cycles."""
        s, recent = m.submodules, Signal(4)
        busy = (
            ~s.ingress.idle
            | ~s.tracker.idle
            | ~s.frame_table.idle
            | ~s.data_fifo.idle
            | ~s.miss_buffer.idle
            | ~Cat(skid.idle for skid in self._skids(s)).all()
        )
        if self.config.select:
            busy |= ~s.select.idle
        if self.config.coherence:
            busy |= ~s.coherence.idle
        # an op between two blocks shows in neither's `idle` for a cycle or two
        m.d.sync += recent.eq(Cat(busy, recent))
        return busy, recent

    def _prefetch_turn(self, m: Module, busy, recent: Signal) -> None:
        """When a prefetch goes to M0.

        The prefetcher's turn is a register, which has to know what makes the endpoint busy in its
        next cycle: every op that is handed over, a prefetch too. (A request that comes in the very
        cycle in which a prefetch leaves does not: in lock-step it waits until the prefetcher is
        idle.) It finds the `Skid` empty.
        """
        s = m.submodules
        prefetcher, prefetching = s.prefetcher, s.op_prefetch
        prefetch_turn, entering = Signal(), Signal()
        m.d.comb += entering.eq(
            Cat(skid.i.valid for skid in self._skids(s)).any() | s.registers.o_control.valid
        )
        m.d.sync += prefetch_turn.eq(
            ~(self.lockstep & (busy | entering | recent.any()))
            & prefetching.idle
            & ~(prefetch_turn & prefetcher.o_op.valid)
        )
        m.d.comb += [
            prefetching.i.valid.eq(prefetch_turn & prefetcher.o_op.valid),
            prefetching.i.p.eq(prefetcher.o_op.p),
            prefetcher.o_op.ready.eq(prefetch_turn),
            Assert(~prefetch_turn | prefetching.i.ready),
        ]

    def _eviction_turn(self, m: Module, busy, recent: Signal) -> None:
        s = m.submodules
        eviction = s.eviction
        m.d.comb += [
            eviction.turn.hold.eq(
                self.lockstep
                & (
                    eviction.turn.evicting
                    | eviction.turn.learning
                    | ((busy | recent.any() | ~s.prefetcher.idle) & ~s.miss_buffer.starving)
                )
            ),
        ]

    def _ops(self, m: Module) -> None:
        """Ops of the engines to the tracker, and pages to the prefetcher, by their skid buffers."""
        s, tracker = m.submodules, m.submodules.tracker
        for engine, skid, entry in (
            (s.miss_buffer.o_op, s.op_miss, tracker.ops.miss),
            (s.select.o_op if self.config.select else s.hints.o_op, s.op_hint, tracker.ops.hint),
            (s.eviction.o_op, s.op_evict, tracker.ops.evict),
            (s.ingress.o_spec, s.spec, s.prefetcher.i_spec),
            (
                s.select.o_page if self.config.select else s.hints.o_prefetch,
                s.hinted,
                s.prefetcher.i_hint,
            ),
        ):
            connect(m, engine, skid.i)
            connect(m, skid.o, entry)
        connect(m, s.op_prefetch.o, tracker.ops.prefetch)
        for k, name in enumerate(BACKGROUND):
            if name != "control":
                skid = getattr(s, f"op_{name}")
                m.d.comb += [
                    tracker.ops.behind[k].valid.eq(skid.behind.valid),
                    tracker.ops.behind[k].kind.eq(skid.behind.item.kind),
                ]
        connect(m, s.registers.o_control, tracker.ops.control)
        connect(m, s.miss_buffer.o_miss_free, tracker.i_miss_free)
        m.d.comb += [
            tracker.ahead.eq(s.ingress.o_ahead),
            tracker.ecc_flip.eq(self.ecc_flip),
            # Credits of whom M3's results go to.
            tracker.credits.event.eq(1),
            tracker.credits.data.eq(s.data_fifo.ready),
            tracker.credits.miss.eq(s.miss_buffer.ready),
            tracker.credits.score.eq(s.ema.ready),
            tracker.credits.queue.eq(s.eviction.queue_ready),
        ]

    def _frames_and_data(self, m: Module) -> None:
        """From M3 by the frame table to the data path, and memory's errors back."""
        s = m.submodules
        frame_table, error_lines = s.frame_table, s.error_lines
        connect(m, s.tracker.o_frame_op, frame_table.i)
        connect(m, frame_table.o, s.data_fifo.i)
        connect(m, s.data_fifo.o, s.data_path.i)
        # Of memory's errors the engines learn after the frame table, in one cycle with the data
        # path.
        connect(m, s.data_path.o_error, error_lines.i)
        # Registers pause the pipeline, too, and ask nobody whether it is empty: one that is empty
        # already when an error comes stays so.
        m.d.comb += [
            s.tracker.hold.pause.eq(error_lines.hold.pause | s.registers.quiet),
            error_lines.hold.paused.eq(s.tracker.hold.paused),
        ]
        connect(m, error_lines.o, frame_table.i_error)
        connect(m, frame_table.o_frame, s.eviction.i_frame)
        connect(m, frame_table.o_event, s.registers.i_event[4])
        m.d.comb += [
            s.miss_buffer.line_mask_address.eq(frame_table.line_mask_address),
            frame_table.line_mask_data.eq(s.miss_buffer.line_mask_data),
            error_lines.executed.eq(frame_table.o_frame.error.valid),
            s.data_path.waiting.eq(s.data_fifo.level),
        ]

    def _settings(self, m: Module) -> None:
        """What the registers set, to whom it concerns."""
        s, settings = m.submodules, m.submodules.registers.settings
        high, low, pools = settings.high_water, settings.low_water, s.tracker.pool_settings
        m.d.comb += [
            s.tracker.descriptor.eq(s.registers.descriptor),
            # More than any pool has is as much as all that it has, however wide its counts are.
            _at_most(pools.low_water, low),
            _at_most(pools.reserve, settings.reserve),
            *(pools.limit[p].eq(settings.pool_limit[p]) for p in range(len(POOLS))),
            s.eviction.low_water.eq(Mux(high > low, high, low)),
            s.miss_buffer.starve_limit.eq(settings.starve_limit),
            s.cold.timeout.eq(settings.cold_timeout),
            s.cold.retries.eq(settings.cold_retries),
            s.prefetcher.enable.eq(settings.prefetch_enable),
            s.prefetcher.lockstep.eq(self.lockstep),
        ]
        broadcast(
            m,
            s.registers.config_write,
            *(block.config_write for block in (s.tracker, s.eviction, s.ema)),
            s.windows.write,
            *((s.coherence.config_write,) if self.config.coherence else ()),
        )

    def _results(self, m: Module) -> None:
        """What M3 decided, and what it holds, to all who follow it."""
        s, tracker = m.submodules, m.submodules.tracker
        followers = (s.miss_buffer, s.eviction, s.prefetcher, s.telemetry, s.registers)
        broadcast(m, tracker.o_result, *(block.i_result for block in followers))
        for block in (s.eviction, s.prefetcher, s.hints, s.registers):
            m.d.comb += block.sessions.eq(tracker.sessions)
        for p in range(len(POOLS)):
            m.d.comb += [
                s.miss_buffer.pool_free[p].eq(tracker.pools.free[p]),
                s.registers.pools.used[p].eq(tracker.pools.used[p]),
                s.registers.pools.unused[p].eq(tracker.pools.unused[p]),
                s.eviction.pools.used[p].eq(tracker.pools.used[p]),
                s.eviction.pools.spare[p].eq(tracker.pools.spare[p]),
            ]

    def _misses(self, m: Module) -> None:
        """Fetches and write-backs to the cold tier, and its answers back."""
        s, cold = m.submodules, m.submodules.cold
        broadcast(m, s.miss_buffer.o_fetch, cold.i_fetch, registered=True)
        broadcast(m, s.miss_buffer.o_raise, cold.i_raise, registered=True)
        connect(m, cold.o_fetched, s.miss_buffer.i_fetched)
        connect(m, s.eviction.o_write_back, cold.i_write_back)
        connect(m, cold.o_written_back, s.eviction.i_written_back)
        connect(m, cold.o_command, flipped(self.cold_command))
        connect(m, flipped(self.cold_completion), cold.i_completion)

    def _scores_and_eviction(self, m: Module) -> None:
        s, eviction = m.submodules, m.submodules.eviction
        connect(m, s.data_path.o_flushed, eviction.i_flushed)
        connect(m, s.tracker.o_score, s.ema.i)
        connect(m, s.ema.o_scan, eviction.i_scan)
        connect(m, s.registers.resident, eviction.resident)

    def _prefetch_and_hints(self, m: Module) -> None:
        s, prefetcher = m.submodules, m.submodules.prefetcher
        m.d.comb += [
            s.windows.read_en.eq(1),
            s.windows.read_squeue.eq(prefetcher.window_squeue),
            prefetcher.window.eq(s.windows.o.window),
        ]
        broadcast(m, s.frame_table.o_usage, prefetcher.i_usage, s.telemetry.i_usage)
        connect(m, s.telemetry.o_late, prefetcher.i_late)

    def _phase(self, m: Module) -> None:
        """The phase detector sees every access, a cycle after M3 or the hot lane."""
        s, phase, tracker = m.submodules, m.submodules.phase, m.submodules.tracker
        hot, result = tracker.o_hot, tracker.o_result
        m.d.comb += [
            *(phase.open[k].eq(tracker.sessions[k].open) for k in range(self.config.sessions)),
            s.registers.decode.eq(phase.decode),
        ]
        m.d.sync += [
            phase.i_hot.p.session.eq(hot.p.session),
            phase.i_hot.p.write.eq(hot.p.write),
            phase.i_hot.valid.eq(hot.valid),
            phase.i_op.p.session.eq(result.p.op.session),
            phase.i_op.p.write.eq(result.p.op.write),
            phase.i_op.valid.eq(
                result.valid
                & ((result.p.op.kind == Op.READ) | (result.p.op.kind == Op.WRITE))
                & (result.p.outcome != Outcome.REFUSED)
                & ~result.p.op.no_memory
            ),
        ]

    def _telemetry(self, m: Module) -> None:
        """What is counted, and events, to the registers."""
        s, telemetry, registers = m.submodules, m.submodules.telemetry, m.submodules.registers
        m.d.comb += [
            telemetry.i_prefetch.eq(s.prefetcher.pulses),
            telemetry.spec_dropped.eq(s.ingress.spec_dropped),
            telemetry.swept.eq(s.eviction.swept),
            telemetry.hint_line.eq(s.hints.line_taken),
            telemetry.hint_update.eq(s.hints.mass_taken),
            telemetry.score_corrected.eq(s.ema.corrected),
            telemetry.score_uncorrected.eq(s.ema.uncorrected),
            registers.i_event[3].p.code.eq(Event.WORD_LOST),
            registers.i_event[3].p.argument.eq(Protected.SCORES),
            registers.i_event[3].p.squeue.eq(s.ema.o_commit.p.squeue),
            registers.i_event[3].p.page.eq(s.ema.o_commit.p.page),
            registers.i_event[3].valid.eq(s.ema.uncorrected),
            registers.status.ready.eq(self.ready),
        ]
        connect(m, s.tracker.o_hot, telemetry.i_hot)
        for source, sink in zip((telemetry, s.hints, s.eviction), registers.i_event, strict=False):
            connect(m, source.o_event, sink)
        connect(m, telemetry.o_counted, registers.i_counted)
        connect(m, s.egress.o_latency, registers.i_latency)

    def _faults(self, m: Module) -> None:
        """Faults of memories."""
        s, faults = m.submodules, m.submodules.faults
        m.d.comb += [
            *(
                fatal.eq(faults.fatal)
                for fatal in (s.egress.fatal, s.tracker.fatal, s.registers.status.fatal)
            ),
            s.telemetry.memory_corrected.eq(faults.corrected),
            s.telemetry.memory_uncorrected.eq(faults.uncorrected),
        ]
        connect(m, faults.o_event, s.registers.i_event[5])
        for block, source in (
            (Protected.FRAME_TABLE, s.frame_table),
            (Protected.TRACKER, s.tracker),
            (Protected.DATA_FIFO, s.data_fifo),
            (Protected.EVICTION, s.eviction),
            (Protected.MISS_BUFFER, s.miss_buffer),
            (Protected.COLD_SCHEDULER, s.cold),
            (Protected.DATA_PATH, s.data_path),
            (Protected.SCORES, s.ema),
        ):
            m.d.comb += faults.faults[block].eq(source.fault)
        # What stands before the device counts with the host's side: a configuration may have both.
        host = s.hints.fault.as_value()
        if self.config.select:
            host |= s.select.fault.as_value()
        if self.config.coherence:
            host |= s.coherence.fault.as_value()
            m.d.comb += s.coherence.fatal.eq(faults.fatal)
        m.d.comb += faults.faults[Protected.HOST].eq(host)

    def _quiescence(self, m: Module) -> None:
        """Critical path: the blocks' `idle` to `calm`: registered here (`idle`, `inner`). Work
        begins with an input, with time, or in another block; `idles` are those of blocks in which
        it begins in another one only, so `calm` may have them two cycles later. `still` is longer
        than these two and the cycles between two blocks."""
        s = m.submodules
        idles = Cat(
            *(skid.idle for skid in (*self._skids(s), s.hinted)),
            s.data_path.idle,
            s.router.idle,
            s.registers.idle,
            s.tracker.idle,
            s.frame_table.idle,
            s.data_fifo.idle,
            s.egress.idle,
            s.eviction.quiet,
            s.ema.idle,
            s.prefetcher.idle | (self.lockstep & ~s.miss_buffer.idle),
            s.hints.idle,
            s.telemetry.idle,
            *((s.select.idle,) if self.config.select else ()),
            *((s.coherence.idle,) if self.config.coherence else ()),
        )
        calm, still, idle, inner = Signal(), Signal(5), Signal(len(idles)), Signal()
        m.d.sync += [still.eq(Cat(calm, still)), idle.eq(idles), inner.eq(idle.all())]
        m.d.comb += [
            # An op between two blocks shows in neither's `idle` for a cycle or two.
            self.quiescent.eq(calm & still.all()),
            calm.eq(self.ready & s.ingress.idle & inner & s.miss_buffer.quiet & s.cold.quiet),
        ]
        # What a session has taken it leaves: no miss, no eviction, no command of the tier stays.
        served = Cat(each.open for each in s.tracker.sessions).any()
        if self.config.protect:
            served |= s.faults.fatal
        m.d.sync += Assert(
            ~self.quiescent | served | (s.miss_buffer.idle & s.cold.idle & s.eviction.idle),
            "something is under way for nobody",
        )
        # The register shows what the latest message found: the read of it ends the quiet.
        before, found = Signal(), Signal()
        offers = (s.ingress.m2s_req, s.ingress.m2s_rwd)
        m.d.comb += s.registers.status.quiescent.eq(found)
        with m.If(Cat(offer.valid & offer.ready for offer in offers).any()):
            m.d.sync += [found.eq(before), before.eq(0)]
        with m.Elif(~Cat(offer.valid for offer in offers).any()):
            m.d.sync += before.eq(self.quiescent)
        if self.config.cxlio:
            m.d.comb += [
                self.o_answered.eq(self.quiescent & s.miss_buffer.idle),
                self.o_rest.eq(self.o_answered & s.cold.idle & s.eviction.idle),
            ]

    def _commits(self, m: Module) -> None:
        """For verification. A result leaves the tracker one cycle after M3, its frame op's commit
        two: delayed by one, both are of the same op."""
        s, tracker = m.submodules, m.submodules.tracker
        result, result_valid = Signal.like(self.commit_result.p), Signal()
        hot = [Signal(name=f"hot_{k}") for k in range(2)]
        m.d.sync += [
            result.eq(tracker.o_result.p),
            result_valid.eq(tracker.o_result.valid),
            hot[0].eq(tracker.o_frame_op_hot),
            hot[1].eq(hot[0]),
        ]
        m.d.comb += [
            self.commit_result.p.eq(result),
            self.commit_result.valid.eq(result_valid),
            self.commit_hot.eq(hot[1]),
        ]
        connect(m, s.frame_table.o_commit, flipped(self.commit_frame))
        connect(m, s.ema.o_commit, flipped(self.commit_score))


def _at_most(to: Signal, value):
    """An assignment of `value`, or of the greatest that `to` holds where that is less."""
    beyond = value[len(to) :]
    return to.eq(Mux(beyond.any(), ~0, value) if len(beyond) else value)


class DataFifo(wiring.Component):
    """FIFO of data ops between the frame stage, which cannot wait, and the data path, which can.

    Latency: `LATENCY`, combinational from `i` to `o`, while it is empty. Interval: `INTERVAL`, one
    op in and one out per cycle.

    Parameters
    ----------
    config : Config

    Members
    -------
    i : in, always-ready stream of data_op
    o : out, stream of data_op
    ready : out
        `RESERVE` places are free.
    level : out
        Ops that wait.
    idle : out
        The FIFO is empty; an op on `i` does not count.
    fault : out, BlockFault
        Of an op that waited: a cycle after it was at `o`.
    """

    LATENCY = 0
    INTERVAL = 1
    DEPTH = 2 * RESERVE

    def __init__(self, *, config: Config):
        self.config = config
        self.layout = Layouts(config).data_op
        super().__init__(
            {
                "i": In(stream.Signature(self.layout, always_ready=True)),
                "o": Out(stream.Signature(self.layout)),
                "ready": Out(1),
                "level": Out(range(self.DEPTH + 1)),
                "idle": Out(1),
                "fault": Out(BlockFault),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.fifo = fifo = BypassFifo(
            depth=self.DEPTH, shape=self.layout, protect=self.config.protect
        )
        gather(m, self.fault, fifo.fault)
        connect(m, fifo.o, flipped(self.o))
        m.d.comb += [
            self.ready.eq(fifo.level <= self.DEPTH - RESERVE),
            self.level.eq(fifo.level),
            self.idle.eq(~fifo.oldest.valid),
        ]
        connect(m, flipped(self.i), fifo.i)
        return m

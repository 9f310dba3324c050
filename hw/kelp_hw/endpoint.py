# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The whole endpoint: CXL.mem in front, AXI4 memory and a cold tier behind (spec §3, §8, §9;
docs/design.md). One request a cycle; a hit takes at most 20 cycles beyond the memory's own
latency."""

from __future__ import annotations

from amaranth.hdl import Assert, Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from kelp_spec.config import POOLS, Config
from kelp_spec.metadata import Event, Op, Outcome, PrefetchSource, Protected

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
from .layouts import MESSAGES, TIME_BITS, Layouts
from .lib.broadcast import broadcast
from .lib.bypass_fifo import BypassFifo
from .lib.protected import BlockFault, gather
from .lib.skid import Skid
from .miss.cold_scheduler import ColdScheduler
from .miss.miss_buffer import MissBuffer
from .pipeline import RESERVE
from .prefetch.prefetch import Prefetcher
from .scores.ema import EmaEngine
from .tracker.arbiter import BACKGROUND
from .tracker.error_lines import ErrorLines
from .tracker.frame_table import FrameTable
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
        "axi": Out(axi_signature(config)),
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
    axi : out
        Memory port (AXI4), one 64-byte line per transaction.
    cold_command : out, stream of cold_command
    cold_completion : in, stream of cold_completion
        The cold tier; its DMA has its own port to the memory.
    ready : out
        The reset scrub is over; M2S is not accepted before.
    irq : out
        Interrupt of the event log.
    now : out
        The time base.

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
        c = self.config
        s = m.submodules
        s.ingress = ingress = Ingress(config=c)
        s.router = router = WindowRouter(config=c)
        s.tracker = tracker = Tracker(config=c)
        s.frame_table = frame_table = FrameTable(config=c)
        s.error_lines = error_lines = ErrorLines(config=c)
        s.data_fifo = data_fifo = DataFifo(config=c)
        s.data_path = data_path = DataPath(config=c)
        s.egress = egress = Egress(config=c)
        s.miss_buffer = miss_buffer = MissBuffer(config=c)
        s.cold = cold = ColdScheduler(config=c)
        s.eviction = eviction = Eviction(config=c)
        s.ema = ema = EmaEngine(config=c)
        s.prefetcher = prefetcher = Prefetcher(config=c)
        s.windows = windows = QueueConfig(config=c, fields=("window",))
        s.hints = hints = HintAbsorber(config=c)
        s.phase = phase = PhaseDetector(config=c)
        s.telemetry = telemetry = Telemetry(config=c)
        s.registers = registers = Registers(config=c, event_sources=5 + c.protect)
        settings = registers.settings

        # Critical path: M0's choice to each engine's `o_op.ready`: cut by a skid buffer per engine.
        # None of this is on a hit's path.
        op, page = Layouts(c).op, Layouts(c).page
        # Critical path: the skid buffers' `o.ready`. M0 chooses in the cycle before, by
        # `tracker.behind`, which op it would take.
        s.op_miss, s.op_hint, s.op_evict, s.op_prefetch = (
            Skid(op, registered=()) for _ in range(4)
        )
        s.spec, s.hinted = Skid(page), Skid(page)
        to_m0 = s.op_miss, s.op_hint, s.op_evict, s.op_prefetch, s.spec

        # - time -----------------------------------------------------------------------------------
        m.d.sync += self.now.eq(self.now + 1 + self.skip)
        for block in (ingress, egress, miss_buffer, cold, registers):
            m.d.comb += block.now.eq(self.now)

        # - requests in, answers out ---------------------------------------------------------------
        connect(m, flipped(self.m2s_req), ingress.m2s_req)
        connect(m, flipped(self.m2s_rwd), ingress.m2s_rwd)
        connect(m, ingress.o_request, tracker.i_request)
        connect(m, data_path.o_write_slot, ingress.i_write_slot)
        connect(m, ingress.o_window, router.i)
        connect(m, router.o_register, registers.i)
        connect(m, router.o_hint, hints.i)
        connect(m, data_path.o, egress.i)
        connect(m, registers.o, router.i_register)
        connect(m, router.o, egress.i_window)
        connect(m, egress.s2m_drs, flipped(self.s2m_drs))
        connect(m, egress.s2m_ndr, flipped(self.s2m_ndr))
        connect(m, data_path.axi, flipped(self.axi))
        m.d.comb += [
            # no BISnp is ever sent (HDM-H), so no BIRsp answers one
            self.m2s_birsp.ready.eq(1),
            ingress.enable.eq(self.ready),
            self.irq.eq(registers.irq),
        ]
        connect(m, ingress.o_write, data_path.i_write)
        m.d.sync += self.ready.eq(
            tracker.ready & ema.cleared & frame_table.ready & registers.cleared & eviction.ready
        )

        # - M3 and the frame stage -----------------------------------------------------------------
        # A prefetch or an eviction waits its turn in lock-step; the rules are those of the golden
        # model's LockStep.
        busy = (
            ~ingress.idle
            | ~tracker.idle
            | ~frame_table.idle
            | ~data_fifo.idle
            | ~miss_buffer.idle
            | ~Cat(skid.idle for skid in to_m0).all()
        )
        recent = Signal(4)  # an op between two blocks shows in neither's `idle` for a cycle or two
        m.d.sync += recent.eq(Cat(busy, recent))
        # The prefetcher's turn is a register, which has to know what makes the endpoint busy in its
        # next cycle: every op that is handed over, a prefetch too. (A request that comes in the
        # very cycle in which a prefetch leaves does not: in lock-step it waits until the prefetcher
        # is idle.) It finds the `Skid` empty, and policy `kelp` waits for that cycle.
        prefetch_turn, entering, prefetching = Signal(), Signal(), s.op_prefetch
        m.d.comb += entering.eq(
            Cat(skid.i.valid for skid in to_m0).any() | registers.o_control.valid
        )
        m.d.sync += prefetch_turn.eq(
            ~(self.lockstep & (busy | entering | recent.any()))
            & prefetching.idle
            & ~eviction.o_prefetch.valid
            & ~(prefetch_turn & prefetcher.o_op.valid)
        )
        # In two cycles: the LRU shadow, which asks, is further behind than that.
        of_pool, most_frames = (
            [Signal.like(settings.pool_limit[p], name=f"frames{p}") for p in range(len(POOLS))],
            (1 << len(eviction.frames)) - 1,
        )
        all_frames = sum(of_pool)
        m.d.sync += [
            *(
                frames.eq(Mux(tracker.pool_unused[p], 0, settings.pool_limit[p]))
                for p, frames in enumerate(of_pool)
            ),
            eviction.frames.eq(Mux(all_frames > most_frames, most_frames, all_frames)),
        ]
        m.d.comb += [
            eviction.hold.eq(
                self.lockstep
                & (
                    eviction.evicting
                    | eviction.learning
                    | ((busy | recent.any() | ~prefetcher.idle) & ~miss_buffer.starving)
                )
            ),
        ]
        for engine, skid, entry in (
            (miss_buffer.o_op, s.op_miss, tracker.i_miss),
            (hints.o_op, s.op_hint, tracker.i_hint),
            (eviction.o_op, s.op_evict, tracker.i_evict),
            (ingress.o_spec, s.spec, prefetcher.i_spec),
            (hints.o_prefetch, s.hinted, prefetcher.i_hint),
        ):
            connect(m, engine, skid.i)
            connect(m, skid.o, entry)
        connect(m, s.op_prefetch.o, tracker.i_prefetch)
        for k, name in enumerate(BACKGROUND):
            if name != "control":
                skid = getattr(s, f"op_{name}")
                m.d.comb += [
                    tracker.behind[k].valid.eq(skid.behind_valid),
                    tracker.behind[k].kind.eq(skid.behind.kind),
                ]
        connect(m, registers.o_control, tracker.i_control)
        connect(m, miss_buffer.o_miss_free, tracker.i_miss_free)
        m.d.comb += [
            prefetching.i.valid.eq(
                Mux(prefetch_turn, prefetcher.o_op.valid, eviction.o_prefetch.valid)
            ),
            prefetching.i.p.eq(Mux(prefetch_turn, prefetcher.o_op.p, eviction.o_prefetch.p)),
            eviction.o_prefetch.ready.eq(prefetching.i.ready & ~prefetch_turn),
            prefetcher.o_op.ready.eq(prefetch_turn),
            Assert(~prefetch_turn | prefetching.i.ready),
            eviction.prefetch_on.eq(settings.prefetch_enable[PrefetchSource.POLICY - 1]),
            eviction.prefetch_water.eq(settings.low_water),
            tracker.event_ready.eq(1),
            tracker.descriptor.eq(registers.descriptor),
            tracker.low_water.eq(settings.low_water),
            tracker.reserve.eq(settings.reserve),
            tracker.ecc_flip.eq(self.ecc_flip),
            tracker.ahead.eq(ingress.o_ahead),
            miss_buffer.line_mask_address.eq(frame_table.line_mask_address),
            frame_table.line_mask_data.eq(miss_buffer.line_mask_data),
        ]
        connect(m, tracker.o_frame_op, frame_table.i)
        connect(m, frame_table.o, data_fifo.i)
        m.d.comb += [
            tracker.data_ready.eq(data_fifo.ready),
            tracker.miss_ready.eq(miss_buffer.ready),
            tracker.score_ready.eq(ema.ready),
            tracker.queue_ready.eq(eviction.queue_ready),
        ]
        connect(m, data_fifo.o, data_path.i)
        # Of memory's errors the engines learn after the frame table, in one cycle with the data
        # path.
        connect(m, data_path.o_error, error_lines.i)
        connect(m, error_lines.o, frame_table.i_error)
        connect(m, frame_table.o_error, eviction.i_error)
        connect(m, frame_table.o_event, registers.i_event[4])
        m.d.comb += [
            tracker.pause.eq(error_lines.pause),
            error_lines.paused.eq(tracker.paused),
            error_lines.executed.eq(frame_table.o_error.valid),
            data_path.waiting.eq(data_fifo.level),
        ]
        for p in range(len(POOLS)):
            m.d.comb += [
                tracker.pool_limit[p].eq(settings.pool_limit[p]),
                miss_buffer.pool_free[p].eq(tracker.pool_free[p]),
                registers.pool_used[p].eq(tracker.pool_used[p]),
                registers.pool_unused[p].eq(tracker.pool_unused[p]),
            ]
        broadcast(
            m,
            registers.config_write,
            *(block.config_write for block in (tracker, eviction, ema)),
            windows.write,
        )
        broadcast(
            m,
            tracker.o_result,
            *(
                block.i_result
                for block in (miss_buffer, eviction, prefetcher, telemetry, registers)
            ),
        )
        for block in (eviction, prefetcher, hints, registers):
            m.d.comb += block.sessions.eq(tracker.sessions)

        # - misses and the cold tier ---------------------------------------------------------------
        broadcast(m, miss_buffer.o_fetch, cold.i_fetch, registered=True)
        broadcast(m, miss_buffer.o_raise, cold.i_raise, registered=True)
        m.d.comb += [
            cold.timeout.eq(settings.cold_timeout),
            cold.retries.eq(settings.cold_retries),
            miss_buffer.starve_limit.eq(settings.starve_limit),
        ]
        connect(m, cold.o_fetched, miss_buffer.i_fetched)
        connect(m, eviction.o_write_back, cold.i_write_back)
        connect(m, cold.o_written_back, eviction.i_written_back)
        connect(m, cold.o_command, flipped(self.cold_command))
        connect(m, flipped(self.cold_completion), cold.i_completion)

        # - scores and eviction --------------------------------------------------------------------
        connect(m, data_path.o_flushed, eviction.i_flushed)
        m.d.comb += [
            eviction.low_water.eq(
                Mux(
                    settings.high_water > settings.low_water,
                    settings.high_water,
                    settings.low_water,
                )
            ),
            eviction.resident_squeue.eq(registers.resident_squeue),
            registers.resident_lines.eq(eviction.resident_lines),
        ]
        connect(m, tracker.o_score, ema.i)
        connect(m, ema.o_scan, eviction.i_scan)
        connect(m, frame_table.o_claim, eviction.i_claim)
        connect(m, frame_table.o_owner, eviction.i_owner)
        for p in range(len(POOLS)):
            m.d.comb += [
                eviction.pools.used[p].eq(tracker.pool_used[p]),
                eviction.pools.spare[p].eq(tracker.pool_spare[p]),
            ]

        # - prefetch, hints, phase -----------------------------------------------------------------
        m.d.comb += [
            prefetcher.enable.eq(settings.prefetch_enable),
            windows.read_en.eq(1),
            windows.read_squeue.eq(prefetcher.window_squeue),
            prefetcher.window.eq(windows.o.window),
            *(phase.open[k].eq(tracker.sessions[k].open) for k in range(c.sessions)),
            registers.decode.eq(phase.decode),
        ]
        broadcast(m, frame_table.o_usage, prefetcher.i_usage, telemetry.i_usage)
        connect(m, telemetry.o_late, prefetcher.i_late)

        m.d.sync += [
            phase.i_hot.p.session.eq(tracker.o_hot.p.session),
            phase.i_hot.p.write.eq(tracker.o_hot.p.write),
            phase.i_hot.valid.eq(tracker.o_hot.valid),
            phase.i_op.p.session.eq(tracker.o_result.p.op.session),
            phase.i_op.p.write.eq(tracker.o_result.p.op.write),
            phase.i_op.valid.eq(
                tracker.o_result.valid
                & (
                    (tracker.o_result.p.op.kind == Op.READ)
                    | (tracker.o_result.p.op.kind == Op.WRITE)
                )
                & (tracker.o_result.p.outcome != Outcome.REFUSED)
                & ~tracker.o_result.p.op.no_memory
            ),
        ]

        # - telemetry ------------------------------------------------------------------------------
        m.d.comb += [
            telemetry.i_prefetch.eq(prefetcher.pulses),
            telemetry.swept.eq(eviction.swept),
            telemetry.hint_line.eq(hints.line_taken),
            telemetry.hint_update.eq(hints.mass_taken),
            telemetry.score_corrected.eq(ema.corrected),
            telemetry.score_uncorrected.eq(ema.uncorrected),
            registers.pulses.eq(telemetry.pulses),
            registers.i_event[3].p.code.eq(Event.UNCORRECTED),
            registers.i_event[3].p.squeue.eq(ema.o_commit.p.squeue),
            registers.i_event[3].p.page.eq(ema.o_commit.p.page),
            registers.i_event[3].valid.eq(ema.uncorrected),
            registers.ready.eq(self.ready),
            registers.quiescent.eq(self.quiescent),
        ]
        connect(m, tracker.o_hot, telemetry.i_hot)
        for source, sink in zip((telemetry, hints, eviction), registers.i_event, strict=False):
            connect(m, source.o_event, sink)
        connect(m, telemetry.o_queue, registers.i_queue)
        connect(m, telemetry.o_useful, registers.i_useful)
        connect(m, egress.o_latency, registers.i_latency)

        # - faults of memories ---------------------------------------------------------------------
        if c.protect:
            s.faults = faults = FaultMonitor(config=c)
            m.d.comb += [
                *(block.fatal.eq(faults.fatal) for block in (egress, tracker, registers)),
                telemetry.memory_corrected.eq(faults.corrected),
                telemetry.memory_uncorrected.eq(faults.uncorrected),
            ]
            connect(m, faults.o_event, registers.i_event[5])
            for block, source in (
                (Protected.FRAME_TABLE, frame_table),
                (Protected.TRACKER, tracker),
                (Protected.DATA_FIFO, data_fifo),
                (Protected.EVICTION, eviction),
                (Protected.MISS_BUFFER, miss_buffer),
                (Protected.COLD_SCHEDULER, cold),
                (Protected.HOST, hints),
            ):
                m.d.comb += faults.faults[block].eq(source.fault)

        # - verification ---------------------------------------------------------------------------
        # A result leaves the tracker one cycle after M3, its frame op's commit two: delayed by one,
        # both are of the same op. Critical path: the blocks' `idle` to `calm`: registered here
        # (`idle`, `inner`). Work begins with an input, with time, or in another block; `idles` are
        # those of blocks in which it begins in another one only, so `calm` may have them two cycles
        # later. `still` is longer than these two and the cycles between two blocks.
        idles = Cat(
            *(skid.idle for skid in (*to_m0, s.hinted)),
            data_path.idle,
            router.idle,
            registers.idle,
            tracker.idle,
            frame_table.idle,
            data_fifo.idle,
            egress.idle,
            eviction.quiet,
            ema.idle,
            prefetcher.idle | (self.lockstep & ~miss_buffer.idle),
            hints.idle,
            telemetry.idle,
        )
        calm, still, idle, inner = Signal(), Signal(5), Signal(len(idles)), Signal()
        m.d.sync += [still.eq(Cat(calm, still)), idle.eq(idles), inner.eq(idle.all())]
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
            # An op between two blocks shows in neither's `idle` for a cycle or two.
            self.quiescent.eq(calm & still.all()),
            calm.eq(self.ready & ingress.idle & inner & miss_buffer.quiet & cold.quiet),
        ]
        connect(m, frame_table.o_commit, flipped(self.commit_frame))
        connect(m, ema.o_commit, flipped(self.commit_score))
        return m


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
            self.idle.eq(~fifo.row_valid),
        ]
        connect(m, flipped(self.i), fifo.i)
        return m

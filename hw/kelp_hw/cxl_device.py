# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The endpoint behind CXL.io: what a host finds, decodes, poisons and counts. Two cycles before the
endpoint, for every request; one request a cycle on each channel."""

from __future__ import annotations

from amaranth.hdl import Cat, Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from kelp_spec.config import Config, ConfigError
from kelp_spec.cxlio.config import CXL_VENDOR, cxlio_of
from kelp_spec.cxlio.pmu import BI_GROUPS, GROUPS, VendorEvent, pmu_map
from kelp_spec.metadata import ScoreEvent

from .cxlio.cxl_io import CxlIo
from .cxlio.ras_log import signal_layout
from .cxlio.signatures import AxiLiteSignature, message_layout
from .datapath.datapath import axi_signature
from .endpoint import Endpoint, endpoint_signature
from .layouts import MESSAGES, queue_in_map
from .lib.broadcast import broadcast
from .lib.protected import BlockFault, gather_blocks
from .media.channel_order import ChannelOrder
from .media.decoded_channel import DecodedChannel
from .media.event_records import EventRecords
from .media.health_report import HealthReport
from .media.load_meter import LoadMeter
from .media.media_eraser import MediaEraser
from .media.media_port import MediaPort
from .media.monitor_events import MonitorEvents
from .media.poisoned_lines import PoisonedLines
from .media.ras_errors import RasErrors
from .media.sanitizer import Sanitizer
from .media.snoop_address import SnoopAddress

__all__ = ["CxlDevice", "device_signature"]

_ERASED = ("axi", "cold_command", "cold_completion")  #: what a sanitize erases is behind these
_INNER = (
    "o_told",
    "o_poisoned",
    "o_counted",
    "o_answered",
    "o_rest",
    "recall",
    "still_held",
)  #: ports of the endpoint's that are none of the device's


def device_signature(config: Config) -> dict:
    """The device's ports, which :class:`CxlDevice` explains."""
    own = {name: port for name, port in endpoint_signature(config).items() if name not in _INNER}
    return {
        **own,
        "port": In(AxiLiteSignature()),
        "messages": Out(stream.Signature(message_layout())),
        "signals": Out(signal_layout()),
        "temperature": In(16),
        "io_fault": Out(BlockFault),
    }


class CxlDevice(wiring.Component):
    """`CxlIo` and the `Endpoint` as one device. A request carries a host address; the committed HDM
    decoders, or the DVSEC range, make the endpoint's of it. Outside every window a read is answered
    NXM and a write is dropped. The mailbox poisons and clears lines (`MediaPort`), the endpoint's
    events become CXL event records (`EventRecords`), errors of the RAS capability (`RasErrors`) and
    the device's health (`HealthReport`); the performance monitor counts messages on the channels
    and what the endpoint counts (`MonitorEvents`); the hotness monitor hears each score that an
    access or a hint changes; and each answer tells the load (`LoadMeter`).
    Range and media are ready when the endpoint is. With `Config.coherence` BISnp carry the host's
    addresses (`SnoopAddress`), and nothing is granted before the host enables back-invalidate.

    Latency: `LATENCY` cycles more than the endpoint's, for requests; answers pass in the cycle.
    Interval: `INTERVAL`.

    Parameters
    ----------
    config : Config
        One with `cxlio`.

    Members
    -------
    m2s_req, m2s_rwd, m2s_birsp : in, streams of M2SReq, M2SRwD, M2SBIRsp
        As :class:`Endpoint` has them and all down to `commit_hot`; addresses are the host's.
    s2m_drs, s2m_ndr, s2m_bisnp : out, streams of S2MDRS, S2MNDR, S2MBISnp
    axi : out
    cold_command : out, stream of cold_command
    cold_completion : in, stream of cold_completion
    ready, irq, now, quiescent : out
    skip, lockstep : in
    commit_result, commit_frame, commit_score : out, always-ready streams
    commit_hot : out
    port : In AxiLiteSignature
        Registers.
    messages : Out stream of message_layout
        MSI-X.
    signals : out
        ERR messages for a PCIe core.
    temperature : in
        Degrees Celsius of a sensor, signed; 0 without one.
    io_fault : out, BlockFault
        What CXL.io's memories have shown.
    """

    LATENCY = DecodedChannel.LATENCY
    INTERVAL = 1

    def __init__(self, *, config: Config):
        if not config.cxlio:
            raise ConfigError(
                f"configuration {config.name!r}: cxlio = '' is refused; legal: a name of one"
            )
        self.config, self.io = config, cxlio_of(config)
        super().__init__(device_signature(config))
        self._passed = [
            name
            for name in endpoint_signature(config)
            if name not in _INNER and not name.startswith(("m2s_re", "m2s_rw", "s2m_"))
        ]

    def elaborate(self, platform):
        m = Module()
        s = m.submodules
        s.endpoint = endpoint = Endpoint(config=self.config)
        s.io = io = CxlIo(config=self.io)
        s.requests = DecodedChannel(config=self.io, message=MESSAGES["M2SReq"])
        s.writes = DecodedChannel(config=self.io, message=MESSAGES["M2SRwD"])
        s.media = media = MediaPort(config=self.config)
        # A request holds a place in a skid buffer of the front, the data path's order or the miss
        # table's park; twice that is out of reach.
        most = 2 * (self.config.parked + self.config.write_slots + 256)
        s.load = load = LoadMeter(depth=self.config.parked, most=most, reads=self.config.coherence)
        s.records = records = EventRecords(config=self.config)
        s.poisoned = poisoned = PoisonedLines(config=self.config)
        for name in self._passed:
            if not (self.config.sanitizes and name in _ERASED):
                self._pass(m, getattr(endpoint, name), name)
        if self.config.coherence:
            s.snoops = snoops = SnoopAddress(config=self.io)
            connect(m, endpoint.s2m_bisnp, snoops.i)
            connect(m, snoops.o, flipped(self.s2m_bisnp))
            connect(m, media.recall, endpoint.recall)
            connect(m, endpoint.still_held, media.still_held)
            m.d.comb += [
                snoops.decoding.eq(io.decoding),
                s.requests.back_invalidate.eq(io.back_invalidate),
                s.writes.back_invalidate.eq(io.back_invalidate),
            ]
        else:
            connect(m, endpoint.s2m_bisnp, flipped(self.s2m_bisnp))
        connect(m, flipped(self.m2s_req), s.requests.i)
        connect(m, flipped(self.m2s_rwd), s.writes.i)
        self._decoded(m, media)
        channels = ("m2s_req", "m2s_rwd", "s2m_drs", "s2m_ndr")
        inner = [getattr(endpoint, name) for name in channels]
        asks = (media.requests, media.answers)
        if self.config.sanitizes:
            inner, asks = self._sanitize(m, endpoint, io, media)
            m.d.comb += poisoned.forget.eq(s.sanitizer.erase)
        connect(m, media.o_req, inner[0])
        connect(m, media.o_rwd, inner[1])
        connect(m, inner[2], media.i_drs)
        connect(m, inner[3], media.i_ndr)
        connect(m, media.o_drs, load.i_drs)
        connect(m, media.o_ndr, load.i_ndr)
        connect(m, load.o_drs, flipped(self.s2m_drs))
        connect(m, load.o_ndr, flipped(self.s2m_ndr))
        connect(m, io.requests, asks[0])
        connect(m, asks[1], io.answers)
        s.errors = errors = RasErrors(config=self.config)
        s.health = health = HealthReport(config=self.config)
        broadcast(m, endpoint.o_told, records.i, errors.i, health.i)
        connect(m, errors.o, io.errors)
        connect(m, endpoint.o_poisoned, poisoned.i)
        connect(m, records.o, poisoned.i_record)
        connect(m, poisoned.o, io.events)
        connect(m, flipped(self.port), io.port)
        connect(m, io.messages, flipped(self.messages))
        m.d.comb += [
            s.requests.decoding.eq(io.decoding),
            s.writes.decoding.eq(io.decoding),
            io.memory_ready.eq(endpoint.ready),
            io.device_line.ready.eq(1),
            media.answered.eq(endpoint.o_answered),
            errors.injecting.eq(media.injecting),
            health.counted.eq(endpoint.o_counted),
            health.ready.eq(endpoint.ready),
            health.temperature.eq(self.temperature),
            io.health.eq(health.o),
            load.taken_req.valid.eq(media.i_req.valid & media.i_req.ready),
            load.taken_req.p.eq(media.i_req.p),
            load.taken_rwd.eq(media.i_rwd.valid & media.i_rwd.ready),
            media.result.valid.eq(endpoint.commit_result.valid),
            media.result.p.eq(endpoint.commit_result.p),
            self.signals.eq(io.signals),
        ]
        gather_blocks(m, self.io_fault, io.fault, records.fault, poisoned.fault)
        if self.io.pmu:
            self._count(m, io)
        if self.io.hot_entries:
            score = endpoint.commit_score
            m.d.comb += [
                io.heat.valid.eq(
                    score.valid
                    & ((score.p.kind == ScoreEvent.TOUCH) | (score.p.kind == ScoreEvent.MASS))
                ),
                io.heat.p.unit.eq(Cat(score.p.page, queue_in_map(m, self.config, score.p.squeue))),
                io.heat.p.score.eq(score.p.score),
            ]
        return m

    def _decoded(self, m, media):
        """The host's messages, decoded, to `MediaPort`. With coherence the channels are in no
        order: there a RwD must not wait for a Req."""
        requests, writes = m.submodules.requests, m.submodules.writes
        i_req, i_rwd = media.i_req, media.i_rwd
        if not self.config.coherence:
            m.submodules.order = order = ChannelOrder(depth=2 * DecodedChannel.LATENCY)
            connect(m, order.o_req, i_req)
            connect(m, order.o_rwd, i_rwd)
            m.d.comb += [
                order.taken_req.eq(requests.i.valid & requests.i.ready),
                order.taken_rwd.eq(writes.i.valid & writes.i.ready),
            ]
            i_req, i_rwd = order.i_req, order.i_rwd
        connect(m, requests.o, i_req)
        connect(m, writes.o, i_rwd)

    def _sanitize(self, m, endpoint, io, media):
        """What stands between `MediaPort` and the endpoint then: its ends for the four channels,
        and for the mailbox."""
        m.submodules.sanitizer = sanitizer = Sanitizer(config=self.config)
        m.submodules.eraser = eraser = MediaEraser(
            config=self.config, axi=axi_signature(self.config)
        )
        connect(m, sanitizer.o_req, endpoint.m2s_req)
        connect(m, sanitizer.o_rwd, endpoint.m2s_rwd)
        connect(m, endpoint.s2m_drs, sanitizer.i_drs)
        connect(m, endpoint.s2m_ndr, sanitizer.i_ndr)
        connect(m, sanitizer.o_requests, media.requests)
        connect(m, media.answers, sanitizer.i_answers)
        connect(m, endpoint.axi, eraser.inner_axi)
        connect(m, eraser.outer_axi, flipped(self.axi))
        connect(m, endpoint.cold_command, eraser.inner_command)
        connect(m, eraser.outer_command, flipped(self.cold_command))
        connect(m, flipped(self.cold_completion), eraser.outer_completion)
        connect(m, eraser.inner_completion, endpoint.cold_completion)
        m.d.comb += [
            sanitizer.rest.eq(endpoint.o_rest),
            eraser.go.eq(sanitizer.erase),
            sanitizer.erased.eq(eraser.done),
            sanitizer.erase_failed.eq(eraser.failed),
            *([io.progress.eq(eraser.progress)] if self.io.wired else []),
        ]
        s = sanitizer
        return (s.i_req, s.i_rwd, s.o_drs, s.o_ndr), (s.requests, s.answers)

    def _pass(self, m, inner, name):
        """A port of the endpoint's that is the device's as well."""
        outer, member = getattr(self, name), self.signature.members[name]
        if member.is_signature:
            connect(m, inner, flipped(outer))
        elif member.flow is In:
            m.d.comb += inner.eq(outer)
        else:
            m.d.comb += outer.eq(inner)

    def _count(self, m, io):
        """Events of this cycle for the monitor: messages that pass between `MediaPort` and the
        host, and what the endpoint counts. The decoder is not told: 0."""
        m.submodules.monitor = monitor = MonitorEvents(config=self.config)
        m.d.comb += monitor.counted.eq(m.submodules.endpoint.o_counted)
        happened = {(self.io.vendor, VendorEvent.GROUP): monitor.o}
        channels = dict(
            zip(GROUPS, (self.m2s_req, self.m2s_rwd, self.s2m_ndr, self.s2m_drs), strict=True)
        )
        if self.config.coherence:
            channels |= zip(BI_GROUPS, (self.m2s_birsp, self.s2m_bisnp), strict=True)
        for group, channel in channels.items():
            moves = channel.valid & channel.ready
            happened[CXL_VENDOR, group] = moves << channel.p.opcode
        for counted, (vendor, group, _) in zip(
            io.counted, pmu_map(self.io).capabilities, strict=True
        ):
            if (vendor, group) in happened:
                m.d.comb += counted.events.eq(happened[vendor, group])

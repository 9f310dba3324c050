# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""CXL.io of the device behind one register port: the blocks of this room, joined. Latency 3 cycles,
an access in 4 cycles."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.cxlio.component import HEADER_WORDS, Uncorrectable, component_registers
from kelp_spec.cxlio.config import CxlIoConfig, Space
from kelp_spec.cxlio.device import PAYLOAD, device_registers
from kelp_spec.cxlio.pci import MSIX_PENDING, MSIX_TABLE, configuration_space

from ..lib.protected import BlockFault, gather_blocks
from .chmu import Chmu, heat_layout
from .command_engine import CommandEngine
from .doe import Doe
from .hdm_decode import LINE_BITS, HdmDecode, device_line_layout
from .hdm_decoders import HdmDecoders
from .msix import Msix
from .pmu import Pmu, counted_layout
from .ras_log import RasLog, signal_layout
from .register_bank import RegisterBank
from .register_port import RegisterPort
from .signatures import (
    AxiLiteSignature,
    answer_layout,
    decoding_layout,
    error_layout,
    event_layout,
    health_layout,
    message_layout,
    request_layout,
)

__all__ = ["CxlIo"]


class CxlIo(wiring.Component):
    """The device as CXL.io shows it. Spaces of the port: `kelp_spec.cxlio.config.Space`; which
    register is where, what it does and what a host then sees: docs/cxl.md.

    Latency: `LATENCY` cycles from an address to its answer; interval: `INTERVAL`. Addresses are
    decoded in `HdmDecode`'s time beside it. The first address is taken `cleared_after` cycles after
    reset, when mailbox payload and MSI-X table have been cleared.

    Memories carry check bits (docs/protection.md). After a fatal error memory device status says
    so until reset, RAS logs an internal error, and every command answers "internal".

    Parameters
    ----------
    config : CxlIoConfig

    Members
    -------
    port : In AxiLiteSignature
        Registers.
    memory_ready : in
        The data path serves: range and media are ready.
    messages : Out stream of message_layout
        MSI-X.
    errors : In stream of error_layout, always taken
        RAS.
    signals : out
        ERR_COR, ERR_NONFATAL, ERR_FATAL, where device control lets them go.
    events : In stream of event_layout
    requests : Out stream of request_layout
    answers : In stream of answer_layout, always taken
    health : in
    progress : in, with `config.wired`
        Percent of a sanitize that runs.
    host_line : In stream
        Host address / 64 of a CXL.mem request.
    device_line : Out stream {line, hit}
        Its device address / 64.
    decoding : out
        For decodes beside this one: a channel of CXL.mem each (`DecodedChannel`).
    back_invalidate : out, with `config.coherent`
        BISnp may leave, lines may be granted.
    counted : in
        What the performance monitor counts, where there is one.
    heat : In stream of heat_layout, always taken
        What the hotness monitor hears, where there is one.
    knobs : out
        Values of the vendor features.
    fault : out, BlockFault
        What memories have shown. `poisoned`: the host was told with its answer.
    """

    LATENCY = RegisterPort.LATENCY
    INTERVAL = RegisterPort.INTERVAL

    def __init__(self, *, config: CxlIoConfig):
        self.config = config
        self.cleared_after = config.payload // 8  #: a lane of the payload a cycle
        super().__init__(
            {
                "port": In(AxiLiteSignature()),
                "memory_ready": In(1),
                "messages": Out(stream.Signature(message_layout())),
                "errors": In(stream.Signature(error_layout(), always_ready=True)),
                "signals": Out(signal_layout()),
                "events": In(stream.Signature(event_layout())),
                "requests": Out(stream.Signature(request_layout())),
                "answers": In(stream.Signature(answer_layout(), always_ready=True)),
                "health": In(health_layout()),
                **({"progress": In(7)} if config.wired else {}),
                "host_line": In(stream.Signature(LINE_BITS)),
                "device_line": Out(stream.Signature(device_line_layout(config))),
                "decoding": Out(decoding_layout(config)),
                **({"back_invalidate": Out(1)} if config.coherent else {}),
                **({"counted": In(counted_layout(config))} if config.pmu else {}),
                **(
                    {"heat": In(stream.Signature(heat_layout(config), always_ready=True))}
                    if config.hot_entries
                    else {}
                ),
                "knobs": Out(data.ArrayLayout(32, max(1, config.knobs))),
                "fault": Out(BlockFault),
            }
        )

    def elaborate(self, platform):
        m = Module()
        c = self.config
        # A word of a data object, beyond repair, was read in the cycle before.
        self._lost = Signal()
        m.submodules.port = port = RegisterPort(spaces=3 if c.pmu else 2, chmu=bool(c.hot_entries))
        m.submodules.configuration = pci = RegisterBank(block=configuration_space(c))
        m.submodules.component = component = RegisterBank(block=component_registers(c))
        m.submodules.device = device = RegisterBank(block=device_registers(c))
        m.submodules.engine = engine = CommandEngine(config=c)
        m.submodules.msix = msix = Msix(vectors=c.vectors, protect=c.protect)
        wiring.connect(m, wiring.flipped(self.port), port.port)
        m.d.comb += [
            port.memory_enable.eq(pci.values.command_memory),
            port.broken.eq(
                engine.host_fault.uncorrected | msix.host_fault.uncorrected | self._lost
            ),
        ]
        self._faults = [engine.fault, msix.fault]
        spaces = {0: component, 1: device, 3: pci}
        for number, bank in spaces.items():
            self._joined(m, port, bank.access, port.space == number)
        lanes = [
            (engine.access, PAYLOAD // 8, c.payload // 8),
            (msix.table, MSIX_TABLE // 8, 2 * 256),
            (msix.pending_access, MSIX_PENDING // 8, 1),
        ]
        shown = Signal(64)
        m.d.comb += shown.eq(device.access.read_data)
        for access, first, count in lanes:
            here, was_here = Signal(), Signal()
            lane = port.access.lane
            m.d.comb += here.eq((port.space == 1) & (lane >= first) & (lane < first + count))
            self._joined(m, port, access, here, first)
            m.d.sync += was_here.eq(here)
            with m.If(was_here):
                m.d.comb += shown.eq(access.read_data)
        read = {0: component.access.read_data, 1: shown, 3: pci.access.read_data}
        interrupts = engine.interrupt
        if c.pmu:
            m.submodules.pmu = pmu = Pmu(config=c)
            here = Signal()
            m.d.comb += here.eq((port.space == 2) & (port.access.lane < 512))
            self._joined(m, port, pmu.access, here)
            m.d.comb += pmu.counted.eq(self.counted)
            read[2] = Mux(here, pmu.access.read_data, 0)
            interrupts = interrupts | (pmu.interrupt << c.pmu_vector)
        if c.hot_entries:
            m.submodules.chmu = chmu = Chmu(config=c)
            here = Signal()
            m.d.comb += here.eq((port.space == Space.CHMU >> 16) & (port.access.lane < 512))
            self._joined(m, port, chmu.access, here)
            wiring.connect(m, wiring.flipped(self.heat), chmu.i)
            read[Space.CHMU >> 16] = Mux(here, chmu.access.read_data, 0)
            interrupts = interrupts | (chmu.interrupt << c.chmu_vector)
        with m.Switch(port.space):
            for number, value in read.items():
                with m.Case(number):
                    m.d.comb += port.access.read_data.eq(value)
        self._clear(m, port, engine, msix)
        self._configuration(m, pci, engine)
        self._component(m, component, pci)
        self._device(m, device, engine, msix, pci, interrupts)
        return m

    @staticmethod
    def _joined(m, port, access, here, first=0):
        """The port's access, when it is for this one; its lanes begin at `first`."""
        m.d.comb += [
            access.lane.eq(port.access.lane - first),
            access.read.eq(port.access.read & here),
            access.write.eq(port.access.write & here),
            access.write_data.eq(port.access.write_data),
            access.strobe.eq(port.access.strobe),
        ]

    def _clear(self, m, port, engine, msix):
        """A row that no one has written may be no code word: what a host may read, or write in
        part, is cleared before its first access."""
        cycles, clear = Signal(range(self.cleared_after + 1)), Signal()
        m.d.comb += [
            clear.eq(cycles != self.cleared_after),
            port.hold.eq(clear),
            engine.clear.eq(clear),
            msix.clear.eq(clear),
        ]
        with m.If(clear):
            m.d.sync += cycles.eq(cycles + 1)

    def _configuration(self, m, pci, engine):
        flr = pci.strobes.pcie_device_control_flr if self.config.flr else Const(0)
        if self.config.flr:
            m.d.comb += pci.function_reset.eq(flr)
        m.d.comb += [
            pci.inputs.range0_size_valid.eq(self.memory_ready),
            pci.inputs.range0_size_active.eq(self.memory_ready),
            pci.locks.config_lock.eq(pci.values.cxl_lock_lock),
        ]
        if self.config.doe:
            m.submodules.doe = doe = Doe(protect=self.config.protect)
            self._faults.append(doe.fault)
            lane = self._word_lane(pci)
            m.d.sync += self._lost.eq(doe.broken & pci.access.read & (pci.access.lane == lane))
            m.d.comb += [
                doe.word.valid.eq(pci.written.doe_write),
                doe.word.p.eq(pci.strobes.doe_write),
                doe.go.eq(pci.strobes.doe_control_go),
                doe.abort.eq(pci.strobes.doe_control_abort | flr),
                doe.take.eq(pci.written.doe_read),
                pci.inputs.doe_read.eq(doe.read),
                pci.inputs.doe_status_busy.eq(doe.busy),
                pci.inputs.doe_status_error.eq(doe.error),
                pci.inputs.doe_status_ready.eq(doe.ready),
                doe.send.eq(engine.exchange_send),
            ]
            wiring.connect(m, doe.o, engine.exchange)
            wiring.connect(m, engine.exchange_word, doe.answer)

    @staticmethod
    def _word_lane(pci):
        return next(r.lane for r in pci.block.registers if r.name == "doe_read")

    def _component(self, m, component, pci):
        c = self.config
        m.submodules.decoders = decoders = HdmDecoders(config=c)
        m.submodules.decode = decode = HdmDecode(config=c)
        m.submodules.ras = ras = RasLog(config=c)
        values = component.values
        m.d.comb += [
            decoders.values.eq(values),
            decoders.written.eq(component.written),
            self.decoding.windows.eq(decoders.windows),
            self.decoding.enable.eq(values.hdm_control_enable),
            self.decoding.mem_enable.eq(pci.values.cxl_control_mem),
            self.decoding.range_base.eq(Cat(pci.values.range0_base, pci.values.range0_base_high)),
            decode.windows.eq(self.decoding.windows),
            decode.enable.eq(self.decoding.enable),
            decode.mem_enable.eq(self.decoding.mem_enable),
            decode.range_base.eq(self.decoding.range_base),
            ras.values.eq(values),
            component.sets.eq(ras.sets),
            ras.clears.eq(component.clears),
            component.inputs.error_control_first.eq(ras.first),
        ]
        for i in range(c.decoders):
            state = decoders.states[i]
            m.d.comb += [
                component.inputs[f"decoder{i}_control_committed"].eq(state.committed),
                component.inputs[f"decoder{i}_control_error"].eq(state.error),
                component.locks[f"decoder{i}_held"].eq(state.held),
                component.locks[f"decoder{i}_locked"].eq(state.locked),
            ]
        if c.coherent:
            m.d.comb += self.back_invalidate.eq(values.bi_control_enable)
        for i in range(HEADER_WORDS):
            m.d.comb += component.inputs[f"header{i}"].eq(ras.header[32 * i : 32 * (i + 1)])
        gather_blocks(m, self.fault, *self._faults)
        errors, internal = self.errors, self.fault.fatal << Uncorrectable.INTERNAL
        m.d.comb += [
            ras.i.valid.eq(errors.valid | self.fault.fatal),
            ras.i.p.uncorrectable.eq(Mux(errors.valid, errors.p.uncorrectable, 0) | internal),
            ras.i.p.correctable.eq(Mux(errors.valid, errors.p.correctable, 0)),
            ras.i.p.header.eq(errors.p.header),
        ]
        wiring.connect(m, wiring.flipped(self.host_line), decode.i)
        wiring.connect(m, decode.o, wiring.flipped(self.device_line))
        for kind in ("correctable", "non_fatal", "fatal"):
            m.d.comb += [
                self.signals[kind].eq(
                    ras.signals[kind] & pci.values[f"pcie_device_control_{kind}"]
                ),
                pci.sets[f"pcie_device_status_{kind}"].eq(ras.signals[kind]),
            ]

    def _device(self, m, device, engine, msix, pci, interrupts):
        c, state, fatal = self.config, engine.state, Signal()
        with m.If(self.fault.fatal):
            m.d.sync += fatal.eq(1)
        shown = {
            "event_status_info": state.event_status[0],
            "event_status_warning": state.event_status[1],
            "event_status_failure": state.event_status[2],
            "event_status_fatal": state.event_status[3],
            "memory_status_fatal": fatal,
            "memory_status_media": Mux(self.memory_ready, state.media, 0),
            "memory_status_mailbox": state.ready,
            "mailbox_control_doorbell": engine.busy,
            "mailbox_status_background": state.running,
            "mailbox_status_code": state.code,
            "background_opcode": state.opcode,
            "background_percent": state.percent,
            "background_code": state.background_code,
        }
        m.d.comb += [device.inputs[key].eq(value) for key, value in shown.items()]
        m.d.comb += [
            device.locks.busy.eq(engine.busy),
            device.loads.mailbox_command_length.eq(engine.out_length),
            device.load.eq(engine.length_load),
            engine.ring.eq(device.strobes.mailbox_control_doorbell),
            engine.opcode.eq(device.values.mailbox_command_opcode),
            engine.length.eq(device.values.mailbox_command_length),
            engine.health.eq(self.health),
            *([engine.progress.eq(self.progress)] if c.wired else []),
            self.knobs.eq(engine.knobs),
            msix.enable.eq(pci.values.msix_control_enable),
            msix.mask.eq(pci.values.msix_control_mask),
            msix.bus_master.eq(pci.values.command_bus_master),
        ]
        own = Const(0, c.vectors)
        if c.mailbox_irq:
            was_busy, was_running, ended = Signal(), Signal(), Signal()
            m.d.sync += [was_busy.eq(engine.busy), was_running.eq(state.running)]
            values = device.values
            m.d.comb += ended.eq(
                (was_busy & ~engine.busy & values.mailbox_control_doorbell_irq)
                | (was_running & ~state.running & values.mailbox_control_background_irq)
            )
            own = ended
        m.d.comb += msix.trigger.eq(interrupts | own)
        wiring.connect(m, msix.o, wiring.flipped(self.messages))
        wiring.connect(m, wiring.flipped(self.events), engine.events)
        wiring.connect(m, engine.requests, wiring.flipped(self.requests))
        wiring.connect(m, wiring.flipped(self.answers), engine.answers)

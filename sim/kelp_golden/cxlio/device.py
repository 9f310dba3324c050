# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The whole of CXL.io behind the register port."""

from __future__ import annotations

from kelp_spec.cxlio.component import component_registers
from kelp_spec.cxlio.config import CxlIoConfig
from kelp_spec.cxlio.device import PAYLOAD, device_registers
from kelp_spec.cxlio.pci import MSIX_PENDING, MSIX_TABLE, configuration_space

from .exchange import Exchange
from .hdm import HdmDecoders
from .mailbox import Event, Mailbox
from .msix import Msix
from .pmu import Pmu
from .ras import Ras
from .registers import Registers

__all__ = ["Device", "OKAY", "SLVERR"]

OKAY, SLVERR = 0, 2
_LOGS = ("info", "warning", "failure", "fatal")


class Device:
    """`read` and `write` an access of 1 to 8 bytes that lies in one lane; `mailbox`, `msix`,
    `decoders` and `ras` are its parts. Commands are over at once; a sanitize runs until
    `sanitized`."""

    def __init__(self, config: CxlIoConfig):
        self.config = config
        self.pci = Registers(configuration_space(config))
        self.component = Registers(component_registers(config))
        self.device = Registers(device_registers(config))
        self.decoders = HdmDecoders(config, self.component)
        self.ras = Ras(self.component)
        self.msix = Msix(config.vectors)
        self.mailbox = Mailbox(config)
        self.exchange = Exchange(config)
        self.pmu = Pmu(config) if config.pmu else None
        self.payload = bytearray(config.payload)
        self.mailbox.interrupt = self.msix.trigger
        self.pci.locked = lambda name: self.pci.values["cxl_lock_lock"]
        self.component.locked = self._locked
        self.pci.written = self._pci_written
        self.component.written = self._component_written
        self.device.written = self._device_written
        for key in ("range0_size_valid", "range0_size_active"):
            self.pci.values[key] = 1
        self.device.values |= {"memory_status_media": 1, "memory_status_mailbox": 1}

    def read(self, space: str, offset: int, size: int) -> tuple[int, int]:
        """(value, OKAY or SLVERR)"""
        if space != "configuration" and not self.pci.values["command_memory"]:
            return (1 << 8 * size) - 1, SLVERR
        if space == "configuration":
            return self.pci.read(offset, size), OKAY
        if space in ("component", "pmu"):
            block = self.component if space == "component" else self.pmu.registers
            return block.read(offset, size), OKAY
        beside = self._beside(offset)
        if beside is None:
            return self.device.read(offset, size), OKAY
        kind, at = beside
        if kind == "payload":
            return int.from_bytes(self.payload[at : at + size], "little"), OKAY
        if kind == "table":
            return self.msix.read(at, size), OKAY
        return self.msix.pending_bits() >> 8 * at & (1 << 8 * size) - 1, OKAY

    def write(self, space: str, offset: int, size: int, value: int) -> int:
        if space != "configuration" and not self.pci.values["command_memory"]:
            return SLVERR
        beside = self._beside(offset) if space == "device" else None
        if beside is not None:
            kind, at = beside
            if kind == "payload":
                self.payload[at : at + size] = value.to_bytes(size, "little")
            elif kind == "table":
                self.msix.write(at, size, value)
            return OKAY
        blocks = {"configuration": self.pci, "component": self.component, "device": self.device}
        if self.pmu:
            blocks["pmu"] = self.pmu.registers
        blocks[space].write(offset, size, value)
        return OKAY

    def event(self, **fields: int) -> None:
        self.mailbox.event(Event(**fields))
        self._show()

    def report(self, uncorrectable: int = 0, correctable: int = 0, header: int = 0) -> set[str]:
        """Errors of one cycle: the messages that leave."""
        messages = self.ras.report(uncorrectable, correctable, header)
        for name in messages:
            self.pci.values[f"pcie_device_status_{name}"] = 1
        return {m for m in messages if self.pci.values[f"pcie_device_control_{m}"]}

    def count(self, counted: list[tuple[int, int]]) -> None:
        """A cycle's events, for the monitor: (events, decoder) of each capability."""
        if self.pmu.cycle(counted):
            self.msix.trigger(self.config.pmu_vector)

    def sanitized(self, code: int = 0) -> None:
        values = self.device.values
        values["background_code"] = self.mailbox.sanitized(code)
        values["background_percent"] = 100
        values["mailbox_status_background"] = 0
        if values.get("mailbox_control_background_irq"):
            self.msix.trigger(0)
        self._show()

    def _beside(self, offset: int):
        """What lies beside the registers of the device space."""
        for kind, first, size in (
            ("payload", PAYLOAD, self.config.payload),
            ("table", MSIX_TABLE, 4096),
            ("pending", MSIX_PENDING, 8),
        ):
            if first <= offset < first + size:
                return kind, offset - first
        return None

    def _locked(self, name: str) -> bool:
        decoder, _, what = name.removeprefix("decoder").partition("_")
        of = self.decoders.held if what == "held" else self.decoders.locked
        return of(int(decoder))

    def _pci_written(self, register, strobes) -> None:
        values, name = self.pci.values, register.name
        if strobes.get("flr"):
            self.pci.function_reset()
            self.exchange.abort()
        self.msix.enable = bool(values["msix_control_enable"])
        self.msix.mask = bool(values["msix_control_mask"])
        self.msix.bus_master = bool(values["command_bus_master"])
        self.msix.send()
        if name == "doe_write":
            self.exchange.write(strobes["value"])
        elif name == "doe_read":
            self.exchange.take()
        elif name == "doe_control" and strobes["abort"]:
            self.exchange.abort()
        elif name == "doe_control" and strobes["go"]:
            self.exchange.go()
        if self.config.doe:
            values |= {
                "doe_read": self.exchange.word,
                "doe_status_error": int(self.exchange.error),
                "doe_status_ready": int(bool(self.exchange.answer)),
            }

    def _component_written(self, register, strobes) -> None:
        name = register.name
        if name == "uncorrectable":
            self.ras.status_written()
        elif name.startswith("decoder") and name.endswith("_control"):
            self.decoders.control_written(int(name[len("decoder") : -len("_control")]))

    def _device_written(self, register, strobes) -> None:
        if register.name == "mailbox_control" and strobes["doorbell"]:
            self._command()

    def _command(self) -> None:
        values = self.device.values
        opcode, length = values["mailbox_command_opcode"], values["mailbox_command_length"]
        given = bytes(self.payload[:length]) if length <= len(self.payload) else length
        code, answer = self.mailbox.run(opcode, given)
        self.payload[: len(answer)] = answer
        values["mailbox_command_length"] = len(answer)
        values["mailbox_status_code"] = int(code)
        if self.mailbox.sanitizing and not values["mailbox_status_background"]:
            values |= {
                "mailbox_status_background": 1,
                "background_opcode": opcode,
                "background_percent": 0,
                "background_code": 0,
            }
        if values.get("mailbox_control_doorbell_irq"):
            self.msix.trigger(0)
        self._show()

    def _show(self) -> None:
        values = self.device.values
        for i, name in enumerate(_LOGS):
            values[f"event_status_{name}"] = self.mailbox.event_status >> i & 1
        values["memory_status_media"] = 3 if self.mailbox.sanitizing else 1

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The compiled `CxlDevice`: one model, whose registers and whose memory are the same device's.

::

    device = JoinedDriver(named("unit_cxl"))
    device.write("configuration", 4, 2, 6)
    code, answer = device.command(Opcode.IDENTIFY)
    result = device.run(Program.reads(host_addresses))

Programs carry host addresses: a committed decoder, or the DVSEC range, decodes them.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

from kelp_hw.cxlio.signatures import message_layout
from kelp_hw.export.packing import Packing
from kelp_spec.config import Config
from kelp_spec.cxlio.config import cxlio_of

from ..device import Driver
from ..timing import DriverError
from .registers import RegisterAccess

__all__ = ["JoinedDriver"]

_SOURCE = Path(__file__).with_name("joined.cpp")


class JoinedDriver(RegisterAccess, Driver):
    """One device, out of reset, its endpoint and its mailbox ready, memory enable off.

    Parameters
    ----------
    config : Config
        One with `cxlio`.
    options
        Of :class:`Driver`.

    Attributes
    ----------
    io : CxlIoConfig
    messages : list of dict
        MSI-X messages that have left, until somebody takes them off.
    verilog : str
        Which build: name, configuration and digest of what was compiled.
    """

    BESIDE = _SOURCE
    DEVICE = True

    def __init__(self, config: Config, **options):
        self.io = cxlio_of(config)
        self._message = Packing(message_layout())
        self.messages: list[dict] = []
        super().__init__(config, **options)
        self.verilog = Path(self._call._name).parent.name

    def reset(self, cycles: int = 2, *, seed: int | None = None) -> None:
        """As :meth:`Driver.reset`, and until the mailbox is ready."""
        self._call.joined_quiet.argtypes = [ctypes.c_void_p]
        self._call.joined_quiet(self._simulation)
        super().reset(cycles, seed=seed)
        self.messages.clear()
        self.wait_for_mailbox()

    @property
    def cycles(self) -> int:
        return self.time

    def clock(self, cycles: int) -> None:
        """Let cycles pass; messages that leave are kept."""
        self.idle(cycles)
        self._take_messages()

    def _take_messages(self):
        words = (ctypes.c_uint32 * 3)()
        take = self._call.joined_message
        take.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        while self._check(took := take(self._simulation, words)) and took:
            value = sum(word << 32 * i for i, word in enumerate(words))
            self.messages.append(self._message.unpack(value))

    def access(self, address: int, write: bool, data: int, strobe: int) -> tuple[int, int]:
        """(data, answer code) of one transfer on the register port."""
        lane = ctypes.c_uint64(data)
        call = self._call.joined_access
        call.argtypes = [
            ctypes.c_void_p,
            ctypes.c_uint32,
            ctypes.c_int,
            ctypes.c_void_p,
            ctypes.c_uint32,
        ]
        code = call(self._simulation, address, write, ctypes.byref(lane), strobe)
        if code == -1:
            raise DriverError(f"no answer to an access of {address:#x}", self.time)
        self._check(code)
        self._take_messages()
        return lane.value, code

    def warm(self, degrees: int) -> None:
        """What the temperature sensor says from now on, in degrees Celsius."""
        call = self._call.joined_temperature
        call.argtypes = [ctypes.c_void_p, ctypes.c_uint32]
        call(self._simulation, degrees & 0xFFFF)

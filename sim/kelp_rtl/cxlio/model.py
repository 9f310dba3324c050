# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The compiled `CxlIo`: register accesses as calls, and what leaves it as lists."""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
from pathlib import Path

from amaranth.hdl import Shape

from kelp_hw.cxlio.cxl_io import CxlIo
from kelp_hw.cxlio.hdm_decode import device_line_layout
from kelp_hw.cxlio.pmu import counted_layout
from kelp_hw.cxlio.signatures import (
    answer_layout,
    error_layout,
    event_layout,
    health_layout,
    message_layout,
    request_layout,
)
from kelp_hw.export.packing import Packing
from kelp_hw.export.verilog import to_verilog
from kelp_spec.cxlio.config import CxlIoConfig

from .. import verilator
from ..library import Array, with_module
from ..timing import DriverError, Ended
from .registers import RegisterAccess

__all__ = ["RegisterModel"]

_SOURCE = Path(__file__).with_name("model.cpp")
_ARRAY = re.compile(r"^(  reg (?:\[\d+:0\] )?\\?\w+ +\[\d+:0\]);$", re.M)


class RegisterModel(RegisterAccess):
    """CXL.io's RTL, out of reset, the mailbox ready and memory enable off.

    Parameters
    ----------
    config : CxlIoConfig
    seed : int
        Of what registers hold before the reset.

    Attributes
    ----------
    decide : callable
        Request of the data path, a dict → the code that answers it, or None: `answer` will.
    messages, requests : list of dict
        Those that have left, until somebody takes them off.
    verilog : str
        Digest of what was compiled.
    """

    def __init__(self, config: CxlIoConfig, *, seed: int = 1):
        self.config = config
        text = to_verilog(CxlIo(config=config), checked=True)
        self.verilog = hashlib.sha256(text.encode()).hexdigest()[:16]
        self._layouts = {
            "event": event_layout(),
            "message": message_layout(),
            "request": request_layout(),
            "answer": answer_layout(),
            "error": error_layout(),
            "health": health_layout(),
        }
        self._pack = {name: Packing(layout) for name, layout in self._layouts.items()}
        self._counted = Shape.cast(counted_layout(config)).width if config.pmu else 0
        self._call, self._process = self._library(text), os.getpid()
        self._model = ctypes.c_void_p(self._call.cxlio_new(seed))
        self.decide = lambda request: 0
        self.messages: list[dict] = []
        self.requests: list[dict] = []
        self.reset()

    def _library(self, text):
        sizes = {name: packing.width for name, packing in self._pack.items()}
        sizes["counted"] = self._counted
        line = device_line_layout(self.config).size - 1
        header = "#pragma once\n" + "".join(
            f"#define {name.upper()}_BITS {bits}\n" for name, bits in sizes.items()
        )
        header += f"#define LINE_BITS {line}\n"
        header += f"#define WIRED {self.config.wired:d}\n#define HOT {self.config.hot_entries}\n"
        path = verilator.verilate_model(
            _ARRAY.sub(r"\1 /*verilator public_flat_rd*/;", text),
            verilator.Cpp(
                sources=[_SOURCE],
                headers={"cxlio_ports.h": header},
                flags=["-DVL_USER_STOP", "-fno-gnu-unique"],
            ),
            name=f"cxlio-{self.config.name}",
            opt=verilator.QUICK_OPT,
        )
        call = ctypes.CDLL(str(path))
        call.cxlio_new.restype = ctypes.c_void_p
        call.cxlio_new.argtypes = [ctypes.c_uint64]
        call.cxlio_error.restype = ctypes.c_char_p
        call.cxlio_decode.restype = ctypes.c_int64
        call.cxlio_decode.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
        for name in ("cycles", "waiting", "arrays"):
            getattr(call, f"cxlio_{name}").restype = ctypes.c_uint64
        return call

    def close(self) -> None:
        """End the simulation, as :meth:`kelp_rtl.device.Driver.close`."""
        model, self._model = getattr(self, "_model", None), None
        if model:
            if self._process == os.getpid():
                self._call.cxlio_delete(model)
            self._call = Ended()

    def __del__(self):
        self.close()

    @staticmethod
    def _words(value: int, bits: int):
        count = -(-bits // 32)
        return (ctypes.c_uint32 * count)(*(value >> 32 * i & 0xFFFFFFFF for i in range(count)))

    def _checked(self):
        if problem := self._call.cxlio_error(self._model):
            raise DriverError(with_module(problem.decode()), self.cycles)

    # - time ---------------------------------------------------------------------------------------
    @property
    def cycles(self) -> int:
        return self._call.cxlio_cycles(self._model)

    def reset(self) -> None:
        """Reset, and wait until the mailbox is ready."""
        self._call.cxlio_reset(self._model)
        self.wait_for_mailbox()

    def clock(self, cycles: int) -> None:
        """Let cycles pass; requests that leave are answered, messages kept."""
        self._call.cxlio_clock(self._model, cycles)
        self._follow()

    def _follow(self):
        self._checked()
        for kind, kept in (("message", self.messages), ("request", self.requests)):
            bits = self._pack[kind].width
            words = self._words(0, bits)
            while getattr(self._call, f"cxlio_{kind}")(self._model, words):
                value = sum(word << 32 * i for i, word in enumerate(words))
                kept.append(self._pack[kind].unpack(value))
                if kind == "request":
                    code = self.decide(kept[-1])
                    if code is not None:
                        self.answer(kept[-1], code)

    # - the host's side ----------------------------------------------------------------------------
    def access(self, address: int, write: bool, data: int, strobe: int) -> tuple[int, int]:
        """(data, answer code) of one transfer on the register port."""
        lane = ctypes.c_uint64(data)
        code = self._call.cxlio_access(self._model, address, write, ctypes.byref(lane), strobe)
        self._follow()
        if code < 0:
            raise DriverError(f"no answer to an access of {address:#x}", self.cycles)
        return lane.value, code

    def decode(self, address: int) -> int | None:
        """The device's address of a host's, None where no window has it."""
        line = self._call.cxlio_decode(self._model, address // 64)
        self._checked()
        if line < -1:
            raise DriverError(f"no answer to the decoding of {address:#x}", self.cycles)
        return None if line < 0 else 64 * line + address % 64

    # - the device's side --------------------------------------------------------------------------
    def event(self, **fields: int) -> None:
        """Offers an event, as `event_layout` has it."""
        self._call.cxlio_event(
            self._model, self._words(self._pack["event"].pack(**fields), self._pack["event"].width)
        )

    @property
    def waiting(self) -> int:
        """Events that have not been taken."""
        return self._call.cxlio_waiting(self._model)

    def answer(self, request: dict, code: int) -> None:
        """The data path's answer to a request."""
        self._call.cxlio_answer(
            self._model, self._pack["answer"].pack(tag=request["tag"], code=code)
        )

    def report(self, **errors: int) -> None:
        """Errors for RAS, in one cycle, as `error_layout` has them."""
        packing = self._pack["error"]
        self._call.cxlio_report(self._model, self._words(packing.pack(**errors), packing.width))
        self._follow()

    def health(self, **fields: int) -> None:
        """What the device says of its health from now on."""
        packing = self._pack["health"]
        self._call.cxlio_health(self._model, self._words(packing.pack(**fields), packing.width))

    def happen(self, counted: int, cycles: int = 1) -> None:
        """Events for the monitor, as `counted_layout` has them, in each of so many cycles."""
        self._call.cxlio_happen(self._model, self._words(counted, self._counted), cycles)
        self._follow()

    def faults(self) -> dict[str, int]:
        """Cycles so far in which memories have shown an error of each kind, and of each ERR
        signal."""
        found = (ctypes.c_uint64 * 6)()
        self._call.cxlio_faults(self._model, found)
        names = ("corrected", "poisoned", "fatal", "err_correctable", "err_non_fatal", "err_fatal")
        return dict(zip(names, found, strict=True))

    def arrays(self) -> list[Array]:
        """Every array of the model. A change of its rows counts once `propagate` is called."""
        found = (Array * self._call.cxlio_arrays(self._model, None, 0))()
        self._call.cxlio_arrays(self._model, found, len(found))
        return list(found)

    def propagate(self) -> None:
        """What is combinational follows state that was changed from outside."""
        self._call.cxlio_propagate(self._model)

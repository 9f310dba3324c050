# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""`cxl:/dev/dax0.0` — a KELP endpoint in this machine's memory: its window, mapped, with registers,
hints and every stored format behind plain loads and stores.

Options in the URL: `config` (what the device was built from, with fields of it as further options;
by default the named configuration whose digest its register shows).

A processor keeps copies of such memory (HDM-H) that the device does not know of. So each load here
drops the copy first, and each store goes past the caches: the device sees every access, and a host
sees what the device has, rounding included. That takes the C library (`python -m cxl_kv.native`),
and for hints and for formats that round a processor that stores a line in one write (AVX-512 or
MOVDIR64B): hints in parts are dropped, and a line in parts would be rounded with each of them.

The device outlives its processes. What one has left that was killed is undone when the next opens
it: open sessions are closed, its events forgotten, and registers of the whole device are as after
a reset.

A mapping has no LD-IDs: whoever maps the device is LD-ID 0 with everything in it, so it is one
process's at a time. `kelp serve` shares it: who owns which session is then kept here
(`cxl_kv.backends.cxl_owners`).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable
from typing import Protocol

import numpy as np

from kelp_spec.address import REGISTER_BYTES, AddressMap, Region
from kelp_spec.config import NAMED, Config
from kelp_spec.formats import Format
from kelp_spec.registers import KELP, SESSION_BASE, Access, RegisterMap, unlike

from .. import native
from ..control import Control
from ..core import ALL_BYTES, Core, Loaded, Status
from ..errors import TransportError, UnsupportedError
from ..process import let_go_in_children
from ..registers import unpack
from .cxl_owners import Owners
from .dax_header import size_of
from .file_lock import try_take
from .mapping import ALIGNMENT, mapped

__all__ = ["CxlCore", "MappedWindow", "Window", "window_bytes"]


def window_bytes(config: Config) -> int:
    """Bytes of the address map that are used: to the end of the registers, or of GATHER."""
    if config.select:
        return Region.OUTSIDE + 3 << config.aperture_bits
    return AddressMap(config).register_base + REGISTER_BYTES


class Window(Protocol):
    """A device's memory as a processor reaches it. Offsets are uint64[n], multiples of 64."""

    size: int  #: bytes
    whole: bool  #: whether a line that is stored arrives as one write

    def load(self, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """uint8[n, 64], and bool[n]: what was reported lost (poison)."""

    def store(self, offsets: np.ndarray, lines: np.ndarray) -> np.ndarray:
        """Whole lines, in any order; bool[n] of those that could not be reached."""

    def store_parts(
        self, offsets: np.ndarray, lines: np.ndarray, enables: np.ndarray
    ) -> np.ndarray:
        """Some bytes of each line, one line after another; bool[n] as of `store`."""

    def close(self) -> None:
        """Let go of it."""


class MappedWindow:
    """A devdax device, or a file in its place, mapped. TransportError when it cannot be mapped or
    is open already, in whatever process; UnsupportedError without the C library."""

    def __init__(self, path: str):
        if native.library() is None:
            raise UnsupportedError(
                f"cxl:{path} needs the C library: `python -m cxl_kv.native` builds it (a processor "
                + "keeps copies of device memory, and Python alone cannot drop them)"
            )
        if not native.drops():
            raise UnsupportedError(
                f"cxl:{path}: programs on this processor cannot drop copies from its caches"
            )
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise TransportError(f"cxl:{path}: {error.strerror}") from None
        let_go_in_children(self)
        try:
            if not try_take(self._file, 0):
                raise TransportError(
                    f"cxl:{path} is open already, here or in another process; close it there, or "
                    + "share it by kelp serve"
                )
            self.size = size_of(self._file) // ALIGNMENT * ALIGNMENT
            if not self.size:
                raise TransportError(
                    f"cxl:{path} has {size_of(self._file)} bytes; legal: a devdax device of "
                    + f"{ALIGNMENT} at least"
                )
            self._bytes = mapped(self._file, self.size)
        except BaseException:
            self.let_go()
            raise
        self._base = self._bytes.ctypes.data
        self.whole = native.best_way() in ("avx512", "movdir64b")

    def load(self, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """As of :class:`Window`: what the device answers now, not a copy."""
        lines = np.zeros((len(offsets), 64), np.uint8)
        lost = native.drop_lines(self._base, offsets)
        lost |= native.load_lines(self._base, offsets, lines)
        lines[lost] = 0
        return lines, lost

    def store(self, offsets: np.ndarray, lines: np.ndarray) -> np.ndarray:
        return native.store_lines(self._base, offsets, lines)

    def store_parts(
        self, offsets: np.ndarray, lines: np.ndarray, enables: np.ndarray
    ) -> np.ndarray:
        return native.store_parts(self._base, offsets, lines, enables)

    def let_go(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def close(self) -> None:
        self._bytes = None
        self.let_go()


def find_config(window: Window, candidates: Iterable[Config]) -> Config:
    """The configuration among `candidates` that the device in `window` was built from: its identity
    and digest stand where that configuration has its registers (docs/interface.md). TransportError
    says what was seen where there is none."""
    candidates, seen = list(candidates), []

    @functools.cache  # a look beside the registers counts as a refused request
    def shown(base: int) -> tuple[int, int]:
        if base + 64 > window.size:
            return 0, 0
        lines, lost = window.load(np.array([base], np.uint64))
        return (0, 0) if lost[0] else tuple(lines[0, :16].view(np.uint64).tolist())

    for config in candidates:
        identity, digest = shown(AddressMap(config).register_base)
        if identity >> 32 != KELP:
            continue
        if (why := unlike(config, identity, digest)) is None:
            return config
        # The nearest is told: one of this digest, then one of a version that this host knows.
        built = int(config.digest, 16)
        knows = unlike(config, identity, built) is None
        seen.append((digest == built, knows, f"{digest:012x}", why))
    known = ", ".join(config.name for config in candidates)
    if not seen:
        why = (
            f"no KELP identity in these {window.size} bytes where {known} "
            + ("has" if len(candidates) == 1 else "have")
            + " registers"
        )
    else:
        _, knows, digest, why = max(seen)
        if not knows or len(candidates) == 1:
            raise TransportError(why)
        why = (
            f"the device was built from a configuration with digest {digest}, which is none of "
            + known
        )
    raise TransportError(f"{why}; ?config=NAME and fields of it as options name another")


class CxlCore(Core):
    """One endpoint in memory. A line that the device refuses reads as ones: of a closed session, or
    beyond what an open one has, that is NOT_MAPPED, as are ones from any other region.

    Parameters
    ----------
    window : Window
    config : Config
        One of :func:`find_config`.
    """

    def __init__(self, window: Window, config: Config):
        super().__init__()
        if window.size < window_bytes(config):
            raise TransportError(
                f"the device has {window.size} bytes; configuration {config.name!r} needs "
                + f"{window_bytes(config)}"
            )
        self.config, self._window, self.hints = config, window, window.whole
        self._owners = Owners(config)
        self._registers = RegisterMap(config).by_name
        self._register_base = AddressMap(config).register_base
        self._begin_anew()

    def _begin_anew(self) -> None:
        """Whatever was before, and was refused while the device was looked for, is over."""
        control = Control.of(self)
        for session in range(self.config.sessions):
            state = self._register(f"s{session}_state")
            if state["open"] or state["busy"]:
                control.close_session(session)
        control.registers.write_many(
            (name, register.reset)
            for name, register in self._registers.items()
            if register.offset < SESSION_BASE and register.access is Access.RW
        )
        control.registers.write("event_clear", 1)

    @classmethod
    def open(cls, path: str, config: Config | None) -> CxlCore:
        """The device at `path`, of `config` or of whatever named configuration it says."""
        window = MappedWindow(path)
        try:
            try:
                found = find_config(window, [config] if config else NAMED.values())
            except TransportError as error:
                raise TransportError(f"cxl:{path}: {error}") from None
            return cls(window, found)
        except BaseException:
            window.close()
            raise

    @property
    def formats(self) -> frozenset[Format]:
        """As of :class:`Core`; raw16 alone where a line takes several writes."""
        return super().formats if self._window.whole else frozenset({Format.RAW16})

    def _register(self, name: str) -> dict[str, int]:
        register = self._registers[name]
        line, at = divmod(register.offset, 64)
        lines, _ = self._window.load(np.array([self._register_base + 64 * line], np.uint64))
        return unpack(register, int(lines[0, at : at + 8].view(np.uint64)[0]))

    def _is_mapped(self, address: int) -> bool:
        """Whether a KV line that read as ones is one that a session has."""
        c = self.config
        line = address >> 6
        line, in_half = divmod(line, c.half_lines)
        page = line >> 1 & c.pages - 1
        queue = line >> 1 + c.page_bits & (1 << c.queue_bits) - 1
        session = line >> 1 + c.page_bits + c.queue_bits
        if session >= c.sessions or not self._register(f"s{session}_state")["open"]:
            return False
        shape = self._register(f"s{session}_shape")
        return (
            in_half < shape["used_lines"]
            and page < shape["used_pages"]
            and queue < shape["layers"] * shape["kv_heads"]
        )

    def load(self, addresses: np.ndarray, ld_id: int) -> Loaded:
        addresses = np.ascontiguousarray(addresses, np.uint64)
        inside = (addresses < self._window.size) & self._owners.own(addresses, ld_id)
        status = np.full(len(addresses), Status.NOT_MAPPED, np.uint8)
        if inside.all():
            lines, lost = self._window.load(addresses)
        else:
            lines = np.zeros((len(addresses), 64), np.uint8)
            lines[inside], lost = self._window.load(addresses[inside])
        status[inside] = np.where(lost, Status.POISON, Status.DATA)
        for i in np.flatnonzero((lines == 0xFF).all(1)):
            address = int(addresses[i])
            region = address >> self.config.aperture_bits
            if region != Region.KV or not self._is_mapped(address):
                lines[i], status[i] = 0, Status.NOT_MAPPED
        self._owners.shown(addresses, lines, ld_id)
        return Loaded(lines, status)

    def store(
        self, addresses: np.ndarray, lines: np.ndarray, byte_enable: np.ndarray | None, ld_id: int
    ) -> None:
        addresses = np.ascontiguousarray(addresses, np.uint64)
        lines = np.ascontiguousarray(lines, np.uint8)
        enables = np.full(len(addresses), ALL_BYTES, np.uint64)
        if byte_enable is not None:
            enables = np.ascontiguousarray(byte_enable, np.uint64)
        goes = self._owners.own(addresses, ld_id) & self._owners.takes(addresses, lines, ld_id)
        addresses = addresses[goes]
        lines, enables = self._owners.writes(addresses, lines[goes], enables[goes], ld_id)
        whole = enables == ALL_BYTES
        # Registers and hints take effect one after another, and after what was stored before them:
        # each is a store of its own, which ends with a fence.
        side = addresses >> np.uint64(self.config.aperture_bits) != Region.KV
        group = np.cumsum(side | np.append(False, side[:-1] | np.diff(whole))[: len(side)])
        for part in np.split(np.arange(len(addresses)), np.flatnonzero(np.diff(group)) + 1):
            if not len(part):
                continue
            if whole[part[0]]:
                lost = self._window.store(addresses[part], lines[part])
            else:
                lost = self._window.store_parts(addresses[part], lines[part], enables[part])
            if lost.any():
                raise TransportError(
                    f"the line at {int(addresses[part][lost][0]):#x} cannot be reached: is the "
                    + "device still there?"
                )
        for session in list(self._owners.opening):
            self._owners.opened(session, bool(self._register(f"s{session}_state")["open"]))

    def close(self) -> None:
        self._window.close()

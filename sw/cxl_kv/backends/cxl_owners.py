# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Who may touch what of a mapped device, to which every requester is LD-ID 0: the rules of the
address map (spec §3) and of the registers' scopes (docs/registers.md), kept in software.

The device knows no owner but 0: what the control plane writes as a session's owner stays here, and
holds from an OPEN that the device has carried out to the CLOSE. A foreign access is answered as the
device would, but never reaches it, so that it neither counts nor logs it.
"""

from __future__ import annotations

import numpy as np

from kelp_spec.address import HINT_BYTES, REGISTER_BYTES, AddressMap, Region
from kelp_spec.config import Config
from kelp_spec.hints import HintError
from kelp_spec.hints import unpack as unpack_hint
from kelp_spec.registers import (
    SESSION_BASE,
    SESSION_STRIDE,
    RegisterMap,
    Scope,
    SessionCommand,
)
from kelp_spec.select import SelectMap

from ..core import ALL_BYTES

__all__ = ["Owners"]

_WORD = 0xFF  #: byte enables of a register in its line


class Owners:
    """Owners of a configuration's sessions, and what each requester may touch.

    Parameters
    ----------
    config : Config
    """

    def __init__(self, config: Config):
        self.config, self._map = config, AddressMap(config)
        self._owner = np.zeros(config.sessions, np.int64)
        self._asked = [0] * config.sessions  # as written, before OPEN
        #: sessions that were told to open, until :meth:`opened`
        self.opening: set[int] = set()
        registers = RegisterMap(config)
        self._by_index = {r.offset // 8: r for r in registers.registers}
        field = next(f for f in registers.by_name["s0_shape"].fields if f.name == "owner")
        self._low, self._mask = field.low, (1 << field.bits) - 1
        self._shapes = {
            registers.by_name[f"s{session}_shape"].offset // 8: session
            for session in range(config.sessions)
        }
        self._commands = {
            registers.by_name[f"s{session}_command"].offset // 8: session
            for session in range(config.sessions)
        }
        self._command = next(
            f for f in registers.by_name["s0_command"].fields if f.name == "command"
        )
        # region → bits of an address below its session
        self._below = {Region.KV: 6 + config.line_bits + config.page_bits + config.queue_bits}
        if config.select:
            select = SelectMap(config)
            self._below |= {
                Region.SELECT: 6 + select.offset_bits - config.session_bits,
                Region.GATHER: 6
                + config.queue_bits
                + config.generation_bits
                + 1
                + config.slot_bits
                + config.half_line_bits,
            }

    def _sessions(self, addresses: np.ndarray) -> np.ndarray:
        """Session of each data line, int64[n]; −1 of every other line."""
        bits = np.uint64(self.config.aperture_bits)
        offset = addresses & np.uint64((1 << self.config.aperture_bits) - 1)
        sessions = np.full(len(addresses), -1, np.int64)
        for region, below in self._below.items():
            here = addresses >> bits == np.uint64(region)
            sessions[here] = (offset[here] >> np.uint64(below)).astype(np.int64)
        return sessions

    def own(self, addresses: np.ndarray, ld_id: int) -> np.ndarray:
        """bool[n]: lines that are not another requester's data. Registers and hints are no data:
        :meth:`shown`, :meth:`writes` and :meth:`takes` look into their lines."""
        sessions = self._sessions(addresses)
        known = (sessions >= 0) & (sessions < len(self._owner))
        owner = np.where(known, self._owner[np.where(known, sessions, 0)], ld_id)
        return owner == ld_id

    def _register_lines(self, addresses: np.ndarray):
        """(place among the addresses, number of its first register) of each register line."""
        base = self._map.register_base
        inside = (addresses >= np.uint64(base)) & (addresses < np.uint64(base + REGISTER_BYTES))
        for i in np.flatnonzero(inside).tolist():
            yield i, (int(addresses[i]) - base) // 8

    def _allowed(self, index: int, ld_id: int) -> bool:
        register = self._by_index.get(index)
        if register is None or ld_id == 0 or register.scope is Scope.ALL:
            return True
        return register.scope is Scope.SESSION and bool(
            self._owner[(register.offset - SESSION_BASE) // SESSION_STRIDE] == ld_id
        )

    def shown(self, addresses: np.ndarray, lines: np.ndarray, ld_id: int) -> None:
        """What was loaded, changed in place to what the requester may see: registers out of its
        scope are zeros, a session's owner is the one that was written."""
        for i, first in self._register_lines(addresses):
            words = lines[i].view("<u8")
            for word in range(8):
                if not self._allowed(first + word, ld_id):
                    words[word] = 0
                elif (session := self._shapes.get(first + word)) is not None:
                    words[word] |= np.uint64(self._asked[session] << self._low)

    def writes(
        self, addresses: np.ndarray, lines: np.ndarray, enables: np.ndarray, ld_id: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Lines and byte enables that may reach the device, as copies: owners are kept here, and
        registers out of the requester's scope are not written."""
        lines, enables = lines.copy(), enables.copy()
        for i, first in self._register_lines(addresses):
            words = lines[i].view("<u8")
            for word in range(8):
                enabled = int(enables[i]) >> 8 * word & _WORD
                if not enabled:
                    continue
                if not self._allowed(first + word, ld_id):
                    enables[i] &= np.uint64(ALL_BYTES ^ _WORD << 8 * word)
                elif (session := self._shapes.get(first + word)) is not None:
                    if enabled == _WORD:
                        self._asked[session] = int(words[word]) >> self._low & self._mask
                    words[word] &= np.uint64(ALL_BYTES ^ self._mask << self._low)
                elif (session := self._commands.get(first + word)) is not None:
                    words[word] = self._commanded(session, int(words[word]), ld_id)
        return lines, enables

    def _commanded(self, session, value, ld_id):
        """The command as it may reach the device: one that only the control plane has becomes one
        that there is not, which the device refuses."""
        field = (1 << self._command.bits) - 1 << self._command.low
        command = (value & field) >> self._command.low
        if command not in (SessionCommand.OPEN, SessionCommand.CLOSE):
            return value
        if ld_id:
            return value | field
        if command == SessionCommand.OPEN:
            self.opening.add(session)
        else:
            self._owner[session] = 0
        return value

    def opened(self, session: int, is_open: bool) -> None:
        """What came of an OPEN: the session is its owner's, or nobody's."""
        self.opening.discard(session)
        self._owner[session] = self._asked[session] if is_open else 0

    def takes(self, addresses: np.ndarray, lines: np.ndarray, ld_id: int) -> np.ndarray:
        """bool[n]: lines that are no hint, or one about the requester's own session; a malformed
        one, which the device drops with an event, is the control plane's alone."""
        base = self._map.hint_base
        hint = (addresses >= np.uint64(base)) & (addresses < np.uint64(base + HINT_BYTES))
        out = np.ones(len(addresses), bool)
        for i in np.flatnonzero(hint).tolist():
            try:
                session = unpack_hint(lines[i].tobytes()).session
            except HintError:
                out[i] = ld_id == 0
                continue
            out[i] = session < len(self._owner) and self._owner[session] == ld_id
        return out

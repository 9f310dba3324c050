# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""A board at the end of a line, as its host sees it: requests and answers in arrays, and the
board's registers."""

from __future__ import annotations

import secrets
import time

import numpy as np

from kelp_spec.address import AddressMap
from kelp_spec.config import Config
from kelp_spec.messages import FIELDS, S2MDRS, M2SReq, M2SRwD
from kelp_spec.registers import unlike

from ..board_registers import IDENT, BoardRegister, Control, Status
from ..configs import BOARD_CONFIGS
from .host_link import HostLink
from .protocol import BOARD_REPLY, BOARD_REQUEST, Kind, pack, unpack

__all__ = ["BoardError", "Host"]

_ALL = (1 << 64) - 1
_TAGS = 1 << 16
_IN_FLIGHT = 64  #: requests that the host has asked and the board has not answered
_LONGEST = 31_536_000  #: seconds of silence, a year


class BoardError(RuntimeError):
    """The board does not answer, or not as one of ours does; the message says what to try."""


class Host:
    """One connection; not thread-safe.

    Parameters
    ----------
    port
        Has `read(timeout)`, `write(data)` → bytes taken, `close()`; see
        :class:`.serial_port.SerialPort`.
    timeout : float
        Seconds of silence after which something must have been lost, above 0, a year at most; more
        where the board is simulated and slow.
    patience : float
        Seconds of silence after which the board is given up, above 0, a year at most. ValueError
        for others.
    config : Config, optional
        What the board was built from; by default the one of `BOARD_CONFIGS` whose digest it shows.
    """

    def __init__(
        self, port, *, timeout: float = 0.25, patience: float = 10.0, config: Config | None = None
    ):
        for name, value in (("timeout", timeout), ("patience", patience)):
            if not 0 < value <= _LONGEST:
                raise ValueError(f"{name} = {value} is refused; legal: above 0, to {_LONGEST} s")
        self.port, self.patience = port, patience
        self._out, self._tag = b"", 0
        self.link = HostLink(nonce=secrets.randbits(32), timeout=timeout)
        self._until(lambda: self.link.up, "connect")
        if self.board(BoardRegister.IDENT) != IDENT:
            raise BoardError(
                "the board answers, but is none of ours: load a bitstream with `kelp fpga program`"
            )
        digest = f"{self.board(BoardRegister.DIGEST):08x}"
        known = [
            c
            for c in ([config] if config else BOARD_CONFIGS.values())
            if c.digest.startswith(digest)
        ]
        if not known:
            names = (
                f"{config.name!r} has digest {config.digest}"
                if config
                else f"none of {', '.join(BOARD_CONFIGS)} has it"
            )
            raise BoardError(
                f"the board was built from a configuration with digest {digest}…; {names}: use the "
                + "sources it was built from"
            )
        self.config = known[0]

    # - the line -----------------------------------------------------------------------------------
    def _turn(self, wait: float) -> list[tuple[int, bytes]]:
        """Send what can be sent, take what has come."""
        now = time.monotonic()
        if len(self._out) < 4096:
            self._out += self.link.pump(now)
        if self._out:
            self._out = self._out[self.port.write(self._out) :]
        deadline = self.link.deadline
        limit = wait if deadline is None else min(wait, max(0.0, deadline - now))
        data = self.port.read(0.001 if self._out else limit)
        return self.link.feed(data, time.monotonic()) if data else []

    def _until(self, done, what: str, take=None) -> None:
        heard, since = self.link.heard, time.monotonic()
        while not done():
            for kind, payload in self._turn(0.2):
                take(kind, payload)
            if self.link.heard != heard:
                heard, since = self.link.heard, time.monotonic()
            elif time.monotonic() - since > self.patience:
                seen = f"bad frames: {self.link.bad}, polls: {self.link.polls}"
                raise BoardError(
                    f"no answer from the board for {self.patience:g} s ({what}; {seen}): is "
                    + "it powered, programmed, and the baud rate right?"
                )

    def _next_tag(self) -> int:
        self._tag = (self._tag + 1) % _TAGS
        return self._tag

    # - the board's registers ----------------------------------------------------------------------
    def board(self, register: BoardRegister, value: int | None = None) -> int:
        """Read, or write when there is a value; what the register held."""
        tag, got = self._next_tag(), []

        def take(kind, payload):
            reply = unpack(BOARD_REPLY, payload)
            if kind != Kind.BOARD or reply["tag"] != tag:
                raise BoardError(f"an answer that nobody asked for: kind {kind}, {reply}")
            got.append(reply["data"])

        self.link.submit(
            Kind.BOARD,
            pack(
                BOARD_REQUEST,
                tag=tag,
                address=register,
                write=int(value is not None),
                data=value or 0,
            ),
        )
        self._until(lambda: got, f"board register {register.name}", take)
        return got[0]

    def status(self) -> dict[str, bool]:
        value = self.board(BoardRegister.STATUS)
        return {bit.name.lower(): bool(value >> bit & 1) for bit in Status}

    def reset(self, *, lockstep: bool = False, seconds: float = 30.0) -> None:
        """Start the endpoint anew and wait until it takes requests; BoardError when it does not."""
        self.board(BoardRegister.CONTROL, 1 << Control.RESET | lockstep << Control.LOCKSTEP)
        self.wait("ready", seconds)

    def wait(self, bit: str, seconds: float) -> None:
        """Wait for a bit of STATUS."""
        started = time.monotonic()
        while not (status := self.status())[bit]:
            if time.monotonic() - started > seconds:
                raise BoardError(f"the board is not {bit} after {seconds:g} s: {status}")

    def check_endpoint(self) -> None:
        """BoardError unless the endpoint's own registers `identity` and `digest` are of `config`
        and of a register map that this host knows (docs/interface.md)."""
        base = AddressMap(self.config).register_base
        lines, _, _ = self.read([base])
        identity, digest = lines[0, :16].view("<u8").tolist()
        if (why := unlike(self.config, identity, digest)) is not None:
            raise BoardError(f"the board's endpoint: {why}")

    def start_test(self, first: int = 0, lines: int | None = None) -> int:
        """Start the self-test, which overwrites the memory that it tests: so many lines from
        ``first`` on, by default to the end; how many. ValueError where the board has not so
        many."""
        total = self.board(BoardRegister.LINES)
        count = total - first if lines is None else lines
        if not (0 <= first and 1 <= count and first + count <= total):
            raise ValueError(
                f"a test of {count} lines from line {first} on is refused; the board has {total} "
                + "lines"
            )
        self.board(BoardRegister.TEST_FIRST, first)
        self.board(BoardRegister.TEST_LINES, count)
        self.board(BoardRegister.CONTROL, 1 << Control.TEST)
        return count

    # - CXL.mem ------------------------------------------------------------------------------------
    def read(
        self, addresses, *, ld_id: int = 0, progress=None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Lines at `addresses`: data uint8[n, 64], poisoned bool[n], not mapped bool[n]."""
        n = len(addresses)
        data, poison, nxm = np.zeros((n, 64), np.uint8), np.zeros(n, bool), np.zeros(n, bool)

        def take(i, fields):
            data[i] = np.frombuffer(fields["data"].to_bytes(64, "little"), np.uint8)
            poison[i], nxm[i] = fields["poison"], fields["opcode"] == S2MDRS.MEM_DATA_NXM

        requests = (
            ("M2SReq", {"opcode": M2SReq.MEM_RD, "address": int(a) >> 6, "ld_id": ld_id})
            for a in addresses
        )
        self._exchange(n, requests, Kind.RWD, take, progress)
        return data, poison, nxm

    def write(
        self,
        addresses,
        lines,
        byte_enable=None,
        *,
        ld_id: int = 0,
        ordered: bool = False,
        progress=None,
    ) -> None:
        """Store lines; with `ordered` each is complete before the next is sent."""
        enable = np.broadcast_to(
            np.uint64(_ALL) if byte_enable is None else np.asarray(byte_enable, np.uint64),
            (len(addresses),),
        ).tolist()

        def request(address, line, mask):
            opcode = M2SRwD.MEM_WR if mask == _ALL else M2SRwD.MEM_WR_PTL
            return "M2SRwD", {
                "opcode": opcode,
                "address": int(address) >> 6,
                "ld_id": ld_id,
                "bep": int(mask != _ALL),
                "byte_enable": mask,
                "data": int.from_bytes(bytes(line), "little"),
            }

        requests = (request(*each) for each in zip(addresses, lines, enable, strict=True))
        self._exchange(
            len(addresses),
            requests,
            Kind.REQ,
            lambda i, fields: None,
            progress,
            most=1 if ordered else _IN_FLIGHT,
        )

    def spec_read(self, addresses, *, ld_id: int = 0) -> None:
        """Speculative reads: nothing is answered; returns when the board has them."""
        for address in addresses:
            self.link.submit(
                Kind.REQ,
                pack(
                    FIELDS["M2SReq"],
                    opcode=M2SReq.MEM_SPEC_RD,
                    address=int(address) >> 6,
                    ld_id=ld_id,
                ),
                answers=0,
            )
        self._until(lambda: self.link.idle, "speculative reads")

    def _exchange(self, count, requests, kind_wanted, take, progress, most=_IN_FLIGHT) -> None:
        waiting: dict[int, int] = {}
        sent = done = 0
        fields_of = FIELDS["S2MDRS" if kind_wanted == Kind.RWD else "S2MNDR"]

        def answer(kind, payload):
            nonlocal done
            fields = unpack(fields_of, payload) if kind == kind_wanted else {"tag": None}
            if fields["tag"] not in waiting:
                raise BoardError(
                    f"an answer that nobody asked for: kind {kind}, tag {fields['tag']}"
                )
            take(waiting.pop(fields["tag"]), fields)
            done += 1

        while done < count:
            while sent < count and len(waiting) < most:
                name, fields = next(requests)
                tag = self._next_tag()
                waiting[tag] = sent
                self.link.submit(
                    Kind.RWD if name == "M2SRwD" else Kind.REQ,
                    pack(FIELDS[name], tag=tag, **fields),
                )
                sent += 1
            before = done
            self._until(
                lambda before=before: done > before,
                f"{count - done} of {count} answers missing",
                answer,
            )
            if progress is not None:
                progress(done)

    def close(self) -> None:
        self.port.close()

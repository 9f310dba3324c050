# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What a host does through the compiled driver: registers, sessions, page words, hints (see
:mod:`kelp_rtl.device`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from kelp_spec.address import KvAddress
from kelp_spec.formats import Format, HostType
from kelp_spec.hints import HintLine, pack
from kelp_spec.metadata import LAYER_RANGES
from kelp_spec.registers import COUNTERS, HISTOGRAM_BINS, SessionCommand
from kelp_spec.scores import IDLE_BIAS, RECENCY_BIAS, idle_constants, recency_constants

from .program import PARTIAL, READ, WRITE, Program, Result
from .timing import DriverError

__all__ = ["Control", "Descriptor", "QueueParameters"]


@dataclass(frozen=True, kw_only=True)
class Descriptor:
    """The shape of the KV cache that a session holds, and how it is stored.

    `formats` are (last layer, format of K, format of V), by ascending layer; the last goes on to
    the end. `used_lines` (of half a page) and `used_pages` are all of the configuration's when left
    out.
    """

    layers: int
    kv_heads: int
    used_lines: int | None = None
    used_pages: int | None = None
    host_type: HostType = HostType.FP16
    k_only: bool = False
    formats: Sequence[tuple[int, Format, Format]] = ((1023, Format.RAW16, Format.RAW16),)

    def __post_init__(self) -> None:
        if not 1 <= len(self.formats) <= LAYER_RANGES:
            raise ValueError(
                f"formats: {len(self.formats)} ranges are refused; legal: 1 … {LAYER_RANGES}"
            )


@dataclass(frozen=True, kw_only=True)
class QueueParameters:
    """What decides, in every queue of a session, which pages stay: `alpha` is α · 256, `tau` in
    steps, `budget` in DRAM lines per queue."""

    alpha: int = 26
    mass_shift: int = 0
    score_source: int = 0
    window: int = 0
    policy: int = 0
    tau: float = 1000.0
    budget: int = 0
    auto_step: int = 0


class Control:
    """The half of the driver that is a host: everything here is programs of loads and stores.
    `run`, `config`, `registers`, `addresses` and `time` are the driver's."""

    def read_registers(self, names: Iterable[str | int], *, ld_id: int = 0) -> list[int]:
        """Registers by name or by offset in the window, read line by line in one program."""
        offsets = [self._offset(name) for name in names]
        lines = sorted({offset // 64 for offset in offsets})
        result = self.run(
            Program(
                opcode=READ,
                address=np.array(
                    [self.addresses.register_base + 64 * line for line in lines], np.uint64
                ),
                ld_id=ld_id,
            )
        )
        words = {line: row.view("<u8") for line, row in zip(lines, result.data, strict=True)}
        return [int(words[offset // 64][offset % 64 // 8]) for offset in offsets]

    def read64(self, name: str | int, *, ld_id: int = 0) -> int:
        return self.read_registers([name], ld_id=ld_id)[0]

    def write_registers(self, values: dict[str | int, int], *, ld_id: int = 0) -> None:
        """Writes 64-bit registers by name or offset, in order, each when the one before is done."""
        offsets = [self._offset(name) for name in values]
        rows = np.zeros((len(offsets), 8), "<u8")
        for row, offset, value in zip(rows, offsets, values.values(), strict=True):
            row[offset % 64 // 8] = value
        self.run(
            Program(
                opcode=PARTIAL,
                address=np.array(
                    [self.addresses.register_base + offset // 64 * 64 for offset in offsets],
                    np.uint64,
                ),
                ld_id=ld_id,
                group=np.arange(len(offsets)),
                data=rows.view(np.uint8),
                byte_enable=np.array([0xFF << offset % 64 for offset in offsets], np.uint64),
            )
        )

    def write64(self, name: str | int, value: int, *, ld_id: int = 0) -> None:
        self.write_registers({name: value}, ld_id=ld_id)

    def _offset(self, name):
        if isinstance(name, str) and name not in self.registers:
            raise KeyError(f"{name!r} is not a register of configuration {self.config.name!r}")
        return self.registers[name].offset if isinstance(name, str) else name

    def pack(self, register: str, **fields: int) -> int:
        """A register's value; fields that are not named have their reset values."""
        value, known = (
            self.registers[register].reset,
            {f.name: f for f in self.registers[register].fields},
        )
        for name, content in fields.items():
            f = known[name]
            if not 0 <= int(content) < 1 << f.bits:
                raise ValueError(
                    f"{register}.{name} = {content!r} is refused; legal: 0 … {(1 << f.bits) - 1}"
                )
            value = value & ~((1 << f.bits) - 1 << f.low) | int(content) << f.low
        return value

    def unpack(self, register: str, value: int) -> dict[str, int]:
        """A register's value as its fields."""
        return {f.name: value >> f.low & (1 << f.bits) - 1 for f in self.registers[register].fields}

    def read_fields(self, register: str, *, ld_id: int = 0) -> dict[str, int]:
        return self.unpack(register, self.read64(register, ld_id=ld_id))

    def counters(self) -> dict[str, int]:
        """The endpoint's total counters, by the names of `kelp_spec.registers.COUNTERS`."""
        names = [name for name, _ in COUNTERS]
        return dict(
            zip(names, self.read_registers([f"count_{name}" for name in names]), strict=True)
        )

    def latency_histograms(self) -> dict[str, list[int]]:
        """`hit` and `miss`: answers by the logarithm of their latency in cycles."""
        values = self.read_registers(
            [f"{kind}_latency_{i}" for kind in ("hit", "miss") for i in range(HISTOGRAM_BINS)]
        )
        return {"hit": values[:HISTOGRAM_BINS], "miss": values[HISTOGRAM_BINS:]}

    def open_session(
        self,
        session: int,
        shape: Descriptor,
        parameters: QueueParameters = QueueParameters(),
        *,
        owner: int = 0,
    ) -> None:
        """Programs a session's descriptor and every queue's parameters, opens it for the LD-ID
        `owner` and waits until it is open."""
        p = f"s{session}_"
        self.write_registers(
            self._descriptor(p, shape, owner)
            | self._parameters(p, parameters)
            | {p + "command": self.pack(p + "command", command=SessionCommand.OPEN)}
        )
        state = self._idle_session(session)
        if not state["open"] or state["refused"]:
            raise DriverError(f"session {session} did not open: {state}", self.time)

    def _descriptor(self, p: str, shape: Descriptor, owner: int) -> dict[str, int]:
        """The registers of the session with prefix `p` that hold its descriptor."""
        last = shape.formats[-1]
        ranges = [*shape.formats, *[(1023, *last[1:])] * (LAYER_RANGES - len(shape.formats))]
        fields = {}
        for r, (last_layer, k, v) in enumerate(ranges):
            fields |= {f"last_layer_{r}": last_layer, f"format_k_{r}": k, f"format_v_{r}": v}
        return {
            p + "shape": self.pack(
                p + "shape",
                layers=shape.layers,
                kv_heads=shape.kv_heads,
                used_lines=shape.used_lines or self.config.half_lines,
                host_type=shape.host_type,
                k_only=shape.k_only,
                used_pages=shape.used_pages or self.config.pages,
                owner=owner,
            ),
            p + "formats": self.pack(p + "formats", **fields),
        }

    def _parameters(self, p: str, parameters: QueueParameters) -> dict[str, int]:
        """The registers of the session with prefix `p` that every queue takes over."""
        tau_m, tau_sh = recency_constants(parameters.tau)
        idle_m, idle_sh = idle_constants(parameters.alpha)
        return {
            p + "policy": self.pack(
                p + "policy",
                alpha=parameters.alpha,
                mass_shift=parameters.mass_shift,
                score_source=parameters.score_source,
                window=parameters.window,
                policy=int(parameters.policy > 0),
                **({"tables": 1} if parameters.policy == 2 else {}),
            ),
            p + "recency": self.pack(
                p + "recency",
                tau_m=tau_m,
                tau_sh=tau_sh + RECENCY_BIAS,
                idle_m=idle_m,
                idle_sh=idle_sh + IDLE_BIAS,
            ),
            p + "budget": parameters.budget,
            p + "auto_step": parameters.auto_step,
        }

    def close_session(self, session: int) -> None:
        """Closes a session and waits until its pages are scrubbed and its frames free."""
        self.session_command(session, SessionCommand.CLOSE)

    def session_command(
        self, session: int, command: SessionCommand, argument: int = 0
    ) -> dict[str, int]:
        """Gives a session command and waits for its end; the session's state, or DriverError when
        it was refused."""
        self.write64(
            f"s{session}_command",
            self.pack(f"s{session}_command", command=command, argument=argument),
        )
        state = self._idle_session(session)
        if state["refused"]:
            raise DriverError(f"session {session}: {command.name} was refused", self.time)
        return state

    def _idle_session(self, session, polls=10_000):
        for _ in range(polls):
            state = self.read_fields(f"s{session}_state")
            if not state["busy"]:
                return state
        raise DriverError(f"session {session} is still busy after {polls} looks", self.time)

    def page_word(self, session: int, queue: int, page: int) -> dict[str, int]:
        """A page word, by the PEEK command."""
        self.write64(f"s{session}_queue", self.pack(f"s{session}_queue", queue=queue, page=page))
        self.session_command(session, SessionCommand.PEEK)
        return self.read_fields(f"s{session}_page_word")

    def push_hints(self, lines: Iterable[HintLine | bytes], *, ld_id: int = 0) -> Result:
        """Writes hint lines to the hint aperture, in order."""
        rows = [line if isinstance(line, bytes) else pack(line, self.config) for line in lines]
        return self.run(
            Program(
                opcode=WRITE,
                address=np.full(len(rows), self.addresses.hint_base, np.uint64),
                ld_id=ld_id,
                data=np.frombuffer(b"".join(rows), np.uint8).reshape(-1, 64),
            )
        )

    def address(self, session: int, queue: int, page: int, kv: int, line: int) -> int:
        """Host address of a KV line."""
        return self.addresses.encode(KvAddress(session, queue, page, kv, line))

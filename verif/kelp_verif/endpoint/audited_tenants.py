# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Tenants that come and leave under traffic while memory and tier fail, audited: the golden model
judges every decision about every one of them (spec §3, §4, §9)."""

from __future__ import annotations

import numpy as np

from kelp_golden.audit.stream import Audit
from kelp_golden.endpoint import Endpoint, QueuePolicy
from kelp_golden.ops import QueueConfig, Session
from kelp_rtl.control import Descriptor, QueueParameters
from kelp_rtl.device import FlashTiming
from kelp_rtl.program import PARTIAL, POISON, READ, WRITE, Program
from kelp_spec.config import POOLS
from kelp_spec.formats import Format, HostType
from kelp_spec.geometry import smallest_pool, stored_lines
from kelp_spec.metadata import PrefetchSource
from kelp_spec.registers import SessionCommand
from kelp_spec.scores import idle_constants, recency_constants

from .audited_shadow import AuditedShadow
from .memory_shadow import ALL_BYTES

__all__ = ["AuditedTenants", "tell"]

_EVERY_SOURCE = (1 << len(PrefetchSource) - 1) - 1
_STRANGER = 15  #: owns no session
_LOW_WATER, _HIGH_WATER = 1, 2


def tell(
    audit: Audit, session: int, shape: Descriptor, parameters: QueueParameters, owner: int
) -> None:
    """The golden model hears what `Driver.open_session` is about to program."""
    golden, c = audit.endpoint, audit.config
    used_lines, used_pages = shape.used_lines or c.half_lines, shape.used_pages or c.pages
    queues = shape.layers * shape.kv_heads
    audit.descriptors[session] = Session(
        ld_id=owner,
        host_type=int(shape.host_type),
        used_queues=queues,
        used_lines=used_lines,
        k_only=int(shape.k_only),
        used_pages=used_pages,
        kv_heads=shape.kv_heads,
    )
    policy = QueuePolicy(
        alpha=parameters.alpha,
        mass_shift=parameters.mass_shift,
        source=parameters.score_source,
        tau=recency_constants(parameters.tau),
        idle=idle_constants(parameters.alpha),
        window=parameters.window,
        policy=parameters.policy,
        budget=parameters.budget,
    )
    for queue in range(queues):
        layer = queue // shape.kv_heads
        k, v = next(row[1:] for row in shape.formats if layer <= row[0])
        pool = smallest_pool(c.frame_lines, stored_lines(k, v, used_lines, shape.k_only))
        golden.configure(session * c.queues + queue, QueueConfig(int(k), int(v), pool), policy)


class AuditedTenants(AuditedShadow):
    """:class:`AuditedShadow` with a tenant in each session, whose shape, formats, policy and LD-ID
    are drawn when it comes. What is read is judged by the audit alone.

    Attributes
    ----------
    tenants : dict of int to (Descriptor, int)
        Session → what its tenant opened it with, and its LD-ID.
    left : int
        Tenants that have left.
    """

    tell = staticmethod(tell)

    def __init__(self, config, **options):
        super().__init__(config, (Format.RAW16, Format.RAW16), **options)

    def open(self) -> None:
        c, golden = self.config, Endpoint(self.config)
        limits = [int(self.rng.integers(_HIGH_WATER + 1, frames + 1)) for frames in c.frames]
        golden.tracker.set_limits(limits)
        golden.tracker.low_water = _LOW_WATER
        self.audit = Audit(c, golden, {}, self._request)
        self.device.write_registers(
            {"low_water": _LOW_WATER, "high_water": _HIGH_WATER, "prefetch_enable": _EVERY_SOURCE}
            | {f"pool_limit_{pool}": limit for pool, limit in zip(POOLS, limits, strict=True)}
        )
        self.tenants: dict[int, tuple[Descriptor, int]] = {}
        self.left = 0
        for session in range(c.sessions):
            self.enter(session)

    def tier(self, failing: float = 0.0) -> None:
        """From now on this share of the tier's commands fails."""
        self.device.configure(
            flash=FlashTiming(latency=300, write_latency=300, jitter=300, failure_rate=failing)
        )

    # - tenants ------------------------------------------------------------------------------------
    def enter(self, session: int) -> None:
        """The next tenant of a session that is closed."""
        c, rng = self.config, self.rng
        kv_heads = int(rng.integers(1, c.queues + 1))
        layers = int(rng.integers(1, c.queues // kv_heads + 1))
        formats = [Format(int(f)) for f in rng.integers(len(Format), size=4)]
        shape = Descriptor(
            layers=layers,
            kv_heads=kv_heads,
            used_lines=int(rng.integers(1, c.half_lines + 1)),
            used_pages=int(rng.integers(c.pages // 2, c.pages + 1)),
            host_type=HostType(int(rng.integers(len(HostType)))),
            k_only=bool(rng.random() < 0.2),
            formats=((0, *formats[:2]), (1023, *formats[2:])),
        )
        parameters = QueueParameters(
            alpha=int(rng.choice([1, 26, 256])),
            policy=int(rng.integers(2 + c.select_tables)),
            tau=float(rng.choice([1.0, 1000.0])),
            budget=int(rng.choice([0, 10, 1000])),
        )
        owner = 1 + session + c.sessions * int(rng.integers((_STRANGER - 1) // c.sessions))
        self.tenants[session] = shape, owner
        self.tell(self.audit, session, shape, parameters, owner)
        self.device.open_session(session, shape, parameters, owner=owner)
        self._feed()

    def address(self, queue: int, page: int, kv: int = 0, line: int = 0) -> int:
        """`queue` counts through all sessions."""
        session, queue = divmod(queue, self.config.queues)
        return self.device.address(session, queue, page, kv, line)

    # - traffic ------------------------------------------------------------------------------------
    def traffic(self, count: int, *, leaves: int | None = None) -> None:
        """`count` requests of all tenants, with steps among them. With `leaves` that session is
        closed in their midst, and another tenant comes when it is over."""
        rng = self.rng
        commands = {
            int(n): (int(rng.choice(list(self.tenants))), SessionCommand.ADVANCE)
            for n in rng.choice(count, count // 100, replace=False)
        }
        if leaves is not None:
            commands[int(rng.integers(count // 4, 3 * count // 4))] = leaves, SessionCommand.CLOSE
        pages = [self._page() for _ in range(16)]
        rows = [
            self._command(*commands[n]) if n in commands else self._access(*pages[rng.integers(16)])
            for n in range(count)
        ]
        opcode, address, ld_id, enable, flags, words = zip(*rows, strict=True)
        data = self.data(count)
        for n in commands:
            data[n] = np.array(words[n], "<u8").view(np.uint8)
        opcode = np.array(opcode)
        program = Program(
            opcode=opcode,
            address=np.array(address, np.uint64),
            ld_id=ld_id,
            data=data,
            data_index=np.where(opcode == READ, -1, np.arange(count)),
            byte_enable=np.array(enable, np.uint64),
            flags=flags,
        )
        self.beside = tuple(commands)
        result = self.device.run(program)
        if leaves is not None:
            self.device._idle_session(leaves)
        self.judge(program, result)
        self.beside = ()
        if leaves is not None:
            self.left += 1
            self.enter(leaves)

    def _page(self):
        session = int(self.rng.choice(list(self.tenants)))
        shape, _ = self.tenants[session]
        queue = int(self.rng.integers(shape.layers * shape.kv_heads))
        return session, queue, int(self.rng.integers(shape.used_pages))

    def _access(self, session, queue, page):
        """A read, a write or a partial one of a page's line: (opcode, address, LD-ID, byte enable,
        flags, None)."""
        rng, (shape, owner) = self.rng, self.tenants[session]
        kv, line = int(rng.integers(2 - shape.k_only)), int(rng.integers(shape.used_lines))
        address = self.device.address(session, queue, page, kv, line)
        opcode = int(rng.choice([READ, WRITE, PARTIAL], p=[0.6, 0.3, 0.1]))
        enable = int(rng.integers(1 << 63)) if opcode == PARTIAL else ALL_BYTES
        flags = POISON * int(opcode != READ and rng.random() < 0.02)
        return opcode, address, owner if rng.random() < 0.97 else _STRANGER, enable, flags, None

    def _command(self, session, command):
        """As :meth:`_access`, with the line's words at the end."""
        d, name = self.device, f"s{session}_command"
        offset, words = d.registers[name].offset, [0] * 8
        words[offset % 64 // 8] = d.pack(
            name, command=command, argument=int(command == SessionCommand.ADVANCE)
        )
        address = d.addresses.register_base + offset // 64 * 64
        return PARTIAL, address, 0, 0xFF << offset % 64, 0, words

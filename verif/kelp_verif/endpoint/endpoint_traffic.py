# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Constrained-random requests for the endpoint's bench: what the host asks next, and how the
streams' handshakes come and go."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from kelp_spec.address import HINT_BYTES, KvAddress
from kelp_spec.config import Config
from kelp_spec.formats import Format, HostType
from kelp_spec.hints import ENTRIES, HEADER, HintKind
from kelp_spec.messages import M2SReq, M2SRwD

from .endpoint_model import ALL_BYTES, Model, Request, Shape

__all__ = ["Mix", "Traffic", "pace", "random_shape"]


@dataclass
class Mix:
    """How a phase goes. Chances per cycle or per request; `pages` are worked on at a time, for
    `dwell` requests."""

    req: float = 0.6  #: a Req message is offered when none is
    rwd: float = 0.5
    ready: float = 0.7  #: S2M, AXI and cold-tier channels, each on its own, in bursts
    pages: int = 6
    dwell: int = 150
    sequential: float = 0.5  #: the next line of the page rather than any
    partial: float = 0.3
    poison: float = 0.02
    hint: float = 0.06
    spec_read: float = 0.05
    odd: float = 0.02  #: outside the map, foreign, unknown, malformed …
    prefetch: int = 63  #: sources switched on
    loud: bool = False  #: raises more events than the log holds


def pace(rng: random.Random, level: float) -> Iterator[bool]:
    """Whether to go, cycle by cycle: bursts of always, never and sometimes; `level` of the cycles
    in the long run; at 0 never, from 1 on always."""
    while True:
        chance = rng.choice((1.0, level, level, 0.0)) if 0 < level < 1 else level
        for _ in range(rng.randint(1, int(2 + 30 * (level if chance == 0 else 1)))):
            yield rng.random() < chance


def random_shape(
    config: Config,
    rng: random.Random,
    owner: int,
    deck: list[tuple[Format, Format]],
    fixed: tuple[int, int] | None = None,
) -> Shape:
    """A descriptor whose formats come off the deck, so that all of them have their turn. `fixed`:
    its layers and KV heads."""
    layers, kv_heads = fixed or rng.choice(
        [
            (a, b)
            for a in range(1, config.queues + 1)
            for b in range(1, config.queues + 1)
            if 3 <= a * b <= config.queues
        ]
    )
    count = min(layers, rng.randint(2, 3))
    ends = [*sorted(rng.sample(range(layers - 1), count - 1)), 1023] if layers > 1 else [1023]
    formats = []
    for end in ends:
        deck.insert(0, deck.pop())
        formats.append((end, *deck[0]))
    return Shape(
        owner=owner,
        layers=layers,
        kv_heads=kv_heads,
        used_lines=rng.choice((config.half_lines, config.half_lines, config.half_lines - 1)),
        used_pages=rng.choice((config.pages, config.pages, config.pages - 2)),
        host_type=rng.choice(list(HostType)),
        k_only=rng.random() < 0.15,
        formats=formats,
    )


@dataclass
class Traffic:
    """`next(rwd)` is the next message of a channel. At most `budget` of them raise events, until it
    is set anew: the log holds sixteen."""

    config: Config
    model: Model
    rng: random.Random
    mix: Mix = field(default_factory=Mix)
    on: bool = False
    budget: int = 12
    #: of the budget, for what the bench itself does beside the traffic
    kept: int = 4
    banned: set = field(default_factory=set)  #: pages that nobody may touch now
    no_hints: set = field(default_factory=set)  #: sessions that get none now

    def __post_init__(self):
        self.work: list[tuple] = []
        self.left = 0
        self.at: dict[tuple, int] = {}

    def next(self, rwd: bool) -> Request | None:
        mix, rng = self.mix, self.rng
        if (mix.loud or self.budget > self.kept) and rng.random() < mix.odd:
            self.budget -= 1
            return self.odd(rwd)
        if rwd and rng.random() < mix.hint:
            return self.hint()
        where = self.where()
        if where is None:
            return None
        address, ld_id = (
            self.model.map.encode(where),
            self.model.sessions[where.session].shape.owner,
        )
        if not rwd:
            if rng.random() < mix.spec_read:
                shape = self.model.sessions[where.session].shape
                ahead = KvAddress(
                    where.session,
                    rng.randrange(shape.queues),
                    rng.randrange(shape.used_pages),
                    0,
                    0,
                )
                return Request(False, M2SReq.MEM_SPEC_RD, self.model.map.encode(ahead), ld_id)
            if rng.random() < 0.03:
                return Request(
                    False,
                    rng.choice((M2SReq.MEM_INV, M2SReq.MEM_INV_NT, M2SReq.MEM_CLN_EVCT)),
                    address,
                    ld_id,
                )
            return Request(
                False,
                rng.choice((M2SReq.MEM_RD, M2SReq.MEM_RD, M2SReq.MEM_RD_DATA)),
                address,
                ld_id,
            )
        poison = (mix.loud or self.budget > self.kept) and rng.random() < mix.poison
        self.budget -= poison
        partial = rng.random() < mix.partial
        return Request(
            True,
            M2SRwD.MEM_WR_PTL if partial else M2SRwD.MEM_WR,
            address,
            ld_id,
            self.data(),
            self.enable() if partial else rng.choice((ALL_BYTES, rng.getrandbits(64))),
            poison,
        )

    # - lines --------------------------------------------------------------------------------------
    def where(self) -> KvAddress | None:
        rng, mix = self.rng, self.mix
        if self.left <= 0 or not self.work:
            every = [
                (s, q, p)
                for s, session in enumerate(self.model.sessions)
                if session.state in ("open", "opening", "closing")
                for q in range(session.shape.queues)
                for p in range(session.shape.used_pages)
            ]
            first = rng.randrange(len(every)) if every else 0
            self.work = (
                every[first : first + mix.pages]
                if rng.random() < 0.5
                else rng.sample(every, min(mix.pages, len(every)))
            )
            self.left = mix.dwell
        self.left -= 1
        live = [
            key
            for key in self.work
            if key not in self.banned
            and self.model.sessions[key[0]].state in ("open", "opening", "closing")
        ]
        if not live:
            self.left = 0
            return None
        session, queue, page = key = rng.choice(live)
        shape = self.model.sessions[session].shape
        if queue >= shape.queues or page >= shape.used_pages:
            self.left = 0  # opened anew meanwhile
            return None
        lines = shape.used_lines * (1 if shape.k_only else 2)
        n = self.at[key] = (
            self.at.get(key, 0) + 1 if rng.random() < mix.sequential else rng.randrange(lines)
        ) % lines
        return KvAddress(session, queue, page, *divmod(n, shape.used_lines))

    def data(self) -> bytes:
        rng = self.rng
        match rng.randrange(6):
            case 0:
                return rng.randbytes(64)
            case 1:
                return bytes(64)
            # infinities, NaN, subnormals and the largest values of both host types among zeros
            case 2:
                strange = (
                    0x7C00,
                    0xFC00,
                    0x7F80,
                    0xFF80,
                    0x7E01,
                    0x7FC1,
                    1,
                    0x8001,
                    0x3FF,
                    0x7BFF,
                    0xFBFF,
                    0x7F7F,
                    0xFF7F,
                    0x8000,
                )
                return b"".join(
                    rng.choice((0, 0, 0x3C00, rng.choice(strange))).to_bytes(2, "little")
                    for _ in range(32)
                )
            case _:  # values around one, of both host types
                return b"".join(
                    (rng.getrandbits(16) & 0x87FF | 0x3800).to_bytes(2, "little") for _ in range(32)
                )

    def enable(self) -> int:
        rng = self.rng
        return rng.choice(
            (
                rng.getrandbits(64),
                1 << rng.randrange(64),
                ALL_BYTES // 3,
                3 << 2 * rng.randrange(32),
                0,
                ALL_BYTES,
                ALL_BYTES ^ 1,
                ALL_BYTES >> 32,
            )
        )

    # - hints --------------------------------------------------------------------------------------
    def hint(self) -> Request | None:
        rng = self.rng
        able = [
            n
            for n, s in enumerate(self.model.sessions)
            if s.state == "open" and n not in self.no_hints
        ]
        if not able:
            return None
        session = rng.choice(able)
        s = self.model.sessions[session]
        used = s.shape.used_pages
        kind = rng.choice(
            (
                HintKind.MASS,
                HintKind.MASS,
                HintKind.PREFETCH,
                HintKind.PREFETCH,
                HintKind.PIN,
                HintKind.RELEASE,
                HintKind.RELEASE,
            )
        )
        first = rng.randrange(used) if kind == HintKind.MASS else 0
        count = rng.randint(0, used - first)
        if kind == HintKind.PIN:
            count = min(count, 2)
        entries = (
            [rng.getrandbits(16) >> rng.randrange(16) for _ in range(count)]
            if kind == HintKind.MASS
            else rng.sample(range(used), count)
        )
        advance = not count or rng.random() < 0.3
        ld_id = rng.choice((0, s.shape.owner))
        return self.hint_line(
            ld_id,
            kind=kind,
            flags=int(advance),
            session=session,
            queue=rng.randrange(s.shape.queues),
            first_page=first,
            count=count,
            entries=entries,
            address=self.model.map.hint_base + 64 * rng.randrange(HINT_BYTES // 64),
        )

    def hint_line(
        self,
        ld_id: int,
        *,
        entries,
        address: int,
        opcode: int = M2SRwD.MEM_WR,
        byte_enable: int = ALL_BYTES,
        poison: bool = False,
        **header,
    ) -> Request:
        """A hint line; its sequence number is the next one that the session expects when it is
        sent, unless it is given."""
        request = Request(True, opcode, address, ld_id, byte_enable=byte_enable, poison=poison)

        def finish():
            session = header["session"]
            sequence = (
                self.model.sessions[session].sequence if session < self.config.sessions else 0
            )
            values = {"version": 1, "reserved": 0, "sequence": sequence} | header
            value = shift = 0
            for name, bits, _ in HEADER:
                value |= int(values[name]) << shift
                shift += bits
            for entry in entries:
                value |= entry << shift
                shift += 16
            request.data = value.to_bytes(64, "little")

        request.offered = finish
        return request

    # - what a host should not do ------------------------------------------------------------------
    def odd(self, rwd: bool) -> Request | None:
        rng, config, m = self.rng, self.config, self.model.map
        opcode = (
            rng.choice((M2SRwD.MEM_WR, M2SRwD.MEM_WR_PTL))
            if rwd
            else rng.choice((M2SReq.MEM_RD, M2SReq.MEM_RD_DATA, M2SReq.MEM_INV))
        )
        ld_id = rng.randrange(16)
        everywhere = m.encode(
            KvAddress(
                rng.randrange(config.sessions),
                rng.randrange(config.queues),
                rng.randrange(config.pages),
                rng.randrange(2),
                rng.randrange(config.half_lines),
            )
        )
        what = rng.randrange(6 if rwd else 4)
        if what == 0:
            address = rng.choice(
                (
                    3 << config.aperture_bits,
                    4 << config.aperture_bits,
                    (1 << 52) - 64,
                    m.hint_base + HINT_BYTES,
                    (rng.getrandbits(20) << config.aperture_bits + 2) | everywhere,
                )
            )
        elif what == 1:
            opcode = rng.choice((0, 3, 4, 7, 15)) if rwd else rng.choice((3, 4, 5, 7, 11, 15))
            address = rng.choice(
                (everywhere, m.hint_base, m.register_base, 3 << config.aperture_bits)
            )
        elif what <= 3:
            address = everywhere
        else:
            bad = rng.choice(
                (
                    {"version": 2},
                    {"kind": 7},
                    {"flags": 2},
                    {"count": ENTRIES + 1},
                    {"reserved": 1},
                    {"session": config.sessions},
                    {"sequence": rng.getrandbits(16)},
                    {"queue": config.queues + 3},
                    {"ld": 1},
                    {"poison": True},
                    {"partial": True},
                    {"entries": [rng.randrange(config.pages, 1 << 16)]},
                )
            )
            able = [
                n
                for n, s in enumerate(self.model.sessions)
                if s.state == "open" and n not in self.no_hints
            ]
            if not able:
                return None
            session = rng.choice(able)
            header = {
                "kind": HintKind.PREFETCH,
                "flags": 0,
                "session": session,
                "queue": 0,
                "first_page": 0,
                "count": 1,
                "entries": [0],
            } | bad
            shape = self.model.sessions[session].shape
            foreign = next(n for n in range(1, 16) if not shape or n != shape.owner)
            ld_id = foreign if header.pop("ld", 0) else 0
            partial = header.pop("partial", False)
            return self.hint_line(
                ld_id,
                address=m.hint_base,
                opcode=M2SRwD.MEM_WR_PTL if partial else M2SRwD.MEM_WR,
                byte_enable=ALL_BYTES >> 1 if partial else ALL_BYTES,
                poison=header.pop("poison", False),
                **header,
            )
        return Request(rwd, opcode, address, ld_id, self.data(), self.enable())

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What a host may expect of the endpoint, from its contract alone (spec §3, §4, docs/interface.md):
the scoreboard of the endpoint's bench.

The model follows M2S acceptance and S2M answers and is told what passes on the cold-tier port; it
never looks into the hardware. A line is what a host would read of it: 64 bytes or :data:`POISON`.
Where the contract leaves a choice (a session that is being closed, a page whose word may be lost)
the model keeps all that may be, and each answer narrows it again.

Requests to one line take effect in the order of their acceptance. The model lets them take effect
when they are answered: whatever befalls a page between (a fetch that fails while they are parked)
then befalls them too.
"""

from __future__ import annotations

import contextlib
import functools
from collections import Counter, deque
from dataclasses import dataclass, field

import numpy as np

from kelp_golden import codec
from kelp_spec.address import AddressMap, KvAddress, Region
from kelp_spec.config import Config
from kelp_spec.formats import LINE_BYTES, Format, HostType
from kelp_spec.hints import SEQUENCE_BITS, HintError, HintKind, unpack
from kelp_spec.messages import M2SReq, M2SRwD
from kelp_spec.metadata import STEP_BITS, Event

__all__ = ["NXM", "POISON", "ZEROS", "Model", "Page", "Request", "Session", "Shape", "stored"]

POISON = "poison"  #: a line's content
NXM = "nxm"  #: an answer
ZEROS = bytes(LINE_BYTES)
ALL_BYTES = (1 << LINE_BYTES) - 1
_READS = (M2SReq.MEM_RD, M2SReq.MEM_RD_DATA)
_NO_MEMORY = (M2SReq.MEM_INV, M2SReq.MEM_INV_NT, M2SReq.MEM_CLN_EVCT)


@functools.lru_cache(maxsize=4096)
def stored(data: bytes, fmt: Format, host_type: HostType) -> bytes:
    """What a read returns of a line written as `data`."""
    rows = np.frombuffer(data, "<u2").astype(np.uint16).reshape(1, -1)
    return codec.round_trip(rows, host_type, fmt).astype("<u2").tobytes()


@dataclass
class Shape:
    """A model descriptor, as OPEN takes it. `formats`: (last layer, format of K, format of V)."""

    owner: int
    layers: int
    kv_heads: int
    used_lines: int
    used_pages: int
    host_type: HostType
    k_only: bool
    formats: list[tuple[int, Format, Format]]

    @property
    def queues(self) -> int:
        return self.layers * self.kv_heads

    def format_of(self, queue: int, kv: int) -> Format:
        return next(r for r in self.formats if queue // self.kv_heads <= r[0])[1 + kv]

    def has(self, where: KvAddress) -> bool:
        return (
            where.queue < self.queues
            and where.page < self.used_pages
            and where.line < self.used_lines
            and not (where.kv and self.k_only)
        )


@dataclass
class Request:
    """One M2S message."""

    rwd: bool
    opcode: int
    address: int
    ld_id: int
    data: bytes = ZEROS
    byte_enable: int = ALL_BYTES
    poison: bool = False
    tag: int = -1  #: −1: the sender chooses one
    offered: object = None  #: called when the request is first offered
    taken: object = None  #: called when the request is accepted
    done: object = None  #: called with the content of its answer
    # --- the model's own, from acceptance on ---
    cycle: int = -1
    refused: Event | None = None  #: certainly refused
    unsure: bool = False  #: may be refused: its session is being opened or closed
    line: tuple | None = None  #: (page, line index), when it goes to memory
    fmt: Format | None = None
    host_type: HostType | None = None
    found: tuple | None = None  #: what it may answer, once it has taken effect

    @property
    def is_write(self) -> bool:
        return self.rwd and self.opcode in (M2SRwD.MEM_WR, M2SRwD.MEM_WR_PTL)

    @property
    def writes_nothing(self) -> bool:
        partial = self.rwd and self.opcode == M2SRwD.MEM_WR_PTL
        return partial and not self.byte_enable and not self.poison

    @property
    def is_read(self) -> bool:
        return not self.rwd and self.opcode in _READS

    def __str__(self):
        name = f"{'RwD' if self.rwd else 'Req'} opcode {self.opcode}"
        return (
            f"{name} {self.address:#x} tag {self.tag} LD-ID {self.ld_id} accepted in cycle "
            + f"{self.cycle}"
        )


@dataclass
class Page:
    """One page of an open session. `cold`: its lines as flash has them, None when flash has nothing
    of it that may be read."""

    key: tuple
    lines: dict[int, tuple] = field(default_factory=dict)
    #: by line: accepted, not yet taken effect
    pending: dict[int, list[Request]] = field(default_factory=dict)
    cold: dict[int, tuple] | None = None
    failed: bool = False  #: resident after a fetch that failed: flash may have better
    doubt: bool = False  #: its word may be lost at any time
    ending: set | None = None  #: the doubt ends when these requests are answered

    def content(self, line: int) -> tuple:
        return self.lines.get(line, (ZEROS,))

    def busy(self) -> bool:
        return any(self.pending.values())

    def lose(self, page_lines: int) -> None:
        """Every line reads poison until it is written whole; flash is void."""
        self.lines = dict.fromkeys(range(page_lines), (POISON,))
        self.cold = None


@dataclass
class Session:
    """`state`: closed, opening, open, closing (its command is under way) or draining (closed, but
    busy)."""

    state: str = "closed"
    shape: Shape | None = None
    pages: dict[tuple, Page] = field(default_factory=dict)
    step: int = 0
    sequence: int = 0  #: of the next hint line
    hints: int = 0  #: lines since all were known to have taken effect


class Model:
    """`accept` each request and `answer` each answer, in the order in which they pass; see also
    `ColdWatch` for the flash's side."""

    def __init__(self, config: Config):
        self.config = config
        self.map = AddressMap(config)
        self.reset()

    def reset(self) -> None:
        self.sessions = [Session() for _ in range(self.config.sessions)]
        #: (is DRS, LD-ID, tag) → requests, oldest first
        self.waiting: dict[tuple, deque[Request]] = {}
        #: (is DRS, address) → requests to memory without an answer, oldest first
        self.order: dict[tuple, list[Request]] = {}
        self.outstanding: dict[int, Request] = {}
        self.must, self.may = Counter(), Counter()  #: events since the last look at the log
        self.count = Counter()  #: what the counters should say
        #: hints were under way when a session was closed
        self.loose_hints = False
        self.seen = Counter()  #: coverage

    # - M2S ----------------------------------------------------------------------------------------
    def accept(self, r: Request, cycle: int) -> None:
        r.cycle = cycle
        if not r.rwd and r.opcode == M2SReq.MEM_SPEC_RD:
            self.seen["spec_read"] += 1
            return
        region, where = self.map.decode(r.address)
        known = r.is_write or r.is_read or (not r.rwd and r.opcode in _NO_MEMORY)
        if not known:
            self.refuse(r, Event.UNKNOWN_OPCODE)
        elif region == Region.HINT:
            if r.is_write:
                self.accept_hint(r)
        elif region == Region.REGISTER:
            pass
        elif (
            region != Region.KV
            or where.session >= self.config.sessions
            or where.queue >= self.config.queues
        ):
            self.refuse(r, Event.OUT_OF_MAP)
        else:
            self.accept_kv(r, where)
        self.waiting.setdefault((r.is_read, r.ld_id, r.tag), deque()).append(r)
        self.outstanding[id(r)] = r
        if r.taken:
            r.taken()

    def refuse(self, r: Request, event: Event, *, surely: bool = True) -> None:
        if surely:
            r.refused = event
            self.count["refused"] += 1
        (self.must if surely else self.may)[event, r.ld_id] += 1
        self.seen[event.name.lower()] += 1

    def accept_kv(self, r: Request, where: KvAddress) -> None:
        s = self.sessions[where.session]
        if s.state in ("closed", "draining"):
            self.refuse(r, Event.CLOSED_SESSION)
            return
        if s.state != "open":
            r.unsure = True
            self.refuse(r, Event.CLOSED_SESSION, surely=False)
            self.seen["unsure"] += 1
        reason = (
            Event.FOREIGN_LD
            if r.ld_id != s.shape.owner
            else Event.OUT_OF_MAP
            if not s.shape.has(where)
            else None
        )
        if reason:
            self.refuse(r, reason, surely=not r.unsure)
            if r.unsure:  # one way or the other
                r.refused = reason
                self.count["refused"] += 1
            return
        if not (r.is_read or r.is_write) or r.writes_nothing:
            return
        if r.poison:
            (self.may if r.unsure else self.must)[Event.POISON_RECEIVED, r.ld_id] += 1
        page = self.page((where.session, where.queue, where.page))
        line = where.kv * self.config.half_lines + where.line
        r.line, r.fmt, r.host_type = (
            (page, line),
            s.shape.format_of(where.queue, where.kv),
            s.shape.host_type,
        )
        page.pending.setdefault(line, []).append(r)
        self.order.setdefault((r.is_read, r.address), []).append(r)
        if not r.unsure:
            self.count["reads" if r.is_read else "writes"] += 1

    def accept_hint(self, r: Request) -> None:
        self.count["hint_lines"] += 1
        line = None
        if not r.poison and (r.opcode == M2SRwD.MEM_WR or r.byte_enable == ALL_BYTES):
            with contextlib.suppress(HintError):
                line = unpack(r.data)
        if line is None:
            self.must[Event.HINT_MALFORMED, r.ld_id] += 1
            return
        if line.session >= self.config.sessions:
            self.must[Event.OUT_OF_MAP, r.ld_id] += 1
            return
        s = self.sessions[line.session]
        if s.state in ("closed", "draining"):
            self.must[Event.CLOSED_SESSION, r.ld_id] += 1
        elif r.ld_id not in (0, s.shape.owner):
            self.must[Event.FOREIGN_LD, r.ld_id] += 1
        else:
            assert s.state == "open", "the bench sends no hints while it opens or closes a session"
            s.hints += 1
            if line.sequence != s.sequence:
                self.must[Event.HINT_GAP, r.ld_id] += 1
            s.sequence = (line.sequence + 1) % (1 << SEQUENCE_BITS)
            mass = line.kind == HintKind.MASS
            pages = (
                range(line.first_page, line.first_page + len(line.entries))
                if mass
                else line.entries
            )
            if line.queue >= s.shape.queues:
                self.must[Event.HINT_BAD_QUEUE, r.ld_id] += 1
            else:
                if any(page >= s.shape.used_pages for page in pages):
                    self.must[Event.HINT_BAD_PAGE, r.ld_id] += 1
                self.count["hint_updates"] += mass * sum(
                    page < s.shape.used_pages for page in pages
                )
            s.step = (s.step + line.advance) % (1 << STEP_BITS)
            self.seen[f"hint_{line.kind.name.lower()}"] += 1

    # - sessions -----------------------------------------------------------------------------------
    def opening(self, session: int, shape: Shape) -> None:
        """OPEN has been accepted."""
        self.sessions[session] = Session("opening", shape)

    def closing(self, session: int) -> None:
        """CLOSE has been accepted; what hints still do is not foreseeable."""
        s = self.sessions[session]
        s.state = "closing"
        if s.hints:
            self.loose_hints = True
            for ld_id in (0, s.shape.owner):
                self.may[Event.CLOSED_SESSION, ld_id] += s.hints

    # - S2M ----------------------------------------------------------------------------------------
    def answer(self, drs: bool, ld_id: int, tag: int, content: bytes | str | None) -> Request:
        """An answer has passed: content is bytes, POISON or NXM on DRS, None for Cmp.
        AssertionError when it is not one that was due."""
        queue = self.waiting.get((drs, ld_id, tag))
        assert queue, (
            f"an answer that nobody waits for: {'DRS' if drs else 'NDR'} tag {tag} LD-ID "
            + f"{ld_id} {content!r}"
        )
        # Reads of one line may share a tag; a refused one does not wait for those before it. Where
        # both may be meant, NXM is of one that is refused for sure, so that data are of none.
        due = list(queue)
        if content == NXM:
            due = [q for q in queue if q.refused] or [q for q in queue if q.unsure]
        elif drs:
            due = [q for q in queue if not q.refused]
        r = (due or queue)[0]
        queue.remove(r)
        del self.outstanding[id(r)]
        if r.line is None:
            if r.refused is not None:
                assert content == (NXM if drs else None), (
                    f"{r}: refused ({r.refused.name}) but answered {content!r}"
                )
            if r.done:
                r.done(content)
            return r
        page, line = r.line
        order = self.order[drs, r.address]
        nxm = content == NXM
        if nxm:
            assert r.unsure, f"{r}: answered NXM, but its session was open when it was accepted"
            self.count["refused"] += 1
            if r in page.pending[line]:
                page.pending[line].remove(r)
        elif r.unsure and drs:
            self.count["reads"] += 1
        # A page whose word is lost while it is fetched no longer knows of the requests parked on it
        # (docs/decisions.md).
        assert order[0] is r or r.unsure or page.doubt, (
            f"{r}: answered before {order[0]}, which is to the same line"
        )
        order.remove(r)
        pending = page.pending[line]
        ahead = pending[: pending.index(r)] if r in pending else []
        if r.unsure and not drs and any(q.is_write for q in ahead):
            pending.remove(r)  # its Cmp overtook theirs, so it was refused
        elif not nxm and not (r.unsure and not drs and ahead):
            self.take_effect(r)
            if drs:
                self.check(r, page, line, content)
            while pending and id(pending[0]) not in self.outstanding:
                self.take_effect(pending[0])
        if page.ending is not None:
            page.ending.discard(id(r))
            self.end_doubt(page)
        return r

    def check(self, r: Request, page: Page, line: int, content) -> None:
        legal = r.found
        if content not in legal:
            shown = content.hex() if isinstance(content, bytes) else content
            wanted = ", ".join(x.hex() if isinstance(x, bytes) else x for x in legal)
            raise AssertionError(
                f"{r}: page {page.key} line {line} ({r.fmt.label}) answered {shown}; legal: "
                + f"{wanted}"
            )
        self.seen[
            "read_poison"
            if content == POISON
            else "read_zeros"
            if content == ZEROS
            else f"read_{r.fmt.label}"
        ] += 1
        self.seen["read_ambiguous" if len(legal) > 1 else "read_exact"] += 1
        if (
            len(legal) > 1
            and not page.doubt
            and page.content(line) == legal
            and not page.pending.get(line)
        ):
            page.lines[line] = (content,)

    def take_effect(self, upto: Request) -> None:
        """All requests to the line up to this one have reached it."""
        page, line = upto.line
        pending = page.pending[line]
        if upto not in pending:
            return
        while True:
            r = pending.pop(0)
            before = page.content(line)
            if page.doubt:
                before = _union(before, (POISON,))
            if r.is_read:
                r.found = before
            else:
                after = tuple(dict.fromkeys(self.written(r, content) for content in before))
                if page.doubt:
                    after = _union(after, (POISON,))
                page.lines[line] = _union(before, after) if r.unsure else after
            if r is upto:
                return

    def may_hold(self, page: Page, line: int) -> tuple:
        """What the line holds if some of the requests without an answer, the oldest ones, have
        reached it."""
        held = content = page.content(line)
        for r in page.pending.get(line, ()):
            if r.is_write:
                content = tuple(dict.fromkeys(self.written(r, before) for before in content))
                held = _union(held, content)
        return held

    @staticmethod
    def written(r: Request, before):
        if r.poison:
            return POISON
        if r.opcode == M2SRwD.MEM_WR or r.byte_enable == ALL_BYTES:
            return stored(r.data, r.fmt, r.host_type)
        if before == POISON:
            return POISON
        merged = bytes(
            new if r.byte_enable >> i & 1 else old
            for i, (old, new) in enumerate(zip(before, r.data, strict=True))
        )
        return stored(merged, r.fmt, r.host_type)

    # - pages --------------------------------------------------------------------------------------
    def page(self, key) -> Page:
        """The page of (session, queue, page), of the session as it is now."""
        return self.sessions[key[0]].pages.setdefault(key, Page(key))

    def doubt(self, page: Page) -> None:
        page.doubt, page.ending = True, None

    def looked_at(self, page: Page) -> None:
        """The page's word has been read for certain: it is lost now or will not be; requests
        without an answer may not know yet, those too that a later one to their line has passed
        (parked with a page whose word is lost while it is fetched)."""
        page.ending = {
            name for name, r in self.outstanding.items() if r.line is not None and r.line[0] is page
        }
        self.end_doubt(page)

    def end_doubt(self, page: Page) -> None:
        if page.doubt and not page.ending:
            page.doubt, page.ending = False, None
            for line in range(self.config.page_lines):
                page.lines[line] = _union(page.content(line), (POISON,))
                if page.cold is not None:
                    page.cold[line] = _union(page.cold.get(line, (ZEROS,)), (POISON,))


def _union(a: tuple, b: tuple) -> tuple:
    return tuple(dict.fromkeys((*a, *b)))

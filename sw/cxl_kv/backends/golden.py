# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""`golden:` — the NumPy golden endpoint as a device in this process: same answers, bit for bit, as
the RTL in lock-step, and no clock.

Times, latency histograms and cycle limits are zero or without effect: the golden model knows order,
not cycles.
"""

from __future__ import annotations

import functools

import numpy as np

from kelp_golden.endpoint import Endpoint, QueuePolicy
from kelp_golden.ops import Op as TrackerOp
from kelp_golden.ops import QueueConfig, Session
from kelp_golden.phase import PhaseDetector
from kelp_golden.select_region import SelectRegion
from kelp_spec.address import HINT_BYTES, REGISTER_BYTES, AddressMap, KvAddress, Region
from kelp_spec.coherence import least_limit
from kelp_spec.config import POOLS, Config
from kelp_spec.formats import LINE_BYTES
from kelp_spec.metadata import STEP_BITS, Answer, Event, Op
from kelp_spec.registers import SessionCommand
from kelp_spec.scores import IDLE_BIAS, RECENCY_BIAS

from ..core import ALL_BYTES, Core, Loaded, Status
from ..errors import ConnectionLostError
from .golden_engine import DeviceLines, Engine
from .window import QueueLayout, RegisterWindow, pool_of, session_command

__all__ = ["GoldenCore"]

_ZEROS, _POISONED, _NXM = -1, -2, -3


def _whole(call):
    """An access that is carried out as a whole: what breaks off amid one, as Ctrl-C does, leaves a
    model that would answer something, and so answers nothing any more."""

    @functools.wraps(call)
    def guarded(self, *arguments):
        if self._broken_off:
            raise ConnectionLostError(
                "an access to this golden device was broken off in the middle, so that nothing is "
                + "known of what it holds; open it again"
            )
        self._broken_off = True
        found = call(self, *arguments)
        self._broken_off = False
        return found

    return guarded


class GoldenCore(Core):
    """One golden device.

    Parameters
    ----------
    config : Config
    """

    def __init__(self, config: Config):
        super().__init__()
        self._broken_off = False
        self.config, self._map = config, AddressMap(config)
        self.endpoint = Endpoint(config)
        self.endpoint.lines = DeviceLines()
        self.window = RegisterWindow(
            config,
            command=self._command,
            read=self._read_register,
            written=self._written,
            owner=lambda s: (
                self.endpoint.tracker.sessions[s].ld_id
                if self.endpoint.tracker.sessions[s].open
                else 0
            ),
        )
        self.engine = Engine(
            self.endpoint,
            evict_target=4,
            log_event=self.window.events.log,
            on_empty=self._limits,
        )
        self.region = (
            SelectRegion(
                self.endpoint,
                self.engine._do,
                self._not_selected,
                self.engine.fetch,
                wait=lambda waits: waits.tries == 0,  # here pages land at once
            )
            if config.select
            else None
        )
        self.phases = [PhaseDetector() for _ in range(config.sessions)]
        self._accesses = [0] * config.sessions  # since the last automatic step
        # (format_k, format_v, pool) of each queue, by session: as at its OPEN, whatever the
        # registers say since
        self._layouts: list[list[QueueLayout]] = [[] for _ in range(config.sessions)]
        self._peeked: tuple[int, int] | None = None  # session that asked, word
        for name, value in self.window.values.items():
            self._written(name, value)

    # - loads and stores ---------------------------------------------------------------------------
    def _decode(self, addresses):
        """Region, offset in it, and of KV lines: session, queue, page, line."""
        c = self.config
        region, offset = (
            addresses >> np.uint64(c.aperture_bits),
            addresses & np.uint64((1 << c.aperture_bits) - 1),
        )
        x = (offset >> np.uint64(6)).astype(np.int64)
        line, x = x & c.page_lines - 1, x >> c.line_bits
        page, x = x & c.pages - 1, x >> c.page_bits
        queue, session = x & (1 << c.queue_bits) - 1, x >> c.queue_bits
        return region, offset, session, queue, page, line

    def _gathered(self, addresses):
        """Addresses of the GATHER window as those of the pages in their slots, the others as they
        are."""
        c = self.config
        window = addresses >> np.uint64(c.aperture_bits) == Region.GATHER
        if not c.select or not window.any():
            return addresses
        addresses = addresses.copy()
        for i in np.flatnonzero(window).tolist():
            x = int(addresses[i]) >> 6
            line, x = x & c.half_lines - 1, x >> c.half_line_bits
            slot, x = x & c.select - 1, x >> c.slot_bits
            kv, x = x & 1, x >> 1
            generation, x = x & (1 << c.generation_bits) - 1, x >> c.generation_bits
            queue = x & (1 << c.queue_bits) - 1
            session = x >> c.queue_bits & (1 << c.session_bits) - 1
            page = self.region.page_of(session, queue, generation, slot)
            if page is not None:
                where = KvAddress(session, queue, page, kv, line)
                addresses[i] = self._map.encode(where)
        return addresses

    def _not_selected(self, event, ld_id, squeue, page, argument):
        self.window.events.log(event, ld_id=ld_id, squeue=squeue, page=page, argument=argument)

    @_whole
    def load(self, addresses: np.ndarray, ld_id: int) -> Loaded:
        addresses = self._gathered(addresses)
        region, offset, session, queue, page, line = self._decode(addresses)
        lines, status = (
            np.zeros((len(addresses), LINE_BYTES), np.uint8),
            np.zeros(len(addresses), np.uint8),
        )
        versions = np.full(len(addresses), _ZEROS, np.int64)
        kv = (region == Region.KV) & (queue < self.config.queues) & (session < self.config.sessions)
        for first, last in _runs(kv, session, queue, page):
            s, q, p = int(session[first]), int(queue[first]), int(page[first])
            if kv[first]:
                self._read_page(
                    s, s * self.config.queues + q, p, line[first:last], ld_id, versions[first:last]
                )
                continue
            found = self._read_side(region[first], int(offset[first]), ld_id)
            if found is None:
                # A GATHER address without a slot names no page.
                gathers = self.config.select and region[first] == Region.GATHER
                self._outside(ld_id, s, q, 0 if gathers else p)
                versions[first] = _NXM
            else:
                lines[first] = np.frombuffer(found, np.uint8)
        if kv.all():  # as they come, without another copy
            lines = self.endpoint.lines.resolve(np.maximum(versions, _ZEROS)).view(np.uint8)
        else:
            found = self.endpoint.lines.resolve(np.maximum(versions[kv], _ZEROS))
            lines[kv] = found.view(np.uint8)
        status[versions == _POISONED], status[versions == _NXM] = Status.POISON, Status.NOT_MAPPED
        return Loaded(lines, status)

    def _read_side(self, region, offset, ld_id) -> bytes | None:
        """A line beside the KV map; None where none is."""
        if region == Region.REGISTER and offset < REGISTER_BYTES:
            return self.window.load(offset // LINE_BYTES, ld_id)
        if self._selects(region, offset):
            return self.region.read(offset // LINE_BYTES, ld_id)
        return bytes(LINE_BYTES) if region == Region.HINT and offset < HINT_BYTES else None

    def _selects(self, region, offset) -> bool:
        """Whether this is a line of the SELECT region."""
        return (
            self.region is not None
            and region == Region.SELECT
            and offset < LINE_BYTES << self.region.map.offset_bits
        )

    def _outside(self, ld_id, session, queue, page):
        """An access outside the map, and what its address says."""
        squeue = session * self.config.queues + queue & (1 << self.config.squeue_bits) - 1
        self.endpoint.counters["refused"] += 1
        self.window.events.log(Event.OUT_OF_MAP, ld_id=ld_id, squeue=squeue, page=page)

    def _read_page(self, session, squeue, page, lines, ld_id, versions):
        """Loads of one page's lines, in order, into `versions`."""
        n = len(lines)
        for i, line in enumerate(lines.tolist()):
            answer = self._request(
                TrackerOp(
                    Op.READ, session=session, squeue=squeue, page=page, kv_line=line, ld_id=ld_id
                )
            )
            versions[i] = (
                _NXM
                if answer.kind == Answer.NXM
                else _POISONED
                if answer.poison
                else answer.version
            )
            if i + 1 < n and self._read_rest(
                session, squeue, page, lines[i + 1 :], ld_id, versions[i + 1 :]
            ):
                return

    def _read_rest(self, session, squeue, page, lines, ld_id, versions) -> bool:
        """All of `lines` at once, where they are sound hits that change nothing; False, and nothing
        done, where they are not."""
        regs = self.endpoint.tracker.sessions[session]
        bits = 0
        for line in lines.tolist():
            bits |= 1 << line
        half = (1 << self.config.half_lines) - 1
        inside = (bits | bits >> self.config.half_lines) & half < 1 << regs.used_lines and not (
            regs.k_only and bits > half
        )
        if (
            ld_id != regs.ld_id
            or not inside
            or not self.endpoint.read_again(squeue, page, bits, len(lines))
        ):
            return False
        base, current = (
            (squeue * self.config.pages + page) * self.config.page_lines,
            self.endpoint.lines.current,
        )
        versions[:] = [current(base + line) for line in lines.tolist()]
        self._count(session, False, len(lines))
        return True

    @_whole
    def store(
        self, addresses: np.ndarray, lines: np.ndarray, byte_enable: np.ndarray | None, ld_id: int
    ) -> None:
        region, offset, session, queue, page, line = self._decode(addresses)
        kv = (region == Region.KV) & (queue < self.config.queues) & (session < self.config.sessions)
        enable = None if byte_enable is None or (byte_enable == ALL_BYTES).all() else byte_enable
        for first, last in _runs(kv, session, queue, page):
            s, q, p = int(session[first]), int(queue[first]), int(page[first])
            if kv[first]:
                self._write_page(
                    s,
                    s * self.config.queues + q,
                    p,
                    line[first:last],
                    lines[first:last],
                    None if enable is None else enable[first:last],
                    ld_id,
                )
                continue
            at, data, mask = (
                int(offset[first]),
                lines[first].tobytes(),
                ALL_BYTES if enable is None else int(enable[first]),
            )
            if region[first] == Region.REGISTER and at < REGISTER_BYTES:
                self.window.store(at // LINE_BYTES, data, mask, ld_id)
            elif self._selects(region[first], at):
                whole = mask == ALL_BYTES
                self.region.write(at // LINE_BYTES, data, ld_id, whole=whole)
            elif region[first] == Region.HINT and at < HINT_BYTES:
                self.engine.hint(data, ld_id, broken=mask != ALL_BYTES)
            else:
                self._outside(ld_id, s, q, p)

    def _write_page(self, session, squeue, page, lines, rows, enable, ld_id):
        where = dict(session=session, squeue=squeue, page=page, ld_id=ld_id)
        for i, line in enumerate(lines.tolist()):
            mask = ALL_BYTES if enable is None else int(enable[i])
            self._request(
                TrackerOp(
                    Op.WRITE,
                    kv_line=line,
                    write=1,
                    partial=int(mask != ALL_BYTES),
                    origin=(rows[i].tobytes(), mask),
                    **where,
                )
            )
            if (
                enable is None
                and i + 1 < len(lines)
                and self._write_rest(session, squeue, page, lines[i + 1 :], rows[i + 1 :], ld_id)
            ):
                return

    def _write_rest(self, session, squeue, page, lines, rows, ld_id) -> bool:
        """Whole lines of a page that this step has touched: hits that change its frame entry and
        the lines, no more."""
        endpoint, half = self.endpoint, self.config.half_lines
        regs = endpoint.tracker.sessions[session]
        in_half = lines % half
        frame = self.engine.settled_frame(squeue, page)
        if (
            frame is None
            or ld_id != regs.ld_id
            or not regs.open
            or regs.closing
            or (in_half >= regs.used_lines).any()
            or regs.k_only
            and (lines >= half).any()
        ):
            return False
        bits = 0
        for line in lines.tolist():
            bits |= 1 << line
        frame.valid |= bits
        frame.poison &= ~bits
        frame.dirty = frame.redirty = frame.used = True
        if endpoint.summaries and (lines < half).any():
            endpoint.summaries.pop(squeue * self.config.pages + page, None)
        base = (squeue * self.config.pages + page) * self.config.page_lines
        word = endpoint.tracker.word(squeue, page)
        for fmt, mine in ((word.format_k, lines < half), (word.format_v, lines >= half)):
            if mine.any():
                endpoint.lines.write_many(
                    (base + lines[mine]).tolist(), rows[mine], fmt, regs.host_type
                )
        endpoint.counters["writes"] += len(lines)
        self._count(session, True, len(lines))
        return True

    @_whole
    def spec_read(self, addresses: np.ndarray, ld_id: int) -> None:
        region, _, session, queue, page, _ = self._decode(self._gathered(addresses))
        for r, s, q, p in zip(region, session, queue, page, strict=True):
            if r == Region.KV and q < self.config.queues and s < self.config.sessions:
                self.engine.spec_read(int(s) * self.config.queues + int(q), int(p), ld_id)

    # - one request --------------------------------------------------------------------------------
    def _request(self, op: TrackerOp):
        before = self.endpoint.counters["accesses"]
        refused = self.endpoint.counters["refused"]
        answer = self.engine.request(op)
        self.window.events.time += 1
        if self.endpoint.counters["refused"] == refused and not op.no_memory:
            self._count(op.session, bool(op.write), 1)
        if self.endpoint.counters["accesses"] != before:
            every = self.window.values[f"s{op.session}_auto_step"]
            self._accesses[op.session] = self._accesses[op.session] + 1 if every else 0
            if every and self._accesses[op.session] >= every:
                self._accesses[op.session] = 0
                self.engine.step(op.session)
        return answer

    def _count(self, session, write, count):
        phase = self.phases[session]
        for _ in range(count):
            phase.request(write)

    # - registers ----------------------------------------------------------------------------------
    def _written(self, name: str, value: int) -> None:
        tracker = self.endpoint.tracker
        if name == "reserve":
            tracker.reserve = value
        elif name in ("low_water", "high_water"):
            tracker.low_water = self.window.values["low_water"]
            self.engine.evict_target = max(1, tracker.low_water, self.window.values["high_water"])
            self.engine._evict_to_target()
        elif name == "prefetch_enable":
            self.engine.prefetcher.enable = self.engine.usable_prefetch(value)
        elif name.startswith("pool_limit_"):
            self._limits()
        elif name.endswith("_auto_step") and not value:
            self._accesses[int(name[1 : name.index("_")])] = 0

    def _limits(self):
        """A pool in use keeps its limit; the new one is taken once it is empty."""
        for name, pool, most in zip(
            POOLS, self.endpoint.tracker.pools, self.config.frames, strict=True
        ):
            if not pool.used:
                wanted = self.window.values[f"pool_limit_{name}"]
                pool.limit = min(most, max(least_limit(self.config), wanted))

    def _read_register(self, name: str, session: int | None) -> int:
        endpoint = self.endpoint
        if name.startswith("count_"):
            return self.engine.totals()[name.removeprefix("count_")]
        if name.startswith("pool_used_"):
            return endpoint.tracker.pools[pool_of(name)].used
        if name == "status":
            return 1 | 2 | self.window.events.status
        if session is None:
            return 0
        regs = endpoint.tracker.sessions[session]
        part = name.partition("_")[2]
        if part == "state":
            return (
                regs.open
                | self.window.refused[session] << 2
                | int(self.phases[session].decode) << 3
                | regs.step << 8
            )
        selected = self.window.fields(f"s{session}_queue")
        squeue = session * self.config.queues + (
            selected["queue"] if selected["queue"] < self.config.queues else 0
        )
        if part == "resident":
            return endpoint.queues.resident_lines(squeue)
        if part == "page_word":
            return self._peeked[1] if self._peeked and self._peeked[0] == session else 0
        return (
            endpoint.queue_counters[part.removeprefix("queue_")][squeue]
            if selected["queue"] < regs.used_queues
            else 0
        )

    def _command(self, session: int, code: int, argument: int, ld_id: int) -> bool:
        command, regs = session_command(code), self.endpoint.tracker.sessions[session]
        if command is SessionCommand.OPEN:
            return self._open(session, ld_id)
        if not regs.open:
            return False
        if command is SessionCommand.CLOSE:
            if ld_id:
                return False
            self.engine.close(session)
            if self.region is not None:
                self.region.ended(session)
            self.window.forget(session)
            if self._peeked and self._peeked[0] == session:
                self._peeked = None  # the next owner must not read it
        elif command is SessionCommand.ADVANCE:
            self.engine.step(session, argument & (1 << STEP_BITS) - 1)
        elif command is SessionCommand.APPLY_ALL:
            return self._apply(session)
        elif (at := self.window.fields(f"s{session}_queue"))["queue"] >= regs.used_queues:
            return False  # it may be another session's
        elif command is SessionCommand.APPLY_QUEUE:
            return self._apply(session, only=at["queue"])
        elif command is SessionCommand.PEEK:
            word = self.endpoint.tracker.word(
                session * self.config.queues + at["queue"], at["page"] % self.config.pages
            )
            self._peeked = (
                session,
                (
                    word.state
                    | word.format_k << 3
                    | word.format_v << 6
                    | (word.pinned & 1) << 9  # the host's; above it is that of slots
                    | word.place << 10
                    | word.last_step << 34
                ),
            )
        else:
            return False
        return True

    def _open(self, session, ld_id) -> bool:
        shape, layouts = self.window.descriptor(session)
        if ld_id or self.endpoint.tracker.sessions[session].open or layouts is None:
            return False
        self._layouts[session] = layouts
        self._apply(session)
        self.engine.open(
            session,
            Session(
                ld_id=shape["owner"],
                host_type=shape["host_type"],
                used_queues=len(layouts),
                used_lines=shape["used_lines"],
                k_only=shape["k_only"],
                used_pages=shape["used_pages"],
                kv_heads=shape["kv_heads"],
            ),
        )
        self.engine.hints.opened(session)
        self.phases[session].opened()
        self._accesses[session] = 0
        return True

    def _apply(self, session, only: int | None = None) -> bool:
        """Queue parameters from the session's registers into its queues, whose formats and pools
        stay those of its OPEN."""
        p, layouts = f"s{session}_", self._layouts[session]
        policy, recency, budget = (
            self.window.fields(p + "policy"),
            self.window.fields(p + "recency"),
            self.window.values[p + "budget"],
        )
        live = self.endpoint.tracker.sessions[session].open
        if live and not 1 <= policy["alpha"] <= 256:
            return False
        for queue, layout in enumerate(layouts):
            if only is None or queue == only:
                self.endpoint.configure(
                    session * self.config.queues + queue,
                    QueueConfig(*layout),
                    QueuePolicy(
                        alpha=min(policy["alpha"], 256),
                        mass_shift=policy["mass_shift"],
                        source=policy["score_source"],
                        window=policy["window"],
                        policy=policy["policy"] + (policy["policy"] & policy.get("tables", 0)),
                        tau=(recency["tau_m"], recency["tau_sh"] - RECENCY_BIAS),
                        idle=(recency["idle_m"], recency["idle_sh"] - IDLE_BIAS),
                        budget=budget,
                    ),
                )
        return True

    # - faults -------------------------------------------------------------------------------------
    def fail_fetches(self, count: int = 1) -> None:
        """The next `count` fetches from the cold tier fail for good: their pages read as poison,
        with an event."""
        self.engine.fetches_to_fail += count


def _runs(kv, session, queue, page):
    """(first, last + 1) of stretches of KV lines of one page, in order; every other line is a
    stretch of its own."""
    n = len(kv)
    if not n:
        return []
    new = np.ones(n, bool)
    new[1:] = (
        ~kv[1:]
        | ~kv[:-1]
        | (session[1:] != session[:-1])
        | (queue[1:] != queue[:-1])
        | (page[1:] != page[:-1])
    )
    first = np.flatnonzero(new)
    ends = np.append(first[1:], n)
    return [(int(a), int(b)) for a, b in zip(first, ends, strict=True)]

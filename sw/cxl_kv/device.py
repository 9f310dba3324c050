# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""A device: sessions, policy of the whole device, counters, events."""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections import deque
from collections.abc import Iterable

import numpy as np

from kelp_spec.config import POOLS
from kelp_spec.formats import LINE_BYTES, Format
from kelp_spec.metadata import LAYER_RANGES, PrefetchSource
from kelp_spec.registers import COUNTERS, HISTOGRAM_BINS

from .arguments import instance, integer, listed, short
from .batch import Batch, Completion, Worker
from .control import overflow_record
from .errors import CxlKvError, DeviceFullError, TransportError, UnsupportedError
from .fetching import Fetching
from .policy import Policy
from .process import NotCopied
from .registers import Registers
from .session import Session
from .shape import ModelShape
from .transport import Transport

__all__ = ["POISONING", "Device"]

_EVENTS_KEPT = 1024
_ABANDONED_SECONDS = 30  #: until sessions that nobody can reach are closed
#: What poisons lines of the page that it names.
POISONING = (
    "FETCH_FAILED",
    "STARVED",
    "UNCORRECTED",
    "POISON_RECEIVED",
    "MEMORY_READ_FAILED",
    "MEMORY_WRITE_FAILED",
    "SNOOP_LOST",
)
_SETTINGS = ("low_water", "high_water", "reserve", "cold_retries", "cold_timeout", "starve_limit")


class Device(NotCopied):
    """An open KELP device; :func:`cxl_kv.open` makes one. Thread-safe; a context manager that
    closes it.

    Attributes
    ----------
    config : kelp_spec.config.Config
        Sizes: sessions, queues, pages, frames.
    ld_id : int
        Who this process is to the device. 0 is the control plane; a client of `kelp serve` has
        another and sees its own sessions alone.
    registers : Registers
        Every register by name, as far as `ld_id` may touch it.
    transport : Transport
    """

    _uncopied = (
        "a device is of one process and is not copied or sent to another; open it there by its URL"
    )

    def __init__(self, transport: Transport):
        self.transport, self.config = transport, transport.config
        self.registers = Registers(
            self.config, lambda addresses: transport.load(addresses).lines, transport.store
        )
        self._events: deque[dict] = deque(maxlen=_EVENTS_KEPT)  # seen, kept for explanations
        self._news: deque[dict] = deque(maxlen=_EVENTS_KEPT)  # not yet taken by `events()`
        self._missed = False  # news had to go
        self.polled = 0  #: event records that were taken so far
        self._in_doubt = True  # FATAL may have been told: before this was opened, to begin with
        # Of the worker. Never held beside the transport's, which is that of the event records:
        # whoever is within `transport.exclusive()` has it first.
        self._lock = threading.RLock()
        self._fetching = Fetching(self.config, self.registers)
        self._worker: Worker | None = None
        self._closed = False
        # By serial number, of what was opened here and not closed, whether somebody has it or not:
        # the device's number, and queues. A device's number is soon another session's.
        self._open: dict[int, tuple[int, int]] = {}
        # The same, of those that somebody has.
        self._sessions: weakref.WeakValueDictionary[int, Session] = weakref.WeakValueDictionary()
        self._abandoned: Completion | None = None  # the latest sessions that `worker` is to close

    @property
    def ld_id(self) -> int:
        return self.transport.ld_id

    @property
    def queues(self) -> int:
        """Of all sessions that were opened here and are open; also of those that nobody has any
        more, and nobody has closed."""
        return sum(queues for _, queues in list(self._open.values()))

    def frames(self, shape: ModelShape, layer: int) -> int:
        """Frames of the pool of the layer's pages, for everybody's: as many as `configure` has
        left, as far as `ld_id` 0 alone can see."""
        instance("shape", shape, ModelShape, "a ModelShape (cxl_kv.preset names some)")
        layer = integer("layer", layer, 0, shape.layers - 1)
        pool = shape.pool(layer, self.config)
        self.transport.check()
        if self.ld_id or not self.transport.hints:
            return self.config.frames[pool]
        return self.registers.read(f"pool_limit_{POOLS[pool]}")

    # - sessions -----------------------------------------------------------------------------------
    def open_session(
        self, shape: ModelShape, *, max_tokens: int | None = None, policy: Policy = Policy()
    ) -> Session:
        """Open a session for one sequence.

        Parameters
        ----------
        shape : ModelShape
        max_tokens : int, optional
            Positions that may be written; all that the configuration's pages hold when left out.
        policy : Policy

        Raises
        ------
        ValueError
            The shape does not fit the device's configuration.
        UnsupportedError
            The back end cannot store one of the formats.
        DeviceFullError
            Every session is open.
        """
        c = self.config
        instance("shape", shape, ModelShape, "a ModelShape (cxl_kv.preset names some)")
        instance("policy", policy, Policy, "a Policy")
        page_tokens = shape.page_tokens_in(c)
        if shape.queues > c.queues:
            raise ValueError(
                f"layers · kv_heads = {shape.queues} is refused; configuration {c.name!r} "
                + f"holds {c.queues} queues"
            )
        most = c.pages * page_tokens
        max_tokens = most if max_tokens is None else integer("max_tokens", max_tokens, 1, most)
        for r in shape.formats:
            for fmt in (r.k, r.v):
                if fmt not in self.transport.formats:
                    has = ", ".join(sorted(f.label for f in self.transport.formats))
                    where = (
                        "golden: and rtl: have all"
                        if c.codecs
                        else "choose it, or a device of another configuration than "
                        + f"{c.name!r}, which has no codecs"
                    )
                    raise UnsupportedError(
                        f"format {fmt.label} is not to be had from this back end, which "
                        + f"stores {has}; {where}"
                    )
        pages = -(-max_tokens // page_tokens)
        ranges = {}
        for i in range(LAYER_RANGES):
            r = shape.formats[min(i, len(shape.formats) - 1)]
            ranges |= {
                f"last_layer_{i}": r.last_layer,
                f"format_k_{i}": int(r.k),
                f"format_v_{i}": int(r.v),
            }
        request = {
            "shape": self.registers.pack(
                "s0_shape",
                layers=shape.layers,
                kv_heads=shape.kv_heads,
                used_lines=page_tokens * shape.token_lines,
                host_type=int(shape.dtype),
                k_only=int(shape.k_only),
                used_pages=pages,
            ),
            "formats": self.registers.pack("s0_formats", **ranges),
            "policy": self.registers.pack("s0_policy", **policy.policy_fields(self.config)),
            "recency": self.registers.pack("s0_recency", **policy.recency_fields),
            "auto_step": policy.auto_step,
            "budgets": [[policy.budget_lines, list(range(shape.queues))]],
        }
        try:
            number = self.transport.open_session(request)
        except DeviceFullError:
            abandoned = self._abandoned
            if abandoned is None or not abandoned.wait(_ABANDONED_SECONDS):
                raise
            self._abandoned = None
            number = self.transport.open_session(request)
        for serial, (known, _) in list(self._open.items()):
            if known == number:  # closed behind its owner's back
                former = self._sessions.get(serial)
                if former is not None:
                    former.closed = True
                self.forget(serial)
        try:
            session = Session(self, number, shape, max_tokens=max_tokens, policy=policy)
        except BaseException:
            # As by Ctrl-C while events are read: nobody has it who could close it.
            with contextlib.suppress(CxlKvError):
                self.transport.close_session(number)
            raise
        self._sessions[session.serial] = session
        self._open[session.serial] = number, shape.queues
        return session

    def forget(self, serial: int) -> None:
        """The session of this serial number is closed on the device. Harmless a second time."""
        self._open.pop(serial, None)
        self._sessions.pop(serial, None)

    def holds(self, serial: int) -> bool:
        """Whether the session of this serial number was opened here and is not closed."""
        return serial in self._open

    def abandon(self, sessions: list[Session]) -> None:
        """Close sessions that nobody can reach any more, soon, on :attr:`worker`, which must have
        been asked for before. For finalizers: the thread may be anywhere within this library, so
        nothing is waited for. `open_session` does, before it says that every session is open."""
        if self._closed or self.transport.home.left() or not sessions:
            return
        self._abandoned = Completion(calls=len(sessions))
        self._worker.put([functools.partial(_close_quietly, s) for s in sessions], self._abandoned)

    # - the whole device ---------------------------------------------------------------------------
    def configure(
        self,
        *,
        prefetch: Iterable[PrefetchSource | str] | None = None,
        pool_limits: dict[str, int] | None = None,
        **settings: int,
    ) -> None:
        """Device-wide policy; needs the control plane (`ld_id` 0).

        Parameters
        ----------
        prefetch
            Sources to switch on, all others off: ``"window"``, ``"spec_read"``, ``"hint"``,
            ``"layer_ahead"``, ``"previous"``.
        pool_limits
            Frames that pools may use, by name (``{"raw16": 64}``); taken when the pool is empty.
        settings
            low_water, high_water, reserve (frames), cold_retries, cold_timeout, starve_limit
            (cycles): docs/registers.md.
        """
        self._control("configure")
        writes = []  # of all of them, or of none
        for name, value in settings.items():
            if name not in _SETTINGS:
                raise ValueError(
                    f"{name!r} is no setting; legal: prefetch, pool_limits, {', '.join(_SETTINGS)}"
                )
            writes.append((name, value))
        limits = {} if pool_limits is None else pool_limits
        for name, frames in instance("pool_limits", limits, dict, "pool → frames").items():
            if name not in POOLS:
                raise ValueError(f"pool {short(name)} is unknown; legal: {', '.join(POOLS)}")
            writes.append((f"pool_limit_{name}", frames))
        if prefetch is not None:
            wanted = _sources(prefetch)
            enable = {s.name.lower(): int(s in wanted) for s in PrefetchSource if s}
            writes.append(("prefetch_enable", self.registers.pack("prefetch_enable", **enable)))
        self.registers.write_many(writes)

    def fetch_chosen(self) -> None:
        """Have what :meth:`Session.select` wants fetched (its `fetch`); to be called once the
        sessions are open, again when others are, and needs `ld_id` 0: switches the source
        ``"hint"`` on, and sets `low_water` to the number of queues of all open sessions and
        `high_water` to 4 more, so that fetches leave each queue the frame of its next page: as far
        as that is a quarter of the frames at most, and unless somebody else has set them
        (`configure`). Nothing on a device that does not choose."""
        self._control("fetch_chosen")
        self.transport.check()
        if self.transport.hints and self.config.select:
            with self.transport.exclusive():
                self._fetching.begin()

    def counters(self) -> dict[str, int]:
        """Totals of the whole device by name (`kelp_spec.registers.COUNTERS`), modulo 2^48; needs
        `ld_id` 0."""
        self._control("counters")
        return dict(
            zip(
                (name for name, _ in COUNTERS),
                self.registers.read_many(f"count_{name}" for name, _ in COUNTERS),
                strict=True,
            )
        )

    def pools(self) -> dict[str, dict[str, int]]:
        """Frames `used` and `limit`, and bytes of a frame, per pool; needs `ld_id` 0."""
        self._control("pools")
        values = self.registers.read_many(
            [f"pool_{what}_{pool}" for pool in POOLS for what in ("used", "limit")]
        )
        return {
            pool: {
                "used": values[2 * i],
                "limit": values[2 * i + 1],
                "frame_bytes": self.config.frame_lines[i] * LINE_BYTES,
            }
            for i, pool in enumerate(POOLS)
        }

    def latency_histograms(self) -> dict[str, np.ndarray]:
        """`hit` and `miss`: int64[24], answers by ⌊log2⌋ of their latency in cycles; a bin stands
        still at 2^32 − 1. Zeros on back ends without a clock. Needs `ld_id` 0."""
        self._control("latency_histograms")
        values = self.registers.read_many(
            [f"{kind}_latency_{i}" for kind in ("hit", "miss") for i in range(HISTOGRAM_BINS)]
        )
        return {"hit": np.array(values[:HISTOGRAM_BINS]), "miss": np.array(values[HISTOGRAM_BINS:])}

    def events(self) -> list[dict]:
        """Events since the last call: `code`, `session`, `queue`, `page`, `argument`, `ld_id`,
        `time` (cycles, modulo 2^32), `number`.

        With another `ld_id` than 0, only those of the sessions opened here. `code` OVERFLOW says
        that some are missing: the device's log of 16 ran over (of which, with another `ld_id` than
        0, those hear whose calls it was), or some 1000 came since the last call.
        """
        self.poll()
        with self.transport.lock:
            out, missed = list(self._news), self._missed
            self._news.clear()
            self._missed = False
        return [overflow_record(out[0]["number"], out[0]["time"]), *out] if missed else out

    def poll(self) -> None:
        """Take the device's new event records, and keep them for :meth:`events`, :meth:`since` and
        explanations."""
        self.transport.check()
        if not self.transport.hints:
            return
        with self.transport.lock:
            fresh = self.transport.events()
            self._events.extend(fresh)
            self._missed |= len(self._news) + len(fresh) > _EVENTS_KEPT
            self._news.extend(fresh)
            self.polled += len(fresh)
            self._in_doubt |= any(e["code"] in ("FATAL", "OVERFLOW") for e in fresh)

    def since(self, polled: int) -> tuple[list[dict], int]:
        """Event records behind the first `polled` that were ever taken, whoever has taken them; and
        how many were taken by now. The latest 1024 are kept: where more came, an OVERFLOW is the
        first."""
        self.poll()
        with self.transport.lock:
            new, kept = self.polled - polled, len(self._events)
            out = [self._events[i] for i in range(-min(new, kept), 0)]
            if new > kept:
                out.insert(0, overflow_record(out[0]["number"], out[0]["time"]))
            return out, self.polled

    def explain(self, session: int, queue: int, page: int, *, polled: int = 0) -> str | None:
        """The latest event about a page that explains poison, or None; of those behind the first
        `polled` that were ever taken: what is told before a session is opened is of another one of
        its number."""
        events, _ = self.since(polled)
        for e in reversed(events):
            where = e["session"], e["queue"], e["page"]
            if where == (session, queue, page) and e["code"] in POISONING:
                return e["code"]
        return None

    def has_failed(self) -> bool:
        """Whether a memory of the device lost what cannot be rebuilt (event FATAL): until a reset
        every line reads as poison, and nothing that is written is kept."""
        self.transport.check()
        if not self.transport.hints:
            return False
        with self.transport.lock:
            if self._in_doubt:
                self._in_doubt = bool(self.registers.fields("status")["fatal"])
            return self._in_doubt

    @property
    def formats(self) -> frozenset[Format]:
        """Stored formats that this back end has."""
        return self.transport.formats

    def _control(self, what: str) -> None:
        if self.ld_id:
            raise UnsupportedError(
                f"{what}() needs the control plane (LD-ID 0); this connection is LD-ID {self.ld_id}"
            )

    # - asynchronous batches -----------------------------------------------------------------------
    def batch(self) -> Batch:
        """An empty batch; see :class:`cxl_kv.batch.Batch`."""
        return Batch(self)

    @property
    def worker(self) -> Worker:
        """The thread that carries batches out, in the order of their submission; TransportError
        when the device is closed, since there is none then."""
        self.transport.home.check()
        with self._lock:
            if self._closed:
                raise TransportError("the device was closed; open it again")
            if self._worker is None:
                self._worker = Worker()
                # Of a device that nobody closed: the thread ends with it.
                weakref.finalize(self, self._worker.let_go).atexit = False
            return self._worker

    def hand_over(self, calls: list, completion: Completion) -> None:
        """Have :attr:`worker` carry out `calls` behind what it was given before. TransportError
        when the device is closed; where `close` comes meanwhile, it waits for them."""
        self.transport.home.check()  # a child's lock may be a lost thread's
        with self._lock:
            self.worker.put(calls, completion)

    def close(self) -> None:
        """Finish the batches under way, close the sessions opened here and let go of the device.
        Harmless a second time, which finishes what broke off the first, and in a child of the
        process that opened it."""
        if self.transport.home.left():
            self._closed = True
            return
        with self._lock:  # no batch is handed to a thread that ends
            self._closed = True
        if self._worker is not None:
            self._worker.stop()
        self.transport.close()
        self._open.clear()
        self._sessions.clear()

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called here."""
        return self._closed

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *_) -> None:
        self.close()


def _sources(prefetch) -> set[PrefetchSource]:
    names = [s.name.lower() for s in PrefetchSource if s]
    wanted = set()
    for source in listed("prefetch", prefetch, f"a list of {', '.join(names)}"):
        if isinstance(source, str) and source.lower() in names:
            source = PrefetchSource[source.upper()]
        if not isinstance(source, PrefetchSource) or not source:
            raise ValueError(
                f"prefetch source {short(source)} is refused; legal: {', '.join(names)}"
            )
        wanted.add(source)
    return wanted


def _close_quietly(session: Session) -> None:
    with contextlib.suppress(CxlKvError):
        session.close()

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What only LD-ID 0 may do, on behalf of all requesters of one core: open and close sessions, read
the event log (spec §3, §9)."""

from __future__ import annotations

import contextlib
import time
import weakref
from collections import deque
from collections.abc import Iterator
from numbers import Integral

from kelp_spec.config import Config
from kelp_spec.metadata import Event, Protected
from kelp_spec.registers import EVENT_RECORDS, SessionCommand

from .core import Core
from .errors import CxlKvError, DeviceFullError, OpenRefusedError, TransportError
from .fetching import Fetching
from .registers import Registers, unpack

__all__ = ["Control", "overflow_record"]

_KEPT = 1000  #: event records kept for a requester that has not asked yet; a frame holds them
#: What concerns no open session, though the record names session 0: for whoever did it, if that is
#: known, and LD-ID 0.
_OF_NO_SESSION = (
    Event.REGISTER_REFUSED.name,
    Event.HINT_MALFORMED.name,
    Event.OPEN_REFUSED.name,
    Event.BIRSP_UNASKED.name,
)
_CLOSE_TIMEOUT = 120  #: seconds until a session that stays busy is given up


class Control:
    """The control plane of one core. Every method wants `core.exclusive()` held."""

    def __init__(self, core: Core):
        self.core = weakref.proxy(core)
        self.config: Config = core.config
        proxy = self.core
        self.registers = Registers(
            core.config,
            lambda addresses: proxy.load(addresses, 0).lines,
            lambda addresses, lines, enable: proxy.store(addresses, lines, enable, 0),
        )
        self._next = 0  # number of the next record
        self._latest = 0  # time of the last one
        # Of each requester those that it has not asked for: one that provokes events without end
        # takes no other's place.
        self._unseen: dict[int, _Unseen] = {}
        self._fetching: Fetching | None = None

    @classmethod
    def of(cls, core: Core) -> Control:
        """The core's only one."""
        with core.lock:
            if not hasattr(core, "control"):
                core.control = cls(core)
            return core.control

    # - sessions -----------------------------------------------------------------------------------
    def checked(self, request) -> dict:
        """`request` of :meth:`begin_open` as plain integers; OpenRefusedError says what of it no
        device could take. Nothing has been written by then."""
        registers = self.registers
        if not isinstance(request, dict):
            raise OpenRefusedError("a request to open a session is no object")
        out = {}
        for name in ("shape", "formats", "policy", "recency", "auto_step"):
            if name not in request:
                raise OpenRefusedError(f"a request to open a session lacks registers: {name}")
            out[name] = _register_value(registers.register(f"s0_{name}"), request[name])
        budgets = request.get("budgets")
        if not isinstance(budgets, list) or not budgets:
            raise OpenRefusedError("a request to open a session lacks registers: budgets")
        shape = unpack(registers.register("s0_shape"), out["shape"])
        queues, named = shape["layers"] * shape["kv_heads"], set()
        if len(budgets) > 1 + queues:
            raise OpenRefusedError(
                f"{len(budgets)} budgets are refused; legal: {1 + queues} at most"
            )
        out["budgets"] = []
        for i, pair in enumerate(budgets):
            if not (isinstance(pair, list | tuple) and len(pair) == 2):
                raise OpenRefusedError("a budget is refused; legal: [lines, queues]")
            value, of = pair
            if not isinstance(of, list | tuple) or len(of) > queues:
                raise OpenRefusedError(f"a budget's queues are refused; legal: {queues} at most")
            for queue in of:
                if not _is_integer(queue) or not 0 <= queue < queues or queue in named:
                    raise OpenRefusedError(
                        f"queue {str(queue)[:40]} of a budget is refused; legal: 0 … {queues - 1}, "
                        + "each once"
                    )
                if i:
                    named.add(queue)
            out["budgets"].append(
                (_register_value(registers.register("s0_budget"), value), [int(q) for q in of])
            )
        return out

    def begin_open(self, request: dict, owner: int) -> int:
        """Open the first free session for LD-ID `owner`; its number. :meth:`budgets` does the rest.

        `request`: register values `shape` (its owner field is replaced), `formats`, `policy`,
        `recency`, `auto_step`, and `budgets`, pairs of a value and the list of queues that it is
        for; the first pair is for all queues. It is :meth:`checked`. Whatever is raised, no session
        is open then.
        """
        registers, config = self.registers, self.config
        for session in range(config.sessions):
            state = registers.fields(f"s{session}_state")
            if not state["open"] and not state["busy"]:
                break
        else:
            raise DeviceFullError(
                f"all {config.sessions} sessions of configuration {config.name!r} are open; "
                + "close one, or use a configuration with more"
            )
        try:
            self._open(session, request, owner)
            self._follow()
        except BaseException:
            with contextlib.suppress(CxlKvError):
                if registers.fields(f"s{session}_state")["open"]:
                    self.close_session(session)
            raise
        return session

    def _open(self, session, request, owner):
        registers, config = self.registers, self.config
        p = f"s{session}_"
        shape = unpack(registers.register(p + "shape"), request["shape"]) | {"owner": owner}
        registers.write_many(
            [
                (p + "shape", registers.pack(p + "shape", **shape)),
                (p + "formats", request["formats"]),
                (p + "policy", request["policy"]),
                (p + "recency", request["recency"]),
                (p + "auto_step", request["auto_step"]),
                (p + "budget", request["budgets"][0][0]),
                (p + "command", registers.pack(p + "command", command=SessionCommand.OPEN)),
            ]
        )
        state = registers.fields(p + "state")
        if state["refused"] or not state["open"]:
            asked = unpack(registers.register(p + "formats"), request["formats"])
            codes = sorted({value for name, value in asked.items() if name.startswith("format")})
            stores = ", ".join(f"{int(f)} ({f.label})" for f in config.formats)
            holds = (
                f"configuration {config.name!r} holds {config.queues} queues of "
                + f"{config.pages} pages of {config.half_lines} lines, in formats {stores}"
            )
            raise OpenRefusedError(
                f"session {session}: the device refused {shape} with formats {codes}; {holds}"
            )

    def budgets(self, session: int, request: dict) -> Iterator[None]:
        """Set the budgets of single queues in a session that was begun with the same request, one
        at a step: up to 640 would keep everybody waiting."""
        registers, p = self.registers, f"s{session}_"
        apply = registers.pack(p + "command", command=SessionCommand.APPLY_QUEUE)
        for value, queues in request["budgets"][1:]:
            for queue in queues:
                registers.write_many(
                    [
                        (p + "budget", value),
                        (p + "queue", registers.pack(p + "queue", queue=queue)),
                        (p + "command", apply),
                    ]
                )
                yield

    def begin_close(self, session: int) -> None:
        """Start to close a session; :meth:`is_closed` says when that is done."""
        self.registers.write(f"s{session}_command", command=SessionCommand.CLOSE)

    def is_closed(self, session: int) -> bool:
        """Whether a session that was told to close may be opened again."""
        closed = not self.registers.fields(f"s{session}_state")["busy"]
        if closed:
            self._follow()
        return closed

    def close_session(self, session: int) -> None:
        """Close and wait until it may be opened again."""
        self.begin_close(session)
        self.end_close(session)

    def end_close(self, session: int) -> None:
        """Wait until a session that was told to close may be opened again."""
        deadline = time.monotonic() + _CLOSE_TIMEOUT
        while not self.is_closed(session):
            if time.monotonic() > deadline:
                raise TransportError(f"session {session} is still closing after {_CLOSE_TIMEOUT} s")

    def fetch_chosen(self) -> None:
        """From now on what choices want is fetched, and frames are left for the queues of whatever
        sessions are open (:class:`Fetching`); nothing in a device that does not choose."""
        if self.core.hints and self.config.select:
            self._fetching = Fetching(self.config, self.registers)
            self._fetching.begin()

    def _follow(self) -> None:
        if self._fetching is not None:
            self._fetching.follow()

    # - events -------------------------------------------------------------------------------------
    def attach(self, requester, owned: dict[int, int]) -> None:
        """A requester that sees the events from now on: with LD-ID 0 all of them; with another what
        happens to its `owned` sessions, from the number on that it owns them, what it did that
        concerns no session, FATAL, nothing that another LD-ID did, and that the log has run over in
        what it did itself."""
        self._unseen[id(requester)] = _Unseen(requester.ld_id, owned)

    def mark(self, requester) -> int:
        """Number of the next record, once all of before have been read; what has come since the
        last time is of `requester`'s doing."""
        self._drain(requester)
        return self._next

    def events_of(self, requester) -> list[dict]:
        """Records that `requester` has not seen, the latest of them where they are many: an
        OVERFLOW is then the first."""
        self._drain(requester)
        return self._unseen[id(requester)].take()

    def forget(self, requester) -> None:
        self._unseen.pop(id(requester), None)

    def _drain(self, requester):
        registers, queues = self.registers, self.config.queues
        # The count says what is there, the flag what was lost until then, also of an empty log.
        count, status = registers.read_many(["event_count", "status"])
        count = min(count, EVENT_RECORDS)
        overflow = unpack(registers.register("status"), status)["event_overflow"]
        if not count and not overflow:
            return
        values = registers.read_many(
            [f"event_{what}{i}" for i in range(count) for what in ("", "time_")]
        )
        # Records that have come since stay, and a flag that was not read: the next drain tells.
        registers.write("event_taken", count=count, overflow=overflow)
        for i in range(count):
            record = unpack(registers.register(f"event_{i}"), values[2 * i])
            session, queue = divmod(record["squeue"], queues)
            self._append(
                code=_event_name(record["code"]),
                ld_id=record["ld_id"],
                session=session,
                queue=queue,
                page=record["page"],
                argument=record["argument"],
                time=values[2 * i + 1],
            )
        if overflow:
            record = overflow_record(self._next, self._latest)
            self._next += 1
            for key, unseen in self._unseen.items():
                if unseen.ld_id == 0 or key == id(requester):
                    unseen.append(record)

    def _append(self, **record):
        record = {"number": self._next, **record}
        self._next, self._latest = self._next + 1, record["time"]
        for unseen in self._unseen.values():
            if unseen.may_see(record):
                unseen.append(record)


class _Unseen:
    """What a requester has not asked for, the latest _KEPT of it."""

    def __init__(self, ld_id: int, owned: dict[int, int]):
        self.ld_id, self._owned = ld_id, owned
        self._records: deque[dict] = deque(maxlen=_KEPT)
        self._lost: dict | None = None  # the first that had to go

    def may_see(self, record: dict) -> bool:
        if self.ld_id == 0 or record["code"] == Event.FATAL.name:  # which ends all sessions
            return True
        own = record["ld_id"] == self.ld_id
        if record["code"] in _OF_NO_SESSION or _of_no_page(record):
            return own
        first = self._owned.get(record["session"])
        if first is not None and record["number"] >= first:
            return own or record["ld_id"] == 0
        # Beyond what a session of its has, or beyond all of them.
        return own and record["code"] == Event.OUT_OF_MAP.name

    def append(self, record: dict) -> None:
        if len(self._records) == _KEPT and self._lost is None:
            self._lost = self._records[0]
        self._records.append(record)

    def take(self) -> list[dict]:
        lost, self._lost = self._lost, None
        out = [] if lost is None else [overflow_record(lost["number"], lost["time"])]
        out += self._records
        self._records.clear()
        return out


def _of_no_page(record: dict) -> bool:
    """Whether it tells of a memory's word that names no page."""
    return record["code"] == Event.WORD_LOST.name and record["argument"] != Protected.SCORES


def overflow_record(number: int, time: int) -> dict:
    """A record that says that others are missing."""
    of_nothing = dict.fromkeys(("ld_id", "session", "queue", "page", "argument"), 0)
    return {"number": number, "code": "OVERFLOW", **of_nothing, "time": time}


def _event_name(code: int) -> str:
    """Of an event; EVENT_ and its number where a later version of the register map has added it."""
    return Event(code).name if code in {*Event} else f"EVENT_{code}"


def _is_integer(value) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _register_value(register, value) -> int:
    """`value` as an integer that has no bit outside the register's fields."""
    mask = sum((1 << f.bits) - 1 << f.low for f in register.fields)
    if not _is_integer(value) or value < 0 or int(value) & ~mask:
        raise OpenRefusedError(
            f"{register.name.removeprefix('s0_')} = {str(value)[:40]} is refused; legal: an "
            + f"integer within {mask:#x}"
        )
    return int(value)

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
from kelp_spec.metadata import Event
from kelp_spec.registers import EVENT_RECORDS, SessionCommand

from .core import Core
from .errors import CxlKvError, DeviceFullError, OpenRefusedError, TransportError
from .registers import Registers, unpack

__all__ = ["Control"]

_KEPT = 4096  #: event records kept for requesters that have not asked yet
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
        self._events: deque[dict] = deque(maxlen=_KEPT)
        self._next = 0  # number of the next record
        # id of a requester → number of the first record it has not seen
        self._seen: dict[int, int] = {}

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
        return not self.registers.fields(f"s{session}_state")["busy"]

    def close_session(self, session: int) -> None:
        """Close and wait until it may be opened again."""
        self.begin_close(session)
        deadline = time.monotonic() + _CLOSE_TIMEOUT
        while not self.is_closed(session):
            if time.monotonic() > deadline:
                raise TransportError(f"session {session} is still closing after {_CLOSE_TIMEOUT} s")

    # - events -------------------------------------------------------------------------------------
    def attach(self, requester) -> None:
        """A requester that sees the events from now on."""
        self._seen[id(requester)] = self._next

    def mark(self) -> int:
        """Number of the next record, once all of before have been read."""
        self._drain()
        return self._next

    def events_of(self, requester, owned: dict[int, int]) -> list[dict]:
        """Records that `requester` has not seen. One with another LD-ID than 0 sees what happened
        to its `owned` sessions, from the number on that it owns them, and nothing that another
        LD-ID did."""
        self._drain()
        first = self._seen[id(requester)]
        self._seen[id(requester)] = self._next
        news = [e for e in self._events if e["number"] >= first]
        if requester.ld_id == 0:
            return news
        return [
            e
            for e in news
            if e["ld_id"] in (0, requester.ld_id)
            and e["number"] >= owned.get(e["session"], self._next)
        ]

    def forget(self, requester) -> None:
        self._seen.pop(id(requester), None)

    def _drain(self):
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
                code=Event(record["code"]).name,
                ld_id=record["ld_id"],
                session=session,
                queue=queue,
                page=record["page"],
                argument=record["argument"],
                time=values[2 * i + 1],
            )
        if overflow:
            latest = self._events[-1]["time"] if self._events else 0
            self._append(
                code="OVERFLOW", ld_id=0, session=0, queue=0, page=0, argument=0, time=latest
            )

    def _append(self, **record):
        self._events.append({"number": self._next, **record})
        self._next += 1


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

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Asynchronous batches: calls collected, carried out in order by one thread of the device, and
reported through a completion descriptor.

::

    batch = device.batch()
    batch.write(session, 0, k, v, start=128)
    batch.read(session, 0, start=0, stop=129)
    done = batch.submit()
    ...                                   # compute meanwhile
    (_, (keys, values)) = done.result(timeout=10)
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar

from .arguments import instance
from .process import Home, NotCopied
from .session import Session

__all__ = ["Batch", "Completion", "State", "Worker"]


class State(Enum):
    """Of a batch."""

    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


@dataclass
class Completion(NotCopied):
    """What became of a submitted batch. Times are seconds of `time.monotonic`; None until they are
    known.

    Attributes
    ----------
    state : State
    completed : int
        Calls that were carried out.
    results : list
        Of each call carried out, in order: what the plain method returns.
    error : BaseException or None
        Of the first call that failed; those after it were not begun.
    """

    _uncopied: ClassVar[str] = (
        "a completion is told of its batch's end alone, and is not copied or sent to another "
        + "process; hand on what result() returns"
    )

    state: State = State.PENDING
    calls: int = 0
    completed: int = 0
    results: list = field(default_factory=list)
    error: BaseException | None = None
    submitted: float | None = None
    started: float | None = None
    finished: float | None = None
    _event: threading.Event = field(default_factory=threading.Event, repr=False)
    _home: Home = field(default_factory=Home, repr=False)

    def done(self) -> bool:
        """Whether the batch has ended, well or not."""
        return self._event.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end, `timeout` seconds at most; whether it has come. ForkedError in a child,
        which has no thread that would bring it."""
        if not self.done():
            self._home.check()
        return self._event.wait(timeout)

    def result(self, timeout: float | None = None) -> list:
        """The results; raises what the first failed call raised, or TimeoutError."""
        if not self.wait(timeout):
            raise TimeoutError(
                f"batch of {self.calls} calls unfinished after {timeout} s ({self.completed} "
                + "carried out)"
            )
        if self.error is not None:
            raise self.error
        return self.results


class Batch(NotCopied):
    """Calls to be carried out together. The methods mirror those of Session and take the session
    first, ValueError for what is none; arrays must not be changed until completion. Whatever else
    a call raises is its completion's."""

    _uncopied = (
        "a batch is submitted once, by the process that made it, and is not copied or sent to "
        + "another; make a new one"
    )

    def __init__(self, device):
        self._device = device
        self._calls: list[Callable] = []
        self._submitted = False

    def __len__(self) -> int:
        return len(self._calls)

    def write(self, session, layer, k, v=None, **where) -> Batch:
        """As `Session.write`."""
        return self._add(session, lambda: session.write(layer, k, v, **where))

    def read(self, session, layer, **where) -> Batch:
        """As `Session.read`; its result is (k, v)."""
        return self._add(session, lambda: session.read(layer, **where))

    def push_mass(self, session, layer, head, masses, **how) -> Batch:
        """As `Hints.push_mass`."""
        return self._add(session, lambda: session.hints.push_mass(layer, head, masses, **how))

    def prefetch(self, session, layer, head, pages) -> Batch:
        """As `Hints.prefetch`."""
        return self._add(session, lambda: session.hints.prefetch(layer, head, pages))

    def advance(self, session, steps: int = 1) -> Batch:
        """As `Session.advance`."""
        return self._add(session, lambda: session.advance(steps))

    def submit(self) -> Completion:
        """Hand the batch to the device's thread; once only."""
        if self._submitted:
            raise ValueError("this batch was submitted before; make a new one")
        self._submitted = True
        completion = Completion(calls=len(self._calls), submitted=time.monotonic())
        self._device.hand_over(self._calls, completion)
        return completion

    def _add(self, session, call) -> Batch:
        if self._submitted:
            raise ValueError("this batch was submitted before; make a new one")
        instance("session", session, Session, "what Device.open_session returned")
        self._calls.append(call)
        return self


class Worker:
    """One daemon thread that carries batches out in the order of their submission."""

    def __init__(self):
        self._queue: queue.SimpleQueue = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="cxl_kv batches", daemon=True)
        self._thread.start()

    def put(self, calls, completion: Completion) -> None:
        self._queue.put((calls, completion))

    def stop(self) -> None:
        """After what was submitted."""
        self.let_go()
        self._thread.join()

    def let_go(self) -> None:
        """As :meth:`stop`, without waiting."""
        self._queue.put(None)

    def _run(self):
        while (item := self._queue.get()) is not None:
            _carry_out(*item)
            del item  # what a batch is of does not live until the next one comes


def _carry_out(calls, completion: Completion) -> None:
    completion.state, completion.started = State.RUNNING, time.monotonic()
    try:
        for call in calls:
            completion.results.append(call())
            completion.completed += 1
        completion.state = State.DONE
    except BaseException as error:
        completion.error, completion.state = error, State.FAILED
    completion.finished = time.monotonic()
    completion._event.set()

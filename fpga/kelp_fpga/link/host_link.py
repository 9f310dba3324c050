# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The host's half of the bridge: exactly-once, in-order delivery both ways over a line that loses,
doubles, changes and adds bytes.

Go-back-N with a window of `WINDOW` frames each way. Only the host keeps time: the device sends a
frame once and then again when it is told to, so an idle line is silent, and a device whose host has
gone says nothing. A frame whose number is not the next is thrown away; the device then says NAK,
once, with the number that it wants; the host polls, once. Whatever that loses too is found by the
host's time-out, which polls.

A connection begins with SYNC and a random nonce: the device forgets its frames, waits until the
endpoint has answered everything that an earlier host asked, throws those answers away, and answers
with the nonce. Until then the host ignores all else, so nothing of an earlier connection is ever
delivered.

No input or output happens here: whoever owns the line feeds bytes in and carries bytes out, and
says what time it is (any unit).
"""

from __future__ import annotations

from collections import deque

from .protocol import (
    ACK_SLACK,
    FROM_DEVICE,
    NAK,
    POLL,
    VERSION,
    WINDOW,
    Deframer,
    Frame,
    Kind,
    encode,
)

__all__ = ["HostLink", "LinkError"]


class LinkError(RuntimeError):
    """The other side speaks another protocol."""


class HostLink:
    """One connection.

    Parameters
    ----------
    nonce : int
        32 bits that differ from those of other connections.
    timeout : float
        Silence after which something must have been lost. Each further one in a row is twice as
        long, up to `16 · timeout`.

    Attributes
    ----------
    up : bool
        SYNC was answered.
    awaiting : int
        Messages that the device still owes (the caller says with `submit` how many each message is
        worth).
    resent, polls, bad, duplicates : int
        For a report: frames sent again, polls sent, bodies thrown away, frames received twice.
    """

    def __init__(self, *, nonce: int, timeout: float):
        self._nonce, self._timeout = nonce.to_bytes(4, "little"), timeout
        self._deframer = Deframer(FROM_DEVICE)
        self._queue: deque[tuple[int, bytes, int]] = deque()  # not sent yet
        self._unacked: deque[tuple[int, bytes]] = deque()
        self._base = self._next = self._expected = 0  # all modulo 256
        # frames received since the last that said so
        self._unsaid = 0
        # the gap before the next frame was reported
        self._asked = False
        self._poll = self._again = False
        self._deadline: float | None = None
        self._patience = timeout
        self.up, self.awaiting, self.heard = False, 0, 0
        self.resent = self.polls = self.duplicates = 0

    @property
    def bad(self) -> int:
        return self._deframer.bad

    @property
    def idle(self) -> bool:
        """Nothing is owed in either direction."""
        return self.up and not (self._queue or self._unacked or self.awaiting)

    @property
    def backlog(self) -> int:
        """Messages submitted and not sent yet."""
        return len(self._queue)

    @property
    def deadline(self) -> float | None:
        """When `pump` wants to be called again even if nothing arrives."""
        return self._deadline

    def submit(self, kind: int, payload: bytes, answers: int = 1) -> None:
        """Send a message for which the device will send `answers`."""
        self._queue.append((int(kind), payload, answers))
        self.awaiting += answers

    # - out ----------------------------------------------------------------------------------------
    def pump(self, now: float) -> bytes:
        """What is to be sent now."""
        out = []
        overdue = self._deadline is not None and now >= self._deadline
        if overdue:
            self._patience = min(2 * self._patience, 16 * self._timeout)
        if not self.up:
            if overdue or self._deadline is None:
                out.append(Frame(Kind.SYNC, 0, 0, 0, self._nonce))
                self._deadline = now + self._patience
            return b"".join(map(encode, out))
        sent = False
        if self._again:
            self._again = False
            for n, (kind, payload) in enumerate(self._unacked):
                out.append(Frame(kind, self._base + n, self._expected, 0, payload))
                self.resent += 1
                sent = True
        while self._queue and len(self._unacked) < WINDOW:
            kind, payload, _ = self._queue.popleft()
            self._unacked.append((kind, payload))
            out.append(Frame(kind, self._next, self._expected, 0, payload))
            self._next = self._next + 1 & 0xFF
            sent = True
        if overdue and (self._unacked or self.awaiting):
            self._poll = True
        if self._poll:
            out.append(Frame(Kind.CONTROL, 0, self._expected, POLL, b""))
            self.polls += 1
        elif not sent and self._unsaid >= ACK_SLACK:
            out.append(Frame(Kind.CONTROL, 0, self._expected, 0, b""))
        if out:
            self._unsaid, self._poll = 0, False
        if not (self._unacked or self.awaiting):
            self._deadline, self._patience = None, self._timeout
        elif overdue or sent or self._deadline is None:
            self._deadline = now + self._patience
        return b"".join(map(encode, out))

    # - in -----------------------------------------------------------------------------------------
    def feed(self, data: bytes, now: float) -> list[tuple[int, bytes]]:
        """Bytes have come; the messages delivered by them."""
        out = []
        for frame in self._deframer.feed(data):
            self.heard += 1
            self._patience = self._timeout
            if self._deadline is not None:
                self._deadline = now + self._patience
            if frame.kind == Kind.SYNC:
                self._synced(frame)
            elif self.up:
                self._frame(frame, out)
        return out

    def _synced(self, frame: Frame) -> None:
        if frame.payload[:4] != self._nonce or self.up:
            return
        version, window = frame.payload[4:6]
        if (version, window) != (VERSION, WINDOW):
            theirs, ours = f"version {version}, window {window}", f"{VERSION}, {WINDOW}"
            raise LinkError(
                f"the board's bridge has {theirs}; this host has {ours}: build host and "
                + "bitstream from the same sources"
            )
        self.up, self._deadline = True, None

    def _frame(self, frame: Frame, out: list) -> None:
        done = frame.ack - self._base & 0xFF
        if done <= len(self._unacked):
            for _ in range(done):
                self._unacked.popleft()
            self._base = frame.ack
            if frame.flags & NAK and self._unacked:
                self._again = True
        if frame.kind == Kind.CONTROL:
            return
        ahead = frame.seq - self._expected & 0xFF
        if ahead == 0:
            self._expected = self._expected + 1 & 0xFF
            self._unsaid += 1
            self._asked = False
            self.awaiting -= 1
            out.append((frame.kind, frame.payload))
        elif ahead < WINDOW:
            self._poll |= not self._asked
            self._asked = True
        else:
            self.duplicates += 1
            self._unsaid = ACK_SLACK  # it may not know that we have it

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""A model of what the cold-tier scheduler may do next, and a tier that says what its bench wants
(see :mod:`kelp_verif.miss.cold_contract_bench`)."""

from collections import deque
from dataclasses import dataclass

from kelp_hw.miss.cold_scheduler import ColdScheduler
from kelp_spec.metadata import ColdOp, ColdStatus

from .cold_scheduler_tb import TB
from .flash import LINE_BYTES, Completion, FlashPort

__all__ = ["ContractTB", "Entry"]

#: The engine reads, looks and acts; a command is in sight two cycles after its act.
CHOICE_TO_ACT, ACT_TO_SIGHT = 3, 2
#: From a fetch to where its entry can be chosen.
TO_LINE = ColdScheduler.LATENCY - CHOICE_TO_ACT - ACT_TO_SIGHT
_RANKS = ("demand", "prefetch", "write")


@dataclass
class Entry:
    """One fetch or write-back.

    `phase`: "waits" for its first command, "flies", "abort shown" (not yet accepted), "aborting",
    or "answered" by the tier: then `verdict` is (cycle, status, line mask), and the entry waits to
    be sent again or for its answer.
    """

    request: dict
    kind: str  #: "demand", "prefetch", "write"
    since: int  #: cycle in which it was asked for, or raised
    phase: str = "waits"
    tries: int = 0
    attempt: int | None = None
    given: int = 0  #: cycle at the earliest in which the engine gave its last command
    accepted: int | None = None  #: cycle in which the tier took its last command
    verdict: tuple | None = None


class _Mouth:
    """In place of a flash: `done` is what it says next."""

    def __init__(self):
        self.done: deque[Completion] = deque()
        self.pages = {}

    def advance(self, now):
        pass

    def submit(self, now, command):
        pass


class ContractTB(TB):
    """Holds each command, answer and pulse to the contract. What the tier says is up to the bench
    (:meth:`say`), but for two things: it says nothing of a command that it has not seen, and
    ABORTED of no id whose ABORT it has not accepted."""

    def tier(self):
        self.flash = _Mouth()
        return FlashPort(
            self.dut,
            self.flash,
            self.config,
            command="o_command",
            completion="i_completion",
            seed=self.rng.getrandbits(32),
        )

    async def reset(self, *, timeout, retries):
        c = self.config
        self.timeout, self.most = timeout, retries + 1
        self.count = c.misses + c.write_backs  #: of entries
        self.entries: dict[int, Entry] = {}
        self.attempts: dict[int, int] = {}  # index → attempt bit of its last command
        self.times: list[int] = []  # the time base, by cycle
        self.free = deque([True, True], 2)  # a command could come into sight, in the last cycles
        self.given = self.shown_at = 0  # of the last command in sight
        self.shown = False
        self.overdue: deque[int] = deque()  # cycles of timeouts whose ABORT is not in sight
        self.stood = self.slowest = 0  # cycles for which completions stood at the port
        self.fetching, self.writing, self.unread, self.offer = {}, {}, set(), None
        self.free_misses, self.free_frames = list(range(c.misses)), list(range(c.total_frames))
        self.memory.lent.clear()
        self.flash.done.clear()
        self.port.offered = None
        self.answers, self.commands = [], []
        self.cycles = self.retries = self.timeouts = self.aborts = 0
        await super().reset(timeout=timeout, retries=retries)

    def age(self, cycle, since):
        """On the time base."""
        return (self.times[cycle] - self.times[since]) & 0xFFFFFFFF

    async def cycle(self, *, fetch=None, raise_=None, write=None, ready=1.0):
        if fetch:
            kind = "demand" if fetch["demand"] else "prefetch"
            self.entries[fetch["miss"]] = Entry(fetch, kind, self.cycles)
        if (raised := self.entries.get(raise_)) and raised.kind == "prefetch" and not raised.tries:
            raised.kind, raised.since = "demand", self.cycles
        self.times.append(self.now)
        written = self.offer or write
        done = await super().cycle(fetch=fetch, raise_=raise_, write=write, ready=ready)
        if written and done:
            self.entries[self.config.misses + written["token"]] = Entry(
                written, "write", self.cycles - 1
            )
        return done

    def watch(self):
        dut = self.dut
        if dut.o_timeout.value == 1:
            self.overdue.append(self.cycles)
        if self.port.taken is not None:
            self.slowest, self.stood = max(self.slowest, self.stood), 0
            self.heard(self.port.taken)
        elif self.port.offered is not None:
            self.stood += 1
        valid, ready = dut.o_command__valid.value == 1, dut.o_command__ready.value == 1
        if valid:
            command = self.port.shown()
            if not self.shown:
                self.sight(command)
            if ready:
                self.accept(command)
        self.shown = valid and not ready
        self.free.append(not self.shown)

    # - commands -----------------------------------------------------------------------------------
    def sight(self, command):
        """A command comes into sight: may it, and is it its turn?"""
        now, entry = self.cycles, self.entries.get(command.index)
        assert entry, f"{command} for nobody"
        # In which cycle its act was: known, unless it may have waited behind another.
        self.given = (
            now - ACT_TO_SIGHT
            if self.free[0]
            else max(self.shown_at - 1, self.given + ColdScheduler.TURN, entry.since)
        )
        self.shown_at = now
        self.order(command, entry)
        if command.op == ColdOp.ABORT:
            assert entry.accepted is not None, f"{command} before its command"
            assert entry.phase in ("flies", "answered"), f"{command} for {entry}"
            assert command.attempt == entry.attempt, f"{command} for {entry}"
            assert self.age(now, entry.given) >= self.timeout, "aborted too early"
            if entry.verdict:
                assert self.age(entry.verdict[0], entry.given) >= self.timeout, (
                    f"{entry} came in time and does not count"
                )
            entry.phase, entry.verdict, entry.accepted = "abort shown", None, None
            return
        if entry.tries:
            self.over(entry)
        assert entry.tries < self.most, "tried too often"
        assert self.attempts.get(command.index) != command.attempt, "its attempt bit stays"
        self.attempts[command.index] = entry.attempt = command.attempt
        entry.tries += 1
        entry.phase, entry.verdict, entry.accepted = "flies", None, None
        entry.given = self.given

    def over(self, entry):
        """The entry's last try has ended without success."""
        if entry.phase == "answered":
            assert entry.verdict[1] != ColdStatus.OK, f"success counts as none: {entry}"
        else:
            assert entry.phase == "aborting", f"{entry}: its try is not over"
            assert self.age(self.cycles, entry.accepted) >= self.timeout, "its ABORT is not over"

    def order(self, command, entry):
        """Nothing that goes first stood in line when `command` was chosen."""
        chosen = self.given - CHOICE_TO_ACT
        if command.op == ColdOp.ABORT:
            self.overdue.popleft()
            return
        assert not self.overdue or self.overdue[0] + TO_LINE > chosen, "an ABORT was overtaken"
        mine = _RANKS.index("demand" if entry.kind == "prefetch" and entry.tries else entry.kind)
        for other in self.entries.values():
            if other.phase == "waits":
                since, rank = other.since, _RANKS.index(other.kind)
            elif (
                other.phase == "answered"
                and other.verdict[1] != ColdStatus.OK
                and other.tries < self.most
            ):
                since, rank = other.verdict[0], 2 if other.kind == "write" else 0
            else:
                continue
            assert rank >= mine or since + TO_LINE > chosen, f"{command} overtook {other}"

    def accept(self, command):
        entry = self.entries[command.index]
        entry.accepted = self.cycles
        if command.op == ColdOp.ABORT:
            entry.phase = "aborting"

    def sent(self, command):
        self.commands.append(command)
        if command.op == ColdOp.ABORT:
            self.aborts += 1
            return
        self.unread.discard(command.index)
        entry = self.entries[command.index]
        want = ColdOp.WRITE if entry.kind == "write" else ColdOp.READ
        address, length = self.place(entry.request["frame"])
        assert (command.op, command.lba, command.line * LINE_BYTES, command.lines * LINE_BYTES) == (
            want,
            self.lba(entry.request),
            address,
            length,
        ), f"{command} for {entry}"
        if want == ColdOp.WRITE:
            mask = entry.request["line_mask.valid"], entry.request["line_mask.poison"]
            # Two flips in its mask are told with it.
            assert (command.valid, command.poison) == mask or self.faults.flipped > 1

    # - completions and answers --------------------------------------------------------------------
    def heard(self, c: Completion):
        """A completion has been taken: does it count?"""
        entry = self.entries.get(c.index)
        if entry is None or c.attempt != entry.attempt:
            return
        aborted = c.status == ColdStatus.ABORTED
        if (entry.phase == "flies" and not aborted) or (entry.phase == "aborting" and aborted):
            entry.phase = "answered"
            entry.verdict = self.cycles, c.status, (c.valid, c.poison)

    def answered(self, index, failed):
        entry = self.entries.pop(index)
        if failed:
            assert entry.tries == self.most, f"given up after {entry.tries} of {self.most}"
            self.over(entry)
        else:
            assert entry.phase == "answered" and entry.verdict[1] == ColdStatus.OK, (
                f"success of {entry}"
            )
        self.answers.append((entry.request, bool(failed)))
        return entry

    def got_fetched(self, got):
        entry = self.answered(got["miss"], got["failed"])
        if not got["failed"]:
            assert (got["line_mask.valid"], got["line_mask.poison"]) == entry.verdict[2]
        self.free_misses.append(got["miss"])
        self.take_back(self.fetching.pop(got["miss"]))
        entry.request["tries"] = entry.tries

    def got_written_back(self, got):
        entry = self.answered(self.config.misses + got["token"], got["failed"])
        self.take_back(self.writing.pop(got["token"]))
        entry.request["tries"] = entry.tries

    # - what the tier says -------------------------------------------------------------------------
    def say(self, index, attempt, status):
        lines, rng = self.config.page_lines, self.rng
        self.flash.done.append(
            Completion(index, attempt, status, rng.getrandbits(lines), rng.getrandbits(lines))
        )

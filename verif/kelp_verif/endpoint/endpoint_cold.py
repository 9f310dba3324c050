# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The cold-tier port as the scoreboard sees it: every command and completion, what they mean for
the host's lines, and which tries go wrong.

Checked here: an LBA is read only when its session is open (or closing) and flash holds the page;
what is fetched is what the host wrote last, so no dirty page was dropped; a failed or lost command
is tried again exactly `retries` times, with the same place.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

from kelp_spec.config import Config
from kelp_spec.metadata import ColdOp, ColdStatus, Event

from ..miss.flash import Command, Completion
from .endpoint_model import POISON, ZEROS, Model, Page

__all__ = ["ColdWatch", "Faults"]


@dataclass
class Faults:
    """Chances of one page transfer: to fail once (and be well when tried again), to fail for good;
    and of one failing try to be silence instead."""

    once: float = 0.0
    for_good: float = 0.0
    silent: float = 0.0
    deaf: float = 0.0  #: an ABORT that works but is not answered


@dataclass
class _Transfer:
    """A fetch or write-back, through all its tries."""

    command: Command
    page: Page
    bad_tries: int
    tries: int = 1
    over: bool = False
    aborting: bool = False
    silent_until: int = 0  #: the endpoint waits for an ABORT's completion until then
    snapshot: dict | None = None


class ColdWatch:
    """Told each command (before the flash is) and each completion as it is accepted. `fails`,
    `silent` and `deaf` are the flash's hooks."""

    def __init__(self, config: Config, model: Model, *, timeout: int, retries: int, seed: int):
        self.config, self.model, self.timeout, self.retries = config, model, timeout, retries
        self.rng = random.Random(seed)
        self.faults = Faults()
        self.visible = lambda: ()  #: requests whose answers stand on the S2M ports
        self.reset()

    def reset(self) -> None:
        self.transfers: dict[int, _Transfer] = {}
        self.count = Counter()
        self.seen = Counter()

    def busy(self, now: int) -> bool:
        """A command is under way, or the endpoint may think so: only a deadline will tell it
        otherwise."""
        return any(not t.over or now < t.silent_until for t in self.transfers.values())

    # - the flash's manners ------------------------------------------------------------------------
    def _bad(self, command: Command) -> bool:
        transfer = self.transfers[command.index]
        return transfer.tries <= transfer.bad_tries

    def fails(self, command: Command) -> bool:
        return self._bad(command)

    def silent(self, command: Command) -> bool:
        return self._bad(command) and self.rng.random() < self.faults.silent

    def deaf(self, command: Command) -> bool:
        return self.rng.random() < self.faults.deaf

    # - what passes --------------------------------------------------------------------------------
    def command(self, c: Command, now: int) -> None:
        if c.op == ColdOp.ABORT:
            transfer = self.transfers.get(c.index)
            assert (
                transfer
                and not transfer.over
                and not transfer.aborting
                and transfer.command.attempt == c.attempt
            ), f"{c}: there is no such command"
            self.seen["timeout"] += 1
            self._tried(transfer)
            transfer.aborting = True
            # One register keeps the time of the last ABORT, for all of them: whoever waits for an
            # answer waits as long as this one may.
            for waiting in (
                transfer,
                *(t for t in self.transfers.values() if t.silent_until > now),
            ):
                waiting.silent_until = (
                    now + self.timeout + 8 * (self.config.misses + self.config.write_backs)
                )
            return
        transfer = self.transfers.get(c.index)
        if transfer and not transfer.over:
            old = transfer.command
            same = (c.op, c.lba, c.line, c.lines) == (old.op, old.lba, old.line, old.lines)
            assert same and (
                c.op == ColdOp.READ or (c.valid, c.poison) == (old.valid, old.poison)
            ), f"{c}: is no retry of {old}"
            assert c.attempt != old.attempt, f"{c}: a retry under the same id"
            transfer.command, transfer.tries, transfer.aborting = c, transfer.tries + 1, False
            self.seen["retry"] += 1
        else:
            self.transfers[c.index] = transfer = self._new(c)
        if c.op == ColdOp.WRITE:
            transfer.snapshot = {
                line: self.model.may_hold(transfer.page, line)
                for line in range(self.config.page_lines)
            }

    def _new(self, c: Command) -> _Transfer:
        config, rng = self.config, self.rng
        assert (c.index < config.misses) == (c.op == ColdOp.READ), f"{c}: not an index of its kind"
        squeue_page, rest = divmod(c.lba, config.cold_slot_sectors)
        squeue, page = divmod(squeue_page, config.pages)
        session, queue = divmod(squeue, config.queues)
        assert not rest and session < config.sessions, f"{c}: not the LBA of a page"
        pools = [p for p in range(len(config.frames)) if config.pool_base_line[p] <= c.line]
        assert (
            c.lines == config.frame_lines[pools[-1]]
            and not (c.line - config.pool_base_line[pools[-1]]) % c.lines
        ), f"{c}: not a frame"
        assert self.model.sessions[session].state != "closed", f"{c}: its session is closed"
        known = self.model.page((session, queue, page))
        for request in self.visible():
            if request.line and request.line[0] is known:
                self.model.take_effect(request)
        if c.op == ColdOp.READ:
            assert known.cold is not None, (
                f"{c}: flash has nothing of page {(session, queue, page)} that may be read"
            )
            self.seen["fetch"] += 1
        else:
            self.seen["write_back"] += 1
        chance = rng.random()
        bad = (
            99
            if chance < self.faults.for_good
            else 1
            if chance < self.faults.for_good + self.faults.once
            else 0
        )
        return _Transfer(c, known, bad)

    def completion(self, c: Completion) -> None:
        transfer = self.transfers.get(c.index)
        assert transfer, f"{c}: completes no command since the reset"
        if c.status == ColdStatus.ABORTED:
            transfer.silent_until = 0
            return
        assert not transfer.over and not transfer.aborting, (
            f"{c}: took longer than the timeout; the bench must allow for more"
        )
        if c.status == ColdStatus.FAILED:
            self._tried(transfer)
            return
        transfer.over = True
        page = transfer.page
        if transfer.command.op == ColdOp.WRITE:
            self.count["write_backs"] += 1
            page.cold = transfer.snapshot
            return
        self.count["fetches"] += 1
        for line in range(self.config.page_lines):
            here, there = page.content(line), page.cold.get(line, (ZEROS,))
            both = tuple(content for content in here if content in there)
            if page.failed or page.doubt:
                page.lines[line] = there if page.failed else tuple({*here, *there})
                continue
            assert both, (
                f"page {page.key} line {line} was fetched as it was before the last write to "
                + f"it: {there}, not {here}"
            )
            page.lines[line] = both
        page.failed = False

    def lost(self, page: Page) -> None:
        """The page's word is lost: what is under way for it ends without meaning anything to a
        host."""
        for transfer in self.transfers.values():
            if transfer.page is page:
                transfer.page = Page(page.key, cold={}, failed=True)

    def _tried(self, transfer: _Transfer) -> None:
        """A try is over without success."""
        if transfer.tries <= self.retries:
            return
        transfer.over = True
        key = transfer.page.key
        squeue = key[0] * self.config.queues + key[1]
        if transfer.command.op == ColdOp.WRITE:
            self.count["failed_write_backs"] += 1
            self.model.must[Event.WRITE_BACK_FAILED, squeue, key[2]] += 1
        else:
            self.count["failed_fetches"] += 1
            self.model.must[Event.FETCH_FAILED, squeue, key[2]] += 1
            transfer.page.lines = dict.fromkeys(range(self.config.page_lines), (POISON,))
            transfer.page.failed = True

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Closer: in the engine, sessions close while pages come and go; alone, every page of theirs is
scrubbed, in order, and again from the first that was not."""

import random
from collections import deque

from eviction_runs import SMALL, run
from simulation import simulate

from kelp_hw.eviction.closer import Closer
from kelp_spec.config import named
from kelp_spec.metadata import Op, Outcome, PageState


def test_sessions_close_under_traffic():
    run(SMALL, "closes", closes=6)


#: Sessions and queues are no powers of two.
ODD = named("unit").with_(sessions=3, queues=3)
WAIT = 9


class World:
    """Sessions that close, and M3, which decides ops a few cycles later, in order. `busy`: how
    often a page is still refused; `resident`: pages that have a frame, which is free some time
    after the page has gone."""

    def __init__(self, seed):
        self.dut, self.rng, self.seed = Closer(config=ODD), random.Random(seed), seed
        self.dut.WAIT = WAIT
        self.cycle, self.rested = 0, 0
        self.session = self.cursor = self.last = self.again = None
        self.pipe, self.frees, self.standing = deque(), [], None
        self.busy, self.resident, self.gone = {}, set(), set()
        self.closes, self.retries, self.most = 0, 0, 0

    def begin(self, ctx):
        rng = self.rng
        self.session = rng.randrange(ODD.sessions)
        queues, pages = (rng.choice((0, rng.randint(1, n))) for n in (ODD.queues, ODD.pages))
        if not self.closes % 4:  # as much as there can be at once
            queues, pages = ODD.queues, ODD.pages
        for session in range(ODD.sessions):
            given = self.dut.sessions[session]
            ours = session == self.session
            ctx.set(given.closing, ours)
            ctx.set(given.used_queues, queues if ours else rng.randrange(ODD.queues + 1))
            ctx.set(given.used_pages, pages if ours else rng.randrange(ODD.pages + 1))
        self.began, self.found = self.cycle, False
        # Now and then so late that nothing but ops, or nothing but frames, is owed.
        usual, odd = ((3, 9), (3, 80)), (((34, 40), (3, 3)), ((3, 3), (200, 300)))
        self.late = usual if self.closes % 4 else rng.choice(odd)
        first = self.session * ODD.queues
        self.pages = [(first + q, p) for q in range(queues) for p in range(pages)]
        self.cursor, self.again, self.gone = 0 if self.pages else None, None, set()
        self.resident = {page for page in self.pages if not self.closes % 4 or rng.random() < 0.5}
        self.busy = {page: rng.randint(1, 3) for page in self.pages if rng.random() < 0.15}

    def result(self, ctx):
        """What M3 says in this cycle: of an op of the closer's, or of another one."""
        dut, rng, token = self.dut, self.rng, self.dut.layouts.scrub_token
        ctx.set(dut.i_result.valid, 1)
        if self.frees and self.frees[0] <= self.cycle and rng.random() < 0.5:
            self.frees.pop(0)
            ctx.set(dut.i_result.p, {"op": {"kind": Op.FREE, "slot": token}})
        elif self.pipe and self.pipe[0][0] <= self.cycle:
            self.decide(ctx, self.pipe.popleft()[1])
        elif rng.random() < 0.5:
            page = {"squeue": rng.randrange(9), "page": rng.randrange(8)}
            kind, slot = rng.choice(((Op.READ, token), (Op.FREE, token ^ 1), (Op.PEEK, token)))
            fields = {"outcome": Outcome.RETRY, "old": {"state": PageState.RESIDENT}}
            ctx.set(dut.i_result.p, {"op": page | {"kind": kind, "slot": slot}} | fields)
        else:
            ctx.set(dut.i_result.valid, 0)

    def decide(self, ctx, page):
        state, outcome = PageState.ABSENT, Outcome.DONE
        if self.busy.get(page):
            self.busy[page] -= 1
            state = self.rng.choice((PageState.RESIDENT, PageState.FETCHING))
            outcome, self.retries = Outcome.RETRY, self.retries + 1
            self.again = self.again if self.again is not None else self.pages.index(page)
        else:
            if page in self.resident:
                state = PageState.RESIDENT
                self.resident.remove(page)
                self.frees.append(self.cycle + self.rng.randint(*self.late[1]))
                self.frees.sort()
            self.gone.add(page)
        op = {"kind": Op.SCRUB, "squeue": page[0], "page": page[1]}
        op["slot"] = self.dut.layouts.scrub_token
        ctx.set(self.dut.i_result.p, {"op": op, "outcome": outcome, "old": {"state": state}})
        self.rested = self.cycle

    def take(self, ctx):
        """The op that is offered: what it must be, and what follows where it is taken."""
        port = self.dut.o_op
        names = ("kind", "session", "squeue", "page", "slot")
        offer = ctx.get(port.valid) and tuple(ctx.get(port.p[name]) for name in names)
        assert self.standing in (None, offer), f"seed {self.seed}: the offer does not stand"
        self.standing = None if not offer or ctx.get(port.ready) else offer
        at = f"seed {self.seed}, cycle {self.cycle}"
        if not offer:
            # Each session is looked at in its cycle, and then its first op stands.
            assert self.found or self.cycle < self.began + ODD.sessions, at
            return
        self.found = True
        if offer[0] == Op.CLOSED:
            assert self.cursor is None and self.again is None and not (self.pipe or self.frees), at
            assert offer[1] == self.session and self.gone == set(self.pages), at
        else:
            if self.cursor is None:
                assert self.cycle >= self.rested + WAIT and not self.pipe, at
            page = self.pages[self.again if self.cursor is None else self.cursor]
            token = self.dut.layouts.scrub_token
            assert offer == (Op.SCRUB, self.session, *page, token), at
        if not ctx.get(port.ready):
            return
        if offer[0] == Op.CLOSED:
            self.closes, self.session = self.closes + 1, None
            return
        if self.cursor is None:
            self.cursor, self.again = self.again, None
        self.pipe.append((self.cycle + self.rng.randint(*self.late[0]), offer[2:4]))
        self.cursor = self.cursor + 1 if self.cursor + 1 < len(self.pages) else None
        self.most = max(self.most, len(self.pipe) + len(self.frees))
        assert len(self.pipe) + len(self.frees) <= Closer.IN_FLIGHT, at


def test_every_page_is_scrubbed_and_waited_for():
    world = World(3)

    async def bench(ctx):
        rests, pause = 0, 5
        for world.cycle in range(5000):
            rests = rests + 1 if world.session is None else 0
            if rests > pause:
                pause = world.rng.randint(3, 9)
                world.begin(ctx)
            elif rests:
                for session in range(ODD.sessions):
                    ctx.set(world.dut.sessions[session].closing, 0)
            world.result(ctx)
            ctx.set(world.dut.o_op.ready, world.rng.random() < 0.7)
            if 1 < rests and world.session is None:
                assert ctx.get(world.dut.idle) and not ctx.get(world.dut.o_op.valid)
            elif not rests:
                assert not ctx.get(world.dut.idle)
                world.take(ctx)
            await ctx.tick()

    simulate(world.dut, bench)
    assert world.closes > 8 and world.retries > 5 and world.most >= Closer.IN_FLIGHT - 1

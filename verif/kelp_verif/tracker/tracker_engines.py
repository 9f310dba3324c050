# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The engines around the tracker, as far as it can tell: grants, fills, replays, evictions,
recoveries, sessions."""

from collections import deque

from kelp_golden.ops import Op, Session
from kelp_spec.metadata import STEP_BITS, Event, MissKind, Outcome, PageState
from kelp_spec.metadata import Op as K

from .tracker_tb import TB


class Engines:
    """Random requests, hints and sessions, and engines that answer for their consequences."""

    def __init__(self, tb: TB):
        self.tb, self.rng, self.golden, self.config = tb, tb.rng, tb.golden, tb.config
        c = self.config
        self.entries = {}  # miss id → dict
        self.claims, self.to_free, self.orphans = [], deque(), []
        self.busy = set()  # what an op on its way works on
        self.harmless = []  # RECOVERs of frames that nobody misses
        self.closing = None
        self.scrub = 0
        self.failed = 0.03  # of the waits for a frame, those that end without one
        self.p = {
            "request": 0.9,
            "miss": 0.6,
            "control": 0.05,
            "hint": 0.3,
            "evict": 0.5,
            "prefetch": 0.2,
        }
        self.focus = [(0, 0)] * 4
        self.credits = dict.fromkeys(("data", "miss", "score", "queue", "event", "free"), 1.0)
        self.places = [(q, p) for q in range(c.squeues) for p in range(c.pages)]
        tb.want_request = self.request
        tb.want = {
            "miss": self.miss,
            "control": self.control,
            "hint": self.hint,
            "evict": self.evict,
            "prefetch": self.prefetch,
        }
        tb.after, tb.credit = self.after, self.credit

    def credit(self, name):
        ok = self.rng.random() < self.credits[name]
        if name == "miss":
            # Requests on their way are not counted here: that is what RESERVE is for.
            ok = ok and sum(self.golden.pending) + 8 <= self.config.parked
        return int(ok)

    def wants(self, stream):
        return self.rng.random() < self.p[stream]

    def page(self):
        rng = self.rng
        if rng.random() < 0.75:
            return rng.choice(self.focus)
        where = rng.choice(self.places)
        if rng.random() < 0.2:
            self.focus[rng.randrange(len(self.focus))] = where
        return where

    def op(self, kind, squeue, page, **fields):
        return Op(kind, session=squeue // self.config.queues, squeue=squeue, page=page, **fields)

    # - what each stream wants ---------------------------------------------------------------------
    def request(self):
        rng, c = self.rng, self.config
        if not self.wants("request"):
            return None
        squeue, page = self.page()
        session = self.golden.sessions[squeue // c.queues]
        odd = rng.random()
        op = self.op(
            K.READ,
            squeue,
            page,
            kv_line=rng.randrange(2) * c.half_lines + rng.randrange(max(1, session.used_lines)),
            ld_id=session.ld_id,
            origin=rng.getrandbits(16),
        )
        if rng.random() < 0.5:
            op.kind, op.write, op.has_write = K.WRITE, 1, 1
            op.partial, op.poison, op.write_slot = (
                rng.getrandbits(1),
                rng.getrandbits(1),
                rng.randrange(c.write_slots),
            )
        elif c.coherence:
            op.partial = rng.getrandbits(1)  # for ownership
        if odd < 0.02:
            op.ld_id ^= 1 << rng.randrange(4)
        elif odd < 0.04:
            # any line, but the first one outside more often than not
            beyond = rng.randrange(2) * c.half_lines + session.used_lines % c.half_lines
            op.kv_line = rng.choice((beyond, rng.randrange(c.page_lines)))
        elif odd < 0.06:
            op.refused = rng.choice([event for event in Event if event != Event.NONE])
        elif odd < 0.08 and not op.write:
            op.no_memory = 1
        return op

    def miss(self):
        rng = self.rng
        if not self.wants("miss"):
            return None
        idle = [(i, e) for i, e in self.entries.items() if ("miss", i) not in self.busy]
        if not idle:
            return None
        i, e = rng.choice(idle)
        op = self.op(
            K.GRANT,
            e["squeue"],
            e["page"],
            miss=i,
            pool=e["pool"],
            frame=e["frame"] or 0,
            miss_kind=e["kind"],
            lost=e["lost"],
        )
        if e["frame"] is None and not e["failed"]:
            if not self.golden.pools[e["pool"]].free and rng.random() < 0.95:
                return None  # a GRANT in vain only now and then
            op.failed = int(rng.random() < self.failed)
        elif not e["filled"]:
            op.kind, op.failed, op.source = K.FILL, int(rng.random() < 0.1), rng.randrange(6)
            op.lost = int(e["lost"] and e["kind"] == MissKind.ALLOCATE)
        elif e["parked"] and rng.random() < 0.9:
            r = e["parked"].popleft()
            op.kind, op.failed = K.REPLAY, e["failed"]
            for name in (
                "kv_line",
                "write",
                "partial",
                "poison",
                "has_write",
                "write_slot",
                "ld_id",
                "origin",
            ):
                setattr(op, name, getattr(r, name))
            e["dropped"] |= op.write & op.failed
        else:
            op.kind, op.failed, op.slot, op.lost = K.FLIP, e["failed"], 15, e["dropped"]
        self.busy.add(("miss", i))
        return op

    def control(self):
        rng = self.rng
        if not self.wants("control") or "control" in self.busy:
            return None
        closed = [s for s, x in enumerate(self.golden.sessions) if not x.open]
        s = rng.randrange(self.config.sessions)
        pick = rng.random()
        if closed and pick < 0.5:
            self.busy.add("control")
            self.tb.show_descriptor(self.descriptor(rng.choice(closed)))
            return Op(K.OPEN, session=rng.choice(closed))
        if pick < 0.03 and self.golden.sessions[s].open:
            if self.closing is None:
                self.closing, self.scrub = s, 0
                return Op(K.CLOSE, session=s)
            return Op(K.CLOSE, session=self.closing)
        if pick < 0.5:
            # Steps that differ in one bit alone, whichever it is, are different.
            delta = rng.choice((1, 1, 3, (1 << 24) - 2, 1 << rng.randrange(STEP_BITS)))
            return Op(K.STEP, session=s, delta=delta)
        return self.op(K.PEEK, *self.page())

    def descriptor(self, s):
        rng, c = self.rng, self.config

        def used(most):
            return rng.choice((most, most, most - 1, rng.randint(1, most)))

        return Session(
            ld_id=rng.randrange(16),
            host_type=rng.getrandbits(1),
            used_queues=1 if rng.random() < 0.12 else used(c.queues),
            used_lines=used(c.half_lines),
            k_only=int(rng.random() < 0.2),
            used_pages=used(c.pages),
            kv_heads=rng.getrandbits(c.queue_bits + 1),
            step=rng.choice((0, (1 << 24) - 2, rng.getrandbits(STEP_BITS))),
        )

    def hint(self):
        rng = self.rng
        if not self.wants("hint"):
            return None
        squeue, page = self.page()
        kinds = K.MASS, K.PIN, K.PIN, K.UNPIN, K.STEP if rng.random() < 0.1 else K.MASS
        if self.config.select:  # ops of a choice come in the same stream
            kinds += K.HOLD, K.HOLD, K.UNHOLD, K.LOOK
        kind = rng.choice(kinds)
        delta = 1 if kind == K.STEP else 0
        op = self.op(kind, squeue, page, mass=rng.getrandbits(16), delta=delta)
        if kind == K.LOOK:
            op.kv_line = rng.randrange(self.config.half_lines)
            op.ld_id, op.origin = rng.randrange(16), rng.getrandbits(16)
        return op

    def prefetch(self):
        if not self.wants("prefetch"):
            return None
        return self.op(K.PREFETCH, *self.page(), source=self.rng.randrange(1, 6))

    def evict(self):
        rng = self.rng
        if not self.wants("evict"):
            return None
        choice = rng.random()
        if self.to_free and choice < 0.3:
            pool, frame, squeue, page = self.to_free.popleft()
            return self.op(K.FREE, squeue, page, pool=pool, frame=frame, slot=8)
        if self.claims and choice < 0.5:
            squeue, page, frame = claim = rng.choice(self.claims)
            if ("release", claim) not in self.busy:
                self.busy.add(("release", claim))
                failed = int(rng.random() < 0.2)
                written = rng.getrandbits(1)
                return self.op(
                    K.RELEASE, squeue, page, frame=frame, failed=failed, slot=1, written=written
                )
        if self.orphans and choice < 0.6:
            squeue, page, frame = orphan = rng.choice(self.orphans)
            if ("recover", orphan) not in self.busy and not any(
                claim[:2] == (squeue, page) for claim in self.claims
            ):
                self.busy.add(("recover", orphan))
                return self.op(K.RECOVER, squeue, page, frame=frame, slot=9)
        if self.closing is not None and rng.random() < 0.6:
            return self.close()
        squeue, page = self.page()
        if choice < 0.75 and (
            resident := [
                k
                for k, w in self.golden.words.items()
                if w.state == PageState.RESIDENT and not w.pinned
            ]
        ):
            squeue, page = divmod(rng.choice(resident), self.config.pages)
        word = self.golden.word(squeue, page)
        if choice < 0.85:
            if (
                any(claim[:2] == (squeue, page) for claim in self.claims)
                or ("claim", squeue, page) in self.busy
                or (squeue, page) in self.lost_pages()
            ):
                return None
            self.busy.add(("claim", squeue, page))
            other = (rng.random() < 0.1) << rng.randrange(STEP_BITS)
            return self.op(K.CLAIM, squeue, page, delta=word.last_step ^ other, slot=2)
        if choice < 0.88:
            return self.op(K.SCRUB, squeue, page, slot=8)
        if (
            choice < 0.9
            and word.state in (PageState.RESIDENT, PageState.WRITING_BACK)
            and not self.busy & {("claim", squeue, page)}
        ):
            return None if self.claims else self.op(K.PEEK, squeue, page, frame=word.place, slot=9)
        if choice < 0.93 and word.state in (PageState.RESIDENT, PageState.WRITING_BACK):
            # The word's own frame: VOID, if it is still there when it gets to M3; or one whose
            # number differs in a bit.
            other = (rng.random() < 0.6) << rng.randrange(self.config.frame_bits)
            op = self.op(K.RECOVER, squeue, page, frame=word.place ^ other, slot=9)
            self.harmless.append(op)
            return op
        return self.op(K.SCAN, squeue, page, slot=rng.randrange(16))

    def lost_pages(self):
        return {o[:2] for o in self.orphans}

    def close(self):
        """Scrubs the session's pages again and again until all are ABSENT and nothing is owed; then
        CLOSED."""
        c, s, golden = self.config, self.closing, self.golden
        if not golden.sessions[s].closing:
            return None
        base = s * c.queues * c.pages
        mine = range(base, base + c.queues * c.pages)
        owed = [e for e in self.entries.values() if e["squeue"] // c.queues == s]
        owed += [x for x in (*self.claims, *self.orphans) if x[0] // c.queues == s]
        if (
            not owed
            and not self.to_free
            and not any(k in golden.words for k in mine)
            and not self.busy - {"control"}
            and not self.tb.entered
        ):
            self.busy.add("closed")
            return Op(K.CLOSED, session=s)
        self.scrub = (self.scrub + 1) % len(mine)
        return self.op(K.SCRUB, *divmod(base + self.scrub, c.pages), slot=8)

    # - what a result means to them ----------------------------------------------------------------
    def after(self, op, r, before):
        here = op.squeue, op.page
        kind = op.kind
        if r.uncorrected and before.state in (PageState.RESIDENT, PageState.WRITING_BACK):
            self.orphans.append((*here, before.place))
        if kind in (K.READ, K.WRITE) and r.outcome == Outcome.MISSED:
            cold = r.old.state == PageState.COLD
            self.entries[r.miss] = {
                "kind": MissKind.DEMAND if cold else MissKind.ALLOCATE,
                "squeue": here[0],
                "page": here[1],
                "pool": r.pool,
                "frame": None,
                "failed": 0,
                "filled": False,
                "parked": deque([op]),
                "lost": int(r.old.state == PageState.LOST),
                "dropped": 0,
            }
        elif kind in (K.READ, K.WRITE) and r.outcome == Outcome.PARKED:
            self.entries[r.miss]["parked"].append(op)
        elif kind == K.PREFETCH and r.outcome == Outcome.MISSED:
            self.entries[r.miss] = {
                "kind": MissKind.PREFETCH,
                "squeue": here[0],
                "page": here[1],
                "pool": r.pool,
                "frame": r.frame,
                "failed": 0,
                "filled": False,
                "parked": deque(),
                "lost": 0,
                "dropped": 0,
            }
        elif kind in (K.GRANT, K.FILL, K.REPLAY, K.FLIP):
            self.busy.discard(("miss", op.miss))
            e = self.entries[op.miss]
            if kind == K.GRANT and r.outcome == Outcome.DONE:
                e["failed"], e["filled"] = op.failed, bool(op.failed)
                e["frame"] = None if op.failed else r.frame
            elif kind == K.FILL:
                e["filled"] = True
            elif kind == K.FLIP and r.outcome != Outcome.RETRY:
                del self.entries[op.miss]
                self.tb.miss_ids.append(op.miss)
                self.golden.return_miss(op.miss)
                if r.outcome == Outcome.ORPHAN:
                    self.to_free.append((e["pool"], op.frame, *here))
        elif kind == K.CLAIM:
            self.busy.discard(("claim", *here))
            if r.outcome == Outcome.DONE:
                self.claims.append((*here, r.frame))
        elif kind == K.RELEASE:
            self.busy.discard(("release", (*here, op.frame)))
            self.claims.remove((*here, op.frame))
        elif kind == K.SCRUB and r.use:
            self.to_free.append((r.pool, r.frame, *here))
        elif kind == K.RECOVER and any(op is each for each in self.harmless):
            self.harmless = [each for each in self.harmless if each is not op]
        elif kind == K.RECOVER:
            self.busy.discard(("recover", (*here, op.frame)))
            if r.outcome == Outcome.ORPHAN:
                self.orphans.remove((*here, op.frame))
                self.to_free.append((r.pool, op.frame, *here))
        elif kind == K.CLOSED:
            self.busy.discard("closed")
            self.closing = None
        elif kind == K.OPEN:
            self.busy.discard("control")

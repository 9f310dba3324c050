# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The prefetcher against its golden model in lock-step and by conservation in free running; what it
accepts a cycle."""

from collections import Counter, deque

import cocotb

from kelp_golden.prefetch import Prefetcher
from kelp_hw.layouts import DropReason
from kelp_hw.prefetch.prefetch import HINT_PATIENCE
from kelp_spec.config import named
from kelp_spec.messages import LD_ID_BITS
from kelp_spec.metadata import PrefetchSource

from ..harness.runner import bench_params, record
from .prefetch_parts_bench import SortedList
from .prefetch_tb import SOURCES, TB

#: In lock-step, the trigger up to which there are only these: by then the credits of what they
#: suggest have fallen.
_FALLS = {"hint": 140, "spec": 600, "access": 1250}


def same_counts(tb, golden):
    """What the block has counted is what the golden model has."""
    for s in SOURCES:
        for name, counter in (
            ("issued", golden.issued),
            ("REFUSED", golden.refused),
            ("useful", golden.useful),
            ("useless", golden.useless),
            ("late", golden.late),
        ):
            assert tb.counts["pulse", name, s] == counter[s], (name, s)
        for reason in ("OUTSIDE", "DISABLED", "THROTTLED"):
            assert tb.counts["pulse", reason, s] == golden.dropped[s, reason], (reason, s)
        for reason in ("DUPLICATE", "FULL", "CANCELLED"):
            assert tb.counts["pulse", reason, s] == 0, (reason, s)


def _kind(rng, n):
    """Of trigger `n`. A credit that falls amid a list counts from the next one on."""
    for kind in ("hint", "spec"):
        if n < _FALLS[kind]:
            return kind
    if n < _FALLS["access"]:
        return "access" if n % 5 else "step"
    return rng.choices(["access", "step", "hint", "spec", "other"], [20, 2, 2, 8, 2])[0]


def _hinted(tb, golden, session):
    """Hint lines, together longer than the FIFO, so that a credit falls amid them; what is asked
    for by them."""
    c, rng = tb.config, tb.rng
    queues = range(session * c.queues, (session + 1) * c.queues)
    places = [(squeue, page) for squeue in queues for page in range(c.pages)]
    pages = rng.sample(places, min(len(places), rng.choice([26, rng.randint(1, 26)])))
    tb.hints.extend(tb.hint(*place) for place in pages)
    return golden.hint(pages)


def _spec_read(tb, golden, squeue, foreign):
    """A MemSpecRd of the session's owner, or of one whose LD-ID differs in a bit; what is asked for
    by it."""
    ld_id, page = tb.sessions[squeue // tb.config.queues].ld_id, tb.rng.randrange(tb.config.pages)
    ld_id ^= 1 << tb.rng.randrange(LD_ID_BITS) if foreign else 0
    tb.specs.append(tb.spec(squeue, page, ld_id))
    return golden.spec_read(squeue, page, ld_id)


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def lockstep(dut):
    """One trigger at a time: the same ops in the same order as the golden model, the same counts,
    the same credits."""
    config = named(bench_params()["config"])
    tb = TB(dut, config)
    rng = tb.rng
    golden = Prefetcher(config, tb.sessions, previous=bench_params()["previous"])
    tb.on_result = lambda op, taken: golden.result(PrefetchSource(op["source"]), taken)
    await tb.reset()
    enabled = set(SOURCES)
    triggers = Counter()
    accessed = [set() for _ in range(config.sessions)]
    ring = bench_params()["previous"] // config.sessions
    remembered, overwritten, strangers = [0] * config.sessions, 0, 0
    for n in range(bench_params()["triggers"]):
        if n % 50 == 0:
            tb.p_ready, tb.p_taken = rng.choice([0.3, 1.0]), rng.choice([0.0, 0.8, 1.0])
            share = rng.choice([0.0, 0.2, 0.6])
            enabled = set(SOURCES) if rng.random() < 0.7 else set(rng.sample(SOURCES, 3))
            if n < _FALLS["access"]:
                # Some are refused, so that a period does not end where a group of candidates does.
                tb.p_ready, tb.p_taken, share, enabled = 1.0, 0.85, 0.0, set(SOURCES)
            golden.enable = enabled
            tb.enable(enabled)
            tb.new_windows()
        session = rng.randrange(config.sessions)
        regs = tb.sessions[session]
        if rng.random() < (0.3 if regs.closing else 0.01):
            regs.closing = not regs.closing
            if regs.closing:
                golden.closed(session)
                accessed[session].clear()
                remembered[session] = 0
            tb.set_sessions()
        kind, queues = _kind(rng, n), regs.used_queues if n >= _FALLS["access"] else 1
        squeue = session * config.queues + rng.randrange(queues)
        if kind == "access":
            page = rng.choice([0, 1, regs.used_pages - 1, rng.randrange(regs.used_pages)])
            if (squeue, page) in accessed[session]:
                continue  # not its first demand in this step
            if not regs.closing:
                accessed[session].add((squeue, page))
                if PrefetchSource.PREVIOUS in enabled:
                    overwritten += remembered[session] == ring
                    remembered[session] = min(remembered[session] + 1, ring)
                tb.results.append(tb.access_result(squeue, page))
                want = golden.access(session, squeue, page, tb.windows[squeue])
            else:
                want = []
        elif kind == "step":
            accessed[session].clear()
            remembered[session] = 0
            tb.results.append(tb.step_result(session))
            want = golden.step(session)
        elif kind == "hint":
            want = _hinted(tb, golden, session)
        elif kind == "spec":
            foreign = rng.random() < 0.2 and n >= _FALLS["spec"]
            want = _spec_read(tb, golden, squeue, foreign)
            strangers += foreign
        else:
            tb.results.append(tb.other_result())
            want = []
        triggers[kind] += 1
        tb.ops = []
        # A list must reach the queue without gaps, as it does from the absorber.
        tb.p_hint = 1.0
        await tb.drain()
        assert tb.ops == want, (n, kind)
        # What becomes of some of them.
        for s in SOURCES:
            for _ in range(sum(c.source == s for c in want)):
                if rng.random() < share:
                    useful = rng.random() < 0.8
                    tb.usages.append(tb.usage.pack(source=s, useful=useful, useless=not useful))
                    golden.usage(s, useful)
                elif rng.random() < 0.1:
                    tb.lates.append(int(s))
                    golden.met_late(s)
        if tb.usages or tb.lates:
            await tb.drain()
        credit = int(dut.credit.value)
        golden.settle()
        assert [credit >> 7 * s & 127 for s in SOURCES] == [
            golden.throttles[s].credit for s in SOURCES
        ], n
    same_counts(tb, golden)
    assert tb.counts["previous_lost"] == overwritten
    throttled = {s: golden.dropped[s, "THROTTLED"] for s in SOURCES}
    credits = [golden.throttles[s].credit for s in SOURCES]
    record(
        triggers=dict(triggers),
        ops=sum(golden.issued.values()) + sum(golden.refused.values()),
        credits=credits,
        throttled={s.name: count for s, count in throttled.items()},
        previous_lost=overwritten,
        strangers=strangers,
    )


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def free_running(dut):
    """Everything at once: each candidate ends as issued, refused or dropped, exactly once; ops stay
    within their sessions."""
    config = named(bench_params()["config"])
    tb = TB(dut, config)
    rng = tb.rng
    await tb.reset()
    # Each source but the previous step, whose walks are cut short by what goes on around them; two
    # of them come and go.
    steady = {PrefetchSource.WINDOW, PrefetchSource.LAYER_AHEAD}
    offered, last_size = Counter(), Counter()
    # of the accesses that wait in tb.results: the candidates that each will suggest, by source
    sizes = deque()
    for n in range(bench_params()["cycles"]):
        if n % 300 == 0:
            tb.p_ready, tb.p_hint, tb.p_spec = (rng.choice([0.05, 0.5, 1.0]) for _ in range(3))
            p_access, p_asked = rng.choice([0.02, 0.3, 1.0]), rng.choice([0.0, 0.3, 1.0])
        if n % 400 == 0:
            for regs in tb.sessions:
                regs.closing = int(rng.random() < 0.2)
            tb.set_sessions()
            tb.enable(
                steady
                | {s for s in (PrefetchSource.HINT, PrefetchSource.SPEC_READ) if rng.random() < 0.8}
            )
        if rng.random() < p_access and len(tb.results) < 4:
            session = rng.randrange(config.sessions)
            squeue = session * config.queues + rng.randrange(tb.sessions[session].used_queues)
            page = rng.randrange(tb.sessions[session].used_pages)
            tb.results.append(tb.access_result(squeue, page))
            regs = tb.sessions[session]
            ahead = squeue + regs.kv_heads < session * config.queues + regs.used_queues
            window, room = tb.windows[squeue], regs.used_pages - 1 - page
            size = {
                PrefetchSource.LAYER_AHEAD: int(ahead),
                PrefetchSource.WINDOW: min(window, room) + min(window, page),
            }
            sizes.append(Counter(size))
        for waiting, packed in ((tb.hints, tb.hint), (tb.specs, tb.spec)):
            if rng.random() < p_asked and len(waiting) < 8:
                waiting.append(
                    packed(rng.randrange(config.squeues), page=rng.randrange(config.pages))
                )
        before_results, before_lost = len(tb.results), tb.counts["access_lost"]
        await tb.cycle()
        # An access that finds its FIFO full says so in the cycle after its result.
        if tb.counts["access_lost"] > before_lost:
            offered.subtract(last_size)
        last_size = sizes.popleft() if len(tb.results) < before_results else Counter()
        offered.update(last_size)
        if rng.random() < 0.1:
            tb.usages.append(tb.usage.pack(source=rng.choice(SOURCES), useful=1))
    for regs in tb.sessions:
        regs.closing = 0
    tb.set_sessions()
    tb.results.clear()
    before_lost = tb.counts["access_lost"]
    tb.p_ready = tb.p_hint = tb.p_spec = 1.0
    await tb.drain()
    if tb.counts["access_lost"] > before_lost:
        offered.subtract(last_size)
    ends = ("issued", *(r.name for r in DropReason))
    ended = {name: sum(tb.counts["pulse", name, s] for s in SOURCES) for name in ends}
    for s in SOURCES:
        asked = offered[s] + tb.counts["accepted", s]
        assert sum(tb.counts["pulse", name, s] for name in ends) == asked, (s, asked)
        assert (
            tb.counts["pulse", "issued", s] == tb.counts["issued", s]
            and tb.counts["pulse", "REFUSED", s] == tb.counts["refused", s]
        )
    if config.select_estimates:
        judged = ("OUTSIDE", "DISABLED", "THROTTLED")
        hints = sum(tb.counts["pulse", name, PrefetchSource.HINT] for name in judged)
        assert len(tb.dropped["judged"]) == hints
        assert len(tb.dropped["crowded"]) == ended["FULL"]
    record(ended=ended, access_lost=tb.counts["access_lost"])


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def asked_against_list(dut):
    """Pages of MemSpecRd and of hints, of sessions that open and close, while ops leave now and
    then: what stands on `o_op` in each cycle is a sorted list's, and each drop is counted with its
    source and its reason."""
    config = named(bench_params()["config"])
    tb = TB(dut, config)
    rng, model, want = tb.rng, SortedList(config.prefetch_slots), Counter()
    await tb.reset()
    coming = deque([None] * 3)  # asked for in the last cycles, the oldest first

    def judged():
        """Of the page that was asked for in the cycle before: whether it may go on."""
        source, page = coming[-1]
        packing = tb.page if source == PrefetchSource.HINT else tb.spec_read
        said = {name.rpartition(".")[2]: bits for name, bits in packing.unpack(page).items()}
        session, queue = divmod(said["squeue"], config.queues)
        regs = tb.sessions[session]
        mine = said.pop("ld_id", regs.ld_id) == regs.ld_id and not regs.closing
        if mine and said["page"] < regs.used_pages and queue < regs.used_queues:
            return said | {"session": session, "source": source, "distance": 0}
        want["OUTSIDE", source] += 1
        return None

    def cycle():
        if coming[-1] is not None:
            coming[-1] = judged()
        ready = bool(dut.o_op__ready.value)
        closed = sum(regs.closing << s for s, regs in enumerate(tb.sessions))
        shown = tb.op.unpack(dut.o_op__payload.value) if dut.o_op__valid.value == 1 else None
        names = ("session", "squeue", "page", "source")
        assert (shown and {name: shown[name] for name in names}) == (
            model.out and {name: model.out[name] for name in names}
        )
        drop, cancelled = model.cycle(coming.popleft(), ready, closed)
        if drop:
            want[drop[1].name, drop[0]] += 1
        if cancelled:
            want["CANCELLED", cancelled] += 1
        coming.append(tb.asked)

    tb.on_cycle = cycle
    for n in range(bench_params()["cycles"]):
        if n % 150 == 0:
            tb.p_ready, tb.p_hint, tb.p_spec = (rng.choice([0.05, 0.5, 1.0]) for _ in range(3))
            p_asked, pages = rng.choice([0.1, 0.5, 1.0]), rng.choice([2, config.pages])
        if n % 100 == 0:
            for regs in tb.sessions:
                regs.closing = int(rng.random() < 0.3)
            tb.set_sessions()
        squeue, page = rng.randrange(config.squeues), rng.randrange(pages)
        if rng.random() < p_asked and len(tb.hints) < 4:
            tb.hints.append(tb.hint(squeue, page))
        if rng.random() < p_asked and len(tb.specs) < 4:
            foreign = {"ld_id": rng.randrange(1 << LD_ID_BITS)} if rng.random() < 0.1 else {}
            tb.specs.append(tb.spec(rng.randrange(config.squeues), page, **foreign))
        # Each is of use, so that no credit falls.
        source = (PrefetchSource.HINT, PrefetchSource.SPEC_READ)[n % 2]
        tb.usages.append(tb.usage.pack(source=source, useful=1))
        await tb.cycle()
    tb.p_ready = tb.p_hint = tb.p_spec = 1.0
    await tb.drain()
    for reason in DropReason:
        if reason != DropReason.REFUSED:
            got = {s: tb.counts["pulse", reason.name, s] for s in SOURCES}
            assert got == {s: want[reason.name, s] for s in SOURCES}, reason.name
    assert min(want[name, PrefetchSource.HINT] for name in ("OUTSIDE", "DUPLICATE")) > 10
    assert min(want[name, PrefetchSource.SPEC_READ] for name in ("FULL", "CANCELLED")) > 10


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def previous_gives_way(dut):
    """Pages of the previous step wait in the FIFO; nearer ones push them out, which is counted."""
    config = named(bench_params()["config"])
    tb = TB(dut, config)
    await tb.reset()
    tb.enable({PrefetchSource.PREVIOUS, PrefetchSource.SPEC_READ})
    tb.results.extend(tb.access_result(0, page) for page in range(4))
    tb.results.append(tb.step_result(0))
    tb.p_ready, tb.p_spec = 0.0, 1.0
    for _ in range(40):
        await tb.cycle()
    first = config.queues  # of another session
    asked = [(squeue, page) for squeue in (first, first + 1) for page in (0, 1)]
    asked += [(squeue, page) for squeue in (1, 2) for page in range(5)]
    tb.specs.extend(tb.spec(squeue, page) for squeue, page in asked)
    for _ in range(40):
        await tb.cycle()
    # One page stands on `o_op`, the others were the farthest.
    full = {s: tb.counts["pulse", "FULL", s] for s in SOURCES}
    beyond = len(asked) - config.prefetch_slots
    assert full == dict.fromkeys(SOURCES, 0) | {
        PrefetchSource.PREVIOUS: 3,
        PrefetchSource.SPEC_READ: beyond,
    }, full
    tb.p_ready = 1.0
    await tb.drain()
    assert len(tb.ops) == config.prefetch_slots + 1


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def tells_whose_it_drops(dut):
    """Hints that are switched off, then too many of them, each with its queue."""
    config = named(bench_params()["config"])
    tb = TB(dut, config)
    await tb.reset()
    pages = [
        (session * config.queues + queue, page)
        for session, regs in enumerate(tb.sessions)
        for queue in range(regs.used_queues)
        for page in range(2)
    ]
    tb.rng.shuffle(pages)
    for sources, name, whose in (
        (set(SOURCES) - {PrefetchSource.HINT}, "judged", lambda held: [q for q, _ in pages]),
        (SOURCES, "crowded", lambda held: [q for q, _ in pages[held:]]),
    ):
        tb.enable(sources)
        tb.p_ready = 0.0
        tb.hints.extend(tb.hint(q, p) for q, p in pages)
        while tb.hints:
            await tb.cycle()
        for _ in range(8):
            await tb.cycle()
        # One more waits on `o_op`.
        assert tb.dropped[name] == whose(config.prefetch_slots + 1), name
        tb.p_ready = 1.0
        await tb.drain()
        assert tb.dropped[name] == whose(config.prefetch_slots + 1), name


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def previous_step_under_traffic(dut):
    """Steps, closes and accesses without pause: what the previous step offers was accessed in it,
    and the prefetcher comes to rest."""
    config = named(bench_params()["config"])
    tb = TB(dut, config)
    rng = tb.rng
    await tb.reset()
    only = {PrefetchSource.PREVIOUS}
    tb.enable(only)
    steps = [[set()] for _ in range(config.sessions)]  # pages accessed, by step
    checked = 0

    def look():
        nonlocal checked
        for op in tb.ops:
            assert op.source == PrefetchSource.PREVIOUS and any(
                (op.squeue, op.page) in step for step in steps[op.session][:-1]
            )
            checked += 1

    for n in range(bench_params()["cycles"]):
        if n % 200 == 0:
            p_access, p_step, tb.p_ready = (
                rng.choice([0.0, 0.1, 0.6]),
                rng.choice([0.0, 0.01, 0.1]),
                rng.choice([0.1, 1.0]),
            )
            closing = rng.random() < 0.2
            session = rng.randrange(config.sessions)
            tb.sessions[session].closing = int(closing)
            tb.set_sessions()
        session = rng.randrange(config.sessions)
        if len(tb.results) < 2:
            if rng.random() < p_step:
                tb.results.append(tb.step_result(session))
                steps[session].append(set())
            elif rng.random() < p_access:
                squeue = session * config.queues + rng.randrange(tb.sessions[session].used_queues)
                page = rng.randrange(tb.sessions[session].used_pages)
                if (squeue, page) not in steps[session][-1]:
                    steps[session][-1].add((squeue, page))
                    tb.results.append(tb.access_result(squeue, page))
        tb.ops = []
        await tb.cycle()
        look()
    tb.ops = []
    await tb.drain()
    look()
    assert sum(tb.counts["issued", s] + tb.counts["refused", s] for s in SOURCES) == checked
    record(checked=checked, previous_lost=tb.counts["previous_lost"])


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def full_rate(dut):
    """One candidate a cycle is accepted and, with M3 ready, one op a cycle leaves."""
    config = named(bench_params()["config"])
    tb = TB(dut, config)
    tb.sessions[0].used_pages, tb.sessions[0].used_queues = config.pages, config.queues
    await tb.reset()
    tb.p_ready = tb.p_spec = 1.0
    cycles = bench_params()["cycles"]
    asked = [(n * 7 % config.squeues, n // config.squeues) for n in range(cycles + 64)]
    tb.specs.extend(tb.spec(squeue, page) for squeue, page in asked)
    for _ in range(32):
        await tb.cycle()
    spec_read = PrefetchSource.SPEC_READ
    accepted, left = tb.counts["accepted", spec_read], len(tb.ops)
    for _ in range(cycles):
        await tb.cycle()
        tb.usages.append(tb.usage.pack(source=spec_read, useful=1))
    assert [(op.squeue, op.page) for op in tb.ops] == asked[: len(tb.ops)]
    record(
        accepts_per_cycle=(tb.counts["accepted", spec_read] - accepted) / cycles,
        ops_per_cycle=(len(tb.ops) - left) / cycles,
        cycles=cycles,
    )


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def never_stalls_spec_reads(dut):
    """With M3 taking nothing, MemSpecRd is still accepted every cycle; hints get through after
    their patience; what gives way is counted."""
    config = named(bench_params()["config"])
    tb = TB(dut, config)
    await tb.reset()
    tb.p_ready, tb.p_spec, tb.p_hint = 0.0, 1.0, 1.0
    cycles = 2000
    rng = tb.rng
    tb.specs.extend(
        tb.spec(rng.randrange(tb.sessions[0].used_queues), rng.randrange(tb.sessions[0].used_pages))
        for _ in range(cycles)
    )
    while tb.specs:
        await tb.cycle()
    assert tb.cycles <= cycles + 2
    tb.hints.extend(tb.hint(0, p) for p in range(4))
    dut.lockstep.value = 1
    for _ in range(600):
        await tb.cycle()
    assert len(tb.hints) == 4, "in lock-step a hinted page waits for room"
    dut.lockstep.value = 0
    began = tb.cycles
    while tb.hints:
        await tb.cycle()
    assert tb.cycles - began >= 4 * HINT_PATIENCE, "a hint displaces what came before it"
    tb.p_ready = 1.0
    await tb.drain()
    total = sum(v for key, v in tb.counts.items() if key[0] == "pulse")
    assert total == cycles + 4, total
    record(full=sum(tb.counts["pulse", "FULL", s] for s in SOURCES))

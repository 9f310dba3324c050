# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""EMA engine against the golden arithmetic, queues of both policies mixed: random events on few
pages, so that successive ones meet; full rate on many; flipped bits."""

import random
from collections import Counter, deque
from itertools import product

import cocotb
from cocotb.triggers import ReadOnly, RisingEdge

from kelp_golden import arithmetic
from kelp_golden.kelp_policy import Scores
from kelp_hw.export.packing import Packing
from kelp_hw.layouts import Layouts
from kelp_hw.lib.secded import Secded
from kelp_hw.lib.split_sram import SplitSram
from kelp_hw.pipeline import RESERVE
from kelp_hw.scores.ema import EmaEngine
from kelp_spec.config import Config
from kelp_spec.metadata import SCORE_BITS, PageState, ScoreEvent, ScoreSource
from kelp_spec.policy import FADE_SHIFT, FOLDED, Policy
from kelp_spec.scores import IDLE_BIAS, idle_constants

from ..harness.clocking import start_clock
from ..harness.flips import Faults, Fenced
from ..harness.runner import bench_params, record

INIT, TOUCH, MASS, SCAN = ScoreEvent.INIT, ScoreEvent.TOUCH, ScoreEvent.MASS, ScoreEvent.SCAN

#: of a queue's score
SOURCES = (ScoreSource.OBSERVED, ScoreSource.OBSERVED, ScoreSource.PUSHED, ScoreSource.NONE)

#: gaps about which a table of folds ends: that of a TOUCH, and that of a SCAN
FOLDS_END = [end + near for end in (FOLDED, FOLDED + 1 >> FADE_SHIFT) for near in range(-1, 4)]


def _open(expected, got):
    """What is expected as None may be anything."""
    return expected | {name: got[name] for name, value in expected.items() if value is None}


class TB:
    """One event a cycle while `ready`, or up to RESERVE beyond it, as M0 may; every commit and scan
    is checked."""

    def __init__(self, dut):
        self.dut = dut
        self.config = Config.of_json(bench_params()["config"])
        self.rng = random.Random(cocotb.RANDOM_SEED)
        layouts = Layouts(self.config)
        self.event, self.write = Packing(layouts.score_event), Packing(layouts.config_write)
        self.commit, self.scanned = Packing(layouts.score_commit), Packing(layouts.scanned)
        self.settings = {}
        self.score = {}
        self.kelp = Scores(self.config)
        self.step = [self.rng.randrange(1 << 24) for _ in range(self.config.sessions)]
        self.commits, self.scans = deque(), deque()
        self.seen = Counter()
        self.faults = Faults(dut, self.rng)
        self.cycle = self.corrected = self.uncorrected = self.committed = 0
        self.waited = self.scan_waited = 0
        self.last_commit = 0

    async def start(self):
        dut = self.dut
        await start_clock(dut)
        dut.i__valid.value = dut.config_write__valid.value = dut.i__payload.value = (
            dut.config_write__payload.value
        ) = 0
        await RisingEdge(dut.clk)
        await RisingEdge(dut.clk)
        dut.rst.value = 0
        # Whatever the seed, there are queues of each policy and of each source.
        kinds = [(policy, source) for source in SOURCES for policy in Policy]
        self.rng.shuffle(kinds)
        for squeue in range(self.config.squeues):
            policy, source = kinds[squeue % len(kinds)]
            self.configure(squeue, source=source, policy=policy)
            await self.tick()
        dut.config_write__valid.value = 0
        while not int(dut.cleared.value):
            await self.tick()

    def configure(self, squeue, source=None, policy=None):
        """Random settings, but for the score source and the policy if they are given."""
        rng = self.rng
        alpha = rng.choice([1, 26, 128, 255, 256, rng.randint(1, 256), rng.randint(257, 511)])
        m, sh = (
            idle_constants(min(alpha, 256))
            if rng.random() < 0.8
            else (rng.randrange(1 << 16), rng.randint(-IDLE_BIAS, 27))
        )
        source = rng.choice(SOURCES) if source is None else source
        gain = rng.choice([0, 3, 15, rng.randrange(16)])
        policy = rng.choice(list(Policy)) if policy is None else policy
        self.settings[squeue] = (alpha, m, sh, source, gain, policy)
        self.dut.config_write__payload.value = self.write.pack(
            squeue=squeue,
            **{
                "queue_config.alpha": alpha,
                "queue_config.idle_m": m,
                "queue_config.idle_sh": sh + IDLE_BIAS,
                "queue_config.score_source": source,
                "queue_config.mass_shift": gain,
                "queue_config.policy": policy,
            },
        )
        self.dut.config_write__valid.value = 1

    def make(self, squeue, page, kind=None):
        """A legal event: the first on a page is INIT."""
        rng = self.rng
        if (squeue, page) not in self.score:
            kind = INIT
        kind = kind or rng.choice([TOUCH, TOUCH, MASS, MASS, SCAN, INIT])
        session = squeue // self.config.queues
        if rng.random() < 0.2:
            self.step[session] = (
                self.step[session] + rng.choice([1, 1, 2, 64, 70, 256]) & (1 << 24) - 1
            )
        values = {
            "kind": kind,
            "session": session,
            "squeue": squeue,
            "page": page,
            "step": self.step[session] & 255,
            "gap": rng.choice(
                [0, 1, 2, rng.choice(FOLDS_END), rng.randrange(1, 1 << rng.randint(1, 24))]
            ),
            "mass": rng.randrange(1 << rng.randint(1, 16)),
            "slot": rng.randrange(16),
        }
        word = {
            "scan.state": rng.choice([PageState.RESIDENT] * 3 + list(PageState)),
            "scan.pinned": rng.random() < 0.2,
            "scan.last_step": rng.getrandbits(24),
        }
        self.expect(values, word)
        return self.event.pack(**values, **word)

    async def close(self, session):
        """SCRUB of every page of a session, as `Closer` does it; then it has another owner."""
        c = self.config
        first = session * c.queues
        self.kelp.opened(session)
        for squeue in range(first, first + c.queues):
            for page in range(c.pages):
                self.score.pop((squeue, page), None)
                while not self.ready:
                    await self.tick()
                where = {"session": session, "squeue": squeue, "page": page}
                await self.send(self.event.pack(kind=ScoreEvent.SCRUB, **where))

    def expect(self, values, word):
        page = values["squeue"], values["page"]
        alpha, m, sh, source, gain, policy = self.settings[values["squeue"]]
        s = self.score.get(page, 0)
        kind = values["kind"]
        where, found, profile = (values["session"], *page), {"finished": None}, 0
        if policy == Policy.KELP:
            step = self.step[values["session"]]
            if kind == INIT:
                s = self.kelp.allocate(*where, step)
            elif kind == TOUCH:
                s = self.kelp.touch(s, *where, step, values["gap"])
            elif kind == MASS:
                return
            else:
                scan = self.kelp.scan(s, *where, step, values["gap"])
                found = {"score": scan.value, "finished": int(scan.finished)}
            profile = self.kelp.profile(*page, allocated=kind == INIT)
        elif kind == INIT:
            s = arithmetic.initial(alpha)
        elif kind == TOUCH:
            if source != ScoreSource.OBSERVED:
                return
            s = arithmetic.touch(s, values["gap"], alpha, m, sh)
        elif kind == MASS:
            if source != ScoreSource.PUSHED:
                return
            s = arithmetic.mass(s, values["mass"], gain, alpha)
        if kind == SCAN:
            eligible = word["scan.state"] == PageState.RESIDENT and not word["scan.pinned"]
            self.scans.append(
                (
                    {
                        "page": page[1],
                        "slot": values["slot"],
                        "eligible": int(eligible),
                        "last_step": word["scan.last_step"],
                        "score": s,
                        **found,
                    },
                    self.cycle,
                )
            )
        self.score[page] = s
        self.seen[f"{policy.name} {kind.name}"] += 1
        self.commits.append(
            (
                {
                    "kind": int(kind),
                    "squeue": page[0],
                    "page": page[1],
                    "score": s,
                    "profile": profile if kind != SCAN else None,
                },
                self.cycle,
            )
        )

    async def tick(self):
        """Let one cycle pass and check what came out in it."""
        dut = self.dut
        await ReadOnly()
        if dut.o_scan__valid.value == 1:
            got = self.scanned.unpack(dut.o_scan__payload.value)
            assert self.scans, f"scan {got}, expected none"
            expected, since = self.scans.popleft()
            assert got == _open(expected, got), f"scan {got}, expected {expected}"
            latency = self.cycle - since
            assert latency >= EmaEngine.SCAN_LATENCY, f"{got} {latency}"
            self.scan_waited = max(self.scan_waited, latency - EmaEngine.SCAN_LATENCY)
        if dut.o_commit__valid.value == 1:
            got = self.commit.unpack(dut.o_commit__payload.value)
            expected, since = self.commits.popleft()
            assert got == _open(expected, got), f"commit {got}, expected {expected}"
            latency = self.cycle - since
            assert latency >= EmaEngine.LATENCY, f"{got} {latency}"
            self.waited = max(self.waited, latency - EmaEngine.LATENCY)
            self.committed += 1
            self.last_commit = self.cycle
        if self.config.protect:
            self.faults.hear()
        self.corrected += int(dut.corrected.value)
        self.uncorrected += int(dut.uncorrected.value)
        self.ready = int(dut.ready.value)
        self.idle = int(dut.idle.value)
        await RisingEdge(dut.clk)
        self.cycle += 1

    async def send(self, vector):
        self.dut.i__payload.value = vector
        self.dut.i__valid.value = 1
        await self.tick()
        self.dut.i__valid.value = 0

    async def rest(self, cycles):
        """Cycles without an event, whatever stands at the port."""
        for _ in range(cycles):
            self.dut.i__payload.value = self.rng.getrandbits(self.event.width)
            await self.tick()

    async def drain(self):
        for _ in range(400):
            await self.tick()
            if self.idle:
                break
        assert self.idle and not self.commits and not self.scans, (
            f"{len(self.commits)} commits and {len(self.scans)} scans are missing"
        )


async def neighbours(tb):
    """Pages of a queue under `kelp` whose numbers differ in one bit, below its newest one: each has
    a count of its own in the profile, as their distances differ in one bit, too, and the turn of
    the one is not that of the other."""
    c, rng = tb.config, tb.rng
    newest = c.pages - 1
    kelp = [q for q, setting in tb.settings.items() if setting[5] == Policy.KELP]
    for bit in range(c.page_bits):
        squeue, page = rng.choice(kelp), rng.randrange(newest) & ~(1 << bit)
        pair = page, page | 1 << bit
        await tb.drain()
        for page in (*pair, newest):
            await tb.send(tb.make(squeue, page, INIT))
        for page in (*pair, pair[0]):
            await tb.rest(2 * EmaEngine.HAZARD)  # there is credit for all of these
            await tb.send(tb.make(squeue, page, TOUCH))
            for other in pair:
                await tb.send(tb.make(squeue, other, SCAN))


async def repeated(tb):
    """A SCAN updates nothing, so that nobody waits for it, however close; and nobody waits for what
    is written, nor for another page."""
    await tb.drain()
    before, tb.waited, tb.scan_waited = tb.waited, 0, 0
    for page in tb.rng.sample(sorted(tb.score), 8):
        for kind in (SCAN,) * (EmaEngine.HAZARD + 2) + (TOUCH,):
            await tb.send(tb.make(*page, kind))
        await tb.rest(EmaEngine.LATENCY)
        await tb.send(tb.make(*page, SCAN))
        await tb.drain()
    # Nor for other pages, at any distance: two of each queue, as far apart as there are queues.
    queues = tb.rng.sample(range(tb.config.squeues), tb.config.squeues)
    for page in range(2):
        for squeue in queues:
            await tb.send(tb.make(squeue, page, INIT))
    # Nor for a page whose number differs in one bit, however far behind.
    # (Of a queue without a profile, whose counts are waited for; a draw may have none.)
    plain = [q for q, setting in tb.settings.items() if setting[5] == Policy.EMA]
    for bit, squeue in product(range(tb.config.page_bits), plain[:1]):
        page = tb.rng.randrange(tb.config.pages)
        for gap in range(EmaEngine.HAZARD):
            await tb.send(tb.make(squeue, page, INIT))
            await tb.rest(gap)
            await tb.send(tb.make(squeue, page ^ 1 << bit, INIT))
            await tb.rest(EmaEngine.HAZARD)
    await tb.drain()
    assert tb.waited == tb.scan_waited == 0
    tb.waited = before


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def random_events(dut):
    tb = TB(dut)
    await tb.start()
    c, rng = tb.config, tb.rng
    beyond = 0
    for n in range(bench_params()["cycles"]):
        if n % 300 == 0:
            # One of each queue in turn, and that one often.
            turn = (n // 300 % c.squeues, rng.randrange(c.pages))
            pages = [turn] + [
                (rng.randrange(c.squeues), rng.randrange(c.pages))
                for _ in range(rng.choice([0, 1, 4, 39]))
            ]
            idle = rng.choice([0.0, 0.3, 0.8])
            if n % 1500 == 600:
                await tb.drain()
                for squeue, (*_, source, _, policy) in list(tb.settings.items()):
                    tb.configure(squeue, source, policy)
                    await tb.tick()
                dut.config_write__valid.value = 0
                beyond = 0
            if n % 1500 == 1200:
                await tb.close(rng.randrange(c.sessions))
                beyond = 0
        beyond = 0 if tb.ready else beyond + 1
        # Ops that are under way when the credit goes still come: RESERVE.
        if rng.random() >= idle and beyond < RESERVE:
            await tb.send(tb.make(*(turn if rng.random() < 0.3 else rng.choice(pages))))
        else:
            dut.i__payload.value = rng.getrandbits(tb.event.width)
            await tb.tick()
    for _ in range(4):
        await neighbours(tb)
    await repeated(tb)
    assert tb.uncorrected == tb.corrected == 0
    record(committed=tb.committed, waited=tb.waited, seen=tb.seen)


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def full_rate(dut):
    """Distinct pages over all queues, one a cycle, after each page has been written once: touched,
    then scanned. None waits, so the engine's two latencies are exact."""
    tb = TB(dut)
    await tb.start()
    c, rng = tb.config, tb.rng
    updates = bench_params()["cycles"]
    squeues = [
        q
        for q in range(c.squeues)
        if tb.settings[q][3] == ScoreSource.OBSERVED or tb.settings[q][5] == Policy.KELP
    ]
    pages = [(q, rng.randrange(c.pages)) for q in squeues]
    for page in pages:
        await tb.send(tb.make(*page))
    start = tb.cycle
    for n in range(updates):
        assert tb.ready, f"credit was lost after {n} distinct pages"
        await tb.send(tb.make(*pages[n % len(pages)], TOUCH))
    await tb.drain()
    cycles = tb.last_commit - start
    for page in pages:
        assert tb.ready
        await tb.send(tb.make(*page, SCAN))
    await tb.drain()
    assert tb.waited == tb.scan_waited == 0
    record(
        updates_per_cycle=updates / (cycles - EmaEngine.LATENCY + 1),
        queues=c.squeues,
        cycles=cycles,
    )


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def flipped_bits(dut):
    """One flipped bit is corrected and written back by whatever event finds it; two count as a
    score of 0; INIT does not look."""
    tb = TB(dut)
    await tb.start()
    c, rng = tb.config, tb.rng
    code = Secded(SCORE_BITS)
    pieces = [
        (piece, getattr(dut.scores, piece.name).macro.words)
        for piece in SplitSram.split(c.page_words, code.code_bits)
    ]
    pushed = 0
    tb.configure(pushed, source=ScoreSource.PUSHED, policy=Policy.EMA)
    await tb.tick()
    dut.config_write__valid.value = 0
    corrected = uncorrected = 0
    # Each bit alone, looked at; and as many pairs.
    places = range(code.code_bits)
    each = [([bit], kind) for bit in places for kind in (SCAN, MASS)]
    each += [(rng.sample(places, 2), rng.choice((SCAN, MASS, INIT))) for _ in places]
    each += [([rng.choice(places)], INIT) for _ in range(8)]
    for flips, kind in rng.sample(each, len(each)):
        page = pushed, rng.randrange(c.pages)
        await tb.send(tb.make(*page, INIT))
        await tb.send(tb.make(*page, MASS))
        await tb.drain()
        row = page[0] * c.pages + page[1]
        held = [
            (piece.low, words[row - piece.first])
            for piece, words in pieces
            if piece.first <= row < piece.first + piece.rows
        ]
        for low, bits in held:
            bits.value = int(bits.value) ^ (
                sum(1 << f for f in flips) >> low & (1 << len(bits)) - 1
            )
        await tb.tick()
        if len(flips) == 2 and kind != INIT:
            tb.score[page] = 0
        await tb.send(tb.make(*page, kind))
        await tb.send(tb.make(*page, SCAN))  # the second look finds nothing to correct
        await tb.drain()
        corrected += len(flips) == 1 and kind != INIT
        uncorrected += len(flips) == 2 and kind != INIT
        # The second SCAN may overtake a SCAN's correction, and then corrects once more.
        assert tb.uncorrected in (uncorrected, uncorrected + (kind == SCAN)) and tb.corrected in (
            corrected,
            corrected + (kind == SCAN),
        )
        tb.corrected, tb.uncorrected = corrected, uncorrected
        await RisingEdge(dut.clk)
        assert sum(int(bits.value) << low for low, bits in held) & 0xFFFF == tb.score[page]
    assert corrected > 10 and uncorrected > 5


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def flipped_events(dut):
    """One flipped bit in each event that waits changes nothing and is counted with it; two are
    fatal."""
    tb = TB(dut)
    await tb.start()
    squeue = next(q for q, setting in tb.settings.items() if setting[5] == Policy.KELP)
    for bits in (1, 2):
        for n in range(40):
            # All of one page: each waits for the one before it.
            await tb.send(tb.make(squeue, 1, INIT if not n else TOUCH))
            if not tb.ready:
                break
        await tb.tick()
        tb.faults.clear()
        tb.faults.flip("queue.fifo.storage", bits, within=40)
        try:
            await tb.drain()
        except Fenced:
            assert bits == 2
            return
        record(told=tb.faults.told["corrected"])
        assert tb.faults.told["corrected"] > 3
        tb.faults.clear()
    raise AssertionError("two flipped bits in each event that waits, and nothing is told")


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def flipped_places(dut):
    """Each bit alone of the places in which events wait for their factor, in all places at once:
    nothing changes, and it is counted with each event; two are fatal."""
    tb = TB(dut)
    await tb.start()
    c, rng, count = tb.config, tb.rng, 4
    width = len(dut.places[0])
    for squeue in range(c.squeues):
        await tb.send(tb.make(squeue, 1, INIT))
    await tb.drain()
    for flips in [{bit} for bit in range(width)] + [set(rng.sample(range(width), 2))]:
        for squeue in rng.sample(range(c.squeues), count):
            *_, source, _, policy = tb.settings[squeue]
            observed = policy == Policy.KELP or source == ScoreSource.OBSERVED
            kind = TOUCH if observed else MASS if source == ScoreSource.PUSHED else INIT
            await tb.send(tb.make(squeue, 1, kind))
        await tb.rest(5)  # the last one has its place, and the first one still waits
        tb.faults.clear()
        tb.faults.flipped = len(flips)
        for row in dut.places:
            row.value = int(row.value) ^ sum(1 << bit for bit in flips)
        try:
            await tb.drain()
        except Fenced:
            assert len(flips) == 2
            return
        assert tb.faults.told["corrected"] == count, f"bits {flips}: {tb.faults.told}"
        tb.faults.clear()
    raise AssertionError("two flipped bits in each place, and nothing is told")

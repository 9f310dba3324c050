# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Scores of policy `kelp`: frequency and age against the golden value, and how fast these, profile
and turns are. `test_ema.py` compares whole engines."""

import random

import pytest
from flips import opened
from simulation import simulate
from timing import check_interval, varied

from kelp_golden import kelp_policy
from kelp_golden.kelp_policy import Scores, fold_table, value
from kelp_hw.scores.kelp_scores import Age, Frequency, Profile, Turns, remains
from kelp_spec import policy
from kelp_spec.config import named

UNIT = named("unit")
COUNT = {"valid": 1, "counts": 1}
MANY = (1 << 24) - 2  #: idle steps; one more where a turn has passed
TOP = 4064  #: no access brings a frequency beyond it
FADE = 1 << policy.FADE_SHIFT
#: word, count, idle, over: of each the ends, and steps beyond the tables
PAGES = [
    (word, count, idle, over)
    for word in (0, 1, TOP)
    for count in (0, 1, 127)
    for over in (0, 1)
    for idle in (0, 1, 254, 255, 256, 510, 511, 512, 5000, MANY + over)
]


def random_pages(count, seed=1):
    rng = random.Random(seed)
    return [
        (
            rng.choice([0, TOP, rng.randrange(TOP)]),
            rng.choice([0, 127, rng.getrandbits(7)]),
            min(MANY, rng.choice([0, 1, rng.getrandbits(rng.randint(1, 24))])),
            rng.randrange(2),
        )
        for _ in range(count)
    ]


def frequencies(pages, outputs):
    """What `outputs` of a Frequency are for (word, count, idle), one page a cycle. Each is a name
    and its latency from the word. In a value idle steps count FADE times."""
    dut, seen = Frequency(), {name: [] for name, _ in outputs}
    before = dut.IDLE_LATENCY - dut.LATENCY
    fade = FADE if outputs[0][0] == "often" else 1

    async def bench(ctx):
        for cycle in range(len(pages) + 10):
            if cycle < len(pages):
                ctx.set(dut.idle, min(fade * pages[cycle][2], policy.FOLDED))
            if 0 <= cycle - before < len(pages):
                ctx.set(dut.word, pages[cycle - before][0])
                ctx.set(dut.count, pages[cycle - before][1])
            for name, latency in outputs:
                if 0 <= cycle - before - latency < len(pages):
                    seen[name].append(ctx.get(getattr(dut, name)))
            await ctx.tick()

    simulate(dut, bench)
    return [seen[name] for name, _ in outputs]


def ages(pages):
    """Of (idle, same, over), one a cycle."""
    dut, seen = Age(), []

    async def bench(ctx):
        for idle, same, over in [*pages, *[(0, 0, 0)] * dut.LATENCY]:
            for name, bits in (("idle", idle), ("same", same), ("over", over)):
                ctx.set(getattr(dut, name), bits)
            seen.append(ctx.get(dut.o))
            await ctx.tick()

    simulate(dut, bench)
    return seen[dut.LATENCY :]


def values(pages):
    """What pages are worth: the two parts, which the score engine adds. A page that is over has
    been idle for one step less, which was not in this step."""
    (often,) = frequencies(pages, [("often", Frequency.LATENCY)])
    late = [(idle, over and idle > 0) for *_, idle, over in pages]
    age = ages(
        [
            (idle - missed, idle == 0, page[3])
            for page, (idle, missed) in zip(pages, late, strict=True)
        ]
    )
    return [a + b for a, b in zip(often, age, strict=True)]


def test_values_are_the_golden_ones():
    pages = PAGES + random_pages(2000)
    found = values(pages)
    expected = [value(*page) for page in pages]
    assert found == expected
    assert (min(found), max(found)) == (768, 9468)


@pytest.mark.parametrize(
    "constant", ["ONCE", "LATE", "LOG_MOST", "PROFILE_SHIFT", "FADE_SHIFT", "ALPHA"]
)
def test_a_changed_constant_shows(constant, monkeypatch):
    changed = getattr(policy, constant) + 1
    monkeypatch.setattr(policy, constant, changed)
    if constant == "ALPHA":
        monkeypatch.setattr(kelp_policy, "_FOLD", fold_table(changed, policy.FREQUENCY_BITS))
    pages = random_pages(300)
    assert values(pages) != [value(*page) for page in pages]


def test_a_touched_word_is_the_golden_one():
    pages = PAGES + random_pages(2000, seed=2)
    (found,) = frequencies(pages, [("touched", Frequency.TOUCHED_LATENCY)])
    scores = Scores(UNIT)
    assert found == [scores.touch(word, 0, 0, 0, 9, idle + 1) for word, _, idle, _ in pages]


def test_the_table_of_folds_is_the_golden_one_and_never_rises():
    table = remains(policy.ALPHA, policy.FREQUENCY_BITS)
    assert tuple(table) == fold_table(policy.ALPHA, policy.FREQUENCY_BITS)
    assert table[0] == 1 << policy.FREQUENCY_BITS
    assert all(a >= b for a, b in zip(table, table[1:], strict=False))


WORDS = varied("word", (100, 2000, 50))


@pytest.mark.parametrize(
    ("attribute", "output", "stimuli", "prepare"),
    [
        ("LATENCY", "often", WORDS, {}),
        ("TOUCHED_LATENCY", "touched", WORDS, {}),
        ("IDLE_LATENCY", "often", varied("idle", (10, 100, 200)), {"word": 4095}),
    ],
)
def test_frequency_latency_and_interval(attribute, output, stimuli, prepare):
    check_interval(Frequency, attribute, output, stimuli, prepare=prepare)


def test_age_latency_and_interval():
    check_interval(Age, "LATENCY", "o", varied("idle", (1, 200, 5)))


def test_profile_latency_and_interval():
    check_interval(
        lambda: Profile(config=UNIT),
        "LATENCY",
        "count",
        varied("distance", (0, 5, 0)),
        settle=80,
        prepare={"distance": 5},
        before=[COUNT | {"distance": 0}],
    )


def test_profile_entry_latency_and_interval():
    stimuli = [COUNT | {"distance": k, "epoch": k} for k in (1, 2, 3)]
    check_interval(lambda: Profile(config=UNIT), "ENTRY_LATENCY", "entry", stimuli, settle=80)


def test_counts_are_those_of_a_list():
    """Rows hold anything before the scrub; an event that is none may say anything."""
    rng, dut = random.Random(4), Profile(config=UNIT)
    top, memories = opened(dut)
    kept, recent, coming, epoch, seen = {}, [], [None] * 4, 0, set()

    def event(place, counts, clears):
        """What is shown of it: the count, and the entry behind it."""
        count, since = kept.get(place, (0, 0))
        now = count >> (epoch - since) % (1 << policy.EPOCH_BITS)
        seen.add(now)
        if counts or clears:
            kept[place] = 0 if clears else min(now + 1, 127), epoch
        return now, kept.get(place, (0, 0))

    async def bench(ctx):
        nonlocal epoch, recent
        for memory in memories.values():
            for row in range(UNIT.page_words):
                ctx.set(memory[row], rng.getrandbits(8))
        await ctx.tick().until(dut.ready)
        for n in range(3600):
            place = rng.choice([rng.randrange(4), rng.randrange(UNIT.page_words)])
            ages = n % 1800 > 1400  # until then counts grow as far as they can
            valid, counts, clears = (rng.random() < p for p in (0.9, 0.9, ages * 0.05))
            valid = valid and place not in recent
            if ages:
                epoch = (epoch + rng.choice([0, 0, 0, 1, 1, 3, 7])) % (1 << policy.EPOCH_BITS)
            inputs = {"valid": valid, "epoch": epoch, "counts": counts, "clears": clears}
            inputs |= {"distance": place % UNIT.pages, "squeue": place // UNIT.pages}
            for name, each in inputs.items():
                ctx.set(getattr(dut, name), each)
            recent = [*recent, place if valid else None][-dut.BUSY :]
            coming.append(event(place, counts, clears) if valid else None)
            if shown := coming[-1 - dut.LATENCY]:
                assert ctx.get(dut.count) == shown[0]
            if shown := coming[-1 - dut.ENTRY_LATENCY]:
                assert (ctx.get(dut.entry.count), ctx.get(dut.entry.epoch)) == shown[1]
            await ctx.tick()

    simulate(top, bench)
    assert max(seen) > 100 and len(seen) > 60


def test_a_turn_is_that_of_the_latest_access():
    rng, dut = random.Random(5), Turns(config=UNIT)
    turns, seen = [None] * UNIT.sessions, set()

    async def bench(ctx):
        for _ in range(2000):
            session, queue, page = (rng.randrange(n) for n in (UNIT.sessions, 4, UNIT.pages))
            # Steps that differ in one bit alone are different.
            step = rng.choice([7, 7, 7, 7 ^ 1 << rng.randrange(8), 255])
            squeue = session * UNIT.queues + queue
            accessed, forgets = rng.random() < 0.2, rng.random() < 0.02
            inputs = {"session": session, "squeue": squeue, "page": page, "step": step}
            for name, each in (inputs | {"accessed": accessed, "forgets": forgets}).items():
                ctx.set(getattr(dut, name), each)
            of, at = turns[session] or (None, None)
            shown = ctx.get(dut.over), ctx.get(dut.finished)
            assert shown == (of == step and (squeue, page) < at, of == step and squeue < at[0])
            seen.add(shown)
            if forgets:
                turns[session] = None
            elif accessed:
                turns[session] = step, (squeue, page)
            await ctx.tick()

    simulate(dut, bench)
    assert len(seen) == 3


@pytest.mark.parametrize(
    ("output", "stimuli", "prepare"),
    [
        ("over", varied("page", (1, 5, 1)), {"page": 5, "squeue": 1, "step": 9}),
        ("finished", varied("squeue", (0, 2, 0)), {"squeue": 2, "step": 9}),
    ],
)
def test_turns_latency_and_interval(output, stimuli, prepare):
    check_interval(
        lambda: Turns(config=UNIT),
        "LATENCY",
        output,
        stimuli,
        prepare=prepare,
        before=[{"page": 3, "squeue": 1, "accessed": 1}],
    )

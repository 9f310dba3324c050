# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""TableScores: bit by bit what the golden tables say, and how long it takes."""

import dataclasses

from kelp_hw.scores.table_scores import TableScores
from kelp_hw.scores.table_shadow import TableShadow
from kelp_spec.config import named
from kelp_verif.harness.flips import PUBLIC
from kelp_verif.harness.runner import Model, made, run_cocotb

CONFIG = named("unit_select").with_(queues=3, select_tables=True)
#: More pages than V has entries: all rows of a queue are as many as its pages.
LARGE = CONFIG.with_(sessions=1, queues=2, pages=512)


#: In which bits may flip: not those of an offer that stands.
MEMORIES = (
    *(f"{name}.memory" for name in ("pages", "counts", "posts", "places", "reads", "masses")),
    *(f"{name}.memory" for name in ("values", "steps", "learning.v", "learning.t")),
    "marked.memory",
    "shadow.counts.memory",
)


def run(test, config=CONFIG, **params):
    return run_cocotb(
        made(TableScores, config=config),
        bench="kelp_verif.scores.table_scores_bench",
        test=test,
        params={"config": dataclasses.asdict(config), **params},
        model=Model(public=PUBLIC),
        timeout_s=300,
    ).records


def test_random_turns_and_guesses():
    seen = run("random_traffic", cycles=16_000)["seen"]
    print(seen)
    assert min(seen["turn"], seen["guess"]) > 30 and seen["open"] > 1
    assert seen["early"] > 50 and seen["values"] > 2000 and seen["marked"] > 100
    assert seen["amid"] > 100  # values that the walk under way changes


def test_cohorts_come_and_go():
    records = run("cohorts_come_and_go")
    assert records["seen"]["shadow"] > 150 and min(records["credits"]) > 20, records


def test_credit_falls_as_far_as_it_can():
    run("credit_falls")


def test_a_session_opened_amid_its_turn_is_new():
    run("opened_amid_turns")


def test_pages_to_fetch_wait():
    run("early_pages_wait")


def test_flipped_bits_let_every_walk_end():
    records = run("flipped_words", cycles=8000, memories=MEMORIES)
    assert set(records["flips"]) == set(MEMORIES) and min(records["seen"].values()) > 0
    assert min(records["seen"][name] for name in ("turn", "guess")) > 20


def test_queues_of_many_pages():
    seen = run("random_traffic", LARGE, cycles=6000)["seen"]
    assert min(seen["turn"], seen["guess"]) > 8 and seen["early"] > 20 and seen["values"] > 250
    walks_take(LARGE)


def test_how_long_walks_take():
    walks_take(CONFIG)


def walks_take(config):
    figures = run("walks_take", config)["figures"]
    block = TableScores(config=config)
    turn = block.TURN_LATENCY + block.INTERVAL
    expected = {
        "first of a queue": block.rows + block.FIRST_LATENCY,
        "first of a session": turn + 256,
    }
    for newest in (0, 1, 5, config.pages - 1):
        pages = newest + 1
        expected[f"turn {newest}"] = block.TURN_LATENCY + block.INTERVAL * pages
        expected[f"guess {newest}"] = block.GUESS_LATENCY + block.GUESS_INTERVAL * pages
    for left in (1, 2, 3):
        expected[f"{left} left"] = turn + left * TableShadow.LEAVE_INTERVAL
    assert figures == expected


def test_marks_come_at_full_rate_but_where_a_walk_forgets_them():
    expected = dict.fromkeys(
        (
            f"{mark} of {squeue} amid {walk}"
            for mark in ("read", "mass")
            for squeue in (0, 1)
            for walk in (None, "turn", "guess")
        ),
        40,
    )
    expected |= {"read of 0 amid turn": 0, "read of 1 amid turn": 20}
    expected |= {"mass of 0 amid guess": 0, "mass of 1 amid guess": 0}
    assert run("marks_come")["figures"] == expected

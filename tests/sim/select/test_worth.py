# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Decoding with little resident: with everything there it is the batch study, who waits waits, and
rows have what they promise."""

from dataclasses import replace

import numpy as np
import pytest

from kelp_golden import select as golden
from kelp_sim.select import rivals, study, worth, worth_page
from kelp_sim.select.decode import Device, decode
from kelp_sim.select.readers import Device as Batch
from kelp_sim.select.readers import Ideal, _blocks, plans_of, scale_of
from kelp_sim.select.timing import RTL, Choice, Shape, _Port

FIRST = 240


def test_everything_resident_is_the_batch_study(small):
    model, ids = small
    row = study.measure(
        model, "text", ids, Batch(quota=4, most=6), Ideal(most=6), first=FIRST
    )  # fmt: skip
    [run] = decode(model, ids, FIRST, [Device(quota=4, most=6)])
    assert run.nats.sum() == pytest.approx(row.nats, rel=1e-4)
    assert run.chosen.sum(axis=-1).mean() == pytest.approx(row.pages, rel=0.01)
    assert not run.reads.any() and not run.waits.any() and not run.missing[..., 0].any()


def test_little_resident(small):
    model, ids = small
    late, waits = decode(
        model,
        ids,
        FIRST,
        [
            Device(quota=4, most=4, residency=0.5),
            Device(quota=4, most=4, residency=0.5, wait_above=0.02),
        ],
    )
    assert not late.waits.any() and waits.waits.any()
    assert late.reads.sum() and waits.cycles.sum() > 1.2 * late.cycles.sum()
    assert late.missing[..., 0].sum() > waits.missing[..., 0].sum()
    assert (late.chosen.sum(axis=-1) <= 6).all()


def test_a_device_that_is_told_estimates_what_is_missing(small):
    model, ids = small
    few = Device(quota=4, most=4, residency=0.5)
    guesses, knows = decode(model, ids, FIRST, [few, replace(few, told=True)])
    assert (knows.missing[..., 0] == knows.missing[..., 1]).all()
    assert (guesses.missing[..., 0] != guesses.missing[..., 1]).any()
    found = worth.worth(model, [("text", ids, FIRST)], [0.5], device=replace(few, told=True))
    assert found.rows[-1]["reader"] == "told"


def test_rows_of_all_readers(small):
    model, ids = small
    found = worth.worth(
        model, [("text", ids, FIRST)], [0.5], device=Device(quota=4, most=4), warm=8
    )
    assert [row["reader"] for row in found.rows] == [*rivals.NAMES, "kelp"]
    assert all(tuple(row) == worth.KEYS for row in found.rows + found.rows_100us)
    by = {row["reader"]: row for row in found.rows}
    assert by["ideal"]["token_time_0"] > 1 and by["ideal"]["nll"] == by["ideal"]["nll_ideal"]
    assert by["dense"]["chosen_bytes_per_token"] > by["ideal"]["chosen_bytes_per_token"]
    assert by["quest"]["link_bytes_per_token"] > by["quest"]["chosen_bytes_per_token"]
    assert by["ideal"]["flash_per_layer"] == by["kelp"]["lru_flash_per_layer"]
    assert by["kelp"]["layers_wait"] == 0
    whole = {f"{r}|text|1.0" for r in [*rivals.NAMES, "kelp"]}
    assert set(found.lists) == whole | {"kelp|text|0.5", "kelp|text|0.5|100us"}
    # Whoever has the lists finds the bytes that were chosen.
    shape = Shape(kv_heads=2, group=4, lines=1)
    for suffix, rows in (("", found.rows), ("|100us", found.rows_100us)):
        pages = np.unpackbits(found.lists[f"kelp|text|0.5{suffix}"], axis=-1).astype(bool)
        of = rivals.Reading("kelp", np.zeros(len(pages)), pages, pages[..., 0])
        lines = rivals.lines(of, FIRST, shape)[8:]
        assert rows[-1]["chosen_bytes_per_token"] == 64 * lines.sum(axis=1).mean()
    pictures = worth_page.plots(found)
    assert all(image.startswith(b"\x89PNG") for image in pictures.values())
    assert "infinigen" in worth_page.page(found, pictures, "a test")


def test_a_rivals_guess_is_asked_ahead(small):
    model, ids = small
    guess = rivals.read(model, ids, FIRST, "infinigen", Ideal(most=4))
    assert guess.late[:, 0].all() and not guess.late[:, 1:].any()
    shape = Shape(kv_heads=2, group=4, lines=1)
    missed = np.zeros(guess.late.shape, int)
    missed[:, 1:] = 1
    for compute, waits in ((0, True), (worth.HOST, False)):
        _, at = rivals.time(guess, FIRST, missed, shape, RTL, compute)
        assert at[:, 1:].all() == waits and not at[:, 0].any()


def answered(shape, *heads):
    """When each head's SELECT is answered, when the layer is over, and until when the part before
    the last one's keys was busy."""
    clock = RTL.begin(shape, 4, 6)
    return [clock.serve(each) for each in heads], clock.over(), clock.front


def test_a_choice_costs_what_its_passes_cost():
    shape = Shape(kv_heads=1, group=2, lines=2, page_tokens=2)

    def one(pages, candidates, released=0):
        looks = 2 * candidates
        asked = {"pages": pages, "candidates": candidates, "looks": looks, "released": released}
        return answered(shape, Choice(**asked, chosen=6, tokens=2))[0][0]

    # Codes, sixteen to a line, a page of keys, its mass; few rows are looked at while queries are
    # loaded and the plan is walked through.
    codes = 16 // RTL.lanes
    assert one(20, 9) - one(12, 8) == 8 * codes + 2 * 2 + 2
    assert one(1608, 8) - one(1600, 8) == 8 * codes + 1
    # Slots are given back while pages are named, if they are few.
    assert one(12, 8, released=30) == one(12, 8)
    assert one(12, 8, released=290) - one(12, 8, released=280) == 10 * RTL.unhold
    # Behind another, one takes as long as what is before its keys, or as its keys.
    names = Choice(pages=400, candidates=8, looks=16, chosen=6, tokens=2)
    (first, second), *_ = answered(shape, names, names)
    rung = RTL.written(shape) + RTL.window * RTL.asked(shape)
    assert second - first == answered(shape, names)[2] - rung
    keys = Choice(pages=12, candidates=60, looks=60 * 16, chosen=6, tokens=2)
    shape = replace(shape, page_tokens=16)
    (first, second), *_ = answered(shape, keys, keys)
    # The first one's pages are gathered meanwhile.
    assert second - first == (60 + 1) * 32 + 2 * 2 + RTL.page_lines(shape, 6, 2)


def test_looks_and_gathered_lines_share_a_port():
    port = _Port(8)
    port.gather(100, 70)
    assert port.look(90, 5) == 95
    # 5 before there is anything to gather, 10 beside 70 gathered lines, 10 behind them.
    assert port.look(95, 25) == 190 and port.end() == 190
    port.gather(190, 70)
    assert port.look(190, 5) == 230 and port.end() == 265


def test_pages_are_gathered_behind_one_another():
    """Without a gap where a host has the next answer before the pages of the head before are
    read."""
    shape = Shape(kv_heads=2, group=4, lines=1)
    few = Choice(pages=40, candidates=10, looks=160, chosen=14, tokens=16)
    lines = RTL.page_lines(shape, 14, 16)
    (first, second), over, _ = answered(shape, few, few)
    told = first + RTL.register + RTL.window * RTL.told(6)
    assert second < told + lines and over == told + 2 * lines + RTL.answer
    many = Choice(pages=40, candidates=36, looks=500, chosen=4, tokens=1)
    (_, second), over, _ = answered(shape, many, many)
    told = second + RTL.register + RTL.window * RTL.told(6)
    assert over == told + RTL.page_lines(shape, 4, 1) + RTL.answer


def test_keys_move_as_rope_turns_them(small):
    model, _ = small
    rows = np.random.default_rng(1).standard_normal((4, model.head_dim)).astype(np.float32)
    at, by = np.array([0, 3, 70, 900]), np.array([500, -3, 0.5, 40])
    there = model.moved(rows, at)
    assert np.allclose(model.moved(there, by), model.moved(rows, at + by), atol=1e-4)
    assert not np.allclose(model.moved(there, by), there, atol=0.1)


def test_a_plan_of_a_beginning_holds_further_on(small):
    """Keys that are one but for RoPE and a little noise: steps are as wide as they turn."""
    model, _ = small
    rng = np.random.default_rng(2)
    one = rng.standard_normal(model.head_dim)
    rows = (one + 0.1 * rng.standard_normal((2000, model.head_dim))).astype(np.float32)
    keys = model.moved(rows, np.arange(2000))
    queries = keys[None, :300] * 2
    m, sh = scale_of(model.head_dim)
    error = []
    for moved in (model.moved, lambda rows, by: rows):
        [(_, plan)] = plans_of(keys[None, :300], queries, moved)
        codes, late = golden.summary(_blocks(keys[1000:]), plan), _blocks(keys[1500:1501])
        found = golden.estimates(late, codes[:, None], plan, m, sh)
        error.append((found - golden.scores(late, _blocks(keys[1000:]), m, sh)).std())
    assert error[0] < 0.8 * error[1], error


def test_flash_over_none_is_no_ratio(small):
    model, ids = small
    found = worth.worth(model, [("text", ids, FIRST)], [1.0], device=Device(quota=4, most=4))
    entries = worth.summary(found.rows)
    assert entries
    for entry in entries:
        assert entry["flash_over_lru"] is None and entry["flash_over_lru_worst"] is None
    assert "–" in worth_page.page(found, {}, "what")


def test_too_few_frames_are_refused(small):
    model, ids = small
    with pytest.raises(ValueError, match="text: residency 0.1 of 19 pages in 12 queues is 23"):
        worth.worth(model, [("text", ids, FIRST)], [0.5, 0.1], device=Device())

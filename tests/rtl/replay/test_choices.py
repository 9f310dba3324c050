# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Choices of a text on the RTL: answers and gathered lines are the golden model's, and what a wrong
one looks like."""

import re
from dataclasses import replace

import numpy as np
import pytest

from kelp_golden import select_region
from kelp_rtl.device import MemoryTiming, Pressure
from kelp_rtl.replay.choices import Asked, choices
from kelp_sim.select.readers import scale_of
from kelp_spec.config import named
from kelp_verif.endpoint.some_plan import some_plan

pytestmark = pytest.mark.timeout(2400)  # the first test builds the model

CONFIG = named("unit_select")
LAYERS, HEADS, DIM, FIRST, STEPS = 2, 2, 64, 5, 6
NEAR = MemoryTiming(latency=2)


def asked(steps=STEPS, dim=DIM, seed=1, **changes):
    rng = np.random.default_rng(seed)

    def numbers(*shape):
        return rng.standard_normal(shape).astype(np.float16)

    kv = LAYERS, HEADS, FIRST + steps, dim
    m, sh = scale_of(dim)
    return Asked(
        q=numbers(steps, LAYERS, HEADS * CONFIG.select_heads, dim),
        k=numbers(*kv),
        v=numbers(*kv),
        **{"first": FIRST, "most": 4, "target": 58982 * 2, "m": m, "sh": sh} | changes,
    )


@pytest.mark.parametrize(("dim", "wild"), [(DIM, False), (24, False), (DIM, True)])
def test_answers_and_pages_are_the_golden_models(dim, wild):
    """By plans of the keys, or without sense."""
    print("seed 1")
    text = asked(dim=dim)
    if wild:
        rng = np.random.default_rng(1)
        plans = [some_plan(rng, 2) for _ in range(LAYERS * HEADS)]
        text = replace(text, plans=np.array(plans).reshape(LAYERS, HEADS, 2, 64))
    found = choices(CONFIG, text, memory=NEAR, pressure=Pressure.everywhere(0.2))
    assert not found.wrong, found.examples[:3]
    assert found.answer_lines == STEPS * LAYERS * HEADS * 2
    size = CONFIG.half_lines // -(-dim // 32)
    newest = (FIRST + np.arange(STEPS)) // size
    assert found.pages[np.arange(STEPS), :, :, newest].all() and found.pages[..., 0].all()
    # The first SELECT of a queue summarises what is there, a later one what has become whole.
    # The first page is, too, where the device estimates.
    assert (found.rebuilt == np.diff(newest, prepend=0)[:, None, None]).all()
    whole = np.maximum(newest - 1, 0)
    assert (found.candidates <= np.minimum(2 * CONFIG.select_quota, whole)[:, None, None]).all()
    assert (found.cycles > found.select.max(axis=-1)).all() and found.select.all()


def test_compute_is_in_a_layers_cycles():
    near = [choices(CONFIG, asked(steps=2, compute=n), memory=NEAR).cycles for n in (0, 700)]
    assert np.abs(near[1] - near[0] - 700).max() <= 30, "the time of a look at an answer"


def test_a_wrong_mass_is_seen(monkeypatch):
    """A golden model that is off by one says so of each answer, of which no more is told than can
    be read."""
    choose = select_region.choose_pages

    def wrong(*arguments, **options):
        found = choose(*arguments, **options)
        return found._replace(masses=found.masses + 1)

    monkeypatch.setattr(select_region, "choose_pages", wrong)
    found = choices(CONFIG, asked(steps=6), memory=NEAR)
    assert found.wrong == 6 * LAYERS * HEADS and len(found.examples) == 20
    assert "line 1 of the answer is" in found.examples[0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"most": 7}, "9 pages chosen do not fit configuration 'unit_select'"),
        ({"dim": 65}, "3 lines of a token do not fit"),
        ({"plans": np.zeros((2, 2, 1, 64), np.uint8)}, "plans of shape (2, 2, 1, 64) are refused"),
        ({"steps": 124}, "129 tokens do not fit"),
        ({"steps": 20}, "52 pages do not fit"),
    ],
)
def test_what_does_not_fit_is_refused(change, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        choices(CONFIG, asked(**change))

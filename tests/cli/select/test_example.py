# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The worked example of docs/select.md: what is told step by step is what a device answers."""

import numpy as np

from kelp_cli.select.example import example
from kelp_spec.select import ANSWER_FIELDS, CHOSEN_FIELDS, SlotState, record


def test_the_device_answers_what_the_steps_come_to():
    x = example()
    header = record(ANSWER_FIELDS, x.answer)
    entries = [record(CHOSEN_FIELDS, x.answer[64 + 8 * n : 72 + 8 * n]) for n in range(8)]
    chosen, wanted = entries[: header["count"]], entries[-header["wanted"] :]
    assert [one["page"] for one in chosen] == x.choice.pages.tolist()
    assert [one["mass"] for one in chosen] == x.choice.masses.tolist()
    assert [one["page"] for one in wanted] == x.choice.wanted.tolist()
    assert wanted[0]["state"] == SlotState.WANTED
    assert (header["missing"], header["absent"]) == (x.choice.missing, 1)
    places = {page: place for place, page in enumerate(x.masses)}
    told = x.shares.sum(axis=0)
    assert [told[places[page]] for page in x.choice.pages.tolist()] == x.choice.masses.tolist()


def test_every_rule_decides_something():
    """A page that no head names, a token that is not near, a page that is absent, and a choice by
    mass that is not by page."""
    x = example()
    assert not x.names.named[1:-1].all() and (x.more > 0).all()
    near = x.names.near[x.names.named]
    assert near.any() and not near.all()
    assert x.choice.wanted.size and (np.diff(x.choice.pages) < 0).any()

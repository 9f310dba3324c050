# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Seeds stand still until `KELP_SEED` moves them, and what moved them is said and repeats."""

import re

import pytest

from kelp_verif.harness.seeds import reseeded, wanted


def test_a_seed_is_what_the_test_names(monkeypatch):
    monkeypatch.delenv("KELP_SEED", raising=False)
    assert wanted() is None and [reseeded(seed) for seed in (0, 7)] == [0, 7]


def test_a_number_moves_it(monkeypatch):
    monkeypatch.setenv("KELP_SEED", "1000")
    assert wanted() == 1000 and [reseeded(seed) for seed in (0, 7)] == [1000, 1007]


def test_fresh_ones_are_new_to_a_process_and_repeat(monkeypatch, capsys):
    monkeypatch.setenv("KELP_SEED", "fresh")
    assert wanted() != wanted()
    drawn = [reseeded(seed) for seed in (0, 7, 0)]
    assert drawn[0] == drawn[2] == drawn[1] - 7 != 0
    (said,) = set(re.findall(r"\(KELP_SEED=(\d+)\)", capsys.readouterr().out))
    monkeypatch.setenv("KELP_SEED", said)
    assert [reseeded(seed) for seed in (0, 7)] == drawn[:2]


def test_nonsense_is_told(monkeypatch):
    monkeypatch.setenv("KELP_SEED", "new")
    with pytest.raises(ValueError, match="KELP_SEED is 'new'; legal: a number, or fresh"):
        reseeded(1)

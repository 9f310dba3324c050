# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Seeds stand still until `KELP_SEED` moves them, and what moved them is said and repeats."""

import re
from types import SimpleNamespace

import pytest
from paths import ROOT

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


@pytest.mark.parametrize(("seed", "met", "tries"), [("fresh", 3, 3), ("fresh", 4, 3), ("7", 3, 1)])
def test_a_planted_bug_is_tried_with_three_fresh_seeds(monkeypatch, request, seed, met, tries):
    monkeypatch.setenv("KELP_SEED", seed)
    seeds = []

    def planted(start):
        seeds.append(reseeded(start))
        if len(seeds) < met:
            pytest.fail("DID NOT RAISE AssertionError")

    item = SimpleNamespace(
        obj=planted, funcargs={"start": 0}, _fixtureinfo=SimpleNamespace(argnames=("start",))
    )
    plugins = request.config.pluginmanager.get_plugins()
    (plugin,) = (
        p for p in plugins if getattr(p, "__file__", "") == str(ROOT / "tests/conftest.py")
    )
    trial = plugin.pytest_pyfunc_call(item)
    next(trial)
    with pytest.raises(pytest.fail.Exception) as first:
        planted(0)
    with pytest.raises(pytest.fail.Exception if tries < met else StopIteration):
        trial.throw(first.value)
    assert len(seeds) == tries and len(set(seeds)) == tries


def test_nonsense_is_told(monkeypatch):
    monkeypatch.setenv("KELP_SEED", "new")
    with pytest.raises(ValueError, match="KELP_SEED is 'new'; legal: a number, or fresh"):
        reseeded(1)

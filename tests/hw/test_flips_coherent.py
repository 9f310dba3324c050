# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Bits that flip in the memories of an endpoint with coherence, amid a host that caches
(docs/protection.md): each memory has a row there, and what an agent reads is right or poison."""

import fnmatch
import functools
from unittest import mock

import pytest
from protection import UNSEEN, judge, matches, memory_rows

import kelp_hw.coherence.front as coherent_front
from kelp_hw.coherence.directory import Directory
from kelp_hw.endpoint import Endpoint
from kelp_spec.config import named
from kelp_verif.endpoint.flip_campaign import BAD, Bench, Outcome, campaign, hidden
from kelp_verif.endpoint.flip_coherent import CachingHost
from kelp_verif.endpoint.inventory import inventory
from kelp_verif.formal.prove import mutant
from kelp_verif.harness.seeds import reseeded


@functools.cache
def design():
    return inventory(Endpoint(config=named("unit_coherent")))


def front():
    return [name for name in design() if name.startswith("coherence.")]


def rows_of(name):
    return matches(name, [*memory_rows("Memories"), *memory_rows("Beside the endpoint")])


def checked(name):
    """Whether the table promises check bits."""
    return any("SECDED" in cell for cell in rows_of(name)[0][1:3])


def test_each_memory_is_in_a_table_once():
    strays = {name: len(rows_of(name)) for name in design() if len(rows_of(name)) != 1}
    assert not strays, f"rows of docs/protection.md for each of these: {strays}"
    wrong = [name for name in front() if checked(name) != bool(design()[name].columns)]
    assert not wrong, f"docs/protection.md says another thing of {wrong}"
    patterns = [p for row in memory_rows("Beside the endpoint") for p in row[0]]
    idle = [p for p in patterns if p.startswith("coherence.") and not fnmatch.filter(front(), p)]
    assert not idle, f"docs/protection.md names what is not there: {idle}"


@pytest.fixture(scope="module")
def bench():
    return Bench(11, CachingHost(11))


@pytest.mark.timeout(1200)  # it may build the model
def test_bits_in_each_memory_of_the_front(bench):
    result = campaign(each=2, only=["coherence."], states=1, bench=bench)
    judge(result, checked)
    directory = result["memories"]["coherence.front.directory.rows.rows"]
    assert directory["1"][Outcome.CORRECTED] and directory["2"][Outcome.FATAL]


@pytest.mark.night
@pytest.mark.timeout(1200)
def test_what_no_check_bits_tell_is_seen(bench):
    """So the bench would tell a decoder that overlooks something."""
    names = ("coherence.front.window.rows", "coherence.front.grants.rows.rows")
    outcomes = [
        bench.trial(hidden(bench.rng, bench.memories[name], bench.cells[name]))[0]
        for name in names
        for _ in range(8)
    ]
    assert sum(outcome in BAD for outcome in outcomes) >= 3, outcomes


class UntoldHost(CachingHost):
    """Of an endpoint whose directory does not tell that a row is beyond repair."""

    def device(self, seed, **options):
        bad = mutant(Directory, "used(rows.fault, valid1 & ~same)", "used(rows.fault, 0)")
        with mock.patch.object(coherent_front, "Directory", bad):
            return super().device(seed, **options, component=Endpoint(config=self.config))


@pytest.mark.slow  # a model of its own
@pytest.mark.timeout(2400)
def test_a_directory_that_does_not_tell_is_seen():
    bench, name = Bench(12, UntoldHost(12)), "coherence.front.directory.rows.rows"
    outcomes = campaign(each=12, only=[name], bits=(2,), states=1, bench=bench)["memories"][name]
    assert sum(outcomes["2"].get(bad, 0) for bad in BAD) >= 3, outcomes


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_flips_in_every_memory():
    seed = reseeded(12)
    result = campaign(each=6, seed=seed, states=6, bench=Bench(seed, CachingHost(seed)))
    judge(result, checked, UNSEEN | {Outcome.CHANGED})

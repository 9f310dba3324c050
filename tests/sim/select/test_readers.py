# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Readers on a text: the ideal one is the recordings' read rule, and the device's choice comes up
to it when every page is a candidate."""

import numpy as np
import pytest
from paths import ROOT

from kelp_sim.quality import threads
from kelp_sim.select.readers import Device, Ideal, page_mass, plans_of, scale_of
from kelp_sim.trace.trace import read

RECORDING = ROOT / "data" / "traces" / "attn_0.npz"


@pytest.fixture(autouse=True)
def quiet():
    with threads.one_thread():
        yield


@pytest.fixture(scope="module")
def layer():
    """Queries, keys and positions of some steps of layer 3."""
    trace = read(RECORDING)
    steps = np.arange(700, 1500, 50)
    q, k = (part.astype(np.float32) for part in (trace.q[3][:, steps], trace.k[3]))
    return trace, steps, q, k, trace.prefill_tokens + steps


def plans(k, q):
    """Of a text that goes on as it is."""
    return [plan for _, plan in plans_of(k, q, lambda rows, by: rows)]


def test_page_masses_are_the_recordings(layer):
    trace, steps, q, k, positions = layer
    for head in range(2):
        mass = page_mass(q[4 * head : 4 * head + 4], k[head], positions, trace.page_tokens)
        assert np.abs(mass - trace.mass[3, head, steps] / 65536).max() < 2e-3


def test_the_ideal_reader_takes_the_best_pages_until_its_target():
    mass = np.array([[0.1, 0.3, 0.2, 0.25, 0.05, 0.1, 0.0]])
    newest = np.array([5])

    def chosen(**options):
        return np.flatnonzero(Ideal(**options).of_masses(mass, newest)[0]).tolist()

    assert chosen(target=0.6) == [0, 1, 3, 5]
    assert chosen(target=0.45) == chosen(target=0.9, most=1) == [0, 1, 5]
    assert chosen(target=2.0) == [0, 1, 2, 3, 4, 5], "a page without mass is none"


@pytest.mark.parametrize("head_dim", [32, 64, 80, 128, 576])
def test_the_scale_is_that_of_a_softmax(head_dim):
    m, sh = scale_of(head_dim)
    assert 1 << 15 <= m < 1 << 16
    assert abs(m / 2**sh * np.sqrt(head_dim) * np.log(2) - 1) < 2**-15


def test_with_every_page_a_candidate_the_choice_is_the_ideals(layer):
    _, _, q, k, positions = layer
    ideal = Ideal(most=16).chosen(q, k, positions)
    device = Device(quota=128, most=16)
    chosen = device.chosen(q, k, positions, plans(k, q))
    assert (chosen & ideal).sum() / ideal.sum() > 0.98
    assert device.named.sum(axis=2).tolist() == [(positions // 16 + 1).tolist()] * 2


def test_more_candidates_find_more(layer):
    _, _, q, k, positions = layer
    ideal = Ideal(most=16).chosen(q, k, positions)
    recall = [
        (Device(quota=quota, most=16).chosen(q, k, positions, plans(k, q)) & ideal).sum()
        / ideal.sum()
        for quota in (4, 12, 40)
    ]
    assert recall == sorted(recall) and recall[0] < 0.8 and recall[2] > 0.9, recall

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""A reader on a text: what it finds, what it costs, and that reading everything is the model."""

import numpy as np
import pytest
from paths import ROOT

from kelp_golden.select import plan_of
from kelp_sim.select import study
from kelp_sim.select.readers import Device, Ideal
from kelp_spec.select_plan import plan_lines


def test_a_study_of_the_small_model():
    model, [(name, tokens)] = study.documents(ROOT / "data" / "model", 1, 320)
    ideal = Ideal(most=6)
    rows = [
        study.measure(model, name, tokens, reader, ideal, first=300)
        for reader in (ideal, Device(quota=20, most=6), Device(quota=1, most=6))
    ]
    assert {row.steps for row in rows} == {19}
    assert rows[0].mass_at_as_many == pytest.approx(rows[0].mass, rel=1e-6)
    assert rows[0].mass == rows[0].ideal_mass and rows[0].recall == 1
    found = study.loss(rows)
    assert list(found) == [20, 1]
    assert found[20]["mass_at_as_many"] > 0.995 > found[1]["mass_at_as_many"]
    assert abs(found[20]["loss"]) < 0.01
    assert found[20]["worst"] == pytest.approx(found[20]["loss"]), "of one text"


def test_everything_read_is_the_dense_model():
    model, [(name, tokens)] = study.documents(ROOT / "data" / "model", 1, 160)
    reader = Ideal(target=2.0, most=1000)
    row = study.measure(model, name, tokens, reader, reader, first=120)
    assert row.nats == pytest.approx(model.losses(tokens)[120:].sum(), rel=1e-5)


def test_fewer_bits_of_a_code_find_less():
    """A plan spends as many as it is given; with 8 of 32 as many candidates hold less of the
    mass."""
    rng = np.random.default_rng(4)
    for bits in (0, 5, 31, 32):
        plan = plan_of(plan_lines(*rng.standard_normal((2, 64, 64)), bits))
        assert (plan.count.sum(axis=-1) == bits).all()
    model, [(name, tokens)] = study.documents(ROOT / "data" / "model", 1, 320)
    [(ideal, devices)] = study.readers_of([16], [32, 8], [4], 6)
    rows = [
        study.measure(model, name, tokens, reader, ideal, first=300) for reader in (ideal, *devices)
    ]
    whole, few = study.curve(rows)
    assert (whole["bytes"], few["bytes"]) == (2.0, 0.5)
    assert whole["mass_at_as_many"] > few["mass_at_as_many"] + 0.005
    assert whole["recall"] > few["recall"]


def test_other_page_sizes_name_as_many_tokens():
    found = study.readers_of([16, 8, 32, 64], [32, 16], [8, 9], 16)
    assert [(ideal.page_tokens, ideal.most) for ideal, _ in found] == [
        (16, 16),
        (8, 32),
        (32, 8),
        (64, 4),
    ]
    assert [[d.quota for d in devices] for _, devices in found] == [
        [8, 9, 8, 9],
        [16, 18, 16, 18],
        [4, 4],  # 4.5 is 4, and not measured twice
        [2, 2],
    ]
    for ideal, devices in found:
        assert {(d.page_tokens, d.most) for d in devices} == {(ideal.page_tokens, ideal.most)}
        assert {d.code_bits for d in devices} == {32, 16}

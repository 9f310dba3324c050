# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""A reader on a text: what it finds, what it costs, and that reading everything is the model."""

import pytest
from paths import ROOT

from kelp_sim.select import study
from kelp_sim.select.readers import Device, Ideal


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

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""A model and a text that several tests decode."""

import pytest
from paths import ROOT

from kelp_sim.select import study


@pytest.fixture(scope="package")
def small():
    """The small model, and 300 tokens of a text."""
    model, [(_, ids)] = study.documents(ROOT / "data" / "model", 1, 300)
    return model, ids

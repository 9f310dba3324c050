# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What coherence costs the endpoint is within its bars."""

import pytest

from kelp_spec.coherence import sizes_of
from kelp_spec.config import named
from kelp_verif.coherence.endpoint_rates import evictions, reads

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def test_reads_within_the_directory_come_a_line_a_cycle():
    config = named("trace").with_(coherence=True)
    rates = reads(config, lines=sizes_of(config).lines // 4)
    assert len(rates) == 3 and min(rates.values()) >= 0.98, rates


def test_a_page_that_is_not_held_is_evicted_nearly_as_fast():
    config = named("unit_coherent")
    assert evictions(config) <= evictions(config.with_(coherence=False)) + 10

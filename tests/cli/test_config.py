# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""`kelp config`: what it says of a configuration is what the hardware is built with."""

import pytest

from kelp_cli.config import describe
from kelp_hw.layouts import Layouts
from kelp_spec.config import NAMED


@pytest.mark.parametrize("config", NAMED.values(), ids=lambda c: c.name)
def test_a_page_word_has_as_many_bits_as_in_the_memory(config):
    assert describe(config)["page_word_bits"] == Layouts(config).page_word.size

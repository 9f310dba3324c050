# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""`kelp config`: what it says of a configuration is what the hardware is built with."""

import pytest
from command import refused

from kelp_cli.config import describe
from kelp_hw.layouts import Layouts
from kelp_spec.config import NAMED


@pytest.mark.parametrize("config", NAMED.values(), ids=lambda c: c.name)
def test_a_page_word_has_as_many_bits_as_in_the_memory(config):
    assert describe(config)["page_word_bits"] == Layouts(config).page_word.size


def test_fields_are_shown_as_they_are_typed():
    said = refused("config", "unit?frames=64,16,16,16&codecs=1").stdout
    rows = [line.split("│")[1:3] for line in said.splitlines() if line.count("│") == 3]
    shown = {name.strip(): value.strip() for name, value in rows}
    assert shown["frames"] == "64,16,16,16" and shown["codecs"] == "1" and shown["select"] == "0"
    assert shown["pool_formats"] == "raw16,fp8_e4m3,int8,int4"

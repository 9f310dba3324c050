# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Configurations as text: their names say what differs, and what is no field or value is named."""

import pytest

from kelp_spec.config import Config, ConfigError, named
from kelp_spec.config_text import configuration


def test_a_name_alone_is_the_named_configuration():
    assert configuration("unit") is configuration("unit?") is named("unit")


@pytest.mark.parametrize(
    ("text", "name", "changes"),
    [
        ("codec_lanes=8", "unit(codec_lanes=8)", {"codec_lanes": 8}),
        ("queues=2&codecs=0", "unit(codecs=False,queues=2)", {"queues": 2, "codecs": False}),
        ("frames=9,8,7,6", "unit(frames=9+8+7+6)", {"frames": (9, 8, 7, 6)}),
        (
            "pool_formats=raw16,int8/int4,int8,int4",
            "unit(pool_formats=raw16+int8-int4+int8+int4)",
            {"pool_formats": ("raw16", "int8/int4", "int8", "int4")},
        ),
        ("queues=2&name=mine-1", "mine-1", {"queues": 2}),
        ("name=mine", "mine", {}),
        ("cxlio=joined", "unit(cxlio=joined)", {"cxlio": "joined"}),
    ],
)
def test_fields_follow_the_name(text, name, changes):
    assert configuration(f"unit?{text}") == named("unit").with_(name=name, **changes)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("units", "unknown configuration 'units'; known: unit, "),
        ("", "unknown configuration ''"),
        ("unit?queues", "options 'queues' of 'unit.queues' are refused; legal: name=value"),
        (
            "unit?queues=2&queues=3",
            "options 'queues=2&queues=3' of .* are refused; legal: each name once",
        ),
        ("unit?queue=2", "queue in 'unit.queue=2': no field of a configuration; known: name, "),
        ("unit?queues=many", "queues = 'many' is refused; legal: a number"),
        ("unit?queues=0", "queues = 0 is refused; legal"),
        ("unit?queues=" + "9" * 5000, "queues = an object of str is refused"),
        ("unit?codecs=yes", "codecs=yes is refused; legal: 0, 1"),
        ("unit?frames=8,x", "frames = '8,x' is refused; legal: four counts with commas"),
        ("unit?frames=8,8", "frames = "),
        ("unit?name=a b", "name = 'a b' is refused; legal: letters, digits"),
    ],
)
def test_bad_input(text, fault):
    with pytest.raises(ConfigError, match=fault):
        configuration(text)


def test_every_field_can_be_said():
    """As `kelp config` shows it."""
    for field, value in vars(named("unit_select")).items():
        text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        text = str(int(value)) if isinstance(value, bool) else text
        found = configuration(f"unit_select?{field}={text}")
        assert isinstance(found, Config) and getattr(found, field) == value

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Versions of host lines."""

from kelp_golden.lines import Lines
from kelp_spec.formats import Format, HostType


def test_part_of_a_line_that_was_only_ever_poison():
    """Its page was lost, or its one write was poison: it is valid and holds nothing."""
    lines = Lines()
    version = lines.merge(5, bytes(range(1, 65)), 0xFF, Format.RAW16, HostType.FP16, fresh=False)
    assert lines.current(5) == version
    assert lines.resolve([version])[0].tobytes() == bytes(range(1, 9)) + bytes(56)

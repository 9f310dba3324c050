# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""RegisterFile: how fast a register is read, and known to be one."""

import pytest
from timing import check_pace, varied

from kelp_hw.control.register_file import RegisterFile
from kelp_spec.config import named
from kelp_spec.registers import RegisterMap

UNIT = named("unit")
NONE = 0x1FFF  #: index of no register


def index(name):
    return RegisterMap(UNIT).by_name[name].offset >> 3


@pytest.mark.parametrize(
    ("attribute", "output", "indices"),
    [
        ("LATENCY", "read_data", [index(name) for name in ("identity", "digest", "geometry")]),
        ("KNOWN_LATENCY", "known", [index("identity"), NONE, index("digest")]),
    ],
)
def test_latency_and_interval(attribute, output, indices):
    stimuli = varied("index", indices)
    check_pace(RegisterFile(config=UNIT), attribute, output, stimuli, prepare={"index": NONE})

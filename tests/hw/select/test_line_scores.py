# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""LineScores: its pace and what it refuses; KeyScore holds its values to the golden model."""

import pytest
from timing import check_pace, shown

from kelp_hw.select.line_scores import LineScores


def test_latency_and_interval():
    dut = LineScores(heads=1, lines=1, id_bits=4)
    stimuli = [{"i.p.id": n, "i.p.last": 1, "i.valid": 1} for n in (1, 2, 3)]
    check_pace(dut, "LATENCY", shown("o", "id"), stimuli, prepare={"o.ready": 1})


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"heads": 0}, "heads = 0 .*1 … 64"), ({"lines": 33}, "lines = 33 .*1 … 32")],
)
def test_sizes_are_checked(wrong, said):
    with pytest.raises(ValueError, match=said):
        LineScores(**{"heads": 1, "lines": 1, "id_bits": 1} | wrong)

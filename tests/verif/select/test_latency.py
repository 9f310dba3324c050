# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The command that times SELECTs among many pages: each is within its sum of stages."""

import pytest

from kelp_verif.select import latency


@pytest.mark.slow  # it builds a model: three minutes of processor time
@pytest.mark.timeout(1800)
def test_a_select_takes_what_its_stages_come_to(capsys):
    assert latency.main(["--pages", "128", "--selects", "1"]) == 0
    made, one = capsys.readouterr().out.strip().splitlines()
    assert made.startswith("128 pages: all summarised") and "32 chosen" in one

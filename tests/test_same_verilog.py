# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""scripts/same_verilog compares whatever a configuration's Verilog is, a device's too."""

import subprocess

import pytest
from paths import ROOT


@pytest.mark.slow
def test_a_device_is_compared():
    done = subprocess.run(
        [ROOT / "scripts" / "same_verilog", "HEAD", "unit_cxl"], capture_output=True, text=True
    )
    assert "unit_cxl: " in done.stdout and "No such file" not in done.stderr, done.stderr

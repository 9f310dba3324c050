# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Configurations that boards are built from."""

import pytest

from kelp_fpga.configs import BOARD_CONFIGS, board_config
from kelp_spec.config import ConfigError


def test_board_configurations_are_known_by_digest():
    digests = {c.digest[:8] for c in BOARD_CONFIGS.values()}
    assert len(digests) == len(BOARD_CONFIGS)
    with pytest.raises(ConfigError, match="known: ulx3s"):
        board_config("llama70b")

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Configuration `unit` with eight codec lanes: what tests of the whole endpoint drive, all of them
one model, which has two thirds of the logic that 32 lanes would make."""

from kelp_spec.config_text import configuration

__all__ = ["GOLDEN", "RTL", "UNIT"]

_NAME = "unit?codec_lanes=8"
#: As a device of cxl_kv; what it answers does not depend on how long a miss takes.
RTL = f"rtl:{_NAME}&tier_latency=500"
GOLDEN = f"golden:{_NAME}"
UNIT = configuration(_NAME)  #: the same

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Configuration `unit` with eight codec lanes: what tests of the whole endpoint drive, all of them
one model, which has two thirds of the logic that 32 lanes would make."""

from cxl_kv.url import config_of

__all__ = ["RTL", "UNIT"]

RTL = "rtl:unit?codec_lanes=8"  #: as a device of cxl_kv
UNIT = config_of("unit", {"codec_lanes": "8"})  #: the same

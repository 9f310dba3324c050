# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""``kelp fpga``: build, report, and talk to boards."""

from .commands import register

__all__ = ["register"]

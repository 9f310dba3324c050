# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The board's memory: SDRAM controller, block RAM, cold tier, arbiter, march test."""

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""KELP on an FPGA: host bridge, memory controllers, cold tier, self-test, board tops; and the
host's half of the bridge (docs/fpga.md)."""

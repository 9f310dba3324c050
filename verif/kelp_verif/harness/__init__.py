# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What every bench stands on: cocotb on Verilator, clock and reset, netlists against RTL."""

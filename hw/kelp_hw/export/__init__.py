# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What tools get, ours and others': the Verilog of a component, as it is simulated, proved and
synthesised, and as it leaves the project with its wrapper and description."""

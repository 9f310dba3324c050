# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""From a component to Verilog and to a compiled model; where the tools are and where their output
goes."""

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Benches, bus functional models, scoreboards, the Verilator runner and the formal runner."""

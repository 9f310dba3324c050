# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The endpoint behind AXI4, for CXL IP that speaks it."""

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""From a data op to AXI4 reads and writes of stored lines, and back to host lines."""

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What a host sees of the choice of pages: the SELECT region, GATHER and slots (docs/select.md)."""

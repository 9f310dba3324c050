# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Contracts of blocks and the runner that proves them."""

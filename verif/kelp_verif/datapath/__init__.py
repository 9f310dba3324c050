# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Bench of the data path, compiled."""

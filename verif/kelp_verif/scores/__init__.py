# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Bench of the EMA engine."""

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Refinement of a placement before routing, and the timing it predicts."""

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Traces, trace replay and the policy lab. Imports :mod:`kelp_golden`, never :mod:`kelp_hw`."""

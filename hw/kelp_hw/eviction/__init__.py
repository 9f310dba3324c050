# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Sweeps, victims, write-backs, budgets and the closing of sessions."""

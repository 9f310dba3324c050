# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Recordings of attention: reading, checks, and the sequence of accesses they stand for."""

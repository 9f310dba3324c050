# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Judges what a free-running device commits: each decision must be one that the rules allow by what
was decided before it."""

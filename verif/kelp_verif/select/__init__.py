# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Measurements of the choice of pages."""

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Benches, case generators and oracles of the codec."""

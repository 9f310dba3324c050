# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Benches and searches of the coherent front."""

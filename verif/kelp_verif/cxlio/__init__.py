# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Benches of room `cxlio`: see README.md."""

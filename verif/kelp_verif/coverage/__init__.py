# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What the benches reach: cover points of the contract's clauses, lines and control signals."""

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The EMA of attention and policy `kelp`'s scores."""

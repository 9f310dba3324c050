# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The rows of `kelp bench`: cycles, rates and ratios in RTL."""

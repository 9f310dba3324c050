# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The whole endpoint under constrained-random traffic: traffic, model, cold tier, bench."""

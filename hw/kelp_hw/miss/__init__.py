# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The miss buffer (MSHRs and parked requests) and the scheduler of the cold tier."""

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Between CXL.io and the endpoint: addresses, poison, events and load."""

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Ways to a device. Each module is imported when a URL asks for it; those that need more than NumPy
and kelp_spec say so there and then."""

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""CXL.io's RTL, compiled, behind plain function calls."""

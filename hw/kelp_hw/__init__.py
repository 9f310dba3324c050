# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The RTL, one block per file. Imports :mod:`kelp_spec` alone."""

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The NumPy golden model, which is the executable specification. Imports :mod:`kelp_spec`, never
:mod:`kelp_hw`."""

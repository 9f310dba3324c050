# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The ``kelp`` command: one module for each subcommand, joined in :mod:`kelp_cli.main`."""

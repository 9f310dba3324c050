# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The ``kelp`` command: one module for each subcommand, joined in :mod:`kelp_cli.main`."""

import sys

__all__ = ["start"]


def start() -> None:
    """Entry point of the ``kelp`` command; says so where the packages that draw it are not
    installed."""
    try:
        from .main import main
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("typer", "rich"):
            raise
        sys.exit(
            f"the kelp command needs the Python package {error.name!r}; with pip: pip install "
            + "'kelp-cxl[cli]', in a checkout: make setup"
        )
    main()

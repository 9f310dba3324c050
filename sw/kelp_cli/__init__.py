# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The ``kelp`` command: one module for each subcommand, joined in :mod:`kelp_cli.main`."""

import sys

from .install import missing_package, ours

__all__ = ["start"]


def start() -> None:
    """Entry point of the ``kelp`` command; says so where the packages that draw it are not
    installed."""
    try:
        from .main import main
    except ModuleNotFoundError as error:
        if ours(error):
            raise
        sys.exit(missing_package(error, "the kelp command"))
    except KeyboardInterrupt:
        print("kelp: interrupted", file=sys.stderr)
        sys.exit(130)
    main()

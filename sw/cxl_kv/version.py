# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The version that is installed."""

import importlib.metadata

__all__ = ["version"]


def version() -> str:
    """That of the package kelp-cxl, or "unknown" where the sources are on the path without it."""
    try:
        return importlib.metadata.version("kelp-cxl")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""``kelp bench``: every figure of the contract, measured."""

from .commands import GROUPS, register
from .page import figures_markdown

__all__ = ["GROUPS", "figures_markdown", "register"]

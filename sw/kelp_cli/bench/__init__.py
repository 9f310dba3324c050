# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""``kelp bench``: every figure of the contract, measured."""

from .commands import register

__all__ = ["register"]

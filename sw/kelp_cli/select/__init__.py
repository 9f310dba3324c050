# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""``kelp select``: the options (:mod:`.command`), and a module for each thing that they ask for."""

from .command import register

__all__ = ["register"]

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""``kelp replay``: what is asked for (:mod:`.choices`), who carries it out (:mod:`.engines`), the
command itself (:mod:`.command`)."""

from .command import register

__all__ = ["register"]

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""`plain`: an expander with no policy. Pages stay where they were first put; when DRAM is full,
what is read from flash is kept nowhere."""

from __future__ import annotations

from ..engine import Policy

__all__ = ["Plain"]


class Plain(Policy):
    id = "plain"
    writes_through = True

    def victim(self, now):
        return None

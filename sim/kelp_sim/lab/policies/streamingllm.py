# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""`streamingllm`: attention sinks and a window. The oldest page that is no sink gives way; the
first page of a queue never does while another is left."""

from __future__ import annotations

import numpy as np

from .lfu import Scored

__all__ = ["StreamingLlm"]


class StreamingLlm(Scored):
    id = "streamingllm"
    bits = 0

    def __init__(self, pool, sinks=1):
        """Pages that stay; the paper keeps four tokens."""
        super().__init__(pool)
        if sinks < 0:
            raise ValueError(f"streamingllm: sinks = {sinks} is refused; legal: 0 or more pages")
        self.sinks = sinks

    def value(self, keys, now):
        page = keys % self.pool.pages
        return np.where(page < self.sinks, np.int64(1) << 40, page)

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""A recorded trace through the Verilated endpoint, held against the golden model (spec §9,
docs/replay.md).

:func:`free_running` issues the requests as fast as the answers of the layer before allow: the
golden model replays the commit stream and judges every decision, every answer is compared bit for
bit, and in the end every counter. :func:`lockstep` issues one request at a time: the golden model
runs on its own, and every op, page word, frame entry, score and answer must be equal to its own, in
order. :func:`resident_cycles` is the clock of the same requests with everything resident.

All take a :class:`Job`: plain arrays, so that nothing here knows what a recording is.
"""

from .free import free_running, resident_cycles
from .job import PLANTS, Job, Replay, ReplayError
from .lockstep import lockstep

__all__ = ["PLANTS", "Job", "Replay", "ReplayError", "free_running", "lockstep", "resident_cycles"]

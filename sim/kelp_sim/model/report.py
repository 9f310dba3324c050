# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""All rooms together: the tables of the given inputs, and what comes of the published figures with
the inputs as shipped."""

from __future__ import annotations

from . import attention, choice, cost, endpoint, flash, kv_size, latency, pipeline, serving, wall
from .findings import Finding, Table
from .inputs import Inputs

__all__ = ["TOPICS", "all_findings", "as_json", "tables"]

#: Name on the command line → room.
TOPICS = {
    "kv": kv_size,
    "wall": wall,
    "latency": latency,
    "endpoint": endpoint,
    "pipeline": pipeline,
    "serving": serving,
    "flash": flash,
    "cost": cost,
    "select": choice,
}


def tables(inputs: Inputs, topics=tuple(TOPICS)) -> list[Table]:
    return [table for topic in topics for table in TOPICS[topic].tables(inputs)]


def all_findings(shipped: Inputs) -> list[Finding]:
    """Every published figure. It belongs to the published inputs, so a user's own do not change its
    verdict."""
    return [found for room in (*TOPICS.values(), attention) for found in room.findings(shipped)]


def as_json(inputs_path: str, shown: list[Table], found: list[Finding]) -> dict:
    counts = {
        verdict: sum(f.verdict == verdict for f in found)
        for verdict in ("reproduced", "depends", "refuted")
    }
    return {
        "inputs": inputs_path,
        "tables": {t.name: list(t.rows) for t in shown},
        "findings": [f.as_json() for f in found],
        "verdicts": counts,
    }

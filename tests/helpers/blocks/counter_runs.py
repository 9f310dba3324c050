# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""A block of the control room on Verilator, in its bench of counters."""

from kelp_verif.harness.runner import Model, run_cocotb

__all__ = ["rare", "run"]


def run(component, test, public=(), **params):
    """What the bench saw, by name: how often."""
    result = run_cocotb(
        component,
        bench="kelp_verif.control.counters_bench",
        test=test,
        params={"config": "unit", **params},
        timeout_s=120,
        model=Model(public=public),
    )
    return result.records[test]


def rare(seen, *wanted, least=3):
    """Those of `wanted` that were seen less than `least` times."""
    return {what: seen.get(what, 0) for what in wanted if seen.get(what, 0) < least}

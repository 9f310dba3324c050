# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Policy 2 in the endpoint: what choices and guesses teach decides which page goes, as the golden
model has it."""

import numpy as np
import pytest

from kelp_spec.config import named
from kelp_spec.formats import Format
from kelp_spec.metadata import PrefetchSource
from kelp_spec.policy import Policy
from kelp_verif.endpoint.audited_select import AuditedSelect
from kelp_verif.endpoint.flip_model import memories
from kelp_verif.harness.seeds import reseeded

pytestmark = pytest.mark.timeout(2400)  # the first test builds the model

PAGES = 12
FORMATS = Format.RAW16, Format.RAW16


def run(seed, *, turns, tables=True, guess=0.3):
    """SELECTs of queues in turn, some of them guesses first, in step after step; each at rest, then
    traffic on all pages, which have fewer frames."""
    seed = reseeded(seed)
    s = AuditedSelect(
        named("unit_select"), FORMATS, seed=seed, pressure=0.3, policy=Policy.KELP, tables=tables
    )
    s.device.write_registers({"reserve": 2, "prefetch_enable": 1 << PrefetchSource.HINT - 1})
    s.audit.endpoint.tracker.reserve = 2
    s.write(*s.addresses(PAGES))
    values = next(m for name, m in memories(s.device).items() if "tables.values" in name)
    rng, fetched = np.random.default_rng(seed), []
    s.region._fetch = fetched.extend
    bell = {"m": 47274, "sh": 18, "most": 4, "target": 1 << 17}
    for n in range(turns):
        queue = n % s.config.queues
        own = [s.address(queue, p, 0, line) for p in range(PAGES) for line in range(4)]
        if rng.random() < guess:
            says = {"speculative": 1, "tables": int(rng.integers(2))}
            s.select(0, PAGES, own, queue=queue, layer=n + 1, **says, **bell)
            agree(s, values, queue)
        s.select(0, PAGES, own, queue=queue, layer=n, **bell)
        agree(s, values, queue)
        s.random(int(rng.integers(20, 150)), s.addresses(PAGES))
        if queue == s.config.queues - 1:
            s.device.write64(*s.setup.advance(int(rng.choice([1, 1, 63, 300]))))
    s.audit.finish()
    assert not s.audit.count, [str(m) for m in s.audit.mismatches[:3]]
    assert not s.silent, s.silent[:3]
    s.leave()
    return s, fetched


def agree(s, values, queue):
    """What the device's tables say of a queue's pages is what the golden model's do."""
    found = values.rows.view("<u2").reshape(-1, s.config.pages)[queue, :PAGES]
    assert found.tolist() == s.audit.endpoint.tables.value[queue, :PAGES].tolist()


def test_victims_are_those_of_least_worth():
    s, fetched = run(5, turns=24)
    tables = s.audit.endpoint.tables
    print("victims", s.audit.victims, "credit", tables.credit(0), "fetched early", len(fetched))
    assert s.audit.victims > 50


def test_the_audit_sees_another_worth(monkeypatch):
    """So it would tell."""
    monkeypatch.setattr("kelp_golden.audit.sweeps.worth", lambda tables, squeue, page: 4000 * page)
    with pytest.raises(AssertionError, match="best candidate|offers"):
        run(5, turns=8)

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Choices in the midst of traffic, of a free-running endpoint with fewer frames than pages: the
golden model asks for every op of them, knows each answer, and what is in every slot."""

import numpy as np
import pytest

from kelp_spec.config import named
from kelp_spec.formats import Format
from kelp_verif.endpoint.audited_select import AuditedSelect

pytestmark = pytest.mark.timeout(2400)  # the first test builds the model

PAGES = 12


def run(formats, seed, count=4):
    print("seed", seed)
    s = AuditedSelect(named("unit_select"), formats, seed=seed, pressure=0.3)
    s.device.write_registers({"reserve": 2})
    s.audit.endpoint.tracker.reserve = 2
    s.write(*s.addresses(PAGES))
    rng, held = np.random.default_rng(seed), 0
    for n in range(count):
        queue, addresses = int(rng.integers(4)), s.addresses(PAGES)
        if n % 2:  # keys of the very pages
            addresses = [s.address(queue, p, 0, line) for p in range(PAGES) for line in range(4)]
        held += s.select(
            int(rng.integers(100, 500)),
            int(rng.integers(3, PAGES + 1)),
            addresses,
            queue=queue,
            layer=n // 3,
            most=int(rng.integers(5)),
            target=int(rng.choice([1 << 15, 1 << 17])),
            m=47274,
            sh=18,
        )
    s.audit.finish()
    assert not s.audit.count, [str(m) for m in s.audit.mismatches[:3]]
    assert not s.silent, s.silent[:3]
    return s, held


@pytest.mark.parametrize(
    "formats", [(Format.RAW16, Format.RAW16), (Format.INT8, Format.INT4)], ids=str
)
def test_every_op_of_a_choice_is_the_golden_models(formats):
    s, held = run(formats, 21, 12)
    assert held and s.gathered and s.audit.victims and s.choice.choices > 200
    print("ops of choices", s.choice.choices, "written while asked for", s.choice.raced)
    assert s.choice.raced


def test_the_audit_sees_a_summary_that_does_not_hold(monkeypatch):
    """So it would tell."""
    s = AuditedSelect(named("unit_select"), (Format.RAW16, Format.RAW16), seed=3)
    s.write(*s.addresses(PAGES))
    fields = {"most": 2, "m": 47274, "sh": 18, "target": 1 << 17}
    s.select(10, PAGES, s.addresses(PAGES), **fields)
    assert not s.audit.count
    s.choice._summaries.clear()
    s.select(10, PAGES, s.addresses(PAGES), **fields)
    assert s.audit.count

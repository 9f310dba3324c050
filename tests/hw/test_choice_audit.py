# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Choices in the midst of traffic, of a free-running endpoint with fewer frames than pages: the
golden model asks for every op of them, knows each answer, and what is in every slot."""

import json
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from kelp_golden.audit.choices import SelectAudit
from kelp_spec.config import named
from kelp_spec.formats import Format
from kelp_spec.metadata import PrefetchSource
from kelp_spec.select import (
    ANSWER_FIELDS,
    CHOSEN_FIELDS,
    Refusal,
    SelectMap,
    SelectStatus,
    record_bytes,
)
from kelp_verif.endpoint.audited_select import AuditedSelect
from kelp_verif.endpoint.audited_selects import AuditedSelects
from kelp_verif.harness.seeds import reseeded

pytestmark = pytest.mark.timeout(2400)  # the first test builds the model

PAGES = 12
#: As many KV heads and query heads of each, pages, and lines of a page, as the real model has; an
#: eighth of the pages has a frame.
MANY = named("unit_select").with_(
    name="big_select",
    queues=3,
    pages=256,
    half_lines=32,
    frames=(192, 4, 192, 4),
    misses=32,
    parked=64,
    write_backs=8,
    line_slots=32,
    scale_slots=16,
    write_slots=64,
    hot_pages=8,
    hint_lines=8,
    prefetch_slots=16,
    codec_lanes=8,
    select=32,
    select_heads=3,
    select_quota=16,
    select_groups=4,
    select_looks=64,
)


def agreed(s):
    """Nothing that the device did was another thing than the golden model's."""
    s.audit.finish()
    assert not s.audit.count, [str(m) for m in s.audit.mismatches[:3]]
    assert not s.silent, s.silent[:3]
    s.leave()


def run(formats, seed, count=4):
    seed = reseeded(seed)
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
    agreed(s)
    return s, held


@pytest.mark.parametrize(
    "formats",
    [
        pytest.param((Format.RAW16, Format.RAW16), id="raw16", marks=pytest.mark.night),
        pytest.param((Format.INT8, Format.INT4), id="int8-int4"),
    ],
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


def run_all(formats, seed, count, waits=False):
    """Batches of SELECTs of every group of two sessions, in traffic on all of their pages, or on
    the keys of those that are asked for."""
    seed = reseeded(seed)
    s = AuditedSelects(named("unit_select"), formats, seed=seed, pressure=0.3)
    s.device.write_registers({"reserve": 2})
    if waits:
        s.device.write_registers({"prefetch_enable": 1 << PrefetchSource.HINT - 1})
    s.audit.endpoint.tracker.reserve = 2
    s.write(*s.addresses(PAGES))
    c, rng, held = s.config, np.random.default_rng(seed), 0
    for n in range(count):
        bells = {}
        for session in range(c.sessions):
            queues = rng.permutation(c.queues)
            for group in range(c.select_groups):
                bells[session, group] = {
                    "queue": int(queues[group]),
                    # One of another layer would take the slots of one that waits.
                    "layer": n // 3 + int(not waits and rng.random() < 0.1),
                    "most": int(rng.integers(5)),
                    "fetch": int(rng.integers(2)),
                    "target": int(rng.choice([1 << 15, 1 << 17])),
                    "m": 47274,
                    "sh": 18,
                } | ({"lines": 3} if rng.random() < 0.05 else {})
                if waits:
                    above = int(rng.choice([0, 1 << 12, 1 << 15]))
                    bells[session, group] |= {"waits": 1, "wait_above": above}
                    bells[session, group]["patience"] = int(rng.choice([6, 12, 14]))
        addresses = s.addresses(PAGES)
        if n % 2:  # keys of the very pages
            addresses = [
                s.address(session * c.queues + fields["queue"], page, 0, line)
                for (session, _), fields in bells.items()
                for page in range(PAGES)
                for line in range(4)
            ]
        held += s.select_all(int(rng.integers(400, 1200)), PAGES, addresses, bells)
    agreed(s)
    return s, held


@pytest.mark.parametrize(
    "formats",
    [
        pytest.param((Format.RAW16, Format.RAW16), id="raw16", marks=pytest.mark.night),
        pytest.param((Format.INT8, Format.INT4), id="int8-int4"),
    ],
)
def test_selects_of_two_sessions_at_once(formats):
    s, held = run_all(formats, 31, 4)
    print("ops of choices", s.choice.choices, "rung together", s.together, "held", held)
    assert held and s.gathered and s.audit.victims
    assert s.choice.choices > 300 and s.together == 12


def test_selects_that_wait():
    """For pages that land, or not, amid the same traffic."""
    s, held = run_all((Format.RAW16, Format.RAW16), 41, 4, waits=True)
    print("waited", s.choice.waited, "held", held)
    assert held and s.choice.waited > 3


@pytest.mark.slow
def test_queues_of_many_pages():
    """Summarised as they grow, of one session to the last page, of the other to its 100th; then
    SELECTs of all of them at once."""
    s = AuditedSelects(MANY, (Format.RAW16, Format.RAW16), seed=reseeded(61), pressure=0.2)
    enabled = 1 << PrefetchSource.HINT - 1
    s.device.write_registers({"reserve": 100, "prefetch_enable": enabled})
    s.audit.endpoint.tracker.reserve = 100
    c, size, rng = MANY, 64, np.random.default_rng(reseeded(61))
    says = {"m": 47274, "sh": 18, "target": 3 << 16, "most": c.select - 2, "tokens": 16}
    held, pages = 0, (c.pages, 100)

    def keys(squeue, pages):
        return [s.address(squeue, page, 0, line) for page in pages for line in range(c.half_lines)]

    for session, queue in np.ndindex(c.sessions, c.queues):
        for first in range(0, pages[session], size):
            last = min(first + size, pages[session])
            written = keys(session * c.queues + queue, range(first, last))
            s.write(*written)
            bell = says | {"queue": queue, "layer": queue, "newest": last - 1}
            s.select_all(10, last, written, {(session, 0): bell})
    for n in range(3):
        bells = {}
        for session, queue in np.ndindex(c.sessions, c.queues):
            newest = int(rng.integers(64, pages[session]))
            bell = says | {"queue": queue, "newest": newest, "tokens": int(rng.integers(1, 17))}
            bell |= {"layer": n, "fetch": int(rng.integers(2)), "waits": 1 - n % 2, "patience": 14}
            bells[session, queue] = bell
        squeue = int(rng.integers(c.queues))
        addresses = keys(squeue, rng.permutation(pages[0])[:8])
        held += s.select_all(int(rng.integers(100, 300)), 0, addresses, bells)
    agreed(s)
    print("ops of choices", s.choice.choices, "waited", s.choice.waited, "held", held, s.seen)
    assert held and s.gathered and s.audit.victims and s.choice.waited
    assert s.seen["slot.WANTED"] > 100


def test_what_answers_say_is_left_for_cover_points(tmp_path, monkeypatch):
    """No device: two answers, one of them a refusal."""
    monkeypatch.setenv("KELP_COVERAGE", str(tmp_path))
    s = object.__new__(AuditedSelect)
    s.seen, s.gathered = Counter(), 8
    s.choice = SimpleNamespace(choices=3, raced=0, waited=1)
    s.region = SimpleNamespace(map=SelectMap(named("unit_select")))
    states = 0, 0, 1, 0, 0, 0, 3, 3
    pages = [record_bytes(CHOSEN_FIELDS, {"page": 1, "state": state}, 8) for state in states]
    header = {"status": SelectStatus.DONE, "count": 3, "missing": 5, "wanted": 2}
    s.count(record_bytes(ANSWER_FIELDS, header).ljust(64, b"\0") + b"".join(pages))
    header = {"status": SelectStatus.REFUSED, "refusal": Refusal.PLAN}
    s.count(record_bytes(ANSWER_FIELDS, header).ljust(128, b"\0"))
    s.leave()
    [left] = [json.loads(path.read_text()) for path in tmp_path.glob("*.json")]
    assert left["records"] == {
        **{"choices": 3, "raced": 0, "waited": 1, "gathered": 8, "together": 0, "missing": 1},
        **{"refused.NONE": 1, "refused.PLAN": 1},
        **{"slot.HELD": 2, "slot.ABSENT": 1, "slot.WANTED": 2},
    }
    assert left["bench"] == "kelp_verif.endpoint.audited_select"


def test_the_audit_sees_a_select_out_of_turn(monkeypatch):
    """So it would tell."""
    served = SelectAudit.served
    monkeypatch.setattr(SelectAudit, "served", lambda self, order: served(self, [*order][::-1]))
    s = AuditedSelects(named("unit_select"), (Format.RAW16, Format.RAW16), seed=3)
    s.write(*s.addresses(PAGES))
    fields = {"most": 2, "m": 47274, "sh": 18, "target": 1 << 17}
    s.select_all(
        10,
        PAGES,
        s.addresses(PAGES),
        {(0, 0): fields | {"queue": 1}, (1, 0): fields | {"queue": 2}},
    )
    assert s.audit.count

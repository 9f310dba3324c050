# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The whole endpoint over a memory that answers with SLVERR and DECERR: every such answer ends in
an event and in poison of what it took, and nothing is silently wrong (spec §3, §4)."""

import pytest
from narrow_unit import UNIT

from kelp_rtl.program import Response
from kelp_spec.config import POOLS
from kelp_spec.formats import Format
from kelp_spec.metadata import Event, PageState
from kelp_spec.policy import Policy
from kelp_verif.endpoint import audited_tenants
from kelp_verif.endpoint.audited_shadow import AuditedShadow
from kelp_verif.endpoint.audited_tenants import AuditedTenants
from kelp_verif.endpoint.drawn import drawn
from kelp_verif.endpoint.memory_shadow import MEMORY_EVENTS, MemoryShadow
from kelp_verif.harness.seeds import reseeded

pytestmark = pytest.mark.timeout(1800)  # the first test builds the model

RAW, INT8, INT4 = (Format.RAW16,) * 2, (Format.INT8,) * 2, (Format.INT4, Format.INT8)
FORMATS = pytest.mark.parametrize("formats", [RAW, INT8, INT4], ids=["raw16", "int8", "int4"])
POISON, DATA = Response.POISON, Response.DATA


def shadow(formats, **options):
    """A device with twice as many pages written as it has frames; of the first ones nothing is in
    the line buffers."""
    s = MemoryShadow(UNIT, formats, **options)
    s.write(*reversed(s.addresses(4)))
    s.read(*s.addresses(4))
    s.settle()
    s.events()
    return s


def sharers(s, address):
    """The lines of a page of the unit configuration whose payload or scale lies in a DRAM line with
    that of `address`: with scales all lines of the page, else the line alone."""
    if s.formats == RAW:
        return {address}
    return {a for a in s.addresses(2) if a // 512 == address // 512}


@FORMATS
def test_a_failed_read_is_poison_until_memory_is_well(formats):
    s = shadow(formats)
    address = s.address(1, 0, 0, 2)
    s.errors(reads=1.0)
    assert s.read(address) == [POISON]
    s.errors()
    s.settle()
    assert s.events() == [Event.MEMORY_READ_FAILED] * (1 if formats == RAW else 2)
    assert s.read(address) == [DATA] and not s.silent
    assert set(s.answered(s.addresses(2)).values()) == {DATA} and not s.silent


@FORMATS
def test_a_partial_write_onto_a_failed_fill_is_lost(formats):
    s = shadow(formats)
    address = s.address(1, 0, 0, 2)
    s.errors(reads=1.0)
    s.write(address, enable=0xFF)
    s.errors()
    s.settle()
    assert Event.MEMORY_WRITE_FAILED in s.events()
    answers = s.answered(s.addresses(2))
    assert {a for a, r in answers.items() if r == POISON} == sharers(s, address)
    s.write(address, enable=0xFF)  # not all of it
    assert s.read(address) == [POISON]
    s.write(address)
    assert s.read(address) == [DATA] and not s.silent


@FORMATS
def test_a_write_that_memory_does_not_take_is_poison(formats):
    s = shadow(formats)
    address = s.address(2, 1, 1, 1)
    s.errors(writes=1.0)
    s.write(address)
    s.settle()
    s.errors()
    assert MEMORY_EVENTS & {*s.events()} == {Event.MEMORY_WRITE_FAILED}
    answers = s.answered(s.addresses(2))
    lost = {a for a, r in answers.items() if r == POISON}
    assert lost == sharers(s, address)
    # The poison goes to flash and back.
    s.write(*[a for a in s.addresses() if a not in answers])
    s.settle()
    assert s.device.page_word(0, 2, 1)["state"] == PageState.COLD
    answers = s.answered(s.addresses(2))
    assert {a for a, r in answers.items() if r == POISON} == lost
    s.write(*lost)
    assert set(s.answered(s.addresses(2)).values()) == {DATA} and not s.silent


@FORMATS
def test_a_line_that_is_rewritten_while_its_write_fails(formats):
    s = shadow(formats)
    address = s.address(3, 0, 1, 3)
    for _ in range(8):
        s.errors(writes=0.5)
        s.write(*[address] * 20)
        s.read(address, address)
        s.settle()
        s.read(address)
        s.errors()
        s.write(*sharers(s, address))
        s.settle()
        assert s.read(address) == [DATA]
    assert not s.silent and s.poisoned


#: Seed, and the chances of an error in a read and in a write, of each format; all but one in
#: `make slow`.
CHANCES = {1: (0.05, 0.05), 2: (0.02, 0.3), 3: (0.3, 0.02)}
QUICK = {(2, INT8)}


@pytest.mark.parametrize(
    ("formats", "seed", "chances"),
    [
        pytest.param(
            formats,
            seed,
            chances,
            marks=[] if (seed, formats) in QUICK else pytest.mark.slow,
        )
        for formats in (RAW, INT8, INT4)
        for seed, chances in CHANCES.items()
    ],
)
def test_random_errors_are_never_silent(formats, seed, chances):
    """Few frames, so that pages come and go while their writes fail; then memory is well again."""
    s = MemoryShadow(UNIT, formats, seed=reseeded(seed), pressure=0.3)
    addresses = s.addresses()
    for pages in (2, UNIT.pages, UNIT.pages):
        s.errors(*chances)
        for _ in range(4):
            s.random(600, s.addresses(pages))
        assert not s.silent, s.silent[:3]
        s.settle()
        s.errors()
        assert MEMORY_EVENTS & {*s.events()}
        s.random(400, s.addresses(pages), writes=0.3, partial=0.2)
        assert not s.silent, s.silent[:3]
        s.write(*addresses)
        s.settle()
        s.events()
        assert s.poisoned
        answers = s.answered(addresses)
        assert set(answers.values()) == {DATA} and not s.silent, s.silent[:3]
        assert not MEMORY_EVENTS & {*s.events()}
    s.errors(*chances)
    s.random(600, addresses)
    s.device.close_session(0)
    s.errors()
    assert all(s.device.read64(f"pool_used_{pool}") == 0 for pool in POOLS)
    s.open()
    assert set(s.answered(s.addresses(2)).values()) == {DATA} and not s.silent


@FORMATS
def test_failed_reads_leave_nothing(formats):
    s = shadow(formats, pressure=0.3)
    s.errors(reads=0.2)
    for _ in range(3):
        s.random(500, s.addresses(2), partial=0.0)
    s.settle()
    s.errors()
    assert s.poisoned and not s.silent
    assert MEMORY_EVENTS & {*s.events()} == {Event.MEMORY_READ_FAILED}
    assert set(s.answered(s.addresses(2)).values()) == {DATA} and not s.silent


@pytest.mark.parametrize(
    "formats",
    [
        pytest.param(RAW, id="raw16"),
        pytest.param(INT8, id="int8", marks=pytest.mark.slow),
        pytest.param(INT4, id="int4"),
    ],
)
@pytest.mark.sampled
def test_a_memory_that_takes_nothing_stops_nobody(formats):
    s = MemoryShadow(UNIT, formats, seed=5)
    s.errors(reads=1.0, writes=1.0)
    for _ in range(3):
        s.random(800, s.addresses(), writes=0.7)
    s.settle()
    s.errors()
    assert not s.silent, s.silent[:3]
    s.write(*s.addresses())
    assert set(s.answered(s.addresses()).values()) == {DATA} and not s.silent


@FORMATS
def test_a_partial_write_of_no_byte_changes_nothing(formats):
    """Not even by requantising; a line that nobody wrote stays so, and its page absent."""
    s = shadow(formats)
    before = dict(s.lines)
    for _ in range(3):
        s.write(*s.addresses(2), enable=0)
        assert s.lines == before
        assert set(s.answered(s.addresses(2)).values()) == {DATA} and not s.silent
    untouched = s.address(0, 5)
    s.write(untouched, enable=0)
    assert s.read(untouched) == [DATA] and not s.silent
    assert s.device.page_word(0, 0, 5)["state"] == PageState.ABSENT


@FORMATS
@pytest.mark.parametrize("policy", list(Policy), ids=lambda policy: policy.name.lower())
def test_every_decision_over_a_failing_memory_is_the_golden_models(formats, policy):
    """The audit replays the commit stream: outcomes, words, frames, victims, sweeps, scores, and
    every answer but poison of lines in whose frames memory erred."""
    s = AuditedShadow(UNIT, formats, seed=reseeded(11), pressure=0.3, policy=policy)
    s.write(*reversed(s.addresses(4)))
    assert not s.audit.count and not s.audit.spared
    for reads, writes in ((0.02, 0.0), (0.0, 0.02), (0.03, 0.03), (0.0, 0.0)):
        s.errors(reads, writes)
        s.random(800, s.addresses(4))
        assert not s.audit.count, [str(m) for m in s.audit.mismatches[:3]]
    s.audit.finish()
    assert not s.audit.count and not s.silent
    assert s.audit.spared and s.audit.victims > 300 and s.poisoned > s.audit.spared


def test_the_audit_over_a_failing_memory_sees_a_line_that_is_wrong(monkeypatch):
    """Where memory erred, too: poison is spared there, wrong data and lost poison are not."""
    s = AuditedShadow(UNIT, INT8, seed=11)
    s.write(*s.addresses(4))
    s.errors(0.05, 0.05)
    s.random(800, s.addresses(4))
    assert not s.audit.count and s.poisoned
    monkeypatch.setattr(type(s.audit.endpoint), "memory_error", lambda *_: None)
    s.random(800, s.addresses(4))
    assert s.audit.count


def comings_and_goings(seed, errors=(0.0, 0.0), failing=0.0, chapters=6, config=UNIT):
    """Chapters of traffic, in every other one of which a tenant leaves; then all is well. Pages
    were evicted, and poison was spared where memory erred."""
    s = AuditedTenants(config, seed=reseeded(seed), pressure=0.3)
    for n in range(chapters):
        s.errors(*errors)
        s.tier(failing)
        s.traffic(500, leaves=n // 2 % config.sessions if n % 2 else None)
    s.errors()
    s.tier()
    s.traffic(500)
    s.audit.finish()
    assert s.left == chapters // 2 and s.audit.victims > 2 * chapters
    assert bool(s.audit.spared) == any(errors)
    return s


@pytest.mark.parametrize(
    ("seed", "errors", "failing"),
    [(1, (0.0, 0.0), 0.0), (1, (0.03, 0.03), 0.0), (1, (0.02, 0.05), 0.2)],
    ids=["fair", "memory", "foul"],
)
def test_every_decision_about_tenants_that_come_and_go_is_the_golden_models(seed, errors, failing):
    """Their CLOSE is in the midst of traffic, over a memory and a tier that fail."""
    s = comings_and_goings(seed, errors, failing)
    assert not s.audit.count, [str(m) for m in s.audit.mismatches[:3]]
    assert s.audit.victims > 50


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 112))
def test_seeds_of_tenants_that_come_and_go(seed):
    s = comings_and_goings(seed, (0.03, 0.03), 0.1 * (seed % 3), chapters=24)
    assert not s.audit.count, [str(m) for m in s.audit.mismatches[:3]]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 17))
def test_seeds_of_tenants_that_come_and_go_while_most_fails(seed):
    s = comings_and_goings(seed, (0.02, 0.05), 0.2)
    assert not s.audit.count, [str(m) for m in s.audit.mismatches[:3]]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [4, 5, 6])
def test_tenants_of_other_configurations_that_come_and_go(seed):
    """A model each: three sessions of eight, six and four queues, in pools of 4 to 19 frames."""
    for errors, failing in (((0.0, 0.0), 0.0), ((0.02, 0.05), 0.2)):
        s = comings_and_goings(seed, errors, failing, config=drawn(seed, select=0))
        assert not s.audit.count, [str(m) for m in s.audit.mismatches[:3]]


def test_the_audit_sees_a_policy_that_outlives_its_tenant(monkeypatch):
    """As if the golden model's first tenants left theirs in force."""
    first = {}

    def tell(audit, session, shape, parameters, owner):
        kept = first.setdefault(session, parameters)
        audited_tenants.tell(audit, session, shape, kept, owner)

    monkeypatch.setattr(AuditedTenants, "tell", staticmethod(tell))
    assert {"score", "eviction"} <= {m.what for m in comings_and_goings(1).audit.mismatches}

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Storms: everything that hosts, memory and tier may do to a free-running endpoint, at once. No
answer is silent, nothing stands still, and no frame stays behind."""

import pytest
from narrow_unit import UNIT

from kelp_rtl.program import READ, Response
from kelp_spec.config import Config, ConfigError, named
from kelp_spec.formats import LINE_BYTES
from kelp_verif.endpoint.drawn import drawn
from kelp_verif.endpoint.storm import WEATHERS, Ask, Storm, Tenant, Times, now, wide
from kelp_verif.harness.seeds import reseeded

pytestmark = pytest.mark.timeout(1800)  # the first test builds the model


def sound(config, seed, weather, **options):
    """A storm in which nothing was silent, and much happened."""
    seed = reseeded(seed)
    storm = Storm(config, seed, WEATHERS[weather]).run(**options)
    where, seen = f"seed {seed}, {weather}", storm.seen
    assert not storm.silent, f"{where}: {storm.silent[:3]}"
    assert seen["data"] > 500 and seen["poison"] and seen["fetches"] > 20, f"{where}: {seen}"
    if config.select:
        assert seen["selects"] > 4 and seen["gather_nxm"], f"{where}: {seen}"
    return seen


@pytest.mark.parametrize("weather", WEATHERS)
@pytest.mark.sampled
def test_storm(weather):
    sound(UNIT, 2, weather, chapters=2, count=500)


@pytest.mark.parametrize(
    "weather", ["fair", *(pytest.param(w, marks=pytest.mark.night) for w in ("memory", "foul"))]
)
def test_storm_among_choices(weather):
    """SELECT and GATHER among everything else."""
    seen = sound(named("unit_select"), 1, weather, chapters=2, count=500)
    assert seen["held"] or weather == "foul"


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("weather", WEATHERS)
@pytest.mark.parametrize(
    ("config", "seeds"),
    [
        pytest.param(UNIT, 30, id="unit"),
        pytest.param(named("unit_select"), 10, id="unit_select"),
        pytest.param(named("unit_select_coherent"), 4, id="unit_select_coherent"),
    ],
)
def test_storms(config, seeds, weather):
    """Of many seeds; the last configuration is HDM-DB, for hosts that hold no line."""
    for seed in range(100, 100 + seeds):
        sound(config, seed, weather)


def test_a_configuration_is_drawn_by_its_seed():
    """And is of any size: sessions and queues that are no powers of two, pools of other formats."""
    some = [drawn(seed) for seed in range(40)]
    assert some[7] == drawn(7) and len({c.digest for c in some}) == len(some)
    assert {c.sessions for c in some} == {1, 2, 3, 4} and any(c.select_port for c in some)
    assert any(c.pool_formats != Config.pool_formats for c in some)
    with pytest.raises(ConfigError, match="pages"):
        drawn(1, pages=3)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", [1, 5, 6])
def test_storms_of_other_configurations(seed):
    """A model each: choices without codecs, in pages of 128 lines; three sessions of six queues, 2
    write-backs at once; pools of 4 and 5 frames."""
    for weather in ("fair", "foul", "nonsense"):
        sound(drawn(seed), seed, weather)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_storm_over_640_queues():
    """As many queues to a session as the large configurations have; 14 million cycles."""
    assert sound(wide(640), 1, "fair")["data"] > 5_000


def test_a_line_that_changes_by_itself_is_silent():
    """So the bench would tell."""
    storm = Storm(UNIT, 2, WEATHERS["fair"])
    storm.chapter(300)
    assert not storm.silent
    for _ in range(5):  # pages that are fetched anew are sound
        storm.device.memory[:] ^= 0x20
        storm.chapter(300)
    assert storm.silent


def test_the_line_at_address_0_is_known_where_it_is_gathered():
    """No device: a slot may show the first line of all."""
    storm = object.__new__(Storm)
    storm.weather, storm.silent, storm.seen = WEATHERS["fair"], [], {}
    line = bytes(range(LINE_BYTES))
    tenant = Tenant(session=0, owner=1, shape=None, lines={0: line})
    ask = Ask(READ, 1 << 40, 1, tenant=tenant, means=0)
    storm._judge(ask, Response.DATA, line, True, now, False)
    assert not storm.silent and storm.seen == {"data": 1}


def test_a_read_among_writes_that_it_may_pass():
    """No device: of three writes to a line it finds the last that was answered before it came, or
    one that was accepted before it was answered."""
    tenant, times = Tenant(session=0, owner=1, shape=None), Times()
    assert times.truths(0, 9, tenant, 64) == [bytes(LINE_BYTES)]
    for n, (accepted, answered) in enumerate(((2, 10), (4, 20), (30, 35)), start=1):
        before = tenant.lines.get(64, bytes(LINE_BYTES))
        tenant.lines[64] = bytes([n]) * LINE_BYTES
        times.write(Ask(READ, 64, 1, tenant=tenant), before, accepted, answered)
    found = [
        [truth[0] for truth in times.truths(accepted, answered, tenant, 64)]
        for accepted, answered in ((0, 1), (0, 2), (3, 12), (11, 12), (21, 29), (21, 30), (36, 40))
    ]
    assert found == [[0], [0, 1], [0, 1, 2], [1, 2], [2], [2, 3], [3]]
    assert times.truths(0, 9, tenant, 128) == [bytes(LINE_BYTES)]

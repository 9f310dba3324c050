# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Sizes of the directory: what is refused, and the table of docs/coherence.md."""

import re
from dataclasses import replace

import pytest
from paths import DOCS

from kelp_spec.coherence import SIZES, Coherence, sizes_of
from kelp_spec.config import NAMED, ConfigError, named


def check_bits(bits):
    """SECDED for each part of 64 bits at most: 8, as docs/protection.md has it."""
    return 8 * -(-bits // 64)


def test_the_table_of_sizes_is_what_the_sizes_come_to():
    page = (DOCS / "coherence.md").read_text(encoding="utf-8").partition("## Sizes")[2]
    rows = re.findall(r"^\| `([\w]+)` \|(.*)\|$", page, re.MULTILINE)
    said = {name: [cell.strip() for cell in cells.split("|")] for name, cells in rows}
    assert said.keys() == SIZES.keys() == NAMED.keys()
    for name, sizes in SIZES.items():
        row = sizes.row_bits(named(name))
        total = sizes.sets * (row + check_bits(row))
        want = [sizes.sets, sizes.ways, sizes.sector, sizes.lines, sizes.lines // 16, row]
        assert said[name][:7] == [
            *map(str, want),
            f"{total / 8192:.1f}",
        ], name
        assert said[name][7] == f"{total / sizes.lines:.1f}"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sets": 3}, "coherence: sets = 3 is refused; legal: 2 … 1048576, a power of two"),
        ({"sector": 64}, "coherence: sector = 64 is refused; legal: 2 … 32, a power of two"),
        ({"ways": True}, "coherence: ways = True is refused"),
    ],
)
def test_bad_sizes_are_refused(change, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        Coherence(**change)


def test_a_pool_that_the_host_could_hold_whole_is_refused():
    unit = named("unit_coherent")
    assert sizes_of(unit.with_(frames=(16, 12, 9, 12))).sectors == 8
    with pytest.raises(
        ConfigError,
        match=re.escape(
            "configuration 'unit_coherent': frames = (16, 12, 8, 12) is refused with coherence; "
            + "legal: in each pool more than the directory's 8 sectors"
        ),
    ):
        unit.with_(frames=(16, 12, 8, 12))  # refused where it is made
    with pytest.raises(ConfigError, match="sector = 16 is refused; legal: at most half_lines = 8"):
        named("trace").with_(coherence=True, half_lines=8)
    for name in ("trace", "smollm2", "ulx3s", "llama70b", "64x64", "640x8192"):
        sizes_of(named(name))


def test_the_sets_of_the_directory_are_a_parameter():
    unit = named("unit_coherent")
    assert sizes_of(unit.with_(directory_sets=2)) == replace(sizes_of(unit), sets=2)
    assert sizes_of(unit.with_(directory_sets=2, frames=(16, 12, 5, 12))).sectors == 4
    other = unit.with_(name="other", directory_sets=2)
    assert sizes_of(other).sets == 2
    assert len({unit.digest, other.digest, unit.with_(directory_sets=2).digest}) == 3
    for sets, message in (
        (8, r"frames = .* is refused with coherence; legal: .* the directory's 16 sectors"),
        (3, r"directory_sets = 3 is refused; legal: 2 … 1048576, a power of two"),
        (True, r"directory_sets = True is refused"),
    ):
        with pytest.raises(ConfigError, match=message):
            unit.with_(directory_sets=sets)
    with pytest.raises(ConfigError, match="directory_sets = 2 is refused; legal: 0 without coh"):
        named("unit").with_(directory_sets=2)


@pytest.mark.parametrize(
    ("changes", "sectors"),
    [
        ({"frames": (16, 12, 9, 12)}, 8),
        ({"frames": (5, 12, 9, 12)}, 4),
        ({"frames": (4096,) * 4, "half_lines": 64, "pages": 8192}, 1024),
        ({"frames": (4096,) * 4, "queues": 1, "sessions": 1, "pages": 4}, 64),  # of 16 sets
    ],
)
def test_a_configuration_of_another_name_has_what_fits(changes, sectors):
    config = named("unit").with_(**{"name": "mine"} | changes)
    sizes = sizes_of(config)
    assert sizes.sectors == sectors < min(config.frames)
    assert sizes.row_bits(config) > 0
    with pytest.raises(ConfigError, match=r"frames = \(4, 12, 9, 12\) is refused with coherence"):
        sizes_of(config.with_(frames=(4, 12, 9, 12)))


def test_sizes_that_do_not_fit_the_configuration_are_refused():
    with pytest.raises(ConfigError, match="sector = 8 is refused; legal: at most half_lines = 4"):
        Coherence(sector=8).row_bits(named("unit"))
    with pytest.raises(ConfigError, match="sets = 256 is refused; legal: less than the 128 sec"):
        Coherence(sector=4).row_bits(named("unit"))

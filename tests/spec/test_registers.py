# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Which devices a host of a configuration takes for its own."""

import hashlib
import re

import pytest

from kelp_spec.config import NAMED, named
from kelp_spec.registers import KELP, RegisterMap, identity_of, unlike
from kelp_spec.render import c_header

UNIT, SELECT = named("unit"), named("unit_select")


def shown(config, *, magic=KELP, major=1, minor=1, digest=None):
    return magic << 32 | major << 16 | minor, int(config.digest if digest is None else digest, 16)


@pytest.mark.parametrize("config", NAMED.values(), ids=lambda c: c.name)
def test_the_map_of_a_device_that_chooses_is_a_later_one(config):
    """Its regions are unknown to a host of 1.1. The C header has what the register shows."""
    identity = RegisterMap(config).by_name["identity"].reset
    assert identity == identity_of(config) == shown(config, minor=2 if config.select else 1)[0]
    assert f"#define KELP_CONFIG_IDENTITY {identity:#x}ull\n" in c_header(config)


@pytest.mark.parametrize(
    ("config", "version", "known"),
    [(UNIT, "1.1", "5f6eccc63f78"), (SELECT, "1.2", "e9f7f3d56fa8")],
    ids=["unit", "unit_select"],
)
def test_a_version_is_of_one_map(config, version, known):
    """Hosts tell devices apart by it: what changes the map changes the version, in `identity_of`,
    and then stands here: the minor one where there is more than before, else the major one."""
    seen = repr(
        [
            (
                r.name,
                r.offset,
                r.access.name,
                r.scope.name,
                [(f.name, f.low, f.bits) for f in r.fields],
            )
            for r in RegisterMap(config).registers
        ]
    )
    identity = identity_of(config)
    assert f"{identity >> 16 & 0xFFFF}.{identity & 0xFFFF}" == version
    assert hashlib.sha256(seen.encode()).hexdigest()[:12] == known, (
        "the register map has changed: give it another version"
    )


@pytest.mark.parametrize(
    ("config", "device", "said"),
    [
        (UNIT, shown(UNIT), None),
        (UNIT, shown(UNIT, minor=7), None),
        (SELECT, shown(SELECT, minor=2), None),
        (SELECT, shown(SELECT), "has version 1.1 of the register map, and this host version 1.2"),
        (UNIT, shown(UNIT, minor=0), "has version 1.0 of .* and this host version 1.1"),
        (UNIT, shown(UNIT, major=2), "has version 2.1 of .* and this host version 1.1"),
        (UNIT, shown(UNIT, major=0, minor=9), "has version 0.9 of .* and this host version 1.1"),
        (UNIT, shown(UNIT, magic=0), "shows 0x0000000000010001; .* shows 0x4b454c5000010001"),
        (
            UNIT,
            shown(SELECT, minor=2),
            rf"with digest {SELECT.digest} \('unit_select'\), and 'unit' has digest {UNIT.digest}",
        ),
        (UNIT, shown(UNIT, digest="12"), "with digest 000000000012, and 'unit' has"),
    ],
)
def test_a_device_that_is_not_of_the_host_is_named(config, device, said):
    why = unlike(config, *device)
    assert why is None if said is None else re.search(said, why), why

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Pools of other sizes: what a configuration takes and refuses, and who is told."""

import json
import re
from dataclasses import asdict

import pytest

from kelp_hw.firmware.commands import image
from kelp_spec.address import HINT_BYTES, REGISTER_BYTES, AddressMap, Region
from kelp_spec.config import MOST_NAMED, Config, ConfigError, named
from kelp_spec.cxlio.commands import COMMANDS, Opcode
from kelp_spec.cxlio.config import UNIT_BYTES, cxlio_of, named_cxlio
from kelp_spec.formats import Format, formats_of
from kelp_spec.geometry import smallest_pool, stored_lines
from kelp_spec.select import SelectMap

#: commands without which there is no mailbox; those that need another, or are needed by one
LEAST_COMMANDS = (Opcode.SUPPORTED_LOGS, Opcode.GET_LOG, Opcode.IDENTIFY)
IN_PAIRS = (
    *(Opcode.SUPPORTED_FEATURES, Opcode.GET_FEATURE, Opcode.SET_FEATURE),
    *(Opcode.GET_LSA, Opcode.SET_LSA),
)

K8V4 = ("raw16", "int8/int4", "int8", "int4")


def test_a_page_of_two_formats_has_a_pool_of_its_size():
    usual = named("64x64")
    assert usual.frame_lines == (128, 64, 66, 36)
    config = usual.with_(pool_formats=K8V4)
    assert config.frame_lines == (128, 51, 66, 36)
    lines = stored_lines(Format.INT8, Format.INT4, config.half_lines)
    assert config.frame_lines[smallest_pool(config.frame_lines, lines)] == lines == 51
    # fp8 has no pool of its own then
    fp8 = stored_lines(Format.FP8_E4M3, Format.FP8_E4M3, config.half_lines)
    assert config.frame_lines[smallest_pool(config.frame_lines, fp8)] == 66
    assert usual.dram_lines - config.dram_lines == 256 * (64 - 51)


def test_devices_of_the_usual_pools_keep_their_digest():
    """A board tells its host the digest of what it was built from."""
    assert named("ulx3s").digest == "e96685db4e17"
    assert named("unit").with_(pool_formats=K8V4).digest != named("unit").digest


def test_a_configuration_survives_json():
    config = named("unit").with_(pool_formats=K8V4)
    values = json.loads(json.dumps(asdict(config)))
    assert Config.of_json(values) == config
    with pytest.raises(ConfigError, match=f"'{config.name}' has fields .* know: 'warp', 'weft'"):
        Config.of_json(values | {"warp": 1, "weft": [2]})


def test_labels():
    assert formats_of("int8/int4") == (Format.INT8, Format.INT4)
    assert formats_of("raw16") == (Format.RAW16, Format.RAW16)


@pytest.mark.parametrize(
    "pools",
    [
        ("int8", "raw16", "int8", "int4"),
        ("raw16", "int5", "int8", "int4"),
        ("raw16", "int8/", "int8", "int4"),
        ("raw16", "int8/int4"),
        ("raw16", 8, "int8", "int4"),
        ["raw16", "int8/int4", "int8", "int4"],
    ],
)
def test_refused_pools_are_named(pools):
    with pytest.raises(ConfigError) as refused:
        named("unit").with_(pool_formats=pools)
    said = str(refused.value)
    assert said.startswith(f"configuration 'unit': pool_formats = {pools!r} is refused; legal: raw")
    assert "\n" not in said


def test_flits_have_credits_that_a_front_can_have():
    assert named("unit").flits == 0 and named("unit_flit").flits == 16
    with pytest.raises(ConfigError, match="flits = 12 is refused; legal: 0, 4, 8, 16, 32, 64"):
        named("unit").with_(flits=12)


def test_tables_need_estimates_and_change_nothing_where_they_are_off():
    select = named("unit_select").with_(select_tables=False, select_port=False)
    assert select.digest == "26c2c1915908"
    assert select.with_(select_tables=True).digest != select.digest
    for without in ({"select": 0}, {"select_estimates": False}):
        with pytest.raises(ConfigError, match="select_tables = True is refused; legal: False with"):
            select.with_(select_tables=True, **without)
    with pytest.raises(ConfigError, match="select_tables = 1 is refused; legal: True, False"):
        select.with_(select_tables=1)


def test_a_port_of_summaries_needs_a_choice_and_no_sanitize():
    memory = named("unit_select")
    chip = memory.with_(select_port=False)
    assert chip.digest != memory.digest and chip.summary_lines == memory.summary_lines
    assert named("llama70b_select").summary_lines * 64 == 640 * 8192 * 2 * 128
    for bad in ({"select": 0}, {"cxlio": "joined"}):
        with pytest.raises(ConfigError, match="select_port = True is refused; legal: False with"):
            memory.with_(select_tables=False, select_estimates=False, **bad)
    with pytest.raises(ConfigError, match="select_port = 1 is refused; legal: True, False"):
        memory.with_(select_port=1)


@pytest.mark.parametrize("name", ["unit_cxl", "trace", "smollm2"])
@pytest.mark.parametrize("select", [0, 8])
def test_a_device_with_cxl_io_has_room_for_its_address_map(name, select):
    """Else its host reaches no register."""
    config = named(name).with_(cxlio="joined", pages=max(64, named(name).pages), select=select)
    addresses, held = AddressMap(config), cxlio_of(config).bytes
    ends = [addresses.register_base + REGISTER_BYTES]
    if select:
        places = config.sessions - 1, config.queues - 1
        ends.append(addresses.gather(*places, -1, 1, select - 1, config.half_lines - 1) + 64)
    assert max(ends) <= held < max(ends) + (1 << config.aperture_bits) + UNIT_BYTES


def test_a_monitor_has_a_vector_that_there_is():
    """Else its interrupt never comes."""
    full = named_cxlio("full").replace(vectors=3, pmu_vector=2)
    for bad, legal in (({"vectors": 2}, "1 … 1"), ({"vectors": 2, "pmu_vector": 0}, "1 … 1")):
        with pytest.raises(ValueError, match=f"pmu_vector = . is refused; legal: {legal}"):
            full.replace(**bad)
    with pytest.raises(ValueError, match="vectors = 1 is refused; legal: 2 … 16"):
        full.replace(vectors=1)
    assert named_cxlio("recorded").replace(vectors=2).pmu_vector == 2  # there is no monitor


@pytest.mark.parametrize("one", [op for op in COMMANDS if op not in LEAST_COMMANDS])
def test_a_mailbox_has_a_program_for_every_choice_of_commands_or_refuses_it(one):
    """All commands but one, and the least with one more."""
    others = tuple(op for op in COMMANDS if op != one)
    for commands in (others, (*LEAST_COMMANDS, one)):
        sizes = {
            "lsa": 256 if Opcode.GET_LSA in commands else 0,
            "knobs": 4 if Opcode.GET_FEATURE in commands else 0,
        }
        try:
            config = named_cxlio("full").replace(commands=commands, **sizes)
        except ValueError as error:
            words = r"commands with \w+ and without \w+ are refused"
            assert one in IN_PAIRS and re.fullmatch(words, str(error))
        else:
            assert image(config).program.words()


def test_a_hot_list_has_an_end():
    """A bit of its range bitmap is 256 MiB."""
    with pytest.raises(ConfigError, match="cxlio = 'joined' is refused; .*64 · 256 MiB.* 1536"):
        named("llama70b").with_(cxlio="joined")
    assert cxlio_of(named("llama70b").with_(cxlio="full")).capacity == 1536


def test_more_candidates_than_a_choice_has_are_refused():
    unit = named("unit_select").with_(select_heads=15, select_quota=34)
    assert unit.select_heads * unit.select_quota == MOST_NAMED
    with pytest.raises(ConfigError, match="select_quota = 35 is refused; legal: 510 // .* 34 at"):
        unit.with_(select_quota=35)


@pytest.mark.parametrize("name", ["unit", "unit_select"])
def test_the_regions_of_an_address(name):
    """Each by what lies there; beyond its size it is outside, and so is a choice's without one."""
    config = named(name)
    addresses, top = AddressMap(config), 1 << config.aperture_bits
    sizes = {Region.HINT: HINT_BYTES, Region.REGISTER: min(REGISTER_BYTES, top)}
    if config.select:
        sizes |= {Region.SELECT: 64 << SelectMap(config).offset_bits, Region.GATHER: top}
    for region in range(1, 9):
        for offset in (0, 64, sizes.get(region, top) - 64, sizes.get(region, top)):
            address = region * top + offset
            inside = offset < min(sizes.get(region, 0), top)
            wanted = (region, offset) if inside else (Region.OUTSIDE, address)
            if offset < top:
                assert addresses.decode(address) == wanted
    if config.select:
        last = addresses.gather(config.sessions - 1, 0, 0, 1, 1, 3)
        assert addresses.decode(last) == (Region.GATHER, last - Region.GATHER * top)


def test_a_choice_has_room_for_its_groups():
    """Else doorbells of the last ones would lie in the region above."""
    small = named("unit_select").with_(queues=1, select_heads=16, select_quota=16, select_groups=8)
    assert 64 * SelectMap(small).bell(small.sessions - 1, 7) < 1 << small.aperture_bits
    with pytest.raises(ConfigError, match="select_groups = 16 is refused; legal: 8 at most"):
        small.with_(select_groups=16)

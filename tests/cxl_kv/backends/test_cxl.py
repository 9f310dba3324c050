# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""A device in memory: found by its digest, reached by loads and stores alone, refused with a word
where it cannot be used."""

import multiprocessing
import os
import re
import shutil

import numpy as np
import pytest
from simulated_window import SimulatedWindow

import cxl_kv
from cxl_kv import native
from cxl_kv.backends.cxl import CxlCore, MappedWindow, find_config, window_bytes
from cxl_kv.backends.mapping import ALIGNMENT
from cxl_kv.core import Status
from cxl_kv.device import Device
from cxl_kv.transport import LocalTransport
from cxl_kv.url import make_core
from kelp_spec.address import AddressMap, KvAddress
from kelp_spec.config import NAMED, named
from kelp_spec.hints import HintKind, HintLine
from kelp_spec.hints import pack as pack_hint
from kelp_spec.metadata import Event
from kelp_spec.registers import SessionCommand, identity_of

SHAPE = cxl_kv.ModelShape(layers=2, kv_heads=2, head_dim=32, formats="int8")
RAW = cxl_kv.ModelShape(layers=2, kv_heads=2, head_dim=32)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The C library, in a cache of its own."""
    if not any(shutil.which(c) for c in ("cc", "gcc", "clang", "g++")):
        pytest.fail("there is no C compiler; `make setup` asks for g++")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("KELP_NATIVE", raising=False)
        native.library.cache_clear()
        native.build()
        yield
    native.library.cache_clear()


def memory_of(path, config, size=None, identity=None):
    """A file in the place of a devdax device, whose registers say that it is of `config`."""
    with open(path, "wb") as file:
        file.truncate(-(-window_bytes(config) // ALIGNMENT) * ALIGNMENT if size is None else size)
        file.seek(AddressMap(config).register_base)
        file.write(
            np.array([identity or identity_of(config), int(config.digest, 16)], np.uint64).tobytes()
        )


def opened(core, **window):
    return Device(LocalTransport(CxlCore(SimulatedWindow(core, **window), core.config)))


def tensors(tokens):
    rng = np.random.default_rng(3)
    return rng.standard_normal((2, 2, 2, tokens, 32)).astype(np.float16).view(np.uint16)


@pytest.mark.parametrize(("words", "formats"), [(False, "int8"), (False, "raw16"), (True, "raw16")])
def test_a_session_in_words_of_eight_bytes_is_one_in_lines(words, formats):
    shape = cxl_kv.ModelShape(layers=2, kv_heads=2, head_dim=32, formats=formats)
    k, v = tensors(16)
    out = []
    for device in (cxl_kv.open("golden:unit"), opened(make_core("golden:unit"), words=words)):
        with device, device.open_session(shape, max_tokens=16) as session:
            session.write([0, 1], k, v)
            session.write(1, k[0, :, :3], v[0, :, :3], positions=[5, 6, 7])
            session.advance()
            out.append([np.array(session.read(layer, stop=16)) for layer in (0, 1)])
    assert np.array_equal(out[0], out[1])


def test_hints_and_formats_that_round_are_offered_where_a_line_is_one_write():
    with (
        opened(make_core("golden:unit")) as whole,
        opened(make_core("golden:unit"), words=True) as words,
    ):
        assert whole.transport.hints and not words.transport.hints
        with words.open_session(RAW) as session, pytest.raises(cxl_kv.UnsupportedError):
            session.hints.prefetch(0, 0, [0])
    with opened(make_core("golden:unit"), words=True) as words:
        with pytest.raises(cxl_kv.UnsupportedError, match="stores raw16"):
            words.open_session(SHAPE)


def test_ones_of_a_closed_session_are_not_mapped_and_stored_ones_are_data():
    core = CxlCore(SimulatedWindow(make_core("golden:unit")), named("unit"))
    device, places = Device(LocalTransport(core)), AddressMap(core.config)
    line = np.array([places.encode(KvAddress(0, 0, 0, 0, 0))], np.uint64)
    beyond = [
        places.encode(KvAddress(*at)) for at in ((0, 3, 0, 0, 0), (0, 0, 7, 0, 0), (1, 0, 0, 0, 0))
    ]
    assert core.load(line, 0).status[0] == Status.NOT_MAPPED
    one = cxl_kv.ModelShape(layers=1, kv_heads=1, head_dim=32)
    with device, device.open_session(one, max_tokens=4):
        core.store(line, np.full((1, 64), 0xFF, np.uint8), None, 0)
        lines, status = core.load(line, 0)
        assert status[0] == Status.DATA and (lines == 0xFF).all()
        assert set(core.load(np.array(beyond, np.uint64), 0).status) == {Status.NOT_MAPPED}
        outside = np.array([core._window.size, places.register_base + (1 << 15)], np.uint64)
        assert core.load(outside, 0).status[0] == Status.NOT_MAPPED


def test_a_session_is_its_owners_from_open_to_close():
    """Below the device's own rules, which know LD-ID 0 alone."""
    core = CxlCore(SimulatedWindow(make_core("golden:unit")), named("unit"))
    control, alice, bob = (LocalTransport(core, ld_id, shared=True) for ld_id in (0, 1, 2))
    session = Device(alice).open_session(RAW)
    line = np.array(
        [AddressMap(core.config).encode(KvAddress(session.number, 0, 0, 0, 0))], np.uint64
    )
    data = np.full((1, 64), 7, np.uint8)
    alice.store(line, data)
    registers = {t.ld_id: Device(t).registers for t in (control, alice, bob)}
    p = f"s{session.number}_"
    assert registers[0].fields(p + "shape")["owner"] == 1
    for foreign in (control, bob):
        foreign.store(line, data + 1)
        assert foreign.load(line).status[0] == Status.NOT_MAPPED
    assert np.array_equal(alice.load(line).lines, data)
    assert registers[1].read(p + "state") and not registers[2].read(p + "state")
    assert registers[0].read("reserve") and not registers[1].read("reserve")
    before = registers[0].read(p + "policy")
    registers[2].write(p + "policy", before ^ 1)
    assert registers[0].read(p + "policy") == before
    for command in (SessionCommand.OPEN, SessionCommand.CLOSE):
        registers[1].write(p + "command", command)
        state = registers[0].fields(p + "state")
        assert state["refused"] and state["open"]
    line_of_mass = HintLine(kind=HintKind.MASS, session=session.number, entries=(1,), advance=True)
    hint = pack_hint(line_of_mass)
    step = session.step
    for t in (bob, control, alice):
        t.store(
            np.array([AddressMap(core.config).hint_base], np.uint64),
            np.frombuffer(hint, np.uint8).reshape(1, 64),
        )
        assert session.step == step + (t is alice)
    session.close()
    assert not registers[1].read(p + "policy") and alice.load(line).status[0] == Status.NOT_MAPPED
    # An OPEN that the device refuses makes nobody an owner.
    shape = registers[0].pack(p + "shape", owner=2, layers=0)
    registers[0].write_many([(p + "shape", shape), (p + "command", SessionCommand.OPEN)])
    assert registers[0].fields(p + "state")["refused"] and not registers[2].read(p + "policy")
    before = registers[0].read(p + "policy")
    registers[2].write(p + "policy", before ^ 1)
    assert registers[0].read(p + "policy") == before
    core.close()


def test_what_a_killed_process_has_left_is_undone():
    """Its sessions take no place, its settings do not count: fetches find marks of their own."""
    core = make_core("golden:unit_select?sessions=2")
    marks = ("low_water", "high_water", "prefetch_enable", "pool_limit_raw16")
    lost = opened(core)
    reset = lost.registers.read_many(marks)
    lost.configure(pool_limits={"raw16": 16})
    sessions = [lost.open_session(RAW) for _ in range(2)]
    sessions[0].write(0, *tensors(40)[:, 0])
    lost.fetch_chosen()
    assert lost.registers.read_many(marks) != reset
    device = opened(core)  # nobody has closed the other one
    assert device.registers.read_many(marks) == reset
    for _ in range(2):
        assert not device.open_session(RAW).read(0, stop=40)[0].any()
    device.fetch_chosen()
    assert device.registers.read_many(marks[:2]) == [4, 8]


def test_who_opens_a_device_is_shown_no_events_of_before():
    """Neither what its last user has left unread, nor what looking for its registers has cost: a
    line is looked at once for each place where named configurations have them."""
    core = make_core("golden:trace")
    for session in (0, 1):
        core.window.events.log(Event.HINT_GAP, squeue=16 * session)
    window, candidates = SimulatedWindow(core), list(NAMED.values())
    assert find_config(window, candidates) is named("trace")
    lines = AddressMap(named("trace")).hint_base
    places = [AddressMap(c).register_base for c in candidates[: candidates.index(named("trace"))]]
    places = [place for place in places if place < lines]
    with Device(LocalTransport(CxlCore(window, named("trace")))) as device:
        assert device.events() == []
        assert device.counters()["refused"] == len({*places}) < len(places)


def test_a_device_says_what_it_was_built_from(library, tmp_path):
    path = tmp_path / "dax0.0"
    memory_of(path, named("trace"))
    window = MappedWindow(str(path))
    assert find_config(window, list(NAMED.values())).name == "trace"
    with pytest.raises(cxl_kv.TransportError, match="no KELP identity in .* unit has registers"):
        find_config(window, [named("unit")])
    other = named("trace").with_(name="other", frames=(64, 64, 64, 64))
    both = rf"digest {named('trace').digest} \('trace'\), and 'other' has digest {other.digest}"
    with pytest.raises(cxl_kv.TransportError, match=both):
        find_config(window, [other])
    with pytest.raises(
        cxl_kv.TransportError,
        match=f"digest {named('trace').digest}, which is none of unit, other; .config=NAME",
    ):
        find_config(window, [named("unit"), other])
    window.close()


def test_a_device_that_was_built_under_a_name_of_its_own(library, tmp_path):
    path = tmp_path / "dax0.0"
    memory_of(path, named("unit").with_(name="mine", frames=(8, 8, 8, 9)))
    fields = "config=unit&frames=8,8,8,9"
    with pytest.raises(cxl_kv.TransportError, match="built from a configuration with digest"):
        cxl_kv.open(f"cxl:{path}?{fields}")
    with cxl_kv.open(f"cxl:{path}?{fields}&name=mine") as device:
        assert device.config.name == "mine"
    for name in ("", "a/b", "x" * 101, "ü"):
        with pytest.raises(ValueError, match="name = .* is refused; legal: letters"):
            cxl_kv.open(f"cxl:{path}?{fields}&name={name}")


@pytest.mark.parametrize(
    ("identity", "said"),
    [
        (0x4B454C50_0001_0002, None),  # a later one adds to what this host knows
        (0x4B454C50_0002_0001, "has version 2.1 of the register map, and this host version 1.1"),
        (0x4B454C50_0001_0000, "has version 1.0 of the register map, and this host version 1.1"),
        (0x4B454C51_0001_0001, "no KELP identity in these .* unit_coherent, .* have registers"),
    ],
)
def test_a_device_of_another_version_is_refused_as_such(library, tmp_path, identity, said):
    """Whatever named configuration it may be of, and as its path."""
    path = tmp_path / "dax0.0"
    memory_of(path, named("trace"), identity=identity)
    if said is None:
        cxl_kv.open(f"cxl:{path}").close()
        return
    with pytest.raises(cxl_kv.TransportError, match=f"^cxl:{path}: .*{said}"):
        cxl_kv.open(f"cxl:{path}")


def test_what_is_stored_in_parts_is_in_memory(library, tmp_path):
    path = tmp_path / "dax0.0"
    memory_of(path, named("unit"))
    window, rng = MappedWindow(str(path)), np.random.default_rng(5)
    offsets = 64 * rng.choice(window.size // 64, 300, replace=False).astype(np.uint64)
    lines = rng.integers(0, 256, (300, 64), np.uint8)
    enables = rng.integers(0, 1 << 63, 300, np.uint64)
    enables[::3] |= np.uint64(0xFF00FF00FF)
    enables[::7] = (1 << 64) - 1
    before, _ = window.load(offsets)
    assert not window.store_parts(offsets, lines, enables).any()
    bits = np.unpackbits(enables.view(np.uint8).reshape(-1, 8), axis=1, bitorder="little")
    wanted = np.where(bits.astype(bool), lines, before)
    got, lost = window.load(offsets)
    assert np.array_equal(got, wanted) and not lost.any()
    on_disk = np.fromfile(path, np.uint8).reshape(-1, 64)[offsets // 64]
    assert np.array_equal(on_disk, wanted)
    # What goes away under the mapping is lost, not a signal.
    os.truncate(path, 0)
    assert window.load(offsets)[1].all() and window.store_parts(offsets, lines, enables).all()
    window.close()


def _try(url, out):
    try:
        cxl_kv.open(url).close()
        out.put("opened")
    except cxl_kv.CxlKvError as error:
        out.put(f"{type(error).__name__}: {error}")


def test_one_process_at_a_time(library, tmp_path):
    path, spawn = tmp_path / "dax0.0", multiprocessing.get_context("spawn")
    memory_of(path, named("unit"))
    window, out = MappedWindow(str(path)), spawn.Queue()
    for said in ("TransportError: .* is open already, here or in another process", "opened"):
        process = spawn.Process(target=_try, args=(f"cxl:{path}", out))
        process.start()
        assert re.match(said, out.get(timeout=60))
        process.join()
        window.close()


@pytest.mark.parametrize(
    ("make", "url", "said"),
    [
        (lambda path: None, "cxl:{path}", "No such file"),
        (lambda path: memory_of(path, named("unit"), size=100), "cxl:{path}", "legal: a devdax"),
        (lambda path: memory_of(path, named("unit")), "cxl:{path}?config=trace", "no KELP"),
        (lambda path: memory_of(path, named("unit")), "cxl:{path}?colour=1", "unknown"),
        (lambda path: path.mkdir(), "cxl:{path}", "Is a directory"),
    ],
)
def test_what_cannot_be_opened(library, tmp_path, make, url, said):
    make(tmp_path / "memory")
    with pytest.raises((cxl_kv.CxlKvError, ValueError), match=said):
        cxl_kv.open(url.format(path=tmp_path / "memory"))


def test_without_the_c_library_it_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("KELP_NATIVE", "0")
    native.library.cache_clear()
    with pytest.raises(cxl_kv.UnsupportedError, match="python -m cxl_kv.native"):
        cxl_kv.open(f"cxl:{tmp_path}/dax0.0")
    native.library.cache_clear()

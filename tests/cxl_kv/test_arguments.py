# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What a caller gets wrong: one line that names the argument and its value, and nothing has been
done by then."""

import contextlib
import itertools
import warnings
from dataclasses import fields

import numpy as np
import pytest

import cxl_kv
from cxl_kv import HintRefusedError, LayerFormats, ModelShape, Policy
from cxl_kv.blocks import BlockStore
from cxl_kv.serving.server import Server
from cxl_kv.url import config_of, make_core
from kelp_spec.config import Config, named

SHAPE = ModelShape(layers=4, kv_heads=2, head_dim=32)
K = np.ones((2, 5, 32), np.float16)


@pytest.fixture(scope="module")
def device():
    with cxl_kv.open("golden:trace") as opened:
        yield opened


@pytest.fixture
def session(device):
    with device.open_session(SHAPE, max_tokens=64) as opened:
        yield opened


@pytest.mark.parametrize(
    ("url", "named"),
    [
        (None, "device = None"),
        (b"golden:trace", "device = b'golden:trace'"),
        ("golden:trace?foo", "'foo' of 'golden:trace"),
        ("golden:trace?name=a/b", "name = 'a/b' is refused; legal: letters"),
        ("golden:trace?sessions=2&sessions=3", "'sessions=2&sessions=3' of .*each name once"),
        ("golden:trace?sessions=" + "9" * 5000, "sessions = an object of str is refused"),
        ("golden:trace?cxlio=some", "cxlio = 'some' is refused; legal: '', recorded"),
        ("golden:trace?codecs=2", "codecs=2 is refused; legal: 0, 1"),
        ("dax:", "device 'dax:' is refused"),
        ("dax:/tmp/\0?create=1", r"device 'dax:/tmp/\\x00\?create=1' is refused"),
        ("rtl:unit?seed=-1", "seed = -1 is refused"),
        ("rtl:unit?seed=x", "seed=x"),
        ("rtl:unit?lockstep=yes", "lockstep=yes"),
        ("rtl:unit?tier_latency=-1", "tier_latency = -1 is refused; legal: 0"),
        ("rtl:unit?tier_latency=25us", "tier_latency=25us"),
        ("dax:/tmp?create=yes", "create=yes"),
        ("dax:/tmp", "dax:/tmp: Is a directory$"),
        ("dax:/dev/null", "/dev/null has 0 bytes"),
        ("unix:", "'unix:' is refused"),
        ("unix:/nowhere?admin=yes", "admin=yes"),
        ("unix:/nowhere?timeout=x", "timeout=x"),
        ("unix:/nowhere?timeout=nan", "timeout=nan"),
        ("unix:/nowhere?timeout=inf", "timeout=inf"),
        ("unix:/nowhere?timeout=-1", "timeout=-1"),
        ("tcp://127.0.0.1:99999", "'tcp://127.0.0.1:99999' is refused"),
        ("tcp://127.0.0.1:٣", "'tcp://127.0.0.1:٣' is refused"),
        (f"tcp://{'a' * 64}:80", "nobody serves there .*label"),
        ("tcp://..:80", "nobody serves there .*label"),
        ("dax:/tmp/\ud800?create=1", r"device 'dax:/tmp/\\ud800\?create=1' is refused"),
        ("serial:/dev/null?baud=fast", "baud=fast"),
        ("serial:/dev/null?patience=0", "patience=0"),
        ("serial:/nowhere?colour=1", "option 'colour' of 'serial:/nowhere' is unknown"),
        ("golden:unit?colour=1", "option 'colour' of 'golden:unit.colour=1' is unknown"),
    ],
)
def test_a_url(url, named):
    with pytest.raises((ValueError, cxl_kv.CxlKvError), match=named):
        cxl_kv.open(url)


def test_an_unknown_option_makes_no_file(tmp_path):
    path = tmp_path / "memory"
    with pytest.raises(ValueError, match="option 'colour' of .* is unknown"):
        cxl_kv.open(f"dax:{path}?config=unit&create=1&colour=1")
    assert not path.exists()


@pytest.mark.parametrize("field", [field.name for field in fields(Config) if field.name != "name"])
def test_every_field_of_the_configuration_is_an_option(field):
    """As `docs/cxl_kv.md` says, with the value that it has."""
    said = getattr(named("unit_select"), field)
    text = ",".join(map(str, said)) if isinstance(said, tuple) else said
    options = {field: str(int(said) if isinstance(said, bool) else text)}
    assert getattr(config_of("unit_select", options), field) == said and not options


@pytest.mark.parametrize(
    ("make", "wrong"),
    [
        (SHAPE.with_, {"layers": "4"}),
        (SHAPE.with_, {"layers": True}),
        (SHAPE.with_, {"head_dim": 32.0}),
        (SHAPE.with_, {"page_tokens": "16"}),
        (SHAPE.with_, {"page_tokens": 2.5}),
        (SHAPE.with_, {"dtype": None}),
        (SHAPE.with_, {"dtype": np.float16}),
        (SHAPE.with_, {"formats": None}),
        (SHAPE.with_, {"formats": ("int8", "int4")}),
        (SHAPE.with_, {"k_only": "yes"}),
        (LayerFormats, {"k": None}),
        (LayerFormats, {"last_layer": "1"}),
        (Policy, {"alpha": "x"}),
        (Policy, {"tau": None}),
        (Policy, {"tau": float("nan")}),
        (Policy, {"alpha": 10**400}),
        (Policy, {"mass_shift": 1.5}),
        (Policy, {"switches": 0.5}),
        (Policy, {"score": 9}),
        (Policy, {"score": None}),
        (Policy, {"budget_bytes": 1.5}),
    ],
)
def test_a_shape_or_policy(make, wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} = .* is refused; legal: "):
        make(**wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"shape": "llama-3-8b"},
        {"max_tokens": 1.5},
        {"max_tokens": "8"},
        {"max_tokens": 0},
        {"policy": "kelp"},
    ],
)
def test_a_session_to_open(device, wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} = .* is refused; legal: "):
        device.open_session(**({"shape": SHAPE} | wrong))


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"prefetch": "window"}, "prefetch = 'window'"),
        ({"prefetch": np.array(3)}, r"prefetch = array\(3\)"),
        ({"prefetch": [np.ones((2, 2))]}, "prefetch source an object of ndarray"),
        ({"prefetch": ["foo"]}, "prefetch source 'foo'"),
        ({"prefetch": ["none"]}, "prefetch source 'none'"),
        ({"low_water": -1}, "low_water = -1"),
        ({"low_water": 1.5}, "low_water = 1.5"),
        ({"low_water": 1 << 70}, "low_water = 1180591620717411303424"),
        ({"foo": 1}, "'foo'"),
        ({"pool_limits": ["raw16"]}, "pool_limits = "),
        ({"pool_limits": {"raw16": -1}}, "pool_limit_raw16 = -1"),
    ],
)
def test_a_setting(device, wrong, named):
    """One that is refused leaves those beside it undone."""
    before = device.registers.read("high_water")
    with pytest.raises(ValueError, match=named):
        device.configure(high_water=before + 1, **wrong)
    assert device.registers.read("high_water") == before


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda s: s.write(0, None, K), "k of dtype object"),
        (lambda s: s.write(0, K.view("S2"), K), r"k of dtype \|S2"),
        (lambda s: s.write(0, K, K.view("V2")), r"v of dtype \|V2"),
        (lambda s: s.write(0, np.ma.masked_equal(K, K.flat[0]), K), "k with .* masked elements is"),
        (lambda s: s.write(0, K, K, start=1.5), "start = 1.5"),
        (lambda s: s.write(0, K, K, start="1"), "start = '1'"),
        (lambda s: s.write(0, K, K, positions=[0.5, 1, 2, 3, 4]), "positions"),
        (lambda s: s.write(0, K, K, positions=np.ones(5, bool)), "positions"),
        (lambda s: s.write(0, K, K, positions=[[0, 1, 2, 3, 4]]), "positions"),
        (lambda s: s.write(0, K, K, positions=[None] * 5), "positions"),
        (lambda s: s.write(0, K, K, positions="abcde"), "positions = 'abcde'"),
        (lambda s: s.write(0, K, K, positions=3), "positions = 3"),
        (lambda s: s.write(0, K, K, positions=range(5), start=1), "start = 1"),
        (lambda s: s.read(0, stop=2.5), "stop = 2.5"),
        (lambda s: s.read(0, stop="5"), "stop = '5'"),
        (lambda s: s.read(0, start=10, stop=5), "stop = 5 is refused; legal: 10 and up"),
        (lambda s: s.read(0, start=-5, stop=3), "start = -5"),
        (lambda s: s.read(0, positions=[1], stop=1), "positions and stop"),
        (lambda s: s.read(0, positions=[1], start=1), "start = 1 is refused beside positions"),
        (lambda s: s.read(0, positions=[1], start=0), "start = 0 is refused beside positions"),
        (lambda s: s.read(0, positions=[1 << 63]), "positions|position "),
        (lambda s: s.read(0, stop=4, dtype=np.float32), "dtype = "),
        (lambda s: s.read(0, stop=4, dtype="foo"), "dtype = 'foo'"),
        (lambda s: s.page_state(0, 5, 0), "head = 5"),
        (lambda s: s.page_state(0, 1.5, 0), "head = 1.5"),
        (lambda s: s.page_state(0, 0, 4), "page = 4 is refused; legal: 0 … 3"),
        (lambda s: s.page_state(None, 0, 0), "layer = None"),
        (lambda s: s.advance(1.5), "steps = 1.5"),
        (lambda s: s.advance(-1), "steps = -1"),
        (lambda s: s.set_policy(None), "policy = None"),
        (lambda s: s.telemetry([]), r"by = \[\]"),
        (lambda s: s.telemetry(K), "^by = an object of ndarray is refused"),
        (lambda s: s.write(K, K, K), "^layer = an object of ndarray is refused"),
        (lambda s: s.read(0, positions=K), "^positions = an object of ndarray is refused"),
        (lambda s: s.read(0, positions={3, 5}), r"^positions = \{3, 5\} is refused; legal: whole"),
        (lambda s: s.read(0, positions={3: 5}), r"^positions = \{3: 5\} is refused"),
        (lambda s: s.read(0, positions=b"ab"), "^positions = b'ab' is refused"),
        (lambda s: s.read(0, positions=np.ma.masked_all(2, int)), "^positions with 2 masked elem"),
        (lambda s: s.read(np.ma.masked_all(2, int), stop=1), "^layer with 2 masked elements"),
        (lambda s: s.read(0, stop=4, dtype=K), "^dtype = an object of ndarray is refused"),
        (lambda s: s.sample(4, [0]), "layer = 4"),
        (lambda s: s.by_tables(4), "layer = 4"),
        (lambda s: s.advance(10**5000), "^steps = an object of int is refused"),
        (lambda s: s.device.frames(s.shape, 4), "layer = 4"),
        (lambda s: s.device.frames(None, 0), "shape = None"),
        (lambda s: s.sample(0, [64]), "position 64"),
        (lambda s: s.sample(0, None), "^positions = None is refused; legal: whole numbers"),
        (lambda s: s.device.batch().read(None, 0, stop=1), "^session = None is refused; legal: wh"),
        (lambda s: s.device.batch().write(s.device, 0, K), "^session = <.*> is refused"),
        (lambda s: s.device.registers.write("low_water", foo=1), "low_water has no field 'foo'"),
        (lambda s: s.device.registers.write("low_water", -1), "low_water = -1"),
    ],
)
def test_a_call_on_a_session(session, call, named):
    with pytest.raises(ValueError, match=named):
        call(session)
    assert session.step == 0 and not session.read([0, 1, 2, 3], stop=64)[0].any()


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda h: h.push_mass("a", 0, [0.1]), "layer = 'a'"),
        (lambda h: h.push_mass(0.5, 0, [0.1]), "layer = 0.5"),
        (lambda h: h.push_mass(0, 2, [0.1]), "head = 2"),
        (lambda h: h.push_mass(0, 0, "abc"), "masses = 'abc'"),
        (lambda h: h.push_mass(0, 0, 10**400), "masses = an object of int"),
        (lambda h: h.push_mass(0, 0, ["0.5"]), r"masses = \['0.5'\] are refused"),
        (lambda h: h.push_mass(0, 0, [0.5 + 0.5j]), "masses = .* are refused; legal: numbers"),
        (lambda h: h.push_mass(0, 0, [True]), r"masses = \[True\] are refused"),
        (lambda h: h.push_mass(0, 0, np.ma.masked_greater([0.1, 0.9], 0.5)), "masses with 1 mask"),
        (lambda h: h.push_attention(0, np.ma.masked_all((2, 4))), "weights with 8 masked elements"),
        (lambda h: h.push_attention(0, "abc"), "weights = 'abc'"),
        (lambda h: h.prefetch(0, 0, 5), "pages = 5"),
        (lambda h: h.prefetch(0, 0, "12"), "pages = '12'"),
        (lambda h: h.prefetch(0, 0, b"12"), "pages = b'12'"),
        (lambda h: h.pin(0, 0, {1: 2}), r"pages = \{1: 2\}"),
        (lambda h: h.prefetch(0, 0, np.array(3)), r"pages = array\(3\)"),
        (lambda h: h.push_mass(0, 0, [0.1], first_page=[1]), r"first_page = \[1\]"),
        (lambda h: h.push_mass(0, 0, [0.1], first_page=-1), "first_page = -1"),
        (lambda h: h.push_attention(0, np.ones((2, 4)), first_position=None), "first_position = N"),
        (lambda h: h.push_attention(0, np.ones((2, 4)), first_position=7), "from position 7"),
        (lambda h: h.push_attention(0, [[0.5], [np.nan]]), "weight nan is refused"),
        (lambda h: h.push_attention(0, [[0.5], [np.inf]]), "weight inf is refused"),
        (lambda h: h.push_attention(0, [[0.5, 0], [0.5, -0.25]]), "weight -0.25 is refused"),
        (lambda h: h.pin(0, 0, [1.5]), "page = 1.5"),
        (lambda h: h.release(0, 0, [-1]), "page = -1"),
    ],
)
def test_a_hint(session, call, named):
    before = session.device.counters()["hint_updates"]
    with pytest.raises(HintRefusedError, match=named):
        call(session.hints)
    assert session.device.counters()["hint_updates"] == before


def test_no_positions_are_no_tokens(session):
    for nothing in ({"positions": []}, {"start": 3, "stop": 3}):
        k, v = session.read(0, **nothing)
        assert k.shape == v.shape == (2, 0, 32)


def test_a_closed_session_does_not_show_its_successor(device):
    first = device.open_session(SHAPE)
    first.close()
    with device.open_session(SHAPE) as second:
        assert second.number == first.number
        second.advance(7)
        for look in (first.state, lambda: first.step):
            with pytest.raises(cxl_kv.SessionClosedError):
                look()


def test_a_closed_device_ends_its_sessions_and_takes_no_batches():
    device = cxl_kv.open("golden:trace")
    with device.open_session(SHAPE) as session:
        late = device.batch()
        late.read(session, 0, stop=1)
        assert device.batch().submit().wait(60)
        device.close()
        with pytest.raises(cxl_kv.TransportError, match="the device was closed; open it again"):
            late.submit()
    session.close()


def test_a_large_value_is_named_by_its_type(device):
    with pytest.raises(ValueError, match="^shape = an object of ndarray is refused; legal: .*$"):
        device.open_session(np.zeros((40, 40)))


@pytest.mark.parametrize("url", ["golden:unit", "dax:{}/memory?config=unit&create=1"])
def test_numpys_numbers_are_as_pythons(url, tmp_path):
    """Of a few bits, without a sign, or of one kind beside another: nothing of them runs over."""
    with cxl_kv.open(url.format(tmp_path)) as device, warnings.catch_warnings():
        warnings.simplefilter("error")
        session = device.open_session(ModelShape(layers=1, kv_heads=1, head_dim=32, page_tokens=3))
        x = np.random.default_rng(1).standard_normal((2, 1, 24, 32)).astype(np.float16)
        session.write(0, *x)
        for kinds in itertools.product((int, np.uint8, np.int16, np.uint64, np.int64), repeat=2):
            start, stop = (kind(n) for kind, n in zip(kinds, (4, 10), strict=True))
            k, v = session.read(0, start=start, stop=stop)
            assert (k == x[0][:, 4:10]).all() and (v == x[1][:, 4:10]).all()
        store = BlockStore(device, np.uint8(200))
        data = bytes(range(200))
        assert store.put("a", data) and store.get("a").tobytes() == data
        assert store.get_many(["a"], first=np.uint8(64), size=np.uint8(130))[0].nbytes == 130
        assert store.capacity == 32  # one page each


def test_a_shapes_numbers_are_pythons():
    shape = ModelShape(
        layers=np.uint8(40),
        kv_heads=np.uint8(8),
        head_dim=np.int8(64),
        page_tokens=np.int8(4),
        formats=LayerFormats(last_layer=np.uint8(80)),
    )
    plain = ModelShape(
        layers=40, kv_heads=8, head_dim=64, page_tokens=4, formats=LayerFormats(last_layer=80)
    )
    assert (
        shape.queues == 320
        and shape.token_bytes == plain.token_bytes
        and repr(shape) == repr(plain)
    )


def test_a_policys_numbers_cross_a_socket(tmp_path):
    policy = Policy(
        auto_step=np.int64(7),
        budget_bytes=np.uint16(4096),
        tau=np.float16(60000),
        alpha=np.float32(1),
    )
    same = Policy(auto_step=7, budget_bytes=4096, tau=float(np.float16(60000)), alpha=1.0)
    assert repr(policy) == repr(same) and policy.recency_fields == same.recency_fields
    with (
        Server(make_core("golden:unit")) as server,
        cxl_kv.open(server.listen(f"unix:{tmp_path}/kelp.sock")) as device,
        device.open_session(
            ModelShape(layers=1, kv_heads=1, head_dim=32), policy=policy
        ) as session,
    ):
        assert device.registers.read(f"s{session.number}_auto_step") == 7


@pytest.mark.parametrize("name", ["mass", "wait_above"])
def test_a_share_of_half_precision_is_a_share(name):
    """65536 times what is above 1 does not fit float16."""
    with cxl_kv.open("golden:unit_select") as device:
        session = device.open_session(ModelShape(layers=1, kv_heads=1, head_dim=32))
        session.write(0, K[:1], K[:1])
        if name == "wait_above":
            session.wait_above = np.float16(1)
        named = {name: np.float16(1)} if name == "mass" else {}
        chosen = session.select(0, np.ones((1, 32), np.float16), tokens=5, **named)
        assert chosen.pages[0].tolist() == [0, 1]


def test_a_view_is_of_the_page_that_was_named(tmp_path):
    with cxl_kv.open(f"dax:{tmp_path}/memory?config=unit_select&create=1") as device:
        session = device.open_session(ModelShape(layers=1, kv_heads=1, head_dim=32))
        x = np.arange(256 * 32, dtype=np.uint16).reshape(1, 256, 32)
        session.write(0, x, x)
        k, _ = session.view(0, 0, np.int8(40))  # of 4 tokens
        assert (k == x[0, 160:164]).all()


@pytest.mark.parametrize("way", ["golden", "dax", "unix", "unix to dax"])
def test_a_closed_device_answers_nothing_on_any_back_end(way, tmp_path):
    """Nor calls that would ask it for nothing; and it is no lost connection."""
    dax = f"dax:{tmp_path}/memory?config=unit&create=1"
    url = dax if "dax" in way else "golden:unit"
    with contextlib.ExitStack() as stack:
        if "unix" in way:
            server = stack.enter_context(Server(make_core(url)))
            url = server.listen(f"unix:{tmp_path}/kelp.sock")
        device = cxl_kv.open(url)
        session = device.open_session(ModelShape(layers=1, kv_heads=1, head_dim=32))
        store, nothing = BlockStore(device, 64), np.zeros(0, np.uint64)
        device.close()
        for call in (
            lambda: session.read(0, stop=0),
            lambda: session.read(0, positions=[]),
            lambda: session.read(0, stop=1),
            lambda: session.view(0, 0, 0),
            lambda: device.open_session(session.shape),
            lambda: store.put("empty", b""),
            lambda: device.transport.store(nothing, np.zeros((0, 64), np.uint8)),
            lambda: device.transport.spec_read(nothing),
            session.advance,
        ):
            with pytest.raises(cxl_kv.TransportError, match="the device was closed") as raised:
                call()
            assert raised.type is cxl_kv.TransportError

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The host library's calls, over golden model and RTL: what is written is read, in every format,
and both back ends answer alike."""

import contextlib
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from narrow_unit import RTL

import cxl_kv
from kelp_golden.codec import round_trip
from kelp_spec.formats import Format, HostType
from kelp_spec.metadata import PageState

BACK_ENDS = ("golden:unit", RTL)
FORMATS = tuple(f.label for f in Format)


@pytest.fixture(params=BACK_ENDS)
def device(request):
    with cxl_kv.open(request.param) as opened:
        yield opened


def test_a_session_opens_without_a_look_at_each_queue():
    """The device's counters begin at 0 with it; a device may have 640 queues, and be far away."""
    with cxl_kv.open("golden:unit?sessions=1") as device:
        reads = []
        for queues in (1, 4):
            loaded = []
            load = device.transport.load
            device.transport.load = lambda *a, f=load, n=loaded, **k: n.append(1) or f(*a, **k)
            with device.open_session(small(layers=1, kv_heads=queues)) as session:
                reads.append(len(loaded))
                assert not session.telemetry(by="session")["allocations"]
                session.write(
                    0, np.ones((queues, 1, 32), np.float16), np.ones((queues, 1, 32), np.float16)
                )
                assert session.telemetry(by="session")["allocations"] == queues
            device.transport.load = load
        assert reads[0] == reads[1]


def small(**changes):
    return cxl_kv.ModelShape(**{"layers": 2, "kv_heads": 2, "head_dim": 32} | changes)


def tensors(shape, tokens, seed=1):
    """Bit patterns of keys and values: normal numbers of many sizes."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((2, shape.layers, shape.kv_heads, tokens, shape.head_dim)) * np.exp2(
        rng.integers(-6, 7, (2, 1, 1, tokens, 1))
    )
    bits = (
        x.astype(np.float16).view(np.uint16)
        if shape.dtype == HostType.FP16
        else cxl_kv.float32_to_bf16(x.astype(np.float32))
    )
    return bits[0], bits[1]


def stored(bits, fmt, host_type):
    """What the device gives back for written elements."""
    lines = np.ascontiguousarray(bits).reshape(-1, 32)
    return round_trip(lines, host_type, fmt).reshape(bits.shape)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("cycles", "least", "most"), [(200, 7, 13), (30_000, 14, 18)])
@pytest.mark.sampled
def test_how_long_the_cold_tier_takes_is_said_in_the_url(cycles, least, most):
    """Latencies of misses by ⌊log2⌋: the longest one waits for others, too."""
    shape = small(formats="raw16", dtype="fp16")
    url = RTL.replace("tier_latency=500", f"tier_latency={cycles}")
    with cxl_kv.open(url) as device, device.open_session(shape, max_tokens=16) as session:
        session.write([0, 1], *tensors(shape, session.max_tokens))
        session.read([0, 1], stop=session.max_tokens)
        found = np.flatnonzero(device.latency_histograms()["miss"])
    assert least <= found.max() <= most, found


#: What `make test` reads back from the RTL: each host type; each manner of scale, and none.
QUICK = {("raw16", "fp16"), ("fp8_e5m2", "bf16"), ("int8", "bf16"), ("int4", "fp16")}


@pytest.mark.timeout(1800)  # the first RTL test builds the model
@pytest.mark.parametrize(
    ("device", "label", "dtype"),
    [
        pytest.param(
            url,
            label,
            dtype,
            marks=pytest.mark.slow if url == RTL and (label, dtype) not in QUICK else [],
        )
        for url in BACK_ENDS
        for label in FORMATS
        for dtype in ("fp16", "bf16")
    ],
    indirect=["device"],
)
def test_what_was_written_is_read(device, label, dtype):
    """Twice as many pages as frames: most go to the cold tier and come back."""
    shape = small(formats=label, dtype=dtype)
    with device.open_session(shape, max_tokens=16) as session:
        k, v = tensors(shape, session.max_tokens)
        session.write([0, 1], k, v)
        session.advance()
        got_k, got_v = session.read([0, 1], stop=session.max_tokens, dtype=np.uint16)
        fmt = Format.named(label)
        assert (got_k == stored(k, fmt, shape.dtype)).all() and (
            got_v == stored(v, fmt, shape.dtype)
        ).all()
        telemetry = session.telemetry()
        assert telemetry["evictions"].sum() > 0 and telemetry["misses"].sum() > 0
        assert telemetry["allocations"].tolist() == [[session.pages] * 2] * 2
        layers, whole = session.telemetry(by="layer"), session.telemetry(by="session")
        assert (layers["hits"] == telemetry["hits"].sum(axis=1)).all() and whole[
            "resident_bytes"
        ] == telemetry["resident_bytes"].sum()
        assert telemetry["resident_bytes"].sum() == sum(
            p["used"] * p["frame_bytes"] for p in device.pools().values()
        )
    assert sum(p["used"] for p in device.pools().values()) == 0


@pytest.mark.timeout(1800)
def test_positions_heads_and_layers_are_chosen_freely(device):
    shape = small(
        formats=(cxl_kv.LayerFormats(last_layer=0), cxl_kv.LayerFormats(k="int8", v="int4"))
    )
    with device.open_session(shape, max_tokens=20) as session:
        model = np.zeros((2, 2, 2, 20, 32), np.uint16)
        rng = np.random.default_rng(4)
        for _ in range(12):
            layer, head, n = int(rng.integers(2)), int(rng.integers(2)), int(rng.integers(1, 9))
            positions = rng.choice(20, n, replace=False)
            k, v = (rng.standard_normal((2, 1, n, 32)).astype(np.float16)).view(np.uint16)
            session.write(layer, k, v, positions=positions, heads=head)
            ranges = (Format.RAW16, Format.RAW16) if layer == 0 else (Format.INT8, Format.INT4)
            model[0, layer, head, positions] = stored(k, ranges[0], HostType.FP16)[0]
            model[1, layer, head, positions] = stored(v, ranges[1], HostType.FP16)[0]
        for layers, heads, positions in (
            ([0, 1], None, None),
            (1, [1, 0], [3, 19, 0, 3]),
            (0, 1, range(5, 9)),
        ):
            where = dict(stop=20) if positions is None else dict(positions=positions)
            k, v = session.read(layers, heads=heads, dtype=np.uint16, **where)
            chosen = model[:, np.atleast_1d(layers)][
                :, :, np.atleast_1d(range(2) if heads is None else heads)
            ]
            chosen = chosen[
                :, :, :, np.arange(20) if positions is None else np.array(list(positions))
            ]
            expected = chosen if np.ndim(layers) else chosen[:, 0]
            assert (k == expected[0]).all() and (v == expected[1]).all()


@pytest.mark.timeout(1800)
def test_keys_alone_and_odd_sizes(device):
    """An MLA-like latent: one head of three lines a token, no values; 80 elements do not fill their
    lines."""
    shape = cxl_kv.ModelShape(layers=3, kv_heads=1, head_dim=80, k_only=True, dtype="bf16")
    assert shape.token_lines == 3 and shape.page_tokens_in(device.config) == 1
    with device.open_session(shape) as session:
        k, _ = tensors(shape, session.max_tokens)
        session.write([0, 1, 2], k)
        got, nothing = session.read([0, 1, 2], stop=session.max_tokens)
        assert nothing is None and (got == k).all()
        with pytest.raises(ValueError, match="keys alone"):
            session.write(0, k[0], k[0])


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_the_other_byte_order_is_turned_round(dtype):
    with cxl_kv.open("golden:unit") as device:
        session = device.open_session(small(formats="raw16", dtype=dtype))
        k, v = tensors(session.shape, 8)
        kind = np.uint16 if dtype == "bf16" else np.float16
        swapped = (x.view(kind).astype(np.dtype(kind).newbyteorder(">")) for x in (k, v))
        session.write([0, 1], *swapped)
        got_k, got_v = session.read([0, 1], stop=8, dtype=np.uint16)
        assert (got_k == k).all() and (got_v == v).all()
        with pytest.raises(ValueError, match="in this machine's order"):
            session.read(0, stop=8, dtype=">u2")


@pytest.mark.parametrize(
    ("dtype", "other"),
    [("bf16", np.float16), ("bf16", ">f2"), ("fp16", ml_dtypes.bfloat16)],
)
def test_the_bits_of_another_type_are_not_taken_for_ours(dtype, other):
    with cxl_kv.open("golden:unit") as device:
        session = device.open_session(small(formats="raw16", dtype=dtype))
        ones = np.ones((2, 4, 32), other)
        with pytest.raises(ValueError, match="k of dtype .* is refused; this session takes"):
            session.write(0, ones, ones)
        assert not session.read(0, stop=4, dtype=np.uint16)[0].any()


@pytest.mark.timeout(1800)
def test_two_sessions_do_not_meet(device):
    first, second = (device.open_session(small()) for _ in range(2))
    with pytest.raises(cxl_kv.DeviceFullError, match="2 sessions"):
        device.open_session(small())
    data = [tensors(small(), first.max_tokens, seed) for seed in (1, 2)]
    for session, (k, v) in zip((first, second), data, strict=True):
        session.write([0, 1], k, v)
    for session, (k, v) in zip((first, second), data, strict=True):
        got_k, got_v = session.read([0, 1], stop=session.max_tokens, dtype=np.uint16)
        assert (got_k == k).all() and (got_v == v).all()
    first.close()
    with pytest.raises(cxl_kv.SessionClosedError, match="session 0"):
        first.read(0, stop=1)
    again = device.open_session(small())
    assert again.number == first.number
    k, v = again.read([0, 1], stop=again.max_tokens)
    assert not k.any() and not v.any(), "a recycled frame showed its former owner's bytes"


@pytest.mark.timeout(1800)
def test_hints_reach_their_pages(device):
    device.configure(prefetch=["hint"])
    session = device.open_session(small(), policy=cxl_kv.Policy(score="pushed", mass_shift=2))
    k, v = tensors(small(), session.max_tokens)
    session.write([0, 1], k, v)
    session.hints.push_mass(1, 0, [0.5, 0.25, 0.125], first_page=2, advance=True)
    session.hints.push_attention(0, np.full((2, 9), 1 / 9), advance=True)
    assert session.step == 2
    counters = device.counters()
    assert (counters["hint_lines"], counters["hint_updates"]) == (3, 3 + 2 * 3)
    cold = [
        p for p in range(session.pages) if session.page_state(0, 1, p)["state"] is PageState.COLD
    ]
    for _ in range(100):
        # Dropped while write-backs leave no frame above the low-water mark; and a simulated device
        # goes on only while it is spoken to.
        session.hints.prefetch(0, 1, cold[:1])
        if device.counters()["prefetch_issued_hint"]:
            break
    else:
        raise AssertionError("no prefetch hint was ever taken")
    session.read(0, start=4 * cold[0], stop=4 * cold[0] + 4, heads=1)
    session.hints.pin(0, 1, cold[:1])
    for _ in range(2):
        session.advance()
        session.read([0, 1], stop=session.max_tokens, heads=0)
    word = session.page_state(0, 1, cold[0])
    assert word["state"] is PageState.RESIDENT and word["pinned"]
    session.hints.release(0, 1, cold[:1])
    assert not session.page_state(0, 1, cold[0])["pinned"]
    with pytest.raises(cxl_kv.HintRefusedError, match=r"mass 1\.5"):
        session.hints.push_mass(0, 0, [1.5])
    with pytest.raises(cxl_kv.HintRefusedError, match="layer = 7"):
        session.hints.pin(7, 0, [1])


@pytest.mark.timeout(1800)
def test_batches_complete_in_order(device):
    session = device.open_session(small())
    k, v = tensors(small(), 16)
    batch = (
        device.batch()
        .write(session, [0, 1], k, v)
        .read(session, 1, start=4, stop=16)
        .advance(session, 3)
    )
    done = batch.submit()
    _, (got, _), _ = done.result(timeout=300)
    assert (
        (got.view(np.uint16) == k[1][:, 4:]).all()
        and done.state.value == "done"
        and done.completed == done.calls == 3
    )
    assert done.submitted <= done.started <= done.finished and session.step == 3
    failed = (
        device.batch()
        .read(session, 0, stop=4)
        .read(session, 0, stop=999)
        .read(session, 0, stop=4)
        .submit()
    )
    with pytest.raises(ValueError, match="position 32"):
        failed.result(timeout=300)
    assert failed.completed == 1 and failed.state.value == "failed"
    with pytest.raises(ValueError, match="submitted before"):
        batch.read(session, 0, stop=1)


def test_a_budget_of_less_than_a_line_is_one():
    lines = [cxl_kv.Policy(budget_bytes=size).budget_lines for size in (0, 1, 64, 127, 128)]
    assert lines == [0, 1, 1, 1, 2]  # 0 is no budget


def test_a_policy_that_did_not_reach_the_device_is_not_the_sessions(monkeypatch):
    with cxl_kv.open("golden:unit") as device:
        session = device.open_session(small(), policy=cxl_kv.Policy(tau=7.0))
        with monkeypatch.context() as gone, pytest.raises(cxl_kv.TransportError):
            gone.setattr(device.registers, "_store", _refuse)
            session.set_policy(cxl_kv.Policy(tau=8.0))
        assert session.policy.tau == 7.0
        session.set_policy(cxl_kv.Policy(tau=8.0))
        assert session.policy.tau == 8.0


def _refuse(*_):
    raise cxl_kv.TransportError("nobody there")


@pytest.mark.timeout(1800)
def test_policy_changes_reach_the_queues(device):
    """With a budget of one page, a queue gives way to the others."""
    session = device.open_session(small(), policy=cxl_kv.Policy(budget_bytes=1 << 20))
    frame = small().frame_bytes(0, device.config)
    session.set_policy(cxl_kv.Policy(budget_bytes=frame), layer=1, head=1)
    k, v = tensors(small(), session.max_tokens)
    session.write([0, 1], k, v)
    for _ in range(3):
        session.advance()
        for layer, heads in ((1, 1), (0, None)):
            session.read(layer, stop=16, heads=heads)
    resident = session.telemetry()["resident_bytes"]
    assert resident[1, 1] <= frame < resident.max()


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("options", "values"),
    [
        ("", "int8"),
        pytest.param(
            "&half_lines=8&frames=4,4,4,4&pool_formats=raw16,int8/int4,int8,int4",
            "int4",
            marks=pytest.mark.slow,  # a model of its own; the endpoint's bench has such pools
        ),
    ],
    ids=["usual pools", "a pool of K and V apart"],
)
def test_in_lockstep_the_rtl_counts_as_the_golden_model(options, values):
    """The same calls, the same victims: every counter of device and queues is equal. Frames are of
    the pages' size."""
    seen = []
    for url in ("golden:unit?sessions=2", f"{RTL}&lockstep=1"):
        with cxl_kv.open(url + options) as device:
            device.configure(
                prefetch=["window", "hint", "previous", "layer_ahead"], low_water=1, high_water=2
            )
            shape = small(
                formats=(
                    cxl_kv.LayerFormats(last_layer=0, k="int8", v=values),
                    cxl_kv.LayerFormats(),
                )
            )
            lines = shape.stored_page(0, device.config).lines
            assert shape.frame_bytes(0, device.config) == 64 * lines
            session = device.open_session(shape, policy=cxl_kv.Policy(window=1, tau=20, alpha=0.25))
            rng = np.random.default_rng(9)
            data = []
            for token in range(24):
                k, v = tensors(shape, 1, seed=token)
                session.write([0, 1], k, v, start=token)
                for layer in (0, 1):
                    wanted = rng.choice(token + 1, min(token + 1, 5), replace=False)
                    data.append(session.read(layer, positions=wanted, dtype=np.uint16))
                session.hints.push_mass(0, 1, rng.random(1 + token // 4) / 8, advance=True)
            state = [
                session.page_state(layer, head, page)
                for layer in (0, 1)
                for head in (0, 1)
                for page in range(session.pages)
            ]
            for word in state:
                if word["state"] is PageState.ABSENT:
                    word.clear()
            seen.append(
                (
                    data,
                    device.counters(),
                    {name: x.tolist() for name, x in session.telemetry().items()},
                    state,
                )
            )
    for a, b in zip(*(s[0] for s in seen), strict=True):
        assert (a[0] == b[0]).all() and (a[1] == b[1]).all()
    assert seen[0][1] == seen[1][1]
    assert seen[0][2:] == seen[1][2:]
    assert seen[0][1]["evictions"] > 20 and seen[0][1]["prefetch_issued_window"] > 0


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda s, x: s.write(0, x.astype(np.float32), x), "float32"),
        (lambda s, x: s.write(0, x[:, :, :16], x), r"k of shape \[2, 4, 16\]"),
        (lambda s, x: s.write(2, x, x), "layer = 2"),
        (lambda s, x: s.write(0, x, x, start=30), "position 32"),
        (lambda s, x: s.write(0, x, x, positions=[1, 2]), "2 positions for 4 tokens"),
        (lambda s, x: s.write(0, x), "v is missing"),
        (lambda s, x: s.read(0), "stop is missing"),
        (lambda s, x: s.read(0, positions=[-1]), "position -1"),
        (lambda s, x: s.read(0, stop=1, heads=[0, 2]), r"head = \[0, 2\]"),
        (lambda s, x: s.view(0, 0, 0), "dax"),
        (lambda s, x: s.device.configure(waterline=3), "waterline"),
        (lambda s, x: s.telemetry(by="token"), "by = 'token'"),
        (lambda s, x: s.device.open_session(small(kv_heads=3)), "queues"),
        (lambda s, x: s.device.open_session(small(head_dim=4096)), "head_dim up to 128"),
        (lambda s, x: s.device.open_session(small(), max_tokens=33), "max_tokens = 33"),
        (lambda s, x: small(formats="int5"), "int5"),
        (lambda s, x: small(dtype="fp8"), "fp8"),
        (lambda s, x: cxl_kv.preset("llama-9"), "llama-9"),
        (lambda s, x: cxl_kv.Policy(alpha=2), "alpha = 2"),
        (lambda s, x: cxl_kv.open("golden:nonsense"), "nonsense"),
        (lambda s, x: cxl_kv.open("golden:unit?pages=9"), "pages = 9"),
        (lambda s, x: cxl_kv.open("golden:unit?colour=9"), "colour"),
        (lambda s, x: cxl_kv.open("trace"), "golden:CONFIG"),
    ],
)
def test_bad_calls_are_refused_by_name(call, problem):
    with cxl_kv.open("golden:unit") as device:
        session = device.open_session(small())
        with pytest.raises((ValueError, cxl_kv.UnsupportedError), match=problem):
            call(session, np.zeros((2, 4, 32), np.float16))
        session.read(0, stop=1)


def test_a_device_without_codecs_stores_raw16_alone():
    with cxl_kv.open("golden:unit?codecs=0") as device:
        assert device.formats == {Format.RAW16}
        with pytest.raises(
            cxl_kv.UnsupportedError,
            match=r"format int8 is not to be had .* stores raw16; choose it, or a device of "
            + r"another configuration",
        ):
            device.open_session(small(formats="int8"))
        # Past the library's own check, the device refuses it.
        registers, asked = (
            device.registers,
            {f"format_k_{r}": 0 for r in range(4)} | {"format_v_3": int(Format.INT4)},
        )
        request = {
            "shape": registers.pack("s0_shape", layers=2, kv_heads=2, used_lines=4, used_pages=8),
            "policy": 0,
            "recency": 0,
            "auto_step": 0,
            "budgets": [[0x7FFFFFFF, []]],
        }
        with pytest.raises(
            cxl_kv.OpenRefusedError, match=r"with formats \[0, 4\]; .*in formats 0 \(raw16\)"
        ):
            device.transport.open_session(
                request | {"formats": registers.pack("s0_formats", **asked)}
            )
        with device.open_session(small()) as session:
            k, v = tensors(session.shape, 8)
            session.write([0, 1], k, v)
            assert (session.read([0, 1], stop=8, dtype=np.uint16)[0] == k).all()
    with cxl_kv.open("golden:unit") as device:
        assert device.formats == set(Format)


def test_no_board_answers(tmp_path):
    with pytest.raises(cxl_kv.ConnectionLostError, match="is the board plugged in"):
        cxl_kv.open(f"serial:{tmp_path}/ttyUSB0")


def test_presets_fit_their_device():
    config = cxl_kv.open("golden:trace").config.with_(
        queues=640, half_lines=64, name="wide", sessions=1, pages=1024
    )
    for name in cxl_kv.PRESETS:
        shape = cxl_kv.preset(name, formats="int8")
        assert (
            shape.queues <= config.queues
            and shape.page_tokens_in(config) >= 1
            and shape.frame_bytes(0, config) > 0
        )
    assert cxl_kv.preset("llama-3-70b").token_bytes == 80 * 8 * 128 * 2 * 2
    assert cxl_kv.preset("deepseek-v3-mla").token_lines == 18


def test_the_library_needs_numpy_alone():
    """Neither importing it nor opening a session on the golden model brings in the RTL's
    packages."""
    code = """
import sys, cxl_kv
assert not {"kelp_golden", "kelp_verif", "kelp_hw"} & set(sys.modules)
device = cxl_kv.open("golden:unit")
device.open_session(cxl_kv.ModelShape(layers=1, kv_heads=1, head_dim=32))
tops = {name.partition(".")[0] for name in sys.modules}
assert not {"amaranth", "cocotb", "typer", "rich", "kelp_verif", "kelp_hw", "torch"} & tops, tops
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)


def test_a_close_that_is_interrupted_is_made_again(monkeypatch):
    """As by Ctrl-C while pages are scrubbed: the session takes no place for good."""
    shape = cxl_kv.ModelShape(layers=2, kv_heads=2, head_dim=32)
    with cxl_kv.open("golden:unit?sessions=1") as device:
        session = device.open_session(shape)

        def interrupted(session):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(device.transport._control, "is_closed", interrupted)
            session.close()
        assert not session.closed
        session.close()
        assert session.closed and device.open_session(shape).number == session.number


def test_a_devices_close_that_is_interrupted_is_made_again(monkeypatch):
    """As by Ctrl-C while it waits for the batches under way or while pages are scrubbed."""
    shape = cxl_kv.ModelShape(layers=2, kv_heads=2, head_dim=32)

    def interrupted(*_):
        raise KeyboardInterrupt

    device = cxl_kv.open("golden:unit")
    worker, transport = device.worker, device.transport
    session = device.open_session(shape)
    for of, name in ((worker, "stop"), (transport, "close_session")):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(of, name, interrupted)
            device.close()
        assert device.closed and transport.owned == {session.number}
    device.close()
    assert not transport.owned
    device.close()


def test_a_session_whose_opening_is_interrupted_takes_no_place(monkeypatch):
    """As by Ctrl-C while it reads what events there are: nobody has it who could close it."""
    shape = cxl_kv.ModelShape(layers=2, kv_heads=2, head_dim=32)
    with cxl_kv.open("golden:unit?sessions=1") as device:

        def interrupted():
            raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(device, "poll", interrupted)
            device.open_session(shape)
        assert not device.queues and not device.transport.owned
        device.open_session(shape).close()


@pytest.mark.parametrize("way", ["golden:unit?sessions=1", "dax:{}/memory?config=unit&create=1"])
def test_ctrl_c_behind_an_opening_takes_no_place(way, tmp_path, monkeypatch):
    """At the ends of what nobody else may interrupt: the session is open, and its number is not
    told yet."""
    shape = cxl_kv.ModelShape(layers=2, kv_heads=2, head_dim=32)
    with cxl_kv.open(way.format(tmp_path)) as device:
        ends, transport = 0, device.transport
        exclusive = transport.core.exclusive
        for at in range(100):

            @contextlib.contextmanager
            def interrupted(at=at):
                nonlocal ends
                with exclusive():
                    yield
                ends += 1
                if ends == at + 1:
                    raise KeyboardInterrupt

            ends = 0
            with monkeypatch.context() as patch:
                patch.setattr(transport.core, "exclusive", interrupted)
                try:
                    session = device.open_session(shape)
                    break
                except KeyboardInterrupt:
                    assert not transport.owned, at
        assert at >= 2
        session.close()

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Quality of stored formats: formats against other people's, the NumPy model and its tokenizer
against a recording, plans, and intervals."""

import json

import ml_dtypes
import numpy as np
import pytest
from paths import ROOT
from trace_files import contents, save

from kelp_sim.quality import formats, llama, noise, perplexity, plans, study, threads, tokens
from kelp_sim.trace.trace import TraceError, read

MODEL, RECORDING = ROOT / "data" / "model", ROOT / "data" / "traces" / "attn_0.npz"


@pytest.fixture(autouse=True)
def quiet():
    with threads.one_thread():
        yield


def heads(shape, seed=1, scale=1.0):
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float16)


# - formats ----------------------------------------------------------------------------------------


def test_fp8_is_what_others_make_of_it():
    values = heads((2, 50, 32))
    assert (
        formats.stored("fp8_e4m3", values)
        == values.astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    ).all()


def test_e2m1_is_what_others_make_of_it():
    values = np.concatenate(
        [np.linspace(-6, 6, 4801), [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]]
    ).astype(np.float32)
    assert (
        formats._rounded(values, formats._E2M1)
        == values.astype(ml_dtypes.float4_e2m1fn).astype(np.float32)
    ).all()
    assert formats._rounded(np.array([7.0, -100.0]), formats._E2M1).tolist() == [6, -6]


def test_e4m3_scales_are_what_others_make_of_them():
    values = np.abs(
        np.random.default_rng(1).standard_normal(10_000)
        * 10.0 ** np.random.default_rng(2).integers(-4, 3, 10_000)
    ).astype(np.float32)
    values = np.minimum(values, 448)
    assert (
        formats._rounded(values, formats._E4M3)
        == values.astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    ).all()


@pytest.mark.parametrize(
    ("number", "other"),
    [(formats._E2M3, ml_dtypes.float6_e2m3fn), (formats._E3M2, ml_dtypes.float6_e3m2fn)],
)
def test_six_bits_are_what_others_make_of_them(number, other):
    values = np.linspace(-number.most, number.most, 8001).astype(np.float32)
    assert (formats._rounded(values, number) == values.astype(other).astype(np.float32)).all()


def test_int6_by_hand():
    # amax 40: 40 / 31 = 1.29 goes up to 1.375, the next eighth; 1 is one step of it, 0.6 none.
    block = np.zeros((1, 1, 32), np.float16)
    block[0, 0, :3] = -40, 1, 0.6
    assert formats.stored("int6", block)[0, 0, :3].tolist() == [-29 * 1.375, 1.375, 0]
    assert not formats.stored("int6", np.zeros((1, 2, 32), np.float16)).any()


def test_scales_along_the_other_axis_part_channels_and_pages():
    """A channel at 80 times the others costs them nothing, nor does a page the next one; 20 tokens
    are a page and a short one."""
    values = heads((1, 20, 64), scale=0.1)
    values[:, :16, 3] *= 80
    back = formats.stored("int4_page", values)
    assert back.shape == values.shape and noise.snr_db(values[..., 4:], back[..., 4:]) > 18
    alone = formats.stored("int4_page", values[:, 16:])
    assert (back[:, 16:] == alone).all()
    lines = values[:, :16, 5:6].astype(np.float16).swapaxes(1, 2)
    assert (back[:, :16, 5] == formats.stored("int4", lines)[:, 0]).all()


def test_channel_scales_are_of_the_first_tokens_and_of_pairs():
    values = heads((2, 200, 64))
    values[:, :, 3] *= 30
    values[:, 64:, 7] *= 500
    scale = formats.channel_scales(values)
    assert scale.shape == (2, 1, 64) and (scale[..., :32] == scale[..., 32:]).all()
    assert (scale[..., 3] > 10).all() and (scale[..., 7] < 2).all()
    first = values[:, :64]
    plain, scaled = (
        noise.snr_db(first.astype(np.float32)[..., 8:32], formats.stored(name, first)[..., 8:32])
        for name in ("int4", "int4+c")
    )
    assert scaled > plain + 3


def test_mxfp4_by_hand():
    # amax 5 = 1.25 · 2^2: scale 1. 5 is between 4 and 6 and goes to the even code, 4; 0.3 to 0.5.
    block = np.zeros((1, 1, 32), np.float16)
    block[0, 0, :4] = 5, 0.3, -2.6, 0.2
    assert formats.stored("mxfp4", block)[0, 0, :4].tolist() == [4, 0.5, -3, 0]


def test_nvfp4_by_hand():
    # The largest, 12, takes 6 times the largest scale. The second block's amax 0.75 / 6 in units of
    # 12/2688 is 28 exactly.
    block = np.zeros((1, 1, 32), np.float16)
    block[0, 0, 0], block[0, 0, 16], block[0, 0, 17] = 12, 0.75, -0.25
    assert formats.stored("nvfp4", block)[0, 0, [0, 16, 17]] == pytest.approx(
        [12, 0.75, -0.25], rel=1e-6
    )


@pytest.mark.parametrize("size", [1, 2, 32, 128])
def test_hadamard_undoes_itself(size):
    turn = formats.hadamard(size)
    assert np.allclose(turn @ turn, np.eye(size), atol=1e-6) and np.allclose(
        np.abs(turn), size**-0.5
    )


def test_hadamard_spreads_an_outlier():
    values = heads((1, 200, 32), scale=0.1)
    values[..., 3] += 8
    plain, turned = (
        noise.snr_db(values.astype(np.float32)[..., 4:], formats.stored(name, values)[..., 4:])
        for name in ("int4", "int4+h")
    )
    assert turned > plain + 3


@pytest.mark.parametrize(
    "name,low,high",
    [
        ("raw16", 998, 1000),
        ("int8", 40, 46),
        ("fp8_e4m3", 30, 33),
        ("int4", 17, 23),
        ("int4_page", 17, 23),
        ("int6", 31, 36),
        ("mxfp6_e2m3", 28, 34),
        ("mxfp6_e3m2", 24, 30),
        ("mxfp4", 16, 20),
        ("nvfp4", 18, 23),
    ],
)
def test_noise_of_gaussian_values(name, low, high):
    values = heads((2, 500, 64))
    assert low < noise.snr_db(values.astype(np.float32), formats.stored(name, values)) < high


def test_a_head_that_is_no_whole_line_is_filled_up():
    values = heads((2, 10, 80))
    assert (
        formats.stored("int8", values)[..., :64] == formats.stored("int8", values[..., :64])
    ).all()


def test_bits():
    assert [
        formats.bits(n) for n in ("raw16", "fp8_e4m3", "int8", "int4", "int4+h", "mxfp4", "nvfp4")
    ] == [16, 8, 8.25, 4.5, 4.5, 4.25, 4.5]


@pytest.mark.parametrize(
    "work,fault",
    [
        (
            lambda: formats.stored("int5", heads((1, 1, 32))),
            "format 'int5' is unknown; legal: raw16",
        ),
        (
            lambda: formats.stored("int4+h", heads((1, 1, 96))),
            "Hadamard transform over 96 elements is refused",
        ),
        (lambda: formats.stored("mxfp4", heads((1, 1, 40))), "head_dim = 40 is refused"),
        (lambda: plans.uniform("int8/int3", 1, 1), "format 'int3' is unknown"),
    ],
)
def test_bad_formats_are_one_line(work, fault):
    with pytest.raises(ValueError) as refused:
        work()
    assert fault in str(refused.value) and "\n" not in str(refused.value)


# - the model and its tokenizer --------------------------------------------------------------------


def test_the_model_repeats_a_recording():
    # 192 tokens: keys and values as they were recorded, but for rounding, and the recorded masses
    # from them.
    trace = read(RECORDING)
    with np.load(RECORDING) as archive:
        ids = archive["tokens"][:192].astype(np.int64)
    seen = {}
    losses = llama.load(MODEL).losses(
        ids, lambda layer, kv: seen.setdefault(layer, kv).astype(np.float32)
    )
    assert len(losses) == 191 and 3 < losses.mean() < 6
    for layer in range(trace.layers):
        for given, recorded in zip(seen[layer], (trace.k[layer], trace.v[layer]), strict=True):
            assert (
                np.abs(given.astype(np.float32) - recorded[:, :192].astype(np.float32)).max() < 0.01
            )


def test_every_token_sees_its_own_stored_key():
    # A store that forgets everything leaves nothing to attend to: all keys equal, all values zero.
    model = llama.load(MODEL)
    ids = np.arange(10, 42)
    plain, empty = (
        model.losses(ids),
        model.losses(ids, lambda layer, kv: np.zeros(kv.shape, np.float32)),
    )
    assert abs(plain - empty).mean() > 0.05


def test_attention_is_the_softmax():
    rng = np.random.default_rng(1)
    q, k, v = (
        rng.standard_normal(shape).astype(np.float32)
        for shape in ((4, 3, 8), (2, 300, 8), (2, 300, 8))
    )
    positions = np.array([0, 7, 299])
    found = llama.attend(q, k, v, positions)
    for head in range(4):
        for i, at in enumerate(positions):
            weights = np.exp(q[head, i] @ k[head // 2, : at + 1].T / np.sqrt(8))
            assert found[head, i] == pytest.approx(
                weights / weights.sum() @ v[head // 2, : at + 1], abs=1e-5
            )


def test_the_tokenizer_repeats_a_recording():
    tokenizer = tokens.Tokenizer(MODEL / "tokenizer.json")
    with np.load(RECORDING) as archive:
        ids = archive["tokens"].tolist()
    names = {
        i: text
        for text, i in json.loads((MODEL / "tokenizer.json").read_text(encoding="utf-8"))["model"][
            "vocab"
        ].items()
    }
    byte_of = {letter: byte for byte, letter in enumerate(tokens._letters())}
    text = bytes(byte_of[letter] for i in ids[1:] for letter in names[i]).decode(
        "utf-8", errors="ignore"
    )
    again = tokenizer.encode(text)
    assert ids[0] == 0 and len(text) > 4000 and again[:2000] == ids[1:2001]


def test_texts_are_the_same_ones_for_more():
    tokenizer = tokens.Tokenizer(MODEL / "tokenizer.json")
    two, three = tokens.texts(tokenizer, 2, 64), tokens.texts(tokenizer, 3, 64)
    assert [n for n, _ in three[:2]] == [n for n, _ in two] and all(
        len(ids) == 64 for _, ids in three
    )


def with_config(**changes):
    def change(folder):
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def with_header(change):
    """Of the weights' file."""

    def write(folder):
        path = folder / "model.safetensors"
        data = path.read_bytes()
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + size])
        change(header)
        text = json.dumps(header).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])

    return write


@pytest.mark.parametrize(
    "change,fault",
    [
        (lambda model: model.update(vocab=None), "is no tokenizer"),
        (lambda model: model["vocab"].pop("h"), "its vocabulary lacks 'h'"),
        (lambda model: model["vocab"].update(h=None), "other ids than numbers"),
        (lambda model: model.update(merges=[["h", "h", "h", "q"]]), "lacks 'hhhq'"),
        (lambda model: model.update(merges=[1]), "is no tokenizer"),
        (lambda model: model.update(merges=[[[], []]]), "is no tokenizer"),
    ],
)
def test_bad_tokenizers_are_one_line(tmp_path, change, fault):
    table = json.loads((MODEL / "tokenizer.json").read_text(encoding="utf-8"))
    change(table["model"])
    (tmp_path / "tokenizer.json").write_text(json.dumps(table))
    with pytest.raises(tokens.TokenizerError, match=fault):
        tokens.Tokenizer(tmp_path / "tokenizer.json")


@pytest.mark.parametrize(
    "change,fault",
    [
        (lambda folder: (folder / "config.json").unlink(), "config.json: No such file"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json"),
        (
            lambda folder: (folder / "config.json").write_text('{"model_type": "gpt2"}'),
            "is not of a Llama-shaped model",
        ),
        (
            lambda folder: (folder / "model.safetensors").write_bytes(b"\x10" + bytes(40)),
            "cannot be used",
        ),
        (lambda folder: (folder / "config.json").write_text("[1]"), "is no configuration"),
        (lambda folder: (folder / "config.json").write_text("[" * 100_000), "nested too deeply"),
        (with_config(rope_parameters=[1]), "is no configuration"),
        (with_config(num_attention_heads=0), "num_attention_heads = 0 is refused"),
        (with_config(rms_norm_eps="x"), "rms_norm_eps = 'x' is refused"),
        (with_config(rope_theta=float("nan")), "rope_theta = nan is refused"),
        (with_config(num_key_value_heads=3), "for 3 KV heads are refused"),
        (with_config(vocab_size=8192), "model.embed_tokens.weight is [4096, "),
        (with_config(num_hidden_layers=7), "model.layers.6."),
        (with_header(lambda header: header.pop("model.norm.weight")), "model.norm.weight"),
        (
            with_header(lambda header: header["model.embed_tokens.weight"].update(shape=None)),
            "model.embed_tokens.weight is [",
        ),
        (
            with_header(lambda header: header["model.norm.weight"].update(data_offsets=[-8, 0])),
            "model.norm.weight lies at -8 … 0",
        ),
        (with_header(lambda header: header.update(x=1)), "cannot be used"),
    ],
)
def test_bad_models_are_one_line(tmp_path, change, fault):
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (tmp_path / name).write_bytes((MODEL / name).read_bytes())
    change(tmp_path)
    with pytest.raises(llama.ModelError) as refused:
        llama.load(tmp_path)
    assert fault in str(refused.value) and "\n" not in str(refused.value)


# - noise, intervals, plans ------------------------------------------------------------------------


def test_noise_of_a_recording():
    rows = noise.measure(read(RECORDING), ["raw16", "int8", "int4", "int8/int4"], every=256)
    assert len(rows) == 4 * 12
    error = {
        name: np.mean([r["attention_error"] for r in rows if r["format"] == name])
        for name in ("raw16", "int8", "int4", "int8/int4")
    }
    assert error["raw16"] == 0 < error["int8"] < error["int8/int4"] < error["int4"] < 0.1
    assert all(30 < r["k_snr_db"] < 60 for r in rows if r["format"] == "int8")


def test_a_format_that_a_head_does_not_fit_names_both(tmp_path):
    odd = contents(head_dim=33)
    path = save(tmp_path / "odd.npz", odd | {"q": np.ones((2, 4, 24, 33), np.float16)})
    with pytest.raises(TraceError, match=r"odd.npz, stored as int4\+h: a Hadamard .* over 33"):
        noise.measure(read(path), ["int8", "int4+h"])


def test_noise_of_zeros_and_of_no_numbers(tmp_path):
    keys = {k: np.zeros_like(v) if k in "kv" else v for k, v in contents(head_dim=32).items()}
    queries = np.zeros((2, 4, 24, 32), np.float16)
    path = save(tmp_path / "zeros.npz", keys | {"q": queries})
    rows = noise.measure(read(path), ["int8"])
    assert {(row["k_snr_db"], row["attention_error"]) for row in rows} == {(999.0, 0.0)}
    keys["v"][1, 0, 3, 5] = np.inf
    with pytest.raises(TraceError, match="v has numbers that are not finite"):
        noise.measure(read(save(path, keys | {"q": queries})), ["int8"])


def test_noise_needs_keys(tmp_path):
    trace = read(save(tmp_path / "t.npz", contents(with_kv=False)))
    with pytest.raises(TraceError, match="record with --lines"):
        noise.measure(trace, ["int8"])


def test_an_interval_over_documents():
    # Documents of +0.01 and +0.03 nats in equal numbers: the mean is 0.02, and the interval that of
    # a mean of 40 coin tosses of ±0.01.
    pairs = np.array([(0.01 * 100, 100), (0.03 * 100, 100)] * 20)
    found = perplexity.difference("x", 8, pairs)
    half = 1.96 * 0.01 / np.sqrt(40)
    assert (
        found.nats == pytest.approx(0.02)
        and found.increase == pytest.approx(np.expm1(0.02))
        and (found.documents, found.tokens) == (40, 4000)
    )
    assert found.low == pytest.approx(
        np.expm1(0.02 - half), abs=2e-4
    ) and found.high == pytest.approx(np.expm1(0.02 + half), abs=2e-4)


def test_a_measurement_is_of_weights_and_of_how_they_are_used(tmp_path):
    """The same weights with another base of RoPE are another model."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "model.safetensors").symlink_to((MODEL / "model.safetensors").resolve())
    config = json.loads((MODEL / "config.json").read_text(encoding="utf-8"))
    theta = {"rope_theta": 500.0}
    (other / "config.json").write_text(json.dumps(config | theta), encoding="utf-8")
    text, plan = np.arange(5, 45), plans.uniform("int4", 6, 2)
    found = [
        perplexity.Measurer(llama.load(folder), tmp_path / "rows.jsonl").nats("a", text, plan)
        for folder in (MODEL, other)
    ]
    assert found[0] != found[1]


def test_measurements_are_kept(tmp_path):
    model = llama.load(MODEL)
    text = [("a", np.arange(5, 45)), ("b", np.arange(100, 140))]
    plan, heard = plans.uniform("int4", 6, 2), []
    store = tmp_path / "rows.jsonl"
    first = perplexity.Measurer(model, store).against_raw(text, plan)
    with store.open("a", encoding="utf-8") as file:
        file.write('{"key": "cut sho')
    again = perplexity.Measurer(model, store, lambda *what: heard.append(what[2])).against_raw(
        text, plan
    )
    assert first == again and all(heard) and len(heard) == 4
    exact = [model.losses(ids, plan.store).sum() - model.losses(ids).sum() for _, ids in text]
    assert first.nats == pytest.approx(sum(exact) / 78)


def test_plans_store_each_unit_in_its_own_format():
    plan = plans.uniform("int8", 2, 3).with_units("x", [(1, 0, 2), (1, 1, 0)], "int4")
    kv = heads((2, 3, 20, 32))
    back = plan.store(1, kv)
    for half, head, name in ((0, 2, "int4"), (0, 1, "int8"), (1, 0, "int4"), (1, 2, "int8")):
        assert (back[half, head] == formats.stored(name, kv[half, head])).all()
    assert (plan.store(0, kv) == formats.stored("int8", kv)).all()
    assert plan.bits == pytest.approx((10 * 8.25 + 2 * 4.5) / 12)


def test_the_cheapest_plan_takes_the_least_losses():
    losses = {(0, 0, 0): 0.3, (0, 1, 0): 0.1, (1, 0, 0): 0.2, (1, 1, 0): -0.5}
    assert plans.cheapest(losses, 0.35) == [(0, 1, 0), (1, 0, 0), (1, 1, 0)]
    assert plans.cheapest(losses, 0.05) == [(1, 1, 0)]
    assert plans.cheapest(losses, -1) == []


def test_ranges_are_exact():
    rng = np.random.default_rng(3)
    for _ in range(20):
        layers, budget, ranges = 5, 0.9, int(rng.integers(1, 4))
        losses = {
            (layer, half, 0): float(rng.random() * 0.5)
            for layer in range(layers)
            for half in (0, 1)
        }
        best = None
        for code in np.ndindex(*(4,) * layers):
            loss = sum(
                losses[layer, half, 0]
                for layer in range(layers)
                for half in (0, 1)
                if code[layer] >> half & 1
            )
            if (
                1 + sum(a != b for a, b in zip(code, code[1:], strict=False)) <= ranges
                and loss <= budget
            ):
                entry = -sum(c.bit_count() for c in code), round(loss, 9)
                best = entry if best is None else min(best, entry)
        found = plans.cheapest_ranges(losses, budget, ranges)
        assert (-len(found), round(sum(losses[u] for u in found), 9)) == best


def test_a_study_judges_plans_by_other_texts():
    texts = [(str(i), np.random.default_rng(i).integers(5, 4000, 40)) for i in range(3)]
    heard = []
    done = study.run(
        llama.load(MODEL),
        texts,
        ["int8", "int4"],
        tune=1,
        budgets=(0.5,),
        progress=lambda *what: heard.append(what),
    )
    assert (done.tuned_on, done.plans[0]["documents"], len(done.units), len(done.plans)) == (
        ["0"],
        2,
        24,
        2,
    )
    assert done.plans[0]["bits"] < 8.25 and [b["format"] for b in study.bars(done)] == [
        "int8",
        "int4",
    ]
    assert len(heard) == study.count(2, 3, 1, 1, llama.load(MODEL))

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The system models: each formula against values worked out by hand, the verdicts, and what an
input file is refused for."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from trace_files import contents, save

from kelp_sim.model import (
    attention,
    choice,
    cost,
    endpoint,
    flash,
    kv_size,
    latency,
    pipeline,
    report,
    serving,
    wall,
)
from kelp_sim.model.findings import Condition, agrees, finding
from kelp_sim.model.inputs import DEFAULTS, InputError, Measured, load, with_bench
from kelp_sim.trace.trace import TraceError, read
from kelp_spec.formats import Format

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def inputs():
    return load()


@pytest.mark.parametrize(
    "name,per_token,at_2k",
    [
        ("llama-3-70b", 2 * 80 * 8 * 128 * 2, 671_088_640),
        ("mha-70b", 2 * 80 * 64 * 128 * 2, 5_368_709_120),
        ("mqa-70b", 40_960, 83_886_080),
        ("deepseek-v3", 576 * 2 * 61, 143_917_056),
        # 30 layers keep 512 entries and index keys, 31 keep 16 entries, all 61 a window of 128
        # tokens.
        ("deepseek-v4-pro", 30 * 320 + 31 * 8, 30 * 512 * 1280 + 31 * 16 * 1024 + 61 * 128 * 1024),
    ],
)
def test_kv_bytes(inputs, name, per_token, at_2k):
    model = inputs.models[name]
    assert kv_size.kv_bytes_per_token(model) == per_token
    assert kv_size.kv_bytes(model, 2048) == at_2k


def test_a_hybrid_counts_whole_entries_and_a_partial_window(inputs):
    # 7 tokens: one entry of the layers with four tokens each, none of the others, and seven tokens
    # of window in all.
    assert kv_size.kv_bytes(inputs.models["deepseek-v4-pro"], 7) == 30 * 1280 + 61 * 7 * 1024


def test_wall_and_inflection(inputs):
    assert wall.wall_gb(inputs, 8, 131072) == pytest.approx(140 + 8 * 42.94967296)
    assert wall.inflection_tokens(inputs) == pytest.approx(0.5 * 70.6e9 / 163_840)
    assert [wall.inflection_users(inputs, c) for c in (8192, 32768, 131072)] == [27, 7, 2]
    row = next(r for r in wall.tables(inputs)[0].rows if r["context"] == 131072)
    assert (row["users_in_hbm"], row["users_in_endpoint"], row["users_on_flash"]) == (1, 11, 372)


def test_latency_and_bandwidth(inputs):
    assert latency.read_ns(inputs) == 50 + 30 + 70 + 50 + 20
    assert latency.dram_gb_per_s(inputs) == pytest.approx(409.6)
    slow = replace(inputs, endpoint=replace(inputs.endpoint, clock_ghz=0.5))
    assert latency.controller_ns(slow) == 40
    assert latency.controller_gb_per_s(slow) == pytest.approx(0.9965 * 64 * 0.5)


def test_worked_rows_agree_with_the_device():
    for score, age, integers in ((0.211, 50, 2520), (0.08, 2000, 52132)):
        by_formula, value, ours = endpoint.score_row(score, age)
        assert ours * 65536 == integers
        assert abs(ours - value) < 3e-4 and value == pytest.approx((1 - score) * by_formula)


def test_stored_pages():
    assert [
        endpoint.stored_share(f) * 128
        for f in (Format.RAW16, Format.FP8_E4M3, Format.INT8, Format.INT4)
    ] == [128, 64, 66, 36]


def test_hit_rate_behind_a_speedup():
    # 250 ns and 25 µs: 0.85 hits take 3962.5 ns, and 3.2 times that is had at 49.8 % hits.
    assert endpoint.base_hit_rate(3.2, 0.85, 250, 25_000) == pytest.approx(
        (25_000 - 3.2 * 3962.5) / 24_750
    )
    assert endpoint.residency_for(0.85, (0.125, 0.25), (0.8, 0.9)) == pytest.approx(0.1875)


def test_pipeline_by_hand():
    # Transfers of 3, compute of 2, two buffers: computed at 5, 8, 11: the link is never idle.
    assert pipeline.stream(3, 3.0, 2.0, 2) == pipeline.Step(total_ms=11, idle_ms=5)
    # Compute of 5 with two buffers: the third transfer waits for layer 0; computed at 8, 13, 18.
    assert pipeline.stream(3, 3.0, 5.0, 2).total_ms == 18
    # One buffer: strictly one after the other.
    assert pipeline.stream(3, 3.0, 5.0, 1).total_ms == 24


def test_flash_window_and_fetches(inputs):
    assert flash.window_ms(inputs, 4096) == pytest.approx(0.025 + 1.34217728e3 / 14)
    assert flash.page_bytes(inputs) == 8192
    assert flash.fetches_in_flight(inputs) == 43  # 14 GB/s · 25 µs = 350 000 B


def test_cost_by_hand(inputs):
    assert cost.endpoint_price(inputs) == pytest.approx((512 * 5 + 16 * 80 + 600) / 1e3)
    watts = 1000 + 5 * 80
    assert cost.total_k(inputs, 1, 5) == pytest.approx(
        30 + 5 * 4.44 + watts / 1e3 * 1.4 * 8766 * 3 * 0.12 / 1e3
    )
    assert cost.break_even_seconds(inputs, 16384, 10) == pytest.approx(52 / 5.36870912 * 6)
    # 100 requests a minute held 30 s: 50 users of 42.95 GB; their KV is read at an eighth, ten
    # times a second.
    row = cost.machines(inputs, 131072, 100)
    kv = 50 * 42.94967296
    assert (row["gpus_alone"], row["gpus"], row["endpoints"]) == (
        -(-(140 + kv) // 192),
        1,
        -(-kv * 1.25 // 64),
    )


def test_endpoints_are_none_where_none_is_needed(inputs):
    row = cost.machines(inputs, 4096, 1)
    assert (row["endpoints"], row["cheaper"]) == (0, "no difference")


def test_a_recording_without_mass_has_no_recent_mass(tmp_path):
    keys = contents(with_kv=False)
    keys["mass"][1, 0, 3] = 0
    path = save(tmp_path / "t.npz", keys)
    with pytest.raises(TraceError, match="t.npz: has steps without attention mass"):
        attention.recent_mass(read(path), 0.5)


def test_recent_mass(tmp_path):
    trace = read(save(tmp_path / "t.npz", contents(with_kv=False)))
    assert attention.recent_mass(trace, 1.0) == 1
    newest = (trace.prefill_tokens + np.arange(trace.steps)) // trace.page_tokens
    mass = trace.mass.astype(float).reshape(trace.queues, trace.steps, trace.pages)
    by_hand = np.mean(
        [
            [mass[q, t, newest[t] :].sum() / mass[q, t].sum() for t in range(trace.steps)]
            for q in range(trace.queues)
        ]
    )
    assert attention.recent_mass(trace, 1e-9) == pytest.approx(by_hand)


@pytest.mark.parametrize(
    "claimed,computed,within,holds",
    [
        ("9.62", 9.6246, 0, True),
        ("9.62", 9.626, 0, False),
        ("41", 41.49, 0, True),
        ("41", 42.95, 0, False),
        ("10", 9.848, 0.05, True),
        (">90", 90.0, 0, False),
        (">90", 90.1, 0, True),
        ("≥48", 48.0, 0, True),
        ("<0.1", 0.2, 0, False),
    ],
)
def test_agreement_is_as_printed(claimed, computed, within, holds):
    assert agrees(claimed, computed, within) is holds


def test_verdicts():
    kinds = {
        "reproduced": {},
        "depends": dict(under=Condition("x", 7.0)),
        "refuted": dict(under=Condition("x", 9.0)),
    }
    for verdict, more in kinds.items():
        found = finding("t", "w", "ms", "7", 7.2 if verdict == "reproduced" else 8.0, "…", **more)
        assert found.verdict == verdict
    assert finding("t", "w", "ms", "7", 7.2, "…", under=Condition("x", 9.0)).condition == ""


def test_every_published_figure_has_a_verdict(inputs):
    found = report.all_findings(inputs)
    assert len(found) > 80 and all(
        f.arithmetic and f.verdict in ("reproduced", "depends", "refuted") for f in found
    )
    assert all(f.condition for f in found if f.verdict == "depends")
    by_name = {(f.topic, f.what): f.verdict for f in found}
    assert by_name["KV size", "Llama-3-70B, KV per token"] == "reproduced"
    assert by_name["KV size", "DeepSeek-V4-Pro at 1M, bf16"] == "depends"
    assert by_name["latency", "CXL.mem read, sum of the stages"] == "depends"
    assert by_name["prefetch", "bandwidth of the window, at 25 %"] == "refuted"
    assert (
        by_name["percentiles", "long-128k, P99.9 against P50, users who arrive at random"]
        == "refuted"
    )


def test_a_published_curve_fits_an_open_loop():
    points = {h: 10 + 200 * (1 - h) / (1 - (1 - h) / 0.5) for h in (0.95, 0.9, 0.8, 0.7)}
    base, factor, saturating, worst = serving.fit_open_loop(points)
    assert (base, factor, saturating) == pytest.approx((10, 200, 0.5), rel=0.01) and worst < 0.01


def test_one_session_alone(inputs):
    # 128K at an eighth: 8192 pages of 8 KB a layer over 320 GB/s, 3.12 % of them from 70 GB/s of
    # flash; one read in a thousand takes 1 ms.
    scenario = inputs.serving.scenarios["long-128k"]
    link, missed = 8192 * 8192 / (5 * 63.776e6) + 220e-6, 8192 * (1 - 0.9688)
    flash, slow = missed * 8192 / 70e6, 1 - 0.999**missed
    by_hand = 80 * (8.75 / 80 + (1 - slow) * max(link, flash + 0.025) + slow * (flash + 1))
    assert serving.unloaded_ms(inputs, scenario, 0.125) == pytest.approx(by_hand)
    assert by_hand == pytest.approx(serving.percentiles(inputs, "long-128k")["p50_ms"], rel=0.05)
    share = serving.read_share_for(inputs, scenario, 60)
    assert (
        serving.unloaded_ms(inputs, scenario, share) == pytest.approx(60, abs=0.05)
        and serving.read_share_for(inputs, scenario, 8) is None
    )


def test_what_a_session_writes(inputs):
    # 70B: a token is 4096 B a layer, a page of one head 8 KiB. Five controllers take 5·63.776 GB/s,
    # five memories 0.8·5·409.6, five flashes write 5·7.
    layer = serving.layer_of(inputs, 131072, 0.125)
    writes = serving.writes_of(inputs, layer, 0.75, 131072)
    assert writes.token_link == pytest.approx(
        4096 / 318.88e6
    ) and writes.token_memory == pytest.approx(4096 / 1638.4e6)
    assert writes.page_flash == pytest.approx(8192 / 35e6) and writes.page_memory == pytest.approx(
        8192 / 1638.4e6
    )
    assert (
        writes.heads,
        writes.leaves,
        writes.free_frames,
        writes.prefill_pages,
        writes.prefill_every,
    ) == (8, 0.75, 5120, 8192, 1.6)


def test_writes_share_the_flash(inputs):
    row = serving.percentiles(inputs, "long-128k")
    # Of 42.9 GB of context and 200 tokens three quarters are written once for each of 120 sessions,
    # one every 20 s, at 35 GB/s.
    assert row["flash_written"] == pytest.approx(
        0.75 * (131072 + 200) * 327680 / 35e9 / 20, rel=0.15
    )
    slower = replace(
        inputs,
        flash=replace(inputs.flash, write_gb_per_s=0.7),
        endpoint=replace(inputs.endpoint, free_frames=0),
    )
    assert (
        row["mean_ms_without_writes"]
        < row["mean_ms"]
        < serving.percentiles(slower, "long-128k")["mean_ms"]
    )


TEXT = DEFAULTS.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "old,new,fault",
    [
        ("hbm_gb = 192\n", "", "[gpu] lacks 'hbm_gb'"),
        ("hbm_gb = 192", "hbm_gb = -1", "[gpu] hbm_gb = -1 is refused; legal: above 0"),
        ("hbm_gb = 192", "hbm_gb = 0", "[gpu] hbm_gb = 0 is refused; legal: above 0"),
        ("hbm_gb = 192", "hbm_gb = nan", "[gpu] hbm_gb = nan is refused"),
        ("hbm_gb = 192", 'hbm_gb = "192"', "[gpu] hbm_gb = '192' is refused"),
        (
            "hbm_gb = 192",
            "hbm_gb = 192\nhbm_gib = 180",
            "[gpu] has an unknown key 'hbm_gib'; legal: hbm_gb",
        ),
        (
            "layers = 80\n",
            "layers = 80.5\n",
            "layers = 80.5 is refused; legal: a whole number above 0",
        ),
        (
            'attention = "gqa"',
            'attention = "gpa"',
            "[models.llama-3-70b] attention = 'gpa' is unknown; legal: mha, gqa, mqa, mla, hybrid",
        ),
        ("kv_heads = 8", "kv_heads = 7", "kv_heads = 7 is refused for gqa with 64 query heads"),
        (
            '[wall]\nmodel = "llama-3-70b"',
            '[wall]\nmodel = "llama-4"',
            "[wall] model = 'llama-4' is unknown; there are: llama-3-70b",
        ),
        (
            "slow_share = 0.001",
            "slow_share = 1.5",
            "[flash] slow_share = 1.5 is refused; legal: 0 … 1",
        ),
        ("users = [1, 2, 4, 8, 16, 32]", "users = []", "[wall] users = [] is refused"),
        ("kelp = [0.8157, 0.9663]", "kelp = [0.8157]", "[policy] kelp needs 2 values"),
        ("nvme = 8", "disk = 8", "must name the same parts"),
        (
            "value = 20, row",
            "values = 20, row",
            "[rtl.hit_latency_cycles] has an unknown key 'values'",
        ),
        ("[gpu]\n", "[gpu\n", "is not TOML"),
        ("[gpu]\n", f"[gpu]\na = {'[' * 100_000}", "is not TOML: it is nested too deeply"),
        ("[gpu]\n", f"[gpu]\na = {'9' * 5000}\n", "is not TOML: Exceeds the limit"),
    ],
)
def test_bad_inputs_are_one_line(tmp_path, old, new, fault):
    assert old in TEXT
    file = tmp_path / "my.toml"
    file.write_text(TEXT.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(InputError) as refused:
        load(file)
    assert (
        fault in str(refused.value)
        and str(file) in str(refused.value)
        and "\n" not in str(refused.value)
    )


def test_the_shipped_figures_are_the_last_bench(inputs):
    """Each of [rtl] is its row of data/bench/bench.json, to the digits that it is given with; the
    routed clocks, which no bench measures, are those of README's table."""
    from_bench = with_bench(inputs, ROOT / "data" / "bench" / "bench.json").rtl
    for name, figure in vars(inputs.rtl).items():
        if isinstance(figure, Measured):
            assert figure.value == pytest.approx(getattr(from_bench, name).value, rel=5e-4), name
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for what, mhz in (
        ("quantiser", inputs.rtl.quantise_mhz),
        ("dequantiser", inputs.rtl.dequantise_mhz),
    ):
        assert re.search(rf"^\| {what}[^|]*\| MHz \| {mhz}\b", readme, re.M), what


def test_a_run_of_bench_replaces_figures(inputs, tmp_path):
    file = tmp_path / "bench.json"
    file.write_text(
        '[{"name": "endpoint.hit_latency_cycles", "value": 17}, {"name": "other", "value": 1}]'
    )
    assert latency.read_ns(with_bench(inputs, file)) == 217
    for text, fault in (
        ("[]", "none of the rows"),
        ("{", "no file of `kelp bench`"),
        ('[{"name": 3}]', "no file of `kelp bench`"),
        ("[" * 100_000, "no file of `kelp bench`"),
        ('[{"name": "endpoint.hit_latency_cycles", "value": NaN}]', "_cycles = nan is refused"),
        ('[{"name": "endpoint.hit_latency_cycles", "value": 0}]', "_cycles = 0.0 is refused"),
    ):
        file.write_text(text)
        with pytest.raises(InputError, match=fault):
            with_bench(inputs, file)


def test_a_choice_at_70b(inputs):
    one, five = (choice.Scale(inputs, "llama-3-70b", 131_072, n) for n in (1, 5))
    # 8 KV heads · 8192 pages · 4 lines a token, a cycle of 1 ns each.
    assert one.first_us == pytest.approx(262.144) and five.first_us == pytest.approx(262.144 / 4)
    # 512 summaries of 16 pages, then the 16 pages of what 8 heads name 16 of.
    assert one.level_us == pytest.approx(8 * 4 * (512 + 2048) / 1e3)
    # 128 pages of 8 KB for each of 8 KV heads over 64 GB/s.
    assert one.gather_us == pytest.approx(8 * 128 * 8192 / 64e3)
    assert one.dram_bytes == 80 * 8 * (8192 + 130 * 17) * 4 * 64
    assert choice.levels_from(inputs, "llama-3-70b", 1) == 3125 * 16
    rows = {(r["model"], r["context"]): r for r in choice.index_rows(inputs)}
    assert rows["DeepSeek-V3.2", 131_072]["scan_us"] == pytest.approx(262.144)
    [found] = choice.findings(inputs)
    assert found.verdict == "depends" and 17 < found.computed < 19

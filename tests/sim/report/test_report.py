# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The report of a replay, over made-up results (synthetic_result.py): figures, plots, page and JSON
say what the result says."""

import base64
import dataclasses
import html
import io
import json
import re
import shutil
import subprocess
import textwrap
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from paths import DOCS
from rich.console import Console
from synthetic_result import synthetic_result
from trace_files import contents, save

from kelp_sim import report
from kelp_sim.replay.result import PageResidency
from kelp_sim.replay.waiting import waiting
from kelp_sim.report import page as report_page
from kelp_sim.report import plots
from kelp_sim.trace.accesses import access_sequence
from kelp_sim.trace.trace import read

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def sequence(tmp_path_factory):
    keys = contents(prefill_tokens=64, steps=96, tokens=160, with_kv=False)
    return access_sequence(read(save(tmp_path_factory.mktemp("trace") / "t.npz", keys)))


@pytest.fixture(scope="module")
def result(sequence):
    return synthetic_result(sequence)


def shown(result, width=80):
    console = Console(width=width, file=io.StringIO())
    console.print(report.table(result))
    return console.file.getvalue()


class Page(HTMLParser):
    """Collects what a browser would load, and checks that tags close in order."""

    VOID = {"meta", "img"}

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.loads, self.text = [], [], [], ""
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.loads += [
            value
            for name, value in attributes
            if name in ("src", "href", "srcset", "data", "action", "style")
        ]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


# The names that build/demo/report.json must have, whatever else it holds.
NAMES = """trace config config_hash policy seed residency accesses lockstep_accesses line_requests
mismatches hit_rate lru_hit_rate lru_pooled_hit_rate belady_hit_rate demand_misses
flash_reads_per_access cycles lines_per_cycle lines_per_second""".split()


def test_json_has_every_name_and_fractions(result, tmp_path):
    report.write_json(result, tmp_path / "report.json")
    found = json.loads((tmp_path / "report.json").read_bytes().decode("utf-8"))
    assert found["schema"] == "kelp.report" and found["schema_version"] == 1
    assert set(NAMES) <= set(found)
    for name in ("residency", "hit_rate", "lru_hit_rate", "lru_pooled_hit_rate", "belady_hit_rate"):
        assert isinstance(found[name], float) and 0 <= found[name] <= 1
    accesses = int(result.step_accesses.sum())
    assert found["accesses"] == accesses
    for name, reference in (
        ("lru_hit_rate", "LRU per queue"),
        ("lru_pooled_hit_rate", "LRU pooled"),
        ("belady_hit_rate", "Belady pooled"),
    ):
        assert found[name] == pytest.approx(
            1 - result.references[reference].misses.sum() / accesses
        )
    assert found["flash_reads_per_access"] == pytest.approx(result.flash_reads / accesses)
    assert found["lines_per_cycle"] == pytest.approx(result.line_requests / result.cycles)
    assert found["hit_latency_log2_cycles"] == result.hit_latency.tolist()


def names_in(found, open_ended=("lockstep", "formats")):
    """Every field's name; of what has names of its own, such as policies, those of one entry."""
    for name, value in found.items():
        yield name
        if isinstance(value, dict) and name not in open_ended:
            yield from next(iter(value.values()), {})


def test_the_guide_has_every_field_of_the_json(result):
    guide = (DOCS / "replay.md").read_text(encoding="utf-8")
    found = report.as_json(replace(result, ladder={"lru": (2, 1)}))
    missing = [name for name in names_in(found) if f"`{name}`" not in guide]
    assert len(found) > 35 and not missing, f"docs/replay.md does not tell {', '.join(missing)}"


def test_write_makes_every_file_and_says_so(result, tmp_path):
    heard = []
    paths = report.write(result, tmp_path / "new" / "demo", on_start=heard.append)
    assert [path.name for path in paths] == heard
    assert set(heard) == {
        "report.json",
        "report.html",
        "waiting.png",
        "hit_rate.png",
        "flash.png",
        "latency.png",
        "residency.png",
    }
    assert all(path.read_bytes().startswith(PNG) for path in paths if path.suffix == ".png")


def test_page_stands_alone_and_holds_everything(result, tmp_path):
    report.write(result, tmp_path)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    assert not {"script", "link", "iframe", "object", "base"} & set(page.tags)
    assert not re.search(r"url\(|@import|https?:", text)
    pictures = [
        base64.b64decode(load.removeprefix("data:image/png;base64,"), validate=True)
        for load in page.loads
    ]
    assert pictures == [(tmp_path / f"{plot.name}.png").read_bytes() for plot in plots.PLOTS]
    for wanted in (
        f"{result.hit_rate:.2%}",
        f"{result.lru_hit_rate:.2%}",
        f"{result.belady_hit_rate:.2%}",
        result.command,
        result.config_hash,
        f"{result.line_requests:,}",
        "agree: 0 mismatches",
    ):
        assert wanted in page.text


def test_cards_show_the_baseline_that_the_gap_is_measured_from(result):
    listed = report_page._cards(result)
    cards = dict(reversed(card) for card in listed)
    first = [label.partition(" ")[0] for _, label in listed[:4]]
    assert first == ["token", "of", "of", "hit"] and listed[0][0] == f"{result.token_time:.2f}"
    assert cards["LRU pooled: the baseline"] == f"{result.lru_pooled_hit_rate:.2%}"
    assert f"{result.lru_hit_rate:.2%}" not in cards.values()


def test_no_word_stands_twice(result):
    for text in (Page(report_page.html(result, [])).text, shown(result)):
        assert not re.findall(r"\b([a-z]{3,}) \1\b", text)


#: In a frame as wide as a phone: what sticks out of it, and how wide the narrowest note is.
PHONE = """<iframe style="width:390px;height:800px;border:0" srcdoc="{page}"></iframe>
<script>onload = () => {{
  const d = frames[0].document, of = s => [...d.querySelectorAll(s)].filter(e => e.textContent);
  document.title = [d.documentElement.scrollWidth,
    Math.min(...of("td.note").map(e => e.offsetWidth)),
    Math.max(...of("td, .card").map(e => e.getBoundingClientRect().right)),
    Math.min(...[...d.images].map(e => e.offsetWidth))].map(Math.round).join()
}}</script>"""


def test_page_is_readable_on_a_phone(result, tmp_path):
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        pytest.skip("there is no chromium")
    pictures = [(plot, plots.png(plot.draw(result))) for plot in plots.PLOTS]
    page = PHONE.format(page=html.escape(report_page.html(result, pictures)))
    (tmp_path / "phone.html").write_text(page, encoding="utf-8")
    done = subprocess.run(
        [browser, "--headless", "--no-sandbox", "--dump-dom", f"file://{tmp_path}/phone.html"],
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    measured = re.search(r"<title>([\d,.]+)</title>", done.stdout)[1]
    across, note, right, picture = (int(pixels) for pixels in measured.split(","))
    assert across <= 390 and right <= 390, "nothing sticks out"
    assert note >= 100 and picture >= 600, "notes are lines, pictures keep their letters"


def test_page_escapes_what_it_is_told(sequence):
    command = 'kelp replay "<b>&.npz" --json x'
    result = synthetic_result(
        sequence,
        command=command,
        trace="<script>",
        mismatches=1,
        mismatch_examples=("line 3: <a> is not <b>",),
    )
    parsed = Page(report_page.html(result, []))
    assert "script" not in parsed.tags
    assert command in parsed.text and "line 3: <a> is not <b>" in parsed.text


def test_table_fits_a_terminal_and_says_the_figures(result):
    text = shown(result)
    assert max(map(len, text.splitlines())) <= 80
    for wanted in (
        f"{result.hit_rate:.2%}",
        f"{result.lru_hit_rate:.2%}",
        f"{result.lru_pooled_hit_rate:.2%}",
        f"{result.belady_hit_rate:.2%}",
        f"{result.line_requests:,}",
        f"{result.lines_per_cycle:.3f}",
        "✓ RTL and golden model agree: 0 mismatches",
    ):
        assert wanted in text


def test_an_80_columns_terminal_shows_every_number_whole(sequence):
    """The longest names and values that the demo's result has."""
    ladder = {
        "lru": (460, 460),
        "+ a turn that is over counts as idle": (340, 341),
        "belady": (246, 246),
    }
    formats = {
        "layers 0–2, K": "int8",
        "layers 0–2, V": "int4",
        "layers 3–5, K": "fp8_e4m3",
        "layers 3–5, V": "int4",
    }
    result = synthetic_result(sequence, ladder=ladder, formats=formats)
    text = shown(result)
    sections = report.facts.sections(result)
    lines = text.splitlines()
    # A section has its title, each of its rows and a blank line; what is longer than its line is a
    # label, or a note, which fills the width beside the numbers. Around them: title and verdict.
    width = 80 - next(line.index("64 bytes each") for line in lines if "64 bytes each" in line)

    def high(label, note) -> int:
        return max(1, len(textwrap.wrap(label, 29)), len(textwrap.wrap(note, width - 2)))

    wanted = 3 + sum(
        1
        + high("", section.note)
        + sum(high(row.label, row.note) for row in section.rows if row.label != "command")
        for section in sections
    )
    assert max(map(len, lines)) <= 80 and len(lines) == wanted
    rows = [
        row
        for section in sections
        for row in section.rows
        if row.label not in ("command", "stored formats")
    ]
    for row in rows:
        assert any(row.label[:22] in line and row.value in line for line in text.splitlines()), row
        assert all(word in text for word in row.note.split()), row


def test_mismatches_are_not_to_be_missed(sequence, tmp_path):
    result = synthetic_result(
        sequence, mismatches=3, mismatch_examples=("access 17: victim 5, golden model says 9",)
    )
    text = shown(result, width=120)
    assert "✗ RTL: 3 mismatches in" in text and "access 17: victim 5" in text
    report.write(result, tmp_path)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert 'class="verdict bad"' in page and "access 17: victim 5" in page
    assert json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["mismatches"] == 3


def test_a_rate_is_over_the_window_alone():
    misses, accesses = np.array([1, 0, 2, 0, 0]), np.array([2, 2, 2, 0, 0])
    assert plots._rate(misses, accesses, 2).tolist()[:4] == [0.5, 0.75, 0.5, 0.0]
    assert np.isnan(plots._rate(misses, accesses, 2)[4])


def test_hit_rate_panels_draw_kelp_lru_and_belady(result):
    figure = plots.hit_rate(result)
    panels = [axes for axes in figure.axes if axes.get_visible()]
    assert len(panels) == result.queues
    window = 96 // 8
    for queue, axes in enumerate(panels):
        lines = {line.get_label(): line.get_ydata() for line in axes.get_lines()}
        sources = {
            "KELP (policy synthetic)": result.step_misses,
            "LRU pooled": result.references["LRU pooled"].misses,
            "Belady pooled": result.references["Belady pooled"].misses,
        }
        assert set(lines) == set(sources)
        for label, misses in sources.items():
            assert len(lines[label]) == result.steps
            assert lines[label][-1] == pytest.approx(
                1 - misses[-window:, queue].sum() / result.step_accesses[-window:, queue].sum()
            )
        assert axes.get_ylim()[0] <= min(line.min() for line in lines.values())


def test_layers_that_wait_are_those_with_a_miss(result):
    cycles, layers = plots.waiting(result).axes
    stairs = {p.get_label().partition(" (")[0]: p.get_data().values for p in layers.patches}
    for label, misses in (
        ("KELP", result.step_misses),
        ("LRU pooled", result.references["LRU pooled"].misses),
        ("Belady pooled", result.references["Belady pooled"].misses),
    ):
        waits = [sum(bool(step[q : q + 2].any()) for q in (0, 2)) for step in misses]
        assert stairs[label].tolist() == waits
    assert [p.get_label() for p in cycles.patches] == ["KELP", "everything resident"]
    unmeasured = plots.waiting(replace(result, resident_step_cycles=None))
    assert len(unmeasured.axes) == 1


def test_without_a_clock_the_token_time_is_the_models(result):
    assert result.token_time == pytest.approx(2, rel=1e-2)
    modelled = replace(result, step_cycles=None)
    assert modelled.token_time == result.waiting.token_time != result.token_time
    text = shown(modelled)
    assert "token time, by the model" in text and "by the clock" not in text
    assert report.as_json(modelled)["token_time_measured"] is False


def test_many_heads_are_reduced_to_those_with_most_misses(tmp_path):
    keys = contents(layers=10, kv_heads=4, with_kv=False)
    result = synthetic_result(
        access_sequence(read(save(tmp_path / "wide.npz", keys))), residency=0.5
    )
    figure = plots.hit_rate(result)
    titles = {
        axes.get_title(loc="left").partition(":")[0] for axes in figure.axes if axes.get_visible()
    }
    misses = result.step_misses.sum(axis=0)
    drawn = [
        4 * int(layer) + int(head)
        for layer, head in (re.findall(r"\d+", title) for title in titles)
    ]
    assert len(drawn) == 12
    assert misses[drawn].min() >= np.delete(misses, drawn).max()
    assert plots.png(plots.residency(result)).startswith(PNG)


def test_heads_of_a_part_have_the_recordings_layers(result):
    figure = plots.hit_rate(replace(result, first_layer=12))
    titles = [axes.get_title(loc="left").partition(",")[0] for axes in figure.axes]
    assert {title for title in titles if title.startswith("layer")} == {"layer 12", "layer 13"}
    figure = plots.residency(replace(result, first_layer=12))
    assert any("layer − 12" in axes.get_xlabel() for axes in figure.axes)


def test_flash_bars_add_up_to_the_pages_moved(tmp_path):
    keys = contents(prefill_tokens=64, steps=500, tokens=564, with_kv=False)
    result = synthetic_result(access_sequence(read(save(tmp_path / "long.npz", keys))))
    reads, writes = plots.flash(result).axes
    stairs = {
        patch.get_label().rpartition(" (")[0]: patch.get_data()
        for axes in (reads, writes)
        for patch in axes.patches
    }
    lows = {"KELP, prefetch": stairs["KELP, demand"].values}
    totals = {
        "KELP, demand": result.flash_demand,
        "KELP, prefetch": result.flash_prefetch,
        "KELP, write-back": result.flash_write_back,
        "LRU pooled": result.references["LRU pooled"].misses,
        "Belady pooled": result.references["Belady pooled"].misses,
    }
    assert set(stairs) == set(totals)
    for label, moved in totals.items():
        data = stairs[label]
        assert len(data.values) < result.steps
        assert ((data.values - lows.get(label, 0)) * np.diff(data.edges)).sum() == pytest.approx(
            moved.sum()
        )


def test_an_engine_without_a_clock_is_said_to_have_none(result):
    assert "share of each bar" in plots.latency(result).get_suptitle()
    title = plots.latency(dataclasses.replace(result, cycles=0)).get_suptitle()
    assert title == "Latency of line requests: this engine has no clock"


def test_latency_bars_are_the_histograms(result):
    figure = plots.latency(result)
    for axes, counted in zip(figure.axes, (result.hit_latency, result.miss_latency), strict=True):
        bars = {
            round(bar.get_x() + bar.get_width() / 2 - 0.5): bar.get_height()
            for bar in axes.patches
            if bar.get_height()
        }
        assert bars == {bin_: count for bin_, count in enumerate(counted.tolist()) if count}
    assert "median below 64Ki, 99 % below 128Ki cycles" in figure.axes[1].get_title(loc="left")


def test_residency_map_is_drawn_as_it_is(result):
    bars, cells, time = plots.residency(result).axes[:3]
    assert np.array_equal(cells.images[0].get_array(), result.residency_map)
    assert [bar.get_height() for bar in bars.patches] == (
        result.residency_map >= PageResidency.CLEAN
    ).sum(axis=0).tolist()
    assert np.array_equal(time.images[0].get_array(), result.resident_pages.T)
    labels = [text.get_text() for text in cells.get_legend().get_texts()]
    assert labels == ["cold (flash only)", "resident, clean", "resident, dirty"]


@pytest.mark.parametrize("most", [0, 1, 3])
def test_few_pages_and_layers_are_whole_numbers(result, most):
    counted = np.minimum(result.resident_pages, most)
    states = np.full_like(result.residency_map, PageResidency.COLD)
    states[:most] = PageResidency.CLEAN
    few = dataclasses.replace(result, resident_pages=counted, residency_map=states)
    figures = plots.residency(few), plots.waiting(few)
    for axes in (figures[0].axes[0], figures[0].axes[-1], figures[1].axes[-1]):
        axes.figure.draw_without_rendering()
        low, high = axes.get_ylim()
        shown = [at for at in axes.get_yticks() if low <= at <= high]
        assert len(shown) > 1 and all(at == round(at) for at in shown), shown


def test_short_and_empty_results_still_draw(tmp_path):
    trace = read(save(tmp_path / "t.npz", contents(with_kv=False)))
    one_step = access_sequence(trace, accesses=1)
    misses = np.zeros((1, 4), int)
    assert waiting(one_step, misses).token_time == 1
    result = synthetic_result(
        one_step,
        step_misses=misses,
        hit_rate=1.0,
        demand_misses=0,
        flash_reads=0,
        flash_read_bytes=0,
        resident_pages=None,
        waiting=waiting(one_step, misses),
        resident_step_cycles=None,
        flash_demand=np.zeros(1, int),
        miss_latency=np.zeros(24, int),
        hit_latency=np.eye(1, 24, 23, dtype=int)[0],
    )
    paths = report.write(result, tmp_path / "short")
    assert len(paths) == 7
    [line, *_] = plots.hit_rate(result).axes[0].lines
    assert line.get_marker() == "o"
    assert result.steps == 1 and "100.00%" in shown(result)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        (dict(hit_rate=95.0), "hit_rate = 95.0 is refused; legal: 0 … 1"),
        (dict(residency=25), "residency = 25 is refused"),
        (dict(hit_rate=float("nan")), "hit_rate = nan is refused"),
        (dict(cycles=-1), r"cycles = -1 is refused; legal: 0 \(no clock\) and up"),
        (dict(step_misses=np.zeros((3, 4))), r"step_misses has shape \(3, 4\); legal: \(96, 4\)"),
        (
            dict(residency_map=np.zeros((42, 3))),
            r"residency_map has shape \(42, 3\); legal: \(42, 4\)",
        ),
        (dict(flash_demand=np.zeros((96, 4))), r"flash_demand has shape \(96, 4\); legal: \(96,\)"),
        (dict(references={}), "references = .* are refused"),
        (dict(reference_waiting={}), "reference_waiting = .* is refused"),
        (dict(step_cycles=np.zeros(3)), r"step_cycles has shape \(3,\); legal: \(96,\)"),
    ],
)
def test_a_misfilled_result_is_refused(result, changes, fault):
    with pytest.raises(ValueError, match=fault):
        replace(result, **changes)


def test_references_of_another_replay_are_refused(result, tmp_path):
    other = access_sequence(read(save(tmp_path / "t.npz", contents(with_kv=False))))
    with pytest.raises(ValueError, match="is over .* steps and queues; legal"):
        replace(result, references=synthetic_result(other, residency=0.5).references)

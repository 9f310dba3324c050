# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The recording reader, what it refuses, and the access sequence of the replay rules."""

import json
import re
import zipfile

import numpy as np
import pytest
from paths import DOCS
from trace_files import contents, save, sizes

from kelp_sim.trace.accesses import access_sequence
from kelp_sim.trace.trace import TraceError, distinct, read, read_tokens


def test_the_recording_of_the_page_is_one(tmp_path, monkeypatch):
    """docs/recordings.md, as it stands: its file reads, and is read by the rule."""
    monkeypatch.chdir(tmp_path)
    page = (DOCS / "recordings.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    exec(block, {})
    mine = read("mine.npz")
    assert (mine.queues, mine.pages, mine.steps, mine.k) == (6, 7, 48, None)
    order = np.argsort(-mine.mass.astype(int), axis=-1, kind="stable")
    held = np.take_along_axis(mine.mass.astype(int), order, -1).cumsum(-1)
    others = np.take_along_axis(mine.reads, order, -1)
    least = (held < 0.89 * 65536).sum(-1) + 1
    assert (others.sum(-1) >= least).all() and (others.sum(-1) <= least + 2).all()


@pytest.fixture
def trace(tmp_path):
    return read(save(tmp_path / "small.npz", contents()))


@pytest.fixture(scope="module")
def recording(repo_root):
    return read(repo_root / "data" / "traces" / "attn_0.npz")


def test_a_recording_reads_back(tmp_path):
    keys = contents()
    trace = read(save(tmp_path / "small.npz", keys))
    assert (trace.name, trace.queues, trace.pages, trace.prefill_pages, trace.tokens) == (
        "small",
        4,
        10,
        4,
        40,
    )
    assert np.array_equal(np.packbits(trace.reads, axis=-1, bitorder="little"), keys["reads"])
    assert np.array_equal(trace.mass, keys["mass"])
    assert np.array_equal(trace.k, keys["k"]) and np.array_equal(trace.v, keys["v"])
    assert trace.q is None


def changed(**keys):
    return contents() | keys


def without(*names):
    return {key: value for key, value in contents().items() if key not in names}


def meta(**changes):
    return changed(meta=np.array(json.dumps(sizes(**changes))))


def reads(change):
    trace_reads = np.unpackbits(contents()["reads"], axis=-1, bitorder="little")
    change(trace_reads)
    return changed(reads=np.packbits(trace_reads, axis=-1, bitorder="little"))


def drop_newest(bits):
    bits[1, 0, 5, 5] = 0  # step 5 writes token 21, page 5


def read_future(bits):
    bits[0, 1, 3, 5] = 1  # step 3 writes token 19, page 4


def read_padding(bits):
    bits[0, 1, 23, 12] = 1  # pages 0 … 9 exist; the packed row has 16 bits


@pytest.mark.parametrize(
    ("keys", "fault"),
    [
        (without("mass"), "has no mass"),
        (without("meta", "reads"), "has no meta, reads"),
        (without("v"), "has k but no v"),
        (meta(q_heads=3), "meta.q_heads 3 is not whole groups of 2 kv_heads"),
        (meta(q_heads=1), "meta.q_heads 1 is not whole groups of 2 kv_heads"),
        (
            changed(mass=np.zeros((2, 2, 24, 9), np.uint16)),
            "mass is uint16[2, 2, 24, 9]; meta asks for uint16[2, 2, 24, 10]",
        ),
        (
            changed(mass=np.zeros((2, 2, 24, 10), np.float32)),
            "mass is float32[2, 2, 24, 10]; meta asks for uint16",
        ),
        (
            changed(reads=np.zeros((2, 2, 24, 3), np.uint8)),
            "reads is uint8[2, 2, 24, 3]; meta asks for uint8[2, 2, 24, 2]",
        ),
        (
            changed(k=np.zeros((2, 2, 39, 8), np.float16)),
            "k is float16[2, 2, 39, 8]; meta asks for float16[2, 2, 40, 8]",
        ),
        (
            changed(mass=np.array([{}], dtype=object)),
            "mass is damaged: Object arrays cannot be loaded",
        ),
        (changed(meta=np.array(7)), "meta is int64[], not a string"),
        (changed(meta=np.array("{layers: 2}")), "meta is not JSON"),
        (changed(meta=np.array("[" * 100_000)), "meta is not JSON: it is nested too deeply"),
        (changed(meta=np.array("9" * 5000)), "meta is not JSON: Exceeds the limit"),
        (meta(steps="x" * 100_000), f"meta.steps is '{'x' * 119}; legal"),
        (changed(meta=np.array("[1]")), "meta.format is list, not 'kelp-attention-1'"),
        (
            meta(format="kelp-attention-2"),
            "meta.format is 'kelp-attention-2', not 'kelp-attention-1'",
        ),
        (meta(layers=0), "meta.layers is 0; legal: 1 …"),
        (meta(steps="24"), "meta.steps is '24'; legal: 1 …"),
        (meta(tokens=41), "meta.tokens 41 is not prefill_tokens + steps (16 + 24)"),
        (
            meta(prefill_tokens=15, steps=25),
            "meta.prefill_tokens 15 is not whole pages of 4 tokens",
        ),
        (reads(drop_newest), "layer 1, head 0 does not read the page being written at step 5"),
        (reads(read_future), "layer 0, head 1 reads a page that is not written yet at step 3"),
        (reads(read_padding), "reads has bits set beyond page 9"),
    ],
)
def test_a_wrong_recording_is_refused_in_one_line(tmp_path, keys, fault):
    assert fault in refusal(save(tmp_path / "bad.npz", keys))


def refusal(path):
    """The one line that reading the file ends with; it begins with the file's name."""
    with pytest.raises(TraceError) as caught:
        read(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ") and "\n" not in message
    return message


def test_what_is_no_recording_is_refused_in_one_line(tmp_path):
    assert "no such trace" in refusal(tmp_path / "none.npz")
    assert "is a directory" in refusal(tmp_path)
    empty = tmp_path / "empty.npz"
    empty.touch()
    assert "is not an .npz (zip) file" in refusal(empty)
    text = tmp_path / "text.npz"
    text.write_text("step,layer,head\n", encoding="utf-8")
    assert "is not an .npz (zip) file" in refusal(text)
    np.save(tmp_path / "array.npy", np.arange(4))
    assert "is not an .npz (zip) file" in refusal(tmp_path / "array.npy")


def test_a_truncated_recording_is_refused_at_any_length(tmp_path):
    whole = save(tmp_path / "whole.npz", contents()).read_bytes()
    cut = tmp_path / "cut.npz"
    for length in range(4, len(whole), 97):
        cut.write_bytes(whole[:length])
        assert "is truncated" in refusal(cut)


def test_a_flipped_byte_never_escapes_as_another_exception(tmp_path):
    whole = save(tmp_path / "whole.npz", contents()).read_bytes()
    damaged = tmp_path / "damaged.npz"
    refusals = 0
    for position in range(0, len(whole), 7):
        damaged.write_bytes(
            whole[:position] + bytes([whole[position] ^ 0x55]) + whole[position + 1 :]
        )
        try:
            read(damaged)
        except TraceError as error:
            refusals += 1
            assert "\n" not in str(error)
    assert refusals > len(whole) // 7 // 2


def test_lines_are_the_recordings_own_bytes(trace):
    assert trace.lines.shape == (4, 10, 2, 4, 64)
    for queue, token, kv in ((0, 0, 0), (3, 39, 1), (2, 17, 0)):
        row = (trace.k, trace.v)[kv][queue // 2, queue % 2, token]
        line = trace.lines[queue, token // 4, kv, token % 4]
        assert line[:16].tobytes() == row.tobytes() and not line[16:].any()


def test_a_token_of_many_lines_is_token_major(tmp_path):
    trace = read(save(tmp_path / "wide.npz", contents(head_dim=80)))
    assert trace.lines_per_token == 3 and trace.half_lines == 12
    token = trace.lines[1, 2, 0, 3:6].reshape(-1)
    assert token[:160].tobytes() == trace.k[0, 1, 9].tobytes() and not token[160:].any()


def test_lines_of_a_recording_without_keys_and_values_are_made_up(tmp_path):
    keys = contents(with_kv=False, head_dim=8)
    trace = read(save(tmp_path / "bare.npz", keys))
    again = read(save(tmp_path / "again.npz", keys))
    values = trace.lines.view(np.float16)
    assert np.array_equal(trace.lines, again.lines)
    assert not values[..., 8:].any() and len(np.unique(values[:, :-1, ..., :8])) > 1000
    assert abs(values[..., :8]).max() < 8


def test_accesses_come_in_the_order_of_the_rules(trace):
    sequence = access_sequence(trace)
    expected = [
        (step, layer * trace.kv_heads + head, page)
        for step in range(trace.steps)
        for layer in range(trace.layers)
        for head in range(trace.kv_heads)
        for page in range(trace.pages)
        if trace.reads[layer, head, step, page]
    ]
    assert (
        list(
            zip(
                sequence.step.tolist(), sequence.queue.tolist(), sequence.page.tolist(), strict=True
            )
        )
        == expected
    )
    assert sequence.counts().sum() == len(expected) == len(sequence)
    assert (sequence.history_pages, sequence.final_pages) == (4, 10)


def test_line_requests_write_each_token_once_and_read_what_is_written(trace):
    sequence = access_sequence(trace)
    requests = sequence.line_requests()
    assert len(requests) == sequence.line_reads + sequence.line_writes
    expected = []
    for index, (step, queue, page) in enumerate(
        zip(sequence.step.tolist(), sequence.queue.tolist(), sequence.page.tolist(), strict=True)
    ):
        token = trace.prefill_tokens + step
        if token // 4 == page:
            expected += [(index, True, queue, page, kv, token % 4) for kv in (0, 1)]
        expected += [
            (index, False, queue, page, kv, line)
            for kv in (0, 1)
            for line in range(4)
            if page * 4 + line <= token
        ]
    assert requests.tolist() == expected
    assert sequence.opens.sum() == trace.queues * (trace.pages - trace.prefill_pages)


def test_line_requests_of_wide_tokens(tmp_path):
    trace = read(save(tmp_path / "wide.npz", contents(head_dim=80)))
    requests = access_sequence(trace).line_requests()
    writes = requests[requests["write"]]
    written = set(
        zip(
            writes["queue"].tolist(),
            writes["page"].tolist(),
            writes["kv"].tolist(),
            writes["line"].tolist(),
            strict=True,
        )
    )
    assert len(written) == len(writes) == trace.steps * trace.queues * 2 * 3
    history = access_sequence(trace).history_requests()
    assert len(history) == trace.queues * trace.prefill_tokens * 2 * 3 and history["write"].all()
    written |= set(
        zip(
            history["queue"].tolist(),
            history["page"].tolist(),
            history["kv"].tolist(),
            history["line"].tolist(),
            strict=True,
        )
    )
    reads = requests[~requests["write"]]
    assert written >= set(
        zip(
            reads["queue"].tolist(),
            reads["page"].tolist(),
            reads["kv"].tolist(),
            reads["line"].tolist(),
            strict=True,
        )
    )


def test_a_part_of_a_recording_is_a_trace_of_its_own(trace):
    whole = access_sequence(trace)
    part = access_sequence(trace, first_step=8, accesses=50)
    start = int(np.searchsorted(whole.step, 8))
    assert len(part) >= 50 and len(part) == part.step_starts[-1]
    assert len(part) - np.bincount(part.step)[-1] < 50
    assert np.array_equal(part.step + 8, whole.step[start : start + len(part)])
    assert np.array_equal(part.page, whole.page[start : start + len(part)])
    assert part.history_pages == 6
    assert part.final_pages == (16 + 8 + part.steps - 1) // 4 + 1
    assert part.line_requests()["page"][0] == whole.page[start]


@pytest.mark.parametrize(
    ("first_step", "accesses"), [(3, None), (-4, None), (24, None), (0, 0), (0, 10**6)]
)
def test_a_part_outside_the_recording_is_refused(trace, first_step, accesses):
    with pytest.raises(TraceError, match="refused; legal:|refused: legal:|are refused; legal:"):
        access_sequence(trace, first_step=first_step, accesses=accesses)


def test_some_layers_of_a_recording_are_a_recording(tmp_path):
    trace = read(save(tmp_path / "three.npz", contents(layers=3)))
    part = trace.of_layers(1, 2)
    assert (part.layers, part.queues, part.name) == (2, 4, "three_layers_1_to_2")
    for name in ("reads", "mass", "k", "v"):
        assert np.array_equal(getattr(part, name), getattr(trace, name)[1:]), name
    assert np.array_equal(part.lines, trace.lines[2:]) and part.q is None
    assert part.of_layers(1, 1).name == "three_layers_2_to_2"
    for first, last in ((0, 3), (2, 1), (-1, 1)):
        with pytest.raises(TraceError, match=f"layers {first}-{last} are refused"):
            trace.of_layers(first, last)


def test_layers_and_steps_are_found_by_their_starts(trace):
    sequence = access_sequence(trace)
    for step, layer in ((0, 0), (7, 1), (23, 0)):
        start, end = sequence.layer_starts[step * 2 + layer : step * 2 + layer + 2]
        assert (
            (sequence.step[start:end] == step).all()
            and (sequence.queue[start:end] // 2 == layer).all()
            and end > start
        )
    assert sequence.layer_starts[-1] == sequence.step_starts[-1] == len(sequence)


@pytest.mark.parametrize(
    ("residency", "frames"), [(0.25, 10), (0.29, 11), (0.1, 4), (0.975, 39), (1.0, 40)]
)
def test_capacity_is_exact(trace, residency, frames):
    assert access_sequence(trace).capacity(residency) == frames


def test_capacity_does_not_round_as_binary_floats_do(tmp_path):
    trace = read(
        save(
            tmp_path / "t.npz",
            contents(layers=1, kv_heads=1, prefill_tokens=96, steps=304, tokens=400),
        )
    )
    assert int(0.29 * trace.pages) == 28
    assert access_sequence(trace).capacity(0.29) == 29


def test_capacity_is_checked(trace):
    sequence = access_sequence(trace)
    for residency in (0, 1.5, -0.25):
        with pytest.raises(ValueError, match="residency = .* refused; legal"):
            sequence.capacity(residency)
    with pytest.raises(ValueError, match="residency = 0.01 of .*: 0 frames; legal: a frame for"):
        sequence.capacity(0.01)
    with pytest.raises(ValueError, match="capacity = 3 frames is refused"):
        sequence.share(3)
    assert sequence.initial_pages(11) == range(2, 4)
    assert sequence.initial_pages(40) == range(0, 4)


def test_the_tracked_recording_is_the_one_of_the_readme(recording):
    assert (
        recording.layers,
        recording.kv_heads,
        recording.head_dim,
        recording.steps,
        recording.pages,
    ) == (6, 2, 32, 1536, 128)
    assert recording.lines.shape == (12, 128, 2, 16, 64)
    sequence = access_sequence(recording)
    assert len(sequence) == 218_604
    assert sequence.capacity(0.25) == 384
    demo = access_sequence(recording, accesses=20_000)
    assert len(demo) >= 20_000 and len(demo.line_requests()) >= 400_000


def test_a_recording_s_tokens(tmp_path):
    keys = changed(tokens=np.arange(40, dtype=np.uint16))
    assert read_tokens(read(save(tmp_path / "small.npz", keys))).tolist() == [*range(40)]


@pytest.mark.parametrize(
    ("tokens", "fault"),
    [
        ({}, "keeps no tokens; record it again"),
        ({"tokens": np.zeros(40, np.float32)}, "tokens is float32[40]; 40 whole numbers from 0 on"),
        ({"tokens": np.zeros((2, 20), np.uint16)}, "tokens is uint16[2, 20]; 40 whole numbers"),
        ({"tokens": np.zeros(0, np.uint16)}, "tokens is uint16[0]; 40 whole numbers"),
        ({"tokens": np.full(40, -1)}, "tokens is int64[40]; 40 whole numbers from 0 on"),
        ({"tokens": np.array(["a"] * 40)}, "tokens is <U1[40]; 40 whole numbers from 0 on"),
    ],
)
def test_tokens_that_are_none(tmp_path, tokens, fault):
    trace = read(save(tmp_path / "small.npz", changed(**tokens)))
    with pytest.raises(TraceError) as found:
        read_tokens(trace)
    assert str(found.value).startswith(f"{tmp_path}/small.npz: {fault}")


def test_damaged_tokens_are_one_line(tmp_path):
    path = save(tmp_path / "small.npz", changed(tokens=np.arange(40, dtype=np.uint16)))
    trace, content = read(path), bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        at = archive.getinfo("tokens.npy").header_offset
    content[at + 80] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(TraceError, match="small.npz: tokens is damaged"):
        read_tokens(trace)


def test_recordings_of_one_name_are_refused():
    distinct(["a/x.npz", "a/y.npz"])
    with pytest.raises(TraceError, match=r"a/x.npz and b/x.npz are both named 'x'"):
        distinct(["a/x.npz", "a/y.npz", "b/x.npz"])

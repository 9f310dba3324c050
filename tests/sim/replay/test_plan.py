# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""A part of a recording goes by the recording's layer numbers, in what is asked for and shown."""

from trace_files import contents, save

from kelp_golden.setup import LayerFormats
from kelp_sim.replay.plan import Excerpt, plan
from kelp_sim.trace.trace import read
from kelp_spec.config import named
from kelp_spec.formats import Format


def test_formats_go_by_the_recordings_layers(tmp_path):
    path = save(tmp_path / "t.npz", contents(layers=4, with_kv=False))
    formats = [
        LayerFormats(last_layer=last, k=k, v=Format.INT4)
        for last, k in ((0, Format.RAW16), (2, Format.INT8), (99, Format.FP8_E4M3))
    ]
    whole = plan(read(path), named("trace"), formats=formats)
    part = plan(read(path), named("trace"), formats=formats, excerpt=Excerpt(layers=(2, 3)))
    assert [part.setup.stored_lines(q) for q in range(part.sequence.queues)] == [
        whole.setup.stored_lines(q)
        for q in range(whole.sequence.queues - part.sequence.queues, whole.sequence.queues)
    ]
    assert [(f.last_layer, f.k) for f in part.setup.formats] == [
        (0, Format.INT8),
        (97, Format.FP8_E4M3),
    ]
    assert list(part.formats) == [
        "layers 2–2, K",
        "layers 2–2, V",
        "layers 3–3, K",
        "layers 3–3, V",
    ]
    assert part.first_layer == 2 and whole.first_layer == 0

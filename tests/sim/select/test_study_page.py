# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Curves of a study: what is drawn, and over what."""

from kelp_sim.select import study_page


def test_what_varies_is_drawn(monkeypatch):
    """A panel of each axis with more than one value."""
    drawn = []
    monkeypatch.setattr(study_page, "_draw", lambda entries, axes, *of: drawn.append((axes, of)))
    entry = dict(page_tokens=16, code_bits=32, bytes=2.0, quota=8, candidates=18.0)
    study_page.plots([entry])
    study_page.plots([entry, entry | dict(code_bits=8, bytes=0.5, candidates=17.5)])
    study_page.plots([entry, entry | dict(page_tokens=8, bytes=1.0, quota=16, candidates=20.0)])
    assert [[axis[0] for axis in axes] for axes, _ in drawn[::3]] == [
        ["candidates"],
        ["bytes", "candidates"],
        ["bytes", "candidates", "page_tokens"],
    ]
    assert [of[0] for _, of in drawn[:3]] == ["mass_at_as_many", "recall", "loss"]

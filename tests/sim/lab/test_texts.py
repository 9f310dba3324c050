# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The texts that a policy is tuned and judged on: each long enough, of its own, the same each time,
and written whole; what is missing is named."""

import pytest

from kelp_sim.lab import texts


@pytest.mark.parametrize("name", texts.TEXTS)
def test_a_text_is_long_enough_and_the_same_each_time(name):
    made = texts.TEXTS[name].make()
    assert made == texts.TEXTS[name].make()
    assert len(made.encode()) > 3 * 4096 and len(set(made.split())) > 30, "bytes for 4096 tokens"


def test_every_text_is_another_and_some_are_held_back():
    """Of each sort that is tuned on there is one to judge by, and of others too."""
    made = {name: text.make() for name, text in texts.TEXTS.items()}
    assert len(set(made.values())) == len(made)
    tuned, held = (
        {text.kind.split(",")[0] for text in texts.TEXTS.values() if text.held_back is back}
        for back in (False, True)
    )
    assert {"code", "table", "dialogue"} <= tuned & held and held - tuned


def test_those_that_nobody_had_seen_are_of_other_kinds():
    unseen = {name for name, text in texts.TEXTS.items() if text.unseen}
    assert len(unseen) >= 5 and all(texts.TEXTS[name].held_back for name in unseen)
    kinds = [texts.TEXTS[name].kind for name in unseen]
    assert len(set(kinds)) == len(unseen)
    assert not set(kinds) & {texts.TEXTS[name].kind for name in texts.TEXTS if name not in unseen}


def test_they_are_written_and_told(tmp_path, capsys):
    texts.main([str(tmp_path / "made"), "argparse", "subprocess"])
    said = capsys.readouterr().out.splitlines()
    assert sorted(path.name for path in (tmp_path / "made").iterdir()) == [
        "argparse.txt",
        "subprocess.txt",
    ]
    written = (tmp_path / "made/argparse.txt").read_text(encoding="utf-8")
    assert written == texts.TEXTS["argparse"].make()
    assert said[0].endswith("code, for tuning") and said[1].endswith("code, held back")


def test_what_is_not_there_is_named(tmp_path, capsys, monkeypatch):
    with pytest.raises(SystemExit):
        texts.main([str(tmp_path), "novel"])
    assert "text 'novel' is not one of argparse" in capsys.readouterr().err
    monkeypatch.setattr(texts, "find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        texts.main([str(tmp_path), "stocks"])
    assert "stocks: the package 'matplotlib' is not installed" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    with pytest.raises(SystemExit):
        texts.main(["/dev/null/texts", "argparse"])
    assert "error: /dev/null/texts: Not a directory" in capsys.readouterr().err

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Every code block of the host library's tutorial runs, in order, as it stands."""

import re
from pathlib import Path

GUIDE = Path(__file__).resolve().parent.parent / "docs" / "cxl_kv.md"


def blocks(text):
    """(first line, code) of every Python block."""
    for found in re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        yield text[: found.start(1)].count("\n"), found[1]


def test_the_tutorial_runs(capsys):
    names: dict = {}
    code = list(blocks(GUIDE.read_text(encoding="utf-8")))
    for line, block in code:
        # Lines are numbered as in the guide, so that a failure points there.
        exec(compile("\n" * line + block, str(GUIDE), "exec"), names)
    assert len(code) == 8 and names["done"].completed == 2
    assert "resident" not in capsys.readouterr().err


def test_commands_of_the_guide_exist():
    text = GUIDE.read_text(encoding="utf-8")
    for path in re.findall(r"\b(?:tests|examples)/[\w/]+\.py\b", text):
        assert (GUIDE.parent.parent / path).is_file(), path

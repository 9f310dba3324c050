# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The collector: what it refuses before the hours that its tests take."""

import subprocess
import sys

import pytest

from kelp_verif.coverage import collect


@pytest.mark.parametrize(
    "text", ["[]", "{", '{"blocks": []}', '{"blocks": [1], "cover_points": []}']
)
def test_another_file_is_no_record(tmp_path, monkeypatch, text):
    path = tmp_path / "kept.json"
    path.write_text(text)
    monkeypatch.setattr(sys, "argv", ["coverage", "-o", str(path)])
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("it has begun"))
    monkeypatch.setenv("KELP_BUILD", str(tmp_path / "build"))
    with pytest.raises(SystemExit, match=r"kept\.json is no record of make coverage; remove it"):
        collect.main()

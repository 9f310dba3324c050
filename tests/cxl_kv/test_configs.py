# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The engines' configuration files in examples/configs: each is shown in docs/cxl_kv.md, and names
a module and a class that are there. The engines' own classes read them in tests/engines."""

import ast
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "examples" / "configs").iterdir())


def named(text):
    """(module, classes named beside it) of a file, whatever its form."""
    modules = set(re.findall(r"cxl_kv\.connectors\.\w+", text))
    return modules, set(re.findall(r"\b(?:Cxl|Kelp)\w+", text))


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.name)
def test_a_file_is_whole_and_names_what_is_there(file):
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".json":
        json.loads(text)
    modules, classes = named(text)
    assert len(modules) == 1 and classes
    (module,) = modules
    source = ROOT / "sw" / (module.replace(".", "/") + ".py")
    tree = ast.parse(source.read_text(encoding="utf-8"))
    defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    assert classes <= defined, classes - defined
    assert "…" not in text and "unix:/tmp/kelp.sock" in text
    assert f"examples/configs/{file.name}" in (ROOT / "docs" / "cxl_kv.md").read_text("utf-8")

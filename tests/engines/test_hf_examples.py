# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What the examples of transformers refuse."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MODEL = EXAMPLES.parent / "data" / "model"


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        (["generate.py", "--formats", "int5"], "stored format 'int5' is unknown"),
        (["generate.py", "--resident", "nan"], "--resident nan is refused; legal: above 0 to 1"),
        (["generate.py", "--model", "{model}", "--prompt", ""], "--prompt '' is refused"),
        (["generate.py", "--model", "nowhere.gguf"], "nowhere.gguf: no such file"),
        (["perplexity.py", "--model", "nowhere.gguf"], "nowhere.gguf: no such file"),
        (["perplexity.py", "--model", "{model}", "int5"], "stored format 'int5' is unknown"),
        (["perplexity.py", "--model", "{model}", "--texts", "0"], "0 texts of 1024 tokens"),
        (["perplexity.py", "--model", "{model}", "--tokens", "2049"], "positions end at 2048"),
        (["perplexity.py", "--model", "{model}", "--texts", "1000", "--tokens", "2048"], "1000 te"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else None,
)
def test_what_an_example_refuses_is_its_last_line(command, fault):
    arguments = [part.format(model=MODEL) for part in command]
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / arguments[0]), *arguments[1:]],
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert fault in done.stderr.splitlines()[-1]

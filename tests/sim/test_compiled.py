# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Code that numba compiled is used again for the same sources, and for no others."""

import os
import shutil
import subprocess
import sys
import textwrap

import pytest
from paths import ROOT

from kelp_sim.compiled import _folder

#: The last entry of T, by its octaves a side; the weight of a score of 0.
PLACE = "from kelp_sim.select.memory import _guess_place; print(_guess_place(65535, 65535))"
WEIGHT = "from kelp_sim.select.kernel import _add; print(_add(-(1 << 40), 0, 0, 1 << 40)[1])"


class Copied:
    """The packages in a folder, of which a file is changed."""

    def __init__(self, folder, file):
        for package in ("hw/kelp_spec", "sim/kelp_golden", "sim/kelp_sim"):
            shutil.copytree(
                ROOT / package,
                folder / package.rpartition("/")[2],
                ignore=shutil.ignore_patterns("__pycache__"),
            )
        self.folder, self.file = folder, folder / file
        self.text = self.file.read_text(encoding="utf-8")

    def run(self, script, new):
        """What the script prints where the file is `new`, and the files that are kept."""
        self.file.write_text(new, encoding="utf-8")
        # What Python compiles it knows by size and second, and all of this may be over in one.
        here = {"PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"}
        environment = os.environ | here
        environment.pop("NUMBA_CACHE_DIR", None)
        done = subprocess.run(
            [sys.executable, "-c", script],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        [kept] = (self.folder / "kelp_sim" / "__pycache__").glob("kelp-*")
        return int(done.stdout), {
            path.name: path.stat().st_mtime_ns for path in kept.rglob("*.nb*")
        }


def test_a_constant_of_another_file_that_changes_is_compiled_anew(tmp_path):
    copied = Copied(tmp_path, "kelp_spec/policy2.py")
    first, files = copied.run(PLACE, copied.text)
    assert first == 143 and files
    assert copied.run(PLACE, copied.text) == (143, files)
    fewer = copied.text.replace("T_SIDE = 12", "T_SIDE = 10")
    assert fewer != copied.text and copied.run(PLACE, fewer)[0] == 99


def test_a_constant_of_the_golden_model_that_changes_is_compiled_anew(tmp_path):
    copied = Copied(tmp_path, "kelp_golden/select.py")
    before, files = copied.run(WEIGHT, copied.text)
    assert before and files
    assert copied.run(WEIGHT, copied.text + "\nWEIGHTS = WEIGHTS + 1\n")[0] == before + 1


def test_nothing_of_others_is_removed(tmp_path):
    """NUMBA_CACHE_DIR may be a home folder."""
    outdated = tmp_path / "kelp-0123456789abcdef"
    others = [tmp_path / name for name in ("kelp-notes", "kelp-2", "kelp-0123456789abcdef0")]
    for folder in (outdated, *others):
        folder.mkdir()
        (folder / "a file").write_text("kept")
    assert _folder(str(tmp_path)).parent == tmp_path
    assert not outdated.exists() and all((folder / "a file").exists() for folder in others)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_an_interrupt_waits_until_a_function_is_compiled(tmp_path, monkeypatch, name):
    """It comes in the midst, and once it has been seen the function is there."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    code = """
        import os, signal, sys
        from kelp_sim.select.memory import _guess_place as compiles

        def interrupt(frame, event, argument):
            if frame.f_code.co_filename.endswith("numba/core/lowering.py"):
                sys.setprofile(None)
                os.kill(os.getpid(), number)

        number = signal.Signals[sys.argv[1]]
        signal.signal(number, signal.default_int_handler)
        sys.setprofile(interrupt)
        try:
            compiles(1, 2)
            print("nothing came")
        except KeyboardInterrupt:
            print("interrupted", len(compiles.signatures), compiles(65535, 65535))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), name],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
    )
    assert done.stdout == "interrupted 1 143\n", done.stderr

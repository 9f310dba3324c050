# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The base install: a wheel whose one dependency is NumPy, in which the library, its server and the
golden model work with nothing else there."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy
import pytest
from paths import ROOT

USE = """
import sys, tempfile
import numpy as np
import cxl_kv
from cxl_kv.serving.server import Server
from cxl_kv.url import make_core
assert cxl_kv.__file__.startswith(sys.argv[1]), cxl_kv.__file__
folder = tempfile.mkdtemp()
x = np.ones((2, 8, 32), np.float16)
shape = cxl_kv.ModelShape(layers=2, kv_heads=2, head_dim=32)
with Server(make_core("golden:unit")) as server:
    served = server.listen(f"unix:{folder}/kelp.sock")
    for url in ("golden:unit", f"dax:{folder}/memory?config=unit&create=1", served):
        with cxl_kv.open(url) as device, device.open_session(shape) as session:
            session.write(1, x, 2 * x)
            assert (session.read(1, stop=8)[1] == 2).all()
            assert session.telemetry(by="layer") is not None
for url in ("rtl:unit", "serial:/dev/ttyUSB0"):
    try:
        cxl_kv.open(url)
    except cxl_kv.UnsupportedError as error:
        assert "kelp-cxl[rtl" in str(error), error
    except cxl_kv.ConnectionLostError:
        assert url.startswith("serial")
print("works")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--quiet",
            "--no-deps",
            "--no-build-isolation",
            "--no-index",
            "--disable-pip-version-check",
            "-w",
            str(folder),
            str(ROOT),
        ],
        check=True,
        timeout=200,
    )
    return next(folder.glob("*.whl"))


def test_numpy_is_the_only_dependency(wheel):
    with zipfile.ZipFile(wheel) as file:
        metadata = file.read(
            next(name for name in file.namelist() if name.endswith("METADATA"))
        ).decode()
        assert "cxl_kv/native/lines.c" in file.namelist()
    needed = re.findall(r"^Requires-Dist: ([\w.-]+)(?:(?!extra).)*$", metadata, re.MULTILINE)
    assert needed == ["numpy"]
    extras = set(re.findall(r"^Provides-Extra: (\S+)$", metadata, re.MULTILINE))
    assert {"rtl", "fpga", "cli", "lab", "test", "dev", "hf", "lmcache", "vllm", "sglang"} <= extras


def test_it_works_with_numpy_alone(wheel, tmp_path):
    """Nothing of this environment is to be seen but NumPy."""
    only = tmp_path / "only"
    only.mkdir()
    packages = Path(numpy.__file__).parent.parent
    for name in ("numpy", "numpy.libs"):
        if (packages / name).is_dir():
            (only / name).symlink_to(packages / name)
    with zipfile.ZipFile(wheel) as file:
        file.extractall(tmp_path / "wheel")
    env = {
        "PYTHONPATH": f"{tmp_path / 'wheel'}{os.pathsep}{only}",
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
    }

    def run(code, *arguments):
        return subprocess.run(
            [sys.executable, "-S", "-W", "error", "-c", code, *arguments],
            capture_output=True,
            text=True,
            timeout=100,
            env=env,
            cwd=tmp_path,
        )

    done = run(USE, str(tmp_path / "wheel"))
    assert done.stdout == "works\n", done.stderr
    done = run("import kelp_cli; kelp_cli.start()")
    assert (
        done.returncode == 1
        and "pip install 'kelp-cxl[cli]'" in done.stderr
        and "Traceback" not in done.stderr
    )

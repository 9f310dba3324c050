# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What the repository holds, who imports what, and who may: the table of spec §2."""

import ast
import subprocess
from pathlib import Path

import pytest
from paths import ROOT

# Each source root's package, and the packages of ours it may import (spec §2): the
# direction that keeps RTL and golden model apart. What is wider than that is below, and nowhere
# else.
ALLOWED = {
    "hw/kelp_spec": set(),
    "hw/kelp_hw": {"kelp_spec"},
    "sim/kelp_golden": {"kelp_spec"},
    "sim/kelp_sim": {"kelp_spec", "kelp_golden"},
    "sim/kelp_rtl": {"kelp_spec", "kelp_hw", "kelp_golden", "kelp_sim"},
    "verif/kelp_verif": {"kelp_spec", "kelp_hw", "kelp_golden"},
    "fpga/kelp_fpga": {"kelp_spec", "kelp_hw"},
    "refinement/ecp5_refinement": set(),
    "sw/cxl_kv": {"kelp_spec"},
    "sw/kelp_cli": {
        "kelp_spec",
        "kelp_hw",
        "kelp_golden",
        "kelp_sim",
        "kelp_rtl",
        "kelp_verif",
        "kelp_fpga",
        "ecp5_refinement",
        "cxl_kv",
    },
}
# Places that may import more than their root's row, and why.
ALSO = {
    # Benches drive the compiled device and boards by the code that users drive them with: a driver
    # or a host of their own would be a second one, and leave the first untested. Neither of the
    # two imports `kelp_verif`.
    "verif/kelp_verif": {"kelp_rtl", "kelp_fpga"},
    # a step of the top `ulx3s`; the refinement knows nothing of the rest
    "fpga/kelp_fpga/flow": {"ecp5_refinement"},
    # Back ends of the host library: each is imported when a URL asks for it, so it may bring in
    # what it drives.
    "sw/cxl_kv/backends/golden.py": {"kelp_golden"},
    "sw/cxl_kv/backends/golden_engine.py": {"kelp_golden"},
    "sw/cxl_kv/backends/rtl.py": {"kelp_rtl"},
    "sw/cxl_kv/backends/serial.py": {"kelp_fpga"},
}

# Rooms of kelp_hw, and the rooms each may import. Beside them every room may import the modules at
# the root, but for the endpoint, which imports the rooms. A circle here is an error.
ROOMS = {
    "lib": set(),
    "codec": {"lib"},
    "tracker": {"lib"},
    "prefetch": {"lib"},
    "control": {"lib", "tracker"},
    "host": {"lib", "tracker"},
    "datapath": {"lib", "codec"},
    "miss": {"lib", "tracker"},
    "scores": {"lib", "control"},
    "choice": {"lib"},
    "select": {"lib", "codec", "choice", "scores"},
    "eviction": {"lib", "tracker", "control"},
    "firmware": set(),
    "cxlio": {"lib", "firmware"},
    "media": {"lib", "cxlio"},
    "export": set(),
    "coherence": {"lib"},
    "flit": {"lib"},
}
# Files that may import more, and why.
ROOM_ALSO = {
    # lists the ports of both tops
    "export/ports.py": {"endpoint", "cxl_device"},
}


def tracked():
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [Path(name) for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def modules(root):
    """Every module of a source root: dotted name → file."""
    base = ROOT / root
    out = {}
    for path in sorted(base.rglob("*.py")):
        parts = path.relative_to(base.parent).with_suffix("").parts
        out[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return out


def imported_modules(name, text, known, *, package):
    """Those of `known` that the text of module `name` imports, at module level or inside a
    function: `from a import b` is module a.b where there is one, else a. `package`: whether it is
    an `__init__`."""
    out = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            out |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = name.split(".")[: None if package else -1]
            base = ".".join(
                above[: len(above) + 1 - node.level] + ([node.module] if node.module else [])
                if node.level
                else [node.module]
            )
            for alias in node.names:
                out.add(f"{base}.{alias.name}" if f"{base}.{alias.name}" in known else base)
    return (out & set(known)) - {name}


def own_test(root, mirror, path):
    """Where the test of file `path` below `root` is found."""
    inner = path.relative_to(ROOT / root)
    return ROOT / mirror / inner.parent / f"test_{inner.name}"

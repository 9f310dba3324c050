# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What the repository holds, and who may import whom: the table of spec §2."""

import subprocess
from pathlib import Path

import pytest
from paths import ROOT

# Each source root's package, and the packages of ours it may import (spec §2): the
# direction that keeps RTL and golden model apart.
ALLOWED = {
    "hw/kelp_spec": set(),
    "hw/kelp_hw": {"kelp_spec"},
    "sim/kelp_golden": {"kelp_spec"},
    "sim/kelp_sim": {"kelp_spec", "kelp_golden"},
    "sim/kelp_rtl": {"kelp_spec", "kelp_hw", "kelp_golden", "kelp_sim"},
    "verif/kelp_verif": {
        "kelp_spec",
        "kelp_hw",
        "kelp_golden",
        "kelp_sim",
        "kelp_rtl",
        "kelp_fpga",
    },
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
# Rooms and files that may import more than their root, and why.
ALSO = {
    # synthesis takes its Verilog and its tools from `kelp_rtl`; a step of the top `ulx3s` is
    # `ecp5_refinement`
    "fpga/kelp_fpga/flow": {"kelp_rtl", "ecp5_refinement"},
    # the constants: what the golden model says a stored line comes back as
    "fpga/kelp_fpga/selftest/self_test_program.py": {"kelp_golden"},
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
    "prefetch": set(),
    "control": {"lib", "tracker", "prefetch"},
    "host": {"lib", "tracker"},
    "datapath": {"lib", "codec"},
    "miss": {"lib", "tracker"},
    "scores": {"lib", "control"},
    "eviction": {"lib", "tracker", "control"},
    "export": set(),
}
# Files that may import more, and why.
ROOM_ALSO = {
    # lists the endpoint's ports
    "export/ports.py": {"endpoint"},
}


def tracked():
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [Path(name) for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The generated parts of docs/ are those that their sources generate, and the C header compiles."""

import subprocess

import pytest
from paths import DOCS

from kelp_cli.docs import DOCUMENTED, generated
from kelp_spec.address import AddressMap, KvAddress
from kelp_spec.config import named


@pytest.mark.parametrize("name", ["registers.md", "ports.md", "kelp_regs.h"])
def test_generated_files_are_up_to_date(name):
    assert (DOCS / name).read_text(encoding="utf-8") == generated()[name], (
        f"docs/{name} is stale: run `kelp docs`"
    )


def test_c_header_agrees_with_the_address_map(tmp_path):
    config = named(DOCUMENTED)
    where = KvAddress(session=1, queue=7, page=100, kv=1, line=13)
    body = (
        'printf("%llu %d", KELP_KV_ADDRESS(1, 7, 100, 1, 13), KELP_SESSION(1, '
        + "KELP_SESSION_COMMAND));"
    )
    (tmp_path / "t.c").write_text(
        f'#include "kelp_regs.h"\n#include <stdio.h>\nint main(void) {{ {body} return 0; }}\n'
    )
    subprocess.run(
        [
            "gcc",
            "-Wall",
            "-Werror",
            "-I",
            str(DOCS),
            "-o",
            str(tmp_path / "t"),
            str(tmp_path / "t.c"),
        ],
        check=True,
    )
    said = subprocess.run([str(tmp_path / "t")], check=True, capture_output=True, text=True).stdout
    assert said == f"{AddressMap(config).encode(where)} {0x1000 + 0x200 + 0x10}"

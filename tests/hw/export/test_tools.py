# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What tools are started with."""

from kelp_hw.export import tools


def test_tools_use_huge_pages_unless_the_user_says_otherwise(monkeypatch):
    """glibc takes the last value of a tunable that is named twice."""
    fresh = tools.tool_env.__wrapped__
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    assert fresh()["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=1"
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=0")
    assert fresh()["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=1:glibc.malloc.hugetlb=0"

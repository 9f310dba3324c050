# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""``kelp select`` as a user calls it."""

import json

from command import kelp
from paths import ROOT

MODEL = str(ROOT / "data" / "model")


def test_a_short_study():
    done = kelp(
        *("select", "--model", MODEL, "--texts", "1", "--tokens", "200", "--first", "180"),
        *("--quotas", "3", "--most", "4", "--json", "-"),
    )
    found = json.loads(done.stdout)
    assert [row["quota"] for row in found["rows"]] == [0, 3]
    assert 0.5 < found["quotas"]["3"]["mass"] <= 1.01


def test_bad_options_are_one_line():
    for options, said in (
        (("--quotas", "3,x"), "--quotas '3,x' is not positive integers"),
        (("--tokens", "100", "--first", "99"), "--first 99 of 100 tokens leaves none"),
        (("--model", "nowhere"), "nowhere"),
    ):
        done = kelp("select", *options)
        assert done.returncode and said in done.stderr and "Traceback" not in done.stderr

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The router is asked for what the placement can reach, and without a goal when it does not get there."""

import json
import sys

import pytest

from kelp_fpga import routing

#: Stands for nextpnr: notes what it was called with; with a goal beyond `reach` its rounds never end.
NEXTPNR = """
import sys, time
options = sys.argv[1:]
value = lambda name: options[options.index(name) + 1]
with open(value("--log") + ".calls", "a") as calls:
    print(value("--freq"), "--tmg-ripup" in options, file=calls)
log = open(value("--log"), "a")
for n in range(1, 1000 if "--tmg-ripup" in options and float(value("--freq")) > {reach} else 3):
    print(f"Info:     iter={{n}} wires=5 overused=0 overuse=0 tmgfail=1 archfail=NA", file=log, flush=True)
    time.sleep(0.01)
sys.exit({status})
"""


def run(directory, monkeypatch, *, goal, reach=60, status=0):
    monkeypatch.setattr(routing, "_EVERY", 0.05)
    (directory / "nextpnr.py").write_text(NEXTPNR.format(reach=reach, status=status), encoding="utf-8")
    settings = {} if goal is None else {routing.GOAL: goal}
    (directory / "refined.json").write_text(json.dumps({"modules": {"top": {"settings": settings}, "cell": {}}}), encoding="utf-8")
    told = []
    done = routing.route([sys.executable, str(directory / "nextpnr.py"), "--json", str(directory / "refined.json"), "--freq", "80",
                          "--log", str(directory / "top.tim")], rounds=20, tell=told.append)
    return done, (directory / "top.tim.calls").read_text(encoding="utf-8").split("\n")[:-1], told


def test_a_goal_that_is_reached(tmp_path, monkeypatch):
    assert run(tmp_path, monkeypatch, goal="59.50") == (0, ["59.50 True"], ["routing for 59.50 MHz"])


def test_a_goal_that_is_not_reached(tmp_path, monkeypatch):
    done, calls, told = run(tmp_path, monkeypatch, goal="61.00")
    assert (done, calls) == (0, ["61.00 True", "80 False"]) and told[1] == "not reached in 20 rounds"


def test_no_goal(tmp_path, monkeypatch):
    assert run(tmp_path, monkeypatch, goal=None) == (0, ["80 False"], ["routing without a goal"])


@pytest.mark.parametrize("goal", ["59.50", None])
def test_a_tool_that_fails(goal, tmp_path, monkeypatch):
    done, calls, _ = run(tmp_path, monkeypatch, goal=goal, status=3)
    assert done == 3 and calls[-1] == "80 False"

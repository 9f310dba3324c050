# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Questions that every CXL memory device answers alike, asked of the compiled CXL.io; and what
stands in the report where two devices differ. The emulator's own device is `kelp linux`'s."""

import pytest

from kelp_cli.linux import oracle
from kelp_cli.linux.oracle import EXPECTED, EmulatedDevice, compare
from kelp_cli.linux.packages import Missing
from kelp_cli.linux.probe import probe
from kelp_rtl.cxlio.model import RegisterModel
from kelp_spec.cxlio.commands import COMMANDS
from kelp_spec.cxlio.config import named_cxlio


@pytest.mark.timeout(900)  # it may build the model
def test_a_device_answers_what_it_must():
    model = RegisterModel(named_cxlio("full"))
    model.write("configuration", 4, 2, 2)
    said = probe(model)
    assert said["class"] == 0x050210 and said["header type"] == 0
    assert said["cache, io, memory"] == [0, 1, 1] and said["memory enable is taken"] == 1
    assert said["range 1: valid, active"] == 3 and said["DVSECs of a port"] == []
    assert said["FFFF"] == (3, b"") and said["timestamp, with a byte"] == 0x16
    assert said["timestamp goes on from there"] == [0, 8, True]
    assert said["logs"][:1] + said["logs"][2:] == [0, True] and said["labels"]
    assert said["decoder 0 before: committed, error"] == 0
    assert said["decoder 0: committed, error"] == 1
    effects = {name for name in said if name.startswith("effects of ")}
    assert effects == {f"effects of {opcode:04x}" for opcode in COMMANDS}
    assert EXPECTED.keys() <= said.keys()
    assert all(said[name] == ours for name, (ours, _) in EXPECTED.items())


def test_what_differs_is_told(monkeypatch):
    name, (ours, theirs) = next(iter(EXPECTED.items()))
    answers = iter([{name: ours, "a": 1, "b": 2, "c": 3}, {name: theirs, "a": 1, "b": b"x"}])
    monkeypatch.setattr(oracle, "probe", lambda port: next(answers))
    assert compare(None, None) == {
        "compared": 3,
        "expected": [name],
        "differing": {"b": ["2", "b'x'"]},
    }
    # an answer that is neither the expected one nor ours is told, too
    answers = iter([{name: ours}, {name: 5}])
    assert compare(None, None)["differing"] == {name: [repr(ours), "5"]}


def test_an_emulator_without_such_a_device_is_said_so(tmp_path):
    binary = tmp_path / "usr/bin/qemu-system-x86_64"
    binary.parent.mkdir(parents=True)
    binary.write_text("#!/bin/sh\necho no such device: cxl-type3 >&2\nexit 1\n")
    binary.chmod(0o755)
    with pytest.raises(Missing, match="no such device: cxl-type3"):
        EmulatedDevice(tmp_path, {})

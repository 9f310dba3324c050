# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Files that commands write: whole under their final name, or what was there before."""

import os
import resource
import subprocess
import sys

import pytest

from kelp_spec.files import whole_file, write_whole

LIMIT = 4096


def limited():
    """A disk with room for LIMIT bytes, as a process sees it."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, LIMIT))


def test_a_file_is_replaced_at_the_end(tmp_path):
    path = tmp_path / "made" / "a.txt"
    write_whole(path, "ä")
    with whole_file(path) as file:
        file.write(b"new")
        assert path.read_text(encoding="utf-8") == "ä"
    assert path.read_bytes() == b"new" and list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_what_breaks_off_changes_nothing(tmp_path, error):
    path = tmp_path / "a.txt"
    write_whole(path, "old")
    with pytest.raises(error), whole_file(path) as file:
        file.write(b"half of the n")
        raise error
    assert path.read_text(encoding="utf-8") == "old" and list(tmp_path.iterdir()) == [path]


def test_a_name_as_long_as_names_are_is_written(tmp_path):
    for name in ("x" * 255, "ä" * 127):
        write_whole(tmp_path / name, "text")
    assert {len(os.fsencode(path.name)) for path in tmp_path.iterdir()} == {254, 255}


def test_of_two_who_write_one_file_each_writes_a_whole_one(tmp_path):
    path = tmp_path / "a.txt"
    with whole_file(path) as one:
        one.write(b"one, which")
        with whole_file(path) as two:
            two.write(b"two")
        assert path.read_bytes() == b"two"
        one.write(b" is longer")
    assert path.read_bytes() == b"one, which is longer" and list(tmp_path.iterdir()) == [path]


def test_a_link_and_a_pipe_stay_what_they_are(tmp_path):
    path, link, pipe = tmp_path / "a.txt", tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(path)
    write_whole(link, "text")
    assert link.is_symlink() and path.read_text(encoding="utf-8") == "text"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_whole(pipe, "through")
    assert os.read(reader, 100) == b"through" and pipe.is_fifo()
    os.close(reader)


def test_a_full_device_is_named():
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        write_whole("/dev/full", "text")


def test_a_full_disk_is_one_line_and_leaves_no_file(tmp_path):
    path = tmp_path / "inputs.toml"
    command = "from kelp_cli import start; start()"
    done = subprocess.run(
        [sys.executable, "-c", command, "model", "--write-inputs", str(path)],
        preexec_fn=limited,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "".join(done.stderr.split()) == f"kelp:{path}:Filetoolarge"
    assert not list(tmp_path.iterdir())

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The optional C library: built from nothing, it stores lines by every way that this CPU has,
survives memory that is gone, and changes no answer."""

import errno
import os
import platform
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

import cxl_kv
from cxl_kv import native
from cxl_kv.backends.mapping import ALIGNMENT, mapped

SHAPE = cxl_kv.ModelShape(layers=2, kv_heads=2, head_dim=32)


@pytest.fixture
def built(tmp_path, monkeypatch):
    if not any(shutil.which(c) for c in ("cc", "gcc", "clang", "g++")):
        pytest.fail("there is no C compiler; `make setup` asks for g++")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("KELP_NATIVE", raising=False)
    native.library.cache_clear()
    assert native.library() is None
    assert native.build().is_file() and native.library() is not None
    yield
    native.library.cache_clear()


@pytest.fixture
def memory(tmp_path):
    """(file, uint8[4 MiB]) of a shared mapping."""
    with open(tmp_path / "memory", "w+b") as file:
        os.truncate(file.fileno(), 2 * ALIGNMENT)
        yield file, mapped(file.fileno(), 2 * ALIGNMENT)


def ways():
    """Those of WAYS that this CPU has."""
    if platform.machine() != "x86_64":
        return ["plain"]
    with open("/proc/cpuinfo", encoding="ascii") as text:
        flags = set(text.read().split())
    return ["plain", "sse2"] + [
        way for way, flag in (("avx512", "avx512f"), ("movdir64b", "movdir64b")) if flag in flags
    ]


def test_every_way_writes_the_same_lines(built, memory):
    file, view = memory
    assert not view.ctypes.data % ALIGNMENT and native.best_way() == ways()[-1]
    rng = np.random.default_rng(1)
    for way in ways():
        offsets = 64 * rng.choice(len(view) // 64, 500, replace=False).astype(np.uint64)
        lines = rng.integers(0, 256, (500, 64), np.uint8)
        view[:] = 7
        assert not native.store_lines(view.ctypes.data, offsets, lines, way).any()
        expected = np.full((len(view) // 64, 64), 7, np.uint8)
        expected[offsets // np.uint64(64)] = lines
        assert (view.reshape(-1, 64) == expected).all(), way
        file.seek(0)
        assert np.array_equal(np.frombuffer(file.read(), np.uint8), view), (
            "the file shows what another process would see"
        )
        got = np.zeros_like(lines)
        assert not native.load_lines(view.ctypes.data, offsets, got).any() and (got == lines).all()


def test_memory_that_is_gone_is_marked_line_by_line(built, memory):
    """The last page of the file is cut away; lines before and after it move."""
    file, view = memory
    os.truncate(file.fileno(), 4096)
    offsets = np.array([0, 4096, 64, 8192, 4032], np.uint64)
    lines = np.random.default_rng(2).integers(0, 256, (5, 64), np.uint8)
    for way in ways():
        assert native.store_lines(view.ctypes.data, offsets, lines, way).tolist() == [
            False,
            True,
            False,
            True,
            False,
        ]
    got = np.zeros_like(lines)
    assert native.load_lines(view.ctypes.data, offsets, got).tolist() == [
        False,
        True,
        False,
        True,
        False,
    ]
    assert (got[[0, 2, 4]] == lines[[0, 2, 4]]).all() and (view[:64] == lines[0]).all()


def test_spans_follow_one_another_or_nothing_is_said(built, memory):
    file, view = memory
    view[:] = np.random.default_rng(4).integers(0, 256, len(view), np.uint8)
    offsets, counts = np.array([640, 0, 4032], np.uint64), np.array([3, 0, 2])
    got = np.empty((5, 64), np.uint8)
    assert native.load_spans(view.ctypes.data, offsets, counts, got)
    assert got.tobytes() == view[640:832].tobytes() + view[4032:4160].tobytes()
    os.truncate(file.fileno(), 4096)
    assert not native.load_spans(view.ctypes.data, offsets, counts, got)
    assert native.load_spans(view.ctypes.data, offsets[:2], counts[:2], got)


def test_other_peoples_sigbus_is_theirs():
    """Beside this library's moves the process dies of SIGBUS as it would have, or its own handler
    is called."""
    code = """
import mmap, os, signal, sys, tempfile
import numpy as np
from cxl_kv import native
native.build()
file = tempfile.TemporaryFile()
os.truncate(file.fileno(), 4096)
memory = mmap.mmap(file.fileno(), 4096)
view = np.frombuffer(memory, np.uint8)
os.truncate(file.fileno(), 0)
if sys.argv[1] == "handler":
    import faulthandler
    faulthandler.enable()
lines = np.zeros((1, 64), np.uint8)
assert native.load_lines(view.ctypes.data, np.zeros(1, np.uint64), lines).all()
print("caught", flush=True)
view[0]
"""
    for how in ("none", "handler"):
        done = subprocess.run(
            [sys.executable, "-c", code, how], capture_output=True, text=True, timeout=60
        )
        assert (done.returncode, done.stdout) == (-signal.SIGBUS, "caught\n"), done.stderr
        assert ("Bus error" in done.stderr) == (how == "handler")


def test_dax_answers_alike_with_and_without(built, tmp_path, monkeypatch):
    data = np.random.default_rng(3).standard_normal((2, 2, 2, 32, 32)).astype(np.float16)
    answers = []
    for wanted in ("1", "0"):
        monkeypatch.setenv("KELP_NATIVE", wanted)
        native.library.cache_clear()
        assert (native.library() is None) == (wanted == "0")
        path = tmp_path / f"memory{wanted}"
        with (
            cxl_kv.open(f"dax:{path}?config=unit&create=1") as device,
            device.open_session(SHAPE, max_tokens=24) as session,
        ):
            session.write([0, 1], data[0, :, :, :24], data[1, :, :, :24])
            session.write(1, data[0, 0, :, :3], data[1, 0, :, :3], positions=[7, 1, 7])
            seen = [x.tobytes() for x in session.read([0, 1], stop=24)]
            os.truncate(path, ALIGNMENT)
            with pytest.raises(
                cxl_kv.BusError, match="session 0, layer 0, head 0, page 0"
            ) as caught:
                session.read([0, 1], stop=24)
            answers.append((seen, str(caught.value)))
    assert answers[0] == answers[1]


def test_where_no_library_may_be_looked_for_all_goes_on_without(tmp_path, monkeypatch):
    """A user without a home, as in a container, and one who may not look into it."""

    def homeless():
        raise RuntimeError("Could not determine home directory.")

    def refused(path):
        raise PermissionError(errno.EACCES, "Permission denied", path)

    for cache, spoil in (
        ("", lambda m: m.setattr(native.Path, "home", homeless)),
        (str(tmp_path), lambda m: m.setattr(os, "stat", refused)),
    ):
        monkeypatch.setenv("XDG_CACHE_HOME", cache)
        native.library.cache_clear()
        with monkeypatch.context() as patched:
            spoil(patched)
            assert native.library() is None
            if not cache:
                with pytest.raises(native.BuildError, match="home directory"):
                    native.build()
    # A relative folder would be another one wherever the process is: whoever lays a library there.
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    assert native.path().is_absolute()
    native.library.cache_clear()


def test_a_compiler_that_takes_arguments_or_finds_no_room(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file" / "cache"))
    (tmp_path / "file").touch()
    monkeypatch.setenv("CC", "false --first")
    with pytest.raises(native.BuildError, match="file.*: Not a directory"):
        native.build()
    (tmp_path / "file").unlink()
    with pytest.raises(native.BuildError, match="^false --first -x c"):
        native.build()


def test_without_a_compiler_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(native.BuildError, match="no C compiler"):
        native.build()
    monkeypatch.setenv("CC", "false")
    monkeypatch.setenv("PATH", "/bin:/usr/bin")
    with pytest.raises(native.BuildError, match="false -x c"):
        native.build()

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Who has a session of mapped plain memory: across exec, SIGKILL and pid namespaces, through
take-overs that race or die half-way. Whoever lost its session is told by the next call."""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from processes import forked

import cxl_kv
from cxl_kv.backends import dax, dax_header, file_lock

SHAPE = cxl_kv.ModelShape(layers=2, kv_heads=2, head_dim=32)
#: Opens the file, writes 1.0 everywhere, says so, and then does what the second argument says.
HOLDER = """
import os, signal, sys
import numpy as np, cxl_kv
device = cxl_kv.open(f"dax:{sys.argv[1]}?config=unit")
session = device.open_session(cxl_kv.ModelShape(layers=2, kv_heads=2, head_dim=32))
ones = np.ones((2, 2, 32, 32), np.float16)
session.write([0, 1], ones, ones)
print(session.number, flush=True)
exec(sys.argv[2])
"""
#: … reads and writes whenever it is told to, and says whether all of it was its own.
SERVE = """
for line in sys.stdin:
    session.write([0, 1], ones, ones)
    print(bool((session.read([0, 1], stop=32)[0] == 1).all()), flush=True)
"""


@pytest.fixture
def path(tmp_path):
    path = str(tmp_path / "memory")
    cxl_kv.open(f"dax:{path}?config=unit&create=1").close()
    return path


def opened(path):
    return cxl_kv.open(f"dax:{path}?config=unit")


def tensors(value):
    return np.full((2, 2, 32, 32), value, np.float16)


def written(device, value):
    """A session that holds `value` everywhere."""
    session = device.open_session(SHAPE)
    session.write([0, 1], tensors(value), tensors(value))
    return session


def holds(session, value):
    return all((x == value).all() for x in session.read([0, 1], stop=32))


@contextlib.contextmanager
def holder(path, then, *prefix):
    """A process that has a session, and the session's number."""
    process = subprocess.Popen(
        [*prefix, sys.executable, "-c", HOLDER, path, then],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process, int(process.stdout.readline())
    finally:
        process.kill()
        process.wait(30)
        process.stdin.close()
        process.stdout.close()


def still_its_own(process):
    process.stdin.write("\n")
    process.stdin.flush()
    return process.stdout.readline() == "True\n"


# - when a session ends ----------------------------------------------------------------------------
def test_exec_ends_a_session(path):
    """The process lives on with its number and its starting time; what it opened does not."""
    then = "os.execv('/bin/sh', ['sh', '-c', 'echo there; read line'])"
    with holder(path, then) as (process, number), opened(path) as device:
        assert process.stdout.readline() == "there\n"
        session = written(device, 2)
        assert session.number == number and holds(session, 2) and process.poll() is None


def test_a_childs_copy_does_not_keep_a_session(path):
    """The holder is killed, its child lives on; it is the child that says so, out of its fork()."""
    then = "os.fork() or print(os.getpid(), flush=True); signal.pause()"
    with holder(path, then) as (process, number), opened(path) as device:
        child = int(process.stdout.readline())
        try:
            process.kill()
            process.wait(30)
            session = device.open_session(SHAPE)
            assert session.number == number and holds(session, 0)
            os.kill(child, 0)
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_process_killed_with_the_headers_lock_stops_nobody(path):
    def begin():
        core = opened(path).transport.core
        held = core.exclusive()
        held.__enter__()
        return core, held

    pid = forked(begin)
    threading.Timer(0.2, os.kill, (pid, signal.SIGKILL)).start()
    before = time.monotonic()
    with opened(path) as device:
        assert time.monotonic() - before > 0.1 and holds(written(device, 3), 3)
    os.waitpid(pid, 0)


def test_a_header_lock_that_is_never_given_back_is_an_error(path, monkeypatch):
    monkeypatch.setattr(dax_header, "_LOCK_SECONDS", 0.2)
    with opened(path) as device:
        with device.transport.exclusive():
            with pytest.raises(cxl_kv.TransportError, match=r"held the lock for 0\.2 s"):
                opened(path)
        assert holds(written(device, 3), 3)


def namespaces():
    """A command that runs another one in a pid namespace of its own, with a /proc of its own."""
    tool = shutil.which("unshare")
    for command in ([tool, "-rpf", "--mount-proc"], [tool, "-pf", "--mount-proc"]):
        if tool and subprocess.run([*command, "true"], capture_output=True).returncode == 0:
            return command
    pytest.skip("this machine lets nobody make a pid namespace (unshare -pf --mount-proc)")


def test_a_session_lives_in_another_pid_namespace(path):
    """As in a container: the number of its process means nothing here, nor ours there."""
    apart = namespaces()
    with (
        holder(path, SERVE, *apart) as (one, first),
        holder(path, SERVE, *apart) as (other, second),
        opened(path) as device,
    ):
        assert first != second
        with pytest.raises(cxl_kv.DeviceFullError, match="2 sessions"):
            device.open_session(SHAPE)
        assert still_its_own(one) and still_its_own(other)
        # The command's child is the holder; it goes with its namespace's first process.
        os.kill(int(subprocess.check_output(["pgrep", "-P", str(one.pid)])), signal.SIGKILL)
        one.wait(30)
        session = written(device, 2)
        assert session.number == first and holds(session, 2) and still_its_own(other)


# - a session that is lost -------------------------------------------------------------------------
def lose(device, path, how="unlocked"):
    """Take the locks from under the device, which nothing but a change of the header or the file's
    locks by others can."""
    header = device.transport.core.header
    for session in header.opened():
        file_lock.free(header.file, 1 + session)
    if how == "laid out anew":
        with open(path, "r+b") as file:
            file.write(bytes(64))
        cxl_kv.open(f"dax:{path}?config=unit&create=1").close()


@pytest.mark.parametrize("how", ["unlocked", "laid out anew"])
def test_a_lost_session_is_an_error_for_reads_and_writes(path, how):
    loser = opened(path)
    lost = written(loser, 1)
    lose(loser, path, how)
    with opened(path) as device:
        taken = written(device, 2)
        assert taken.number == lost.number == 0
        for call in (
            lambda: lost.read(1, stop=3),
            lambda: lost.write([0, 1], tensors(9), tensors(9)),
            lambda: lost.write(1, tensors(9)[1, :, :1], tensors(9)[1, :, :1], start=4),
            lambda: lost.view(0, 0, 0),
            lost.advance,
        ):
            with pytest.raises(cxl_kv.SessionLostError, match="session 0"):
                call()
        with pytest.raises(cxl_kv.SessionLostError):
            loser.transport.store(np.zeros(1, np.uint64), np.full((1, 64), 9, np.uint8), 0xFF)
        with pytest.raises(cxl_kv.SessionLostError, match="layer 1, head 0, page 0") as caught:
            lost.read(1, positions=[2, 1])
        assert (caught.value.session, caught.value.layer, caught.value.page) == (0, 1, 0)
        lost.close()
        loser.close()
        assert holds(taken, 2) and taken.step == 0
        assert device.open_session(SHAPE).number == 1, "the loser closed nothing of its successor's"


@pytest.mark.parametrize(
    "call", ["read", "read of positions", "write", "partial read", "partial write"]
)
def test_a_take_over_within_a_call_is_told(path, monkeypatch, call):
    """Between the look at the generation and the move: no read returns another's bytes, and no
    write claims to have stored its own."""
    with opened(path) as loser, opened(path) as winner:
        lost, core = written(loser, 1), loser.transport.core
        taken = []

        def late(move):
            def moves(*arguments, **named):
                if not taken:
                    lose(loser, path)
                    taken.append(written(winner, 2))
                return move(*arguments, **named)

            return moves

        for name in ("_move", "_read_spans"):
            monkeypatch.setattr(core, name, late(getattr(core, name)))
        address, line = np.zeros(2, np.uint64), np.full((2, 64), 9, np.uint8)
        address[1] = 1 << loser.config.aperture_bits - 1 if call == "partial read" else 64
        calls = {
            "read": lambda: lost.read([0, 1], stop=32),
            "read of positions": lambda: lost.read([0, 1], positions=range(32)),
            "write": lambda: lost.write([0, 1], tensors(3), tensors(3)),
            "partial read": lambda: loser.transport.load(address),
            "partial write": lambda: loser.transport.store(address, line, 0xFF),
        }
        with pytest.raises(cxl_kv.SessionLostError, match="during this call.*may be what was"):
            calls[call]()
        assert taken[0].number == lost.number


@pytest.mark.parametrize("how", ["closed", "replaced"])
def test_a_descriptor_closed_behind_its_back_loses_nothing(path, how):
    """As a daemon does that closes all descriptors: the mapping keeps the locks. What needs the
    file is an error, and nobody else's descriptor is closed."""
    with opened(path) as device:
        session, file = written(device, 1), device.transport.core.header.file
        os.close(file)
        if how == "replaced":
            assert os.dup2(sys.stderr.fileno(), file) == file
        with opened(path) as other:
            assert written(other, 2).number != session.number and holds(session, 1)
            session.write([0, 1], tensors(3), tensors(3))
            assert holds(session, 3)
        if how == "closed":
            with pytest.raises(cxl_kv.TransportError, match="closed behind this library's back"):
                device.open_session(SHAPE)
        device.close()
        if how == "replaced":
            os.close(file)  # it is still there


def test_a_handle_is_not_mistaken_for_its_successors(path):
    """The session's number is another's now, of the same process."""
    with opened(path) as device:
        former = written(device, 1)
        device.transport.close_session(former.number)
        with pytest.raises(cxl_kv.SessionClosedError, match="session 0.*nothing was stored"):
            former.write([0, 1], tensors(1), tensors(1))
        later = written(device, 2)
        assert later.number == former.number
        for call in (
            lambda: former.read(0, stop=1),
            lambda: former.write([0, 1], tensors(1), tensors(1)),
        ):
            with pytest.raises(cxl_kv.SessionClosedError):
                call()
        former.close()
        assert holds(later, 2)


def test_a_store_to_nowhere_is_an_error(path):
    with opened(path) as device:
        written(device, 1)
        line = np.full((1, 64), 9, np.uint8)
        apertures = 1 << device.config.aperture_bits
        zero = np.zeros(1, np.int64)
        beyond = device.open_session(SHAPE, max_tokens=4).layout.addresses(zero, zero, zero + 8)
        for address in (apertures - 64, beyond.reshape(-1)[0], 3 * apertures):
            for enable in (None, 0xFF):
                with pytest.raises(cxl_kv.NotMappedError, match="nothing was stored"):
                    device.transport.store(np.array([address], np.uint64), line, enable)


def test_the_headers_lock_outlasts_what_happens_within_it(path):
    """A page that is written for the first time takes it, too."""
    with opened(path) as device, opened(path) as other:
        session = device.open_session(SHAPE)
        header = other.transport.core.header
        with device.transport.exclusive():
            session.write(0, tensors(1)[0], tensors(1)[0])
            assert not file_lock.try_take(header.file, 0)
        assert file_lock.try_take(header.file, 0)


def test_a_session_of_another_node_or_an_earlier_run_of_the_kernel(path):
    """Its lock cannot be seen from here, or nobody can hold it any more."""
    with holder(path, SERVE) as (process, number), opened(path) as device:
        entry = device.transport.core.header._table[number]
        node = int(entry["node"])
        entry["node"] = node + 1
        with pytest.raises(cxl_kv.TransportError, match="another device node or copy.*bind-mount"):
            opened(path)
        entry["node"] = node
        assert still_its_own(process)
        process.kill()
        process.wait(30)
        entry["node"], entry["boot"] = node + 1, int(entry["boot"]) + 1
        with opened(path) as again:
            assert again.open_session(SHAPE).number == number


def test_the_last_generation_is_followed_by_the_first(path):
    """As whoever writes to the memory may leave it."""
    with opened(path) as device:
        table = device.transport.core.header._table
        table["generation"] = (1 << 64) - 1
        session = written(device, 1)
        assert table[session.number]["generation"] == 0
        table["generation"] = (1 << 64) - 1
        with pytest.raises(cxl_kv.SessionLostError):
            session.read([0, 1], stop=32)
        for end in (session.close, written(device, 2).close):
            table["generation"] = (1 << 64) - 1
            device.transport.core.header._generations.update({0: (1 << 64) - 1})
            end()
        assert not table["open"].any()


# - take-overs that die or race --------------------------------------------------------------------
def traced(at_line, *modules):
    """Call `at_line` before each line of the modules."""
    files = {module.__file__ for module in modules}

    def trace(frame, event, argument):
        if frame.f_code.co_filename not in files:
            return None
        if event == "line":
            at_line()
        return trace

    sys.settrace(trace)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_a_process_may_die_at_any_line(path, every):
    """Opening, writing and closing, with SIGKILL before any line of the header's module, or any
    third: the next owner finds the session free and empty, and its neighbour is undisturbed."""
    with opened(path) as device:
        neighbour, line, status = written(device, 5), 0, None
        while status != 0:
            pid = os.fork()
            if not pid:
                code = 1
                try:
                    former, mine, left = opened(path), opened(path), [line]
                    written(former, 1)  # what lies there, in a session whose holder is gone
                    lose(former, path)

                    def count(left=left):
                        left[0] -= 1
                        if left[0] < 0:
                            os.kill(os.getpid(), signal.SIGKILL)

                    traced(count, dax_header)
                    with mine.open_session(SHAPE) as session:
                        some = tensors(7)[0, :, :2]
                        session.write(0, some, some, start=1)
                    sys.settrace(None)
                    code = 0
                finally:
                    os._exit(code)
            status = os.waitpid(pid, 0)[1]
            assert not status or os.WTERMSIG(status) == signal.SIGKILL, status
            with device.open_session(SHAPE) as session:
                assert session.number != neighbour.number
                assert holds(session, 0), f"after {line} lines"
                session.write(0, tensors(6)[0, :, :1], tensors(6)[0, :, :1])
                assert not session.read(0, start=1, stop=32)[0].any(), f"after {line} lines"
                session.write([0, 1], tensors(6), tensors(6))
                assert holds(session, 6) and holds(neighbour, 5)
            line += every
        assert line > 60, "the lines were counted"


def contend(path, seed, seconds):
    """Open, write, read and close, with delays between the lines of the back end; now and then
    lose the lock, or end by SIGKILL. Exit code 0 unless something was read that was not its own."""
    rng = random.Random(seed)
    traced(
        lambda: time.sleep(rng.choice((1e-5, 1e-4, 1e-3))) if rng.random() < 0.02 else None,
        dax,
        dax_header,
    )
    deadline, device, value = time.monotonic() + seconds, opened(path), seed % 1000 * 2
    while time.monotonic() < deadline:
        value = value + 1 if value % 2000 < 1999 else seed % 1000 * 2
        try:
            session = written(device, value)
        except cxl_kv.DeviceFullError:
            continue
        for _ in range(rng.randrange(4)):
            if not holds(session, value):
                return 3
            session.write(0, tensors(value)[0, :, :5], tensors(value)[0, :, :5], start=3)
        fate = rng.random()
        if fate < 0.1:
            os.kill(os.getpid(), signal.SIGKILL)
        if fate < 0.3:
            # It may be taken over within any of these reads.
            lose(device, path)
            try:
                for _ in range(20):
                    if not holds(session, value):
                        return 4
            except cxl_kv.SessionLostError:
                with contextlib.suppress(cxl_kv.SessionLostError):
                    session.write([0, 1], tensors(999), tensors(999))
                    return 5
            device.close()
            device = opened(path)
        else:
            session.close()
    return 0


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.sampled
def test_processes_race_for_sessions(path, seed):
    """Four processes for two sessions: whatever is read is the reader's own."""
    deadline, started, running = time.monotonic() + 4, 0, {}

    def start():
        nonlocal started
        started += 1
        pid = os.fork()
        if not pid:
            code = 1
            try:
                code = contend(path, 100 * seed + started, deadline - time.monotonic())
            finally:
                os._exit(code)
        running[pid] = started

    for _ in range(4):
        start()
    while running:
        ended = [(pid, *os.waitpid(pid, os.WNOHANG)) for pid in running]
        time.sleep(0.01)
        for pid, gone, status in ended:
            if not gone:
                continue
            number = running.pop(pid)
            killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
            assert killed or status == 0, f"process {number} of seed {seed}: status {status}"
            if killed and time.monotonic() < deadline:
                start()
    with opened(path) as device:
        for value in (1, 2):
            assert holds(written(device, value), value)


@pytest.mark.parametrize("name, behind", [("take", True), ("free", False)])
def test_ctrl_c_at_the_headers_lock_keeps_no_other_process_from_it(path, monkeypatch, name, behind):
    """Just when it is taken, or before it is given back: others would wait for a minute, and then
    be told that this process is stopped."""
    real, calls = getattr(file_lock, name), []

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) > 1 or behind:
            real(*arguments)
        if len(calls) == 1:
            raise KeyboardInterrupt

    with opened(path) as device:
        core = device.transport.core
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(file_lock, name, interrupted)
            with core.exclusive():
                pass
        other = os.open(path, os.O_RDWR)
        assert not file_lock.taken_by_another(other, 0)
        os.close(other)
        device.open_session(SHAPE).close()

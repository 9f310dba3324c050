# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""A pytest plugin: every test is run once for each mutant that is still alive, each in a process
forked from the test where its simulation begins. :mod:`.hunt` starts pytest with it. A cocotb
bench's own process is shared, too: it forks where the model's registers begin (select.h). A test
whose model holds no mutant is left.

The job, in `$KELP_MUTATION`, is a :class:`Job` as JSON; results go to its `out`. A test runs once
with no mutant first and must pass; the processor time that it takes bounds that of the others.
"""

import ctypes
import json
import os
import re
import resource
import shutil
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path

import pytest

from kelp_hw.export import passes, tools
from kelp_spec.files import write_whole

from . import netlist, source

#: A mutant that does not end is killed after this many times the processor time that the test
#: takes without, and at least after so many seconds of it.
_SLOWER, _AT_LEAST = 4, 5
#: Seconds of processor time that a test may take with no mutant.
_WHOLE = 600
#: A process that sleeps after so many times its processor time waits for nothing, and is ended. One
#: that waits for a core is not: a loaded machine kills no mutant.
_IDLE = 30


@dataclass(frozen=True)
class Job:
    """`blocks` (class → its module) whose mutants are looked for; `level` is "netlist" or
    "source"."""

    blocks: dict[str, str]
    level: str
    count: int
    seed: int
    jobs: int
    out: str


class Hunt(passes.Passes):
    """The mutants, who is alive, and the forks."""

    def __init__(self, job: Job):
        self.job = job
        self.sources = job.level == "netlist"
        self.mutants: dict[int, object] = {}
        self.killers: dict[int, str] = {}
        self.stillborn: set[int] = set()
        #: some test was begun for them: what a hunt that ends amid it has not killed is alive
        self.tried: set[int] = set()
        self.designs: dict[str, list[int]] = {}  #: digest of Verilog → the mutants in it
        self.texts: dict[str, str] = {}  #: block → RTLIL that its mutants are in
        self.child: int | None = None
        self.item = None
        self._paths = None
        self._pending: list[int] = []
        self._sites: dict[str, list[int]] = {}  #: digest of RTLIL → its mutants
        self._prepared: dict[str, str] = {}  #: digest of RTLIL → what the mutants are in
        if job.level == "source":
            for name, module in job.blocks.items():
                block = getattr(import_module(module), name)
                self._add(
                    source.sites(block, count=job.count, seed=job.seed, first=len(self.mutants) + 1)
                )

    def _add(self, mutants) -> list[int]:
        self.mutants |= {m.number: m for m in mutants}
        return [m.number for m in mutants]

    # Passes of a build
    def component(self, component):
        if self.job.level != "netlist":
            return component
        self._paths = netlist.Paths(component)
        return self._paths

    def rtlil(self, text):
        self._pending = []
        if self.job.level != "netlist":
            return text
        key = tools.digest(text)
        if key not in self._sites and self.child is None:
            # A block's mutants are in the first design that has it; other designs are left alone.
            found = {
                name: self._paths.modules[name]
                for name in self.job.blocks
                if name in self._paths.modules
                and not any(m.block == name for m in self.mutants.values())
            }
            self._prepared[key] = text = netlist.prepared(text, found)
            self._sites[key] = self._add(
                netlist.listed(
                    text,
                    found,
                    count=self.job.count,
                    seed=self.job.seed,
                    first=len(self.mutants) + 1,
                )
            )
            self.texts |= dict.fromkeys(found, text)
        self._pending = self._sites.get(key, [])
        if not self._pending and self.child is None:
            pytest.skip("holds no mutant")
        if self.child is None:
            self._alive(self._pending)
        text = self._prepared.get(key, text)
        return netlist.mutated(text, [self.mutants[n] for n in self._pending])

    def verilog(self, text):
        if not self._pending:
            return text
        design = tools.digest(text)
        self.designs[design] = self._pending
        return netlist.selected(text, design)

    def simulates(self, verilog):
        design = netlist.design_of(verilog)
        if self.child is None and design:
            self.run(self.designs[design])

    def bench(self, verilog, simulate, folder):
        design = netlist.design_of(verilog)
        if self.child is None and design:
            numbers = self._alive(self.designs[design])
            seconds = self._whole()
            if self.child is None:
                self._begin(numbers)
                ended = self._simulated(numbers, seconds, simulate, folder)
                # Who fails here is done with at once; the others go through the rest of the test.
                self._fork(sorted(numbers, key=lambda n: _passed(ended[n][0])), seconds)
                if self.child is not None:
                    return ended[self.child]
                shutil.rmtree(folder)
                self._leave(numbers)
        return super().bench(verilog, simulate, folder)

    # Forks
    def run(self, numbers) -> None:
        """Fork a child for each of `numbers` that is alive. Returns in the children alone; the
        parent leaves the test by a skip."""
        numbers = self._alive(numbers)
        seconds = self._whole()
        if self.child is None:
            self._begin(numbers)
            self._fork(numbers, seconds)
        if self.child is None:
            self._leave(numbers)

    def _begin(self, numbers) -> None:
        self.tried.update(numbers)
        self.save()  # the run may be ended

    def _alive(self, numbers) -> list[int]:
        alive = [n for n in numbers if n not in self.killers]
        if not alive:
            pytest.skip("no mutant is alive before it")
        return alive

    def _leave(self, numbers) -> None:
        left = sum(n not in self.killers for n in numbers)
        pytest.skip(f"{left} of {len(numbers)} mutants are alive after it")

    def _whole(self) -> int:
        """Run the test in a fork with no mutant; seconds of processor time for one with."""
        before = _cpu_seconds()
        problem = self._fork([0], _WHOLE)
        if self.child is None and problem:
            why = Path(f"{self.job.out}.why")
            told = why.read_text(encoding="utf-8") if why.is_file() else ""
            pytest.fail(f"fails with no mutant: {problem}\n{told}")
        return round(max(_AT_LEAST, _SLOWER * (_cpu_seconds() - before)))

    def _simulated(self, numbers, seconds, simulate: Callable[..., int | None], folder: Path):
        """Simulate `numbers`, some after one another in each of a few processes: number → the
        folder that its files are in, and the exit code."""
        parts = [numbers[k :: self.job.jobs] for k in range(min(self.job.jobs, len(numbers)))]
        ended = {}

        def together(k: int) -> None:
            place, words = folder / f"part{k}", " ".join(map(str, (seconds, *parts[k])))
            place.mkdir(parents=True)
            simulate(place, KELP_MUTANTS=words, COCOTB_MAX_FAILURES="1", timeout_s=None)
            for line in (place / "ended").read_text(encoding="utf-8").splitlines():
                number, code = map(int, line.split())
                ended[number] = (place / str(number), code)

        with ThreadPoolExecutor(len(parts)) as pool:
            list(pool.map(together, range(len(parts))))
        if missing := set(numbers) - set(ended):
            raise tools.ToolError(f"mutants {sorted(missing)} were not simulated in {folder}")
        return ended

    def _fork(self, numbers, seconds: int) -> str | None:
        """Run `numbers` in forks, a few at a time, each with `seconds` of processor time; what the
        last of them did wrong."""
        running: dict[int, tuple[int, float]] = {}
        waiting, problem = list(numbers), None
        while waiting or running:
            while waiting and len(running) < self.job.jobs:
                number = waiting.pop(0)
                pid = os.fork()
                if not pid:
                    os.setsid()
                    end_with_parent()
                    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
                    self.child = number
                    os.environ |= {netlist.SELECT.upper(): str(number), "COCOTB_MAX_FAILURES": "1"}
                    tools.tool_env.cache_clear()
                    return None
                running[pid] = (number, time.monotonic() + _IDLE * seconds)
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid in running:
                number, _ = running.pop(pid)
                if code := os.waitstatus_to_exitcode(status):
                    problem = f"exit code {code}"
                    self._killed(number, code)
                    self.save()  # the run may be ended
                continue
            now = time.monotonic()
            for pid, (_, deadline) in list(running.items()):
                if now > deadline and not awake(pid):
                    os.killpg(pid, signal.SIGKILL)
            time.sleep(0.02)
        return problem

    def _killed(self, number, code) -> None:
        if number:
            self.killers[number] = self.item.nodeid
            if code == _STILLBORN:
                self.stillborn.add(number)

    # Results
    def save(self) -> None:
        rows = [
            asdict(m)
            | {
                "site": m.site,
                "killer": self.killers.get(n),
                "stillborn": n in self.stillborn,
                "tried": n in self.tried,
            }
            for n, m in self.mutants.items()
        ]
        write_whole(Path(self.job.out), json.dumps({"mutants": rows, "texts": self.texts}))


def end_with_parent() -> None:
    """This process is killed when its parent ends: a hunt that was stopped leaves nobody behind who
    keeps the locks of its builds."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def awake(group: int) -> bool:
    """Some process of `group` runs, or waits for a core or a disk."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # ended meanwhile
            state, _, its_group, *_ = stat.read_text().rpartition(")")[2].split()
            if int(its_group) == group and state in "RD":
                return True
    return False


def _passed(folder: Path) -> bool:
    """As far as the results in `folder` say; whether a test takes them for a pass is its own."""
    results = folder / "results.xml"
    return results.is_file() and not re.search("<(failure|error)", results.read_text("utf-8"))


def _cpu_seconds() -> float:
    """Of the processes that this one has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


_STILLBORN = 77
_PR_SET_PDEATHSIG = 1  # of Linux
_hunt: Hunt | None = None


def pytest_configure(config):
    global _hunt
    _hunt = Hunt(Job(**json.loads(os.environ["KELP_MUTATION"])))
    passes.install(_hunt)


def pytest_runtest_setup(item):
    _hunt.item = item


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item):
    """At the level of the source there is no build: the test is forked where it begins."""
    if _hunt.job.level == "source":
        _hunt.run(list(_hunt.mutants))
        if _hunt.child:
            mutant = _hunt.mutants[_hunt.child]
            source.apply(
                getattr(import_module(_hunt.job.blocks[mutant.block]), mutant.block), mutant
            )


pytest_runtest_call = pytest.hookimpl(tryfirst=True)(pytest_runtest_call)


def pytest_runtest_makereport(item, call):
    """A child ends with its test."""
    if _hunt.child is not None and call.when == "call":
        if _hunt.child == 0 and call.excinfo:
            why = Path(f"{_hunt.job.out}.why")
            why.write_text(str(call.excinfo.getrepr(style="short")), encoding="utf-8")
        os._exit(_code(call.excinfo))


def _code(excinfo) -> int:
    if excinfo is None or excinfo.errisinstance(pytest.skip.Exception):
        return 0
    elaborating = ("hdl/_ast.py", "hdl/_dsl.py", "hdl/_ir.py", "_mutant.py")
    last = str(excinfo.traceback[-1].path)
    return _STILLBORN if last.endswith(elaborating) else 1


def pytest_sessionfinish(session):
    if _hunt.child is None:
        _hunt.save()

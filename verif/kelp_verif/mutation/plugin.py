# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""A pytest plugin: every test is run once for each mutant that is still alive, each in a process
forked from the test where its simulation begins. :mod:`.hunt` starts pytest with it.

The job, in `$KELP_MUTATION`, is a :class:`Job` as JSON; results go to its `out`. A test runs once
with no mutant first and must pass; what it takes bounds the time of the others.
"""

import json
import os
import signal
import time
from dataclasses import asdict, dataclass
from importlib import import_module

import pytest

from kelp_rtl.build import passes, tools

from . import netlist, source

#: A mutant that does not end is killed after this many times what the test takes without, and at
#: least after so many seconds.
_SLOWER, _AT_LEAST = 6, 20.0


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
        self.mutants: dict[int, object] = {}
        self.killers: dict[int, str] = {}
        self.stillborn: set[int] = set()
        self.designs: dict[str, list[int]] = {}  #: digest of Verilog → the mutants in it
        self.texts: dict[str, str] = {}  #: block → RTLIL that its mutants are in
        self.child: int | None = None
        self.item = None
        self._paths = None
        self._pending: list[int] = []
        self._sites: dict[str, list[int]] = {}  #: digest of RTLIL → its mutants
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
        if key not in self._sites:
            # A block's mutants are in the first design that has it; other designs are left alone.
            found = {
                name: self._paths.modules[name]
                for name in self.job.blocks
                if name in self._paths.modules
                and not any(m.block == name for m in self.mutants.values())
            }
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
        self._pending = self._sites[key]
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

    # Forks
    def run(self, numbers) -> None:
        """Fork a child for each of `numbers` that is alive. Returns in the children alone; the
        parent leaves the test by a skip."""
        began = time.monotonic()
        problem = self._fork([0], limit=600.0)
        if self.child is not None:
            return
        if problem:
            pytest.fail(f"fails with no mutant: {problem}")
        limit = max(_AT_LEAST, _SLOWER * (time.monotonic() - began))
        self._fork([n for n in numbers if n not in self.killers], limit=limit)
        if self.child is None:
            alive = sum(n not in self.killers for n in numbers)
            pytest.skip(f"{alive} of {len(numbers)} mutants are alive after it")

    def _fork(self, numbers, *, limit) -> str | None:
        """Run `numbers` in forks, a few at a time; what the last of them did wrong."""
        running: dict[int, tuple[int, float]] = {}
        waiting, problem = list(numbers), None
        while waiting or running:
            while waiting and len(running) < self.job.jobs:
                number = waiting.pop(0)
                pid = os.fork()
                if not pid:
                    os.setsid()
                    self.child = number
                    os.environ |= {netlist.SELECT.upper(): str(number), "COCOTB_MAX_FAILURES": "1"}
                    tools.tool_env.cache_clear()
                    return None
                running[pid] = (number, time.monotonic() + limit)
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid in running:
                number, _ = running.pop(pid)
                if code := os.waitstatus_to_exitcode(status):
                    problem = f"exit code {code}"
                    self._killed(number, code)
                continue
            now = time.monotonic()
            for pid, (number, deadline) in list(running.items()):
                if now > deadline:
                    os.killpg(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                    del running[pid]
                    problem = "does not end"
                    self._killed(number, -1)
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
            }
            for n, m in self.mutants.items()
        ]
        with open(self.job.out, "w", encoding="utf-8") as handle:
            json.dump({"mutants": rows, "texts": self.texts}, handle)


_STILLBORN = 77
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

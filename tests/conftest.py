# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What every test gets: reproducible hypothesis examples without a database, and proofs left out
unless asked for and told in a table."""

import faulthandler
import os
import resource
import signal
import timeit
from collections import Counter, defaultdict

import hypothesis
import pytest

from kelp_verif.harness.seeds import forget

# deadline: two workers and a C++ build share two cores, so wall-clock time per example says
# nothing.
hypothesis.settings.register_profile(
    "kelp", deadline=None, database=None, derandomize="KELP_SEED" not in os.environ
)
hypothesis.settings.load_profile("kelp")

# What a shell starts in its background ignores SIGINT; tests interrupt what they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_CPU_BEFORE = pytest.StashKey[float]()
#: Core minutes of `make test`: twenty on each of two quiet cores.
_BUDGET = 40


def _at_night(item):
    return item.get_closest_marker("slow") or item.get_closest_marker("night")


def _sample(items):
    """Of the cases of a test that is marked ``sampled`` every third is in `make test`: those in
    which the places of the parameters' values add up to a multiple of three, so that each value is
    in some. The others are the night's."""
    cases = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sampled") and not _at_night(item):
            cases[item.path, item.originalname].append(item)
    for each in cases.values():
        kept = [item for item in each if sum(item.callspec.indices.values()) % 3 == 0] or each[:1]
        for item in each:
            if item not in kept:
                item.add_marker(pytest.mark.night)


@pytest.hookimpl(tryfirst=True)  # before -k and -m choose
def pytest_collection_modifyitems(config, items):
    """Without a -m of its own or a test's name, a run leaves out ``slow`` and ``night`` tests, and
    every ``prove`` test that is not also ``quick``; -k chooses among the rest. Workers take file by
    file, those with the longest time limits first, so that no long one is left for the end."""
    _sample(items)
    if not config.option.markexpr and not any("::" in argument for argument in config.args):
        left_out = [
            item
            for item in items
            if _at_night(item)
            or (item.get_closest_marker("prove") and not item.get_closest_marker("quick"))
        ]
        if left_out:
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if item not in left_out]
    if hasattr(config, "workerinput"):
        longest = Counter()
        for item in items:
            limit = item.get_closest_marker("timeout")
            longest[item.path] = max(longest[item.path], limit.args[0] if limit else 0)
        items.sort(key=lambda item: -longest[item.path])


def pytest_runtest_setup(item):
    """The limit on native code (pyproject.toml) is for tests that ask for no longer one."""
    limit = item.get_closest_marker("timeout")
    if limit and limit.args[0] >= float(item.config.getini("faulthandler_timeout")):
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem):
    """A planted bug that a fresh seed does not meet is tried with two more: the test asks whether
    its bench can fail, and not whether it does with every seed."""
    if os.environ.get("KELP_SEED") != "fresh":
        return (yield)
    try:
        return (yield)
    except pytest.fail.Exception as missed:
        if not str(missed).startswith("DID NOT RAISE"):
            raise
        problem = missed
    names = pyfuncitem._fixtureinfo.argnames
    for _ in range(2):
        forget()
        try:
            return pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}) or True
        except pytest.fail.Exception as missed:
            problem = missed
    raise problem


def _cpu_seconds():
    """Of this process and of those that it started and waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def pytest_collection_finish(session):
    session.config.stash[_CPU_BEFORE] = _cpu_seconds()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """Each report carries the processor time of its phase: wall time is no measure where workers
    share cores and wait for one another's builds."""
    report = yield
    now = _cpu_seconds()
    used = round(now - item.config.stash[_CPU_BEFORE], 2)
    report.user_properties = [*report.user_properties, ("cpu_s", used)]
    item.config.stash[_CPU_BEFORE] = now
    return report


def _is_whole(config):
    """Whether this is `make test` and nothing is chosen."""
    by_default = config.args_source == pytest.Config.ArgsSource.TESTPATHS
    return by_default and not config.option.keyword and not config.option.markexpr


def _tell_budget(terminalreporter, cpu, reports):
    """Processor time against the goal, the files that took most, how long the worker that was done
    first had nothing to do, and how fast the machine is: some are half as fast as others."""
    terminalreporter.section(f"{cpu.total() / 60:.1f} core minutes; goal: {_BUDGET} at most")
    files = Counter()
    for name, seconds in cpu.items():
        files[name.partition("::")[0]] += seconds
    for name, seconds in files.most_common(60):
        terminalreporter.write_line(f"{seconds:6.1f} s {name}")
    ends = {}
    for report in reports:
        worker = getattr(report, "worker_id", "")
        ends[worker] = max(ends.get(worker, 0), report.stop)
    if len(ends) > 1:
        idle = max(ends.values()) - min(ends.values())
        terminalreporter.write_line(f"the first of {len(ends)} workers was done {idle:.0f} s early")
    quickest = min(timeit.repeat("n += 1", "n = 0", number=10**7, repeat=3))
    terminalreporter.write_line(f"ten million additions take {quickest:.2f} s here")


def pytest_terminal_summary(terminalreporter):
    """What took most processor time, and one line for each proof that ran: kind, depth, result,
    covers, planted bugs."""
    reports = [
        report
        for reports in terminalreporter.stats.values()
        for report in reports
        # items that were left out are listed too, and files that could not be collected
        if isinstance(report, pytest.TestReport)
    ]
    cpu, rows = Counter(), []
    for report in reports:
        found = dict(report.user_properties)
        cpu[report.nodeid] += found.get("cpu_s", 0)
        if report.when == "call" and "proof" in found:
            rows.append(found["proof"])
    if cpu.total() > 60:
        terminalreporter.section(f"{cpu.total():.0f} s of processor time, the most of it in")
        for name, seconds in cpu.most_common(15):
            terminalreporter.write_line(f"{seconds:6.1f} s {name}")
    if _is_whole(terminalreporter.config):
        _tell_budget(terminalreporter, cpu, reports)
    if rows:
        from kelp_verif.formal.proofs import table

        terminalreporter.section("proofs")
        for line in table(rows):
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def repo_root(pytestconfig):
    """The checkout's top directory."""
    return pytestconfig.rootpath

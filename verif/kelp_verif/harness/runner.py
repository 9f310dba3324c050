# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""cocotb benches in Verilator: :func:`run_cocotb` builds an Amaranth component, runs a bench on it,
and raises AssertionError naming what failed.

Builds are cached by content in ``build/cocotb/<name>-<hash>/``; the hash covers the Verilog text,
every other source, the arguments and the tools' versions. One lock per build directory makes
concurrent runs safe; every run has its own directory below ``runs/``, removed when it passes
(unless it leaves waves) and kept, and named in the error, when it fails.

Inside a bench, :func:`bench_params` returns what the test passed as ``params`` and :func:`record`
hands figures back to it.
"""

import contextlib
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kelp_hw.export import passes, tools
from kelp_hw.export.verilog import macro_sources, to_verilog
from kelp_rtl.verilator import (
    QUICK_OPT,
    VERILATOR_ARGS,
    call,
    make,
    split_args,
    tail,
)

from .covered import COVERAGE_ARGS, COVERAGE_OPT, covering, leave_coverage, leave_figures
from .seeds import wanted

__all__ = [
    "BenchResult",
    "Model",
    "bench_params",
    "made",
    "record",
    "run_cocotb",
]

_PARAMS = "KELP_BENCH_PARAMS"
_RECORD = "KELP_BENCH_RECORD"
# What a run leaves in its directory.
_RESULTS, _LOG = "results.xml", "sim.log"
_COVERAGE_SLOWS = 8  #: times, at most
_SMALL_OPT = "-O0"


@dataclass(frozen=True)
class BenchResult:
    """What a passed bench leaves behind."""

    seed: int
    tests: tuple[str, ...]
    build_dir: Path
    run_dir: Path
    waves: Path | None
    records: dict = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Model:
    """What a simulation model holds beside its component.

    ``sources`` is more Verilog; models of the SRAM macros in ``hw/kelp_hw/macros/`` are added by
    themselves. ``public`` are the signals and memories below the top that the bench reads or
    deposits into, as (module, name); both may hold ``*``. The words of all SRAM macros are
    ``("kelp_sram", "words")``. Every one costs speed. ``build_args`` are more Verilator arguments;
    ``name`` is what the build's directory is called, by default after the component. ``opt`` is the
    C++ compiler's: by default ``-O0`` for a model of one C++ file, which is compiled in a third of
    the time and whose bench, bound by Python, takes a tenth to a quarter more; a bench of 50 000
    cycles or more gains by ``QUICK_OPT``, which large models are compiled with.
    """

    sources: Iterable[Path | str] = ()
    public: Iterable[tuple[str, str]] = ()
    build_args: Sequence[str] = ()
    name: str | None = None
    opt: str | None = None


@functools.cache
def made(block, **parameters):
    """``block(**parameters)``, one object for equal parameters, so that tests which take the same
    component elaborate it once."""
    return block(**parameters)


def run_cocotb(
    component,
    *,
    bench: str,
    test: str | Sequence[str] | None = None,
    seed: int | None = None,
    params: Mapping[str, object] | None = None,
    waves: bool = False,
    model: Model = Model(),
    timeout_s: float = 600,
) -> BenchResult:
    """Run the cocotb tests of the module ``bench`` on ``component`` in Verilator.

    Parameters
    ----------
    component
        An Amaranth component with a signature, or Verilog text whose top module is called ``top``.
    bench
        Importable name of the bench module, e.g. ``"kelp_verif.bench_ema"``.
    test
        Name or names of single cocotb tests in it; all of them by default.
    seed
        Seeds Verilator's initial values and cocotb, which derives each test's
        ``cocotb.RANDOM_SEED`` from it. By default ``$KELP_SEED``, of which ``fresh`` stands for a
        new one each time (``make soak``); without it one that follows from the bench, its tests and
        their parameters alone, so that `make test` says the same of the same sources twice. Printed
        always.
    params
        Anything JSON can carry, returned by :func:`bench_params` in the bench.
    waves
        Leave ``dump.vcd`` in the run directory. A separate build, since tracing slows the model.
    model
        What the model holds beside the component.
    timeout_s
        Wall-clock limit of the simulation, after which it is killed and the run has failed.

    Raises :class:`AssertionError` naming the failed tests, the seed and the run directory; a
    failing RTL ``Assert`` is one such failure.
    """
    verilog = component if isinstance(component, str) else to_verilog(component, checked=True)
    # Everything is random until the first edge of start_clock(), 1 ns after the start, has seen the
    # reset.
    verilog = verilog.replace(" assert (", " if ($time > 1) assert (")
    name = model.name or (
        bench.rpartition(".")[2] if isinstance(component, str) else type(component).__name__
    )
    covered = covering()
    if covered:
        timeout_s *= _COVERAGE_SLOWS
    build_dir = _built(name, verilog, model, covered=covered, waves=waves)
    if seed is None:
        seed = _default_seed(bench, test, params)
    print(f"{name}: bench {bench}, seed {seed} (KELP_SEED={seed} repeats it)")
    said = _said(bench, test, params)
    (build_dir / "runs").mkdir(exist_ok=True)
    prefix = f"{bench.rpartition('.')[2]}-{seed}-"
    run_dir = Path(tempfile.mkdtemp(prefix=prefix, dir=build_dir / "runs"))

    def simulate(folder: Path, timeout_s: float | None = timeout_s, **more: str) -> int | None:
        return _simulate(build_dir, folder, seed, said | more, waves, timeout_s)

    run_dir, code = passes.installed().bench(verilog, simulate, run_dir)
    passed, problems = _ended(run_dir, code, bench, _names(test), timeout_s)
    if problems:
        raise AssertionError(
            f"{bench} failed with seed {seed}:\n{problems}\nrun directory {run_dir}\n"
            + tail(run_dir / _LOG)
        )
    result = BenchResult(
        seed=seed,
        tests=tuple(passed),
        build_dir=build_dir,
        run_dir=run_dir,
        waves=run_dir / "dump.vcd" if waves else None,
        records=_records(run_dir),
    )
    if covered:
        data = run_dir / "coverage.dat"
        leave_coverage(name, bench, build_dir / "top.v", data, result.records)
    else:
        leave_figures(bench, result.records)
    if not waves:
        shutil.rmtree(result.run_dir)
    return result


def _built(name: str, verilog: str, model: Model, *, covered: bool, waves: bool) -> Path:
    """The directory that the model is built in."""
    ports = _ports_of(verilog, "top")
    files = [*macro_sources(verilog), *(Path(source).resolve() for source in model.sources)]
    # cocotb must see the ports and nothing else: publishing every signal (--public-flat-rw) makes
    # large designs unbuildable.
    visible = [*(("top", port) for port in ports), *model.public]
    control = "`verilator_config\n" + "".join(
        f'public_flat_rw -module "{module}" -var "{var}"\n' for module, var in visible
    )
    args = [*VERILATOR_ARGS, *model.build_args, *(COVERAGE_ARGS if covered else ())]
    split = split_args(verilog)
    opt = model.opt or (_SMALL_OPT if split else QUICK_OPT)
    if covered:
        opt = COVERAGE_OPT
    key = tools.digest(
        verilog,
        control,
        *(f.read_text(encoding="utf-8") for f in files),
        *args,
        *split,
        opt,
        str(waves),
        tools.version_key("verilator", "cocotb"),
    )
    build_dir = tools.build_place("cocotb", f"{name}-{key}")
    with tools.lock(build_dir.with_name(f"{build_dir.name}.lock")):
        stamp = build_dir / "built"
        if not (stamp.is_file() and stamp.read_text(encoding="utf-8") == key):
            tools.write_if_changed(build_dir / "top.v", verilog)
            tools.write_if_changed(build_dir / "top.vlt", control)
            _build_bench(build_dir, [build_dir / "top.v", *files], args, split, opt, waves)
            tools.write_if_changed(stamp, key)
    return build_dir


def _names(test) -> list[str]:
    """The tests that were asked for; none stands for all."""
    return [test] if isinstance(test, str) else list(test or ())


def _said(bench, test, params) -> dict[str, str]:
    """What cocotb and the bench are told in their environment."""
    said = {"COCOTB_TEST_MODULES": bench, _PARAMS: json.dumps(dict(params or {}))}
    if names := _names(test):
        said["COCOTB_TEST_FILTER"] = r"\.(" + "|".join(map(re.escape, names)) + ")$"
    return said


def _default_seed(bench, test, params) -> int:
    if (seed := wanted()) is not None:
        return seed
    return 1 + int(
        tools.digest(bench, str(test), json.dumps(params, sort_keys=True, default=str))[:7], 16
    )


def bench_params() -> dict:
    """In a bench: the ``params`` that :func:`run_cocotb` was given."""
    return json.loads(os.environ.get(_PARAMS, "{}"))


def record(**figures) -> None:
    """In a bench: hand figures that JSON can carry back to the caller, as ``BenchResult.records``;
    a later value of a name wins."""
    with open(os.environ[_RECORD], "a", encoding="utf-8") as handle:
        handle.write(json.dumps(figures) + "\n")


def _ports_of(verilog: str, top: str) -> list[str]:
    header = re.search(rf"^module {top}\((.*?)\);", verilog, re.MULTILINE | re.DOTALL)
    if header is None:
        raise ValueError(f"the Verilog has no module {top!r}")
    return [port.strip() for port in header[1].split(",") if port.strip()]


def _build_bench(
    build_dir: Path,
    files: Sequence[Path],
    args: Sequence[str],
    split: Sequence[str],
    opt: str,
    waves: bool,
) -> None:
    from cocotb_tools.runner import Verilator

    class PortsOnly(Verilator):
        """cocotb's runner, minus --public-flat-rw, plus a log, shared parts and our tools on
        PATH."""

        def _build_command(self):
            verilate, _ = super()._build_command()
            verilate.remove("--public-flat-rw")
            return [verilate]

        def _simulator_in_path_build_only(self):
            self.executable = tools.find("verilator")

        def _execute(self, cmds, cwd):
            (verilate,) = cmds
            call(verilate, cwd=build_dir, log=build_dir / "build.log")
            make(
                build_dir,
                key=[f"trace={waves}", *args],
                opt=opt,
                runtime_opt=QUICK_OPT,
                one_file=bool(split),
                vpi=True,
            )

    PortsOnly().build(
        sources=[*files, build_dir / "top.vlt"],
        hdl_toplevel="top",
        build_dir=build_dir,
        build_args=[*args, *split],
        timescale=("1ns", "1ps"),
        waves=waves,
    )


def _simulate(build_dir, folder, seed, said, waves, timeout_s) -> int | None:
    """The simulator's exit code, or nothing where it was killed. All files that it leaves are in
    its current directory, `folder`."""
    import cocotb_tools.config
    import find_libpython

    libpython = find_libpython.find_libpython()
    if libpython is None:
        raise tools.ToolError(
            "no shared libpython for this Python: apt-get install libpython3-dev, or use a "
            + "Python built with --enable-shared"
        )
    env = tools.tool_env() | {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "PYGPI_PYTHON_BIN": sys.executable,
        "GPI_USERS": f"{libpython};{cocotb_tools.config.pygpi_entry_point()}",
        "COCOTB_TOPLEVEL": "top",
        "TOPLEVEL_LANG": "verilog",
        "COCOTB_RANDOM_SEED": str(seed),
        "PYTHONHASHSEED": "0",  # the order of a set is part of what a seed repeats
        "COCOTB_RESULTS_FILE": _RESULTS,
        "COCOTB_TRUST_INERTIAL_WRITES": "1",
        "COCOTB_ANSI_OUTPUT": "0",
        _RECORD: "records.jsonl",
        **said,
    }
    # A run in pytest must not make cocotb think that pytest runs inside the simulator too.
    env.pop("PYTEST_CURRENT_TEST", None)
    command = [
        str(build_dir / "top"),
        *(["--trace"] if waves else []),
        f"+verilator+seed+{seed}",
        "+verilator+rand+reset+2",
    ]
    try:
        with open(folder / _LOG, "w", encoding="utf-8") as handle:
            return subprocess.run(
                command,
                cwd=folder,
                env=env,
                stdout=handle,
                stderr=subprocess.STDOUT,
                check=False,
                timeout=timeout_s,
            ).returncode
    except subprocess.TimeoutExpired:
        return None


def _ended(run_dir, code, bench, names, timeout_s) -> tuple[list[str], str]:
    """Tests that passed in a run of `bench` that ended with `code`, and what went wrong; a test of
    `names` that did not run has."""
    passed, problems = _read_results(run_dir / _RESULTS)
    absent = set(names) - {name.rpartition(".")[2] for name in passed}
    if code is None:
        problems.append(f"killed: the simulation did not end (limit {timeout_s} s)")
    elif code:
        # An RTL Assert stops Verilator on the spot, before cocotb can write its results.
        problems.append(
            f"the simulator stopped with exit code {code}: {_assertion(run_dir / _LOG)}"
        )
    elif not problems and (absent or not passed):
        problems.append(f"no test ran: module {bench!r}, test {sorted(absent) or None}")
    return passed, "\n".join(f"  {problem}" for problem in problems)


def _records(run_dir: Path) -> dict:
    records: dict = {}
    with contextlib.suppress(FileNotFoundError):
        for line in (run_dir / "records.jsonl").read_text(encoding="utf-8").splitlines():
            records |= json.loads(line)
    return records


def _assertion(log: Path) -> str:
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        if "Assertion failed" in line or "%Error" in line:
            return line.strip()
    return "see its log below"


def _read_results(path: Path) -> tuple[list[str], list[str]]:
    """The names of passed and failed tests in a cocotb results file; nothing of either when there
    is none."""
    passed, failed = [], []
    try:
        root = xml.etree.ElementTree.parse(path).getroot()
    except (FileNotFoundError, xml.etree.ElementTree.ParseError):
        return passed, failed
    for case in root.iter("testcase"):
        name = f"{case.get('classname')}.{case.get('name')}"
        problem = next((child for child in case if child.tag in ("failure", "error")), None)
        if problem is not None:
            reason = (
                problem.get("message") or problem.get("error_msg") or (problem.text or "").strip()
            )
            failed.append(f"{name}: {reason.splitlines()[-1] if reason else 'failed'}")
        elif case.find("skipped") is None:
            passed.append(name)
    return passed, failed

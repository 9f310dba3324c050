# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Proofs: an Amaranth component and its ``Assert``, ``Assume`` and ``Cover`` statements, through
sby and z3.

A *spec* is a component that contains the block to be proved and states, with ``Assert`` and
``Assume``, what must hold of it. Its input ports are free, which means that the solver tries every
value in every cycle; so are ``AnySeq`` and, constant over time, ``AnyConst`` of
:mod:`amaranth.asserts`. :func:`prove` takes a spec, or the block itself where its own Asserts are
the property, and returns a :class:`ProofResult`. It never raises because a property is false, so
that a test can demand that a planted bug be caught::

    assert prove(FIFOContract(), depth=12).passed
    result = prove(FIFOContract(mutant(FIFO, "level + 1", "level + 2")), depth=12, mode="bmc")
    assert result.status == "FAIL" and result.trace.is_file()

The list of all proofs is :mod:`kelp_verif.formal.proofs`.
"""

import hashlib
import inspect
import re
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from amaranth.back import rtlil
from amaranth.hdl import ClockDomain, Const, Elaboratable, Module
from amaranth.lib import wiring

from kelp_hw.export import tools
from kelp_hw.export.rtlil import component_ports
from kelp_hw.export.stream_rule import Checked
from kelp_hw.export.verilog import macro_sources

__all__ = ["ProofResult", "Solver", "mutant", "prove"]

_MODES = ("prove", "bmc", "cover")
#: Levels whose input streams the solver drives: the top, the spec, the block in the spec.
_DRIVEN = 3
_STATUSES = ("PASS", "FAIL", "UNKNOWN", "TIMEOUT")
_SCRIPT = """\
[options]
mode {mode}
depth {depth}
timeout {timeout}
append {append}
{options}[engines]
{engine}
[script]
{macros}
read_rtlil top.il
{rule}{free}prep -flatten -top top
[files]
top.il
{files}
"""


#: What registers begin with, and what memories hold, is left to the solver.
_FREE = """\
setattr -unset init top.spec.{0}/w:* top.spec.{0}.*/w:*
delete top.spec.{0}/t:$meminit_v2 top.spec.{0}.*/t:$meminit_v2
"""


@dataclass(frozen=True)
class ProofResult:
    """What the solver said.

    ``status`` is ``PASS`` (mode ``prove``: holds in every reachable state; ``bmc``: holds for
    ``depth`` cycles; ``cover``: every Cover was reached), ``FAIL`` (a counterexample, or a Cover
    that cannot be reached, in ``depth`` cycles), ``UNKNOWN`` (induction does not close at this
    depth, no counterexample known) or ``TIMEOUT``. ``traces`` are VCD files: the counterexample, or
    one witness per Cover; ``reasons`` names each Assert that failed or Cover that was not reached.
    ``cpu_seconds`` tell more than ``seconds`` on a busy machine.
    """

    name: str
    mode: str
    depth: int
    status: str
    seconds: float
    cpu_seconds: float
    log: Path
    traces: tuple[Path, ...]
    reasons: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return self.status == "PASS"

    @property
    def trace(self) -> Path | None:
        """The first trace, where there is one."""
        return self.traces[0] if self.traces else None

    def __str__(self) -> str:
        lines = [
            f"{self.name}: {self.mode}, depth {self.depth}: {self.status} in "
            + f"{self.seconds:.1f} s (log {self.log})",
            *self.reasons,
        ]
        if self.status == "FAIL":
            lines += [f"trace {trace}" for trace in self.traces]
        return "\n  ".join(lines)


def mutant(cls: type, old: str, new: str) -> type:
    """`cls` with one piece of its source replaced: a planted bug.

    `old` is compared token by token, so that line breaks, comments and the formatter's trailing
    commas do not matter. A ValueError when it does not stand in the source exactly once.
    """
    text = vars(cls).get("_source") or inspect.getsource(cls)
    tokens, wanted = _tokens(text), [token for token, _, _ in _tokens(old)]
    found = [
        at
        for at in range(len(tokens) - len(wanted) + 1)
        if [token for token, _, _ in tokens[at : at + len(wanted)]] == wanted
    ]
    if len(found) != 1:
        raise ValueError(
            f"{cls.__name__}: {old!r} occurs {len(found)} times in its source; "
            + "a planted bug replaces what occurs once"
        )
    module = sys.modules[cls.__module__]
    # The rest of its module as it is, so that layouts and helpers are the very same.
    space = dict(vars(module))
    begin, end = tokens[found[0]][1], tokens[found[0] + len(wanted) - 1][2]
    text = text[:begin] + new + text[end:]
    exec(compile(text, f"{Path(module.__file__).stem}_mutant.py", "exec"), space)
    space[cls.__name__]._source = text  # for a mutant of the mutant
    return space[cls.__name__]


_TOKEN = re.compile(
    r"""\s+|\#[^\n]*|,(?=(?:\s|\#[^\n]*\n)*[)\]}])"""  # skipped: blanks, comments, last commas
    + r"""|([rfb]?"(?:[^"\\\n]|\\.)*"|[rfb]?'(?:[^'\\\n]|\\.)*'|\w+|[^\w\s])"""
)


def _tokens(text: str) -> list[tuple[str, int, int]]:
    """(token, begin, end) of each token of Python source, or of any piece of it."""
    return [(m[1], m.start(), m.end()) for m in _TOKEN.finditer(text) if m[1]]


def _children_cpu() -> float:
    """CPU seconds of every process that this one has started and that has ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


class _Top(Elaboratable):
    """The spec with its reset tied off (or free): registers start from their initial values either
    way."""

    def __init__(self, spec, *, free_reset):
        self.spec = spec
        self.sync = ClockDomain("sync")
        self.free_reset = free_reset

    def elaborate(self, platform):
        m = Module()
        m.domains.sync = self.sync
        m.submodules.spec = self.spec
        if not self.free_reset:
            m.d.comb += self.sync.rst.eq(Const(0))
        return m


@dataclass(frozen=True, kw_only=True)
class Solver:
    """An engine line as sby takes it, and the seconds after which it is given up. With
    `stream_rule` it looks at no other Assert than those of the stream rule. With `trusted` it
    assumes what the blocks in the spec assert. Registers and memories of the blocks in the spec
    that are called `any_state` hold anything at first."""

    engine: str = "smtbmc z3"
    timeout_s: float = 600
    stream_rule: bool = False
    trusted: bool = False
    any_state: str = ""


def prove(
    component,
    *,
    depth: int,
    mode: str = "prove",
    name: str | None = None,
    solver: Solver = Solver(),
    free_reset: bool = False,
    append: int = 0,
    skip: int = 0,
) -> ProofResult:
    """Prove the ``Assert`` statements inside ``component``, or reach its ``Cover`` statements.

    Parameters
    ----------
    component
        An elaboratable in the ``sync`` domain alone. If it has a signature, its input ports are
        free.
    depth
        Cycles of the base case and of the induction (``prove``), or of the search (``bmc``,
        ``cover``).
    mode
        ``"prove"`` by k-induction, ``"bmc"`` bounded, ``"cover"``.
    name
        Of the directory; the component's class by default.
    solver
        What looks for it; after its time the result is ``TIMEOUT``.
    free_reset
        Let the solver pull the reset at any time; otherwise the reset is never pulled.
    append
        Cycles shown after the one that fails.
    skip
        Mode ``bmc`` only: do not look at the first cycles. Quicker, where a bug is known to need
        more of them than that.
    """
    if mode not in _MODES:
        raise ValueError(f"mode {mode!r}: one of {', '.join(_MODES)}")
    if skip and (mode != "bmc" or not 0 < skip < depth):
        raise ValueError(f"skip {skip}: in mode 'bmc' only, and less than the depth")
    if depth < 1:
        raise ValueError(f"depth {depth}: at least 1")
    name = name or type(component).__name__
    design = _design(component, name, mode, free_reset)
    models = macro_sources(design)
    script = _SCRIPT.format(
        mode=mode,
        depth=depth,
        timeout=max(1, round(solver.timeout_s)),
        append=append,
        options=f"skip {skip}\n" if skip else "",
        engine=solver.engine,
        rule=("chformal -assert -remove * *stream_rule* %d\n" if solver.stream_rule else "")
        + ("chformal -assert2assume top.spec.*\n" if solver.trusted else ""),
        free=_FREE.format(solver.any_state) if solver.any_state else "",
        macros="\n".join(f"read_verilog {model.name}" for model in models),
        files="\n".join(map(str, models)),
    )
    sources = design + script + "".join(model.read_text(encoding="utf-8") for model in models)
    key = hashlib.sha256(sources.encode()).hexdigest()[:12]
    directory = tools.build_root() / "formal" / f"{name}-{mode}-{key}"
    with tools.lock(directory.with_name(f"{directory.name}.lock")):
        directory.mkdir(exist_ok=True)
        (directory / "top.il").write_text(design, encoding="utf-8")
        (directory / "proof.sby").write_text(script, encoding="utf-8")
        started, used = time.monotonic(), _children_cpu()
        log = _solved(directory)
        seconds, cpu_seconds = time.monotonic() - started, _children_cpu() - used
        status, traces, reasons = _outcome(name, directory, log)
    result = ProofResult(name, mode, depth, status, seconds, cpu_seconds, log, traces, reasons)
    print(result)
    return result


def _design(component, name: str, mode: str, free_reset: bool) -> str:
    """``component`` as RTLIL; ValueError where it has nothing of what ``mode`` looks for."""
    top = _Top(component, free_reset=free_reset)
    ports = [top.sync.clk, *([top.sync.rst] if free_reset else [])]
    if isinstance(getattr(component, "signature", None), wiring.Signature):
        ports += [value for value, _ in component_ports(component).values()]
    # With source positions, so that sby names the line of the Assert that failed.
    design = rtlil.convert(Checked(top, driven=_DRIVEN), name="top", ports=ports)
    flavour = "cover" if mode == "cover" else "assert"
    if f'parameter \\FLAVOR "{flavour}"' not in design:
        # Such a proof would pass and mean nothing.
        raise ValueError(
            f"{name}: mode {mode!r} needs at least one {flavour.capitalize()} in the design, "
            + "found none"
        )
    return design


def _solved(directory: Path) -> Path:
    """sby has run there; its log."""
    log = directory / "sby.log"
    with open(log, "w", encoding="utf-8") as output:
        subprocess.run(
            [tools.find("sby"), "-f", "proof.sby"],
            cwd=directory,
            env=tools.tool_env(),
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    return log


def _outcome(name: str, directory: Path, log: Path):
    """Status, traces and reasons, as a :class:`ProofResult` has them."""
    text = log.read_text(encoding="utf-8")
    status = re.search(r"DONE \((\w+), rc=\d+\)\s*$", text)
    if status is None or status[1] not in _STATUSES:
        raise tools.ToolError(
            f"{name}: the proof did not run, log {log}:\n" + "\n".join(text.splitlines()[-30:])
        )
    # The induction's trace starts in a state that may be unreachable: it is a hint, not a
    # counterexample.
    traces = [
        path
        for path in sorted((directory / "proof").glob("engine_*/trace*.vcd"))
        if "induct" not in path.name
    ]
    reasons = re.findall(
        r"summary:\s+(failed assertion .*|unreached cover .*)$", text, re.MULTILINE
    )
    return status[1], tuple(traces), tuple(reasons)

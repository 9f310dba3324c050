# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""``kelp nightly``: ``make test`` and what it leaves out, part by part, and a record of how each
ended."""

import json
import re
import resource
import subprocess
import time
from collections.abc import Iterable
from datetime import date
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from kelp_hw.export.tools import build_root, call, commit
from kelp_spec.files import write_whole

from .output import UserError, console, show, writable

__all__ = ["PARTS", "register", "runs_markdown"]

#: A seed of its own for every bench, which prints it; with the fixed ones, what passed once passes.
_FRESH = "KELP_SEED=fresh"

#: `make slow` by rooms, so that each part fits into an hour of two cores; together they are all of
#: tests/.
_ENDPOINT = "tests/hw/test_*.py"
_TRAFFIC = tuple(f"tests/hw/test_{name}.py" for name in ("endpoint", "progress", "storms"))
_COHERENT, _CACHING = "tests/verif/coherence", "test_endpoint_*.py"
_BOARDS = "tests/fpga"
_SLOW = {
    "slow-blocks": (f"tests/hw --ignore-glob='{_ENDPOINT}'", "blocks: every format, planted bugs"),
    "slow-traffic": (" ".join(_TRAFFIC), "the endpoint under traffic: storms, soaks, progress"),
    "slow-faults": (
        "tests/hw --ignore-glob='tests/hw/*/*' "
        + " ".join(f"--ignore={path}" for path in _TRAFFIC),
        "the endpoint: flips, faults, isolation, CXL.io",
    ),
    "slow-coherent": (f"{_COHERENT}/{_CACHING}", "hosts that cache: weathers, losses, sizes"),
    "slow-strangers": (
        f"{_COHERENT} --ignore-glob='{_COHERENT}/{_CACHING}'",
        "hosts that cache beside others: registers written, choices, resets",
    ),
    "slow-verif": (
        f"tests/verif --ignore={_COHERENT}",
        "harnesses: simulated boards, netlists, flips",
    ),
    "slow-boards": (_BOARDS, "boards: place and route, memories, self-tests"),
    "slow-rest": (
        f"tests --ignore=tests/hw --ignore=tests/verif --ignore={_BOARDS}",
        "recordings, lab, library, command",
    ),
}

#: Part → (a target of the Makefile, its variables, what it checks). A target that the Makefile does
#: not have yet is recorded as *not there*.
PARTS: dict[str, tuple[str, tuple[str, ...], str]] = {
    "test": ("test", (), "every test but the slow ones, quick proofs among them"),
    **{
        part: ("slow", (_FRESH, f"ARGS={where}"), f"tests that take more than a minute of {what}")
        for part, (where, what) in _SLOW.items()
    },
    "lint-configs": ("lint-configs", (), "the Verilog of every named configuration under -Wall"),
    "prove": ("prove", (), "every proof, its covers and every bug planted for it"),
    "soak": (
        "soak",
        ("ROUNDS=1", "ARGS=-m 'not slow and not prove'"),
        "the tests of `make test` with fresh seeds",
    ),
    "bench": ("bench", (), "every figure of the specification against its bar"),
    "coverage": ("coverage", (), "cover points, lines and control signals that benches reach"),
    "mutate": ("mutate", (), "mutants of each block that its bench kills"),
    "lockstep-full": ("lockstep-full", (), "a whole recording in lock-step, RTL against golden"),
}
_PASSED, _FAILED, _NOT_THERE = "passed", "failed", "not there"
_NO_RULE = 2  #: what `make -n` exits with where there is no rule for a target


def runs_markdown(runs: Iterable[dict]) -> str:
    """The rows of `build/nightly.json` as a table, each with the command that it ran; a part that
    never ran is listed as such. The commit of a run stays in the file."""
    of = {run["part"]: run for run in runs}
    lines = [
        "| part | checks | last run | result | CPU minutes |",
        "|---|---|---|---|---|",
    ]
    for part, (target, variables, what) in PARTS.items():
        run = of.get(part)
        cells = (run["date"], _told(run), f"{run['cpu_s'] / 60:.0f}") if run else ("never", "", "")
        command = run["command"] if run else _line(target, variables)
        lines.append(f"| `{command}` | {what} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _line(target: str, variables: Iterable[str]) -> str:
    """What to type to run a part alone."""
    return f"make {target}" + "".join(
        f' {name}="{value}"' for name, value in (given.split("=", 1) for given in variables)
    )


def _told(run: dict) -> str:
    return f"{run['result']}: {run['said']}" if run["said"] else run["result"]


def register(app: typer.Typer) -> None:
    @app.command()
    def nightly(
        parts: Annotated[
            list[str] | None,
            typer.Argument(help=f"Of {', '.join(PARTS)}; all when left out."),
        ] = None,
        output: Annotated[Path, typer.Option("-o", help="Where the results go, as JSON.")] = Path(
            "build/nightly.json"
        ),
    ) -> None:
        """Run every part to its end whatever the others did, record date, commit and result, and
        exit 1 if one failed. Parts that are not run keep what is recorded of them."""
        if unknown := [part for part in parts or () if part not in PARTS]:
            raise UserError(f"{unknown[0]!r} is no part; legal: {', '.join(PARTS)}")
        if not Path("Makefile").is_file():
            raise UserError("kelp nightly runs targets of the Makefile: call it in a checkout")
        writable(output)
        _recorded(output)  # refuses another file before what are hours
        done = []
        for part in parts or PARTS:
            console.print(Text.assemble((part, "bold"), f": {_line(*PARTS[part][:2])}"))
            done.append(_run(part))
            console.print(f"  {_told(done[-1])}")
            ran = {run["part"]: run for run in [*_recorded(output), *done]}
            listed = [ran[part] for part in PARTS if part in ran]
            write_whole(output, json.dumps(listed, indent=2, ensure_ascii=False) + "\n")
        _show(done)
        raise typer.Exit(1 if any(run["result"] == _FAILED for run in done) else 0)


def _recorded(output: Path) -> list[dict]:
    if output.is_char_device():  # /dev/full has no end
        return []
    try:
        runs = json.loads(output.read_text(encoding="utf-8"))
        return [run for run in runs if run["part"] in PARTS]
    except FileNotFoundError:
        return []
    except (ValueError, TypeError, KeyError):
        raise UserError(f"{output} is no record of kelp nightly; remove it or use -o") from None


def _run(part: str) -> dict:
    """How `make part` ends; what it says goes to a log below build/nightly/."""
    target, variables, _ = PARTS[part]
    # The ARGS of `make nightly ARGS="prove bench"` reach every make below it: they are no part's.
    command = ["make", "--no-print-directory", target, "ARGS=", *variables]
    state = {"date": date.today().isoformat(), "commit": commit()}
    record = {"part": part, "command": _line(target, variables), **state}
    asked = subprocess.run(["make", "-n", *command[1:]], capture_output=True, text=True)
    if asked.returncode == _NO_RULE and f"'{target}'" in asked.stderr:
        return record | {"result": _NOT_THERE, "said": "", "cpu_s": 0, "wall_s": 0}
    log = build_root() / "nightly" / f"{part}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    began, before = time.monotonic(), _cpu_seconds()
    with open(log, "w", encoding="utf-8") as handle:
        code = call(command, stdout=handle, stderr=subprocess.STDOUT)
    return record | {
        "result": _FAILED if code else _PASSED,
        "said": _last_words(log),
        "cpu_s": round(_cpu_seconds() - before),
        "wall_s": round(time.monotonic() - began),
    }


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _last_words(log: Path) -> str:
    """The line of a log that sums it up: pytest's last, else the last that is not make's."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    said = [line.strip() for line in lines if line.strip() and not line.startswith("make")]
    sums = [line for line in said if re.fullmatch(r"=+ .*\d+ \w+.* in .*=+", line)]
    return (sums or said or [""])[-1].strip("= ")


def _show(runs: list[dict]) -> None:
    table = Table(title="KELP nightly", title_justify="left")
    for column in ("part", "result", "said", "CPU min", "log"):
        table.add_column(column, overflow="fold")
    style = {_PASSED: "green", _FAILED: "bold red", _NOT_THERE: "yellow"}
    for run in runs:
        result = Text(run["result"], style[run["result"]])
        log = "" if run["result"] == _NOT_THERE else f"build/nightly/{run['part']}.log"
        table.add_row(run["part"], result, run["said"], f"{run['cpu_s'] / 60:.1f}", log)
    show(table)

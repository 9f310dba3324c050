# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Runs the benches on the mutants and says what was noticed: ``python -m kelp_verif.mutation.hunt``
(`make mutate`), into build/mutate.json. A run may be made in parts: what was recorded of other
blocks stays, and ``--resume`` leaves out what is recorded with the same seed and count."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import date
from importlib import import_module
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from kelp_hw.export import tools
from kelp_spec.files import write_whole

from .benches import BENCHES, Bench
from .equivalence import equivalent, equivalent_source
from .netlist import Mutant
from .plugin import Job, end_with_parent
from .source import SourceMutant

__all__ = ["BAR", "hunt", "main", "markdown", "score"]

#: Of the mutants that change something, the part that the block's own bench must notice.
BAR = 0.95


def hunt(
    bench: Bench, *, count: int, seed: int, jobs: int, prove: bool = True, minutes: float = 0
) -> dict[str, dict]:
    """Block → its figures: `mutants` that a test was begun for, `killed`, `equivalent` (proved;
    none is where not `prove`), `undecided` (the rest, which counts as alive) and `alive`, where
    they are. After `minutes` of tests, if it is not 0, what no test has killed is undecided. A
    block without such mutants is left out.

    Raises
    ------
    ToolError
        A test fails without a mutant, or none came to its end.
    """
    root = tools.build_root() / "mutate"
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root) as scratch, tools.lock(root / "lock"):
        out = Path(scratch) / "mutants.json"
        job = Job(bench.classes, bench.level, count, seed, jobs, str(out))
        env = os.environ | {
            "KELP_MUTATION": json.dumps(asdict(job)),
            "KELP_BUILD": str(root),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        env.pop("KELP_SEED", None)  # a seed draws mutants; benches keep theirs
        command = [sys.executable, "-m", "pytest", "-v", "-x", "-p", "kelp_verif.mutation.plugin"]
        command += ["-p", "no:cacheprovider", "-m", "not slow", "-k", "not planted"]
        # A test goes on until its last mutant has ended, however long each of them takes.
        command += ["--timeout", "0", "-o", "faulthandler_timeout=0", *bench.tests]
        log = root / f"{bench.name}.log"
        with open(log, "w", encoding="utf-8") as handle, suppress(subprocess.TimeoutExpired):
            done = subprocess.run(
                command,
                env=env,
                stdout=handle,
                stderr=subprocess.STDOUT,
                check=False,
                timeout=minutes * 60 if minutes else None,
                preexec_fn=end_with_parent,
            )
            if done.returncode:
                raise tools.ToolError(
                    f"the tests of {bench.name} fail with no mutant:\n{log.read_text()[-4000:]}"
                )
        if not out.is_file():
            raise tools.ToolError(f"no test of {bench.name} came to its end, see {log}")
        found = json.loads(out.read_text(encoding="utf-8"))
        for runs in root.glob("cocotb/*/runs"):
            shutil.rmtree(runs, ignore_errors=True)
    figures = {block: _figures(block, bench, found, prove) for block in bench.classes}
    return {block: each for block, each in figures.items() if each["mutants"]}


def _figures(block: str, bench: Bench, found: dict, prove: bool) -> dict:
    mine = [
        m for m in found["mutants"] if m["block"] == block and m["tried"] and not m["stillborn"]
    ]
    alive = [m for m in mine if not m["killer"]]
    proved: set[int] = set()
    if prove and alive and block in found["texts"]:
        places = [Mutant(m["number"], block, m["module"], m["command"]) for m in alive]
        proved = equivalent(found["texts"][block], places)
    elif prove and alive and "what" in alive[0]:
        fields = SourceMutant.__dataclass_fields__
        places = [SourceMutant(**{name: m[name] for name in fields}) for m in alive]
        kind = getattr(import_module(bench.classes[block]), block)
        proved = {place.number for place in places}
        for variant in bench.variants:
            left = [place for place in places if place.number in proved]
            proved &= equivalent_source(kind, left, sizes=bench.sizes | variant)
    return {
        "mutants": len(mine),
        "killed": len(mine) - len(alive),
        "equivalent": len(proved),
        "undecided": len(alive) - len(proved),
        "alive": [m["site"] for m in alive if m["number"] not in proved],
    }


def score(figures: dict) -> float:
    """Of the mutants that change something, the part that was noticed; none of a block that no test
    simulates, which has no mutants."""
    if not figures["mutants"]:
        return 0.0
    told = figures["mutants"] - figures["equivalent"]
    return figures["killed"] / told if told else 1.0


def table(blocks: dict[str, dict]) -> Table:
    """The blocks of `build/mutate.json`."""
    rows = Table(title="mutants that the block's own bench notices")
    heads = ("block", "room", "mutants", "killed", "equivalent", "undecided", "score", "last run")
    for head in heads:
        rows.add_column(head, justify="left" if head in heads[:2] else "right")
    for bench in BENCHES:
        for block in bench.classes:
            if not (figures := blocks.get(block)):
                continue
            counts = [str(figures[key]) for key in ("mutants", "killed", "equivalent", "undecided")]
            ran = f"{figures['date']} {figures['commit']}, seed {figures['seed']}"
            rows.add_row(block, bench.name, *counts, f"{score(figures):.1%}", ran)
    return rows


def markdown(blocks: dict[str, dict]) -> str:
    """The blocks of `build/mutate.json` as a table, and a line that names those that never ran."""
    lines = [
        "| block | mutants | killed | equivalent | undecided | score | last run | seed |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for bench in BENCHES:
        for block in bench.classes:
            if not (f := blocks.get(block)):
                continue
            counts = [str(f[key]) for key in ("mutants", "killed", "equivalent", "undecided")]
            ran = (f["date"], str(f["seed"]))
            lines.append(f"| `{block}` | {' | '.join((*counts, f'{score(f):.1%}', *ran))} |")
    return "\n".join([*lines, "", textwrap.fill(left(blocks, "`"), 120), ""])


def left(blocks: dict[str, dict], quote: str = "") -> str:
    """A sentence that names the blocks that have never run."""
    names = [f"{quote}{b}{quote}" for bench in BENCHES for b in bench.classes if b not in blocks]
    return f"Never run: {', '.join(names) or 'none'}."


def _recorded(path: Path, known: set[str]) -> dict[str, dict]:
    """Block → its figures, of those of `known` that `path` has."""
    blocks = json.loads(path.read_text(encoding="utf-8"))["blocks"] if path.is_file() else {}
    return {block: figures for block, figures in blocks.items() if block in known}


def main(
    only: list[str] = typer.Option([], help="rooms or blocks; all by default"),
    count: int = typer.Option(100, min=1, help="mutants of each block, at most"),
    seed: int = typer.Option(1, help="draws the sites"),
    jobs: int = typer.Option(2, min=1, help="processes side by side"),
    prove: bool = typer.Option(
        True, help="try to prove survivors equivalent; of a block with memories that takes minutes"
    ),
    minutes: float = typer.Option(0, help="for the tests of each bench, at most; 0: all of them"),
    resume: bool = typer.Option(
        False, help="leave out blocks that are recorded with this seed and as many mutants"
    ),
) -> None:
    """Would a block's bench notice, if the block were wrong?"""
    path, console = tools.build_root() / "mutate.json", Console()
    known = {bench.name for bench in BENCHES} | {b for bench in BENCHES for b in bench.classes}
    if unknown := set(only) - known:
        console.print(f"no room or block is called {', '.join(sorted(unknown))}; known: {known}")
        raise typer.Exit(2)
    try:
        blocks = _recorded(path, known)
        done = {b for b, f in blocks.items() if f["seed"] == seed and f["count"] >= count}
    except (AttributeError, KeyError, TypeError, ValueError):
        raise SystemExit(f"{path} is no record of make mutate; remove it") from None
    state = {
        "seed": seed,
        "count": count,
        "date": date.today().isoformat(),
        "commit": tools.commit(),
    }
    failed = False
    for bench in BENCHES:
        classes = [b for b in bench.classes if not only or b in only or bench.name in only]
        classes = [b for b in classes if not (resume and b in done)]
        if not classes:
            continue
        console.print(f"{bench.name}: {', '.join(classes)}")
        blocks_of = {f: tuple(c for c in cs if c in classes) for f, cs in bench.blocks.items()}
        chosen = replace(bench, blocks=blocks_of)
        try:
            found = hunt(chosen, count=count, seed=seed, jobs=jobs, prove=prove, minutes=minutes)
        except tools.ToolError as error:
            failed = True
            console.print(str(error), markup=False)
            continue
        with tools.lock(path.with_suffix(".lock")):  # another run may record other blocks
            blocks = _recorded(path, known)
            blocks |= {block: state | figures for block, figures in found.items()}
            write_whole(path, json.dumps({"blocks": blocks}, indent=2) + "\n")
    console.print(table(blocks), left(blocks), f"\n{path}", sep="\n")
    short = [b for b, figures in blocks.items() if score(figures) < BAR]
    if short:
        console.print(f"below {BAR:.0%}: {', '.join(short)}")
    if failed or short:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)

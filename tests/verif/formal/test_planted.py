# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Every bug that a test plants stands in the source of its block: most are planted in slow tests
alone, where a line that was rewritten is met a night later."""

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from paths import ROOT

from kelp_verif.formal.proofs import PROOFS
from kelp_verif.formal.prove import mutant
from kelp_verif.formal.resets import RESETS

PLACES = sorted(
    path
    for path in (ROOT / "tests").rglob("*.py")
    if path != Path(__file__) and "mutant" in path.read_text(encoding="utf-8")
)


def blocks_of(tree: ast.Module) -> dict[str, type]:
    """Name in the file → the block that it imports from the RTL under this name."""
    found = {
        alias.asname or alias.name: getattr(import_module(node.module), alias.name, None)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kelp_hw.")
        for alias in node.names
    }
    return {name: cls for name, cls in found.items() if hasattr(cls, "elaborate")}


def text(node) -> str | None:
    """A string as it is in the file."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def in_a_row(tree: ast.Module, blocks: dict[str, type]) -> Iterator[tuple[int, type, str, str]]:
    """(line, block, old, new) wherever these stand one behind another, `old` not a mere name."""
    for node in ast.walk(tree):
        row = getattr(node, "elts", None) or getattr(node, "args", None)
        if not isinstance(row, list):
            continue
        for block, old, new in zip(row, row[1:], row[2:], strict=False):
            named = isinstance(block, ast.Name) and block.id in blocks
            if named and text(new) is not None and set(text(old) or "") & set("(.=&|["):
                yield old.lineno, blocks[block.id], text(old), text(new)


def parametrized(tree: ast.Module, blocks: dict[str, type]) -> Iterator[tuple[int, type, str, str]]:
    """The same of tests with the arguments `old` and `new`, whose block is an argument, too, or the
    one that they call `mutant` with."""
    for test in ast.walk(tree):
        for call in test.decorator_list if isinstance(test, ast.FunctionDef) else ():
            names, rows = arguments(call)
            for row in rows if {"old", "new"} <= set(names) else ():
                cells = row.elts if isinstance(row, ast.Tuple) else getattr(row, "args", [])
                given = dict(zip(names, cells, strict=False))
                block = given.get("block", mutated(test))
                if isinstance(block, ast.Name) and block.id in blocks and text(given.get("old")):
                    yield row.lineno, blocks[block.id], text(given["old"]), text(given["new"]) or ""


def arguments(decorator: ast.expr) -> tuple[list[str], list[ast.expr]]:
    """Names and rows of a `parametrize` that has its rows where it stands."""
    given = getattr(decorator, "args", [])
    if len(given) < 2 or not isinstance(given[1], ast.List):
        return [], []
    if text(given[0]) is not None:
        return text(given[0]).replace(" ", "").split(","), given[1].elts
    return [text(one) for one in getattr(given[0], "elts", [])], given[1].elts


def mutated(test: ast.FunctionDef) -> ast.AST | None:
    for node in ast.walk(test):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "mutant":
            return node.args[0]
    return None


def planted(path: Path) -> list[tuple[int, type, str, str]]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    blocks = blocks_of(tree)
    return [*in_a_row(tree, blocks), *parametrized(tree, blocks)]


@pytest.mark.parametrize("path", PLACES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_tests_bug_stands_once_in_its_block(path):
    lost = []
    for line, block, old, new in planted(path):
        try:
            mutant(block, old, new)
        except ValueError as error:
            lost.append(f"{path.relative_to(ROOT)}:{line}: {error}")
    assert not lost, "\n".join(lost)


def test_a_proofs_bug_stands_once_in_its_block():
    bugs = [(proof.block, *bug) for proof in PROOFS for bug in proof.bugs]
    bugs += [(reset.make.func, *reset.bug) for reset in RESETS if reset.bug]
    for bug in bugs:
        mutant(*bug)
    assert len(bugs) > 80


def test_they_are_found():
    assert sum(len(planted(path)) for path in PLACES) > 50

# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Mutants of a block at the level of its source, where the bench is Amaranth's simulator or a
proof: an operator becomes its neighbour, a condition is negated, an assignment is left out."""

import ast
import contextlib
import copy
import inspect
import random
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

__all__ = ["SourceMutant", "apply", "mutated", "sites"]

_SWAPS = {
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}
#: Whose arguments are conditions of the hardware.
_CONDITIONS = {"If", "Elif"}
#: Whose arguments are no part of it.
_CHECKS = {"Assert", "Assume", "Cover"}


@dataclass(frozen=True)
class SourceMutant:
    """`what` happens to the `n`-th node (in `ast.walk`'s order) of the class."""

    number: int
    block: str
    n: int
    what: str
    site: str


def _tree(block: type) -> tuple[ast.ClassDef, int]:
    text = textwrap.dedent(inspect.getsource(block))
    return ast.parse(text).body[0], inspect.getsourcelines(block)[1] - 1


def _methods(tree: ast.ClassDef) -> dict[str, ast.FunctionDef]:
    """Name → definition, also of static methods and properties; the constructor apart."""
    defined = {part.name: part for part in tree.body if isinstance(part, ast.FunctionDef)}
    defined.pop("__init__", None)
    return defined


def _of_hardware(tree: ast.ClassDef) -> set[int]:
    """Positions of the nodes that are in methods that build hardware, without what is asserted, and
    without names and messages."""
    inside = {id(node) for method in _methods(tree).values() for node in ast.walk(method)}
    for node in ast.walk(tree):
        called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        if isinstance(node, ast.JoinedStr) or (called and node.func.id in _CHECKS):
            inside -= {id(below) for below in ast.walk(node)}
    return {n for n, node in enumerate(ast.walk(tree)) if id(node) in inside}


def sites(block: type, *, count: int, seed: int, first: int = 1) -> list[SourceMutant]:
    """Up to `count` mutants of `block`, drawn by `seed`."""
    tree, line = _tree(block)
    hardware, found = _of_hardware(tree), []
    for n, node in enumerate(ast.walk(tree)):
        if n in hardware:
            found += [(n, what) for what in _kinds(node)]
    chosen = sorted(random.Random(seed).sample(found, min(count, len(found))))
    nodes, name = list(ast.walk(tree)), Path(inspect.getfile(block)).name
    return [
        SourceMutant(
            first + k,
            block.__name__,
            n,
            what,
            f"{what} at {name}:{line + nodes[n].lineno}: {ast.unparse(nodes[n])[:80]}",
        )
        for k, (n, what) in enumerate(chosen)
    ]


def _kinds(node: ast.AST) -> list[str]:
    if isinstance(node, ast.BinOp) and type(node.op) in _SWAPS:
        return ["operator"]
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _SWAPS:
        return ["comparison"]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
        return ["not"]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in _CONDITIONS:
            return ["condition"]
        if node.func.attr == "eq" and len(node.args) == 1:
            return ["assignment"]
    return []


def _change(node: ast.AST, what: str) -> ast.AST:
    """The node in place of `node`."""
    node = copy.deepcopy(node)
    if what == "operator":
        node.op = _SWAPS[type(node.op)]()
    elif what == "comparison":
        node.ops = [_SWAPS[type(node.ops[0])]()]
    elif what == "not":
        return node.operand
    elif what == "condition":
        node.args = [ast.Compare(node.args[0], [ast.Eq()], [ast.Constant(0)])]
    elif what == "assignment":
        # x.eq(y) becomes x[:0].eq(y): a statement that assigns nothing.
        nothing = ast.Slice(None, ast.Constant(0), None)
        value = ast.Call(ast.Name("_value_of", ast.Load()), [node.func.value], [])
        node.func.value = ast.Subscript(value, nothing, ast.Load())
    return node


def apply(block: type, mutant: SourceMutant) -> None:
    """Make `block`, in this process and for good, what `mutant` says."""
    from amaranth.hdl import Value

    tree, _ = _tree(block)
    target = list(ast.walk(tree))[mutant.n]

    class Replace(ast.NodeTransformer):
        def visit(self, node):
            return _change(node, mutant.what) if node is target else self.generic_visit(node)

    changed = ast.fix_missing_locations(ast.Module([Replace().visit(tree)], []))
    space = dict(vars(sys.modules[block.__module__])) | {"_value_of": Value.cast}
    exec(compile(changed, f"{block.__name__}_mutant.py", "exec"), space)
    for name in _methods(tree):
        setattr(block, name, vars(space[block.__name__])[name])


@contextlib.contextmanager
def mutated(block: type, mutant: SourceMutant):
    """`block` is what `mutant` says, for a while."""
    before = {name: vars(block)[name] for name in _methods(_tree(block)[0])}
    apply(block, mutant)
    try:
        yield
    finally:
        for name, member in before.items():
            setattr(block, name, member)

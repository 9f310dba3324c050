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
    """`what` happens to the `n`-th node (in `ast.walk`'s order) of the class and, one after
    another, the functions of its module that it calls."""

    number: int
    block: str
    n: int
    what: str
    site: str


def _trees(block: type) -> list[ast.ClassDef | ast.FunctionDef]:
    """The class, and the functions of its module that its methods name, or one of these."""
    source, first = inspect.getsourcelines(block)
    (tree,) = ast.parse(textwrap.dedent("".join(source))).body
    ast.increment_lineno(tree, first - 1)
    beside = {
        part.name: part
        for part in ast.parse(inspect.getsource(sys.modules[block.__module__])).body
        if isinstance(part, ast.FunctionDef)
    }
    trees = [tree]
    for part in trees:  # grows as it is walked
        within = _methods(part).values() if part is tree else [part]
        nodes = [node for each in within for node in ast.walk(each)]
        names = {node.id for node in nodes if isinstance(node, ast.Name)}
        trees += [beside.pop(name) for name in sorted(names & beside.keys())]
    return trees


def _methods(tree: ast.ClassDef) -> dict[str, ast.FunctionDef]:
    """Name → definition, also of static methods and properties; the constructor apart."""
    defined = {part.name: part for part in tree.body if isinstance(part, ast.FunctionDef)}
    defined.pop("__init__", None)
    return defined


def _of_hardware(block: type) -> list[tuple[int, ast.AST]]:
    """The nodes, and their positions, that are in methods and functions that build hardware,
    without what is asserted, and without names and messages."""
    tree, *functions = trees = _trees(block)
    building = [*_methods(tree).values(), *functions]
    inside = {id(node) for part in building for node in ast.walk(part)}
    nodes = [node for part in trees for node in ast.walk(part)]
    for node in nodes:
        called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        if isinstance(node, ast.JoinedStr) or (called and node.func.id in _CHECKS):
            inside -= {id(below) for below in ast.walk(node)}
    return [(n, node) for n, node in enumerate(nodes) if id(node) in inside]


def sites(block: type, *, count: int, seed: int, first: int = 1) -> list[SourceMutant]:
    """Up to `count` mutants of `block`, drawn by `seed`."""
    nodes = dict(_of_hardware(block))
    found = [(n, what) for n, node in nodes.items() for what in _kinds(node)]
    chosen = sorted(random.Random(seed).sample(found, min(count, len(found))))
    name = Path(inspect.getfile(block)).name
    return [
        SourceMutant(
            first + k,
            block.__name__,
            n,
            what,
            f"{what} at {name}:{nodes[n].lineno}: {ast.unparse(nodes[n])[:80]}",
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
    for owner, name, member in _changes(block, mutant):
        setattr(owner, name, member)


def _changes(block: type, mutant: SourceMutant):
    """What stands where in a module or class of which `mutant` is true."""
    from amaranth.hdl import Value

    trees, n = _trees(block), mutant.n
    for tree in trees:
        nodes = list(ast.walk(tree))
        if n < len(nodes):
            break
        n -= len(nodes)
    target = nodes[n]

    class Replace(ast.NodeTransformer):
        def visit(self, node):
            return _change(node, mutant.what) if node is target else self.generic_visit(node)

    changed = ast.fix_missing_locations(ast.Module([Replace().visit(tree)], []))
    module = sys.modules[block.__module__]
    space = dict(vars(module)) | {"_value_of": Value.cast}
    exec(compile(changed, f"{block.__name__}_mutant.py", "exec"), space)
    if isinstance(tree, ast.FunctionDef):
        return [(module, tree.name, space[tree.name])]
    return [(block, name, vars(space[block.__name__])[name]) for name in _methods(tree)]


@contextlib.contextmanager
def mutated(block: type, mutant: SourceMutant):
    """`block` is what `mutant` says, for a while."""
    changes = _changes(block, mutant)
    before = [(owner, name, vars(owner)[name]) for owner, name, _ in changes]
    apply(block, mutant)
    try:
        yield
    finally:
        for owner, name, member in before:
            setattr(owner, name, member)

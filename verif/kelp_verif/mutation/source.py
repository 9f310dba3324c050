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
from types import FunctionType, ModuleType

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
    another, the functions of its room that it calls."""

    number: int
    block: str
    n: int
    what: str
    site: str


@dataclass(frozen=True)
class _Part:
    """The definition of a class or function, and the module that has it."""

    tree: ast.ClassDef | ast.FunctionDef
    module: ModuleType

    @property
    def file(self) -> str:
        return Path(self.module.__file__).name


def _parsed(thing: type | FunctionType) -> _Part:
    source, first = inspect.getsourcelines(thing)
    (tree,) = ast.parse(textwrap.dedent("".join(source))).body
    ast.increment_lineno(tree, first - 1)
    return _Part(tree, sys.modules[thing.__module__])


def _parts(block: type) -> list[_Part]:
    """The class, and the functions of its room that its methods name, or one of these."""
    parts, met = [_parsed(block)], set()
    room = sys.modules[block.__module__].__package__
    for part in parts:  # grows as it is walked
        within = _methods(part.tree).values() if part is parts[0] else [part.tree]
        nodes = [node for each in within for node in ast.walk(each)]
        for name in sorted({node.id for node in nodes if isinstance(node, ast.Name)}):
            thing = vars(part.module).get(name)
            if not isinstance(thing, FunctionType) or thing in met:
                continue
            met.add(thing)
            home = sys.modules.get(thing.__module__)
            if home is not None and home.__package__ == room:
                parts.append(_parsed(thing))
    return parts


def _methods(tree: ast.ClassDef) -> dict[str, ast.FunctionDef]:
    """Name → definition, also of static methods and properties; the constructor apart."""
    defined = {part.name: part for part in tree.body if isinstance(part, ast.FunctionDef)}
    defined.pop("__init__", None)
    return defined


def _of_hardware(block: type) -> list[tuple[int, ast.AST, str]]:
    """The nodes, their positions and files, that are in methods and functions that build hardware,
    without what is asserted, and without names and messages."""
    parts = _parts(block)
    building = [*_methods(parts[0].tree).values(), *(part.tree for part in parts[1:])]
    inside = {id(node) for part in building for node in ast.walk(part)}
    nodes = [(node, part.file) for part in parts for node in ast.walk(part.tree)]
    for node, _ in nodes:
        called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        if isinstance(node, ast.JoinedStr) or (called and node.func.id in _CHECKS):
            inside -= {id(below) for below in ast.walk(node)}
    return [(n, node, file) for n, (node, file) in enumerate(nodes) if id(node) in inside]


def sites(block: type, *, count: int, seed: int, first: int = 1) -> list[SourceMutant]:
    """Up to `count` mutants of `block`, drawn by `seed`."""
    nodes = {n: (node, file) for n, node, file in _of_hardware(block)}
    found = [(n, what) for n, (node, _) in nodes.items() for what in _kinds(node)]
    chosen = sorted(random.Random(seed).sample(found, min(count, len(found))))
    return [
        SourceMutant(
            first + k,
            block.__name__,
            n,
            what,
            f"{what} at {nodes[n][1]}:{nodes[n][0].lineno}: {ast.unparse(nodes[n][0])[:80]}",
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

    n = mutant.n
    for part in _parts(block):
        nodes = list(ast.walk(part.tree))
        if n < len(nodes):
            break
        n -= len(nodes)
    target = nodes[n]

    class Replace(ast.NodeTransformer):
        def visit(self, node):
            return _change(node, mutant.what) if node is target else self.generic_visit(node)

    tree, module = part.tree, part.module
    before = vars(module)[tree.name] if isinstance(tree, ast.FunctionDef) else None
    changed = ast.fix_missing_locations(ast.Module([Replace().visit(tree)], []))
    space = dict(vars(module)) | {"_value_of": Value.cast}
    exec(compile(changed, f"{block.__name__}_mutant.py", "exec"), space)
    if before is None:
        return [(block, name, vars(space[block.__name__])[name]) for name in _methods(tree)]
    # Wherever the function was imported to.
    return [
        (owner, name, space[tree.name])
        for owner in list(sys.modules.values())
        for name, thing in list(vars(owner).items() if isinstance(owner, ModuleType) else ())
        if thing is before
    ]


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

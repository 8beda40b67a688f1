"""Facts about operators stand with the operators: how many tests of their names there are elsewhere is held."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import tilewright
import tilewright.ops
from tests.architecture.test_house import nodes
from tilewright.ops.define import OPERATORS

PACKAGE = Path(tilewright.__file__).parent

HOME = {"ops", "frontends", "exporters"}
"""Where operators are defined, and named by translations from and to other formats."""

HELD = {
    "accounts": 2, "codegen": 1, "graph": 37, "ir": 6, "loops": 3, "program": 5, "quantization": 1, "schedule": 4,
    "settings": 1,
}  # fmt: skip
"""How many tests of names of operators each room has at most: what is left is a strategy or a rewrite about that one
operator. Lower a number when there are fewer; a new test asks for a trait instead. The rooms `ir`, `loops` and
`codegen` know no operators: the names that they test are those of scalar operations, the ops of their level. What has
an answer for each of several operations is a table of functions (`codegen/c/operations.py`), which is no test."""

MOST = 60
"""Tests of names in all rooms together."""

OTHERS = {("tilewright.target.machine", "COPY"), ("tilewright.ir.symbolic.node", "RESERVED_NAMES")}
"""Tables of names of something else, of which some are those of operators as well."""


def names_tested(tree: Iterable[ast.AST], tables: set[str]) -> Iterator[int]:
    """The lines of comparisons of a name with names of operators, or with tables that hold such names: by an operator
    of Python on either side, by a method of a set or a text, or by a case of `match`."""
    for node in tree:
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
            sides = [node.func.value, *(e for a in node.args for e in (a.elts if isinstance(a, ast.Tuple) else [a]))]
        elif isinstance(node, ast.Match) and _is_name(node.subject):
            yield from (c.pattern.lineno for c in node.cases if _operators_in(c.pattern))
            continue
        else:
            continue
        others = [side for side in sides if not _is_name(side)]
        named = {n.id for side in others for n in ast.walk(side) if isinstance(n, ast.Name)}
        if len(others) < len(sides) and (any(map(_operators_in, others)) or named & tables):
            yield node.lineno


def _assignments(tree: Iterable[ast.AST]) -> Iterator[tuple[str, ast.expr]]:
    for node in tree:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node.value
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            yield node.target.id, node.value


METHODS = {"intersection", "issuperset", "issubset", "isdisjoint", "startswith", "endswith", "__contains__"}


def _is_name(node: ast.expr) -> bool:
    """Whether it is the name of an op, or of what a reduction combines with."""
    return (node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")) in ("name", "combine")


def _operators_in(node: ast.AST) -> set[str]:
    return {n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and n.value in OPERATORS}


def counted_by_room() -> Counter[str]:
    """How many there are in each room."""
    trees = {p.relative_to(PACKAGE): nodes(p) for p in sorted(PACKAGE.rglob("*.py"))}
    trees = {path: tree for path, tree in trees.items() if path.parts[0] not in HOME}
    tables = {
        (".".join(("tilewright", *path.with_suffix("").parts)), name)
        for path, tree in trees.items()
        for name, value in _assignments(tree)
        if name.isupper() and _operators_in(value)
    } - OTHERS
    found: Counter[str] = Counter()
    for path, tree in trees.items():
        own = {name for module, name in tables if module == ".".join(("tilewright", *path.with_suffix("").parts))}
        imports = [n for n in tree if isinstance(n, ast.ImportFrom)]
        taken = {a.name for n in imports for a in n.names if (n.module, a.name) in tables}
        found[path.parts[0].removesuffix(".py")] += sum(1 for _ in names_tested(tree, own | taken))
    return +found


def test_no_room_tests_more_names_of_operators_than_it_did() -> None:
    more = {room: n for room, n in counted_by_room().items() if n > HELD.get(room, 0)}
    assert more == {}, "ask for a trait in place of a name"
    assert sum(HELD.values()) <= MOST


DEFINING = {"graph": 78, "ir": 1}
"""How often each room asks whether an op of a name gives a value (`defining(value, "cast")`), at most: patterns of
rewrites. It is a test of a name in another form, which the count above does not see."""


def defining_by_room() -> Counter[str]:
    found: Counter[str] = Counter()
    for path in sorted(PACKAGE.rglob("*.py")):
        room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if room not in HOME:
            calls = (n for n in nodes(path) if isinstance(n, ast.Call))
            asked = (n for n in calls if isinstance(n.func, ast.Name) and n.func.id == "defining")
            found[room] += sum(any(map(_operators_in, n.args)) for n in asked)
    return +found


def test_no_room_asks_more_often_what_defines_a_value() -> None:
    more = {room: n for room, n in defining_by_room().items() if n > DEFINING.get(room, 0)}
    assert more == {}, "ask for a trait in place of a name"


def test_the_count_sees_both_forms() -> None:
    assert sum(defining_by_room().values()) > 0
    lines = [
        'op.name == "cast"',
        'op.name in ("add", "mul")',
        '"cast" == op.name',
        "op.name in VIEWS",
        "VIEWS.intersection((op.name,))",
        'op.name.startswith("conv")',
        'match op.name:\n  case "cast" | "add": pass\n  case "run": pass',
        'compute.combine == "add"',
        'other == "cast"',
        'op.name == "other"',
    ]
    tree = ast.walk(ast.parse("\n".join(lines)))
    assert sorted(names_tested(tree, {"VIEWS"})) == [1, 2, 3, 4, 5, 6, 8, 10]

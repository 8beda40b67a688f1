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
    "accounts": 1, "codegen": 32, "comparison": 1, "fitting": 2, "graph": 38, "ir": 2, "loops": 2, "program": 3,
    "quantization": 1, "schedule": 3, "validation": 1,
}  # fmt: skip
"""How many tests of names of operators each room has at most: what is left is a strategy or a rewrite about that one
operator. Lower a number when there are fewer; a new test asks for a trait instead. The rooms `ir`, `loops` and
`codegen` know no operators: the names that they test are those of scalar operations, the ops of their level."""

OTHERS = {("tilewright.target.machine", "COPY"), ("tilewright.ir.symbolic.node", "RESERVED_NAMES")}
"""Tables of names of something else, of which some are those of operators as well."""


def names_tested(tree: Iterable[ast.AST], tables: set[str]) -> Iterator[int]:
    """The lines of comparisons of a name with names of operators, or with tables that hold such names."""
    for node in tree:
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and _is_name(node.left):
            right = node.comparators[0]
            named = {n.id for n in ast.walk(right) if isinstance(n, ast.Name)}
            if _operators_in(right) or named & tables:
                yield node.lineno


def _assignments(tree: Iterable[ast.AST]) -> Iterator[tuple[str, ast.expr]]:
    for node in tree:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node.value
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            yield node.target.id, node.value


def _is_name(node: ast.expr) -> bool:
    is_attribute = isinstance(node, ast.Attribute) and node.attr == "name"
    return is_attribute or (isinstance(node, ast.Name) and node.id == "name")


def _operators_in(node: ast.expr) -> set[str]:
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


DEFINING = {"graph": 72, "ir": 1}
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
    tree = ast.walk(ast.parse('op.name == "cast"\nop.name in ("add", "mul")\nother == "cast"'))
    assert [*names_tested(tree, set())] == [1, 2]

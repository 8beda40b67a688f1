"""All rules that the compiler's passes have, by name."""

from __future__ import annotations

import ast
import inspect
import pkgutil
from collections.abc import Iterator, Mapping
from functools import partial
from importlib import import_module
from types import MappingProxyType, ModuleType

import tilewright.graph
from tilewright.graph.algorithms.large_windows import _COMBINED, large_windows
from tilewright.graph.layout.grouped_conv import groups_as_an_axis
from tilewright.graph.layout.strided_lines import lines_without_strides
from tilewright.ir.rewrite import Rule


def _modules(package: ModuleType) -> Iterator[ModuleType]:
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        yield import_module(found.name)


def _collected() -> tuple[dict[str, Rule], dict[str, str]]:
    rules: dict[str, Rule] = {}
    rooms: dict[str, str] = {}
    for module in _modules(tilewright.graph):
        room = module.__name__.removeprefix("tilewright.")
        for value in vars(module).values():
            if isinstance(value, Rule) and value.fn.__module__ == module.__name__:
                rules[value.name] = value
                rooms[value.name] = room
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            is_made = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Rule"
            if is_made and node.args and isinstance(node.args[0], ast.Constant):
                rooms.setdefault(node.args[0].value, room)
    return rules, rooms


_found = _collected()
_MADE = (
    Rule("groups_as_an_axis", ("conv",), partial(groups_as_an_axis, None)),
    Rule("lines_without_strides", ("conv",), lines_without_strides),
    Rule("plain_windows", tuple(_COMBINED), partial(large_windows, True)),
)
RULES: Mapping[str, Rule] = MappingProxyType(_found[0] | {rule.name: rule for rule in _MADE})
"""The rules that need no facts of a target or of a network."""
ROOMS: Mapping[str, str] = MappingProxyType(_found[1])
"""The module of each rule, those included that a pass makes."""

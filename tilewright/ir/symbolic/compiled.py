"""Expressions as functions of Python, for those that are evaluated many times."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

from tilewright.ir.symbolic.node import SymNode

_SPELLED = {
    "floordiv": "({0} // {1})",
    "mod": "({0} % {1})",
    "ge0": "({0} >= 0)",
    "eq0": "({0} == 0)",
    "select": "({1} if {0} else {2})",
}


@lru_cache(maxsize=10_000)
def function_of(e: SymNode) -> Callable[[Mapping[str, int]], int]:
    """What `e.evaluate` is: the value for ints by name; KeyError where one is missing."""
    namespace = {"min": min, "max": max, "int": int}
    function: Callable[[Mapping[str, int]], int] = eval(f"lambda env: int({_source(e)})", namespace)
    return function


def _source(e: SymNode) -> str:
    if e.kind == "const":
        return f"({e.value})"
    if e.kind == "var":
        return f"env[{e.name!r}]"
    if e._terms is not None:
        return f"({' + '.join(f'{times} * {_source(part)}' for part, times in e.terms)})"
    operands = [_source(arg) for arg in e.args]
    if e.kind == "mul":
        return f"({' * '.join(operands)})"
    if e.kind in ("min", "max"):
        return f"{e.kind}({', '.join(operands)})"
    return _SPELLED[e.kind].format(*operands)

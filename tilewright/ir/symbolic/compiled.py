"""Indices as functions of Python, for those that are evaluated many times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from tilewright.ir.symbolic.node import SymNode

_SPELLED = {
    "floordiv": "({0} // {1})",
    "mod": "({0} % {1})",
    "ge0": "({0} >= 0)",
    "eq0": "({0} == 0)",
    "select": "({1} if {0} else {2})",
}


Places = Callable[[Mapping[str, int], int, Sequence[int], Sequence[int], int], Any]
"""Of values by name, the number of lanes, and shape, strides and offset of a buffer: the addresses of the lanes."""


@lru_cache(maxsize=10_000)
def places_of(index: tuple[SymNode, ...], lane: str) -> Places | None:
    """The addresses of an element for the lanes of the loop with this variable, which is 0 in the first one: a slice
    or an array, or an int where all lanes have the same. The function gives None where a lane is outside of the shape,
    and raises KeyError where a value is missing. None where an axis does not grow by the same from lane to lane."""
    axes = range(len(index))
    lines = [f"{letter}{k} = {name}[{k}]" for letter, name in (("n", "shape"), ("s", "strides")) for k in axes]
    steps = []
    for k, e in enumerate(index):
        by_lane = 0
        parts = ["0"]
        for part, times in e.terms:
            if part.kind == "var" and part.name == lane:
                by_lane = times
            elif any(v.name == lane for v in part.vars):
                return None
            else:
                parts.append(_source(part) if times == 1 else f"{times} * {_source(part)}")
        last = f"i{k} + {by_lane} * (lanes - 1)" if by_lane else f"i{k}"
        low, high = (f"i{k}", last) if by_lane >= 0 else (last, f"i{k}")
        lines += [f"i{k} = {' + '.join(parts[1:] or parts)}", f"if {low} < 0 or {high} >= n{k}: return None"]
        steps += [f"{by_lane} * s{k}"] if by_lane else []
    lines.append(f"start = {' + '.join(['offset', *(f'i{k} * s{k}' for k in axes)])}")
    if steps:
        lines.append(f"step = {' + '.join(steps)}")
        lines.append("if step > 0: return slice(start, start + step * (lanes - 1) + 1, step)")
        lines.append("if step != 0: return start + step * arange(lanes)")
    lines.append("return start")
    namespace: dict[str, Any] = {"min": min, "max": max, "int": int, "arange": np.arange}
    body = "".join(f"    {line}\n" for line in lines)
    exec(f"def places(env, lanes, shape, strides, offset):\n{body}", namespace)
    places: Places = namespace["places"]
    return places


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

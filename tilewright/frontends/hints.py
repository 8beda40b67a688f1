"""Ways out, spelled as the arguments to give: what follows them literally gets on."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from tilewright.frontends.problems import shown
from tilewright.ir.core import Value
from tilewright.ir.sym import Sym
from tilewright.ir.types import TensorType
from tilewright.ops.define.binding import input_variables


def constants_hint(inputs: Sequence[Value]) -> str:
    """`pass constants={'k': <i64[]>}`: for the reader to fill in."""
    listed = ", ".join(f"'{shown(v.name)}': <{v.type}>" for v in inputs)
    return f"pass constants={{{listed}}} with the values to compile for"


def dims_hint(dims: Collection[Sym], inputs: Sequence[Value]) -> str:
    """`fix 'height' by shapes={'x': [1, 3, <height>, 'width']}`; variables that stand for values of inputs are
    fixed by constants."""
    variables = {v for d in dims for v in d.vars}
    by_value = [v for v in inputs if variables.intersection(_elements(v))]
    shaped = {v.name: _shape(v) for v in inputs if any(variables.intersection(d.vars) for d in _shape(v))}
    ways = []
    if shaped:
        names = sorted({d.name for shape in shaped.values() for d in shape if d in variables})
        listed = ", ".join(
            f"'{shown(name)}': [{', '.join(_spelled(d, variables) for d in shape)}]"
            for name, shape in shaped.items()
        )
        ways.append(f"fix {', '.join(f'{n!r}' for n in names)}: pass shapes={{{listed}}}")
    if by_value:
        ways.append(constants_hint(by_value))
    return ", and ".join(ways) or "fix the dims with shapes="


def in_words(condition: Sym, inputs: Sequence[Value]) -> str:
    """A condition for readers: variables that stand for elements of inputs as `k[0]`."""
    names = {v.name: f"{shown(x.name)}[{k}]" for x in inputs for k, v in enumerate(_elements(x))}
    return re.sub(r"\w+", lambda word: names.get(word[0], word[0]), str(condition))


def _shape(value: Value) -> tuple[Sym, ...]:
    return value.type.shape if isinstance(value.type, TensorType) else ()


def _elements(value: Value) -> list[Sym]:
    symbols = input_variables(value)
    return [] if symbols is None else list(symbols.flat)


def _spelled(dim: Sym, wanted: Collection[Sym]) -> str:
    if dim.is_const:
        return str(dim)
    return f"<{dim}>" if dim in wanted else f"'{dim}'"

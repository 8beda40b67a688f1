"""Which inputs are indices, and of how many rows: what a call may hold that somebody makes up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from tilewright.ir.core import Block, Func, Op, Value
from tilewright.ir.sym import Sym, sym
from tilewright.ops.traits.derive import traits_of


def _along(op: Op) -> list[Sym]:
    shape = op.operands[0].tensor.shape
    return [shape[int(op.attrs.get("axis", 0)) % len(shape)]]


def _by_vectors(op: Op) -> list[Sym]:
    """Of index vectors that all go into one input the fewest rows count for each of their elements."""
    first = int(op.attrs.get("batch_dims", 0))
    depth = op.operands[1].tensor.shape[-1].value
    return list(op.operands[0].tensor.shape[first : first + depth])


_LOOKS_UP: Mapping[str, tuple[int, Callable[[Op], list[Sym]]]] = {
    "gather": (1, _along), "gather_elements": (1, _along), "scatter_elements": (1, _along),
    "gather_nd": (1, _by_vectors), "scatter_nd": (1, _by_vectors),
    "one_hot": (0, lambda op: [sym(op.attrs["depth"])]),
}  # fmt: skip
"""The operand that has the indices, and the numbers of rows that it looks into."""


_HANDED_ON: Mapping[str, tuple[int, ...]] = {"cast": (0,), "within": (0,), "select": (1, 2)}
"""Operands whose elements are in the result, beside those of operators that move them."""


def rows_of_indices(main: Func) -> dict[str, list[int | str]]:
    """For each input of a graph by name whose elements are looked up, moved and converted at most, the numbers of rows
    that these are below, each a number or a text of dims."""
    names = dict(zip(main.args, main.attrs.get("inputs", [arg.name for arg in main.args]), strict=False))
    found: dict[str, dict[int | str, None]] = {}
    for op in _every(main.body):
        if op.name in _LOOKS_UP:
            operand, rows = _LOOKS_UP[op.name]
            for value in _sources(op.operands[operand]):
                if value in names:
                    found.setdefault(names[value], {}).update(dict.fromkeys(map(_size, rows(op))))
    return {name: [*rows] for name, rows in found.items()}


def _size(rows: Sym) -> int | str:
    return rows.value if rows.is_const else str(rows)


def _every(body: Block) -> Iterator[Op]:
    for op in body.ops:
        yield op
        for block in op.blocks:
            yield from _every(block)


def _sources(value: Value) -> Iterable[Value]:
    """The values whose elements a value has, through operators that move, choose or convert them."""
    left, seen = [value], {value}
    while left:
        op = left.pop().op
        if op is None:
            continue
        for k in _HANDED_ON.get(op.name) or traits_of(op).moves:
            if op.operands[k] not in seen:
                seen.add(op.operands[k])
                left.append(op.operands[k])
    return seen

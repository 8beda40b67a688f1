"""Products: NumPy's matmul, biases of convolutions, and Einstein sums by transposes, sums and matrix products."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError
from tilewright.ir.sym import Sym, sym
from tilewright.ir.types import product
from tilewright.ops import contract
from tilewright.ops import elementwise as ew
from tilewright.ops.composites.declared import composite
from tilewright.ops.composites.matrices import diagonal
from tilewright.ops.define.broadcasting import is_stretched
from tilewright.ops.reduce import reduce_sum
from tilewright.ops.shape import common_dim, require_equal_dim, surely_different
from tilewright.ops.view import reshape, shape_of, squeeze, transpose


@composite
def matrix_product(a: Value, b: Value) -> Value:
    """NumPy's matmul: vectors become a row or a column for the time of the product."""
    shape_a, shape_b = shape_of(a), shape_of(b)
    if not shape_a or not shape_b:
        raise ModelError("MatMul takes no scalars")
    wide_a = reshape(a, shape=(sym(1), *shape_a)) if len(shape_a) == 1 else a
    wide_b = reshape(b, shape=(*shape_b, sym(1))) if len(shape_b) == 1 else b
    product = contract.matmul(wide_a, wide_b)
    added = [axis for axis, shape in ((-2, shape_a), (-1, shape_b)) if len(shape) == 1]
    return squeeze(product, axes=added) if added else product


@composite
def with_bias(x: Value, bias: Value | None) -> Value:
    """x plus one number for each channel (axis 1)."""
    if bias is None:
        return x
    shape = shape_of(x)
    (channels,) = shape_of(bias) if len(shape_of(bias)) == 1 else (sym(-1),)
    if surely_different(channels, shape[1]):
        raise ModelError(f"the bias has {channels} elements for {shape[1]} channels")
    require_equal_dim(channels, shape[1], "the elements of the bias and the channels")
    channels = channels if channels.is_const else shape[1]  # one entry is not for all channels
    return ew.add(x, reshape(bias, shape=(channels, *[sym(1)] * (len(shape) - 2))))


Labels = tuple[str, ...]


@composite
def einsum_of(equation: str, operands: Sequence[Value]) -> Value:
    """The Einstein sum `equation` of `operands`; operands are multiplied from left to right."""
    inputs, output = _parse(equation, [len(shape_of(x)) for x in operands])
    sizes = _sizes(inputs, operands)
    wanted_later = [set(output).union(*inputs[k + 1 :]) for k in range(len(inputs))]
    labels, result = _prepared(inputs[0], operands[0], wanted_later[0])
    for k in range(1, len(operands)):
        other_labels, other = _prepared(inputs[k], operands[k], set(labels) | wanted_later[k])
        labels, result = _product(labels, result, other_labels, other, wanted_later[k], sizes)
    labels, result = _summed(labels, result, set(output))
    order = tuple(labels.index(c) for c in output)
    return result if order == tuple(range(len(order))) else transpose(result, perm=order)


def _parse(equation: str, ranks: Sequence[int]) -> tuple[list[Labels], Labels]:
    """Labels of each operand and of the result; the axes of an ellipsis get labels of their own."""
    text = equation.replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise ModelError(f"Einsum '{equation}' names {len(terms)} operands, there are {len(ranks)}")
    term_form = r"[A-Za-z]*(\.\.\.)?[A-Za-z]*"
    if not all(re.fullmatch(term_form, t) for t in [*terms, right]):
        raise ModelError(f"Einsum '{equation[:80]}' cannot be read")
    dots = max(
        (rank - len(t.replace("...", "")) for t, rank in zip(terms, ranks, strict=True) if "..." in t),
        default=0,
    )
    inputs = [_labels(t, rank, equation) for t, rank in zip(terms, ranks, strict=True)]
    if arrow:
        output = _labels(right, len(right.replace("...", "")) + (dots if "..." in right else 0), equation)
    else:
        letters = [c for t in inputs for c in t]
        shared = tuple(f"{k}" for k in reversed(range(dots)))
        output = shared + tuple(sorted(c for c in set(letters) if letters.count(c) == 1 and c.isalpha()))
    if len(set(output)) != len(output) or not set(output) <= {c for t in inputs for c in t}:
        raise ModelError(f"Einsum '{equation}': the result has labels that the operands lack, or one twice")
    return inputs, output


def _labels(term: str, rank: int, equation: str) -> Labels:
    before, dots, after = term.partition("...")
    spread = rank - len(before) - len(after)
    if spread < 0 or (spread and not dots):
        raise ModelError(f"Einsum '{equation}': '{term}' does not fit an operand with {rank} axes")
    return (*before, *[str(k) for k in reversed(range(spread))], *after)


def _sizes(inputs: Sequence[Labels], operands: Sequence[Value]) -> dict[str, Sym]:
    sizes: dict[str, Sym] = {}
    for labels, x in zip(inputs, operands, strict=True):
        for label, d in zip(labels, shape_of(x), strict=True):
            sizes[label] = common_dim(sizes[label], d) if label in sizes else d
    return sizes


def _prepared(labels: Labels, x: Value, wanted: set[str]) -> tuple[Labels, Value]:
    """An operand with repeated labels reduced to their diagonal, and labels nobody wants summed."""
    while len(set(labels)) < len(labels):
        label = next(c for c in labels if labels.count(c) > 1)
        a = labels.index(label)
        b = labels.index(label, a + 1)
        shape = shape_of(x)
        require_equal_dim(shape[a], shape[b], f"the axes {label} of an operand")
        others = [k for k in range(len(shape)) if k not in (a, b)]
        x = diagonal(transpose(x, perm=(*others, a, b)))
        labels = (*(labels[k] for k in others), label)
    return _summed(labels, x, wanted)


def _summed(labels: Labels, x: Value, wanted: set[str]) -> tuple[Labels, Value]:
    axes = tuple(k for k, c in enumerate(labels) if c not in wanted)
    if not axes:
        return labels, x
    return tuple(c for c in labels if c in wanted), reduce_sum(x, axes=axes, keepdims=False)


def _product(
    a_labels: Labels, a: Value, b_labels: Labels, b: Value, wanted: set[str], sizes: dict[str, Sym]
) -> tuple[Labels, Value]:
    """Two operands multiplied, labels that are not wanted any more summed: one batched matrix product."""
    shared = [c for c in a_labels if c in b_labels]
    broadcasting = any(
        (own := shape_of(x)[labels.index(c)]) != sizes[c] and (own == 1 or is_stretched(own, sizes[c]))
        for x, labels in ((a, a_labels), (b, b_labels))
        for c in shared
    )
    batch = [c for c in shared if c in wanted]
    inner = [c for c in shared if c not in wanted]
    rows = [c for c in a_labels if c not in shared]
    columns = [c for c in b_labels if c not in shared]
    if not inner or broadcasting:
        return _broadcast_product(a_labels, a, b_labels, b, wanted)
    left = _grouped(a_labels, a, batch, rows, inner)
    right = _grouped(b_labels, b, batch, inner, columns)
    result = contract.matmul(left, right)
    labels = (*batch, *rows, *columns)
    return labels, reshape(result, shape=tuple(sizes[c] for c in labels))


def _grouped(labels: Labels, x: Value, batch: list[str], rows: list[str], columns: list[str]) -> Value:
    """x as [*batch, rows, columns]."""
    order = tuple(labels.index(c) for c in (*batch, *rows, *columns))
    moved = x if order == tuple(range(len(order))) else transpose(x, perm=order)
    shape = shape_of(moved)
    n, m = len(batch), len(batch) + len(rows)
    return reshape(moved, shape=(*shape[:n], product(shape[n:m]), product(shape[m:])))


def _broadcast_product(
    a_labels: Labels, a: Value, b_labels: Labels, b: Value, wanted: set[str]
) -> tuple[Labels, Value]:
    labels = (*a_labels, *[c for c in b_labels if c not in a_labels])

    def spread(own: Labels, x: Value) -> Value:
        present = [c for c in labels if c in own]
        moved = transpose(x, perm=tuple(own.index(c) for c in present)) if len(own) > 1 else x
        shape = dict(zip(present, shape_of(moved), strict=True))
        return reshape(moved, shape=tuple(shape.get(c, sym(1)) for c in labels))

    return _summed(labels, ew.mul(spread(a_labels, a), spread(b_labels, b)), wanted)

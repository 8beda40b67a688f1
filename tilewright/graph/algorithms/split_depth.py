"""Products of few results and a large depth in parts, on GPUs: each part of the depth has threads of its own.

    y = x @ w      becomes      y = reduce_sum(x[s, m, k / s] @ w[s, k / s, n], axis 0)

A product of one row with a matrix of 4096 x 1024 has 1,024 results, and as many threads, of which a GPU needs some
ten thousand to be busy. The parts are one product with an axis more, whose sums are in memory; elementwise work on the
result is then work on the sum of the parts, in its kernel. Weights are constants, which are laid out so beforehand;
rows are read where they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.cost.machine.split_depth import parts_of_depth
from tilewright.graph.match import dtype_of, is_constant, shape_of, type_of
from tilewright.graph.rewrites.dead import drop_dead
from tilewright.ir.core import Block, Builder, Module, Op, Value, insert_before
from tilewright.ir.sym import Sym, sym
from tilewright.ir.types import product
from tilewright.ops.define import OPERATORS
from tilewright.ops.reduce import reduce_sum
from tilewright.ops.traits.derive import known_product, product_of
from tilewright.ops.view import reshape, transpose
from tilewright.passes import PassContext


@dataclass(frozen=True)
class SplitDepth:
    """Cut the depth of products with constant matrices where the device is faster so. Sums are rounded differently:
    with strict numerics those of integers alone are cut."""

    name: ClassVar[str] = "split-depth"

    def run(self, module: Module, ctx: PassContext) -> None:
        changed = False
        for op in list(module.main.body.ops):
            sizes = _sizes(op)
            if ctx.link is None or sizes is None or (ctx.strict and dtype_of(op.result).is_float):
                continue
            rows, depth, columns = sizes
            read = sum(type_of(v).size.value * type_of(v).dtype.bytes for v in op.operands)
            parts = parts_of_depth(rows * columns, depth, read, ctx.link)
            if parts > 1:
                _split(op, module, parts, sizes)
                ctx.remark(self.name, f"product {op.loc}", f"{parts} parts of the depth are summed apart", applied=True)
                changed = True
        if changed:
            drop_dead(module)


def _sizes(op: Op) -> tuple[int, int, int] | None:
    """Rows, depth and columns of a product with a constant matrix; None for anything else, and unknown sizes."""
    own = product_of(op)
    if own is None or len(op.operands) != 2 or not own.is_plain or (own.data, own.weights) != (0, 1):
        return None
    if own.transposed is None or own.transposed[0]:
        return None
    x, w = op.operands
    dtype = dtype_of(op.result)
    if not is_constant(w) or len(shape_of(w)) != 2 or len(shape_of(x)) < 2 or dtype.bits < 32:
        return None
    sizes = (*shape_of(x), *shape_of(w))
    if not all(n.is_const and n.value for n in sizes):
        return None
    return product(shape_of(x)[:-1]).value, shape_of(x)[-1].value, shape_of(op.result)[-1].value


def _split(op: Op, module: Module, parts: int, sizes: tuple[int, int, int]) -> None:
    x, w = op.operands
    rows, depth, columns = sizes
    each = depth // parts
    emitted = Block()
    with Builder(emitted, module, op.loc):
        left = transpose(_shaped(x, rows, parts, each), perm=(1, 0, 2))
        if known_product(op).turns_weights:
            right = transpose(_shaped(w, columns, parts, each), perm=(1, 0, 2))
        else:
            right = _shaped(w, parts, each, columns)
        sums = OPERATORS[op.name](left, right, **op.attrs)
        total = _shaped(reduce_sum(sums, axes=(0,), keepdims=False), *shape_of(op.result))
    total.name = op.result.name
    op.result.replace_by(total)
    insert_before(op, emitted.ops)


def _shaped(x: Value, *shape: int | Sym) -> Value:
    wanted = tuple(sym(n) for n in shape)
    return x if shape_of(x) == wanted else reshape(x, shape=wanted)

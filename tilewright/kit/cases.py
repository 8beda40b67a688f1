"""Small programs, one for each thing that models ask of a machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Builder, Func, Module, Value
from tilewright.ir.dtype import DType
from tilewright.ir.types import tensor
from tilewright.ops.activation import gelu, relu
from tilewright.ops.contract import conv, matmul, matmul_widening
from tilewright.ops.elementwise import add, cast, div, exp, mul, sigmoid, tanh
from tilewright.ops.index import gather
from tilewright.ops.norm import layer_norm, softmax
from tilewright.ops.pool import average_pool, max_pool
from tilewright.ops.reduce import reduce_max, reduce_sum
from tilewright.ops.view import concat, transpose

Shape = Sequence[int]


@dataclass(frozen=True)
class KitCase:
    """A program of one operator or a few: its operands, and what it computes of them. `exact` says that it adds, takes
    and moves whole numbers alone, which any order gives to the bit."""

    name: str
    operands: tuple[tuple[DType, tuple[int, ...]], ...]
    make: Callable[..., Value]
    exact: bool = False

    def module(self) -> Module:
        """As a program of the graph level."""
        names = [f"x{k}" for k in range(len(self.operands))]
        module, block = Module(), Block([tensor(dtype, shape) for dtype, shape in self.operands], names)
        with Builder(block, module) as builder:
            builder.emit("return", [self.make(*block.args)])
        module.add(Func("main", block, attrs={"inputs": tuple(names), "outputs": ("y",), "nodes": 1}))
        return module


def _product(rows: int, depth: int, columns: int, dtype: DType) -> KitCase:
    return KitCase(
        f"product {rows} x {depth} x {columns} of {dtype}", ((dtype, (rows, depth)), (dtype, (depth, columns))),
        matmul, True,
    )  # fmt: skip


IMAGE = (dt.f32, (1, 8, 14, 14))
ROWS = (dt.f32, (24, 96))

CASES: tuple[KitCase, ...] = (
    _product(64, 64, 64, dt.f16),
    _product(64, 64, 64, dt.f32),
    _product(33, 50, 21, dt.f16),
    _product(1, 128, 64, dt.f32),
    KitCase("product of int8 into int32", ((dt.i8, (48, 64)), (dt.i8, (64, 32))),
         lambda a, b: matmul_widening(a, b, sums=dt.i32), True),
    KitCase("products of a batch", ((dt.f16, (3, 16, 32)), (dt.f16, (3, 32, 16))), matmul, True),
    KitCase("product, bias and ReLU", ((dt.f16, (32, 32)), (dt.f16, (32, 32)), (dt.f16, (32,))),
         lambda a, b, c: relu(add(matmul(a, b), c)), True),
    KitCase("convolution 1 x 1", (IMAGE, (dt.f32, (12, 8, 1, 1))), conv, True),
    KitCase("convolution 3 x 3", (IMAGE, (dt.f32, (12, 8, 3, 3))),
         lambda x, w: conv(x, w, pads_begin=(1, 1), pads_end=(1, 1)), True),
    KitCase("convolution with strides", (IMAGE, (dt.f32, (12, 8, 3, 3))),
         lambda x, w: conv(x, w, strides=(2, 2)), True),
    KitCase("depthwise convolution", (IMAGE, (dt.f32, (8, 1, 3, 3))),
         lambda x, w: conv(x, w, pads_begin=(1, 1), pads_end=(1, 1), groups=8), True),
    KitCase("largest of windows", (IMAGE,), lambda x: max_pool(x, kernel=(3, 3), strides=(2, 2)), True),
    KitCase("average of windows", (IMAGE,), lambda x: average_pool(x, kernel=(2, 2), strides=(2, 2))),
    KitCase("chain of a sum, a product and a maximum", (ROWS, ROWS), lambda a, b: relu(mul(add(a, b), b)), True),
    KitCase("quotient", (ROWS,), lambda x: div(x, add(mul(x, x), 1))),
    KitCase("exponential", (ROWS,), lambda x: exp(x)),
    KitCase("tanh", (ROWS,), lambda x: tanh(x)),
    KitCase("sigmoid", (ROWS,), sigmoid),
    KitCase("GELU", (ROWS,), gelu),
    KitCase("conversion to float16 and back", (ROWS,), lambda x: cast(cast(x, dtype=dt.f16), dtype=dt.f32), True),
    KitCase("sums of rows", (ROWS,), lambda x: reduce_sum(x, axes=(1,)), True),
    KitCase("largest of rows", (ROWS,), lambda x: reduce_max(x, axes=(1,)), True),
    KitCase("softmax", (ROWS,), softmax),
    KitCase("layer norm", (ROWS, (dt.f32, (96,))), layer_norm),
    KitCase("transpose", (ROWS,), lambda x: transpose(x, perm=(1, 0)), True),
    KitCase("parts behind each other", (ROWS, ROWS), lambda a, b: concat(a, b, axis=0), True),
    KitCase("rows by numbers", (ROWS, (dt.i64, (7,))), lambda x, k: gather(x, k), True),
)  # fmt: skip

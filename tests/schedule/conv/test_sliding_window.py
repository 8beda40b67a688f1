"""Depthwise convolutions, pooling and sums over outer axes: right, in registers, and without padding inside."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import numpy as np
import pytest

from tests.schedule import scheduling as oracle
from tilewright.codegen.cpu.assemble import assembly
from tilewright.codegen.cpu.kernel.emit import kernel_ir
from tilewright.ir import dtype as dt
from tilewright.ir.core import Func, Module, Op, Value
from tilewright.ir.sym import var
from tilewright.ir.types import tensor
from tilewright.loops.edit import enclosing_loops, extent_of, loops_in
from tilewright.loops.kernel_info import kernel_info
from tilewright.ops import activation, blocked, pool, reduce
from tilewright.ops import elementwise as ew
from tilewright.ops.define import constant
from tilewright.target.named import parse_target

RNG = np.random.default_rng(11)


def data(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def depthwise(size: int, stride: int, silu: bool) -> Callable[[Value], Value]:
    weights, bias = data(32, 1, size, size), data(1, 2, 1, 1, 16)
    pads = (size // 2, size // 2)

    def body(x: Value) -> Value:
        attrs = {"strides": (stride, stride), "pads_begin": pads, "pads_end": pads}
        y = ew.add(blocked.depthwise_blocked(x, constant(weights), **attrs), constant(bias))
        return ew.mul(y, activation.sigmoid(y)) if silu else ew.max_(y, 0.0)

    return body


def max_pool(x: Value) -> Value:
    attrs = {"kernel": (3, 3), "strides": (2, 2), "pads_begin": (1, 1), "pads_end": (1, 1)}
    return pool.max_pool(x, **attrs)


def blocked_pool(x: Value) -> Value:
    return pool.max_pool_blocked(x, kernel=(2, 2), strides=(2, 2))


def outer_sum(x: Value) -> Value:
    return reduce.reduce_sum(x, axes=(1,), keepdims=False)


CASES = [
    *((f"sum of rows of {n}", (3, 21, n), outer_sum) for n in (33, 119, 250, 330)),
    ("3x3", (1, 2, 9, 35, 16), depthwise(3, 1, False)),
    ("3x3, many tiles", (1, 2, 3, 112, 16), depthwise(3, 1, False)),
    ("3x3 in one tile", (1, 2, 7, 7, 16), depthwise(3, 1, True)),
    ("5x5 of stride 2", (1, 2, 12, 57, 16), depthwise(5, 2, True)),
    ("7x7", (1, 2, 5, 29, 16), depthwise(7, 1, False)),
    ("max of plain images", (1, 3, 21, 23), max_pool),
    ("max of blocked images", (1, 2, 12, 14, 16), blocked_pool),
    ("sum over a middle axis", (3, 9, 100), outer_sum),
    ("sum of many terms", (2, 1000, 40), outer_sum),
    (
        "sum of many terms over two axes",
        (3, 40, 30, 16),
        lambda x: reduce.reduce_sum(x, axes=(1, 2), keepdims=False),
    ),
    ("sum over a middle axis of few elements", (5, 9, 12), outer_sum),
]


def kernel_of(module: Module) -> Func:
    (kernel,) = (f for f in module.funcs.values() if f.level == "loops")
    return kernel


def scheduled_by(kernel: Func) -> str:
    """The steps that only `SlidingWindow` takes tell that it was taken."""
    return " ".join(kernel_info(kernel).schedule)


@pytest.mark.sweep
@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4", "aarch64-neon"])
@pytest.mark.parametrize(("shape", "body"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_it_computes_what_the_graph_says(
    shape: tuple[int, ...], body: Callable[[Value], Value], target: str
) -> None:
    module, _ = oracle.agree([tensor(dt.f32, shape)], body, [data(*shape)], target, tolerance=1e-4)
    spaces = [o.result.type.space for o in kernel_of(module).body.walk() if o.name == "alloc"]  # type: ignore[union-attr]
    assert "reg" in spaces, "sums are in registers"


def inner_conditions(loop: Op) -> list[Op]:
    return [op for op in loop.walk() if op.name == "if" or op.attrs.get("guard")]


def test_only_border_tiles_have_conditions_on_columns() -> None:
    module = oracle.build([tensor(dt.f32, (1, 2, 8, 112, 16))], depthwise(3, 1, False))
    oracle.scheduled(module, "x86-64-v4")
    tiles = [o for o in loops_in(kernel_of(module).body) if o.attrs["kind"] == "serial"]
    (interior,) = [o for o in tiles if any(i.name == "alloc" for i in o.blocks[0].ops)]
    conditions = inner_conditions(interior)
    assert len(conditions) == 1, "rows of the kernel above or below the image are skipped as a whole"
    assert conditions[0].name == "if" and conditions[0].blocks[0].ops[0].name == "for"


@pytest.mark.parametrize("target", ["zen3", "cascadelake"])
@pytest.mark.parametrize("size", [3, 7])
def test_sums_of_a_window_are_not_spilled(size: int, target: str) -> None:
    module = oracle.build([tensor(dt.f32, (1, 2, 8, 56, 16))], depthwise(size, 1, False))
    oracle.scheduled(module, target)
    machine = parse_target(target)
    text = assembly(kernel_ir(kernel_of(module), machine).text, machine)
    body = text[: text.index(".task:")]
    spilled = re.findall(r"vmovu?aps\s+%[xyz]mm\d+, -?\d*\(%rsp\)", body)
    assert not spilled
    register = "zmm" if target == "cascadelake" else "ymm"
    products = [line for line in body.splitlines() if "vfmadd" in line and register in line]
    assert products, "products and sums use whole registers"


@pytest.mark.parametrize("target", ["zen3", "zen4", "neoverse-n1"])
@pytest.mark.parametrize("width", [40, 70, 119, 250, 330, 384])
def test_sums_over_rows_read_few_elements_twice(width: int, target: str) -> None:
    """A row is cut into tiles of about equal sizes, so that the last one overlaps little of the one before it."""
    module = oracle.build([tensor(dt.f32, (6, 50, width))], outer_sum)
    oracle.scheduled(module, target)
    kernel = kernel_of(module)
    (load,) = [o for o in kernel.body.walk() if o.name == "load" and o.operands[0] is kernel.args[0]]
    read = math.prod(extent_of(o).value for o in enclosing_loops(load)) // (6 * 50)
    assert width <= read <= 1.25 * width + 16


@pytest.mark.parametrize("stride", [1, 3])
def test_lines_of_any_length_are_vectors(stride: int) -> None:
    """Also those that are shorter than every tile: one vector under a mask."""
    module = oracle.build(
        [tensor(dt.f32, (2, 3, var("h", 1), var("w", 1)))],
        lambda x: pool.max_pool(x, kernel=(3, 3), strides=(stride, stride), pads_begin=(1, 1), pads_end=(1, 1)),
    )
    oracle.scheduled(module, "x86-64-v4")
    stores = [op for op in kernel_of(module).body.walk() if op.name == "store"]
    assert len(stores) > 4
    assert all(any(o.attrs["kind"] == "vector" for o in enclosing_loops(op)) for op in stores)

"""Operators on some rows compute what the whole ones compute there, whatever the rows are."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.graph.programs import program, weights
from tilewright.graph.cascades.emit import emitted
from tilewright.graph.cascades.links import Link
from tilewright.graph.cascades.rows import NoRows
from tilewright.graph.cascades.steps import Cascade
from tilewright.ir.core import Block, Builder, Func, Module, Op, Value, replace_in_block
from tilewright.ir.sym import sym
from tilewright.ir.types import TensorType
from tilewright.ops import blocked, contract, elementwise, pool, view
from tilewright.ops.define.interp import evaluate_func

BODIES: dict[str, tuple[tuple[int, ...], int, Callable[[Value], Value]]] = {
    "conv": ((1, 3, 7, 5), 2, lambda x: contract.conv(x, weights(4, 3, 3, 3), pads_begin=(1, 1), pads_end=(1, 1))),
    "conv of strides": (
        (1, 3, 9, 5), 2,
        lambda x: contract.conv(x, weights(4, 3, 4, 3), strides=(2, 1), pads_begin=(3, 1), pads_end=(2, 1)),
    ),
    "conv of dilations": (
        (1, 2, 9, 4), 2,
        lambda x: contract.conv(x, weights(4, 2, 3, 1), dilations=(2, 1), pads_begin=(2, 0), pads_end=(2, 0)),
    ),
    "depthwise in blocks": (
        (1, 1, 6, 5, 16), 2,
        lambda x: blocked.depthwise_blocked(x, weights(16, 1, 3, 3), pads_begin=(1, 1), pads_end=(1, 2)),
    ),
    "max_pool": ((1, 2, 7, 5), 2, lambda x: pool.max_pool(x, kernel=(3, 3), strides=(2, 2), pads_begin=(1, 1))),
    "sum_pool": ((1, 2, 4, 5), 2, lambda x: pool.sum_pool(x, kernel=(4, 1), pads_begin=(3, 0), pads_end=(3, 0))),
    "pad": ((1, 2, 4, 3), 2, lambda x: view.pad(x, before=(0, 0, 2, 1), after=(0, 0, 3, 0), value=7)),
    "slice": ((1, 2, 9, 3), 2, lambda x: view.slice_(x, starts=(0, 0, 1, 0), sizes=(1, 2, 4, 3), steps=(1, 1, 2, 1))),
    "transpose": ((1, 5, 4, 3), 3, lambda x: view.transpose(x, perm=(0, 3, 2, 1))),
    "reshape of rows": ((1, 2, 3, 4, 5), 2, lambda x: view.reshape(x, shape=(1, 2, 12, 5))),
    "reshape into rows": ((1, 2, 12, 5), 2, lambda x: view.reshape(x, shape=(1, 2, 3, 4, 5))),
    "broadcast": ((1, 2, 5, 3), 2, lambda x: elementwise.mul(x, weights(1, 2, 5, 1))),
}  # fmt: skip


def _linked(shape: tuple[int, ...], axis: int, body: Callable[[Value], Value]) -> tuple[Module, Link]:
    """A program of one region, and how it computes rows."""
    module = program(body, shape)
    main = module.main
    *ops, last = main.body.ops
    constants = [op for op in ops if op.name == "constant"]
    inside = [op for op in ops if op.name != "constant"]
    reads = [*main.args, *(op.result for op in constants)]
    block = Block([v.type for v in reads])
    values = dict(zip(reads, block.args, strict=True))
    for op in inside:
        block.append(op.clone(values))
    block.append(Op("yield", [values[last.operands[0]]]))
    region = Op("fused", reads, [last.operands[0].type], {"strategy": "elementwise", "name": "k"}, [block])
    last.set_operands([region.result])
    replace_in_block(main.body, [*constants, region, last])
    for op in reversed(inside):
        op.drop()
    return module, Link(region, axis)


def _on_rows(module: Module, link: Link, start: int, stop: int, x: np.ndarray) -> np.ndarray:
    """What the region gives for some rows, of those rows of the input alone that it says it needs."""
    (needed, *_) = link.needs(start, stop)
    assert needed is not None
    part = np.take(x, range(needed.start, needed.stop), axis=needed.axis)
    given = Value(program(lambda v: v, part.shape).main.args[0].type, Block())
    block = Block([given.type])
    constants = [op.clone({}) for op in module.main.body.ops if op.name == "constant"]
    for op in constants:
        block.append(op)
    operands = [(block.args[0], needed), *((op.result, None) for op in constants)]
    op = block.append(link.on_rows(start, stop, operands))
    block.append(Op("return", [op.result]))
    alone = Module(constants=module.constants)
    main = alone.add(Func("main", block, attrs={"inputs": ("x",), "outputs": ("y",)}))
    return evaluate_func(main, alone, [part])[0]


@pytest.mark.parametrize("name", BODIES)
def test_some_rows_are_those_of_the_whole(name: str) -> None:
    shape, axis, body = BODIES[name]
    module, link = _linked(shape, axis, body)
    x = np.random.default_rng(5).standard_normal(shape).astype(np.float32)
    (whole,) = evaluate_func(module.main, module, [x])
    tried = 0
    for start in range(link.extent):
        for stop in {start + 1, start + 2, link.extent} & {*range(start + 1, link.extent + 1)}:
            try:
                found = _on_rows(module, link, start, stop, x)
            except NoRows:
                assert "reshape" in name and (start % link.unit or stop % link.unit)
                continue
            np.testing.assert_array_equal(found, np.take(whole, range(start, stop), axis=axis))
            tried += 1
    assert tried >= 3


@pytest.mark.parametrize(
    "body",
    [
        lambda x: view.pad(x, before=(0, 0, 2, 0), after=(0, 0, 0, 0), mode="reflect"),
        lambda x: view.reverse(x, axes=(2,)),
        lambda x: view.concat(x, x, axis=2),
        lambda x: view.concat(x, weights(1, 2, 5, 3), axis=2),
    ],
)
def test_rows_in_another_order_are_refused(body: Callable[[Value], Value]) -> None:
    with pytest.raises(NoRows, match=r"order|two ways|position|another shape"):
        _linked((1, 2, 5, 3), 2, body)


def test_operators_that_are_not_defined_on_some_rows_are_refused() -> None:
    with pytest.raises(NoRows, match="not defined on some rows"):
        _linked((1, 1, 1, 45), 3, lambda x: contract.conv_flat(x, weights(1, 4, 1, 3, 3), pitches=(5, 1), count=33))


def test_views_of_tensors_that_are_needed_as_a_whole_are_not_placed_again() -> None:
    """`a` and `u`, a view of it, and what is computed of `u`, are all read outside of the cascade."""
    module = program(lambda x: x, (1, 6, 4))
    (x,) = module.main.args

    def region(v: Value) -> Op:
        block = Block([v.type])
        with Builder(block):
            block.append(Op("yield", [elementwise.neg(block.args[0])]))
        return Op("fused", [v], [v.type], {"strategy": "elementwise", "name": "neg"}, [block])

    first = region(x)
    joined = Op("reshape", [first.result], [TensorType(x.tensor.dtype, (sym(1), sym(24)))], {"shape": (1, 24)})
    ops = [first, joined, region(joined.result)]
    needed = [op.result for op in ops]
    module.main.body.ops[-1].set_operands(needed)
    module.main.attrs["outputs"] = ("a", "u", "y")
    cascade = Cascade(ops, needed)
    replace_in_block(module.main.body, [*emitted(cascade, cascade.steps(3)), module.main.body.ops[-1]])
    data = np.arange(24, dtype=np.float32).reshape(1, 6, 4)
    for found, wanted in zip(evaluate_func(module.main, module, [data]), (-data, -data, data), strict=True):
        np.testing.assert_array_equal(found.ravel(), wanted.ravel())
    parts = [v for op in module.main.body.ops if op.name == "concat" for v in op.operands]
    assert len(parts) == len({*parts}) == 6

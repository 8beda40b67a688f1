"""Runs a program of scheduled kernels on the loop interpreter, beside the graph interpreter."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tilewright.graph.fusion.fuse import Fuse
from tilewright.graph.layout.recurrent_steps import RecurrentSteps
from tilewright.ir.core import Block, Builder, Func, Module, Value
from tilewright.ir.types import TensorType
from tilewright.ops.define.binding import bound_dims
from tilewright.ops.define.interp import evaluate_func
from tilewright.ops.define.loop_programs import run_kernel
from tilewright.passes import PassContext
from tilewright.schedule.sharing.kernels import schedule_regions
from tilewright.schedule.strategies import STRATEGIES
from tilewright.target.named import parse_target


def build(types: Sequence[TensorType], body: Callable[..., Value | tuple[Value, ...]]) -> Module:
    """A module whose main function is `body` applied to arguments of these types."""
    module = Module()
    block = Block(types, [f"x{k}" for k in range(len(types))])
    with Builder(block, module) as builder:
        results = body(*block.args)
        builder.emit("return", results if isinstance(results, tuple) else (results,))
    module.add(Func("main", block))
    return module


def expected(module: Module, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    return evaluate_func(module.main, module, list(arrays))


def scheduled(module: Module, target: str = "x86-64-v3") -> PassContext:
    """Lay recurrent steps out, fuse and schedule in place; the context with the remarks."""
    ctx = PassContext(parse_target(target))
    RecurrentSteps().run(module, ctx)
    Fuse(STRATEGIES).run(module, ctx)
    schedule_regions(module, ctx.target, STRATEGIES, ctx.remarks)
    return ctx


def run(module: Module, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Run the calls of a scheduled module on the loop interpreter."""
    env = bound_dims(module.main.args, list(arrays))
    values: dict[Value, np.ndarray] = dict(zip(module.main.args, arrays, strict=True))
    for op in module.main.body.ops:
        shapes = [tuple(d.evaluate(env) for d in v.type.shape) for v in op.results]  # type: ignore[union-attr]
        if op.name == "constant":
            values[op.result] = module.constants[op.attrs["name"]]
        elif op.name == "reshape":
            values[op.result] = values[op.operands[0]].reshape(shapes[0])
        elif op.name == "call":
            kernel = module.funcs[op.attrs["kernel"]]
            dims = [d.evaluate(env) for d in op.attrs["dims"]]
            outs = [np.zeros(s, v.type.dtype.storage) for s, v in zip(shapes, op.results, strict=True)]  # type: ignore[union-attr]
            ins = [np.ascontiguousarray(values[v]) for v in op.operands]
            names = [v.name for v in kernel.dims]
            run_kernel(kernel, [*ins, *outs], dict(zip(names, dims, strict=True)))
            values.update(zip(op.results, outs, strict=True))
    return [values[v] for v in module.main.returns]


def agree(
    types: Sequence[TensorType],
    body: Callable[..., Value | tuple[Value, ...]],
    arrays: Sequence[np.ndarray],
    target: str = "x86-64-v3",
    tolerance: float = 2e-5,
) -> tuple[Module, PassContext]:
    """Check that schedule and graph interpreter agree; the scheduled module and context."""
    module = build(types, body)
    wanted = expected(module, arrays)
    ctx = scheduled(module, target)
    found = run(module, arrays)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)
    return module, ctx

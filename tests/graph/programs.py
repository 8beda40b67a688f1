"""Programs of the graph level for tests, and how passes are checked against the interpreter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

import tilewright.ops  # noqa: F401 - fills the table of operators
from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Builder, Func, Module, Op, Value
from tilewright.ir.sym import Sym
from tilewright.ir.types import TensorType, tensor
from tilewright.ir.verify import verify_func
from tilewright.ops import contract, elementwise, reduce, view
from tilewright.ops.define import constant
from tilewright.ops.define.interp import evaluate_func
from tilewright.ops.define.spec import graph_spec
from tilewright.passes import Pass, PassContext, run_passes
from tilewright.target.named import parse_target


def program(body: Callable[..., Value | Sequence[Value]], *args: Sequence[int | Sym] | TensorType) -> Module:
    """A module whose main function takes f32 tensors of the given shapes (or types) and returns what `body`
    gives."""
    types = [a if isinstance(a, TensorType) else tensor(dt.f32, a) for a in args]
    block = Block(types, [f"x{k}" for k in range(len(types))])
    module = Module()
    module.add(Func("main", block))
    with Builder(block, module) as builder:
        results = body(*block.args)
        builder.emit("return", [results] if isinstance(results, Value) else list(results))
    return module


def inputs(module: Module, dims: int = 2, seed: int = 0) -> list[np.ndarray]:
    """Normal random arrays for the arguments; symbolic dims get `dims` elements."""
    rng = np.random.default_rng(seed)
    shapes = [[d.value if d.is_const else dims for d in a.type.shape] for a in module.main.args]
    return [
        rng.standard_normal(s).astype(a.type.dtype.storage)
        for s, a in zip(shapes, module.main.args, strict=True)
    ]


def run(module: Module, *passes: Pass, tolerance: float = 1e-5, target: str = "") -> PassContext:
    """Run passes in place; the program must stay legal and compute the same, twice in a row for each pass."""
    arrays = inputs(module)
    wanted = evaluate_func(module.main, module, arrays)
    ctx = PassContext(parse_target(target) if target else None)
    run_passes(module, passes, ctx, verify=lambda m: verify_func(m.main, graph_spec(m)))
    found = evaluate_func(module.main, module, arrays)
    for a, b in zip(wanted, found, strict=True):
        np.testing.assert_allclose(b, a, rtol=tolerance, atol=tolerance)
    return ctx


def ops(module: Module) -> list[str]:
    """Names of the main function's ops in order, without sources and `return`."""
    return [op.name for op in module.main.body.ops if op.name not in ("constant", "full", "return")]


def kernels(module: Module) -> list[list[str]]:
    """For each region the names of its ops, without sources and `yield`."""
    regions = [op for op in module.main.body.ops if op.name == "fused"]
    return [[o.name for o in r.blocks[0].ops if o.name not in ("full", "yield")] for r in regions]


def kinds(module: Module) -> Counter[str]:
    return Counter(op.attrs["strategy"] for op in module.main.body.ops if op.name == "fused")


def find(module: Module, name: str) -> Op:
    """The only op of that name."""
    (op,) = [o for o in module.main.body.ops if o.name == name]
    return op


def weights(*shape: int, seed: int = 1) -> Value:
    """A constant of normal random numbers."""
    return constant((np.random.default_rng(seed).standard_normal(shape) * 0.2).astype(np.float32), "w")


# Building blocks of networks


def conv(
    x: Value, filters: int, kernel: int, stride: int = 1, groups: int = 1, pad: int | None = None
) -> Value:
    """A 2-D convolution that keeps the size (divided by the stride)."""
    channels = x.type.shape[1].value
    p = kernel // 2 if pad is None else pad
    w = weights(filters, channels // groups, kernel, kernel, seed=filters + kernel)
    window = {"strides": (stride,) * 2, "pads_begin": (p, p), "pads_end": (p, p), "dilations": (1, 1)}
    return contract.conv(x, w, groups=groups, **window)


def batch_norm(x: Value) -> Value:
    """As a frontend gives it: a factor and an offset for each channel."""
    channels = x.type.shape[1].value
    return elementwise.add(
        elementwise.mul(x, weights(channels, 1, 1, seed=3)), weights(channels, 1, 1, seed=4)
    )


def relu(x: Value) -> Value:
    return elementwise.max_(x, 0.0)


def softmax(x: Value) -> Value:
    e = elementwise.exp(elementwise.sub(x, reduce.reduce_max(x, axes=(-1,))))
    return elementwise.div(e, reduce.reduce_sum(e, axes=(-1,)))


def layer_norm(x: Value) -> Value:
    width = x.type.shape[-1].value
    centred = elementwise.sub(x, reduce.reduce_mean(x, axes=(-1,)))
    variance = reduce.reduce_mean(elementwise.pow_(centred, 2.0), axes=(-1,))
    normal = elementwise.div(centred, elementwise.sqrt(elementwise.add(variance, 1e-5)))
    return elementwise.add(elementwise.mul(normal, weights(width, seed=5)), weights(width, seed=6))


def gelu(x: Value) -> Value:
    return elementwise.mul(
        elementwise.mul(x, elementwise.add(elementwise.erf(elementwise.div(x, 2**0.5)), 1.0)), 0.5
    )


def dense(x: Value, width: int, seed: int) -> Value:
    """x @ w + b."""
    product = contract.matmul(x, weights(x.type.shape[-1].value, width, seed=seed))
    return elementwise.add(product, weights(width, seed=seed + 1))


def encoder_layer(x: Value, mask: Value, heads: int) -> Value:
    """A layer of BERT, written as exporters write it."""
    batch, length, width = x.type.shape

    def split(y: Value) -> Value:
        apart = view.reshape(y, shape=(batch, length, heads, width // heads))
        return view.transpose(apart, perm=(0, 2, 1, 3))

    q, k, v = (split(dense(x, width.value, seed)) for seed in (10, 20, 30))
    scores = contract.matmul(q, view.transpose(k, perm=(0, 1, 3, 2)))
    scaled = elementwise.add(elementwise.div(scores, float(width.value // heads) ** 0.5), mask)
    mixed = view.transpose(contract.matmul(softmax(scaled), v), perm=(0, 2, 1, 3))
    joined = view.reshape(mixed, shape=(batch, length, width))
    x = layer_norm(elementwise.add(dense(joined, width.value, 40), x))
    wide = gelu(dense(x, 4 * width.value, 50))
    return layer_norm(elementwise.add(dense(wide, width.value, 60), x))

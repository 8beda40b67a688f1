"""Small kernels as lowering writes them, and ways to run them, for the tests of loop programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Builder, Func
from tilewright.ir.dtype import DType
from tilewright.ir.sym import Sym, ge0, sym
from tilewright.ir.types import buffer
from tilewright.loops.kernel_info import KernelInfo, kernel_info, new_kernel
from tilewright.ops.define.loop_programs import run_kernel
from tilewright.ops.define.scalar_builder import Array, ScalarBuilder

Body = Callable[..., None]


def kernel(
    ins: Sequence[Sequence[int | Sym]],
    outs: Sequence[Sequence[int | Sym]],
    body: Body,
    dims: Sequence[Sym] = (),
    dtype: DType = dt.f64,
) -> Func:
    """A kernel over dense buffers of these shapes; `body(trace, *inputs, *outputs)` writes it."""
    types = [buffer(dtype, shape) for shape in (*ins, *outs)]
    names = [f"x{k}" for k in range(len(ins))] + [f"y{k}" for k in range(len(outs))]
    block = Block(types, names)
    builder = Builder(block)
    trace = ScalarBuilder(builder)
    body(trace, *[trace.array(a) for a in block.args])
    builder.emit("return")
    return new_kernel("k", block, dims, KernelInfo(outputs=len(outs)))


def matmul(m: int | Sym, n: int | Sym, k: int, dims: Sequence[Sym] = (), dtype: DType = dt.f64) -> Func:
    """y[m, n] = max(x0[m, k] @ x1[k, n] + x2[n], 0), with the product in a scratch buffer."""

    def body(t: ScalarBuilder, a: Array, b: Array, bias: Array, y: Array) -> None:
        c = t.alloc(dtype, (m, n))
        c.value.name = "c"
        product_into(t, a, b, c, m, n, k)
        with t.loop(m, "m") as i, t.loop(n, "col") as j:
            y.store((i, j), t.apply("max", c[i, j] + bias[j], 0))

    return kernel([(m, k), (k, n), (n,)], [(m, n)], body, dims, dtype)


def plain_matmul(m: int | Sym, n: int | Sym, k: int, dims: Sequence[Sym] = ()) -> Func:
    """y[m, n] = x0[m, k] @ x1[k, n], straight into the output."""
    return kernel(
        [(m, k), (k, n)], [(m, n)], lambda t, a, b, y: product_into(t, a, b, y, m, n, k), dims
    )  # fmt: skip


def product_into(t: ScalarBuilder, a: Array, b: Array, c: Array, m: int | Sym, n: int | Sym, k: int | Sym) -> None:
    with t.loop(m, "i") as i, t.loop(n, "j") as j:
        c.store((i, j), 0)
        with t.loop(k, "k") as p:
            c.store((i, j), c[i, j] + a[i, p] * b[p, j])


def convolution(channels: int, out: int, size: int, kernel_size: int, pad: int) -> Func:
    """y[o, h, w] = sum over c, ky, kx of x0[c, h + ky - pad, w + kx - pad] * x1[o, c, ky, kx], zero padded;
    relu."""

    def body(t: ScalarBuilder, x: Array, w: Array, y: Array) -> None:
        full = size + 2 * pad - kernel_size + 1
        acc = t.alloc(dt.f64, (out, full, full))
        acc.value.name = "acc"
        with t.loop(out, "o") as o, t.loop(full, "h") as h, t.loop(full, "w") as v:
            acc.store((o, h, v), 0)
            with t.loop(channels, "c") as c, t.loop(kernel_size, "ky") as ky, t.loop(kernel_size, "kx") as kx:
                r, s = h + ky - pad, v + kx - pad
                guard = [g for g in (ge0(r), ge0(size - 1 - r), ge0(s), ge0(size - 1 - s)) if g != 1]
                acc.store((o, h, v), acc[o, h, v] + x.load((c, r, s), guard) * w[o, c, ky, kx])
        with t.loop(out, "p") as o, t.loop(full, "q") as h, t.loop(full, "r") as v:
            y.store((o, h, v), t.apply("max", acc[o, h, v], 0))

    full = size + 2 * pad - kernel_size + 1
    return kernel(
        [(channels, size, size), (out, channels, kernel_size, kernel_size)], [(out, full, full)], body
    )


def arguments(func: Func, env: dict[str, int] | None = None, seed: int = 0) -> list[np.ndarray]:
    """Small random integers (as the argument's dtype) for every argument; outputs too, so that stale reads
    show."""
    rng = np.random.default_rng(seed)
    arrays = []
    for value in func.args:
        shape = tuple(sym(d).evaluate(env or {}) for d in value.type.shape)  # type: ignore[union-attr]
        data = rng.integers(-4, 5, prod(shape)).reshape(shape)
        arrays.append(np.ascontiguousarray(data.astype(value.type.dtype.storage)))  # type: ignore[union-attr]
    return arrays


def run(func: Func, arrays: Sequence[np.ndarray], env: dict[str, int] | None = None) -> list[np.ndarray]:
    """The outputs of the kernel for copies of these arguments."""
    copies = [a.copy() for a in arrays]
    run_kernel(func, copies, env)
    return copies[len(copies) - kernel_info(func).outputs :]

"""Samples of elementwise operators, views and reductions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import erf
from typing import Any

import numpy as np

from tests.ops.sampling import BF16, FLOATS, INTS, Sample, normal, sample, wide


def elementwise() -> Iterator[Sample]:
    positive = {"log", "sqrt", "rsqrt"}
    inside = {"asin", "acos", "atanh"}
    unary: dict[str, Callable[[Any], Any]] = {
        "neg": np.negative, "abs": np.abs, "sign": np.sign, "floor": np.floor, "ceil": np.ceil,
        "round": np.round, "trunc": np.trunc, "sqrt": np.sqrt, "rsqrt": lambda x: x**-0.5, "exp": np.exp,
        "expm1": np.expm1, "log": np.log, "log1p": np.log1p, "tanh": np.tanh,
        "sigmoid": lambda x: np.exp(x) / (1 + np.exp(x)), "erf": np.vectorize(erf, otypes=[np.float64]),
        "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan,
        "sinh": np.sinh, "cosh": np.cosh, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
        "is_nan": np.isnan, "is_inf": np.isinf,
    }  # fmt: skip
    for name, fn in unary.items():
        for dtype in FLOATS:
            for shape in ((), (7,), (3, 0), (2, 3, 5)):
                x = normal(shape, dtype)
                if name in positive or name == "log1p":
                    x = np.abs(x) + x.dtype.type(0.1)
                elif name in inside:
                    x = (
                        np.clip(x, -0.9, 0.9).astype(dtype)
                        if dtype != BF16
                        else np.tanh(wide(x)).astype(BF16)
                    )
                elif name == "acosh":
                    x = np.abs(x) + x.dtype.type(1.5)
                elif name in ("is_nan", "is_inf") and x.ndim == 1:
                    x[:3] = np.nan, np.inf, -np.inf
                loose = 20 if name in ("tan", "sinh", "cosh", "exp", "expm1") else 4
                yield sample(name, [x], lambda fn=fn, x=x: fn(wide(x)), loose=loose)
    for dtype in INTS:
        x = normal((3, 4), dtype)
        yield sample("neg", [x], lambda x=x: -x)
        yield sample("abs", [x], lambda x=x: np.abs(x))
        yield sample("not", [x], lambda x=x: ~x)
    x = normal((5,), bool)
    yield sample("not", [x], lambda x=x: ~x)
    yield from _binary()


def _binary() -> Iterator[Sample]:
    shapes = (((3, 4), (3, 4)), ((), (5,)), ((2, 1, 3), (4, 1)), ((0, 3), (1, 3)))
    numeric = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "min": np.minimum, "max": np.maximum}
    compare = {
        "eq": np.equal,
        "ne": np.not_equal,
        "lt": np.less,
        "le": np.less_equal,
        "gt": np.greater,
        "ge": np.greater_equal,
    }
    for left, right in shapes:
        for dtype in (*FLOATS, *INTS):
            a, b = normal(left, dtype), normal(right, dtype, 1)
            for name, fn in (numeric | compare).items():
                yield sample(name, [a, b], lambda fn=fn, a=a, b=b: fn(wide(a), wide(b)))
        for dtype in FLOATS:
            a, b = normal(left, dtype), np.abs(normal(right, dtype, 1)) + dtype.type(0.5)
            yield sample("div", [a, b], lambda a=a, b=b: wide(a) / wide(b))
            yield sample("rem", [a, b], lambda a=a, b=b: np.fmod(wide(a), wide(b)), loose=4)
            yield sample("mod", [a, b], lambda a=a, b=b: np.mod(wide(a), wide(b)), loose=4)
            yield sample("quotient", [a, b, 1 / b], lambda a=a, b=b: wide(a) / wide(b))
            yield sample("atan2", [a, b], lambda a=a, b=b: np.arctan2(wide(a), wide(b)))
            yield sample("pow", [b, a], lambda a=a, b=b: wide(b) ** wide(a), loose=20)
        for dtype in INTS:
            a, b = normal(left, dtype), normal(right, dtype, 1)
            b[...] = np.where(b == 0, 3, b)
            yield sample("div", [a, b], lambda a=a, b=b: _truncated(a, b))
            yield sample("rem", [a, b], lambda a=a, b=b: np.fmod(a, b))
            yield sample("mod", [a, b], lambda a=a, b=b: np.mod(a, b))
            yield sample("and", [a, b], lambda a=a, b=b: a & b)
            yield sample("or", [a, b], lambda a=a, b=b: a | b)
            yield sample("xor", [a, b], lambda a=a, b=b: a ^ b)
    low = np.array([-128, -128, 127], np.int8)
    yield sample(
        "div", [low, np.array([-1, 1, -1], np.int8)], lambda: np.array([-128, -128, -127], np.int8), "wraps"
    )
    yield sample("rem", [low, np.array([-1, 1, -1], np.int8)], lambda: np.zeros(3, np.int8), "wraps")
    a = np.array([0, 1, 5, 255], np.uint8)
    counts = np.array([9, 3, 1, 7], np.uint8)
    yield sample("shl", [a, counts], lambda: np.array([0, 8, 10, 128], np.uint8))
    yield sample("shr", [a, counts], lambda: np.array([0, 0, 2, 1], np.uint8))
    yield sample(
        "pow", [np.array([2, 3], np.int32), np.array([5, 2], np.int64)], lambda: np.array([32, 9], np.int32)
    )
    flags = normal((3, 4), bool)
    for name, fn in (
        ("and", np.logical_and),
        ("or", np.logical_or),
        ("xor", np.logical_xor),
        ("eq", np.equal),
    ):
        yield sample(name, [flags, flags[:1]], lambda fn=fn: fn(flags, flags[:1]))
    for dtype in (*FLOATS, *INTS, np.dtype(bool)):
        a, b = normal((4,), dtype), normal((3, 1), dtype, 1)
        yield sample("select", [flags, a, b], lambda a=a, b=b: np.where(flags, a, b))
    edge = np.array([np.nan, np.inf, -np.inf, 0.0], np.float32)
    for name, fn in (("min", np.minimum), ("max", np.maximum)):
        yield sample(
            name, [edge, np.zeros(4, np.float32)], lambda fn=fn: fn(edge, np.zeros(4, np.float32)), "nan"
        )


def _truncated(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    exact = [
        int(abs(int(x)) // abs(int(y))) * (1 if (x < 0) == (y < 0) else -1) for x, y in np.broadcast(a, b)
    ]
    return np.array(exact, object).astype(a.dtype).reshape(np.broadcast_shapes(a.shape, b.shape))


def views() -> Iterator[Sample]:
    from tilewright.ir import dtype as dt

    x = normal((2, 3, 4))
    yield sample("transpose", [x], lambda: x.transpose(2, 0, 1), perm=(2, 0, 1))
    yield sample("transpose", [x], lambda: x.transpose(0, 2, 1), perm=(0, -1, 1), note="negative")
    for shape in ((24,), (4, 3, 2), (2, 12), (6, 4), (1, 2, 1, 3, 4, 1), (8, 3)):
        yield sample("reshape", [x], lambda shape=shape: x.reshape(shape), note=str(shape), shape=shape)
    with_box = x.copy()
    with_box[1:2, 1:, 2:4] = x[:1, :2, :2] * 2
    yield sample("put", [x, x[:1, :2, :2] * 2], lambda: with_box, at=(1, 1, 2))
    empty = normal((0, 3))
    yield sample("reshape", [empty], lambda: empty.reshape(5, 0, 2), shape=(5, 0, 2))
    yield sample("reshape", [x[0, 0, :1]], lambda: x[0, 0, 0].reshape(()), shape=())
    yield sample("expand", [x[:, :1]], lambda: np.broadcast_to(x[:, :1], (5, 2, 3, 4)), shape=(5, 2, 3, 4))
    yield sample("expand", [x[0, 0, 0]], lambda: np.full((2, 0), x[0, 0, 0]), shape=(2, 0))
    yield sample("stretch", [x[:, :1]], lambda: np.broadcast_to(x[:, :1], (2, 3, 4)), shape=(2, 3, 4))
    yield sample("slice", [x], lambda: x[1:, 2::-2, 1:3], starts=(1, 2, 1), sizes=(1, 2, 2), steps=(1, -2, 1))
    yield sample("slice", [x], lambda: x[2:], starts=(2, 0, 0), sizes=(0, 3, 4))
    for mode in ("constant", "edge", "reflect", "wrap"):
        attrs = {"constant_values": 7.0} if mode == "constant" else {}
        width = ((0, 0), (2, 1), (3, 3))
        yield sample(
            "pad", [x], lambda mode=mode, attrs=attrs, w=width: np.pad(x, w, mode, **attrs),
            before=(0, 2, 3), after=(0, 1, 3), mode=mode, value=7.0, note=mode,
        )  # fmt: skip
    yield sample(
        "pad",
        [x],
        lambda: np.pad(x[:, 1:, :2], ((0, 0), (0, 2), (1, 0))),
        before=(0, -1, 1),
        after=(0, 2, -2),
    )
    yield sample("concat", [x, x[:, :1], x[:, :0], x], lambda: np.concatenate([x, x[:, :1], x], 1), axis=-2)
    yield sample("concat", [x], lambda: x, axis=0)
    yield sample("reverse", [x], lambda: x[::-1, :, ::-1], axes=(0, -1))
    yield sample("squeeze", [x[:, :1]], lambda: x[:, 0], axes=(1,))
    yield sample("unsqueeze", [x], lambda: x[:, None, :, :, None], axes=(1, -1))
    yield sample("flatten", [x], lambda: x.reshape(6, 4), axis=2)
    yield sample("flatten", [x], lambda: x.reshape(1, 24), axis=0)
    yield sample("split", [x], lambda: (x[:, :2], x[:, 2:]), sizes=(2, 1), axis=1)
    yield sample("tile", [x], lambda: np.tile(x, (2, 1, 3)), repeats=(2, 1, 3))
    yield sample("tile", [x], lambda: np.tile(x, (1, 0, 1)), repeats=(1, 0, 1), note="none")
    for upper in (True, False):
        fn = np.triu if upper else np.tril
        for k in (-1, 0, 2, 9):
            yield sample(
                "triangle", [x], lambda fn=fn, k=k: fn(x, k), diagonal=k, upper=upper, note=f"{upper}{k}"
            )
    yield sample("full", [], lambda: np.full((2, 3), 3, np.int8), value=3, dtype=dt.i8, shape=(2, 3))
    yield sample(
        "iota", [], lambda: np.broadcast_to(np.arange(3.0), (2, 3)), shape=(2, 3), axis=1, dtype=dt.f64
    )
    floats = np.array([-1.7, 0.0, 2.5, 300.0], np.float32)
    for target in (dt.i32, dt.bool_, dt.f16, dt.bf16, dt.f64, dt.i64):
        yield sample(
            "cast", [floats], lambda t=target: floats.astype(t.storage), dtype=target, note=str(target)
        )
    ints = np.array([-1, 0, 300], np.int32)
    for target in (dt.i8, dt.u8, dt.u64, dt.f32, dt.bool_):
        yield sample("cast", [ints], lambda t=target: ints.astype(t.storage), dtype=target, note=str(target))
    for given, target in (
        (floats, dt.i32), (floats, dt.u32), (ints, dt.f32), (floats.astype(np.float64), dt.i64),
        (floats.astype(np.float16), dt.bf16), (floats.astype(np.float16), dt.u16), (ints.astype(np.uint32), dt.i32),
        (np.array([0, 1, 1], np.int8), dt.bool_), (np.array([True, False]), dt.u8),
    ):  # fmt: skip
        note = f"{given.dtype} {target}"
        yield sample("bitcast", [given], lambda g=given, t=target: g.view(t.storage), dtype=target, note=note)


def reductions() -> Iterator[Sample]:
    def logsumexp(x: np.ndarray, **kw: Any) -> Any:
        return np.log(np.sum(np.exp(x), **kw))

    floats: dict[str, Callable[..., Any]] = {
        "reduce_sum": np.sum, "reduce_prod": np.prod, "reduce_min": np.min, "reduce_max": np.max,
        "reduce_mean": np.mean, "reduce_logsumexp": logsumexp,
        "reduce_sum_square": lambda x, **kw: np.sum(x * x, **kw),
        "reduce_l1": lambda x, **kw: np.sum(np.abs(x), **kw),
        "reduce_l2": lambda x, **kw: np.sqrt(np.sum(x * x, **kw)),
    }  # fmt: skip
    for name, fn in floats.items():
        for dtype in FLOATS:
            x = normal((3, 4, 5), dtype)
            for axes in ((1,), (0, 2), (-1,), (0, 1, 2)):
                for keep in (True, False):
                    yield sample(
                        name, [x], lambda fn=fn, x=x, a=axes, k=keep: fn(wide(x), axis=a, keepdims=k),
                        axes=axes, keepdims=keep, loose=8, note=f"{axes}{keep}",
                    )  # fmt: skip
    x = np.abs(normal((3, 5))) + 1
    yield sample("reduce_log_sum", [x], lambda: np.log(wide(x).sum(1)), axes=(1,), keepdims=False)
    for dtype in (np.int32, np.int64, np.int8, np.uint8):
        i = normal((4, 5), dtype)
        yield sample("reduce_sum", [i], lambda i=i: i.sum(0, dtype=i.dtype), axes=(0,), keepdims=False)
        yield sample("reduce_max", [i], lambda i=i: i.max(1, keepdims=True), axes=(1,))
        yield sample("reduce_min", [i], lambda i=i: i.min(1, keepdims=True), axes=(1,))
    flags = normal((4, 5), bool)
    yield sample("reduce_and", [flags], lambda: flags.all(1), axes=(1,), keepdims=False)
    yield sample("reduce_or", [flags], lambda: flags.any(1), axes=(1,), keepdims=False)
    yield sample("reduce_max", [flags], lambda: flags.max(0), axes=(0,), keepdims=False)
    none = normal((3, 0))
    yield sample("reduce_sum", [none], lambda: np.zeros((3, 1)), axes=(1,))
    yield sample("reduce_prod", [none], lambda: np.ones((3, 1)), axes=(1,))
    yield sample("reduce_max", [none], lambda: np.full(3, -np.inf), axes=(1,), keepdims=False)
    large = np.array([[1000.0, 1001.0], [-np.inf, -np.inf]], np.float32)
    yield sample(
        "reduce_logsumexp",
        [large],
        lambda: np.array([1001.31326169, -np.inf]),
        axes=(1,),
        keepdims=False,
        note="overflow",
    )
    ties = np.array([[1, 3, 3, 2], [5, 0, 5, 0]], np.float32)
    yield sample("argmax", [ties], lambda: np.array([[1], [0]]), axis=1)
    yield sample("argmax", [ties], lambda: np.array([2, 2]), axis=1, keepdims=False, last=True)
    yield sample("argmin", [ties], lambda: np.array([0, 1]), axis=1, keepdims=False)
    yield sample(
        "argmin", [ties.astype(np.int8)], lambda: np.array([0, 3]), axis=-1, keepdims=False, last=True
    )
    nans = np.array([1, np.nan, 9, np.nan], np.float32)
    yield sample("argmax", [nans], lambda: np.array(1), axis=0, keepdims=False, note="nan")

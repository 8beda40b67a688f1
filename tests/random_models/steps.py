"""The steps by which random models grow: each adds a node or a few, with random attributes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.random_models.growth import FLOATS, INTS, Growth, Refused
from tests.random_models.host_values import HOST_VALUES
from tests.random_models.networks import NETWORKS
from tests.random_models.others import OTHERS
from tests.random_models.rows import ROWS
from tests.random_models.subgraphs import SUBGRAPHS
from tests.random_models.templates import TEMPLATES

Step = Callable[[Growth], object]

EXACT_UNARY = ("Abs", "Neg", "Relu", "Identity")
ROUNDING = ("Floor", "Ceil", "Round", "Sign")
SMOOTH = (
    "Exp", "Tanh", "Sigmoid", "Erf", "Sin", "Cos", "Softplus", "Softsign", "Elu", "Selu", "Celu", "Mish", "HardSwish",
    "HardSigmoid", "LeakyRelu", "Atan", "Asinh", "Sinh", "Cosh", "Gelu",
)  # fmt: skip
POSITIVE = ("Log", "Sqrt", "Reciprocal")
COMPARISONS = ("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual")
REDUCTIONS = (
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSumExp",
    "ReduceProd",
)  # fmt: skip


# Elementwise


def unary(g: Growth) -> None:
    x = g.pick(lambda v: v.dtype != "bool")
    g.emit(g.random.choice(EXACT_UNARY), x, exact=True)


def smooth(g: Growth) -> None:
    x = g.float()
    op = g.random.choice(SMOOTH)
    if op in ("HardSwish", "Erf", "Gelu") and x.dtype == "float64":
        raise Refused  # the reference computes them no better than in float32
    g.emit(op, x)


def of_positive(g: Growth) -> None:
    (y,) = g.emit("Abs", g.float(), exact=True)
    (z,) = g.emit("Add", y, np.array(g.random.choice((0.5, 1, 2)), y.dtype))
    g.emit(g.random.choice(POSITIVE), z)


def rounding(g: Growth) -> None:
    g.emit(g.random.choice(ROUNDING), g.float(), decides=True)


def binary(g: Growth) -> None:
    x = g.pick(lambda v: v.dtype != "bool")
    operands = [x, g.like(x)]
    g.random.shuffle(operands)
    g.emit(g.random.choice(("Add", "Sub", "Mul", "Max", "Min")), *operands, exact=True)


def variadic(g: Growth) -> None:
    x = g.float()
    g.emit(
        g.random.choice(("Sum", "Mean", "Max", "Min")), x, *(g.like(x) for _ in range(g.random.randint(0, 3)))
    )


def division(g: Growth) -> None:
    x = g.pick(lambda v: v.dtype in (*FLOATS, "int64", "int32"))
    divisor = g.elements(g.part_of(x.shape), x.dtype)
    divisor[divisor == 0] = 2
    if x.is_float:
        g.emit("Div", x, divisor)
    else:
        g.emit(g.random.choice(("Div", "Mod")), x, divisor, exact=True)


def power(g: Growth) -> None:
    x = g.float()
    if g.chance(0.6):
        g.emit("Pow", x, np.array(g.random.choice((0, 1, 2, 3)), x.dtype))
    else:
        (positive,) = g.emit("Sigmoid", x)
        g.emit("Pow", positive, g.elements(g.part_of(x.shape), x.dtype))


def clip(g: Growth) -> None:
    x = g.pick(lambda v: v.is_float or v.dtype in ("int64", "int32"))
    low, high = sorted(g.random.sample((-3, -1, 0, 1, 2, 6), 2))
    bounds = [np.array(b, x.dtype) if g.chance(0.8) else None for b in (low, high)]
    g.emit("Clip", x, *bounds, exact=True)


def comparison(g: Growth) -> None:
    x = g.pick(lambda v: v.dtype in ("float32", "float64", "int64", "int32"))
    g.emit(g.random.choice(COMPARISONS), x, g.like(x), decides=True)


def logic(g: Growth) -> None:
    x = g.pick(lambda v: v.dtype == "bool")
    if g.chance(0.3):
        g.emit("Not", x, exact=True)
    else:
        g.emit(g.random.choice(("And", "Or", "Xor")), x, g.like(x), exact=True)


def bits(g: Growth) -> None:
    x = g.pick(lambda v: v.dtype in INTS)
    g.emit(g.random.choice(("BitwiseAnd", "BitwiseOr", "BitwiseXor")), x, g.like(x), exact=True)


def where(g: Growth) -> None:
    x = g.pick(lambda v: v.dtype != "bool")
    condition = g.like(g.pick(lambda v: v.dtype == "bool"), x.shape) if g.chance(0.7) else None
    if condition is None:
        condition = g.elements(g.part_of(x.shape), "bool")
    operands = [x, g.like(x)]
    g.random.shuffle(operands)
    g.emit("Where", condition, *operands, exact=True)


def cast(g: Growth) -> None:
    x = g.pick()
    to = g.random.choice(
        ("float32", "float32", "int64", "int32", "bool", "float64", "uint8", "int8", "float16")
    )
    if x.is_float and to not in FLOATS and to != "bool":  # what does not fit is undefined
        limits = np.iinfo(to)
        if x.array.size and not limits.min <= float(x.array.min()) <= float(x.array.max()) <= limits.max:
            raise Refused
    code = {
        "float32": 1,
        "uint8": 2,
        "int8": 3,
        "int32": 6,
        "int64": 7,
        "bool": 9,
        "float16": 10,
        "float64": 11,
    }[to]
    g.emit("Cast", x, to=code, exact=True, decides=to not in FLOATS)


# Views


def transpose(g: Growth) -> None:
    x = g.pick()
    perm = list(range(x.rank))
    g.random.shuffle(perm)
    g.emit("Transpose", x, exact=True, **({"perm": perm} if perm and g.chance(0.8) else {}))


def reshape(g: Growth) -> None:
    x = g.pick()
    shape = list(x.shape)
    for _ in range(g.random.randint(1, 2)):
        at = g.random.randrange(len(shape) + 1)
        if g.chance(0.4):
            shape.insert(at, 1)
        elif at < len(shape) and shape[at] % 2 == 0 and shape[at] and g.chance(0.5):
            shape[at : at + 1] = g.random.choice(([2, shape[at] // 2], [shape[at] // 2, 2]))
        elif at < len(shape) - 1:
            shape[at : at + 2] = [shape[at] * shape[at + 1]]
    if len(shape) > 5:
        raise Refused
    if 0 not in shape and shape and g.chance(0.4):
        shape[g.random.randrange(len(shape))] = -1
    g.emit("Reshape", x, np.array(shape, np.int64), exact=True, allowzero=int(0 in shape))


def reshape_of_shape(g: Growth) -> None:
    """Sizes that are computed from those of a tensor, as exporters do."""
    x = g.pick(lambda v: v.rank >= 2 and v.array.size > 0)
    (shape,) = g.emit("Shape", x, exact=True)
    at = g.random.randrange(x.rank)
    (size,) = g.emit("Gather", shape, np.array([at], np.int64), exact=True)
    (target,) = g.emit("Concat", *g.random.sample([size, np.array([-1], np.int64)], 2), axis=0, exact=True)
    g.emit("Reshape", x, target, exact=True)
    g.least_size = 1  # a size of 0 would copy the one that the operand has there


def flatten(g: Growth) -> None:
    x = g.pick()
    g.emit("Flatten", x, axis=g.random.randint(0, x.rank), exact=True)


def unsqueeze(g: Growth) -> None:
    x = g.pick(lambda v: v.rank < 5)
    count = g.random.randint(1, 2)
    axes = g.random.sample(range(x.rank + count), count)
    g.emit("Unsqueeze", x, np.array(axes, np.int64), exact=True)


def squeeze(g: Growth) -> None:
    x = g.pick(lambda v: 1 in v.shape)
    ones = [k for k, d in enumerate(x.shape) if d == 1]
    axes = g.random.sample(ones, g.random.randint(1, len(ones)))
    g.emit("Squeeze", x, np.array(axes, np.int64) if g.chance(0.8) else None, exact=True)


def slice_(g: Growth) -> None:
    x = g.pick(lambda v: v.rank > 0)
    axes = g.random.sample(range(x.rank), g.random.randint(1, x.rank))
    starts, ends, steps = [], [], []
    for axis in axes:
        n = x.shape[axis]
        step = g.random.choice((1, 1, 1, 2, 3, -1, -2))
        bounds = [g.random.randint(-n - 1, n + 1) for _ in range(2)]
        start, end = g.random.choice((bounds, [0, 2**31], [0, n - 1], [1, 2**62]))
        if step < 0:
            start, end = g.random.choice(((-1, -(2**62)), (n, 0), tuple(bounds)))
        starts.append(start), ends.append(end), steps.append(step)
    arrays = [np.array(a, np.int64) for a in (starts, ends, axes, steps)]
    g.emit("Slice", x, *arrays, exact=True)


def concat(g: Growth) -> None:
    x = g.pick(lambda v: v.rank > 0)
    axis = g.axis(x)

    def fits(shape: tuple[int, ...]) -> bool:
        return len(shape) == x.rank and all(
            a == b for k, (a, b) in enumerate(zip(shape, x.shape, strict=True)) if k != axis % x.rank
        )

    others = [v for v in g.values if v.dtype == x.dtype and fits(v.shape)]
    parts = [x, *g.random.choices(others, k=g.random.randint(1, 2))]
    if g.chance(0.3):
        parts.append(g.elements(x.shape, x.dtype))  # type: ignore[arg-type]
    g.emit("Concat", *parts, axis=axis, exact=True)


def split(g: Growth) -> None:
    x = g.pick(lambda v: v.rank > 0 and max(v.shape) > 1)
    axis = g.random.choice([k for k, d in enumerate(x.shape) if d > 1])
    n = x.shape[axis]
    if g.chance(0.5):
        at = g.random.randint(0, n)
        g.emit("Split", x, np.array([at, n - at], np.int64), outputs=2, axis=axis, exact=True)
    else:
        count = g.random.randint(1, min(3, n))
        g.emit("Split", x, outputs=count, num_outputs=count, axis=axis, exact=True)


def expand(g: Growth) -> None:
    x = g.pick(lambda v: v.rank < 5)
    shape = [g.random.choice((d, d, g.dim())) if d == 1 else d for d in x.shape]
    if g.chance(0.3):
        shape.insert(0, g.random.choice((1, 2, 3)))
    g.emit("Expand", x, np.array(shape, np.int64), exact=True)


def tile(g: Growth) -> None:
    x = g.pick(lambda v: v.rank > 0)
    g.emit("Tile", x, np.array([g.random.choice((1, 1, 2, 3)) for _ in x.shape], np.int64), exact=True)


def pad(g: Growth) -> None:
    x = g.pick(lambda v: v.rank > 0 and v.dtype in ("float32", "float64", "int64", "int32"))
    mode = g.random.choice(("constant", "constant", "edge", "reflect", "wrap"))
    if mode == "wrap" and g.opset < 19:
        raise Refused
    least = min((d for d in x.shape), default=0)
    if mode != "constant" and least < 3:
        raise Refused
    pads = [g.random.choice((0, 0, 1, 2)) for _ in range(2 * x.rank)]
    if mode == "constant" and g.chance(0.2) and least > 2:
        pads[g.random.randrange(len(pads))] = -1
    value = np.array(g.random.choice((0, 1, -2)), x.dtype) if mode == "constant" and g.chance(0.5) else None
    g.emit("Pad", x, np.array(pads, np.int64), *([] if value is None else [value]), mode=mode, exact=True)


def trilu(g: Growth) -> None:
    x = g.pick(lambda v: v.rank >= 2)
    k = np.array(g.random.randint(-3, 3), np.int64) if g.chance(0.7) else None
    g.emit("Trilu", x, k, upper=g.random.randint(0, 1), exact=True)


def space(g: Growth) -> None:
    x = g.float(4, 4)
    if g.chance(0.5):
        g.emit("SpaceToDepth", x, blocksize=2, exact=True)
    else:
        g.emit("DepthToSpace", x, blocksize=2, mode=g.random.choice(("DCR", "CRD")), exact=True)


# By index


def indices(g: Growth, n: int, shape: tuple[int, ...]) -> np.ndarray:
    if n == 0:
        raise Refused
    return g.rng.integers(-n, n, shape).astype(g.random.choice((np.int64, np.int32)))


def gather(g: Growth) -> None:
    x = g.pick(lambda v: v.rank > 0)
    axis = g.axis(x)
    shape = tuple(g.random.randint(0 if g.chance(0.1) else 1, 4) for _ in range(g.random.randint(0, 2)))
    g.emit("Gather", x, indices(g, x.shape[axis], shape), axis=axis, exact=True)


def gather_elements(g: Growth) -> None:
    x = g.pick(lambda v: v.rank > 0)
    axis = g.axis(x)
    shape = tuple(g.random.randint(1, max(1, d)) for d in x.shape)
    g.emit("GatherElements", x, indices(g, x.shape[axis], shape), axis=axis, exact=True)


def gather_nd(g: Growth) -> None:
    x = g.pick(lambda v: v.rank > 0 and 0 not in v.shape)
    depth = g.random.randint(1, x.rank)
    rows = g.random.randint(1, 4)
    columns = [g.rng.integers(0, x.shape[k], rows) for k in range(depth)]
    g.emit("GatherND", x, np.stack(columns, axis=-1).astype(np.int64), exact=True)


def scatter(g: Growth) -> None:
    x = g.pick(
        lambda v: v.rank > 0 and 0 not in v.shape and v.dtype in ("float32", "float64", "int64", "int32")
    )
    if g.chance(0.5):
        axis = g.random.randrange(x.rank)
        n = x.shape[axis]
        shape = tuple(g.random.randint(1, d) for d in x.shape)
        order = np.argsort(g.rng.random((*shape[:axis], n, *shape[axis + 1 :])), axis=axis)
        at = np.take(order, range(shape[axis]), axis=axis).astype(np.int64)
        how = g.random.choice(("none", "add", "max"))
        g.emit("ScatterElements", x, at, g.elements(shape, x.dtype), axis=axis, reduction=how, exact=True)
    else:
        rows = g.rng.permutation(x.shape[0])[: g.random.randint(1, x.shape[0])]
        update = g.elements((len(rows), *x.shape[1:]), x.dtype)
        g.emit("ScatterND", x, rows.reshape(-1, 1).astype(np.int64), update, exact=True)


def one_hot(g: Growth) -> None:
    x = g.pick(lambda v: v.dtype in ("int64", "int32") and v.rank < 4)
    values = np.array([0, 1], np.float32) if g.chance(0.7) else np.array([-1, 3], np.float32)
    g.emit(
        "OneHot",
        x,
        np.array(g.random.randint(1, 6), np.int64),
        values,
        axis=g.random.choice((-1, 0)),
        exact=True,
    )


# Reductions


def some_axes(g: Growth, rank: int) -> np.ndarray | None:
    if not rank or g.chance(0.2):
        return None
    axes = g.random.sample(range(rank), g.random.randint(1, rank))
    return np.array([a - rank * g.random.randint(0, 1) for a in axes], np.int64)


def reduction(g: Growth) -> None:
    x = g.pick(lambda v: v.is_float or v.dtype in ("int64", "int32"))
    op = (
        g.random.choice(REDUCTIONS)
        if x.is_float
        else g.random.choice(("ReduceSum", "ReduceMax", "ReduceMin"))
    )
    axes = some_axes(g, x.rank)
    if 0 in x.shape and op not in ("ReduceSum", "ReduceSumSquare", "ReduceL1", "ReduceL2", "ReduceProd"):
        raise Refused  # greatest of nothing
    g.least_size = max(1, g.least_size)  # means of nothing are NaN, of which bounds make what they like
    noop = int(axes is None and g.chance(0.3))
    is_exact = op in ("ReduceSum", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceSumSquare")
    g.emit(op, x, axes, keepdims=g.random.randint(0, 1), noop_with_empty_axes=noop, exact=is_exact)


def position(g: Growth) -> None:
    x = g.pick(
        lambda v: v.rank > 0 and 0 not in v.shape and v.dtype in ("float32", "float64", "int64", "int32")
    )
    attrs = {"keepdims": g.random.randint(0, 1), "select_last_index": g.random.randint(0, 1)}
    g.emit(g.random.choice(("ArgMax", "ArgMin")), x, axis=g.axis(x), decides=True, **attrs)


def cumulative(g: Growth) -> None:
    x = g.pick(lambda v: v.rank > 0 and v.dtype in ("float32", "float64", "int64", "int32"))
    attrs = {"exclusive": g.random.randint(0, 1), "reverse": g.random.randint(0, 1)}
    g.emit("CumSum", x, np.array(g.axis(x), np.int64), exact=True, **attrs)


def top_k(g: Growth) -> None:
    x = g.pick(lambda v: v.rank > 0 and v.dtype in ("float32", "int64", "float64") and 0 not in v.shape)
    axis = g.axis(x)
    k = np.array([g.random.randint(1, x.shape[axis])], np.int64)
    g.emit("TopK", x, k, outputs=2, axis=axis, largest=g.random.randint(0, 1), decides=True)


def softmax(g: Growth) -> None:
    x = g.float(1)
    g.emit(g.random.choice(("Softmax", "Softmax", "LogSoftmax")), x, axis=g.axis(x))


def hardmax(g: Growth) -> None:
    x = g.pick(lambda v: v.rank > 0 and v.dtype == "float32" and 0 not in v.shape)
    g.emit("Hardmax", x, axis=g.axis(x), decides=True)


# Sizes


def sizes(g: Growth) -> None:
    x = g.pick()
    if g.chance(0.3):
        g.emit("Size", x, exact=True)
    else:
        g.emit("Shape", x, start=g.random.randint(-2, 1), exact=True)


def range_(g: Growth) -> None:
    x = g.pick(lambda v: v.rank > 0)
    (shape,) = g.emit("Shape", x, exact=True)
    (n,) = g.emit("Gather", shape, np.array(g.axis(x), np.int64), exact=True)
    (y,) = g.emit("Range", np.array(0, np.int64), n, np.array(g.random.choice((1, 2)), np.int64), exact=True)
    if g.chance(0.5):
        g.emit("Cast", y, to=1, exact=True)


def constant_of_shape(g: Growth) -> None:
    x = g.pick(lambda v: v.rank > 0)
    (shape,) = g.emit("Shape", x, exact=True)
    (zeros,) = g.emit("ConstantOfShape", shape, exact=True)
    if x.dtype == "float32":
        g.emit("Add", x, zeros, exact=True)


STEPS: dict[str, tuple[Step, float]] = {
    "unary": (unary, 1), "smooth": (smooth, 2), "of positive": (of_positive, 0.7), "rounding": (rounding, 0.5),
    "binary": (binary, 3), "variadic": (variadic, 0.5), "division": (division, 0.7), "power": (power, 0.5),
    "clip": (clip, 0.6), "comparison": (comparison, 0.6), "logic": (logic, 0.5), "bits": (bits, 0.3),
    "where": (where, 0.8), "cast": (cast, 1), "transpose": (transpose, 1.2), "reshape": (reshape, 1.2),
    "reshape of shape": (reshape_of_shape, 0.4), "flatten": (flatten, 0.4), "unsqueeze": (unsqueeze, 0.6),
    "squeeze": (squeeze, 0.6), "slice": (slice_, 1.2), "concat": (concat, 1), "split": (split, 0.7),
    "expand": (expand, 0.6), "tile": (tile, 0.4), "pad": (pad, 0.8), "trilu": (trilu, 0.3), "space": (space, 0.3),
    "gather": (gather, 0.8), "gather elements": (gather_elements, 0.4), "gather nd": (gather_nd, 0.3),
    "scatter": (scatter, 0.5), "one hot": (one_hot, 0.3), "reduction": (reduction, 2), "position": (position, 0.5),
    "cumulative": (cumulative, 0.5), "top k": (top_k, 0.4), "softmax": (softmax, 0.8), "hardmax": (hardmax, 0.1),
    "sizes": (sizes, 0.3), "range": (range_, 0.2), "constant of shape": (constant_of_shape, 0.2),
    **NETWORKS, **OTHERS, **SUBGRAPHS, **TEMPLATES, **HOST_VALUES, **ROWS,
}  # fmt: skip
"""Each step with how often it is tried, beside the others."""
